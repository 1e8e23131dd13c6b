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


class Pooler(nn.Module):
    """What every pooler is. To add one, derive it from this class and write one of two things:

    - `features` and, where something is learned, `transform`: for a pooler that learns only behind what it takes from
      the tokens. With a frozen encoder the features of a sentence, not its tokens, are then computed once and kept.
    - `forward`: for a pooler whose own weights decide what it takes from the tokens (attention). It has no features,
      and a frozen encoder's tokens are kept for it.

    layers_wanted: how many hidden states it reads, counted from the last. Heads hand on one today, the encoder's last
    or, behind attention layers, theirs; `make_pooler` refuses what reads more.
    first_token_only: whether it reads nothing but the first token of each sentence, so that no other need be computed.
    """

    layers_wanted = 1
    first_token_only = False

    def __init__(self, hidden_size: int):
        """hidden_size: H, of the hidden states and of the result."""
        super().__init__()

    @property
    def has_features(self) -> bool:
        """Whether it is a transform of features, so that these are all it needs."""
        return type(self).forward is Pooler.forward

    def features(self, layers: tuple[torch.Tensor, ...], mask: torch.Tensor) -> torch.Tensor:
        """What it takes from the tokens, (B, F): without parameters, dropout or any other chance."""
        raise NotImplementedError(f"{type(self).__name__} defines neither features nor forward: write one of them")

    def transform(self, features: torch.Tensor) -> torch.Tensor:
        """(B, F) -> (B, H). Here it changes nothing."""
        return features

    def forward(self, layers: tuple[torch.Tensor, ...], mask: torch.Tensor) -> torch.Tensor:
        """(B, T, H) each, (B, T) -> (B, H)."""
        return self.transform(self.features(layers, mask))


class FirstToken(Pooler):
    """The last layer at [CLS], as it is."""

    first_token_only = True

    def features(self, layers: tuple[torch.Tensor, ...], mask: torch.Tensor) -> torch.Tensor:
        return layers[-1][:, 0]


class BERTPooler(FirstToken):
    """tanh(W h_[CLS] + b), with the checkpoint's W and b where it has them (Devlin et al. 2018)."""

    def __init__(self, hidden_size: int):
        super().__init__(hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def load_from(self, encoder) -> None:
        """Start from the encoder's own pooler. In `pretrain` these weights stay as they are: they were pretrained."""
        self.dense.load_state_dict(encoder.pooler.dense.state_dict())

    def transform(self, features: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(features))


class MeanTokens(Pooler):
    """Mean over the real tokens of the last layer, [CLS] and [SEP] counted."""

    def features(self, layers: tuple[torch.Tensor, ...], mask: torch.Tensor) -> torch.Tensor:
        return masked_mean(layers[-1], mask)


# Adding a pooler is one class above and one line here.
POOLERS: dict[str, type[Pooler]] = {
    "first": FirstToken,
    "cls": BERTPooler,
    "mean": MeanTokens,
}


def make_pooler(name: str, hidden_size: int) -> Pooler:
    """The pooler of that name. Raises InputError for an unknown one, listing the known."""
    if name not in POOLERS:
        raise InputError(f"--pooler {name}: not known; known: {', '.join(POOLERS)}")
    pooler = POOLERS[name](hidden_size)
    if pooler.layers_wanted != 1:
        raise InputError(
            f"--pooler {name}: reads {pooler.layers_wanted} hidden states, and heads hand on the last alone: choose "
            f"another of {', '.join(POOLERS)}"
        )
    return pooler
