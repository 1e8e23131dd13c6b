"""Whose learning rate: the heads' own, and less for the encoder's lower layers.

Layer-wise decay after Howard and Ruder 2018 (arXiv 1801.06146, discriminative fine-tuning), as ELECTRA uses it (Clark
et al. 2020, arXiv 2003.10555, appendix A): the last layer learns with the rate, each layer below with `decay` times
that of the layer above it, the embeddings with once more `decay` than the first layer.
"""

from __future__ import annotations

import re

import torch

LAYER = re.compile(r"(?:^|\.)encoder\.layer\.(\d+)\.")
EMBEDDINGS = re.compile(r"(?:^|\.)embeddings\.")


def depth(name: str, layers: int) -> int | None:
    """How far below the last layer a parameter stands: 0 there, `layers` for embeddings, None outside the encoder."""
    found = LAYER.search(name)
    if found:
        return layers - 1 - int(found[1])
    return layers if EMBEDDINGS.search(name) else None


def parameter_groups(
    parameters: dict[str, torch.nn.Parameter], lr: float, decay: float = 1.0, head_lr: float | None = None
) -> list[dict]:
    """Groups for an optimizer, each {"params": [...], "lr": rate}; in all, every parameter once.

    Weight decay is the same in all of them, as in the course's starter; BERT's own optimizer leaves biases and
    LayerNorms out, which a group with "weight_decay": 0 would do here.

    parameters: name -> parameter, of a model with a BertModel in it. decay: in (0, 1]. head_lr: of what stands outside
    the encoder's layers and embeddings; None is lr.
    """
    numbers = [int(found[1]) for found in map(LAYER.search, parameters) if found]
    layers = max(numbers, default=-1) + 1
    groups: dict[float, list[torch.nn.Parameter]] = {}
    for name, parameter in parameters.items():
        below = depth(name, layers)
        rate = (lr if head_lr is None else head_lr) if below is None else lr * decay**below
        groups.setdefault(rate, []).append(parameter)
    return [{"params": members, "lr": rate} for rate, members in groups.items()]
