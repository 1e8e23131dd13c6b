"""How sure a dev score is: bootstrap over the dev rows, paired where runs are compared.

Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapters 6 and 13 (percentile intervals), by
scipy.stats.bootstrap. Rows are what is drawn: what another seed of training would change is not in these intervals.
"""

from __future__ import annotations

import warnings

import numpy as np
from scipy.stats import bootstrap, pearsonr

from evaluation import METRICS
from tasks import TASKS

RESAMPLES = 1000
SEED = 11711
CONFIDENCE = 0.95


def resampled(metric: str, labels: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The metric on RESAMPLES draws of as many rows as there are, with replacement, (RESAMPLES,); NaN where undefined.

    metric: a name of evaluation.METRICS. labels, values: (n,). For the same n the draws are the same rows, so the
    difference of two runs' answers for one file is that of a paired bootstrap.
    """
    if len(labels) < 2:
        return np.full(RESAMPLES, np.nan)
    of_two = np.isin(labels, (0, 1)).all() and np.isin(values, (0, 1)).all()
    by_rows = (VECTORIZED | (OF_TWO_CLASSES if of_two else {})).get(metric)
    statistic = by_rows or (lambda labels, values: _number(METRICS[metric](labels, values)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of draws in which one side is constant, which are NaN
        found = bootstrap(
            (labels, values),
            statistic,
            n_resamples=RESAMPLES,
            batch=50,  # rows of draws in memory at once
            vectorized=by_rows is not None,
            paired=True,
            method="percentile",
            rng=np.random.default_rng(SEED),
        )
    return found.bootstrap_distribution


# Metrics of many draws at once: (draws, n) labels and values -> (draws,). Others are computed draw by draw, which takes
# scikit-learn seconds.


def _accuracy(labels: np.ndarray, values: np.ndarray, axis: int) -> np.ndarray:
    return (labels == values).mean(axis=axis)


def _pearson(labels: np.ndarray, values: np.ndarray, axis: int) -> np.ndarray:
    return pearsonr(labels, values, axis=axis).statistic


def _matthews(labels: np.ndarray, values: np.ndarray, axis: int) -> np.ndarray:
    """Of two classes it is Pearson's correlation, and 0 where that is undefined."""
    return np.nan_to_num(_pearson(labels, values, axis))


def _f1(labels: np.ndarray, values: np.ndarray, axis: int) -> np.ndarray:
    ones = labels.sum(axis=axis) + values.sum(axis=axis)
    return 2 * (labels * values).sum(axis=axis) / np.maximum(ones, 1)


def _acc_and_f1(labels: np.ndarray, values: np.ndarray, axis: int) -> np.ndarray:
    return (_accuracy(labels, values, axis) + _f1(labels, values, axis)) / 2


VECTORIZED = {"accuracy": _accuracy, "pearson": _pearson}
OF_TWO_CLASSES = {"matthews": _matthews, "f1": _f1, "acc_and_f1": _acc_and_f1}


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def leaderboard_samples(samples: dict[str, np.ndarray]) -> np.ndarray:
    """task -> what `resampled` gives for its metric, to the same of the leaderboard's score. (RESAMPLES,)

    The tasks' files are other rows, so their draws should have nothing to do with each other: each task's are put in an
    order of its own, the same for every run. NaN where a task's draw is, unless it is a correlation.
    """
    scores = np.zeros(RESAMPLES)
    for name, values in samples.items():
        order = np.random.default_rng([SEED, list(TASKS).index(name)]).permutation(len(values))
        if TASKS[name].metric == "pearson":
            values = np.nan_to_num(values)  # as in the score itself an undefined correlation counts as 0
        scores += TASKS[name].leaderboard(values[order])
    return scores / len(samples)


def interval(samples: np.ndarray) -> tuple[float, float] | None:
    """The percentile interval that holds CONFIDENCE of the samples; None where one of them is undefined."""
    if np.isnan(samples).any():
        return None
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(samples, [tail, 1 - tail])
    return float(low), float(high)
