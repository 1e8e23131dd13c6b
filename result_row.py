"""A finished run as one row: what results/ keeps and what the README's tables are made from.

    python result_row.py RUN [RUN...] >> results/course_data.jsonl    one JSON line a run
    python result_row.py --table RUN [RUN...]                         runs as a table
    python result_row.py --table results/course_data.jsonl            rows as the README's table

A row has the command that makes it again, its scores and cost, and what could explain a difference: versions,
commit, device, hashes of weights and data.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

import startup  # noqa: F401  # isort: skip: before what may be missing

from command_line import build_parser
from console import refuse
from errors import InputError, quoted
from files import parse_json, read_json
from options import OF_AN_ENSEMBLE, SCORES, is_file_option
from run import ROOT, Run
from tasks import TASKS, leaderboard_score

PLACES = {"data", "run", "resume", "device", "use_gpu", "save_every", "local_files_only", "quiet", "tensorboard"}
# The README's column headings; another task's is its title and metric.
HEADINGS = {"sst": "sentiment acc.", "para": "paraphrase acc.", "sts": "STS corr."}
UNTRAINED = "untrained"
LARGEST = 1e300  # more is no score, no time and no number of rows
DAMAGED = "the run's files are damaged: copy them again, or run again"


def row(name: str | Path) -> dict:
    """The row of a finished run, given as its folder or its name in runs/.

    Raises InputError if the run isn't finished or its files are not a run's.
    """
    run = Run.open(name, ROOT)
    folder, config = run.folder, run.config
    path = folder / SCORES
    run.refuse_unfinished()
    scores = check_scores(read_json(path), path)
    check_config(config, folder / "config.json")
    parts = [folder] if run.metrics.is_file() else [folder / task for task in scores]
    ends = [last_row(part / run.metrics.name) for part in parts]
    seconds = sum(end["train_seconds"] for end in ends)
    tokens = sum(end["train_tokens"] for end in ends)
    return {
        "command": command(config),
        "dev": scores,
        "leaderboard": leaderboard(scores),
        "train_seconds": round(seconds, 1),
        "tokens_per_second": round(tokens / seconds) if seconds else None,
        "model": {key: config["model"][key] for key in ("name", "sha256")},
        "data": {
            task: {
                split: {key: file[key] for key in ("rows", "of", "sha256") if key in file}
                for split, file in splits.items()
            }
            for task, splits in config["data"].items()
        },
        **{key: config[key] for key in ("device", "versions", "commit", "started")},
        "options": without_places(config["options"]),
    }


def check_scores(scores: object, path: Path) -> dict:
    """The scores of a run, each task's metric among them. Raises InputError naming what is missing."""
    if not isinstance(scores, dict) or not scores:
        raise InputError(f"{path}: no task's scores in it: {DAMAGED}")
    check_tasks(scores, path)
    for name in scores:
        for key in (UNTRAINED, TASKS[name].metric):
            need(scores, (name, key), (int, float, type(None)), path)  # None is an undefined correlation
    return scores


def check_tasks(scores: dict, path: str | Path) -> None:
    """Raises InputError for scores of a task that is none."""
    for name in scores:
        if name not in TASKS:
            raise InputError(f"{path}: scores of an unknown task {quoted(name)}; known: {', '.join(TASKS)}: {DAMAGED}")


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


def last_row(path: Path) -> dict:
    """The last evaluation in metrics.jsonl. Raises InputError if there is none, or it doesn't say what it cost."""
    rows = read_lines(path)
    if not rows:
        raise InputError(f"{path}: empty, no evaluation in it: {DAMAGED}")
    for key in ("train_seconds", "train_tokens"):
        need(rows[-1], (key,), (int, float), path)
    return rows[-1]


def need(value: object, keys: tuple[str, ...], kind: type | tuple[type, ...], path: str | Path):
    """What stands in a JSON file's value under these keys. Raises InputError if nothing of this kind does."""
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            raise InputError(f"{path}: no {'.'.join(keys)} in it: {DAMAGED}")
        value = value[key]
    if not isinstance(value, kind) or (isinstance(value, int | float) and not -LARGEST < value < LARGEST):
        raise InputError(f"{path}: {'.'.join(keys)} is {quoted(value)}, another type than a run writes: {DAMAGED}")
    return value


def leaderboard(scores: dict) -> float | None:
    """The course's score on dev; None for other tasks than its three."""
    if set(scores) != {"sst", "para", "sts"}:
        return None
    return leaderboard_score({name: scores[name].get(TASKS[name].metric) for name in scores})


def is_place(option: str) -> bool:
    """Whether an option says where something is on one machine, not what was done."""
    return option in PLACES or is_file_option(option)


def command(config: dict, parser: argparse.ArgumentParser | None = None, *words: str) -> str:
    """The command line that makes the run again: what differs from the defaults, without the places of this machine.

    A recipe is told by the options that it stands for, runs to learn from by their names.

    parser: whose options these are, None for the training command's. words: what stands before them.
    """
    parts, options = ["python", config["command"], *words], without_places(config["options"])
    if options.get("ensemble"):
        options = {name: value for name, value in options.items() if name in OF_AN_ENSEMBLE}
    for action in (parser or build_parser())._actions:
        value = options.get(action.dest)
        if action.dest == "recipe" or value is None or value is False or value == action.default:  # 0 is a value
            continue
        values = [] if value is True else value if isinstance(value, list) else [value]
        parts += [action.option_strings[-1], *map(str, values)]
    return shlex.join(parts)


def without_places(options: dict) -> dict:
    """A run's options as its config.json has them, without the places of one machine; runs by their names."""
    kept = {name: value for name, value in options.items() if not is_place(name)}
    if isinstance(kept.get("distill"), list):
        kept["distill"] = [_below_runs(Path(run)) for run in kept["distill"]]
    return kept


def _below_runs(run: Path) -> str:
    """A run's name below the folder runs/, by which it can be named, too; the last part of another place."""
    parts = run.parts
    return "/".join(parts[-parts[::-1].index("runs") :]) if "runs" in parts[:-1] else run.name


def read_lines(path: Path) -> list[dict]:
    """The rows of a JSON-lines file."""
    try:
        return [parse_json(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: can't be read as JSON lines ({error}): is the run finished?") from error


def rows_of(name: str) -> list[dict]:
    """The rows in a file, or the row of a run."""
    return read_lines(Path(name)) if Path(name).is_file() else [row(name)]


def table(rows: list[tuple[dict, str]]) -> str:
    """Rows, each with where it came from, as a Markdown table: dev scores (untrained in brackets), cost, command.

    It has a column for each task that any row has; what a run was not trained for is empty, as is the leaderboard's
    score of a run that lacks one of the course's tasks. Raises InputError if a row is not a finished run's.
    """
    number, maybe = (int, float), (int, float, type(None))
    trained_for = {name for found, path in rows for name in need(found, ("dev",), dict, path)}
    tasks = [task for task in TASKS.values() if task.name in trained_for]
    headings = [HEADINGS.get(task.name, f"{task.title} {task.metric}") for task in tasks]
    headings += ["score", "training", "tokens/s", "command"]
    lines = [_line(headings), "|" + "---|" * len(headings)]
    for found, path in rows:
        cells = []
        check_tasks(found["dev"], path)
        for task in tasks:
            if task.name in found["dev"]:
                trained, untrained = (
                    need(found, ("dev", task.name, key), maybe, path) for key in (task.metric, UNTRAINED)
                )
                ensemble = bool(found.get("options", {}).get("ensemble"))  # which was never untrained
                cells.append(_show(trained) + ("" if ensemble else f" ({_show(untrained)})"))
            else:
                cells.append("")
        score = need(found, ("leaderboard",), maybe, path)
        cells.append("" if score is None else f"{score:.3f}")
        cells.append(f"{need(found, ('train_seconds',), number, path) / 60:.0f} min")
        rate = need(found, ("tokens_per_second",), maybe, path)  # None: no epoch was trained
        cells.append("" if rate is None else f"{rate:,}")
        cells.append(f"`{need(found, ('command',), str, path)}`")
        lines.append(_line(cells))
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _show(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Print one JSON line for each finished run, or a table of them.")
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="a run's folder, its name in runs/, or a file of rows printed before"
    )
    parser.add_argument("--table", action="store_true", help="print one table instead of JSON lines")
    args = parser.parse_args(arguments)
    try:
        rows = [(found, name) for name in args.runs for found in rows_of(name)]
        print(table(rows) if args.table else "\n".join(json.dumps(found) for found, _ in rows))
    except (InputError, OSError) as error:
        return refuse(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
