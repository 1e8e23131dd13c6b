"""Batches hold what the tokenizer's own padded call gives, every row where it belongs and once.

Follows batches.py's promises; pairs stand as all first sentences, then all second ones.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

import batches
from batches import TaskData
from datasets import Example, Table
from tasks import CFIMDB, PARA, SST, STS, TASKS

TEXTS = [
    "the film was very good",
    "dull",
    "a cat sat on the mat , who ran ?",
    "not good , not bad .",
    "bright",
    "why sit on a mat",
]
LABELS = {
    "sst": [3, 0, 2, 2, 4, 1],
    "para": [1, 0, 0, 1, 1, 0],
    "sts": [4.6, 0.0, 2.25, 5.0, 1.0, 3.2],
    "cfimdb": [1, 0, 1] * 2,
}


def table(task, texts=TEXTS, labels=True):
    """A table of these texts; a pair's second sentence is the next text."""
    seconds = [*texts[1:], texts[0]] if task.is_pair else [None] * len(texts)
    values = LABELS[task.name] if labels else [None] * len(texts)
    rows = zip(texts, seconds, values, strict=False)
    return Table(Path("made up"), [Example(f"id{i}", *row, i + 2) for i, row in enumerate(rows)], [], "")


@pytest.fixture(params=list(LABELS))
def task(request):
    return TASKS[request.param]


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5], [4, 2], [1], [3, 3]])
def test_a_batch_is_what_the_tokenizer_pads(task, rows, tiny_tokenizer):
    data = TaskData(task, table(task), tiny_tokenizer)
    batch = data.batch(np.array(rows))
    texts = [TEXTS[i] for i in rows]
    if task.is_pair:
        texts += [TEXTS[(i + 1) % len(TEXTS)] for i in rows]
    wanted = tiny_tokenizer(texts, padding=True, return_tensors="pt")
    assert batch.input_ids.dtype == torch.long and torch.equal(batch.input_ids, wanted.input_ids)
    assert torch.equal(batch.layout.real().long(), wanted.attention_mask)
    assert batch.ids == [f"id{i}" for i in rows]
    assert batch.labels.tolist() == pytest.approx([LABELS[task.name][i] for i in rows])
    assert batch.tokens == int(wanted.attention_mask.sum())
    assert (batch.task, batch.states) == (task, None)


@pytest.mark.parametrize(
    ("task", "kind"), [(SST, torch.long), (CFIMDB, torch.long), (PARA, torch.float32), (STS, torch.float32)]
)
def test_labels_are_of_the_kind_that_the_loss_takes(task, kind, tiny_tokenizer):
    data = TaskData(task, table(task), tiny_tokenizer)
    assert data.labels.dtype == kind and data.labels.shape == (6,)
    assert data.batch(np.array([2])).labels.dtype == kind


def test_a_similarity_stays_what_it_is(tiny_tokenizer):
    assert TaskData(STS, table(STS), tiny_tokenizer).batch(np.array([0])).labels.tolist() == pytest.approx([4.6])


def test_a_test_file_has_no_labels(task, tiny_tokenizer):
    data = TaskData(task, table(task, labels=False), tiny_tokenizer)
    assert data.labels is None and data.batch(np.array([0, 1])).labels is None


def test_counts_by_hand(tiny_tokenizer):
    # With [CLS] and [SEP]: 7, 3, 12, 8, 3, 7 tokens ("sit" is unknown, one token all the same).
    data = TaskData(SST, table(SST), tiny_tokenizer)
    assert len(data) == 6 and data.lengths.tolist() == [7, 3, 12, 8, 3, 7]
    assert (data.tokens, data.truncated) == (40, 0)
    pairs = TaskData(STS, table(STS), tiny_tokenizer)
    assert pairs.lengths.tolist() == [10, 15, 20, 11, 10, 14]
    assert pairs.tokens == 80


def test_what_is_too_long_is_cut_and_counted_on_either_side(tiny_tokenizer):
    data = TaskData(SST, table(SST), tiny_tokenizer, max_length=7)
    assert data.truncated == 2 and data.lengths.max() == 7
    pairs = TaskData(STS, table(STS), tiny_tokenizer, max_length=7)
    assert pairs.truncated == 4
    assert pairs.batch(np.arange(6)).input_ids.shape == (12, 7)
    longest = TaskData(SST, table(SST, texts=["good " * 100] * 2), tiny_tokenizer)
    assert longest.truncated == 2 and longest.lengths.tolist() == [24, 24]  # the model's positions


@pytest.mark.parametrize("size", [1, 2, 4, 100])
def test_chunks_give_every_row_once_longest_first(task, size, tiny_tokenizer):
    data = TaskData(task, table(task), tiny_tokenizer)
    seen = [data.batch(rows) for rows in data.chunks(size)]
    assert sorted(name for batch in seen for name in batch.ids) == data.ids
    assert all(len(batch.ids) <= size for batch in seen)
    lengths = [data.lengths[data.ids.index(name)] for batch in seen for name in batch.ids]
    assert lengths == sorted(lengths, reverse=True)
    for batch in seen:  # each row keeps its own label
        assert batch.labels.tolist() == pytest.approx([LABELS[task.name][int(name[2:])] for name in batch.ids])


def test_an_evaluation_batch_holds_only_so_many_tokens(monkeypatch, tiny_tokenizer):
    monkeypatch.setattr(batches, "EVALUATION_TOKENS", 16)
    data = TaskData(SST, table(SST), tiny_tokenizer)
    # Lengths 12 | 8, 7 | 7, 3 | 3: as many rows as 16 tokens allow at the first one's length.
    assert [data.batch(rows).tokens for rows in data.chunks(100)] == [12, 15, 10, 3]
    monkeypatch.setattr(batches, "EVALUATION_TOKENS", 5)  # less than most rows have: one at a time, none left out
    assert [data.batch(rows).tokens for rows in data.chunks(100)] == [12, 8, 7, 7, 3, 3]


def test_a_batch_moves_as_a_whole(tiny_tokenizer):
    data = TaskData(STS, table(STS), tiny_tokenizer)
    batch = data.batch(np.arange(6))
    assert batch.to(torch.device("cpu")) is batch
    batch.states = (torch.zeros(batch.tokens, 2),)
    moved = batch.to(torch.device("meta"))  # a device of shapes alone, which every machine has
    layout = moved.layout
    tensors = [moved.input_ids, moved.labels, *moved.states, layout.rows, layout.back, layout.positions, layout.first]
    tensors += [t for g in layout.groups for t in (g.pad, g.unpad, g.real) if t is not None]
    assert len(tensors) > 7 and {tensor.device.type for tensor in tensors} == {"meta"}
    assert (moved.ids, moved.task, layout.batch, layout.width) == (batch.ids, batch.task, 12, 12)
    assert data.batch(np.arange(6)).to(torch.device("meta")).states is None


class Kept:
    """Stands for a frozen.Store: sentence number i of those asked for has place 10 i."""

    def __init__(self, keeps_tokens):
        self.keeps_tokens, self.texts = keeps_tokens, []

    def find(self, sentences):
        self.texts += [ids.tolist() for ids in sentences]
        return 10 * np.arange(len(self.texts) - len(sentences), len(self.texts))

    def states(self, places, lengths, layout):
        self.asked = places.tolist(), lengths.tolist(), layout
        return (torch.ones(layout.rows.numel(), 2),)

    def features(self, places):
        return torch.from_numpy(places)[:, None].float()


def test_stored_tokens_come_with_the_batch(tiny_tokenizer):
    data, kept = TaskData(PARA, table(PARA), tiny_tokenizer), Kept(keeps_tokens=True)
    data.read_from(kept)
    assert kept.texts == [tiny_tokenizer(text)["input_ids"] for text in [*TEXTS, *TEXTS[1:], TEXTS[0]]]
    batch = data.batch(np.array([1, 4]))
    assert batch.encoded and batch.states[0].shape == (25, 2) and batch.features is None
    places, lengths, layout = kept.asked
    assert (places, lengths) == ([10, 40, 70, 100], [3, 3, 12, 7]) and layout is batch.layout
    data.read_from(None)
    assert not data.batch(np.array([1, 4])).encoded


def test_stored_features_are_all_that_a_batch_carries(tiny_tokenizer):
    data = TaskData(PARA, table(PARA), tiny_tokenizer)
    data.read_from(Kept(keeps_tokens=False))
    batch = data.batch(np.array([1, 4]))
    assert batch.features.flatten().tolist() == [10, 40, 70, 100]
    assert batch.encoded and (batch.input_ids, batch.layout, batch.states) == (None, None, None)
    assert (batch.ids, batch.labels.tolist(), len(batch)) == (["id1", "id4"], [0, 1], 2)
    assert batch.device.type == "cpu" and batch.to(batch.device) is batch
    moved = batch.to(torch.device("meta"))
    assert (moved.device.type, moved.labels.device.type, moved.layout) == ("meta", "meta", None)
