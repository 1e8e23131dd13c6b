"""A score on the scale of its labels: the straight line that fits dev's labels best, from the head's outputs.

Training for Pearson's correlation leaves a score's scale open, and makes just that line's error small: the best r is
the least mean squared error of any line through the scores, which is 1 - r ** 2 of the labels' variance. What is fitted
is dev alone, once, after training, and kept beside the model: best/calibration.json.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from datasets import read_examples
from errors import InputError
from evaluation import Predictions, read_predictions
from files import read_json, write_json
from tasks import TASKS

CALIBRATION = "calibration.json"


@dataclass(frozen=True)
class Scale:
    """label = slope * score + intercept, cut to the range of labels.

    rows: how many of dev it was fitted on. error: the mean distance to their labels, in labels; on other rows it is a
    little more.
    """

    slope: float
    intercept: float
    rows: int
    error: float

    @classmethod
    def fit(cls, scores: np.ndarray, labels: np.ndarray, low: float, high: float) -> Scale:
        """Least squares. Where all scores are one, the mean label. scores, labels: (n,), n at least 1."""
        scores, labels = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.float64)
        apart = scores - scores.mean()
        slope = float(apart @ labels / (apart @ apart)) if np.ptp(scores) else 0.0
        line = cls(slope, float(labels.mean() - slope * scores.mean()), len(scores), 0.0)
        error = np.abs(line.apply(scores, low, high) - labels).mean()
        return cls(line.slope, line.intercept, line.rows, float(error))

    def apply(self, scores: np.ndarray, low: float, high: float) -> np.ndarray:
        """The same scores as labels from low to high."""
        return np.clip(self.slope * np.asarray(scores, dtype=np.float64) + self.intercept, low, high)


def fit_scales(dev: dict[str, Predictions], labels: dict[str, np.ndarray]) -> dict[str, Scale]:
    """Of each task whose labels are scores, how its outputs on dev become labels: what predict.py answers with.

    Both by the task's name, of dev's rows (n,).
    """
    return {
        name: Scale.fit(found.values, labels[name], *found.task.label_range)
        for name, found in dev.items()
        if found.task.label_kind == "score"
    }


def write_scales(folder: Path, scales: dict[str, Scale]) -> None:
    """Keep them beside the model in `folder`; nothing where there are none."""
    if scales:
        write_json(folder / CALIBRATION, {name: asdict(scale) for name, scale in scales.items()})


def read_scales(folder: Path) -> dict[str, Scale]:
    """What `write_scales` wrote; empty without the file. Raises InputError for what was altered."""
    path = folder / CALIBRATION
    if not path.is_file():
        return {}
    try:
        scales = {name: Scale(**values) for name, values in read_json(path).items()}
        if not all(math.isfinite(number) for scale in scales.values() for number in asdict(scale).values()):
            raise ValueError("a number is not finite")
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a run's calibration ({error}): delete it, and dev is asked again") from error
    return scales


def scales_of(best: Path, names: Iterable[str]) -> dict[str, Scale]:
    """The scales kept beside a run's best model; for a run from before they were, fitted anew to what it said of dev.

    A task has none where neither its predictions nor dev as it was are there any more.
    """
    scales = read_scales(best)
    for name in names:
        if name in TASKS and TASKS[name].label_kind == "score" and name not in scales:
            found = _from_predictions(best, name)
            if found is not None:
                scales[name] = found
    return scales


def _from_predictions(best: Path, name: str) -> Scale | None:
    task = TASKS[name]
    for run in (best.parent, best.parent.parent):  # the run's folder; or of a task trained separately, one above
        predictions, config = run / "predictions" / task.predictions_file("dev"), run / "config.json"
        if predictions.is_file() and config.is_file():
            try:
                recorded = read_json(config)["data"][name]["dev"]
                table = read_examples(
                    recorded["path"],
                    columns=task.columns,
                    label=task.label,
                    label_kind=task.label_kind,
                    label_range=task.label_range,
                )
                values = read_predictions(predictions, task)
                if table.sha256 != recorded["sha256"] or any(example.id not in values for example in table):
                    return None
            except (InputError, KeyError, TypeError):
                return None
            scores = np.array([values[example.id] for example in table])
            return Scale.fit(scores, np.array([example.label for example in table]), *task.label_range)
    return None
