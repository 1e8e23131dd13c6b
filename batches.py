"""Batches: rows of a task, tokenized once a run, put together on the CPU with all the encoder needs to know.

A pair that is encoded separately stands in its batch as two sentences: all first ones, then all second ones in the same
order, so that one encoder call serves both (the siamese encoding of Reimers and Gurevych 2019, arXiv 1908.10084).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from datasets import Table
from packed import Layout
from tasks import Task
from tokenizer import BertTokenizer

# More tokens than this in an evaluation batch only cost memory (measured: speed is flat from 2,000 on).
EVALUATION_TOKENS = 8192


@dataclass
class Batch:
    """n rows of one task: S = n sentences, or S = 2n for pairs.

    ids: the rows' ids. input_ids: (S, T), 0 at padding. layout: which of them are real. labels: (n,) or None.
    states: packed hidden states (R, H) where the encoder ran before (frozen encoder), else None.
    """

    task: Task
    ids: list[str]
    input_ids: torch.Tensor
    layout: Layout
    labels: torch.Tensor | None
    states: tuple[torch.Tensor, ...] | None = None

    @property
    def tokens(self) -> int:
        """Real tokens, [CLS] and [SEP] counted."""
        return self.layout.rows.numel()

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        if device.type == "cpu":
            return self
        labels = None if self.labels is None else self.labels.to(device, non_blocking=True)
        states = None if self.states is None else tuple(s.to(device, non_blocking=True) for s in self.states)
        input_ids = self.input_ids.to(device, non_blocking=True)
        return Batch(self.task, self.ids, input_ids, self.layout.to(device), labels, states)


class TaskData:
    """One file's rows, tokenized. `encodings` may be set to an frozen.Store; then batches carry its hidden states."""

    def __init__(self, task: Task, table: Table, tokenizer: BertTokenizer, max_length: int | None = None):
        self.task, self.table = task, table
        self.max_length = max_length or tokenizer.model_max_length
        self.ids = [example.id for example in table]
        first = tokenizer.encode_batch([example.sentence for example in table], max_length=max_length)
        self.sentences = [first.ids]
        self.truncated = first.truncated
        if task.is_pair:
            second = tokenizer.encode_batch([example.second for example in table], max_length=max_length)
            self.sentences.append(second.ids)
            self.truncated += second.truncated
        self.lengths = np.array([[len(ids) for ids in side] for side in self.sentences]).sum(axis=0)  # tokens a row
        labels = [example.label for example in table]
        dtype = torch.long if task.label_kind == "class" else torch.float32
        self.labels = None if labels[0] is None else torch.tensor(labels, dtype=dtype)
        self.encodings = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> int:
        """Real tokens of the whole file."""
        return int(self.lengths.sum())

    def batch(self, rows: np.ndarray) -> Batch:
        """The batch of these rows."""
        sentences = [side[row] for side in self.sentences for row in rows]
        lengths = np.array([len(ids) for ids in sentences])
        padded = np.zeros((len(sentences), lengths.max()), dtype=np.int64)
        real = np.arange(padded.shape[1]) < lengths[:, None]  # (S, T)
        padded[real] = np.concatenate(sentences)
        layout = Layout.of(torch.from_numpy(real))
        labels = None if self.labels is None else self.labels[torch.from_numpy(np.asarray(rows))]
        states = None if self.encodings is None else self.encodings.states(sentences, layout)
        return Batch(self.task, [self.ids[row] for row in rows], torch.from_numpy(padded), layout, labels, states)

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """Every row once, for evaluation: longest first, so that a batch holds rows of similar length."""
        order = np.argsort(-self.lengths, kind="stable")
        start = 0
        while start < len(order):
            longest = int(self.lengths[order[start]])
            stop = start + max(1, min(batch_size, EVALUATION_TOKENS // longest))
            yield self.batch(order[start:stop])
            start = stop
