"""Train and evaluate the multi-task model: `python multitask_classifier.py --option finetune`.

The command of the CS 224N default project, both seasons' flags. With nothing said it takes what setup.sh has put in
place, trains one model for sentiment, paraphrase and similarity, and writes the leaderboard's six prediction files.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import startup  # noqa: F401  # isort: skip: before what may be missing

import torch
from tqdm import tqdm

import state_dicts
from bert import BertConfig
from calibration import calibrate, settled
from console import counted, refuse, tell, warn
from distributed import ALONE, Processes, find_processes, joined
from ensemble import ensemble
from errors import InputError
from estimate import Demands, describe_cost
from evaluation import Predictions, predict, write_predictions
from files import write_json
from frozen import Source, Store
from gradients import Gradients
from job import Job, check_model, new_model, refuse_changes, run_config, start
from model import MultitaskBERT
from options import (
    COMMAND,
    SCORES,
    get_args,
    recommended_lr,
    short,
    unfinished,
)
from r_drop import RDrop
from reporting import describe_score, hand_over, report, write_page
from resuming import changed_surroundings, command_to_resume, is_scored, or_resume
from run import ROOT, Run, new_name
from sampling import make_schedule
from scalars import Scalars
from similarity_scale import fit_scales, write_scales
from soft_labels import check_losses, find_teachers, soften
from stopping import on_signals, stop_at_once
from tasks import Task, selection_score
from training import Stopped, Trainer, TrainingOptions

__all__ = ["MultitaskBERT", "get_args", "main"]

CACHE = ROOT / "cache" / "encodings"


def train_one(job: Job, tasks: tuple[Task, ...], folder: Path, lr: float, say) -> tuple[Run, MultitaskBERT, list[dict]]:
    """Train one model for these tasks in `folder`, or continue there.

    Returns the run, its best model and the evaluations.
    """
    args, processes = job.args, job.processes
    run = Run(folder)
    torch.manual_seed(args.seed)
    model = new_model(job, tasks).to(job.device)
    model.autocast = job.precision.dtype
    if args.compile:
        model.compile_layers()
    data = {task.name: job.data[task.name] for task in tasks}
    train = {name: splits["train"] for name, splits in data.items()}
    sizes = {name: len(rows) for name, rows in train.items()}
    name = "sequential" if args.schedule == "separate" else args.schedule
    schedule = make_schedule(name, sizes, args.batch_size, args.epochs, args.seed)
    say(describe_cost(model, data, schedule, Demands.of(args, len(tasks)), run.position()))
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
        accumulate=args.accumulate,
        pcgrad=args.pcgrad,
    )
    save_best = lambda: model.save_pretrained(run.best)  # noqa: E731
    scalars = partial(Scalars, run.folder, say=say) if args.tensorboard else None
    as_judged = partial(settled, model, train, args.seed, args.settle, processes)
    gradients = partial(RDrop, alpha=args.r_drop) if args.r_drop else Gradients
    trainer = Trainer(
        model,
        train,
        schedule,
        evaluate,
        save_best,
        run,
        options,
        job.precision,
        processes,
        gradients,
        scalars,
        as_judged,
    )
    progress = trainer.train(say)
    if not progress.best_epoch:
        with as_judged():
            if processes.first:
                model.save_pretrained(run.best)
    processes.wait()  # rank 0 may still be writing it
    model.load_weights(state_dicts.read_state(run.best), str(run.best))
    if processes.first:
        model.write_config(run.best)  # which whoever loads it needs, too
    if progress.seconds:
        rate = f"{progress.tokens / progress.seconds:,.0f} tokens/s"
        say(f"trained    {progress.seconds:.0f} s in steps, {rate}; best after epoch {progress.best_epoch}")
    return run, model, progress.history


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
        elif processes.first and folder.is_dir():
            with Run(folder).locked():
                Run(folder).refuse_taken()  # before files are read
        job = start(args, processes, say)
        hidden = BertConfig.from_pretrained(job.source.path).hidden_size
        lr = recommended_lr(hidden, args.option, args.accumulate) if args.lr is None else args.lr
        recommended = " (recommended for this model and option)" if args.lr is None else ""
        asked = f"batch size {args.batch_size}, {counted(args.epochs, 'epoch')}, schedule {args.schedule}"
        say(f"lr         {lr:g}{recommended}, {asked}")
        check_losses(job)
        taught_by = {} if args.resume else find_teachers(job)
        config = run_config(job, lr) | taught_by
        if args.resume:
            refuse_changes(Run(folder), config)
            for line in changed_surroundings(Run(folder).config, config):
                say(line)
        else:
            check_model(job)
            if processes.first:
                held.enter_context(Run(folder).locked())
                for task in job.tasks if args.schedule == "separate" else ():
                    Run(folder / task.name).refuse_taken()
                Run.create(folder, config)
        processes.wait()
        say(f"run        {short(folder)}")
        soften(job, folder, say)
        outputs = train_parts(job, folder, lr, say)
        if processes.first:
            write_page(folder, say)
    places = dict.fromkeys(short(place) for place in (folder / "predictions", *(path.parent for path in outputs)))
    since = "since it went on" if args.resume else "in all"
    say(f"\npredictions are in {' and '.join(places)}; {time.monotonic() - began:.0f} s {since}")
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
            labels = {task.name: job.data[task.name]["dev"].labels.numpy() for task in tasks}
            write_scales(run.best, fit_scales(found, labels))
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
        warn(f"error: {who}{told}")
        return 1
    except OSError as error:
        return refuse(error)
    except (Stopped, KeyboardInterrupt):
        if not trains:
            warn("stopped: the same command makes it again")
        elif folder is None or not (folder / "config.json").is_file():
            warn("stopped before anything was written")
        elif processes.first:
            command = command_to_resume([COMMAND], folder, processes.size)
            warn(f"stopped; continue with: {command}")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
