"""The files by which sentence_transformers' SentenceTransformer loads a folder of ours, or says why it can't.

Follows that library's layout since its version 2: modules.json lists the modules, each with a folder and a config.
"""

from __future__ import annotations

from pathlib import Path

import torch

import state_dicts
from errors import InputError
from files import read_json, write_json
from pooling import Pooler

# Pooler -> the library's pooling modes that say the same, in the order in which it puts their vectors side by side.
MODES = {"first": ("cls",), "mean": ("mean",), "max": ("max",), "cls": ("cls",), "mean_max": ("max", "mean")}
KEYS = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "mean_sqrt_len": "mean_sqrt_len_tokens"}
TYPES = "sentence_transformers.models"


def write_sentence_layout(folder: Path, name: str, pooler: Pooler, dimension: int, max_length: int) -> None:
    """Write modules.json and what it names, beside config.json and the weights.

    Vectors come out normalized, as those of SentenceEncoder.encode do. A pooler that the library's modules can't
    express gets a modules.json that it refuses with a line saying so: without one it would take the mean of the tokens,
    and answer with other vectors.
    """
    modules = [("", "Transformer")]
    if name in MODES:
        modes = {f"pooling_mode_{key}": mode in MODES[name] for mode, key in KEYS.items()}
        write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": dimension, **modes})
        modules.append(("1_Pooling", "Pooling"))
        if hasattr(pooler, "dense"):
            _write_dense(folder / "2_Dense", name, pooler.dense)
            modules.append(("2_Dense", "Dense"))
        modules.append((f"{len(modules)}_Normalize", "Normalize"))
        found = [(path, f"{TYPES}.{kind}") for path, kind in modules]
    else:
        found = [("", refusal(name))]
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    rows = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(found)]
    write_json(folder / "modules.json", rows)


def pooler_in_layout(folder: Path) -> str | None:
    """The pooler that a folder of that library's names, if it is one without weights of its own; None where none is.

    Raises InputError for a pooling that nothing here can do: the mean in its place would give other vectors.
    """
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return None
    found = read_json(path)
    modes = found if isinstance(found, dict) else {}
    named = modes.get("pooling_mode")  # newer versions name the modes, older ones have a flag for each
    if named is None:
        named = [
            key.removeprefix("pooling_mode_") for key, on in modes.items() if on and key.startswith("pooling_mode_")
        ]
    named = named if isinstance(named, list) else [named]
    known = {**{key: mode for mode, key in KEYS.items()}, **{mode: mode for mode in KEYS}}
    names = tuple(known.get(one, one) if isinstance(one, str) else "" for one in named)
    for pooler in ("first", "mean", "max"):
        if MODES[pooler] == names and not (folder / "2_Dense").is_dir():
            return pooler
    said = ", ".join(map(str, named)) or "nothing"
    raise InputError(f"{path}: pools by {said}, which is no pooler here: choose one of {', '.join(MODES)} by --pooler")


def refusal(pooler: str) -> str:
    """What stands for a module's type where there is none: the library quotes it, and ends."""
    return f"pooler {pooler} can't be expressed by SentenceTransformer: load this folder with SentenceEncoder"


def _write_dense(folder: Path, name: str, dense: torch.nn.Linear) -> None:
    """tanh(W x + b) behind the pooling."""
    weight = dense.weight
    if name == "mean_max":  # ours reads [mean; max], the library makes [max; mean]
        mean, largest = weight.chunk(2, dim=1)
        weight = torch.cat([largest, mean], dim=1)
    sizes = {"in_features": weight.shape[1], "out_features": weight.shape[0], "bias": True}
    write_json(folder / "config.json", {**sizes, "activation_function": "torch.nn.modules.activation.Tanh"})
    state_dicts.write_state(folder, {"linear.weight": weight, "linear.bias": dense.bias})
