"""What a frozen sentence embedding holds for other tasks: logistic regression on top of it, nothing else learns.

The transfer tasks of SentEval (Conneau and Kiela 2018, arXiv 1803.05449), with scikit-learn's classifier. The strength
of its penalty is chosen by cross-validation within train, so that the dev score has selected nothing.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import make_scorer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from datasets import Table
from errors import InputError
from evaluation import METRICS
from task_files import read_split
from tasks import TASKS, Task

TRANSFER_TASKS = ("sst", "cola")
FOLDS = 5
# Inverse strengths of the penalty on standardized embeddings: beyond either end scores fall.
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
ITERATIONS = 1000


@dataclass(frozen=True)
class TransferScore:
    """A task's score on dev, by its metric; `constant`: what the commonest class of train would score.

    strength: scikit-learn's C, as chosen. converged: whether the last fit, on all of train, reached its end.
    """

    task: str
    metric: str
    score: float
    constant: float
    train_rows: int
    dev_rows: int
    strength: float
    converged: bool


def find_tables(name: str, folders: Sequence[Path]) -> tuple[Task, Table, Table]:
    """A task, its train and its dev file, from the first of these folders that holds both.

    Raises InputError for a task that has no transfer, one whose files are nowhere, and as `read_split` does.
    """
    if name not in TRANSFER_TASKS:
        raise InputError(f"--transfer {name}: not known; known: {', '.join(TRANSFER_TASKS)}")
    task = TASKS[name]
    for folder in folders:
        paths = [Path(folder) / task.files[split] for split in ("train", "dev")]
        if all(path.is_file() for path in paths):
            train, dev = (read_split(task, split, path) for split, path in zip(("train", "dev"), paths, strict=True))
            return task, train, dev
    wanted, where = f"{task.files['train']} and {task.files['dev']}", ", ".join(map(str, folders))
    raise InputError(f"{where}: no {wanted} there: name the folder that holds them with --data")


def transfer(task: Task, train: Table, dev: Table, train_vectors: np.ndarray, dev_vectors: np.ndarray) -> TransferScore:
    """Fit on train, judge on dev. vectors: (n, H) embeddings in the tables' order.

    Raises InputError where train has one class, or one with a single row.
    """
    labels, wanted = (np.array([row.label for row in table]) for table in (train, dev))
    counts = Counter(labels.tolist())
    rarest, rows = min(counts.items(), key=lambda item: item[1])
    if len(counts) < 2 or rows < 2:
        found = f"only class {rarest}" if len(counts) < 2 else f"one row of class {rarest}"
        raise InputError(f"{train.path}: {found}, wanted two rows or more of two classes or more: choose another file")
    metric = METRICS[task.metric]
    search = GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=ITERATIONS)),
        {"logisticregression__C": STRENGTHS},
        scoring=make_scorer(metric),
        cv=min(FOLDS, rows),
        refit=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of the fits that only choose; the last one is looked at
        search.fit(train_vectors, labels)
    chosen = search.best_params_["logisticregression__C"]
    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=chosen, max_iter=ITERATIONS))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ConvergenceWarning)
        classifier.fit(train_vectors, labels)
    return TransferScore(
        task.name,
        task.metric,
        metric(wanted, classifier.predict(dev_vectors)),
        metric(wanted, np.full_like(wanted, counts.most_common(1)[0][0])),
        len(train),
        len(dev),
        chosen,
        not any(issubclass(warning.category, ConvergenceWarning) for warning in said),
    )
