"""Judgement: metrics, predictions joined by id, and the course's prediction files.

Metrics come from scikit-learn and scipy; file formats and function names are those of the CS 224N default project.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.stats import pearsonr
from sklearn.metrics import accuracy_score, f1_score

from batches import TaskData
from files import atomic_write
from losses import LOSSES
from model import MultitaskBERT
from tasks import Task

EVALUATION_BATCH = 64


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Share of predictions that equal the label, in [0, 1]."""
    return float(accuracy_score(labels, predictions))


def macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Mean over the classes of F1, in [0, 1]; a class without predictions counts as 0."""
    return float(f1_score(labels, predictions, average="macro", zero_division=0))


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float | None:
    """Pearson's correlation in [-1, 1]; None where it is undefined: fewer than two rows, or one side constant."""
    if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns where predictions are nearly constant, and answers all the same
        value = float(pearsonr(labels, predictions).statistic)
    return value if np.isfinite(value) else None


METRICS = {"accuracy": accuracy, "macro_f1": macro_f1, "pearson": pearson}


@dataclass
class Predictions:
    """A model's answers for one file, in the file's order.

    outputs: what the head gave, (n, C) or (n,). values: what is judged and written: a class, 0.0 or 1.0, or a score.
    loss: the task's loss over the file, None without labels. scores: metric -> value.
    """

    task: Task
    ids: list[str]
    outputs: np.ndarray
    values: np.ndarray
    loss: float | None
    scores: dict[str, float | None]

    @property
    def score(self) -> float | None:
        """The metric that selects the best model."""
        return self.scores.get(self.task.metric)


def decide(task: Task, outputs: np.ndarray) -> np.ndarray:
    """From a head's outputs to what is judged: the likeliest class, probability at least one half as 1.0, or the score itself."""
    if task.label_kind == "class":
        return outputs.argmax(axis=-1)
    if task.label_kind == "binary":
        return (outputs >= 0).astype(np.float64)  # sigmoid(0) is one half
    return outputs.astype(np.float64)


@torch.no_grad()
def predict(model: MultitaskBERT, data: TaskData, batch_size: int = EVALUATION_BATCH) -> Predictions:
    """Predict a whole file. The model is put into evaluation mode, and back afterwards. Answers are joined by id."""
    was_training = model.training
    model.eval()
    answers: dict[str, np.ndarray] = {}
    for batch in data.in_order(batch_size):
        outputs = model.outputs(batch.to(model.device)).float().cpu().numpy()
        answers.update(zip(batch.ids, outputs, strict=True))
    model.train(was_training)
    outputs = np.stack([answers[i] for i in data.ids])
    values, loss, scores = decide(data.task, outputs), None, {}
    if data.labels is not None:
        labels = data.labels.numpy()
        loss = float(LOSSES[data.task.loss](torch.from_numpy(outputs), data.labels))
        scores = {name: METRICS[name](labels, values) for name in data.task.metrics}
    return Predictions(data.task, list(data.ids), outputs, values, loss, scores)


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Write a prediction file: the course's header, then `{id} , {value} ` a row, in the data file's order."""
    with atomic_write(path) as file:
        file.write(f"{predictions.task.header}\n")
        for i, value in zip(predictions.ids, predictions.values.tolist(), strict=True):
            file.write(f"{i} , {value} \n")
