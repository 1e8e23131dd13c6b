"""An index: what it holds, that a process killed at any moment loses nothing, and that it refuses what is not its own.

Follows search_index.py's promises; the encoder is a stand-in.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from word_encoder import WordEncoder

import search_index
from errors import InputError
from search_data import open_corpus
from search_index import HEADER, OFFSETS, TEXTS, VECTORS, SearchIndex, build

FILES = (HEADER, VECTORS, TEXTS, OFFSETS)
LINES = ["wing in a slipstream", "", "shear flow past a plate", "  ", "heat in slabs", "naïve é 水", "flow of heat"]


@pytest.fixture
def corpus(tmp_path):
    """corpus(lines) -> a text file of them, opened."""

    def write(lines=LINES, name="corpus.txt"):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return open_corpus(tmp_path / name)

    return write


@pytest.fixture
def chunks_of_two(monkeypatch):
    monkeypatch.setattr(search_index, "AT_ONCE", 2)


def content(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


def refused(action):
    with pytest.raises(InputError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What it holds


def test_every_document_with_text_and_its_vector(corpus, tmp_path, chunks_of_two):
    encoder, said, told = WordEncoder(), [], []
    index = build(
        tmp_path / "index",
        corpus(),
        encoder,
        say=said.append,
        progress=lambda *counts: told.append(counts),
        batch_size=1,
    )
    kept = [line for line in LINES if line.strip()]
    assert encoder.texts == kept and len(index) == 5
    assert [(index.document(place).id, index.document(place).text) for place in range(5)] == [
        (str(LINES.index(line) + 1), line) for line in kept
    ]
    np.testing.assert_array_equal(index.vectors, WordEncoder().encode(kept))
    assert said == ["2 documents without text are left out: 2, 4"]
    done, totals = zip(*told, strict=True)
    assert sorted(set(done)) == [0, 1, 2, 3, 4, 5] and list(done) == sorted(done) and set(totals) == {5}
    header = json.loads((tmp_path / "index" / HEADER).read_text())
    assert header["fingerprint"] == encoder.fingerprint and header["documents"] == 5 and header["complete"] is True
    assert (tmp_path / "index" / VECTORS).stat().st_size == 5 * 16 * 4


def test_search_finds_what_is_nearest(corpus, tmp_path):
    encoder = WordEncoder()
    index = build(tmp_path / "index", corpus([*LINES, "flow heat of"]), encoder)
    (hits,) = index.search(encoder.encode(["heat of flow"]), top_k=2)
    assert [(hit.id, hit.text) for hit in hits] == [("7", "flow of heat"), ("8", "flow heat of")]
    assert hits[0].score == hits[1].score == pytest.approx(1, abs=1e-6)
    (everything,) = index.search(encoder.encode(["heat"]), top_k=100)
    assert len({hit.id for hit in everything}) == 6
    assert [hit.score for hit in everything] == sorted((hit.score for hit in everything), reverse=True)
    (some,) = index.search(encoder.encode(["heat"]), top_k=100, threshold=0.3)
    assert some == [hit for hit in everything if hit.score >= 0.3] and 0 < len(some) < 6
    assert index.search(encoder.encode(["heat"]), threshold=1.1) == [[]]
    assert index.search(encoder.encode([])) == []


def test_half_precision_takes_half_the_space(corpus, tmp_path):
    encoder = WordEncoder()
    index = build(tmp_path / "index", corpus(), encoder, half=True)
    assert (tmp_path / "index" / VECTORS).stat().st_size == 5 * 16 * 2
    np.testing.assert_allclose(index.vectors, WordEncoder().encode(encoder.texts), atol=1e-3)
    (hits,) = index.search(encoder.encode(["heat of flow"]), top_k=1)
    assert hits[0].id == "7"
    message = refused(lambda: build(tmp_path / "index", corpus(), encoder))
    dtype = "its vectors' dtype is"
    assert message.endswith(f"{dtype} float16, not float32: say --float16, too, or index in another folder")
    assert build(tmp_path / "index", corpus(), encoder, half=None).vectors.dtype == np.float16  # as it is
    assert build(tmp_path / "new", corpus(), encoder, half=None).vectors.dtype == np.float32
    message = refused(lambda: build(tmp_path / "new", corpus(), encoder, half=True))
    assert message.endswith(f"{dtype} float32, not float16: leave out --float16, or index in another folder")


def test_documents_of_every_length(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(search_index, "CHARACTERS", 50_000)
    sizes = []
    encoder = WordEncoder()
    encode = encoder.encode
    encoder.encode = lambda texts, **options: sizes.append(len(texts)) or encode(texts, **options)
    index = build(tmp_path / "index", corpus(["x", "word " * 20_000, *"abc"]), encoder)
    assert sizes == [2, 3] and len(index.document(1).text) == 99_999


# Killed at any moment


def build_until(call, folder, corpus):
    """Index in a process that dies, as if by SIGKILL, just before its `call`-th fsync or rename: whether it died."""
    child = os.fork()
    if not child:
        counted = iter(range(10**6))

        def dying(real):
            def step(*arguments, **options):
                if next(counted) == call:
                    os._exit(9)
                return real(*arguments, **options)

            return step

        os.fsync, os.replace = dying(os.fsync), dying(os.replace)
        try:
            build(folder, corpus, WordEncoder())
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_any_moment_no_document_is_twice_or_missing(corpus, tmp_path, chunks_of_two):
    whole = build(tmp_path / "whole", corpus(), WordEncoder())
    wanted, call, redone = content(whole.folder), 0, set()
    while build_until(call, folder := tmp_path / str(call), corpus()):
        certain = (search_index.read_header(folder) or whole.header).documents if (folder / HEADER).exists() else 0
        complete = certain and search_index.read_header(folder).complete
        if not complete:
            refused(lambda folder=folder: SearchIndex.open(folder))
        encoder = WordEncoder()
        build(folder, corpus(), encoder)
        assert content(folder) == wanted, call
        assert encoder.texts == [line for line in LINES if line.strip()][certain:]
        redone.add(len(encoder.texts))
        call += 1
    assert call > 15 and redone == {5, 3, 1, 0}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_again_and_again(corpus, tmp_path, chunks_of_two):
    wanted = content(build(tmp_path / "whole", corpus(), WordEncoder()).folder)
    kills = 0
    while build_until(9, tmp_path / "index", corpus()):
        kills += 1
    assert kills > 1 and content(tmp_path / "index") == wanted


@pytest.mark.parametrize("name", [VECTORS, TEXTS, OFFSETS])
def test_what_is_not_certain_yet_is_written_anew(corpus, tmp_path, chunks_of_two, name):
    folder, wanted = tmp_path / "index", content(build(tmp_path / "whole", corpus(), WordEncoder()).folder)
    build(folder, corpus(LINES[:3]), WordEncoder())
    with (folder / name).open("ab") as file:
        file.write(b"half of what a killed process")
    build(folder, corpus(), WordEncoder())
    assert content(folder) == wanted


def test_a_finished_index_is_left_alone_and_a_longer_corpus_continued(corpus, tmp_path):
    folder, said = tmp_path / "index", []
    build(folder, corpus(LINES[:5]), WordEncoder())
    before, encoder = content(folder), WordEncoder()
    build(folder, corpus(LINES[:5]), encoder, say=said.append)
    assert content(folder) == before and encoder.texts == []
    assert said[-1].startswith("3 documents are in ") and said[-1].endswith(" already")
    index = build(folder, corpus(), encoder)
    assert encoder.texts == LINES[5:] and len(index) == 5
    assert content(folder) == content(build(tmp_path / "whole", corpus(), WordEncoder()).folder)


@pytest.mark.parametrize(
    "name, size, left", [(VECTORS, 150, 2), (VECTORS, 0, 0), (TEXTS, 100, 2), (OFFSETS, 31, 3), (OFFSETS, None, 0)]
)
def test_a_cut_off_index_is_refused_and_mended(corpus, tmp_path, name, size, left):
    folder, said, encoder = tmp_path / "index", [], WordEncoder()
    build(folder, corpus(), WordEncoder())
    wanted = content(folder)
    os.truncate(folder / name, size) if size is not None else (folder / name).unlink()
    message = refused(lambda: SearchIndex.open(folder))
    assert message == (
        f"{folder}: cut off, {left} documents of 5 are whole: give the command that made it again, which goes on there"
    )
    build(folder, corpus(), encoder, say=said.append)
    assert content(folder) == wanted and len(encoder.texts) == 5 - left
    assert said[-1].endswith(f"is cut off: goes on after {left} of 5 documents")


# What it refuses


def test_another_encoder(corpus, tmp_path):
    folder = tmp_path / "index"
    index = build(folder, corpus(), WordEncoder(), source={"model": "some/folder", "pooler": None})
    before, other = content(folder), WordEncoder(seed=1)
    for action in (lambda: build(folder, corpus(), other), lambda: index.check(other)):
        message = refused(action)
        assert message.startswith(
            f"{folder}: its vectors are some/folder's (fingerprint {WordEncoder().fingerprint[:12]})"
        )
        assert "choose that model, pooler and length, or index again in another folder" in message
    assert content(folder) == before
    longer = WordEncoder(seed=1)
    longer.max_length = 100
    told = build(tmp_path / "told", corpus(), WordEncoder(), source={"model": "m", "pooler": "sum", "max_length": 99})
    assert "); max_length 99, not 100: choose" in refused(lambda: told.check(longer))  # the same pooler is not named
    index.check(WordEncoder())


@pytest.mark.parametrize(
    "lines, where",
    [(["another", *LINES[1:]], "line 1"), ([*LINES[:5], "changed", "more"], "line 6"), (LINES[:3], "its end")],
)
def test_another_corpus(corpus, tmp_path, lines, where):
    folder = tmp_path / "index"
    build(folder, corpus(), WordEncoder())
    before = content(folder)
    message = refused(lambda: build(folder, corpus(lines), WordEncoder()))
    assert f"corpus.txt, {where}: not the document that {folder} has at that place" in message
    assert content(folder) == before


@pytest.mark.parametrize("lines, what", [([], "no documents"), (["", "  \t", "\u3000"], "all 3 documents are blank")])
def test_a_corpus_without_text(corpus, tmp_path, lines, what):
    message = refused(lambda: build(tmp_path / "index", corpus(lines), WordEncoder()))
    assert message == f"{tmp_path}/corpus.txt: {what}: choose a file with texts"
    assert not (tmp_path / "index").exists()


def test_a_fault_anywhere_in_the_corpus_is_found_before_anything_is_encoded(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n' * 50 + "{\n")
    encoder = WordEncoder()
    assert "line 51: not JSON" in refused(lambda: build(tmp_path / "index", open_corpus(tmp_path / "a.jsonl"), encoder))
    assert encoder.texts == [] and not (tmp_path / "index").exists()


def test_no_index(tmp_path):
    assert refused(lambda: SearchIndex.open(tmp_path)).startswith(f"{tmp_path}: no index there (no index.json)")


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"documents": -1},
        {"documents": "5"},
        {"dtype": "int8"},
        {"dimension": 0},
        {"dimension": True},
        {"documents": 0},
        {"encoder": {}},
        {"encoder": {"model": "words", "pooler": 5}},
        {"encoder": {"model": "words", "max_length": "long"}},
        {"more": 1},
    ],
)
def test_a_header_that_is_not_ours(corpus, tmp_path, change):
    folder = tmp_path / "index"
    build(folder, corpus(), WordEncoder())
    header = json.loads((folder / HEADER).read_text())
    (folder / HEADER).write_text(json.dumps({**header, **change}))
    wanted = f"{folder / HEADER}: not an index of format 1: index again in another folder"
    assert refused(lambda: SearchIndex.open(folder)) == wanted
    assert refused(lambda: build(folder, corpus(), WordEncoder())) == wanted
    (folder / HEADER).write_text(json.dumps(header)[:-9])
    message = refused(lambda: SearchIndex.open(folder))
    assert "not JSON" in message and "it alone says whose vectors these are" in message


def test_a_header_that_counts_other_numbers_a_vector(corpus, tmp_path):
    folder = tmp_path / "index"
    build(folder, corpus(), WordEncoder())
    header = json.loads((folder / HEADER).read_text())
    (folder / HEADER).write_text(json.dumps({**header, "dimension": 8}))
    before = content(folder)
    wanted = f"{folder / HEADER}: 8 numbers a vector, but words gives 16: restore it, or index again in another folder"
    assert refused(lambda: SearchIndex.open(folder).check(WordEncoder())) == wanted
    assert refused(lambda: build(folder, corpus(), WordEncoder())) == wanted
    assert content(folder) == before


@pytest.mark.parametrize("name", [VECTORS, TEXTS, OFFSETS])
def test_a_folder_where_a_file_should_be(corpus, tmp_path, name):
    folder = tmp_path / "index"
    build(folder, corpus(), WordEncoder())
    (folder / name).unlink()
    (folder / name).mkdir()
    wanted = f"{folder / name}: not a file: move it away, and give the command that made it again"
    assert refused(lambda: SearchIndex.open(folder)) == wanted
    assert refused(lambda: build(folder, corpus(), WordEncoder())) == wanted
    (folder / name).rmdir()
    assert len(build(folder, corpus(), WordEncoder())) == 5


def test_offsets_that_were_damaged(corpus, tmp_path):
    folder = tmp_path / "index"
    build(folder, corpus(), WordEncoder())
    (folder / OFFSETS).write_bytes(bytes(8) + (folder / OFFSETS).read_bytes()[8:])
    before = content(folder)
    message = refused(lambda: build(folder, corpus(), WordEncoder()))
    assert message == f"{folder / OFFSETS}: damaged at document 1: restore it, or index in another folder"
    assert content(folder) == before


def test_files_of_somebody_else_are_not_touched(corpus, tmp_path):
    folder = tmp_path / "index"
    folder.mkdir()
    (folder / TEXTS).write_text("mine\n")
    message = refused(lambda: build(folder, corpus(), WordEncoder()))
    assert message == f"{folder} holds documents.jsonl, but no index.json: choose another folder, or move that away"
    assert (folder / TEXTS).read_text() == "mine\n"


@pytest.mark.parametrize(("old", "new"), [(b"{", b"#"), (b'"1"', b" 12"), (b'"wing', b"[[1]]"), (b"id", b"ID")])
def test_texts_that_were_changed(corpus, tmp_path, old, new):
    index = build(tmp_path / "index", corpus(), WordEncoder())
    path = tmp_path / "index" / TEXTS
    path.write_bytes(path.read_bytes().replace(old, new))
    assert refused(lambda: index.document(0)).startswith(f"{path}, line 1: not what was written there")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, 3.0])
def test_a_vector_that_was_damaged_is_no_answer(corpus, tmp_path, value):
    """Not compared with, it would be missing from every answer; and no cosine is three."""
    encoder, folder = WordEncoder(), tmp_path / "index"
    build(folder, corpus(), encoder)
    vectors = np.fromfile(folder / VECTORS, np.float32).reshape(5, 16)
    vectors[3, 2] = value
    vectors.tofile(folder / VECTORS)
    index, query = SearchIndex.open(folder), np.eye(16, dtype=np.float32)[2:3]
    message = refused(lambda: index.search(query))
    assert message.startswith("the vector of document number 4 is of length ") and "index again" in message


def test_vectors_of_another_size(corpus, tmp_path):
    folder = tmp_path / "index"
    build(folder, corpus(), WordEncoder())
    header = json.loads((folder / HEADER).read_text())
    (folder / HEADER).write_text(json.dumps({**header, "dimension": 10**30}))
    assert "of 5 are whole" in refused(lambda: SearchIndex.open(folder))
    assert f"{10**30} numbers a vector, but words" in refused(lambda: build(folder, corpus(), WordEncoder()))


@pytest.mark.parametrize("wrong", [np.nan, None])
def test_vectors_that_are_none(corpus, tmp_path, chunks_of_two, wrong):
    encoder, folder = WordEncoder(), tmp_path / "index"
    encode = encoder.encode

    def broken(texts, **options):
        vectors = encode(texts, **options)
        if LINES[4] not in texts:
            return vectors
        return vectors * wrong if wrong is not None else vectors[:, :5]

    encoder.encode = broken
    message = refused(lambda: build(folder, corpus(), encoder))
    assert "words: gives vectors that are not finite, or not 16 numbers each, from document '5' on" in message
    encoder.encode = encode  # what was certain before is kept
    encoder.texts.clear()
    assert len(build(folder, corpus(), encoder)) == 5 and len(encoder.texts) == 3


def test_two_processes_do_not_write_to_one_folder(corpus, tmp_path):
    found, folder, encoder = corpus(), tmp_path / "index", WordEncoder()
    encode, messages = encoder.encode, []

    def meanwhile(texts, **options):
        messages.append(refused(lambda: build(folder, found, WordEncoder())))
        return encode(texts, **options)

    encoder.encode = meanwhile
    assert len(build(folder, found, encoder)) == 5
    assert messages == [
        f"{folder} is being indexed by process {os.getpid()}: wait until it has ended, or stop it first"
    ]


def test_a_full_disk_loses_nothing(corpus, tmp_path):
    """The limit on a file's size stands for the disk's end; a process of its own has it."""
    lines = [f"word{i} and some more of them" for i in range(400)]
    found, folder = corpus(lines), tmp_path / "index"
    program = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "import search_index; from search_data import open_corpus; from word_encoder import WordEncoder\n"
        "search_index.AT_ONCE = 50\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (16000, resource.RLIM_INFINITY))\n"
        "search_index.build(sys.argv[1], open_corpus(sys.argv[2]), WordEncoder())\n"
    )
    root = Path(__file__).resolve().parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root.parent), str(root)])}
    command = [sys.executable, "-c", program, str(folder), str(found.path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "files.CannotWrite: cannot write" in done.stderr and "File too large" in done.stderr
    assert search_index.read_header(folder).documents == 250  # 64 bytes each
    assert content(build(folder, found, WordEncoder()).folder) == content(
        build(tmp_path / "whole", found, WordEncoder()).folder
    )


def test_memory_does_not_grow_with_the_corpus(corpus, tmp_path, monkeypatch):
    import tracemalloc

    monkeypatch.setattr(search_index, "AT_ONCE", 64)

    class Constant(WordEncoder):
        def encode(self, texts, batch_size=32, normalize=True, progress=None):
            return np.full((len(texts), self.dimension), 0.25, dtype=np.float32)

    def most(lines):
        found = corpus(["a few words " * 20] * lines, f"{lines}.txt")
        tracemalloc.start()
        build(tmp_path / str(lines), found, Constant())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    # 8 bytes an id, twice while they are sorted; a document and its vector have 300 and 64.
    assert most(4000) - most(500) < 3500 * 40
