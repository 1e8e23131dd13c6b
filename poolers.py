"""Poolers: from one vector a token to one vector a sentence.

The mean follows Reimers and Gurevych 2019 (arXiv 1908.10084), the tanh of [CLS] is google-research/bert's modeling.py,
mean_max and attentive_cls are those of Lee, Park, Seo and Kim 2021 (course report on poolers for GLUE); each class
names its source. Every pooler is called with (layers, mask): `layers` holds hidden states (B, T, H), the last layer
last; `mask` (B, T) is 1 at real tokens, never optional, so that padding cannot leak in. It returns (B, H).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from errors import InputError
from layer_attention import LayerAttention
from pooling import Pooler, masked_max, masked_mean

TOP = 3  # values a dimension that top_k averages: more come close to the mean, one is the maximum


class FirstToken(Pooler):
    """The last layer at [CLS], as it is; no other token counts."""

    first_token_only = True

    def features(self, layers: tuple[torch.Tensor, ...], mask: torch.Tensor) -> torch.Tensor:
        return layers[-1][:, 0]


class BERTPooler(FirstToken):
    """tanh(W h_[CLS] + b), with the checkpoint's W and b where it has them.

    google-research/bert, modeling.py; the paper (arXiv 1810.04805) takes h_[CLS] as it is. Reads the last layer; no
    token but [CLS] counts.
    """

    def __init__(self, hidden_size: int):
        super().__init__(hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def load_from(self, encoder) -> None:
        """Start from the encoder's own pooler. In `pretrain` these weights stay as they are: they were pretrained."""
        self.dense.load_state_dict(encoder.pooler.dense.state_dict())

    def transform(self, features: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(features))


class MeanTokens(Pooler):
    """Mean over the real tokens of the last layer, [CLS] and [SEP] counted (Reimers and Gurevych 2019)."""

    def features(self, layers: tuple[torch.Tensor, ...], mask: torch.Tensor) -> torch.Tensor:
        return masked_mean(layers[-1], mask)


class MaxTokens(Pooler):
    """The largest value of each dimension over the real tokens of the last layer, [CLS] and [SEP] counted.

    Their MAX strategy in Reimers and Gurevych 2019 (arXiv 1908.10084, section 3).
    """

    def features(self, layers: tuple[torch.Tensor, ...], mask: torch.Tensor) -> torch.Tensor:
        return masked_max(layers[-1], mask)


class MeanMaxTokens(Pooler):
    """tanh(W [mean; max] + b) of the last layer, W H x 2H, [CLS] and [SEP] counted (Lee, Park, Seo and Kim 2021).

    The formula of the homework that they cite has a sum in place of the mean, and no mask; they found the sum worse.
    """

    def __init__(self, hidden_size: int):
        super().__init__(hidden_size)
        self.dense = nn.Linear(2 * hidden_size, hidden_size)

    def features(self, layers: tuple[torch.Tensor, ...], mask: torch.Tensor) -> torch.Tensor:
        return torch.cat([masked_mean(layers[-1], mask), masked_max(layers[-1], mask)], dim=1)  # (B, 2H)

    def transform(self, features: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(features))


class AttentiveCLS(Pooler):
    """tanh(W [h_[CLS]; sum_i a_i h_i] + b), W H x 2H, of the last layer (Lee, Park, Seo and Kim 2021).

    a is the softmax, over the real tokens other than [CLS] ([SEP] counted), of one linear map H -> 1 divided by
    sqrt(H). A sentence of [CLS] alone has nothing to weigh: its sum is zero. Their text is followed, not their code,
    whose softmax runs over the batch.
    """

    def __init__(self, hidden_size: int):
        super().__init__(hidden_size)
        self.score = nn.Linear(hidden_size, 1, bias=False)  # a softmax takes no notice of an offset
        self.dense = nn.Linear(2 * hidden_size, hidden_size)

    def weigh(self, layers: tuple[torch.Tensor, ...], mask: torch.Tensor) -> torch.Tensor:
        """The weights a, (B, T) float32: 0 at [CLS] and at padding, a row's sum is 1 (0 where [CLS] is alone)."""
        scores = self.score(layers[-1]).flatten(1).float() / math.sqrt(layers[-1].shape[-1])  # (B, T)
        weighed = mask.bool() & (torch.arange(mask.shape[1], device=mask.device) > 0)
        # Not minus infinity: a row of nothing else has no softmax.
        scores = scores.masked_fill(~weighed, torch.finfo(scores.dtype).min)
        return torch.softmax(scores, dim=1) * weighed

    def forward(self, layers: tuple[torch.Tensor, ...], mask: torch.Tensor) -> torch.Tensor:
        hidden = layers[-1]
        attended = (self.weigh(layers, mask).unsqueeze(-1) * hidden).sum(dim=1).to(hidden.dtype)  # (B, H)
        return torch.tanh(self.dense(torch.cat([hidden[:, 0], attended], dim=1)))


class FirstLast(Pooler):
    """Mean of the first and the last layer's means over the real tokens, [CLS] and [SEP] counted.

    "First-last-avg" of Su et al. 2021 (arXiv 2103.15316), of the first LAYER. Gao et al. 2021 (SimCSE, arXiv
    2104.08821) took the embedding output for it, which is worse; later versions of their code don't.
    """

    layers_wanted = None

    def features(self, layers: tuple[torch.Tensor, ...], mask: torch.Tensor) -> torch.Tensor:
        return (masked_mean(layers[1], mask) + masked_mean(layers[-1], mask)) / 2


class LastTwo(Pooler):
    """Mean of the last two layers' means over the real tokens, [CLS] and [SEP] counted.

    The baseline of Li et al. 2020 (BERT-flow, arXiv 2011.05864).
    """

    layers_wanted = 2

    def features(self, layers: tuple[torch.Tensor, ...], mask: torch.Tensor) -> torch.Tensor:
        return (masked_mean(layers[-2], mask) + masked_mean(layers[-1], mask)) / 2


class ConcatLastFour(Pooler):
    """tanh(W [m_(L-3); m_(L-2); m_(L-1); m_L] + b), W H x 4H: means over the real tokens, [CLS] and [SEP] counted.

    The last four layers side by side are the best features in Devlin et al. 2018 (arXiv 1810.04805, section 5.3), who
    read them at single tokens; W and tanh bring them to one size with the other poolers.
    """

    layers_wanted = 4

    def __init__(self, hidden_size: int):
        super().__init__(hidden_size)
        self.dense = nn.Linear(4 * hidden_size, hidden_size)

    def features(self, layers: tuple[torch.Tensor, ...], mask: torch.Tensor) -> torch.Tensor:
        return torch.cat([masked_mean(layer, mask) for layer in layers[-4:]], dim=1)  # (B, 4H)

    def transform(self, features: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(features))


class TopK(Pooler):
    """Mean of each dimension's three largest values over the real tokens of the last layer, [CLS] and [SEP] counted.

    k-max pooling (Kalchbrenner et al. 2014, arXiv 1404.2188), averaged; of shorter sentences all tokens' values.
    """

    def features(self, layers: tuple[torch.Tensor, ...], mask: torch.Tensor) -> torch.Tensor:
        hidden, real = layers[-1], mask.bool()
        count = real.sum(dim=1).clamp(max=TOP)  # (B,)
        k = min(TOP, hidden.shape[1])
        largest = hidden.masked_fill(~real.unsqueeze(-1), -math.inf).topk(k, dim=1).values.float()  # (B, k, H)
        there = torch.arange(k, device=count.device) < count[:, None]  # (B, k): the rest is padding
        total = largest.masked_fill(~there.unsqueeze(-1), 0.0).sum(dim=1)
        return (total / count.clamp(min=1)[:, None]).to(hidden.dtype)


class WeightedLayers(Pooler):
    """gamma * sum_j softmax(s)_j m_j over all L + 1 hidden states, the embedding output among them.

    m_j is layer j's mean over the real tokens, [CLS] and [SEP] counted; s and gamma are learned, from even weights and
    1 (the "scalar mix" of Peters et al. 2018, ELMo, arXiv 1802.05365, equation 1).
    """

    layers_wanted = None

    def __init__(self, hidden_size: int, states: int):
        super().__init__(hidden_size)
        self.layer_scores = nn.Parameter(torch.zeros(states))
        self.gamma = nn.Parameter(torch.ones(()))

    @classmethod
    def build(cls, hidden_size: int, encoder_layers: int) -> Pooler:
        return cls(hidden_size, encoder_layers + 1)

    def features(self, layers: tuple[torch.Tensor, ...], mask: torch.Tensor) -> torch.Tensor:
        return torch.cat([masked_mean(layer, mask) for layer in layers], dim=1)  # (B, (L + 1) H)

    def transform(self, features: torch.Tensor) -> torch.Tensor:
        means = features.unflatten(1, (len(self.layer_scores), -1))  # (B, L + 1, H)
        weights = torch.softmax(self.layer_scores, dim=0)
        return self.gamma * (weights[:, None] * means).sum(dim=1)


class GeneralizedMean(Pooler):
    """(mean_i max(h_i, eps)^p)^(1/p) over the real tokens of the last layer, [CLS] and [SEP] counted; p is learned.

    GeM of Radenovic et al. 2017 (arXiv 1711.02512), whose features are not negative: so of each dimension only the
    positive side counts here, too. p = 1 + e^q begins at 3, as there, and stays above 1: between the mean and, for
    large p, the maximum.
    """

    eps = 1e-6

    def __init__(self, hidden_size: int):
        super().__init__(hidden_size)
        self.log_excess = nn.Parameter(torch.tensor(math.log(2.0)))

    @property
    def power(self) -> torch.Tensor:
        return 1.0 + self.log_excess.float().exp()

    def forward(self, layers: tuple[torch.Tensor, ...], mask: torch.Tensor) -> torch.Tensor:
        real = mask.bool().unsqueeze(-1)  # (B, T, 1)
        values = layers[-1].float().clamp(min=self.eps).masked_fill(~real, self.eps)
        # Powers of numbers up to 1 do not overflow, and the scale drops out of the result.
        scale = values.detach().amax(dim=1, keepdim=True)  # (B, 1, H)
        mean = masked_mean((values / scale).pow(self.power), mask).clamp(min=self.eps)
        return (scale.squeeze(1) * mean.pow(1.0 / self.power)).to(layers[-1].dtype)


# Adding a pooler is one class above and one line here.
POOLERS: dict[str, type[Pooler]] = {
    "first": FirstToken,
    "cls": BERTPooler,
    "mean": MeanTokens,
    "max": MaxTokens,
    "mean_max": MeanMaxTokens,
    "attentive_cls": AttentiveCLS,
    "first_last": FirstLast,
    "last_two": LastTwo,
    "concat_last4": ConcatLastFour,
    "top_k": TopK,
    "weighted_layers": WeightedLayers,
    "gem": GeneralizedMean,
    "layer_attention": LayerAttention,
}


def make_pooler(name: str, hidden_size: int, encoder_layers: int = 12, /, **options: str) -> Pooler:
    """The pooler of that name, for an encoder of so many layers (default: BERT-base's).

    options: those of its options (`Pooler.options`) that are not to be the default.
    Raises InputError for an unknown pooler or option, listing the known, and for a pooler that reads more layers than
    there are.
    """
    resolved = resolve_options(name, options)
    wanted = POOLERS[name].layers_wanted
    if wanted is not None and wanted > encoder_layers:
        raise InputError(
            f"--pooler {name}: reads the last {wanted} layers, and this encoder has {encoder_layers}: choose another "
            f"of {', '.join(POOLERS)}"
        )
    return POOLERS[name].build(hidden_size, encoder_layers, **resolved)


def resolve_options(name: str, options: dict[str, str] | None = None) -> dict[str, str]:
    """Every option of the pooler of that name: as given, the others their defaults; {} for a pooler that has none.

    Raises InputError for an unknown pooler, option or value, listing the known.
    """
    if name not in POOLERS:
        raise InputError(f"--pooler {name}: not known; known: {', '.join(POOLERS)}")
    known, given = POOLERS[name].options, options or {}
    for option, value in given.items():
        if not known:
            others = ", ".join(other for other, kind in POOLERS.items() if kind.options)
            raise InputError(
                f"--pooler_options {option}={value}: pooler {name} takes none: leave it out, or choose {others}"
            )
        if value not in known.get(option, ()):
            raise InputError(f"--pooler_options {option}={value}: not known; {_takes(name)}")
    return {option: given.get(option, values[0]) for option, values in known.items()}


def resolve_each(names: Iterable[str], options: dict[str, str] | None = None) -> dict[str, dict[str, str]]:
    """Pooler -> every option of it, as resolve_options says; what is given is for those that take any.

    Raises InputError as resolve_options does; also where none of several takes any.
    """
    unique = list(dict.fromkeys(names))
    taking = [name for name in unique if name in POOLERS and POOLERS[name].options] or unique
    return {name: resolve_options(name, options if name in taking else None) for name in unique}


def describe_options() -> str:
    """`layer_attention takes activation=rrelu|none, ...`: what `--pooler_options` may say of which pooler."""
    return "; ".join(_takes(name) for name, kind in POOLERS.items() if kind.options)


def _takes(name: str) -> str:
    values = ", ".join(f"{option}={'|'.join(values)}" for option, values in POOLERS[name].options.items())
    return f"{name} takes {values}"


def parse_options(text: str | None) -> dict[str, str]:
    """`query=last,scale=sqrt` -> {"query": "last", "scale": "sqrt"}, for `resolve_options` to judge.

    Raises InputError for what has no such form, and for an option that is named twice.
    """
    found: dict[str, str] = {}
    for part in text.split(",") if text is not None else ():
        option, equals, value = (word.strip() for word in part.partition("="))
        if not (option and equals and value):
            raise InputError(f"--pooler_options {text}: {part!r} is not understood; wanted OPTION=VALUE,OPTION=VALUE")
        if option in found:
            raise InputError(f"--pooler_options {text}: {option} is named twice; name each option once")
        found[option] = value
    return found
