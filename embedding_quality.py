"""What a space of sentence embeddings looks like: alignment, uniformity, anisotropy.

Alignment and uniformity as Wang and Isola 2020 (arXiv 2005.10242, section 4.1) define them, with their exponents 2 and
2; anisotropy as Ethayarajh 2019 (arXiv 1909.00512, the mean cosine of random pairs) and as Mu and Viswanath 2018 (arXiv
1702.01417, how much of the variance few directions hold). All are of unit vectors, (n, H), which `unit` makes.
"""

from __future__ import annotations

import numpy as np

POWER, HEAT = 2, 2  # alpha of alignment, t of uniformity
BLOCK = 1024  # rows compared with all others at a time
TOP = (1, 10)
RESOLUTION = 1e-6  # what float32 tells apart in a cosine: less than that is the same


def unit(vectors: np.ndarray) -> np.ndarray:
    """Each row divided by its length, in its own precision; a row of zeros stays one."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)


def alignment(first: np.ndarray, second: np.ndarray) -> float | None:
    """Mean squared distance between the two of each pair of similar sentences, 0 (best) to 4; None without a pair."""
    if not len(first):
        return None
    distances = np.linalg.norm(first.astype(np.float64) - second, axis=1)
    return float(np.mean(distances**POWER))


def uniformity(vectors: np.ndarray) -> float | None:
    """log of the mean over all pairs of different rows of exp(-2 d^2): 0 where all are one; lower is more even.

    None for fewer than two rows. Exact, by blocks: O(n^2 H) operations, BLOCK * n numbers at a time.
    """
    n = len(vectors)
    if n < 2:
        return None
    squares = np.einsum("nh,nh->n", vectors, vectors)  # 1, or 0 for a row of zeros
    total = 0.0
    for begin in range(0, n, BLOCK):
        block = slice(begin, min(begin + BLOCK, n))
        distances = squares[block, None] + squares[None, begin:] - 2 * vectors[block] @ vectors[begin:].T
        heat = np.exp(-HEAT * np.maximum(distances, 0))  # (rows of the block, rows from it on)
        total += float(np.triu(heat, k=1).sum(dtype=np.float64))  # each pair once
    return float(np.log(total / (n * (n - 1) / 2)))


def mean_cosine(vectors: np.ndarray) -> float | None:
    """Mean cosine of two different rows: what random pairs have on average, but over all of them, without chance.

    Near 0: directions are used evenly; near 1: all point the same way. None for fewer than two rows.
    """
    n = len(vectors)
    if n < 2:
        return None
    total = np.sum(vectors, axis=0, dtype=np.float64)
    own = np.sum(np.square(vectors), dtype=np.float64)
    return float((total @ total - own) / (n * (n - 1)))


def variance_shares(vectors: np.ndarray, tops: tuple[int, ...] = TOP) -> dict[int, float | None]:
    """k -> share of the variance in the k directions that hold most of it, 0 to 1; None where nothing varies."""
    if not len(vectors):
        return dict.fromkeys(tops)
    centered = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    if np.abs(centered).max() <= RESOLUTION:
        return dict.fromkeys(tops)
    variances = np.linalg.eigvalsh(centered.T @ centered)[::-1].clip(min=0)  # (H,), the largest first
    return {k: float(variances[:k].sum() / variances.sum()) for k in tops}
