"""Whoever changes bert.py, task_attention.py or optimizer.py is obeyed: the faster forms are held to what stands there.

packed.py, fused.py and AdamW's lists compute the same numbers by lines of their own. So that a change of the plain
lines is not a change of nothing, a tiny random layer is asked both ways, once a process, with the same dropout; where
the answers differ, the plain lines are what runs, slower, and one line on stderr says so. Changed answers are found so,
not changed initializations or names, which the faster forms have none of.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional as F

from console import warn
from packed import SWITCHES, Layout, packed_attention

TOLERANCE = 1e-4  # float32's rounding is a hundredth of this for numbers near 1
HIDDEN, HEADS, DROPOUT = 8, 2, 0.25
PADDED = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0]])  # (B, T)
FULL = torch.ones(3, 4, dtype=torch.long)  # without padding both forms draw the same dropout masks


def _agree(fast: Callable[[], list[torch.Tensor]], plain: Callable[[], list[torch.Tensor]], said: str) -> bool:
    """Whether two ways to compute tensors give the same ones from the same random draws; says it where they don't."""
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.autocast("cpu", enabled=False):
        try:
            found = []
            for compute in (fast, plain):
                torch.manual_seed(1)
                found.append(compute())
            same = all(torch.allclose(a, b, atol=TOLERANCE) for a, b in zip(*found, strict=True))
        except Exception:  # changed lines may want what a tiny layer hasn't: whatever is wrong shows where they run
            same = False
    if not same:
        warn(f"note: {said}: what stands there runs, slower")
    return same


@contextmanager
def _without(switch: str):
    before = getattr(SWITCHES, switch)
    setattr(SWITCHES, switch, False)
    try:
        yield
    finally:
        setattr(SWITCHES, switch, before)


def _tiny(make: Callable[[], nn.Module]) -> nn.Module:
    """A module on the CPU whose parameters are random, all of them, LayerNorm's, too."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.inference_mode(False):
        torch.manual_seed(0)
        module = make().float()
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.5)
    return module


def _layer(activation: str) -> nn.Module:
    from bert import BertConfig, BertLayer  # which ask this module

    config = BertConfig(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        intermediate_size=2 * HIDDEN,
        hidden_act=activation,
        hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=DROPOUT,
    )
    return _tiny(lambda: BertLayer(dataclasses.replace(config)))


def _states(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


@functools.cache
def packing(activation: str) -> bool:
    """Whether packed rows still give what bert.py's layer gives for a padded batch, whose attention is written out."""
    from bert import additive_mask

    def both(form: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
        def compute() -> list[torch.Tensor]:
            layer, found = _layer(activation), []
            with torch.no_grad(), _without("by_hand"):
                for mask, training in ((PADDED, False), (FULL, True)):
                    states = form(layer.train(training), _states(*mask.shape, HIDDEN), mask)
                    found.append(states * mask[..., None])
            return found

        return compute

    def packed(layer, states, mask):
        layout = Layout.of(mask)
        return layout.unpack(layer(layout.pack(states), layout))

    padded = both(lambda layer, states, mask: layer(states, additive_mask(mask)))
    return _agree(both(packed), padded, "bert.py's layer is no longer what packed.py computes")


@functools.cache
def by_hand(activation: str) -> bool:
    """Whether fused.py's layer, outputs and gradients, is still bert.py's."""

    def way(switch: bool) -> Callable[[], list[torch.Tensor]]:
        def compute() -> list[torch.Tensor]:
            from fused import layer_by_hand

            layer, layout = _layer(activation).train(), Layout.of(PADDED)
            states = layout.pack(_states(*PADDED.shape, HIDDEN)).requires_grad_()
            with torch.enable_grad():
                if switch:
                    out = layer_by_hand(layer, states, layout, False)
                else:
                    with _without("by_hand"):
                        out = layer(states, layout)
                weights = _states(*out.shape)
                return [out.detach(), *torch.autograd.grad((out * weights).sum(), [states, *layer.parameters()])]

        return compute

    return _agree(way(True), way(False), "bert.py's layer is no longer what fused.py computes")


def is_plain(layer: nn.Module) -> bool:
    """Whether a layer has the parts that bert.py gives it, and no hooks, which nobody would call."""
    from bert import BertAttention, BertIntermediate, BertOutput, BertSelfAttention, BertSelfOutput

    attention, inner, outer = layer.attention, layer.intermediate, layer.output
    parts = (attention, attention.self, attention.output, inner, outer)
    kinds = (BertAttention, BertSelfAttention, BertSelfOutput, BertIntermediate, BertOutput)
    return all(
        type(part) is kind and not any(m._forward_hooks or m._forward_pre_hooks for m in (part, *part.children()))
        for part, kind in zip(parts, kinds, strict=True)
    )


@functools.cache
def task_attention() -> bool:
    """Whether the faster attention of the task's layers is still task_attention.py's `probabilities`."""
    from task_attention import SelfAttentionLayer

    layer = _tiny(lambda: SelfAttentionLayer(HIDDEN, HEADS, DROPOUT))
    layout = Layout.of(PADDED)
    states, real = _states(3, *PADDED.shape, HIDDEN), layout.real()

    def plain() -> list[torch.Tensor]:
        query, key, value = (layer.split_heads(x) for x in states)
        context = (layer.probabilities(query, key, real) @ value).transpose(1, 2).flatten(2)
        return 2 * [context * real[..., None]]

    def fast() -> list[torch.Tensor]:
        query, key, value = (layer.split_heads(x) for x in states)
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=real[:, None, None, :])
        rows = packed_attention(*(layout.pack(x) for x in states), layout, HEADS, 0.0, False)
        return [context.transpose(1, 2).flatten(2) * real[..., None], layout.unpack(rows)]

    with torch.no_grad():
        return _agree(fast, plain, "task_attention.py's attention is no longer what packed.py computes")


@functools.cache
def adamw_lists() -> bool:
    """Whether AdamW's lists still do what optimizer.py's `adamw_step` does, with bias correction and without."""
    from optimizer import adamw_step, adamw_step_lists

    def way(step: Callable) -> Callable[[], list[torch.Tensor]]:
        def compute() -> list[torch.Tensor]:
            p, grad, m, v = _states(4, HIDDEN).unbind()
            v.abs_()
            for t, correct_bias in ((1, True), (2, False)):
                step(
                    p, grad, m, v, t=t, lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.5, correct_bias=correct_bias
                )
            return [p, m, v]

        return compute

    def lists(*tensors, **formula):
        adamw_step_lists(*([tensor] for tensor in tensors), **formula)

    with torch.no_grad():
        return _agree(way(lists), way(adamw_step), "optimizer.py's adamw_step is no longer what adamw_step_lists does")
