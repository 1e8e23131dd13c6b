"""Tests of optimizer.py and schedules.py: the course's AdamW against a reference in plain numbers, and its fast forms.

The reference follows the algorithm as the course states it, on Python floats, one element after the other.
"""

import copy
import io
import json
import math

import numpy as np
import pytest
import safetensors.torch
import torch

import optimizer as optimizer_module
from optimizer import AdamW, adamw_step, adamw_step_lists, clip_grad_norm, vanishing
from schedules import SCHEDULES, constant, linear, set_learning_rate


class ScalarAdamW:
    """The course's algorithm for one number."""

    def __init__(self, p, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0, correct_bias=True):
        self.p, self.m, self.v, self.t = p, 0.0, 0.0, 0
        self.lr, self.betas, self.eps, self.weight_decay, self.correct_bias = lr, betas, eps, weight_decay, correct_bias

    def step(self, grad):
        beta1, beta2 = self.betas
        self.t += 1
        self.m = beta1 * self.m + (1 - beta1) * grad
        self.v = beta2 * self.v + (1 - beta2) * grad * grad
        alpha = self.lr
        if self.correct_bias:
            alpha = alpha * math.sqrt(1 - beta2**self.t) / (1 - beta1**self.t)
        self.p = self.p - alpha * self.m / (math.sqrt(self.v) + self.eps)
        self.p = self.p - self.lr * self.weight_decay * self.p


def parameter(*shape, dtype=torch.float32):
    return torch.nn.Parameter(torch.randn(shape, dtype=dtype))


def set_random_gradients(parameters, seed):
    generator = torch.Generator().manual_seed(seed)
    for p in parameters:
        p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)


# --- The algorithm


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(("correct_bias", "magnitude"), [(True, 0.95), (False, 0.975)])
def test_one_step_by_hand(fast, correct_bias, magnitude):
    # m = 0.25 * 2 = 0.5, v = 0.25 * 4 = 1; alpha = 0.1 * sqrt(0.25) / 0.25 = 0.2, or 0.1 without the correction;
    # 1 - 0.2 * 0.5 / (1 + 1) = 0.95, or 0.975; the decay then takes 0.1 * 0.5 = 5 % of that.
    signs = torch.tensor([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]])
    p = torch.nn.Parameter(signs.clone())
    p.grad = 2 * signs
    AdamW([p], lr=0.1, betas=(0.75, 0.75), eps=1.0, weight_decay=0.5, correct_bias=correct_bias, fast=fast).step()
    torch.testing.assert_close(p.detach(), 0.95 * magnitude * signs, atol=1e-7, rtol=0)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("correct_bias", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_a_hundred_steps_equal_the_reference(fast, correct_bias, dtype, tolerance):
    torch.manual_seed(0)
    parameters = [parameter(2, 3, dtype=dtype), parameter(4, dtype=dtype), parameter(dtype=dtype)]
    options = [{"lr": 0.01, "weight_decay": 0.1}, {"lr": 0.002, "betas": (0.8, 0.95), "eps": 0.1}]
    groups = [{"params": parameters[:1], **options[0]}, {"params": parameters[1:], **options[1]}]
    scalars = [
        [ScalarAdamW(x, correct_bias=correct_bias, **option) for x in p.detach().flatten().tolist()]
        for p, option in zip(parameters, [options[0], options[1], options[1]], strict=True)
    ]
    ours = AdamW(groups, correct_bias=correct_bias, fast=fast)
    for step in range(100):
        set_random_gradients(parameters, step)
        for p, numbers in zip(parameters, scalars, strict=True):
            for number, grad in zip(numbers, p.grad.flatten().tolist(), strict=True):
                number.step(grad)
        ours.step()
    for p, numbers in zip(parameters, scalars, strict=True):
        expected = torch.tensor([number.p for number in numbers], dtype=dtype).view(p.shape)
        torch.testing.assert_close(p.detach(), expected, atol=tolerance, rtol=tolerance)


def test_the_small_linear_model_of_the_courses_check():
    # Its 1000 steps, seeds and options; the expected weights come from the scalar reference with gradients by hand.
    inputs = np.random.default_rng(0).uniform(size=(1000, 3))
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2, bias=False)
    ours = AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4, correct_bias=True)
    expected = [[ScalarAdamW(w, lr=1e-3, weight_decay=1e-4) for w in row] for row in model.weight.tolist()]
    for x in inputs.tolist():
        ours.zero_grad()
        target = torch.tensor([x[0] + x[1], -x[2]])
        ((target - model(torch.tensor(x))) ** 2).sum().backward()
        ours.step()
        for row, y in zip(expected, [x[0] + x[1], -x[2]], strict=True):
            error = y - sum(weight.p * value for weight, value in zip(row, x, strict=True))
            for weight, value in zip(row, x, strict=True):
                weight.step(-2 * error * value)
    reference = torch.tensor([[weight.p for weight in row] for row in expected])
    torch.testing.assert_close(model.weight.detach(), reference, atol=1e-6, rtol=1e-4)


def test_equals_torch_without_eps_and_decay():
    torch.manual_seed(0)
    ours, theirs = parameter(5, 7, dtype=torch.float64), None
    theirs = copy.deepcopy(ours)
    a = AdamW([ours], lr=0.01, eps=1e-30)
    b = torch.optim.AdamW([theirs], lr=0.01, eps=1e-30, weight_decay=0.0)
    for step in range(100):
        set_random_gradients([ours], step)
        theirs.grad = ours.grad.clone()
        a.step()
        b.step()
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)


def test_equals_torch_with_eps_and_decay_once_its_options_are_translated():
    # Dividing numerator and denominator by sqrt(1 - beta2^t) turns our eps into theirs; decay after the step is decay
    # before it with a rate smaller by (1 - lr * weight_decay).
    torch.manual_seed(0)
    ours = parameter(5, 7, dtype=torch.float64)
    theirs = copy.deepcopy(ours)
    lr, eps, weight_decay = 0.01, 0.05, 0.3
    a = AdamW([ours], lr=lr, eps=eps, weight_decay=weight_decay)
    b = torch.optim.AdamW([theirs], foreach=False)
    for step in range(100):
        set_random_gradients([ours], step)
        theirs.grad = ours.grad.clone()
        rate = lr * (1 - lr * weight_decay)
        translated = {
            "lr": rate,
            "weight_decay": lr * weight_decay / rate,
            "eps": eps / math.sqrt(1 - 0.999 ** (step + 1)),
        }
        b.param_groups[0].update(translated)
        a.step()
        b.step()
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)


def test_a_decay_smaller_than_float32_next_to_one_keeps_its_size():
    # 1e-7 of each number, where 1 - 1e-7 in float32 would take 1.19e-7: the mean over many numbers shows which it is.
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.rand(100_000) + 1)
    before = p.detach().double().mean()
    p.grad = torch.zeros_like(p)
    AdamW([p], lr=1e-5, weight_decay=0.01).step()
    assert 1 - p.detach().double().mean() / before == pytest.approx(1e-7, rel=0.1)


def test_zero_gradients_move_nothing():
    p = parameter(3)
    before = p.detach().clone()
    p.grad = torch.zeros_like(p)
    AdamW([p]).step()
    assert torch.equal(p.detach(), before)


# --- The fast forms


def awkward_parameters():
    """Shapes and layouts that the fast form treats differently, among them several blocks and a rest."""
    torch.manual_seed(0)
    return [
        parameter(),
        parameter(1),
        parameter(0),
        parameter(3, 0, 2),
        parameter(7),
        parameter(768, 3),
        parameter(257, 129),
        torch.nn.Parameter(torch.randn(300, 200).t()),
        torch.nn.Parameter(torch.randn(300, 400)[:, ::2]),
        torch.nn.Parameter(torch.randn(20, 30).t()),
        torch.nn.Parameter(torch.randn(2, 3, 64, 65).contiguous(memory_format=torch.channels_last)),
        parameter(3 * 4096 + 5, 5),
        parameter(33, 1001, dtype=torch.float64),
        torch.nn.Parameter(torch.randn(8), requires_grad=False),
    ]


@pytest.mark.parametrize("correct_bias", [True, False])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_fast_equals_plain_to_the_last_bit(monkeypatch, correct_bias, weight_decay):
    monkeypatch.setattr(optimizer_module, "BLOCK", 10_000)  # several blocks and a rest without a huge tensor
    fast, plain = awkward_parameters(), awkward_parameters()
    options = {"lr": 0.01, "weight_decay": weight_decay, "correct_bias": correct_bias}
    optimizers = AdamW(fast, **options), AdamW(plain, **options, fast=False)
    for step in range(5):
        for parameters in (fast, plain):
            set_random_gradients([p for p in parameters if p.requires_grad], step)
            parameters[6].grad = parameters[6].grad.t().contiguous().t()  # not contiguous, though its parameter is
        for one in optimizers:
            one.step()
    assert fast[-1] not in optimizers[0].state  # it asks for no gradient
    for p, q in zip(fast, plain, strict=True):
        assert torch.equal(p, q) and p.stride() == q.stride()
        for name, value in optimizers[0].state[p].items():
            other = optimizers[1].state[q][name]
            assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other


def test_fast_equals_plain_at_the_real_block_size():
    torch.manual_seed(0)
    fast = [parameter(2 * optimizer_module.BLOCK + 4099), parameter(768, 768), parameter(768)]
    plain = copy.deepcopy(fast)
    a, b = AdamW(fast, weight_decay=0.01), AdamW(plain, weight_decay=0.01, fast=False)
    for step in range(2):
        set_random_gradients(fast, step)
        set_random_gradients(plain, step)
        a.step()
        b.step()
    assert all(torch.equal(p, q) for p, q in zip(fast, plain, strict=True))


@pytest.mark.parametrize("correct_bias", [True, False])
def test_lists_equal_plain(correct_bias):
    # The form a GPU takes, run on the CPU.
    torch.manual_seed(0)
    lists = [[torch.rand(shape) for shape in [(4, 5), (), (7,), (0,)]] for _ in range(4)]
    copies = copy.deepcopy(lists)
    formula = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.1, "correct_bias": correct_bias}
    adamw_step_lists(*lists, t=3, **formula)
    for tensors in zip(*copies, strict=True):
        adamw_step(*tensors, t=3, **formula)
    for ours, theirs in zip(lists, copies, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_equals_cpu():
    cpu = [p for p in awkward_parameters() if p.requires_grad]
    cuda = [torch.nn.Parameter(p.detach().cuda()) for p in cpu]
    a, b = AdamW(cpu, lr=0.01, weight_decay=0.1), AdamW(cuda, lr=0.01, weight_decay=0.1)
    for step in range(5):
        set_random_gradients(cpu, step)
        for p, q in zip(cpu, cuda, strict=True):
            q.grad = p.grad.cuda()
        a.step()
        b.step()
    for p, q in zip(cpu, cuda, strict=True):
        torch.testing.assert_close(q.cpu(), p, atol=1e-6, rtol=1e-5)


def test_gradients_are_left_as_they_were():
    parameters = [parameter(5), parameter(200, 100)]
    set_random_gradients(parameters, 0)
    before = [p.grad.clone() for p in parameters]
    AdamW(parameters, weight_decay=0.1).step()
    assert all(torch.equal(p.grad, grad) for p, grad in zip(parameters, before, strict=True))


# --- Around the algorithm


def test_parameters_without_gradient_wait_with_a_step_count_of_their_own():
    torch.manual_seed(0)
    always, sometimes = parameter(3), parameter(3)
    late = sometimes.detach().clone()
    ours = AdamW([always, sometimes], lr=0.1, weight_decay=0.1)
    for step in range(4):
        always.grad = torch.ones(3)
        sometimes.grad = torch.full((3,), 2.0) if step in (1, 3) else None
        ours.step()
    assert (ours.state[always]["step"], ours.state[sometimes]["step"]) == (4, 2)
    reference = [ScalarAdamW(x, lr=0.1, weight_decay=0.1) for x in late.tolist()]
    for number in reference * 2:
        number.step(2.0)
    torch.testing.assert_close(sometimes.detach(), torch.tensor([number.p for number in reference]))


def test_tied_weights_stay_tied_and_take_one_step():
    torch.manual_seed(0)
    embedding, output = torch.nn.Embedding(6, 4), torch.nn.Linear(4, 6, bias=False)
    output.weight = embedding.weight
    model = torch.nn.ModuleList([embedding, output])
    ours = AdamW(model.parameters(), lr=0.1)
    output(embedding(torch.tensor([1, 2]))).sum().backward()
    ours.step()
    assert output.weight is embedding.weight
    assert [state["step"] for state in ours.state.values()] == [1]


def test_closure_and_its_loss():
    p = parameter(3)
    ours = AdamW([p])

    def closure():
        ours.zero_grad()
        loss = (p**2).sum()
        loss.backward()
        return loss

    assert ours.step(closure).item() > 0
    assert AdamW([p]).step() is None


def train(model, optimizer, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        optimizer.zero_grad()
        set_learning_rate(optimizer, linear(step, 10, 0.2))
        model(torch.randn(8, 200, generator=generator)).square().mean().backward()
        optimizer.step()


def through_torch_save(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)


def through_safetensors_and_json(state):
    """As a checkpoint that needs no pickle would keep it: tensors in one file, everything else as JSON."""
    tensors = {f"{i}.{name}": x for i, s in state["state"].items() for name, x in s.items() if name != "step"}
    rest = json.dumps([[s["step"] for s in state["state"].values()], state["param_groups"]])
    tensors, (steps, groups) = safetensors.torch.load(safetensors.torch.save(tensors)), json.loads(rest)
    names = ("exp_avg", "exp_avg_sq")
    states = {i: {"step": step, **{n: tensors[f"{i}.{n}"] for n in names}} for i, step in enumerate(steps)}
    return {"state": states, "param_groups": groups}


@pytest.mark.parametrize("keep", [through_torch_save, through_safetensors_and_json, copy.deepcopy])
def test_resumed_equals_not_stopped_to_the_last_bit(keep):
    def make():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(200, 100), torch.nn.Tanh(), torch.nn.Linear(100, 3))
        groups = [
            {"params": model[0].parameters(), "weight_decay": 0.1},
            {"params": model[2].parameters(), "lr": 0.003},
        ]
        return model, AdamW(groups, lr=0.01)

    model, optimizer = make()
    train(model, optimizer, range(10))
    first, first_optimizer = make()
    train(first, first_optimizer, range(4))
    saved = keep(first_optimizer.state_dict())
    second, second_optimizer = make()
    second.load_state_dict(first.state_dict())
    second_optimizer.load_state_dict(saved)
    train(second, second_optimizer, range(4, 10))
    for p, q in zip(model.parameters(), second.parameters(), strict=True):
        assert torch.equal(p, q)
        assert optimizer.state[p]["step"] == second_optimizer.state[q]["step"] == 10
        assert torch.equal(optimizer.state[p]["exp_avg_sq"], second_optimizer.state[q]["exp_avg_sq"])
    assert [group["lr"] for group in second_optimizer.param_groups] == [0.01 / 8, 0.003 / 8]


def test_state_has_the_names_that_others_read():
    p = parameter(2, 3)
    ours = AdamW([p])
    set_random_gradients([p], 0)
    ours.step()
    state = ours.state_dict()["state"][0]
    assert set(state) == {"step", "exp_avg", "exp_avg_sq"}
    assert type(state["step"]) is int and state["exp_avg"].shape == state["exp_avg_sq"].shape == (2, 3)


def test_a_copied_optimizer_steps():
    p = parameter(3)
    set_random_gradients([p], 0)
    copied = copy.deepcopy(AdamW([p], lr=0.1))
    copied.step()
    assert copied.param_groups[0]["params"][0] is not p


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1e-3}, "lr is -0.001"),
        ({"lr": math.nan}, "lr is nan"),
        ({"lr": math.inf}, "lr is inf"),
        ({"betas": (1.0, 0.999)}, r"betas is \(1.0, 0.999\)"),
        ({"betas": (0.9, -0.1)}, r"betas is \(0.9, -0.1\)"),
        ({"betas": (0.9,)}, "wanted two numbers"),
        ({"eps": -1e-6}, "eps is -1e-06"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        AdamW([parameter(2)], **options)
    with pytest.raises(ValueError, match=message):
        AdamW([{"params": [parameter(2)], **options}])


def test_a_sparse_gradient_says_what_to_do():
    embedding = torch.nn.Embedding(10, 3, sparse=True)
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match=r"\(10, 3\) has a sparse gradient.*sparse=False"):
        AdamW(embedding.parameters()).step()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64])
def test_parameters_of_low_precision_are_refused_only_where_they_learn(dtype):
    frozen = torch.nn.Parameter(torch.ones(3, dtype=dtype), requires_grad=False)
    AdamW([frozen, parameter(2)]).step()
    learning = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    learning.grad = torch.ones_like(learning)
    with pytest.raises(TypeError, match="wanted float32 or float64.*autocast"):
        AdamW([learning]).step()


# --- Clipping


def test_clipping_by_hand():
    a, b, c = parameter(1), parameter(2), parameter(5)
    a.grad, b.grad = torch.tensor([3.0]), torch.tensor([4.0, 12.0])  # norm 13; c has no gradient
    assert clip_grad_norm([a, b, c], 26.0).item() == 13
    assert a.grad.tolist() == [3.0] and b.grad.tolist() == [4.0, 12.0]
    assert clip_grad_norm(iter([a, b, c]), 6.5).item() == 13
    torch.testing.assert_close(a.grad, torch.tensor([1.5]))
    torch.testing.assert_close(b.grad, torch.tensor([2.0, 6.0]))
    assert clip_grad_norm(b, 1.0).item() == pytest.approx(math.sqrt(40), rel=1e-5)
    assert clip_grad_norm([c], 1.0).item() == 0


@pytest.mark.parametrize("max_norm", [0.5, 5.0, 13.0, 13.0000001, 100.0])
def test_clipping_equals_the_library(max_norm):
    ours, theirs = parameter(2), parameter(2)
    ours.grad, theirs.grad = torch.tensor([5.0, 12.0]), torch.tensor([5.0, 12.0])
    assert torch.equal(clip_grad_norm([ours], max_norm), torch.nn.utils.clip_grad_norm_([theirs], max_norm))
    assert torch.equal(ours.grad, theirs.grad)


def test_clipping_returns_a_norm_that_is_not_finite():
    p = parameter(2)
    p.grad = torch.tensor([1.0, math.nan])
    assert clip_grad_norm([p], 1.0).isnan()


@pytest.mark.parametrize("max_norm", [0.0, -1.0, math.nan])
def test_a_norm_that_cannot_be_reached(max_norm):
    with pytest.raises(ValueError, match="wanted a number above 0"):
        clip_grad_norm([parameter(2)], max_norm)


# --- Schedules


def test_schedules_by_hand():
    assert [constant(step, 4) for step in range(4)] == [1, 1, 1, 1]
    assert [constant(step, 4, 0.5) for step in range(4)] == [0.5, 1, 1, 1]
    assert [linear(step, 10, 0.2) for step in range(10)] == [0.5, 1, *(n / 8 for n in range(8, 0, -1))]
    assert [linear(step, 4, 0.0) for step in range(4)] == [1, 0.75, 0.5, 0.25]
    assert [linear(step, 4, 1.0) for step in range(4)] == [0.25, 0.5, 0.75, 1]
    assert linear(0, 1) == constant(0, 1) == 1


@pytest.mark.parametrize("schedule", SCHEDULES.values())
@pytest.mark.parametrize("total_steps", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("warmup", [0.0, 0.06, 0.1, 0.5, 1.0])
def test_no_step_has_a_rate_of_zero_or_above_one(schedule, total_steps, warmup):
    factors = [schedule(step, total_steps, warmup) for step in range(total_steps)]
    assert all(0 < factor <= 1 for factor in factors) and max(factors) == 1


@pytest.mark.parametrize("schedule", SCHEDULES.values())
@pytest.mark.parametrize(
    ("arguments", "message"),
    [((10, 10), "step 10 of 10, wanted 0 to 9"), ((-1, 10), "step -1"), ((0, 10, 1.5), "warmup is 1.5")],
)
def test_schedules_refuse_what_they_do_not_know(schedule, arguments, message):
    with pytest.raises(ValueError, match=message):
        schedule(*arguments)


def test_rates_follow_each_groups_own():
    ours = AdamW([{"params": [parameter(1)]}, {"params": [parameter(1)], "lr": 0.5}], lr=0.1)
    for factor, expected in [(0.5, [0.05, 0.25]), (1.0, [0.1, 0.5]), (0.25, [0.025, 0.125])]:
        set_learning_rate(ours, factor)
        assert [group["lr"] for group in ours.param_groups] == expected
    assert [group["initial_lr"] for group in ours.param_groups] == [0.1, 0.5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [1e-3, 1.9999e-6, 1e-6, 1e-8, 0.0])
def test_raising_vanishing_squares_changes_no_bit(eps, dtype):
    torch.manual_seed(0)
    floor = vanishing(eps, dtype)
    around = floor * 4 * torch.rand(10_000, dtype=dtype)
    squares = torch.cat([torch.zeros(10), torch.tensor([floor]), around, torch.rand(10_000, dtype=dtype) ** 40])
    assert torch.equal(squares.clamp(min=floor).sqrt() + eps, squares.sqrt() + eps)
    if eps > 0:
        assert (around < floor).any() and (around > floor).any()
        p, m, v = torch.zeros(3, len(squares), dtype=dtype)
        options = {"t": 1, "lr": 1.0, "betas": (0.5, 0.0), "weight_decay": 0.0, "correct_bias": False}
        adamw_step(p, squares.sqrt(), m, v, eps=eps, **options)
        torch.testing.assert_close(p, -m / (v.sqrt() + eps), rtol=1e-6, atol=0)
