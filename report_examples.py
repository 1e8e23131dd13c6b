"""The rows that a report shows: where a model is most wrong, or where runs differ most, and what it looks at there.

Weights as token_weights.py gives them: of the attention layers of Jia 2024, or of a pooler that weighs tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from errors import InputError
from model import MultitaskBERT
from report_data import Judged
from token_weights import TokenWeights, token_weights
from tokenizer import BertTokenizer

EMPHASIS = 2  # even shares of a text's weight from which on a word is fully coloured
MOST_CELLS = 3600  # of a cross-attention matrix: two sentences of 60 words


@dataclass(frozen=True)
class Word:
    """weight: what is taken of it, the text's sum being 1. share: how strongly it is coloured, 0 to 100.

    A word of an even share of its text's weight, or of less, has no colour; one of EMPHASIS even shares all of it, or
    where there are larger weights the largest. So a head that looks at all words alike colours none.
    """

    text: str
    share: int
    weight: float

    @property
    def special(self) -> bool:
        """Whether it is the model's own, [CLS] or [SEP], and no word of the text."""
        return self.text in ("[CLS]", "[SEP]")


@dataclass(frozen=True)
class Look:
    """What a run's head looks at in a row. words: of each text. matrices: what the page draws when it is asked to.

    A matrix has a title, its rows' and columns' words, and whole per cents in rows.
    """

    words: list[list[Word]]
    matrices: list[dict]


@dataclass(frozen=True)
class Answer:
    """A run's answer for a row. said: in words. sure: the probability of what it said, or a score's error.

    right: whether it is the label; None of a score. badness: see report_data.Judged. look: None if nothing was asked.
    """

    said: str
    value: float
    sure: float
    right: bool | None
    badness: float
    look: Look | None


@dataclass(frozen=True)
class Shown:
    """A row as the page shows it."""

    id: str
    line: int
    texts: tuple[str, ...]
    label: str
    label_value: float
    answers: list[Answer]


@dataclass
class Shelf:
    """The models that answer what they look at, each loaded once. why: task -> why its words have no weights."""

    models: dict[Path, tuple[MultitaskBERT, BertTokenizer]] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)

    def look(self, judged: Judged, texts: tuple[str, ...]) -> Look | None:
        """None if the head weighs no tokens, or the model is gone, or there never was one; `why` says which."""
        name, best = judged.task.name, judged.best
        if best is None:
            self.why[name] = "an ensemble has no model of its own that could say what it looks at"
        if name in self.why:
            return None
        try:
            if best not in self.models:
                self.models[best] = MultitaskBERT.from_pretrained(best), BertTokenizer.from_pretrained(best)
            return describe(token_weights(*self.models[best], name, *texts, whole_words=True))
        except InputError as error:
            self.why[name] = str(error)
            return None


def worst(judged: Judged, most: int) -> np.ndarray:
    """The rows of at most `most` wrong answers, the worst first; of a score those furthest off."""
    rows = np.argsort(-judged.badness, kind="stable")
    if judged.probabilities is not None:
        rows = rows[judged.values[rows] != judged.labels[rows]]
    return rows[:most]


def differing(runs: list[Judged], most: int) -> np.ndarray:
    """At most `most` rows on which runs answer differently, those first in which they are most differently wrong."""
    badness = np.stack([judged.badness for judged in runs])  # (runs, n)
    rows = np.argsort(-np.ptp(badness, axis=0), kind="stable")
    if runs[0].probabilities is not None:
        values = np.stack([judged.values for judged in runs])
        rows = rows[(values != values[0]).any(axis=0)[rows]]
    return rows[:most]


def show(rows: np.ndarray, runs: list[Judged], shelves: list[Shelf]) -> list[Shown]:
    """These rows, with each run's answer and what it looks at. The runs have the same dev file."""
    found = []
    for row in rows:
        example = runs[0].table[row]
        texts = (example.sentence,) if example.second is None else (example.sentence, example.second)
        answers = [_answer(judged, row, shelf.look(judged, texts)) for judged, shelf in zip(runs, shelves, strict=True)]
        label = class_name(runs[0], example.label)
        found.append(Shown(example.id, example.line, texts, label, float(example.label), answers))
    return found


def class_name(judged: Judged, value: float) -> str:
    """What a class or label is called: its number, with a word where the task has one; a score with one digit."""
    task = judged.task
    if task.label_kind == "score":
        return f"{value:.1f}"
    if task.class_names:
        return task.class_names[int(value)]
    return f"{int(value)} {task.label_words[int(value)]}" if task.label_words else str(int(value))


def _answer(judged: Judged, row: int, look: Look | None) -> Answer:
    value, label, badness = judged.values[row], judged.labels[row], float(judged.badness[row])
    if judged.probabilities is None:
        scaled = float(judged.scaled[row])
        return Answer(f"{scaled:.1f}", scaled, scaled - float(label), None, badness, look)
    sure = float(judged.probabilities[row, int(value)])
    return Answer(class_name(judged, value), float(value), sure, bool(value == label), badness, look)


def describe(views: list[TokenWeights]) -> Look:
    """What token_weights found, as words in the order of the texts, and a matrix for each layer and direction."""
    cross = len(views) == 2 and bool(views[0].layers) and views[0].layers[0].columns == views[1].layers[0].rows
    # With cross-attention a sentence's vector is made of the other's tokens, unless a pooler weighs its own.
    swapped = cross and not views[0].source.startswith("pooler")
    words = [_words(view) for view in (views[::-1] if swapped else views)]
    if len(words) == 1:
        words = _split(words[0])
    matrices = []
    for layer in reversed(range(len(views[0].layers) if cross else 0)):
        for i, view in enumerate(views):
            matrix = view.layers[layer]
            if matrix.mean.numel() <= MOST_CELLS:
                of = f", layer {layer + 1} of {len(view.layers)}" if len(view.layers) > 1 else ""
                title = f"{('first', 'second')[i]} sentence looks at the {('second', 'first')[i]}{of}"
                cells = torch.round(100 * matrix.mean).int().tolist()
                matrices.append({"title": title, "rows": matrix.rows, "columns": matrix.columns, "cells": cells})
    return Look(words, matrices)


def _words(view: TokenWeights) -> list[Word]:
    even = 1 / len(view)
    full = max(EMPHASIS * even, view.weights.max().item())
    return [Word(text, max(0, round(100 * (weight - even) / (full - even))), weight) for text, weight in view]


def _split(words: list[Word]) -> list[list[Word]]:
    """A sequence of one or two segments as one list of words for each."""
    ends = [i for i, word in enumerate(words) if word.text == "[SEP]"]
    if len(ends) < 2:
        return [words]
    return [words[: ends[0] + 1], words[ends[0] + 1 :]]
