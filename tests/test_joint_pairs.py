"""Joint pairs: one sequence of two segments from the tokenizer to the outputs, frozen or not, saved and loaded.

Devlin et al. 2018 (arXiv 1810.04805), section 4.1: `[CLS] a [SEP] b [SEP]`, the second segment from b on.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from batches import SEGMENT, TaskData
from datasets import Example, Table
from errors import InputError
from evaluation import predict
from frozen import Source, Store
from heads import HeadConfig, TaskHead
from model import ModelConfig, MultitaskBERT
from poolers import POOLERS
from task_attention import SelfAttentionLayer
from tasks import PARA, SST, STS

PAIRS = [("the film was good", "a dog ran on the mat ."), ("why", "bad"), ("not bad", "very very good"), ("bad", "why")]
# Their ids are the same, and the second segment begins elsewhere.
AMBIGUOUS = [("the film [SEP] was good", "bad"), ("the film", "was good [SEP] bad")]
LABELS = {"para": [1, 0, 0, 1], "sts": [4.5, 0.0, 2.5, 1.0]}
JOINT = dataclasses.replace(PARA, pair_encoding="joint")


@pytest.fixture(params=[PARA, STS], ids=lambda task: task.name)
def task(request):
    return request.param


def rows(task, tokenizer, pairs=PAIRS, **choices):
    labels = LABELS[task.name]
    examples = [Example(f"r{i}", *pair, labels[i], i + 2) for i, pair in enumerate(pairs)]
    return TaskData(task, Table(Path("made up"), examples, [], ""), tokenizer, pair_encoding="joint", **choices)


def build(task, tiny, pooler="mean", attention=0, **choices):
    config = ModelConfig.for_tasks(
        [task.name], pooler=pooler, attention={task.name: attention}, pair_encoding="joint", **choices
    )
    return MultitaskBERT(config, tiny(num_hidden_layers=4, initializer_range=0.1)).eval()


def test_which_pairs_are_joint():
    choices = (None, "joint", "separate", "both")
    assert [JOINT.encoding(choice) for choice in choices] == ["joint", "joint", "separate", "both"]
    assert [PARA.encoding(choice) for choice in choices] == ["separate", "joint", "separate", "both"]
    assert {SST.encoding(choice) for choice in choices} == {"separate"}
    with pytest.raises(InputError, match="joint is 'yes'; wanted true or false"):
        HeadConfig(0, joint="yes")
    with pytest.raises(InputError, match="pair_encoding is 'neither'; wanted one of separate, joint, both"):
        dataclasses.replace(PARA, pair_encoding="neither")


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 1], [1]])
def test_a_batch_is_what_the_tokenizer_makes_of_pairs(order, task, tiny_tokenizer):
    data = rows(task, tiny_tokenizer)
    batch = data.batch(np.array(order))
    first, second = zip(*(PAIRS[i] for i in order), strict=True)
    wanted = tiny_tokenizer(list(first), list(second), padding=True, return_tensors="pt")
    assert torch.equal(batch.input_ids, wanted.input_ids)
    assert torch.equal(batch.token_type_ids, wanted.token_type_ids)
    assert torch.equal(batch.layout.real().long(), wanted.attention_mask)
    assert data.lengths[order].tolist() == wanted.attention_mask.sum(dim=1).tolist()
    assert batch.labels.tolist() == [LABELS[task.name][i] for i in order]


@pytest.mark.parametrize("encoding", ["joint", "both"])
def test_half_the_pairs_are_swapped_in_training_and_others_each_epoch(task, tiny_tokenizer, encoding):
    table = Table(
        Path("made up"), [Example(f"r{i}", *PAIRS[i % 4], LABELS[task.name][i % 4], i + 2) for i in range(64)], [], ""
    )
    data = TaskData(task, table, tiny_tokenizer, pair_encoding=encoding, swap_seed=7)
    wanted = [tiny_tokenizer(*PAIRS[i % 4]).input_ids for i in range(64)]
    other = [tiny_tokenizer(*PAIRS[i % 4][::-1]).input_ids for i in range(64)]
    order = np.random.default_rng(0).permutation(64)

    def swapped(batches):
        """Which rows' sequences have the second sentence first; each is the one or the other."""
        found = {}
        for batch in batches:
            ids = batch.input_ids[-len(batch) :]
            segments = batch.token_type_ids[-len(batch) :]
            real = batch.layout.real()[-len(batch) :]
            for name, row, types, there in zip(batch.ids, ids, segments, real, strict=True):
                i = int(name[1:])
                found[i] = row[there].tolist() == other[i]
                first, second = PAIRS[i % 4][::-1] if found[i] else PAIRS[i % 4]
                assert found[i] or row[there].tolist() == wanted[i]
                assert types[there].tolist() == tiny_tokenizer(first, second).token_type_ids
            if encoding == "both":  # the sentences themselves stay where they are
                first = batch.input_ids[0][batch.layout.real()[0]].tolist()
                assert first == tiny_tokenizer(PAIRS[int(batch.ids[0][1:]) % 4][0]).input_ids
        return [found[i] for i in range(64)]

    epochs = [swapped(data.parts(order, 9, torch.device("cpu"), epoch)) for epoch in range(2)]
    assert all(16 < sum(epoch) < 48 for epoch in epochs) and epochs[0] != epochs[1]
    assert swapped(data.parts(np.arange(64), None, torch.device("cpu"), 1)) == epochs[1]  # whatever the batches
    assert not any(swapped([data.batch(order)]) + swapped(data.parts(order, None, torch.device("cpu"))))  # evaluation
    plain = TaskData(task, table, tiny_tokenizer, pair_encoding=encoding)
    assert not any(swapped(plain.parts(order, None, torch.device("cpu"), 0)))


def test_the_longer_sentence_is_cut_first_and_that_is_counted(tiny_tokenizer):
    data = rows(PARA, tiny_tokenizer, [("a " * 30, "the film was good"), ("a", "b")])
    assert data.truncated == 1 and data.max_length == 24
    ids = data.sentences[0][0]
    assert len(ids) == 24 and (ids >= SEGMENT).sum() == 5  # the four words of the shorter one, and [SEP]
    data = rows(PARA, tiny_tokenizer, [("a " * 30, "the " * 30)], max_length=13)
    assert data.truncated == 1 and (data.sentences[0][0] >= SEGMENT).sum() == 6


@pytest.mark.parametrize("attention", [0, 1])
def test_outputs_are_a_single_sentence_s_of_the_pair(task, attention, tiny, tiny_tokenizer):
    """Worked out from the parts: encoder with segments, self-attention, mean, one linear map to one number."""
    model, data = build(task, tiny, attention=attention), rows(task, tiny_tokenizer)
    head, batch = model.heads[task.name], data.batch(np.arange(4))
    mask = batch.layout.real()
    with torch.no_grad():
        hidden = model.bert(batch.input_ids, mask.long(), batch.token_type_ids)["last_hidden_state"]
        if attention:
            assert isinstance(head.attention[0], SelfAttentionLayer)
            hidden = batch.layout.unpack(head.attention[0](batch.layout.pack(hidden), batch.layout))
        means = (hidden * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        wanted = head.output(means)[:, 0]
        torch.testing.assert_close(model.outputs(batch), wanted, rtol=0, atol=1e-5)
        batch.token_type_ids = None
        assert (model.outputs(batch) - wanted).abs().min() > 1e-4  # the segments are read


def test_a_pair_alone_is_scored_as_among_others(task, tiny, tiny_tokenizer):
    model, data = build(task, tiny), rows(task, tiny_tokenizer)
    with torch.no_grad():
        together = model.outputs(data.batch(np.arange(4)))
        alone = torch.cat([model.outputs(data.batch(np.array([i]))) for i in range(4)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("attention", [0, 1])
@pytest.mark.parametrize("pooler", list(POOLERS))
def test_from_the_store_as_from_the_encoder(pooler, attention, tiny, tiny_tokenizer, tmp_path, monkeypatch):
    model = build(PARA, tiny, pooler, attention, option="pretrain")
    data = rows(PARA, tiny_tokenizer, [*AMBIGUOUS, *PAIRS[:2]])
    first, second = data.sentences[0][:2]
    assert (first % SEGMENT).tolist() == (second % SEGMENT).tolist() and first.tolist() != second.tolist()
    wanted = model.outputs(data.batch(np.arange(4)))
    assert abs(wanted[0] - wanted[1]) > 1e-4
    store = Store.build(Source(model.bert, "weights", model.heads["para"]), data.sentences[0], tmp_path)
    data.read_from(store)
    monkeypatch.setattr(model.bert, "encode", None)  # whoever calls it from here on fails
    torch.testing.assert_close(model.outputs(data.batch(np.arange(4))), wanted, atol=1e-5, rtol=1e-5)


def test_it_is_learned_saved_and_loaded(task, tiny, tiny_tokenizer, tmp_path):
    torch.manual_seed(0)
    model, data = build(task, tiny, "attentive_cls", hidden_dropout_prob=0.0).train(), rows(task, tiny_tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(60):
        optimizer.zero_grad()
        model.loss(data.batch(np.arange(4))).backward()
        optimizer.step()
    found = predict(model, data)
    assert found.score > 0.95
    model.save_pretrained(tmp_path)
    again = MultitaskBERT.from_pretrained(tmp_path)
    assert again.heads[task.name].config.joint
    assert np.array_equal(predict(again, data).outputs, found.outputs)


def test_classes_of_a_joint_pair():
    nli = dataclasses.replace(
        PARA,
        label_kind="class",
        label_range=(0, 2),
        output_size=3,
        loss="cross_entropy",
        pair_encoding="joint",
        label_words=(),
    )
    assert TaskHead(nli, 8, 2, HeadConfig(0, joint=True)).output.weight.shape == (3, 8)
    assert TaskHead(nli, 8, 2, HeadConfig(0)).output.weight.shape == (3, 24)


def test_a_joint_head_has_no_offset_to_calibrate(tiny, tiny_tokenizer):
    model, data = build(PARA, tiny), rows(PARA, tiny_tokenizer)
    before = {name: p.clone() for name, p in model.named_parameters()}
    model.calibrate(data.batch(np.arange(4)), 0.5)
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


def test_an_encoder_of_one_segment_is_refused(tiny):
    config = ModelConfig.for_tasks(["para"], pair_encoding="joint")
    with pytest.raises(InputError, match="--pair_encoding joint: this encoder knows one segment"):
        MultitaskBERT(config, tiny(type_vocab_size=1))
    MultitaskBERT(ModelConfig.for_tasks(["sst", "para"]), tiny(type_vocab_size=1))
