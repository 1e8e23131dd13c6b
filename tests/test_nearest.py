"""The nearest vectors: by hand, against the whole matrix sorted, with ties, in every cut of the work.

Follows nearest.py's promises.
"""

import numpy as np
import pytest

import nearest
from nearest import find_nearest


def unit(shape, seed=0):
    rows = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def whole(queries, vectors, k, threshold=-np.inf):
    """The same from all products at once, in double precision, sorted whole."""
    products = (queries[:, None].astype(np.float64) * vectors.astype(np.float32)[None]).sum(axis=2).astype(np.float32)
    places = np.argsort(-products, axis=1, kind="stable")[:, :k]
    scores = np.take_along_axis(products, places, axis=1)
    return np.where(scores >= threshold, scores, -np.inf), np.where(scores >= threshold, places, -1)


def assert_same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_by_hand():
    vectors = np.array([[0, 1], [1, 0], [0.6, 0.8], [1, 0]], dtype=np.float32)
    scores, places = find_nearest(np.array([[1, 0]], dtype=np.float32), vectors, top_k=3)
    assert places.tolist() == [[1, 3, 2]]  # of equal ones the first comes first
    np.testing.assert_allclose(scores, [[1, 1, 0.6]], rtol=1e-7)
    scores, places = find_nearest(np.array([[0, 1]], dtype=np.float32), vectors, top_k=9, threshold=0.8)
    assert places.tolist() == [[0, 2, -1, -1]] and scores[0, 2:].tolist() == [-np.inf, -np.inf]


@pytest.fixture
def small_steps(monkeypatch):
    """Blocks and groups so small that a few hundred vectors go through all of the code."""
    for name, value in (("BLOCK", 32), ("GROUP", 5), ("PAIRS", 7)):
        monkeypatch.setattr(nearest, name, value)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("k", [1, 7, 40, 500])
def test_equals_the_whole_matrix_sorted(small_steps, kind, k):
    queries, vectors = unit((13, 24)), unit((211, 24), 1).astype(kind)
    assert_same(find_nearest(queries, vectors, k), whole(queries, vectors, k))
    assert_same(find_nearest(queries, vectors, k, threshold=0.2), whole(queries, vectors, k, np.float32(0.2)))


def test_better_and_better_vectors(small_steps):
    queries = unit((3, 24))
    mixed = np.linspace(0, 1, 300)[:, None] * queries[:1] + 0.3 * unit((300, 24), 2)
    vectors = (mixed / np.linalg.norm(mixed, axis=1, keepdims=True)).astype(np.float32)
    assert_same(find_nearest(queries, vectors, 4), whole(queries, vectors, 4))


def test_equal_vectors_have_equal_scores_wherever_they_stand(small_steps):
    few = unit((6, 24), 3)
    which = np.random.default_rng(4).integers(0, 6, 300)
    scores, places = find_nearest(unit((11, 24)), few[which], 80)
    assert_same((scores, places), whole(unit((11, 24)), few[which], 80))
    for row_scores, row_places in zip(scores, places, strict=True):
        for vector in range(6):
            assert len(set(row_scores[which[row_places] == vector].tolist())) <= 1
        assert len(set(row_places.tolist())) == 80
        ordered = list(zip((-row_scores).tolist(), row_places.tolist(), strict=True))
        assert ordered == sorted(ordered)


def test_a_score_depends_on_its_two_vectors_alone(monkeypatch):
    queries, vectors = unit((40, 384)), unit((3000, 384), 1)
    together = find_nearest(queries, vectors, 20)
    for row in (0, 17, 39):
        assert_same(find_nearest(queries[row : row + 1], vectors, 20), [part[row : row + 1] for part in together])
    monkeypatch.setattr(nearest, "BLOCK", 701)
    monkeypatch.setattr(nearest, "GROUP", 3)
    assert_same(find_nearest(queries, vectors, 20), together)


def test_no_queries_no_vectors_no_top_k():
    assert find_nearest(unit((0, 8)), unit((5, 8)), 3)[1].shape == (0, 3)
    assert find_nearest(unit((2, 8)), unit((0, 8)), 3)[1].shape == (2, 0)
    with pytest.raises(ValueError, match="top_k=0"):
        find_nearest(unit((2, 8)), unit((5, 8)), 0)


def test_progress_counts_vectors(small_steps):
    told = []
    find_nearest(unit((2, 8)), unit((70, 8)), 3, progress=told.append)
    assert told == [32, 64, 70]
