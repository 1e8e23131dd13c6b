"""The weights that one sees are those that attention layers and pooler used: with them one gets the same vectors.

Follows Jia 2024 (task_attention.py), and Lee, Park, Seo and Kim 2021 as poolers.AttentiveCLS has it.
"""

import re
import textwrap
from pathlib import Path

import pytest
import torch

from errors import InputError
from model import ModelConfig, MultitaskBERT
from packed import Layout
from token_weights import token_weights

ROOT = Path(__file__).parents[1]
ONE = "The film was very good"
PAIR = ("why", "the brightly cat dogs sat on the mat")  # 3 and 12 tokens: one is padded
TEXTS = {"sst": (ONE,), "para": PAIR, "sts": PAIR, "mrpc": PAIR}
FIRST = ("[CLS]", "why", "[SEP]")
SECOND = ("[CLS]", "the", "bright", "##ly", "cat", "dog", "##s", "sat", "on", "the", "mat", "[SEP]")


@pytest.fixture
def build(tiny):
    """build(task, attention layers, options of ModelConfig.for_tasks) -> a model whose head looks at few tokens."""

    def build(task, attention=0, **options):
        torch.manual_seed(5)
        model = MultitaskBERT(ModelConfig.for_tasks([task], attention={task: attention}, **options), tiny())
        for name, p in model.heads[task].named_parameters():
            if name.endswith("score.weight"):
                p.data.mul_(20)
            elif re.search(r"(query|key)\.weight", name) and options.get("attention_init") != "uniform":
                p.data.mul_(3)
        return model.eval()

    return build


def encode(model, tokenizer, *texts, joint=False):
    """The encodings (T, H) of each sequence, computed without the others."""
    inputs = [tokenizer(*texts, return_tensors="pt")] if joint else [tokenizer(x, return_tensors="pt") for x in texts]
    return [model.bert(one.input_ids, one.attention_mask, one.token_type_ids)["last_hidden_state"][0] for one in inputs]


def packed(hidden):
    """Sequences (T, H) -> their packed rows and Layout."""
    lengths = torch.tensor([len(own) for own in hidden])
    layout = Layout.of(torch.arange(int(lengths.max())) < lengths[:, None])
    return layout.pack(torch.nn.utils.rnn.pad_sequence(hidden, batch_first=True)), layout


def through(layer, own, others, heads):
    """A layer's output (Tq, H) for one sequence, from the weights (N, Tq, T) in place of query and key."""
    values = layer.value(others).unflatten(-1, (layer.heads, -1))  # (T, N, D)
    hidden = layer.norm(own + layer.mix(torch.einsum("nqt,tnd->qnd", heads.to(values), values).flatten(1)))
    if layer.up is None:
        return hidden
    return layer.last_norm(hidden + layer.down(torch.nn.functional.gelu(layer.up(hidden))))


@pytest.mark.parametrize("option", ["pretrain", "finetune"])
@pytest.mark.parametrize("attention_ffn", [False, True])
@pytest.mark.parametrize(
    "name, attention, encoding",
    [("sst", 2, None), ("para", 1, None), ("sts", 3, None), ("para", 2, "joint"), ("mrpc", 2, "separate")],
)
def test_with_the_matrices_one_gets_what_the_layers_give(
    build, tiny_tokenizer, name, attention, encoding, attention_ffn, option
):
    model = build(name, attention, pair_encoding=encoding, attention_ffn=attention_ffn, option=option).double()
    head = model.heads[name]
    found = token_weights(model, tiny_tokenizer, name, *TEXTS[name])
    hidden = encode(model, tiny_tokenizer, *TEXTS[name], joint=head.config.joint)
    assert len(found) == len(hidden) == 1 + head.two
    vectors = head.represent((packed(hidden)[0],), packed(hidden)[1])
    for i, layer in enumerate(head.attention):
        rows, layout = packed(hidden)
        wanted = layout.unpack(layer(rows, layout))
        others = hidden[::-1] if head.two else hidden
        three = zip(hidden, others, found, strict=True)
        hidden = [through(layer, own, other, one.layers[i].heads) for own, other, one in three]
        for own, padded in zip(hidden, wanted, strict=True):
            torch.testing.assert_close(own, padded[: len(own)], rtol=0, atol=1e-6)
    # A sequence's vector is the last layer's output at the first token, so that row is what it is made of.
    torch.testing.assert_close(torch.stack([own[0] for own in hidden]), vectors, rtol=0, atol=1e-6)
    for one in found:
        assert one.source == f"attention layer {attention} of {attention}, [CLS]"
        assert one.tokens == one.layers[-1].columns and len(one.layers) == attention
        assert torch.equal(one.heads, one.layers[-1].heads[:, 0])
        torch.testing.assert_close(one.weights, one.heads.mean(dim=0), rtol=0, atol=0)
        torch.testing.assert_close(one.weights, one.layers[-1].mean[0], rtol=0, atol=1e-6)
        assert (one.heads - 1 / len(one)).abs().max() > 0.05  # so uneven that it matters which ones are used
        for matrix in one.layers:
            assert matrix.heads.shape == (4, len(matrix.rows), len(matrix.columns))
            torch.testing.assert_close(matrix.heads.sum(dim=-1), torch.ones(4, len(matrix.rows)), rtol=0, atol=1e-6)


def test_each_sentence_of_a_pair_looks_at_the_other(build, tiny_tokenizer):
    first, second = token_weights(build("sts", 3), tiny_tokenizer, "sts", *PAIR)
    assert first.tokens == SECOND and second.tokens == FIRST
    for matrix in first.layers:
        assert (matrix.rows, matrix.columns) == (FIRST, SECOND)
    for matrix in second.layers:
        assert (matrix.rows, matrix.columns) == (SECOND, FIRST)
    assert [token for token, _ in first] == list(SECOND)
    assert sum(weight for _, weight in first) == pytest.approx(1.0)


def test_a_joint_pair_or_a_sentence_looks_at_itself(build, tiny_tokenizer):
    (joint,) = token_weights(build("sts", 2, pair_encoding="joint"), tiny_tokenizer, "sts", *PAIR)
    (alone,) = token_weights(build("sst", 2), tiny_tokenizer, "sst", PAIR[1])
    for one, tokens in ((joint, FIRST + SECOND[1:]), (alone, SECOND)):
        assert one.tokens == tokens
        assert all(matrix.rows == matrix.columns == tokens for matrix in one.layers)


@pytest.mark.parametrize("pooler, first", [("first", True), ("cls", True), ("mean", False), ("gem", False)])
def test_behind_a_pooler_of_all_tokens_the_mean_of_their_rows_counts(build, tiny_tokenizer, pooler, first):
    for one in token_weights(build("para", 2, pooler=pooler), tiny_tokenizer, "para", *PAIR):
        rows = one.layers[-1].mean
        torch.testing.assert_close(one.weights, rows[0] if first else rows.mean(dim=0), rtol=0, atol=1e-6)
        assert one.source.endswith("[CLS]" if first else "mean of its tokens")


@pytest.mark.parametrize("attention", [0, 1])
def test_with_a_pooler_s_weights_one_gets_the_model_s_answer(build, tiny_tokenizer, attention):
    model = build("sst", attention, pooler="attentive_cls")
    (found,) = token_weights(model, tiny_tokenizer, "sst", ONE)
    assert found.tokens == ("[CLS]", "the", "film", "was", "very", "good", "[SEP]")
    assert (found.source, found.heads, len(found.layers)) == ("pooler attentive_cls", None, attention)
    assert found.weights[0] == 0.0 and found.weights.sum() == pytest.approx(1.0) and found.weights.max() > 1.2 / 6
    head = model.heads["sst"]
    (hidden,) = encode(model, tiny_tokenizer, ONE)
    if attention:
        hidden = through(head.attention[0], hidden, hidden, found.layers[0].heads)
    vector = torch.tanh(head.pooler.dense(torch.cat([hidden[0], found.weights @ hidden])))
    ids = tiny_tokenizer([ONE], return_tensors="pt")
    wanted = model.predict_sentiment(ids.input_ids, ids.attention_mask)[0]
    torch.testing.assert_close(head.output(vector), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("attention", [0, 1])
def test_a_pooler_weighs_a_sentence_s_own_tokens_whatever_its_layers_attend_to(build, tiny_tokenizer, attention):
    apart = token_weights(build("para", attention, pooler="attentive_cls"), tiny_tokenizer, "para", *PAIR)
    model = build("para", attention, pooler="attentive_cls", pair_encoding="joint")
    joint = token_weights(model, tiny_tokenizer, "para", *PAIR)
    assert [one.tokens for one in (*apart, *joint)] == [FIRST, SECOND, FIRST + SECOND[1:]]
    for one, columns in zip((*apart, *joint), (SECOND, FIRST, FIRST + SECOND[1:]), strict=True):
        assert one.weights.sum() == pytest.approx(1.0)
        assert [matrix.columns for matrix in one.layers] == [columns] * attention


def test_pieces_are_put_together_to_words(build, tiny_tokenizer):
    words = ("[CLS]", "the", "brightly", "cat", "dogs", "sat", "on", "the", "mat", "[SEP]")
    members = [[0], [1], [2, 3], [4], [5, 6], [7], [8], [9], [10], [11]]
    for options in ({"attention": 2}, {"attention": 2, "pooler": "mean"}, {"pooler": "attentive_cls"}):
        model = build("para", **options)
        pieces = token_weights(model, tiny_tokenizer, "para", *PAIR)
        found = token_weights(model, tiny_tokenizer, "para", *PAIR, whole_words=True)
        cross = "attention" in options
        whole, split = (found[0], pieces[0]) if cross else (found[1], pieces[1])
        assert (whole.tokens, split.tokens) == (words, SECOND)
        wanted = torch.stack([split.weights[member].sum() for member in members])
        torch.testing.assert_close(whole.weights, wanted, rtol=0, atol=1e-6)
        if not cross:
            continue
        for whole, split in zip(found[0].layers, pieces[0].layers, strict=True):  # columns are added
            wanted = torch.stack([split.heads[:, :, member].sum(dim=2) for member in members], dim=2)
            torch.testing.assert_close(whole.heads, wanted, rtol=0, atol=1e-6)
        for whole, split in zip(found[1].layers, pieces[1].layers, strict=True):  # rows are averaged
            wanted = torch.stack([split.heads[:, member].mean(dim=1) for member in members], dim=1)
            torch.testing.assert_close(whole.heads, wanted, rtol=0, atol=1e-6)
            assert (whole.rows, whole.columns) == (words, FIRST)


def test_attention_that_starts_uniform_is_nearly_even(build, tiny_tokenizer):
    """As the poster's second experiment starts: encodings add up to about 0, and so do queries and keys."""
    for name in ("sst", "para"):
        for one in token_weights(build(name, 1, attention_init="uniform"), tiny_tokenizer, name, *TEXTS[name]):
            assert (one.layers[0].heads - 1 / len(one)).abs().max() < 0.1 / len(one)


@pytest.mark.parametrize("options", [{"attention": 2}, {"pooler": "attentive_cls"}])
@pytest.mark.parametrize("option", ["pretrain", "finetune"])
def test_a_model_in_training_answers_as_in_evaluation_and_goes_on(build, tiny_tokenizer, options, option):
    model = build("sst", option=option, **options)
    (wanted,) = token_weights(model, tiny_tokenizer, "sst", ONE)
    model.train()
    modes = [module.training for module in model.modules()]
    (found,) = token_weights(model, tiny_tokenizer, "sst", ONE)
    assert torch.equal(found.weights, wanted.weights)
    assert modes == [module.training for module in model.modules()]
    assert not found.weights.requires_grad and all(p.grad is None for p in model.parameters())


def test_sixteen_bits_as_the_model_has_them(build, tiny_tokenizer):
    model = build("para", 1)
    (exact, _) = token_weights(model, tiny_tokenizer, "para", *PAIR)
    model.autocast = torch.bfloat16
    (rounded, _) = token_weights(model, tiny_tokenizer, "para", *PAIR)
    assert rounded.weights.dtype == torch.float32
    assert 0 < (rounded.weights - exact.weights).abs().max() < 0.05


def test_the_shortest_text_has_weights_too(build, tiny_tokenizer):
    for name, texts in (("sst", ("",)), ("para", ("", ""))):
        for one in token_weights(build(name, 1), tiny_tokenizer, name, *texts):
            assert one.tokens == ("[CLS]", "[SEP]") and one.weights.sum() == pytest.approx(1.0)


def test_what_can_not_be_answered_is_refused_in_one_line(build, tiny_tokenizer):
    weighs_none = (
        "pooler mean of {0} weighs no tokens: train with --pooler {0}=attentive_cls, or with attention layers, "
    )
    for model, name, texts, message in (
        (build("sst", pooler="mean"), "sst", ["a"], weighs_none.format("sst") + "--attention sst=2"),
        (build("mrpc", pooler="mean"), "mrpc", ["a", "b"], weighs_none.format("mrpc") + "--attention mrpc=1"),
        (build("sst", 2), "cola", ["a"], "no head for cola; this model has sst"),
        (build("sst", 2), "sst", ["a", "b"], "sst wants one sentence"),
        (build("para", 2), "para", ["a"], "para wants two sentences"),
    ):
        with pytest.raises(InputError, match=message):
            token_weights(model.train(), tiny_tokenizer, name, *texts)
        assert model.training


def test_what_the_page_shows_runs(tiny, tiny_tokenizer, tmp_path, monkeypatch, capsys):
    """Every block of Python in README.md and docs/python.md, one after the other, for a run of that name."""
    text = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/python.md"))
    blocks = [textwrap.dedent(found) for found in re.findall(r"(?m)(?:^    .*\n|^\n(?=    ))+", text)]
    blocks = [block for block in blocks if re.search(r"(?m)^from \w+ import ", block)]
    folder = tmp_path / re.search('folder = "(.*)"', text)[1]
    torch.manual_seed(0)
    model = MultitaskBERT(ModelConfig.for_tasks(), tiny())
    model.save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    (folder.parent / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    exec("".join(blocks), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(blocks) == 4 and len(lines) > 5
    assert sum(line.startswith("tensor([") for line in lines) == 2
