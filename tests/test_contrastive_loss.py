"""The contrastive loss beside its formula written as loops, and beside numbers worked out by hand."""

import math

import pytest
import torch

from contrastive_loss import Objective, contrastive_loss
from errors import InputError

ALONE = torch.arange(100)


def literal(vectors, sentences, temperature, weight):
    """Mean over i of -log(e^(a_i p_i / t) / sum over candidates that are no other copy of mine), one row at a time."""
    unit = [[v / v.norm() for v in row] for row in vectors.double()]
    n, views = vectors.shape[:2]
    losses = []
    for i in range(n):
        mine = {int(sentences[i, 0]), int(sentences[i, 1])}
        own = float(unit[i][0] @ unit[i][1]) / temperature
        total = 0.0
        for j in range(n):
            if j == i or int(sentences[j, 1]) not in mine:
                total += math.exp(float(unit[i][0] @ unit[j][1]) / temperature)
            if views == 3 and int(sentences[j, 2]) not in mine:
                raised = weight if i == j else 0.0
                total += math.exp(float(unit[i][0] @ unit[j][2]) / temperature + raised)
        losses.append(math.log(total) - own)
    return sum(losses) / n


@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize(("temperature", "weight"), [(0.05, 0.0), (0.7, 0.0), (0.3, 1.5)])
@pytest.mark.parametrize("names", ["all differ", "some are equal"])
def test_it_is_the_formula(views, temperature, weight, names):
    torch.manual_seed(views)
    vectors = torch.randn(6, views, 5) * 3
    sentences = torch.arange(6 * views).view(6, views)
    if names == "some are equal":
        sentences[4, 0] = sentences[1, 0]  # an anchor twice
        sentences[2, 1] = sentences[0, 1]  # a positive twice
        sentences[3, 1] = sentences[5, 0]  # one row's positive is another's anchor
        sentences[:, -1][5] = sentences[0, 0]  # the last row's last sentence is the first row's anchor
    found = contrastive_loss(vectors, sentences, Objective(temperature, weight))
    assert float(found) == pytest.approx(literal(vectors, sentences, temperature, weight), abs=1e-5)


def test_pairs_by_hand():
    """Two rows whose pairs agree entirely and whose rows are at right angles: log(e + 1) - 1."""
    vectors = torch.tensor([[[2.0, 0.0], [5.0, 0.0]], [[0.0, 1.0], [0.0, 3.0]]])
    found = contrastive_loss(vectors, ALONE[:4].view(2, 2), Objective(1.0))
    assert float(found) == pytest.approx(math.log(math.e + 1) - 1, abs=1e-6)


def test_a_hard_negative_and_its_weight_by_hand():
    """Logits 1, 0, own hard negative 0 + w, the other's 1; the weight is added to the logit, and to one's own alone."""
    vectors = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]])
    for weight in (0.0, 2.0):
        found = contrastive_loss(vectors, ALONE[:6].view(2, 3), Objective(1.0, weight))
        wanted = math.log(2 * math.e + 1 + math.exp(weight)) - 1
        assert float(found) == pytest.approx(wanted, abs=1e-6)


def test_an_equal_sentence_is_no_negative():
    """Row 1 says what row 0 says: neither pushes the other away, whatever its vector is, and row 2 minds both."""
    torch.manual_seed(0)
    vectors = torch.randn(3, 2, 4, requires_grad=True)
    sentences = torch.tensor([[7, 7], [7, 7], [8, 8]])
    contrastive_loss(vectors, sentences, Objective()).backward()
    unit = torch.nn.functional.normalize(vectors.detach(), dim=-1)
    logits = unit[:, 0] @ unit[:, 1].T / 0.05
    wanted = (
        torch.logsumexp(logits[0, [0, 2]], dim=0)
        + torch.logsumexp(logits[1, [1, 2]], dim=0)
        + torch.logsumexp(logits[2], dim=0)
        - logits.diagonal().sum()
    ) / 3
    assert float(contrastive_loss(vectors.detach(), sentences, Objective())) == pytest.approx(float(wanted), abs=1e-5)
    assert torch.isfinite(vectors.grad).all()


def test_a_row_whose_hard_negative_is_its_own_positive_has_none():
    vectors = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(1), requires_grad=True)
    loss = contrastive_loss(vectors, torch.tensor([[0, 1, 1]]), Objective(0.05, 9.0))
    loss.backward()
    assert loss.item() == 0.0 and not vectors.grad.any()


def test_scale_does_not_matter_and_a_vector_of_zeros_is_no_nan():
    torch.manual_seed(0)
    vectors, names = torch.randn(4, 2, 3), ALONE[:8].view(4, 2)
    one, other = (contrastive_loss(v, names, Objective()) for v in (vectors, vectors * 1000))
    torch.testing.assert_close(one, other)
    vectors[0, 0] = 0
    assert torch.isfinite(contrastive_loss(vectors, names, Objective()))


@pytest.mark.parametrize("shape", [(4, 1, 3), (4, 4, 3), (4, 3)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match="wanted"):
        contrastive_loss(torch.zeros(shape), torch.zeros(shape[:2], dtype=torch.long), Objective())


@pytest.mark.parametrize(("values", "named"), [((0.0, 0.0), "temperature"), ((0.1, math.inf), "hard_negative_weight")])
def test_impossible_objectives_are_refused(values, named):
    with pytest.raises(InputError, match=f"--{named} is .*wanted a number"):
        Objective(*values)
