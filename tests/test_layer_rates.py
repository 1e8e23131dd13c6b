"""Every parameter learns with the rate that its place has: worked out for three layers, and in a run.

Follows layer_rates.py: Howard and Ruder 2018 (arXiv 1801.06146), Clark et al. 2020 (arXiv 2003.10555).
"""

import pytest
import torch

from errors import InputError
from layer_rates import depth, parameter_groups
from model import ModelConfig, MultitaskBERT
from optimizer import AdamW
from options import get_args
from schedules import set_learning_rate


@pytest.fixture
def named(tiny):
    return dict(MultitaskBERT(ModelConfig.for_tasks(option="finetune"), tiny(num_hidden_layers=3)).named_parameters())


def rates(named, **choices):
    """name -> rate."""
    found = {}
    for group in parameter_groups(named, 1.0, **choices):
        found.update({id(parameter): group["lr"] for parameter in group["params"]})
    assert len(found) == len(named)
    return {name: found[id(parameter)] for name, parameter in named.items()}


def test_each_layer_learns_slower_than_the_one_above(named):
    for name, rate in rates(named, decay=0.5).items():
        places = {"bert.embeddings.": 0.125, "layer.0.": 0.25, "layer.1.": 0.5, "layer.2.": 1.0, "heads.": 1.0}
        (wanted,) = {rate for place, rate in places.items() if place in name.replace("attention.layer", "")} or {1.0}
        assert rate == wanted, name


def test_heads_have_their_own_rate(named):
    for name, rate in rates(named, head_lr=20.0).items():
        assert rate == (20.0 if name.startswith(("heads.", "bert.pooler")) else 1.0), name


def test_with_nothing_said_there_is_one_group(named):
    (group,) = parameter_groups(named, 3e-5)
    assert group["lr"] == 3e-5 and [id(p) for p in group["params"]] == [id(p) for p in named.values()]


def test_a_schedule_scales_every_group(named):
    optimizer = AdamW(parameter_groups(named, 1e-3, 0.5, 1e-2))
    before = [group["lr"] for group in optimizer.param_groups]
    for factor in (0.25, 0.5):
        set_learning_rate(optimizer, factor)
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([factor * lr for lr in before])


def test_a_step_is_as_long_as_the_rate(named):
    optimizer = AdamW(parameter_groups(named, 1e-3, 0.5))
    before = {name: parameter.detach().clone() for name, parameter in named.items()}
    for parameter in named.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()  # the first step of Adam is the rate, whatever the gradient
    moved = {name: (before[name] - parameter).mean().item() for name, parameter in named.items()}
    assert moved["bert.embeddings.word_embeddings.weight"] == pytest.approx(1e-3 / 8, rel=1e-3)
    assert moved["bert.encoder.layer.1.output.dense.weight"] == pytest.approx(1e-3 / 2, rel=1e-3)
    assert moved["heads.sst.output.weight"] == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "layers", "wanted"),
    [
        ("bert.encoder.layer.11.output.dense.weight", 12, 0),
        ("encoder.layer.0.attention.self.query.bias", 12, 11),
        ("bert.embeddings.LayerNorm.weight", 12, 12),
        ("heads.sst.attention.0.query.weight", 12, None),
        ("bert.pooler.dense.weight", 12, None),
    ],
)
def test_depth(name, layers, wanted):
    assert depth(name, layers) == wanted


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--option finetune --layer_decay 0", "--layer_decay is 0.0, wanted 0.01 to 1"),
        ("--option finetune --layer_decay 1.5", "--layer_decay is 1.5, wanted 0.01 to 1"),
        ("--option finetune --head_lr -1", "--head_lr is -1.0, wanted 0 to 1e\\+30"),
        ("--option pretrain --head_lr 0.001", "the heads alone learn, with --lr: say --option finetune"),
        ("--layer_decay 0.9", "the heads alone learn, with --lr: say --option finetune"),
    ],
)
def test_rates_out_of_range_or_out_of_place(typed, message):
    with pytest.raises(InputError, match=message):
        get_args(typed.split())
