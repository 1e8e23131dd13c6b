"""The gradient of one batch: at once, in micro-batches where memory is short, or shared by several processes.

Every way gives the same gradient, up to which dropout masks are drawn. A loss that is a mean over examples is
accumulated part by part; one over the whole batch (a correlation, a contrast) through cached outputs, as GradCache does
(Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", arXiv 2101.06983): forward
without a graph, the loss's gradient at all outputs together, then forward again part by part with the same dropout as
the first time, and backward from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from batches import Batch
from distributed import ALONE, Processes

# Types of devices whose dropout draws from a generator of their own; on others it is the CPU's.
OWN_GENERATOR = {"cuda": torch.cuda, "mps": torch.mps}
# What torch's errors say that are no OutOfMemoryError: on the CPU, of cuBLAS's workspace, on an Apple GPU.
NO_MEMORY = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "MPS backend out of memory")


@dataclass
class Gradients:
    """Computes gradients.

    device: where the model is. outputs(batch): its answers for a batch, (n, ...). scale(loss): the loss multiplied
    for fp16 (see precision.py). A batch knows its loss.
    """

    device: torch.device
    outputs: Callable[[Batch], torch.Tensor]
    scale: Callable[[torch.Tensor], torch.Tensor] = lambda loss: loss
    processes: Processes = ALONE

    def backward(self, parts: list[Batch], counts: list[int]) -> torch.Tensor:
        """Adds the gradient of the whole batch's loss to the parameters' .grad; returns that loss, without a graph.

        parts: this process's micro-batches, none where rank 0 has the whole batch. counts: rows of the batch that each
        process has. Gradients are not yet added up over the processes, but their sum is the whole batch's; the loss is
        returned whole.
        """
        if not parts:
            return self.processes.add(torch.zeros((), device=self.device))
        if self.is_mean(parts[0]):
            return self.processes.add(self._mean(parts, sum(counts)))
        if len(parts) == 1:
            part = parts[0]
            outputs = self.outputs(part)
            loss = self._over_all(part, outputs, part.labels, counts)
            self.scale(loss).backward()
        else:
            loss = self._cached(parts, counts)
        return loss.detach() if all(counts) else self.processes.add(loss.detach())

    def is_mean(self, part: Batch) -> bool:
        """Whether the loss is a mean over rows, so that it can be accumulated part by part."""
        return part.loss_is_mean

    def loss(self, part: Batch, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss, a scalar, of outputs (n, ...) and labels (n,): the part's, or of the batch that it is part of."""
        return part.loss(outputs, labels)

    def _mean(self, parts: list[Batch], total: int) -> torch.Tensor:
        """A mean over examples: each part's mean, weighted by its share of the rows."""
        losses = []
        for part in parts:
            outputs = self.outputs(part)
            loss = self.loss(part, outputs, part.labels)
            if len(part) != total:
                loss = loss * (len(part) / total)
            self.scale(loss).backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum(dim=0)

    def _over_all(self, part: Batch, outputs: torch.Tensor, labels: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """The loss over all processes' outputs, with a graph to this one's alone."""
        if self.processes.size == 1 or not all(counts):
            return self.loss(part, outputs, labels)
        everyones = self.processes.gather(outputs, counts)
        start = sum(counts[: self.processes.rank])
        joined = torch.cat([everyones[:start], outputs, everyones[start + len(outputs) :]])
        return self.loss(part, joined, self.processes.gather(labels, counts))

    def _cached(self, parts: list[Batch], counts: list[int]) -> torch.Tensor:
        states, found = [], []
        with torch.no_grad():
            for part in parts:
                states.append(random_state(part.device))
                found.append(self.outputs(part))
        outputs = torch.cat(found).requires_grad_()
        labels = torch.cat([part.labels for part in parts])
        loss = self._over_all(parts[0], outputs, labels, counts)
        self.scale(loss).backward()
        after = random_state(parts[0].device)
        for part, state, gradient in zip(parts, states, outputs.grad.split([len(p) for p in parts]), strict=True):
            set_random_state(part.device, state)
            self.outputs(part).backward(gradient)
        set_random_state(parts[0].device, after)
        return loss


def random_state(device: torch.device) -> torch.Tensor:
    """The state of the generator that dropout on this device draws from."""
    own = OWN_GENERATOR.get(device.type)
    return torch.get_rng_state() if own is None else own.get_rng_state(device)


def set_random_state(device: torch.device, state: torch.Tensor) -> None:
    """Make dropout on this device draw as it did from `state` on."""
    own = OWN_GENERATOR.get(device.type)
    if own is None:
        torch.set_rng_state(state)
    else:
        own.set_rng_state(state, device)


def out_of_memory(error: RuntimeError) -> bool:
    """Whether an exception says that a GPU's, or the machine's, memory is used up."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in NO_MEMORY)
