"""Losses: what a task's head is trained to lower.

Cross entropy and binary cross entropy are torch's; the negative correlation is the one of the task-specific attention
poster (STS is judged by Pearson's correlation, so that is what its head is trained for). Those of ordered classes stand
in ordinal.py.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ordinal import coral, corn, squared_emd


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean over the batch of -log softmax(logits)[label]. logits (B, C), labels (B,) integers or (B, C) shares."""
    return F.cross_entropy(logits, labels)


def softmax_twice(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of softmax(logits) taken for logits: a mistake, kept to measure it. logits (B, C), labels (B,).

    The author's public code of the task-specific attention poster does that. Never below log(1 + (C - 1) / e), .905
    for five classes, and its gradient vanishes where the first softmax is sure, right or wrong.
    """
    return F.cross_entropy(logits.softmax(dim=1), labels)


def binary_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean over the batch of the binary cross entropy of sigmoid(logit). logits (B,), labels (B,) in [0, 1]."""
    return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))


def negative_pearson(scores: torch.Tensor, labels: torch.Tensor, eps: float = 1e-8) -> torch.Tensor:
    """Minus Pearson's correlation over the batch, in [-1, 1]. scores (B,), labels (B,).

    A batch in which one side is constant (a batch of one, too) has no correlation: there the loss is 0 and so is its
    gradient. Unlike a mean over examples it cannot be accumulated over parts of a batch.
    """
    labels = labels.to(scores.dtype)
    x, y = scores - scores.mean(dim=0), labels - labels.mean(dim=0)
    loss = -(x * y).sum(dim=0) / ((x.square().sum(dim=0) * y.square().sum(dim=0)) + eps**2).sqrt()
    # eps keeps the division finite; at constant scores it would leave a gradient of 1 / eps, larger than any other.
    constant = (scores.amax(dim=0) == scores.amin(dim=0)) | (labels.amax(dim=0) == labels.amin(dim=0))
    return loss.masked_fill(constant, 0.0)


# Those that are a mean over examples, so that the mean over a batch is a weighted sum of the means over its parts.
MEANS = {"cross_entropy", "softmax_twice", "binary_cross_entropy", "coral", "squared_emd"}

# Adding a loss is one function above and one line here; one that is a mean over rows may say so in MEANS, and costs
# less where a batch is cut into parts. Each takes (outputs, labels).
LOSSES = {
    "cross_entropy": cross_entropy,
    "softmax_twice": softmax_twice,
    "binary_cross_entropy": binary_cross_entropy,
    "negative_pearson": negative_pearson,
    "coral": coral,
    "corn": corn,
    "squared_emd": squared_emd,
}
