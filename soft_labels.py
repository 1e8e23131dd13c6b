"""Soft labels: train rows whose label is not taken for certain: shares of the classes, or a score between two.

Label smoothing gives each class a share of every label (Szegedy et al. 2016, arXiv 1512.00567, section 7). Distillation
mixes it with what finished runs, the teachers, answer (Hinton, Vinyals and Dean 2015, arXiv 1503.02531), which may be
of the student's own size, as in born-again networks (Furlanello et al. 2018, arXiv 1805.04770; for several tasks Clark
et al. 2019, arXiv 1907.04829). Cross entropy is linear in the label, so that of a mixed label is the mixture of both.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from ensemble import answers, average
from errors import InputError
from evaluation import Predictions, probabilities
from files import short
from job import Job
from members import Member, refuse_copies, refuse_other_rows
from model import MultitaskBERT
from run import Run
from tasks import TASKS, Task
from tensor_files import DAMAGE, read_tensors, write_tensors

Say = Callable[[str], None]
FILE, TEACHERS = "soft_labels.safetensors", "teachers"
WEIGHT = 0.5
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
    InputError where they are asked again and are not those that the run began with.
    """
    args = job.args
    if args.label_smoothing:
        for task in job.tasks:
            rows = job.data[task.name]["train"]
            rows.labels = smooth(task, rows.labels, args.label_smoothing)
    if not args.distill and Run(folder).config.get(TEACHERS):
        raise InputError(f"{folder / 'config.json'}: teachers and options.distill differ: restore it")
    if args.distill:
        path, began_with = folder / FILE, Run(folder).config.get(TEACHERS)
        if not isinstance(began_with, dict) or list(began_with) != args.distill:
            raise InputError(f"{folder / 'config.json'}: teachers and options.distill differ: restore it")
        if args.distill_weight is None:
            raise InputError(f"{folder / 'config.json'}: options.distill_weight is None, wanted 0 to 1: restore it")
        there = path.is_file()
        said = _read(path, job, began_with) if there else _ask(job, began_with, say)
        job.processes.wait()  # until all have looked whether the file is there
        if job.processes.first and not there:
            write_tensors(path, said, {"of": _of(job, began_with)})
        for name, found in said.items():
            rows = job.data[name]["train"]
            rows.labels = mixed(TASKS[name], rows.labels, found, args.distill_weight)


def check_losses(job: Job) -> None:
    """Raises InputError for a loss without soft labels where labels are to be soft, and for nothing to be smoothed."""
    distill, smoothing = job.args.distill, job.args.label_smoothing
    for task in job.tasks:
        if task.loss not in LOSSES and (distill or smoothing):
            option = "--distill" if distill else "--label_smoothing"
            raise InputError(f"{option}: the loss {task.loss} of {task.name} wants whole labels: leave one of both out")
    if smoothing and all(task.label_kind == "score" for task in job.tasks):
        names = ", ".join(task.name for task in job.tasks)
        raise InputError(f"--label_smoothing {smoothing:g}: {names} has no classes: leave it out")


def find_teachers(job: Job) -> dict:
    """What config.json says of the teachers: {"teachers": folder -> SHA-256 of its models}; {} without --distill.

    In place of their names args.distill has their folders from here on. Raises InputError for teachers that can't be
    asked.
    """
    args, names = job.args, [task.name for task in job.tasks]
    if not args.distill:
        return {}
    members = _read_members(job)
    found = {str(member.run.folder.resolve()): member.models_sha256 for member in members}
    if len(found) < len(members):
        raise InputError(f"--distill {' '.join(args.distill)}: name each run once")
    refuse_copies("--distill", members, names)
    for best in {folder for member in members for name, folder in member.folders.items() if name in names}:
        MultitaskBERT.from_pretrained(best)  # a damaged one is said before there is a run
    args.distill, args.distill_weight = list(found), WEIGHT if args.distill_weight is None else args.distill_weight
    return {TEACHERS: found}


def _read_members(job: Job) -> list[Member]:
    members, names = [], [task.name for task in job.tasks]
    for name in job.args.distill:
        try:
            member = Member.read(name)
        except InputError as error:
            raise InputError(f"--distill {short(name)}: {error}") from error
        known = [task for task in names if task in member.folders]
        if not known:
            raise InputError(f"--distill {member.name}: it has no head for {' or '.join(names)}: leave it out")
        for task in known:
            refuse_other_rows(member, task, job.data[task]["dev"].table)
        members.append(member)
    return members


def _of(job: Job, teachers: dict) -> str:
    """Whose answers, to which rows."""
    tables = {task.name: job.data[task.name]["train"].table for task in job.tasks}
    rows = {name: [table.sha256, len(table.examples)] for name, table in tables.items()}
    return json.dumps({"teachers": list(teachers.values()), "train": rows}, sort_keys=True)


def _ask(job: Job, began_with: dict, say: Say) -> dict[str, torch.Tensor]:
    members = _read_members(job)
    for member, (folder, models) in zip(members, began_with.items(), strict=True):
        if member.models_sha256 != models:
            raise InputError(f"--distill {short(folder)}: another model than when the run began: start a new run")
    tables = {(task.name, "train"): job.data[task.name]["train"].table for task in job.tasks}
    said: dict[str, list[Predictions]] = {}
    for (name, _), found, _rows in answers(members, tables, job.device, job.precision.dtype, say, job.processes):
        said.setdefault(name, []).append(found)
    return {name: taught(TASKS[name], found) for name, found in said.items()}


def _read(path: Path, job: Job, began_with: dict) -> dict[str, torch.Tensor]:
    remedy = "delete it, and the teachers are asked again"
    try:
        said, texts = read_tensors(path)
    except (OSError, *DAMAGE) as error:
        raise InputError(f"{short(path)}: cut short or altered ({error}): {remedy}") from error
    if texts.get("of") != _of(job, began_with):
        raise InputError(f"{short(path)}: not what this run's teachers said of its train rows: {remedy}")
    return said
