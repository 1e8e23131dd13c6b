"""Soft labels: train rows whose label is a distribution, where the one that was given is not taken for certain.

Label smoothing gives each class a share of every label (Szegedy et al. 2016, arXiv 1512.00567, section 7). Distillation
gives it what finished runs, the teachers, answer (Hinton, Vinyals and Dean 2015, arXiv 1503.02531), here of the
student's own size, as in born-again networks (Furlanello et al. 2018, arXiv 1805.04770; for several tasks Clark et al.
2019, arXiv 1907.04829). Cross entropy is linear in the label, so that of a mixed label is the mixture of both.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from ensemble import Member, answers, average, refuse_other_rows
from errors import InputError
from evaluation import Predictions, probabilities
from files import short
from job import Job
from tasks import TASKS, Task
from tensor_files import DAMAGE, read_tensors, write_tensors

Say = Callable[[str], None]
FILE = "soft_labels.safetensors"
# Losses whose labels may be soft; the others compare classes by their order, or ask for one class.
LOSSES = {"cross_entropy", "binary_cross_entropy", "negative_pearson"}


def smooth(task: Task, labels: torch.Tensor, share: float) -> torch.Tensor:
    """Labels (n,) of which `share` is spread evenly over the classes: (n, C) of classes, (n,) of two; a score's own."""
    if task.label_kind == "score" or not share:
        return labels
    if task.label_kind == "binary":
        return (1 - share) * labels + share / 2
    return (1 - share) * F.one_hot(labels, task.output_size).float() + share / task.output_size


def taught(task: Task, said: list[Predictions]) -> torch.Tensor:
    """What teachers together say of some rows, (n, C) or (n,) float32, on the scale of `mixed`.

    said: their answers for these rows. The mean of their probabilities, of two classes that of a 1; of scores the mean
    of theirs, each standardized over these rows.
    """
    together = average(task, said, said)
    chances = probabilities(task, together)
    found = together if chances is None else chances[:, 1] if task.label_kind == "binary" else chances
    return torch.from_numpy(np.asarray(found, dtype=np.float32))


def mixed(task: Task, labels: torch.Tensor, said: torch.Tensor, weight: float) -> torch.Tensor:
    """(1 - weight) of the labels, (n,) or smoothed, and weight of what teachers said; scores are standardized first."""
    if task.label_kind == "score":
        labels = (labels - labels.mean()) / labels.std(correction=0).clamp(min=1e-8)
    elif labels.ndim < said.ndim:
        labels = F.one_hot(labels, said.shape[1]).float()
    return (1 - weight) * labels + weight * said


def soften(job: Job, folder: Path, say: Say) -> None:
    """Replace the train rows' labels as --label_smoothing and --distill say; dev's and test's stay as they are.

    What the teachers said is kept in the run's folder, so that a resumed run does not need them again. Raises
    InputError for teachers that were judged on other dev rows, or know none of the tasks.
    """
    args = job.args
    if args.label_smoothing:
        for task in job.tasks:
            rows = job.data[task.name]["train"]
            rows.labels = smooth(task, rows.labels, args.label_smoothing)
    if args.distill:
        path = folder / FILE
        said = _read(path, job) if path.is_file() else _ask(job, say)
        job.processes.wait()  # until all have looked whether the file is there
        if job.processes.first and not path.is_file():
            write_tensors(path, said, {})
        for name, found in said.items():
            rows = job.data[name]["train"]
            rows.labels = mixed(TASKS[name], rows.labels, found, args.distill_weight)


def check_soft(job: Job) -> list[Member]:
    """The teachers. Raises InputError for a loss without soft labels, and for teachers that can't be asked."""
    distill, smoothing = job.args.distill, job.args.label_smoothing
    members = [Member.read(name) for name in distill or ()]
    names, classes = [task.name for task in job.tasks], [task for task in job.tasks if task.label_kind != "score"]
    for task in job.tasks:
        if task.loss not in LOSSES and (distill or smoothing):
            option = "--distill" if distill else "--label_smoothing"
            raise InputError(f"{option}: the loss {task.loss} of {task.name} wants whole labels: leave one of both out")
    if smoothing and not classes:
        raise InputError(f"--label_smoothing {smoothing:g}: {', '.join(names)} has no classes: leave it out")
    if len({member.run.folder.resolve() for member in members}) < len(members):
        raise InputError(f"--distill {' '.join(distill)}: name each run once")
    if members and not any(name in member.folders for member in members for name in names):
        raise InputError(f"--distill {' '.join(distill)}: no model of these has a head for {' or '.join(names)}")
    for member in members:
        for name in set(names) & member.folders.keys():
            refuse_other_rows(member, name, job.data[name]["dev"].table)
    return members


def _ask(job: Job, say: Say) -> dict[str, torch.Tensor]:
    members = check_soft(job)
    tables = {(task.name, "train"): job.data[task.name]["train"].table for task in job.tasks}
    said: dict[str, list[Predictions]] = {}
    for (name, _), found, _rows in answers(members, tables, job.device, job.precision.dtype, say, job.processes):
        said.setdefault(name, []).append(found)
    return {name: taught(TASKS[name], found) for name, found in said.items()}


def _read(path: Path, job: Job) -> dict[str, torch.Tensor]:
    remedy = "delete it, and the teachers are asked again"
    try:
        said = read_tensors(path)[0]
    except (OSError, *DAMAGE) as error:
        raise InputError(f"{short(path)}: cut short or altered ({error}): {remedy}") from error
    for name, found in said.items():
        rows = job.data.get(name, {}).get("train")
        if rows is None or found.shape != TASKS[name].output_shape(len(rows)):
            raise InputError(f"{short(path)}: not what the teachers said of these train rows: {remedy}")
    return said
