"""Schedules over tasks: every row as often as it should come, and any epoch found without the ones before.

The annealed shares are those of Stickland and Murray 2019 (arXiv 1902.02671).
"""

from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from errors import InputError
from sampling import SCHEDULES, make_schedule

SIZES = {"large": 23, "middle": 8, "small": 3}

every_schedule = pytest.mark.parametrize("name", SCHEDULES)


def plain(steps):
    """Steps as values that compare."""
    return [(task, rows.tolist()) for task, rows in steps]


def rows_of(schedule, task, epochs):
    """The task's rows in the order in which a whole run sees them."""
    steps = chain.from_iterable(schedule.epoch(epoch) for epoch in range(epochs))
    return [row for name, rows in steps if name == task for row in rows.tolist()]


@every_schedule
@settings(max_examples=20, deadline=None)
@given(
    sizes=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 30), min_size=1),
    batch_size=st.integers(1, 9),
    epochs=st.integers(1, 5),
    seed=st.integers(0, 2**63 - 1),
)
def test_no_row_comes_again_before_all_have_come(name, sizes, batch_size, epochs, seed):
    schedule = make_schedule(name, sizes, batch_size, epochs, seed)
    wanted = sum(-(-size // batch_size) for size in sizes.values())
    assert schedule.steps_per_epoch == wanted
    for epoch in range(epochs):
        steps = schedule.epoch(epoch)
        assert len(steps) == wanted
        assert all(1 <= len(rows) <= batch_size for _, rows in steps)
    for task, size in sizes.items():
        rows = rows_of(schedule, task, epochs)
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            assert len(set(part)) == len(part)  # all different
            assert set(part) <= set(range(size))


@pytest.mark.parametrize("name", ["sequential", "proportional"])
def test_a_pass_over_everything_is_one_epoch(name):
    schedule = make_schedule(name, SIZES, 4, 3, 11711)
    for epoch in range(3):
        for task, size in SIZES.items():
            rows = [row for chosen, rows in schedule.epoch(epoch) if chosen == task for row in rows.tolist()]
            assert sorted(rows) == list(range(size))


@every_schedule
def test_an_epoch_does_not_need_the_ones_before(name):
    """What makes resuming in the middle exact."""
    walked = make_schedule(name, SIZES, 4, 5, 7)
    for epoch in range(4):
        steps = walked.epoch(epoch)
    alone = make_schedule(name, SIZES, 4, 5, 7).epoch(3)
    assert plain(alone) == plain(steps) == plain(walked.epoch(3))


@every_schedule
def test_rows_come_in_another_order_each_pass_and_for_another_seed(name):
    sizes = {"only": 40}
    schedule = make_schedule(name, sizes, 5, 2, 1)
    first, second = plain(schedule.epoch(0)), plain(schedule.epoch(1))
    other = plain(make_schedule(name, sizes, 5, 2, 2).epoch(0))
    assert len({str(first), str(second), str(other)}) == 3
    assert [rows for _, rows in first] != sorted(rows for _, rows in first)


def test_tasks_are_drawn_apart_from_each_other():
    """Two tasks of one size must not go through their rows in the same order."""
    schedule = make_schedule("sequential", {"a": 30, "b": 30}, 30, 1, 3)
    (_, a), (_, b) = schedule.epoch(0)
    assert a.tolist() != b.tolist()


def test_sequential_takes_one_task_after_the_other():
    tasks = [task for task, _ in make_schedule("sequential", SIZES, 4, 2, 0).epoch(1)]
    assert tasks == ["large"] * 6 + ["middle"] * 2 + ["small"]


def test_round_robin_takes_turns_across_epochs_too():
    schedule = make_schedule("round_robin", {"a": 10, "b": 1, "c": 1}, 5, 3, 0)  # 4 steps an epoch
    tasks = [task for epoch in range(3) for task, _ in schedule.epoch(epoch)]
    assert "".join(tasks) == "abcabcabcabc"


def test_proportional_mixes_the_tasks():
    schedule = make_schedule("proportional", {"a": 50, "b": 50}, 5, 2, 0)
    first, second = ("".join(task for task, _ in schedule.epoch(epoch)) for epoch in range(2))
    assert Counter(first) == Counter(second) == {"a": 10, "b": 10}
    assert first != second
    assert "a" * 10 not in first and "b" * 10 not in first


def test_annealed_draws_with_the_stated_probabilities():
    """rows ** a with a from 1 to 0.2: over 8,000 draws a share is off by less than 0.03 (five standard deviations)."""
    draws_by_powers("annealed", {0: 1.0, 2: 0.6, 4: 0.2})


def test_square_root_draws_alike_in_every_epoch():
    draws_by_powers("square_root", {0: 0.5, 4: 0.5})


def draws_by_powers(name, exponents):
    sizes = {"a": 6400, "b": 1500, "c": 100}
    schedule = make_schedule(name, sizes, 1, 5, 11711)
    for epoch, exponent in exponents.items():
        weights = np.array(list(sizes.values())) ** exponent
        drawn = Counter(schedule.order(epoch))
        for task, share in zip(sizes, weights / weights.sum(), strict=True):
            assert abs(drawn[task] / 8000 - share) < 0.03


@every_schedule
def test_one_epoch_is_enough(name):
    assert len(make_schedule(name, SIZES, 4, 1, 0).epoch(0)) == 9


def test_an_unknown_name_lists_the_known():
    with pytest.raises(InputError, match="--schedule sorted: not known; known: separate, sequential, round_robin"):
        make_schedule("sorted", SIZES, 4, 1, 0)
