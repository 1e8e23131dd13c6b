"""The training loop, one for every command: set the rate, forward and backward, clip, step, evaluate, keep the best.

AdamW after Loshchilov and Hutter 2019 (arXiv 1711.05101), as the course defines it. The loop does not know tasks: it is
given a schedule that says which batch comes next, a function that returns a loss, and one that evaluates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from tqdm import tqdm

from accumulation import Accumulation
from averaging import Average
from batches import Batch, TaskData, prepared
from checkpoints import check_best, check_checkpoint, restore_random_state, restore_training_state, training_state
from console import counted, warn
from distributed import ALONE, Processes
from errors import InputError
from finite import MOST_IN_A_ROW, REMEDY, gradient_norm, named, wrong_with
from gradients import OWN_GENERATOR, Gradients, out_of_memory, random_state
from layer_rates import parameter_groups
from optimizer import AdamW, clip_grad_norm
from pcgrad import PCGrad
from precision import FULL, Precision
from run import Run
from sampling import Schedule, Step
from scalars import Scalars
from schedules import SCHEDULES as LEARNING_RATES
from schedules import set_learning_rate
from stopping import on_signals

# Seconds between two lines about progress where there is no terminal to show a bar on.
SAY_EVERY = 60
# Steps between two looks at the loss on a GPU, which each time waits until the GPU has caught up.
READ_EVERY = 16
# Steps one after the other whose gradient overflowed float16, each at half the scale of the one before: from 65,536,
# the first scale, so many would bring it to 1/16, which no gradient that is finite in float32 needs.
MOST_OVERFLOWS = 20


@dataclass(frozen=True)
class TrainingOptions:
    """How to train.

    lr: peak learning rate. layer_decay, head_lr: see layer_rates.parameter_groups. decay: constant or linear. warmup:
    share of all steps. clip: largest gradient norm, 0 none. save_every: minutes between checkpoints within an epoch.
    micro_batch: most rows that go through the model at once, 0 for the whole batch; dropout aside, the gradient is the
    same. weight_decay: of every parameter, biases and LayerNorms, too (see layer_rates.parameter_groups).
    evaluate_every: steps between evaluations within an epoch, 0 for none but that at its end. patience: evaluations one
    after the other without a better score after which training ends, 0 for no such end. quiet: no progress bar.
    non_finite: stop at a loss or a gradient that is NaN or infinite, or skip that batch. average: decay of the moving
    average of the weights that is judged and kept, 0 for the weights themselves. accumulate: batches whose mean
    gradient makes a step; what is called a step elsewhere is a batch. pcgrad: each task's is projected before.
    """

    epochs: int = 10
    lr: float = 1e-5
    weight_decay: float = 0.0
    decay: str = "constant"
    warmup: float = 0.0
    clip: float = 0.0
    seed: int = 11711
    save_every: float = 10.0
    micro_batch: int = 0
    evaluate_every: int = 0
    patience: int = 0
    layer_decay: float = 1.0
    head_lr: float | None = None
    quiet: bool = False
    non_finite: str = "stop"
    average: float = 0.0
    accumulate: int = 1
    pcgrad: bool = False


class Stopped(Exception):
    """The user or the system asked to stop; a checkpoint was written."""


@dataclass
class Progress:
    """Where a run is: epochs finished, steps made in the one now running, the best so far, and a row an evaluation.

    best_epoch: in which the best was found, 1 for the first, 0 for none yet. without_better: evaluations since then.
    micro_batch: where memory ran out, rows that go through the model at once since; 0 where it never did.
    losses: task -> sum of the losses since the last evaluation, and how many they are. skipped: batches left out since
    their loss or gradient was not finite; in_a_row: the last of them.
    """

    epoch: int = 0
    step: int = 0
    best: float = -math.inf
    best_epoch: int = 0
    seconds: float = 0.0
    tokens: int = 0
    history: list[dict] = field(default_factory=list)
    micro_batch: int = 0
    losses: dict[str, list[float]] = field(default_factory=dict)
    without_better: int = 0
    skipped: int = 0
    in_a_row: int = 0


class Trainer:
    """Trains a model and leaves its best state in run.best.

    data: task name -> TaskData to train on. evaluate() -> (score that selects, row of metrics, the row in words).
    save_best() writes run.best. settled() is open while the model is judged and kept. gradients: Gradients, or
    a class that is made as it is, such as RDrop. With several processes, each calls everything, and rank 0 alone writes
    files.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        data: dict[str, TaskData],
        schedule: Schedule,
        evaluate: Callable[[], tuple[float, dict, str]],
        save_best: Callable[[], None],
        run: Run,
        options: TrainingOptions,
        precision: Precision = FULL,
        processes: Processes = ALONE,
        gradients: Callable[..., Gradients] = Gradients,
        scalars: Callable[[int], Scalars] | None = None,
        settled: Callable[[], AbstractContextManager] = nullcontext,
    ):
        self.model, self.data, self.schedule = model, data, schedule
        self.evaluate, self.save_best, self.run, self.options = evaluate, save_best, run, options
        self.processes = processes
        self.learning = {name: p for name, p in model.named_parameters() if p.requires_grad}
        groups = parameter_groups(self.learning, options.lr, options.layer_decay, options.head_lr)
        self.optimizer = AdamW(groups, weight_decay=options.weight_decay)
        self.average = Average(self.learning, options.average) if options.average else None
        self.accumulation = (PCGrad if options.pcgrad else Accumulation)(self.learning.values(), options.seed)
        self.scaler = precision.scaler(model.device)
        self.scaler.scale(torch.zeros((), device=model.device))  # a process's first batches may all be others'
        self.moved = False  # whether the last batch ended with a step
        self.optimizer.register_step_post_hook(self._note_step)
        self.gradients = gradients(model.device, model.outputs, self.scaler.scale, processes)
        self.total_steps = options.epochs * schedule.steps_per_epoch
        self.progress = Progress()
        self.interrupted, self.overflows = False, 0
        self.saved_at = time.monotonic()
        # (loss, gradient's norm), task, where it was, the steps made then
        self.unread: list[tuple[torch.Tensor, str, str, int]] = []
        self.looks_late = model.device.type != "cpu" and options.non_finite == "stop"
        self.running: dict[str, float] = {}
        self.make_scalars, self.scalars, self.settled = scalars, None, settled

    def train(self, say: Callable[[str], None] = print) -> Progress:
        """Train to the end, from where a checkpoint stopped if there is one.

        Raises Stopped after Ctrl-C, SIGTERM or SIGHUP (a checkpoint was written), InputError for a loss, gradient
        or weight that is not finite (nothing was written).
        """
        self._resume(say)
        progress = self.progress
        with ExitStack() as held:
            held.enter_context(on_signals(self._interrupt))
            if self.make_scalars is not None and self.processes.first:
                self.scalars = self.make_scalars(self.steps_made)
                held.callback(self.scalars.close)
            if not progress.history:
                self._evaluate(say)
                self._save(say)
            while progress.epoch < self.options.epochs and not self._out_of_patience():
                self._train_epoch(say)
                if self._out_of_patience():  # in the middle of the epoch
                    break
                progress.epoch, progress.step = progress.epoch + 1, 0
                self._evaluate(say)
                self._save(say)
                if self._asked(self.interrupted)[0]:
                    raise Stopped
        if self._out_of_patience():
            say(f"stopping early: {progress.without_better} evaluations without a better score")
        return progress

    @property
    def steps_made(self) -> int:
        """Of the whole run."""
        return self.progress.epoch * self.schedule.steps_per_epoch + self.progress.step

    @property
    def micro_batch(self) -> int:
        """Most rows that go through the model at once, 0 for all: what is asked for, or what there was memory for."""
        return min((size for size in (self.progress.micro_batch, self.options.micro_batch) if size), default=0)

    def _out_of_patience(self) -> bool:
        return 0 < self.options.patience <= self.progress.without_better

    def _train_epoch(self, say: Callable[[str], None]) -> None:
        progress, options = self.progress, self.options
        steps = self.schedule.epoch(progress.epoch)
        todo = steps[progress.step :]
        rate = LEARNING_RATES[options.decay]
        self.model.train()
        name = f"epoch {progress.epoch + 1}/{options.epochs}"
        quiet = True if options.quiet or not self.processes.first else None
        with tqdm(total=len(steps), initial=progress.step, desc=name, disable=quiet, unit="batch", leave=False) as bar:
            tokens, began = 0, time.monotonic()
            mark = said = began
            for (task, rows), parts in zip(todo, prepared(self._parts, todo), strict=True):
                done = progress.epoch * len(steps) + progress.step
                set_learning_rate(self.optimizer, rate(done, self.total_steps, options.warmup))
                loss = self._gradient(task, rows, parts, say)
                whole = (progress.step + 1) % options.accumulate == 0 or progress.step + 1 == len(steps)
                self._step(loss, task, rows, whole, say)
                progress.step += 1
                if self.average is not None and self.moved:
                    self.average.update(-(-self.steps_made // options.accumulate))
                if progress.step % READ_EVERY == 0 or progress.step == len(steps):
                    self._read_losses(say)
                step_tokens = int(self.data[task].lengths[rows].sum())
                progress.tokens, tokens, now = progress.tokens + step_tokens, tokens + step_tokens, time.monotonic()
                progress.seconds, mark = progress.seconds + now - mark, now
                bar.update()
                losses = ", ".join(f"{task} {value:.3f}" for task, value in self.running.items())
                words = f"{losses}, {tokens / max(now - began, 1e-9):,.0f} tokens/s"
                bar.set_postfix_str(words, refresh=False)
                if bar.disable and now - said >= SAY_EVERY:  # not a terminal: a line now and then
                    say(f"{name:>10}  step {progress.step:,} of {len(steps):,}: loss {words}")
                    said = now
                due = options.evaluate_every and progress.step % options.evaluate_every == 0
                if due and progress.step < len(steps):  # at the end of the epoch there is one anyway
                    self._read_losses(say)
                    with tqdm.external_write_mode():
                        self._evaluate(say)
                    self.model.train()
                    mark = time.monotonic()
                    began += mark - now
                given_up = self._out_of_patience()
                stop, save = self._asked(self.interrupted, now - self.saved_at > 60 * options.save_every)
                if not whole:  # half a step is nothing that could be continued
                    continue
                if stop or save or given_up:
                    self._save(say)
                    mark = time.monotonic()
                if stop:
                    raise Stopped
                if given_up:
                    return

    # One step.

    def _parts(self, step: Step) -> list[Batch]:
        """This process's rows of a step's batch, in micro-batches."""
        task, rows = step
        own = self.processes.shares(rows)[self.processes.rank]
        return self.data[task].parts(own, self.micro_batch, self.model.device, self.progress.epoch)

    def _gradient(self, task: str, rows: np.ndarray, parts: list[Batch], say: Callable[[str], None]) -> torch.Tensor:
        """Put the gradient of the batch's loss in place, in smaller parts where memory runs out; returns the loss."""
        counts = [len(share) for share in self.processes.shares(rows)]
        while True:
            most = self.micro_batch
            if most and any(len(part) > most for part in parts):  # prepared before memory ran out
                parts = self._parts((task, rows))
            self.optimizer.zero_grad(set_to_none=True)
            try:
                loss = self.gradients.backward([part.to(self.model.device) for part in parts], counts)
                break
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                reason = str(error).splitlines()[0]
            # Here, after the except block, the exception no longer holds what the step had allocated.
            self.optimizer.zero_grad(set_to_none=True)
            self._halve(max(len(part) for part in parts), reason, say)
        self.processes.add_gradients(self.learning.values())
        return loss

    def _halve(self, rows: int, reason: str, say: Callable[[str], None]) -> None:
        if rows == 1:
            raise InputError(f"out of memory with one row at once ({reason}): choose a smaller --model; {self._kept()}")
        if self.processes.size > 1:
            raise InputError(f"out of memory ({reason}): resume with --micro_batch {rows // 2}; {self._kept()}")
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()
        self.progress.micro_batch = -(-rows // 2)
        say(
            f"memory     not enough for {rows} rows at once: from here on {self.progress.micro_batch}, the same batches"
        )

    def _step(self, loss: torch.Tensor, task: str, rows: np.ndarray, whole: bool, say: Callable[[str], None]) -> None:
        """Clip and step, if the batches of the step are whole with this one; none for a batch that is left out.

        Loss and gradient are looked at before the step, except on a GPU that would have to be waited for, where it is
        enough that no file gets what they did. With fp16 a gradient that overflowed makes no step, and a smaller scale:
        that is the scaler's work, and no fault of the batch.
        """
        half, self.moved = self.scaler.is_enabled(), False
        norm = torch.zeros_like(loss) if half else gradient_norm(self.learning.values())
        ids = named([self.data[task].ids[row] for row in rows])
        place = f"epoch {self.progress.epoch + 1}, step {self.progress.step + 1}, task {task}, rows {ids}"
        both = torch.stack([loss.float(), norm.float().to(loss.device)])
        self.unread.append((both, task, place, self.steps_made + 1))
        if self.looks_late or self._read_losses(say):
            self.accumulation.add(task)
        if not whole or not self.accumulation.put(self.steps_made):
            return
        if all(p.grad is None for p in self.learning.values()):  # batches of which nothing is to be learned
            return
        if self.options.clip:
            self.scaler.unscale_(self.optimizer)
            known = norm if self.options.accumulate == 1 and not half else None
            clip_grad_norm(self.learning.values(), self.options.clip, known)
        self.scaler.step(self.optimizer)  # where it looks at the gradient, that is all that a GPU is waited for
        self.scaler.update()
        self.overflows = 0 if self.moved else self.overflows + 1
        if self.overflows >= MOST_OVERFLOWS:
            raise InputError(
                f"the gradient overflowed float16 in {MOST_OVERFLOWS} steps in a row, the last at {place}: --precision "
                f"fp32, or {REMEDY}; {self._kept()}"
            )

    def _note_step(self, *_) -> None:
        self.moved = True

    def _read_losses(self, say: Callable[[str], None]) -> bool:
        """Take note of the losses not read yet, on a GPU this waits for it; whether the last one could be used.

        Raises InputError for one that is not finite, or has a gradient that isn't, unless such batches are left out.
        """
        values = torch.stack([found for found, *_ in self.unread]).tolist() if self.unread else []
        unread, self.unread = self.unread, []
        wrong, progress = None, self.progress
        for (loss, norm), (_, task, place, step) in zip(values, unread, strict=True):
            wrong = wrong_with(loss, norm)
            if wrong:
                self._leave_out(f"{wrong} at {place}", say)
                continue
            progress.in_a_row = 0
            total, count = progress.losses.get(task, (0.0, 0))
            progress.losses[task] = [total + loss, count + 1]
            self.running[task] = 0.95 * self.running.get(task, loss) + 0.05 * loss
            if self.scalars is not None:
                self.scalars.loss(step, task, loss, max(group["lr"] for group in self.optimizer.param_groups))
        return wrong is None

    def _leave_out(self, what: str, say: Callable[[str], None]) -> None:
        """Count a batch that no step is made for. Raises InputError if that was not asked for, or is all there is."""
        if self.options.non_finite == "stop":
            raise InputError(f"{what}: {REMEDY}; --non_finite skip leaves such batches out; {self._kept()}")
        self.progress.skipped += 1
        self.progress.in_a_row += 1
        if self.progress.in_a_row >= MOST_IN_A_ROW:
            raise InputError(f"{what}, the {MOST_IN_A_ROW}th batch in a row: {REMEDY}; {self._kept()}")
        with tqdm.external_write_mode():
            say(f"skipped    {what}")

    def _asked(self, *flags: bool) -> list[bool]:
        """Flags that are up in any process."""
        return self.processes.any(torch.tensor(flags)).tolist()

    def _evaluate(self, say: Callable[[str], None]) -> None:
        """Score the model, keep it if it is the best so far, and write a row."""
        self._refuse_broken_weights()
        with nullcontext() if self.average is None else self.average.in_place(), self.settled():
            self._judge(say)

    def _judge(self, say: Callable[[str], None]) -> None:
        progress, first = self.progress, self.processes.first
        score, row, words = self.evaluate()
        learned = bool(self.optimizer.state) or self.options.epochs == 0  # a step was made, or none is wanted
        best = learned and score > progress.best  # the untrained model is a reference, not a candidate
        progress.without_better += learned
        if best:
            progress.best, progress.best_epoch = score, progress.epoch + (progress.step > 0)
            progress.without_better = 0
            if first:
                self.save_best()
        seconds = round(progress.seconds, 3)
        progress.history.append(
            {
                "epoch": progress.epoch,
                **({"step": progress.step} if self.options.evaluate_every else {}),
                "score": score,
                "best": best,
                "train_seconds": seconds,
                "train_tokens": progress.tokens,
                "train_loss": {task: total / count for task, (total, count) in progress.losses.items()},
                **({"skipped": progress.skipped} if progress.skipped else {}),
                **row,
            }
        )
        progress.losses = {}
        if first:
            self.run.write_metrics(progress.history)
        if self.scalars is not None:
            self.scalars.evaluation(self.steps_made, score, row)
        title = f"epoch {progress.epoch}" if progress.epoch else "untrained"
        if progress.step:
            title = f"step {self.steps_made:,}"
        say(f"{title:>10}  {words}{'  (best so far)' if best and title != 'untrained' else ''}")

    # Checkpoints: one file with the learning weights, the optimizer's state, the random states and where we are.

    def _save(self, say: Callable[[str], None]) -> None:
        self._read_losses(say)
        self._refuse_broken_weights()
        tensors = training_state(self.learning, self.optimizer, self._averaged)
        for kind, own in self._random_states().items():
            states = self.processes.gather(own[None], [1] * self.processes.size)
            tensors.update({f"random.{kind}.{rank}": state for rank, state in enumerate(states)})
        if self.processes.first:
            self.run.save_checkpoint(tensors, {**vars(self.progress), "loss_scale": self.scaler.state_dict()})
        self.processes.wait()  # nobody goes on, or ends, as if it were written before it is
        self.saved_at = time.monotonic()

    @property
    def _averaged(self) -> dict[str, torch.Tensor]:
        return {} if self.average is None else self.average.weights

    def _random_states(self) -> dict[str, torch.Tensor]:
        devices = {"cpu": torch.device("cpu"), self.model.device.type: self.model.device}
        return {kind: random_state(device) for kind, device in devices.items() if kind in ("cpu", *OWN_GENERATOR)}

    def _resume(self, say: Callable[[str], None]) -> None:
        found = self.run.load_checkpoint()
        if found is None:
            if self.run.metrics.is_file():
                say("there is no checkpoint yet: it starts over")
            return
        tensors, state = found
        check_checkpoint(tensors, state, self.learning, self._averaged, Progress, self.run.checkpoint)
        scale = state.pop("loss_scale")
        if scale:  # a run that began in another precision has none: it begins here
            self.scaler.load_state_dict(scale)
        self.progress = Progress(**state)
        if self.progress.best_epoch:
            check_best(self.run.best, self.run.checkpoint)
        restore_training_state(tensors, self.learning, self.optimizer, self._averaged)
        for kind, now in self._random_states().items():
            saved = tensors.get(f"random.{kind}.{self.processes.rank}")
            if saved is not None and saved.shape == now.shape:  # a run may go on on another device
                device = torch.device(kind) if kind == "cpu" else self.model.device
                restore_random_state(device, saved, self.run.checkpoint)
        if self.processes.first:
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
                place = f"{counted(self.progress.epoch, 'epoch')} and {counted(self.progress.step, 'step')}"
                raise InputError(f"{name} is not finite after {place}: {REMEDY}; {self._kept()}")

    def _kept(self) -> str:
        if self.progress.best_epoch:
            return f"the best model so far, of epoch {self.progress.best_epoch}, is in {self.run.best}"
        return "there is no best model yet"

    def _interrupt(self, *_) -> None:
        if self.interrupted:  # asked twice: now
            raise KeyboardInterrupt
        self.interrupted = True
        warn("\nstopping after this step or evaluation; once more to stop at once")
