"""Losses: values worked out by hand, torch's and scipy's, and batches in which a loss has no meaning.

Follows losses.py's promises; the correlation is compared with scipy.stats.pearsonr.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr

from losses import LOSSES, binary_cross_entropy, cross_entropy, negative_pearson
from tasks import TASKS

# The same examples each time, and a busy machine is no failure.
REPEATABLE = settings(deadline=None, derandomize=True)


def test_every_task_names_a_loss_that_exists():
    assert {task.loss for task in TASKS.values()} <= set(LOSSES)


def test_cross_entropy_by_hand():
    # Row 1: log(e^0 + e^0 + e^0) - 0 = log 3. Row 2: log(1 + 1 + 2) - log 2 = log 2.
    logits = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, math.log(2)]])
    loss = cross_entropy(logits, torch.tensor([1, 2]))
    assert loss.item() == pytest.approx((math.log(3) + math.log(2)) / 2, abs=1e-6)


def test_binary_cross_entropy_by_hand():
    # sigmoid(log 3) = 3/4: a label of 1 costs log 4/3, a label of 0 costs log 4.
    logits = torch.tensor([math.log(3), math.log(3), 0.0])
    loss = binary_cross_entropy(logits, torch.tensor([1, 0, 1]))
    assert loss.item() == pytest.approx((math.log(4 / 3) + math.log(4) + math.log(2)) / 3, abs=1e-6)


def test_both_cross_entropies_against_probabilities():
    torch.manual_seed(0)
    logits, classes = 3 * torch.randn(20, 5), torch.randint(5, (20,))
    wanted = -torch.softmax(logits, dim=1)[torch.arange(20), classes].log().mean()
    torch.testing.assert_close(cross_entropy(logits, classes), wanted)
    logit, label = 3 * torch.randn(20), torch.randint(2, (20,))
    wanted = torch.nn.functional.binary_cross_entropy(torch.sigmoid(logit), label.float())
    for labels in (label, label.float(), label.bool()):
        torch.testing.assert_close(binary_cross_entropy(logit, labels), wanted)


@pytest.mark.parametrize("logit", [1e4, -1e4])
def test_cross_entropies_stay_finite_far_out(logit):
    x = torch.tensor([logit], requires_grad=True)
    loss = binary_cross_entropy(x, torch.tensor([0.0])) + cross_entropy(torch.stack([x, -x], dim=1), torch.tensor([1]))
    loss.backward()
    assert loss.isfinite() and x.grad.isfinite().all()


def test_negative_pearson_by_hand():
    # Deviations (-1, 0, 1) and (-2, 1, 1): -(2 + 0 + 1) / sqrt(2 * 6) = -sqrt(3) / 2.
    loss = negative_pearson(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 3.0, 3.0]))
    assert loss.item() == pytest.approx(-math.sqrt(3) / 2, abs=1e-6)


@REPEATABLE
@given(st.integers(2, 50), st.integers(0, 10**6), st.sampled_from([1e-2, 1.0, 100.0]), st.sampled_from([0.0, 5.0]))
def test_negative_pearson_is_scipys(count, seed, scale, offset):
    generator = torch.Generator().manual_seed(seed)
    scores, labels = torch.randn(2, count, generator=generator)
    scores = scores * scale + offset
    wanted = -pearsonr(scores.double().numpy(), labels.double().numpy()).statistic
    assert negative_pearson(scores, labels).item() == pytest.approx(wanted, abs=1e-3 if offset > scale else 1e-5)


def test_negative_pearson_takes_whole_number_labels():
    scores = torch.tensor([0.5, 2.0, 1.0])
    assert negative_pearson(scores, torch.tensor([0, 5, 3])) == negative_pearson(scores, torch.tensor([0.0, 5.0, 3.0]))


def test_the_gradient_of_negative_pearson():
    torch.manual_seed(0)
    scores, labels = torch.randn(2, 6, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: negative_pearson(x, labels), scores.requires_grad_())


def test_lowering_negative_pearson_raises_the_correlation():
    scores = torch.tensor([0.3, -0.2, 0.1, 0.0], requires_grad=True)
    labels = torch.tensor([0.0, 1.0, 2.0, 5.0])
    for _ in range(100):
        negative_pearson(scores, labels).backward()
        scores.data -= 0.1 * scores.grad
        scores.grad = None
    assert pearsonr(scores.detach(), labels).statistic > 0.99


@pytest.mark.parametrize(
    ("scores", "labels"),
    [
        ([0.1] * 7, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 4.6]),  # 0.1 is not the mean of seven 0.1 in float32
        ([1e4] * 3, [0.0, 1.0, 2.0]),
        ([0.0] * 3, [0.0, 1.0, 2.0]),
        (list(map(float, range(11))), [0.7] * 11),  # nor 0.7 of eleven
        ([0.7] * 3, [0.7] * 3),
        ([0.7], [3.0]),
    ],
    ids=["scores", "large scores", "zero scores", "labels", "both", "batch of one"],
)
def test_where_a_side_is_constant_the_loss_and_its_gradient_are_zero(scores, labels):
    scores = torch.tensor(scores, requires_grad=True)
    loss = negative_pearson(scores, torch.tensor(labels))
    loss.backward()
    assert loss.item() == 0
    assert scores.grad.tolist() == [0.0] * len(scores)


def test_a_loss_that_is_not_a_number_is_not_hidden():
    assert negative_pearson(torch.tensor([math.nan, 1.0]), torch.tensor([0.0, 1.0])).isnan()
    assert negative_pearson(torch.tensor([math.nan, math.nan]), torch.tensor([0.0, 1.0])).isnan()


def test_softmax_twice_by_hand():
    logits = torch.tensor([[math.log(3), 0.0], [50.0, 0.0]], requires_grad=True)  # shares 3/4, 1/4 and 1, 0
    labels = torch.tensor([0, 1])  # the second row is sure, and wrong
    loss = LOSSES["softmax_twice"](logits, labels)
    wanted = (math.log(1 + math.exp(-0.5)) + math.log(1 + math.e)) / 2
    assert loss.item() == pytest.approx(wanted, rel=1e-6)
    loss.backward()
    assert logits.grad[0].abs().min() > 0.01 and logits.grad[1].abs().max() < 1e-6


def test_softmax_twice_never_falls_below_its_floor():
    sure = LOSSES["softmax_twice"](torch.eye(5) * 100, torch.arange(5))
    assert sure.item() == pytest.approx(math.log(1 + 4 / math.e), rel=1e-6) and round(sure.item(), 3) == 0.905


@pytest.mark.parametrize("name", list(LOSSES))
def test_a_batch_of_one_has_a_finite_loss(name):
    classes = {"cross_entropy": 5, "softmax_twice": 5, "squared_emd": 5, "coral": 4, "corn": 4}
    outputs = torch.randn(1, *([classes[name]] if name in classes else []), requires_grad=True)
    loss = LOSSES[name](outputs, torch.tensor([1]))
    loss.backward()
    assert loss.shape == () and loss.isfinite() and outputs.grad.isfinite().all()
