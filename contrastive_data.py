"""What contrastive training reads: sentences, pairs, triples; every row is accounted for.

Triples from natural language inference as Gao, Yao and Chen 2021 (SimCSE, arXiv 2104.08821, section 4) make them: a
premise, a sentence it entails, and as hard negative one that contradicts it. Layouts: text files, CSV (RFC 4180; commas
or tabs), SNLI and MNLI as their authors publish them, and as SentEval does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from console import counted
from datasets import blank, decode_text, listed, read_bytes
from errors import InputError, quoted
from files import short
from sentence_keys import key
from table_files import JSON_LINES, TABLES, first_line, kind_of, lines_of, objects_of, table_of
from task_files import SHUFFLE

# Columns of sentences, where none are named: the course's and most others'.
SENTENCE_COLUMNS = ("sentence", "sentence1", "sentence2", "text")
PAIR_COLUMNS = ("sent0", "sent1", "hard_neg")  # SimCSE's names
LABELS = ("entailment", "neutral", "contradiction")
NO_LABEL = "-"  # where the annotators did not agree
SENTEVAL = ("train", "dev", "test")

Row = tuple[int, tuple[str, ...]]  # the line it begins on, its texts


@dataclass
class Source:
    """A file: its rows that are used, and the lines of those that are not, by reason."""

    path: Path
    sha256: str
    rows: int = 0
    dropped: dict[str, list[int]] = field(default_factory=dict)

    def drop(self, line: int, reason: str) -> None:
        self.dropped.setdefault(reason, []).append(line)

    def describe(self) -> str:
        """`nli.csv: 2,943 rows (5 left out: blank, line 7, ...)`."""
        notes = [
            f"{len(lines):,} left out: {reason}, line {lines[0]}{', ...' if len(lines) > 1 else ''}"
            for reason, lines in self.dropped.items()
        ]
        return f"{short(self.path)}: {counted(self.rows, 'row')}" + (f" ({'; '.join(notes)})" if notes else "")


@dataclass(frozen=True)
class Contrast:
    """Rows to train on, all of one width: 1 (sentences), 2 (pairs), 3 (with a hard negative).

    ids: for each row `file:line`. sources: the files they come from, in order.
    """

    rows: list[tuple[str, ...]]
    ids: list[str]
    sources: list[Source]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def width(self) -> int:
        return len(self.rows[0])

    def shared(self, keys: set[str]) -> list[int]:
        """Indexes of the rows of which a sentence is among `keys` (see sentence_keys.key)."""
        return [index for index, row in enumerate(self.rows) if any(key(text) in keys for text in row)]

    def without(self, keys: set[str], reason: str) -> Contrast:
        """Without those rows, which then are among what their files dropped. Raises InputError if none is left."""
        gone = set(self.shared(keys))
        if len(gone) == len(self):
            raise InputError(f"every row is left out: {reason}: choose other files to train on, or leave out --exclude")
        return self._without(gone, reason)

    def share(self, share: float, reason: str) -> Contrast:
        """A share of the rows in (0, 1], one at least: the first ones of a shuffle that is always the same, so that a
        smaller share is a part of a larger one, whatever a run's seed. The others are among what their files dropped.
        """
        order = np.random.default_rng(SHUFFLE).permutation(len(self))
        return self._without(set(order[max(1, round(share * len(self))) :].tolist()), reason)

    def _without(self, gone: set[int], reason: str) -> Contrast:
        left = [index for index in range(len(self)) if index not in gone]
        sources = [replace(source, dropped=dict(source.dropped)) for source in self.sources]
        place = 0
        for source in sources:
            lines = [
                int(self.ids[index].rpartition(":")[2]) for index in range(place, place + source.rows) if index in gone
            ]
            place += source.rows
            source.rows -= len(lines)
            if lines:
                source.dropped[reason] = lines
        return Contrast([self.rows[i] for i in left], [self.ids[i] for i in left], sources)


# ---------------------------------------------------------------------------------------------------------------------
# Sentences, pairs, triples


def read_sentences(paths: Sequence[Path], columns: Sequence[str] = SENTENCE_COLUMNS) -> Contrast:
    """Each distinct sentence of these files once: a text file's lines, or a table's columns of these names.

    A file whose name ends in .csv or .tsv is a table. White space within a sentence counts as one space. Blank lines,
    and sentences said before, are dropped and counted. Raises InputError, naming file, line, what was found and what to
    do, for a file that can't be read, has no such column, or no sentence.
    """
    rows, ids, sources, seen = [], [], [], set()
    for path in paths:
        source, text = _open(path)
        sources.append(source)
        found = _columns_of(path, text, columns) if kind_of(path) in TABLES else _sentences(text)
        for line, texts in found:
            for sentence in (" ".join(text.split()) for text in texts):
                if blank(sentence) or sentence in seen:
                    source.drop(line, "blank" if blank(sentence) else "said before")
                    continue
                seen.add(sentence)
                rows.append((sentence,))
                ids.append(f"{path}:{line}")
                source.rows += 1
        if not source.rows:
            raise InputError(f"{path}: no sentence{_nothing(source)}: choose another file")
    return Contrast(rows, ids, sources)


def read_pairs(paths: Sequence[Path]) -> Contrast:
    """Pairs, or triples, of these files, which have to be all the one or all the other. What can be read:

    - a table (CSV, commas or tabs) with columns sent0, sent1 and perhaps hard_neg;
    - one with sentence1, sentence2 and is_duplicate: its duplicates are pairs (the course's Quora file);
    - SNLI or MNLI, as .jsonl or .txt with a column gold_label, or SentEval's s1.train beside s2.train and labels.train
      (or the folder with them: its train part, without that its dev part): triples.

    Raises InputError, naming file, line, what was found and what to do, for a file that can't be read or is none of
    these, has a row of another width, or holds nothing to train on.
    """
    rows, ids, sources, widths = [], [], [], {}
    for path in map(_senteval_file, paths):
        source, text = _open(path)
        sources.append(source)
        found = _triples(source, text) if _is_inference(path, text) else _table_pairs(source, text)
        for line, texts in found:
            texts = tuple(" ".join(text.split()) for text in texts)
            if any(map(blank, texts)):
                source.drop(line, "blank")
                continue
            rows.append(texts)
            ids.append(f"{path}:{line}")
            source.rows += 1
            widths[len(texts)] = path
        if not source.rows:
            raise InputError(f"{path}: nothing to train on{_nothing(source)}: choose another file")
    if len(widths) > 1:
        raise InputError(
            f"{widths[2]} has pairs and {widths[3]} has triples: train on the one or the other, since a batch's rows "
            "are alike"
        )
    return Contrast(rows, ids, sources)


def hash_of_pairs(path: Path) -> str:
    """The `sha256` of the Source that read_pairs would make of it."""
    path = _senteval_file(path)
    digest = hashlib.sha256(read_bytes(path)).hexdigest()
    if kind_of(path) in JSON_LINES or not path.name.startswith("s1."):
        return digest
    return _hash_of_three(digest, [read_bytes(other) for other in _beside(path)])


def _hash_of_three(premises: str, others: list[bytes]) -> str:
    return hashlib.sha256(b"".join([premises.encode(), *others])).hexdigest()


def _open(path: Path) -> tuple[Source, str]:
    content = read_bytes(path)
    text = decode_text(path, content)
    if blank(text):
        what = "nothing but blank lines" if text else "the file is empty"
        raise InputError(f"{path}: {what}: fetch it again, or choose another")
    return Source(path, hashlib.sha256(content).hexdigest()), text


def _nothing(source: Source) -> str:
    reasons = ", ".join(f"{len(lines):,} {reason}" for reason, lines in source.dropped.items())
    return f" ({reasons})" if reasons else ""


def _sentences(text: str) -> Iterator[Row]:
    return ((line, (sentence,)) for line, sentence in lines_of(text))


def _columns_of(path: Path, text: str, columns: Sequence[str]) -> Iterator[Row]:
    """Of a table, those of the columns that it has, one at least."""
    rows = table_of(path, text)
    line, header = next(rows)
    places = [header.index(name) for name in columns if name in header]
    if not places:
        raise InputError(
            f"{path}, line {line}: no column {listed(columns)}; found {listed(header)}: name those of sentences by "
            "--column"
        )
    for line, fields in rows:
        yield line, tuple(fields[place] for place in places)


def _table_pairs(source: Source, text: str) -> Iterator[Row]:
    rows = table_of(source.path, text)
    line, header = next(rows)
    if {"sentence1", "sentence2", "is_duplicate"} <= set(header):
        first, second, label = (header.index(name) for name in ("sentence1", "sentence2", "is_duplicate"))
        for line, fields in rows:
            if fields[label].strip() in ("1", "1.0"):
                yield line, (fields[first], fields[second])
            else:
                source.drop(line, "no duplicates" if fields[label].strip() else "blank is_duplicate")
        return
    if not {"sent0", "sent1"} <= set(header):
        raise InputError(
            f"{source.path}, line {line}: found {listed(header)}; wanted sent0, sent1 and perhaps hard_neg, or "
            "gold_label, sentence1 and sentence2, or sentence1, sentence2 and is_duplicate: rename the columns"
        )
    places = [header.index(name) for name in PAIR_COLUMNS if name in header]
    for line, fields in rows:
        yield line, tuple(fields[place] for place in places)


# ---------------------------------------------------------------------------------------------------------------------
# Natural language inference


def _senteval_file(path: Path) -> Path:
    """SentEval's folder as its file of premises; any other path as it is."""
    if not path.is_dir():
        return path
    there = [path / f"s1.{part}" for part in SENTEVAL if (path / f"s1.{part}").is_file()]
    if not there:
        raise InputError(f"{path}: a folder without s1.train or s1.dev: name the file to train on")
    return there[0]


def _is_inference(path: Path, text: str) -> bool:
    names = first_line(text).split("\t")
    return kind_of(path) in JSON_LINES or path.name.startswith("s1.") or "gold_label" in names


def _triples(source: Source, text: str) -> Iterator[Row]:
    """One for each entailment whose premise has a contradiction: the first with the first, the second with the second,
    from the beginning again where there are fewer contradictions."""
    path = source.path
    if kind_of(path) in JSON_LINES:
        found = _from_jsonl(path, text)
    elif path.name.startswith("s1."):
        found = _from_senteval(source, text)
    else:
        found = _from_tsv(path, text)
    entailed: dict[str, list[tuple[int, str]]] = {}
    contradicted: dict[str, list[str]] = {}
    for line, premise, hypothesis, label in found:
        if label == NO_LABEL:
            source.drop(line, "no label that annotators agree on")
        elif label not in LABELS:
            wanted = f"wanted {', '.join(LABELS)} or {NO_LABEL}"
            raise InputError(f"{path}, line {line}: the label is {quoted(label)}, {wanted}: fetch the file again")
        elif label == "entailment":
            entailed.setdefault(premise, []).append((line, hypothesis))
        elif label == "contradiction":
            contradicted.setdefault(premise, []).append(hypothesis)
    for premise, hypotheses in entailed.items():
        against = contradicted.get(premise)
        for number, (line, hypothesis) in enumerate(hypotheses):
            if against:
                yield line, (premise, hypothesis, against[number % len(against)])
            else:
                source.drop(line, "an entailment of a premise without contradiction")


def _from_senteval(source: Source, text: str) -> Iterator[tuple[int, str, str, str]]:
    path = source.path
    sides, contents = [_texts(text)], []
    for other in _beside(path):
        contents.append(content := read_bytes(other))
        sides.append(_texts(decode_text(other, content)))
        if len(sides[-1]) != len(sides[0]):
            raise InputError(
                f"{other}: {len(sides[-1]):,} lines, wanted {len(sides[0]):,} as in {path.name}: fetch both again"
            )
    source.sha256 = _hash_of_three(source.sha256, contents)
    for line, (premise, hypothesis, label) in enumerate(zip(*sides, strict=True), start=1):
        yield line, premise.strip(), hypothesis.strip(), label.strip()


def _beside(path: Path) -> list[Path]:
    """The hypotheses' and the labels' file of SentEval's file of premises."""
    return [path.with_name(f"{name}.{path.name.removeprefix('s1.')}") for name in ("s2", "labels")]


def _texts(text: str) -> list[str]:
    return [line for _, line in lines_of(text)]


def _from_tsv(path: Path, text: str) -> Iterator[tuple[int, str, str, str]]:
    """The authors' own layout: tabs without any quoting, so that a quote is a quote."""
    header: list[str] = []
    for line, content in lines_of(text):
        if not content.strip():
            continue
        fields = content.split("\t")
        if not header:
            header = fields
            missing = [name for name in ("sentence1", "sentence2") if name not in header]
            if missing:
                raise InputError(
                    f"{path}, line {line}: no column {listed(missing)}; found {listed(header)}: choose another"
                )
            places = [header.index(name) for name in ("sentence1", "sentence2", "gold_label")]
            continue
        # A row may end early, where the last annotators' labels are missing.
        if len(fields) <= max(places):
            raise InputError(
                f"{path}, line {line}: {len(fields)} columns, wanted {len(header)} as in the header: fetch it again"
            )
        premise, hypothesis, label = (fields[place].strip() for place in places)
        yield line, premise, hypothesis, label


def _from_jsonl(path: Path, text: str) -> Iterator[tuple[int, str, str, str]]:
    for line, row in objects_of(path, text):
        found = [row.get(name) for name in ("sentence1", "sentence2", "gold_label")]
        if not all(isinstance(value, str) for value in found):
            raise InputError(
                f"{path}, line {line}: found {listed(list(row))}; wanted texts sentence1, sentence2 and gold_label: "
                "choose SNLI's or MNLI's file"
            )
        premise, hypothesis, label = (value.strip() for value in found)
        yield line, premise, hypothesis, label
