"""The course's data files: one reader that accounts for every row, and the course's own names as thin adapters over it.

Follows the file format of the CS 224N default project: tab-separated, a header line, quotes doubled inside quotes
(RFC 4180, as Python's csv module reads it), although the names end in .csv.

    python datasets.py [--check [DIR]]    the health of a folder of data files (data_check.py)
"""

import codecs
import csv
import hashlib
import io
import math
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import startup  # noqa: F401  # isort: skip: before what may be missing

from errors import InputError, quoted
from files import cannot
from tasks import PARA, SST, STS

NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
LABEL_RANGES = {"class": (0, 4), "binary": (0, 1), "score": (0.0, 5.0)}


@dataclass(frozen=True, slots=True)
class Example:
    """One row: a sentence or a pair, its label if it has one, and the line it begins on (1 is the header's)."""

    id: str
    sentence: str
    second: str | None
    label: int | float | None
    line: int


@dataclass(frozen=True)
class Table(Sequence):
    """The rows of one file in its order, what was left out of it as (line, reason), and the SHA-256 of its bytes.

    taken_from: how many rows there are, where these are only a share of them.
    """

    path: Path
    examples: list[Example]
    dropped: list[tuple[int, str]]
    sha256: str
    taken_from: int | None = None

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index):
        return self.examples[index]

    def __iter__(self):
        return iter(self.examples)

    def reasons(self) -> dict[str, list[int]]:
        """reason -> the lines dropped for it."""
        found: dict[str, list[int]] = {}
        for line, reason in self.dropped:
            found.setdefault(reason, []).append(line)
        return found

    def describe(self) -> str:
        """e.g. `data/quora-dev.csv: 20212 rows, 2 dropped (blank is_duplicate on lines 502, 1002)`."""
        found = f"{self.path}: {len(self)} row{'s' * (len(self) != 1)}"
        if not self.dropped:
            return found
        parts = []
        for reason, lines in self.reasons().items():
            shown = ", ".join(map(str, lines[:10])) + (f" and {len(lines) - 10} more" if len(lines) > 10 else "")
            parts.append(f"{reason} on line{'s' if len(lines) > 1 else ''} {shown}")
        return f"{found}, {len(self.dropped)} dropped ({'; '.join(parts)})"


def preprocess_string(s: str) -> str:
    """Lower-cased, a space before each of . ? , ' and single spaces between words: `Why, Bob?` -> `why , bob ?`."""
    s = s.lower()
    for mark in ".?,'":
        s = s.replace(mark, f" {mark}")
    return " ".join(s.split())


def lower_and_strip(s: str) -> str:
    """What the course does with single sentences, which come with their punctuation apart already."""
    return s.lower().strip()


@contextmanager
def _fields_of_any_length():
    """csv refuses fields over 131,072 characters, a limit of the whole process: raised here, and put back."""
    limit = csv.field_size_limit(2**31 - 1)  # the largest that a C long holds on every system
    try:
        yield
    finally:
        csv.field_size_limit(limit)


@_fields_of_any_length()
def read_examples(
    path: str | os.PathLike,
    *,
    columns: tuple[str, ...] = ("sentence",),
    label: str | None = None,
    label_kind: str = "class",
    label_range: tuple[float, float] | None = None,
    clean: Callable[[str], str] | None = None,
    faults: list[InputError] | None = None,
) -> Table:
    """Read a data file whole: every row is an Example, is in `dropped`, or is an error.

    columns: one or two text columns. label: the label's column, or None for a file without labels; a row whose label
    is blank is dropped. label_kind: "class" (whole numbers), "binary" (0 or 1), "score" (floats), within label_range,
    both ends included (default: LABEL_RANGES of the kind). clean: what is done to a text; as the course does,
    `lower_and_strip` for single sentences and `preprocess_string` for pairs. Ids are lower-cased and stripped. faults:
    a list to which a row's error is added instead of being raised, the row left out: to see all of them in one look.

    Raises InputError, naming file, line, what was found and what to do, for a file that is absent, empty, not UTF-8 or
    without a wanted column; for a row with a wrong number of columns, a label that is no number or out of range, a
    blank id, one with white space, a comma alone or one seen before; and for a quote that is never closed or swallows
    the rows after it.
    """
    if label_kind not in LABEL_RANGES:
        raise ValueError(f"label_kind={label_kind!r}: choose one of {', '.join(LABEL_RANGES)}")
    path = Path(path)
    if clean is None:
        clean = lower_and_strip if len(columns) == 1 else preprocess_string
    content = read_bytes(path)
    rows = tab_rows(path, decode_text(path, content))
    header, id_at, text_at, label_at = _columns(path, rows, columns, label)
    parse = _label_parser(label_kind, label_range or LABEL_RANGES[label_kind])
    labels: dict[str, int | float] = {}  # few distinct ones: each is parsed once
    lines: dict[str, int] = {}
    examples, dropped = [], []

    def refuse(line, what):
        error = InputError(f"{path}, line {line}: {what}")
        if faults is None:
            raise error
        faults.append(error)

    for line, row in rows:
        if len(row) != len(header):
            wanted = f"wanted {len(header)} as in the header ({listed(header)})"
            refuse(
                line,
                f"{len(row)} columns, {wanted}; separate columns with single tabs, and double quotes inside quotes",
            )
            continue
        name = row[id_at].strip().lower()
        if not name:
            refuse(line, "the id is blank; every row needs one of its own")
            continue
        if name == "," or len(name.split()) > 1:
            wanted = "wanted one without white space that is no comma alone, as prediction files need"
            refuse(line, f"the id is {quoted(name)}, {wanted}; rename it")
            continue
        if lines.setdefault(name, line) != line:
            refuse(line, f"id {quoted(name)} is on line {lines[name]} already; remove one of the two")
            continue
        value = None
        if label_at is not None:
            text = row[label_at].strip()
            if not text:
                dropped.append((line, f"blank {label}"))
                continue
            if text not in labels:
                try:
                    labels[text] = parse(text)
                except ValueError as error:
                    refuse(line, f"{label} is {quoted(text)}, wanted {error}; correct it")
                    continue
            value = labels[text]
        texts = [clean(row[i]) for i in text_at]
        examples.append(Example(name, texts[0], texts[1] if len(texts) > 1 else None, value, line))
    if not examples and not faults:
        found = f"all {len(dropped)} rows have a blank {label}" if dropped else "a header but no rows"
        raise InputError(f"{path}: {found}; fetch the file again, or choose another")
    return Table(path, examples, dropped, hashlib.sha256(content).hexdigest())


def read_bytes(path: Path) -> bytes:
    """The whole file. Raises InputError where it can't be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise cannot("read", path, error) from error


def decode_text(path: Path, content: bytes) -> str:
    """The text, without a byte-order mark. Raises InputError, naming the line, for what is not UTF-8 text."""
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8 text"
        ) from error
    nul = text.find("\0")
    if nul >= 0:  # other encodings of plain text are full of them, and csv before Python 3.11 takes none
        line = text.count("\n", 0, nul) + 1
        raise InputError(f"{path}, line {line}: a NUL character, so not text; save the file as UTF-8 text")
    return text


def tab_rows(path: Path, text: str):
    """Yields (line it begins on, fields), the header first; blank lines are no rows.

    A quote counts where it begins a field, as in the course's files. Raises InputError for one that is never closed or
    swallows the rows after it; how long a field may be is csv's limit.
    """
    current: list[str] = []  # the lines of the row being read

    def lines():
        # newline="" keeps line ends inside quotes; only \n, \r and \r\n end a line, whatever Unicode says of others.
        for text_line in io.StringIO(text, newline=""):
            current.append(text_line)
            yield text_line

    line, last = 1, []
    try:
        for row in csv.reader(lines(), delimiter="\t"):
            if len(current) > 1:
                _refuse_swallowed_rows(path, line, row)
            if row:
                yield line, row
            line += len(current)
            last = current.copy()
            current.clear()
    except csv.Error as error:
        raise InputError(f"{path}, line {line}: {error}; is a quote opened there and never closed?") from error
    # A quote that is still open at the end would take in one line more, whatever it says.
    if last and len(list(csv.reader([*last, "one more"], delimiter="\t"))) == 1:
        raise InputError(
            f"{path}, line {line - len(last)}: a quote is opened there and never closed; close it, or fetch the file "
            "again if its end is cut off"
        )


def _refuse_swallowed_rows(path: Path, line: int, row: list[str]) -> None:
    """A text may go on over several lines, but one with another row's tabs in it began with a quote by mistake."""
    for field in row:
        line_end = re.search(r"[\r\n]", field)
        if line_end and "\t" in field[line_end.end() :]:
            start = " ".join(field[:30].split())
            raise InputError(
                f'{path}, line {line}: the quote before "{start}..." is not closed in its row and swallows the rows '
                "after it; close it, or double it inside quotes"
            )


def _columns(path: Path, rows, columns: tuple[str, ...], label: str | None):
    """(header, index of the id, indexes of the texts, index of the label or None)."""
    _, header = next(rows, (1, None))
    if header is None:
        raise InputError(f"{path}: the file is empty; fetch it again, or choose another")
    header = [name.strip() for name in header]
    wanted = ["id", *columns, *([label] if label else [])]
    missing = [name for name in wanted if name not in header]
    if missing:
        remedy = "separate the columns with tabs" if len(header) == 1 else "choose the file of this task and split"
        raise InputError(f"{path}, line 1: no column {listed(missing)}; found {listed(header)}; {remedy}")
    twice = [name for name in wanted if header.count(name) > 1]
    if twice:
        raise InputError(f"{path}, line 1: column {listed(twice)} stands there twice; remove one of the two")
    indexes = [header.index(name) for name in wanted]
    return header, indexes[0], indexes[1 : 1 + len(columns)], indexes[-1] if label else None


def blank(text: str) -> bool:
    """Whether BERT's tokenizer finds nothing in a text: white space, and what is never seen (Unicode's categories C).

    U+200B, a byte-order mark inside a file, U+FFFD: str.strip() leaves these.
    """
    return all(sign.isspace() or sign == "\ufffd" or unicodedata.category(sign)[0] == "C" for sign in text)


def listed(names: Sequence[str]) -> str:
    """Names as a message shows them: quoted, the first ten."""
    return ", ".join(quoted(name) for name in names[:10]) + (", ..." if len(names) > 10 else "")


def _label_parser(kind: str, label_range: tuple[float, float]) -> Callable[[str], int | float]:
    """text -> label; a ValueError's message says what is wanted."""
    low, high = label_range
    number = "a number" if kind == "score" else "a whole number"

    def parse(text):
        # float() also takes 0_1 and the digits of every script, which are slips of whoever typed them.
        value = float(text) if NUMBER.fullmatch(text) else math.nan
        if kind != "score" and value.is_integer():
            value = int(value)
        if not low <= value <= high or (kind != "score" and isinstance(value, float)):  # NaN compares false
            raise ValueError(f"{number} from {low} to {high}")
        return value

    return parse


# The course's names, for code that was written for it; the commands here make their batches in batches.py. Rows are the
# course's tuples: (sentence, label, id) and (sentence1, sentence2, label, id), without the label in test files. torch
# and the tokenizer are imported where first needed: reading a file needs neither.


def load_data(filename: str | os.PathLike, flag: str = "train"):
    """One sentiment file (SST or CFIMDB) as (sentence, label, id), or (sentence, id) for flag "test".

    For flag "train" the answer is (rows, number of classes). Raises InputError as `read_examples`.
    """
    rows = _sentences(read_examples(filename, label=None if flag == "test" else "sentiment"))
    return (rows, len({row[1] for row in rows})) if flag == "train" else rows


def load_multitask_data(sentiment_filename, paraphrase_filename, similarity_filename, split: str = "train"):
    """(SST rows, {label: index in order of appearance}, paraphrase rows, STS rows), in the 2024 starter's order.

    Similarity labels are floats. split "test" reads files without labels. Says what was loaded, and what was dropped.
    Raises InputError as `read_examples`.
    """
    labelled, pair = split != "test", ("sentence1", "sentence2")
    tables = (
        read_examples(sentiment_filename, label="sentiment" if labelled else None),
        read_examples(
            paraphrase_filename, columns=pair, label="is_duplicate" if labelled else None, label_kind="binary"
        ),
        read_examples(similarity_filename, columns=pair, label="similarity" if labelled else None, label_kind="score"),
    )
    for table in tables:
        print(f"Loaded {split} examples from {table.describe()}")
    sentiment, paraphrase, similarity = tables
    labels = dict.fromkeys(example.label for example in sentiment) if labelled else {}
    num_labels = {label: index for index, label in enumerate(labels)}
    return _sentences(sentiment), num_labels, _pairs(paraphrase), _pairs(similarity)


def load_multitask_test_data(folder: str | os.PathLike = "data"):
    """The test texts alone: (sentences, paraphrase pairs, similarity pairs), as the 2023 season's starter has it.

    That starter imports it and never calls it, since it names files that were never handed out: this reads those that
    were, `*-test-student.csv`. For ids, take `load_multitask_data` with split "test". Raises InputError as
    `read_examples`.
    """
    files = (Path(folder) / task.files["test"] for task in (SST, PARA, STS))
    sentiment, _, paraphrase, similarity = load_multitask_data(*files, split="test")
    return [sentence for sentence, _ in sentiment], [row[:2] for row in paraphrase], [row[:2] for row in similarity]


def _sentences(table: Table) -> list[tuple]:
    return [(e.sentence, e.id) if e.label is None else (e.sentence, e.label, e.id) for e in table]


def _pairs(table: Table) -> list[tuple]:
    return [(e.sentence, e.second, e.id) if e.label is None else (e.sentence, e.second, e.label, e.id) for e in table]


class _Rows:
    """The course's rows with a `collate_fn` that makes a batch of them; torch's DataLoader asks for no more.

    `pad_data` (both seasons) gives a batch's parts as a tuple, and `collate_fn` gives them by their `names`, in the
    same order: overriding `pad_data` alone changes both.
    """

    names: tuple[str, ...]

    def __init__(self, dataset: list[tuple], args):
        """args: the command's options; the tokenizer is that of `args.model`, or of the default model without one."""
        from tokenizer import BertTokenizer

        self.dataset = dataset
        self.p = args
        self.tokenizer = BertTokenizer.from_pretrained(getattr(args, "model", None))

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return self.dataset[index]

    def collate_fn(self, all_data: list[tuple]) -> dict:
        return dict(zip(self.names, self.pad_data(all_data), strict=True))

    def _tokens(self, sentences):
        return self.tokenizer(sentences, return_tensors="pt", padding=True, truncation=True)


class SentenceClassificationTestDataset(_Rows):
    """Rows (sentence, id) -> `token_ids` and `attention_mask` `(B, T)`, `sents`, `sent_ids`."""

    names = ("token_ids", "attention_mask", "sents", "sent_ids")

    def pad_data(self, data):
        sents = [row[0] for row in data]
        tokens = self._tokens(sents)
        return tokens["input_ids"], tokens["attention_mask"], sents, [row[-1] for row in data]


class SentenceClassificationDataset(SentenceClassificationTestDataset):
    """Rows (sentence, label, id) -> the same and, before `sents`, `labels` `(B,)`, int64."""

    names = ("token_ids", "attention_mask", "labels", "sents", "sent_ids")

    def pad_data(self, data):
        *tokens, sents, sent_ids = super().pad_data(data)
        return *tokens, _labels([row[1] for row in data]), sents, sent_ids


class SentencePairTestDataset(_Rows):
    """Rows (sentence1, sentence2, id) -> `token_ids_i`, `token_type_ids_i`, `attention_mask_i` `(B, T_i)`, `sent_ids`.

    i is 1 and 2: the two sentences are separate, each padded to the longest of its own side.
    """

    names = (*(f"{name}_{i}" for i in (1, 2) for name in ("token_ids", "token_type_ids", "attention_mask")), "sent_ids")

    def pad_data(self, data):
        sides = (self._tokens([row[i] for row in data]) for i in (0, 1))
        tokens = (side[name] for side in sides for name in ("input_ids", "token_type_ids", "attention_mask"))
        return *tokens, [row[-1] for row in data]


class SentencePairDataset(SentencePairTestDataset):
    """Rows (sentence1, sentence2, label, id) -> the same and, before `sent_ids`, `labels` `(B,)`.

    They are int64 for whole-number labels and float32 for similarities (with `isRegression`, the starter's spelling,
    for whole numbers too): 4.6 stays 4.6, and no device lacks float32.
    """

    names = (*SentencePairTestDataset.names[:-1], "labels", "sent_ids")

    def __init__(self, dataset: list[tuple], args, isRegression: bool = False):
        super().__init__(dataset, args)
        self.isRegression = isRegression

    def pad_data(self, data):
        *tokens, sent_ids = super().pad_data(data)
        return *tokens, _labels([row[2] for row in data], self.isRegression), sent_ids


def _labels(labels: list, regression: bool = False):
    import torch

    regression = regression or any(isinstance(label, float) for label in labels)
    return torch.tensor(labels, dtype=torch.float32 if regression else torch.long)


if __name__ == "__main__":
    from data_check import main  # it stands above this file and reads through it: imported only as the command

    sys.exit(main())
