"""What makes the encoder fast: no padding, attention over sentences of similar length, cheap dropout.

The idea of running a batch as one long row of real tokens follows "Bag of Tricks for Efficient BERT training"
(unpadding, Zeng et al. 2022, arXiv 2208.08124). Everything here is a faster way to compute what `bert.py` says; nothing
here changes it: tests hold the outputs and the gradients equal to the plain padded form. Each part can be switched off
in `SWITCHES`.

Letters as in bert.py: B sentences, T tokens of the longest sentence, R real tokens in the whole batch, H hidden,
N heads, D head size.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

# Nearly every batch has another number of rows. oneDNN, torch's GELU on a CPU, keeps what it prepares for each of up to
# 1,024 shapes, which cost 0.8 GB in a stream of a million sentences. It reads this when it is first used.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8")


@dataclass
class Switches:
    """Turn a part off to compare; all are on by default. No part changes results, beyond which masks are drawn.

    In brackets what a finetune step takes without the part, over what it takes with it: the embedded model, random
    batches of SST, 32 and 8 sentences, one core, medians of 20 alternating rounds. Differences under 3 % are noise.

    packing: drop padding before the first layer and restore it after the last (2.17, 1.49).
    grouping: attention over groups of similar length instead of one block as long as the longest sentence (1.05, 1.00).
    cheap_dropout: masks from 16 random bits an element instead of one Bernoulli draw an element (1.07, 1.01; CPU only).
    first_only: a last layer read at the first token alone is computed for the first token alone (1.13, 1.08).
    by_hand: a layer's gradients written out (fused.py) instead of found by autograd (1.00 to 1.02, 0.98 to 1.00, and
        2 to 4 % more memory; CPU only).
    lazy_zeros: of the word embeddings' gradient only the rows looked up are written (fused.py; 1.03, 1.06; CPU only).
    """

    packing: bool = True
    grouping: bool = True
    cheap_dropout: bool = True
    first_only: bool = True
    by_hand: bool = True
    lazy_zeros: bool = True


SWITCHES = Switches()


# ---------------------------------------------------------------------------------------------------------------------
# Layout: where the real tokens of a batch are


@dataclass(frozen=True)
class Group:
    """Neighbouring sentences of similar length, whose tokens are the packed rows start..stop.

    sentences, length: the group's block for attention is (sentences, length).
    pad: for every place of the block the packed row to copy there; None where no sentence is shorter than the block.
    unpad: for every packed row of the group its place in the block; None likewise.
    real: (sentences, length) bool, which places of the block hold a real token; None likewise.
    before: how many sentences stand in earlier groups.
    """

    start: int
    stop: int
    sentences: int
    length: int
    pad: torch.Tensor | None
    unpad: torch.Tensor | None
    real: torch.Tensor | None
    before: int


@dataclass(frozen=True)
class Layout:
    """Which tokens of a padded (B, T) batch are real, and in which order they are packed: longest sentence first.

    rows: (R,) places of the real tokens in the flattened (B * T) batch, in packed order.
    back: (B * T,) for every place of the padded batch its packed row; R (one past the last) for padding.
    positions: (R,) each token's position in its sentence (its column, as in the padded form).
    first: (B,) packed row of every sentence's first token, in the order of the batch.
    order, rank: (B,) which sentence of the batch is packed at each place, and at which place each sentence is packed.
    groups: blocks for attention; together they cover all packed rows.
    """

    batch: int
    width: int
    rows: torch.Tensor
    back: torch.Tensor
    positions: torch.Tensor
    first: torch.Tensor
    order: torch.Tensor
    rank: torch.Tensor
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, attention_mask: torch.Tensor, grouping: bool | None = None) -> Layout:
        """Compute the layout from a (B, T) mask of zeros and ones. On a CPU mask nothing waits for a device.

        Raises ValueError if the mask is not two-dimensional or a sentence has no real token.
        """
        if attention_mask.dim() != 2:
            raise ValueError(f"attention_mask must be (B, T), got {tuple(attention_mask.shape)}")
        mask = attention_mask.detach().to("cpu").bool()
        batch, width = mask.shape
        lengths = mask.sum(dim=1)
        if batch and int(lengths.min()) == 0:
            empty = torch.nonzero(lengths == 0).flatten().tolist()
            raise ValueError(
                f"attention_mask has no real token in sentence(s) {empty}; every sentence has at least [CLS]"
            )
        order = torch.argsort(lengths, descending=True, stable=True)  # (B,)
        sentence, column = torch.nonzero(mask[order], as_tuple=True)  # (R,), (R,)
        rows = order[sentence] * width + column
        back = torch.full((batch * width,), rows.numel(), dtype=torch.long)
        back[rows] = torch.arange(rows.numel())
        starts = torch.zeros(batch, dtype=torch.long)
        starts[order] = torch.cumsum(lengths[order], dim=0) - lengths[order]
        grouping = SWITCHES.grouping if grouping is None else grouping
        groups = _groups(lengths[order].tolist(), grouping)
        return cls(batch, width, rows, back, column, starts, order, torch.argsort(order), groups)

    def firsts(self) -> Layout:
        """The layout of every sentence's first token alone: a batch (B, 1) whose packed rows are in its own order."""
        one = torch.arange(self.batch, device=self.rows.device)
        groups = (Group(0, self.batch, self.batch, 1, None, None, None, 0),) if self.batch else ()
        return Layout(self.batch, 1, one, one, torch.zeros_like(one), one, one, one, groups)

    def to(self, device: torch.device) -> Layout:
        """The same layout on another device. Copies do not block where the memory is pinned."""
        if self.rows.device == device:
            return self

        def move(tensor):
            return None if tensor is None else tensor.to(device, non_blocking=True)

        groups = tuple(replace(g, pad=move(g.pad), unpad=move(g.unpad), real=move(g.real)) for g in self.groups)
        names = ("rows", "back", "positions", "first", "order", "rank")
        return replace(self, **{name: move(getattr(self, name)) for name in names}, groups=groups)

    def real(self) -> torch.Tensor:
        """(B, T) bool: which places of the padded batch hold a real token."""
        return (self.back < self.rows.numel()).view(self.batch, self.width)

    def pack(self, padded: torch.Tensor) -> torch.Tensor:
        """(B, T, ...) -> (R, ...): the real tokens alone."""
        return padded.flatten(0, 1).index_select(0, self.rows)

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """(R, H) -> (B, T, H), zeros at the padding."""
        with_zero = torch.cat([packed, packed.new_zeros(1, *packed.shape[1:])])
        return with_zero.index_select(0, self.back).unflatten(0, (self.batch, self.width))


# What one more group costs, in tokens of attention block (measured on two cores: below 8 groups the split wins).
GROUP_COST = 1500


def _groups(lengths: list[int], grouping: bool) -> tuple[Group, ...]:
    """Split sentences (lengths descending) into blocks so that padded places plus a cost per block are fewest."""
    if not lengths:
        return ()
    cuts = _best_cuts(lengths) if grouping else [0, len(lengths)]
    groups, start = [], 0
    for first, last in zip(cuts, cuts[1:], strict=False):
        members = torch.tensor(lengths[first:last])
        length, count = int(members[0]), len(members)
        stop = start + int(members.sum())
        if stop - start == count * length:
            groups.append(Group(start, stop, count, length, None, None, None, first))
        else:
            real = torch.arange(length) < members[:, None]  # (count, length)
            unpad = torch.nonzero(real.flatten()).flatten()
            pad = torch.full((count * length,), start, dtype=torch.long)
            pad[unpad] = torch.arange(start, stop)
            groups.append(Group(start, stop, count, length, pad, unpad, real, first))
        start = stop
    return tuple(groups)


def _best_cuts(lengths: list[int]) -> list[int]:
    """Cuts of a descending list that minimize the sum over blocks of count * longest**2 / 8 + GROUP_COST."""
    # Only places where the length changes can be cuts; there are few, so the quadratic search is cheap.
    places = [0] + [i for i in range(1, len(lengths)) if lengths[i] != lengths[i - 1]] + [len(lengths)]
    best, came_from = [0.0] + [math.inf] * (len(places) - 1), [0] * len(places)
    for j in range(1, len(places)):
        for i in range(j):
            cost = best[i] + GROUP_COST + (places[j] - places[i]) * lengths[places[i]] ** 2 / 8
            if cost < best[j]:
                best[j], came_from[j] = cost, i
    cuts, j = [len(lengths)], len(places) - 1
    while j:
        j = came_from[j]
        cuts.append(places[j])
    return cuts[::-1]


# ---------------------------------------------------------------------------------------------------------------------
# Dropout


def draw_bits(shape) -> torch.Tensor:
    """Sixteen random bits an element, int16, from torch's default generator: what `kept` makes a dropout mask of.

    Kept for the backward pass, they take half the memory of the mask.
    """
    count = math.prod(shape)
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    return words.view(torch.int16)[:count].view(shape)


def kept(bits: torch.Tensor, p: float, dtype: torch.dtype) -> torch.Tensor:
    """The mask of ones (kept, probability 1 - p) and zeros that random bits stand for.

    The bits are compared with round(65536 p): the probability is exact to 1/131072, the elements are independent, and
    it takes a sixth of the time of one Bernoulli draw an element. Floats, because a product with booleans takes five
    times as long and a choice by them (`where`, `masked_fill_`) twelve times.
    """
    mask = torch.empty(bits.shape, dtype=dtype)
    return torch.ge(bits, round(65536 * p) - 32768, out=mask)


def is_cheap(x: torch.Tensor, p: float) -> bool:
    """Whether sixteen bits an element will do: not where they would round p to 1, and 1 / (1 - p) is large."""
    return SWITCHES.cheap_dropout and x.device.type == "cpu" and round(65536 * p) < 65536


def dropout(x: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """Dropout (Srivastava et al. 2014) of any shape: zero with probability p, else divide by 1 - p."""
    if not training or p == 0.0:
        return x
    if not is_cheap(x, p):
        return F.dropout(x, p, training)
    return torch.addcmul(x.new_zeros(()), x, kept(draw_bits(x.shape), p, x.dtype), value=1.0 / (1.0 - p))


def add_dropout(residual: torch.Tensor, x: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """residual + dropout(x), in one pass over memory."""
    if not training or p == 0.0:
        return residual + x
    if not is_cheap(x, p):
        return residual + F.dropout(x, p, training)
    return torch.addcmul(residual, x, kept(draw_bits(x.shape), p, x.dtype), value=1.0 / (1.0 - p))


# ---------------------------------------------------------------------------------------------------------------------
# Attention over groups


def packed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: Layout,
    heads: int,
    p: float,
    training: bool,
    first_only: bool = False,
) -> torch.Tensor:
    """Multi-head attention inside each sentence of a packed batch: (R, H) three times -> (R, H).

    p is the dropout probability on the attention weights. Same numbers as the padded form with padding keys masked.
    first_only: only the sentences' first tokens ask; query and result are (B, H), in the order of the batch.
    """
    drop = p if training else 0.0
    if drop and is_cheap(query, drop):
        return _GroupedAttention.apply(query, key, value, layout, heads, drop, first_only)
    if first_only:
        query = query.index_select(0, layout.order)
    out = []
    for group in layout.groups:
        k, v = _block(key, group, heads), _block(value, group, heads)  # (n, N, t, D)
        q = _asking(query, group, heads, first_only)  # (n, N, t, D), or (n, N, 1, D) with first_only
        bias = None if group.real is None else group.real[:, None, None, :]
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=drop)
        out.append(context.transpose(1, 2).flatten(0, 1).flatten(1) if first_only else _rows(context, group))
    out = out[0] if len(out) == 1 else torch.cat(out)
    return out.index_select(0, layout.rank) if first_only else out


def _block(x: torch.Tensor, group: Group, heads: int) -> torch.Tensor:
    """A group's packed rows as a block: (R, H) -> (n, N, t, D). Places of padding hold a copy of some real row."""
    x = x[group.start : group.stop] if group.pad is None else x.index_select(0, group.pad)
    return x.view(group.sentences, group.length, heads, -1).transpose(1, 2)


def _rows(block: torch.Tensor, group: Group) -> torch.Tensor:
    """A block's real places as packed rows: (n, N, t, D) -> (rows of the group, H)."""
    flat = block.transpose(1, 2).reshape(group.sentences * group.length, -1)
    return flat if group.unpad is None else flat.index_select(0, group.unpad)


def _asking(x: torch.Tensor, group: Group, heads: int, first_only: bool) -> torch.Tensor:
    """`_block` for the rows that ask: with first_only one a sentence, in packed order: (B, H) -> (n, N, 1, D)."""
    if not first_only:
        return _block(x, group, heads)
    return x[group.before : group.before + group.sentences].view(group.sentences, heads, 1, -1)


def _put(target: torch.Tensor, block: torch.Tensor, group: Group, first_only: bool) -> None:
    """Undo `_asking`: write a group's (n * N, t, D) into its rows of `target`."""
    block = block.view(group.sentences, -1, *block.shape[1:])
    if first_only:
        target[group.before : group.before + group.sentences] = block.flatten(1)
    else:
        target[group.start : group.stop] = _rows(block, group)


def attention_forward(query, key, value, layout: Layout, heads: int, p: float, first_only: bool):
    """`packed_attention` without autograd: its result, and the tensors that `attention_backward` wants."""
    if first_only:
        query = query.index_select(0, layout.order)
    query = query * (1.0 / math.sqrt(query.shape[1] // heads))  # cheaper than scaling the scores
    out, saved = torch.empty_like(query), []
    for group in layout.groups:
        k, v = (_block(x, group, heads).flatten(0, 1) for x in (key, value))  # (nN, t, D)
        q = _asking(query, group, heads, first_only).flatten(0, 1)
        scores = torch.bmm(q, k.transpose(1, 2))  # (nN, t, t)
        if group.real is not None:
            bias = torch.zeros(group.real.shape, dtype=q.dtype).masked_fill_(~group.real, -math.inf)
            scores.view(group.sentences, heads, *scores.shape[1:]).add_(bias[:, None, None, :])
        weights = torch.softmax(scores, dim=-1)
        bits = draw_bits(weights.shape) if p else None
        dropped = kept(bits, p, q.dtype).mul_(weights) if p else weights
        _put(out, torch.bmm(dropped, v), group, first_only)
        saved += [q, k, v, weights, bits]
    if p:
        out.mul_(1.0 / (1.0 - p))
    return (out.index_select(0, layout.rank) if first_only else out), saved


def attention_backward(grad, saved, layout: Layout, heads: int, p: float, first_only: bool):
    """The gradients of query, key and value. With P = softmax(Q K^T / sqrt(D)), out = (P * M / keep) V and G = grad:

    dV = (P * M / keep)^T G        dP = (G V^T) * M / keep        dS = P * (dP - rowsum(dP * P))
    dQ = dS K / sqrt(D)            dK = dS^T Q / sqrt(D)
    """
    if first_only:
        grad = grad.index_select(0, layout.order)
    if p:
        grad = grad * (1.0 / (1.0 - p))
    total, width = layout.rows.numel(), grad.shape[1]
    d_query, d_key, d_value = torch.empty_like(grad), grad.new_empty(total, width), grad.new_empty(total, width)
    for i, group in enumerate(layout.groups):
        q, k, v, weights, bits = saved[5 * i : 5 * i + 5]
        g = _asking(grad, group, heads, first_only)  # (n, N, t, D)
        if group.real is not None and not first_only:  # a padded place's output is nobody's: it has no gradient
            g = g * group.real.to(g.dtype)[:, None, :, None]
        g = g.flatten(0, 1)
        d_weights, dropped = torch.bmm(g, v.transpose(1, 2)), weights  # (nN, t, t)
        if p:
            mask = kept(bits, p, g.dtype)
            d_weights.mul_(mask)
            dropped = mask.mul_(weights)
        _put(d_value, torch.bmm(dropped.transpose(1, 2), g), group, False)
        d_scores = torch._softmax_backward_data(d_weights, weights, -1, weights.dtype)
        _put(d_query, torch.bmm(d_scores, k), group, first_only)
        _put(d_key, torch.bmm(d_scores.transpose(1, 2), q), group, False)  # q was scaled
    d_query.mul_(1.0 / math.sqrt(width // heads))
    return (d_query.index_select(0, layout.rank) if first_only else d_query), d_key, d_value


class _GroupedAttention(torch.autograd.Function):
    """Attention with dropout on its weights, forward and backward by hand, one block of similar length at a time."""

    @staticmethod
    def forward(ctx, query, key, value, layout, heads, p, first_only):
        out, saved = attention_forward(query, key, value, layout, heads, p, first_only)
        ctx.save_for_backward(*saved)
        ctx.rest = layout, heads, p, first_only
        return out

    @staticmethod
    @once_differentiable  # what is saved has lost its history: a second derivative would be wrong without a word
    def backward(ctx, grad):
        return *attention_backward(grad, ctx.saved_tensors, *ctx.rest), None, None, None, None
