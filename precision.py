"""The number format of the arithmetic: float32, or half the bits where the chip is made for it.

Mixed precision after Micikevicius et al. 2018 (arXiv 1710.03740): weights, optimizer and sums stay float32, matrix
products run in 16 bits through torch.autocast; float16, whose smallest number is 6e-8, needs the loss multiplied so
that small gradients don't vanish.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from errors import InputError

PRECISIONS = ("auto", "fp32", "bf16", "fp16")
# From this compute capability on (Ampere) a chip has bfloat16 of its own; before it, torch emulates it, slowly.
NATIVE_BF16 = (8, 0)
DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """name: fp32, bf16 or fp16. why: in words, for the run's first lines."""

    name: str
    why: str

    @property
    def dtype(self) -> torch.dtype | None:
        """The 16-bit type for autocast; None computes in float32."""
        return DTYPES[self.name]

    def scaler(self, device: torch.device) -> torch.amp.GradScaler:
        """What multiplies the loss and skips steps that overflow; for other types than float16 it does nothing."""
        return torch.amp.GradScaler(device.type, enabled=self.name == "fp16")


FULL = Precision("fp32", "asked for")


def choose_precision(wanted: str, device: torch.device) -> Precision:
    """The precision asked for, or the best for the device. Raises InputError where the device can't compute in it."""
    if wanted not in PRECISIONS:
        raise InputError(f"--precision {wanted}: not known; known: {', '.join(PRECISIONS)}")
    if device.type != "cuda":
        if wanted == "auto":
            return Precision("fp32", f"the fastest on {device.type}")
        if device.type == "mps" and wanted != "fp32":
            raise InputError(f"--precision {wanted}: not supported on mps; leave it out")
        return Precision(wanted, "asked for")
    capability = torch.cuda.get_device_capability(device)
    native = capability >= NATIVE_BF16
    if wanted == "bf16" and not native:
        has = f"compute capability {capability[0]}.{capability[1]}"
        raise InputError(f"--precision bf16: this GPU ({has}) only emulates it; use fp16, or leave it out")
    if wanted != "auto":
        return Precision(wanted, "asked for")
    return Precision("bf16", "this GPU has it") if native else Precision("fp16", "with loss scaling: no bf16 here")
