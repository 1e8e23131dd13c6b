"""What a run will cost, before it starts: parameters that learn, time and memory.

Counts the arithmetic of the linear maps (2 operations a weight and token forward, twice that backward; Kaplan et al. 2020,
arXiv 2001.08361, section 2.1) and divides by the speed of a matrix product measured here and now.
"""

from __future__ import annotations

import time

import torch

from model import MultitaskBERT
from sampling import Schedule

# The part of the matrix-product speed that a whole training or encoding step reaches on real tokens (measured, two CPU cores).
EFFICIENCY = 0.55
FLOAT_BYTES = 4
# Numbers of H floats that one layer keeps for the backward pass, a token (inputs of the linear maps, GELU, LayerNorms, masks).
KEPT_PER_LAYER = 24


def measured_speed(device: torch.device, hidden_size: int, seconds: float = 0.1) -> float:
    """Operations a second of a matrix product of the feed-forward block's shape."""
    x = torch.ones(512, hidden_size, device=device)
    w = torch.ones(hidden_size, 4 * hidden_size, device=device)

    def wait():
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    x @ w
    wait()
    rounds, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        x @ w
        wait()
        rounds += 1
    return rounds * 2 * x.numel() * w.shape[1] / (time.perf_counter() - began)


def linear_weights(module: torch.nn.Module) -> int:
    """Weights of the linear maps, each used once a token."""
    return sum(m.weight.numel() for m in module.modules() if isinstance(m, torch.nn.Linear))


def describe_cost(model: MultitaskBERT, data: dict, schedule: Schedule, option: str) -> str:
    """`learning   23,456,789 of 25,000,000 parameters; about 3 min on this device, 1.2 GB of memory`.

    data: task -> split -> TaskData.
    """
    learning = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    encoder = linear_weights(model.bert.encoder)
    epochs, operations = schedule.epochs, 0
    for name, splits in data.items():
        head = linear_weights(model.heads[name])
        train, dev = splits["train"].tokens, splits["dev"].tokens
        if option == "finetune":
            operations += 2 * (encoder + head) * (3 * epochs * train + (epochs + 2) * dev + splits["test"].tokens)
        else:  # the encoder runs once over every sentence
            operations += 2 * encoder * sum(rows.tokens for rows in splits.values())
            operations += 2 * head * (3 * epochs * train + (epochs + 2) * dev + splits["test"].tokens)
    seconds = operations / (EFFICIENCY * measured_speed(model.device, model.bert.config.hidden_size))
    batch = max(schedule.batch_size * float(splits["train"].lengths.mean()) for splits in data.values())
    layers = model.bert.config.num_hidden_layers if option == "finetune" else 0
    layers += max(len(head.attention) for head in model.heads.values())
    kept = batch * model.bert.config.hidden_size * layers * KEPT_PER_LAYER
    memory = FLOAT_BYTES * (total + 3 * learning + kept)
    return (
        f"learning   {learning:,} of {total:,} parameters; about {_duration(seconds)} on this device, "
        f"{memory / 1e9:.1f} GB of memory"
    )


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
