"""A Transformer layer on packed rows with its gradients written by hand, for training on a CPU.

The layer is that of Devlin et al. 2018 (arXiv 1810.04805) as `bert.py` writes it; the backward formulas follow by
the chain rule. What autograd can't know: that a sum's gradient may be added up inside the matrix products that follow,
that a buffer is free again, and that a dropout mask can be made again from its random bits. Letters as in bert.py.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

import as_written
from packed import SWITCHES, Layout, attention_backward, attention_forward, draw_bits, is_cheap, kept

# Numbers that numpy and torch share.
NUMPY = {torch.float32: np.float32, torch.float64: np.float64}
# What aten calls the two forms of GELU.
GELUS = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}


def runs_by_hand(layer, hidden: torch.Tensor, mask: torch.Tensor | Layout) -> bool:
    """Whether `layer_by_hand` does what a BertLayer does, and is worth it: packed rows, a CPU, gradients, a GELU.

    Elsewhere autograd serves: without gradients there is nothing to gain, on a GPU autocast must see every operation.
    """
    return (
        SWITCHES.by_hand
        and isinstance(mask, Layout)
        and hidden.device.type == "cpu"
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and as_written.has_plain_parts(layer)
        and layer.intermediate.activation_name in GELUS
        and as_written.by_hand(layer.config)
        and all(p == 0 or is_cheap(hidden, p) for p in _dropouts(layer))
    )


def _dropouts(layer) -> tuple[float, float, float]:
    return layer.attention.self.dropout_prob, layer.attention.output.dropout_prob, layer.output.dropout_prob


def layer_by_hand(layer, hidden: torch.Tensor, layout: Layout, first_only: bool) -> torch.Tensor:
    """BertLayer.forward on packed rows (R, H) -> (R, H), or (B, H) with first_only.

    Same numbers, same random draws in the same order, another way to the gradients. The layer's modules are read for
    their parameters and not called.
    """
    attention, inner, outer = layer.attention, layer.intermediate, layer.output
    attended = _Attention.apply(
        hidden,
        *(p for linear in (attention.self.query, attention.self.key, attention.self.value) for p in _pair(linear)),
        *_pair(attention.output.dense),
        *_pair(attention.output.LayerNorm),
        layout,
        first_only,
        attention.self.num_attention_heads,
        attention.self.dropout_prob if layer.training else 0.0,
        attention.output.dropout_prob if layer.training else 0.0,
        attention.output.LayerNorm.eps,
    )
    return _FeedForward.apply(
        attended,
        *_pair(inner.dense),
        *_pair(outer.dense),
        *_pair(outer.LayerNorm),
        GELUS[inner.activation_name],
        outer.dropout_prob if layer.training else 0.0,
        outer.LayerNorm.eps,
    )


def _pair(module) -> tuple[torch.Tensor, torch.Tensor]:
    return module.weight, module.bias


def look_up(embedding: torch.nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
    """embedding(ids), whose gradient costs what the rows looked up cost, and not what the vocabulary does.

    The gradient is as dense as torch's, but its zeros are the operating system's: numpy gets them with calloc, so that
    a page which no row is written to is never made, and reads as the one page of zeros that stays in the cache. torch
    writes 47 MB of zeros for the embedded model, to memory that is new at every step.
    """
    weight = embedding.weight
    lazy = SWITCHES.lazy_zeros and torch.is_grad_enabled() and weight.requires_grad
    lazy = lazy and as_written.is_plain(embedding, torch.nn.Embedding)
    if not lazy or weight.device.type != "cpu" or weight.dtype not in NUMPY:
        return embedding(ids)
    return _LookUp.apply(weight, ids, embedding.padding_idx)


class _LookUp(torch.autograd.Function):
    """weight (V, H), ids of shape S -> S + (H,). The row padding_idx gets no gradient."""

    @staticmethod
    def forward(ctx, weight, ids, padding_idx):
        ctx.save_for_backward(ids)
        ctx.shape, ctx.padding_idx = weight.shape, padding_idx
        return F.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (ids,) = ctx.saved_tensors
        d_weight = torch.from_numpy(np.zeros(ctx.shape, dtype=NUMPY[grad.dtype]))
        d_weight.index_add_(0, ids.flatten(), grad.reshape(-1, ctx.shape[1]))
        if ctx.padding_idx is not None:
            d_weight[ctx.padding_idx] = 0
        return d_weight, None, None


class _Attention(torch.autograd.Function):
    """hidden (R, H) -> LayerNorm(asking + dropout(attention(asking, hidden) W_o + b_o)).

    asking is hidden itself, or with first_only its rows of the first tokens, (B, H).
    """

    @staticmethod
    def forward(ctx, hidden, wq, bq, wk, bk, wv, bv, wo, bo, wn, bn, layout, first_only, heads, p_weights, p, eps):
        asking = hidden.index_select(0, layout.first) if first_only else hidden
        query, key, value = F.linear(asking, wq, bq), F.linear(hidden, wk, bk), F.linear(hidden, wv, bv)
        context, inside = attention_forward(query, key, value, layout, heads, p_weights, first_only)
        out, norm = _add_norm(F.linear(context, wo, bo), asking, p, wn, bn, eps)
        ctx.save_for_backward(hidden, asking, context, wq, wk, wv, wo, wn, bn, *norm, *inside)
        ctx.p, ctx.rest = p, (layout, heads, p_weights, first_only)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        hidden, asking, context, wq, wk, wv, wo, wn, bn, *saved = ctx.saved_tensors
        layout, first_only = ctx.rest[0], ctx.rest[-1]
        d_asking, d_mixed, d_norm = _add_norm_backward(grad, saved[:4], ctx.p, wn, bn)
        d_query, d_key, d_value = attention_backward(d_mixed @ wo, saved[4:], *ctx.rest)
        d_asking.addmm_(d_query, wq)
        # Three products into one sum: autograd would make three and add them.
        d_hidden = d_key @ wk if first_only else d_asking.addmm_(d_key, wk)
        d_hidden.addmm_(d_value, wv)
        if first_only:
            d_hidden.index_add_(0, layout.first, d_asking)
        d_maps = _d_linear(d_query, asking), _d_linear(d_key, hidden), _d_linear(d_value, hidden)
        d_maps += (_d_linear(d_mixed, context), d_norm)
        return d_hidden, *(d for pair in d_maps for d in pair), *6 * [None]


class _FeedForward(torch.autograd.Function):
    """x (R, H) -> LayerNorm(x + dropout(GELU(x W_1 + b_1) W_2 + b_2))."""

    @staticmethod
    def forward(ctx, x, w1, b1, w2, b2, wn, bn, form, p, eps):
        wide = F.linear(x, w1, b1)  # (R, 4H)
        active = F.gelu(wide, approximate=form)
        out, norm = _add_norm(F.linear(active, w2, b2), x, p, wn, bn, eps)
        ctx.save_for_backward(x, wide, active, w1, w2, wn, bn, *norm)
        ctx.form, ctx.p = form, p
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, wide, active, w1, w2, wn, bn, *norm = ctx.saved_tensors
        d_x, d_narrow, d_norm = _add_norm_backward(grad, norm, ctx.p, wn, bn)
        d_wide = d_narrow @ w2  # (R, 4H)
        torch.ops.aten.gelu_backward.grad_input(d_wide, wide, approximate=ctx.form, grad_input=d_wide)
        d_x.addmm_(d_wide, w1)
        return d_x, *_d_linear(d_wide, x), *_d_linear(d_narrow, active), *d_norm, None, None, None


def _d_linear(grad: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of a linear map's weight and bias, from its output's gradient and its input."""
    return grad.t() @ x, grad.sum(dim=0)


def _add_norm(x, residual, p, weight, bias, eps):
    """LayerNorm(residual + dropout(x)), and what its backward wants. x, which the caller made, is overwritten."""
    bits = draw_bits(x.shape) if p else None
    if p:
        torch.addcmul(residual, x, kept(bits, p, x.dtype), value=1.0 / (1.0 - p), out=x)
    else:
        x.add_(residual)
    out, mean, rstd = torch.native_layer_norm(x, weight.shape, weight, bias, eps)
    return out, (x, mean, rstd, bits)


def _add_norm_backward(grad, saved, p, weight, bias):
    """The gradients of the residual, of x, and of LayerNorm's weight and bias. The first may be overwritten."""
    total, mean, rstd, bits = saved
    d_total, *d_norm = torch.ops.aten.native_layer_norm_backward(
        grad.contiguous(), total, weight.shape, mean, rstd, weight, bias, [True, True, True]
    )
    if not p:
        return d_total, d_total.clone(), d_norm
    return d_total, kept(bits, p, grad.dtype).mul_(d_total).mul_(1.0 / (1.0 - p)), d_norm
