"""The poster's attention layers against loops that follow its text.

Follows Jia 2024 (Stanford CS 224N poster): what attends to what, what is added to what, which tokens count.
"""

import math

import pytest
import torch

import packed
from errors import InputError
from packed import Layout
from task_attention import ATTENTION_LAYERS, AttentionLayer, CrossAttentionLayer, SelfAttentionLayer

LENGTHS = [3, 1, 5, 2, 4, 5]  # for pairs: three first sentences, then their second ones


def masked(lengths, width=None):
    return torch.arange(width or max(lengths)) < torch.tensor(lengths)[:, None]


def build(kind, seed=0, size=12, heads=3):
    """A layer in evaluation mode whose weights and norm are far from their start, so that nothing cancels."""
    torch.manual_seed(seed)
    layer = ATTENTION_LAYERS[kind](size, heads, 0.3).eval()
    for p in layer.parameters():
        p.data = 0.5 * torch.randn(p.shape)
    return layer


def attended(layer, own, other):
    """New encodings (own tokens, H) of one sentence that looks at another: one head and one token at a time."""
    size = own.shape[1] // layer.heads
    context = torch.zeros_like(own)
    for head in range(layer.heads):
        part = slice(head * size, (head + 1) * size)
        for i in range(len(own)):
            query = layer.query(own[i])[part]
            scores = torch.stack([query @ layer.key(token)[part] / math.sqrt(size) for token in other])
            weights = scores.exp() / scores.exp().sum()
            context[i, part] = sum(w * layer.value(token)[part] for w, token in zip(weights, other, strict=True))
    mixed = layer.output(context)
    if isinstance(layer, CrossAttentionLayer):
        mixed = layer.intermediate(mixed)
    total = mixed + own
    centred = total - total.mean(dim=1, keepdim=True)
    normed = centred / (centred.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
    return normed * layer.norm.weight + layer.norm.bias


def batch(seed=1, lengths=LENGTHS, size=12):
    torch.manual_seed(seed)
    return Layout.of(masked(lengths)), [torch.randn(n, size) for n in lengths]


def run(layer, layout, sentences, first_only=False):
    padded = torch.nn.utils.rnn.pad_sequence(sentences, batch_first=True)
    return layer(layout.pack(padded), layout, first_only)


@pytest.mark.parametrize("cost", [0, 1500])
def test_self_attention_is_each_sentence_looking_at_itself(cost, monkeypatch):
    monkeypatch.setattr(packed, "GROUP_COST", cost)
    layer, (layout, sentences) = build("self"), batch()
    found = layout.unpack(run(layer, layout, sentences))
    for i, sentence in enumerate(sentences):
        torch.testing.assert_close(found[i, : len(sentence)], attended(layer, sentence, sentence), rtol=0, atol=1e-5)


def test_cross_attention_is_each_sentence_looking_at_the_other_as_it_was():
    layer, (layout, sentences) = build("cross"), batch()
    found = layout.unpack(run(layer, layout, sentences))
    for i in range(3):
        a, b = sentences[i], sentences[i + 3]
        # The same weights in both directions, both from the old a and b; the residual is the sentence's own.
        torch.testing.assert_close(found[i, : len(a)], attended(layer, a, b), rtol=0, atol=1e-5)
        torch.testing.assert_close(found[i + 3, : len(b)], attended(layer, b, a), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["self", "cross"])
def test_the_feed_forward_block_follows_the_layer(kind):
    """norm(x + W2 gelu(W1 x)), x the layer without it; W1 four times as wide, as BERT's."""
    torch.manual_seed(0)
    layer = ATTENTION_LAYERS[kind](12, 3, 0.3, feed_forward=True).eval()
    for p in layer.parameters():
        p.data = 0.5 * torch.randn(p.shape)
    plain = ATTENTION_LAYERS[kind](12, 3, 0.3).eval()
    plain.load_state_dict({name: p for name, p in layer.state_dict().items() if name in plain.state_dict()})
    layout, sentences = batch()
    for first_only in (False, True):
        x = run(plain, layout, sentences, first_only)
        wide = x @ layer.up.weight.T + layer.up.bias
        assert wide.shape[1] == 48
        wide = 0.5 * wide * (1 + torch.erf(wide / math.sqrt(2)))
        total = x + wide @ layer.down.weight.T + layer.down.bias
        wanted = torch.nn.functional.layer_norm(total, (12,), layer.last_norm.weight, layer.last_norm.bias)
        torch.testing.assert_close(run(layer, layout, sentences, first_only), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["self", "cross"])
@pytest.mark.parametrize("training", [False, True])
def test_the_first_tokens_alone_are_the_first_rows_of_all(kind, training):
    layer, (layout, sentences) = build(kind), batch()
    layer.train(training)
    layer.dropout_prob = layer.attention_dropout_prob = 0.0
    everything = run(layer, layout, sentences)
    firsts = run(layer, layout, sentences, first_only=True)
    assert firsts.shape == (6, 12)
    torch.testing.assert_close(firsts, everything[layout.first], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["self", "cross"])
@pytest.mark.parametrize("first_only", [False, True])
def test_padding_and_batch_mates_change_nothing(kind, first_only):
    layer, (layout, sentences) = build(kind), batch()
    together = run(layer, layout, sentences, first_only)
    where = [slice(i, i + 1) for i in range(6)]
    if not first_only:
        where = [slice(int(start), int(start) + len(s)) for start, s in zip(layout.first, sentences, strict=True)]
    alone = {}
    for i in range(3):
        pair = [sentences[i], sentences[i + 3]]
        small = Layout.of(masked([len(s) for s in pair]))
        out = run(layer, small, pair, first_only)
        split = [0, 1] if first_only else small.first.tolist()
        count = [1, 1] if first_only else [len(s) for s in pair]
        alone[i], alone[i + 3] = (out[start : start + n] for start, n in zip(split, count, strict=True))
    for i in range(6):
        torch.testing.assert_close(together[where[i]], alone[i], rtol=0, atol=1e-5)
    wide = Layout.of(masked(LENGTHS, width=128))  # the same rows out of a padded batch of 128
    padded = layer(layout.pack(torch.nn.utils.rnn.pad_sequence(sentences, batch_first=True)), wide, first_only)
    torch.testing.assert_close(together, padded, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["self", "cross"])
@pytest.mark.parametrize("width", [5, 128])
@torch.no_grad()
def test_the_weights_are_those_that_values_are_multiplied_with(kind, width):
    layer, (layout, sentences) = build(kind).double(), batch()
    sentences = [sentence.double() for sentence in sentences]
    wanted = layout.unpack(run(layer, layout, sentences))
    wide = Layout.of(masked(LENGTHS, width=width))
    layer.train()  # they are without dropout all the same
    weights = layer.weights(layout.pack(torch.nn.utils.rnn.pad_sequence(sentences, batch_first=True)), wide)
    assert weights.shape == (6, 3, width, width)
    for i, own in enumerate(sentences):
        other = sentences[(i + 3) % 6] if kind == "cross" else own
        used = weights[i, :, : len(own), : len(other)]
        assert used.sum().item() == pytest.approx(weights[i].sum().item())  # padding has none
        torch.testing.assert_close(used.sum(dim=-1), torch.ones_like(used[..., 0]), rtol=0, atol=1e-12)
        values = layer.value(other).unflatten(-1, (3, 4))  # (T, N, D)
        context = torch.einsum("nqt,tnd->qnd", used, values).flatten(1)
        found = layer.norm(own + layer.mix(context))
        torch.testing.assert_close(found, wanted[i, : len(own)], rtol=0, atol=1e-12)


def test_weights_worked_out_by_hand():
    """Queries and keys are the first and second number: scores 2 * (1, 3) / sqrt(2) and 0 * (1, 3) / sqrt(2)."""
    layer = SelfAttentionLayer(2, 1, 0.0)
    for linear, column in ((layer.query, 0), (layer.key, 1)):
        linear.bias.data.zero_()
        linear.weight.data.zero_()
        linear.weight.data[0, column] = 1.0
    weights = layer.weights(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), Layout.of(masked([2])))
    share = 1 / (1 + math.exp(2 * (3 - 1) / math.sqrt(2)))
    torch.testing.assert_close(weights[0, 0], torch.tensor([[share, 1 - share], [0.5, 0.5]]))


@pytest.mark.parametrize("kind", ["self", "cross"])
def test_dropped_attention_weights_are_scaled_and_the_rest_follows(kind):
    # All scores are equal and values are 1: without dropout the context is 1, with it (kept keys) / (keys) / 0.75.
    layer = build(kind)
    layer.attention_dropout_prob = 0.25
    ones = torch.ones(2000, 1, 12)
    for linear, bias in ((layer.query, 0.0), (layer.key, 0.0), (layer.value, 1.0)):
        linear.weight.data.zero_()
        linear.bias.data.fill_(bias)
    layer.train()
    torch.manual_seed(0)
    real = masked([3] * 2000, width=5)
    keys = ones.expand(2000, 5, 12)
    context = layer.weigh(layer.query(ones), layer.key(keys), layer.value(keys), real)
    heads = context.view(2000, 3, 4)
    assert (heads == heads[:, :, :1]).all()  # one weight serves a whole head
    kept = heads[:, :, 0] * 3 * 0.75
    torch.testing.assert_close(kept, kept.round(), rtol=0, atol=1e-5)
    assert set(kept.round().unique().tolist()) == {0.0, 1.0, 2.0, 3.0}
    assert abs(context.mean() - 1) < 5 * math.sqrt(0.25 * 0.75 / (2000 * 9)) / 0.75


@pytest.mark.parametrize("kind", ["self", "cross"])
@pytest.mark.parametrize("first_only", [False, True])
def test_dropout_works_in_training_alone(kind, first_only):
    layer, (layout, sentences) = build(kind), batch()
    layer.dropout_prob = 0.0
    layer.attention_dropout_prob = 0.5
    calm = run(layer, layout, sentences, first_only)
    assert torch.equal(calm, run(layer, layout, sentences, first_only))
    layer.train()
    assert not torch.allclose(calm, run(layer, layout, sentences, first_only), atol=1e-3)
    layer.dropout_prob, layer.attention_dropout_prob = 0.5, 0.0
    assert not torch.allclose(calm, run(layer, layout, sentences, first_only), atol=1e-3)


@pytest.mark.parametrize("kind", ["self", "cross"])
@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.2])
def test_gradients_reach_every_weight_but_a_keys_bias(kind, first_only, p):
    layer, (layout, sentences) = build(kind), batch()
    layer.train()
    layer.dropout_prob = layer.attention_dropout_prob = p
    out = run(layer, layout, sentences, first_only)
    (out * torch.randn(out.shape)).sum().backward()
    for name, p in layer.named_parameters():
        if name == "key.bias":  # adds the same number to all of a query's scores, which softmax takes away again
            assert p.grad.abs().max() < 1e-5
        else:
            assert (p.grad.abs() > 1e-5).any(dim=-1).all(), name


@pytest.mark.parametrize("kind", ["self", "cross"])
def test_initializations(kind):
    torch.manual_seed(0)
    layer = ATTENTION_LAYERS[kind](64, 4, 0.3)
    before = {name: p.clone() for name, p in layer.named_parameters()}
    layer.initialize("default")
    assert all(torch.equal(before[name], p) for name, p in layer.named_parameters())
    layer.initialize("uniform")
    drawn = {"query.weight", "key.weight", "value.weight"}
    for name, p in layer.named_parameters():
        if name in drawn:
            assert 0.9 <= p.min() < 0.901 and 0.999 < p.max() <= 1.0
            assert abs(p.mean() - 0.95) < 5 * 0.1 / math.sqrt(12 * p.numel())
        else:
            assert torch.equal(before[name], p)
    with pytest.raises(InputError, match="--attention_init normal: not known; known: default, uniform"):
        layer.initialize("normal")


def test_uniform_weights_start_near_the_mean_of_the_tokens_that_are_normed():
    # Normed tokens add up to about 0, so all queries and keys are about 0 and attention is nearly uniform.
    torch.manual_seed(0)
    layer = SelfAttentionLayer(48, 4, 0.3).eval()
    layer.initialize("uniform")
    hidden = torch.nn.functional.layer_norm(torch.randn(1, 6, 48), (48,))
    query, key = (x.unflatten(-1, (4, 12)).transpose(1, 2) for x in (layer.query(hidden), layer.key(hidden)))
    weights = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(12), dim=-1)
    assert (weights - 1 / 6).abs().max() < 0.1


def test_what_cannot_be_is_refused():
    with pytest.raises(InputError, match="5 attention heads do not divide a hidden size of 12"):
        SelfAttentionLayer(12, 5, 0.3)
    layer, (layout, sentences) = build("cross"), batch(lengths=[2, 3, 1])
    for first_only in (False, True):
        with pytest.raises(ValueError, match="odd number: 3"):
            run(layer, layout, sentences, first_only)
    with pytest.raises(ValueError, match="odd number: 3"):
        layer.weights(torch.cat(sentences), layout)
    layout, sentences = batch()
    with pytest.raises(TypeError, match="use SelfAttentionLayer or CrossAttentionLayer"):
        run(AttentionLayer(12, 3, 0.3), layout, sentences)
