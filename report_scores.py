"""A report's scores: each with its interval, runs with their differences, and the papers' and other runs' beside them.

The papers' numbers are experiments.py's; intervals are intervals.py's.
"""

from __future__ import annotations

import numpy as np

import report_plots
from course_data import was_sample
from errors import InputError
from experiments import POOLERS, SUBMISSION, SUBMISSION_SCORE, TABLE_1, TABLE_3, Column
from files import read_json
from intervals import interval, leaderboard_samples
from options import SCORES
from report_data import ReadRun, dev_hashes
from result_row import leaderboard
from run_checks import check_metrics
from tasks import TASKS, leaderboard_score

OTHERS = 12  # runs shown beside this one
COURSE = ("sst", "para", "sts")


def task_names(runs: list[ReadRun]) -> list[str]:
    return [name for name in TASKS if any(name in run.judged for run in runs)]


def scores(runs: list[ReadRun]) -> dict:
    """rows: the leaderboard's score and every task's metric, a cell for each run, with its difference to the first."""
    rows = []
    names = task_names(runs)
    if set(names) == set(COURSE):
        cells = [_leaderboard_cell(run) for run in runs]
        rows.append({"title": "leaderboard score", "metric": "mean, correlation as (r + 1) / 2", "cells": cells})
    for name in names:
        task = TASKS[name]
        cells = [_cell(run, name) for run in runs]
        rows.append({"title": task.title, "metric": task.metric.replace("_", " "), "cells": cells})
    if not names:
        rows.append(
            {"title": "similarity", "metric": "spearman on dev", "cells": [_contrastive_cell(run) for run in runs]}
        )
    for row in rows:
        _compare(row["cells"])
    marks = [
        (
            row["title"],
            [
                (i, cell["difference"], cell["of_difference"])
                for i, cell in enumerate(row["cells"])
                if cell and cell["difference"] is not None
            ],
        )
        for row in rows
    ]
    marks = [(title, found) for title, found in marks if found]
    return {"rows": rows, "plot": report_plots.differences(marks) if marks else None}


def against_mean(runs: list[ReadRun]) -> list[dict]:
    """The rows of `scores`, of two cells each: the mean score of all runs but the last, and the last one's."""
    rows = scores(runs)["rows"]
    for row in rows:
        *others, last = row["cells"]
        row["cells"] = [_mean(others), last]
        if last:
            last.update(difference=None, of_difference=None, marked=False)
        _compare(row["cells"])
    return rows


def _mean(cells: list[dict | None]) -> dict | None:
    """Of several runs' cells as of one run; None if one lacks the task; no value if undefined, or on other rows."""
    if len(cells) == 1 or None in cells:
        return cells[0] if len(cells) == 1 else None
    if any(cell["rows"] != cells[0]["rows"] for cell in cells):
        return _make_cell(None, None, None, [cell["rows"] for cell in cells])
    values, samples = [cell["value"] for cell in cells], [cell["samples"] for cell in cells]
    value = None if None in values else float(np.mean(values))
    together = None if any(found is None for found in samples) else np.mean(samples, axis=0)
    return _make_cell(value, None, together, cells[0]["rows"])


def _cell(run: ReadRun, name: str) -> dict | None:
    judged = run.judged.get(name)
    if judged is None:
        return None
    samples = None if judged.missing else judged.samples
    value, untrained = (judged.scores.get(key) for key in (judged.task.metric, "untrained"))
    return _make_cell(value, untrained, samples, run.dev_hashes.get(name), began=not run.ensemble)


def _leaderboard_cell(run: ReadRun) -> dict | None:
    if set(run.judged) != set(COURSE):
        return None
    # One row, drawn over and over, says nothing of how sure a score is, and so nothing of the mean with it.
    whole = not any(judged.missing or len(judged.labels) < 2 for judged in run.judged.values())
    samples = leaderboard_samples({name: judged.samples for name, judged in run.judged.items()}) if whole else None
    untrained = {name: judged.scores["untrained"] for name, judged in run.judged.items()}
    before = None if run.ensemble else leaderboard_score(untrained)
    return _make_cell(run.leaderboard, before, samples, tuple(sorted(run.dev_hashes.items())), began=not run.ensemble)


def _contrastive_cell(run: ReadRun) -> dict | None:
    trained, untrained = ((run.scores.get(key) or {}).get("spearman") for key in ("trained", "untrained"))
    return None if run.judged else _make_cell(trained, untrained, None, (run.config["data"]["dev"] or {}).get("sha256"))


def _make_cell(
    value: float | None, untrained: float | None, samples: np.ndarray | None, rows: object, began: bool = True
) -> dict:
    """rows: what tells the dev rows that it was judged on from others. began: whether there is an untrained score."""
    return {
        "began": began,
        "value": value,
        "untrained": untrained,
        "interval": None if samples is None else interval(samples),
        "samples": samples,
        "rows": rows,
        "difference": None,
        "of_difference": None,
        "marked": False,
    }


def _compare(cells: list[dict | None]) -> None:
    """Put into each cell its difference to the first run's, where both were judged on the same rows."""
    first = cells[0]
    for cell in cells[1:]:
        if not first or not cell or first["rows"] != cell["rows"] or None in (first["value"], cell["value"]):
            continue
        cell["difference"] = cell["value"] - first["value"]
        if first["samples"] is not None and cell["samples"] is not None:
            cell["of_difference"] = interval(cell["samples"] - first["samples"])
        if cell["of_difference"]:
            low, high = cell["of_difference"]
            cell["marked"] = low > 0 or high < 0


def beside(run: ReadRun) -> dict | None:
    """The papers' numbers for the same tasks and option, and other runs of the same tasks, the best first."""
    if not run.judged:
        return None
    tables = (TABLE_1, TABLE_3, POOLERS)
    known = dict.fromkeys(column for table in tables for column in table.columns if column.metric != "loss")
    columns = []
    for name in run.judged:
        own = [column for column in known if column.task == name]
        columns += own or [Column(name, TASKS[name].metric, f"{TASKS[name].title} {TASKS[name].metric}")]
    entries = {"this": _entry("this run", "this", columns, run.scores, run.leaderboard)}
    option = run.config["options"].get("option")
    for table in tables:
        for row in table.rows:
            scores: dict[str, dict[str, float]] = {}
            for column in columns:
                value = row.paper.get(f"{column.task} {column.metric}")
                if value is not None:
                    scores.setdefault(column.task, {})[column.metric] = value
            if scores and row.option == option:
                name = f"{table.source}: {row.name}, {row.option}"
                entries[name] = _entry(name, "paper", columns, scores, leaderboard(scores))
    if set(run.judged) == set(COURSE):
        name = "Jia 2024: the poster's submission, on test"
        entries[name] = _entry(name, "paper", columns, SUBMISSION, SUBMISSION_SCORE)
    others = _others(run, columns)
    key = lambda entry: -(entry["score"] or sum(value or 0 for value in entry["numbers"]))  # noqa: E731
    kept = sorted(others, key=key)[:OTHERS]
    return {
        "columns": [column.title for column in columns],
        "with_score": run.leaderboard is not None,
        "entries": sorted([*entries.values(), *kept], key=key),
        "left_out": len(others) - len(kept),
        "sample": any(was_sample(run.config["data"][name]["dev"]) for name in run.judged),
        "papers": any(entry["kind"] == "paper" for entry in entries.values()),
    }


def _others(run: ReadRun, columns: list[Column]) -> list[dict]:
    """The finished runs of the same tasks in the folder next to this one; a folder that is no run's is none."""
    found = []
    for path in sorted(run.folder.resolve().parent.glob(f"*/{SCORES}")):
        if path.parent == run.folder.resolve():
            continue
        try:
            scores, config = read_json(path), read_json(path.parent / "config.json")
            if set(scores) == set(run.scores):
                check_metrics(scores, path)
                same = dev_hashes(config) == run.dev_hashes
                name = f"{path.parent.name} ({config['model']['name']})"
                found.append(_entry(name, "run" if same else "other", columns, scores, leaderboard(scores)))
        except (InputError, AttributeError, KeyError, TypeError, ValueError):  # no run of this command, or damaged
            continue
    return found


def _entry(name: str, kind: str, columns: list[Column], scores: dict, score: float | None) -> dict:
    numbers = [scores.get(column.task, {}).get(column.metric) for column in columns]
    return {"name": name, "kind": kind, "numbers": numbers, "score": score}
