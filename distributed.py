"""Several processes that train one model: `torchrun --nproc-per-node=N multitask_classifier.py ...`.

Data parallelism after Li et al. 2020, "PyTorch Distributed" (arXiv 2006.15704): every process has the whole model and
a part of every batch, and the gradients are added up before the step. Alone, every operation here is a no-op.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from errors import InputError, whole_number

# How long a process waits for another before it ends with an error. Nothing that processes do together takes longer:
# evaluation is shared, and what one alone does (writing files) takes seconds.
PATIENCE = timedelta(minutes=10)
MOST_PROCESSES = 10**6
OTHER_SEED = 1_000_003  # between the seeds of processes: prime, so that they meet no seed that anyone would choose


@dataclass(frozen=True)
class Processes:
    """This process among all. rank: 0 .. size - 1; rank 0 prints and writes files. local_rank: within its machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def first(self) -> bool:
        return self.rank == 0

    def shares(self, rows: np.ndarray) -> list[np.ndarray]:
        """A batch's rows as a part for each process: neighbours, so that the parts in order of rank are the batch.

        A batch of fewer rows than there are processes goes to rank 0 whole.
        """
        if len(rows) < self.size:
            return [rows, *(rows[:0] for _ in range(self.size - 1))]
        return np.array_split(rows, self.size)

    def any(self, flags: torch.Tensor) -> torch.Tensor:
        """(n,) bool on the CPU -> where any process has True."""
        if self.size == 1:
            return flags
        with _as_input_error():
            counts = flags.to(torch.uint8)
            dist.all_reduce(counts, op=dist.ReduceOp.MAX)
        return counts.bool()

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of the processes' tensors, in place, and returned."""
        if self.size > 1:
            with _as_input_error():
                dist.all_reduce(tensor)
        return tensor

    def add_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Every gradient becomes the sum of the processes' gradients; none, where another has one, counts as 0."""
        if self.size == 1:
            return
        parameters = list(parameters)
        has = self.any(torch.tensor([p.grad is not None for p in parameters]))
        summed = [p for p, there in zip(parameters, has.tolist(), strict=True) if there]
        for p in summed:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        for bucket in _buckets(summed):
            flat = self.add(torch.cat([p.grad.flatten() for p in bucket]))
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad.copy_(part.view_as(p))

    def gather(self, own: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """All processes' rows one after the other, without a graph. counts: rows of each; own: (counts[rank], ...)."""
        if self.size == 1:
            return own.detach()
        padded = own.new_zeros(max(counts), *own.shape[1:])
        padded[: len(own)] = own.detach()
        gathered = [torch.empty_like(padded) for _ in counts]
        with _as_input_error():
            dist.all_gather(gathered, padded)
        return torch.cat([rows[:count] for rows, count in zip(gathered, counts, strict=True)])

    def from_first(self, text: str) -> str:
        """Rank 0's text, everywhere."""
        if self.size == 1:
            return text
        data = text.encode() if self.first else b""
        length = self.add(torch.tensor([len(data)]))
        buffer = torch.zeros(int(length), dtype=torch.uint8)
        if self.first:
            buffer += torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return bytes(self.add(buffer).tolist()).decode()

    def copy_from_first(self, tensors: Iterable[torch.Tensor]) -> None:
        """Every process's tensors become rank 0's, to the bit."""
        if self.size > 1:
            with _as_input_error(), torch.no_grad():
                for tensor in tensors:
                    dist.broadcast(tensor.data, src=0)

    def seed(self, seed: int) -> None:
        """Seed torch, in each process otherwise, since its rows need dropout of their own; in the first with `seed`."""
        torch.manual_seed(seed + self.rank * OTHER_SEED)

    def wait(self) -> None:
        """Until all processes are here."""
        self.any(torch.zeros(1, dtype=torch.bool))


ALONE = Processes()
BUCKET = 1 << 22  # elements that are added up at once: 16 MB more memory, and few calls


def _buckets(parameters: list[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    """Neighbouring parameters of one dtype with about BUCKET elements together."""
    bucket, elements = [], 0
    for p in parameters:
        if bucket and (elements + p.numel() > BUCKET or p.dtype != bucket[0].dtype):
            yield bucket
            bucket, elements = [], 0
        bucket.append(p)
        elements += p.numel()
    if bucket:
        yield bucket


@contextmanager
def _as_input_error() -> Iterator[None]:
    """A process that another has left ends with one line. torch raises RuntimeError for a lost connection."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"another process has ended or does not answer ({reason}): see its message; the run goes on with --resume"
        ) from error


def find_processes() -> Processes:
    """Who this process is, from the variables that torchrun sets. Raises InputError where they make no sense."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return ALONE
    numbers = {}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        value = os.environ.get(name, os.environ["RANK"])
        number = whole_number(value, MOST_PROCESSES)
        if number is None:
            raise InputError(f"{name}={value} in the environment is no number: start with torchrun, or unset it")
        numbers[name] = number
    if numbers["RANK"] >= numbers["WORLD_SIZE"]:
        raise InputError(
            f"RANK={numbers['RANK']} with WORLD_SIZE={numbers['WORLD_SIZE']} in the environment: start with torchrun"
        )
    return Processes(numbers["RANK"], numbers["WORLD_SIZE"], numbers["LOCAL_RANK"])


@contextmanager
def joined(processes: Processes, patience: timedelta = PATIENCE) -> Iterator[None]:
    """The processes can talk to each other for as long as this lasts.

    CPU tensors go through gloo; CUDA tensors, where there are any, through NCCL.
    """
    if processes.size == 1:
        yield
        return
    # Its functions take the group of their import's time as a default, and torch's optimizers and compiler import it.
    # Were it imported between the lines below, gloo's threads would outlive this, and now and then abort Python's end.
    importlib.import_module("torch.distributed.nn.functional")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    with _as_input_error():
        dist.init_process_group(backend, rank=processes.rank, world_size=processes.size, timeout=patience)
    try:
        yield
    finally:
        dist.destroy_process_group()
