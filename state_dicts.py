"""State dicts: a model's tensors in a folder, read without running anyone's code, and what of them fits a model.

Follows the Hugging Face layout, model.safetensors or pytorch_model.bin, and BERT's names, old ones, too. Where the
folder comes from, and whether its hash is known, is weights.py's.
"""

from __future__ import annotations

import os
import pickle
import struct
import warnings
from collections.abc import Collection
from pathlib import Path

import torch

from errors import InputError
from files import cannot
from stopping import deferred
from tensor_files import DAMAGE, read_tensors, write_tensors
from weights import SAFETENSORS, tensor_file

AGAIN = "copy it again from where it came"
# What torch.load raises for files cut short or altered, as found by flipping bytes in and cutting real ones.
UNPICKLING_ERRORS = (
    pickle.UnpicklingError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)


def read_state(folder: str | os.PathLike) -> dict[str, torch.Tensor]:
    """Name -> tensor, on the CPU, from a folder's model.safetensors, else from its pytorch_model.bin.

    A pickle is read by torch's restricted reader, which builds tensors and nothing else. Raises InputError, one line
    with file and remedy, for a file that is absent, cut short, no tensor file at all, that asks to run code, or in
    which a number is NaN or infinite.
    """
    path = tensor_file(Path(folder))
    _refuse_impostors(path)
    state = _read_tensors(path)
    for name, tensor in state.items():
        # Later the loss would be NaN, and the learning rate blamed. As single precision, which is what the model takes.
        if tensor.is_floating_point() and not tensor.float().isfinite().all():
            raise InputError(f"{path}: {name} holds numbers that are NaN or infinite: {AGAIN}")
    return state


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    if path.name == SAFETENSORS:
        try:
            return read_tensors(path)[0]
        except DAMAGE as error:
            raise InputError(f"{path}: cut short or altered ({error}): {AGAIN}") from error
        except OSError as error:
            raise cannot("read", path, error) from error
    try:
        with deferred(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of odd pickles at length; a refusal says it in one line
            state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise cannot("read", path, error) from error
    except UNPICKLING_ERRORS as error:
        # torch explains at length; the one thing to know is whether the file wanted to call something.
        if isinstance(error, pickle.UnpicklingError) and ("GLOBAL" in str(error) or "reduce" in str(error)):
            raise InputError(
                f"{path}: holds more than tensors and could run code, so it was not loaded: "
                f"have its author save it as {SAFETENSORS}"
            ) from error
        raise InputError(f"{path}: cut short, altered or not a torch file: {AGAIN}") from error
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in state.items()
    ):
        raise InputError(f"{path}: a dictionary of tensors is wanted: save the model's state_dict() alone")
    return dict(state)


def refuse_whole_numbers(name: str, tensor: torch.Tensor, source: str) -> None:
    """Raises InputError for a weight that is of integers, booleans or complex numbers, which a copy would convert."""
    if not tensor.is_floating_point():
        raise InputError(f"{source}: {name} holds {tensor.dtype}, wanted floating-point numbers: {AGAIN}")


def write_state(folder: str | os.PathLike, state: dict[str, torch.Tensor]) -> None:
    """Writes name -> tensor as the folder's model.safetensors, with a checksum: see tensor_files.write_tensors."""
    # transformers loads a file only if it says which library's tensors these are.
    write_tensors(Path(folder) / SAFETENSORS, state, {"format": "pt"})


def _refuse_impostors(path: Path) -> None:
    """Raises InputError for the two small texts that downloads leave in the place of weights."""
    try:
        with open(path, "rb") as file:
            head = file.read(64)
    except OSError as error:
        raise cannot("read", path, error) from error
    if not head:
        raise InputError(f"{path}: empty: {AGAIN}")
    if head.startswith(b"version https://git-lfs"):
        raise InputError(f"{path}: a Git LFS pointer, not the weights: run `git lfs pull` where it came from")
    if head.lstrip().lower().startswith((b"<!doctype", b"<html")):
        raise InputError(f"{path}: a web page, not weights: download it again, past the proxy or login page")


def fitting(state: dict[str, torch.Tensor], wanted: dict[str, tuple[int, ...]], source: str) -> dict[str, torch.Tensor]:
    """A checkpoint's tensors of these names and shapes, under our names; a pooler may be missing.

    Raises InputError naming what is missing, misshapen or of no floating-point numbers.
    """
    found = _rename(state, wanted)
    missing = [name for name in wanted if name not in found]
    if missing == ["pooler.dense.weight", "pooler.dense.bias"]:
        missing = []  # left as initialized
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise InputError(
            f"{source}: no weights for {', '.join(missing[:5])}{more}: "
            "not a BERT checkpoint, or config.json belongs to another model"
        )
    for name, tensor in found.items():
        if tensor.shape != wanted[name]:
            raise InputError(
                f"{source}: {name} is {tuple(tensor.shape)}, config.json asks for {wanted[name]}: "
                "weights and config belong to different models"
            )
        refuse_whole_numbers(name, tensor, source)
    return found


def _rename(state: dict[str, torch.Tensor], wanted: Collection[str]) -> dict[str, torch.Tensor]:
    """The checkpoint's tensors that we want, under our names: without prefix, gamma/beta as weight/bias."""
    found = {}
    for name, tensor in state.items():
        name = name.removeprefix("bert.").replace("LayerNorm.gamma", "LayerNorm.weight")
        name = name.replace("LayerNorm.beta", "LayerNorm.bias")
        if name in wanted:
            found[name] = tensor
    return found
