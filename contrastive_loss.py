"""The contrastive loss: of all sentences in a batch, which one goes with mine?

InfoNCE over cosines with in-batch negatives, as Gao, Yao and Chen 2021 (SimCSE, arXiv 2104.08821, equations 1 and 5)
have it, but that a sentence is no negative of itself, which is ours; the weight of a hard negative is added to its own
row's logit, as their code and Oh et al. 2022 (arXiv 2209.05972) do.

Letters: n rows of a batch, V views a row (anchor, positive, and with triples a hard negative), H hidden.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from errors import InputError

TEMPERATURE = 0.05  # SimCSE's, and that of the layer-wise paper


@dataclass(frozen=True)
class Objective:
    """temperature: cosines are divided by it. hard_negative_weight: added to the logit of a row's own hard negative."""

    temperature: float = TEMPERATURE
    hard_negative_weight: float = 0.0

    def __post_init__(self):
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise InputError(f"--temperature is {self.temperature}, wanted a number above 0")
        if not math.isfinite(self.hard_negative_weight):
            raise InputError(f"--hard_negative_weight is {self.hard_negative_weight}, wanted a number")


def contrastive_loss(vectors: torch.Tensor, sentences: torch.Tensor, objective: Objective) -> torch.Tensor:
    """Mean over the rows of -log softmax(logits)[own positive], a scalar.

    vectors: (n, V, H), V = 2 or 3: anchor, positive, hard negative. sentences: (n, V) integers, equal where two are the
    same sentence. Row i's logits are cos(anchor_i, candidate) / temperature over all n positives and, with triples, all
    n hard negatives, its own raised by hard_negative_weight. A candidate that is the sentence of anchor i or positive i
    is no negative of row i: it is left out of that row's softmax. Raises ValueError for other shapes.
    """
    if vectors.dim() != 3 or vectors.shape[1] not in (2, 3) or sentences.shape != vectors.shape[:2]:
        shapes = f"vectors {tuple(vectors.shape)}, sentences {tuple(sentences.shape)}"
        raise ValueError(f"contrastive_loss: {shapes}; wanted (n, 2 or 3, H) and (n, 2 or 3)")
    unit = F.normalize(vectors.float(), dim=-1)  # (n, V, H)
    anchors, candidates = unit[:, 0], unit[:, 1:].transpose(0, 1).flatten(0, 1)  # (n, H), (n or 2n, H)
    logits = anchors @ candidates.T / objective.temperature  # (n, n or 2n)
    n, own = len(unit), torch.arange(len(unit), device=unit.device)
    if vectors.shape[1] == 3 and objective.hard_negative_weight:
        raised = torch.zeros_like(logits)
        raised[own, n + own] = objective.hard_negative_weight
        logits = logits + raised
    names = sentences[:, 1:].T.flatten()  # (n or 2n,), in the order of the candidates
    equal = (names == sentences[:, :1]) | (names == sentences[:, 1:2])  # (n, n or 2n)
    equal[own, own] = False  # a row's positive is what is looked for
    return F.cross_entropy(logits.masked_fill(equal, -math.inf), own)
