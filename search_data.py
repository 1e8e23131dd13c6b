"""Documents to search, read as a stream: text, CSV, JSONL; and test collections: Cranfield's files, BEIR's layout.

Cranfield is in SMART's format (.I number, .T title, .W words); BEIR's layout is Thakur et al. 2021 (arXiv 2104.08663):
corpus.jsonl, queries.jsonl and qrels/test.tsv.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from datasets import blank, listed
from errors import InputError, quoted, whole_number
from files import cannot

# A line, or a field of a CSV file, that is longer is no text of anybody's: a quote never closed, or a binary file.
LONGEST = 2**24
LARGEST = 10**9 - 1  # number in a file of judgements
FORMATS = ("text", "csv", "jsonl", "cranfield")
SUFFIXES = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
IDS, TITLE, TEXT = ("_id", "id"), "title", "text"
CRANFIELD = {"corpus": "cran.all.1400", "queries": "cran.qry", "judgements": "cranqrel"}
BEIR = {"corpus": "corpus.jsonl", "queries": "queries.jsonl"}
JUDGED = ("all", "positive")


@dataclass(frozen=True, slots=True)
class Document:
    """Something to find, or to find it with. line: where it begins in its file."""

    id: str
    text: str
    line: int

    @property
    def blank(self) -> bool:
        return blank(self.text)


@dataclass(frozen=True)
class Survey:
    """What a corpus holds: documents with text, and those without any, which nobody can find: how many, the first."""

    documents: int
    blank: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    """A file of documents; each pass over it reads it anew, a line at a time.

    columns: what of a CSV row or a JSON object is its text, joined by spaces; None takes `title`, where there is one,
    and `text`. id_column: None takes `_id` or `id`; where there is neither, and in a text file, the line is the id.
    ordinals: Cranfield's judgements count its queries instead of using their numbers.
    """

    path: Path
    format: str
    columns: tuple[str, ...] | None = None
    id_column: str | None = None
    ordinals: bool = False

    def __iter__(self) -> Iterator[Document]:
        """Every document, those without text, too. Raises InputError naming file and line for what can't be read."""
        if self.format == "text":
            return (Document(str(line), text.strip(), line) for line, text in _lines(self.path))
        return {"csv": _read_csv, "jsonl": _read_jsonl, "cranfield": _read_cranfield}[self.format](self)

    def with_text(self) -> Iterator[Document]:
        return (document for document in self if not document.blank)

    def survey(self) -> Survey:
        """Read it once, before hours of work depend on it. Raises InputError, too, for an id that stands there twice.

        Of ids only hashes are kept, 8 bytes each, so that a corpus may be larger than memory.
        """
        documents, blank, examples, hashes = 0, 0, [], array("Q")
        for document in self:
            if document.blank:
                blank += 1
                if len(examples) < 10:
                    examples.append(document.id)
            else:
                documents += 1
            hashes.append(_hash(document.id))
        ordered = np.sort(np.array(hashes))
        twice = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
        if twice:
            self._refuse_repeated(twice)
        return Survey(documents, blank, tuple(examples))

    def _refuse_repeated(self, hashes: set[int]) -> None:
        lines: dict[str, int] = {}
        for document in self:
            if _hash(document.id) in hashes:
                if document.id in lines:
                    raise InputError(
                        f"{self.path}, line {document.line}: id {quoted(document.id)} is on line "
                        f"{lines[document.id]} already; remove one of the two, or name another id column"
                    )
                lines[document.id] = document.line


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def open_corpus(
    path: str | Path,
    format: str | None = None,
    columns: tuple[str, ...] | None = None,
    id_column: str | None = None,
) -> Corpus:
    """The corpus of that name: a file, whose format its suffix tells, or a folder with Cranfield's or BEIR's files.

    Raises InputError if nothing is there, and for columns named of a file that has none.
    """
    path = Path(path)
    if path.is_dir():
        names = (CRANFIELD["corpus"], BEIR["corpus"])
        found = [path / name for name in names if (path / name).is_file()]
        if not found:
            raise InputError(f"{path}: a folder without {' or '.join(names)}: name the file to read")
        path = found[0]
    if not path.is_file():
        what = "not a file that can be read twice" if path.exists() else "no such file"
        raise InputError(f"{path}: {what}: name a file of texts, or a folder with {BEIR['corpus']}")
    if format is None:
        known = path.name in (CRANFIELD["corpus"], CRANFIELD["queries"])
        format = "cranfield" if known else SUFFIXES.get(path.suffix.lower(), "text")
    if format in ("text", "cranfield") and (columns or id_column):
        raise InputError(f"{path}: columns are named, but it is read as {format}: leave them out, or say --format csv")
    return Corpus(path, format, columns, id_column, ordinals=path.name == CRANFIELD["queries"])


# --- lines -----------------------------------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number, line without its end). Only \\n and \\r\\n end a line, whatever Unicode says of others."""
    for number, line in _raw_lines(path):
        yield number, line.removesuffix("\n").removesuffix("\r")


def _raw_lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with open(path, "rb") as file:
            number = 0
            while raw := file.readline(LONGEST):
                number += 1
                if len(raw) == LONGEST:
                    raise InputError(
                        f"{path}, line {number}: longer than {LONGEST:,} bytes, so not a text: choose a file of texts"
                    )
                if number == 1:
                    raw = raw.removeprefix(codecs.BOM_UTF8)
                yield number, _decoded(path, number, raw)
    except OSError as error:
        raise cannot("read", path, error) from error


def _decoded(path: Path, number: int, raw: bytes) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        raise InputError(f"{path}, line {number}: byte 0x{byte:02x} is not UTF-8; save it as UTF-8 text") from error
    if "\0" in text:  # other encodings of plain text are full of them
        raise InputError(f"{path}, line {number}: a NUL character, so not text; save it as UTF-8 text")
    return text


# --- CSV and JSONL ---------------------------------------------------------------------------------------------------


def _read_csv(corpus: Corpus) -> Iterator[Document]:
    """Comma- or tab-separated, as the header is; the ids of a file without an id column are its rows' lines."""
    path, raw = corpus.path, _raw_lines(corpus.path)
    before, first = next(((number, text) for number, text in raw if text.strip()), (1, ""))
    line, raw = before, (text for _, text in raw)
    rows = csv.reader(_after(first, raw), delimiter="\t" if "\t" in first else ",", strict=True)
    limit = csv.field_size_limit(LONGEST)  # of the whole process: put back below
    try:
        header = [name.strip() for name in next(rows, [])]
        columns, name = _columns(corpus, header, line), corpus.id_column
        if name is None:
            name = next((known for known in IDS if known in header and known not in columns), None)
        elif name not in header:
            raise InputError(
                f"{path}, line {line}: no column {quoted(name)}; found {listed(header)}; name one of these"
            )
        places, at = [header.index(column) for column in columns], None if name is None else header.index(name)
        line = before + rows.line_num
        for row in rows:
            if row:
                if len(row) != len(header):
                    raise InputError(
                        f"{path}, line {line}: {len(row)} columns, wanted {len(header)} as in the header "
                        f"({listed(header)}); double quotes inside quotes, and quote a text with a separator in it"
                    )
                text = " ".join(filter(None, (row[place].strip() for place in places)))
                yield Document(_id(corpus, line, line if at is None else row[at]), text, line)
            line = before + rows.line_num
    except csv.Error as error:
        raise InputError(f"{path}, line {line}: {error}; is a quote opened there and never closed?") from error
    finally:
        csv.field_size_limit(limit)


def _after(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _columns(corpus: Corpus, names: list[str], line: int) -> tuple[str, ...]:
    """The columns of the text. Raises InputError where they are not there, or none is known to be a text."""
    where = f"{corpus.path}, line {line}"
    if corpus.columns:
        missing = [column for column in corpus.columns if column not in names]
        if missing:
            raise InputError(f"{where}: no column {listed(missing)}; found {listed(names)}; name one of these")
        return corpus.columns
    if TEXT in names:
        return (TITLE, TEXT) if TITLE in names else (TEXT,)
    others = [name for name in names if name and name not in IDS]
    if "sentence" in others or len(others) == 1:
        return ("sentence",) if "sentence" in others else (others[0],)
    found = f"found {listed(names)}" if names else "the file is empty"
    raise InputError(f"{where}: no column {TEXT!r}; {found}; name the one to read with --column")


def _id(corpus: Corpus, line: int, value: object) -> str:
    """An id as text, from a string or a whole number. Raises InputError for a blank one and for anything else."""
    name = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not name:
        raise InputError(f"{corpus.path}, line {line}: the id is {quoted(value)}; every document needs one of its own")
    return name


def _read_jsonl(corpus: Corpus) -> Iterator[Document]:
    """One object a line; blank lines are none. The first one says whether they have ids."""
    name, known = corpus.id_column, corpus.id_column is not None
    for line, text in _lines(corpus.path):
        if not text.strip():
            continue
        row = _object(corpus.path, line, text)
        if not known:
            name, known = next((column for column in IDS if column in row), None), True
        columns = corpus.columns or ((TITLE, TEXT) if TITLE in row else (TEXT,))
        for column in (*columns, *([name] if name else [])):
            if column not in row:
                found = f"found {listed(list(row))}" if row else "it is empty"
                raise InputError(
                    f"{corpus.path}, line {line}: no {quoted(column)}; {found}; add it, or name others with --column"
                )
        parts = ["" if row[column] is None else row[column] for column in columns]
        for column, part in zip(columns, parts, strict=True):
            if not isinstance(part, str):
                raise InputError(f"{corpus.path}, line {line}: {quoted(column)} is {quoted(part)}, wanted a text")
        yield Document(
            _id(corpus, line, row[name] if name else line), " ".join(filter(None, map(str.strip, parts))), line
        )


def _object(path: Path, line: int, text: str) -> dict:
    try:
        row = json.loads(text)
        json.dumps(row, ensure_ascii=False).encode()
    except (json.JSONDecodeError, RecursionError, ValueError) as error:  # ValueError: half of a surrogate pair
        raise InputError(f"{path}, line {line}: not JSON in UTF-8 ({error}); correct that line") from error
    if not isinstance(row, dict):
        raise InputError(f"{path}, line {line}: {quoted(row)}; wanted an object {{...}} a line")
    return row


# --- Cranfield -------------------------------------------------------------------------------------------------------


def _read_cranfield(corpus: Corpus) -> Iterator[Document]:
    """Title and words of each, joined by a space. A second .W goes on with the words, as in documents 576 and 578."""
    number, begins, count = None, 1, 0
    parts: dict[str, list[str]] = {}

    def document() -> Document:
        text = " ".join(filter(None, (" ".join(" ".join(parts.get(tag, [])).split()) for tag in "TW")))
        return Document(str(count) if corpus.ordinals else number, text, begins)

    tag = ""
    for line, text in _lines(corpus.path):
        if text.startswith(".I"):
            if number is not None:
                yield document()
            number, begins, count, parts, tag = text[2:].strip(), line, count + 1, {}, ""
            if whole_number(number, LARGEST) is None:
                raise InputError(f"{corpus.path}, line {line}: {quoted(text)}, wanted .I and a number; correct it")
        elif number is None:
            raise InputError(f"{corpus.path}, line {line}: {quoted(text)}, wanted .I and a number; correct it")
        elif len(text.rstrip()) == 2 and text[0] == "." and text[1].isupper():
            tag = text[1]
        else:
            parts.setdefault(tag, []).append(text)
    if number is not None:
        yield document()


# --- test collections ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Collection:
    """Documents, queries, and which documents answer which query.

    relevant: query -> {document: gain}, gains above 0; only queries with one are kept. judgements: their file.
    absent: relevant documents that the corpus lacks, which nobody can find. own_id_counts: False where a query may be a
    document itself, under the same id, which then is no answer (as BEIR has it).
    """

    name: str
    corpus: Corpus
    queries: list[Document]
    relevant: dict[str, dict[str, int]]
    own_id_counts: bool
    judgements: Path
    absent: tuple[str, ...] = ()


def read_collection(folder: str | Path, split: str | None = None, judged: str = "all") -> Collection:
    """A folder with Cranfield's three files, or with BEIR's layout: the judgements of a split are qrels/<split>.tsv.

    split: None takes qrels/test.tsv or, where there is none, qrels.tsv beside the rest.
    Gains are 1 in Cranfield, where grade 1 is the best of four, and the judgement's number in BEIR. judged: "all" of
    Cranfield's judgements, or "positive": without the grade -1, which marks the document that a query came from. Raises
    InputError, naming file and line, for what is absent or can't be read, for two judgements of one document that
    differ, and where no relevant document is in the corpus.
    """
    if judged not in JUDGED:
        raise ValueError(f"judged={judged!r}: choose one of {', '.join(JUDGED)}")
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; name one with Cranfield's files, or with BEIR's layout")
    if (folder / CRANFIELD["corpus"]).is_file():
        if split is not None:
            raise InputError(f"--split {split}: Cranfield's judgements are one file: leave it out")
        queries, path = open_corpus(folder / CRANFIELD["queries"]), folder / CRANFIELD["judgements"]
        rows = _cranfield_judgements(path, judged)
    else:
        open_corpus(folder)
        queries, path = open_corpus(folder / BEIR["queries"]), _beir_file(folder, split)
        rows = _beir_judgements(path)
    queries.survey()  # refuses an id that stands there twice
    found = {query.id: query for query in queries}
    relevant: dict[str, dict[str, int]] = {}
    first: dict[tuple[str, str], tuple[int, int]] = {}  # judgement -> its line and gain
    for line, query, document, gain in rows:
        if query not in found:
            raise InputError(f"{path}, line {line}: no query {quoted(query)} in {queries.path}; correct one of the two")
        before, known = first.setdefault((query, document), (line, gain))
        if known != gain:
            raise InputError(
                f"{path}, line {line}: {gain} for query {quoted(query)} and document {quoted(document)}, which line "
                f"{before} gives {known}: remove one of the two"
            )
        if gain > 0:
            relevant.setdefault(query, {})[document] = gain
    if not relevant:
        raise InputError(f"{path}: no judgement says that a document is relevant; choose another file")
    blank = [name for name in relevant if found[name].blank]
    if blank:
        raise InputError(
            f"{queries.path}, line {found[blank[0]].line}: query {quoted(blank[0])} has no text; correct it"
        )
    asked = [query for name, query in found.items() if name in relevant]
    corpus = open_corpus(folder)
    absent = {name: None for found in relevant.values() for name in found}  # ordered
    judged_documents = len(absent)
    for document in corpus:
        absent.pop(document.id, None)
        if not absent:
            break
    if len(absent) == judged_documents:
        raise InputError(
            f"{path}: none of its {judged_documents:,} relevant documents, {quoted(next(iter(absent)))} the first, is "
            f"in {corpus.path}: the two belong to different collections"
        )
    own_id_counts = corpus.format == "cranfield"
    return Collection(folder.resolve().name, corpus, asked, relevant, own_id_counts, path, tuple(absent))


def _beir_file(folder: Path, split: str | None) -> Path:
    names = [f"qrels/{split or 'test'}.tsv", *(["qrels.tsv"] if split is None else [])]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    there = ", ".join(sorted(path.stem for path in (folder / "qrels").glob("*.tsv")))
    found = f"qrels/ has {there}" if there else "no qrels/*.tsv is there"
    raise InputError(f"{folder}: no {' nor '.join(names)}; {found}: fetch it, or choose another --split")


def _cranfield_judgements(path: Path, judged: str) -> Iterator[tuple[int, str, str, int]]:
    """(line, query, document, 1) of each judgement."""
    for line, text in _judgements(path):
        fields = text.split()
        numbers = [whole_number(field, LARGEST, least) for field, least in zip(fields, (0, 0, -LARGEST), strict=False)]
        if len(fields) != 3 or None in numbers:
            raise InputError(f"{path}, line {line}: {quoted(text)}, wanted query, document and grade; correct it")
        if judged == "all" or numbers[2] > 0:
            yield line, str(numbers[0]), str(numbers[1]), 1


def _beir_judgements(path: Path) -> Iterator[tuple[int, str, str, int]]:
    """(line, query, document, score) of each judgement; the first line is the header."""
    for line, text in _judgements(path):
        fields = [field.strip() for field in text.split("\t")]
        if line == 1 and fields[-1] == "score":
            continue
        gain = whole_number(fields[-1], LARGEST, -LARGEST)
        if len(fields) != 3 or gain is None:
            raise InputError(
                f"{path}, line {line}: {quoted(text)}, wanted query-id, corpus-id and a whole number between tabs"
                + (" (or a header that ends in score)" if line == 1 else "")
            )
        yield line, fields[0], fields[1], gain


def _judgements(path: Path) -> Iterator[tuple[int, str]]:
    return ((line, text) for line, text in _lines(path) if text.strip())
