"""Which tokens a trained head looks at: what the vector of a sentence, and each of its tokens, takes of every token.

The attention layers of Jia 2024 (task_attention.py) and the pooler of Lee, Park, Seo and Kim 2021
(poolers.AttentiveCLS).

    >>> model = MultitaskBERT.from_pretrained("runs/first/best")
    >>> tokenizer = BertTokenizer.from_folder("runs/first/best")
    >>> (found,) = token_weights(model, tokenizer, "sst", "a gripping , unforgettable film .", whole_words=True)
    >>> [(word, round(weight, 2)) for word, weight in found]
    [('[CLS]', 0.04), ('a', 0.06), ('gripping', 0.1), (',', 0.05), ('unforgettable', 0.67), ('film', 0.04), ...]
    >>> first, second = token_weights(model, tokenizer, "para", "who ran ?", "did the dog run ?")
    >>> first.tokens  # with cross-attention the first sentence's vector is made of the second's tokens
    ('[CLS]', 'did', 'the', 'dog', 'run', '?', '[SEP]')
    >>> first.layers[-1].mean.shape  # a row for each token of the first sentence, a column for each of the second's
    torch.Size([5, 7])
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from batches import Batch, TaskData
from datasets import Example, Table
from errors import InputError
from heads import TaskHead
from model import MultitaskBERT
from task_attention import CrossAttentionLayer
from tasks import TASKS
from tokenizer import BertTokenizer


@dataclass(frozen=True, eq=False)
class AttentionMatrix:
    """What each token of a sequence takes, in one attention layer, of each token that it attends to.

    rows: the sequence's own Tq tokens. columns: the T tokens attended to: its own, or with cross-attention the other
    sentence's. heads: (N, Tq, T) float32, of each attention head; the sum of a row is 1.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    heads: torch.Tensor

    @property
    def mean(self) -> torch.Tensor:
        """(Tq, T): the mean of the heads."""
        return self.heads.mean(dim=0)


@dataclass(frozen=True, eq=False)
class TokenWeights:
    """How much the vector of a sequence takes of each of T tokens. Iterating over it gives (token, weight).

    tokens: those weighed: the sequence's own, or where cross-attention weighs them the other sentence's. weights: (T,)
    float32, their sum is 1; the mean of the heads. heads: (N, T), of each attention head; None where a pooler weighs.
    source: what weighs, in words. layers: every attention layer's matrix, first to last; () if there are none.
    across: whether the tokens are the other sentence's.
    """

    tokens: tuple[str, ...]
    weights: torch.Tensor
    heads: torch.Tensor | None
    source: str
    layers: tuple[AttentionMatrix, ...]
    across: bool = False

    def __iter__(self) -> Iterator[tuple[str, float]]:
        return zip(self.tokens, self.weights.tolist(), strict=True)

    def __len__(self) -> int:
        return len(self.tokens)


@torch.no_grad()
def token_weights(
    model: MultitaskBERT,
    tokenizer: BertTokenizer,
    name: str,
    sentence: str,
    second: str | None = None,
    *,
    whole_words: bool = False,
) -> list[TokenWeights]:
    """What the vector of each sequence that a head reads is made of: of two for a pair encoded separately,
    of three, the joint one last, for one encoded both ways, else of one.

    name: of a task that the model has a head for. second: of a pair. whole_words: word pieces put together, a word's
    weight is the sum of its pieces', and its row in a matrix the mean of theirs.

    A pooler that weighs tokens says what the vector takes of the sequence's own. Otherwise the last attention layer
    does: its row at [CLS] if the pooler reads no more, else the mean of its rows. These are the numbers that the model
    multiplies with; that they are the reason for its answer does not follow (Jain and Wallace 2019, arXiv 1902.10186).

    The model answers in evaluation mode and is put back afterwards. Raises InputError for a task without a head, a head
    that weighs no tokens, and a sentence where a pair is wanted or the other way round.
    """
    if name not in model.heads:
        raise InputError(f"no head for {name}; this model has {', '.join(model.heads)}: train with --tasks {name}")
    task, head = TASKS[name], model.heads[name]
    if task.is_pair != (second is not None):
        raise InputError(f"{name} wants {'two sentences' if task.is_pair else 'one sentence'}: give as many")
    table = Table(Path("text"), [Example("0", sentence, second, None, 1)], [], "")
    data = TaskData(task, table, tokenizer, pair_encoding=head.config.pair_encoding)
    batch = data.batch(np.array([0])).to(model.device)
    was_training = model.training
    model.eval()
    try:
        pooled, layers = _weigh(model, head, batch)
    finally:
        model.train(was_training)
    pieces = [
        tokenizer.convert_ids_to_tokens(ids[real].tolist())
        for ids, real in zip(batch.input_ids, batch.layout.real(), strict=True)
    ]
    words = [_words(tokens) if whole_words else (tuple(tokens), torch.arange(len(tokens))) for tokens in pieces]
    return [_describe(head, i, words, pooled, layers) for i in range(len(words))]


def _weigh(model: MultitaskBERT, head: TaskHead, batch: Batch) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    """On the CPU in float32: the pooler's weights (S, T), None if the last attention layer's count; (S, N, T, T) each.

    Raises InputError where neither weighs tokens.
    """
    with torch.autocast(model.device.type, dtype=model.autocast, enabled=model.autocast is not None):
        states = model.encode(batch.input_ids, batch.layout, False, head.layers_wanted, batch.token_type_ids)
        layers = [found.float().cpu() for found in head.attention_weights(states, batch.layout)]
        if layers and not hasattr(head.pooler, "weigh"):
            return None, layers
        return head.weigh(states, batch.layout).float().cpu(), layers


def _describe(head: TaskHead, i: int, words: list, pooled: torch.Tensor | None, layers: list) -> TokenWeights:
    """Sequence i's share of `_weigh`'s answer. words: every sequence's `_words`."""
    (own, own_place), count = words[i], len(head.attention)
    cross = count > 0 and isinstance(head.attention[0], CrossAttentionLayer)
    other, place = words[1 - i] if cross else words[i]
    pieces = [found[i, :, : len(own_place), : len(place)] for found in layers]  # (N, Tq, T) each
    sizes = own_place.bincount()[:, None]
    matrices = tuple(
        AttentionMatrix(own, other, _add(_add(piece, place, -1), own_place, -2) / sizes) for piece in pieces
    )
    if pooled is not None:
        weights = _add(pooled[i, : len(own_place)], own_place, -1)
        return TokenWeights(own, weights, None, f"pooler {head.config.pooler}", matrices)
    at_first = head.pooler.first_token_only
    heads = _add(pieces[-1][:, 0] if at_first else pieces[-1].mean(dim=1), place, -1)  # (N, T)
    source = f"attention layer {count} of {count}, {'[CLS]' if at_first else 'mean of its tokens'}"
    return TokenWeights(other, heads.mean(dim=0), heads, source, matrices, cross)


def _words(pieces: list[str]) -> tuple[tuple[str, ...], torch.Tensor]:
    """`["bright", "##ly", "."]` -> `("brightly", "."), tensor([0, 0, 1])`: the words, and which each piece is of."""
    words: list[str] = []
    place = []
    for piece in pieces:
        if piece.startswith("##"):
            words[-1] += piece[2:]
        else:
            words.append(piece)
        place.append(len(words) - 1)
    return tuple(words), torch.tensor(place)


def _add(x: torch.Tensor, place: torch.Tensor, dim: int) -> torch.Tensor:
    """Along `dim` the sums of those entries that have the same place: one for each place from 0 on."""
    shape = list(x.shape)
    shape[dim] = int(place[-1]) + 1
    return x.new_zeros(shape).index_add(dim, place, x)
