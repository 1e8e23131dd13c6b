"""PCGrad: where the gradients of a step's tasks conflict, each gives up what would undo another's progress.

Yu et al. 2020, "Gradient Surgery for Multi-Task Learning" (arXiv 2001.06782), algorithm 1. Two gradients conflict where
their dot product is negative; one then loses its part along the other, which leaves it at a right angle.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement

import numpy as np
import torch

from accumulation import Accumulation


class PCGrad(Accumulation):
    """The mean of several batches' gradients, of which each task's was projected first.

    Done for parameters that all tasks of the step use, which is the encoder; a head's gradient is its task's alone. Two
    batches of one task are one gradient, their sum. It keeps a sum for each task, so as many times the memory, and a
    step takes the time of a few of the optimizer's.
    """

    def key(self, task: str) -> str:
        return task

    def combined(self, step: int) -> list[torch.Tensor | None]:
        """For each parameter the sum, of its shape, of the tasks' gradients, projected where they share it."""
        sums = [self.sums[task] for task in sorted(self.sums)]
        shared = [all(part is not None for part in parts) for parts in zip(*sums, strict=True)]
        vectors = [[part for part, use in zip(parts, shared, strict=True) if use] for parts in sums]
        if len(sums) < 2 or not any(shared):
            return super().combined(step)
        products = dot_products(vectors)
        if not np.isfinite(products).all() or (products >= 0).all():  # what isn't finite is seen where it always is
            return super().combined(step)
        shares = projected(products, np.random.default_rng([self.seed, step]))
        return [
            sum(part * share for part, share in zip(parts, shares.tolist(), strict=True)) if use else self.total(parts)
            for parts, use in zip(zip(*sums, strict=True), shared, strict=True)
        ]


def projected(products: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Coefficients c (T,), of T tasks: the projected gradients add up to the sum of c_i g_i. All 1 without conflict.

    products: their dot products (T, T), from which everything follows, since what is left of one is a sum of all.
    Against which of the others each is projected first is drawn at random, as in the paper.
    """
    total = np.zeros(len(products))
    for own in range(len(products)):
        shares = np.eye(len(products))[own]
        for other in rng.permutation(len(products)):
            along = shares @ products[:, other]
            if other != own and along < 0:
                shares[other] -= along / products[other, other]
        total += shares
    return total


def dot_products(vectors: Sequence[Sequence[torch.Tensor]]) -> np.ndarray:
    """Of T gradients, each in the same parts, with each other: (T, T) float64, on a GPU when it has caught up."""
    pairs = list(combinations_with_replacement(range(len(vectors)), 2))
    both = (zip(vectors[i], vectors[j], strict=True) for i, j in pairs)
    found = torch.stack([sum(torch.dot(a.flatten(), b.flatten()) for a, b in parts) for parts in both])
    products = np.empty((len(vectors), len(vectors)))
    for (i, j), product in zip(pairs, found.tolist(), strict=True):
        products[i, j] = products[j, i] = product
    return products
