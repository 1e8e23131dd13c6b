"""Whoever changes the plain lines of bert.py, task_attention.py or optimizer.py is obeyed, in training and after it.

The faster forms of packed.py, fused.py and the optimizer compute what these lines say; here the lines are changed, as a
student would, and the same changes have to show wherever the model runs.
"""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import as_written
from bert import (
    ACTIVATIONS,
    BertConfig,
    BertEmbeddings,
    BertIntermediate,
    BertLayer,
    BertModel,
    BertOutput,
    BertSelfAttention,
    BertSelfOutput,
)
from fused import GELUS
from optimizer import AdamW
from packed import SWITCHES, Layout
from task_attention import CrossAttentionLayer, SelfAttentionLayer


@pytest.fixture(autouse=True)
def asked_anew():
    """As in a process of its own, before the test and after it."""
    as_written.forget()
    yield
    as_written.forget()


@pytest.fixture
def model(tiny):
    found = tiny(max_position_embeddings=48)
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
    config = BertConfig(hidden_act=activation)
    assert as_written.packing(config) and as_written.first_only(config)
    assert activation not in GELUS or as_written.by_hand(config)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("kind", [SelfAttentionLayer, CrossAttentionLayer])
def test_the_tasks_attention_and_adamw_compute_what_is_written(kind, capsys):
    assert as_written.task_attention(kind) and as_written.adamw_lists()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("switch", ["cheap_dropout", "grouping"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_defaults_are_no_alarm(switch, dtype, monkeypatch, capsys):
    monkeypatch.setattr(SWITCHES, switch, False)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            assert as_written.packing(BertConfig()) and as_written.first_only(BertConfig())
            assert as_written.by_hand(BertConfig())
            assert as_written.task_attention(CrossAttentionLayer) and as_written.adamw_lists()
    finally:
        torch.set_default_dtype(before)
    assert capsys.readouterr().err == ""


def test_threads_that_ask_together_are_told_the_same(capsys):
    with ThreadPoolExecutor(8) as pool:
        told = list(
            pool.map(lambda _: as_written.packing(BertConfig()) and as_written.by_hand(BertConfig()), range(16))
        )
    assert all(told) and capsys.readouterr().err == ""


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


def windowed(self, hidden_states, attention_mask, firsts=None):
    if firsts is not None or isinstance(attention_mask, Layout):
        return ATTENTION(self, hidden_states, attention_mask, firsts)
    places = torch.arange(hidden_states.shape[1])
    far = (places[:, None] - places).abs() > 20
    return ATTENTION(self, hidden_states, attention_mask + far * torch.finfo(torch.float32).min)


def with_a_nn_dropout(self, context, residual):
    return self.LayerNorm(residual + nn.functional.dropout(self.dense(context), 0.0) * self.scale)


def shifted(self, input_ids, positions, token_type_ids):
    embedded = EMBEDDINGS(self, input_ids, positions, token_type_ids)
    return embedded + embedded.roll(1, dims=1)  # of the padded form the token before, of the packed form another number


ATTENTION, EMBEDDINGS = BertSelfAttention.forward, BertEmbeddings.forward
LONG = torch.randint(1, 29, (2, 40), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("kind", "changed", "fast"),
    [
        (BertLayer, pre_norm, "layer for the first tokens alone is not its layer for all"),
        (BertSelfOutput, without_residual, "layer is no longer what fused.py computes"),
        (BertSelfOutput, with_a_nn_dropout, "layer is no longer what fused.py computes"),
        (BertIntermediate, rectified, "layer is no longer what fused.py computes"),
        (BertSelfAttention, without_scale, " is no longer what packed.py computes"),
        (BertSelfAttention, windowed, " is no longer what packed.py computes"),
        (BertEmbeddings, shifted, " is no longer what packed.py computes"),
    ],
)
def test_a_changed_layer_trains_as_it_is_judged(model, monkeypatch, capsys, kind, changed, fast):
    """And so does the last layer where first tokens alone are read; both as the padded form, which is written out."""

    def encoded(first_only):
        return model.encode(LONG, Layout.of(torch.ones_like(LONG)), first_only=first_only)[-1].detach()

    before = encoded(False)
    monkeypatch.setattr(kind, "forward", changed)
    monkeypatch.setattr(BertSelfOutput, "scale", 0.5, raising=False)
    as_written.forget()
    if changed is with_a_nn_dropout:
        for layer in model.encoder.layer:
            del layer.attention.output.dropout_prob
    with torch.no_grad():
        after = encoded(False)
        model.eval()
        assert torch.allclose(encoded(False), after, atol=1e-5) and not torch.allclose(after, before, atol=1e-2)
        firsts = encoded(True)
        monkeypatch.setattr(SWITCHES, "packing", False)
        assert torch.allclose(encoded(False), after, atol=1e-5)
        assert torch.allclose(after.view(2, 40, -1)[:, 0], firsts, atol=1e-5)
        monkeypatch.setattr(SWITCHES, "packing", True)
    model.train()
    assert torch.allclose(encoded(False), after, atol=1e-5)  # with gradients
    assert f"note: bert.py's {fast}".replace("bert.py's  is", "bert.py is") in capsys.readouterr().err
    encoded(False)
    assert capsys.readouterr().err == ""


def test_what_a_field_of_the_config_turns_on_counts(tiny, monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Config(BertConfig):
        share: float = 1.0

    def of_a_share(self, wide, residual):
        return self.LayerNorm(residual + self.share * self.dense(wide))

    model = tiny()
    monkeypatch.setattr(BertOutput, "forward", of_a_share)
    monkeypatch.setattr(BertOutput, "share", 0.3, raising=False)
    config = Config(**dataclasses.asdict(model.config), share=0.3)
    assert not as_written.by_hand(config) and as_written.packing(config)


class Adapted(nn.Linear):
    def forward(self, x):
        return super().forward(x) + x.amax(dim=-1, keepdim=True)


class Doubled(BertSelfOutput):
    def forward(self, context, residual):
        return 2 * super().forward(context, residual)


class Padded(BertSelfAttention):
    """Attention as most write it: of a padded batch."""

    def forward(self, hidden_states, attention_mask, firsts=None):
        return super().forward(hidden_states, attention_mask[:, :, :, : hidden_states.shape[1]]).neg()


def put_adapter(layer):
    layer.attention.self.query.__class__ = Adapted


def put_output(layer):
    layer.attention.output.__class__ = Doubled


def put_attention(layer):
    layer.attention.self.__class__ = Padded


def put_activation(layer):
    layer.intermediate.activation = torch.relu


def put_forward(layer):
    layer.output.forward = lambda wide, residual: residual


def put_norm(layer):
    layer.output.LayerNorm = nn.RMSNorm(layer.output.LayerNorm.weight.shape)


@pytest.mark.parametrize("put", [put_adapter, put_output, put_attention, put_activation, put_forward, put_norm])
def test_what_is_put_in_a_layer_s_place_is_called_in_training(model, put):
    before = trained(model)
    put(model.encoder.layer[1])
    assert not torch.allclose(trained(model), before, atol=1e-2)
    assert torch.allclose(trained(model), judged(model), atol=1e-5)


def test_hooks_are_called_in_training(model):
    before, called = trained(model), []
    layer, words = model.encoder.layer[1], model.embeddings.word_embeddings
    handles = [
        part.register_forward_hook(lambda *given: called.append("forward")) for part in (layer.output.dense, words)
    ]
    handles.append(layer.intermediate.register_full_backward_hook(lambda *given: called.append("backward")))
    output = model.train()(IDS, MASK)["last_hidden_state"]
    output.sum().backward()
    assert torch.allclose(output, before, atol=1e-5) and called == ["forward", "forward", "backward"]


@pytest.mark.parametrize("kind", [SelfAttentionLayer, CrossAttentionLayer])
@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("what", ["probabilities", "weigh"])
def test_changed_task_attention_is_the_same_in_training(monkeypatch, kind, first_only, what):
    torch.manual_seed(0)
    layer, layout = kind(16, 2, 0.0, 0.0), Layout.of(torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0]]))
    states = torch.randn(len(layout.rows), 16)
    before = layer.eval()(states, layout, first_only)
    weigh = kind.weigh

    def even(self, query, key, real):
        return (real / real.sum(dim=1, keepdim=True))[:, None, None, :].expand(*query.shape[:3], -1)

    def negative(self, query, key, value, real):
        return -weigh(self, query, key, value, real)

    as_written.forget()
    monkeypatch.setattr(kind, what, even if what == "probabilities" else negative)
    layer.attention_dropout_prob = 1e-9  # so that training takes the form with dropout
    changed = layer.eval()(states, layout, first_only)
    assert not torch.allclose(changed, before, atol=1e-3)
    assert torch.allclose(layer.train()(states, layout, first_only), changed, atol=1e-5)


def sign(p, grad, m, v, *, lr, t, out=None, **formula):
    p.sub_(grad.sign(), alpha=lr)


def late(p, grad, m, v, *, lr, t, out=None, **formula):
    p.sub_(grad, alpha=lr if t < 5 else 0.5 * lr)


def centered(p, grad, m, v, *, lr, t, out=None, **formula):
    p.sub_(grad - grad.mean() if grad.dim() > 1 else grad, alpha=lr)


@pytest.mark.parametrize("formula", [sign, late, centered])
def test_a_changed_step_moves_all_parameters_so(monkeypatch, capsys, formula):
    parameters = [nn.Parameter(torch.ones(10)), nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(200, 200))]
    monkeypatch.setattr("optimizer.adamw_step", formula)
    optimizer, wanted = AdamW(parameters, lr=0.25), [p.detach().clone() for p in parameters]
    generator = torch.Generator().manual_seed(0)
    for t in range(1, 8):
        for p, moved in zip(parameters, wanted, strict=True):
            p.grad = torch.randn(p.shape, generator=generator)
            formula(moved, p.grad, None, None, lr=0.25, t=t)
        optimizer.step()
    for p, moved in zip(parameters, wanted, strict=True):
        torch.testing.assert_close(p.detach(), moved)
    assert "optimizer.py's adamw_step is no longer what its lists and blocks do" in capsys.readouterr().err


def test_lines_that_a_tiny_layer_cannot_run_are_what_runs(monkeypatch, capsys):
    def of_its_size(self, context, residual):
        if context.shape[-1] != 384:
            raise RuntimeError("wanted 384")
        return residual

    monkeypatch.setattr(BertSelfOutput, "forward", of_its_size)
    assert not as_written.by_hand(BertConfig())
    assert "slower (asked, it said: RuntimeError: wanted 384)\n" in capsys.readouterr().err


def test_a_parameter_that_nothing_uses_yet_is_no_alarm(monkeypatch):
    def with_another(self, config, real=BertOutput.__init__):
        real(self, config)
        self.gate = nn.Parameter(torch.zeros(1))

    monkeypatch.setattr(BertOutput, "__init__", with_another)
    assert as_written.by_hand(BertConfig())


def test_nothing_random_is_drawn_of_any_device_and_no_switch_is_moved(tiny, monkeypatch):
    model: BertModel = tiny().train()
    before, switches = torch.random.get_rng_state(), str(SWITCHES)
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    monkeypatch.setattr(torch, "manual_seed", seeded.append)
    assert as_written.packing(model.config) and as_written.first_only(model.config)
    assert as_written.by_hand(model.config)
    assert as_written.task_attention(SelfAttentionLayer) and as_written.adamw_lists()
    assert torch.equal(torch.random.get_rng_state(), before) and str(SWITCHES) == switches and not seeded
