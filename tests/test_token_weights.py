"""The weights that one sees are those that the pooler used.

Follows Lee, Park, Seo and Kim 2021, as poolers.AttentiveCLS has it.
"""

import pytest
import torch

from errors import InputError
from model import ModelConfig, MultitaskBERT
from token_weights import token_weights


@pytest.fixture
def build(tiny):
    def build(task, pooler="attentive_cls", attention=0, encoding=None):
        torch.manual_seed(5)
        config = ModelConfig.for_tasks([task], pooler=pooler, attention={task: attention}, pair_encoding=encoding)
        model = MultitaskBERT(config, tiny())
        if pooler == "attentive_cls":
            model.heads[task].pooler.score.weight.data.mul_(20)
        return model

    return build


@pytest.mark.parametrize("attention", [0, 1])
def test_a_sentence_s_weights_make_its_vector(build, tiny_tokenizer, attention):
    model = build("sst", attention=attention).train()
    (found,) = token_weights(model, tiny_tokenizer, "sst", "The film was very good")
    assert model.training
    tokens, weights = zip(*found, strict=True)
    assert tokens == ("[CLS]", "the", "film", "was", "very", "good", "[SEP]")
    assert weights[0] == 0.0 and sum(weights) == pytest.approx(1.0) and max(weights) > 1.2 / 6
    # Put in by hand, they give the head's output.
    head = model.eval().heads["sst"]
    hidden = model.bert(tiny_tokenizer(["The film was very good"], return_tensors="pt").input_ids)["last_hidden_state"][
        0
    ]
    if attention:
        layer = head.attention[0]
        context = layer.weigh(
            *(part(hidden)[None] for part in (layer.query, layer.key, layer.value)), torch.ones(1, 7) > 0
        )
        hidden = layer.norm(hidden + layer.output(context[0]))
    vector = torch.tanh(head.pooler.dense(torch.cat([hidden[0], torch.tensor(weights) @ hidden])))
    ids = tiny_tokenizer(["The film was very good"], return_tensors="pt")
    wanted = model.predict_sentiment(ids.input_ids, ids.attention_mask)[0]
    torch.testing.assert_close(head.output(vector), wanted, rtol=0, atol=1e-5)


def test_a_pair_is_two_sequences_or_one(build, tiny_tokenizer):
    apart = token_weights(build("para"), tiny_tokenizer, "para", "why", "the dog ran")
    assert [len(sequence) for sequence in apart] == [3, 5]
    joint = token_weights(build("para", encoding="joint"), tiny_tokenizer, "para", "why", "the dog ran")
    assert [[token for token, _ in sequence] for sequence in joint] == [
        ["[CLS]", "why", "[SEP]", "the", "dog", "ran", "[SEP]"]
    ]
    for sequence in (*apart, *joint):
        assert sum(weight for _, weight in sequence) == pytest.approx(1.0)


def test_what_can_not_be_answered_is_refused_in_one_line(build, tiny_tokenizer):
    for model, name, texts, message in (
        (build("sst", "mean"), "sst", ["a"], "pooler mean of sst weighs no tokens: train with --pooler attentive_cls"),
        (build("sst"), "cola", ["a"], "no head for cola; this model has sst"),
        (build("sst"), "sst", ["a", "b"], "sst wants one sentence"),
        (build("para"), "para", ["a"], "para wants two sentences"),
    ):
        with pytest.raises(InputError, match=message):
            token_weights(model, tiny_tokenizer, name, *texts)
