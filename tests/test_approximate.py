"""The approximate search: scores as the exact one's, its recall, and what is refused; with and without faiss.

Follows approximate.py's promises.
"""

import importlib.util
import sys

import numpy as np
import pytest
from word_encoder import WordEncoder

from approximate import GRAPH, agreement, build_graph, load_faiss, open_graph, search_graph
from errors import InputError
from nearest import find_nearest
from search_data import open_corpus
from search_index import build

needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="faiss is not installed: optional")


@pytest.fixture
def corpus(tmp_path):
    def write(lines):
        random = np.random.default_rng(0)
        words = random.integers(0, 60, (lines, 5))
        (tmp_path / "corpus.txt").write_text("".join(" ".join(f"w{word}" for word in row) + "\n" for row in words))
        return open_corpus(tmp_path / "corpus.txt")

    return write


def test_agreement():
    exact = np.array([[0, 1, 2], [5, -1, -1]])
    assert agreement(exact, exact) == 1
    assert agreement(np.array([[2, 9, 0], [-1, -1, -1]]), exact) == 2 / 4


def test_without_faiss(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(InputError, match="pip install -r requirements-search.txt, or leave it out"):
        load_faiss()


@needs_faiss
def test_scores_and_order_are_the_exact_search_s(corpus, tmp_path):
    encoder, told = WordEncoder(), []
    index = build(tmp_path / "index", corpus(600), encoder)
    assert build_graph(index, progress=lambda *counts: told.append(counts)) > 0.95
    assert told == [(600, 600)]
    queries = encoder.encode([f"w{i} w{i + 1}" for i in range(40)])
    exact, found = find_nearest(queries, index.vectors, 10), search_graph(open_graph(index), queries, index.vectors, 10)
    assert agreement(found[1], exact[1]) > 0.95
    same = (found[1] == exact[1]).all(axis=1)
    assert same.mean() > 0.8
    np.testing.assert_array_equal(found[0][same], exact[0][same])
    assert (np.diff(found[0], axis=1) <= 0).all()
    some = search_graph(open_graph(index), queries, index.vectors, 10, threshold=0.5)
    np.testing.assert_array_equal(some[1], np.where(found[0] >= 0.5, found[1], -1))


@needs_faiss
def test_more_asked_than_there_are(corpus, tmp_path):
    encoder = WordEncoder()
    index = build(tmp_path / "index", corpus(7), encoder)
    assert build_graph(index) == 1
    scores, places = search_graph(open_graph(index), encoder.encode(["w1"]), index.vectors, 50)
    assert sorted(places[0].tolist()) == list(range(7)) and np.isfinite(scores).all()


@needs_faiss
def test_a_graph_that_is_not_the_index_s(corpus, tmp_path):
    encoder, path = WordEncoder(), tmp_path / "index" / GRAPH
    index = build(tmp_path / "index", corpus(50), encoder)
    with pytest.raises(InputError, match="no graph there"):
        open_graph(index)
    build_graph(index)
    longer = build(tmp_path / "index", corpus(60), encoder)
    with pytest.raises(InputError, match="a graph of 50 documents, and the index has 60: make it with"):
        open_graph(longer)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="cut off, or not a graph"):
        open_graph(index)


@needs_faiss
def test_a_killed_build_leaves_the_old_graph(corpus, tmp_path, monkeypatch):
    index = build(tmp_path / "index", corpus(50), WordEncoder())
    build_graph(index)
    before = (tmp_path / "index" / GRAPH).read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(InputError, match="No space left on device"):
        build_graph(index)
    assert (tmp_path / "index" / GRAPH).read_bytes() == before
