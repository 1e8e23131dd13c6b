"""Layers with gradients written by hand do what `bert.py` says, with the same random draws, and only where they can.

Follows fused.py's promises; the reference is autograd on the same layer.
"""

import dataclasses
import math

import pytest
import torch

import as_written
import bert
import fused
import packed
from bert import BertLayer
from fused import look_up
from packed import SWITCHES, Layout

LENGTHS = [4, 9, 1, 4, 8, 2]


def masked(lengths):
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


@pytest.fixture
def layout(monkeypatch):
    """Six sentences in several groups, one of them without padding."""
    monkeypatch.setattr(packed, "GROUP_COST", 2.5)
    found = Layout.of(masked(LENGTHS))
    assert len(found.groups) > 2 and {group.real is None for group in found.groups} == {True, False}
    return found


@pytest.fixture
def build(tiny_config):
    """build(dropout on the weights, in front of the sums, other changes) -> a layer in training, double precision."""

    def make(weights=0.0, sums=0.0, **changes):
        probabilities = {"attention_probs_dropout_prob": weights, "hidden_dropout_prob": sums}
        torch.manual_seed(0)
        layer = BertLayer(dataclasses.replace(tiny_config, **probabilities, **changes)).double().train()
        for p in layer.parameters():
            p.data.normal_(std=0.4)
        return layer

    return make


@pytest.fixture
def calls(monkeypatch):
    """One entry a layer that was run by hand."""
    made = []
    real = fused.layer_by_hand

    def counted(*given):
        if as_written._asking.answers is None:  # or it is asked whether it is bert.py's layer at all
            made.append(given)
        return real(*given)

    monkeypatch.setattr(bert, "layer_by_hand", counted)
    return made


def run(layer, layout, first_only=False, seed=1):
    """Output, and the gradients of the input and of every parameter."""
    torch.manual_seed(2)
    hidden = torch.randn(sum(LENGTHS), 24, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(len(LENGTHS) if first_only else sum(LENGTHS), 24, dtype=torch.float64)
    before = hidden.detach().clone()
    torch.manual_seed(seed)
    out = layer(hidden, layout, first_only)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    gradients = torch.autograd.grad((out * weight).sum(), [hidden, *parameters])
    assert torch.equal(hidden, before)
    return out, dict(zip(("hidden", *names), gradients, strict=True))


@pytest.mark.parametrize("first_only", [False, True], ids=["all", "first"])
@pytest.mark.parametrize("act", ["gelu", "gelu_new"])
@pytest.mark.parametrize("probabilities", [(0, 0), (0.3, 0), (0, 0.2), (0.3, 0.2)], ids=str)
def test_outputs_and_gradients_are_autograds_on_the_same_masks(
    probabilities, act, first_only, build, layout, calls, monkeypatch
):
    layer = build(*probabilities, hidden_act=act)
    out, gradients = run(layer, layout, first_only)
    assert len(calls) == 1
    monkeypatch.setattr(SWITCHES, "by_hand", False)
    wanted, wanted_gradients = run(layer, layout, first_only)
    assert len(calls) == 1
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-10)
    for name, gradient in wanted_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=0, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")
        assert name.endswith("key.bias") or gradient.abs().max() > 1e-3, name
    if any(probabilities):
        assert not torch.allclose(run(layer, layout, first_only, seed=3)[0], wanted, atol=1e-2)
    else:
        assert torch.equal(run(layer, layout, first_only, seed=3)[0], wanted)


def test_in_evaluation_nothing_is_dropped(build, layout, calls):
    out, gradients = run(build(0.3, 0.2).eval(), layout)
    wanted, wanted_gradients = run(build(), layout)
    assert len(calls) == 2
    assert torch.equal(out, wanted)
    assert all(torch.equal(gradients[name], wanted_gradients[name]) for name in gradients)


def test_the_same_generator_state_comes_out(build, layout, monkeypatch):
    """What is drawn after a layer doesn't depend on how the layer was computed."""
    layer, after = build(0.3, 0.2), []
    for by_hand in (True, False):
        monkeypatch.setattr(SWITCHES, "by_hand", by_hand)
        run(layer, layout)
        after.append(torch.rand(3))
    assert torch.equal(*after)


def test_the_first_token_s_row_is_what_it_is_among_all_rows(build, layout, monkeypatch):
    layer = build()
    for by_hand in (True, False):
        monkeypatch.setattr(SWITCHES, "by_hand", by_hand)
        every = run(layer, layout)[0]
        torch.testing.assert_close(run(layer, layout, True)[0], every[layout.first], rtol=0, atol=1e-12)


def test_a_gradient_of_the_gradient_is_refused(build, layout):
    hidden = torch.randn(sum(LENGTHS), 24, dtype=torch.float64, requires_grad=True)
    for first_only in (False, True):
        out = build(0.3, 0.2)(hidden, layout, first_only)
        (first,) = torch.autograd.grad(out.square().sum(), hidden, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.sum().backward()


def test_frozen_parts_get_no_gradient_and_the_others_theirs(build, layout):
    layer = build(0.3, 0.2)
    wanted = run(layer, layout)[1]
    layer.attention.requires_grad_(False)
    torch.manual_seed(2)
    hidden = torch.randn(sum(LENGTHS), 24, dtype=torch.float64)
    weight = torch.randn(sum(LENGTHS), 24, dtype=torch.float64)
    torch.manual_seed(1)
    (layer(hidden, layout) * weight).sum().backward()
    for name, p in layer.named_parameters():
        if name.startswith("attention."):
            assert p.grad is None
        else:
            torch.testing.assert_close(p.grad, wanted[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "why", ["no gradients", "autocast", "no GELU", "dropout of 1", "the padded form", "the switch"]
)
def test_autograd_serves_elsewhere(why, build, layout, calls, monkeypatch):
    layer = build(hidden_act="relu") if why == "no GELU" else build(1.0 if why == "dropout of 1" else 0.1, 0.1)
    layer, hidden, mask = layer.float(), torch.randn(sum(LENGTHS), 24), layout
    if why == "the padded form":
        hidden, mask = layout.unpack(hidden), bert.additive_mask(layout.real())
    monkeypatch.setattr(SWITCHES, "by_hand", why != "the switch")
    with torch.set_grad_enabled(why != "no gradients"), torch.autocast("cpu", enabled=why == "autocast"):
        out = layer(hidden, mask)
    assert out.isfinite().all() and not calls


# --- Word embeddings


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("padding_idx", [None, 2])
@pytest.mark.parametrize("shape", [(7,), (3, 4)])
def test_looking_up_rows_and_their_gradient(shape, padding_idx, dtype):
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(9, 5, padding_idx=padding_idx, dtype=dtype)
    ids = torch.tensor([0, 2, 3, 2, 0, 1, 2, 3, 3, 1, 0, 2])[: math.prod(shape)].view(shape)
    weight = torch.randn(*shape, 5, dtype=dtype)
    found, plain = look_up(embedding, ids), embedding(ids)
    assert torch.equal(found, plain) and type(found.grad_fn) is not type(plain.grad_fn)
    (gradient,), (wanted,) = (torch.autograd.grad((out * weight).sum(), embedding.weight) for out in (found, plain))
    assert wanted[0].abs().max() > 0 and (wanted[4:] == 0).all()
    torch.testing.assert_close(gradient, wanted)


def test_gradients_of_several_batches_add_up():
    torch.manual_seed(0)
    embedding, total = torch.nn.Embedding(9, 5), torch.zeros(9, 5)
    for ids in (torch.tensor([1, 1, 3]), torch.tensor([3, 8])):
        look_up(embedding, ids).sum().backward()
        total.index_add_(0, ids, torch.ones(len(ids), 5))
    assert torch.equal(embedding.weight.grad, total)


@pytest.mark.parametrize("why", ["no gradients", "frozen", "half precision", "the switch"])
def test_the_librarys_look_up_serves_elsewhere(why, monkeypatch):
    monkeypatch.setattr(fused, "_LookUp", None)
    monkeypatch.setattr(SWITCHES, "lazy_zeros", why != "the switch")
    embedding = torch.nn.Embedding(9, 5, dtype=torch.bfloat16 if why == "half precision" else None)
    embedding.requires_grad_(why != "frozen")
    with torch.set_grad_enabled(why != "no gradients"):
        assert torch.equal(look_up(embedding, torch.tensor([3, 1])), embedding.weight[[3, 1]])
