"""A report's content, ready for its template: what ran, its scores and whom they stand beside, and every task.

Nothing here is HTML but the plots; how it looks is templates/report.html's.
"""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import quote

import numpy as np
from sklearn.metrics import confusion_matrix

import report_plots
from console import counted
from intervals import CONFIDENCE, RESAMPLES
from report_data import Judged, ReadRun
from report_examples import Shelf, Shown, class_name, differing, show, worst
from report_scores import beside, scores, task_names
from result_row import is_place

WORST = 50


def page(runs: list[ReadRun], most: int, folder: Path) -> dict:
    """All that the template shows. most: rows of each task. folder: where the page will be, for links."""
    names = short_names([run.folder for run in runs])
    shelves = [Shelf() for _ in runs]
    return {
        "runs": [_run(run, name, folder) for run, name in zip(runs, names, strict=True)],
        "several": len(runs) > 1,
        "scores": scores(runs),
        "beside": beside(runs[0]) if len(runs) == 1 else None,
        "differing": _differing_options(runs) if len(runs) > 1 else [],
        "curves": report_plots.curves([run.curves() for run in runs]),
        "tasks": [_task(name, runs, shelves, most) for name in task_names(runs)],
        "made": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        "resamples": f"{RESAMPLES:,}",
        "confidence": f"{100 * CONFIDENCE:.0f} %",
    }


def short_names(folders: list[Path]) -> list[str]:
    """What tells the folders from each other: the last part of their paths, or as many parts as it takes."""
    parts = [Path(os.path.abspath(folder)).parts for folder in folders]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return names


# ---------------------------------------------------------------------------------------------------------------------
# What ran


def _run(run: ReadRun, name: str, folder: Path) -> dict:
    config = run.config
    model, device = config["model"], config["device"]
    of_its_runs = "none; of its runs " if run.ensemble else ""
    rate = f", {run.tokens / run.seconds:,.0f} tokens a second" if run.seconds else ""
    where = [f"{device.get('type', '')} ({device.get('name', '')})", config.get("precision", "fp32")]
    if device.get("type") == "cpu" and device.get("threads"):
        where.append(counted(device["threads"], "thread"))
    if config.get("processes", 1) > 1:
        where.append(counted(config["processes"], "process"))
    versions = ", ".join(f"{package} {version}" for package, version in config["versions"].items())
    facts = [
        ("model", f"{model['name']}, SHA-256 {model['sha256'][:12]}…"),
        ("device", ", ".join(where)),
        ("training", f"{of_its_runs}{_duration(run.seconds)} in steps, {run.tokens:,} tokens{rate}"),
        ("started", config["started"]),
        ("commit", config["commit"] or "not from a checkout"),
        ("versions", versions),
    ]
    options = {key: value for key, value in config["options"].items() if value is not None and value is not False}
    return {
        "name": name,
        "folder": str(run.folder),
        "link": _link(run.folder / "report.html", folder),
        "command": run.command,
        "facts": facts,
        "headline": [
            model["name"],
            *_headline(run),
            f"{_duration(run.seconds)} of training",
            config["started"][:10],
        ],
        "options": sorted((key, _words(value)) for key, value in options.items()),
        "data": _data(config["data"]),
    }


def _headline(run: ReadRun) -> list[str]:
    if run.ensemble:
        kind = "soup" if run.config["options"].get("soup") else "ensemble"
        return [f"{kind} of {len(run.ensemble)} runs"]
    options = run.config["options"]
    first = options.get("option") or options.get("mode") or ""
    epochs = options.get("epochs")
    long = counted(epochs, "epoch") if isinstance(epochs, int) else f"{epochs} epochs"
    return [str(first), f"{long}, batch {options.get('batch_size')}, lr {options.get('lr'):g}"]


def _link(page: Path, folder: Path) -> str | None:
    """The way from one page to another, as a URL, if it is there."""
    return quote(os.fsencode(Path(os.path.relpath(page, folder)).as_posix())) if page.is_file() else None


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _words(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _data(data: dict) -> list[dict]:
    """A row for each file: the training command's have a task and a split, contrastive.py's are a list."""
    if isinstance(data.get("train"), list):
        files = [("train", "", file) for file in data["train"]] + ([("dev", "", data["dev"])] if data["dev"] else [])
    else:
        files = [(task, split, file) for task, splits in data.items() for split, file in splits.items()]
    found = []
    for task, split, file in files:
        rows = file.get("rows", file.get("pairs"))
        dropped = file.get("dropped", [])
        left_out = sum(reason["rows"] for reason in dropped.values()) if isinstance(dropped, dict) else len(dropped)
        found.append(
            {
                "name": f"{task} {split}".strip(),
                "rows": rows,
                "of": file.get("of"),
                "left_out": left_out,
                "path": file["path"],
                "sha256": file["sha256"],
            }
        )
    return found


def _differing_options(runs: list[ReadRun]) -> list[tuple[str, list[str]]]:
    """What was asked differently of the runs, and where they ran, if that differs."""
    found = []
    trained = [run for run in runs if not run.ensemble]
    names = sorted({name for run in trained for name in run.config["options"] if not is_place(name)})
    if len(trained) < len(runs):  # an ensemble was asked for nothing but its runs
        names = dict.fromkeys(["ensemble", "soup", *(names if len(trained) > 1 else [])])
    for name in names:
        values = [run.config["options"].get(name) for run in runs]
        flags = {type(value) for value in values} <= {bool, type(None)}  # one that is missing wasn't raised
        found.append((name, [_option(bool(value) if flags else value) for value in values]))
    found.append(("weights", [run.config["model"]["name"] for run in runs]))
    found.append(("train files", [_fingerprint(run.config["data"], "train") for run in runs]))
    found.append(("dev files", [_fingerprint(run.config["data"], "dev") for run in runs]))
    found.append(("device", [str(run.config["device"].get("name")) for run in runs]))
    found.append(("commit", [(run.config["commit"] or "none")[:12] for run in runs]))
    return [(name, values) for name, values in found if len(set(values)) > 1]


def _option(value: object) -> str:
    said = next((word for known, word in ((None, "default"), (False, "no"), (True, "yes")) if value is known), None)
    return said or _words(value)  # 0 and 1 are numbers


def _fingerprint(data: dict, split: str) -> str:
    """Rows and hash of a split's files, short enough for a table."""
    files = [file for file in _data(data) if split in file["name"].split()]
    return ", ".join(f"{file['rows']:,} rows {file['sha256'][:6]}" for file in files) or "none"


# ---------------------------------------------------------------------------------------------------------------------
# A task


def _task(name: str, runs: list[ReadRun], shelves: list[Shelf], most: int) -> dict:
    own = [(i, run.judged[name]) for i, run in enumerate(runs) if name in run.judged]
    task = own[0][1].task
    there = [(i, judged) for i, judged in own if not judged.missing]
    hashes = {runs[i].dev_hashes[name] for i, _ in there}
    examples = _examples(there, shelves, most) if there and len(hashes) == 1 else None
    metrics = [(metric.replace("_", " "), [judged.scores.get(metric) for _, judged in own]) for metric in task.metrics]
    return {
        "name": name,
        "title": task.title,
        "kind": task.label_kind,
        "is_pair": task.is_pair,
        "metrics": metrics,
        "own": [i for i, _ in own],
        "figures": [_figures(i, judged) for i, judged in there],
        "examples": examples,
        "missing": [(i, judged.missing) for i, judged in own if judged.missing],
        "other_rows": len(hashes) > 1,
    }


def _figures(i: int, judged: Judged) -> dict:
    """A run's plots of a task, by the kind of its labels."""
    name = f"{judged.task.name}-{i}"
    found = {
        "run": i,
        "rows": len(judged.labels),
        "confusion": None,
        "threshold": None,
        "calibration": None,
        "scatter": None,
    }
    if judged.probabilities is None:
        return {**found, "scatter": report_plots.scatter(judged, f"scatter-{name}", i)}
    svg, error = report_plots.calibration(judged, f"calibration-{name}", i)
    found |= {"confusion": _confusion(judged), "calibration": {"svg": svg, "error": error}}
    if judged.probabilities.shape[1] == 2:
        svg, best, best_accuracy, at_half = report_plots.thresholds(judged, f"threshold-{name}")
        called = judged.task.label_words[1] if judged.task.label_words else class_name(judged, 1)
        found["threshold"] = {"svg": svg, "best": best, "accuracy": best_accuracy, "at_half": at_half, "called": called}
    return found


def _confusion(judged: Judged) -> dict:
    classes = range(judged.probabilities.shape[1])
    counts = confusion_matrix(judged.labels.astype(int), judged.values.astype(int), labels=list(classes))
    totals = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return {
        "names": [class_name(judged, value) for value in classes],
        "columns": [class_name(judged, value).split()[0] for value in classes],
        "rows": [
            {"total": int(row.sum()), "cells": list(zip(row.tolist(), shares.tolist(), strict=True))}
            for row, shares in zip(counts, counts / totals, strict=True)
        ],
    }


def _examples(there: list[tuple[int, Judged]], shelves: list[Shelf], most: int) -> dict:
    """The worst rows of one run; of several those on which they differ most."""
    runs, own = [judged for _, judged in there], [shelves[i] for i, _ in there]
    rows = worst(runs[0], most) if len(runs) == 1 else differing(runs, most)
    shown = show(rows, runs, own)
    first = runs[0]
    if first.probabilities is None:
        total = len(first.labels)
    elif len(runs) == 1:
        total = int((first.values != first.labels).sum())
    else:
        values = np.stack([judged.values for judged in runs])
        total = int((values != values[0]).any(axis=0).sum())
    name = first.task.name
    return {
        "rows": shown,
        "runs": [i for i, _ in there],
        "total": total,
        "of": len(first.labels),
        "matrices": _matrices(name, shown),
        "why_not": [(i, shelf.why[name]) for (i, _), shelf in zip(there, own, strict=True) if name in shelf.why],
        "only_right": _only_right(runs),
    }


def _only_right(runs: list[Judged]) -> tuple[int, int] | None:
    """Of two runs, how many rows the first alone has right, and the second alone."""
    if len(runs) != 2 or runs[0].probabilities is None:
        return None
    first, second = (judged.values == judged.labels for judged in runs)
    return int((first & ~second).sum()), int((second & ~first).sum())


def _matrices(name: str, shown: list[Shown]) -> dict[str, list[dict]]:
    """What the page's script draws: task-row-run -> matrices."""
    return {
        f"{name}-{k}-{j}": answer.look.matrices
        for k, row in enumerate(shown)
        for j, answer in enumerate(row.answers)
        if answer.look and answer.look.matrices
    }
