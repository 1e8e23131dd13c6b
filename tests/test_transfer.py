"""Transfer by logistic regression: against scikit-learn called by hand, what selects, and what can't be learned."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from test_data_check import write

import transfer as module
from datasets import Example, Table
from errors import InputError
from tasks import COLA, SST
from transfer import STRENGTHS, find_tables, transfer


def table(labels, name="train"):
    rows = [Example(str(i), f"text {i}", None, label, i + 2) for i, label in enumerate(labels)]
    return Table(Path(f"{name}.csv"), rows, [], "")


def data(n, classes, noise, seed):
    """Labels and vectors (n, 6), of lengths far from 1, the first `classes` dimensions of which tell the label."""
    chance = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    vectors = chance.normal(0, noise, (n, 6))
    vectors[np.arange(n), labels] += 1
    return labels.tolist(), 7 * vectors + 3


@pytest.mark.parametrize("task, classes", ((SST, 5), (COLA, 2)))
def test_learns_what_is_there(task, classes):
    labels, vectors = data(200, classes, 0.1, 0)
    wanted, others = data(100, classes, 0.1, 1)
    score = transfer(task, table(labels), table(wanted, "dev"), vectors, others)
    assert score.score > 0.95 and score.metric == task.metric
    assert score.constant == pytest.approx(0.2 if classes == 5 else 0.0)  # Matthews of a constant
    assert (score.train_rows, score.dev_rows, score.converged) == (200, 100, True)


def test_is_scikit_learns_answer_with_the_strength_chosen():
    labels, vectors = data(150, 5, 0.8, 0)
    wanted, others = data(100, 5, 0.8, 1)
    score = transfer(SST, table(labels), table(wanted, "dev"), vectors, others)
    scaler = StandardScaler().fit(vectors)
    classifier = LogisticRegression(C=score.strength, max_iter=1000).fit(scaler.transform(vectors), labels)
    assert score.score == pytest.approx(classifier.score(scaler.transform(others), wanted))
    assert score.strength in STRENGTHS


def test_dev_selects_nothing():
    labels, vectors = data(150, 5, 0.8, 0)
    chosen = set()
    for seed in range(3):
        wanted, others = data(60, 5, 3.0, seed)
        chosen.add(transfer(SST, table(labels), table(wanted, "dev"), vectors, others).strength)
    assert len(chosen) == 1


def test_embeddings_that_say_nothing_score_like_the_constant():
    labels, _ = data(100, 5, 1, 0)
    score = transfer(SST, table(labels), table(labels, "dev"), np.ones((100, 6)), np.ones((100, 6)))
    assert score.score == score.constant == pytest.approx(0.2)


def test_a_rare_class_makes_fewer_folds():
    labels, vectors = data(60, 2, 0.3, 0)
    labels = [4 if i < 2 else label for i, label in enumerate(labels)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # scikit-learn warns of folds that a class is missing from
        score = transfer(SST, table(labels), table(labels, "dev"), vectors, vectors)
    assert score.score > 0.8


@pytest.mark.parametrize(
    "labels, said", (([1] * 6, "only class 1, wanted two rows"), ([0] * 6 + [3], "one row of class 3, wanted two rows"))
)
def test_what_cannot_be_learned(labels, said):
    vectors = np.eye(len(labels))
    with pytest.raises(InputError, match=f"train.csv: {said}"):
        transfer(SST, table(labels), table([1, 0], "dev"), vectors, vectors[:2])


def test_a_fit_that_does_not_end_is_told(monkeypatch):
    monkeypatch.setattr(module, "ITERATIONS", 1)
    labels, vectors = data(100, 5, 0.8, 0)
    assert not transfer(SST, table(labels), table(labels, "dev"), vectors, vectors).converged


def test_tables_come_from_the_first_folder_that_has_both(tmp_path):
    for folder in ("one", "two", "three"):
        (tmp_path / folder).mkdir()
    write(tmp_path / "one", SST, "train", [("half", 1)])
    for folder in ("two", "three"):
        for split in ("train", "dev"):
            write(tmp_path / folder, SST, split, [(folder, 1)])
    folders = [tmp_path / name for name in ("one", "two", "three")]
    task, train, dev = find_tables("sst", folders)
    assert task is SST and [train[0].sentence, dev[0].sentence] == ["two", "two"]
    with pytest.raises(InputError, match=r"one: no ids-sst-train.csv and ids-sst-dev.csv there.*--data"):
        find_tables("sst", folders[:1])
    with pytest.raises(InputError, match="no CoLA/train.tsv and CoLA/dev.tsv there"):
        find_tables("cola", folders)
    with pytest.raises(InputError, match="--transfer sts: not known; known: sst, cola"):
        find_tables("sts", folders)
