"""Ordered classes: losses and decisions that know that a 4 is nearer to a 3 than to a 0.

CORAL after Cao, Mirjalili and Raschka 2020 (arXiv 1901.07884): the proportional odds model of McCullagh 1980, by a sum
of binary losses in place of its likelihood; CORN after Shi, Cao and Raschka 2021 (arXiv 2111.08851); the squared earth
mover's distance after Hou, Yu and Samaras 2016 (arXiv 1611.05916). K classes 0 to K - 1; coral and corn have one number
for each threshold k between two neighbours, k = 0 to K - 2, that says whether the class is above k.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

THRESHOLD_LOSSES = ("coral", "corn")  # the losses whose head gives K - 1 numbers


class CoralOutput(nn.Linear):
    """logit k = w x + b_k, K - 1 of them, of P(class > k): (B, H) -> (B, K - 1). `thresholds` are the paper's b_k.

    All thresholds share the weights, so the logits of every row are in the order of the thresholds: P(class > k) falls
    with k, for all rows or for none (rank consistency; where the loss is least it does, their theorem 1). They begin
    where a score of 0 makes all classes equally likely, and so in order.
    """

    def __init__(self, hidden_size: int, classes: int):
        super().__init__(hidden_size, 1, bias=False)
        above = torch.arange(classes - 1, 0, -1) / classes  # P(class > k)
        self.thresholds = nn.Parameter(torch.logit(above))

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return super().forward(vectors) + self.thresholds


def _above(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(B, K - 1): 1 where the label is above the threshold, else 0."""
    return (labels[:, None] > torch.arange(logits.shape[1], device=logits.device)).to(logits.dtype)


def coral(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean over the rows of the sum over thresholds of the binary cross entropy of P(class > k) = sigmoid(logit k).

    logits (B, K - 1), labels (B,) integers from 0.
    """
    return F.binary_cross_entropy_with_logits(logits, _above(logits, labels), reduction="none").sum(dim=1).mean(dim=0)


def corn(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Binary cross entropy of P(class > k | class > k - 1) = sigmoid(logit k), where the condition is true.

    The mean over all such (row, threshold). logits (B, K - 1), labels (B,) integers from 0. How many there are depends
    on the labels, so this is no mean over rows.
    """
    asked = labels[:, None] >= torch.arange(logits.shape[1], device=logits.device)  # the first one of every row
    losses = F.binary_cross_entropy_with_logits(logits, _above(logits, labels), reduction="none")
    return (losses * (asked.to(losses.dtype) / asked.sum())).sum()  # divided first, or 16 bits might overflow


def squared_emd(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean over the rows of the sum over classes of (P(class <= k) - [label <= k]) ** 2, P from softmax(logits).

    Hou et al.'s EMD^2, in its form l = 2, for classes one step apart: the ranked probability score. logits (B, K),
    labels (B,) integers from 0.
    """
    wanted = 1 - _above(logits, labels)
    return (logits.softmax(dim=1).cumsum(dim=1) - wanted).square().sum(dim=1).mean(dim=0)


def log_probabilities(loss: str, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, K - 1) logits of coral or corn -> log P(class > k) and log P(class <= k), both (B, K - 1).

    The first fall with k and the second rise: those of coral are sorted, which changes none that are in order, and no
    decision ever, since that counts them. Those of corn are products of conditional probabilities, which can't but
    fall.
    """
    if loss == "coral":
        logits = logits.sort(dim=1, descending=True).values
        return F.logsigmoid(logits), F.logsigmoid(-logits)
    above = F.logsigmoid(logits).cumsum(dim=1)
    return above, torch.log(-torch.expm1(above.clamp(max=-torch.finfo(above.dtype).tiny)))


def class_scores(loss: str, logits: torch.Tensor) -> torch.Tensor:
    """(B, K - 1) logits of coral or corn -> (B, K) scores, the largest of which is the decided class.

    log min(P(class <= k), P(class >= k)): the largest is the median, the class above exactly those thresholds that are
    passed with a probability of more than one half, as both papers decide.
    """
    above, below = log_probabilities(loss, logits)
    sure = logits.new_zeros(len(logits), 1)
    return torch.minimum(torch.cat([below, sure], dim=1), torch.cat([sure, above], dim=1))


def probabilities(loss: str, logits: torch.Tensor) -> torch.Tensor:
    """(B, K - 1) logits of coral or corn -> (B, K), of each class P(class > k - 1) - P(class > k). Rows sum to 1."""
    above, _ = log_probabilities(loss, logits)
    sure, never = logits.new_ones(len(logits), 1), logits.new_zeros(len(logits), 1)
    return -torch.cat([sure, above.exp(), never], dim=1).diff(dim=1)


def decide(loss: str, logits: torch.Tensor) -> torch.Tensor:
    """(B, K - 1) logits of coral or corn -> classes (B,): how many thresholds are passed as more likely than not."""
    return class_scores(loss, logits).argmax(dim=1)
