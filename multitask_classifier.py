"""Train and evaluate the multi-task model: `python multitask_classifier.py --option finetune`.

The command of the CS 224N default project, both seasons' flags. With nothing said it takes what setup.sh has put in
place, trains one model for sentiment, paraphrase and similarity, and writes the leaderboard's six prediction files.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import sys
import textwrap
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import weights
from batches import TaskData
from bert import BertConfig, BertModel
from course_data import choose_data, refuse_mixture
from data_check import exclude_shared, shared_rows
from datasets import read_examples
from errors import InputError
from estimate import describe_cost
from evaluation import Predictions, predict, write_predictions
from files import atomic_write_all, cannot, check_writable, write_json
from frozen import Store
from heads import PAIR_SCORES
from model import FINE_TUNE_MODES, OPTIONS, ModelConfig, MultitaskBERT
from poolers import POOLERS
from run import ROOT, Run, environment, new_name
from sampling import SCHEDULES, make_schedule
from schedules import SCHEDULES as LEARNING_RATES
from task_attention import INITIALIZATIONS
from tasks import TASKS, Task, leaderboard_score, parse_tasks
from tokenizer import BertTokenizer
from training import Stopped, Trainer, TrainingOptions, on_signals

__all__ = ["MultitaskBERT", "get_args", "main"]

COMMAND = "multitask_classifier.py"
CALIBRATION_PAIRS = 256
SCORES = "scores.json"
SPLITS = ("train", "dev", "test")
CACHE = ROOT / "cache" / "encodings"


def recommended_lr(hidden_size: int, option: str) -> float:
    """The learning rate used when none is given.

    The poster's for bert-base: 1e-3 for heads alone, 1e-5 for everything. A smaller encoder bears, and needs, more when
    everything learns (tried: 2e-5, 5e-5, 1e-4).
    """
    if option == "pretrain":
        return 1e-3
    return 1e-5 if hidden_size >= 768 else 5e-5


# ---------------------------------------------------------------------------------------------------------------------
# Options

# A resumed run keeps its options, except those that say where and how often.
MAY_CHANGE = ("device", "use_gpu", "save_every", "resume")
LARGEST_SEED = 2**63 - 1
# Far beyond what trains; their product still fits into a weight, which is a float32.
LARGEST_LR, LARGEST_DECAY = 1e30, 1e3
MOST_LAYERS = 99


def text_given(text: str) -> str:
    """What names a file or folder. Raises argparse's error for nothing, and for bytes that no text stands for."""
    if not text:
        raise argparse.ArgumentTypeError("is empty: give a folder or file")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{ascii(text)} is not UTF-8: choose another name") from error
    return text


def path_given(text: str) -> Path:
    return Path(text_given(text))


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        usage="%(prog)s [--option {pretrain,finetune}] [options]",
        description="Train one BERT for several tasks and write the leaderboard's prediction files.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30, width=120),
    )
    what = parser.add_argument_group("what to train")
    what.add_argument("--option", choices=OPTIONS, help="pretrain: the heads alone (default); finetune: everything")
    what.add_argument(
        "--fine-tune-mode", choices=FINE_TUNE_MODES, metavar="MODE", help=f"the same as {' or '.join(FINE_TUNE_MODES)}"
    )
    what.add_argument("--tasks", default="sst,para,sts", help=f"any of {','.join(TASKS)} (default %(default)s)")
    what.add_argument(
        "--model",
        type=text_given,
        help="bert-base-uncased, all-MiniLM-L6-v2 or a folder (default: what setup.sh put in place)",
    )
    what.add_argument(
        "--data",
        type=path_given,
        metavar="DIR",
        help="folder of the CSV files (default: data/ if they stand there, else data/sample)",
    )
    what.add_argument(
        "--exclude_shared",
        action="store_true",
        help="leave out train rows that stand in dev or test, too; default: kept, as in the course",
    )

    heads = parser.add_argument_group("heads (the poster's by default)")
    heads.add_argument(
        "--attention",
        metavar="LAYERS",
        help="attention layers a task: 'sst=2,para=1,sts=3' (default), one number for all, 0 for none",
    )
    heads.add_argument(
        "--attention_init",
        choices=INITIALIZATIONS,
        default="default",
        help="uniform: query, key and value from U(0.9, 1)",
    )
    heads.add_argument(
        "--pair_score",
        choices=PAIR_SCORES,
        default="calibrated",
        help="logit of a pair: <W a, W b> (dot, the poster's) or with an offset set on some training pairs (default)",
    )
    heads.add_argument("--pooler", choices=POOLERS, help="default: first after attention layers, mean without any")
    heads.add_argument(
        "--hidden_dropout_prob", type=float, metavar="P", default=0.3, help="in the heads (default 0.3, the course's)"
    )

    how = parser.add_argument_group("how to train")
    how.add_argument("--epochs", type=int, metavar="N", default=10, help="default 10, the course's")
    how.add_argument(
        "--batch_size", type=int, metavar="N", default=8, help="default 8, the course's; it fits every GPU"
    )
    how.add_argument("--lr", type=float, help="default: the one recommended for model and option, which is printed")
    how.add_argument("--lr_decay", choices=LEARNING_RATES, default="constant", help="default constant, the course's")
    how.add_argument(
        "--warmup",
        type=float,
        metavar="SHARE",
        default=0.0,
        help="of all steps, over which the rate climbs (default 0)",
    )
    how.add_argument("--weight_decay", type=float, metavar="W", default=0.0, help="default 0, the course's")
    how.add_argument(
        "--clip",
        type=float,
        metavar="NORM",
        default=0.0,
        help="largest gradient norm; default 0: no clipping, as there",
    )
    how.add_argument(
        "--schedule",
        choices=("separate", *SCHEDULES),
        default="proportional",
        help="whose batch comes next (default proportional: every row once an epoch); separate: one model a task",
    )
    how.add_argument("--seed", type=int, metavar="N", default=11711, help="default 11711, the course's")

    where = parser.add_argument_group("where")
    where.add_argument("--use_gpu", action="store_true", help="insist on a GPU (without it the best device there is)")
    where.add_argument("--device", help="cuda, cuda:1, mps or cpu")
    where.add_argument(
        "--run", type=path_given, metavar="DIR", help="folder for this run (default runs/<time>-<option>)"
    )
    where.add_argument(
        "--resume", type=path_given, metavar="RUN", help="continue a run that was stopped, with its options"
    )
    where.add_argument(
        "--save_every",
        type=float,
        metavar="MINUTES",
        default=10.0,
        help="between checkpoints within an epoch (default 10)",
    )

    files = parser.add_argument_group(
        "the course's file names",
        "--TASK_train FILE, --TASK_dev FILE, --TASK_test FILE (default: as the course names them, in --data) and "
        "--TASK_dev_out FILE, --TASK_test_out FILE (default: predictions/TASK-dev-output.csv and TASK-test-output.csv "
        f"beside this program), where TASK is one of {', '.join(TASKS)}",
    )
    for name in TASKS:
        for role in (*SPLITS, "dev_out", "test_out"):
            files.add_argument(f"--{name}_{role}", type=path_given, help=argparse.SUPPRESS)
    # The course's; here nothing is ever downloaded.
    parser.add_argument("--local_files_only", action="store_true", help=argparse.SUPPRESS)
    return parser


def get_args(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse and check the options; --fine-tune-mode becomes --option, and --resume brings the run's own options."""
    parser = build_parser()
    args = parser.parse_args(arguments)
    mode = FINE_TUNE_MODES.get(args.fine_tune_mode)
    if mode and args.option and mode != args.option:
        raise InputError(
            f"--option {args.option} and --fine-tune-mode {args.fine_tune_mode} contradict each other: give one"
        )
    args.option = args.option or mode or "pretrain"
    if args.resume:
        # A default stands only where nothing does, so what isn't this object was typed.
        untyped = object()
        marked = argparse.Namespace(**dict.fromkeys(vars(args), untyped))
        typed = {name for name, value in vars(parser.parse_args(arguments, marked)).items() if value is not untyped}
        if "fine_tune_mode" in typed:
            typed = typed - {"fine_tune_mode"} | {"option"}
        args = resumed_args(args, typed)
    check_ranges(args)
    return args


def check_ranges(args: argparse.Namespace) -> None:
    """Raises InputError for a number that is out of range, naming the option and what is wanted."""
    for name, low, high in (
        ("epochs", 0, None),
        ("batch_size", 1, None),
        ("seed", 0, LARGEST_SEED),
        ("hidden_dropout_prob", 0, 1),
        ("warmup", 0, 1),
        ("lr", 0, LARGEST_LR),
        ("weight_decay", 0, LARGEST_DECAY),
        ("clip", 0, None),
        ("save_every", 0, None),
    ):
        value = getattr(args, name)
        most = sys.float_info.max if high is None else high  # infinity is out of every range, and NaN in none
        if value is not None and not low <= value <= most:
            wanted = f"a number from {low} up" if high is None else f"{low} to {high}"
            raise InputError(f"--{name} is {value}, wanted {wanted}")
    if args.device and args.use_gpu and torch_device(args.device).type == "cpu":
        raise InputError(f"--use_gpu and --device {args.device} contradict each other: give one")


def parse_attention(text: str | None, tasks: tuple[Task, ...]) -> dict[str, int]:
    """`sst=2,sts=0` or `0` -> layers a task; tasks not named keep the poster's number."""
    layers = {task.name: task.attention[1] for task in tasks}
    wanted = ",".join(f"{name}={number}" for name, number in layers.items())
    parts = [part.strip() for part in text.split(",")] if text is not None else []
    for part in parts:
        name, equals, number = part.rpartition("=")
        known = name in layers if equals else len(parts) == 1
        if not known or not number.isdecimal() or int(number) > MOST_LAYERS:
            raise InputError(
                f"--attention {text}: {part!r} is not understood; wanted {wanted} or one number for all, "
                f"each from 0 to {MOST_LAYERS}"
            )
        layers.update({name: int(number)} if equals else dict.fromkeys(layers, int(number)))
    return layers


def torch_device(name: str) -> torch.device:
    """The device of that name, which may not be there. Raises InputError for what is no name."""
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise InputError(f"--device {name}: not a device; wanted cuda, cuda:1, mps or cpu") from error


def choose_device(args: argparse.Namespace) -> tuple[torch.device, str]:
    """The device and why. Raises InputError where what was insisted on is not there."""
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if args.device:
        device = torch_device(args.device)
        there = {"cuda": cuda, "mps": mps, "cpu": True}.get(device.type, False)
        if device.type == "cuda" and cuda and (device.index or 0) >= torch.cuda.device_count():
            there = False
        if not there:
            found = f"CUDA: {torch.cuda.device_count()} devices, MPS: {'yes' if mps else 'no'}"
            raise InputError(f"--device {args.device}: not there ({found}); leave it out for the best there is")
        return device, "asked for"
    if args.use_gpu and not (cuda or mps):
        driver = "" if torch.version.cuda else ", which is built for CPUs alone"
        raise InputError(f"--use_gpu: no GPU that torch {torch.__version__}{driver} can use; leave it out for the CPU")
    if cuda:
        return torch.device("cuda"), torch.cuda.get_device_name()
    if mps:
        return torch.device("mps"), "Apple GPU"
    return torch.device("cpu"), f"no GPU found; threads: {torch.get_num_threads()}"


def output_path(args: argparse.Namespace, task: Task, split: str) -> Path:
    """Where the course's flags want the predictions; by default where prepare_submit.py looks for them."""
    return getattr(args, f"{task.name}_{split}_out") or ROOT / "predictions" / task.predictions_file(split)


def input_paths(args: argparse.Namespace, tasks: tuple[Task, ...], folder: Path) -> dict[tuple[str, str], Path]:
    """(task, split) -> the data file."""
    return {
        (task.name, split): getattr(args, f"{task.name}_{split}") or folder / task.files[split]
        for task in tasks
        for split in SPLITS
    }


def check_outputs(args: argparse.Namespace, tasks: tuple[Task, ...], inputs: Iterable[Path]) -> None:
    """Raises InputError before hours of training for prediction files that could not be written after them, or that
    would overwrite anything but prediction files of the same kind.
    """
    read = {os.path.realpath(path) for path in inputs}
    seen = {}
    for task in tasks:
        for split in ("dev", "test"):
            option, path = f"--{task.name}_{split}_out", output_path(args, task, split)
            if path.is_dir():
                raise InputError(f"{option} {short(path)}: that is a folder: name a file in it")
            real = os.path.realpath(path)
            other = seen.setdefault(real, option)
            if other != option:
                raise InputError(f"{option} and {other} both name {short(path)}: give each a file of its own")
            if real in read:
                raise InputError(f"{option} would overwrite {short(path)}, which this run reads: choose another")
            own = os.path.realpath(args.run)
            if Path(real).is_relative_to(own) and real != str(Path(own, "predictions", task.predictions_file(split))):
                raise InputError(f"{option} {short(path)} is in the run's own folder: choose another")
            check_writable(path)
            if path.is_file() and not starts_like_predictions(path, task):
                raise InputError(
                    f"{option} would overwrite {short(path)}, which is not a prediction file: choose another"
                )


def starts_like_predictions(path: Path, task: Task) -> bool:
    """Whether a file's first line is the task's header; an empty file holds nothing to lose."""
    wanted = f"{task.header}\n".encode()
    try:
        with open(path, "rb") as file:
            return file.read(len(wanted)) in (b"", wanted)
    except OSError as error:
        raise cannot("read", path, error) from error


def short(path: Path) -> str:
    """A path as short as it can be typed from here."""
    path = Path(os.path.abspath(path))
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


# ---------------------------------------------------------------------------------------------------------------------
# One run


@dataclass
class Job:
    """All that one run needs, resolved."""

    args: argparse.Namespace
    tasks: tuple[Task, ...]
    source: weights.Weights
    device: torch.device
    tokenizer: BertTokenizer
    data: dict[str, dict[str, TaskData]]  # task -> split -> rows


def read_data(args: argparse.Namespace, tasks: tuple[Task, ...], folder: Path, tokenizer: BertTokenizer) -> dict:
    """Read and tokenize every file of the tasks. Raises InputError for the first that can't be used."""
    data, paths = {}, input_paths(args, tasks, folder)
    refuse_mixture(paths.values())
    for task in tasks:
        tables = {}
        for split in SPLITS:
            path = short(paths[task.name, split])
            label = None if split == "test" else task.label
            tables[split] = read_examples(
                path, columns=task.columns, label=label, label_kind=task.label_kind, label_range=task.label_range
            )
        if args.exclude_shared:
            tables["train"] = exclude_shared(*tables.values())
        data[task.name] = {split: TaskData(task, table, tokenizer) for split, table in tables.items()}
    return data


def describe_data(tasks: tuple[Task, ...], data: dict, say) -> None:
    for task in tasks:
        parts = []
        for split, rows in data[task.name].items():
            notes = [
                f"{len(lines):,} left out: {reason}, line {lines[0]}{', ...' if len(lines) > 1 else ''}"
                for reason, lines in rows.table.reasons().items()
            ]
            if rows.truncated:
                notes.append(f"{rows.truncated:,} cut to {rows.max_length} tokens")
            parts.append(f"{split} {len(rows):,}" + (f" ({'; '.join(notes)})" if notes else ""))
        say(f"           {task.name:<7}{', '.join(parts)}")
    shared = {name: len(shared_rows(*(rows.table for rows in splits.values()))) for name, splits in data.items()}
    counts = ", ".join(f"{name} {count:,}" for name, count in shared.items() if count)
    if counts:
        say(f"warning    train rows that stand in dev or test, too: {counts}; --exclude_shared leaves them out")


def start(args: argparse.Namespace, say) -> Job:
    """Resolve model, data and device, and say which and why."""
    tasks = parse_tasks(args.tasks)
    parse_attention(args.attention, tasks)  # what is wrong with the options is said before files are read
    device, reason = choose_device(args)
    source = weights.find(args.model)
    origin = f"model      {source.origin}"
    say(textwrap.fill(origin, 120, subsequent_indent=" " * 11, break_long_words=False, break_on_hyphens=False))
    tokenizer = BertTokenizer.from_pretrained(source.path)
    folder, why = choose_data(args.data)
    check_outputs(args, tasks, input_paths(args, tasks, folder).values())
    say(f"data       {short(folder)}: {why}")
    data = read_data(args, tasks, folder, tokenizer)
    describe_data(tasks, data, say)
    say(f"device     {device}: {reason}")
    return Job(args, tasks, source, device, tokenizer, data)


def model_config(job: Job, tasks: tuple[Task, ...]) -> ModelConfig:
    args = job.args
    return ModelConfig.for_tasks(
        [task.name for task in tasks],
        attention=parse_attention(args.attention, job.tasks),
        attention_init=args.attention_init,
        pair_score=args.pair_score,
        pooler=args.pooler,
        hidden_dropout_prob=args.hidden_dropout_prob,
        option=args.option,
        model=str(job.source.path),
    )


def run_config(job: Job, lr: float) -> dict:
    """config.json: every resolved option, versions, commit, data and weights with their hashes.

    Paths are absolute, so that the run can be continued from another folder.
    """
    options = {
        name: os.path.abspath(value) if isinstance(value, Path) else value
        for name, value in vars(job.args).items()
        if name not in ("run", "resume")
    }
    source = {**dataclasses.asdict(job.source), "path": os.path.abspath(job.source.path)}
    if job.source.name not in weights.KNOWN:
        options["model"] = source["path"]
    files = {
        task: {
            split: {
                "path": os.path.abspath(rows.table.path),
                "rows": len(rows),
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
        **environment(job.device),
    }


def train_one(job: Job, tasks: tuple[Task, ...], folder: Path, lr: float, say) -> tuple[Run, MultitaskBERT, list[dict]]:
    """Train one model for these tasks in `folder`, or continue there.

    Returns the run, its best model and the evaluations.
    """
    args = job.args
    run = Run(folder)
    torch.manual_seed(args.seed)
    encoder = BertModel.from_pretrained(job.source.path)
    model = MultitaskBERT(model_config(job, tasks), encoder).to(job.device)
    data = {task.name: job.data[task.name] for task in tasks}
    train = {name: splits["train"] for name, splits in data.items()}
    sizes = {name: len(rows) for name, rows in train.items()}
    name = "sequential" if args.schedule == "separate" else args.schedule
    schedule = make_schedule(name, sizes, args.batch_size, args.epochs, args.seed)
    say(describe_cost(model, data, schedule, args.option))
    if args.option == "pretrain":
        encode_once(job, model, data)
    for rows in train.values():
        calibrate(model, rows, args.seed)
    job.tokenizer.save_pretrained(run.best)

    def evaluate() -> tuple[float, dict, str]:
        found = {name: predict(model, splits["dev"]) for name, splits in data.items()}
        scores = {name: p.score for name, p in found.items()}
        row = {"dev": {name: {"loss": p.loss, **p.scores} for name, p in found.items()}}
        return leaderboard_score(scores), row, "   ".join(describe_score(p) for p in found.values())

    options = TrainingOptions(
        args.epochs, lr, args.weight_decay, args.lr_decay, args.warmup, args.clip, args.seed, args.save_every
    )
    save_best = lambda: model.save_pretrained(run.best)  # noqa: E731
    trainer = Trainer(model, train, schedule, model.loss, evaluate, save_best, run, options)
    progress = trainer.train(say)
    if progress.best_epoch:
        model.load_weights(weights.read_state(run.best), str(run.best))
    else:
        model.save_pretrained(run.best)
    if progress.seconds:
        rate = f"{progress.tokens / progress.seconds:,.0f} tokens/s"
        say(f"trained    {progress.seconds:.0f} s in steps, {rate}; best after epoch {progress.best_epoch}")
    return run, model, progress.history


def calibrate(model: MultitaskBERT, rows: TaskData, seed: int) -> None:
    """Set the scale and offset of a paraphrase head from some training pairs and the share of positive labels."""
    if rows.task.is_pair and rows.task.label_kind == "binary":
        some = np.random.default_rng(seed).permutation(len(rows))[:CALIBRATION_PAIRS]
        ones = float(rows.labels.sum())
        share = (ones + 1) / (len(rows) + 2)  # never 0 or 1, even if the labels are all the same
        model.calibrate(rows.batch(some).to(model.device), share)


def encode_once(job: Job, model: MultitaskBERT, data: dict) -> None:
    """Encode every distinct sentence with the frozen encoder, or find it on disk."""
    files = [rows for splits in data.values() for rows in splits.values()]
    sentences = [ids for rows in files for side in rows.sentences for ids in side]
    total = sum(len(ids) for ids in {ids.tobytes(): ids for ids in sentences}.values())
    with tqdm(total=total, desc="encoding once", unit="token", unit_scale=True, disable=None, leave=False) as bar:
        store = Store.build(model.bert, job.source.sha256, sentences, CACHE, lambda done: bar.update(done - bar.n))
    for rows in files:
        rows.encodings = store


def describe_score(found: Predictions) -> str:
    """`sst accuracy 0.481`."""
    value = "undefined, counted as 0" if found.score is None else f"{found.score:.3f}"
    return f"{found.task.name} {found.task.metric} {value}"


def write_all(job: Job, model: MultitaskBERT, tasks: tuple[Task, ...], folder: Path) -> dict[str, Predictions]:
    """Predict dev and test with the best model into the run's folder. Returns what was predicted on dev."""
    dev = {}
    for task in tasks:
        for split in ("dev", "test"):
            found = predict(model, job.data[task.name][split])
            write_predictions(folder / "predictions" / task.predictions_file(split), found)
            if split == "dev":
                dev[task.name] = found
    return dev


def hand_over(job: Job, folder: Path) -> list[Path]:
    """Copy the run's prediction files to where the course's flags say, all of them once all are there."""
    contents = {
        output_path(job.args, task, split): (folder / "predictions" / task.predictions_file(split)).read_bytes()
        for task in job.tasks
        for split in ("dev", "test")
    }
    atomic_write_all(contents)
    return list(contents)


def report(job: Job, untrained: dict[str, float | None], dev: dict[str, Predictions], say) -> None:
    """The last lines: each task's dev score beside the untrained one, and the leaderboard score."""

    def show(value):
        return "undefined" if value is None else f"{value:.3f}"

    say("")
    say(f"{'dev':<24}{'metric':<11}{'untrained':>9}{'trained':>10}")
    for name, found in dev.items():
        say(f"{found.task.title:<24}{found.task.metric:<11}{show(untrained[name]):>9}{show(found.score):>10}")
    if set(dev) == {"sst", "para", "sts"}:
        score = leaderboard_score({name: found.score for name, found in dev.items()})
        say(f"{'leaderboard score':<24}{'':<11}{show(leaderboard_score(untrained)):>9}{show(score):>10}")


def resumed_args(args: argparse.Namespace, typed: set[str]) -> argparse.Namespace:
    """The options of the run that --resume names, as they were given then, with where it runs as typed now.

    Raises InputError if it is finished or no run of this command, or if an option typed differs from the run's.
    """
    folder = args.resume
    config = Run.open(folder).config
    try:
        options, command = dict(config["options"]), config["command"]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder / 'config.json'}: not a run's configuration: it can't be continued") from error
    if command != COMMAND:
        raise InputError(f"{folder} is a run of {command}: continue it with that command")
    if (folder / SCORES).is_file() and not unfinished(folder):
        raise InputError(
            f"{folder} is finished: its scores are in {folder / SCORES}; start a new run with another --run"
        )
    for action in build_parser()._actions:
        name, where = action.dest, folder / "config.json"
        if name in ("help", "run", "resume", "local_files_only"):
            continue
        if name not in options:
            raise InputError(f"{where}: the options have no {name}: restore it, or start a new run")
        value = options[name]
        if value is None and action.default is None:
            continue
        kinds = {int: int, float: (int, float), None: str}.get(action.type, str) if action.nargs is None else bool
        fits = isinstance(value, kinds) and (kinds is bool or not isinstance(value, bool))
        is_path = action.type in (path_given, text_given)
        if not fits or (action.choices and value not in action.choices) or (is_path and not value):
            raise InputError(f"{where}: {name} is {value!r}, which --{name} could not be: restore it")
        if action.type is path_given:
            options[name] = Path(value)
    options["run"] = folder
    for name in sorted(typed - set(MAY_CHANGE)):
        now, then = getattr(args, name), options.get(name)
        if now != then and not (then and os.path.abspath(str(now)) == os.path.abspath(str(then))):
            raise InputError(f"--{name} {now} differs from the run's {then}: leave it out, or start a new run")
    if "device" in typed:
        options["use_gpu"] = False  # the run's wish for a GPU gives way to what is typed now
    kept = {name: getattr(args, name) for name in typed & set(MAY_CHANGE)}
    return argparse.Namespace(**{**vars(args), **options, **kept})


def unfinished(folder: Path) -> list[Run]:
    """The runs in this folder, itself and one for each separate task, that still have a checkpoint."""
    runs = [Run(folder), *(Run(folder / name) for name in TASKS)]
    return [run for run in runs if run.checkpoint.parent.is_dir()]


def refuse_changes(run: Run, config: dict) -> None:
    """Raises InputError if weights or data are not what the run began with."""
    before, changed = run.config, []
    try:
        if before["model"]["sha256"] != config["model"]["sha256"]:
            changed.append(f"weights {before['model']['name']} -> {config['model']['name']}")
        for task, splits in config["data"].items():
            for split, now in splits.items():
                then = before["data"][task][split]
                if then["sha256"] != now["sha256"]:
                    changed.append(f"{short(now['path'])} ({then['rows']} rows -> {now['rows']})")
    except (KeyError, TypeError) as error:
        path = run.folder / "config.json"
        raise InputError(f"{path}: does not say which weights and data the run used: start a new one") from error
    if changed:
        raise InputError(
            f"{run.folder} can't be continued, its inputs changed: {'; '.join(changed)}; restore them, or start anew"
        )


def tell(text: str) -> None:
    """print, which ends no run of hours because nobody listens any more (`| head`, a full disk): then it is silent."""
    try:
        print(text, flush=True)
    except UnicodeEncodeError:
        tell(ascii(text))
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, sys.stdout.fileno())  # what is still buffered goes there, too
        finally:
            os.close(nowhere)


def train(args: argparse.Namespace, say=tell) -> Path:
    """The whole command. Returns the run's folder."""
    began, folder = time.monotonic(), args.run
    with ExitStack() as held:
        if args.resume:
            held.enter_context(Run(folder).locked())
            if (folder / SCORES).is_file():  # killed after everything was written
                for run in unfinished(folder):
                    run.finish()
                say(f"{short(folder)} is finished: only its checkpoint was left, which is deleted now")
                return folder
        job = start(args, say)
        hidden = BertConfig.from_pretrained(job.source.path).hidden_size
        lr = recommended_lr(hidden, args.option) if args.lr is None else args.lr
        recommended = " (recommended for this model and option)" if args.lr is None else ""
        asked = f"batch size {args.batch_size}, {args.epochs} epochs, schedule {args.schedule}"
        say(f"lr         {lr:g}{recommended}, {asked}")
        config = run_config(job, lr)
        if args.resume:
            refuse_changes(Run.open(folder), config)
        else:
            held.enter_context(Run(folder).locked())
            Run.create(folder, config)
        say(f"run        {short(folder)}")
        outputs = train_parts(job, folder, lr, say)
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
        dev.update(write_all(job, model, tasks, folder))
        runs.append(run)
    report(job, untrained, dev, say)
    outputs = hand_over(job, folder)
    write_json(folder / SCORES, {name: {"untrained": untrained[name], **found.scores} for name, found in dev.items()})
    for run in runs:
        run.finish()
    return outputs


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code. Errors of input are one line on stderr."""
    folder = None
    try:
        with on_signals(_stop):
            args = get_args(arguments)
            args.run = folder = args.run or ROOT / "runs" / new_name(args.option)
            train(args)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        print(f"error: {cannot('use', error.filename, error)}", file=sys.stderr)
        return 1
    except (Stopped, KeyboardInterrupt):
        if folder is None or not (folder / "config.json").is_file():
            print("stopped before anything was written", file=sys.stderr)
        else:
            command = shlex.join(["python", short(Path(__file__)), "--resume", short(folder)])
            print(f"stopped; continue with: {command}", file=sys.stderr)
        return 130
    return 0


def _stop(*_) -> None:
    """SIGTERM is taken as Ctrl-C, so that whatever is being written is cleaned up."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
