"""Ordered classes: losses and decisions by hand, against loops that follow the papers, and far out.

CORAL after Cao et al. 2020 (arXiv 1901.07884), CORN after Shi et al. 2021 (arXiv 2111.08851), the squared earth mover's
distance after Hou et al. 2016 (arXiv 1611.05916).
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ordinal import (
    THRESHOLD_LOSSES,
    CoralOutput,
    class_scores,
    coral,
    corn,
    decide,
    log_probabilities,
    probabilities,
    squared_emd,
)

LOG_3 = math.log(3)  # sigmoid of it is 3/4
REPEATABLE = settings(deadline=None, derandomize=True)


# --- losses ------------------------------------------------------------------------------------------------------


def test_coral_by_hand():
    # A 1 of 0..2 is above the first threshold and not above the second: log 4/3 each. A 2 is above both: log 2, log 4.
    loss = coral(torch.tensor([[LOG_3, -LOG_3], [0.0, -LOG_3]]), torch.tensor([1, 2]))
    assert loss.item() == pytest.approx((2 * math.log(4 / 3) + math.log(2) + math.log(4)) / 2, abs=1e-6)


def test_corn_by_hand():
    # A 0 is asked for the first threshold alone, a 1 for two, a 3 for all three: six answers in three rows.
    logits = torch.tensor([[LOG_3, 9.0, -9.0], [0.0, LOG_3, 7.0], [LOG_3, 0.0, LOG_3]])
    costs = [math.log(4), math.log(2) + math.log(4), 2 * math.log(4 / 3) + math.log(2)]
    assert corn(logits, torch.tensor([0, 1, 3])).item() == pytest.approx(sum(costs) / 6, abs=1e-6)


def test_squared_emd_by_hand():
    # P(class <= k): 1/3, 2/3, 1 for a 0, whose is 1, 1, 1; and 1/2, 3/4, 1 for a 1, whose is 0, 1, 1.
    loss = squared_emd(torch.tensor([[0.0, 0.0, 0.0], [math.log(2), 0.0, 0.0]]), torch.tensor([0, 1]))
    assert loss.item() == pytest.approx((4 / 9 + 1 / 9 + 1 / 4 + 1 / 16) / 2, abs=1e-6)


def rows(count=20, classes=5, seed=0, thresholds=True):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, classes - thresholds, generator=generator)
    return logits, torch.randint(classes, (count,), generator=generator)


def test_coral_is_a_sum_over_thresholds():
    logits, labels = rows()
    total = 0.0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        for k, logit in enumerate(row):
            p = 1 / (1 + math.exp(-logit))
            total -= math.log(p) if label > k else math.log(1 - p)
    assert coral(logits, labels).item() == pytest.approx(total / 20, rel=1e-5)


def test_corn_is_a_loss_over_the_papers_subsets():
    """Of each threshold's subset, the rows that are above the one before; all of them for the first."""
    logits, labels = rows()
    total, count = 0.0, 0
    for k in range(4):
        subset = [i for i in range(20) if k == 0 or labels[i] > k - 1]
        for i in subset:
            p = 1 / (1 + math.exp(-logits[i, k].item()))
            total -= math.log(p) if labels[i] > k else math.log(1 - p)
        count += len(subset)
    assert corn(logits, labels).item() == pytest.approx(total / count, rel=1e-5)


def test_squared_emd_is_a_double_loop():
    logits, labels = rows(thresholds=False)
    total = 0.0
    for row, label in zip(logits.softmax(dim=1).tolist(), labels.tolist(), strict=True):
        for k in range(5):
            total += (sum(row[: k + 1]) - (1 if label <= k else 0)) ** 2
    assert squared_emd(logits, labels).item() == pytest.approx(total / 20, rel=1e-5)


def test_squared_emd_counts_how_far_off_the_mass_is():
    """All of it one class off costs 1, two classes off 2: cross entropy would not tell them apart."""
    logits = 100 * torch.eye(5)
    assert [round(squared_emd(logits[[k]], torch.tensor([0])).item(), 4) for k in range(5)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("loss", [coral, squared_emd])
def test_means_are_means_over_rows(loss):
    logits, labels = rows(thresholds=loss is coral)
    single = [loss(logits[[i]], labels[[i]]) for i in range(20)]
    torch.testing.assert_close(loss(logits, labels), torch.stack(single).mean(dim=0))


def test_corn_is_none():
    logits, labels = rows()
    single = torch.stack([corn(logits[[i]], labels[[i]]) for i in range(20)])
    assert abs(corn(logits, labels) - single.mean(dim=0)) > 1e-3


@pytest.mark.parametrize("loss", [coral, corn, squared_emd])
def test_their_gradients(loss):
    logits, labels = rows(6, thresholds=loss is not squared_emd)
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), logits.double().requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("loss", [coral, corn, squared_emd])
def test_far_out_they_stay_finite(loss, dtype):
    for sign in (1, -1):
        columns = 4 + (loss is squared_emd)
        logits = torch.full((5, columns), sign * 1e4, dtype=dtype)
        logits[:, ::2] *= -1
        logits.requires_grad_()
        value = loss(logits, torch.arange(5))
        value.backward()
        assert value.isfinite() and value > 0 and logits.grad.isfinite().all()


# --- decisions ---------------------------------------------------------------------------------------------------


def logits_of(*probabilities):
    return torch.logit(torch.tensor([probabilities], dtype=torch.float64)).float()


def test_decisions_by_hand():
    # CORAL's are P(class > k); CORN's are conditional, so 0.9 * 0.6 passes one half, and 0.9 * 0.55 does not.
    assert decide("coral", logits_of(0.9, 0.55, 0.3)).tolist() == [2]
    assert decide("coral", logits_of(0.4, 0.3, 0.2)).tolist() == [0]
    assert decide("coral", logits_of(0.9, 0.8, 0.7)).tolist() == [3]
    assert decide("corn", logits_of(0.9, 0.6, 0.4)).tolist() == [2]
    assert decide("corn", logits_of(0.9, 0.55, 0.9)).tolist() == [1]
    assert decide("corn", logits_of(0.4, 0.9, 0.9)).tolist() == [0]
    assert decide("corn", logits_of(0.99, 0.98, 0.97)).tolist() == [3]


@pytest.mark.parametrize("loss", THRESHOLD_LOSSES)
def test_exactly_one_half_is_not_passed(loss):
    assert decide(loss, torch.zeros(1, 4)).tolist() == [0]


def test_corals_decision_is_a_count_even_where_thresholds_are_out_of_order():
    assert decide("coral", logits_of(0.4, 0.6, 0.3)).tolist() == [1]
    assert decide("coral", logits_of(0.2, 0.3, 0.6, 0.7)).tolist() == [2]


@REPEATABLE
@given(
    st.sampled_from(THRESHOLD_LOSSES), st.integers(1, 5), st.integers(0, 10**6), st.sampled_from([0.1, 1.0, 10.0, 1e3])
)
def test_the_largest_class_score_is_the_number_of_thresholds_passed(loss, thresholds, seed, scale):
    logits = scale * torch.randn(30, thresholds, generator=torch.Generator().manual_seed(seed))
    above = torch.sigmoid(logits.double())
    above = above.cumprod(dim=1) if loss == "corn" else above
    scores = class_scores(loss, logits)
    assert scores.shape == (30, thresholds + 1) and not scores.isnan().any()
    clear = ((above - 0.5).abs() > 1e-6).all(dim=1)  # not where rounding decides
    wanted = (above > 0.5).sum(dim=1)
    assert torch.equal(scores.argmax(dim=1)[clear], wanted[clear])
    assert torch.equal(decide(loss, logits), scores.argmax(dim=1))


@pytest.mark.parametrize("loss", THRESHOLD_LOSSES)
def test_probabilities_fall_with_the_threshold_and_add_up_to_one(loss):
    logits, _ = rows()
    above, below = (x.exp() for x in log_probabilities(loss, logits))
    torch.testing.assert_close(above + below, torch.ones(20, 4))
    assert (above[:, 1:] <= above[:, :-1]).all()


def test_corns_probabilities_are_products_of_conditional_ones():
    logits, _ = rows()
    above, _ = log_probabilities("corn", logits)
    conditional = torch.sigmoid(logits)
    for k in range(4):
        torch.testing.assert_close(above[:, k].exp(), conditional[:, : k + 1].prod(dim=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("loss", THRESHOLD_LOSSES)
def test_decisions_far_out(loss, dtype):
    far = torch.tensor([[1.0, 1, 1, 1], [1, 1, -1, -1], [-1, -1, -1, -1], [1, 1, 1, -1]], dtype=dtype)
    for scale in (30, 100, 1e4):
        assert decide(loss, far * scale).tolist() == [4, 2, 0, 3]


# --- CORAL's output map ------------------------------------------------------------------------------------------


def test_at_the_start_a_score_of_zero_makes_all_classes_equally_likely():
    above = torch.sigmoid(CoralOutput(3, 5)(torch.zeros(1, 3)))
    torch.testing.assert_close(above, torch.tensor([[0.8, 0.6, 0.4, 0.2]]))


def test_coral_shares_its_weights_between_thresholds():
    torch.manual_seed(0)
    output = CoralOutput(6, 5)
    logits = output(3 * torch.randn(50, 6))
    torch.testing.assert_close(logits - logits[:, :1], (output.thresholds - output.thresholds[0]).expand(50, 4))
    assert sum(p.numel() for p in output.parameters()) == 6 + 4
    assert (logits[:, 1:] < logits[:, :-1]).all()


def test_training_puts_corals_thresholds_in_order():
    """Rank consistency (their theorem 1): where the loss is least, the thresholds fall, wherever they began."""
    torch.manual_seed(0)
    output = CoralOutput(2, 5)
    output.thresholds.data = torch.tensor([-2.0, -1.0, 1.0, 2.0])
    labels = torch.arange(5).repeat(8)
    vectors = torch.stack([labels + torch.randn(40), torch.randn(40)], dim=1)  # noisy, so that no score separates them
    optimizer = torch.optim.LBFGS(output.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = coral(output(vectors), labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert closure() < 2.0
    assert (output.thresholds.diff() < 0).all()
    assert all(p.grad.abs().max() < 1e-3 for p in output.parameters())


def test_probabilities_of_classes_by_hand():
    # Above the first threshold 3/4, above the second 1/2: with corn one half of those that are above the first.
    logits = torch.tensor([[LOG_3, 0.0]])
    assert probabilities("coral", logits).tolist() == [pytest.approx([1 / 4, 1 / 4, 1 / 2])]
    assert probabilities("corn", logits).tolist() == [pytest.approx([1 / 4, 3 / 8, 3 / 8])]


@pytest.mark.parametrize("loss", THRESHOLD_LOSSES)
def test_probabilities_sum_to_one_and_have_the_decided_class_as_their_median(loss):
    logits, _ = rows(count=200)
    found = probabilities(loss, logits.double())
    assert (found >= 0).all() and torch.allclose(found.sum(dim=1), torch.ones(200, dtype=torch.float64))
    assert torch.equal((found.cumsum(dim=1) < 0.5).sum(dim=1), decide(loss, logits))
