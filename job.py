"""What a training run needs, resolved from its options: weights, tokenizer, data, device; its model; its config.json.

The heads are the poster's (Jia 2024) unless options say otherwise.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import recipes
import weights
from batches import TaskData
from bert import BertConfig, BertModel
from calibration import is_settled
from course_data import choose_data, refuse_mixture
from data_check import exclude_shared
from distributed import Processes
from errors import InputError
from evaluation import check_known
from model import ModelConfig, MultitaskBERT
from options import COMMAND, check_outputs, choose_device, input_paths, short
from poolers import describe_options, parse_options, resolve_each
from precision import Precision, choose_precision
from reporting import describe_data
from resuming import changed_beside, files_beside
from run import Run, environment
from scalars import check_installed
from task_files import is_optional, read_split, take_share
from task_options import parse_attention, parse_fraction, parse_loss, parse_pooler
from tasks import SPLITS, Task, parse_tasks
from tokenizer import BertTokenizer


@dataclass
class Job:
    """All that one run needs, resolved."""

    args: argparse.Namespace
    tasks: tuple[Task, ...]
    source: weights.Weights
    device: torch.device
    precision: Precision
    processes: Processes
    tokenizer: BertTokenizer
    data: dict[str, dict[str, TaskData]]  # task -> split -> rows


def read_data(args: argparse.Namespace, tasks: tuple[Task, ...], folder: Path, tokenizer: BertTokenizer) -> dict:
    """Read and tokenize every file of the tasks, GLUE's test files only if they are there.

    Raises InputError for the first that can't be used.
    """
    data, paths = {}, input_paths(args, tasks, folder)
    shares = parse_fraction(args.fraction, tasks)
    refuse_mixture(paths.values())
    for task in tasks:
        tables = {}
        for split in SPLITS:
            path, given = Path(short(paths[task.name, split])), getattr(args, f"{task.name}_{split}")
            if given or path.exists() or not is_optional(task, split):
                tables[split] = read_split(task, split, path)
        if args.exclude_shared:
            tables["train"] = exclude_shared(*tables.values())
        tables["train"] = take_share(tables["train"], shares[task.name])
        seeds = {"train": args.seed if args.swap_pairs else None}
        data[task.name] = {
            split: TaskData(task, table, tokenizer, pair_encoding=args.pair_encoding, swap_seed=seeds.get(split))
            for split, table in tables.items()
        }
    return data


def _available(check: Callable[[], None], args: argparse.Namespace, say) -> bool:
    """Whether what an option asks for is there. Raises check's InputError, except for a run that goes on."""
    try:
        check()
    except InputError as error:
        if not args.resume:
            raise
        say(wrapped(f"left out   {error}"))
        return False
    return True


def _refuse_to_compile(device: torch.device) -> None:
    if device.type != "cuda":
        raise InputError(
            f"--compile: for a GPU alone, not {device.type}: on a CPU the layers written by hand are faster"
        )


def _check_poolers(args: argparse.Namespace, tasks: tuple[Task, ...]) -> None:
    poolers = parse_pooler(args.pooler, tasks)
    if args.pooler_options is not None and not poolers:
        raise InputError(f"--pooler_options {args.pooler_options}: say --pooler, too; {describe_options()}")
    resolve_each(poolers.values(), parse_options(args.pooler_options))


def start(args: argparse.Namespace, processes: Processes, say) -> Job:
    """Resolve model, data and device, and say which and why."""
    if args.tensorboard:
        args.tensorboard = _available(check_installed, args, say)
    # What is wrong with the options is said before files are read.
    try:
        tasks = parse_tasks(args.tasks)
        check_known(tasks)
        layers, losses = parse_attention(args.attention, tasks), parse_loss(args.loss, tasks)
        parse_fraction(args.fraction, tasks)
        _check_poolers(args, tasks)
    except InputError as error:
        if not args.resume:
            raise
        raise InputError(f"{short(args.run / 'config.json')}: {error}: restore it") from error  # nobody typed it
    if args.attention_ffn and not any(layers.values()):
        raise InputError(
            "--attention_ffn: none of these tasks has an attention layer: leave it out, or say --attention"
        )
    if args.attention_init != "default" and not any(layers.values()):
        raise InputError(
            f"--attention_init {args.attention_init}: none of these tasks has an attention layer: leave it out"
        )
    drops = args.option != "pretrain" or args.frozen_dropout or args.hidden_dropout_prob or any(layers.values())
    if args.r_drop and not drops:
        raise InputError(
            f"--r_drop {args.r_drop:g}: without dropout both passes answer the same: say --hidden_dropout_prob 0.3"
        )
    encodings = {task.encoding(args.pair_encoding) for task in tasks if task.is_pair}
    if args.pair_score != "calibrated" and encodings == {"joint"}:
        raise InputError(
            f"--pair_score {args.pair_score}: pairs that are read as one sequence have no such score: say --pair_score "
            "calibrated, or another --pair_encoding"
        )
    if args.swap_pairs and all(task.encoding(args.pair_encoding) == "separate" for task in tasks):
        raise InputError("--swap_pairs: no pair of these tasks is one sequence: leave it out, or say --pair_encoding")
    tasks = tuple(task.with_loss(losses.get(task.name)) for task in tasks)
    device, reason = choose_device(args, processes.local_rank)
    precision = choose_precision(args.precision, device)
    if args.compile:
        args.compile = _available(lambda: _refuse_to_compile(device), args, say)
    source = weights.find(args.model)
    anew = f"; its last {args.reinitialize} layers begin anew" if args.reinitialize else ""
    say(wrapped(f"model      {source.origin}{anew}"))
    tokenizer = BertTokenizer.from_pretrained(source.path)
    tokenizer.check_fits(BertConfig.from_folder(source.path).vocab_size, source.path)
    if args.recipe:
        say(wrapped(recipes.describe(args)))
    folder, why = choose_data(args.data)
    check_outputs(args, tasks, input_paths(args, tasks, folder).values())
    say(f"data       {short(folder)}: {'as when the run began' if args.resume else why}")
    data = read_data(args, tasks, folder, tokenizer)
    describe_data(tasks, data, say)
    several = f"; {processes.size} processes, each a part of every batch" if processes.size > 1 else ""
    say(f"device     {device}: {reason}; {precision.name}: {precision.why}{several}")
    return Job(args, tasks, source, device, precision, processes, tokenizer, data)


def wrapped(line: str) -> str:
    """A line of `key        words`, in as many as it needs."""
    return textwrap.fill(line, 120, subsequent_indent=" " * 11, break_long_words=False, break_on_hyphens=False)


def model_config(job: Job, tasks: tuple[Task, ...]) -> ModelConfig:
    args = job.args
    return ModelConfig.for_tasks(
        [task.name for task in tasks],
        attention=parse_attention(args.attention, job.tasks),
        attention_init=args.attention_init,
        pair_score=args.pair_score,
        pair_encoding=args.pair_encoding,
        pooler=parse_pooler(args.pooler, job.tasks),
        pooler_options=parse_options(args.pooler_options),
        losses=parse_loss(args.loss, job.tasks),
        attention_ffn=args.attention_ffn,
        frozen_dropout=args.frozen_dropout,
        hidden_dropout_prob=args.hidden_dropout_prob,
        option=args.option,
        model=str(job.source.path),
    )


def new_model(job: Job, tasks: tuple[Task, ...]) -> MultitaskBERT:
    """The model that training begins with. Raises InputError where none can be made of these weights."""
    encoder = BertModel.from_pretrained(job.source.path)
    encoder.reinitialize(job.args.reinitialize)
    return MultitaskBERT(model_config(job, tasks), encoder)


def check_model(job: Job) -> None:
    """Raises InputError where no such model can be made of these weights, which is said before a run has a folder."""
    model = new_model(job, job.tasks)
    if job.args.settle == "all" and not any(is_settled(head, "all") for head in model.heads.values()):
        raise InputError("--settle all: no head here gives logits of classes with an offset: leave it out")


def run_config(job: Job, lr: float) -> dict:
    """config.json: every resolved option, versions, commit, data and weights with their hashes.

    Paths are absolute, so that the run can be continued from another folder.
    """
    options = {
        name: os.path.abspath(value) if isinstance(value, Path) else value
        for name, value in vars(job.args).items()
        if name not in ("run", "resume")
    }
    path = os.path.abspath(job.source.path)
    source = {**dataclasses.asdict(job.source), "path": path, "files": files_beside(job.source)}
    if job.source.name not in weights.KNOWN:
        options["model"] = source["path"]
    files = {
        task: {
            split: {
                "path": os.path.abspath(rows.table.path),
                "rows": len(rows),
                **({} if rows.table.taken_from is None else {"of": rows.table.taken_from}),
                "dropped": rows.table.dropped,
                "sha256": rows.table.sha256,
            }
            for split, rows in splits.items()
        }
        for task, splits in job.data.items()
    }
    return {
        "command": COMMAND,
        "options": {**options, "lr": lr},
        "model": source,
        "data": files,
        "precision": job.precision.name,
        "processes": job.processes.size,
        **environment(job.device),
    }


def refuse_changes(run: Run, config: dict) -> None:
    """Raises InputError if weights or data are not what the run began with."""
    before, changed = run.config, []
    try:
        if before["model"]["sha256"] != config["model"]["sha256"]:
            changed.append(f"weights {before['model']['name']} -> {config['model']['name']}")
        changed += changed_beside(before["model"], config["model"])
        if before["processes"] != config["processes"]:
            changed.append(f"processes {before['processes']} -> {config['processes']}")
        for task, splits in config["data"].items():
            for split, now in splits.items():
                then = before["data"][task].get(split)
                if then is None:  # GLUE's test files are read where they are there
                    changed.append(f"{short(now['path'])} was added after the run began")
                elif then["sha256"] != now["sha256"]:
                    changed.append(f"{short(now['path'])} ({then['rows']} rows -> {now['rows']})")
            gone = [then for split, then in before["data"][task].items() if split not in splits]
            changed += [f"{short(then['path'])} is gone" for then in gone]
    except (AttributeError, KeyError, TypeError) as error:
        path = run.folder / "config.json"
        raise InputError(f"{path}: does not say which weights and data the run used: start a new one") from error
    if changed:
        raise InputError(
            f"{run.folder} can't be continued, its inputs changed: {'; '.join(changed)}; undo that, or start anew"
        )
