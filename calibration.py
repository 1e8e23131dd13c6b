"""Scale and offset of a pair's score: where training begins, and the offsets a model is judged and kept with.

calibrate: see TaskHead.calibrate. settled: offsets are learned under dropout, which makes two sentences less alike than
they are (|a - b| larger, their cosine smaller) and a logit less sure; so without it every pair looks more like a
paraphrase than in training, and more sentences very negative or very positive. What is judged has the offsets, one a
class, under which the mean probability of train rows is their share of the labels, as the minimum of the cross entropy
over an offset has it: calibration in the large (Van Calster et al. 2019, BMC Medicine 17:230).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import brentq, minimize
from scipy.special import expit, logit, logsumexp, softmax

from batches import TaskData
from distributed import ALONE, Processes
from evaluation import outputs_of
from heads import TaskHead
from model import MultitaskBERT

CALIBRATION_PAIRS = 256
SETTLING_ROWS, SETTLING_PAIRS = 4096, 1024  # of one text and of two, which cost more
SETTLED = ("cosine", "all", "none")
AT_ONCE = 64
LARGEST = 1e6  # score that an offset could still be added to
CLOSE = 1e-12  # so near to the share a mean probability has come to it


def calibrate(model: MultitaskBERT, rows: TaskData, seed: int) -> None:
    """Set the scale and offset of a pair's score from some training pairs and the share of positive labels."""
    if model.heads[rows.task.name].begins_calibrated:
        some = np.random.default_rng(seed).permutation(len(rows))[:CALIBRATION_PAIRS]
        ones = sum(example.label for example in rows.table) if rows.task.label_kind == "binary" else len(rows) / 2
        share = (ones + 1) / (len(rows) + 2)  # never 0 or 1, even if the labels are all the same
        model.calibrate(rows.batch(some).to(model.device), share)


def is_settled(head: TaskHead, which: str = "cosine") -> bool:
    """Whether a head is judged and kept with another offset than the learned one. which: one of SETTLED."""
    return which != "none" and head.class_bias is not None and (head.cosine or which == "all")


def rows_to_settle(rows: TaskData) -> int:
    """How many train rows are asked, at most, for each evaluation."""
    return min(len(rows), SETTLING_PAIRS if rows.task.is_pair else SETTLING_ROWS)


@contextmanager
def settled(
    model: MultitaskBERT, train: dict[str, TaskData], seed: int, which: str = "cosine", processes: Processes = ALONE
) -> Iterator[None]:
    """For as long as this lasts, these heads have the offsets of above; then the learned ones again, to the bit.

    which: one of SETTLED: the heads whose score is a cosine, all that give logits of classes, or none. Of several
    processes each asks all of these rows, and the first's offsets are everyone's.
    """
    heads = {name: model.heads[name] for name in train}
    offsets = {name: head.class_bias for name, head in heads.items() if is_settled(head, which)}
    learned = {name: offset.detach().clone() for name, offset in offsets.items()}
    try:
        with torch.no_grad():
            for name, offset in offsets.items():
                offset += torch.from_numpy(missing_offset(model, train[name], seed)).to(offset)
        processes.copy_from_first(offsets.values())
        yield
    finally:
        with torch.no_grad():
            for name, offset in offsets.items():
                offset.copy_(learned[name])


@torch.no_grad()
def missing_offset(model: MultitaskBERT, rows: TaskData, seed: int) -> np.ndarray:
    """What logits lack for their mean probability to be the labels' mean, on some train rows without dropout.

    (C,) of classes, () of a binary score. Labels are those that are trained on, so smoothed or mixed where they are. 0
    where a class has no label among them, or an output is no number or a huge one, which predicting says better.
    """
    some = np.random.default_rng(seed).permutation(len(rows))[: rows_to_settle(rows)]
    was_training = model.training
    model.eval()
    parts = np.array_split(some, -(-len(some) // AT_ONCE))
    found = [outputs_of(model, rows, part, rows.parts(part, None, model.device)).cpu() for part in parts]
    logits = torch.cat(found).double().numpy()
    model.train(was_training)
    labels = rows.labels[torch.from_numpy(some)]
    if logits.ndim > labels.ndim:
        labels = F.one_hot(labels, logits.shape[1])
    share = labels.double().mean(dim=0).numpy()
    if not abs(logits).max() < LARGEST or not (0 < share).all() or not (share < 1).all():
        return np.zeros_like(share)
    if logits.ndim == 1:
        missing = lambda more: expit(logits + more).mean() - share  # noqa: E731
        if abs(missing(0.0)) < CLOSE:  # or any offset would do, where all are sure
            return np.zeros_like(share)
        middle = logit(share)  # one less than puts all below the share, one more than puts all above
        return np.array(brentq(missing, middle - logits.max() - 1, middle - logits.min() + 1))

    def cross_entropy(more: np.ndarray) -> tuple[float, np.ndarray]:
        moved = logits + more
        return logsumexp(moved, axis=1).mean() - share @ more, softmax(moved, axis=1).mean(axis=0) - share

    return minimize(cross_entropy, np.zeros_like(share), jac=True, method="BFGS", options={"gtol": 1e-7}).x
