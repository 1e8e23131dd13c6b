"""Finished runs as members: of an ensemble, a soup, or of what a student learns from.

What each answers, and at what cost, stands in its folder; no model counts twice, and all were judged on the same rows.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from pathlib import Path

import contrastive_options
from datasets import Table
from errors import InputError
from files import read_json, sha256, short
from options import SCORES
from predictor import best_folders
from run import ROOT, Run, is_run
from run_checks import check_config, check_scores, last_row, need
from tasks import TASKS


@dataclass(frozen=True)
class Member:
    """A finished run. folders: task -> the folder of the best model that has a head for it."""

    run: Run
    folders: dict[str, Path]

    @classmethod
    def read(cls, name: str) -> Member:
        """A run, given as its folder or its name in runs/. Raises InputError unless it is one that is finished."""
        run = Run.open(name, ROOT)
        run.refuse_unfinished()
        if is_run(run.folder) and run.config["command"] == contrastive_options.COMMAND:
            raise InputError(
                f"{short(run.folder)}: a run of {contrastive_options.COMMAND}, which has no tasks: leave it out"
            )
        member = cls(run, best_folders(run.folder))
        check_config(member.config, run.folder / "config.json")
        gone = [name for name in member.scores if name not in member.folders]
        if gone:
            raise InputError(
                f"{member.name}: {SCORES} has {', '.join(gone)}, but there is no model of it (any more): copy the run "
                "again, or leave it out"
            )
        member.cost()  # said before anything is asked, if it can't be
        return member

    @cached_property
    def config(self) -> dict:
        return self.run.config

    @property
    def name(self) -> str:
        return short(self.run.folder)

    @cached_property
    def scores(self) -> dict[str, float | None]:
        """Task -> its dev score, as it was written when the run ended."""
        path = self.run.folder / SCORES
        found = check_scores(read_json(path), path)
        return {name: values[TASKS[name].metric] for name, values in found.items()}

    @cached_property
    def hashes(self) -> dict[Path, str]:
        """The folder of each of its models -> SHA-256 of the weights."""
        files = {folder: folder / "model.safetensors" for folder in sorted(set(self.folders.values()))}
        gone = [path for path in files.values() if not path.is_file()]
        if gone:
            raise InputError(f"{short(gone[0])} is gone: copy the run again, or leave {self.name} out")
        return {folder: sha256(path) for folder, path in files.items()}

    @property
    def models_sha256(self) -> str:
        """One SHA-256 for all its models."""
        return hashlib.sha256("".join(self.hashes.values()).encode()).hexdigest()

    def answers_as(self, other: Member, task: str) -> bool:
        """Whether both have the same model for a task: the same weights, read by the same head."""
        if task not in self.folders or task not in other.folders:
            return False
        own, others = self.folders[task], other.folders[task]
        return self.hashes[own] == other.hashes[others] and _head(own, task) == _head(others, task)

    def recorded(self, task: str, split: str, key: str) -> str:
        """What config.json says of a data file: its path or its sha256."""
        return need(self.config, ("data", task, split, key), str, self.run.folder / "config.json")

    def cost(self) -> tuple[float, int]:
        """(seconds, tokens) of training."""
        parts = dict.fromkeys(self.run.part(name) for name in self.scores)
        ends = [last_row(part / self.run.metrics.name) for part in parts]
        return sum(end["train_seconds"] for end in ends), sum(end["train_tokens"] for end in ends)


def read_members(names: list[str]) -> list[Member]:
    """The runs by their folders or names. Raises InputError for fewer than two, or one twice, a copy of it, too."""
    members = [Member.read(name) for name in names]
    if len({member.run.folder.resolve() for member in members}) < max(2, len(members)):
        raise InputError(f"--ensemble {' '.join(names)}: wants two runs or more, each named once")
    refuse_copies("--ensemble", members, list(TASKS))
    return members


def refuse_copies(option: str, members: list[Member], tasks: list[str]) -> None:
    """Raises InputError for runs with the same model for one of these tasks, whose answers would count twice."""
    for (other, member), task in product(combinations(members, 2), tasks):
        if member.answers_as(other, task):
            raise InputError(
                f"{option}: {member.name} has the same model of {task} as {other.name}: leave one of them out"
            )


def refuse_other_rows(member: Member, task: str, dev: Table) -> None:
    """Raises InputError for a run whose dev file was another than this one, which it may have been trained on."""
    if member.recorded(task, "dev", "sha256") != dev.sha256:
        raise InputError(
            f"{member.name} was judged on another file than {short(dev.path)} (their bytes differ), and may have been "
            "trained on its rows: leave that run out, or name its data with --data"
        )


def _head(best: Path, task: str) -> object:
    """What config.json says of a task's head, but for its dropout; a damaged one is said when the model is loaded."""
    config = read_json(best / "config.json")
    with suppress(KeyError, TypeError, AttributeError):
        return {name: value for name, value in config["minbert"]["heads"][task].items() if name != "dropout_prob"}
    return None
