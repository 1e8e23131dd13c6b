"""What a run, or the rest of one, will cost about, before it starts: parameters that learn, time and memory.

Counts the arithmetic of the linear maps (2 operations a weight and token forward, twice that backward; Kaplan et al.
2020, arXiv 2001.08361, section 2.1) and divides by the speed of a matrix product measured here and now. To that comes
what a step costs however few tokens it has, which is nearly all of it for a small model: measured here, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import torch

from calibration import AT_ONCE, is_settled, rows_to_settle
from evaluation import EVALUATION_BATCH
from gradients import random_state, set_random_state
from model import MultitaskBERT
from optimizer import AdamW
from r_drop import passes
from sampling import Schedule

# The part of that speed which a whole training or encoding step reaches on real tokens (measured, two CPU cores).
EFFICIENCY = 0.55
FLOAT_BYTES = 4
# Rows of H floats that a layer keeps a token for the backward pass (inputs of linear maps, GELU, LayerNorms, masks).
KEPT_PER_LAYER = 24
# Numbers that the optimizer's step is timed on where more than these learn: with gradient and state 64 MB, beyond most
# caches.
TIMED_NUMBERS = 1 << 22


@dataclass(frozen=True)
class Demands:
    """How a run trains, as far as it costs.

    passes: how often a batch goes through the model, forward and backward. sums: numbers kept for each that
    learns, beside its gradient and AdamW's two: sums of gradients (see Accumulation and PCGrad), a moving average.
    settle: whose offsets are settled for each evaluation. micro_batch: most rows at once, 0 for all.
    """

    option: str
    passes: int = 1
    sums: int = 0
    settle: str = "cosine"
    micro_batch: int = 0

    @classmethod
    def of(cls, args: argparse.Namespace, tasks: int) -> Demands:
        """Of a run of so many tasks with these options of multitask_classifier.py."""
        sums = 0 if args.accumulate == 1 else min(tasks, args.accumulate) if args.pcgrad else 1
        return cls(args.option, passes(args.r_drop), sums + bool(args.average), args.settle, args.micro_batch)


@dataclass(frozen=True)
class Left:
    """What of a run is still to do: task -> how often it goes through its rows; steps; how often dev is predicted.

    encodings: whether a frozen encoder is still to see the sentences.
    """

    rounds: dict[str, float]
    steps: int
    evaluations: int
    encodings: bool

    @classmethod
    def of(cls, schedule: Schedule, position: tuple[int, int] | None = None) -> Left:
        """position: epochs finished and steps made in the next one; None: nothing is done.

        Dev is predicted before the first epoch, after each, and with the best model.
        """
        epoch, step = position or (0, 0)
        steps = [task for later in range(epoch, schedule.epochs) for task in schedule.tasks_of(later)][step:]
        rounds = {task: steps.count(task) / batches for task, batches in schedule.batches.items()}
        new = position is None
        return cls(rounds, len(steps), new + schedule.epochs - epoch + 1, new)


def measured_speed(
    device: torch.device, hidden_size: int, seconds: float = 0.1, dtype: torch.dtype | None = None
) -> float:
    """Operations a second of a matrix product of the feed-forward block's shape. dtype: None is float32."""
    # A GPU wants more rows to be busy, and to be waited for less often than once a product.
    rows, at_once = (512, 1) if device.type == "cpu" else (4096, 20)
    x = torch.ones(rows, hidden_size, device=device, dtype=dtype)
    w = torch.ones(hidden_size, 4 * hidden_size, device=device, dtype=dtype)
    x @ w
    _wait(device)
    products, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(at_once):
            x @ w
        _wait(device)
        products += at_once
    return products * 2 * x.numel() * w.shape[1] / (time.perf_counter() - began)


def linear_weights(module: torch.nn.Module) -> int:
    """Weights of the linear maps, each used once a token."""
    return sum(m.weight.numel() for m in module.modules() if isinstance(m, torch.nn.Linear))


def measured_step(model: MultitaskBERT, data: dict) -> tuple[float, float]:
    """Seconds that a step of training, and a batch of evaluation, take however few tokens they have.

    Measured with the shortest train row of each task, the mean over the tasks; the model and the random numbers that
    are drawn next are as they were. data: task -> split -> TaskData.
    """
    was_training, device = model.training, model.device
    before = [(place, random_state(place)) for place in {torch.device("cpu"), device}]
    training, evaluation = [], []
    for name, splits in data.items():
        rows = splits["train"]
        batch = rows.batch(np.array([rows.lengths.argmin()])).to(device)
        if model.frozen and not model.config.frozen_dropout:
            with torch.no_grad():
                batch.states = model.encode(batch.input_ids, batch.layout, keep=model.heads[name].layers_wanted)
        model.train()
        training.append(_seconds(lambda batch=batch: model.loss(batch).backward(), device))
        model.zero_grad(set_to_none=True)
        model.eval()
        with torch.no_grad():
            evaluation.append(_seconds(lambda batch=batch: model.outputs(batch), device))
    model.train(was_training)
    for place, state in before:
        set_random_state(place, state)
    return float(np.mean(training)) + _optimizer_seconds(model), float(np.mean(evaluation))


def _optimizer_seconds(model: MultitaskBERT) -> float:
    """Seconds of the optimizer's step, from tensors like the first of those that learn."""
    alike, learning = [], [p for p in model.parameters() if p.requires_grad]
    for p in learning:
        if sum(q.numel() for q in alike) >= TIMED_NUMBERS:
            break
        alike.append(torch.nn.Parameter(torch.zeros_like(p)))
        alike[-1].grad = torch.ones_like(p)
    optimizer = AdamW(alike)
    share = sum(p.numel() for p in learning) / sum(p.numel() for p in alike)
    return share * _seconds(optimizer.step, model.device)


def _seconds(do: Callable[[], object], device: torch.device) -> float:
    """How long it takes the second time; the first one sets up what is set up once."""
    for _ in range(2):
        began = time.perf_counter()
        do()
        _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    """Until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def count_operations(model: MultitaskBERT, data: dict, left: Left, demands: Demands) -> float:
    """Additions and multiplications of the linear maps in all that is left. data: task -> split -> TaskData.

    Training runs forward and backward over train, as often as the schedule goes through a task's rows; the test files
    are predicted once. Under pretrain the encoder sees every sentence once, repeated ones counted, and only heads are
    trained; train as often as they are, where its dropout is on. For offsets that are settled some train rows are
    predicted, too.
    """
    encoder, operations = linear_weights(model.bert.encoder), 0
    for name, splits in data.items():
        head = linear_weights(model.heads[name])
        train, dev, test = (splits[split].tokens if split in splits else 0 for split in ("train", "dev", "test"))
        trained = demands.passes * left.rounds[name] * train
        tokens = 3 * trained + left.evaluations * dev + test
        settling = 0
        if is_settled(model.heads[name], demands.settle):  # not for the best model, which is kept as it was judged
            settling = (left.evaluations - 1) * train * rows_to_settle(splits["train"]) / len(splits["train"])
            tokens += settling
        if demands.option == "finetune":
            operations += 2 * (encoder + head) * tokens
        else:
            again = model.config.frozen_dropout
            encoded = trained + settling if again else left.encodings * train
            operations += 2 * encoder * (encoded + left.encodings * (dev + test)) + 2 * head * tokens
    return operations


def count_batches(data: dict, left: Left, settled: Collection[str] = ()) -> int:
    """Batches of evaluation in all that is left, those included that the offsets of the tasks `settled` are set by."""
    dev, test = (
        sum(len(list(s[split].chunks(EVALUATION_BATCH))) for s in data.values() if split in s)
        for split in ("dev", "test")
    )
    settling = sum(-(-rows_to_settle(data[name]["train"]) // AT_ONCE) for name in settled)
    return left.evaluations * dev + test + (left.evaluations - 1) * settling


def count_memory(model: MultitaskBERT, data: dict, batch_size: int, demands: Demands) -> float:
    """Bytes of weights, gradients, the optimizer's two states and what an average batch keeps for the backward pass."""
    learning, total = count_parameters(model)
    rows = max(float(splits["train"].lengths.mean()) for splits in data.values())
    layers = model.bert.config.num_hidden_layers if demands.option == "finetune" else 0
    layers += max(len(head.attention) for head in model.heads.values())
    at_once = min(batch_size, demands.micro_batch or batch_size)
    kept = demands.passes * at_once * rows * model.bert.config.hidden_size * layers * KEPT_PER_LAYER
    copies = total / 2 if model.autocast is not None else 0  # of the weights, in 16 bits
    return FLOAT_BYTES * (total + copies + (3 + demands.sums) * learning + kept)


def count_seconds(
    model: MultitaskBERT,
    data: dict,
    schedule: Schedule,
    demands: Demands,
    position: tuple[int, int] | None = None,
) -> float:
    """Seconds that all, or the rest, of a run takes about, at the speed of the moment. position: see Left.of."""
    left = Left.of(schedule, position)
    speed = EFFICIENCY * measured_speed(model.device, model.bert.config.hidden_size, dtype=model.autocast)
    step, batch = measured_step(model, data)
    settled = [name for name in data if is_settled(model.heads[name], demands.settle)]
    steps = demands.passes * left.steps * step + count_batches(data, left, settled) * batch
    return count_operations(model, data, left, demands) / speed + steps


def describe_cost(
    model: MultitaskBERT,
    data: dict,
    schedule: Schedule,
    demands: Demands,
    position: tuple[int, int] | None = None,
) -> str:
    """`learning   23,456,789 of 25,000,000 parameters; about 3 min on this device, 1.2 GB of memory`.

    position: see Left.of; then the time is that of the rest.
    """
    learning, total = count_parameters(model)
    seconds = count_seconds(model, data, schedule, demands, position)
    memory = count_memory(model, data, schedule.batch_size, demands)
    rest = "" if position is None else " more"
    return (
        f"learning   {learning:,} of {total:,} parameters; about {show_duration(seconds)}{rest} on this device, "
        f"{memory / 1e9:.1f} GB of memory"
    )


def count_parameters(model: MultitaskBERT) -> tuple[int, int]:
    """How many numbers learn, of how many."""
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return sum(size for size, learns in sizes if learns), sum(size for size, _ in sizes)


def show_duration(seconds: float) -> str:
    """`42 s`, `3 min`, `1.8 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
