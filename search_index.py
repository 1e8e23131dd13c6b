"""An index to search: texts and their vectors in a folder, made as a stream, continued after a kill at any moment.

The order of write, fsync and rename follows POSIX. index.json says whose vectors they are and how many documents are
certain; vectors.bin (N, H), documents.jsonl and offsets.bin (where each line of that ends) hold at least so many:

    vectors.bin      N rows of H little-endian float32 or float16, of length one
    documents.jsonl  {"id": ..., "text": ...}, a line a document
    offsets.bin      N little-endian uint64
"""

from __future__ import annotations

import json
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from errors import InputError, quoted
from files import cannot, read_json, remove_temporaries, short, write_json
from nearest import find_nearest
from search_data import Corpus, Document
from sharing import held

HEADER, VECTORS, TEXTS, OFFSETS = "index.json", "vectors.bin", "documents.jsonl", "offsets.bin"
FORMAT = 1
TYPES = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}
OFFSET = np.dtype("<u8")
# Documents encoded and then made certain together: half a minute of work on two cores, next to which waiting for the
# disk is nothing. Characters, so that memory is bounded however long the documents are.
AT_ONCE, CHARACTERS = 1024, 2**22


class Encoder(Protocol):
    """What an index asks of sentence_encoder.SentenceEncoder."""

    name: str
    dimension: int
    fingerprint: str
    pooler_name: str
    max_length: int

    def encode(self, texts: list[str], batch_size: int, normalize: bool, progress: Callable) -> np.ndarray: ...


@dataclass(frozen=True)
class Header:
    """index.json. documents: how many are certain; complete: whether that is the whole corpus.

    encoder: what loads it again, e.g. {"model": "all-MiniLM-L6-v2", "pooler": "mean", "max_length": 256}.
    """

    format: int
    encoder: dict
    fingerprint: str
    dimension: int
    dtype: str
    documents: int
    complete: bool

    @property
    def row(self) -> int:
        """Bytes of a vector."""
        return self.dimension * TYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class Hit:
    """A document found, and the cosine of its vector and the query's."""

    id: str
    text: str
    score: float


class SearchIndex:
    """A whole index, open for reading; a file that another process is adding to is read as far as it was whole."""

    def __init__(self, folder: Path, header: Header, maps: dict[str, mmap.mmap]):
        self.folder, self.header = folder, header
        self.vectors = np.frombuffer(maps[VECTORS], TYPES[header.dtype], header.documents * header.dimension)
        self.vectors = self.vectors.reshape(header.documents, header.dimension)  # (N, H)
        self.ends, self.texts = np.frombuffer(maps[OFFSETS], OFFSET, header.documents), maps[TEXTS]

    @classmethod
    def open(cls, folder: str | Path) -> SearchIndex:
        """Raises InputError where there is no index, an unfinished one, or one whose files were cut off."""
        folder = Path(folder)
        header = read_header(folder)
        if header is None:
            raise InputError(f"{folder}: no index there (no {HEADER}): make one with contrastive.py search index")
        if not header.complete:
            raise InputError(
                f"{folder}: unfinished, {header.documents:,} documents so far: give the command that made it again, "
                "which goes on there"
            )
        certain = _whole_documents(folder, header)
        if certain < header.documents:
            raise InputError(
                f"{folder}: cut off, {certain:,} documents of {header.documents:,} are whole: give the command that "
                "made it again, which goes on there"
            )
        maps = {}
        for name in (VECTORS, TEXTS, OFFSETS):
            try:
                with open(folder / name, "rb") as file:
                    maps[name] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except OSError as error:
                raise cannot("read", folder / name, error) from error
        return cls(folder, header, maps)

    def check(self, encoder: Encoder) -> None:
        """Raises InputError unless the vectors are this encoder's."""
        _check_encoder(self.folder, self.header, encoder)

    def __len__(self) -> int:
        return self.header.documents

    def document(self, place: int) -> Document:
        """The document of that place, from 0. Raises InputError where its line has been changed."""
        start = int(self.ends[place - 1]) if place else 0
        try:
            row = json.loads(self.texts[start : int(self.ends[place])])
            if not (isinstance(row["id"], str) and isinstance(row["text"], str)):
                raise TypeError("texts are wanted")
            return Document(row["id"], row["text"], place + 1)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(
                f"{self.folder / TEXTS}, line {place + 1}: not what was written there; index again in another folder"
            ) from error

    def search(self, queries: np.ndarray, top_k: int = 10, threshold: float | None = None) -> list[list[Hit]]:
        """(Q, H) vectors of length one -> of each the top_k best documents, as many as reach the threshold.

        Scores descend; of equal ones the document that stands first in the corpus comes first. Compared with every
        document, see `nearest.find_nearest`.
        """
        return self.hits(*find_nearest(queries, self.vectors, top_k, threshold))

    def hits(self, scores: np.ndarray, places: np.ndarray) -> list[list[Hit]]:
        """(Q, k) scores and places, -1 where nothing is -> the documents."""
        found = []
        for row_scores, row_places in zip(scores.tolist(), places.tolist(), strict=True):
            hits = []
            for score, place in zip(row_scores, row_places, strict=True):
                if place >= 0:
                    document = self.document(place)
                    hits.append(Hit(document.id, document.text, score))
            found.append(hits)
        return found


def read_header(folder: Path) -> Header | None:
    """The header of the index in the folder, None if there is none. Raises InputError for one that is not ours."""
    path = folder / HEADER
    if not path.exists():
        return None
    try:
        found = read_json(path)
    except InputError as error:
        raise InputError(
            f"{error}; it alone says whose vectors these are: where there is no copy of it, index in another folder"
        ) from error
    kinds = {"format": int, "encoder": dict, "fingerprint": str, "dimension": int, "dtype": str, "documents": int}
    kinds["complete"] = bool
    good = isinstance(found, dict) and found.keys() == kinds.keys()
    good = good and all(type(found[name]) is kind for name, kind in kinds.items()) and found["dtype"] in TYPES
    # What loads the encoder; an index made from Python may say its model alone.
    known = {"model": str, "pooler": (str, type(None)), "max_length": (int, type(None))}
    good = good and all(isinstance(found["encoder"].get(name), kind) for name, kind in known.items())
    if not good or found["format"] != FORMAT or found["dimension"] < 1 or found["documents"] < found["complete"]:
        raise InputError(f"{path}: not an index of format {FORMAT}: index again in another folder")
    return Header(**found)


def _check_encoder(folder: Path, header: Header, encoder: Encoder) -> None:
    fingerprint = encoder.fingerprint
    if header.fingerprint != fingerprint:
        now = {"pooler": encoder.pooler_name, "max_length": encoder.max_length}
        then = {name: header.encoder.get(name) for name in now}
        differ = "".join(
            f"; {name} {then[name]}, not {now[name]}" for name in now if then[name] not in (None, now[name])
        )
        raise InputError(
            f"{folder}: its vectors are {header.encoder['model']}'s (fingerprint {header.fingerprint[:12]}), not "
            f"{encoder.name}'s ({fingerprint[:12]}){differ}: choose that model, pooler and length, or index again in "
            "another folder"
        )
    if header.dimension != encoder.dimension:
        raise InputError(
            f"{folder / HEADER}: {header.dimension} numbers a vector, but {encoder.name} gives {encoder.dimension}: "
            "restore it, or index again in another folder"
        )


def _whole_documents(folder: Path, header: Header) -> int:
    """How many of the header's documents all three files still hold. Raises InputError if one can't be read."""
    sizes = {}
    for name in (VECTORS, TEXTS, OFFSETS):
        try:
            found = (folder / name).stat()
            if not stat.S_ISREG(found.st_mode):
                raise InputError(f"{folder / name}: not a file: move it away, and give the command that made it again")
            sizes[name] = found.st_size
        except FileNotFoundError:
            sizes[name] = 0
        except OSError as error:
            raise cannot("read", folder / name, error) from error
    certain = min(header.documents, sizes[VECTORS] // header.row, sizes[OFFSETS] // OFFSET.itemsize)
    if certain:
        ends = np.memmap(folder / OFFSETS, OFFSET, "r", shape=(certain,))
        certain = int(np.searchsorted(ends, sizes[TEXTS], side="right"))
    return certain


# --- making ----------------------------------------------------------------------------------------------------------


def build(
    folder: str | Path,
    corpus: Corpus,
    encoder: Encoder,
    *,
    source: dict | None = None,
    half: bool | None = False,
    batch_size: int = 32,
    say: Callable[[str], object] = lambda text: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SearchIndex:
    """Encode what of the corpus is not in the folder's index yet; documents without text are left out, and counted.

    The corpus is read twice, a line at a time: once to see that it can be read and how long it is, then to encode it,
    AT_ONCE documents at a time. Each time these are made certain, so that a process that dies, however it dies, loses
    no more than that; whoever calls again goes on there, and adds what has been appended to the corpus since. source:
    kept as what loads the encoder again (default: its name). half: float16; None: as the index that is there has them.
    progress is told how many documents are done, and of how many.

    Raises InputError, before anything is changed, for a corpus without text, an index of another encoder or another
    corpus, and a folder that another process is writing to.
    """
    folder = Path(folder)
    new = Header(
        FORMAT,
        source or {"model": encoder.name},
        encoder.fingerprint,
        encoder.dimension,
        "float16" if half else "float32",
        documents=0,
        complete=False,
    )
    if half is None and (found := read_header(folder)):
        new = replace(new, dtype=found.dtype)
    _header_to_continue(folder, new, encoder)
    survey = corpus.survey()
    if not survey.documents:
        what = f"all {survey.blank:,} documents are blank" if survey.blank else "no documents"
        raise InputError(f"{corpus.path}: {what}: choose a file with texts")
    if survey.blank:
        names = ", ".join(survey.examples) + (", ..." if survey.blank > len(survey.examples) else "")
        left = "document without text is" if survey.blank == 1 else "documents without text are"
        say(f"{survey.blank:,} {left} left out: {names}")
    with held(folder, "being indexed"):
        remove_temporaries(folder, below=False)
        header = _header_to_continue(folder, new, encoder)
        certain = _whole_documents(folder, header)
        if certain < header.documents:
            say(f"{short(folder)} is cut off: goes on after {certain:,} of {header.documents:,} documents")
            header = replace(header, documents=certain, complete=False)
        elif header.documents:
            there = "document is" if header.documents == 1 else "documents are"
            say(f"{header.documents:,} {there} in {short(folder)} already")
        documents = corpus.with_text()
        _pass_over(folder, header, documents, corpus)
        if header.documents < survey.documents or not header.complete:
            _encode_rest(folder, header, documents, encoder, batch_size, lambda done: progress(done, survey.documents))
    return SearchIndex.open(folder)


def _header_to_continue(folder: Path, new: Header, encoder: Encoder) -> Header:
    """The header of the index to go on with, or the new one. Raises InputError where something else is there."""
    found = read_header(folder)
    if found is None:
        ours = [name for name in (VECTORS, TEXTS, OFFSETS) if (folder / name).exists()]
        if ours:
            raise InputError(f"{folder} holds {ours[0]}, but no {HEADER}: choose another folder, or move that away")
        return new
    _check_encoder(folder, found, encoder)
    if found.dtype != new.dtype:
        flag = "say --float16, too" if found.dtype == "float16" else "leave out --float16"
        raise InputError(
            f"{folder}: its vectors' dtype is {found.dtype}, not {new.dtype}: {flag}, or index in another folder"
        )
    return found


def _pass_over(folder: Path, header: Header, documents: Iterator[Document], corpus: Corpus) -> None:
    """Read the documents that are in the index. Raises InputError unless they are the corpus's first."""
    if not header.documents:
        return
    ends = np.memmap(folder / OFFSETS, OFFSET, "r", shape=(header.documents,))
    with open(folder / TEXTS, "rb") as file:
        for place in range(header.documents):
            document, kept = next(documents, None), file.readline()
            if document is None or _line(document) != kept:
                what = f"line {document.line}" if document else "its end"
                raise InputError(
                    f"{corpus.path}, {what}: not the document that {folder} has at that place, number {place + 1:,}: "
                    "the corpus is another one or has changed: index it in another folder"
                )
            if ends[place] != file.tell():
                raise InputError(
                    f"{folder / OFFSETS}: damaged at document {place + 1:,}: restore it, or index in another folder"
                )


def _line(document: Document) -> bytes:
    return json.dumps({"id": document.id, "text": document.text}, ensure_ascii=False).encode() + b"\n"


def _chunks(documents: Iterator[Document]) -> Iterator[list[Document]]:
    chunk, characters = [], 0
    for document in documents:
        chunk.append(document)
        characters += len(document.text)
        if len(chunk) == AT_ONCE or characters >= CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _encode_rest(
    folder: Path,
    header: Header,
    documents: Iterator[Document],
    encoder: Encoder,
    batch_size: int,
    progress: Callable[[int], None],
) -> None:
    """Encode these documents and append them, a chunk at a time."""
    header = replace(header, complete=False)
    # Before the files, so that what is found in them without a header, or behind what it counts, is not certain.
    write_json(folder / HEADER, asdict(header))
    with _open_files(folder, header) as files:
        progress(header.documents)
        for chunk in _chunks(documents):
            done = header.documents

            def count(texts: int) -> None:
                nonlocal done
                done += texts
                progress(done)

            texts = [document.text for document in chunk]
            vectors = encoder.encode(texts, batch_size=batch_size, normalize=True, progress=count)
            header = _append(folder, files, header, chunk, vectors, encoder.name)
            progress(header.documents)
    write_json(folder / HEADER, asdict(replace(header, complete=True)))


@contextmanager
def _open_files(folder: Path, header: Header) -> Iterator[dict[str, IO[bytes]]]:
    """The three files, cut to what the header says, at their ends. Raises InputError where the disk refuses."""
    try:
        with ExitStack() as stack:
            files = {}
            for name in (VECTORS, OFFSETS, TEXTS):
                descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
                files[name] = stack.enter_context(os.fdopen(descriptor, "r+b"))
            files[VECTORS].truncate(header.documents * header.row)
            files[OFFSETS].truncate(header.documents * OFFSET.itemsize)
            files[TEXTS].truncate(_text_end(files[OFFSETS]))
            for file in files.values():
                file.seek(0, os.SEEK_END)
            yield files
    except OSError as error:
        raise cannot("write", error.filename or folder, error) from error


def _text_end(offsets: IO[bytes]) -> int:
    """Where the last document's line ends."""
    if not offsets.seek(0, os.SEEK_END):
        return 0
    offsets.seek(-OFFSET.itemsize, os.SEEK_END)
    return int.from_bytes(offsets.read(OFFSET.itemsize), "little")


def _append(
    folder: Path, files: dict[str, IO[bytes]], header: Header, chunk: list[Document], vectors: np.ndarray, name: str
) -> Header:
    """Make these documents certain: the files are on disk before the header counts them."""
    if vectors.shape != (len(chunk), header.dimension) or not np.isfinite(vectors).all():
        raise InputError(
            f"{name}: gives vectors that are not finite, or not {header.dimension} numbers each, from document "
            f"{quoted(chunk[0].id)} on: choose other weights"
        )
    lines = [_line(document) for document in chunk]
    ends = files[TEXTS].tell() + np.cumsum([len(line) for line in lines])
    for name, content in (
        (VECTORS, np.ascontiguousarray(vectors, TYPES[header.dtype]).tobytes()),
        (TEXTS, b"".join(lines)),
        (OFFSETS, ends.astype(OFFSET).tobytes()),
    ):
        files[name].write(content)
        files[name].flush()
        os.fsync(files[name].fileno())
    header = replace(header, documents=header.documents + len(chunk))
    write_json(folder / HEADER, asdict(header))
    return header
