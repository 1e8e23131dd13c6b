"""The line from scores to labels: by hand, against scipy, kept and read back, fitted anew for a run without one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import linregress

from errors import InputError
from files import sha256, write_json
from similarity_scale import CALIBRATION, Scale, read_scales, scales_of, write_scales


def test_by_hand():
    scale = Scale.fit([10, 20, 40], [1, 2, 4], 0, 5)
    assert (scale.slope, scale.intercept) == pytest.approx((0.1, 0))
    assert scale.rows == 3 and scale.error == pytest.approx(0)
    assert scale.apply([-10, 25, 100], 0, 5) == pytest.approx([0, 2.5, 5])  # cut to the labels' range


def test_it_is_the_regression_line():
    random = np.random.default_rng(0)
    scores = random.normal(400, 30, 50)
    labels = np.clip(scores / 50 - 5 + random.normal(0, 0.5, 50), 0, 5)
    scale, wanted = Scale.fit(scores, labels, 0, 5), linregress(scores, labels)
    assert (scale.slope, scale.intercept) == pytest.approx((wanted.slope, wanted.intercept))
    assert scale.error == pytest.approx(np.abs(np.clip(wanted.slope * scores + wanted.intercept, 0, 5) - labels).mean())


def test_scores_that_are_all_one_give_the_mean_label():
    scale = Scale.fit([7.0, 7.0], [1.0, 4.0], 0, 5)
    assert scale.apply([7.0, 100.0], 0, 5).tolist() == [2.5, 2.5]


def test_kept_and_read_back(tmp_path):
    scales = {"sts": Scale(0.5, -1.0, 12, 0.75)}
    write_scales(tmp_path, scales)
    assert read_scales(tmp_path) == scales == scales_of(tmp_path, ["sst", "sts"])
    write_scales(tmp_path / "none", {})
    assert not (tmp_path / "none").exists() and read_scales(tmp_path / "none") == {}


@pytest.mark.parametrize("content", ("[]", '{"sts": {"slope": 1}}', '{"sts": [1]}', '{"sts": {"slope": "x"}}', None))
def test_what_was_altered_is_refused(tmp_path, content):
    if content is None:
        content = json.dumps({"sts": {"slope": float("nan"), "intercept": 0.0, "rows": 1, "error": 0.0}})
    (tmp_path / CALIBRATION).write_text(content)
    with pytest.raises(InputError, match="not a run's calibration|or not finite"):
        read_scales(tmp_path)


@pytest.fixture
def old_run(tmp_path):
    """A run from before the scale was kept: dev's rows, what it said of them, and where they are."""
    data, run = tmp_path / "sts-dev.csv", tmp_path / "run"
    data.write_text("\tid\tsentence1\tsentence2\tsimilarity\n0\ta\tx\ty\t1\n1\tb\tx\ty\t3\n2\tc\tx\ty\t\n")
    (run / "predictions").mkdir(parents=True)
    (run / "predictions" / "sts-dev-output.csv").write_text("id \t Predicted_Similiary \nb , 60.0 \na , 20.0 \n")
    recorded = {"path": str(data), "sha256": sha256(data)}
    write_json(run / "config.json", {"data": {"sts": {"dev": recorded}}})
    return run


def test_a_run_from_before_is_asked_again(old_run):
    (scale,) = scales_of(old_run / "best", ["sts", "para"]).values()
    assert scale.apply([20.0, 60.0], 0, 5) == pytest.approx([1, 3]) and scale.rows == 2
    assert scales_of(old_run / "sts" / "best", ["sts"])["sts"] == scale  # a task trained separately


def test_there_is_none_where_dev_is_not_what_it_was(old_run):
    data = old_run.parent / "sts-dev.csv"
    data.write_text(data.read_text().replace("\t3\n", "\t4\n"))
    assert scales_of(old_run / "best", ["sts"]) == {}
    data.unlink()
    assert scales_of(old_run / "best", ["sts"]) == {}
