"""Texts to be judged from a file, and the same file with the answers beside them: text, CSV, JSONL.

CSV is RFC 4180's, separated by commas, tabs or semicolons as its header is; JSONL is an object a line (jsonlines.org).
What comes out has the form of what went in: every row, every column, in the order it had.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from datasets import blank, decode_text, listed
from errors import InputError, quoted
from files import parse_json
from predictor import Answer, words_of
from table_files import BLANK_LINES, first_line
from tasks import TASKS, Task
from tokenizer import LONE_SURROGATE

FORMATS = ("text", "csv", "jsonl")
SUFFIXES = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
SEPARATORS = "\t,;"
LONGEST = 2**31 - 1  # the largest field that csv can be told to take, on every system
# Columns that are taken for texts where nobody names them.
SINGLE, PAIR = (("sentence",), ("text",)), (("sentence1", "sentence2"), ("text1", "text2"), ("question1", "question2"))


@dataclass
class Rows:
    """A file's rows. is_pair: whether texts are two a row. texts: of each row; None where one is blank, which nothing
    can be said of.

    fields: what else a row holds, the texts among it: a CSV row's fields, a JSON object; of text nothing.
    """

    format: str
    is_pair: bool
    texts: list[tuple[str, ...] | None]
    fields: list
    header: list[str] = field(default_factory=list)
    separator: str = ","


def read_rows(
    path: Path, content: bytes, format: str | None, columns: Sequence[str] | None, tasks: Sequence[Task]
) -> Rows:
    """The rows of a file's content, blank lines left out.

    path: what it is called in errors; its suffix is the format if None is named.

    columns: those that hold the text, or the two texts; None: those of the first task whose names are there, or of
    SINGLE and PAIR as far as a task reads so many, or the only column. Raises InputError naming file and line.
    """
    format = format or SUFFIXES.get(path.suffix.lower(), "text")
    text = decode_text(path, content)
    if columns and len(columns) > 2:
        raise InputError(f"--columns {' '.join(columns)}: name one column for single texts, or two for pairs")
    if format == "text":
        if columns:
            raise InputError(f"--columns: {path} is read as text, which has none: say --format csv or jsonl, too")
        return _read_text(path, text)
    read = _read_csv if format == "csv" else _read_jsonl
    return read(path, text, columns, tasks)


def _texts(values: Iterable[str]) -> tuple[str, ...] | None:
    found = tuple(value.strip() for value in values)
    return None if any(map(blank, found)) else found


def _read_text(path: Path, text: str) -> Rows:
    """A text a line; a tab makes it a pair. Blank lines are left out."""
    found = []
    for line, content in enumerate(text.split("\n"), start=1):
        if not blank(content):
            parts = content.rstrip("\r").split("\t")
            texts = _texts(parts)
            if len(parts) > 2 or texts is None:
                raise InputError(f"{path}, line {line}: {len(parts) - 1} tabs; wanted none, or one between two texts")
            if found and len(found[0]) != len(texts):
                kinds = ("a pair", "single texts") if len(texts) == 2 else ("a single text", "pairs")
                raise InputError(f"{path}, line {line}: {kinds[0]} after {kinds[1]}: ask for them one after the other")
            found.append(texts)
    return Rows("text", bool(found) and len(found[0]) == 2, found, [None] * len(found))


def _read_csv(path: Path, text: str, columns: Sequence[str] | None, tasks: Sequence[Task]) -> Rows:
    first = first_line(text)
    separator = next((mark for mark in SEPARATORS if mark in first), ",")
    limit = csv.field_size_limit(LONGEST)  # of the whole process: put back below
    above = BLANK_LINES.match(text).group()  # the header
    line = before = 1 + above.count("\n")
    try:
        rows = csv.reader(io.StringIO(text.removeprefix(above), newline=""), delimiter=separator, strict=True)
        header = next(rows, [])
        chosen = _choose(path, header, columns, tasks, line)
        places = [header.index(name) for name in chosen]
        line = before + rows.line_num
        texts, fields = [], []
        for row in rows:
            if row:
                if len(row) != len(header):
                    raise InputError(
                        f"{path}, line {line}: {len(row)} columns, wanted {len(header)} as in the header "
                        f"({listed(header)}); double quotes inside quotes, and quote a text with a separator in it"
                    )
                texts.append(_texts(row[place] for place in places))
                fields.append(row)
            line = before + rows.line_num
    except csv.Error as error:
        raise InputError(f"{path}, line {line}: {error}; is a quote opened there and never closed?") from error
    finally:
        csv.field_size_limit(limit)
    return Rows("csv", len(chosen) == 2, texts, fields, header, separator)


def _read_jsonl(path: Path, text: str, columns: Sequence[str] | None, tasks: Sequence[Task]) -> Rows:
    texts, fields, chosen = [], [], ()
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            row = parse_json(content)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {line}: not JSON ({error}); correct that line") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {line}: {quoted(row)}, wanted an object {{...}}; correct that line")
        chosen = chosen or _choose(path, list(row), columns, tasks, line)
        for name in chosen:
            if not isinstance(row.get(name), str):
                found = quoted(row[name]) if name in row else "missing"
                raise InputError(f"{path}, line {line}: {name!r} is {found}, wanted text; correct that line")
        texts.append(_texts(row[name] for name in chosen))
        fields.append(row)
    return Rows("jsonl", len(chosen) == 2, texts, fields)


def _choose(
    path: Path, names: Sequence[str], columns: Sequence[str] | None, tasks: Sequence[Task], line: int = 1
) -> tuple[str, ...]:
    """Which columns hold the texts. Raises InputError where they aren't there, stand there twice, or none is known."""
    where = f"{path}, line {line}"
    if columns:
        missing = [name for name in columns if name not in names]
        if missing:
            raise InputError(f"{where}: no column {listed(missing)}; found {listed(names)}; name one of these")
        chosen = tuple(columns)
    else:
        sizes = {len(task.columns) for task in tasks}
        known = [task.columns for task in tasks] + [one for one in (*PAIR, *SINGLE) if len(one) in sizes]
        if len(names) == 1 and 1 in sizes:
            known.append((names[0],))
        chosen = next((one for one in known if set(one) <= set(names)), ())
        if not chosen:
            found = f"found {listed(names)}" if names else "there is no header"
            raise InputError(f"{where}: which columns hold the text? {found}; name one, or two of a pair, by --columns")
    twice = [name for name in chosen if list(names).count(name) > 1]
    if twice:
        raise InputError(f"{where}: column {listed(twice)} stands there twice; rename one of the two")
    return chosen


# --- answers beside the rows -----------------------------------------------------------------------------------------


def columns_of(task: Task) -> list[str]:
    """The columns that a task's answers take in CSV: its name; of classes also what it means, and each probability."""
    words = words_of(task)
    if not words:
        return [task.name]
    return [task.name, f"{task.name}_words", *(f"{task.name}_p{label}" for label in range(len(words)))]


def cells_of(answer: Answer) -> list[str]:
    """An answer as the fields of `columns_of`: numbers to four places."""
    if not answer.probabilities:
        return [f"{answer.value:.4f}"]
    return [str(answer.value), answer.words, *(f"{p:.4f}" for p in answer.probabilities)]


def object_of(answer: Answer) -> dict:
    """An answer as JSON has it."""
    if not answer.probabilities:
        return {"value": round(answer.value, 4)}
    words = words_of(TASKS[answer.task])
    chances = {word: round(p, 4) for word, p in zip(words, answer.probabilities, strict=True)}
    return {"value": answer.value, "words": answer.words, "probabilities": chances}


def refuse_taken(path: Path, rows: Rows, tasks: Sequence[Task]) -> None:
    """Raises InputError for a column, or a key of an object, that an answer's would overwrite."""
    if rows.format == "csv":
        taken = [name for task in tasks for name in columns_of(task) if name in rows.header]
    else:
        taken = [task.name for task in tasks if any(task.name in (row or ()) for row in rows.fields)]
    if taken:
        raise InputError(f"{path} has a column {listed(taken)} already, which an answer would take: rename it")


def written(rows: Rows, tasks: Sequence[Task], answers: dict[str, list[Answer | None]]) -> Iterator[str]:
    """The file's lines with the answers; a row of which nothing can be said has empty fields, or null.

    answers: task -> one a row.
    """
    if rows.format == "jsonl":
        for i, row in enumerate(rows.fields):
            found = {task.name: answers[task.name][i] for task in tasks}
            added = {name: None if answer is None else object_of(answer) for name, answer in found.items()}
            whole = {**row, **added}
            line = json.dumps(whole, ensure_ascii=False)
            if LONE_SURROGATE.search(line):  # half a pair, which came as \\ud800 and goes as it came
                line = json.dumps(whole)
            yield line + "\n"
        return
    buffer = io.StringIO()
    # Of a field only what stands in the line's end is sure to be quoted: a carriage return would end a row elsewhere.
    writer = csv.writer(buffer, delimiter=rows.separator, lineterminator="\r\n")

    def line(fields: list[str]) -> str:
        buffer.seek(0)
        buffer.truncate()
        writer.writerow(fields)
        return buffer.getvalue().removesuffix("\r\n") + "\n"

    yield line([*rows.header, *(name for task in tasks for name in columns_of(task))])
    for i, row in enumerate(rows.fields):
        added: list[str] = []
        for task in tasks:
            answer = answers[task.name][i]
            added += [""] * len(columns_of(task)) if answer is None else cells_of(answer)
        yield line([*row, *added])
