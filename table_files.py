r"""Text files cut into rows: lines, tables with a header, JSON objects, each with the number of the line it begins on.

CSV after RFC 4180, commas or tabs; JSONL has an object a line. Only \n and \r\n end a line, whatever Unicode says.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

from datasets import listed, tab_rows
from errors import InputError, quoted

TABLES, JSON_LINES = ("csv", "tsv"), ("jsonl", "ndjson")  # kinds of files, see `kind_of`
BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)*")
LIMIT = 2**31 - 1  # csv's own limit of a field is 131,072 characters


def kind_of(path: Path) -> str:
    """The end of its name, in small letters, as T.CSV is a table, too: `csv`."""
    return path.suffix.removeprefix(".").lower()


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """(number, line without its end), blank ones, too."""
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        yield number, line.removesuffix("\r")


def first_line(text: str) -> str:
    """The first that isn't blank, without its end."""
    return text[BLANK_LINES.match(text).end() :].split("\n", 1)[0].removesuffix("\r")


def table_of(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """(line it begins on, fields) of a table with a header, which comes first; blank lines are no rows.

    Tabs separate where the header has one, with quotes as in the course's files (datasets.tab_rows), else commas.
    Raises InputError, naming file and line, for a row of another number of fields than the header, and for a quote that
    is not closed.
    """
    above = BLANK_LINES.match(text).group()  # the header
    text = "\n" * above.count("\n") + text.removeprefix(above)
    limit, header = csv.field_size_limit(LIMIT), []
    try:
        for line, fields in tab_rows(path, text) if "\t" in first_line(text) else _comma_rows(path, text):
            if not header:
                header = [name.strip() for name in fields]
                yield line, header
                continue
            if len(fields) != len(header):
                raise InputError(
                    f"{path}, line {line}: {len(fields)} columns, wanted {len(header)} as in the header "
                    f"({listed(header)}): quote fields that hold the separator, and double quotes inside them"
                )
            yield line, fields
    finally:
        csv.field_size_limit(limit)


def _comma_rows(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """(line it begins on, fields), blank lines left out."""
    line = 1
    try:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        for fields in reader:
            if fields:
                yield line, fields
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{path}, line {line}: {error}: close the quote that is opened there, and double quotes inside quotes"
        ) from error


def objects_of(path: Path, text: str) -> Iterator[tuple[int, dict]]:
    """(line, object) of a JSONL file; blank lines are none. Raises InputError, naming file and line, for others."""
    for number, line in lines_of(text):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{path}, line {number}: not JSON ({error}): a line has one object, fetch it again"
            ) from error
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {number}: {quoted(line)}, wanted a JSON object: fetch the file again")
        yield number, row
