"""Encodings computed once and kept on disk: right, found again, and whole whatever happens while they are written.

The feature-based approach of Devlin et al. 2018 (arXiv 1810.04805), section 5.3.
"""

import errno

import numpy as np
import pytest
import torch

import frozen
from batches import TaskData
from datasets import Example, Table
from errors import InputError
from frozen import Store
from model import ModelConfig, MultitaskBERT
from tasks import STS

PAIRS = [
    ("the film was good", "a dog ran on the mat"),
    ("the film was good", "the film was good"),
    ("why", "a dog ran on the mat ."),
    ("very very very dull", "bad"),
]
DISTINCT = {text for pair in PAIRS for text in pair}


@pytest.fixture
def rows(tiny_tokenizer):
    table = Table(None, [Example(str(i), *pair, float(i), i + 2) for i, pair in enumerate(PAIRS)], [], "")
    return TaskData(STS, table, tiny_tokenizer)


@pytest.fixture
def sentences(rows):
    return [ids for side in rows.sentences for ids in side]


@pytest.fixture
def encoder(tiny):
    return tiny()


@pytest.fixture
def encoded(encoder, monkeypatch):
    """The sentences that the encoder has seen so far, each as its ids."""
    seen = []
    encode = encoder.encode

    def watch(input_ids, layout, *arguments, **options):
        real = layout.real()
        seen.extend(tuple(ids[mask].tolist()) for ids, mask in zip(input_ids, real, strict=True))
        return encode(input_ids, layout, *arguments, **options)

    monkeypatch.setattr(encoder, "encode", watch)
    return seen


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def assert_right(store, encoder, rows):
    """Every batch's states are those of the encoder itself, to 1e-5."""
    for order in ([0, 1, 2, 3], [3, 1], [2]):
        batch = rows.batch(np.array(order))
        sentences = [side[row] for side in rows.sentences for row in order]
        (kept,) = store.states(sentences, batch.layout)
        with torch.no_grad():
            padded = encoder(batch.input_ids, batch.layout.real().long())["last_hidden_state"]
        torch.testing.assert_close(batch.layout.unpack(kept), padded, atol=1e-5, rtol=0)


@pytest.mark.parametrize("tokens_at_once", [1, 12, 4096])
def test_states_are_the_encoders(tmp_path, monkeypatch, encoder, rows, sentences, tokens_at_once):
    monkeypatch.setattr(frozen, "TOKENS_AT_ONCE", tokens_at_once)
    assert_right(Store.build(encoder, "weights", sentences, tmp_path), encoder, rows)


def test_each_distinct_sentence_is_encoded_once(tmp_path, encoder, encoded, sentences):
    told = []
    Store.build(encoder, "weights", sentences, tmp_path, told.append)
    assert len(encoded) == len(set(encoded)) == len(DISTINCT)
    assert told == sorted(told) and told[-1] == sum(len(ids) for ids in encoded)
    Store.build(encoder, "weights", sentences[::-1], tmp_path)  # found again, in whatever order it is asked for
    assert len(encoded) == len(DISTINCT)
    assert len(files(tmp_path)) == 1


def test_other_weights_and_other_text_make_another_file(tmp_path, encoder, encoded, sentences):
    Store.build(encoder, "weights", sentences, tmp_path)
    for number, (weights, texts) in enumerate((("other", sentences), ("weights", sentences[:-1])), start=2):
        before = len(encoded)
        Store.build(encoder, weights, texts, tmp_path)
        assert len(files(tmp_path)) == number
        assert len(encoded) > before


def test_one_sentence_is_not_two(tmp_path, encoder, sentences):
    """`a b` and `c d` hold the same tokens in the same order as `a b c` and `d`."""
    ids = sentences[0]
    for texts in ([ids[:2], ids[2:4]], [ids[:3], ids[3:4]]):
        Store.build(encoder, "weights", texts, tmp_path)
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize("change", ["cut", "longer", "empty"])
def test_a_damaged_file_is_made_again(tmp_path, encoder, rows, sentences, change):
    Store.build(encoder, "weights", sentences, tmp_path)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    path.write_bytes({"cut": content[:-4], "longer": content + b"1234", "empty": b""}[change])
    assert_right(Store.build(encoder, "weights", sentences, tmp_path), encoder, rows)
    assert path.read_bytes() == content


def test_two_at_once_do_not_harm_each_other(tmp_path, monkeypatch, encoder, rows, sentences):
    """A second one starts and ends while the first is in the middle of its file."""
    monkeypatch.setattr(frozen, "TOKENS_AT_ONCE", 12)
    stores = []

    def meanwhile(tokens):
        if not stores:
            stores.append(None)
            stores[0] = Store.build(encoder, "weights", sentences, tmp_path)
            assert len([name for name in files(tmp_path) if name.endswith(".tmp")]) == 1  # the first's, untouched

    stores.append(Store.build(encoder, "weights", sentences, tmp_path, meanwhile))
    for store in stores:
        assert_right(store, encoder, rows)
    assert [name[-4:] for name in files(tmp_path)] == [".f32"]


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_what_stops_it_leaves_no_half_file(tmp_path, monkeypatch, encoder, sentences, fault):
    def fail(_):
        raise fault

    monkeypatch.setattr(frozen.os, "fsync", fail)
    with pytest.raises((InputError, KeyboardInterrupt)) as caught:
        Store.build(encoder, "weights", sentences, tmp_path)
    assert files(tmp_path) == []
    if isinstance(fault, OSError):
        assert "No space left on device: free some space" in str(caught.value)


def test_a_model_trains_from_the_store_as_from_its_encoder(tmp_path, monkeypatch, tiny, rows, sentences):
    """Same losses and same gradients, and the encoder isn't asked again."""
    torch.manual_seed(3)
    config = ModelConfig.for_tasks(["sts"], attention={"sts": 2}, hidden_dropout_prob=0.0, option="pretrain")
    model = MultitaskBERT(config, tiny()).train()
    for layer in model.heads["sts"].attention:
        layer.attention_dropout_prob = 0.0
    found = []
    for encodings in (None, Store.build(model.bert, "weights", sentences, tmp_path)):
        rows.encodings = encodings
        model.zero_grad()
        loss = model.loss(rows.batch(np.arange(4)))
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in model.heads.parameters() if p.grad is not None)])
        monkeypatch.setattr(model.bert, "encode", None)  # whoever calls it from here on fails
    assert len(found[0]) > 10
    for plain, stored in zip(*found, strict=True):
        torch.testing.assert_close(stored, plain, atol=1e-5, rtol=1e-4)
