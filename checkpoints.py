"""What of training a checkpoint holds: taken from a run, and put back once it is told that it is that run's own.

Its checksum says that the file is as it was written, not who wrote it: `check_checkpoint` says that it fits the run
that goes on. Names of tensors are `model.NAME`, `optimizer.NAME.exp_avg` and so on, `average.NAME`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

import state_dicts
from errors import InputError, quoted
from gradients import set_random_state

MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's, see optimizer.py
LARGEST_STEP = 10**12


def training_state(
    learning: dict[str, torch.Tensor], optimizer: torch.optim.Optimizer, averaged: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """name -> tensor: the weights that learn, the optimizer's state of each, and their averages where some are kept."""
    tensors = {f"model.{name}": p for name, p in learning.items()}
    for name, p in learning.items():
        state = optimizer.state.get(p, {})
        tensors.update({f"optimizer.{name}.{key}": torch.as_tensor(value) for key, value in state.items()})
    return tensors | {f"average.{name}": tensor for name, tensor in averaged.items()}


@torch.no_grad()
def restore_training_state(
    tensors: dict[str, torch.Tensor],
    learning: dict[str, torch.Tensor],
    optimizer: torch.optim.Optimizer,
    averaged: dict[str, torch.Tensor],
) -> None:
    """Put what `training_state` gave back in place, once `check_checkpoint` has passed it."""
    for name, p in learning.items():
        p.copy_(tensors[f"model.{name}"])
        prefix = f"optimizer.{name}."
        saved = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        if saved:
            step = int(saved.pop("step"))
            optimizer.state[p] = {"step": step, **{key: value.to(p.device) for key, value in saved.items()}}
    for name, tensor in averaged.items():
        tensor.copy_(tensors[f"average.{name}"])


def check_checkpoint(
    tensors: dict[str, torch.Tensor],
    state: object,
    learning: dict[str, torch.Tensor],
    averaged: dict[str, torch.Tensor],
    progress: type,
    path: Path,
) -> None:
    """Raises InputError unless these are the weights that learn, AdamW's state of them, and a Progress, all finite.

    averaged: the weights whose average has to be there, too; {} where none is kept. progress: the dataclass whose
    fields `state` has, beside loss_scale; one that came later may be missing.
    """
    for name, p in learning.items():
        _check_tensor(tensors, f"model.{name}", p, path)
        prefix = f"optimizer.{name}."
        there = {key.removeprefix(prefix) for key in tensors if key.startswith(prefix)}
        if not there:  # it has had no gradient yet
            continue
        if there != {"step", *MOMENTS}:
            raise _foreign(path, f"{prefix}*", f"{', '.join(sorted(there))}, wanted step, {', '.join(MOMENTS)}")
        step = tensors[f"{prefix}step"]
        if step.numel() != 1 or step.is_floating_point() or not 0 < int(step) < LARGEST_STEP:
            raise _foreign(path, f"{prefix}step", f"{quoted(step.tolist())}, wanted a whole number above 0")
        for moment in MOMENTS:
            _check_tensor(tensors, prefix + moment, p, path)
    for name, p in averaged.items():
        _check_tensor(tensors, f"average.{name}", p, path)
    for name in tensors:
        kind, _, rest = name.partition(".")
        known = {"model": learning, "average": averaged, "optimizer": learning}.get(kind)
        if known is not None and (rest if kind != "optimizer" else rest.rpartition(".")[0]) not in known:
            raise _foreign(path, name, "a tensor that the run doesn't have")
    for name, found in tensors.items():
        if name.startswith("random.") and (found.dtype != torch.uint8 or found.dim() != 1):
            raise _foreign(path, name, f"{found.dtype} {tuple(found.shape)}, wanted a generator's bytes")
    _check_state(state, progress, path)


def check_best(best: Path, path: Path) -> None:
    """Raises InputError, before hours of training, if the best model so far can't be what the run ends with."""
    try:
        state_dicts.read_state(best)
    except InputError as error:
        raise InputError(f"{error}; or delete {path.parent} and resume, which starts over") from error


def restore_random_state(device: torch.device, state: torch.Tensor, path: Path) -> None:
    """Make dropout on this device draw as it did. Raises InputError for what is no generator's state."""
    try:
        set_random_state(device, state)
    except RuntimeError as error:
        raise _foreign(path, f"random.{device.type}", f"no state of a generator ({error})") from error


def _check_tensor(tensors: dict[str, torch.Tensor], name: str, like: torch.Tensor, path: Path) -> None:
    found = tensors.get(name)
    if found is None:
        raise _foreign(path, name, "missing")
    if (found.dtype, found.shape) != (like.dtype, like.shape):
        shapes = f"{found.dtype} {tuple(found.shape)}, wanted {like.dtype} {tuple(like.shape)}"
        raise _foreign(path, name, shapes)
    if not torch.isfinite(found).all():
        raise _foreign(path, name, "not finite")


def _check_state(state: object, progress: type, path: Path) -> None:
    if not isinstance(state, dict) or not isinstance(state.get("loss_scale"), dict):
        raise _foreign(path, "its state", f"{quoted(state)}, wanted an object with loss_scale")
    kinds = {field.name: _KINDS[field.type.partition("[")[0]] for field in dataclasses.fields(progress)}
    for name, value in state.items():
        if name == "loss_scale":
            continue
        if name not in kinds or not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise _foreign(path, name, f"{quoted(value)}, which no run writes there")
        if isinstance(value, int) and not 0 <= value < LARGEST_STEP:
            raise _foreign(path, name, f"{quoted(value)}, wanted a whole number from 0 up")
        if isinstance(value, list) and not all(isinstance(row, dict) for row in value):
            raise _foreign(path, name, "a list, wanted one of objects")
    for task, sums in state.get("losses", {}).items():
        if not (isinstance(sums, list) and len(sums) == 2 and all(type(number) in (int, float) for number in sums)):
            raise _foreign(path, f"losses.{task}", f"{quoted(sums)}, wanted a sum and a count")


_KINDS = {"int": int, "float": (int, float), "list": list, "dict": dict}


def _foreign(path: Path, what: str, found: str) -> InputError:
    return InputError(
        f"{path}: {what} is {found}: it belongs to another run: delete {path.parent} and resume, which starts over"
    )
