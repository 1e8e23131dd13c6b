"""Scale and offset of a pair's score: where training begins, and the offset a model is judged and kept with.

calibrate: see TaskHead.calibrate. settled: the offset is learned while dropout makes two sentences less alike than they
are (|a - b| larger, their cosine smaller), so without it every pair looks more like a paraphrase than in training. What
is judged has the offset under which the mean probability of train pairs is their share of positive labels, as the
minimum of the loss over an offset has it: calibration in the large (Van Calster et al. 2019, BMC Medicine 17:230).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import expit

from batches import TaskData
from distributed import ALONE, Processes
from evaluation import outputs_of
from heads import TaskHead
from model import MultitaskBERT

CALIBRATION_PAIRS = 256
SETTLING_PAIRS = 1024
AT_ONCE = 64
LARGEST = 1e6  # score that an offset could still be added to
FAR = 40.0  # a logit beyond all others by this much is a probability of 0 or 1


def calibrate(model: MultitaskBERT, rows: TaskData, seed: int) -> None:
    """Set the scale and offset of a pair's score from some training pairs and the share of positive labels."""
    if model.heads[rows.task.name].begins_calibrated:
        some = np.random.default_rng(seed).permutation(len(rows))[:CALIBRATION_PAIRS]
        ones = sum(example.label for example in rows.table) if rows.task.label_kind == "binary" else len(rows) / 2
        share = (ones + 1) / (len(rows) + 2)  # never 0 or 1, even if the labels are all the same
        model.calibrate(rows.batch(some).to(model.device), share)


def is_settled(head: TaskHead) -> bool:
    """Whether a head is judged and kept with another offset than the learned one."""
    return head.cosine and head.offset is not None


@contextmanager
def settled(
    model: MultitaskBERT, train: dict[str, TaskData], seed: int, processes: Processes = ALONE
) -> Iterator[None]:
    """For as long as this lasts, every cosine score has the offset of above; then the learned one again, to the bit."""
    heads = {name: model.heads[name] for name in train}
    offsets = {name: head.offset for name, head in heads.items() if is_settled(head)}
    learned = {name: offset.detach().clone() for name, offset in offsets.items()}
    try:
        with torch.no_grad():
            for name, offset in offsets.items():
                offset += missing_offset(model, train[name], seed)
        processes.copy_from_first(offsets.values())
        yield
    finally:
        with torch.no_grad():
            for name, offset in offsets.items():
                offset.copy_(learned[name])


@torch.no_grad()
def missing_offset(model: MultitaskBERT, rows: TaskData, seed: int) -> float:
    """What a binary score lacks for its mean probability to be the labels' mean, on some train pairs without dropout.

    0 where all their labels are the same, or a score is no number or a huge one, which predicting says better.
    """
    some = np.random.default_rng(seed).permutation(len(rows))[:SETTLING_PAIRS]
    was_training = model.training
    model.eval()
    parts = np.array_split(some, -(-len(some) // AT_ONCE))
    found = [outputs_of(model, rows, part, rows.parts(part, None, model.device)).cpu() for part in parts]
    scores = torch.cat(found).double().numpy()
    model.train(was_training)
    share = rows.labels[torch.from_numpy(some)].double().mean().item()
    if not 0 < share < 1 or not abs(scores).max() < LARGEST:
        return 0.0
    return brentq(lambda more: expit(scores + more).mean() - share, -scores.max() - FAR, -scores.min() + FAR)
