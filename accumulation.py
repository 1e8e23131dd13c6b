"""Gradient accumulation: the mean of several batches' gradients makes one step.

Batches may be of several tasks: with --schedule even a step then follows several of them, not one and then another.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


class Accumulation:
    """Of these parameters. A batch's gradient is taken from .grad, and the mean put there when all have come."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]):
        self.parameters = list(parameters)
        self.sums: list[torch.Tensor | None] = [None] * len(self.parameters)
        self.count = 0

    @torch.no_grad()
    def add(self) -> None:
        """Take in the gradient of one more batch; None is left in its place. Parameters without one are left alone."""
        self.count += 1
        for i, p in enumerate(self.parameters):
            if p.grad is not None:
                self.sums[i] = p.grad if self.sums[i] is None else self.sums[i].add_(p.grad)
                p.grad = None

    @torch.no_grad()
    def put(self) -> bool:
        """Put the mean of what came since the last time in place; whether anything did.

        A parameter that some of the batches don't use has a gradient of zero from these.
        """
        came = self.count > 0
        for p, total in zip(self.parameters, self.sums, strict=True):
            p.grad = None if total is None else total.div_(self.count)
        self.sums, self.count = [None] * len(self.parameters), 0
        return came
