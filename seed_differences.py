"""How sure a difference between two ways of training is, seed for seed.

Seeds are what differs here, the dev rows stay the same; intervals.py has what other rows would change.
"""

from __future__ import annotations

import math
import statistics

import numpy as np
from scipy.stats import t as students_t

from intervals import CONFIDENCE, SEED

ROUNDING = 1e-20  # of a sum of squares that is 0
DRAWS = 100_000  # a quantile that is drawn so is good to two digits


def t_interval(differences: list[float]) -> tuple[float, float]:
    """Student's interval for the mean of two differences or more, each of one seed."""
    mean, count = statistics.fmean(differences), len(differences)
    half = float(students_t.ppf((1 + CONFIDENCE) / 2, count - 1)) * statistics.stdev(differences) / math.sqrt(count)
    return mean - half, mean + half


def in_blocks(values: list[dict[int, float]]) -> dict[int, tuple[float, float | None]]:
    """Of each row after the first, by its place there: its difference from the first, and half its interval.

    Least squares with an effect of each row and one of each seed, which all rows share (randomized blocks, Fisher
    1935), and one spread of what is left, so that rows of one seed have an interval, too, where others have more. In
    95 % of such tables all intervals hold, as Dunnett's do (1955, J. Am. Stat. Assoc. 50); their width is found by
    drawing (Edwards and Berry 1987, Biometrics 43).

    values: of each row, seed -> number. None where nothing is left to tell a spread by; no entry for a row that has no
    seed in common with the first, by way of others even.
    """
    seeds = sorted({seed for row in values for seed in row})
    cells = [(place, seeds.index(seed), value) for place, row in enumerate(values) for seed, value in row.items()]
    effects, y = np.zeros((len(cells), len(values) + len(seeds))), np.array([value for _, _, value in cells])
    for number, (place, seed, _) in enumerate(cells):
        effects[number, [place, len(values) + seed]] = 1
    solved = np.linalg.pinv(effects)
    wanted = np.zeros((len(values) - 1, effects.shape[1]))
    wanted[:, 0], wanted[:, 1 : len(values)] = -1, np.eye(len(values) - 1)
    known = [place for place, row in enumerate(wanted) if np.allclose(row @ solved @ effects, row)]
    weights = wanted[known] @ solved  # of each number, in each difference
    left, freedom = y - effects @ (solved @ y), len(cells) - np.linalg.matrix_rank(effects)
    halves: list[float | None] = [None] * len(known)
    if freedom and known and left @ left > ROUNDING * (y @ y):
        errors = np.linalg.norm(weights, axis=1)
        rng = np.random.default_rng(SEED)
        drawn = np.abs(rng.standard_normal((DRAWS, len(cells))) @ weights.T / errors).max(axis=1)
        drawn /= np.sqrt(rng.chisquare(freedom, DRAWS) / freedom)
        halves = list(np.quantile(drawn, CONFIDENCE) * errors * math.sqrt(left @ left / freedom))
    return dict(zip(known, zip(weights @ y, halves, strict=True), strict=True))
