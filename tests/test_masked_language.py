"""Masked language modelling: which tokens are hidden, what stands in their place, and the head that guesses them."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from errors import InputError
from masked_language import Masked, MaskedLanguageHead, Masking, masked_language_loss
from packed import Layout
from tokenizer import BertTokenizer

SPECIALS = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}


@pytest.fixture(scope="module")
def masking():
    pieces = [*SPECIALS, *(f"word{i}" for i in range(995))]
    return Masking(BertTokenizer({piece: i for i, piece in enumerate(pieces)}), seed=3)


def test_fifteen_percent_are_chosen_and_of_these_80_10_10(masking):
    ids = np.concatenate([[2], np.full(40_000, 77), [3]]).astype(np.int32)
    hidden, chosen = masking.hide(ids, epoch=0, row=0)
    n = chosen.sum()
    assert n / 40_000 == pytest.approx(0.15, abs=0.008)  # over four standard deviations
    assert (hidden[~chosen] == ids[~chosen]).all()
    what = hidden[chosen]
    masked, kept = (what == 4).mean(), (what == 77).mean()
    assert masked == pytest.approx(0.8, abs=0.025) and kept == pytest.approx(0.1, abs=0.02)
    drawn = what[(what != 4) & (what != 77)]
    assert len(drawn) / n == pytest.approx(0.1, abs=0.02)
    assert len(set(drawn.tolist())) > 300 and 0 <= drawn.min() and drawn.max() < 1000  # from the whole vocabulary


def test_special_tokens_are_never_chosen(masking):
    ids = np.tile(np.arange(5, dtype=np.int32), 2000)
    hidden, chosen = masking.hide(ids, epoch=1, row=2)
    assert not chosen.any() and (hidden == ids).all()


def test_the_same_for_the_same_and_other_ones_each_epoch(masking):
    ids = np.arange(5, 405, dtype=np.int32)
    one, chosen = masking.hide(ids, epoch=0, row=5)
    again, _ = masking.hide(ids, epoch=0, row=5)
    assert (one == again).all() and (ids == np.arange(5, 405)).all()  # what it was handed stays
    for other in ({"epoch": 1, "row": 5}, {"epoch": 0, "row": 6}, {"epoch": 0, "row": 5, "side": 1}):
        assert (masking.hide(ids, **other)[1] != chosen).any()


def test_the_loss_is_a_sum_over_the_hidden_tokens_alone(tiny):
    bert = tiny()
    head = MaskedLanguageHead(bert).eval()
    torch.nn.init.normal_(head.bias)
    ids = torch.tensor([[2, 9, 8, 4, 3], [2, 4, 3, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    layout = Layout.of(mask)
    rows, true_ids = layout.back.view(2, 5)[[0, 1], [3, 1]], torch.tensor([11, 12])
    found = masked_language_loss(bert, head, Masked(ids, layout, rows, true_ids))
    states = bert(ids, mask)["last_hidden_state"]
    wanted = 0.0
    for sentence, column, token in ((0, 3, 11), (1, 1, 12)):
        h = F.gelu(head.dense(states[sentence, column]))
        h = F.layer_norm(h, (24,), head.LayerNorm.weight, head.LayerNorm.bias, 1e-12)
        scores = bert.embeddings.word_embeddings.weight @ h + head.bias
        wanted -= torch.log_softmax(scores, dim=0)[token].item()
    assert found.item() == pytest.approx(wanted, abs=1e-4)
    found.backward()
    assert bert.embeddings.word_embeddings.weight.grad[11].any()  # the map back to words is the embeddings'


def test_nothing_hidden_is_a_loss_of_zero(tiny):
    bert = tiny()
    ids = torch.tensor([[2, 9, 3]])
    nothing = torch.zeros(0, dtype=torch.long)
    masked = Masked(ids, Layout.of(torch.ones_like(ids)), nothing, nothing)
    assert masked_language_loss(bert, MaskedLanguageHead(bert), masked).item() == 0.0


def test_the_checkpoints_head_is_taken_where_there_is_one(tiny):
    bert = tiny()
    head = MaskedLanguageHead(bert)
    assert not head.load_from(bert.state_dict())
    names = {"dense.weight": (24, 24), "dense.bias": (24,), "LayerNorm.gamma": (24,), "LayerNorm.beta": (24,)}
    state = {f"cls.predictions.transform.{name}": torch.randn(shape) for name, shape in names.items()}
    state["cls.predictions.bias"] = torch.randn(29)
    assert head.load_from(state)
    assert torch.equal(head.dense.weight, state["cls.predictions.transform.dense.weight"])
    assert torch.equal(head.LayerNorm.weight, state["cls.predictions.transform.LayerNorm.gamma"])
    assert torch.equal(head.bias, state["cls.predictions.bias"])
    assert not head.load_from({**state, "cls.predictions.bias": torch.zeros(7)})


def test_a_vocabulary_without_a_mask_token_is_refused():
    pieces = [piece for piece in SPECIALS if piece != "[MASK]"]
    with pytest.raises(InputError, match=r"^the vocabulary has no \[MASK\].*: choose another --model"):
        Masking(BertTokenizer({piece: i for i, piece in enumerate(pieces)}), seed=0)
