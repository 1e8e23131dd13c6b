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

import contrastive_options
from command_line import build_parser
from console import answer, refuse
from errors import InputError
from files import read_json, short
from options import OF_AN_ENSEMBLE, SCORES, is_file_option
from run import ROOT, Run
from run_checks import MAYBE, NUMBER, UNTRAINED, check_config, check_scores, check_tasks, last_row, need, read_lines
from tasks import TASKS, leaderboard_score

PLACES = {"data", "run", "resume", "device", "use_gpu", "save_every", "local_files_only", "quiet", "tensorboard"}
OF_FILES = {"train", "exclude", "dev"}  # contrastive.py's, told by their names
# The README's column headings; another task's is its title and metric.
HEADINGS = {"sst": "sentiment acc.", "para": "paraphrase acc.", "sts": "STS corr."}


def row(name: str | Path) -> dict:
    """The row of a finished run, given as its folder or its name in runs/.

    Raises InputError if the run isn't finished, trained an encoder alone, or its files are not a run's.
    """
    run = Run.open(name, ROOT)
    folder, config = run.folder, run.config
    if isinstance(config, dict) and config.get("command") == contrastive_options.COMMAND:
        page = shlex.join(["python", "report.py", short(folder)])
        raise InputError(f"{folder}: a run of {config['command']}, which has no tasks' scores, so no row: see {page}")
    path = folder / SCORES
    run.refuse_unfinished()
    scores = check_scores(read_json(path), path)
    check_config(config, folder / "config.json")
    parts = dict.fromkeys(run.part(task) for task in scores)
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
    """A run's options as its config.json has them, without the places of one machine; runs and files by their names."""
    kept = {name: value for name, value in options.items() if not is_place(name)}
    if isinstance(kept.get("model"), str) and Path(kept["model"]).is_absolute():
        model = Path(kept["model"])
        kept["model"] = f"runs/{_below_runs(model)}" if "runs" in model.parts[:-1] else model.name
    for name in OF_FILES & kept.keys():
        value = kept[name]
        kept[name] = [Path(file).name for file in value] if isinstance(value, list) else value and Path(value).name
    for name in ("distill", "ensemble"):
        if isinstance(kept.get(name), list):
            kept[name] = [_below_runs(Path(run)) for run in kept[name]]
    return kept


def _below_runs(run: Path) -> str:
    """A run's name below the folder runs/, by which it can be named, too; the last part of another place."""
    parts = run.parts
    return "/".join(parts[-parts[::-1].index("runs") :]) if "runs" in parts[:-1] else run.name


def rows_of(name: str) -> list[dict]:
    """The rows in a file, or the row of a run."""
    return read_lines(Path(name)) if Path(name).is_file() else [row(name)]


def table(rows: list[tuple[dict, str]]) -> str:
    """Rows, each with where it came from, as a Markdown table: dev scores (untrained in brackets), cost, command.

    It has a column for each task that any row has; what a run was not trained for is empty, as is the leaderboard's
    score of a run that lacks one of the course's tasks. Raises InputError if a row is not a finished run's.
    """
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
                    need(found, ("dev", task.name, key), MAYBE, path) for key in (task.metric, UNTRAINED)
                )
                ensemble = bool(found.get("options", {}).get("ensemble"))  # which was never untrained
                cells.append(_show(trained) + ("" if ensemble else f" ({_show(untrained)})"))
            else:
                cells.append("")
        score = need(found, ("leaderboard",), MAYBE, path)
        cells.append("" if score is None else f"{score:.3f}")
        cells.append(f"{need(found, ('train_seconds',), NUMBER, path) / 60:.0f} min")
        rate = need(found, ("tokens_per_second",), MAYBE, path)  # None: no epoch was trained
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
        answer(table(rows) if args.table else "\n".join(json.dumps(found) for found, _ in rows))
    except (InputError, OSError) as error:
        return refuse(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
