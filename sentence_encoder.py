"""A sentence encoder: BERT and a pooler as one thing that turns texts into vectors, loaded and saved as a folder.

Sentence vectors after Reimers and Gurevych 2019, "Sentence-BERT" (arXiv 1908.10084). The folder is in Hugging Face's
layout, so that transformers' BertModel loads its encoder; sentence_layout.py adds what SentenceTransformer reads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import nn

import state_dicts
import weights
from batches import EVALUATION_TOKENS, prepared
from bert import BertConfig, BertModel
from errors import InputError, quoted
from files import read_json, short, write_json
from packed import Layout
from poolers import make_pooler, resolve_options
from pooling import Pooler
from run import ROOT, Run
from sentence_layout import pooler_in_layout, write_sentence_layout
from tasks import TASKS
from tokenizer import BertTokenizer

PREFIX = "sentence_pooler."  # of the pooler's weights in model.safetensors, beside the encoder's
DEFAULT_POOLER = "mean"  # what most sentence models, the embedded one among them, were trained with
BLOCK = 8192  # texts tokenized and sorted by length at a time: more would need memory, and gain nothing
SHORTEST = 3  # [CLS], [SEP], and something between them


def pad(sentences: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """B arrays of integers -> (B, T) int64, 0 at padding, and (B, T) bool, which of them are real."""
    lengths = np.array([len(ids) for ids in sentences])
    ids = np.zeros((len(sentences), lengths.max()), dtype=np.int64)
    real = np.arange(ids.shape[1]) < lengths[:, None]  # (B, T)
    ids[real] = np.concatenate(sentences)
    return ids, real


def padded(sentences: Sequence[np.ndarray]) -> tuple[torch.Tensor, Layout]:
    """Token ids of B sentences -> (B, T) and its layout, as BertModel.encode takes them."""
    ids, real = pad(sentences)
    return torch.from_numpy(ids), Layout.of(torch.from_numpy(real))


def sentence_vectors(bert: BertModel, pooler: Pooler, input_ids: torch.Tensor, layout: Layout) -> torch.Tensor:
    """(B, T) ids and their layout, on the model's device -> the pooler's vectors (B, H).

    A pooler that reads the first token alone spares the last layer the others.
    """
    if pooler.first_token_only:
        firsts = bert.encode(input_ids, layout, first_only=True)[-1]  # (B, H)
        return pooler((firsts[:, None],), firsts.new_ones(len(firsts), 1))
    states = bert.encode(input_ids, layout, keep=pooler.layers_wanted)
    return pooler(tuple(layout.unpack(state) for state in states), layout.real())


class SentenceEncoder:
    """Texts in, vectors out.

    bert, pooler, tokenizer: the parts, which training may change. pooler_name, pooler_options: what the pooler was made
    from (see poolers.make_pooler). max_length: tokens of a text that are read, [CLS] and [SEP] counted. name: what the
    encoder is called in results. source: the weights it was loaded from, None for those made here.
    """

    def __init__(
        self,
        bert: BertModel,
        pooler: Pooler,
        tokenizer: BertTokenizer,
        max_length: int,
        pooler_name: str = DEFAULT_POOLER,
        pooler_options: dict | None = None,
        name: str = "sentence encoder",
    ):
        self.bert, self.pooler, self.tokenizer, self.max_length = bert, pooler, tokenizer, max_length
        self.pooler_name, self.pooler_options, self.name = pooler_name, dict(pooler_options or {}), name
        self.pooler_is_new = False  # whether the pooler's weights are random, and still to be trained
        self.source: weights.Weights | None = None

    @property
    def dimension(self) -> int:
        return self.bert.config.hidden_size

    @property
    def device(self) -> torch.device:
        return self.bert.embeddings.word_embeddings.weight.device

    @property
    def fingerprint(self) -> str:
        """SHA-256 over all that a vector depends on: encoder, pooler, its options, tokenizer and max_length.

        64 hex digits, computed anew each time (0.1 s for the embedded weights), since training changes it.
        """
        idle = ("initializer_range", "hidden_dropout_prob", "attention_probs_dropout_prob")
        config = {name: value for name, value in self.bert.config.to_dict().items() if name not in idle}
        described = {"config": config, "pooler": [self.pooler_name, self.pooler_options], "length": self.max_length}
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
        digest.update(self.tokenizer.fingerprint().encode())
        # BERT's own pooler is no part of it: weights without one leave it random.
        tensors = {name: t for name, t in self.bert.state_dict().items() if not name.startswith("pooler.")}
        tensors.update({PREFIX + name: tensor for name, tensor in self.pooler.state_dict().items()})
        for name in sorted(tensors):
            tensor = tensors[name].detach().cpu().contiguous()
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    def encode(
        self,
        texts: Sequence[str],
        batch_size: int = 32,
        normalize: bool = True,
        progress: Callable[[int], object] | None = None,
    ) -> np.ndarray:
        """The texts' vectors in their order, (n, dimension) float32, of length 1 if `normalize`; in evaluation mode.

        Equal texts are encoded once. A text of spaces only is [CLS] [SEP] and has a vector like any other; one of more
        than max_length tokens is cut. No texts give (0, dimension). progress is called after each batch with the number
        of texts done since its last call, as tqdm.update wants it.
        Raises TypeError for a single string, ValueError for a batch_size below 1, and InputError for a vector that has
        NaN or infinity in it.
        """
        if isinstance(texts, str):
            raise TypeError("encode: one string, wanted a list of texts: write [text]")
        if batch_size < 1:
            raise ValueError(f"encode: batch_size is {batch_size}, wanted 1 or more")
        numbers: dict[str, int] = {}
        which = np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)
        distinct, often = list(numbers), np.bincount(which, minlength=len(numbers))
        vectors = np.empty((len(distinct), self.dimension), dtype=np.float32)
        with self._evaluating(), torch.inference_mode():
            for rows, (input_ids, layout) in prepared(self._batch, self._plan(distinct, batch_size)):
                found = sentence_vectors(self.bert, self.pooler, input_ids.to(self.device), layout.to(self.device))
                vectors[rows] = found.float().cpu().numpy()
                if progress is not None:
                    progress(int(often[rows].sum()))
        broken = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(broken):
            raise InputError(
                f"{self.name}: the vector of {quoted(distinct[broken[0]])} is not finite: its weights are damaged, or "
                "its training diverged: choose another model"
            )
        if normalize:
            # A vector of zeros has no direction and stays as it is.
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return vectors[which]

    def _plan(self, texts: list[str], batch_size: int) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
        """(rows, their token ids) of every batch, longest first within a block, so that batches are of one length."""
        starts = range(0, len(texts), BLOCK)
        for start, block in zip(
            starts, prepared(lambda at: self.token_ids(texts[at : at + BLOCK]), starts, 1), strict=True
        ):
            lengths = np.array([len(ids) for ids in block])
            order, at = np.argsort(-lengths, kind="stable"), 0
            while at < len(order):
                stop = at + max(1, min(batch_size, EVALUATION_TOKENS // int(lengths[order[at]])))
                yield start + order[at:stop], [block[row] for row in order[at:stop]]
                at = stop

    def token_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """What the encoder reads of each text: int32 ids, [CLS] and [SEP] included, max_length at most."""
        return self.tokenizer.encode_batch(list(texts), max_length=self.max_length).ids

    @staticmethod
    def _batch(planned: tuple[np.ndarray, list[np.ndarray]]) -> tuple[np.ndarray, tuple[torch.Tensor, Layout]]:
        rows, sentences = planned
        return rows, padded(sentences)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Without dropout, and afterwards as before."""
        modules: tuple[nn.Module, ...] = (self.bert, self.pooler)
        before = [module.training for module in modules]
        try:
            for module in modules:
                module.eval()
            yield
        finally:
            for module, training in zip(modules, before, strict=True):
                module.train(training)

    # Files

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json, model.safetensors, the tokenizer, and what SentenceTransformer wants to find.

        Where its modules can't express the pooler, loading there fails with a line that says so (see
        sentence_layout.py). Raises InputError where the folder can't be written.
        """
        folder = Path(folder)
        ours = {"pooler": self.pooler_name, "pooler_options": self.pooler_options, "max_length": self.max_length}
        write_json(folder / "config.json", {**self.bert.config.to_dict(), "minbert": {"sentence_encoder": ours}})
        self.tokenizer.save_pretrained(folder)
        write_sentence_layout(folder, self.pooler_name, self.pooler, self.dimension, self.max_length)
        self.save_weights(folder)

    def save_weights(self, folder: str | Path) -> None:
        """Write model.safetensors alone, whole or not at all."""
        state = self.bert.state_dict()
        if not self.bert.has_pooler:  # a random one is nobody's
            state = {name: tensor for name, tensor in state.items() if not name.startswith("pooler.")}
        own = {PREFIX + name: tensor for name, tensor in self.pooler.state_dict().items()}
        state_dicts.write_state(folder, {**state, **own})

    def load_weights(self, folder: str | Path) -> None:
        """Take the weights that `save_weights` wrote for this very encoder. Raises InputError for others."""
        state = state_dicts.read_state(folder)
        self.bert.load_checkpoint(state, str(folder))
        _load(self.pooler, _own(state), str(folder))

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str | Path | None = None,
        pooler: str | None = None,
        device: str | torch.device = "cpu",
        max_length: int | None = None,
    ) -> SentenceEncoder:
        """An encoder in evaluation mode, from one of

        - a known name, or a folder of weights (None: what was set up);
        - a run of contrastive.py, its folder or its name in runs/ (then its best model), or any folder that
          `save_pretrained` wrote;
        - a run of multitask_classifier.py, or its best/: its encoder, without the heads.

        pooler: None is the saved one, else the one that the folder names for SentenceTransformer, else the mean of the
        tokens. max_length: None is the saved one, else the model's.
        Raises InputError for what is none of these, for an unknown pooler, and for one whose weights aren't there.
        """
        encoder = cls._unplaced(name_or_folder, pooler, None, max_length)
        if encoder.pooler_is_new:
            raise InputError(
                f"--pooler {encoder.pooler_name}: it has weights of its own, which {encoder.name} does not hold: train "
                "them with contrastive.py train, or choose --pooler mean"
            )
        encoder.bert.to(device)
        encoder.pooler.to(device)
        return encoder

    @classmethod
    def to_train(
        cls,
        name_or_folder: str | Path | None = None,
        pooler: str | None = None,
        pooler_options: dict | None = None,
        **overrides,
    ) -> SentenceEncoder:
        """As from_pretrained, on the CPU, with a pooler that may be new: torch's seed decides its first weights.

        pooler_options: as for poolers.make_pooler. overrides: numbers of the encoder's config, say its dropout.
        """
        return cls._unplaced(name_or_folder, pooler, pooler_options, None, **overrides)

    @classmethod
    def _unplaced(
        cls,
        name_or_folder: str | Path | None,
        pooler: str | None,
        pooler_options: dict | None,
        max_length: int | None,
        **overrides,
    ) -> SentenceEncoder:
        source = weights.find(best_of(name_or_folder))
        config, state = read_json(source.path / "config.json"), state_dicts.read_state(source.path)
        described = BertConfig.from_dict({**config, **overrides}, str(source.path / "config.json"))
        bert = BertModel.from_state(described, state, str(source.path))
        tokenizer = BertTokenizer.from_folder(source.path)
        tokenizer.check_fits(described.vocab_size, source.path)
        saved = _saved_settings(source.path / "config.json", config, tokenizer.model_max_length)
        wanted = pooler or saved.get("pooler") or pooler_in_layout(source.path) or DEFAULT_POOLER
        same = saved and wanted == saved["pooler"]
        options = resolve_options(wanted, saved["pooler_options"] if same and not pooler_options else pooler_options)
        as_saved = same and options == resolve_options(wanted, saved["pooler_options"])
        made = make_pooler(wanted, bert.config.hidden_size, bert.config.num_hidden_layers, **options)
        new = any(parameter.dim() > 1 for parameter in made.parameters())  # it has maps, random so far
        if as_saved:
            new = False
            _load(made, _own(state), str(source.path))
        elif hasattr(made, "load_from") and bert.has_pooler:
            new = False
            made.load_from(bert)
        length = saved.get("max_length", tokenizer.model_max_length) if max_length is None else max_length
        positions = bert.config.max_position_embeddings
        if not SHORTEST <= length <= positions:
            raise InputError(f"max_length {length}: wanted {SHORTEST} to {positions}, the model's positions")
        name = source.name if source.name in weights.KNOWN else short(source.path)
        encoder = cls(bert.eval(), made.eval(), tokenizer, length, wanted, options, name)
        encoder.pooler_is_new, encoder.source = new, source
        return encoder


def best_of(name_or_folder: str | Path | None) -> str | Path | None:
    """A run's best/ where a run is named; else what was given.

    Raises InputError for a run that has none (yet), or one for each task (--schedule separate), naming these.
    """
    if name_or_folder is None or str(name_or_folder) in weights.KNOWN:
        return name_or_folder
    for folder in (Path(name_or_folder), ROOT / "runs" / name_or_folder):
        if (folder / "config.json").is_file():
            config = read_json(folder / "config.json")
            if not isinstance(config, dict) or "command" not in config:
                return folder
            bests = [part / "best" for part in (folder, *(folder / name for name in TASKS))]
            found = [best for best in bests if (best / weights.SAFETENSORS).is_file()]
            if not found:
                Run(folder).refuse_ensemble()
                raise InputError(f"{short(folder)}: a run without a best model (yet): name one that has best/, or wait")
            if found[0] != folder / "best":
                names = ", ".join(map(short, found))
                raise InputError(f"{short(folder)}: a run with a model for each task: name one of {names}")
            return found[0]
    return name_or_folder


def _saved_settings(path: Path, config: dict, longest: int) -> dict:
    """What `save_pretrained` wrote of the pooler; empty for other folders. Raises InputError for what was altered."""
    ours = config.get("minbert")
    if not isinstance(ours, dict) or "sentence_encoder" not in ours:
        return {}
    found = ours["sentence_encoder"]
    wanted = {"pooler": str, "pooler_options": dict, "max_length": int}
    for name, kind in wanted.items():
        if not isinstance(found, dict) or not isinstance(found.get(name), kind):
            raise InputError(
                f"{path}: minbert.sentence_encoder.{name} is missing or wrong: copy the folder again from where it came"
            )
    length = found["max_length"]
    if not SHORTEST <= length <= longest:
        raise InputError(f"{path}: max_length is {length}, wanted {SHORTEST} to {longest}: restore it")
    return found


def _own(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The pooler's weights among a folder's."""
    return {name.removeprefix(PREFIX): tensor for name, tensor in state.items() if name.startswith(PREFIX)}


def _load(pooler: nn.Module, state: dict[str, torch.Tensor], source: str) -> None:
    """Raises InputError naming the first tensor that is missing, foreign or misshapen."""
    wanted = pooler.state_dict()
    for name in sorted({*wanted, *state}):
        if name not in state or name not in wanted or state[name].shape != wanted[name].shape:
            raise InputError(
                f"{source}: {PREFIX}{name} is missing, foreign or of another shape: config.json and weights belong to "
                "different runs"
            )
        state_dicts.refuse_whole_numbers(PREFIX + name, state[name], source)
    pooler.load_state_dict(state)
