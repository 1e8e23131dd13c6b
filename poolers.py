"""Poolers: from one vector a token to one vector a sentence.

The mean follows Reimers and Gurevych 2019 (arXiv 1908.10084), the tanh of [CLS] is BERT's own (arXiv 1810.04805).
Every pooler is called with (layers, mask): `layers` holds hidden states (B, T, H), the last layer last; `mask` (B, T)
is 1 at real tokens, never optional, so that padding cannot leak in. It returns (B, H).
"""

from __future__ import annotations

import torch
from torch import nn

from errors import InputError


def masked_mean(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over the real tokens: (B, T, H), (B, T) -> (B, H). A row without a real token gives zeros, never NaN."""
    weights = mask.unsqueeze(-1).to(hidden.dtype)  # (B, T, 1)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)


class FirstToken(nn.Module):
    """The last layer at [CLS], as it is. Reads the last layer."""

    first_token_only = True

    def __init__(self, hidden_size: int):
        super().__init__()

    def forward(self, layers: tuple[torch.Tensor, ...], mask: torch.Tensor) -> torch.Tensor:
        return layers[-1][:, 0]


class BERTPooler(nn.Module):
    """tanh(W h_[CLS] + b), with the checkpoint's W and b where it has them (Devlin et al. 2018).

    Reads the last layer.
    """

    first_token_only = True

    def __init__(self, hidden_size: int):
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)

    def load_from(self, encoder) -> None:
        """Start from the encoder's own pooler. In `pretrain` these weights stay as they are: they were pretrained."""
        self.dense.load_state_dict(encoder.pooler.dense.state_dict())

    def forward(self, layers: tuple[torch.Tensor, ...], mask: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(layers[-1][:, 0]))


class MeanTokens(nn.Module):
    """Mean over the real tokens of the last layer, [CLS] and [SEP] counted."""

    first_token_only = False

    def __init__(self, hidden_size: int):
        super().__init__()

    def forward(self, layers: tuple[torch.Tensor, ...], mask: torch.Tensor) -> torch.Tensor:
        return masked_mean(layers[-1], mask)


# Adding a pooler is one class above and one line here.
POOLERS = {
    "first": FirstToken,
    "cls": BERTPooler,
    "mean": MeanTokens,
}


def make_pooler(name: str, hidden_size: int) -> nn.Module:
    """The pooler of that name. An unknown name is an error that lists the known."""
    if name not in POOLERS:
        raise InputError(f"--pooler {name}: not known; known: {', '.join(POOLERS)}")
    return POOLERS[name](hidden_size)
