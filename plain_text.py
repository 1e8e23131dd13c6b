"""Text as anybody writes it, rewritten as a task's files write theirs, so that a model reads what it was trained on.

BERT's own tokenizer splits punctuation from words, so most of the difference is gone before it reads. What is left is
what the Penn Treebank does to words and marks (Marcus, Santorini and Marcinkiewicz 1993), in which the Stanford
Sentiment Treebank is written: `don't` is `do n't`, a bracket is `-LRB-`, a quotation mark two marks.
"""

from __future__ import annotations

import re

from datasets import lower_and_strip, preprocess_string
from tasks import TEXT_STYLES, Task

# Typographers' marks, which the Treebank does not have.
TYPED = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'})
BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}


def split_words(text: str) -> str:
    """`I don't` -> `I do n't`, `cannot` -> `can not`."""
    text = re.sub(r"(?i)(?<=[a-z])(n['\u2019]t)\b", r" \1", text)
    return re.sub(r"(?i)\b(can)(not)\b", r"\1 \2", text)


def treebank(text: str) -> str:
    """`"Can't (or won't)/*"` -> ``` `` Ca n't -lrb- or wo n't -rrb- \\/\\* '' ```; what is so already stays."""
    text = re.sub(r'(^|[\s(\[{<])"', r"\1`` ", split_words(text.translate(TYPED))).replace('"', " '' ")
    text = re.sub(r"[()\[\]{}]", lambda found: f" {BRACKETS[found[0]]} ", text)
    return re.sub(r"(?<!\\)([/*])", r"\\\1", text)


STYLES = {"plain": str, "split": split_words, "treebank": treebank}
assert set(STYLES) == set(TEXT_STYLES)


def as_in_files(task: Task, text: str) -> str:
    """A text as the reader of the task's files gives it: rewritten, then cleaned as theirs are (datasets.py)."""
    text = STYLES[task.text_style](text)
    if task.file_format == "glue":
        return text.strip()
    return preprocess_string(text) if task.is_pair else lower_and_strip(text)
