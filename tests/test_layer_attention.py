"""Layer-wise attention pooling: against a literal double loop, values worked out by hand, and its options.

Follows Oh et al. 2022 (arXiv 2209.05972); what every pooler promises is in test_poolers.py.
"""

import itertools
import json
import math
import re

import pytest
import torch
import torch.nn.functional as F

from errors import InputError
from heads import HeadConfig, TaskHead
from layer_attention import LayerAttention, rrelu
from model import ModelConfig, MultitaskBERT
from multitask_classifier import main
from poolers import POOLERS, make_pooler, parse_options, resolve_options
from tasks import SST

OPTIONS = LayerAttention.options
CHOICES = [dict(zip(OPTIONS, values, strict=True)) for values in itertools.product(*OPTIONS.values())]
LENGTHS = torch.tensor([5, 1, 3])


def build(options=None, size=12, layers=6, dtype=torch.float32):
    torch.manual_seed(0)
    return make_pooler("layer_attention", size, layers, **(options or {})).to(dtype).eval()


def draw(size=12, layers=6, dtype=torch.float32, seed=1):
    """Hidden states of three sentences, and their mask."""
    torch.manual_seed(seed)
    states = tuple(torch.randn(3, 5, size, dtype=dtype, requires_grad=True) for _ in range(layers + 1))
    return states, torch.arange(5) < LENGTHS[:, None]


def literally(pooler, layers, mask, activation, scale, query, embedding_layer):
    """The paper's formulas as they stand, a sentence, a layer that asks and a layer that answers at a time."""

    def phi(x):
        return x if activation == "none" else torch.where(x > 0, x, 11 / 48 * x)

    layers = layers[1:] if embedding_layer == "no" else layers
    divisor = len(layers) if scale == "layers" else math.sqrt(layers[0].shape[-1])
    rows = []
    for b in range(len(mask)):
        first = [layer[b, 0] for layer in layers]
        means = [layer[b, : int(mask[b].sum())].sum(dim=0) / mask[b].sum() for layer in layers]
        asking, total = first if query == "all" else [first[-1]], 0
        for c in asking:
            powers = []
            for a in means:
                powers.append(torch.exp(phi(pooler.key.weight @ a) @ phi(pooler.query.weight @ c) / divisor))
            for power, a in zip(powers, means, strict=True):
                total = total + power / sum(powers) * phi(pooler.value.weight @ a)
        attended = total / len(asking)
        rows.append(torch.tanh(pooler.dense.weight @ torch.cat([first[-1], attended]) + pooler.dense.bias))
    return torch.stack(rows)


@pytest.mark.parametrize("options", CHOICES, ids=lambda options: "-".join(options.values()))
@pytest.mark.parametrize(("dtype", "exact"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_equal_to_a_literal_double_loop(options, dtype, exact):
    """The vectors, and the gradient of every weight and hidden state."""
    pooler, (layers, mask) = build(options, dtype=dtype), draw(dtype=dtype)
    given = [*pooler.parameters(), *layers]
    found, wanted = pooler(layers, mask), literally(pooler, layers, mask, **options)
    torch.testing.assert_close(found, wanted, rtol=0, atol=exact)
    mine, theirs = (torch.autograd.grad(x.square().sum(), given, allow_unused=True) for x in (found, wanted))
    unread = options["embedding_layer"] == "no"
    for i, (gradient, other) in enumerate(zip(mine, theirs, strict=True)):
        if i == len(given) - len(layers) and unread:
            assert other is None and not gradient.any()
        else:
            torch.testing.assert_close(gradient, other, rtol=0, atol=20 * exact)


def test_every_option_makes_a_difference():
    layers, mask = draw()
    found = [build(options)(layers, mask) for options in CHOICES if options["activation"] != "rrelu_mean"]
    assert all((a - b).abs().max() > 1e-4 for a, b in itertools.combinations(found, 2))


def by_hand(**options):
    """The pooler with unit maps, and one sentence of two tokens: means (1, 0) and (0, -48/11), then padding."""
    pooler = build(options, size=2, layers=1)
    for linear in (pooler.query, pooler.key, pooler.value):
        linear.weight.data = torch.eye(2)
    pooler.dense.weight.data = torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0, 0.1, 0.0, 1.0]])
    pooler.dense.bias.data = torch.tensor([0.0, 0.5])
    a, b = 2 * math.log(3), 2 * math.log(7)
    below = torch.tensor([[[a, 0.0], [2 - a, 0.0], [99.0, 99.0]]])
    above = torch.tensor([[[0.0, b], [0.0, -96 / 11 - b], [99.0, -99.0]]])
    return pooler, (below, above), torch.tensor([[1, 1, 0]])


@pytest.mark.parametrize(
    ("options", "weights", "attended"),
    [
        # Keys and values (1, 0) and (0, -1), since below zero 11/48 is left. The embeddings' query (2 log 3, 0) has the
        # scores log 3 and 0, the layer's (0, 2 log 7) has 0 and -log 7: weights 3/4, 1/4 and 7/8, 1/8.
        ({}, [13 / 16, 3 / 16], [13 / 16, -3 / 16]),
        ({"query": "last"}, [7 / 8, 1 / 8], [7 / 8, -1 / 8]),
        ({"embedding_layer": "no"}, [1.0], [0.0, -1.0]),
        # Nothing is left off the second value: 0 and -(48/11) log 7.
        (
            {"query": "last", "activation": "none"},
            [1 / (1 + 7 ** (-48 / 11)), 1 / (1 + 7 ** (48 / 11))],
            [1 / (1 + 7 ** (-48 / 11)), -48 / 11 / (1 + 7 ** (48 / 11))],
        ),
        ({"query": "last", "scale": "sqrt"}, [7**2**0.5 / (1 + 7**2**0.5), 1 / (1 + 7**2**0.5)], None),
    ],
)
def test_by_hand(options, weights, attended):
    pooler, layers, mask = by_hand(**options)
    found = pooler.weigh_layers(pooler.features(layers, mask))
    torch.testing.assert_close(found, torch.tensor([weights]), rtol=0, atol=1e-6)
    if attended:
        wanted = torch.tensor([[attended[0], 0.2 * math.log(7) + attended[1] + 0.5]])
        torch.testing.assert_close(pooler(layers, mask), torch.tanh(wanted), rtol=0, atol=1e-6)


@pytest.mark.parametrize("layers", [6, 12])
@pytest.mark.parametrize("options", [{}, CHOICES[-1]])
def test_parameters_at_bert_bases_size(options, layers):
    pooler = make_pooler("layer_attention", 768, layers, **options)
    assert sum(p.numel() for p in pooler.parameters()) == 2_949_888
    assert {name for name, _ in pooler.named_parameters() if name.endswith("bias")} == {"dense.bias"}


# --- RReLU ---------------------------------------------------------------------------------------------------------


def test_rrelu_in_evaluation_mode_is_torchs():
    x = torch.linspace(-3, 3, 49, dtype=torch.float64)
    torch.testing.assert_close(rrelu(x, False), F.rrelu(x), rtol=0, atol=1e-15)
    assert rrelu(torch.tensor([-48.0, 0.0, 5.0]), False).tolist() == [-11.0, 0.0, 5.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rrelu_draws_a_slope_for_every_number_in_training(dtype):
    torch.manual_seed(0)
    x = torch.full((40, 50), -1.0, dtype=dtype, requires_grad=True)
    found = rrelu(x, True)
    found.float().sum().backward()
    slopes = -found.detach().float()
    torch.testing.assert_close(x.grad.float(), slopes, rtol=0, atol=1e-6)  # its gradient is the slope that was drawn
    assert 1 / 8 - 1e-3 <= slopes.min() < 0.13 and 0.325 < slopes.max() <= 1 / 3 + 1e-3
    # Of 2,000 uniform draws the mean is off by 0.0013, the deviation of one is 0.0601.
    assert slopes.mean() == pytest.approx(11 / 48, abs=0.006)
    assert slopes.std() == pytest.approx((1 / 3 - 1 / 8) / math.sqrt(12), abs=0.003)
    assert not torch.equal(rrelu(x, True), found) and torch.equal(rrelu(-x, True), -x)


@pytest.mark.parametrize("activation", OPTIONS["activation"])
def test_chance_is_rrelus_alone_and_only_in_training(activation):
    pooler, (layers, mask) = build({"activation": activation}), draw()
    wanted = pooler(layers, mask)
    assert torch.equal(pooler(layers, mask), wanted)
    pooler.train()
    first, second = pooler(layers, mask), pooler(layers, mask)
    assert torch.equal(first, second) == torch.equal(first, wanted) == (activation != "rrelu")
    assert first.isfinite().all() and (first - wanted).abs().max() < 0.3


# --- what it is called with ----------------------------------------------------------------------------------------


def test_a_list_of_layers_stays_as_it_was():
    """The authors' code takes the last layer off it, so that a second call answers something else."""
    pooler, (layers, mask) = build(), draw()
    given, copies = list(layers), [layer.clone() for layer in layers]
    first = pooler(given, mask)
    assert torch.equal(pooler(given, mask), first) and torch.equal(pooler(tuple(given), mask), first)
    assert len(given) == len(layers) and all(a is b for a, b in zip(given, layers, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(given, copies, strict=True))


@pytest.mark.parametrize("options", CHOICES, ids=lambda options: "-".join(options.values()))
def test_with_every_option_batch_mates_change_nothing_and_every_parameter_learns(options):
    pooler, (layers, mask) = build(options), draw()
    together = pooler(layers, mask)
    for i, length in enumerate(LENGTHS.tolist()):
        alone = pooler([layer[i : i + 1, :length] for layer in layers], mask[i : i + 1, :length])
        torch.testing.assert_close(alone, together[i : i + 1], rtol=0, atol=1e-6)
    pooler.train()(layers, mask).square().sum().backward()
    for name, p in pooler.named_parameters():
        assert p.grad.isfinite().all() and (p.grad != 0).all(), name


def test_one_layer_of_one_token():
    pooler = build({"embedding_layer": "no"}, size=4, layers=1)
    hidden = torch.randn(1, 1, 4)
    value = rrelu(hidden[:, 0] @ pooler.value.weight.T, False)
    wanted = torch.tanh(pooler.dense(torch.cat([hidden[:, 0], value], dim=1)))
    torch.testing.assert_close(pooler((1e6 * hidden, hidden), torch.ones(1, 1)), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dot_products_that_float16_could_not_hold(dtype):
    """Of 200 * 200 * 16 = 640,000, in 16 bits throughout and under autocast; the largest takes all."""
    pooler, expected = build({"activation": "none"}, size=16, layers=1), torch.tensor([[0.0, 1.0]])
    for linear in (pooler.query, pooler.key):
        linear.weight.data = torch.eye(16)
    layers, mask = (torch.full((1, 3, 16), 180.0), torch.full((1, 3, 16), 200.0)), torch.ones(1, 3)
    features = pooler.features(layers, mask)
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(pooler.weigh_layers(features).detach(), expected)
        assert pooler(layers, mask).isfinite().all()
    assert torch.equal(pooler.to(dtype).weigh_layers(features.to(dtype)).detach(), expected)


def test_autocast_trains_it():
    pooler, (layers, mask) = build().train(), draw()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pooler(layers, mask).float().square().sum().backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in pooler.parameters())


def test_one_store_of_features_serves_every_option():
    """Two vectors a layer and sentence, so that another option does not encode anew."""
    layers, mask = draw()
    wanted = torch.cat([layer[:, 0] for layer in layers] + [(layer * mask[..., None]).sum(1) / LENGTHS[:, None]
                                                            for layer in layers], dim=1)  # fmt: skip
    assert wanted.shape == (3, 2 * 7 * 12)
    for options in CHOICES:
        torch.testing.assert_close(build(options).features(layers, mask), wanted, rtol=0, atol=1e-6)
    heads = [TaskHead(SST, 12, 4, HeadConfig(0, pooler="layer_attention"), 6) for _ in range(2)]
    assert {head.reads for head in heads} == {"layer_attention.LayerAttention"}


# --- its options ---------------------------------------------------------------------------------------------------


def test_options_are_read_and_completed():
    assert parse_options(None) == {}
    assert parse_options("query=last, scale = sqrt") == {"query": "last", "scale": "sqrt"}
    defaults = {"activation": "rrelu", "scale": "layers", "query": "all", "embedding_layer": "yes"}
    assert resolve_options("layer_attention") == resolve_options("layer_attention", {}) == defaults
    assert resolve_options("layer_attention", {"query": "last"}) == {**defaults, "query": "last"}
    assert resolve_options("mean", {}) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--pooler_options : '' is not understood; wanted OPTION=VALUE"),
        ("last", "--pooler_options last: 'last' is not understood; wanted OPTION=VALUE"),
        ("query=", "'query=' is not understood"),
        ("query=last,query=all", "query is named twice; name each option once"),
        ("query=first", "--pooler_options query=first: not known; layer_attention takes activation=rrelu"),
        (
            "heads=4",
            "--pooler_options heads=4: not known; .*scale=layers.sqrt, query=all.last, embedding_layer=yes.no$",
        ),
    ],
)
def test_options_that_are_not_understood(text, message):
    with pytest.raises(InputError, match=message):
        make_pooler("layer_attention", 4, 2, **parse_options(text))


@pytest.mark.parametrize("name", [name for name in POOLERS if not POOLERS[name].options])
def test_options_of_a_pooler_that_takes_none(name):
    with pytest.raises(InputError, match=f"query=last: pooler {name} takes none: leave it out, or choose layer_att"):
        make_pooler(name, 4, 4, query="last")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--pooler_options query=last", "query=last: say --pooler, too; layer_attention takes activation=rrelu"),
        ("--pooler mean --pooler_options query=last", "query=last: pooler mean takes none: leave it out"),
        ("--pooler layer_attention --pooler_options query=none", "query=none: not known; layer_attention takes"),
        ("--pooler layer_attention --pooler_options query", "'query' is not understood"),
        ("--pooler sst=max,sts=mean --pooler_options query=last", "query=last: pooler max takes none: leave it out"),
        (
            "--pooler sst=max,sts=layer_attention --pooler_options query=no",
            "query=no: not known; layer_attention takes",
        ),
    ],
)
def test_the_command_refuses_them_before_anything_else(typed, message, capsys):
    assert main([*typed.split(), "--model", "nothing-of-the-kind"]) == 1
    assert re.search(message, capsys.readouterr().err)


@pytest.fixture
def saved(tiny, tmp_path):
    """saved(options) -> a model with the pooler in every head of a course task, and the file that describes it."""

    def save(options):
        tasks = ["sst", "para", "sts"]
        config = ModelConfig.for_tasks(
            tasks, attention=dict.fromkeys(tasks, 0), pooler="layer_attention", pooler_options=options
        )
        model = MultitaskBERT(config, tiny()).eval()
        model.save_pretrained(tmp_path)
        return model, tmp_path / "config.json"

    return save


@pytest.mark.parametrize("options", [None, *CHOICES])
def test_a_saved_head_has_its_options(saved, options):
    """All of them are written down, so that another default does not change a saved model."""
    model, path = saved(options)
    heads = json.loads(path.read_text())["minbert"]["heads"]
    assert all(head["pooler_options"] == (options or CHOICES[0]) for head in heads.values()) and len(heads) == 3
    again = MultitaskBERT.from_pretrained(path.parent)
    ids, mask = torch.tensor([[2, 7, 8, 9, 3], [2, 5, 3, 0, 0]]), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    with torch.no_grad():
        assert torch.equal(again.predict_sentiment(ids, mask), model.predict_sentiment(ids, mask))
        for method in ("predict_paraphrase", "predict_similarity"):
            pair = (ids, mask, ids.flip(0), mask.flip(0))
            assert torch.equal(getattr(model, method)(*pair), getattr(again, method)(*pair))
    # In evaluation mode the mean of RReLU's slopes can't be told from RReLU.
    assert all(head.pooler.activation == (options or CHOICES[0])["activation"] for head in again.heads.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query": "first"}, "config.json: --pooler_options query=first: not known; layer_attention takes"),
        ({"query": ["all"]}, r"config.json: --pooler_options query=\['all'\]: not known; layer_attention takes"),
        ("query=all", "config.json: pooler_options is 'query=all'; wanted option: value"),
    ],
)
def test_options_altered_in_a_saved_head(saved, options, message):
    _, path = saved({})
    values = json.loads(path.read_text())
    values["minbert"]["heads"]["sst"]["pooler_options"] = options
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match=message):
        MultitaskBERT.from_pretrained(path.parent)


def test_a_head_saved_before_there_were_options_loads(saved):
    model, path = saved({})
    values = json.loads(path.read_text())
    for head in values["minbert"]["heads"].values():
        del head["pooler_options"]
    path.write_text(json.dumps(values))
    again = MultitaskBERT.from_pretrained(path.parent)
    assert all(head.pooler.all_ask and head.pooler.first_layer == 0 for head in again.heads.values())
