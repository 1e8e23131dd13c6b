"""Cells of tables about tasks: runs of multitask_classifier.py, as the two course papers' tables have them.

Follows Jia 2024 and Lee, Park, Seo and Kim 2021, whose tables are data in experiments.py.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace

from bert import BertConfig, BertModel
from cells import STOPPED, Cell, Scale, encoder_of, fits_scale, hash_of, parse_shares, refuse_differences
from console import counted
from course_data import choose_data
from distributed import ALONE
from errors import InputError
from estimate import FLOAT_BYTES, Demands, count_parameters, count_seconds
from experiments import TEACHING, Table
from files import short
from job import model_config, start
from model import OPTIONS, MultitaskBERT
from options import COMMAND, get_args, input_paths, recommended_lr
from result_row import is_place
from result_row import row as row_of
from run_checks import last_row, need, read_lines
from sampling import make_schedule
from sentence_encoder import best_of
from tasks import TASKS

STATES = 3  # of the optimizer's two numbers and the weight itself, a checkpoint's size a learning number


@dataclass(frozen=True)
class TaskCell(Cell):
    """A run of multitask_classifier.py: some tasks of a row."""

    @property
    def parts(self) -> dict[str, float]:
        return self.scale.parts(self.tasks)

    def words(self) -> list[str]:
        return [COMMAND, *(["--resume", str(self.folder)] if self.state() == STOPPED else self.arguments())]

    def arguments(self) -> list[str]:
        """The options of multitask_classifier.py for a new run."""
        scale, option = self.scale, self.row.option
        typed = {"option": option, "tasks": ",".join(self.tasks), "epochs": str(scale.epochs[option])}
        typed |= {"batch_size": str(scale.batch_size[option] * self.row.batch_times), "seed": str(self.seed)}
        typed |= dict(self.options)
        if self.row.lr_times != 1:
            many = int(typed.get("accumulate", 1))
            typed["lr"] = f"{scale.lr[option] * math.sqrt(many) * self.row.lr_times:.3g}"
        if self.parts:
            typed["fraction"] = ",".join(f"{task}={share:g}" for task, share in self.parts.items())
        if scale.model is not None:
            typed["model"] = scale.model
        if scale.data is not None:
            typed["data"] = str(scale.data)
        if self.row.teacher is not None:
            typed["distill"] = [str(replace(self, row=self.row.teacher, seed=seed).folder) for seed in TEACHING]
        typed["run"] = str(self.folder)
        for task in self.tasks:
            for split in ("dev", "test"):
                typed[f"{task}_{split}_out"] = str(self.folder / "predictions" / TASKS[task].predictions_file(split))
        values = {name: value if isinstance(value, list) else [value] * bool(value) for name, value in typed.items()}
        return [part for name, found in values.items() for part in (f"--{name}", *found)]

    def changed_options(self, found: dict, where: str) -> list[str]:
        wanted = get_args(self.arguments())
        options, differences = need(found, ("options",), dict, where), []
        for name, value in vars(wanted).items():
            compared = name in options and name not in ("model", "resume", "distill") and not is_place(name)
            if compared and not (name in ("lr", "distill_weight") and value is None) and options[name] != value:
                differences.append(f"{name} {options[name]} -> {value}")
        return differences

    def check(self, found: dict, where: str) -> None:
        differences = self.changed_options(found, where)
        folder = self.scale.data or choose_data(None)[0]
        if folder.is_dir():
            files = input_paths(get_args(self.arguments()), tuple(TASKS[task] for task in self.tasks), folder)
            for (task, split), path in files.items():
                then = need(found, ("data", task), dict, where).get(split, {}).get("sha256")
                if path.is_file() and then not in (None, hash_of(path)):
                    differences.append(f"{short(path)} has changed")
        refuse_differences(differences, where)

    def finished_row(self, call: str | None) -> dict:
        path = self.folder / "metrics.jsonl"
        last_row(path)  # which refuses a file that is none
        history = read_lines(path)
        best = max(history[1:] or history, key=lambda found: need(found, ("score",), (int, float), path))
        return {
            "cell": self.identity,
            "call": call,
            "loss": {task: need(best, ("dev", task, "loss"), (float, type(None)), path) for task in self.tasks},
            **row_of(self.folder),
        }

    def estimate(self, position: tuple[int, int] | None) -> tuple[float, float]:
        args = get_args(self.arguments())
        job = start(args, ALONE, lambda text: None)
        model = MultitaskBERT(model_config(job, job.tasks), BertModel.from_pretrained(job.source.path)).to(job.device)
        sizes = {name: len(splits["train"]) for name, splits in job.data.items()}
        name = "sequential" if args.schedule == "separate" else args.schedule
        schedule = make_schedule(name, sizes, args.batch_size, args.epochs, args.seed)
        learning, total = count_parameters(model)
        seconds = count_seconds(model, job.data, schedule, Demands.of(args, len(job.tasks)), position)
        return seconds, FLOAT_BYTES * (total + STATES * learning)

    def selecting(self) -> list[tuple[str, str]]:
        """Each task with the metric that selects its best epoch."""
        return [(task, TASKS[task].metric) for task in self.tasks]


def scale_of(args: argparse.Namespace, table: Table) -> Scale:
    """What is asked for, resolved."""
    tasks = list(dict.fromkeys(task for row in table.rows for run in row.runs for task in run))
    epochs = parse_shares(args.epochs, "--epochs", OPTIONS, int, table.epochs)
    batch_size = parse_shares(args.batch_size, "--batch_size", OPTIONS, int, table.batch_size)
    fraction = parse_shares(args.fraction, "--fraction", tasks, float, 1.0)
    too_large = [task for task, share in fraction.items() if share > 1]
    if too_large:
        raise InputError(f"--fraction {args.fraction}: {too_large[0]}'s is above 1, which is all")
    source, name = encoder_of(args)
    hidden = source and BertConfig.from_pretrained(source.path).hidden_size
    named = args.print and args.data is not None  # what is printed needs the folder's name alone
    folder = args.data if named else choose_data(args.data)[0]
    return Scale(
        args.model and str(best_of(args.model)),
        name,
        args.data and args.data.resolve(),
        folder.resolve().name,
        {option: recommended_lr(hidden, option) for option in OPTIONS} if source else {},
        epochs,
        batch_size,
        fraction,
        args.runs.resolve(),
        () if args.device is None else ("--device", args.device),
    )


def fits(cell: dict, scale: Scale) -> bool:
    """Whether a row of the file, whose cell this is, is of this scale, whatever its seed."""
    return fits_scale(cell, scale) and cell["fraction"] == scale.parts(cell["tasks"])


def caption(table: Table, scale: Scale, rows: list[dict]) -> str:
    """What was run, and how it differs from the paper's."""
    said = [f"{table.title}. Dev scores; encoder {scale.model_name}, data {scale.data_name}"]
    for option in dict.fromkeys(row.option for row in table.rows):
        rate, theirs = scale.lr.get(option), table.lr.get(option)
        theirs = f" (paper: {theirs})" if theirs and float(theirs) != rate else ""
        counts = []
        for what, ours, paper in (
            (counted(scale.epochs[option], "epoch"), scale.epochs[option], table.epochs),
            (f"{scale.batch_size[option]} rows a batch", scale.batch_size[option], table.batch_size),
        ):
            counts.append(what + (f" (paper: {paper})" if table.of_a_paper and ours != paper else ""))
        several = any("accumulate" in row.options for row in table.rows if row.option == option)
        times = ", times the square root of the batches of a step" if several else ""
        rates = [] if rate is None else [f"learning rate {rate:g}{times}{theirs}"]
        said.append(f"{option}: {', '.join(counts + rates)}")
    if table.of_a_paper and scale.model_name != table.encoder:
        said.append(f"the paper's encoder is {table.encoder}, so the difference is not the program's alone")
    for task in dict.fromkeys(column.task for column in table.columns):
        count = {found["data"][task]["train"]["rows"] for found in rows if task in found["data"]}
        share = scale.fraction.get(task, 1)
        if share < 1:
            said.append(f"{task}: {share:g} of the train rows" + (f" ({count.pop():,})" if len(count) == 1 else ""))
    said.append("ours: mean ± standard deviation between seeds (number of seeds)")
    if table.many:
        said.append("of differences, seed for seed, in brackets 95 % intervals that hold for a whole column at once")
        said.append("they take seeds to spread alike in every row")
    elif not table.of_a_paper:
        said.append("of differences, seed by seed, in brackets the 95 % t interval")
    return "; ".join(said) + "." + (f" {table.note}" if table.note else "")
