"""What the benchmarks measure on: an encoder with its tokenizer, real rows, and how many operations they take.

Operations are counted after Kaplan et al. 2020 (arXiv 2001.08361), section 2.1: two a weight of a linear map and token,
and for attention two a number of both products; twice that for the backward pass.
"""

from __future__ import annotations

from pathlib import Path

import measure
import numpy as np
import torch
from torch.nn import functional as F

import weights
from batches import TaskData
from bert import BertConfig, BertModel
from course_data import choose_data
from datasets import Example, Table
from errors import InputError
from estimate import linear_weights
from poolers import masked_mean
from task_files import read_split
from tasks import TASKS
from tokenizer import BertTokenizer

EMBEDDED, RANDOM = "all-MiniLM-L6-v2", "bert-base"
EMPTY = "minilm"  # the embedded weights' shape, for a machine that has only their word list
TINY = "bert-tiny"  # of Turc et al. 2019 (arXiv 1908.08962): what is left to measure is all but the arithmetic
SHAPES = {
    RANDOM: BertConfig(),
    EMPTY: BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536),
    TINY: BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512),
}
MODEL_HELP = (
    f"{EMBEDDED} (default), {RANDOM}, {EMPTY} or {TINY} (their shapes, randomly initialized), or a folder of weights"
)


def load_encoder(name: str) -> tuple[BertModel, BertTokenizer, dict]:
    """The encoder, a tokenizer of its vocabulary, its name and the SHA-256 of its weights, None for random ones."""
    if name in SHAPES:  # published with the embedded weights' word list, byte for byte
        torch.manual_seed(0)
        return BertModel(SHAPES[name]), _embedded_tokenizer(), {"name": name, "sha256": None}
    found = weights.find(name)
    described = {"name": Path(found.name).name, "sha256": found.sha256}
    return BertModel.from_pretrained(found.path), BertTokenizer.from_folder(found.path), described


def _embedded_tokenizer() -> BertTokenizer:
    """The embedded weights' tokenizer, of which their word list alone will do."""
    try:
        return BertTokenizer.from_pretrained(EMBEDDED)
    except InputError:
        if not (weights.WEIGHTS / EMBEDDED / "vocab.txt").is_file():
            raise
        return BertTokenizer.from_folder(weights.WEIGHTS / EMBEDDED)


def read_rows(name: str, split: str, folder: Path | None) -> tuple[Table, dict]:
    """A task's file from the folder, or from what training would choose; and what a row says of it."""
    task, (folder, why) = TASKS[name], choose_data(folder)
    table = read_split(task, split, folder / task.files[split])
    print(f"{task.title}, {split}: {len(table):,} rows of {table.path.name} ({why})")
    return table, {"file": table.path.name, "rows": len(table), "sha256": table.sha256}


def load_rows(name: str, split: str, folder: Path | None, tokenizer: BertTokenizer) -> tuple[TaskData, dict]:
    """The same, tokenized."""
    table, described = read_rows(name, split, folder)
    return TaskData(TASKS[name], table, tokenizer), described


def part_of(table: Table, rows: int) -> Table:
    """The first of the rows, or all."""
    return Table(table.path, table.examples[:rows], [], table.sha256)


def draw_batches(data: TaskData, size: int, count: int) -> dict[str, list[np.ndarray]]:
    """`count` random batches, and as many of rows sorted by length, in random order; where there are fewer, all."""
    random = np.random.default_rng(0)
    # Of a pair the longer side first: it is what a padded batch is as wide as, so this order is the best for theirs.
    longest = np.array([[len(ids) for ids in side] for side in data.sentences]).max(axis=0)
    orders = {"random": random.permutation(len(data)), "sorted": np.lexsort((-data.lengths, -longest))}
    batches = {name: [order[i : i + size] for i in range(0, len(order), size)] for name, order in orders.items()}
    chosen = random.permutation(len(batches["sorted"]))[:count]
    return {"random": batches["random"][:count], "sorted": [batches["sorted"][i] for i in chosen]}


def sentence_lengths(data: TaskData, rows: np.ndarray) -> np.ndarray:
    """Tokens of every sentence of these rows; a pair has two."""
    return np.array([len(side[row]) for side in data.sentences for row in rows])


def forward_operations(encoder: BertModel, lengths: np.ndarray, first_only: bool = False) -> int:
    """Operations of the encoder's linear maps and attention products on the real tokens of sentences of these lengths.

    first_only: of the last layer only what its output at the first tokens takes.
    """
    size, wide, layers = (
        getattr(encoder.config, key) for key in ("hidden_size", "intermediate_size", "num_hidden_layers")
    )
    tokens, squares, sentences = int(lengths.sum()), int((lengths**2).sum()), len(lengths)
    whole = 2 * linear_weights(encoder.encoder) * tokens + 4 * size * squares * layers
    if not first_only:
        return whole
    # Keys and values are of every token; queries, the output map and the feed-forward block of the first alone.
    spared = 2 * (2 * size**2 + 2 * size * wide) * (tokens - sentences) + 4 * size * (squares - tokens)
    return whole - spared


class TextEncoder:
    """Texts to vectors with the library's parts: tokenized at once, longest first, the mean of the real tokens."""

    def __init__(self, encoder: BertModel, tokenizer: BertTokenizer, batch_size: int, precision: str = "fp32"):
        self.encoder, self.tokenizer, self.batch_size = encoder.eval(), tokenizer, batch_size
        self.device, self.precision = encoder.embeddings.word_embeddings.weight.device, precision

    def data(self, texts: list[str]) -> TaskData:
        """The texts as rows of a task of single sentences."""
        rows = [Example(str(i), text, None, None, i + 2) for i, text in enumerate(texts)]
        return TaskData(TASKS["sst"], Table(Path("texts"), rows, [], ""), self.tokenizer)

    def lengths(self, texts: list[str]) -> np.ndarray:
        return self.data(texts).lengths

    @torch.inference_mode()
    def encode(self, texts: list[str]) -> np.ndarray:
        """Vectors of length one, (n, H) float32, in the order of the texts."""
        data = self.data(texts)
        places, vectors = [], []
        for batch in map(data.batch, data.chunks(self.batch_size)):
            batch = batch.to(self.device)
            with measure.autocast(self.device, self.precision):
                hidden = self.encoder.encode(batch.input_ids, batch.layout)[-1].float()
            vectors.append(F.normalize(masked_mean(batch.layout.unpack(hidden), batch.layout.real()), dim=1))
            places += map(int, batch.ids)
        out = np.empty((len(texts), self.encoder.config.hidden_size), dtype=np.float32)
        out[places] = torch.cat(vectors).cpu().numpy()
        return out
