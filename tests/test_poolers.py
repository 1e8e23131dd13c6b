"""Poolers: values worked out by hand, and padding that cannot leak in.

Follows poolers.py's promises, for every pooler in its registry.
"""

import pytest
import torch

from errors import InputError
from poolers import POOLERS, make_pooler, masked_mean

# Two sentences of three places with two numbers each; the second has one real token, then padding that would be seen.
HIDDEN = torch.tensor([[[1.0, 2.0], [3.0, -4.0], [5.0, 8.0]], [[7.0, -1.0], [100.0, 100.0], [-50.0, 9.0]]])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0]])


def build(name, size=2):
    torch.manual_seed(0)
    return make_pooler(name, size).eval()


def test_mean_by_hand():
    wanted = [[3.0, 2.0], [7.0, -1.0]]
    assert masked_mean(HIDDEN, MASK).tolist() == wanted
    assert build("mean")((torch.zeros(2, 3, 2), HIDDEN), MASK).tolist() == wanted  # the last layer is the one read


def test_mean_with_a_hole_and_with_no_real_token():
    assert masked_mean(HIDDEN, torch.tensor([[1, 0, 1], [0, 0, 0]])).tolist() == [[3.0, 5.0], [0.0, 0.0]]


def test_first_token_by_hand():
    assert build("first")((torch.zeros(2, 3, 2), HIDDEN), MASK).tolist() == [[1.0, 2.0], [7.0, -1.0]]


def test_bert_pooler_by_hand():
    pooler = build("cls")
    pooler.dense.weight.data = torch.tensor([[0.1, 0.0], [0.2, -0.1]])
    pooler.dense.bias.data = torch.tensor([0.0, 0.5])
    # W h + b: (0.1, 0.2 - 0.2 + 0.5) and (0.7, 1.4 + 0.1 + 0.5)
    wanted = torch.tanh(torch.tensor([[0.1, 0.5], [0.7, 2.0]]))
    torch.testing.assert_close(pooler((torch.zeros(2, 3, 2), HIDDEN), MASK), wanted)


def test_bert_pooler_starts_from_the_encoders(tiny):
    encoder = tiny()
    pooler = make_pooler("cls", 24)
    pooler.load_from(encoder)
    out = encoder(torch.tensor([[2, 7, 8, 3]]))
    found = pooler((out["last_hidden_state"],), torch.ones(1, 4))
    torch.testing.assert_close(found, out["pooler_output"])
    pooler.dense.weight.data.zero_()  # a copy: the encoder keeps its own
    assert encoder.pooler.dense.weight.abs().max() > 0


@pytest.mark.parametrize("name", list(POOLERS))
@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.float32])
def test_padding_and_batch_mates_change_nothing(name, kind):
    pooler = build(name, 6)
    torch.manual_seed(1)
    lengths = [5, 1, 3]
    layers = tuple(torch.randn(3, 5, 6) for _ in range(3))
    mask = (torch.arange(5) < torch.tensor(lengths)[:, None]).to(kind)
    together = pooler(layers, mask)
    assert together.shape == (3, 6)
    for i, length in enumerate(lengths):
        alone = pooler(tuple(layer[i : i + 1, :length] for layer in layers), mask[i : i + 1, :length])
        torch.testing.assert_close(together[i : i + 1], alone, rtol=0, atol=1e-5)
    noise = 1e6 * torch.randn(3, 128, 6) * (torch.arange(128) >= torch.tensor(lengths)[:, None])[..., None]
    wide = tuple(torch.nn.functional.pad(layer, (0, 0, 0, 123)) + noise for layer in layers)
    padded = pooler(wide, torch.nn.functional.pad(mask, (0, 123)))
    torch.testing.assert_close(together, padded, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", list(POOLERS))
def test_a_single_token_is_finite_and_so_is_its_gradient(name):
    pooler = build(name)
    hidden = torch.randn(1, 1, 2, requires_grad=True)
    out = pooler((hidden, hidden), torch.ones(1, 1))
    out.sum().backward()
    assert out.shape == (1, 2) and out.isfinite().all() and hidden.grad.isfinite().all()


@pytest.mark.parametrize("name", list(POOLERS))
def test_padding_gets_no_gradient_and_nothing_given_is_edited(name):
    pooler = build(name)
    hidden, mask = HIDDEN.clone().requires_grad_(), MASK.clone()
    pooler((hidden, hidden), mask).square().sum().backward()
    assert (hidden.grad[MASK == 0] == 0).all() and (hidden.grad[:, 0] != 0).any()
    assert torch.equal(hidden, HIDDEN) and torch.equal(mask, MASK)


@pytest.mark.parametrize("name", list(POOLERS))
def test_a_pooler_that_says_it_reads_the_first_token_reads_no_other(name):
    pooler = build(name)
    elsewhere = HIDDEN.clone()
    elsewhere[:, 1:] += 1.0
    everywhere = torch.ones(2, 3)
    same = torch.equal(pooler((HIDDEN,), everywhere), pooler((elsewhere,), everywhere))
    assert same == pooler.first_token_only


def test_an_unknown_pooler_is_an_error_that_lists_the_known():
    with pytest.raises(InputError, match="--pooler medium: not known; known: first, cls, mean"):
        make_pooler("medium", 4)
