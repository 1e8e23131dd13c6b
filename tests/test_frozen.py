"""Encodings computed once and kept on disk: right, found again, and whole whatever happens while they are written.

The feature-based approach of Devlin et al. 2018 (arXiv 1810.04805), section 5.3.
"""

import errno
import os
import resource

import numpy as np
import pytest
import torch

import disk_cache
import frozen
from batches import TaskData
from datasets import Example, Table
from frozen import Source, Store
from heads import TOKENS
from model import ModelConfig, MultitaskBERT
from poolers import POOLERS, FirstToken, MeanTokens, Pooler
from tasks import PARA, SST, STS, TASKS

PAIRS = [
    ("the film was good", "a dog ran on the mat"),
    ("the film was good", "the film was good"),
    ("why", "a dog ran on the mat ."),
    ("very very very dull", "bad"),
]
DISTINCT = {text for pair in PAIRS for text in pair}
LABELS = {"class": [0, 1, 1, 0], "binary": [0.0, 1.0, 0.0, 1.0], "score": [0.0, 5.0, 2.5, 1.0]}
ORDERS = ([0, 1, 2, 3], [3, 1], [2])


class LastToken(Pooler):
    """Features that no other pooler has: the last real token."""

    def features(self, layers, mask):
        last = mask.long().sum(dim=1) - 1
        return layers[-1][torch.arange(len(last)), last]


class Attentive(Pooler):
    """Weights of its own decide what it takes from the tokens, so it has no features."""

    def __init__(self, hidden_size):
        super().__init__(hidden_size)
        self.scores = torch.nn.Linear(hidden_size, 1)

    def forward(self, layers, mask):
        scores = self.scores(layers[-1]).squeeze(-1).masked_fill(~mask.bool(), -torch.inf)  # (B, T)
        return (torch.softmax(scores, dim=1).unsqueeze(-1) * layers[-1]).sum(dim=1)


class Wide(MeanTokens):
    """Features of another width than the result's."""

    def __init__(self, hidden_size):
        super().__init__(hidden_size)
        self.dense = torch.nn.Linear(2 * hidden_size, hidden_size)

    def features(self, layers, mask):
        return torch.cat([layers[-1][:, 0], super().features(layers, mask)], dim=1)  # (B, 2H)

    def transform(self, features):
        return self.dense(features)


@pytest.fixture(autouse=True)
def more_poolers(monkeypatch):
    for name, kind in (("last", LastToken), ("attentive", Attentive), ("wide", Wide)):
        monkeypatch.setitem(POOLERS, name, kind)


def make_rows(task, tokenizer):
    table = Table(
        None,
        [
            Example(str(i), a, b if task.is_pair else None, label, i + 2)
            for i, ((a, b), label) in enumerate(zip(PAIRS, LABELS[task.label_kind], strict=True))
        ],
        [],
        "",
    )
    return TaskData(task, table, tokenizer)


def sentences_of(rows):
    return [ids for side in rows.sentences for ids in side]


@pytest.fixture
def rows(tiny_tokenizer):
    return make_rows(STS, tiny_tokenizer)


@pytest.fixture
def sentences(rows):
    return sentences_of(rows)


@pytest.fixture
def encoder(tiny):
    return tiny()


@pytest.fixture
def source(encoder):
    return Source(encoder, "weights")


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


def assert_right(store, encoder, rows, atol=1e-5):
    """Every batch's states are those of the encoder itself."""
    for order in ORDERS:
        rows.read_from(None)
        batch = rows.batch(np.array(order))
        rows.read_from(store)
        (kept,) = rows.batch(np.array(order)).states
        with torch.no_grad():
            padded = encoder(batch.input_ids, batch.layout.real().long())["last_hidden_state"]
        assert kept.dtype == torch.float32
        torch.testing.assert_close(batch.layout.unpack(kept), padded, atol=atol, rtol=0)


def make_model(task, pooler, tiny, layers=0, **choices):
    torch.manual_seed(3)
    config = ModelConfig.for_tasks(
        [task.name], attention={task.name: layers}, pooler=pooler, option="pretrain", **choices
    )
    return MultitaskBERT(config, tiny(initializer_range=0.1, num_hidden_layers=4))  # as many as a pooler may read


# --- what is kept ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens_at_once", [1, 12, 4096])
def test_states_are_the_encoders(tmp_path, monkeypatch, source, rows, sentences, tokens_at_once):
    monkeypatch.setattr(frozen, "TOKENS_AT_ONCE", tokens_at_once)
    assert_right(Store.build(source, sentences, tmp_path), source.encoder, rows)


def test_nothing_is_dropped_from_what_is_kept(tmp_path, source, rows, sentences):
    """From an encoder in training mode, too, which it is in again afterwards."""
    source.encoder.train()
    store = Store.build(source, sentences, tmp_path)
    assert all(module.training for module in source.encoder.modules())
    assert_right(store, source.encoder.eval(), rows)


@pytest.mark.parametrize("tokens_at_once", [1, 12, 4096])
@pytest.mark.parametrize("pooler", [*POOLERS, "last", "attentive", "wide"])
@pytest.mark.parametrize("task", list(TASKS.values()), ids=lambda task: task.name)
def test_from_the_store_as_from_the_encoder(tmp_path, monkeypatch, tiny, tiny_tokenizer, task, pooler, tokens_at_once):
    """Outputs, for every pooler and task, with only as much kept as the pooler needs."""
    monkeypatch.setattr(frozen, "TOKENS_AT_ONCE", tokens_at_once)
    model, data = make_model(task, pooler, tiny).eval(), make_rows(task, tiny_tokenizer)
    head = model.heads[task.name]
    wanted = [model.outputs(data.batch(np.array(order))) for order in ORDERS]
    store = Store.build(Source(model.bert, "weights", head), sentences_of(data), tmp_path)
    distinct = {ids.tobytes() for ids in sentences_of(data)}
    assert store.keeps_tokens == (not head.pooler.has_features) == head.reads.startswith(TOKENS)
    assert len(store.rows) == (sum(len(ids) // 4 for ids in distinct) if store.keeps_tokens else len(distinct))
    data.read_from(store)
    monkeypatch.setattr(model.bert, "encode", None)  # whoever calls it from here on fails
    for order, outputs in zip(ORDERS, wanted, strict=True):
        torch.testing.assert_close(model.outputs(data.batch(np.array(order))), outputs, atol=1e-6, rtol=1e-6)


TRAINED = ["first", "mean", "cls", "attentive", "last_two", "weighted_layers", "gem", "layer_attention"]


@pytest.mark.parametrize("pooler", TRAINED)
@pytest.mark.parametrize("layers", [0, 2])
def test_a_model_trains_from_the_store_as_from_its_encoder(tmp_path, monkeypatch, tiny, tiny_tokenizer, layers, pooler):
    """Same losses and same gradients after the same calibration, and the encoder isn't asked again."""
    data, found = make_rows(PARA, tiny_tokenizer), []
    for stored in (False, True):
        model = make_model(PARA, pooler, tiny, layers, hidden_dropout_prob=0.0).train()
        for layer in model.heads["para"].attention:
            layer.attention_dropout_prob = 0.0
        if stored:
            data.read_from(
                Store.build(Source(model.bert, "weights", model.heads["para"]), sentences_of(data), tmp_path)
            )
            monkeypatch.setattr(model.bert, "encode", None)
        model.calibrate(data.batch(np.arange(4)), 0.5)
        torch.manual_seed(0)  # a pooler may take its chances
        loss = model.loss(data.batch(np.arange(4)))
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in model.heads.parameters() if p.grad is not None)])
    assert len(found[0]) >= 4
    for plain, kept in zip(*found, strict=True):
        torch.testing.assert_close(kept, plain, atol=5e-5, rtol=1e-4)


def test_what_a_head_reads(tiny):
    def reads(pooler, layers=0):
        return make_model(SST, pooler, tiny, layers).heads["sst"].reads

    assert reads("mean") == "poolers.MeanTokens" and reads("cls") == "poolers.BERTPooler"
    assert reads("attentive") == reads("mean", 1) == reads("first", 2) == TOKENS
    assert (reads("last_two", 1), reads("first_last", 1)) == ("tokens of 2 layers", "tokens of all layers")


def test_encoding_computes_in_the_model_s_precision(tmp_path, encoder, rows, sentences):
    store = Store.build(Source(encoder, "weights", autocast=torch.bfloat16), sentences, tmp_path)
    rows.read_from(None)
    batch = rows.batch(np.arange(4))
    rows.read_from(store)
    (kept,) = rows.batch(np.arange(4)).states
    with torch.no_grad():
        exact = encoder.encode(batch.input_ids, batch.layout)[-1]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = encoder.encode(batch.input_ids, batch.layout)[-1].float()
    assert (kept - half).abs().max() < 0.25 * (exact - half).abs().max()


# --- once, and found again ---------------------------------------------------------------------------------------


def test_each_distinct_sentence_is_encoded_once(tmp_path, source, encoded, sentences):
    told, said = [], []
    Store.build(source, sentences, tmp_path, say=said.append, progress=told.append)
    assert len(encoded) == len(set(encoded)) == len(DISTINCT)
    assert told == sorted(told) and told[-1] == sum(len(ids) for ids in encoded)
    assert said == ["6 distinct sentences, 0.0 MB, encoded once"]
    Store.build(source, sentences[::-1], tmp_path, say=said.append)  # in whatever order it is asked for
    assert len(encoded) == len(DISTINCT) + frozen.PROBES
    assert said[1:] == ["6 distinct sentences, 0.0 MB, found"]
    assert len(files(tmp_path)) == 1


def test_whatever_changes_the_encodings_makes_another_file(tmp_path, tiny, tiny_tokenizer, sentences):
    encoder, heads = tiny(), [make_model(SST, name, tiny).heads["sst"] for name in ("mean", "last", "attentive")]
    source = Source(encoder, "weights")
    builds = [
        (source, sentences),
        (Source(encoder, "other"), sentences),
        (source, sentences[:-1]),
        (Source(tiny(layer_norm_eps=1e-5), "weights"), sentences),
        (Source(encoder, "weights", autocast=torch.bfloat16), sentences),
        (Source(encoder, "weights", heads[0]), sentences),
        (Source(encoder, "weights", heads[1]), sentences),
    ]
    for number, (source, texts) in enumerate(builds, start=1):
        Store.build(source, texts, tmp_path)
        assert len(files(tmp_path)) == number
    Store.build(Source(encoder, "weights", heads[2]), sentences, tmp_path)  # reads tokens, as the first one did
    assert len(files(tmp_path)) == number


def test_one_sentence_is_not_two(tmp_path, source, sentences):
    """`a b` and `c d` hold the same tokens in the same order as `a b c` and `d`."""
    ids = sentences[0]
    for texts in ([ids[:2], ids[2:4]], [ids[:3], ids[3:4]]):
        Store.build(source, texts, tmp_path)
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize("change", ["cut", "longer", "empty", "zeros", "one bit", "checksum"])
def test_a_damaged_file_is_made_again(tmp_path, source, rows, sentences, change):
    Store.build(source, sentences, tmp_path)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    # Token 12 stands in none of the sentences that are encoded again to compare.
    bit = bytearray(content)
    bit[12 * 24 * 4] ^= 1
    broken = {"cut": content[:-4], "longer": content + b"1234", "empty": b"", "zeros": bytes(len(content))}
    broken |= {"one bit": bytes(bit), "checksum": content[:-1] + bytes([content[-1] ^ 1])}
    path.write_bytes(broken[change])
    assert_right(Store.build(source, sentences, tmp_path), source.encoder, rows)
    assert path.read_bytes() == content


def test_encodings_of_other_code_are_made_again(tmp_path, monkeypatch, tiny, sentences):
    """Whoever writes an encoder or a pooler changes it and runs again: the old file must not stand for the new code."""
    said = []
    head = make_model(SST, "mean", tiny).heads["sst"]
    source = Source(tiny(), "weights", head)
    before = Store.build(source, sentences, tmp_path).rows.copy()
    monkeypatch.setattr(MeanTokens, "features", FirstToken.features)
    after = Store.build(source, sentences, tmp_path, say=said.append).rows
    assert said[0] == "what is on disk is not what the encoder computes now: encoded again"
    assert np.abs(before - after).max() > 0.1 and len(files(tmp_path)) == 1


# --- the budget --------------------------------------------------------------------------------------------------

# 6 distinct sentences of 6, 8, 3, 9, 6 and 3 tokens with [CLS] and [SEP], 24 numbers each, 4 or 2 bytes a number, and a
# checksum.
TOKENS_IN_ALL = 35
FULL, HALF = TOKENS_IN_ALL * 24 * 4 + 4, TOKENS_IN_ALL * 24 * 2 + 4


def gb(number):
    return number / 1e9


@pytest.fixture
def roomy(monkeypatch):
    """Disks have space, whatever the machine's has."""
    monkeypatch.setattr(disk_cache, "MARGIN", 0)


def test_the_size_by_hand(tmp_path, roomy, source, sentences):
    store = Store.build(source, sentences, tmp_path, budget_gb=gb(FULL))
    assert store.rows.nbytes + 4 == sum(path.stat().st_size for path in tmp_path.iterdir()) == FULL


def test_what_does_not_fit_is_kept_as_float16_and_that_is_said(tmp_path, roomy, source, rows, sentences):
    said = []
    for _ in range(2):
        store = Store.build(source, sentences, tmp_path, budget_gb=gb(FULL - 1), say=said.append)
        assert store.rows.dtype == np.float16
        assert_right(store, source.encoder, rows, atol=5e-3)
    assert "as float16, since float32 would take" in said[0] and said[0].endswith("encoded once")
    assert len(said) == 2 and said[1].endswith("found")
    store = None
    rows.read_from(None)
    store = Store.build(source, sentences, tmp_path, budget_gb=gb(2 * FULL), say=said.append)  # a larger budget
    assert store.rows.dtype == np.float32 and said[2].endswith("encoded once")


@pytest.mark.parametrize("why", ["budget", "none", "disk"])
def test_what_does_not_fit_at_all_is_not_kept_and_that_is_said(tmp_path, monkeypatch, source, sentences, encoded, why):
    said = []
    budget = {"budget": HALF - 1, "none": 0, "disk": 10 * FULL}[why]
    if why == "disk":
        monkeypatch.setattr(disk_cache, "MARGIN", 2**62)
    assert Store.build(source, sentences, tmp_path, budget_gb=gb(budget), say=said.append) is None
    assert len(said) == 1 and "not kept, encoded anew in every epoch" in said[0]
    assert files(tmp_path) == [] and encoded == []


def test_older_files_make_room_but_none_that_is_in_use(tmp_path, roomy, encoder, sentences):
    def build(name, say=lambda text: None, budget=3 * FULL):
        return Store.build(Source(encoder, name), sentences, tmp_path, gb(budget), say)

    def age(store_files, seconds):
        for path in store_files:
            os.utime(path, (seconds, seconds))

    known, paths = set(), {}
    used = None
    for seconds, name in enumerate(("first", "second", "third"), start=1000):
        store = build(name)
        used = store if name == "first" else used
        (paths[name],) = set(tmp_path.iterdir()) - known
        known = set(tmp_path.iterdir())
        age([paths[name]], seconds)
        del store
    said = []
    fourth = build("fourth", said.append)  # `first` is the oldest, but `used` reads it
    assert set(tmp_path.iterdir()) >= {paths["first"], paths["third"]} and not paths["second"].exists()
    assert said[0].startswith("older ones deleted to make room: 1, 0.0 MB") and len(said) == 2
    del fourth
    age([paths["first"]], 1)
    build("first")  # used again, so now it isn't the oldest any more
    del used
    age(set(tmp_path.iterdir()) - {paths["first"], paths["third"]}, 2000)
    build("fifth")
    assert paths["first"].exists() and not paths["third"].exists()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 3 * FULL


# --- what stops it in the middle -----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_ends_no_run(tmp_path, monkeypatch, source, sentences, code):
    def fail(_):
        raise OSError(code, os.strerror(code))

    said = []
    monkeypatch.setattr(disk_cache.os, "fsync", fail)
    assert Store.build(source, sentences, tmp_path, say=said.append) is None
    assert len(said) == 1 and said[0].startswith("not kept, encoded anew in every epoch: cannot write ")
    assert os.strerror(code) in said[0]
    assert files(tmp_path) == []


def test_a_system_that_refuses_the_size_says_so_before_anything_is_encoded(tmp_path, source, sentences, encoded):
    """A real refusal: files of this process may not grow beyond half of what is needed."""
    said, limits = [], resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL // 2, limits[1]))
    try:
        assert Store.build(source, sentences, tmp_path, say=said.append) is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(said) == 1 and "File too large" in said[0]
    assert files(tmp_path) == [] and encoded == []


def test_a_folder_that_can_not_be_made_ends_no_run(tmp_path, source, sentences):
    said = []
    (tmp_path / "file").write_text("in the way")
    assert Store.build(source, sentences, tmp_path / "file" / "cache", say=said.append) is None
    assert "not kept" in said[0] and "a part of that path is a file" in said[0]


def test_an_interruption_leaves_no_half_file(tmp_path, monkeypatch, source, sentences):
    def fail(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(disk_cache.os, "fsync", fail)
    with pytest.raises(KeyboardInterrupt):
        Store.build(source, sentences, tmp_path)
    assert files(tmp_path) == []
