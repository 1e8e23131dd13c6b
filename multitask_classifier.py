"""Train and evaluate the multi-task model: `python multitask_classifier.py --option finetune`.

The command of the CS 224N default project, both seasons' flags. With nothing said it takes what setup.sh has put in
place, trains one model for sentiment, paraphrase and similarity, and writes the leaderboard's six prediction files.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import textwrap
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import startup  # noqa: F401  # isort: skip: before what may be missing

import numpy as np
import torch
from tqdm import tqdm

import weights
from batches import TaskData
from bert import BertConfig, BertModel
from console import counted, refuse, tell
from course_data import choose_data, refuse_mixture
from data_check import exclude_shared
from distributed import ALONE, Processes, find_processes, joined
from ensemble import ensemble
from errors import InputError
from estimate import describe_cost
from evaluation import Predictions, check_known, predict, write_predictions
from files import write_json
from frozen import Source, Store
from gradients import Gradients
from model import ModelConfig, MultitaskBERT
from options import (
    COMMAND,
    SCORES,
    check_outputs,
    choose_device,
    get_args,
    input_paths,
    recommended_lr,
    short,
    unfinished,
)
from poolers import parse_options
from precision import Precision, choose_precision
from r_drop import PASSES, RDrop
from reporting import describe_data, describe_score, hand_over, report, write_page
from resuming import changed_beside, changed_surroundings, command_to_resume, files_beside, is_scored, or_resume
from run import ROOT, Run, environment, new_name
from sampling import make_schedule
from scalars import Scalars, check_installed
from similarity_scale import Scale, write_scales
from stopping import on_signals, stop_at_once
from task_files import is_optional, read_split, take_share
from task_options import parse_attention, parse_fraction, parse_loss
from tasks import SPLITS, Task, parse_tasks, selection_score
from tokenizer import BertTokenizer
from training import Stopped, Trainer, TrainingOptions

__all__ = ["MultitaskBERT", "get_args", "main"]

CALIBRATION_PAIRS = 256
CACHE = ROOT / "cache" / "encodings"


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


def start(args: argparse.Namespace, processes: Processes, say) -> Job:
    """Resolve model, data and device, and say which and why."""
    if args.tensorboard:
        check_installed()
    tasks = parse_tasks(args.tasks)
    check_known(tasks)
    # What is wrong with the options is said before files are read.
    layers, losses = parse_attention(args.attention, tasks), parse_loss(args.loss, tasks)
    parse_fraction(args.fraction, tasks)
    if args.attention_ffn and not any(layers.values()):
        raise InputError(
            "--attention_ffn: none of these tasks has an attention layer: leave it out, or say --attention"
        )
    if args.swap_pairs and all(task.encoding(args.pair_encoding) == "separate" for task in tasks):
        raise InputError("--swap_pairs: no pair of these tasks is one sequence: leave it out, or say --pair_encoding")
    tasks = tuple(task.with_loss(losses.get(task.name)) for task in tasks)
    device, reason = choose_device(args, processes.local_rank)
    precision = choose_precision(args.precision, device)
    if args.compile and device.type != "cuda":
        raise InputError(
            f"--compile: for a GPU alone, not {device.type}: on a CPU the layers written by hand are faster"
        )
    source = weights.find(args.model)
    origin = f"model      {source.origin}"
    say(textwrap.fill(origin, 120, subsequent_indent=" " * 11, break_long_words=False, break_on_hyphens=False))
    tokenizer = BertTokenizer.from_pretrained(source.path)
    tokenizer.check_fits(BertConfig.from_folder(source.path).vocab_size, source.path)
    folder, why = choose_data(args.data)
    check_outputs(args, tasks, input_paths(args, tasks, folder).values())
    say(f"data       {short(folder)}: {why}")
    data = read_data(args, tasks, folder, tokenizer)
    describe_data(tasks, data, say)
    several = f"; {processes.size} processes, each a part of every batch" if processes.size > 1 else ""
    say(f"device     {device}: {reason}; {precision.name}: {precision.why}{several}")
    return Job(args, tasks, source, device, precision, processes, tokenizer, data)


def model_config(job: Job, tasks: tuple[Task, ...]) -> ModelConfig:
    args = job.args
    return ModelConfig.for_tasks(
        [task.name for task in tasks],
        attention=parse_attention(args.attention, job.tasks),
        attention_init=args.attention_init,
        pair_score=args.pair_score,
        pair_encoding=args.pair_encoding,
        pooler=args.pooler,
        pooler_options=parse_options(args.pooler_options),
        losses=parse_loss(args.loss, job.tasks),
        attention_ffn=args.attention_ffn,
        frozen_dropout=args.frozen_dropout,
        hidden_dropout_prob=args.hidden_dropout_prob,
        option=args.option,
        model=str(job.source.path),
    )


def check_model(job: Job) -> None:
    """Raises InputError where no such model can be made of these weights, which is said before a run has a folder."""
    MultitaskBERT(model_config(job, job.tasks), BertModel.from_pretrained(job.source.path))


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


def train_one(job: Job, tasks: tuple[Task, ...], folder: Path, lr: float, say) -> tuple[Run, MultitaskBERT, list[dict]]:
    """Train one model for these tasks in `folder`, or continue there.

    Returns the run, its best model and the evaluations.
    """
    args, processes = job.args, job.processes
    run = Run(folder)
    torch.manual_seed(args.seed)
    encoder = BertModel.from_pretrained(job.source.path)
    model = MultitaskBERT(model_config(job, tasks), encoder).to(job.device)
    model.autocast = job.precision.dtype
    if args.compile:
        model.compile_layers()
    data = {task.name: job.data[task.name] for task in tasks}
    train = {name: splits["train"] for name, splits in data.items()}
    sizes = {name: len(rows) for name, rows in train.items()}
    name = "sequential" if args.schedule == "separate" else args.schedule
    schedule = make_schedule(name, sizes, args.batch_size, args.epochs, args.seed)
    say(describe_cost(model, data, schedule, args.option, run.position(), PASSES if args.r_drop else 1))
    if args.option == "pretrain":
        encode_once(job, model, data, say)
    for rows in train.values():
        calibrate(model, rows, args.seed)
    processes.copy_from_first(model.state_dict().values())
    if processes.first:
        job.tokenizer.save_pretrained(run.best)
    else:
        processes.seed(args.seed)  # its rows need dropout of their own

    def evaluate() -> tuple[float, dict, str]:
        found = {name: predict(model, splits["dev"], processes=processes) for name, splits in data.items()}
        scores = {name: p.score for name, p in found.items()}
        row = {"dev": {name: {"loss": p.loss, **p.scores} for name, p in found.items()}}
        return selection_score(scores), row, "   ".join(describe_score(p) for p in found.values())

    options = TrainingOptions(
        epochs=args.epochs,
        lr=lr,
        weight_decay=args.weight_decay,
        decay=args.lr_decay,
        warmup=args.warmup,
        clip=args.clip,
        non_finite=args.non_finite,
        seed=args.seed,
        save_every=args.save_every,
        micro_batch=args.micro_batch,
        layer_decay=args.layer_decay,
        head_lr=args.head_lr,
        quiet=args.quiet,
        average=args.average,
    )
    save_best = lambda: model.save_pretrained(run.best)  # noqa: E731
    scalars = partial(Scalars, run.folder, say=say) if args.tensorboard else None
    gradients = partial(RDrop, alpha=args.r_drop) if args.r_drop else Gradients
    trainer = Trainer(
        model, train, schedule, evaluate, save_best, run, options, job.precision, processes, gradients, scalars
    )
    progress = trainer.train(say)
    if progress.best_epoch:
        processes.wait()  # rank 0 may still be writing it
        model.load_weights(weights.read_state(run.best), str(run.best))
        if processes.first:
            model.write_config(run.best)  # which whoever loads it needs, too
    elif processes.first:
        model.save_pretrained(run.best)
    if progress.seconds:
        rate = f"{progress.tokens / progress.seconds:,.0f} tokens/s"
        say(f"trained    {progress.seconds:.0f} s in steps, {rate}; best after epoch {progress.best_epoch}")
    return run, model, progress.history


def calibrate(model: MultitaskBERT, rows: TaskData, seed: int) -> None:
    """Set the scale and offset of a pair's score from some training pairs and the share of positive labels."""
    if model.heads[rows.task.name].begins_calibrated:
        some = np.random.default_rng(seed).permutation(len(rows))[:CALIBRATION_PAIRS]
        ones = float(rows.labels.sum()) if rows.task.label_kind == "binary" else len(rows) / 2
        share = (ones + 1) / (len(rows) + 2)  # never 0 or 1, even if the labels are all the same
        model.calibrate(rows.batch(some).to(model.device), share)


def encode_once(job: Job, model: MultitaskBERT, data: dict, say) -> None:
    """Compute once, or find on disk, what the heads read of the frozen encoder's output; the same for the same.

    Where its dropout is on in training, its output is another one each time, and only dev's and test's stay the same.
    """
    if model.config.frozen_dropout:
        say("encodings  train: none kept, the encoder runs in every step (--frozen_dropout)")
    alike: dict[str, list[str]] = {}
    hidden = True if job.args.quiet else None  # None: unless it is a terminal
    for name in data:
        alike.setdefault(model.heads[name].reads, []).append(name)
    for names in alike.values():
        files = [
            rows
            for name in names
            for split, rows in data[name].items()
            if split != "train" or not model.config.frozen_dropout
        ]
        sentences = [ids for rows in files for side in rows.sentences for ids in side]
        total = sum(len(ids) for ids in {ids.tobytes(): ids for ids in sentences}.values())
        source = Source(model.bert, job.source.sha256, model.heads[names[0]], model.autocast)
        with tqdm(total=total, desc="encoding once", unit="token", unit_scale=True, disable=hidden, leave=False) as bar:

            def tell_above(text: str, names=names) -> None:
                with tqdm.external_write_mode():
                    say(f"encodings  {', '.join(names)}: {text}")

            progress = lambda done, bar=bar: bar.update(done - bar.n)  # noqa: E731
            store = Store.build(source, sentences, CACHE, job.args.cache_gb, tell_above, progress)
        for rows in files:
            rows.read_from(store)


def write_all(job: Job, model: MultitaskBERT, tasks: tuple[Task, ...], folder: Path) -> dict[str, Predictions]:
    """Predict dev and test with the best model into the run's folder. Returns what was predicted on dev."""
    dev = {}
    for task in tasks:
        for split in [split for split in ("dev", "test") if split in job.data[task.name]]:
            found = predict(model, job.data[task.name][split], processes=job.processes)
            if job.processes.first:
                write_predictions(folder / "predictions" / task.predictions_file(split), found)
            if split == "dev":
                dev[task.name] = found
    return dev


def fit_scales(job: Job, dev: dict[str, Predictions]) -> dict[str, Scale]:
    """Of each task whose labels are scores, how its outputs on dev become labels: what predict.py answers with."""
    return {
        name: Scale.fit(found.values, job.data[name]["dev"].labels.numpy(), *found.task.label_range)
        for name, found in dev.items()
        if found.task.label_kind == "score"
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


def train(args: argparse.Namespace, processes: Processes = ALONE, say=tell) -> Path:
    """The whole command. Returns the run's folder."""
    began, folder = time.monotonic(), args.run
    say = say if processes.first and not args.quiet else (lambda text: None)
    if args.ensemble:
        if processes.size > 1:
            raise InputError("--ensemble: one process is enough: start it without torchrun")
        return ensemble(args, say)
    with ExitStack() as held:
        if args.resume:
            if processes.first:
                held.enter_context(Run(folder).locked())
            processes.wait()
            if is_scored(folder, SCORES):  # killed after everything was written
                if processes.first:
                    for run in unfinished(folder):
                        run.finish()
                    write_page(folder, say)
                say(f"{short(folder)} is finished: only its checkpoint was left, which is deleted now")
                return folder
        job = start(args, processes, say)
        hidden = BertConfig.from_pretrained(job.source.path).hidden_size
        lr = recommended_lr(hidden, args.option) if args.lr is None else args.lr
        recommended = " (recommended for this model and option)" if args.lr is None else ""
        asked = f"batch size {args.batch_size}, {counted(args.epochs, 'epoch')}, schedule {args.schedule}"
        say(f"lr         {lr:g}{recommended}, {asked}")
        config = run_config(job, lr)
        if args.resume:
            refuse_changes(Run(folder), config)
            for line in changed_surroundings(Run(folder).config, config):
                say(line)
        else:
            check_model(job)
            if processes.first:
                held.enter_context(Run(folder).locked())
                Run.create(folder, config)
        processes.wait()
        say(f"run        {short(folder)}")
        outputs = train_parts(job, folder, lr, say)
        if processes.first:
            write_page(folder, say)
    places = dict.fromkeys(short(place) for place in (folder / "predictions", *(path.parent for path in outputs)))
    say(f"\npredictions are in {' and '.join(places)}; {time.monotonic() - began:.0f} s in all")
    return folder


def train_parts(job: Job, folder: Path, lr: float, say) -> list[Path]:
    """One model for all tasks, or one for each; returns where the predictions were handed over to."""
    separate = job.args.schedule == "separate"
    untrained, dev, runs = {}, {}, []
    for tasks in [(task,) for task in job.tasks] if separate else [job.tasks]:
        part = folder / tasks[0].name if separate else folder
        if separate:
            say(f"\n{tasks[0].title}, from the pretrained weights, in {short(part)}")
        run, model, history = train_one(job, tasks, part, lr, say)
        untrained.update({task.name: history[0]["dev"][task.name][task.metric] for task in tasks})
        found = write_all(job, model, tasks, folder)
        if job.processes.first:
            write_scales(run.best, fit_scales(job, found))
        dev.update(found)
        runs.append(run)
    report(untrained, dev, job.args.epochs > 0, say)
    outputs = []
    if job.processes.first:
        Run(folder).write_outputs({name: torch.from_numpy(found.outputs) for name, found in dev.items()})
        outputs = hand_over(job.args, job.data, folder, ROOT, say)
        scores = {name: {"untrained": untrained[name], **found.scores} for name, found in dev.items()}
        write_json(folder / SCORES, scores)
        for run in runs:
            run.finish()
    job.processes.wait()
    return outputs


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code. Errors of input are one line on stderr."""
    folder, processes, trains = None, ALONE, True
    try:
        with on_signals(stop_at_once):
            args = get_args(arguments)
            trains = not args.ensemble  # which has nothing to go on with
            processes = find_processes()
            with joined(processes):
                name = args.run or ROOT / "runs" / new_name("ensemble" if args.ensemble else args.option)
                args.run = folder = Path(processes.from_first(str(name)))
                train(args, processes)
    except InputError as error:
        who = "" if processes.size == 1 else f"process {processes.rank}: "
        told = or_resume(error, [COMMAND], folder, processes.size) if trains else error
        print(f"error: {who}{told}", file=sys.stderr)
        return 1
    except OSError as error:
        return refuse(error)
    except (Stopped, KeyboardInterrupt):
        if not trains:
            print("stopped: the same command makes it again", file=sys.stderr)
        elif folder is None or not (folder / "config.json").is_file():
            print("stopped before anything was written", file=sys.stderr)
        elif processes.first:
            command = command_to_resume([COMMAND], folder, processes.size)
            print(f"stopped; continue with: {command}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
