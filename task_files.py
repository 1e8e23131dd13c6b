"""A task's data files, read by the layout that its entry in tasks.py names: the course's (datasets.py) or GLUE's.

GLUE's as its own download has them (Wang et al. 2018, arXiv 1804.07461): tab-separated without any quoting, so that a
quote is a quote; columns named in a first line, except in CoLA's labelled files; labels as numbers, RTE's as words.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from datasets import Example, Table, decode_text, listed, read_bytes, read_examples
from errors import InputError, quoted
from tasks import TASKS, Task

SHUFFLE = 0  # the seed of the shuffle whose first rows a share of a file is


def is_optional(task: Task, split: str) -> bool:
    """Whether a run does without that file: GLUE's test files often don't come along, and have no labels anyway."""
    return task.file_format == "glue" and split == "test"


def read_split(task: Task, split: str, path: Path, faults: list[InputError] | None = None) -> Table:
    """Read a task's file whole; without labels for the split `test`.

    Every row is an Example, is in `dropped`, or is an error. faults: a list to which a row's error is added instead of
    being raised. Raises InputError, naming file, line, what was found and what to do, as datasets.read_examples does.
    """
    labelled = split != "test"
    if task.file_format == "glue":
        return _read_glue(task, labelled, path, faults)
    return read_examples(
        path,
        columns=task.columns,
        label=task.label if labelled else None,
        label_kind=task.label_kind,
        label_range=task.label_range,
        faults=faults,
    )


def take_share(table: Table, share: float) -> Table:
    """A share of the rows in (0, 1], one at least, in the file's order: the first ones of a shuffle.

    The shuffle is always the same, whatever a run's seed, so that runs which differ in their seed learn the same rows;
    and so a smaller share is a part of a larger one.
    """
    if share == 1:
        return table
    order = np.random.default_rng(SHUFFLE).permutation(len(table))
    picked = sorted(order[: max(1, round(share * len(table)))])
    return dataclasses.replace(table, examples=[table[row] for row in picked], taken_from=len(table))


def _read_glue(task: Task, labelled: bool, path: Path, faults: list[InputError] | None) -> Table:
    """Rows have the id in their column `index`, or else their number in the file, from 0. Texts are only stripped."""
    if not path.exists():
        folders = listed([t.files["train"].split("/")[0] for t in TASKS.values() if t.file_format == "glue"])
        raise InputError(f"{path}: not there; name with --data the folder that holds GLUE's folders ({folders})")
    content = read_bytes(path)
    lines = _lines(decode_text(path, content))
    names, wanted = task.without_header, [*task.columns, *([task.label] if labelled else [])]
    if not (names and labelled):
        names = _header(path, lines, wanted)
    classes = task.class_names or tuple(map(str, range(task.output_size)))
    places: dict[str, int] = {}
    examples, dropped = [], []

    def refuse(line: int, what: str) -> None:
        error = InputError(f"{path}, line {line}: {what}")
        if faults is None:
            raise error
        faults.append(error)

    for number, (line, fields) in enumerate(lines):
        if len(fields) != len(names):
            refuse(
                line, f"{len(fields)} columns, wanted {len(names)} ({listed(names)}); separate them with single tabs"
            )
            continue
        row = dict(zip(names, fields, strict=True))
        name = row["index"].strip() if "index" in row else str(number)
        if not name or len(name.split()) > 1:
            refuse(line, f"the index is {quoted(name)}; wanted one without white space; correct it")
            continue
        if places.setdefault(name, line) != line:
            refuse(line, f"index {quoted(name)} is on line {places[name]} already; remove one of the two")
            continue
        value = None
        if labelled:
            text = row[task.label].strip()
            if not text:
                dropped.append((line, f"blank {task.label}"))
                continue
            if text not in classes:
                refuse(line, f"{task.label} is {quoted(text)}, wanted one of {listed(classes)}; correct it")
                continue
            value = classes.index(text)
        texts = [row[column].strip() for column in task.columns]
        examples.append(Example(name, texts[0], texts[1] if task.is_pair else None, value, line))
    if not examples and not faults:
        found = f"all {len(dropped)} rows have a blank {task.label}" if dropped else "no rows"
        raise InputError(f"{path}: {found}; fetch the file again, or choose another")
    return Table(path, examples, dropped, hashlib.sha256(content).hexdigest())


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """(line, fields); blank lines are no rows. Only \\n and \\r\\n end a line, whatever Unicode says of others."""
    for line, content in enumerate(text.split("\n"), start=1):
        content = content.removesuffix("\r")
        if content:
            yield line, content.split("\t")


def _header(path: Path, lines: Iterator[tuple[int, list[str]]], wanted: list[str]) -> tuple[str, ...]:
    """The column names of the first line. Raises InputError where a wanted one is missing or stands there twice."""
    _, fields = next(lines, (1, None))
    if fields is None:
        raise InputError(f"{path}: the file is empty; fetch it again, or choose another")
    names = tuple(name.strip() for name in fields)
    missing = [name for name in wanted if name not in names]
    if missing:
        raise InputError(
            f"{path}, line 1: no column {listed(missing)}; found {listed(names)}; choose this task's file of this split"
        )
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"{path}, line 1: column {listed(twice[:1])} stands there twice; remove one of the two")
    return names
