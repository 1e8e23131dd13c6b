"""Layer-wise attention pooling: every layer's first token looks over every layer's mean.

Oh, Kim, Lee, Huang and Lim 2022, "Don't Judge a Language Model by Its Last Layer" (COLING 2022, arXiv 2209.05972). The
text is followed, not the authors' code, which takes the last layer off its caller's list. RReLU is Xu et al.'s
(arXiv 1505.00853), with torch.nn.RReLU's slopes.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from pooling import Pooler

# The slope below zero: in training drawn for every number from between the two, afterwards their mean, 11/48.
LEAST_SLOPE, MOST_SLOPE = 1 / 8, 1 / 3
MEAN_SLOPE = (LEAST_SLOPE + MOST_SLOPE) / 2


def rrelu(x: torch.Tensor, training: bool) -> torch.Tensor:
    """Randomized leaky ReLU of every number: x where it is positive, elsewhere x times a slope."""
    if not training:
        return F.leaky_relu(x, MEAN_SLOPE)
    # Written out: torch's own is there neither for every 16-bit type nor for every device.
    return torch.where(x < 0, x * torch.empty_like(x).uniform_(LEAST_SLOPE, MOST_SLOPE), x)


class LayerAttention(Pooler):
    """tanh(W [c_L; t] + b), W H x 2H, over all L + 1 hidden states, the embedding output among them (Oh et al. 2022).

    c_i is layer i at [CLS], a_j layer j's mean over the real tokens, [CLS] and [SEP] counted. With maps of H x H
    without bias and phi = RReLU,

        q_i = phi(Wq c_i)   k_j = phi(Wk a_j)   v_j = phi(Wv a_j)
        t = mean over i of sum_j alpha_ij v_j,   alpha_ij = softmax over j of (k_j . q_i) / (L + 1)

    In training RReLU's slopes are random; in evaluation mode nothing is. Features are the same whatever the options, so
    what was kept of a frozen encoder serves all of them: each layer's [CLS] and mean.
    """

    layers_wanted = None
    options = {
        "activation": ("rrelu", "rrelu_mean", "none"),
        "scale": ("layers", "sqrt"),
        "query": ("all", "last"),
        "embedding_layer": ("yes", "no"),
    }

    def __init__(
        self,
        hidden_size: int,
        activation: str = "rrelu",
        scale: str = "layers",
        query: str = "all",
        embedding_layer: str = "yes",
    ):
        """activation: phi; rrelu_mean has RReLU's mean slope in training, too.

        scale: what k . q is divided by, the number of layers that are attended to or sqrt(H). query: whose [CLS] asks,
        every layer's or the last one's. embedding_layer: whether the embedding output is among the layers; without it
        they are L.
        """
        super().__init__(hidden_size)
        self.hidden_size, self.activation, self.scale = hidden_size, activation, scale
        self.all_ask, self.first_layer = query == "all", 0 if embedding_layer == "yes" else 1
        self.query, self.key, self.value = (nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(3))
        self.dense = nn.Linear(2 * hidden_size, hidden_size)

    def features(self, layers: tuple[torch.Tensor, ...], mask: torch.Tensor) -> torch.Tensor:
        """c_0 to c_L, then a_0 to a_L, side by side: (B, 2 (L + 1) H)."""
        states = torch.cat(tuple(layers), dim=2)  # (B, T, (L + 1) H)
        mean = mask.to(torch.promote_types(states.dtype, torch.float32))  # (B, T)
        mean = mean / mean.sum(dim=1, keepdim=True).clamp(min=1.0)
        first = torch.zeros_like(mean)
        first[:, 0] = 1.0
        # Both are weighted sums over the tokens. The weights of a mean add up to 1, so float16 has place for the sums.
        with torch.autocast(states.device.type, enabled=False):
            return (torch.stack([first, mean], dim=1).to(states.dtype) @ states).flatten(1)

    def transform(self, features: torch.Tensor) -> torch.Tensor:
        first, means = self._split(features)
        weights = self.weigh_layers(features)
        attended = (weights.unsqueeze(-1) * self.phi(self.value(means))).sum(dim=1)  # (B, H)
        return torch.tanh(self.dense(torch.cat([first[:, -1], attended.to(features.dtype)], dim=1)))

    def weigh_layers(self, features: torch.Tensor) -> torch.Tensor:
        """What each layer's value counts for, the mean over i of alpha_ij: (B, layers), a row's sum is 1."""
        first, means = self._split(features)
        queries = self.phi(self.query(first if self.all_ask else first[:, -1:]))
        keys = self.phi(self.key(means))
        divisor = keys.shape[1] if self.scale == "layers" else math.sqrt(self.hidden_size)
        wide = torch.promote_types(keys.dtype, torch.float32)  # float16 has no place for every dot product
        with torch.autocast(features.device.type, enabled=False):
            scores = queries.to(wide) @ keys.to(wide).mT / divisor  # (B, queries, layers)
        return torch.softmax(scores, dim=2).mean(dim=1)

    def phi(self, x: torch.Tensor) -> torch.Tensor:
        if self.activation == "none":
            return x
        return rrelu(x, self.training and self.activation == "rrelu")

    def _split(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[CLS] and mean of every layer that is attended to: (B, layers, H) each."""
        both = features.unflatten(1, (2, -1, self.hidden_size))
        return both[:, 0, self.first_layer :], both[:, 1, self.first_layer :]
