"""Contrastive batches and their gradient: two passes, cached outputs, the dense layer of training alone."""

import numpy as np
import pytest
import torch

from contrastive_data import Contrast
from contrastive_loss import Objective, contrastive_loss
from contrastive_model import ContrastiveGradients, ContrastiveModel, ContrastiveRows
from masked_language import MaskedLanguageHead, Masking
from poolers import make_pooler
from sentence_encoder import SentenceEncoder, sentence_vectors

CPU = torch.device("cpu")
SENTENCES = ["a good film", "dull", "the cat sat on the mat", "why ?", "who ran", "a good film", "GOOD"]
TRIPLES = [
    ("a good film", "the film was good", "dull"),
    ("the cat sat", "a cat sat on the mat , quickly", "the dog ran"),
    ("who ran ?", "why ?", "a dog"),
    ("very bright", "bright", "not bright ."),
    ("on the mat", "a mat", "cat"),
]


def contrast(rows):
    rows = [row if isinstance(row, tuple) else (row,) for row in rows]
    return Contrast(rows, [f"file:{line}" for line, _ in enumerate(rows, start=1)], [])


@pytest.fixture
def make(tiny, tiny_tokenizer):
    """make(rows, dropout, pooler, masked, **parts of the model) -> (rows, model)."""

    def build(rows, dropout=0.0, pooler="mean", masked=False, **parts):
        bert = tiny(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
        encoder = SentenceEncoder(bert, make_pooler(pooler, 24, 3), tiny_tokenizer, 24, pooler)
        masking = Masking(tiny_tokenizer, seed=1) if masked else None
        data = ContrastiveRows(contrast(rows), encoder, 9, Objective(0.05, 0.7), masking)
        head = MaskedLanguageHead(bert) if masked else None
        return data, ContrastiveModel(encoder, masked_head=head, **parts).train()

    return build


def gradient(data, model, most, weight=0.0, rows=None):
    """(loss, gradients) of the batch of all rows, at most so many through the model at once."""
    rows = np.arange(len(data)) if rows is None else rows
    model.zero_grad()
    torch.manual_seed(4)
    gradients = ContrastiveGradients(CPU, model.outputs, masked_loss=model.masked_loss, masked_weight=weight)
    loss = gradients.backward(data.parts(rows, most, CPU, epoch=2), [len(rows)])
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("rows", [SENTENCES, TRIPLES], ids=["sentences", "triples"])
@pytest.mark.parametrize("weight", [0.0, 0.5])
@pytest.mark.parametrize("pooler", ["mean", "first"])
def test_cached_gradients_are_the_whole_batchs(make, rows, weight, pooler):
    data, model = make(rows, pooler=pooler, masked=weight > 0)
    whole, wanted = gradient(data, model, None, weight)
    assert wanted.keys() >= {"bert.encoder.layer.0.output.dense.weight"}
    for most in (1, 2, 3):
        loss, found = gradient(data, model, most, weight)
        assert loss == pytest.approx(whole, abs=1e-5) and found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            scale = max(1.0, float(tensor.abs().max()))
            torch.testing.assert_close(found[name] / scale, tensor / scale, atol=1e-5, rtol=0)


def test_cached_gradients_are_the_losss_own_with_dropout(make):
    """In parts of one row the second pass has the first one's dropout: the slope along the gradient is its length."""
    data, model = make(TRIPLES, dropout=0.3, pooler="layer_attention")
    name = "bert.encoder.layer.1.output.dense.bias"
    parameter, own = dict(model.named_parameters())[name], gradient(data, model, 1)[1][name]
    start, direction, step, losses = parameter.detach().clone(), own / own.norm(), 2e-3, []
    for sign in (1, -1):
        with torch.no_grad():
            parameter.copy_(start + sign * step * direction)
        losses.append(gradient(data, model, 1)[0])
    assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(float(own.norm()), rel=0.02)


def test_a_sentence_alone_is_a_pair_under_two_dropouts(make):
    data, model = make(SENTENCES, dropout=0.2)
    batch = data.batch(np.arange(7))
    assert batch.input_ids.shape[0] == 14 and torch.equal(batch.input_ids[:7], batch.input_ids[7:])
    vectors = model.outputs(batch)
    assert vectors.shape == (7, 2, 24) and vectors.dtype == torch.float32
    assert ((vectors[:, 0] - vectors[:, 1]).abs().amax(dim=1) > 1e-3).all()
    torch.testing.assert_close(model.eval().outputs(batch)[:, 0], model.outputs(batch)[:, 1])
    assert data.lengths.tolist() == [10, 6, 16, 8, 8, 10, 6]


def test_sentences_that_read_the_same_have_one_name(make):
    data, _ = make(SENTENCES)
    names = data.labels[:, 0].tolist()
    assert torch.equal(data.labels[:, 0], data.labels[:, 1])
    assert names[0] == names[5] and len(set(names)) == 6
    data, _ = make([("Good", "dull", "good"), ("a cat " * 9, "a cat " * 8, "dull")])
    assert data.labels[0, 0] == data.labels[0, 2] and data.labels[0, 1] == data.labels[1, 2]
    assert data.labels[1, 0] == data.labels[1, 1] and data.truncated == 2  # cut to the same nine tokens


def test_rows_are_anchor_positive_and_hard_negative(make, tiny_tokenizer):
    data, model = make(TRIPLES)
    vectors = model.outputs(data.batch(np.array([3, 1])))
    for place, row in enumerate((3, 1)):
        for view, text in enumerate(TRIPLES[row]):
            ids = tiny_tokenizer(text, truncation=True, max_length=9, return_tensors="pt")["input_ids"]
            wanted = model.bert(ids)["last_hidden_state"].mean(dim=1)[0]
            torch.testing.assert_close(vectors[place, view], wanted, atol=1e-5, rtol=1e-4)
    batch = data.batch(np.array([3, 1]))
    wanted = contrastive_loss(vectors, batch.labels, Objective(0.05, 0.7))
    torch.testing.assert_close(batch.loss(vectors, batch.labels), wanted)


def test_the_dense_layer_is_trained_and_thrown_away(make):
    data, model = make(SENTENCES, pooler="first", dense=True)
    batch = data.batch(np.arange(3))
    vectors = sentence_vectors(model.bert, model.pooler, batch.input_ids, batch.layout)
    wanted = torch.tanh(model.dense(vectors)).unflatten(0, (2, 3)).transpose(0, 1)
    torch.testing.assert_close(model.outputs(batch), wanted)
    _, found = gradient(data, model, None)
    assert found["dense.weight"].any() and "bert.pooler.dense.weight" not in found


def test_hidden_tokens_are_each_sentences_once(make):
    for rows, texts in ((SENTENCES, 7), (TRIPLES, 15)):
        data, _ = make(rows, masked=True)
        masked = data.batch(np.arange(len(data)), epoch=3).masked
        assert masked.input_ids.shape[0] == texts
        read = masked.layout.pack(masked.input_ids)
        assert (read[masked.rows] != masked.ids).any() and not set(masked.ids.tolist()) & {0, 1, 2, 3, 4}
        true_ids = read.clone()
        true_ids[masked.rows] = masked.ids
        wanted = [data.tokens[text] for text in data.texts.flat]
        places = masked.layout.unpack(true_ids[:, None].float()).squeeze(dim=2)
        for row, ids in zip(places, wanted, strict=True):
            assert row[: len(ids)].tolist() == ids.tolist()
        again = data.batch(np.arange(len(data)), epoch=3).masked
        assert torch.equal(again.input_ids, masked.input_ids)
        other = data.batch(np.arange(len(data)), epoch=4).masked
        assert not torch.equal(other.input_ids, masked.input_ids)


def test_no_rows_are_no_parts(make):
    data, _ = make(SENTENCES)
    assert data.parts(np.arange(0), None, CPU) == []
    assert [len(part) for part in data.parts(np.arange(7), 3, CPU)] == [3, 2, 2]
