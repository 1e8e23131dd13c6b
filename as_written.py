"""Whoever changes bert.py, task_attention.py or optimizer.py is obeyed: the faster forms are held to what stands there.

packed.py, fused.py and AdamW's lists compute the same numbers by lines of their own. So that a change of the plain
lines is not a change of nothing, a tiny model is asked both ways, once a process, with the same dropout; where the
answers differ, the plain lines are what runs, slower, and one line on stderr says so.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable, Iterable

import torch
from torch import nn

from console import warn
from packed import SWITCHES, Layout

TOLERANCE = 1e-3  # of numbers near 1; float32's rounding, added up over a long sentence, is a hundredth of it
HIDDEN, HEADS, LAYERS, DROPOUT = 8, 2, 2, 0.25
LONGEST = 512  # tokens of the longest sentence asked, where the model has as many positions
STEPS = 12  # of AdamW


class _Asking(threading.local):
    """What the checks answer to code that is just being asked itself; None outside of that."""

    answers: dict[str, bool] | None = None


_asking, _lock = _Asking(), threading.RLock()
_known: dict[tuple, bool] = {}


def forget() -> None:
    """Ask again."""
    _known.clear()


def _holds(check: str, key: Hashable, said: str, compute: Callable[[], list[torch.Tensor]], *also: str) -> bool:
    """Whether tensors come out the same with the check's faster form as without; said once where they don't.

    also: the checks that are answered with yes both times, for faster forms that build on others.
    """
    if _asking.answers is not None:
        return _asking.answers.get(check, False)
    with _lock:
        if (check, key) not in _known:
            _known[check, key] = _agree(check, said, compute, also)
        return _known[check, key]


def _agree(check: str, said: str, compute: Callable[[], list[torch.Tensor]], also: Iterable[str]) -> bool:
    state, found, why = torch.get_rng_state(), [], ""
    try:
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast("cpu", enabled=False),
            torch.device("cpu"),
        ):
            for answer in (True, False):
                _asking.answers = {**dict.fromkeys(also, True), check: answer}
                torch.default_generator.manual_seed(1)  # torch.manual_seed would seed a GPU's, too
                found.append(compute())
        same = all(torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE) for a, b in zip(*found, strict=True))
    except Exception as error:  # changed lines may want what a tiny model hasn't, which shows where they run
        same, why = False, f" (asked, it said: {type(error).__name__}: {error})"
    finally:
        _asking.answers = None
        torch.set_rng_state(state)
    if not same:
        warn(f"note: {said}: what stands there runs, slower{why}")
    return same


def _random(module: nn.Module) -> nn.Module:
    """The module with random numbers for all its parameters, LayerNorm's, too; the same whenever it is asked."""
    generator = torch.Generator().manual_seed(2)
    for parameter in module.float().parameters():
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float32) / 2)
    return module


def _numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float32)


def _masks(longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, T), with padding, and without, where both forms draw the same dropout masks."""
    lengths = torch.tensor([longest, longest // 3 + 1, longest - longest // 4])
    return (torch.arange(longest) < lengths[:, None]).long(), torch.ones(2, longest // 2 + 1, dtype=torch.long)


def _model(config):
    """A tiny BertModel with a model's own config but for its sizes, so that what else stands there counts."""
    from bert import BertModel  # which asks this module

    dropped = DROPOUT if SWITCHES.cheap_dropout else 0.0  # without that, masks are drawn in other ways
    sizes = {"vocab_size": 64, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "intermediate_size": 2 * HIDDEN}
    sizes |= {"num_hidden_layers": LAYERS, "pad_token_id": 0}
    chances = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropped)
    return _random(BertModel(dataclasses.replace(config, **sizes, **chances)))


def _encoded(config, first_only: bool) -> Callable[[], list[torch.Tensor]]:
    def compute() -> list[torch.Tensor]:
        model, found = _model(config), []
        for mask, training in zip(_masks(min(LONGEST, config.max_position_embeddings)), (False, True), strict=True):
            if first_only and training:
                continue  # it draws fewer masks
            ids, layout = torch.arange(mask.numel()).view(mask.shape) * 7 % 63 + 1, Layout.of(mask)
            types = (ids % 2 * (config.type_vocab_size > 1)).long()
            with torch.no_grad():
                found += model.train(training).encode(ids, layout, types, first_only=first_only)
        return found

    return compute


def packing(config) -> bool:
    """Whether packed rows still give what bert.py gives for a padded batch, for which attention is written out."""
    said = "bert.py is no longer what packed.py computes"
    return _holds("packing", (config, SWITCHES.cheap_dropout), said, _encoded(config, False))


def first_only(config) -> bool:
    """Whether the last layer, computed for first tokens alone, still gives what it gives for all."""
    said = "bert.py's layer for the first tokens alone is not its layer for all"
    return _holds("first_only", (config, SWITCHES.cheap_dropout), said, _encoded(config, True), "packing")


def by_hand(config) -> bool:
    """Whether fused.py's layer, outputs and gradients, is still bert.py's."""

    def compute() -> list[torch.Tensor]:
        model, mask = _model(config).train(), _masks(min(LONGEST, config.max_position_embeddings))[0]
        layout = Layout.of(mask)
        states = layout.pack(_numbers(*mask.shape, HIDDEN)).requires_grad_()
        layer = model.encoder.layer[0]
        out = layer(states, layout)
        wanted = [states, *layer.parameters()]
        found = torch.autograd.grad((out * _numbers(*out.shape)).mean(), wanted, allow_unused=True)
        # A gradient's size is that of a mean over the rows: compared beside numbers near 1 it would always agree.
        return [
            out.detach(),
            *(100 * (torch.zeros_like(x) if grad is None else grad) for x, grad in zip(wanted, found, strict=True)),
        ]

    said = "bert.py's layer is no longer what fused.py computes"
    return _holds("by_hand", (config, SWITCHES.cheap_dropout), said, compute)


def is_plain(module: nn.Module, kind: type) -> bool:
    """Whether a module is of this very kind, and nobody listens to it or gave it another forward."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return type(module) is kind and not any(hooks) and "forward" not in module.__dict__


def takes_packed(layers: Iterable[nn.Module]) -> bool:
    """Whether the layers, and their attention, are bert.py's own, which take packed rows."""
    from bert import BertAttention, BertLayer, BertSelfAttention

    return all(
        type(layer) is BertLayer
        and type(layer.attention) is BertAttention
        and type(layer.attention.self) is BertSelfAttention
        for layer in layers
    )


def has_plain_parts(layer: nn.Module) -> bool:
    """Whether a BertLayer has the parts that bert.py gives it, whose parameters fused.py reads without calling them."""
    from bert import ACTIVATIONS, BertAttention, BertIntermediate, BertOutput, BertSelfAttention, BertSelfOutput

    attention, inner, outer = layer.attention, layer.intermediate, layer.output
    parts = (attention, attention.self, attention.output, inner, outer)
    kinds = (BertAttention, BertSelfAttention, BertSelfOutput, BertIntermediate, BertOutput)
    known, name = {nn.Linear, nn.LayerNorm, *kinds}, getattr(inner, "activation_name", None)
    return (
        all(map(is_plain, parts, kinds))
        and all(type(part) in known and is_plain(part, type(part)) for whole in parts for part in whole.children())
        and name in ACTIVATIONS
        and inner.activation is ACTIVATIONS[name]
    )


def task_attention(kind: type) -> bool:
    """Whether the faster attention of a task's layers is still task_attention.py's `weigh`, written out."""

    def compute() -> list[torch.Tensor]:
        layer, found = _random(kind(HIDDEN, HEADS, DROPOUT, DROPOUT)), []
        for mask, training in zip(_masks(LONGEST // 4), (False, True), strict=True):
            layout = Layout.of(torch.cat([mask, mask.flip(dims=[0])]))  # sentences and those they are paired with
            rows = _numbers(len(layout.rows), HIDDEN)
            for first in (False, True):
                with torch.no_grad():
                    found.append(layer.train(training)(rows, layout, first))
        return found

    said = f"task_attention.py's {kind.__name__} is no longer what packed.py computes"
    return _holds("task_attention", kind, said, compute)


def adamw_lists() -> bool:
    """Whether AdamW's lists and blocks still do what optimizer.py's `adamw_step` does to a whole tensor."""
    from optimizer import SMALL, AdamW

    def compute() -> list[torch.Tensor]:
        found = []
        for correct_bias in (True, False):
            shapes = [(HIDDEN,), (HIDDEN, HEADS), (SMALL // HIDDEN + 1, HIDDEN)]
            parameters = [nn.Parameter(_numbers(*shape)) for shape in shapes]
            optimizer = AdamW(parameters, 0.01, (0.8, 0.9), 1e-3, 0.5, correct_bias)
            for _ in range(STEPS):
                for parameter in parameters:
                    parameter.grad = torch.randn(parameter.shape, dtype=torch.float32)
                optimizer.step()
            found += [parameter.detach() for parameter in parameters]
        return found

    said = "optimizer.py's adamw_step is no longer what its lists and blocks do"
    return _holds("adamw_lists", None, said, compute)
