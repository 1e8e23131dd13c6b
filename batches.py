"""Batches: rows of a task, tokenized once a run, put together on the CPU with all the encoder needs to know.

A pair that is encoded separately stands in its batch as two sentences: all first ones, then all second ones in the same
order, so that one encoder call serves both (the siamese encoding of Reimers and Gurevych 2019, arXiv 1908.10084). One
that is encoded jointly is one sequence of two segments (Devlin et al. 2018, arXiv 1810.04805, section 4.1). Of pairs
encoded both ways the joint sequences follow the sentences.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from datasets import Table
from losses import LOSSES, MEANS
from packed import Group, Layout
from tasks import Task
from tokenizer import BertTokenizer

if TYPE_CHECKING:
    from frozen import Store

Item, Made = TypeVar("Item"), TypeVar("Made")

# More tokens than this in an evaluation batch only cost memory (measured: speed is flat from 2,000 on).
EVALUATION_TOKENS = 8192
# Of an int32 token id the bit that says that it stands in its sequence's second segment; no vocabulary is so large.
SEGMENT = 1 << 30


@dataclass
class Batch:
    """n rows of one task: S = n sentences or joint pairs, S = 2n for pairs encoded separately, S = 3n for both.

    ids: the rows' ids. input_ids: (S, T), 0 at padding. layout: which of them are real. labels: (n,) or None.
    token_type_ids: (S, T) of joint pairs, 1 in the second segment, else 0; None: all are 0.
    Where a frozen encoder ran before, one of: states, packed hidden states (R, H); features, a pooler's (S, F), which
    are all that is needed, so that input_ids and layout are None.
    """

    task: Task
    ids: list[str]
    input_ids: torch.Tensor | None
    layout: Layout | None
    labels: torch.Tensor | None
    states: tuple[torch.Tensor, ...] | None = None
    features: torch.Tensor | None = None
    token_type_ids: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> int:
        """Real tokens, [CLS] and [SEP] counted. A batch of features has none."""
        return self.layout.rows.numel()

    @property
    def encoded(self) -> bool:
        """Whether the encoder has run before."""
        return self.states is not None or self.features is not None

    @property
    def device(self) -> torch.device:
        return (self.input_ids if self.features is None else self.features).device

    @property
    def loss_is_mean(self) -> bool:
        """Whether the loss is a mean over the rows, so that it may be taken part by part."""
        return self.task.loss in MEANS

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The task's loss, a scalar, for outputs (n, ...) and labels (n,): this batch's, or the batch it is part of."""
        return LOSSES[self.task.loss](outputs, labels)

    def pinned(self) -> Batch:
        """The same batch in memory that a GPU copies from without waiting. Needs CUDA."""
        return pin(self)

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        if device.type == "cpu":
            return self

        def move(tensor):
            return None if tensor is None else tensor.to(device, non_blocking=True)

        return replace(
            self,
            input_ids=move(self.input_ids),
            layout=None if self.layout is None else self.layout.to(device),
            labels=move(self.labels),
            states=None if self.states is None else tuple(move(state) for state in self.states),
            features=move(self.features),
            token_type_ids=move(self.token_type_ids),
        )


def pin(value):
    """Every tensor in a tuple or dataclass, at any depth, in pinned memory. Needs CUDA."""
    if isinstance(value, torch.Tensor):
        return value.pin_memory()
    if isinstance(value, tuple):
        return tuple(pin(part) for part in value)
    if isinstance(value, Batch | Layout | Group):
        return replace(value, **{field.name: pin(getattr(value, field.name)) for field in fields(value)})
    return value


def prepared(make: Callable[[Item], Made], items: Iterable[Item], ahead: int = 2) -> Iterator[Made]:
    """make(item) for every item, in order, the next `ahead` of them computed in another thread meanwhile.

    An exception in `make` is raised where its result is asked for. Leaving the loop early leaves no thread behind.
    """
    with ThreadPoolExecutor(1) as thread:
        waiting: deque = deque()
        try:
            for item in items:
                waiting.append(thread.submit(make, item))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def split_segments(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Ids with their SEGMENT bits -> (ids, token_type_ids); None where all tokens stand in the first segment."""
    types = ids >> 30
    return (ids & (SEGMENT - 1), types) if types.any() else (ids, None)


def _joined(
    tokenizer: BertTokenizer, first: list[str], second: list[str], max_length: int | None
) -> tuple[list[np.ndarray], int]:
    """Every pair as one sequence, SEGMENT added to its second segment's ids, and how many were cut."""
    found = tokenizer.encode_batch(first, second, max_length=max_length)
    return [ids + SEGMENT * types for ids, types in zip(found.ids, found.type_ids, strict=True)], found.truncated


class TaskData:
    """One file's rows, tokenized; after `read_from`, with what a frozen encoder makes of them.

    sentences: for each side of a row, one to three, the token ids of every row; of joint pairs one, SEGMENT added to
    the second segment's ids. swapped: those with the second sentence first, where they are read so in half the epochs.
    truncated: how many were cut, the longer sentence of a joint pair first.
    """

    def __init__(
        self,
        task: Task,
        table: Table,
        tokenizer: BertTokenizer,
        max_length: int | None = None,
        pair_encoding: str | None = None,
        swap_seed: int | None = None,
    ):
        """max_length: None is the model's. pair_encoding: joint, separate or both; None is the task's own.

        swap_seed: `parts` swaps the sentences of joint pairs, each in about half the epochs, drawn from this seed and
        the epoch; None: never.
        """
        self.task, self.table, self.encoding = task, table, task.encoding(pair_encoding)
        self.max_length = tokenizer.model_max_length if max_length is None else max_length
        self.ids = [example.id for example in table]
        first = [example.sentence for example in table]
        second = [example.second for example in table] if task.is_pair else None
        sides = () if self.encoding == "joint" else (first, second)
        sides = [tokenizer.encode_batch(side, max_length=max_length) for side in sides if side is not None]
        self.sentences, self.truncated = [side.ids for side in sides], sum(side.truncated for side in sides)
        if self.encoding != "separate":
            joined, truncated = _joined(tokenizer, first, second, max_length)
            self.sentences, self.truncated = [*self.sentences, joined], self.truncated + truncated
        self.swap_seed = swap_seed if self.encoding != "separate" else None
        self.swapped = None if self.swap_seed is None else _joined(tokenizer, second, first, max_length)[0]
        self.lengths = np.array([[len(ids) for ids in side] for side in self.sentences]).sum(axis=0)  # tokens a row
        labels = [example.label for example in table]
        dtype = torch.long if task.label_kind == "class" else torch.float32
        self.labels = None if labels[0] is None else torch.tensor(labels, dtype=dtype)
        self.store: Store | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> int:
        """Real tokens of the whole file."""
        return int(self.lengths.sum())

    def read_from(self, store: Store | None) -> None:
        """Batches carry from now on what the store has of their sentences; None: their ids alone again."""
        self.store = store
        self.places = [] if store is None else [store.find(side) for side in self.sentences]  # (rows,) each

    def batch(self, rows: np.ndarray, swaps: np.ndarray | None = None) -> Batch:
        """The batch of these rows. swaps: (rows of the file,) bool, which joint pairs are read in the other order."""
        rows = np.asarray(rows)
        ids, labels = [self.ids[row] for row in rows], None
        if self.labels is not None:
            labels = self.labels[torch.from_numpy(rows)]
        places = None if self.store is None else np.concatenate([side[rows] for side in self.places])  # (S,)
        if places is not None and not self.store.keeps_tokens:
            return Batch(self.task, ids, None, None, labels, features=self.store.features(places))
        *sides, last = self.sentences
        sentences = [side[row] for side in sides for row in rows]
        sentences += [self.swapped[row] if swaps is not None and swaps[row] else last[row] for row in rows]
        lengths = np.array([len(ids) for ids in sentences])
        padded = np.zeros((len(sentences), lengths.max()), dtype=np.int64)
        real = np.arange(padded.shape[1]) < lengths[:, None]  # (S, T)
        padded[real] = np.concatenate(sentences)
        layout = Layout.of(torch.from_numpy(real))
        states = None if places is None else self.store.states(places, lengths, layout)
        input_ids, types = split_segments(torch.from_numpy(padded))
        return Batch(self.task, ids, input_ids, layout, labels, states, token_type_ids=types)

    def parts(self, rows: np.ndarray, most: int | None, device: torch.device, epoch: int | None = None) -> list[Batch]:
        """The batch of these rows cut into batches of at most `most` rows (None: as it is), ready for `device`.

        epoch: the one that asks, in each of which other joint pairs are swapped, if any; None: as they stand.
        """
        if not len(rows):
            return []
        swaps = None
        if self.swapped is not None and epoch is not None:
            swaps = np.random.default_rng((self.swap_seed, epoch)).random(len(self)) < 0.5
        found = [self.batch(part, swaps) for part in np.array_split(rows, -(-len(rows) // (most or len(rows))))]
        return [part.pinned() for part in found] if device.type == "cuda" else found

    def chunks(self, batch_size: int) -> Iterator[np.ndarray]:
        """Every row once, for evaluation: longest first, so that a batch holds rows of similar length."""
        order = np.argsort(-self.lengths, kind="stable")
        start = 0
        while start < len(order):
            longest = int(self.lengths[order[start]])
            stop = start + max(1, min(batch_size, EVALUATION_TOKENS // longest))
            yield order[start:stop]
            start = stop
