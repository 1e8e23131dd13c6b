"""R-Drop: its divergence by hand and against torch's, its gradient against the definition, and the command.

Liang et al. 2021 (arXiv 2106.14448).
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_gradients import TRAINED, make_data, make_model

from distributed import ALONE
from errors import InputError
from gradients import Gradients
from job import start
from options import get_args
from r_drop import RDrop, divergence
from tasks import PARA, SST, STS


def ids(task):
    return f"{task.name}-{task.loss}"


def gradient(kind, model, data, most=None, **choices):
    torch.manual_seed(5)
    model.zero_grad(set_to_none=True)
    parts = data.parts(np.arange(len(data)), most, model.device)
    loss = kind(model.device, model.outputs, **choices).backward(parts, [len(data)])
    return loss, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def close(found, wanted):
    torch.testing.assert_close(found[0], wanted[0], atol=1e-6, rtol=1e-5)
    assert found[1].keys() == wanted[1].keys()
    for name in wanted[1]:
        torch.testing.assert_close(found[1][name], wanted[1][name], atol=1e-5, rtol=1e-4, msg=name)


def test_binary_answers_by_hand():
    # Of logits 0 and log 3 the probabilities are 1/2 and 3/4: (3/4 - 1/2) * log 3 / 2; the second row's are the same.
    first, second = torch.tensor([0.0, 2.0]), torch.tensor([math.log(3), 2.0])
    assert divergence(PARA, first, second).item() == pytest.approx(math.log(3) / 8 / 2)


def test_classes_against_torch_s_divergence():
    first, second = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0))
    p, q = first.log_softmax(dim=1), second.log_softmax(dim=1)
    there = F.kl_div(q, p, log_target=True, reduction="batchmean")
    back = F.kl_div(p, q, log_target=True, reduction="batchmean")
    torch.testing.assert_close(divergence(SST, first, second), (there + back) / 2)


def test_numbers_between_classes_are_so_many_binary_answers():
    first, second = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    wanted = sum(divergence(PARA, a, b) for a, b in zip(first.unbind(1), second.unbind(1), strict=True))
    torch.testing.assert_close(divergence(SST.with_loss("coral"), first, second), wanted)


def test_scores_have_no_scale():
    first, second = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    wanted = 1 - np.corrcoef(first.numpy(), second.numpy())[0, 1]
    assert divergence(STS, first, 7 * second - 3).item() == pytest.approx(wanted, abs=1e-6)
    assert divergence(STS, first, 2 * first + 1).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("task", TRAINED, ids=ids)
def test_the_same_answers_are_not_apart(task):
    found = torch.randn(*task.output_shape(6), generator=torch.Generator().manual_seed(0))
    assert divergence(task, found, found.clone()).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("task", TRAINED, ids=ids)
def test_without_dropout_the_gradient_is_the_plain_one(tiny, tiny_tokenizer, task):
    model, data = make_model(tiny, dropout=False, losses={task.name: task.loss}), make_data(task, tiny_tokenizer)
    close(gradient(RDrop, model, data, alpha=3.0), gradient(Gradients, model, data))


@pytest.mark.parametrize("most", [None, 3])
@pytest.mark.parametrize("task", TRAINED, ids=ids)
def test_the_gradient_is_that_of_the_definition(tiny, tiny_tokenizer, task, most):
    """With dropout on, and in parts, each of which goes through twice before the next does."""
    model, data = make_model(tiny, dropout=True, losses={task.name: task.loss}), make_data(task, tiny_tokenizer)
    found = gradient(RDrop, model, data, most, alpha=2.0)
    torch.manual_seed(5)
    model.zero_grad(set_to_none=True)
    parts = data.parts(np.arange(len(data)), most, model.device)
    answers = [(model.outputs(part), model.outputs(part)) for part in parts]
    first, second = (torch.cat(passes) for passes in zip(*answers, strict=True))
    labels, loss_of = torch.cat([part.labels for part in parts]), parts[0].loss
    loss = (loss_of(first, labels) + loss_of(second, labels)) / 2 + 2 * divergence(data.task, first, second)
    loss.backward()
    close(found, (loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    assert divergence(data.task, first, second) > 1e-5  # or this would test nothing


def test_two_passes_without_dropout_are_refused():
    def why(*options):
        given = ["--r_drop", "1", "--hidden_dropout_prob", "0", "--model", "nowhere", *options]
        with pytest.raises(InputError) as error:
            start(get_args(given), ALONE, lambda text: None)
        return str(error.value)

    assert "both passes answer the same: say --hidden_dropout_prob 0.3" in why("--attention", "0")
    # Attention weights have dropout of their own, and so has the encoder.
    for options in ((), ("--option", "finetune", "--attention", "0"), ("--frozen_dropout", "--attention", "0")):
        assert "nowhere" in why(*options)


def test_scores_are_pulled_together_over_the_whole_batch():
    """Their distance is a correlation, so that no loss of theirs may be taken part by part."""
    kind = RDrop(torch.device("cpu"), lambda batch: batch)
    assert kind.is_mean(SimpleNamespace(loss_is_mean=True, task=SST))
    assert not kind.is_mean(SimpleNamespace(loss_is_mean=True, task=STS))
    assert not kind.is_mean(SimpleNamespace(loss_is_mean=False, task=SST))
