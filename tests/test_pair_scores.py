"""The score that begins as the encoder's own cosine, and pairs that are encoded both ways.

Follows Reimers and Gurevych 2019 (arXiv 1908.10084) for cosine and |a - b|, and Devlin et al. 2018 (arXiv 1810.04805,
section 4.1) for the joint sequence; values are worked out from the parts.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from batches import TaskData
from calibration import calibrate
from datasets import Example, Table
from errors import InputError
from evaluation import predict
from frozen import Source, Store
from heads import HeadConfig, TaskHead
from model import ModelConfig, MultitaskBERT
from packed import Layout
from tasks import PARA, STS, TASKS

PAIRS = [("a film", "the film was good"), ("the dog", "a dog"), ("good film was", "bad"), ("the the", "bad film")]
LABELS = {"para": [1.0, 0.0, 1.0, 0.0], "sts": [5.0, 1.0, 2.5, 0.0], "mrpc": [1, 0, 1, 0]}


@pytest.fixture(params=["para", "sts"])
def task(request):
    return TASKS[request.param]


def rows(task, tokenizer, encoding):
    examples = [Example(f"r{i}", *pair, LABELS[task.name][i], i + 2) for i, pair in enumerate(PAIRS)]
    return TaskData(task, Table(Path("made up"), examples, [], ""), tokenizer, pair_encoding=encoding)


def build(task, tiny, encoding, **choices):
    config = ModelConfig.for_tasks(
        [task.name], attention={task.name: 0}, pair_encoding=encoding, pair_score="cosine", **choices
    )
    model = MultitaskBERT(config, tiny(num_hidden_layers=2, initializer_range=0.1)).eval()
    torch.manual_seed(1)
    output = model.heads[task.name].output
    torch.nn.init.normal_(output.weight, std=0.1)
    torch.nn.init.normal_(output.bias)
    return model


def layout_of(sentences):
    return Layout.of(torch.ones(sentences, 1, dtype=torch.long))


def test_it_begins_as_the_cosine():
    head = TaskHead(STS, 2, 1, HeadConfig(0, pooler="mean", pair_score="cosine")).eval()
    vectors = torch.tensor([[1.0, 0.0], [3.0, 4.0], [2.0, 0.0], [0.0, 1.0]])  # a, a, b, b
    assert head((vectors,), layout_of(4)).tolist() == pytest.approx([1.0, 0.8])
    assert head.offset is None and head.scale.item() == 1 and head.begins_calibrated


def test_its_parts_by_hand():
    head = TaskHead(PARA, 2, 1, HeadConfig(0, pooler="mean", pair_score="cosine")).eval()
    with torch.no_grad():
        head.output.weight.copy_(torch.tensor([[1.0, 10.0, 100.0, 1000.0]]))
        head.output.bias.fill_(0.25)
        head.scale.fill_(5.0)
        head.offset.fill_(-2.0)
    vectors = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
    # 5 * 3 / 5 + [|1 - 3|, |0 - 4|; 3, 0] . W + .25 - 2
    assert head((vectors,), layout_of(2)).item() == pytest.approx(3 + 2 + 40 + 300 + 0.25 - 2)


def test_a_pair_of_both_encodings_by_hand():
    head = TaskHead(STS, 2, 1, HeadConfig(0, pooler="mean", pair_score="cosine", both=True)).eval()
    with torch.no_grad():
        head.output.weight.copy_(torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0, 10.0]]))
    vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 4.0], [0.0, 2.0], [7.0, 8.0], [5.0, 6.0]])  # a a b b j j
    assert head((vectors,), layout_of(6)).tolist() == pytest.approx([0.6 + 87, 1 + 65])
    classes = TaskHead(TASKS["mrpc"], 2, 1, HeadConfig(0, pooler="mean", both=True))
    assert classes.output.weight.shape == (2, 8)  # [a; b; |a - b|; joint]


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("task", [STS, TASKS["mrpc"]], ids=lambda task: task.name)
def test_training_sees_the_differences_that_are_seen_later(task, both):
    """Dropout of a and b one by one makes |a - b| of equal sentences large in training, and 0 when it is asked."""
    size = 1000
    head = TaskHead(
        task, size, 1, HeadConfig(0, pooler="mean", pair_score="cosine", dropout_prob=0.5, both=both)
    ).train()
    difference = slice(0, size) if head.cosine else slice(2 * size, 3 * size)
    with torch.no_grad():
        head.output.weight.zero_()[:, difference] = 1.0
        head.output.bias.zero_()
        if head.cosine:
            head.scale.zero_()
    torch.manual_seed(0)
    a = torch.randn(1, size)
    same = torch.cat([a, a] + [a] * both)
    assert not head((same,), layout_of(len(same))).any()
    other = torch.cat([a, -a] + [a] * both)
    known = (2 * a).abs().sum().item()
    assert head((other,), layout_of(len(other))).flatten()[0].item() == pytest.approx(known, rel=0.1)


def test_a_batch_of_both_is_sentences_then_sequences(task, tiny_tokenizer):
    both = rows(task, tiny_tokenizer, "both")
    apart, joint = rows(task, tiny_tokenizer, "separate"), rows(task, tiny_tokenizer, "joint")
    batch, order = both.batch(np.array([2, 0])), np.array([2, 0])
    for found, wanted in ((slice(0, 4), apart.batch(order)), (slice(4, 6), joint.batch(order))):
        width = wanted.input_ids.shape[1]
        assert torch.equal(batch.input_ids[found, :width], wanted.input_ids)
        assert not batch.input_ids[found, width:].any()
        assert torch.equal(batch.layout.real()[found, :width], wanted.layout.real())
    assert not batch.token_type_ids[:4].any()
    assert torch.equal(batch.token_type_ids[4:], joint.batch(order).token_type_ids)
    assert both.lengths.tolist() == (apart.lengths + joint.lengths).tolist()
    assert len(batch) == 2 and batch.labels.tolist() == apart.batch(order).labels.tolist()


@pytest.mark.parametrize("encoding", ["separate", "both"])
def test_a_pair_alone_is_scored_as_among_others(task, encoding, tiny, tiny_tokenizer):
    model, data = build(task, tiny, encoding), rows(task, tiny_tokenizer, encoding)
    with torch.no_grad():
        together = model.outputs(data.batch(np.arange(4)))
        alone = torch.cat([model.outputs(data.batch(np.array([i]))) for i in range(4)])
    assert together.std() > 1e-3
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("encoding", ["separate", "both"])
def test_training_begins_with_scores_of_deviation_one(task, encoding, tiny, tiny_tokenizer):
    model, data = build(task, tiny, encoding), rows(task, tiny_tokenizer, encoding)
    head, batch = model.heads[task.name], data.batch(np.arange(4))
    torch.nn.init.zeros_(head.output.weight)
    torch.nn.init.zeros_(head.output.bias)
    with torch.no_grad():
        a, b = head.represent(model.encode(batch.input_ids, batch.layout), batch.layout)[:8].chunk(2)
        calibrate(model, data, 0)
        scores = model.outputs(batch)
    assert scores.std().item() == pytest.approx(1, abs=1e-4)
    assert scores.argsort().tolist() == F.cosine_similarity(a, b).argsort().tolist()
    if task is PARA:  # half of the labels are 1
        assert scores.mean().item() == pytest.approx(math.log((2 + 1) / (4 + 2 - 3)), abs=1e-4)


@pytest.mark.parametrize("pooler", ["mean", "attentive_cls", "concat_last4"])
def test_from_the_store_as_from_the_encoder(task, pooler, tiny, tiny_tokenizer, tmp_path, monkeypatch):
    config = ModelConfig.for_tasks(
        [task.name],
        attention={task.name: 0},
        pair_encoding="both",
        pair_score="cosine",
        pooler=pooler,
        option="pretrain",
    )
    model = MultitaskBERT(config, tiny(num_hidden_layers=4, initializer_range=0.1)).eval()
    torch.nn.init.normal_(model.heads[task.name].output.weight)
    data = rows(task, tiny_tokenizer, "both")
    wanted = model.outputs(data.batch(np.arange(4)))
    sentences = [ids for side in data.sentences for ids in side]
    data.read_from(Store.build(Source(model.bert, "weights", model.heads[task.name]), sentences, tmp_path))
    monkeypatch.setattr(model.bert, "encode", None)  # whoever calls it from here on fails
    torch.testing.assert_close(model.outputs(data.batch(np.arange(4))), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("encoding", ["separate", "both"])
@pytest.mark.parametrize("name", ["para", "sts", "mrpc"])
def test_it_is_learned_saved_and_loaded(name, encoding, tiny, tiny_tokenizer, tmp_path):
    model = build(TASKS[name], tiny, encoding, hidden_dropout_prob=0.0).train()
    data = rows(TASKS[name], tiny_tokenizer, encoding)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(60):
        optimizer.zero_grad()
        model.loss(data.batch(np.arange(4))).backward()
        optimizer.step()
    assert all(p.grad is not None for p in model.heads[name].parameters())
    found = predict(model, data)
    assert found.score > 0.95
    model.save_pretrained(tmp_path)
    again = MultitaskBERT.from_pretrained(tmp_path)
    assert again.heads[name].config.pair_encoding == encoding
    assert np.array_equal(predict(again, data).outputs, found.outputs)


def test_what_does_not_go_together_is_refused(tiny):
    with pytest.raises(InputError, match="--pair_encoding both: the attention layers .*--attention 0"):
        HeadConfig(1, both=True)
    with pytest.raises(InputError, match="--pair_encoding both: .*say --pair_score cosine"):
        TaskHead(PARA, 24, 4, HeadConfig(0, both=True))
    with pytest.raises(InputError, match="both is 1; wanted true or false"):
        HeadConfig(0, both=1)
    with pytest.raises(InputError, match="--pair_encoding both: this encoder knows one segment"):
        MultitaskBERT(
            ModelConfig.for_tasks(["sts"], attention={"sts": 0}, pair_encoding="both", pair_score="cosine"),
            tiny(type_vocab_size=1),
        )
