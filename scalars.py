"""Curves for TensorBoard: losses and rates by step, dev's scores by evaluation, beside a run's metrics.jsonl.

Follows torch.utils.tensorboard, which writes what the package tensorboard shows. That package is optional: a run needs
neither, and metrics.jsonl has every evaluation without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from errors import InputError

FOLDER = "tensorboard"
INSTALL = "python -m pip install -r requirements-tensorboard.txt"


def check_installed() -> None:
    """Raises InputError, with the line that installs it, where the package is missing."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise InputError(f"--tensorboard: {error}: install it ({INSTALL}), or leave the option out") from error


class Scalars:
    """What a run in `folder` writes for TensorBoard.

    steps_made: before, by a run that goes on; what was written of later steps, until it was stopped, is taken back.
    What the disk refuses ends the curves, which `say` tells once, and not the run.
    """

    def __init__(self, folder: Path, steps_made: int = 0, say: Callable[[str], object] = print):
        check_installed()
        from torch.utils.tensorboard import SummaryWriter

        self.say, self.writer = say, None
        with self._writing():
            self.writer = SummaryWriter(str(folder / FOLDER), purge_step=steps_made + 1 if steps_made else None)

    def loss(self, step: int, task: str, value: float, lr: float) -> None:
        """A batch's loss, and the learning rate of the step (the highest, where layers have rates of their own)."""
        self._add({f"loss/{task}": value, "lr": lr}, step)

    def evaluation(self, step: int, score: float, row: dict) -> None:
        """The score that selects, and the numbers of a row of metrics.jsonl, however deep, as dev/TASK/METRIC."""
        self._add({"score": score, **dict(_numbers(row))}, step)
        if self.writer is not None:
            with self._writing():
                self.writer.flush()

    def close(self) -> None:
        if self.writer is not None:
            with self._writing():
                self.writer.close()

    def _add(self, values: dict[str, float], step: int) -> None:
        if self.writer is not None:
            with self._writing():
                for name, value in values.items():
                    self.writer.add_scalar(name, value, step)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.writer = None
            self.say(f"tensorboard no curves from here on: {error}; the run goes on")


def _numbers(row: dict, above: str = "") -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{above}{name}/")
        elif isinstance(value, int | float):
            yield f"{above}{name}", value
