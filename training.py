"""The training loop, one for every command: set the rate, forward and backward, clip, step, evaluate, keep the best.

AdamW after Loshchilov and Hutter 2019 (arXiv 1711.05101), as the course defines it. The loop does not know tasks: it is
given a schedule that says which batch comes next, a function that returns a loss, and one that evaluates.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import torch
from tqdm import tqdm

from batches import Batch, TaskData
from errors import InputError
from optimizer import AdamW, clip_grad_norm
from run import Run
from sampling import Schedule
from schedules import SCHEDULES as LEARNING_RATES
from schedules import set_learning_rate


@dataclass(frozen=True)
class TrainingOptions:
    """How to train.

    lr: peak learning rate. decay: constant or linear. warmup: share of all steps. clip: largest gradient norm, 0 none.
    save_every: minutes between checkpoints within an epoch.
    """

    epochs: int = 10
    lr: float = 1e-5
    weight_decay: float = 0.0
    decay: str = "constant"
    warmup: float = 0.0
    clip: float = 0.0
    seed: int = 11711
    save_every: float = 10.0


class Stopped(Exception):
    """The user or the system asked to stop; a checkpoint was written."""


@dataclass
class Progress:
    """Where a run is: epochs finished, steps made in the one now running, the best so far, and a row an evaluation."""

    epoch: int = 0
    step: int = 0
    best: float = -math.inf
    best_epoch: int = 0
    seconds: float = 0.0
    tokens: int = 0
    history: list[dict] = field(default_factory=list)


class Trainer:
    """Trains a model and leaves its best state in run.best.

    data: task name -> TaskData to train on. evaluate() -> (score that selects, row of metrics, the row in words).
    save_best() writes run.best.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        data: dict[str, TaskData],
        schedule: Schedule,
        loss: Callable[[Batch], torch.Tensor],
        evaluate: Callable[[], tuple[float, dict, str]],
        save_best: Callable[[], None],
        run: Run,
        options: TrainingOptions,
    ):
        self.model, self.data, self.schedule, self.loss = model, data, schedule, loss
        self.evaluate, self.save_best, self.run, self.options = evaluate, save_best, run, options
        self.learning = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.optimizer = AdamW(list(self.learning.values()), lr=options.lr, weight_decay=options.weight_decay)
        self.total_steps = options.epochs * schedule.steps_per_epoch
        self.progress = Progress()
        self.interrupted = False
        self.saved_at = time.monotonic()

    def train(self, say: Callable[[str], None] = print) -> Progress:
        """Train to the end, from where a checkpoint stopped if there is one.

        Raises Stopped after SIGTERM or Ctrl-C (a checkpoint was written), InputError for a loss or a weight that is
        not finite (nothing was written).
        """
        self._resume(say)
        progress = self.progress
        with on_signals(self._interrupt):
            if not progress.history:
                self._evaluate(say)
                self._save()
            while progress.epoch < self.options.epochs:
                self._train_epoch()
                progress.epoch, progress.step = progress.epoch + 1, 0
                self._evaluate(say)
                self._save()
                if self.interrupted:
                    raise Stopped
        return progress

    def _train_epoch(self) -> None:
        progress, options = self.progress, self.options
        steps = self.schedule.epoch(progress.epoch)
        rate = LEARNING_RATES[options.decay]
        self.model.train()
        name = f"epoch {progress.epoch + 1}/{options.epochs}"
        with tqdm(total=len(steps), initial=progress.step, desc=name, disable=None, unit="batch", leave=False) as bar:
            running, tokens, began = None, 0, time.monotonic()
            for task, rows in steps[progress.step :]:
                step_began = time.monotonic()
                batch = self.data[task].batch(rows).to(self.model.device)
                done = progress.epoch * len(steps) + progress.step
                set_learning_rate(self.optimizer, rate(done, self.total_steps, options.warmup))
                self.optimizer.zero_grad(set_to_none=True)
                loss = self.loss(batch)
                loss.backward()
                if options.clip:
                    clip_grad_norm(self.learning.values(), options.clip)
                value = loss.item()
                if not math.isfinite(value):
                    place = f"epoch {progress.epoch + 1}, step {progress.step + 1}, task {task}"
                    raise InputError(
                        f"the loss is {value} at {place}, rows {json.dumps(batch.ids[:8])}: "
                        f"try a lower --lr or --clip 1.0; {self._kept()}"
                    )
                self.optimizer.step()
                progress.step += 1
                progress.tokens += batch.tokens
                progress.seconds += time.monotonic() - step_began
                tokens += batch.tokens
                running = value if running is None else 0.98 * running + 0.02 * value
                bar.update()
                bar.set_postfix_str(
                    f"loss {running:.3f}, {tokens / (time.monotonic() - began):,.0f} tokens/s", refresh=False
                )
                if self.interrupted:
                    self._save()
                    raise Stopped
                if time.monotonic() - self.saved_at > 60 * options.save_every:
                    self._save()

    def _evaluate(self, say: Callable[[str], None]) -> None:
        """Score the model, keep it if it is the best so far, and write a row."""
        progress = self.progress
        self._refuse_broken_weights()
        score, row, words = self.evaluate()
        learned = progress.epoch > 0 or self.options.epochs == 0
        best = learned and score > progress.best  # the untrained model is a reference, not a candidate
        if best:
            progress.best, progress.best_epoch = score, progress.epoch
            self.save_best()
        seconds = round(progress.seconds, 3)
        progress.history.append(
            {
                "epoch": progress.epoch,
                "score": score,
                "best": best,
                "train_seconds": seconds,
                "train_tokens": progress.tokens,
                **row,
            }
        )
        self.run.write_metrics(progress.history)
        title = f"epoch {progress.epoch}" if progress.epoch else "untrained"
        say(f"{title:>10}  {words}{'  (best so far)' if best else ''}")

    # Checkpoints: one file with the learning weights, the optimizer's state, the random states and where we are.

    def _save(self) -> None:
        self._refuse_broken_weights()
        tensors = {f"model.{name}": p for name, p in self.learning.items()}
        for name, p in self.learning.items():
            state = self.optimizer.state.get(p, {})
            tensors.update({f"optimizer.{name}.{key}": torch.as_tensor(value) for key, value in state.items()})
        tensors["random.cpu"] = torch.get_rng_state()
        if torch.cuda.is_available():
            tensors["random.cuda"] = torch.cuda.get_rng_state()
        self.run.save_checkpoint(tensors, vars(self.progress))
        self.saved_at = time.monotonic()

    def _resume(self, say: Callable[[str], None]) -> None:
        found = self.run.load_checkpoint()
        if found is None:
            return
        tensors, state = found
        for name, p in self.learning.items():
            if f"model.{name}" not in tensors or tensors[f"model.{name}"].shape != p.shape:
                raise InputError(
                    f"{self.run.checkpoint}: {name} is missing or has another shape: it belongs to another run"
                )
        self.progress = Progress(**state)
        with torch.no_grad():
            for name, p in self.learning.items():
                p.copy_(tensors[f"model.{name}"])
                prefix = f"optimizer.{name}."
                saved = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
                if saved:
                    step = int(saved.pop("step"))
                    self.optimizer.state[p] = {"step": step, **{k: v.to(p.device) for k, v in saved.items()}}
        torch.set_rng_state(tensors["random.cpu"])
        if "random.cuda" in tensors and torch.cuda.is_available():
            torch.cuda.set_rng_state(tensors["random.cuda"])
        self.run.write_metrics(self.progress.history)
        if self.progress.epoch < self.options.epochs:
            say(f"continuing at epoch {self.progress.epoch + 1}, step {self.progress.step + 1}")
        else:
            say("continuing after the last epoch")

    def _refuse_broken_weights(self) -> None:
        """Raises InputError for a weight that is not finite, which no file is ever given.

        A finite loss can have a gradient that isn't; the next loss would tell, but an evaluation may come before it.
        """
        for name, p in self.learning.items():
            if not torch.isfinite(p).all():
                place = f"{self.progress.epoch} epochs and {self.progress.step} steps"
                raise InputError(f"{name} is not finite after {place}: try a lower --lr or --clip 1.0; {self._kept()}")

    def _kept(self) -> str:
        if self.progress.best_epoch:
            return f"the best model so far, of epoch {self.progress.best_epoch}, is in {self.run.best}"
        return "there is no best model yet"

    def _interrupt(self, *_) -> None:
        if self.interrupted:  # asked twice: now
            raise KeyboardInterrupt
        self.interrupted = True
        with suppress(OSError):  # nobody may be listening
            print("\nstopping after this step or evaluation; once more to stop at once", file=sys.stderr)


@contextmanager
def on_signals(handler: Callable) -> Iterator[None]:
    """SIGINT and SIGTERM call `handler` for as long as this lasts (in the main thread, the only one that may)."""
    previous = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(ValueError):  # not the main thread
                previous[number] = signal.signal(number, handler)
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
