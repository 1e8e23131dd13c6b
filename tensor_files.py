"""Tensors in a file with a checksum in its header, so that one flipped bit is found when it is read.

Follows safetensors (github.com/huggingface/safetensors): a JSON header, in which a writer may put texts, then the
tensors' bytes. Any bytes are numbers to it; of a file that others wrote, without a checksum, no more is known.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from files import atomic_write
from stopping import deferred

CHECKSUM = "checksum"
# What reading a damaged file raises.
DAMAGE = (SafetensorError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def checksum(tensors: dict[str, torch.Tensor], texts: dict[str, str]) -> str:
    """CRC-32 over the texts, and names, types, shapes and bytes of the tensors: 8 hex digits."""
    total = zlib.crc32("".join(texts[name] for name in sorted(texts)).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), total)
        total = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy(), total)
    return f"{total:08x}"


def write_tensors(path: Path, tensors: dict[str, torch.Tensor], texts: dict[str, str]) -> None:
    """One file with tensors, texts and their checksum, whole or not at all; the same bytes for the same content.

    The tensors may live on any device; no two may share memory (safetensors has no words for that). Raises InputError
    where it can't be written.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    texts = {**texts, CHECKSUM: checksum(tensors, texts)}
    content = memoryview(save(tensors, metadata=texts))
    end = 8 + int.from_bytes(content[:8], "little")
    # The library writes the texts in any order.
    header = json.loads(bytes(content[8:end]))
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    described = json.dumps(header, separators=(",", ":")).encode()
    described += b" " * (-len(described) % 8)
    with atomic_write(path, "wb") as file:
        file.write(len(described).to_bytes(8, "little") + described)
        file.write(content[end:])


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors and texts, on the CPU. Raises OSError, and one of DAMAGE for a file cut short or altered."""
    with deferred(), safe_open(path, framework="pt") as file:
        texts = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
    wanted = texts.get(CHECKSUM)
    found = checksum(tensors, {name: text for name, text in texts.items() if name != CHECKSUM})
    if wanted not in (None, found):
        raise ValueError(f"its checksum is {found}, and says {wanted[:8]}")
    return tensors, texts
