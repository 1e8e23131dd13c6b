"""Task-specific attention: self- and cross-attention layers outside BERT, trained for one task each.

Jia 2024, "Task-specific attention" (Stanford CS 224N poster). Self-attention layers for one sentence; cross-attention
layers for a pair, where each sentence's tokens attend to the other's and one layer serves both directions. Shapes as in
bert.py.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

import as_written
from errors import InputError
from packed import Layout, add_dropout, dropout, packed_attention

INITIALIZATIONS = ("default", "uniform")


class AttentionLayer(nn.Module):
    """Multi-head attention, an output map, dropout, add & norm. The part that both kinds of layers share.

    Runs on packed rows (R, H) with their Layout, like the encoder's layers; of the last layer, whose output is read at
    the first token alone, only that is computed (`first_only`).
    """

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        dropout_prob: float,
        attention_dropout_prob: float = 0.1,
        feed_forward: bool = False,
    ):
        """feed_forward: BERT's block of two maps and a GELU, with an add & norm of its own, behind the layer.

        The author's public code has it; the poster neither describes nor counts it.
        """
        super().__init__()
        if hidden_size % heads:
            raise InputError(f"{heads} attention heads do not divide a hidden size of {hidden_size}")
        self.heads = heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size)
        self.up = nn.Linear(hidden_size, 4 * hidden_size) if feed_forward else None
        self.down = nn.Linear(4 * hidden_size, hidden_size) if feed_forward else None
        self.last_norm = nn.LayerNorm(hidden_size) if feed_forward else None
        self.dropout_prob = dropout_prob
        self.attention_dropout_prob = attention_dropout_prob

    def initialize(self, how: str) -> None:
        """Start from one of the poster's two initializations.

        default: as the library does (its experiment 1). uniform: query, key and value weights from U(0.9, 1)
        (experiment 2), meant to start attention near the mean of the tokens. Measured, it is the default that does
        (benchmarks/attention_start.py): with all weights alike, a token's query and key are its sum times about 0.95 in
        every component, scores differ by tens, and the softmax takes one token alone.
        """
        if how not in INITIALIZATIONS:
            raise InputError(f"--attention_init {how}: not known; known: {', '.join(INITIALIZATIONS)}")
        if how == "uniform":
            for linear in (self.query, self.key, self.value):
                nn.init.uniform_(linear.weight, 0.9, 1.0)

    def forward(self, hidden: torch.Tensor, layout: Layout, first_only: bool = False) -> torch.Tensor:
        """(R, H) -> (R, H); with first_only -> (B, H), the output at every sentence's first token, in batch order."""
        residual = hidden.index_select(0, layout.first) if first_only else hidden
        context = self.attend(self.query(residual), self.key(hidden), self.value(hidden), layout, first_only)
        mixed = self.mix(context)
        hidden = self.norm(add_dropout(residual, mixed, self.dropout_prob, self.training))
        if self.up is None:
            return hidden
        fed = self.down(F.gelu(self.up(hidden)))
        return self.last_norm(add_dropout(hidden, fed, self.dropout_prob, self.training))

    def mix(self, context: torch.Tensor) -> torch.Tensor:
        return self.output(context)

    def attend(self, query, key, value, layout: Layout, first_only: bool) -> torch.Tensor:
        raise TypeError("use SelfAttentionLayer or CrossAttentionLayer")  # the shared part alone attends to nothing

    def attended(self, padded: torch.Tensor) -> torch.Tensor:
        """(B, T, ...) -> (B, T, ...): in each sentence's place the one that its tokens attend to. Here its own."""
        return padded

    def weigh(self, query, key, value, real: torch.Tensor) -> torch.Tensor:
        """softmax(Q K^T / sqrt(D)) V over the real keys.

        query (B, Tq, H), key and value (B, T, H), real (B, T) bool -> (B, Tq, H).
        """
        query, key, value = (self.split_heads(x) for x in (query, key, value))
        if (not self.training or self.attention_dropout_prob == 0.0) and as_written.task_attention(type(self)):
            context = F.scaled_dot_product_attention(query, key, value, attn_mask=real[:, None, None, :])
        else:
            probs = self.probabilities(query, key, real)
            context = dropout(probs, self.attention_dropout_prob, self.training) @ value  # (B, N, Tq, D)
        return context.transpose(1, 2).flatten(2)

    def weights(self, hidden: torch.Tensor, layout: Layout) -> torch.Tensor:
        """How much each token takes of each one that it attends to, as `forward` has it without dropout.

        (R, H) -> (B, N, T, T): rows are the sentence's tokens, columns those attended to. A row's sum is 1; rows and
        columns of padding are 0.
        """
        query, key, real = layout.unpack(self.query(hidden)), layout.unpack(self.key(hidden)), layout.real()
        query, key = self.split_heads(query), self.split_heads(self.attended(key))
        return self.probabilities(query, key, self.attended(real)) * real[:, None, :, None]

    def probabilities(self, query, key, real: torch.Tensor) -> torch.Tensor:
        """softmax(Q K^T / sqrt(D)): (B, N, Tq, D), (B, N, T, D), real keys (B, T) -> (B, N, Tq, T)."""
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        return torch.softmax(scores.masked_fill(~real[:, None, None, :], -math.inf), dim=-1)

    def split_heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, N, T, D)


class SelfAttentionLayer(AttentionLayer):
    """A sentence's tokens attend to the sentence: four H x H maps (query, key, value, output)."""

    def attend(self, query, key, value, layout: Layout, first_only: bool) -> torch.Tensor:
        if not first_only and as_written.task_attention(type(self)):
            return packed_attention(query, key, value, layout, self.heads, self.attention_dropout_prob, self.training)
        key, value, real = layout.unpack(key), layout.unpack(value), layout.real()
        if first_only:
            return self.weigh(query[:, None], key, value, real)[:, 0]
        return layout.pack(self.weigh(layout.unpack(query), key, value, real))


class CrossAttentionLayer(AttentionLayer):
    """Each sentence's tokens attend to the other sentence's: five H x H maps (query, key, value, output, intermediate).

    The batch holds all first sentences, then all second ones in the same order. Both directions use the same weights
    and the same input: the new a is computed from the old b and the new b from the old a. The residual is the
    sentence's own token.
    """

    def __init__(self, hidden_size: int, heads: int, dropout_prob: float, *more, **named):
        super().__init__(hidden_size, heads, dropout_prob, *more, **named)
        self.intermediate = nn.Linear(hidden_size, hidden_size)

    def mix(self, context: torch.Tensor) -> torch.Tensor:
        return self.intermediate(self.output(context))

    def attend(self, query, key, value, layout: Layout, first_only: bool) -> torch.Tensor:
        key, value, real = (self.attended(x) for x in (layout.unpack(key), layout.unpack(value), layout.real()))
        if first_only:
            return self.weigh(query[:, None], key, value, real)[:, 0]
        return layout.pack(self.weigh(layout.unpack(query), key, value, real))

    def attended(self, padded: torch.Tensor) -> torch.Tensor:
        pairs = len(padded) // 2
        if len(padded) != 2 * pairs:
            raise ValueError(f"cross-attention needs first and second sentences, got an odd number: {len(padded)}")
        return padded.roll(pairs, dims=0)


ATTENTION_LAYERS = {"self": SelfAttentionLayer, "cross": CrossAttentionLayer}
