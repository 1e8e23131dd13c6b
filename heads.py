"""Heads: attention layers x pooler x output map, composed for a task.

Jia 2024 (Stanford CS 224N poster) for the output maps and the attention layers; poolers from poolers.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F

from errors import InputError, quoted
from ordinal import THRESHOLD_LOSSES, CoralOutput, class_scores
from packed import Layout, dropout
from poolers import POOLERS, make_pooler
from task_attention import ATTENTION_LAYERS
from tasks import Task

PAIR_SCORES = ("calibrated", "dot", "cosine")
TOKENS = "tokens"
MOST_LAYERS = 99


@dataclass(frozen=True)
class HeadConfig:
    """What a head is made of.

    attention_layers: how many of the poster's layers. attention_init: default or uniform. pooler: a name of
    poolers.POOLERS. dropout_prob: in the attention layers' add & norm, and before the output map (attention weights
    have AttentionLayer's). pair_score: dot is the poster's logit <W a, W b>; calibrated adds a learned offset where the
    label is yes or no, see TaskHead.calibrate, and is dot elsewhere; cosine is a learned
    multiple of cos(a, b), so that training begins with what the encoder knows, and a linear map of |a - b| and a * b.
    joint: a pair comes as one sequence, to which self-attention and a linear map are applied as to a single sentence.
    both: as two sentences and as one sequence, which the map is given, too. loss: what it is trained to
    lower, which decides what its outputs are; None is the task's own. attention_ffn: whether each attention layer has a
    feed-forward block, too. pooler_options: of the pooler's options those that are not to be the default.
    """

    attention_layers: int
    attention_init: str = "default"
    pooler: str = "first"
    dropout_prob: float = 0.3
    pair_score: str = "calibrated"
    joint: bool = False
    loss: str | None = None
    attention_ffn: bool = False
    pooler_options: dict[str, str] = field(default_factory=dict)
    both: bool = False

    @property
    def pair_encoding(self) -> str:
        return "both" if self.both else "joint" if self.joint else "separate"

    def __post_init__(self):
        layers, p = self.attention_layers, self.dropout_prob
        if not isinstance(layers, int) or isinstance(layers, bool) or not 0 <= layers <= MOST_LAYERS:
            raise InputError(f"attention_layers is {quoted(layers)}; wanted a whole number from 0 to {MOST_LAYERS}")
        if not isinstance(p, int | float) or not 0 <= p <= 1:
            raise InputError(f"dropout_prob is {p!r}; wanted a probability from 0 to 1")
        for name, value in (
            ("pooler", self.pooler),
            ("attention_init", self.attention_init),
            ("pair_score", self.pair_score),
        ):
            if not isinstance(value, str):
                raise InputError(f"{name} is {quoted(value)}; wanted a name")
        for name, value in (("joint", self.joint), ("both", self.both), ("attention_ffn", self.attention_ffn)):
            if not isinstance(value, bool):
                raise InputError(f"{name} is {value!r}; wanted true or false")
        if not isinstance(self.pooler_options, dict):
            raise InputError(f"pooler_options is {self.pooler_options!r}; wanted option: value")
        if self.both and layers:
            raise InputError(
                "--pair_encoding both: the attention layers take pairs one way: say --attention 0, for pairs at least"
            )


class TaskHead(nn.Module):
    """From a batch's token encodings to a task's outputs."""

    def __init__(
        self, task: Task, hidden_size: int, attention_heads: int, config: HeadConfig, encoder_layers: int = 12
    ):
        """hidden_size, attention_heads, encoder_layers (BERT-base's if not given): the encoder's."""
        super().__init__()
        task = task.with_loss(config.loss)
        self.task, self.config = task, config
        self.two = task.is_pair and not config.joint
        kind = ATTENTION_LAYERS[task.attention[0] if self.two else "self"]
        self.attention = nn.ModuleList(
            kind(hidden_size, attention_heads, config.dropout_prob, feed_forward=config.attention_ffn)
            for _ in range(config.attention_layers)
        )
        for layer in self.attention:
            layer.initialize(config.attention_init)
        self.pooler = make_pooler(config.pooler, hidden_size, encoder_layers, **config.pooler_options)
        if config.pair_score not in PAIR_SCORES:
            raise InputError(f"--pair_score {config.pair_score}: not known; known: {', '.join(PAIR_SCORES)}")
        # One linear map. For a pair without output_size the same map W serves both sentences: the score is <W a, W b>.
        scored = self.two and task.output_size is None
        self.cosine = scored and config.pair_score == "cosine"
        self.dot = scored and not self.cosine
        if self.dot and config.both:
            raise InputError("--pair_encoding both: <W a, W b> has no place for the third: say --pair_score cosine")
        given = hidden_size
        if self.two and not self.dot:
            given *= (2 if self.cosine else 3) + config.both
        size = task.output_multiple * hidden_size if self.dot else task.output_shape(1)[-1]
        self.output = CoralOutput(given, task.output_size) if task.loss == "coral" else nn.Linear(given, size)
        # A correlation has no use for an offset, so only a score that is compared with zero gets one.
        calibrated = scored and task.label_kind == "binary" and config.pair_score != "dot"
        self.offset = nn.Parameter(torch.zeros(())) if calibrated else None
        self.scale = nn.Parameter(torch.ones(())) if self.cosine else None
        if self.cosine:  # the map has no say before it has learned
            nn.init.zeros_(self.output.weight)
            nn.init.zeros_(self.output.bias)

    def forward(
        self,
        states: tuple[torch.Tensor, ...] | None,
        layout: Layout | None,
        features: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Packed hidden states (R, H) of S sentences -> outputs of n rows: S, of separate pairs S / 2, of both S / 3.

        They are class logits (n, C), or one score a row (n,). A pair's score is <W a, W b>, or for pair_score cosine
        c cos(a, b) + W [|a - b|; a * b]; with an output_size, W is given [a; b; |a - b|], the classifier of Reimers and
        Gurevych 2019 (arXiv 1908.10084, section 3). Of pairs encoded both ways, W is given the joint sequence, too.

        features: (S, F) as `features` gives them, where they were kept; then states and layout are not read.
        """
        vectors = self.represent(states, layout) if features is None else self.pooler.transform(features)  # (S, H)
        if self.cosine:
            first, second = vectors.chunk(2 + self.config.both, dim=0)[:2]
            cosine = self.scale * F.cosine_similarity(first, second, dim=-1)  # (n,)
        p = self.config.dropout_prob
        if self.dot:
            first, second = self.output(dropout(vectors, p, self.training)).chunk(2, dim=0)
            scores = (first * second).sum(dim=-1)  # (n,)
            return scores if self.offset is None else scores + self.offset
        if self.two:
            first, second, *joint = vectors.chunk(2 + self.config.both, dim=0)
            given = [(first - second).abs(), first * second] if self.cosine else [first, second, (first - second).abs()]
            vectors = torch.cat([*given, *joint], dim=-1)  # (n, 2H to 4H)
        # Here and not before: |a - b| of two vectors with other entries dropped is larger than what is seen later.
        vectors = dropout(vectors, p, self.training)
        outputs = self.output(vectors)
        if self.cosine:
            scores = cosine + outputs[:, 0]
            return scores if self.offset is None else scores + self.offset
        return outputs.view(self.task.output_shape(len(outputs)))

    def class_logits(self, outputs: torch.Tensor) -> torch.Tensor:
        """A class head's outputs as (n, C), the largest of which is the predicted class, whatever the loss."""
        return class_scores(self.task.loss, outputs) if self.task.loss in THRESHOLD_LOSSES else outputs

    @torch.no_grad()
    def calibrate(
        self,
        states: tuple[torch.Tensor, ...] | None,
        layout: Layout | None,
        positive: float,
        features: torch.Tensor | None = None,
    ) -> None:
        """Set the score's scale and offset from some pairs: deviation 1, around the log odds of `positive`.

        Similar sentences have a large positive score <W a, W b> whatever W is (about 100 for the embedded weights after
        a cross-attention layer). A model trained from there first makes every score small, and stays above zero: with
        the mean of the tokens it calls nearly all pairs paraphrases (results/poster.md). positive: the share of
        positive labels, in (0, 1). Heads without an offset or a scale are left alone, and so is the scale where the
        pairs' scores don't differ.
        """
        if not self.begins_calibrated:
            return
        was_training = self.training
        self.eval()
        scores = self.forward(states, layout, features)
        deviation = scores.std(correction=min(1, len(scores) - 1))
        if deviation > 1e-5 * scores.abs().max():  # or else it is rounding, and one pair has none
            if self.cosine:
                self.scale.div_(deviation)
            else:  # quadratic in (W, b): to divide the score by the deviation, W and b are divided by its square root
                self.output.weight.mul_(deviation.rsqrt())
                self.output.bias.mul_(deviation.rsqrt())
        if self.offset is not None:
            self.offset.zero_()
            self.offset.copy_(math.log(positive / (1 - positive)) - self.forward(states, layout, features).mean())
        self.train(was_training)

    @property
    def begins_calibrated(self) -> bool:
        """Whether `calibrate` has something to set."""
        return self.offset is not None or self.scale is not None

    @property
    def class_bias(self) -> nn.Parameter | None:
        """What is added to every row's logits, (C,) of classes, () or (1,) of a binary score.

        None where nothing is, or outputs are no log odds: of a correlation, or of a loss with a scale of its own.
        """
        if self.task.loss not in ("cross_entropy", "binary_cross_entropy"):
            return None
        return self.offset if self.dot or self.cosine else self.output.bias

    @property
    def first_token_only(self) -> bool:
        """Whether the encoder's output is read at every sentence's first token alone."""
        return self.pooler.first_token_only and not self.attention

    @property
    def layers_wanted(self) -> int | None:
        """How many of the encoder's hidden states it is called with, counted from the last; None: all L + 1."""
        return self.pooler.layers_wanted

    @property
    def reads(self) -> str:
        """What of the encoder's output determines this head's: tokens, or the name of the pooler for its features.

        A frozen encoder's output need not be kept beyond that.
        """
        if self.attention or not self.pooler.has_features:
            return TOKENS if self.layers_wanted == 1 else f"{TOKENS} of {self.layers_wanted or 'all'} layers"
        kind = type(self.pooler)
        return f"{kind.__module__}.{kind.__qualname__}"

    def features(self, states: tuple[torch.Tensor, ...], layout: Layout) -> torch.Tensor:
        """The pooler's features (S, F) of packed hidden states, for a head that reads no more."""
        return self.pooler.features(*self._pooled(states, layout))

    def represent(self, states: tuple[torch.Tensor, ...], layout: Layout) -> torch.Tensor:
        """The sentence vectors (S, H)."""
        return self.pooler(*self._pooled(states, layout))

    def weigh(self, states: tuple[torch.Tensor, ...], layout: Layout) -> torch.Tensor:
        """How much the pooler takes of each token, (S, T); 0 at padding. Raises InputError for one that weighs none."""
        if not hasattr(self.pooler, "weigh"):
            name, layers = self.task.name, self.task.attention[1] or 1
            kinds = ", ".join(f"{name}={kind}" for kind, made in POOLERS.items() if hasattr(made, "weigh"))
            raise InputError(
                f"pooler {self.config.pooler} of {name} weighs no tokens: train with --pooler {kinds}, or with "
                f"attention layers, --attention {name}={layers}"
            )
        return self.pooler.weigh(*self._pooled(states, layout))

    def attention_weights(self, states: tuple[torch.Tensor, ...], layout: Layout) -> list[torch.Tensor]:
        """Of each attention layer, first to last, what AttentionLayer.weights gives: (S, N, T, T)."""
        hidden, found = states[-1], []
        for layer in self.attention:
            found.append(layer.weights(hidden, layout))
            hidden = layer(hidden, layout)
        return found

    def _pooled(
        self, states: tuple[torch.Tensor, ...], layout: Layout
    ) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """What the pooler is called with: the hidden states, the last one behind the attention layers, and the mask."""
        hidden = states[-1]  # (R, H)
        for layer in self.attention[:-1]:
            hidden = layer(hidden, layout)
        if self.pooler.first_token_only:  # then the rest of the last layer's output would be thrown away
            if self.attention:
                firsts = self.attention[-1](hidden, layout, first_only=True)  # (S, H)
            else:
                firsts = hidden.index_select(0, layout.first)
            return (firsts[:, None],), firsts.new_ones(len(firsts), 1)
        if self.attention:
            hidden = self.attention[-1](hidden, layout)
        return (*(layout.unpack(s) for s in states[:-1]), layout.unpack(hidden)), layout.real()

    def linear_parameters(self) -> int:
        """Weights of the linear maps without biases: what the poster's Table 2 counts."""
        maps = [module for module in self.modules() if isinstance(module, nn.Linear)]
        return sum(linear.weight.numel() for linear in maps)
