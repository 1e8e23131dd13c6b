"""Alignment, uniformity and anisotropy: by hand, and against the code of the paper that defines the first two.

That code is in Wang and Isola 2020 (arXiv 2005.10242, figure 5).
"""

import math

import numpy as np
import pytest
import torch

import embedding_quality
from embedding_quality import alignment, mean_cosine, uniformity, unit, variance_shares

# Three unit vectors: two at a right angle, the third against the first.
HAND = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]])


def vectors(n=50, dimensions=8, seed=0):
    """Unit vectors that lean to one side."""
    return unit(np.random.default_rng(seed).normal(0.3, 1.0, (n, dimensions)))


def test_by_hand():
    # Squared distances: 2, 4, 2.
    assert uniformity(HAND) == pytest.approx(math.log((2 * math.exp(-4) + math.exp(-8)) / 3))
    assert mean_cosine(HAND) == pytest.approx((0 - 1 + 0) / 3)
    assert alignment(HAND[:2], HAND[1:]) == pytest.approx((2 + 2) / 2)
    assert alignment(HAND[:1], HAND[2:]) == pytest.approx(4)
    # Centered: (1, -1/3), (0, 2/3), (-1, -1/3): variances 2 and 2/3, uncorrelated.
    assert variance_shares(HAND, (1, 2)) == {1: pytest.approx(0.75), 2: pytest.approx(1.0)}


def test_as_the_paper_computes_them():
    x, y = torch.from_numpy(vectors(seed=1)), torch.from_numpy(vectors(seed=2))
    theirs = torch.pdist(x, p=2).pow(2).mul(-2).exp().mean().log().item()
    assert uniformity(x.numpy()) == pytest.approx(theirs, abs=1e-12)
    theirs = (x - y).norm(p=2, dim=1).pow(2).mean().item()
    assert alignment(x.numpy(), y.numpy()) == pytest.approx(theirs, abs=1e-12)


def test_float32_is_enough():
    x = vectors(400, 32)
    for measure in (uniformity, mean_cosine):
        assert measure(x.astype(np.float32)) == pytest.approx(measure(x), abs=1e-5)
    assert alignment(*x.astype(np.float32).reshape(2, 200, 32)) == pytest.approx(alignment(*x.reshape(2, 200, 32)))
    assert variance_shares(x.astype(np.float32))[1] == pytest.approx(variance_shares(x)[1], abs=1e-5)


@pytest.mark.parametrize("block", (1, 7, 50, 64))
def test_blocks_count_every_pair_once(monkeypatch, block):
    whole = uniformity(vectors())
    monkeypatch.setattr(embedding_quality, "BLOCK", block)
    assert uniformity(vectors()) == pytest.approx(whole, abs=1e-12)


def test_mean_cosine_is_the_mean_over_all_pairs():
    x = vectors()
    pairs = [x[i] @ x[j] for i in range(len(x)) for j in range(i)]
    assert mean_cosine(x) == pytest.approx(np.mean(pairs))


def test_variance_shares_are_those_of_the_singular_values():
    x = vectors()
    squares = np.linalg.svd(x - x.mean(axis=0), compute_uv=False) ** 2
    assert variance_shares(x, (1, 3, 8)) == pytest.approx({k: squares[:k].sum() / squares.sum() for k in (1, 3, 8)})


def test_nothing_changes_under_a_rotation():
    x = vectors()
    rotation, _ = np.linalg.qr(np.random.default_rng(5).normal(size=(8, 8)))
    for measure in (uniformity, mean_cosine, lambda v: variance_shares(v)[1]):
        assert measure(x @ rotation) == pytest.approx(measure(x))


def test_constant_embeddings():
    same = np.tile(vectors(1).astype(np.float32), (30, 1))
    assert uniformity(same) == pytest.approx(0, abs=1e-5) and mean_cosine(same) == pytest.approx(1, abs=1e-6)
    assert variance_shares(same) == {1: None, 10: None}
    assert alignment(same, same) == 0


def test_too_little_to_say():
    assert uniformity(HAND[:1]) is None and mean_cosine(HAND[:1]) is None
    assert alignment(HAND[:0], HAND[:0]) is None
    assert variance_shares(HAND[:0]) == variance_shares(HAND[:1]) == {1: None, 10: None}


def test_unit_leaves_the_argument_and_a_row_of_zeros_alone():
    given = np.array([[3.0, 4.0], [0.0, 0.0]], dtype=np.float32)
    before = given.copy()
    assert unit(given).tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0, 0]]
    assert unit(given).dtype == np.float32 and (given == before).all()
