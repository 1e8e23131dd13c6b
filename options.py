"""Options of the training command, read and checked, and what a resumed run keeps of them.

The flags themselves are the CS 224N default project's, both seasons', in command_line.py.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch

import recipes
from command_line import build_parser
from errors import InputError
from files import cannot, check_writable, short
from model import FINE_TUNE_MODES
from resuming import absolute, defaults_then, read_back, shown, typed_options
from run import ROOT, Run, is_run
from tasks import SPLITS, TASKS, Task

COMMAND = "multitask_classifier.py"
SCORES = "scores.json"


def recommended_lr(hidden_size: int, option: str, accumulate: int = 1) -> float:
    """The learning rate used when none is given.

    The poster's for bert-base: 1e-3 for heads alone, 1e-5 for everything. A smaller encoder bears, and needs, more when
    everything learns (tried: 2e-5, 5e-5, 1e-4). With the square root of the batches that make a step, as Adam's
    steps are scaled with the rows in them (Malladi et al. 2022, arXiv 2205.10287).
    """
    rate = 1e-3 if option == "pretrain" else 1e-5 if hidden_size >= 768 else 5e-5
    return float(f"{rate * math.sqrt(accumulate):.3g}")


# A resumed run keeps its options, except those that say where and how often.
MAY_CHANGE = ("device", "use_gpu", "save_every", "micro_batch", "cache_gb", "compile", "non_finite")
MAY_CHANGE += ("resume", "tensorboard", "quiet", "local_files_only")
BY_TASK = {"attention", "fraction", "loss", "pooler", "pooler_options"}  # NAME=VALUE,NAME=VALUE
# What an ensemble of finished runs asks for, beyond the course's file names.
OF_AN_ENSEMBLE = {"ensemble", "soup", "data", "device", "use_gpu", "precision", "run", "quiet", "local_files_only"}
# What config.json has as it was resolved: no default could say afterwards which it was.
RESOLVED = ("option", "lr")
LARGEST_SEED = 2**63 - 1
MOST_EPOCHS = 10**6
# Far beyond what trains; their product still fits into a weight, which is a float32.
LARGEST_LR, LARGEST_DECAY = 1e30, 1e3
SMALLEST_DECAY = 0.01  # from layer to layer; below it, nothing under the last layer would learn
LARGEST_ALPHA = 1e6
MOST_ACCUMULATED = 10_000
LARGEST_AVERAGE = 0.999999  # 1 would keep the pretrained weights
MOST_GB = 10**6


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
    typed = typed_options(parser, arguments)
    if "fine_tune_mode" in typed:
        typed = typed - {"fine_tune_mode"} | {"option"}
    if args.ensemble:
        idle = sorted(name for name in typed - OF_AN_ENSEMBLE if not is_file_option(name) or name.endswith("_train"))
        if idle:
            raise InputError(f"--ensemble trains nothing, so --{idle[0]} has nothing to say: leave it out")
    if args.soup and not args.ensemble:
        raise InputError("--soup: of which runs: name them, --ensemble RUN RUN")
    if "distill_weight" in typed and not args.distill and not args.resume:
        raise InputError(f"--distill_weight {args.distill_weight:g}: of what: name the runs that teach, --distill RUN")
    if args.resume:
        args = resumed_args(args, typed)
    elif args.recipe:
        recipes.follow(args, typed)
    check_ranges(args)
    return args


def is_file_option(name: str) -> bool:
    """Whether an option is one of the course's file names: sst_dev, sst_dev_out."""
    return name.endswith(("_out", *(f"_{split}" for split in SPLITS)))


def check_ranges(args: argparse.Namespace) -> None:
    """Raises InputError for a number that is out of range, naming the option and what is wanted."""
    for name, low, high in (
        ("epochs", 0, MOST_EPOCHS),
        ("batch_size", 1, None),
        ("reinitialize", 0, None),
        ("seed", 0, LARGEST_SEED),
        ("hidden_dropout_prob", 0, 1),
        ("warmup", 0, 1),
        ("lr", 0, LARGEST_LR),
        ("head_lr", 0, LARGEST_LR),
        ("layer_decay", SMALLEST_DECAY, 1),
        ("weight_decay", 0, LARGEST_DECAY),
        ("clip", 0, None),
        ("average", 0, LARGEST_AVERAGE),
        ("accumulate", 1, MOST_ACCUMULATED),
        ("r_drop", 0, LARGEST_ALPHA),
        ("label_smoothing", 0, 1),
        ("distill_weight", 0, 1),
        ("save_every", 0, None),
        ("micro_batch", 0, None),
        ("cache_gb", 0, MOST_GB),
    ):
        value = getattr(args, name)
        most = sys.float_info.max if high is None else high  # infinity is out of every range, and NaN in none
        if value is not None and not low <= value <= most:
            wanted = f"a number from {low} up" if high is None else f"{low} to {high}"
            raise InputError(f"--{name} is {value}, wanted {wanted}")
    if args.option == "pretrain" and (args.head_lr is not None or args.layer_decay != 1):
        raise InputError(
            "--head_lr, --layer_decay: with --option pretrain the heads alone learn, with --lr: say --option finetune"
        )
    if args.reinitialize and args.option == "pretrain":
        raise InputError("--reinitialize: in a frozen encoder new layers would stay as they are: say --option finetune")
    if args.frozen_dropout and args.option != "pretrain":
        raise InputError(
            f"--frozen_dropout: with --option {args.option} no encoder is frozen, and its dropout is on: leave it out"
        )
    if args.swap_pairs and args.option != "finetune":
        raise InputError("--swap_pairs: a frozen encoder's encodings are computed once: say --option finetune")
    alone = args.schedule in ("separate", "sequential") or "," not in args.tasks
    if args.pcgrad and (args.accumulate == 1 or args.option == "pretrain" or alone):
        raise InputError(
            "--pcgrad: it compares what several tasks of one step want of the encoder: say --option finetune "
            "--accumulate 3 --schedule even, and --tasks with two or more"
        )
    if args.device and args.use_gpu and torch_device(args.device).type == "cpu":
        raise InputError(f"--use_gpu and --device {args.device} contradict each other: give one")


def torch_device(name: str) -> torch.device:
    """The device of that name, which may not be there. Raises InputError for what is no name."""
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise InputError(f"--device {name}: not a device; wanted cuda, cuda:1, mps or cpu") from error


def choose_device(args: argparse.Namespace, local_rank: int = 0) -> tuple[torch.device, str]:
    """The device and why. Raises InputError where what was insisted on is not there.

    local_rank: of several processes on this machine, each of which takes a GPU of its own.
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if args.device:
        device = torch_device(args.device)
        if device.type == "cuda" and device.index is not None and local_rank:
            raise InputError(f"--device {args.device}: each of several processes takes a GPU of its own: say cuda")
        there = {"cuda": cuda, "mps": mps, "cpu": True}.get(device.type, False)
        count = torch.cuda.device_count() if device.type == "cuda" else 1
        if device.type == "cuda" and device.index is None and cuda:
            device = torch.device("cuda", local_rank)
        there = there and (device.index or 0) < count
        if not there:
            found = f"CUDA: {torch.cuda.device_count()} devices, MPS: {'yes' if mps else 'no'}"
            raise InputError(f"--device {args.device}: not there ({found}); leave it out for the best there is")
        if device.type == "cuda":
            _take(device)
        return device, "asked for"
    if args.use_gpu and not (cuda or mps):
        driver = "" if torch.version.cuda else ", which is built for CPUs alone"
        raise InputError(f"--use_gpu: no GPU that torch {torch.__version__}{driver} can use; leave it out for the CPU")
    if cuda:
        if local_rank >= torch.cuda.device_count():
            raise InputError(
                f"{local_rank + 1} processes but {torch.cuda.device_count()} GPUs: start as many, or --device cpu"
            )
        device = torch.device("cuda", local_rank)
        _take(device)
        return device, torch.cuda.get_device_name(device)
    if mps:
        return torch.device("mps"), "Apple GPU"
    return torch.device("cpu"), f"no GPU found; threads: {torch.get_num_threads()}"


def _take(device: torch.device) -> None:
    """Make a GPU this process's own. Raises InputError for one that this torch was not built for.

    cuDNN's attention, which torch prefers on newer GPUs, plans anew for every shape, and here nearly every group of
    sentences has another: torch's own kernels are left.
    """
    torch.cuda.set_device(device)
    built = [int(name[3:]) for name in torch.cuda.get_arch_list() if name[:3] == "sm_" and name[3:].isdigit()]
    major, minor = torch.cuda.get_device_capability(device)
    if built and not torch.version.hip and 10 * major + minor < min(built):
        raise InputError(
            f"torch {torch.__version__} has no kernels for {torch.cuda.get_device_name(device)} (compute capability "
            f"{major}.{minor}): install a build for an older CUDA, or say --device cpu"
        )
    torch.backends.cuda.enable_cudnn_sdp(False)


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
    would overwrite anything but prediction files of the same kind, or another run's; and for files of other tasks.
    """
    known = [task.name for task in tasks]
    # What a run began with it may go on with: it can't be left out any more.
    for name in [name for name in TASKS if name not in known and not args.resume]:
        for role in (*SPLITS, "dev_out", "test_out"):
            if getattr(args, f"{name}_{role}"):
                raise InputError(f"--{name}_{role}: the tasks here are {', '.join(known)}: leave it out")
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
            beside = [folder for folder in list(Path(real).parents)[:2] if folder != Path(own)]
            if not args.resume and any(is_run(folder) for folder in beside):
                raise InputError(f"{option} {short(path)} is in the folder of another run: choose another")
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


def resumed_args(args: argparse.Namespace, typed: set[str]) -> argparse.Namespace:
    """The options of the run that --resume names, as they were given then, with where it runs as typed now.

    An option that was not there yet when the run began has its default, which is what the run did.
    Raises InputError if it is finished or no run of this command, or if an option typed differs from the run's.
    """
    run = Run.open(args.resume, ROOT)
    folder, config = run.folder, run.config
    try:
        options, command = defaults_then(dict(config["options"]), config), config["command"]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder / 'config.json'}: not a run's configuration: it can't be continued") from error
    if command != COMMAND:
        raise InputError(f"{folder} is a run of {command}: continue it with that command")
    if run.members():
        raise InputError(f"{folder} is an ensemble, which trains nothing: make it again, with --ensemble")
    run.refuse_to_start_over()
    if (folder / SCORES).is_file() and not unfinished(folder):
        raise InputError(
            f"{folder} is finished: its scores are in {folder / SCORES}; start a new run with another --run"
        )
    for action in build_parser()._actions:
        name, where = action.dest, folder / "config.json"
        if name in ("help", "run", "resume", "ensemble", "local_files_only"):
            continue
        if name not in options and name in RESOLVED:
            raise InputError(f"{where}: the options have no {name}: restore it, or start a new run")
        options[name] = read_back(action, options.get(name, action.default), where)
    if "distill" in typed:  # which may be names
        args.distill = [_found(name) for name in args.distill]
    options["run"] = folder
    for name in sorted(typed - set(MAY_CHANGE)):
        now, then = getattr(args, name), options.get(name)
        if now != then and absolute(now) != absolute(then) and _by_task(name, now) != _by_task(name, then):
            raise InputError(
                f"--{name} {shown(now)} differs from the run's {shown(then)}: leave it out, or start a new run"
            )
    # What the run wished for gives way to what is typed now.
    if "device" in typed:
        options["use_gpu"] = False
    elif "use_gpu" in typed and options.get("device") == "cpu":
        options["device"] = None
    kept = {name: getattr(args, name) for name in typed & set(MAY_CHANGE)}
    return argparse.Namespace(**{**vars(args), **options, **kept})


def _found(name: str) -> str:
    """A run's folder, whole, if there is one of that name."""
    with suppress(InputError):
        return str(Run.open(name, ROOT).folder.resolve())
    return name


def _by_task(name: str, value: object) -> object:
    """`sst=mean,para=first` of an option that says something for each task: in whatever order."""
    return sorted(value.split(",")) if name in BY_TASK and isinstance(value, str) else value


def unfinished(folder: Path) -> list[Run]:
    """The runs in this folder, itself and one for each separate task, that still have a checkpoint."""
    runs = [Run(folder), *(Run(folder / name) for name in TASKS)]
    return [run for run in runs if run.checkpoint.parent.is_dir()]
