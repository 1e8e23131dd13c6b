"""What a run will cost, before it starts: parameters that learn, time and memory.

Counts the arithmetic of the linear maps (2 operations a weight and token forward, twice that backward; Kaplan et al.
2020, arXiv 2001.08361, section 2.1) and divides by the speed of a matrix product measured here and now.
"""

from __future__ import annotations

import time

import torch

from model import MultitaskBERT
from sampling import Schedule

# The part of that speed which a whole training or encoding step reaches on real tokens (measured, two CPU cores).
EFFICIENCY = 0.55
FLOAT_BYTES = 4
# Rows of H floats that a layer keeps a token for the backward pass (inputs of linear maps, GELU, LayerNorms, masks).
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


def count_operations(model: MultitaskBERT, data: dict, epochs: int, option: str) -> int:
    """Additions and multiplications of the linear maps over the whole run. data: task -> split -> TaskData.

    Training runs forward and backward over train, each epoch; the dev files are predicted before the first epoch, after
    each, and with the best model; the test files once. Under pretrain the encoder sees every sentence once, repeated
    ones counted, and only heads are trained.
    """
    encoder, operations = linear_weights(model.bert.encoder), 0
    for name, splits in data.items():
        head = linear_weights(model.heads[name])
        train, dev, test = (splits[split].tokens for split in ("train", "dev", "test"))
        passes = 3 * epochs * train + (epochs + 2) * dev + test
        if option == "finetune":
            operations += 2 * (encoder + head) * passes
        else:
            operations += 2 * encoder * (train + dev + test) + 2 * head * passes
    return operations


def count_memory(model: MultitaskBERT, data: dict, batch_size: int, option: str) -> float:
    """Bytes of weights, gradients, the optimizer's two states and what an average batch keeps for the backward pass."""
    learning, total = _parameters(model)
    rows = max(float(splits["train"].lengths.mean()) for splits in data.values())
    layers = model.bert.config.num_hidden_layers if option == "finetune" else 0
    layers += max(len(head.attention) for head in model.heads.values())
    kept = batch_size * rows * model.bert.config.hidden_size * layers * KEPT_PER_LAYER
    return FLOAT_BYTES * (total + 3 * learning + kept)


def describe_cost(model: MultitaskBERT, data: dict, schedule: Schedule, option: str) -> str:
    """`learning   23,456,789 of 25,000,000 parameters; about 3 min on this device, 1.2 GB of memory`."""
    learning, total = _parameters(model)
    speed = EFFICIENCY * measured_speed(model.device, model.bert.config.hidden_size)
    seconds = count_operations(model, data, schedule.epochs, option) / speed
    memory = count_memory(model, data, schedule.batch_size, option)
    return (
        f"learning   {learning:,} of {total:,} parameters; about {_duration(seconds)} on this device, "
        f"{memory / 1e9:.1f} GB of memory"
    )


def _parameters(model: MultitaskBERT) -> tuple[int, int]:
    """How many numbers learn, of how many."""
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return sum(size for size, learns in sizes if learns), sum(size for size, _ in sizes)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
