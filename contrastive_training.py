"""Contrastive training, the whole of it, and training on hidden words: `python contrastive.py train`.

SimCSE's recipe (Gao, Yao and Chen 2021, arXiv 2104.08821) and that of layer-wise attention pooling (Oh et al. 2022,
arXiv 2209.05972), in the loop of training.py: a run's folder, exact resume, several processes, micro-batches.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

import state_dicts
import weights
from console import counted, warn
from contrastive_data import SENTENCE_COLUMNS, Contrast, read_pairs, read_sentences
from contrastive_loss import Objective
from contrastive_model import ContrastiveGradients, ContrastiveModel, ContrastiveRows
from contrastive_options import COMMAND, MASKED, NO_DEV, add_options, default_files, dense_in_training, resolve
from course_data import choose_data
from distributed import Processes, find_processes, joined
from errors import InputError
from files import sha256, short, write_json
from masked_language import MaskedLanguageHead, Masking
from options import SCORES, choose_device
from poolers import parse_options
from precision import Precision, choose_precision
from reporting import write_page
from resuming import changed_beside, changed_surroundings, command_to_resume, files_beside, is_scored, or_resume
from run import ROOT, Run, environment, new_name
from sampling import make_schedule
from scalars import Scalars, check_installed
from sentence_encoder import SentenceEncoder
from sentence_keys import hash_of_keys, key, keys_of
from stopping import on_signals, stop_at_once
from sts_data import ScoredPairs
from sts_data import read_pairs as read_scored_pairs
from sts_evaluation import spearman_of
from training import Progress, Stopped, Trainer, TrainingOptions

__all__ = ["add_options", "run"]

SHARED = "stands in an evaluation set"
TASK = "contrast"  # what the loop calls the only task there is, unless it is masked words
SHOWN = 20  # lines of what was left out that config.json lists


@dataclass
class Job:
    """All that one run needs, resolved. dev: None for --dev none. keys: what --exclude names, hashed."""

    args: argparse.Namespace
    processes: Processes
    device: torch.device
    precision: Precision
    encoder: SentenceEncoder
    data: Contrast
    dev_path: Path | None
    dev: ScoredPairs | None
    keys: str | None


def run(args: argparse.Namespace, say: Callable[[str], object] = print) -> int:
    """Train; returns the exit code. Raises InputError, one line, for what can't be used."""
    folder, processes = None, Processes()
    try:
        with on_signals(stop_at_once):
            args, processes = resolve(args), find_processes()
            with joined(processes):
                name = args.run or ROOT / "runs" / new_name(f"contrastive-{args.mode}")
                args.run = folder = Path(processes.from_first(str(name)))
                train(args, processes, say if processes.first and not args.quiet else lambda text: None)
    except InputError as error:
        who = "" if processes.size == 1 else f"process {processes.rank}: "
        raise InputError(f"{who}{or_resume(error, [COMMAND, 'train'], folder, processes.size)}") from error
    except (Stopped, KeyboardInterrupt):
        if folder is None or not (folder / "config.json").is_file():
            warn("stopped before anything was written")
        elif processes.first:
            command = command_to_resume([COMMAND, "train"], folder, processes.size)
            warn(f"stopped; continue with: {command}")
        return 130
    return 0


def train(args: argparse.Namespace, processes: Processes, say: Callable[[str], object]) -> Path:
    """The whole command. Returns the run's folder."""
    began, folder = time.monotonic(), args.run
    with ExitStack() as held:
        if args.resume:
            if processes.first:
                held.enter_context(Run(folder).locked())
            processes.wait()
        if args.resume and is_scored(folder, SCORES):  # killed after everything was written
            if processes.first:
                Run(folder).finish()
                write_page(folder, say)
            say(f"{short(folder)} is finished: only its checkpoint was left, which is deleted now")
            return folder
        job = start(args, processes, say)
        config = run_config(job)
        if args.resume:
            refuse_changes(Run(folder), config)
            for line in changed_surroundings(Run(folder).config, config):
                say(line)
        elif processes.first:
            held.enter_context(Run(folder).locked())
            Run.create(folder, config)
        processes.wait()
        say(f"run        {short(folder)}")
        progress = train_model(job, Run(folder), say)
        if processes.first:
            write_json(folder / SCORES, scores(job, progress))
            Run(folder).finish()
            write_page(folder, say)
        processes.wait()
    since = "since it went on" if args.resume else "in all"
    say(f"\nthe encoder is in {short(folder / 'best')}; {time.monotonic() - began:.0f} s {since}")
    return folder


# ---------------------------------------------------------------------------------------------------------------------
# What a run is made of


def start(args: argparse.Namespace, processes: Processes, say: Callable[[str], object]) -> Job:
    """Resolve model, data and device, and say which and why."""
    if args.tensorboard:
        try:
            check_installed()
        except InputError as error:
            if not args.resume:
                raise
            say(f"left out   {error}")  # the option stands in config.json, where nobody can leave it out
            args.tensorboard = False
    device, reason = choose_device(argparse.Namespace(device=args.device, use_gpu=False), processes.local_rank)
    precision = choose_precision(args.precision, device)
    torch.manual_seed(args.seed)  # decides a new pooler's first weights
    encoder = SentenceEncoder.to_train(args.model, args.pooler, parse_options(args.pooler_options))
    config = encoder.bert.config
    encoder.bert.reinitialize(args.reinitialize)
    longest = config.max_position_embeddings
    if args.max_length > longest:
        raise InputError(f"--max_length {args.max_length}: the model has {longest} positions: give {longest} at most")
    refuse_without_mask(args, encoder)
    new = " (its weights are new)" if encoder.pooler_is_new else ""
    options = "".join(f", {name} {value}" for name, value in encoder.pooler_options.items())
    anew = f"; its last {args.reinitialize} layers begin anew" if args.reinitialize else ""
    say(f"model      {encoder.name}; pooler {encoder.pooler_name}{options}{new}{anew}")
    folder, why = choose_data(args.data)
    why = "as when the run began" if args.resume else why
    data, keys = read_training(args, folder, why, say)
    dev_path = None if args.dev == NO_DEV else Path(args.dev) if args.dev else folder / "sts-dev.csv"
    dev = None if dev_path is None else read_scored_pairs(dev_path)
    if dev is not None:
        say(f"dev        {short(dev_path)}: {counted(len(dev), 'pair')}, Spearman's correlation selects")
        shared = len(data.shared({key(text) for text in (*dev.first, *dev.second)}))
        if shared:
            rows = f"{counted(shared, 'row')} with a sentence of that file"
            say(f"warning    {rows}: --exclude {short(dev_path)} leaves such rows out")
    several = f"; {processes.size} processes, each a part of every batch" if processes.size > 1 else ""
    say(f"device     {device}: {reason}; {precision.name}: {precision.why}{several}")
    return Job(args, processes, device, precision, encoder, data, dev_path, dev, keys)


def refuse_without_mask(args: argparse.Namespace, encoder: SentenceEncoder) -> None:
    """Raises InputError where tokens are to be hidden and the vocabulary has nothing to hide them behind."""
    if (args.mode == MASKED or args.mlm_weight) and encoder.tokenizer.mask_token_id is None:
        masked = args.mode == MASKED
        option, other = ("--mode mlm", "") if masked else (f"--mlm_weight {args.mlm_weight:g}", "leave it out, or ")
        raise InputError(f"{option}: the vocabulary of {encoder.name} has no [MASK]: {other}choose another --model")


def read_training(
    args: argparse.Namespace, folder: Path, why: str, say: Callable[[str], object]
) -> tuple[Contrast, str | None]:
    """The rows to train on, and the hash of what was left out of them."""
    paths, chosen = args.train, "asked for"
    if not paths:
        paths, chosen = default_files(args.mode, folder), f"of {short(folder)}: {why}"
    columns = args.column or SENTENCE_COLUMNS
    data = read_pairs(paths) if args.mode == "sup" else read_sentences(paths, columns)
    if data.width < 3 and args.hard_negative_weight:
        raise InputError("--hard_negative_weight: these are pairs, without hard negatives: leave it out")
    hashed = None
    if args.exclude:
        keys = keys_of(args.exclude)
        hashed = hash_of_keys(keys)
        data = data.without(keys, SHARED)
    if args.fraction < 1:
        data = data.share(args.fraction, f"beyond --fraction {args.fraction:g}")
    if len(data) < 2:
        raise InputError(f"{data.sources[0].describe()}; wanted two or more: a row alone has nothing to be told from")
    if args.mode != MASKED and len({text for row in data.rows for text in row}) == 1:
        raise InputError(
            f"{paths[0]}: its {len(data):,} rows all say the same: nothing to be told from: choose another file"
        )
    alone = "sentences with hidden words" if args.mode == MASKED else "sentences, each its own pair"
    kinds = {1: alone, 2: "pairs", 3: "triples with a hard negative"}
    say(f"data       {len(data):,} {kinds[data.width]}; {chosen}")
    for source in data.sources:
        say(f"           {source.describe()}")
    return data, hashed


def run_config(job: Job) -> dict:
    """config.json: every resolved option, versions, commit, data and weights with their hashes; paths are absolute."""
    source = job.encoder.source
    options = {name: _absolute(value) for name, value in vars(job.args).items() if name not in ("run", "resume")}
    if source.name not in weights.KNOWN:
        options["model"] = os.path.abspath(source.path)
    if job.dev_path is not None:
        options["dev"] = os.path.abspath(job.dev_path)
    files = [
        {
            "path": os.path.abspath(file.path),
            "sha256": file.sha256,
            "rows": file.rows,
            "dropped": {
                reason: {"rows": len(lines), "first_lines": lines[:SHOWN]} for reason, lines in file.dropped.items()
            },
        }
        for file in job.data.sources
    ]
    dev = None if job.dev is None else {"path": options["dev"], "sha256": sha256(job.dev_path), "pairs": len(job.dev)}
    return {
        "command": COMMAND,
        "options": options,
        "model": {**asdict(source), "path": os.path.abspath(source.path), "files": files_beside(source)},
        "pooler": {"name": job.encoder.pooler_name, "options": job.encoder.pooler_options},
        "data": {"train": files, "dev": dev, "excluded_sentences_sha256": job.keys},
        "precision": job.precision.name,
        "processes": job.processes.size,
        **environment(job.device),
    }


def _absolute(value):
    if isinstance(value, list):
        return [_absolute(one) for one in value]
    return os.path.abspath(value) if isinstance(value, Path) else value


def refuse_changes(before: Run, config: dict) -> None:
    """Raises InputError, with the difference, if weights or data are not what the run began with."""

    def inputs(config: dict) -> dict[str, tuple]:
        """What it is called -> (what has to be the same, how a difference is shown)."""
        model, dev, excluded = config["model"], config["data"]["dev"], config["data"]["excluded_sentences_sha256"]
        return {
            "weights": (model["sha256"], model["name"]),
            "processes": (config["processes"], config["processes"]),
            **{file["path"]: (file["sha256"], f"{file['rows']} rows") for file in config["data"]["train"]},
            "--dev": (dev and dev["sha256"], f"{dev['pairs']} pairs" if dev else NO_DEV),
            "--exclude": (excluded, f"sentences {(excluded or NO_DEV)[:12]}"),
        }

    try:
        then, now = inputs(before.config), inputs(config)
    except (AttributeError, KeyError, TypeError) as error:
        path = before.folder / "config.json"
        raise InputError(f"{path}: does not say which weights and data the run used: start a new one") from error
    changed = [
        f"{short(name) if os.path.isabs(name) else name} ({then[name][1] if name in then else 'none'} -> {found[1]})"
        for name, found in now.items()
        if name not in then or found[0] != then[name][0]
    ]
    changed += changed_beside(before.config["model"], config["model"])
    if changed:
        raise InputError(
            f"{before.folder} can't be continued, its inputs changed: {'; '.join(changed)}: restore them, or start anew"
        )


# ---------------------------------------------------------------------------------------------------------------------
# Training


def train_model(job: Job, run: Run, say: Callable[[str], object]) -> Progress:
    """Train in the run's folder, or continue there; the best model is then in run.best, and in job.encoder."""
    args, encoder, processes = job.args, job.encoder, job.processes
    contrast, task = (False, MASKED) if args.mode == MASKED else (True, TASK)
    masking = Masking(encoder.tokenizer, args.seed) if args.mlm_weight or not contrast else None
    objective = Objective(args.temperature, args.hard_negative_weight)
    rows = ContrastiveRows(job.data, encoder, args.max_length, objective, masking, passes=2 if contrast else 1)
    head = MaskedLanguageHead(encoder.bert) if masking else None
    if head and not head.load_from(state_dicts.read_state(encoder.source.path)):
        say("mlm        the weights have no head for masked words: it begins new")
    model = ContrastiveModel(encoder, dense_in_training(args, encoder.pooler_name), head).to(job.device)
    model.autocast = job.precision.dtype
    if model.dense is not None:
        say("dense      a layer with tanh behind the pooler, in training only")
    schedule = make_schedule("proportional", {task: len(rows)}, args.batch_size, args.epochs, args.seed)
    cut = f", {counted(rows.truncated, 'text')} cut to {args.max_length} tokens" if rows.truncated else ""
    steps = f"{schedule.steps_per_epoch:,} an epoch, of {args.batch_size} rows"
    say(f"steps      {steps}; {counted(args.epochs, 'epoch')}, lr {args.lr:g}{cut}")
    processes.copy_from_first(model.state_dict().values())
    processes.seed(args.seed)
    options = TrainingOptions(
        epochs=args.epochs,
        lr=args.lr,
        weight_decay=args.weight_decay,
        decay=args.lr_decay,
        warmup=args.warmup,
        clip=args.clip,
        non_finite=args.non_finite,
        seed=args.seed,
        save_every=args.save_every,
        micro_batch=args.micro_batch,
        evaluate_every=args.evaluate_every if job.dev is not None else 0,
        patience=args.patience,
        quiet=args.quiet,
    )
    trainer = Trainer(
        model,
        {task: rows},
        schedule,
        lambda: evaluate(job, trainer.progress),
        lambda: encoder.save_pretrained(run.best),
        run,
        options,
        job.precision,
        processes,
        partial(
            ContrastiveGradients,
            contrast=contrast,
            masked_loss=model.masked_loss,
            masked_weight=args.mlm_weight if contrast else 1.0,
        ),
        partial(Scalars, run.folder, say=say) if args.tensorboard else None,
    )
    progress = trainer.train(say)
    processes.wait()  # rank 0 may still be writing best/
    if not progress.best_epoch:  # no step was made: what overflowed in 16 bits makes none
        if processes.first:
            encoder.save_pretrained(run.best)
        processes.wait()
    encoder.load_weights(run.best)
    if processes.first:
        encoder.save_pretrained(run.best)  # once more, all its files from the same step
    if progress.seconds:
        say(f"trained    {progress.seconds:.0f} s in steps, {progress.tokens / progress.seconds:,.0f} tokens/s")
    return progress


def evaluate(job: Job, progress: Progress) -> tuple[float, dict, str]:
    """(what selects, its row, in words): Spearman's correlation on dev; without dev, the later the better."""
    if job.dev is None:
        return float(progress.epoch), {}, "no dev file: the last model is kept"
    found = json.dumps(spearman_of(job.encoder, job.dev)) if job.processes.first else ""
    spearman = json.loads(job.processes.from_first(found))
    words = "undefined, counted as -1" if spearman is None else f"{spearman:.4f}"
    return -1.0 if spearman is None else spearman, {"dev": {"spearman": spearman}}, f"dev spearman {words}"


def scores(job: Job, progress: Progress) -> dict:
    """scores.json: dev before training and of the model that is kept."""
    if job.dev is None:
        return {"dev": None}
    best = [row for row in progress.history if row["best"]]
    kept = (best or progress.history)[-1]
    return {
        "dev": {"path": os.path.abspath(job.dev_path), "pairs": len(job.dev)},
        "untrained": progress.history[0]["dev"],
        "trained": {**kept["dev"], "epoch": kept["epoch"], "step": kept.get("step", 0)},
    }
