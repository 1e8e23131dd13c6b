"""Contrastive training's model, batches and gradient: encoder, pooler, and what is thrown away after training.

SimCSE (Gao, Yao and Chen 2021, arXiv 2104.08821): two passes of one sentence under different dropout are a pair; its
[CLS] model has a dense layer with tanh in training only. Batches larger than memory through gradients.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from batches import pin
from contrastive_data import Contrast
from contrastive_loss import Objective, contrastive_loss
from distributed import ALONE, Processes
from gradients import Gradients
from masked_language import Masked, MaskedLanguageHead, Masking, masked_language_loss
from packed import Layout
from sentence_encoder import SentenceEncoder, pad, padded, sentence_vectors


@dataclass
class ContrastiveBatch:
    """n rows of V sentences each: V = 2, or 3 with hard negatives.

    input_ids: (V n, T), all first sentences, then all second ones, and so on. layout: which tokens are real. labels:
    (n, V), equal where two are the same sentence. masked: the rows' sentences once more, with tokens hidden.
    """

    input_ids: torch.Tensor
    layout: Layout
    labels: torch.Tensor
    objective: Objective
    masked: Masked | None = None

    loss_is_mean = False  # over the rows it is one, but each row's part needs the whole batch

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        return self.input_ids.device

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """outputs (n, V, H), labels (n, V): this batch's, or those of the batch it is part of."""
        return contrastive_loss(outputs, labels, self.objective)

    def pinned(self) -> ContrastiveBatch:
        """The same batch in memory that a GPU copies from without waiting. Needs CUDA."""
        masked = None if self.masked is None else self.masked.pinned()
        tensors = {"input_ids": pin(self.input_ids), "layout": pin(self.layout), "labels": pin(self.labels)}
        return replace(self, **tensors, masked=masked)

    def to(self, device: torch.device) -> ContrastiveBatch:
        if device.type == "cpu":
            return self
        return replace(
            self,
            input_ids=self.input_ids.to(device, non_blocking=True),
            layout=self.layout.to(device),
            labels=self.labels.to(device, non_blocking=True),
            masked=None if self.masked is None else self.masked.to(device),
        )


class ContrastiveRows:
    """Rows to contrast, tokenized: each distinct text once.

    ids: where each row stands. lengths: (rows,) tokens of a row, every view counted. truncated: texts that were cut.
    """

    def __init__(
        self,
        data: Contrast,
        encoder: SentenceEncoder,
        max_length: int,
        objective: Objective,
        masking: Masking | None = None,
        passes: int = 2,
    ):
        """passes: how often a sentence alone goes through the model; twice, it is its own pair."""
        self.ids, self.objective, self.masking = data.ids, objective, masking
        numbers: dict[str, int] = {}
        texts = np.array([[numbers.setdefault(text, len(numbers)) for text in row] for row in data.rows])
        found = encoder.tokenizer.encode_batch(list(numbers), max_length=max_length)
        self.tokens, self.truncated = found.ids, found.truncated
        self.texts = texts  # (rows, width): which of the distinct texts
        # Texts that the model reads the same are the same sentence.
        names: dict[bytes, int] = {}
        same = np.array([names.setdefault(ids.tobytes(), len(names)) for ids in self.tokens])
        views = [0] * passes if data.width == 1 else range(data.width)
        self.views = texts[:, list(views)]  # (rows, V)
        self.labels = torch.from_numpy(same[self.views])
        self.lengths = np.array([len(ids) for ids in self.tokens])[self.views].sum(axis=1)

    def __len__(self) -> int:
        return len(self.ids)

    def parts(self, rows: np.ndarray, most: int | None, device: torch.device, epoch: int = 0) -> list[ContrastiveBatch]:
        """The batch of these rows cut into batches of at most `most` rows (None or 0: as it is), for `device`."""
        if not len(rows):
            return []
        found = [self.batch(part, epoch) for part in np.array_split(rows, -(-len(rows) // (most or len(rows))))]
        return [part.pinned() for part in found] if device.type == "cuda" else found

    def batch(self, rows: np.ndarray, epoch: int = 0) -> ContrastiveBatch:
        """The batch of these rows; the epoch says which tokens are hidden."""
        input_ids, layout = padded([self.tokens[text] for text in self.views[rows].T.flat])
        masked = None if self.masking is None else self._masked(rows, epoch)
        return ContrastiveBatch(input_ids, layout, self.labels[torch.from_numpy(rows)], self.objective, masked)

    def _masked(self, rows: np.ndarray, epoch: int) -> Masked:
        """Every sentence of these rows once, with tokens hidden."""
        hidden = [
            self.masking.hide(self.tokens[text], epoch, int(row), side)
            for row in rows
            for side, text in enumerate(self.texts[row])
        ]
        input_ids, layout = padded([ids for ids, _ in hidden])
        chosen, _ = pad([chosen for _, chosen in hidden])
        true_ids, _ = pad([self.tokens[text] for text in self.texts[rows].flat])
        places = torch.nonzero(layout.pack(torch.from_numpy(chosen))).flatten()
        return Masked(input_ids, layout, places, layout.pack(torch.from_numpy(true_ids))[places])


class ContrastiveModel(nn.Module):
    """What learns. dense, masked_head: None, or what only training has."""

    def __init__(self, encoder: SentenceEncoder, dense: bool = False, masked_head: MaskedLanguageHead | None = None):
        super().__init__()
        self.bert, self.pooler, self.masked_head = encoder.bert, encoder.pooler, masked_head
        self.bert.pooler.requires_grad_(False)  # BERT's own is not asked
        size = encoder.dimension
        self.dense = nn.Linear(size, size) if dense else None
        if dense:
            nn.init.normal_(self.dense.weight, std=encoder.bert.config.initializer_range)
            nn.init.zeros_(self.dense.bias)
        self.autocast: torch.dtype | None = None  # the 16-bit type of matrix products; None: float32

    @property
    def device(self) -> torch.device:
        return self.bert.embeddings.word_embeddings.weight.device

    def _autocast(self):
        return torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None)

    def outputs(self, batch: ContrastiveBatch) -> torch.Tensor:
        """The vectors that are contrasted, (n, V, H) float32."""
        with self._autocast():
            vectors = sentence_vectors(self.bert, self.pooler, batch.input_ids, batch.layout)  # (V n, H)
            if self.dense is not None:
                vectors = torch.tanh(self.dense(vectors))
        return vectors.float().unflatten(0, (-1, len(batch))).transpose(0, 1)

    def masked_loss(self, masked: Masked) -> torch.Tensor:
        """The sum over the hidden tokens, see masked_language_loss."""
        with self._autocast():
            return masked_language_loss(self.bert, self.masked_head, masked)


class ContrastiveGradients(Gradients):
    """The gradient of the contrastive loss, if `contrast`, and with `masked_weight` that of the masked-language-model
    term: its mean over all hidden tokens of the whole batch, whatever parts and processes they are in."""

    def __init__(
        self,
        device: torch.device,
        outputs: Callable,
        scale: Callable = lambda loss: loss,
        processes: Processes = ALONE,
        contrast: bool = True,
        masked_loss: Callable[[Masked], torch.Tensor] | None = None,
        masked_weight: float = 0.0,
    ):
        super().__init__(device, outputs, scale, processes)
        self.contrast, self.masked_loss, self.masked_weight = contrast, masked_loss, masked_weight

    def backward(self, parts: list[ContrastiveBatch], counts: list[int]) -> torch.Tensor:
        loss = super().backward(parts, counts) if self.contrast else torch.zeros((), device=self.device)
        if not self.masked_weight:
            return loss
        hidden = [part.masked for part in parts if len(part.masked)]
        total = self.processes.add(torch.full((), float(sum(map(len, hidden))), device=self.device))
        term = torch.zeros((), device=self.device)
        for masked in hidden:
            part = self.masked_weight * self.masked_loss(masked) / total
            self.scale(part).backward()
            term += part.detach()
        return loss + self.processes.add(term)
