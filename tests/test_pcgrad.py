"""PCGrad: the paper's algorithm written out on whole vectors, steps that don't conflict, resumed runs, options.

Yu et al. 2020, "Gradient Surgery for Multi-Task Learning" (arXiv 2001.06782), algorithm 1.
"""

import numpy as np
import pytest
import torch
from test_training import Bench, assert_stop_changes_nothing

from accumulation import Accumulation
from errors import InputError
from options import get_args
from pcgrad import PCGrad, projected

TASKS = ("a", "b", "c")


def algorithm_1(gradients, rng):
    """The paper's, vector by vector; `other` runs over all, so that it draws what ours draws."""
    result = []
    for i, own in enumerate(gradients):
        own = own.copy()
        for j in rng.permutation(len(gradients)):
            if j != i and own @ gradients[j] < 0:
                own -= own @ gradients[j] / (gradients[j] @ gradients[j]) * gradients[j]
        result.append(own)
    return sum(result)


def step_of(kind, gradients, seed=3, step=5):
    """The gradient that a step gets: task -> (of the shared parameter, of the task's own)."""
    shared = torch.nn.Parameter(torch.zeros(len(gradients[0][1])))
    heads = {task: torch.nn.Parameter(torch.zeros(1)) for task in TASKS}
    made = kind([shared, *heads.values()], seed)
    for i, (task, gradient) in enumerate(gradients):
        shared.grad, heads[task].grad = torch.tensor(gradient).float(), torch.tensor([i + 1.0])
        made.add(task)
    assert made.put(step)
    return shared.grad, {task: None if p.grad is None else p.grad.item() for task, p in heads.items()}


@pytest.mark.parametrize("seed", range(20))
def test_a_step_is_the_papers(seed):
    vectors = list(np.random.default_rng(seed).normal(size=(3, 4)))
    found, heads = step_of(PCGrad, list(zip(TASKS, vectors, strict=True)), seed)
    wanted = algorithm_1(vectors, np.random.default_rng([seed, 5])) / 3
    torch.testing.assert_close(found, torch.tensor(wanted).float(), rtol=1e-4, atol=1e-5)
    assert heads == {"a": pytest.approx(1 / 3), "b": pytest.approx(2 / 3), "c": pytest.approx(1)}  # a head's own


def test_the_order_matters_and_is_drawn():
    """Of three gradients that all conflict; so a step's number and the seed say it, and a stop changes nothing."""
    vectors = [np.array(v) for v in ([1.0, 0.0], [-0.5, 1.0], [-0.2, -1.0])]
    gradients = list(zip(TASKS, vectors, strict=True))
    found = {tuple(step_of(PCGrad, gradients, step=step)[0].tolist()) for step in range(30)}
    assert len(found) > 1
    assert torch.equal(step_of(PCGrad, gradients)[0], step_of(PCGrad, gradients)[0])


def test_two_by_hand():
    """(1, 0) and (-1, 1): the first loses its part along the second, (.5, .5), the second the first's, (0, 1)."""
    found, _ = step_of(PCGrad, [("a", [1.0, 0.0]), ("b", [-1.0, 1.0])])
    torch.testing.assert_close(found, torch.tensor([0.5, 1.5]) / 2)


@pytest.mark.parametrize(
    "gradients",
    [
        [("a", [1.0, 0.0]), ("b", [0.5, 1.0])],  # no conflict
        [("a", [1.0, 0.0]), ("a", [-1.0, 1.0])],  # one task's batches don't conflict with each other
        [("b", [1.0, -2.0])],
        [("a", [1.0, 0.0]), ("b", [0.0, 0.0])],
    ],
)
def test_without_a_conflict_it_is_the_mean(gradients):
    (found, heads), (wanted, others) = (step_of(kind, gradients) for kind in (PCGrad, Accumulation))
    torch.testing.assert_close(found, wanted)
    assert heads == others


def test_two_batches_of_a_task_are_one_gradient():
    """(3, 0) from two batches, (-1, 1): a third of (1.5, 1.5) and (0, 1), where the mean is of three batches."""
    found, _ = step_of(PCGrad, [("a", [1.0, 0.0]), ("b", [-1.0, 1.0]), ("a", [2.0, 0.0])])
    torch.testing.assert_close(found, torch.tensor([1.5, 2.5]) / 3)


def test_what_no_two_share():
    a, b, never = (torch.nn.Parameter(torch.zeros(1)) for _ in range(3))
    made = PCGrad([a, b, never])
    for task, p in (("a", a), ("b", b)):
        p.grad = torch.tensor([2.0])
        made.add(task)
    assert made.put(1)
    assert (a.grad.item(), b.grad.item(), never.grad) == (1.0, 1.0, None)


@pytest.mark.parametrize("wrong", [float("inf"), float("nan"), 1e30])
@pytest.mark.filterwarnings("error")
def test_what_is_not_finite_is_left_for_others_to_find(wrong):
    """Without a warning; 1e30 squared is more than a float32 holds, and the mean is what there is."""
    gradients = [("a", [wrong, 0.0]), ("b", [-wrong, 1.0])]
    (found, _), (wanted, _) = (step_of(kind, gradients) for kind in (PCGrad, Accumulation))
    torch.testing.assert_close(found, wanted, equal_nan=True)


def test_projected_leaves_nothing_against_the_other():
    for seed in range(20):
        vectors = np.random.default_rng(seed).normal(size=(2, 5))
        total = projected(vectors @ vectors.T, np.random.default_rng(seed)) @ vectors
        assert (vectors @ total > -1e-9).all()  # no task is made worse, to first order


@pytest.mark.parametrize("where, number", [("loss", 1), ("loss", 4), ("loss", 17), ("evaluate", 2)])
def test_stopped_it_ends_as_if_it_had_not(tmp_path, tiny, tiny_tokenizer, where, number):
    bench = Bench(tmp_path, tiny, tiny_tokenizer, accumulate=3, schedule="even", pcgrad=True)
    assert_stop_changes_nothing(bench, where, number)


def test_training_feels_it(tmp_path, tiny, tiny_tokenizer):
    ends = []
    for pcgrad in (False, True):
        bench = Bench(tmp_path, tiny, tiny_tokenizer, accumulate=3, schedule="even", pcgrad=pcgrad)
        trainer, _ = bench.train(folder=str(pcgrad))
        ends.append(torch.cat([p.detach().flatten() for p in trainer.learning.values()]))
    assert not torch.equal(*ends)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--accumulate 3 --tasks sst",
        "--accumulate 3 --schedule sequential",
        "--accumulate 3 --schedule separate",
        "--accumulate 3 --option pretrain",
    ],
)
def test_where_there_is_nothing_to_compare(words):
    given = ["--option", "finetune"] if "pretrain" not in words else []
    with pytest.raises(InputError, match="--pcgrad: it compares what several tasks of one step want"):
        get_args([*given, "--pcgrad", *words.split()])
