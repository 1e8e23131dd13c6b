"""An approximate search for millions of vectors: a graph of neighbours beside the index, and its recall.

HNSW (Malkov and Yashunin 2016, arXiv 1603.09320) as faiss has it, an optional package: requirements-search.txt. The
graph only chooses candidates; their scores and order are those of the exact search.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np

from errors import InputError
from files import atomic_write, short
from nearest import BLOCK, find_nearest, pair_scores
from search_index import SearchIndex

GRAPH = "graph.faiss"
# Above so many vectors an exact query reads 1.5 GB and takes over half a second.
MANY = 10**6
# Links of a vector, candidates while they are looked for, and while they are searched: HNSW's usual middle, for vectors
# of a few hundred numbers, which are kept in 16 bits.
LINKS, BUILD_BEAM, SEARCH_BEAM = 32, 100, 128
PROBES, PROBED = 100, 10


def load_faiss() -> ModuleType:
    """Raises InputError where the package is not installed."""
    try:
        import faiss
    except ImportError as error:
        raise InputError(
            "--approximate: faiss is not installed in this Python: python -m pip install -r requirements-search.txt, "
            "or leave it out for the exact search"
        ) from error
    return faiss


def build_graph(index: SearchIndex, progress: Callable[[int, int], None] = lambda done, total: None) -> float:
    """Make the graph of a whole index, in memory, and write it beside; the share of the exact answers that it finds.

    That recall is of the PROBED best for PROBES of the documents, each of which is its own first answer. Raises
    InputError without faiss, and where the folder can't be written to.
    """
    faiss = load_faiss()
    graph = faiss.IndexHNSWSQ(index.header.dimension, faiss.ScalarQuantizer.QT_fp16, LINKS, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = BUILD_BEAM
    graph.is_trained = True  # 16 bits need no training
    for start in range(0, len(index), BLOCK):
        graph.add(np.array(index.vectors[start : start + BLOCK], dtype=np.float32))
        progress(min(start + BLOCK, len(index)), len(index))
    with atomic_write(index.folder / GRAPH, "wb") as file:
        faiss.write_index(graph, faiss.PyCallbackIOWriter(file.write))
    picks = np.unique(np.linspace(0, len(index) - 1, PROBES).astype(int))
    return recall(index, graph, np.array(index.vectors[picks], dtype=np.float32))


def recall(index: SearchIndex, graph, queries: np.ndarray) -> float:
    """The share of the PROBED best for these queries (Q, H) that the graph finds."""
    _, exact = find_nearest(queries, index.vectors, PROBED)
    _, found = search_graph(graph, queries, index.vectors, PROBED)
    return agreement(found, exact)


def agreement(found: np.ndarray, exact: np.ndarray) -> float:
    """Recall of an approximate search against the exact one: the share of the exact places (Q, k) that were found."""
    shared = [len(set(row.tolist()) & set(best.tolist()) - {-1}) for row, best in zip(found, exact, strict=True)]
    return sum(shared) / max(1, int((exact >= 0).sum()))


def open_graph(index: SearchIndex):
    """The graph beside the index. Raises InputError where there is none, and for one of fewer documents or cut off."""
    faiss, path = load_faiss(), index.folder / GRAPH
    again = "make it with contrastive.py search index --approximate"
    if not path.is_file():
        raise InputError(f"{index.folder}: no graph there ({GRAPH}): {again}, or leave --approximate out")
    try:
        graph = faiss.read_index(str(path))
    except RuntimeError as error:  # faiss has no other for a file that it can't read
        raise InputError(f"{short(path)}: cut off, or not a graph of faiss: {again}") from error
    if (graph.ntotal, graph.d) != index.vectors.shape:
        raise InputError(
            f"{short(path)}: a graph of {graph.ntotal:,} documents, and the index has {len(index):,}: {again}"
        )
    return graph


def search_graph(
    graph, queries: np.ndarray, vectors: np.ndarray, top_k: int, threshold: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """As `nearest.find_nearest`, except that a document which the graph misses is not found."""
    k = min(top_k, len(vectors))
    wanted = min(2 * k, len(vectors))
    faiss = load_faiss()
    beam = faiss.SearchParametersHNSW(efSearch=max(SEARCH_BEAM, 2 * wanted))
    _, candidates = graph.search(np.ascontiguousarray(queries, dtype=np.float32), wanted, params=beam)  # (Q, wanted)
    scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
    places = np.full((len(queries), k), -1, dtype=np.int64)
    for row, found in enumerate(candidates):
        found = np.unique(found[found >= 0])
        block = np.array(vectors[found], dtype=np.float32)
        values = pair_scores(queries[row : row + 1], block, np.zeros(len(found), dtype=int), np.arange(len(found)))
        best = np.argsort(-values, kind="stable")[:k]
        if threshold is not None:
            best = best[values[best] >= np.float32(threshold)]
        scores[row, : len(best)], places[row, : len(best)] = values[best], found[best]
    return scores, places
