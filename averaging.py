"""A moving average of the weights, which is judged and kept in place of the last ones, while these go on learning.

Exponential, after Polyak and Juditsky 1992 ("Acceleration of Stochastic Approximation by Averaging", SIAM J. Control
Optim. 30), as Tarvainen and Valpola 2017 (arXiv 1703.01780) average a teacher: the last steps count most.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# The first steps count less than the decay says, as TensorFlow's ExponentialMovingAverage has it: the pretrained
# weights, from which the average begins, are forgotten sooner.
EARLY = 10


class Average:
    """Of these weights. decay: in [0, 1), what of the average a step leaves. weights: name -> the average so far."""

    def __init__(self, learning: dict[str, torch.nn.Parameter], decay: float):
        self.learning, self.decay = learning, decay
        self.weights = {name: p.detach().clone() for name, p in learning.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after this step of the whole run, 1 for the first."""
        decay = min(self.decay, (1 + step) / (EARLY + step))
        for name, p in self.learning.items():
            self.weights[name].lerp_(p, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the average for as long as this lasts, and then its own weights again, to the bit."""
        own = {name: p.detach().clone() for name, p in self.learning.items()}
        try:
            self._put(self.weights)
            yield
        finally:
            self._put(own)

    @torch.no_grad()
    def _put(self, weights: dict[str, torch.Tensor]) -> None:
        for name, p in self.learning.items():
            p.copy_(weights[name])
