"""What a report knows of a run: its files, looked at by run_checks.py, and the best model's answers for every dev row.

A run's folder as run.py describes it. The answers were kept when the run ended; for a run from before that, its best
model gives them again. What is missing (a data file that was moved, a model that was deleted) leaves a part of the page
out, which then says so.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

import contrastive_options
import options
import result_row
from batches import TaskData
from datasets import Table
from errors import InputError
from evaluation import METRICS, decide, predict, probabilities
from files import read_json, sha256, short
from intervals import resampled
from model import MultitaskBERT
from run import ROOT, Run
from run_checks import (
    DAMAGED,
    MAYBE,
    check_metrics,
    check_page_config,
    need,
    need_if_there,
    read_history,
    tasks_of,
)
from similarity_scale import Scale
from task_files import read_split
from task_options import parse_loss
from tasks import TASKS, Task
from tokenizer import BertTokenizer


@dataclass
class Judged:
    """A task of a run.

    task: with the loss that its head was trained with. scores: metric -> value, `untrained` among them. missing: why
    there are no rows, or "". table, outputs: dev's rows and what the head gave for them. best: the folder of the model,
    None of an ensemble of answers, which has none of its own.
    """

    task: Task
    scores: dict[str, float | None]
    best: Path | None
    missing: str = ""
    table: Table | None = None
    outputs: np.ndarray | None = None

    @cached_property
    def labels(self) -> np.ndarray:
        return np.array([example.label for example in self.table])

    @cached_property
    def values(self) -> np.ndarray:
        return decide(self.task, self.outputs)

    @cached_property
    def probabilities(self) -> np.ndarray | None:
        """(n, C) of each class; None of a score."""
        return probabilities(self.task, self.outputs)

    @cached_property
    def scaled(self) -> np.ndarray:
        """A score's predictions on the labels' scale, (n,), which they lack: see similarity_scale.py."""
        return Scale.fit(self.values, self.labels, *self.task.label_range).apply(self.values, *self.task.label_range)

    @cached_property
    def badness(self) -> np.ndarray:
        """(n,) how wrong each answer is: 1 - the probability of the label, or the distance on the labels' scale."""
        if self.probabilities is None:
            return np.abs(self.scaled - self.labels)
        return 1 - self.probabilities[np.arange(len(self.labels)), self.labels.astype(int)]

    @property
    def agrees(self) -> bool:
        """Whether these outputs have the score that was written when the run ended."""
        found, written = METRICS[self.task.metric](self.labels, self.values), self.scores[self.task.metric]
        return found == written or None not in (found, written) and math.isclose(found, written, abs_tol=1e-6)

    @cached_property
    def samples(self) -> np.ndarray:
        """The metric that selects, on draws of the dev rows: see intervals.resampled."""
        return resampled(self.task.metric, self.labels, self.values)


@dataclass(frozen=True)
class Curve:
    """One task's way through training, or that of a run without tasks. Points are (x, value), x as x_label says.

    best: x of the evaluation whose model was kept, None if none was.
    """

    name: str
    title: str
    metric: str
    x_label: str
    train_loss: list[tuple[float, float]]
    dev_loss: list[tuple[float, float]]
    score: list[tuple[float, float]]
    best: float | None


@dataclass
class ReadRun:
    """A finished run. judged: task -> its answers; {} for a run of contrastive.py. seconds, tokens: of training."""

    folder: Path
    config: dict
    scores: dict
    command: str
    histories: list[list[dict]]
    judged: dict[str, Judged] = field(default_factory=dict)

    @property
    def ensemble(self) -> list[str]:
        """The runs that it averages, by name; [] of a run that was trained."""
        return self.config["options"].get("ensemble") or []

    @property
    def without_model(self) -> bool:
        """Whether it averages answers; a soup, which averages weights, is a model."""
        return bool(self.ensemble) and not self.config["options"].get("soup")

    @property
    def seconds(self) -> float:
        return sum(rows[-1]["train_seconds"] for rows in self.histories)

    @property
    def tokens(self) -> int:
        return sum(rows[-1]["train_tokens"] for rows in self.histories)

    @property
    def leaderboard(self) -> float | None:
        return result_row.leaderboard(self.scores) if self.judged else None

    @property
    def dev_hashes(self) -> dict[str, str]:
        """task -> SHA-256 of its dev file."""
        return dev_hashes(self.config)

    def curves(self) -> list[Curve]:
        """None of an ensemble, whose runs have them."""
        return [] if self.ensemble else [curve for rows in self.histories for curve in _curves(rows)]


def dev_hashes(config: dict) -> dict[str, str]:
    """task -> SHA-256 of the dev file that a run of the training command was judged on."""
    return {task: splits["dev"]["sha256"] for task, splits in config["data"].items()}


def read_run(name: str | Path, data: Path | None, say: Callable[[str], object]) -> ReadRun:
    """Read a finished run, given as its folder or its name in runs/.

    data: a folder to look for dev files in before where they were. Raises InputError if there is no such folder, if the
    run isn't finished, or if its files are not a run's.
    """
    if data is not None and not data.is_dir():
        raise InputError(f"--data {data}: no folder there: name the one that dev files are in now")
    run = Run.open(name, ROOT)
    config = run.config
    where = run.folder / "config.json"
    if need(config, ("command",), str, where) == contrastive_options.COMMAND:
        return _read_contrastive(run, config)
    check_page_config(config, where)
    row = result_row.row(run.folder)
    scores = row["dev"]
    check_metrics(scores, run.folder / options.SCORES)
    for name in scores:
        need(config, ("data", name, "dev"), dict, where)
    parts = {name: run.part(name) for name in scores}
    histories = [read_history(part / run.metrics.name) for part in dict.fromkeys(parts.values())]
    found = ReadRun(run.folder, config, scores, row["command"], histories)
    losses = parse_loss(config["options"].get("loss"), tuple(TASKS[name] for name in scores))
    for name, values in scores.items():
        best = None if found.without_model else parts[name] / run.best.name
        found.judged[name] = Judged(TASKS[name].with_loss(losses.get(name)), values, best)
    _read_answers(run, found, data, say)
    return found


def _read_answers(run: Run, found: ReadRun, data: Path | None, say: Callable[[str], object]) -> None:
    """Put into each task's Judged its rows and the outputs kept for them, or why there are none."""
    kept = run.read_outputs()
    before = set(kept)
    for name, judged in found.judged.items():
        try:
            judged.table = _read_dev(judged.task, found.config, data)
            if name not in kept:
                kept[name] = torch.from_numpy(_predict(judged, run, say))
            if not _could_be_outputs(kept[name], judged):
                again = "the model predicts again" if judged.best else "make the ensemble again, with another --run"
                raise InputError(f"{run.outputs}: not the outputs of {name}: delete it, and {again}")
            judged.outputs = kept[name].numpy()
            if name in before and not judged.agrees:
                judged.outputs = None
                raise InputError(
                    f"{run.outputs} and {run.folder / options.SCORES} say different things of {name}: one was altered: "
                    "copy the run again"
                )
        except InputError as error:
            judged.missing = str(error)
    if set(kept) != before:
        with suppress(InputError):  # a run on a disk that is read-only is read all the same
            run.write_outputs(kept)


def _could_be_outputs(outputs: torch.Tensor, judged: Judged) -> bool:
    """Whether a head gives such numbers for these rows: of any others scores could be made that nobody had."""
    wanted = judged.task.output_shape(len(judged.table))
    return outputs.dtype == torch.float32 and tuple(outputs.shape) == wanted and bool(outputs.isfinite().all())


def _read_contrastive(run: Run, config: dict) -> ReadRun:
    path = run.folder / options.SCORES
    run.refuse_unfinished()
    check_page_config(config, run.folder / "config.json")
    scores = read_json(path)
    if not isinstance(scores, dict):
        raise InputError(f"{path}: no scores in it: {DAMAGED}")
    for key in ("trained", "untrained"):
        if need_if_there(scores, (key,), (dict, type(None)), path) is not None:
            need_if_there(scores, (key, "spearman"), MAYBE, path)
    parser = argparse.ArgumentParser()
    contrastive_options.add_options(parser)
    command = result_row.command(config, parser, "train")
    return ReadRun(run.folder, config, scores, command, [read_history(run.metrics)])


def _read_dev(task: Task, config: dict, data: Path | None) -> Table:
    """The dev rows that the run was judged on: the file in `data`, or where it was then, that has the hash of then.

    Raises InputError if neither is there, or both are other files.
    """
    then = config["data"][task.name]["dev"]
    recorded = Path(then["path"])
    given = [] if data is None else list(dict.fromkeys((data / task.files["dev"], data / recorded.name)))
    there = [path for path in (*given, recorded) if path.is_file()]
    for path in there:
        if sha256(path) == then["sha256"]:
            return read_split(task, "dev", path)
    if there and there[0] in given:
        raise InputError(
            f"{short(there[0])} is not the file that the run was judged on: name with --data a folder with that file"
        )
    looked = "" if data is None else f", nor is {task.files['dev']} in {short(data)}"
    if there:
        raise InputError(
            f"{short(recorded)} has changed since the run{looked}: name with --data a folder with the file it had"
        )
    raise InputError(f"{short(recorded)} is not there any more{looked}: name the folder it is in now with --data")


def _predict(judged: Judged, run: Run, say: Callable[[str], object]) -> np.ndarray:
    """What the best model gives for the dev rows, on a GPU if there is one. Raises InputError if it is gone."""
    if judged.best is None:
        raise InputError(
            f"{run.outputs} has no answers for {judged.task.name} any more: make the ensemble again, with another --run"
        )
    say(f"{judged.task.name}: the run kept no outputs, so its best model predicts dev again")
    model = MultitaskBERT.from_pretrained(judged.best)
    model.to(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    tokenizer = BertTokenizer.from_pretrained(judged.best)
    if judged.task.name not in model.heads:
        raise InputError(f"{judged.best}: the model there has no head for {judged.task.name}: copy the run again")
    # A soup's options don't say how it reads pairs; the head of any model does.
    encoding = model.heads[judged.task.name].config.pair_encoding
    return predict(model, TaskData(judged.task, judged.table, tokenizer, pair_encoding=encoding)).outputs


def _curves(rows: list[dict]) -> list[Curve]:
    """A history's curves, one for each task; a contrastive run has one. Undefined scores and losses have no point."""
    by_step = any(row.get("step") for row in rows)
    x_label = "million tokens trained on" if by_step else "epoch"
    xs = [row["train_tokens"] / 1e6 if by_step else row["epoch"] for row in rows]
    best = [x for x, row in zip(xs, rows, strict=True) if row["best"]]

    def points(pick: Callable[[dict], float | None]) -> list[tuple[float, float]]:
        return [(x, value) for x, row in zip(xs, rows, strict=True) if (value := pick(row)) is not None]

    found = []
    names = tasks_of(rows[0])
    for name in names:
        metric = TASKS[name].metric
        found.append(
            Curve(
                name,
                TASKS[name].title,
                metric,
                x_label,
                points(lambda row, name=name: row["train_loss"].get(name)),
                points(lambda row, name=name: row["dev"][name].get("loss")),
                points(lambda row, name=name, metric=metric: row["dev"][name].get(metric)),
                best[-1] if best else None,
            )
        )
    if not names:
        train = points(lambda row: next(iter(row["train_loss"].values()), None))
        score = points(lambda row: row.get("dev", {}).get("spearman"))
        found.append(Curve("contrast", "contrast", "spearman", x_label, train, [], score, best[-1] if best else None))
    return found
