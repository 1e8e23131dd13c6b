"""What every pooler is made of: mean and maximum over the real tokens, and the class to derive one from.

The mean of the tokens as a sentence's vector follows Reimers and Gurevych 2019 (arXiv 1908.10084); the poolers
themselves are in poolers.py and layer_attention.py.
"""

from __future__ import annotations

import torch
from torch import nn


def masked_mean(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over the real tokens: (B, T, H), (B, T) -> (B, H). A row without a real token gives zeros, never NaN.

    Summed in float32 at least: in float16 the sum over a long text has no place.
    """
    weights = mask.unsqueeze(-1).to(torch.float32)  # (B, T, 1)
    return ((hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)).to(hidden.dtype)


def masked_max(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The largest value of each dimension over the real tokens: (B, T, H), (B, T) -> (B, H).

    A row without a real token gives zeros.
    """
    real = mask.bool()
    largest = hidden.masked_fill(~real.unsqueeze(-1), torch.finfo(hidden.dtype).min).amax(dim=1)  # (B, H)
    return largest.masked_fill(~real.any(dim=1, keepdim=True), 0.0)


class Pooler(nn.Module):
    """What every pooler is. To add one, derive it from this class and write one of two things:

    - `features` and, where something is learned, `transform`: for a pooler that learns only behind what it takes from
      the tokens. With a frozen encoder the features of a sentence, not its tokens, are then computed once and kept.
    - `forward`: for a pooler whose own weights decide what it takes from the tokens (attention). It has no features,
      and a frozen encoder's tokens are kept for it.

    layers_wanted: how many hidden states it is called with, counted from the last; None: all L + 1, the embedding
    output first. Behind attention layers they are the encoder's, the last one replaced by the attention layers' output.
    first_token_only: whether it reads nothing but the first token of each sentence, so that no other need be computed.
    options: what can be chosen, name -> the values, its default first; `__init__` takes them as keyword arguments.
    Features may not depend on them.
    """

    layers_wanted: int | None = 1
    first_token_only = False
    options: dict[str, tuple[str, ...]] = {}

    def __init__(self, hidden_size: int):
        """hidden_size: H, of the hidden states and of the result."""
        super().__init__()

    @classmethod
    def build(cls, hidden_size: int, encoder_layers: int, **options: str) -> Pooler:
        """One for an encoder of L = encoder_layers layers, for those whose parameters depend on it."""
        return cls(hidden_size, **options)

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
