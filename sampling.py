"""Schedules over tasks: which task's rows make the next batch.

round_robin, proportional, square_root and annealed sampling after Stickland and Murray 2019, "BERT and PALs" (arXiv
1902.02671).
A schedule is a pure function of (seed, epoch): nothing has to be saved to continue in the middle.

Every schedule makes the same number of steps an epoch, as many as one pass over every task takes, so all cost about
alike.
"""

from __future__ import annotations

import math

import numpy as np

from errors import InputError

Step = tuple[str, np.ndarray]  # (task name, rows of the batch)


class Schedule:
    """Batches of several tasks in some order. sizes: task name -> number of rows."""

    def __init__(self, sizes: dict[str, int], batch_size: int, epochs: int, seed: int):
        self.sizes, self.batch_size, self.epochs, self.seed = sizes, batch_size, epochs, seed
        self.batches = {name: math.ceil(size / batch_size) for name, size in sizes.items()}
        self._orders: dict[int, list[str]] = {}
        self._passes: dict[str, tuple[int, np.ndarray]] = {}

    @property
    def steps_per_epoch(self) -> int:
        return sum(self.batches.values())

    def order(self, epoch: int) -> list[str]:
        """The tasks of an epoch's steps, in order."""
        raise TypeError("a Schedule has no order of its own; use one of SCHEDULES")

    def epoch(self, epoch: int) -> list[Step]:
        """The steps of epoch 0, 1, ...

        Over the whole run a task goes through all its rows before any comes again, each time in a new random order.
        """
        used = dict.fromkeys(self.sizes, 0)
        for earlier in range(epoch):
            for name in self.tasks_of(earlier):
                used[name] += 1
        steps = []
        for name in self.tasks_of(epoch):
            steps.append((name, self._rows(name, used[name])))
            used[name] += 1
        return steps

    def tasks_of(self, epoch: int) -> list[str]:
        """The order of an epoch, found once."""
        if epoch not in self._orders:
            self._orders[epoch] = self.order(epoch)
        return self._orders[epoch]

    def _rows(self, name: str, batch: int) -> np.ndarray:
        """Rows of the task's batch number `batch`, counted over the whole run."""
        through, place = divmod(batch, self.batches[name])
        if self._passes.get(name, (None,))[0] != through:
            self._passes[name] = through, self._random(f"rows of {name}", through).permutation(self.sizes[name])
        order = self._passes[name][1]
        return order[place * self.batch_size : (place + 1) * self.batch_size]

    def _random(self, purpose: str, number: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, number, *purpose.encode()])


class Sequential(Schedule):
    """In every epoch all batches of the first task, then all of the second, and so on."""

    def order(self, epoch: int) -> list[str]:
        return [name for name, count in self.batches.items() for _ in range(count)]


class RoundRobin(Schedule):
    """One batch of each task in turn: every task the same share of the steps, small sets repeated."""

    def order(self, epoch: int) -> list[str]:
        names, start = list(self.sizes), epoch * self.steps_per_epoch
        return [names[(start + i) % len(names)] for i in range(self.steps_per_epoch)]


class Proportional(Schedule):
    """All batches of all tasks, shuffled: every row once an epoch."""

    def order(self, epoch: int) -> list[str]:
        names = [name for name, count in self.batches.items() for _ in range(count)]
        return [names[i] for i in self._random("order", epoch).permutation(len(names))]


class Even(Schedule):
    """All batches of all tasks, each task's at even distances: every row once an epoch, in the same order of tasks."""

    def order(self, epoch: int) -> list[str]:
        places = [((i + 0.5) / count, name) for name, count in self.batches.items() for i in range(count)]
        return [name for _, name in sorted(places, key=lambda place: place[0])]


class SquareRoot(Schedule):
    """Each step draws a task with probability proportional to the square root of its rows."""

    def exponent(self, epoch: int) -> float:
        """The power of the rows that an epoch draws by."""
        return 0.5

    def order(self, epoch: int) -> list[str]:
        names, weights = list(self.sizes), np.array(list(self.sizes.values()), dtype=float) ** self.exponent(epoch)
        drawn = self._random("order", epoch).choice(len(names), self.steps_per_epoch, p=weights / weights.sum())
        return [names[i] for i in drawn]


class Annealed(SquareRoot):
    """Each step draws a task with probability proportional to rows ** a; a falls from 1 to 0.2, first epoch to last."""

    def exponent(self, epoch: int) -> float:
        return 1.0 - 0.8 * epoch / max(self.epochs - 1, 1)


# `separate` is not here: it is one run for each task, each from the pretrained weights.
SCHEDULES = {
    "sequential": Sequential,
    "round_robin": RoundRobin,
    "proportional": Proportional,
    "even": Even,
    "square_root": SquareRoot,
    "annealed": Annealed,
}


def make_schedule(name: str, sizes: dict[str, int], batch_size: int, epochs: int, seed: int) -> Schedule:
    """The schedule of that name. An unknown name is an error that lists the known."""
    if name not in SCHEDULES:
        raise InputError(f"--schedule {name}: not known; known: separate, {', '.join(SCHEDULES)}")
    return SCHEDULES[name](sizes, batch_size, epochs, seed)
