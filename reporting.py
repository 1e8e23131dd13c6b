"""What the training command says of its data and scores, and where it puts the predictions.

The words before training and after it; what is said while it goes on is training.py's. Files and flags are those of the
CS 224N default project.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

from batches import TaskData
from data_check import shared_rows
from evaluation import Predictions
from files import atomic_write_all, remove_temporaries, short
from options import output_path
from run import predicted
from tasks import TASKS, Task, leaderboard_score, selection_score

Data = dict[str, dict[str, TaskData]]  # task -> split -> rows
Say = Callable[[str], None]
ASIDE = "replaced"  # folder beside predictions for those that are nowhere else
LEFT = 3600  # seconds after which a half-written prediction file is one that a kill left


def describe_data(tasks: tuple[Task, ...], data: Data, say: Say) -> None:
    """Rows of every file, what was left out of it or cut, and the train rows that stand in dev or test, too."""
    for task in tasks:
        parts = []
        for split, rows in data[task.name].items():
            whole = f" of {rows.table.taken_from:,}" if rows.table.taken_from else ""
            notes = [
                f"{len(lines):,} left out: {reason}, line {lines[0]}{', ...' if len(lines) > 1 else ''}"
                for reason, lines in rows.table.reasons().items()
            ]
            if rows.truncated:
                notes.append(f"{rows.truncated:,} cut to {rows.max_length} tokens")
            parts.append(f"{split} {len(rows):,}{whole}" + (f" ({'; '.join(notes)})" if notes else ""))
        joint = {"joint": "; a pair is one sequence", "both": "; a pair is two sentences and one sequence of both"}
        say(f"           {task.name:<7}{', '.join(parts)}{joint.get(data[task.name]['train'].encoding, '')}")
    shared = {name: len(shared_rows(*(rows.table for rows in splits.values()))) for name, splits in data.items()}
    counts = ", ".join(f"{name} {count:,}" for name, count in shared.items() if count)
    if counts:
        say(f"warning    train rows that stand in dev or test, too: {counts}; --exclude_shared leaves them out")


def describe_score(found: Predictions) -> str:
    """`sst accuracy 0.481`."""
    value = "undefined, counted as 0" if found.score is None else f"{found.score:.3f}"
    return f"{found.task.name} {found.task.metric} {value}"


def show_score(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def report(untrained: dict[str, float | None], dev: dict[str, Predictions], trained: bool, say: Say) -> None:
    """The last lines: each task's dev score beside the untrained one, and the leaderboard score.

    trained: whether the model learned anything between the two.
    """

    def line(title: str, metric: str, before: str, after: str) -> str:
        return f"{title:<24}{metric:<11}{before:>9}" + (f"{after:>10}" if trained else "")

    say("")
    say(line("dev", "metric", "untrained", "trained"))
    for name, found in dev.items():
        say(line(found.task.title, found.task.metric, show_score(untrained[name]), show_score(found.score)))
    scores = {name: found.score for name, found in dev.items()}
    if set(dev) == {"sst", "para", "sts"}:
        say(
            line(
                "leaderboard score", "", show_score(leaderboard_score(untrained)), show_score(leaderboard_score(scores))
            )
        )
    elif len(dev) > 1 and any(found.task.file_format == "glue" for found in dev.values()):
        say(line("mean", "", show_score(selection_score(untrained)), show_score(selection_score(scores))))


def hand_over(args: argparse.Namespace, data: Data, folder: Path, root: Path, say: Say) -> list[Path]:
    """Copy the run's prediction files to where the course's flags say, all of them once all are there.

    Those of a model that nothing was taught don't take the place of others', unless a flag names it. folder: the run's.
    root: whose runs/ may be where other predictions come from. Returns the copies.
    """
    predictions = folder / "predictions"
    contents = {
        output_path(args, TASKS[name], split): (predictions / TASKS[name].predictions_file(split)).read_bytes()
        for name, splits in data.items()
        for split in ("dev", "test")
        if split in splits
        if args.epochs or getattr(args, f"{name}_{split}_out")
    }
    places = dict.fromkeys(path.parent for path in contents)
    before = {place: holders(data, place, root) for place in places}
    aside = set_aside(contents, root)
    for place in places:
        remove_temporaries(place, below=False, seconds=LEFT)
    atomic_write_all(aside | contents)
    if not args.epochs:
        say("\nnothing was trained (--epochs 0): they are copied only where an option names a file for them")
    for place, runs in before.items():
        gone = {run: names for run, names in runs.items() if run and run.resolve() != folder.resolve()}
        if gone:
            say(f"\n{short(place)} held other predictions until now: {_listed(gone)}, whose folder keeps them")
    if aside:
        say(f"\n{describe_aside(aside)}")
    for place in before:
        others = holders([name for name in TASKS if name not in data], place, root)
        if others:
            say(f"\n{short(place)} also holds predictions of other runs: {_listed(others)}")
    return list(contents)


def holders(tasks: Iterable[str], place: Path, root: Path) -> dict[Path | None, list[str]]:
    """Whose these tasks' prediction files in a folder are: the run, of `root`/runs, or None for none there -> tasks."""
    runs: dict[Path | None, list[str]] = {}
    for task in (TASKS[name] for name in tasks):
        paths = [place / task.predictions_file(split) for split in ("dev", "test")]
        contents = {path.name: path.read_bytes() for path in paths if path.is_file()}
        if contents:
            runs.setdefault(predicted(root, contents), []).append(task.name)
    return runs


def set_aside(contents: dict[Path, bytes], root: Path) -> dict[Path, bytes]:
    """Prediction files that these would replace and that no run of `root`/runs keeps: their new place -> content."""
    names = {task.predictions_file(split) for task in TASKS.values() for split in ("dev", "test")}
    aside = {}
    for path in (path for path in contents if path.name in names and path.is_file()):
        old = path.read_bytes()
        if old != contents[path] and predicted(root, {path.name: old}) is None:
            aside[path.parent / ASIDE / f"{path.stem}-{hashlib.sha256(old).hexdigest()[:8]}{path.suffix}"] = old
    return aside


def describe_aside(aside: dict[Path, bytes]) -> str:
    places = " and ".join(dict.fromkeys(short(path.parent) for path in aside))
    return f"predictions of an unknown run were replaced, and are kept in {places}: {', '.join(p.name for p in aside)}"


def _listed(runs: dict[Path | None, list[str]]) -> str:
    """`para, sts of runs/first; sst of an unknown run`."""
    named = {short(run) if run else "an unknown run": names for run, names in runs.items()}
    return "; ".join(f"{', '.join(names)} of {run}" for run, names in named.items())


def write_page(folder: Path, say: Say) -> None:
    """Write the run's report.html. A run that is finished never fails because its page did: that is said, and why."""
    try:
        import report  # only now: what it draws with takes a second to load

        say(f"\nthe report is {short(report.write_report([folder], say=say))}: open it in a browser")
    except (Exception, KeyboardInterrupt) as error:  # hours of training are on disk, and the page can be made again
        again = f"python report.py {shlex.quote(short(folder))}"
        say(f"\nno report: {type(error).__name__} {error}: to try again, {again}")
