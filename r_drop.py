"""R-Drop: a batch goes through the model twice, and its answers, which differ by dropout alone, are pulled together.

Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks" (arXiv 2106.14448).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from batches import Batch
from gradients import Gradients
from losses import negative_pearson
from ordinal import THRESHOLD_LOSSES
from tasks import Task

PASSES = 2


def passes(alpha: float) -> int:
    """How often a batch goes through the model when trained with this --r_drop, where 0 is none."""
    return PASSES if alpha else 1


@dataclass
class RDrop(Gradients):
    """Gradients of the mean of both passes' losses plus alpha times how far their answers are apart.

    The paper's formula has the sum of both losses, so that its alpha is twice ours; and its published code sums the
    divergence over a batch's rows, where this is their mean. Two passes cost twice the time and memory of one.
    """

    alpha: float = 1.0

    def __post_init__(self):
        once = self.outputs
        self.outputs = lambda batch: torch.stack([once(batch) for _ in range(PASSES)], dim=1)  # (n, 2, ...)

    def is_mean(self, part: Batch) -> bool:
        return super().is_mean(part) and part.task.label_kind != "score"  # how far scores are apart is a correlation

    def loss(self, part: Batch, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss, a scalar, of outputs (n, 2, ...) and labels (n,)."""
        first, second = outputs.unbind(dim=1)
        both = (part.loss(first, labels) + part.loss(second, labels)) / 2
        return both + self.alpha * divergence(part.task, first, second)


def divergence(task: Task, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """How far two answers for the same rows are apart, a scalar, 0 where they are the same. Both (n, ...).

    The mean over rows of the mean of both Kullback-Leibler divergences, that is of sum over classes of
    (p - q)(log p - log q) / 2; of a binary task, and of losses with a number between a class and the next, of
    sigmoid's probabilities, summed over the numbers. Of scores, which have no scale, 1 minus their correlation, where
    the paper has the squared difference.
    """
    if task.label_kind == "score":
        return 1 + negative_pearson(first, second)
    if task.label_kind == "binary" or task.loss in THRESHOLD_LOSSES:
        apart = (first.sigmoid() - second.sigmoid()) * (first - second)  # log(p / (1 - p)) is the number itself
    else:
        p, q = first.log_softmax(dim=-1), second.log_softmax(dim=-1)
        apart = (p.exp() - q.exp()) * (p - q)
    return apart.reshape(len(apart), -1).sum(dim=-1).mean(dim=0) / 2
