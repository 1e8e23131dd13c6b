"""The multi-task model: one BERT encoder, one head a task, and the course's methods on it.

Interface of the CS 224N default project's MultitaskBERT; heads after Jia 2024 (see heads.py).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

import state_dicts
from batches import Batch
from bert import BertConfig, BertModel
from errors import InputError
from files import read_json, write_json
from heads import HeadConfig, TaskHead
from packed import Layout
from pair_inputs import Side, pair_inputs
from poolers import masked_mean, resolve_each
from tasks import TASKS

if TYPE_CHECKING:
    from predictor import Predictor

OPTIONS = ("pretrain", "finetune")
# The 2024 season's words for the same thing.
FINE_TUNE_MODES = {"last-linear-layer": "pretrain", "full-model": "finetune"}


@dataclass(frozen=True)
class ModelConfig:
    """What MultitaskBERT is made of.

    model: a known name or a folder of weights, None for what was set up. option: pretrain (encoder frozen, only heads
    learn) or finetune. heads: task name -> HeadConfig. frozen_dropout: whether the encoder's dropout is on in training
    while it is frozen, as in the poster's code; then its outputs differ each time, and can't be computed once.
    """

    heads: dict[str, HeadConfig]
    option: str = "finetune"
    model: str | None = None
    frozen_dropout: bool = False

    @classmethod
    def for_tasks(
        cls,
        names=("sst", "para", "sts"),
        *,
        attention: dict[str, int] | None = None,
        attention_init: str = "default",
        pooler: str | dict[str, str] | None = None,
        pooler_options: dict[str, str] | None = None,
        hidden_dropout_prob: float = 0.3,
        pair_score: str = "calibrated",
        pair_encoding: str | None = None,
        losses: dict[str, str] | None = None,
        attention_ffn: bool = False,
        frozen_dropout: bool = False,
        option: str = "finetune",
        model: str | None = None,
    ) -> ModelConfig:
        """The poster's heads for these tasks.

        attention: layers a task, where they differ from its default (2 self, 1 cross, 3 cross). pooler: one for all, or
        task -> pooler; else it is the first token after attention layers, and the mean of the tokens without.
        pooler_options: of the options of a pooler that takes any those that are not to be the default. pair_encoding:
        joint, separate or both; None is each task's own. losses: task -> loss, where it is not its own.
        """
        poolers = dict.fromkeys(names, pooler) if isinstance(pooler, str) else pooler or {}
        # All of them are written down, so that another default does not change what is saved.
        resolved = resolve_each([*poolers.values(), "first", "mean"], pooler_options)
        heads = {}
        for name in names:
            layers = {**{name: TASKS[name].attention[1]}, **(attention or {})}[name]
            chosen, encoding = poolers.get(name, "first" if layers else "mean"), TASKS[name].encoding(pair_encoding)
            loss = (losses or {}).get(name)
            heads[name] = HeadConfig(
                layers,
                attention_init,
                chosen,
                hidden_dropout_prob,
                pair_score,
                encoding == "joint",
                loss,
                attention_ffn,
                resolved[chosen],
                encoding == "both",
            )
        return cls(heads, option, model, frozen_dropout)


def _model_config(config) -> ModelConfig:
    """A ModelConfig as it is; the course's namespace of options as one for its three tasks."""
    if isinstance(config, ModelConfig):
        return config
    mode = getattr(config, "fine_tune_mode", None)
    option = FINE_TUNE_MODES.get(mode, mode) or getattr(config, "option", "pretrain")
    return ModelConfig.for_tasks(
        option=option,
        hidden_dropout_prob=getattr(config, "hidden_dropout_prob", 0.3),
        model=getattr(config, "model", None),
    )


class MultitaskBERT(nn.Module):
    """One encoder shared by all tasks, and a head for each."""

    def __init__(self, config: ModelConfig, encoder: BertModel | None = None):
        """config: a ModelConfig, or a namespace with the course's option names.

        encoder: None loads config.model's weights.
        """
        super().__init__()
        self.config = _model_config(config)
        if self.config.option not in OPTIONS:
            raise InputError(f"--option {self.config.option}: not known; known: {', '.join(OPTIONS)}")
        self.bert = encoder if encoder is not None else BertModel.from_pretrained(self.config.model)
        size, heads = self.bert.config.hidden_size, self.bert.config.num_attention_heads
        layers = self.bert.config.num_hidden_layers
        self.heads = nn.ModuleDict(
            {name: TaskHead(TASKS[name], size, heads, head, layers) for name, head in self.config.heads.items()}
        )
        encodings = {head.config.pair_encoding for head in self.heads.values()} - {"separate"}
        if encodings and self.bert.config.type_vocab_size < 2:
            raise InputError(
                f"--pair_encoding {min(encodings)}: this encoder knows one segment, so it can't tell a pair's "
                "sentences apart: choose --pair_encoding separate"
            )
        for name, head in self.heads.items():
            if hasattr(head.pooler, "load_from"):
                if self.config.option == "pretrain" and not self.bert.has_pooler:
                    task = "" if len({head.config.pooler for head in self.heads.values()}) == 1 else f"{name}="
                    raise InputError(
                        f"--pooler {task}{head.config.pooler} --option pretrain: these weights hold no pooler, and a "
                        f"random one would stay as it is: choose --pooler {task}first or {task}mean, or --option "
                        "finetune"
                    )
                head.pooler.load_from(self.bert)
        self.freeze(self.config.option == "pretrain")
        self.autocast: torch.dtype | None = None  # the 16-bit type of matrix products; None: float32

    def freeze(self, frozen: bool) -> None:
        """pretrain: whatever came from the checkpoint stays as it is (the encoder, and a pooler taken from it)."""
        self.frozen = frozen
        pretrained = [self.bert, *(head.pooler for head in self.heads.values() if hasattr(head.pooler, "load_from"))]
        for module in pretrained:
            module.requires_grad_(not frozen)
        self.train(self.training)

    def train(self, mode: bool = True) -> MultitaskBERT:
        """A frozen encoder stays in evaluation mode, so its outputs don't change; unless its dropout is asked for."""
        super().train(mode)
        if self.frozen and not self.config.frozen_dropout:
            self.bert.eval()
        return self

    def compile_layers(self) -> None:
        """Let torch.compile fuse what lies between the encoder's matrix products (GELU; dropout, add & norm) on a GPU.

        Attention is left out: its shapes are other ones for every batch.
        """
        for layer in self.bert.encoder.layer:
            for part in (layer.attention.output, layer.intermediate, layer.output):
                part.compile(dynamic=True)

    @property
    def device(self) -> torch.device:
        return self.bert.embeddings.word_embeddings.weight.device

    def encode(
        self,
        input_ids: torch.Tensor,
        layout: Layout,
        first_only: bool = False,
        keep: int | None = 1,
        token_type_ids: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Packed hidden states (R, H), without gradients where the encoder is frozen.

        keep: so many, the last ones, or None for all. first_only: of the sentences' first tokens alone, (S, H), packed
        as `layout.firsts()` says.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            return self.bert.encode(input_ids, layout, token_type_ids, keep, first_only)

    def outputs(self, batch: Batch) -> torch.Tensor:
        """A task's outputs for a batch, in float32: class logits (n, C), or one number a row (n,)."""
        with torch.autocast(batch.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            if batch.encoded:
                return self.heads[batch.task.name](batch.states, batch.layout, batch.features).float()
            return self._score(batch.task.name, batch.input_ids, batch.layout, batch.token_type_ids).float()

    def _score(
        self, name: str, input_ids: torch.Tensor, layout: Layout, token_type_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """A head's outputs. Where it reads first tokens alone, the encoder's last layer computes no others."""
        head = self.heads[name]
        if head.first_token_only:
            return head(self.encode(input_ids, layout, True, token_type_ids=token_type_ids), layout.firsts())
        return head(self.encode(input_ids, layout, False, head.layers_wanted, token_type_ids), layout)

    def loss(self, batch: Batch) -> torch.Tensor:
        """The task's loss, a scalar."""
        return batch.loss(self.outputs(batch), batch.labels)

    @torch.no_grad()
    def calibrate(self, batch: Batch, positive: float) -> None:
        """Calibrate the head of the batch's task before training: see TaskHead.calibrate."""
        if not self.heads[batch.task.name].begins_calibrated:
            return
        was_training = self.training
        self.eval()
        head, states = self.heads[batch.task.name], batch.states
        if not batch.encoded:
            states = self.encode(batch.input_ids, batch.layout, False, head.layers_wanted, batch.token_type_ids)
        head.calibrate(states, batch.layout, positive, batch.features)
        self.train(was_training)

    # The course's methods: padded ids and masks in, outputs out. Training and prediction files take `outputs`, and come
    # to the same heads: what should change for all of them is changed in heads.py.

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Sentence embeddings (B, H): the mean of the encoder's last layer over the real tokens."""
        layout = Layout.of(attention_mask).to(input_ids.device)
        return masked_mean(layout.unpack(self.encode(input_ids, layout)[-1]), attention_mask)

    def predict_sentiment(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Scores (B, 5) of the sentiments 0 (negative) to 4 (positive): logits, or TaskHead.class_logits' answer."""
        layout = Layout.of(attention_mask).to(input_ids.device)
        return self._head("sst").class_logits(self._score("sst", input_ids, layout))

    def predict_paraphrase(self, input_ids_1, attention_mask_1, input_ids_2, attention_mask_2) -> torch.Tensor:
        """Logits (B,): sigmoid gives the probability that the sentences are paraphrases."""
        return self._predict_pairs("para", (input_ids_1, attention_mask_1), (input_ids_2, attention_mask_2))

    def predict_similarity(self, input_ids_1, attention_mask_1, input_ids_2, attention_mask_2) -> torch.Tensor:
        """Scores (B,): higher is more similar. Trained for correlation, so their scale has no meaning of its own."""
        return self._predict_pairs("sts", (input_ids_1, attention_mask_1), (input_ids_2, attention_mask_2))

    def _predict_pairs(self, name: str, first: Side, second: Side) -> torch.Tensor:
        """Outputs (B,) of a head, which reads the pairs as it was trained to: see pair_inputs."""
        encoding = self._head(name).config.pair_encoding
        input_ids, mask, types = pair_inputs(first, second, encoding, self.bert.config.max_position_embeddings)
        layout = Layout.of(mask).to(input_ids.device)
        return self._score(name, input_ids, layout, None if encoding == "separate" else types)

    def _head(self, name: str) -> TaskHead:
        if name not in self.heads:
            raise InputError(
                f"this model has no head for {name}; it has {', '.join(self.heads)}: train with --tasks {name}"
            )
        return self.heads[name]

    # Files: a folder that transformers.BertModel loads too, since it knows the `bert.` prefix and ignores other heads.

    def write_config(self, folder: Path) -> None:
        """config.json: the encoder's numbers, and ours under `minbert`."""
        ours = {
            "option": self.config.option,
            "frozen_dropout": self.config.frozen_dropout,
            "heads": {name: dataclasses.asdict(head) for name, head in self.config.heads.items()},
        }
        write_json(folder / "config.json", {**self.bert.config.to_dict(), "minbert": ours})

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.write_config(folder)
        state_dicts.write_state(folder, self.state_dict())

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> MultitaskBERT:
        """Load what save_pretrained wrote, in evaluation mode. Raises InputError for another kind of folder."""
        folder = Path(folder)
        path = folder / "config.json"
        values = read_json(path)
        state = state_dicts.read_state(folder)
        encoder = BertModel.from_state(BertConfig.from_dict(values, str(path)), state, str(folder))
        ours = values.get("minbert")
        try:
            heads = {name: HeadConfig(**head) for name, head in ours["heads"].items()}
            config = ModelConfig(heads, ours["option"], str(folder), bool(ours.get("frozen_dropout", False)))
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: no heads described under 'minbert': give the best/ folder of a run") from error
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        unknown = [name for name in heads if name not in TASKS]
        if unknown:
            raise InputError(f"{path}: head for unknown task {unknown[0]!r}; known: {', '.join(TASKS)}")
        try:
            model = cls(config, encoder)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        model.load_weights(state, str(folder))
        return model.eval()

    @staticmethod
    def load(run: str | Path, device: str | torch.device = "cpu") -> Predictor:
        """The best model of a run, to ask in plain strings: see predictor.py.

        run: its folder, its name in runs/, or its best/. Raises InputError where there is none.
        """
        from predictor import Predictor  # it is made of this class

        return Predictor.load(run, device)

    def load_weights(self, state: dict[str, torch.Tensor], source: str) -> None:
        """Take every weight from a state dict.

        Raises InputError naming the first that is missing, foreign or misshapen.
        """
        wanted = self.state_dict()
        for name in [*wanted, *state]:
            if name not in state or name not in wanted:
                found = "missing" if name not in state else "not part of this model"
                raise InputError(f"{source}: {name} is {found}: config.json and weights belong to different runs")
            if state[name].shape != wanted[name].shape:
                shapes = f"{tuple(state[name].shape)}, wanted {tuple(wanted[name].shape)}"
                raise InputError(f"{source}: {name} is {shapes}: config.json and weights belong to different runs")
            state_dicts.refuse_whole_numbers(name, state[name], source)
        self.load_state_dict(state)
