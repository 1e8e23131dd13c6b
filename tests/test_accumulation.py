"""Several batches to a step: the gradient worked out by hand, a run's end the same after a stop, what is left out.

Gradient accumulation as everywhere: the mean of the batches' gradients.
"""

import numpy as np
import pytest
import torch
from test_training import Bench, assert_stop_changes_nothing

from accumulation import Accumulation
from errors import InputError
from model import MultitaskBERT
from multitask_classifier import get_args
from optimizer import AdamW
from sampling import make_schedule
from schedules import SCHEDULES as LEARNING_RATES
from schedules import set_learning_rate


@pytest.fixture
def bench(tmp_path, tiny, tiny_tokenizer):
    def make(**choices):
        return Bench(tmp_path, tiny, tiny_tokenizer, **{"accumulate": 2, "schedule": "even", **choices})

    return make


def test_the_mean_by_hand():
    used, half, never = (torch.nn.Parameter(torch.zeros(1)) for _ in range(3))
    accumulation = Accumulation([used, half, never])
    for gradients in ((1.0, None), (3.0, 4.0)):
        used.grad, half.grad = (None if g is None else torch.tensor([g]) for g in gradients)
        accumulation.add()
        assert used.grad is None and half.grad is None
    assert accumulation.put()
    assert (used.grad.item(), half.grad.item(), never.grad) == (2.0, 2.0, None)
    used.grad, half.grad = torch.tensor([7.0]), None
    accumulation.add()
    assert accumulation.put()
    assert used.grad.item() == 7.0 and half.grad is None  # nothing of what came before
    assert not accumulation.put()


@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_a_step_is_the_mean_of_its_batches(bench, clip):
    """9 batches an epoch, 4 to a step: steps of 4, 4 and 1. Compared with AdamW driven by hand."""
    made = bench(accumulate=4, epochs=1, dropout=False, clip=clip)
    other = made.trainer(folder="by hand")
    parameters = list(other.learning.values())
    optimizer, steps = AdamW(parameters, lr=2e-3), other.schedule.epoch(0)
    other.model.train()
    for start in range(0, len(steps), 4):
        group = steps[start : start + 4]
        losses = [
            batch.loss(other.model.outputs(batch), batch.labels)
            for batch in (other.data[task].batch(rows) for task, rows in group)
        ]
        optimizer.zero_grad()
        (sum(losses) / len(losses)).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        rate = LEARNING_RATES["linear"](start + len(group) - 1, len(steps), 0.2)
        set_learning_rate(optimizer, rate)
        optimizer.step()
    trainer, _ = made.train()
    for name, p in trainer.learning.items():
        torch.testing.assert_close(p, other.learning[name], rtol=1e-3, atol=2e-6, msg=name)


@pytest.mark.parametrize(
    "where, number, average", [("loss", 1, 0.5), ("loss", 4, 0.0), ("loss", 17, 0.5), ("evaluate", 2, 0.0)]
)
def test_stopped_it_ends_as_if_it_had_not(bench, where, number, average):
    assert_stop_changes_nothing(bench(average=average), where, number)


@pytest.mark.parametrize("broken", [{1}, {2}, {1, 2}, {9}])
def test_a_batch_that_is_left_out_is_not_counted(bench, broken):
    """Its step is the others' mean; there is none where all are left out."""
    made, steps = bench(epochs=1, non_finite="skip"), []

    def spoil(trainer, count, batch):
        real = type(trainer.gradients).loss.__get__(trainer.gradients)
        wrong = float("nan") if count in broken else 1.0
        trainer.gradients.loss = lambda part, outputs, labels: real(part, outputs, labels) * wrong

    trainer = made.trainer(loss=spoil)
    real = trainer.optimizer.step
    trainer.optimizer.step = lambda *a, **k: steps.append(trainer.progress.step) or real(*a, **k)
    trainer.train(lambda text: None)
    groups = [{1, 2}, {3, 4}, {5, 6}, {7, 8}, {9}]
    assert len(steps) == sum(not group <= broken for group in groups)
    assert trainer.progress.history[-1]["skipped"] == len(broken)


def test_what_is_kept_is_what_the_average_says(bench):
    trainer, _ = bench(average=0.9).train()
    kept = MultitaskBERT.from_pretrained(trainer.run.best).state_dict()
    assert any(not torch.equal(kept[name], p) for name, p in trainer.learning.items())


def test_even_places_every_task_at_even_distances():
    steps = make_schedule("even", {"a": 60, "b": 30, "c": 10}, 10, 2, 1).epoch(1)
    assert "".join(task for task, _ in steps) == "abaabcaaba"
    rows = np.concatenate([rows for task, rows in steps if task == "a"])
    assert sorted(rows) == list(range(60))


@pytest.mark.parametrize("value", ["0", "-1", "10001"])
def test_of_no_batch_there_is_no_step(value):
    with pytest.raises(InputError, match=f"--accumulate is {value}, wanted 1 to 10000"):
        get_args(["--option", "finetune", "--accumulate", value])
