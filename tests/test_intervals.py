"""Intervals of scores: against loops by hand, and paired where they should be.

Efron and Tibshirani 1993, chapters 6 and 13.
"""

import numpy as np
import pytest

import intervals
from evaluation import METRICS
from intervals import RESAMPLES, interval, leaderboard_samples, resampled


def answers(n=60, seed=0, flips=0.3):
    """Labels 0 or 1, and answers of which so many are wrong."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 2, n)
    return labels, np.where(draw.random(n) < flips, 1 - labels, labels)


def test_the_spread_of_an_accuracy_is_the_binomial_one():
    labels, values = answers(400)
    samples = resampled("accuracy", labels, values)
    share = (labels == values).mean()
    assert samples.shape == (RESAMPLES,)
    assert samples.mean() == pytest.approx(share, abs=0.005)
    assert samples.std() == pytest.approx(np.sqrt(share * (1 - share) / 400), rel=0.1)
    low, high = interval(samples)
    assert low < share < high and high - low == pytest.approx(2 * 1.96 * samples.std(), rel=0.1)


@pytest.mark.filterwarnings("ignore:A single label was found")
@pytest.mark.parametrize("metric", ["accuracy", "matthews", "f1", "acc_and_f1", "macro_f1"])
def test_every_metric_is_computed_on_the_same_rows(metric, monkeypatch):
    """As scikit-learn computes it, on draws of four rows, in many of which one side is constant."""
    monkeypatch.setattr(intervals, "RESAMPLES", 50)
    labels, values = answers(4, seed=3)
    rows = np.random.default_rng(11711).integers(0, 4, (50, 4))
    wanted = [METRICS[metric](labels[drawn], values[drawn]) for drawn in rows]
    assert resampled(metric, labels, values) == pytest.approx(wanted)


def test_a_metric_of_several_classes_is_computed_draw_by_draw(monkeypatch):
    monkeypatch.setattr(intervals, "RESAMPLES", 20)
    draw = np.random.default_rng(0)
    labels, values = draw.integers(0, 3, 12), draw.integers(0, 3, 12)
    rows = np.random.default_rng(11711).integers(0, 12, (20, 12))
    wanted = [METRICS["matthews"](labels[drawn], values[drawn]) for drawn in rows]
    assert resampled("matthews", labels, values) == pytest.approx(wanted)


def test_a_correlation_on_the_same_rows():
    draw = np.random.default_rng(1)
    labels = draw.random(25)
    values = labels + draw.normal(0, 0.3, 25)
    rows = np.random.default_rng(11711).integers(0, 25, (RESAMPLES, 25))
    wanted = [np.corrcoef(labels[drawn], values[drawn])[0, 1] for drawn in rows[:20]]
    assert resampled("pearson", labels, values)[:20] == pytest.approx(wanted)


def test_paired_differences_are_narrower_than_unpaired_ones():
    """Two models that are wrong on nearly the same rows differ by little, however few the rows are."""
    labels, first = answers(100)
    second = first.copy()
    second[:2] = 1 - second[:2]
    one, two = (resampled("accuracy", labels, values) for values in (first, second))
    low, high = interval(two - one)
    alone = interval(one)
    assert high - low < (alone[1] - alone[0]) / 2
    assert low <= (labels == second).mean() - (labels == first).mean() <= high


def test_what_is_undefined_has_no_interval():
    assert interval(resampled("pearson", np.arange(10.0), np.ones(10))) is None
    assert interval(resampled("accuracy", np.array([1]), np.array([1]))) is None
    assert interval(resampled("pearson", np.array([0.0, 1.0]), np.array([0.0, 1.0]))) is None  # one row drawn twice


def test_the_leaderboard_s_score_takes_tasks_as_independent():
    labels, values = answers(80)
    alike = resampled("accuracy", labels, values)
    both = leaderboard_samples({"sst": alike, "para": alike})
    assert both.mean() == pytest.approx(alike.mean())
    assert both.std() == pytest.approx(alike.std() / np.sqrt(2), rel=0.1)  # drawn together it would be alike.std()
    with_correlation = leaderboard_samples({"sst": np.full(RESAMPLES, 0.5), "sts": np.full(RESAMPLES, np.nan)})
    assert with_correlation == pytest.approx(np.full(RESAMPLES, (0.5 + 0.5) / 2))  # undefined counts as r = 0
    nothing_drawn = leaderboard_samples({"sst": np.full(RESAMPLES, np.nan), "sts": np.full(RESAMPLES, 0.5)})
    assert np.isnan(nothing_drawn).all()  # an accuracy is never undefined: that it wasn't drawn is not a 0
