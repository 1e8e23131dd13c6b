"""The nearest vectors by inner product, exactly: blocked matrix products, of which only the best are kept.

The bound on a product's rounding error is Higham's (Accuracy and Stability of Numerical Algorithms, section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from errors import InputError

# Vectors and queries of one product: its result, 8 MB, stays in a core's cache.
BLOCK, GROUP = 8192, 256
# A block with more candidates than this many times top_k for each query is looked through for its own best first.
CROWDED = 4
# Pairs whose products are summed at once in double precision: 25 MB for vectors of 384.
PAIRS = 4096
# No cosine is larger, whatever was rounded; a damaged vector mostly gives more, or NaN.
LARGEST = 1.01


def find_nearest(
    queries: np.ndarray,
    vectors: np.ndarray,
    top_k: int,
    threshold: float | None = None,
    progress: Callable[[int], None] = lambda vectors: None,
) -> tuple[np.ndarray, np.ndarray]:
    """(Q, H) queries and (N, H) vectors of length one, float32 or float16 -> scores (Q, k), places in `vectors` (Q, k).

    k is top_k, or N where there are fewer. Scores (float32) descend, and of equal ones the first place comes first;
    where fewer than k reach the threshold, the rest is -inf at place -1. Vectors are read a block at a time, so they
    may be a file larger than memory. progress is told how many have been.

    A score depends on its two vectors alone, not on what else is asked or how the product is cut: products in float32
    only choose candidates, with room for all their rounding, whose sums are then taken in double precision.
    """
    if top_k < 1:
        raise ValueError(f"top_k={top_k}: at least 1 is needed")
    k, size = min(top_k, len(vectors)), vectors.shape[1]
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
    places = np.full((len(queries), k), -1, dtype=np.int64)
    least = np.float32(-np.inf if threshold is None else threshold)
    # A float32 sum of H products is off by at most H/2 epsilon, and two are compared; 2 more for rounding what is kept,
    # and 1.01 for lengths that are not quite one.
    slack = np.float32(1.01 * (size + 2) * np.finfo(np.float32).eps)
    limits = np.full(len(queries), least - slack)  # what a product has to reach
    buffer = torch.empty(min(GROUP, len(queries)) * min(BLOCK, len(vectors)))
    for start in range(0, len(vectors), BLOCK):
        block = np.array(vectors[start : start + BLOCK], dtype=np.float32)  # (b, H)
        for first in range(0, len(queries), GROUP):
            group = slice(first, first + GROUP)
            asked = queries[group]  # (g, H)
            products = buffer[: len(asked) * len(block)].view(len(asked), len(block))
            torch.mm(torch.from_numpy(asked), torch.from_numpy(block).T, out=products)
            if not products.abs().max() <= LARGEST:
                _refuse_damaged(asked, block, start)
            rows, columns = _candidates(products, limits[group], k, slack)
            found = pair_scores(asked, block, rows, columns)
            enough = found >= least
            rows, columns, found = rows[enough], columns[enough], found[enough]
            if len(rows):
                _keep_best(scores[group], places[group], rows, found, columns + start)
                limits[group] = np.maximum(limits[group], scores[group][:, -1] - slack)
        progress(min(start + BLOCK, len(vectors)))
    return scores, places


def _refuse_damaged(queries: np.ndarray, block: np.ndarray, start: int) -> None:
    """Raises InputError naming the first vector that isn't of length one, or ValueError if it is a query."""
    for what, vectors in (("queries", queries), ("vectors", block)):
        with np.errstate(all="ignore"):
            lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
        wrong = np.flatnonzero(~(lengths <= LARGEST))
        if len(wrong) and what == "queries":
            raise ValueError(f"query {wrong[0]} is of length {lengths[wrong[0]]:.4g}, wanted 1")
        if len(wrong):
            raise InputError(
                f"the vector of document number {start + wrong[0] + 1:,} is of length {lengths[wrong[0]]:.4g}, not 1: "
                "it was damaged after it was written: index again in another folder"
            )


def _candidates(products: torch.Tensor, limits: np.ndarray, k: int, slack: np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the products (g, b) that may be among the k best, in order."""
    reached = (products >= torch.from_numpy(limits)[:, None]).numpy()
    if np.count_nonzero(reached) > CROWDED * k * len(products) and k < products.shape[1]:
        own = products.topk(k, dim=1).values[:, -1].numpy() - slack
        reached = (products >= torch.from_numpy(np.maximum(limits, own))[:, None]).numpy()
    flat = np.flatnonzero(reached)
    return np.divmod(flat, products.shape[1])


def pair_scores(queries: np.ndarray, block: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Inner products of these pairs, summed in double precision, in an order that depends on H alone; float32."""
    out = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), PAIRS):
        part = slice(start, start + PAIRS)
        products = queries[rows[part]].astype(np.float64)  # (p, H)
        products *= block[columns[part]]
        out[part] = products.sum(axis=1)
    return out


def _keep_best(scores: np.ndarray, places: np.ndarray, rows: np.ndarray, found: np.ndarray, where: np.ndarray) -> None:
    """Merge candidates (of these rows, with these scores, at these places) into the best so far, (g, k), in place."""
    k = scores.shape[1]
    touched, inverse = np.unique(rows, return_inverse=True)
    old = np.repeat(np.arange(len(touched)), k)
    all_rows = np.concatenate([old, inverse])
    all_scores = np.concatenate([scores[touched].ravel(), found])
    all_places = np.concatenate([places[touched].ravel(), where])
    # What is not there yet, at place -1, has the score -inf: behind everything found.
    order = np.lexsort((all_places, -all_scores, all_rows))
    starts = np.searchsorted(all_rows[order], np.arange(len(touched)))
    best = order[starts[:, None] + np.arange(k)]  # (t, k)
    scores[touched], places[touched] = all_scores[best], all_places[best]
