"""The average of the weights: worked out by hand, judged and kept in a run, and the same after a stop.

Follows averaging.py (Polyak and Juditsky 1992).
"""

import pytest
import torch
from test_training import Bench, assert_stop_changes_nothing

from averaging import Average
from errors import InputError
from model import MultitaskBERT
from training import Stopped


@pytest.fixture
def bench(tmp_path, tiny, tiny_tokenizer):
    return Bench(tmp_path, tiny, tiny_tokenizer, average=0.5)


def test_worked_out_by_hand():
    p = torch.nn.Parameter(torch.tensor([1.0]))
    average = Average({"p": p}, 0.25)
    for step, value in enumerate([2.0, 5.0], start=1):
        p.data.fill_(value)
        average.update(step)
    # Of the first step the average keeps 2 / 11, of the second 3 / 12 = 0.25.
    first = 2 / 11 * 1.0 + 9 / 11 * 2.0
    assert average.weights["p"].item() == pytest.approx(0.25 * first + 0.75 * 5.0)
    with average.in_place():
        assert p.item() == average.weights["p"].item()
    assert p.item() == 5.0


def test_the_models_own_weights_come_back_whatever_happens():
    p = torch.nn.Parameter(torch.randn(3))
    average, own = Average({"p": p}, 0.9), p.detach().clone()
    average.weights["p"] += 1
    with pytest.raises(KeyError), average.in_place():
        raise KeyError
    assert torch.equal(p, own)


def test_a_batch_that_is_left_out_leaves_the_average_as_it_is(tmp_path, tiny, tiny_tokenizer):
    bench = Bench(tmp_path, tiny, tiny_tokenizer, average=0.5, non_finite="skip")
    averages = []

    def broken(trainer, count, batch):
        averages.append({name: tensor.clone() for name, tensor in trainer.average.weights.items()})
        if count == 1:
            trainer.learning["bert.embeddings.word_embeddings.weight"].register_hook(
                lambda gradient: gradient * (torch.nan if len(averages) == 3 else 1)
            )

    trainer, _ = bench.train(loss=broken)
    assert trainer.progress.skipped == 1
    moved = [any(not torch.equal(a[n], b[n]) for n in a) for a, b in zip(averages, averages[1:], strict=False)]
    assert moved[:4] == [True, True, False, True]


def test_the_average_is_judged_and_kept_and_training_goes_on_without_it(bench):
    judged, plain = [], Bench(bench.folder, bench.tiny, bench.tokenizer)

    def evaluate(trainer, number):
        judged.append({name: p.detach().clone() for name, p in trainer.learning.items()})
        return float(number), {}, ""

    trainer, _ = bench.train(evaluate=evaluate)
    kept = MultitaskBERT.from_pretrained(trainer.run.best).state_dict()
    for name in trainer.learning:
        assert torch.equal(kept[name], judged[-1][name]) and torch.equal(kept[name], trainer.average.weights[name])
    other, _ = plain.train(folder="plain", evaluate=lambda trainer, number: (float(number), {}, ""))
    changed = 0
    for name, p in other.learning.items():
        assert torch.equal(p, trainer.learning[name])
        changed += not torch.equal(p, kept[name])
    assert changed > 10


@pytest.mark.parametrize("where, number", [("loss", 1), ("loss", 5), ("loss", 18), ("evaluate", 2)])
def test_stopped_it_ends_as_if_it_had_not(bench, where, number):
    assert_stop_changes_nothing(bench, where, number)


def test_a_checkpoint_without_the_average_is_refused(bench):
    def stop(trainer, count, *_):
        trainer.interrupted = count == 5

    with pytest.raises(Stopped):
        Bench(bench.folder, bench.tiny, bench.tokenizer).train(loss=stop)
    with pytest.raises(InputError, match=r"average\.\S+ is missing: it belongs to another run"):
        bench.train()
