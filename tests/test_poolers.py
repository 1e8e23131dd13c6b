"""Poolers: values worked out by hand, and padding that cannot leak in.

Follows poolers.py's promises, for every pooler in its registry.
"""

import math

import pytest
import torch

import state_dicts
from errors import InputError
from model import ModelConfig, MultitaskBERT
from poolers import POOLERS, Pooler, make_pooler, masked_max, masked_mean, resolve_each, resolve_options

# Two sentences of three places with two numbers each; the second has one real token, then padding that would be seen.
HIDDEN = torch.tensor([[[1.0, 2.0], [3.0, -4.0], [5.0, 8.0]], [[7.0, -1.0], [100.0, 100.0], [-50.0, 9.0]]])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0]])
# An earlier layer's, with the means (2, 1) and (-1, 3); HIDDEN's are (3, 2) and (7, -1).
EARLIER = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [4.0, 3.0]], [[-1.0, 3.0], [50.0, 50.0], [50.0, -50.0]]])
JUNK = torch.full((2, 3, 2), 1000.0)
LAYERS = 4  # of an encoder that every pooler can read: five hidden states


def build(name, size=2, layers=LAYERS):
    torch.manual_seed(0)
    return make_pooler(name, size, layers).eval()


def test_mean_by_hand():
    wanted = [[3.0, 2.0], [7.0, -1.0]]
    assert masked_mean(HIDDEN, MASK).tolist() == wanted
    assert build("mean")((torch.zeros(2, 3, 2), HIDDEN), MASK).tolist() == wanted  # the last layer is the one read


def test_mean_with_a_hole_and_with_no_real_token():
    assert masked_mean(HIDDEN, torch.tensor([[1, 0, 1], [0, 0, 0]])).tolist() == [[3.0, 5.0], [0.0, 0.0]]


def test_first_token_by_hand():
    assert build("first")((torch.zeros(2, 3, 2), HIDDEN), MASK).tolist() == [[1.0, 2.0], [7.0, -1.0]]


def test_bert_pooler_by_hand():
    pooler = build("cls")
    pooler.dense.weight.data = torch.tensor([[0.1, 0.0], [0.2, -0.1]])
    pooler.dense.bias.data = torch.tensor([0.0, 0.5])
    # W h + b: (0.1, 0.2 - 0.2 + 0.5) and (0.7, 1.4 + 0.1 + 0.5)
    wanted = torch.tanh(torch.tensor([[0.1, 0.5], [0.7, 2.0]]))
    torch.testing.assert_close(pooler((torch.zeros(2, 3, 2), HIDDEN), MASK), wanted)


def test_max_by_hand():
    assert build("max")((JUNK, HIDDEN), MASK).tolist() == [[5.0, 8.0], [7.0, -1.0]]
    assert masked_max(-HIDDEN.abs(), torch.tensor([[0, 1, 1], [0, 0, 0]])).tolist() == [[-3.0, -4.0], [0.0, 0.0]]


def test_mean_max_by_hand():
    pooler = build("mean_max")
    pooler.dense.weight.data = torch.tensor([[0.1, 0.0, 0.0, 0.1], [0.0, 0.1, -0.1, 0.0]])
    pooler.dense.bias.data = torch.tensor([0.0, 0.5])
    # [mean; max]: (3, 2, 5, 8) and (7, -1, 7, -1).
    wanted = torch.tanh(torch.tensor([[1.1, 0.2], [0.6, -0.3]]))
    torch.testing.assert_close(pooler((JUNK, HIDDEN), MASK), wanted)


def test_attentive_cls_by_hand():
    pooler = build("attentive_cls")
    pooler.score.weight.data = math.sqrt(2) * torch.tensor([[math.log(3) / 2, 0.0]])
    pooler.dense.weight.data = torch.tensor([[0.1, 0.0, 0.1, 0.0], [0.0, 0.1, 0.0, -0.1]])
    pooler.dense.bias.data.zero_()
    # Scores log(3) apart: a quarter of (3, -4) and three quarters of (5, 8). The other sentence is [CLS] alone.
    torch.testing.assert_close(
        pooler.weigh((JUNK, HIDDEN), MASK), torch.tensor([[0.0, 0.25, 0.75], [0.0, 0.0, 0.0]]), rtol=0, atol=1e-6
    )
    # [CLS] and the weighted sum: (1, 2, 4.5, 5) and (7, -1, 0, 0).
    wanted = torch.tanh(torch.tensor([[0.55, -0.3], [0.7, -0.1]]))
    torch.testing.assert_close(pooler((JUNK, HIDDEN), MASK), wanted)


def test_attentive_cls_weighs_the_real_tokens_other_than_cls():
    pooler = build("attentive_cls", 6)
    torch.manual_seed(1)
    hidden, mask = 30 * torch.randn(4, 9, 6), torch.arange(9) < torch.tensor([9, 5, 2, 1])[:, None]
    weights = pooler.weigh((hidden,), mask)
    torch.testing.assert_close(weights.sum(dim=1), torch.tensor([1.0, 1.0, 1.0, 0.0]))
    assert (weights[:, 0] == 0).all() and (weights[~mask] == 0).all() and (weights >= 0).all()
    assert weights[2, 1] == 1.0 and len(weights[0].unique()) == 9


@pytest.mark.parametrize(
    ("name", "layers"), [("first_last", (JUNK, EARLIER, JUNK, HIDDEN)), ("last_two", (JUNK, JUNK, EARLIER, HIDDEN))]
)
def test_averages_of_two_layers_by_hand(name, layers):
    assert build(name)(layers, MASK).tolist() == [[2.5, 1.5], [3.0, 1.0]]


def test_concatenated_last_four_by_hand():
    pooler = build("concat_last4")
    pooler.dense.weight.data = torch.zeros(2, 8)
    pooler.dense.weight.data[0, [0, 3]] = 0.1
    pooler.dense.weight.data[1, [4, 7]] = torch.tensor([0.1, -0.1])
    pooler.dense.bias.data = torch.tensor([0.0, 0.5])
    # Means side by side: (3, 2, 2, 1, 2, 1, 3, 2) and (7, -1, -1, 3, -1, 3, 7, -1).
    wanted = torch.tanh(torch.tensor([[0.4, 0.5], [1.0, 0.5]]))
    torch.testing.assert_close(pooler((JUNK, HIDDEN, EARLIER, EARLIER, HIDDEN), MASK), wanted)


def test_top_k_by_hand():
    pooler = build("top_k")
    assert pooler((JUNK, HIDDEN), MASK).tolist() == [[3.0, 2.0], [7.0, -1.0]]  # three tokens, and one
    longer = torch.cat([HIDDEN, torch.tensor([[[-6.0, 5.0], [4.0, -7.0]], [[9.0, 9.0], [9.0, 9.0]]])], dim=1)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    # 5, 4, 3 of 1, 3, 5, -6, 4; 8, 5, 2 of 2, -4, 8, 5, -7. Of two tokens the mean.
    assert pooler((JUNK, longer), mask).tolist() == [[4.0, 5.0], [53.5, 49.5]]


def test_weighted_layers_by_hand():
    pooler = build("weighted_layers", layers=1)
    assert pooler((EARLIER, HIDDEN), MASK).tolist() == [[2.5, 1.5], [3.0, 1.0]]  # even at first
    pooler.layer_scores.data = torch.tensor([0.0, math.log(3)])
    pooler.gamma.data.fill_(2.0)
    # A quarter and three quarters, twice.
    torch.testing.assert_close(pooler((EARLIER, HIDDEN), MASK), torch.tensor([[5.5, 3.5], [10.0, 0.0]]))


def test_generalized_mean_by_hand():
    pooler = build("gem")
    assert pooler.power.item() == pytest.approx(3.0)
    pooler.log_excess.data.zero_()
    # p = 2; what is negative counts as 0.000001.
    wanted = torch.tensor([[math.sqrt(35 / 3), math.sqrt(68 / 3)], [7.0, 1e-6]])
    torch.testing.assert_close(pooler((JUNK, HIDDEN), MASK), wanted)
    pooler.log_excess.data.fill_(5.0)
    torch.testing.assert_close(pooler((JUNK, HIDDEN), MASK), torch.tensor([[5.0, 8.0], [7.0, 1e-6]]), rtol=0.01, atol=0)


@pytest.mark.parametrize("name", list(POOLERS))
def test_every_parameter_learns(name):
    pooler = build(name, 6)
    torch.manual_seed(2)
    layers = tuple(torch.randn(3, 5, 6, requires_grad=True) for _ in range(LAYERS + 1))
    pooler(layers, torch.arange(5) < torch.tensor([5, 2, 3])[:, None]).square().sum().backward()
    for label, p in pooler.named_parameters():
        assert p.grad.isfinite().all() and (p.grad != 0).all(), label


@pytest.mark.parametrize("name", list(POOLERS))
def test_float16_gives_no_infinity(name):
    """Sums over a long text, and powers, would not fit into it."""
    pooler = build(name, 6).half()
    torch.manual_seed(3)
    layers = tuple((100 * torch.randn(2, 512, 6) + 300).half() for _ in range(LAYERS + 1))
    mask = torch.arange(512) < torch.tensor([512, 1])[:, None]
    found = pooler(layers, mask)
    assert found.dtype == torch.float16 and found.isfinite().all()
    wanted = pooler.float()(tuple(layer.float() for layer in layers), mask)
    torch.testing.assert_close(found.float(), wanted, rtol=5e-3, atol=5e-3)


def test_bert_pooler_starts_from_the_encoders(tiny):
    encoder = tiny()
    pooler = make_pooler("cls", 24)
    pooler.load_from(encoder)
    out = encoder(torch.tensor([[2, 7, 8, 3]]))
    found = pooler((out["last_hidden_state"],), torch.ones(1, 4))
    torch.testing.assert_close(found, out["pooler_output"])
    pooler.dense.weight.data.zero_()  # a copy: the encoder keeps its own
    assert encoder.pooler.dense.weight.abs().max() > 0


@pytest.mark.parametrize("name", list(POOLERS))
@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.float32])
def test_padding_and_batch_mates_change_nothing(name, kind):
    pooler = build(name, 6)
    torch.manual_seed(1)
    lengths = [5, 1, 3]
    layers = tuple(torch.randn(3, 5, 6) for _ in range(LAYERS + 1))
    mask = (torch.arange(5) < torch.tensor(lengths)[:, None]).to(kind)
    together = pooler(layers, mask)
    assert together.shape == (3, 6)
    assert torch.equal(together, pooler(layers, mask)), (
        "called again it answers the same, the layers being as they were"
    )
    for i, length in enumerate(lengths):
        alone = pooler(tuple(layer[i : i + 1, :length] for layer in layers), mask[i : i + 1, :length])
        torch.testing.assert_close(together[i : i + 1], alone, rtol=0, atol=1e-5)
    noise = 1e6 * torch.randn(3, 128, 6) * (torch.arange(128) >= torch.tensor(lengths)[:, None])[..., None]
    wide = tuple(torch.nn.functional.pad(layer, (0, 0, 0, 123)) + noise for layer in layers)
    padded = pooler(wide, torch.nn.functional.pad(mask, (0, 123)))
    torch.testing.assert_close(together, padded, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", list(POOLERS))
def test_a_single_token_is_finite_and_so_is_its_gradient(name):
    pooler = build(name)
    hidden = torch.randn(1, 1, 2, requires_grad=True)
    out = pooler((hidden,) * (LAYERS + 1), torch.ones(1, 1))
    out.sum().backward()
    assert out.shape == (1, 2) and out.isfinite().all() and hidden.grad.isfinite().all()


@pytest.mark.parametrize("name", list(POOLERS))
def test_padding_gets_no_gradient_and_nothing_given_is_edited(name):
    pooler = build(name)
    hidden, mask = HIDDEN.clone().requires_grad_(), MASK.clone()
    pooler((hidden,) * (LAYERS + 1), mask).square().sum().backward()
    assert (hidden.grad[MASK == 0] == 0).all() and (hidden.grad[:, 0] != 0).any()
    assert torch.equal(hidden, HIDDEN) and torch.equal(mask, MASK)


@pytest.mark.parametrize("name", list(POOLERS))
def test_a_pooler_that_says_it_reads_the_first_token_reads_no_other(name):
    pooler = build(name)
    elsewhere = HIDDEN.clone()
    elsewhere[:, 1:] += 1.0
    everywhere = torch.ones(2, 3)
    same = torch.equal(*(pooler((layer,) * (LAYERS + 1), everywhere) for layer in (HIDDEN, elsewhere)))
    assert same == pooler.first_token_only


def test_an_unknown_pooler_is_an_error_that_lists_the_known():
    with pytest.raises(
        InputError,
        match="--pooler medium: not known; known: first, cls, mean, max, mean_max, .*, gem, layer_attention$",
    ):
        make_pooler("medium", 4)


def test_options_of_several_poolers_are_for_those_that_take_any():
    last = resolve_options("layer_attention", {"query": "last"})
    given = resolve_each(["max", "layer_attention", "max"], {"query": "last"})
    assert given == {"max": {}, "layer_attention": last}
    assert resolve_each([], {"query": "last"}) == {}
    with pytest.raises(InputError, match="query=last: pooler max takes none"):
        resolve_each(["max", "mean"], {"query": "last"})


class Sum(Pooler):
    """All a pooler without parameters needs to say."""

    def features(self, layers, mask):
        return (layers[-1] * mask.unsqueeze(-1)).sum(dim=1)


class Gate(Sum):
    """It learns behind its features."""

    def __init__(self, hidden_size):
        super().__init__(hidden_size)
        self.dense = torch.nn.Linear(hidden_size, hidden_size, bias=False)

    def transform(self, features):
        return features * torch.sigmoid(self.dense(features))


class Scored(Pooler):
    """What it takes from the tokens, it learns: `forward` is all there is."""

    def __init__(self, hidden_size):
        super().__init__(hidden_size)
        self.scores = torch.nn.Parameter(torch.tensor([0.0, 1.0]))

    def forward(self, layers, mask):
        return (layers[-1] * (layers[-1] @ self.scores * mask).unsqueeze(-1)).sum(dim=1)


@pytest.mark.parametrize("kind", [Sum, Gate, Scored])
def test_adding_a_pooler_is_one_class_and_one_line(kind, monkeypatch):
    monkeypatch.setitem(POOLERS, "new", kind)
    pooler = build("new")
    assert not pooler.first_token_only and pooler.layers_wanted == 1
    assert pooler.has_features == (kind is not Scored)
    found = pooler((HIDDEN,), MASK).tolist()
    if kind is Sum:
        assert found == [[9.0, 6.0], [7.0, -1.0]]
    if kind is Gate:
        pooler.dense.weight.data.zero_()
        assert pooler((HIDDEN,), MASK).tolist() == [[4.5, 3.0], [3.5, -0.5]]
    if kind is Scored:  # 2 (1, 2) - 4 (3, -4) + 8 (5, 8) and -1 (7, -1)
        assert found == [[30.0, 84.0], [-7.0, 1.0]]


@pytest.mark.parametrize("name", list(POOLERS))
def test_features_hold_no_parameter_and_no_chance(name):
    """Or a frozen encoder's could not be computed once."""
    pooler = build(name).train()
    if not pooler.has_features:
        pytest.skip("reads all tokens")
    layers = (HIDDEN,) * (LAYERS + 1)
    found = pooler.features(layers, MASK)
    assert not found.requires_grad and torch.equal(found, pooler.features(layers, MASK))
    assert torch.equal(pooler.eval().transform(found), pooler(layers, MASK))
    for p in pooler.parameters():
        p.data.add_(1.0)
    assert torch.equal(pooler.features(layers, MASK), found)


def test_a_pooler_that_reads_more_layers_than_there_are_is_refused():
    with pytest.raises(InputError, match="--pooler concat_last4: reads the last 4 layers, and this encoder has 3"):
        make_pooler("concat_last4", 4, 3)
    assert make_pooler("first_last", 4, 1)((JUNK, HIDDEN), MASK).tolist() == [[3.0, 2.0], [7.0, -1.0]]


def test_a_pooler_that_says_nothing_is_told_what_to_write(monkeypatch):
    monkeypatch.setitem(POOLERS, "none", Pooler)
    with pytest.raises(NotImplementedError, match="Pooler defines neither features nor forward"):
        build("none")((HIDDEN,), MASK)


def without_pooler(tiny, folder):
    """A folder of weights that ship no pooler, as many sentence models'."""
    encoder = tiny()
    encoder.save_pretrained(folder)
    state = {name: tensor for name, tensor in encoder.state_dict().items() if not name.startswith("pooler.")}
    state_dicts.write_state(folder, state)
    return folder


def test_a_random_pooler_is_not_frozen_without_a_word(tiny, tmp_path):
    """With weights that hold none it could not learn, and stay random."""
    folder = without_pooler(tiny, tmp_path / "bare")
    with pytest.raises(
        InputError, match="--pooler cls --option pretrain: these weights hold no pooler.* --pooler first"
    ):
        MultitaskBERT(ModelConfig.for_tasks(["sst"], pooler="cls", option="pretrain", model=str(folder)))
    MultitaskBERT(ModelConfig.for_tasks(["sst"], pooler="mean", option="pretrain", model=str(folder)))
    learning = MultitaskBERT(ModelConfig.for_tasks(["sst"], pooler="cls", option="finetune", model=str(folder)))
    assert learning.heads["sst"].pooler.dense.weight.requires_grad
    tiny().save_pretrained(tmp_path / "whole")
    MultitaskBERT(ModelConfig.for_tasks(["sst"], pooler="cls", option="pretrain", model=str(tmp_path / "whole")))


@pytest.mark.parametrize("attention", [0, 1])
@pytest.mark.parametrize("name", list(POOLERS))
def test_a_saved_model_answers_the_same(name, attention, tiny, tmp_path):
    """With every pooler, with and without attention layers, and for each kind of head."""
    torch.manual_seed(4)
    tasks = ["sst", "para", "sts"]
    config = ModelConfig.for_tasks(tasks, attention=dict.fromkeys(tasks, attention), pooler=name)
    model = MultitaskBERT(config, tiny(num_hidden_layers=LAYERS)).eval()
    model.save_pretrained(tmp_path)
    again = MultitaskBERT.from_pretrained(tmp_path)
    ids, mask = torch.tensor([[2, 7, 8, 9, 3], [2, 5, 3, 0, 0]]), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    with torch.no_grad():
        assert torch.equal(model.predict_sentiment(ids, mask), again.predict_sentiment(ids, mask))
        for method in ("predict_paraphrase", "predict_similarity"):
            pair = (ids, mask, ids.flip(0), mask.flip(0))
            assert torch.equal(getattr(model, method)(*pair), getattr(again, method)(*pair))
