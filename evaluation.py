"""Judgement: metrics, predictions joined by id, the course's prediction files and its evaluation functions.

Metrics come from scikit-learn and scipy; file formats and function names are those of the CS 224N default project, for
GLUE's tasks those of its benchmark (Wang et al. 2018, arXiv 1804.07461). As a command it compares finished runs and
shows where one errs (comparison.py):

    python evaluation.py compare RUN RUN
    python evaluation.py errors RUN
"""

from __future__ import annotations

import math
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import startup  # noqa: F401  # isort: skip: before what may be missing

import numpy as np
import torch
from torch.utils.data import DataLoader

import ordinal
from batches import Batch, TaskData, prepared
from datasets import (
    NUMBER,
    SentenceClassificationDataset,
    SentenceClassificationTestDataset,
    SentencePairDataset,
    SentencePairTestDataset,
    load_multitask_data,
)
from distributed import ALONE, Processes
from errors import InputError, quoted
from files import atomic_write, cannot
from finite import REMEDY, named
from gradients import out_of_memory
from losses import LOSSES
from model import MultitaskBERT
from tasks import PARA, SST, STS, Task

EVALUATION_BATCH = 64
ROWS = {"course": re.compile(r"(\S+) , (\S+) "), "glue": re.compile(r"(\S+)\t(\S+)")}
ROW_WANTED = {"course": "'id , value ' (spaces included)", "glue": "an index, a tab and a label"}


# scipy and scikit-learn are imported where a metric is computed: it takes them seconds, and a prediction needs neither.


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Share of predictions that equal the label, in [0, 1]."""
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(labels, predictions))


def macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Mean over the classes of F1, in [0, 1]; a class without predictions counts as 0."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, average="macro", zero_division=0))


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """F1 of the class 1, of two classes, in [0, 1]; 0 where neither side has any of it."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, zero_division=0))


def acc_and_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Mean of accuracy and F1, which is GLUE's one number for MRPC."""
    return (accuracy(labels, predictions) + f1(labels, predictions)) / 2


def absolute_error(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Mean distance between predicted and true class, 0 or more; lower is better."""
    from sklearn.metrics import mean_absolute_error

    return float(mean_absolute_error(labels, predictions))


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Matthews' correlation in [-1, 1]; 0 where one side is constant."""
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels, predictions))


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float | None:
    """Pearson's correlation in [-1, 1]; None where it is undefined: fewer than two rows, or one side constant."""
    if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return None
    from scipy.stats import pearsonr

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns where predictions are nearly constant, and answers all the same
        value = float(pearsonr(labels, predictions).statistic)
    return value if np.isfinite(value) else None


METRICS = {
    "accuracy": accuracy,
    "macro_f1": macro_f1,
    "f1": f1,
    "acc_and_f1": acc_and_f1,
    "matthews": matthews,
    "mean_absolute_error": absolute_error,
    "pearson": pearson,
}


def check_known(tasks: Iterable[Task]) -> None:
    """Raises InputError for a task with a loss or a metric that nobody has defined."""
    for task in tasks:
        for what, name, known in (("loss", task.loss, LOSSES), *(("metric", name, METRICS) for name in task.metrics)):
            if name not in known:
                raise InputError(
                    f"task {task.name!r} in tasks.py: {what} {name!r} is not known; known: {', '.join(known)}"
                )


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
    """From a head's outputs to what is judged.

    The likeliest class, or the median one where the loss is one of ordinal.THRESHOLD_LOSSES; 1.0 where the probability
    is at least one half, else 0.0; or the score itself.
    """
    if task.loss in ordinal.THRESHOLD_LOSSES:
        return ordinal.decide(task.loss, torch.from_numpy(outputs)).numpy()
    if task.label_kind == "class":
        return outputs.argmax(axis=-1)
    if task.label_kind == "binary":
        return (outputs >= 0).astype(np.float64)  # sigmoid(0) is one half
    return outputs.astype(np.float64)


def probabilities(task: Task, outputs: np.ndarray) -> np.ndarray | None:
    """From a head's outputs to the probability of each class, (n, C) float64 rows that sum to 1; None for a score.

    task: with the loss that the head was trained with. Of a task whose label is 0 or 1 the columns are those two. With
    ordinal.THRESHOLD_LOSSES the decided class is the median, which need not be the one that is most probable.
    """
    if task.label_kind == "score":
        return None
    logits = torch.from_numpy(np.asarray(outputs, dtype=np.float64))
    if task.loss in ordinal.THRESHOLD_LOSSES:
        return ordinal.probabilities(task.loss, logits).numpy()
    if task.label_kind == "binary":
        logits = torch.stack([torch.zeros_like(logits), logits], dim=1)  # (n,) -> (n, 2)
    return logits.softmax(dim=1).numpy()


@torch.no_grad()
def predict(
    model: MultitaskBERT, data: TaskData, batch_size: int = EVALUATION_BATCH, processes: Processes = ALONE
) -> Predictions:
    """Predict a whole file. The model is put into evaluation mode, and back afterwards.

    Several processes take a part each, and all of them get the whole.
    """
    # What the outputs mean, the head knows: it was trained with a loss that may not be the task's own.
    task = data.task.with_loss(model.heads[data.task.name].task.loss)
    was_training = model.training
    model.eval()
    answers = torch.zeros(task.output_shape(len(data)), device=model.device)
    own = list(data.chunks(batch_size))[processes.rank :: processes.size]
    batches = zip(own, prepared(lambda rows: data.parts(rows, None, model.device), own), strict=True)
    found = [outputs_of(model, data, rows, parts) for rows, parts in batches]
    if found:  # all at once: a GPU is waited for where indices come from the CPU
        answers[torch.from_numpy(np.concatenate(own))] = torch.cat(found)
    model.train(was_training)
    outputs = processes.add(answers).cpu().numpy()
    _refuse_broken_outputs(task, data.ids, outputs)
    return judge(task, data.ids, outputs, data.labels)


def judge(task: Task, ids: list[str], outputs: np.ndarray, labels: torch.Tensor | None) -> Predictions:
    """Decisions for a file's outputs, and where there are labels (n,) the loss and every metric of the task."""
    values, loss, scores = decide(task, outputs), None, {}
    if labels is not None:
        found = float(LOSSES[task.loss](torch.from_numpy(outputs), labels))
        loss = found if math.isfinite(found) else None  # finite outputs may be too far apart for their loss
        scores = {name: METRICS[name](labels.numpy(), values) for name in task.metrics}
    return Predictions(task, list(ids), outputs, values, loss, scores)


def _refuse_broken_outputs(task: Task, ids: list[str], outputs: np.ndarray) -> None:
    """Raises InputError for NaN and infinity, of which any class, and any correlation, could be made."""
    broken = np.flatnonzero(~np.isfinite(outputs.reshape(len(outputs), -1)).all(axis=1))
    if len(broken):
        raise InputError(
            f"{task.title}: of {len(broken)} of {len(ids)} rows the model's answer is not finite "
            f"({named([ids[row] for row in broken])}): training diverged, or its weights are damaged: {REMEDY}, or "
            "--precision fp32"
        )


def outputs_of(model: MultitaskBERT, data: TaskData, rows: np.ndarray, parts: list[Batch]) -> torch.Tensor:
    """The outputs of these rows, by halves where memory runs out."""
    try:
        return torch.cat([model.outputs(part.to(model.device)) for part in parts])
    except RuntimeError as error:
        if not out_of_memory(error) or len(rows) == 1:
            raise
    halves = np.array_split(rows, 2)
    return torch.cat([outputs_of(model, data, half, data.parts(half, None, model.device)) for half in halves])


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Write a prediction file: the header, then a row each in the data file's order.

    The course's rows are `{id} , {value} `; GLUE's are the index, a tab, and the label as its files spell it.
    """
    task = predictions.task
    with atomic_write(path) as file:
        file.write(f"{task.header}\n")
        for i, value in zip(predictions.ids, predictions.values.tolist(), strict=True):
            if task.file_format == "glue":
                file.write(f"{i}\t{task.class_names[value] if task.class_names else value}\n")
            else:
                file.write(f"{i} , {value} \n")


def read_predictions(path: Path, task: Task) -> dict[str, float]:
    """id -> value of a prediction file. Raises InputError as `parse_predictions`, and where it can't be read."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise cannot("read", path, error) from error
    return parse_predictions(task, content, str(path))


def parse_predictions(task: Task, content: bytes, name: str) -> dict[str, float]:
    """id -> value. Raises InputError, naming file and line, for what is not written as the course, or GLUE, has it."""
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{name}, line {line}: not UTF-8: write the predictions again") from error
    if b"\r" in content:
        raise InputError(f"{name}: carriage returns: write it with newlines alone, as the course does")
    if lines[0] != task.header:
        raise InputError(f"{name}, line 1: the header is {quoted(lines[0])}, wanted {task.header!r}: write it so")
    if lines[-1] != "" or len(lines) < 2:
        raise InputError(f"{name}, line {len(lines)}: the last line has no end, so it is cut off: predict again")
    values: dict[str, float] = {}
    for number, line in enumerate(lines[1:-1], start=2):
        match = ROWS[task.file_format].fullmatch(line)
        if not match:
            wanted = ROW_WANTED[task.file_format]
            raise InputError(f"{name}, line {number}: {quoted(line)}, wanted {wanted}: write it so")
        key, text = match.groups()
        if key in values:
            raise InputError(f"{name}, line {number}: id {quoted(key)} for the second time: predict each id once")
        values[key] = _value(task, text, f"{name}, line {number}")
    return values


def _value(task: Task, text: str, where: str) -> float:
    """A prediction as a number. Raises InputError where a task's values are others."""
    low, high = task.label_range
    if task.class_names:
        if text in task.class_names:
            return float(task.class_names.index(text))
        raise InputError(f"{where}: {quoted(text)}, wanted one of {', '.join(task.class_names)}: predict again")
    whole = r"[0-9]+" if task.label_kind == "class" else r"[0-9]+(\.0+)?"
    if task.label_kind == "score":
        value = float(text) if NUMBER.fullmatch(text) else math.nan
        # No range: the leaderboard correlates, and a correlation doesn't care about the scale.
        if math.isfinite(value):
            return value
        raise InputError(f"{where}: {quoted(text)}, wanted a finite number: predict again")
    if re.fullmatch(whole, text) and low <= float(text) <= high:
        return float(text)
    raise InputError(f"{where}: {quoted(text)}, wanted a whole number from {low} to {high}: predict again")


# The course's functions, over the course's DataLoader batches (datasets.py), for code that was written for it: the
# commands here predict and judge with `predict` and `judge` above. Arguments and answers are in the order of
# the 2024 season: sentiment, paraphrase, similarity. Ids and predictions are in the loader's order. A correlation that
# is undefined is NaN, as it is there, since callers compare and print it.


def model_eval_sst(dataloader: Iterable[dict], model: MultitaskBERT, device: torch.device):
    """(accuracy, macro F1, predictions, labels, sentences, ids) of sentiment, in both seasons."""
    ids, predictions, labels, sentences = _answers(dataloader, model, device, SST)
    accuracy_, f1 = (METRICS[name](np.array(labels), np.array(predictions)) for name in ("accuracy", "macro_f1"))
    return accuracy_, f1, predictions, labels, sentences, ids


def model_eval_multitask(sentiment_dataloader, paraphrase_dataloader, sts_dataloader, model, device):
    """Metric, predictions and ids of sentiment (accuracy), then of paraphrase (accuracy), then of STS (Pearson).

    In the 2024 order; the 2023 season's gives paraphrase before sentiment.
    """
    found = []
    for loader, task in ((sentiment_dataloader, SST), (paraphrase_dataloader, PARA), (sts_dataloader, STS)):
        ids, predictions, labels, _ = _answers(loader, model, device, task)
        score = METRICS[task.metric](np.array(labels), np.array(predictions))
        found += [math.nan if score is None else score, predictions, ids]
    return tuple(found)


def model_eval_test_multitask(sentiment_dataloader, paraphrase_dataloader, sts_dataloader, model, device):
    """Predictions and ids of sentiment, then of paraphrase, then of STS, for files without labels.

    In the 2024 order; the 2023 season's gives paraphrase before sentiment.
    """
    found = []
    for loader, task in ((sentiment_dataloader, SST), (paraphrase_dataloader, PARA), (sts_dataloader, STS)):
        ids, predictions, _, _ = _answers(loader, model, device, task)
        found += [predictions, ids]
    return tuple(found)


def test_model_multitask(args, model: MultitaskBERT, device: torch.device) -> None:
    """The 2023 season's last step: predict dev and test of the three tasks, print dev's scores, write the six files.

    args: the starter's options, of which it reads batch_size, {sst,para,sts}_{dev,test} and the same with _out.
    Nothing is written before everything is predicted. Raises InputError as `read_examples` and `write_predictions`.
    """
    dev = model_eval_multitask(*_loaders(args, "dev"), model, device)
    test = model_eval_test_multitask(*_loaders(args, "test"), model, device)
    for number, (task, score_name) in enumerate(((SST, "sentiment acc"), (PARA, "paraphrase acc"), (STS, "sts corr"))):
        score, *of_dev = dev[3 * number : 3 * number + 3]
        print(f"dev {score_name} :: {score:.3f}")
        for split, (values, ids) in (("dev", of_dev), ("test", test[2 * number : 2 * number + 2])):
            outputs = np.array(values)
            path = getattr(args, f"{task.name}_{split}_out")
            write_predictions(path, Predictions(task, ids, outputs, outputs, loss=None, scores={}))


test_model_multitask.__test__ = False  # pytest takes it for a test wherever one imports it


def _loaders(args, split: str) -> list[DataLoader]:
    """The course's loaders of a split, dev or test: sentiment, paraphrase, STS, in their files' order."""
    single, pair = {
        "dev": (SentenceClassificationDataset, SentencePairDataset),
        "test": (SentenceClassificationTestDataset, SentencePairTestDataset),
    }[split]
    files = (getattr(args, f"{task.name}_{split}") for task in (SST, PARA, STS))
    sentiment, _, paraphrase, similarity = load_multitask_data(*files, split=split)
    datasets = (single(sentiment, args), pair(paraphrase, args), pair(similarity, args))
    return [DataLoader(dataset, batch_size=args.batch_size, collate_fn=dataset.collate_fn) for dataset in datasets]


@torch.no_grad()
def _answers(dataloader: Iterable[dict], model: MultitaskBERT, device: torch.device, task: Task):
    """(ids, predictions, labels, sentences) of a loader; labels and sentences are empty where it has none.

    The model is put into evaluation mode, and back afterwards. Raises InputError for an id seen before, since whoever
    joins by id would lose a row.
    """
    methods: dict[str, Callable] = {
        "sst": model.predict_sentiment,
        "para": model.predict_paraphrase,
        "sts": model.predict_similarity,
    }
    sides = ("_1", "_2") if task.is_pair else ("",)
    was_training = model.training
    model.eval()
    predictions: dict[str, float] = {}
    labels, sentences = [], []
    for batch in dataloader:
        inputs = [batch[f"{name}{side}"].to(device) for side in sides for name in ("token_ids", "attention_mask")]
        outputs = methods[task.name](*inputs).float().cpu().numpy()
        # Of a pair the course asks for "a single logit", which models give as (B,), (B, 1), or () for a batch of one.
        values = decide(task, outputs.flatten() if task.is_pair else outputs).tolist()
        for i, value in zip(batch["sent_ids"], values, strict=True):
            if i in predictions:
                raise InputError(
                    f"{task.name}: id {quoted(i)} comes twice from the loader: give each row an id of its own"
                )
            predictions[i] = value
        labels += batch["labels"].flatten().tolist() if "labels" in batch else []
        sentences += batch.get("sents", [])
    model.train(was_training)
    return list(predictions), list(predictions.values()), labels, sentences


if __name__ == "__main__":
    from comparison import main  # which needs what is above

    sys.exit(main())
