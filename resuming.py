"""A stopped run's options, read back from its config.json, so that it goes on as it began.

Follows argparse: a value in the file has to be one that could have been typed.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import course_data
from errors import InputError, quoted
from files import CannotWrite, read_json, sha256, short
from run import ROOT, Run
from weights import KNOWN, Weights

# Beside a model's weights: its numbers, its words, its pooler. vocab.txt is read where there is no tokenizer.json.
BESIDE = ("config.json", "tokenizer.json", "tokenizer_config.json", "modules.json", "1_Pooling/config.json")
PLACES = ("help", "run", "resume")  # options that say which run, and are no part of it


def typed_options(parser: argparse.ArgumentParser, arguments: list[str] | None) -> set[str]:
    """Names of the options that were typed, whatever their value: a default stands only where nothing does."""
    untyped = []  # a list, since an option that may be said twice adds to what is there
    marked = argparse.Namespace(**dict.fromkeys((action.dest for action in parser._actions), untyped))
    return {name for name, value in vars(parser.parse_args(arguments, marked)).items() if value is not untyped}


def resumed_options(
    parser: argparse.ArgumentParser,
    args: argparse.Namespace,
    typed: set[str],
    command: str,
    may_change: Collection[str],
    scores: str,
    resolved: Collection[str] = (),
) -> argparse.Namespace:
    """The options of the run that args.resume names, as given then; those of `may_change` as typed now.

    command: whose runs these are. scores: the file that a finished run has. An option that was not there yet when the
    run began has its default, which is what the run did; not one of those `resolved` from others, which every run has.
    Raises InputError if the run is finished (also one that has lost its scores) or another command's, if its
    config.json was altered, or if an option typed differs from the run's.
    """
    run = Run.open(args.resume, ROOT)
    where, config = run.folder / "config.json", run.config
    if not isinstance(config, dict) or not isinstance(config.get("options"), dict) or "command" not in config:
        raise InputError(f"{where}: not a run's configuration: it can't be continued")
    if config["command"] != command:
        raise InputError(f"{run.folder} is a run of {config['command']}: continue it with that command")
    run.refuse_to_start_over()
    if (run.folder / scores).is_file() and not run.checkpoint.parent.is_dir():
        raise InputError(f"{run.folder} is finished: its scores are in {run.folder / scores}; start a new run")
    options, began_with = {}, defaults_then(config["options"], config)
    for action in parser._actions:
        if action.dest in PLACES:
            continue
        if action.dest in resolved and began_with.get(action.dest) is None:
            raise InputError(f"{where}: the options have no {action.dest}: restore it, or start a new run")
        options[action.dest] = read_back(action, began_with.get(action.dest, action.default), where)
    for name in sorted(typed - {*may_change, *PLACES}):
        now, then = getattr(args, name), options[name]
        if now != then and absolute(now) != absolute(then):
            raise InputError(f"--{name} {shown(now)} differs from the run's {shown(then)}: leave it out")
    kept = {name: getattr(args, name) for name in typed & {*may_change}}
    return argparse.Namespace(**{**vars(args), **options, **kept, "run": run.folder})


def defaults_then(options: dict, config: dict) -> dict:
    """The options of a run that was told neither model nor data, with what it took: today's default may be another.

    A known model by its name; the bundled sample, or the course's files, where they stand now.
    """
    found, model = dict(options), config.get("model")
    if found.get("model") is None and isinstance(model, dict) and model.get("name") in KNOWN:
        found["model"] = model["name"]
    if found.get("data") is None:
        folders = {Path(path).parent.parts[-2:] for path in _untold(options, config.get("data"))}
        if ("data", "sample") in folders:
            found["data"] = str(course_data.DATA / "sample")
        elif any(parts[-1:] == ("data",) for parts in folders):
            found["data"] = str(course_data.DATA)
    return found


def _untold(options: dict, data) -> Iterator[str]:
    """Of what config.json says of its data files, the paths of those that no option names."""
    for name, files in data.items() if isinstance(data, dict) else ():
        if name == "train" and isinstance(files, list):  # contrastive.py's
            files = {} if options.get("train") else dict(enumerate(files))
            named = set()
        else:
            files = files if isinstance(files, dict) else {}
            named = {split for split in files if options.get(f"{name}_{split}")}
        for split, file in files.items():
            if split not in named and isinstance(file, dict) and isinstance(file.get("path"), str):
                yield file["path"]


def is_scored(folder: Path, scores: str) -> bool:
    """Whether a run has its scores, so that its checkpoint can go. Raises InputError for a file that holds none."""
    path = folder / scores
    if not path.is_file():
        return False
    try:
        if isinstance(read_json(path), dict):
            return True
        fault = f"{path}: no scores"
    except InputError as error:
        fault = str(error)
    raise InputError(f"{fault}; or delete it and resume, which writes it again")


def files_beside(source: Weights) -> dict[str, str]:
    """Name -> SHA-256 of what else of a model's folder decides what it computes; {} for known ones, verified whole."""
    if source.name in KNOWN:
        return {}
    words = () if (source.path / "tokenizer.json").is_file() else ("vocab.txt",)
    return {name: sha256(source.path / name) for name in (*BESIDE, *words) if (source.path / name).is_file()}


def changed_beside(before: dict, now: dict) -> list[str]:
    """What of these files is another than when the run began. before, now: a config's "model"."""
    then, found = before.get("files"), now["files"]
    if then is None:  # a run of before they were written down
        return []
    changed = sorted(name for name in {*then, *found} if then.get(name) != found.get(name))
    shown = lambda files, name: f"SHA-256 {files[name][:12]}" if name in files else "none"  # noqa: E731
    return [f"{short(Path(now['path']) / name)} ({shown(then, name)} -> {shown(found, name)})" for name in changed]


def command_to_resume(program: list[str], folder: Path, processes: int) -> str:
    """What a user types to go on with a run. program: e.g. ["contrastive.py", "train"]."""
    start = ["python"] if processes == 1 else ["torchrun", f"--nproc-per-node={processes}", "--"]
    return shlex.join([*start, short(ROOT / program[0]), *program[1:], "--resume", short(folder)])


def or_resume(error: InputError, program: list[str], folder: Path | None, processes: int) -> str:
    """The error, and the command that goes on with the run once the disk takes it, if that is all there is to mend."""
    if not isinstance(error, CannotWrite) or folder is None or not (folder / "config.json").is_file():
        return str(error)
    return f"{error}; then continue with: {command_to_resume(program, folder, processes)}"


def changed_surroundings(before: dict, now: dict) -> Iterator[str]:
    """A line for whoever expects the same bits of a resumed run, if what they depend on besides its inputs changed.

    before, now: what config.json said, and would say now.
    """
    wanted = {
        "device": ("device", "type"),
        "chip": ("device", "name"),
        "threads": ("device", "threads"),
        "torch": ("versions", "torch"),
        "precision": ("precision",),
        "commit": ("commit",),
    }
    changed = []
    for name, keys in wanted.items():
        then, found = before, now
        for key in keys:
            then = then.get(key) if isinstance(then, dict) else None
            found = found[key]
        if then is not None and found is not None and then != found:
            changed.append(f"{name} {str(then)[:12]} -> {str(found)[:12]}")
    if changed:
        yield f"changed    {', '.join(changed)}: the numbers may not be the same to the bit"


def read_back(action: argparse.Action, value, where: Path):
    """A JSON value as the option's own type."""
    many, kind = action.nargs in ("+", "*"), action.type or str
    wanted = {int: int, float: (int, float)}.get(kind, str)
    if value is None and action.default is None:
        return None
    if action.nargs == 0:
        fits = isinstance(value, bool)
        if fits:
            return value
    else:
        values = value if many and isinstance(value, list) else [value]
        fits = bool(values) and many == isinstance(value, list)
        fits = fits and all(isinstance(one, wanted) and not isinstance(one, bool) and one != "" for one in values)
        if fits and (not action.choices or value in action.choices):
            with suppress(argparse.ArgumentTypeError):  # a name that no file can have
                converted = [one if wanted is not str else kind(one) for one in values]
                return converted if many else converted[0]
    raise InputError(f"{where}: {action.dest} is {quoted(value)}, which --{action.dest} could not be: restore it")


def absolute(value):
    if isinstance(value, list):
        return [absolute(one) for one in value]
    return os.path.abspath(str(value)) if value is not None else None


def shown(value) -> str:
    values = value if isinstance(value, list) else [value]
    return " ".join(short(one) if isinstance(one, Path) else str(one) for one in values)
