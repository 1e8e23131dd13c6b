"""BERT, written out: embeddings, self-attention, Transformer layers, and the model that stacks them.

Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers" (arXiv 1810.04805), on the encoder of
Vaswani et al. 2017, "Attention Is All You Need" (arXiv 1706.03762). Parameter names are those of Hugging Face's
checkpoints, so that any BERT encoder loads.

Shapes, here and wherever a file has no letters of its own:
    B sentences   T tokens of the longest sentence   H hidden size   N attention heads   D = H / N head size   L layers
    R real tokens of a whole batch (padding left out; see packed.py)
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import as_written
import state_dicts
import weights
from errors import InputError, quoted
from files import read_json, write_json
from fused import layer_by_hand, look_up, runs_by_hand
from packed import SWITCHES, Layout, add_dropout, dropout, packed_attention

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": torch.tanh,
}


# More than any BERT has, and few enough that a product of two is a size that torch can count.
MOST, MOST_LAYERS = 1 << 24, 1000


@dataclass(frozen=True)
class BertConfig:
    """The numbers that make one BERT differ from another. Defaults are bert-base-uncased's."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0

    def __post_init__(self):
        if self.hidden_act not in ACTIVATIONS:
            raise InputError(f"hidden_act {self.hidden_act!r} is not known; known: {', '.join(ACTIVATIONS)}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            most = MOST_LAYERS if field.name == "num_hidden_layers" else MOST
            if field.type == "int" and field.name != "pad_token_id" and not 1 <= value <= most:
                raise InputError(f"{field.name} is {quoted(value)}; wanted 1 or more, at most {most:,}")
            if field.name.endswith("_prob") and not 0 <= value <= 1:
                raise InputError(f"{field.name} is {value}; wanted a probability from 0 to 1")
        if not 0 <= self.initializer_range <= 1:
            raise InputError(f"initializer_range is {quoted(self.initializer_range)}; wanted 0 to 1")
        if not 0 < self.layer_norm_eps <= 1:  # at 0 a constant vector's normalization is 0 / 0
            raise InputError(f"layer_norm_eps is {quoted(self.layer_norm_eps)}; wanted more than 0, and at most 1")
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        if not 0 <= self.pad_token_id < self.vocab_size:
            raise InputError(f"pad_token_id {self.pad_token_id} is outside the vocabulary of {self.vocab_size}")

    @classmethod
    def from_dict(cls, values: dict, source: str = "config") -> BertConfig:
        """Read Hugging Face's config.json; keys we do not use are ignored, an architecture we are not is refused.

        Raises InputError, naming the source, the key and what was found, for a value that no BERT can have.
        """
        remedy = "choose a BERT checkpoint, or copy the config.json that belongs to these weights"
        if not isinstance(values, dict):
            raise InputError(f"{source}: an object {{...}} is wanted: {remedy}")
        for name, wanted in (("model_type", "bert"), ("position_embedding_type", "absolute")):
            if values.get(name, wanted) != wanted:
                raise InputError(f"{source}: {name} is {values[name]!r}; only {wanted!r} can be loaded here: {remedy}")
        types = {"int": (int,), "float": (int, float), "str": (str,)}
        words = {"int": "a whole number", "float": "a number", "str": "a name"}
        known = {field.name: field.type for field in dataclasses.fields(cls)}
        kept = {name: value for name, value in values.items() if name in known and value is not None}
        for name, value in kept.items():
            if not isinstance(value, types[known[name]]) or isinstance(value, bool):
                raise InputError(f"{source}: {name} is {value!r}; wanted {words[known[name]]}: {remedy}")
        try:
            return cls(**kept)
        except InputError as error:
            raise InputError(f"{source}: {error}: {remedy}") from error

    @classmethod
    def from_pretrained(cls, name_or_folder: str | Path) -> BertConfig:
        """The config.json of a folder or of a known name."""
        return cls.from_folder(weights.find(name_or_folder).path)

    @classmethod
    def from_folder(cls, folder: Path, **overrides) -> BertConfig:
        """The config.json of a folder; overrides replace its numbers."""
        path = folder / "config.json"
        values = read_json(path)
        return cls.from_dict({**values, **overrides} if isinstance(values, dict) else values, str(path))

    def to_dict(self) -> dict:
        return {"architectures": ["BertModel"], "model_type": "bert", **dataclasses.asdict(self)}


class BertEmbeddings(nn.Module):
    """Word + position + segment, normalized: the first hidden state."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout_prob = config.hidden_dropout_prob

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, token_type_ids: torch.Tensor | None
    ) -> torch.Tensor:
        """Ids of any shape S, with positions and segment ids that broadcast to it -> S + (H,).

        No segment ids: all 0.
        """
        embedded = look_up(self.word_embeddings, input_ids) + self.position_embeddings(positions)
        if token_type_ids is None:
            embedded = embedded + self.token_type_embeddings.weight[0]
        else:
            embedded = embedded + self.token_type_embeddings(token_type_ids)
        return dropout(self.LayerNorm(embedded), self.dropout_prob, self.training)


class BertSelfAttention(nn.Module):
    """Every token looks at every token of its sentence: softmax(Q K^T / sqrt(D)) V, in N heads side by side."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout_prob = config.attention_probs_dropout_prob

    def split_heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2)  # (B, T, H) -> (B, N, T, D)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | Layout,
        firsts: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(B, T, H) with the additive mask (B, 1, 1, T) (0 where real, very negative where padding) -> (B, T, H);
        or the packed form: (R, H) with a Layout -> (R, H), or with the rows of the first tokens (B, H) -> (B, H)."""
        query = self.query(hidden_states if firsts is None else firsts)
        key, value = self.key(hidden_states), self.value(hidden_states)
        if isinstance(attention_mask, Layout):
            heads, p, first_only = self.num_attention_heads, self.dropout_prob, firsts is not None
            return packed_attention(query, key, value, attention_mask, heads, p, self.training, first_only)  # likewise
        query, key, value = self.split_heads(query), self.split_heads(key), self.split_heads(value)  # (B, N, T, D)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])  # (B, N, T, T): row = who asks
        probs = torch.softmax(scores + attention_mask, dim=-1)  # padding keys get weight 0
        context = dropout(probs, self.dropout_prob, self.training) @ value  # (B, N, T, D)
        return context.transpose(1, 2).flatten(2)  # (B, T, H)


class BertSelfOutput(nn.Module):
    """Mix the heads, then add & norm."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout_prob = config.hidden_dropout_prob

    def forward(self, context: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(add_dropout(residual, self.dense(context), self.dropout_prob, self.training))


class BertAttention(nn.Module):
    """Self-attention with its output map (the two are one block in the checkpoint's names)."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.self = BertSelfAttention(config)
        self.output = BertSelfOutput(config)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | Layout, first_only: bool = False
    ) -> torch.Tensor:
        if first_only:  # the first tokens ask, all tokens answer
            firsts = hidden_states.index_select(0, attention_mask.first)  # (B, H)
            return self.output(self.self(hidden_states, attention_mask, firsts), firsts)
        return self.output(self.self(hidden_states, attention_mask), hidden_states)


class BertIntermediate(nn.Module):
    """The wide half of the feed-forward block."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation_name = config.hidden_act
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.activation(self.dense(hidden_states))  # (..., H) -> (..., 4H)


class BertOutput(nn.Module):
    """The narrow half of the feed-forward block, then add & norm."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(config.intermediate_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout_prob = config.hidden_dropout_prob

    def forward(self, wide: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(add_dropout(residual, self.dense(wide), self.dropout_prob, self.training))


class BertLayer(nn.Module):
    """One Transformer layer: attention moves information between tokens, the feed-forward block works on each alone."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.config = config
        self.attention = BertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = BertOutput(config)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | Layout, first_only: bool = False
    ) -> torch.Tensor:
        """(B, T, H) with the additive mask (B, 1, 1, T) -> (B, T, H); or packed: (R, H) with a Layout -> (R, H).

        first_only, of the packed form alone: -> (B, H), each sentence's first token, in the order of the batch. Of the
        linear maps only those for keys and values then run over all rows.
        """
        if runs_by_hand(self, hidden_states, attention_mask):
            return layer_by_hand(self, hidden_states, attention_mask, first_only)  # the same, faster: see as_written.py
        attended = self.attention(hidden_states, attention_mask, first_only)
        return self.output(self.intermediate(attended), attended)


class BertEncoder(nn.Module):
    """The stack of L layers, which BertModel.encode goes through."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.layer = nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))


class BertPooler(nn.Module):
    """tanh(W h_[CLS] + b): the sentence vector of next-sentence prediction."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(hidden_states[:, 0]))  # (B, T, H) -> (B, H)


def additive_mask(attention_mask: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """(B, T) ones and zeros -> (B, 1, 1, T) zeros and the most negative number: what is added to attention scores."""
    return (1.0 - attention_mask[:, None, None, :].to(dtype)) * torch.finfo(dtype).min


class BertModel(nn.Module):
    """The encoder: token ids in, one vector a token out.

    The layers run on the (R, H) matrix of real tokens; padding is put back at the end, as zeros. So a sentence's
    encoding does not depend on what it shares a batch with, and no time is spent on padding.
    """

    def __init__(self, config: BertConfig):
        super().__init__()
        self.config = config
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)
        self.pooler = BertPooler(config)
        self.has_pooler = True  # False where weights were loaded that have none
        self.apply(self._initialize)

    def reinitialize(self, layers: int) -> None:
        """Give the last `layers` layers weights as before any training (Zhang et al. 2021, arXiv 2006.05987).

        The paper's does the same to the pooler, which stays as it is here. Raises InputError where there are fewer.
        """
        if layers > len(self.encoder.layer):
            raise InputError(f"--reinitialize {layers}: the model has {len(self.encoder.layer)} layers: give fewer")
        for layer in self.encoder.layer[len(self.encoder.layer) - layers :]:
            layer.load_state_dict(BertLayer(self.config).apply(self._initialize).state_dict())

    def _initialize(self, module: nn.Module) -> None:
        """Hugging Face's: weights from N(0, initializer_range), in BERT's own code truncated; the rest 0, norms 1."""
        if isinstance(module, nn.Linear | nn.Embedding):
            module.weight.data.normal_(mean=0.0, std=self.config.initializer_range)
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            module.weight.data[module.padding_idx].zero_()
        if isinstance(module, nn.Linear):
            module.bias.data.zero_()

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> dict[str, torch.Tensor | tuple[torch.Tensor, ...]]:
        """Encode a padded batch.

        input_ids, attention_mask (1 real, 0 padding), token_type_ids (segment; all 0 if absent): (B, T) integers.
        Returns last_hidden_state (B, T, H), zeros at padding; pooler_output (B, H); and, asked for, hidden_states:
        L + 1 tensors (B, T, H), the embedding output first.
        Raises ValueError for more tokens than positions, for an id outside the vocabulary (on a CPU), for a sentence
        without a real token, for shapes that do not fit.
        """
        if input_ids.dim() != 2:
            raise ValueError(f"input_ids must be (B, T), got {tuple(input_ids.shape)}")
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        layout = Layout.of(attention_mask).to(input_ids.device)
        states = self.encode(input_ids, layout, token_type_ids, keep=None if output_hidden_states else 1)
        states = tuple(layout.unpack(state) for state in states)  # (R, H) -> (B, T, H)
        output = {"last_hidden_state": states[-1], "pooler_output": self.pooler(states[-1])}
        if output_hidden_states:
            output["hidden_states"] = states
        return output

    def encode(
        self,
        input_ids: torch.Tensor,
        layout: Layout,
        token_type_ids: torch.Tensor | None = None,
        keep: int | None = 1,
        first_only: bool = False,
    ) -> tuple[torch.Tensor, ...]:
        """What `forward` does, on the packed rows: (B, T) ids and their layout, on one device -> hidden states (R, H).

        keep: so many states, the last ones, or None for all L + 1, the embedding output first. first_only: the last
        layer's at each sentence's first token alone, (B, H) in the order of the batch, for whoever reads no more.
        Raises what `forward` raises.
        """
        self._check(input_ids, layout, token_type_ids)
        layers = self.encoder.layer
        packing = SWITCHES.packing and as_written.takes_packed(layers) and as_written.packing(self.config)
        cut = first_only and packing and SWITCHES.first_only and as_written.first_only(self.config)
        if packing:
            positions, mask = layout.positions, layout
            input_ids = layout.pack(input_ids)  # (B, T) -> (R,)
            token_type_ids = None if token_type_ids is None else layout.pack(token_type_ids)
        else:  # the plain form, to compare with
            positions = torch.arange(input_ids.shape[1], device=input_ids.device)
            mask = additive_mask(layout.real(), self.embeddings.LayerNorm.weight.dtype)
        states = [self.embeddings(input_ids, positions, token_type_ids)]  # (R, H), or (B, T, H) with packing off
        for layer in layers:
            hidden = (
                layer(states[-1], mask, first_only=True) if cut and layer is layers[-1] else layer(states[-1], mask)
            )
            states = [*states, hidden][0 if keep is None else -keep :]
        if not packing:
            states = [layout.pack(state) for state in states]
        if first_only and not cut:
            states[-1] = states[-1].index_select(0, layout.first)
        return tuple(states)

    def _check(self, input_ids: torch.Tensor, layout: Layout, token_type_ids: torch.Tensor | None) -> None:
        types = None if token_type_ids is None else tuple(token_type_ids.shape)
        for name, shape in (("attention_mask", (layout.batch, layout.width)), ("token_type_ids", types)):
            if shape is not None and shape != tuple(input_ids.shape):
                raise ValueError(f"{name} is {shape} but input_ids are {tuple(input_ids.shape)}")
        limit = self.config.max_position_embeddings
        if input_ids.shape[1] > limit:
            raise ValueError(
                f"input of {input_ids.shape[1]} tokens, but the model has {limit} positions: "
                "tokenize with truncation=True, or split the text"
            )
        # Looking at values would make a GPU wait, and there the embedding kernel checks; a CPU look costs nothing.
        for name, ids, size in (
            ("token id", input_ids, self.config.vocab_size),
            ("token type", token_type_ids, self.config.type_vocab_size),
        ):
            if ids is not None and ids.device.type == "cpu" and ids.numel():
                low, high = ids.min().item(), ids.max().item()
                if low < 0 or high >= size:
                    found = high if high >= size else low
                    raise ValueError(f"{name} {found} is outside the {size} of this model: wrong tokenizer?")

    @classmethod
    def from_pretrained(cls, name_or_folder: str | Path | None = None, **overrides) -> BertModel:
        """Load weights by known name or folder (see weights.py), in evaluation mode, as Hugging Face does.

        overrides replace numbers of the config (say hidden_dropout_prob=0.0). Old `gamma`/`beta` names, a `bert.`
        prefix and extra heads are understood; missing or misshapen encoder weights raise InputError with their names.
        A missing pooler is left at its initialization, since sentence models often ship without.
        """
        folder = weights.find(name_or_folder).path
        return cls.from_state(BertConfig.from_folder(folder, **overrides), state_dicts.read_state(folder), str(folder))

    @classmethod
    def from_state(cls, config: BertConfig, state: dict[str, torch.Tensor], source: str) -> BertModel:
        """The model of a config with a checkpoint's weights, in evaluation mode. Raises InputError as load_checkpoint.

        What doesn't fit is said before memory is asked for, of which a config could ask any amount.
        """
        size, last = config.hidden_size, f"encoder.layer.{config.num_hidden_layers - 1}"
        sizes = {
            "embeddings.word_embeddings.weight": (config.vocab_size, size),
            "embeddings.position_embeddings.weight": (config.max_position_embeddings, size),
            "embeddings.token_type_embeddings.weight": (config.type_vocab_size, size),
            f"{last}.intermediate.dense.weight": (config.intermediate_size, size),
        }
        state_dicts.fitting(state, sizes, source)
        model = cls(config)
        model.load_checkpoint(state, source)
        return model.eval()

    def load_checkpoint(self, state: dict[str, torch.Tensor], source: str) -> None:
        """Take the encoder's weights out of a checkpoint's state dict. Raises InputError naming what is missing."""
        found = state_dicts.fitting(
            state, {name: tuple(tensor.shape) for name, tensor in self.state_dict().items()}, source
        )
        self.has_pooler = "pooler.dense.weight" in found
        self.load_state_dict(found, strict=False)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors, which transformers' BertModel.from_pretrained loads."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "config.json", self.config.to_dict())
        state_dicts.write_state(folder, self.state_dict())
