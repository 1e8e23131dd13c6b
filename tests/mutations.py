"""Damaged files made out of whole ones, for the fuzz tests, and the one thing that may come of reading them.

Mutation as fuzzers have it since Miller, Fredriksen and So 1990 ("An Empirical Study of the Reliability of UNIX
Utilities"), drawn by hypothesis, so that a failure is shrunk to the least damage that shows it.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st

from errors import InputError

# What has broken readers before: here or elsewhere.
TEXTS = (
    "", " ", "\t", "\n", "\r", "\r\n", '"', '""', "'", ",", ";", "\\", "\0", "\x1a", "\x7f", "\ufeff", "\ufffd",
    "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029", "\u00a0", "\u200b", "\u202e\u05e9\u05dc\u05d5\u05dd",
    "\u0645\u0631\u062d\u0628\u0627", "\U0001f600", "e\u0301" * 9, "\u0130", "\u00df", "-1", "0", "1", "5", "5.0001",
    "1e400", "-1e400", "nan", "NaN", "inf", "Infinity", "0x10", "1_0", "\u0663", "\u00b2", "9" * 5000, "-", "--1",
    "true", "null", "None", "{", "}", "[", "]", "[" * 3000, '{"a":', "id", "sentence", "label", "a" * 200_000,
    ".I 1", ".W", ".I", "-9" * 30, "\\ud800", "%s", "../../x", "/dev/null", "[PAD]", "[CLS]", "##", "\u4e2d" * 50,
)  # fmt: skip
BYTES = (*(text.encode() for text in TEXTS), b"\xff", b"\xfe\xff", b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"\x80")
HUGE = 10**400
VALUES = (
    None, True, False, 0, 1, -1, 2, 3, 10**9, 10**30, HUGE, -(10**30), 0.0, 0.5, -0.5, 1e-320, 1e308, math.nan,
    math.inf, -math.inf, "", " ", "x", "0", "1", "a\0b", "\ud800", "\n", "../..", "/dev/null", "mean", "bert",
    [], [None], [[]], ["x"], [1, 2], {}, {"x": 1}, {"": {}},
)  # fmt: skip


@st.composite
def damaged(draw, whole: bytes) -> bytes:
    """The bytes after one to four cuts, deletions, insertions, replacements, repetitions or swapped lines."""
    content = whole
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(
            st.sampled_from(("field", "field", "field", "insert", "replace", "delete", "repeat", "cut", "flip", "swap"))
        )
        start = draw(st.integers(0, len(content)))
        stop = min(len(content), start + draw(st.sampled_from((1, 2, 5, 20, 100))))
        if kind == "insert":
            content = content[:start] + draw(st.sampled_from(BYTES)) + content[start:]
        elif kind == "replace":
            content = content[:start] + draw(st.sampled_from(BYTES)) + content[stop:]
        elif kind == "field":
            content = _replace_field(content, start, draw(st.sampled_from(BYTES)))
        elif kind == "delete":
            content = content[:start] + content[stop:]
        elif kind == "repeat":
            content = content[:stop] + content[start:stop] * draw(st.integers(1, 3)) + content[stop:]
        elif kind == "cut":
            content = content[:start]
        elif kind == "flip" and start < len(content):
            content = content[:start] + bytes([content[start] ^ 1 << draw(st.integers(0, 7))]) + content[start + 1 :]
        elif kind == "swap":
            lines = content.split(b"\n")
            one, other = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines) - 1))
            lines[one], lines[other] = lines[other], lines[one]
            content = b"\n".join(lines)
    return content


def _replace_field(content: bytes, place: int, by: bytes) -> bytes:
    """What stands between the separators around a place."""
    marks = b"\t\n,"
    start = max(content.rfind(bytes([mark]), 0, place) for mark in marks) + 1
    ends = [at for mark in marks if (at := content.find(bytes([mark]), place)) >= 0]
    return content[:start] + by + content[min(ends, default=len(content)) :]


@st.composite
def altered(draw, whole) -> object:
    """A JSON value after one to three values are replaced, deleted or added, at any depth."""
    value, new = copy.deepcopy(whole), st.sampled_from(VALUES).map(copy.deepcopy)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(value))
        if not places:
            return draw(new)
        parent, key = draw(st.sampled_from(places))
        kind = draw(st.sampled_from(("replace", "replace", "replace", "delete", "add", "whole")))
        if kind == "replace":
            parent[key] = draw(new)
        elif kind == "delete":
            del parent[key]
        elif kind == "add" and isinstance(parent, dict):
            parent[draw(st.sampled_from(("", "x", "\ud800", "minbert", "command")))] = draw(new)
        elif kind == "whole":
            # Now and then the value of another key: of a type that is right somewhere.
            other, name = draw(st.sampled_from(places))
            if isinstance(other, dict) and name in other or isinstance(other, list) and name < len(other):
                parent[key] = copy.deepcopy(other[name])
    return value


def _places(value):
    """(container, key) of everything in a JSON value."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from _places(value[key])


def json_bytes(value) -> bytes:
    """As other programs write it: NaN and half surrogates included."""
    return json.dumps(value).encode()


def refused(call: Callable, *arguments) -> bool:
    """Whether a call refuses its input in one line; False where it can use it. Any other exception is a fault."""
    try:
        call(*arguments)
    except InputError as error:
        said = str(error)
        assert said and "\n" not in said and len(said) < 5000, said[:6000]
        return True
    return False


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
