"""Whoever changes the plain lines of bert.py, task_attention.py or optimizer.py is obeyed, in training and after it.

The faster forms of packed.py, fused.py and the optimizer compute what these lines say; here the lines are changed, as a
student would, and the same changes have to show wherever the model runs.
"""

import pytest
import torch
from torch import nn

import as_written
from bert import ACTIVATIONS, BertIntermediate, BertLayer, BertModel, BertSelfAttention, BertSelfOutput
from fused import GELUS
from optimizer import AdamW
from packed import SWITCHES, Layout
from task_attention import CrossAttentionLayer, SelfAttentionLayer

CHECKS = (as_written.packing, as_written.by_hand, as_written.task_attention, as_written.adamw_lists)


@pytest.fixture(autouse=True)
def asked_anew():
    """As in a process of its own, before the test and after it."""
    for check in CHECKS:
        check.cache_clear()
    yield
    for check in CHECKS:
        check.cache_clear()


@pytest.fixture
def model(tiny):
    found = tiny()
    for module in found.modules():
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
    return found


IDS = torch.tensor([[2, 7, 8, 9, 3], [2, 8, 3, 0, 0], [2, 9, 7, 3, 0]])
MASK = (IDS != 0).long()


def trained(model):
    """The encoding with which a training step would go on."""
    return model.train()(IDS, MASK)["last_hidden_state"].detach()


@torch.no_grad()
def judged(model):
    return model.eval()(IDS, MASK)["last_hidden_state"]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_faster_forms_compute_what_is_written(activation, capsys):
    assert as_written.packing(activation) and (activation not in GELUS or as_written.by_hand(activation))
    assert as_written.task_attention() and as_written.adamw_lists()
    assert capsys.readouterr().err == ""


def pre_norm(self, hidden_states, attention_mask, first_only=False):
    attended = hidden_states + self.attention(hidden_states, attention_mask, first_only)
    return attended + self.output(self.intermediate(attended), attended)


def without_residual(self, context, residual):
    return self.LayerNorm(self.dense(context))


def without_scale(self, hidden_states, attention_mask, firsts=None):
    query, key, value = (self.split_heads(map_(hidden_states)) for map_ in (self.query, self.key, self.value))
    context = torch.softmax(query @ key.transpose(-1, -2) + attention_mask, dim=-1) @ value
    return context.transpose(1, 2).flatten(2)


def rectified(self, hidden_states):
    return torch.relu(self.dense(hidden_states))


@pytest.mark.parametrize(
    ("kind", "changed", "fast"),
    [
        (BertLayer, pre_norm, "fused.py"),
        (BertSelfOutput, without_residual, "fused.py"),
        (BertIntermediate, rectified, "fused.py"),
        (BertSelfAttention, without_scale, "packed.py"),
    ],
)
def test_a_changed_layer_trains_as_it_is_judged(model, monkeypatch, capsys, kind, changed, fast):
    before = judged(model)
    assert torch.allclose(trained(model), before, atol=1e-5)
    monkeypatch.setattr(kind, "forward", changed)
    for check in CHECKS:
        check.cache_clear()
    after = judged(model)
    assert not torch.allclose(after, before, atol=1e-2)
    assert torch.allclose(trained(model), after, atol=1e-5)
    trained(model)
    said = capsys.readouterr().err
    # The layer written anew asks for no faster form itself, so there is nothing to fall back from.
    wanted = "" if changed is pre_norm else f"note: bert.py's layer is no longer what {fast} computes"
    assert said.startswith(wanted) and said.count("\n") == (0 if changed is pre_norm else 1)


def test_a_part_put_in_its_place_and_a_hook_are_called_in_training(model):
    class Doubled(BertSelfOutput):
        def forward(self, context, residual):
            return 2 * super().forward(context, residual)

    before = trained(model)
    layer = model.encoder.layer[1]
    called = []
    handle = layer.intermediate.dense.register_forward_hook(lambda *given: called.append(given))
    assert torch.allclose(trained(model), before, atol=1e-5) and len(called) == 1
    handle.remove()
    layer.attention.output.__class__ = Doubled
    assert not torch.allclose(trained(model), before, atol=1e-2)
    assert torch.allclose(trained(model), judged(model), atol=1e-5)


@pytest.mark.parametrize("kind", [SelfAttentionLayer, CrossAttentionLayer])
@pytest.mark.parametrize("first_only", [False, True])
def test_changed_task_attention_is_the_same_in_training(monkeypatch, kind, first_only):
    torch.manual_seed(0)
    layer, layout = kind(16, 2, 0.0, 0.0), Layout.of(torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0]]))
    states = torch.randn(len(layout.rows), 16)
    before = layer.eval()(states, layout, first_only)

    def even(self, query, key, real):
        return (real / real.sum(dim=1, keepdim=True))[:, None, None, :].expand(*query.shape[:3], -1)

    for check in CHECKS:
        check.cache_clear()
    monkeypatch.setattr(kind, "probabilities", even)
    layer.attention_dropout_prob = 1e-9  # so that training takes the form with dropout
    if kind is CrossAttentionLayer:  # the check asks the kind for one sentence
        monkeypatch.setattr(SelfAttentionLayer, "probabilities", even)
    changed = layer.eval()(states, layout, first_only)
    assert not torch.allclose(changed, before, atol=1e-3)
    assert torch.allclose(layer.train()(states, layout, first_only), changed, atol=1e-5)


def test_a_changed_step_moves_all_parameters_so(monkeypatch, capsys):
    parameters = [nn.Parameter(torch.ones(10)), nn.Parameter(torch.ones(200, 200))]

    def sign(p, grad, m, v, *, lr, out=None, **formula):
        p.sub_(grad.sign(), alpha=lr)

    monkeypatch.setattr("optimizer.adamw_step", sign)
    optimizer = AdamW(parameters, lr=0.25)
    for p in parameters:
        p.grad = torch.full_like(p, 3.0)
    optimizer.step()
    assert all(torch.equal(p, torch.full_like(p, 0.75)) for p in parameters)
    assert "optimizer.py's adamw_step is no longer what adamw_step_lists does" in capsys.readouterr().err


def test_lines_that_a_tiny_layer_cannot_run_are_what_runs(monkeypatch):
    def of_its_size(self, context, residual):
        assert context.shape[-1] == 384
        return residual

    monkeypatch.setattr(BertSelfOutput, "forward", of_its_size)
    assert not as_written.by_hand("gelu")


def test_nothing_random_is_drawn_and_no_switch_is_moved(tiny):
    model: BertModel = tiny().train()
    before, switches = torch.random.get_rng_state(), str(SWITCHES)
    assert as_written.packing(model.config.hidden_act) and as_written.by_hand("gelu")
    assert as_written.task_attention() and as_written.adamw_lists()
    assert torch.equal(torch.random.get_rng_state(), before) and str(SWITCHES) == switches
