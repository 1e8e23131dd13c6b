"""Which sentences are the same, and all that stand in some files: what training and judging leave out by.

Follows SimCSE's caution (Gao, Yao and Chen 2021, arXiv 2104.08821): what is judged by is neither trained on nor
selected by. Sets overlap, and each tokenises its sentences in its own way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from datasets import decode_text, read_bytes
from errors import InputError
from table_files import JSON_LINES, first_line, kind_of, lines_of, objects_of, table_of


def key(text: str) -> str:
    """What makes two sentences the same, whoever tokenised them: letters and digits, lower-cased."""
    return "".join(filter(str.isalnum, text.lower()))


def keys_of(paths: Iterable[Path]) -> set[str]:
    """The `key`s of all that could be a sentence in these files, and in the files of these folders.

    A text file's lines, its tab-separated fields, a .csv's fields, the texts of .jsonl objects: whatever the layout of
    an evaluation set, its sentences are among them. Numbers and signs alone are none. Raises InputError for a file that
    can't be read, and for a folder without any.
    """
    found: set[str] = set()
    for path in paths:
        files = [path]
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
            if not files:
                raise InputError(f"{path}: no file in this folder: name one that holds evaluation sets")
        for file in files:
            found.update(map(key, _all_texts(file)))
    return {name for name in found if not name.isdigit()} - {""}


def hash_of_keys(keys: set[str]) -> str:
    """SHA-256 by which a run knows what was left out of its training."""
    return hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()


def _all_texts(path: Path) -> Iterator[str]:
    text = decode_text(path, read_bytes(path))
    if kind_of(path) in JSON_LINES:
        for _, row in objects_of(path, text):
            yield from (value for value in row.values() if isinstance(value, str))
    elif kind_of(path) == "csv" and "\t" not in first_line(text):
        for _, fields in table_of(path, text):
            yield from fields
    else:
        for _, line in lines_of(text):
            yield from line.split("\t")
