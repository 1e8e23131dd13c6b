"""What is read of a finished run's files is looked at first: they may have been edited, cut short or half copied.

Each check raises InputError naming the file, the value and the remedy.
"""

from __future__ import annotations

from pathlib import Path

import contrastive_options
from errors import InputError, quoted
from files import parse_json
from tasks import TASKS

NUMBER, MAYBE = (int, float), (int, float, type(None))  # as a run writes them: None is what is undefined
UNTRAINED = "untrained"
LARGEST = 1e300  # more is no score, no time and no number of rows
DAMAGED = "the run's files are damaged: copy them again, or run again"


def need(value: object, keys: tuple[str, ...], kind: type | tuple[type, ...], path: str | Path):
    """What stands in a JSON file's value under these keys. Raises InputError if nothing of this kind does."""
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            raise InputError(f"{path}: no {'.'.join(keys)} in it: {DAMAGED}")
        value = value[key]
    if not isinstance(value, kind) or (isinstance(value, int | float) and not -LARGEST < value < LARGEST):
        raise InputError(f"{path}: {'.'.join(keys)} is {quoted(value)}, another type than a run writes: {DAMAGED}")
    return value


def need_if_there(value: object, keys: tuple[str, ...], kind: type | tuple[type, ...], where: str | Path):
    """need; None where the last key is missing."""
    there = keys[-1] in need(value, keys[:-1], dict, where)
    return need(value, keys, kind, where) if there else None


def check_scores(scores: object, path: Path) -> dict:
    """The scores of a run, each task's metric among them. Raises InputError naming what is missing."""
    if not isinstance(scores, dict) or not scores:
        raise InputError(f"{path}: no task's scores in it: {DAMAGED}")
    check_tasks(scores, path)
    for name in scores:
        for key in (UNTRAINED, TASKS[name].metric):
            need(scores, (name, key), MAYBE, path)
    return scores


def check_tasks(scores: dict, path: str | Path) -> None:
    """Raises InputError for scores of a task that is none."""
    for name in scores:
        if name not in TASKS:
            raise InputError(f"{path}: scores of an unknown task {quoted(name)}; known: {', '.join(TASKS)}: {DAMAGED}")


def check_metrics(scores: dict, where: Path) -> None:
    """Raises InputError for a metric of a known task that is neither a number nor null, which is undefined."""
    for name in scores:
        for metric in (UNTRAINED, *TASKS[name].metrics):
            need_if_there(scores, (name, metric), MAYBE, where)


def check_config(config: object, path: Path) -> None:
    """Raises InputError unless config.json has what a row takes from it."""
    kinds = {"command": str, "options": dict, "model": dict, "data": dict, "device": dict, "versions": dict}
    for key, kind in {**kinds, "commit": (str, type(None)), "started": str}.items():
        need(config, (key,), kind, path)
    for key in ("name", "sha256"):
        need(config, ("model", key), str, path)
    for task in config["data"]:
        for split in need(config, ("data", task), dict, path):
            need(config, ("data", task, split, "rows"), int, path)
            need(config, ("data", task, split, "sha256"), str, path)


def check_page_config(config: dict, where: Path) -> None:
    """Raises InputError unless config.json has what a page takes from it, whichever command's it is."""
    given = need(config, ("options",), dict, where)
    rate = {} if given.get("ensemble") else {("options", "lr"): NUMBER}
    kinds = rate | {("model", "name"): str, ("model", "sha256"): str, ("started",): str, ("data",): dict}
    for keys, kind in {**kinds, ("device",): dict, ("versions",): dict, ("commit",): (str, type(None))}.items():
        need(config, keys, kind, where)
    optional = {("processes",): int, ("precision",): str, ("device", "threads"): MAYBE}
    of_options = {"ensemble": (list, type(None)), "loss": (str, type(None)), "distill": (list, type(None))}
    for keys, kind in {**optional, **{("options", name): kind for name, kind in of_options.items()}}.items():
        need_if_there(config, keys, kind, where)
    for name in ("ensemble", "distill"):
        for i, run in enumerate(given.get(name) or []):
            need({(key := f"options.{name}[{i}]"): run}, (key,), str, where)
    _check_data(config, where)


def _check_data(config: dict, where: Path) -> None:
    """Raises InputError unless every file has a path, a hash and rows: tasks' by split, contrastive.py's in a list."""
    data = config["data"]
    if config["command"] != contrastive_options.COMMAND:
        for name in data:
            need(config, ("data", name, "dev"), dict, where)
            for split in data[name]:
                _check_file(config, ("data", name, split), where)
        return
    for i, file in enumerate(need(config, ("data", "train"), list, where)):
        _check_file({(key := f"data.train[{i}]"): file}, (key,), where)
    if need(config, ("data", "dev"), (dict, type(None)), where) is not None:
        _check_file(config, ("data", "dev"), where, rows="pairs")


def _check_file(value: dict, keys: tuple[str, ...], where: Path, rows: str = "rows") -> None:
    for key, kind in (("path", str), ("sha256", str), (rows, int)):
        need(value, (*keys, key), kind, where)
    need_if_there(value, (*keys, "of"), MAYBE, where)
    dropped = need_if_there(value, (*keys, "dropped"), (list, dict), where)
    for reason in dropped if isinstance(dropped, dict) else ():
        need(value, (*keys, "dropped", reason, "rows"), int, where)


def read_lines(path: Path) -> list[dict]:
    """The rows of a JSON-lines file. Raises InputError, naming the line, for what is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: can't be read as JSON lines ({error}): restore it") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(parse_json(line))
        except (ValueError, RecursionError) as error:
            why = getattr(error, "msg", None) or error
            raise InputError(f"{path}: can't be read as JSON lines (line {number}: {why}): restore it") from error
    return rows


def last_row(path: Path) -> dict:
    """The last evaluation in metrics.jsonl. Raises InputError if there is none, or it doesn't say what it cost."""
    rows = read_lines(path)
    if not rows:
        raise InputError(f"{path}: empty, no evaluation in it: {DAMAGED}")
    for key in ("train_seconds", "train_tokens"):
        need(rows[-1], (key,), NUMBER, path)
    return rows[-1]


def read_history(path: Path) -> list[dict]:
    """The rows of metrics.jsonl. Raises InputError for one that lacks what a page shows of it."""
    last_row(path)
    rows = read_lines(path)
    kinds = {"epoch": int, "best": bool, "train_seconds": NUMBER, "train_tokens": NUMBER, "train_loss": dict}
    for number, row in enumerate(rows, start=1):
        where = f"{path}, line {number}"
        for key, kind in kinds.items():
            need(row, (key,), kind, where)
        for name in row["train_loss"]:
            need(row, ("train_loss", name), MAYBE, where)
        if need_if_there(row, ("dev",), dict, where) is not None:
            need_if_there(row, ("dev", "spearman"), MAYBE, where)
        for name in tasks_of(rows[0]):
            for key in ("loss", TASKS[name].metric):
                need_if_there(row, ("dev", name, key), MAYBE, where)
    return rows


def tasks_of(row: dict) -> list[str]:
    return [name for name in row.get("dev", {}) if name in TASKS]
