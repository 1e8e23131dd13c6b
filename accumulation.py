"""Gradient accumulation: the mean of several batches' gradients makes one step.

Batches may be of several tasks: with --schedule even a step then follows several of them, not one and then another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


class Accumulation:
    """Of these parameters. A batch's gradient is taken from .grad, and the mean put there when all have come.

    seed: of what is drawn at random, by a class that does.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], seed: int = 0):
        self.parameters, self.seed = list(parameters), seed
        self.sums: dict[str, list[torch.Tensor | None]] = {}
        self.count = 0

    def key(self, task: str) -> str:
        """Which of the sums a batch of this task goes into: here there is one."""
        return ""

    @torch.no_grad()
    def add(self, task: str = "") -> None:
        """Take in the gradient of one more batch; None is left in its place. Parameters without one are left alone."""
        self.count += 1
        sums = self.sums.setdefault(self.key(task), [None] * len(self.parameters))
        for i, p in enumerate(self.parameters):
            if p.grad is not None:
                sums[i] = p.grad if sums[i] is None else sums[i].add_(p.grad)
                p.grad = None

    @torch.no_grad()
    def put(self, step: int = 0) -> bool:
        """Put the mean of what came since the last time in place; whether anything did. step: its number.

        A parameter that some of the batches don't use has a gradient of zero from these.
        """
        came = self.count > 0
        totals = self.combined(step) if came else [None] * len(self.parameters)
        for p, total in zip(self.parameters, totals, strict=True):
            p.grad = total if total is None or self.count == 1 else total.div_(self.count)
        self.sums, self.count = {}, 0
        return came

    def combined(self, step: int) -> list[torch.Tensor | None]:
        """For each parameter the sum of the sums, of its shape, None where no batch used it. step: as in `put`."""
        return [self.total(parts) for parts in zip(*self.sums.values(), strict=True)]

    @staticmethod
    def total(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
        """The sum of a parameter's gradients, all of its shape; None where there is none."""
        found = [part for part in parts if part is not None]
        return sum(found[1:], start=found[0]) if found else None
