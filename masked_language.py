"""Masked language modelling: tokens hidden from BERT, and the head that guesses them from its last layer.

Devlin et al. 2018 (arXiv 1810.04805, section 3.1 and appendix A.1); as a second term of contrastive training it is
SimCSE's (Gao, Yao and Chen 2021, arXiv 2104.08821, section 6.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from batches import pin
from bert import ACTIVATIONS, BertModel
from errors import InputError
from packed import Layout
from tokenizer import BertTokenizer

CHOSEN = 0.15  # share of the tokens that are to be guessed
MASKED, RANDOM = 0.8, 0.1  # of these: hidden behind [MASK], another token in their place; the rest stay as they are


@dataclass(frozen=True)
class Masked:
    """B sentences with some tokens hidden. input_ids: (B, T). rows: (M,) the packed rows to guess. ids: (M,) what
    stood there."""

    input_ids: torch.Tensor
    layout: Layout
    rows: torch.Tensor
    ids: torch.Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def pinned(self) -> Masked:
        """The same in memory that a GPU copies from without waiting. Needs CUDA."""
        return Masked(pin(self.input_ids), pin(self.layout), pin(self.rows), pin(self.ids))

    def to(self, device: torch.device) -> Masked:
        move = lambda tensor: tensor.to(device, non_blocking=True)  # noqa: E731
        return Masked(move(self.input_ids), self.layout.to(device), move(self.rows), move(self.ids))


class Masking:
    """Hides tokens, each time others, and the same for the same (seed, epoch, row)."""

    def __init__(self, tokenizer: BertTokenizer, seed: int):
        """Raises InputError for a vocabulary without [MASK]."""
        if tokenizer.mask_token_id is None:
            raise InputError("the vocabulary has no [MASK], behind which tokens are hidden: choose another --model")
        self.seed, self.size, self.mask = seed, len(tokenizer), tokenizer.mask_token_id
        names = ("pad", "unk", "cls", "sep", "mask")
        self.specials = np.array([getattr(tokenizer, f"{name}_token_id") for name in names])

    def hide(self, ids: np.ndarray, epoch: int, row: int, side: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Token ids of a sentence -> what the model reads, and which places were chosen (bool); never a special one.

        Of the chosen 80 % become [MASK], 10 % a token drawn from the whole vocabulary, 10 % stay.
        """
        random = np.random.default_rng([self.seed, epoch, row, side])
        chosen = (random.random(len(ids)) < CHOSEN) & ~np.isin(ids, self.specials)
        what = random.random(len(ids))
        hidden = np.where(chosen & (what < MASKED), self.mask, ids)
        drawn = random.integers(0, self.size, len(ids))
        return np.where(chosen & (MASKED <= what) & (what < MASKED + RANDOM), drawn, hidden), chosen


class MaskedLanguageHead(nn.Module):
    """Scores for every token of the vocabulary: dense, activation, LayerNorm, then the word embeddings transposed."""

    def __init__(self, bert: BertModel):
        super().__init__()
        config = bert.config
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.activation = ACTIVATIONS[config.hidden_act]
        nn.init.normal_(self.dense.weight, std=config.initializer_range)
        nn.init.zeros_(self.dense.bias)

    def load_from(self, state: dict[str, torch.Tensor]) -> bool:
        """Take the checkpoint's head, where it has one that fits; returns whether."""
        names = {
            "dense.weight": "transform.dense.weight",
            "dense.bias": "transform.dense.bias",
            "LayerNorm.weight": "transform.LayerNorm.weight",
            "LayerNorm.bias": "transform.LayerNorm.bias",
            "bias": "bias",
        }
        renamed = {name.replace("gamma", "weight").replace("beta", "bias"): t for name, t in state.items()}
        found = {ours: renamed.get(f"cls.predictions.{theirs}") for ours, theirs in names.items()}
        wanted = self.state_dict()
        for name, tensor in found.items():
            if tensor is None or tensor.shape != wanted[name].shape or not tensor.is_floating_point():
                return False
        self.load_state_dict(found)
        return True

    def forward(self, hidden: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        """(M, H) hidden states and the word embeddings (vocabulary, H) -> scores (M, vocabulary)."""
        return F.linear(self.LayerNorm(self.activation(self.dense(hidden))), embeddings, self.bias)


def masked_language_loss(bert: BertModel, head: MaskedLanguageHead, masked: Masked) -> torch.Tensor:
    """The SUM over the hidden tokens of -log softmax(scores)[token], a scalar, 0 where none is hidden.

    A sum, so that parts of a batch add up whatever number of tokens each has.
    """
    hidden = bert.encode(masked.input_ids, masked.layout)[-1].index_select(0, masked.rows)  # (M, H)
    scores = head(hidden, bert.embeddings.word_embeddings.weight)
    return F.cross_entropy(scores.float(), masked.ids, reduction="sum")
