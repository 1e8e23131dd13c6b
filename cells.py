"""Cells of a table: one training run each, in a folder of its own, as processes one after the other.

Follows docs/papers.md. A cell is done when its row stands in the file of rows; a run that is finished without one
gives it, one that was stopped is resumed. What is kept of a run are its logs and predictions.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import weights
from console import warn
from errors import InputError, quoted
from experiments import TEACHING, Row, Table
from files import atomic_write, cannot, sha256, short
from options import SCORES, unfinished
from run import ROOT, Run
from run_checks import need, read_lines
from sentence_encoder import best_of
from sharing import append_line, holder

LOG = "log.txt"
LENT = "lent.txt"  # in a run's folder: its model stays for others to learn from, and goes with the last of them
PATIENCE = 120  # seconds that a stopped run has to write its checkpoint before it is killed
NEW, STOPPED, FINISHED, DONE = "new", "stopped", "finished", "done"


@dataclass(frozen=True)
class Scale:
    """What is run, beside the tables' own options: the encoder, its recommended rates, data, how long, how much of it.

    model, data: as typed, None for the defaults; model_name, data_name: what they are called in folders and captions.
    lr: option -> learning rate. epochs, batch_size: option -> number. fraction: task or objective -> share of its train
    rows, 1 where not named. runs: the folder of all runs. where: options that change no numbers.
    """

    model: str | None
    model_name: str
    data: Path | None
    data_name: str
    lr: dict[str, float]
    epochs: dict[str, int]
    batch_size: dict[str, int]
    fraction: dict[str, float]
    runs: Path
    where: tuple[str, ...] = ()

    def parts(self, names: Iterable[str]) -> dict[str, float]:
        """Those of these of which not all train rows are taken."""
        return {name: self.fraction[name] for name in names if self.fraction.get(name, 1) < 1}


@dataclass(frozen=True)
class Cell(ABC):
    """One run: a row of a table, what of it, a seed, at a scale. What it takes is its kind's: see task_cells.py."""

    row: Row
    options: tuple[tuple[str, str], ...]
    tasks: tuple[str, ...]
    seed: int
    scale: Scale

    @property
    @abstractmethod
    def parts(self) -> dict[str, float]:
        """Of what not all train rows are taken, and which share."""

    @property
    def identity(self) -> dict:
        """What tells this cell's row in a file of rows from others'."""
        scale, option = self.scale, self.row.option
        return {
            "model": scale.model_name,
            "data": scale.data_name,
            "row": self.row.key,
            "option": option,
            "tasks": list(self.tasks),
            "epochs": scale.epochs[option],
            "batch_size": scale.batch_size[option],
            "fraction": self.parts,
            "seed": self.seed,
        }

    @property
    def folder(self) -> Path:
        scale = self.scale
        parts = "".join(f"-{name}{share:g}" for name, share in self.parts.items())
        option = self.row.option
        name = f"epochs{scale.epochs[option]}-batch{scale.batch_size[option]}{parts}-seed{self.seed}"
        where = scale.runs / f"{scale.model_name}-{scale.data_name}"
        return where / f"{self.row.key}-{option}" / "-".join(self.tasks) / name

    def __str__(self) -> str:
        return f"{self.row.key} {self.row.option} {','.join(self.tasks)} seed {self.seed}"

    @abstractmethod
    def words(self) -> list[str]:
        """The program and its options that make it, or go on with it, beside those of scale.where."""

    def command(self) -> list[str]:
        """The process that makes it, a part of it, or goes on with it."""
        program, *words = self.words()
        return [sys.executable, str(ROOT / program), *words, *self.scale.where]

    def state(self) -> str:
        """Whether its folder holds no run, a stopped or a finished one."""
        if not (self.folder / "config.json").is_file():
            return NEW
        return FINISHED if (self.folder / SCORES).is_file() and not unfinished(self.folder) else STOPPED

    @abstractmethod
    def changed_options(self, found: dict, where: str) -> list[str]:
        """Options of a run, a config or a row, that are not this cell's: `epochs 3 -> 2`."""

    @abstractmethod
    def check(self, found: dict, where: str) -> None:
        """Raises InputError if a run of these options and data (a config or a row) is not this cell's.

        An option that it doesn't name is one that came later: it had its default.
        """

    @abstractmethod
    def finished_row(self, call: str | None) -> dict:
        """The row of the finished run. call: of this program, within which times can be compared, if all was in it."""

    @abstractmethod
    def estimate(self, position: tuple[int, int] | None) -> tuple[float, float]:
        """Seconds that it takes here, about, or what is left of it, and bytes on disk while it runs.

        position: epochs and steps of the checkpoint, None without one.
        """

    @abstractmethod
    def selecting(self) -> list[tuple[str, str]]:
        """What of the row's "dev" is said when it is there, each with its metric."""


def encoder_of(args: argparse.Namespace) -> tuple[weights.Weights | None, str]:
    """The weights of --model, and what rows call them: a run's or its best/'s by the run's own name.

    None with --print where they aren't there, which needs their name alone. Raises InputError for what isn't there.
    """
    try:
        source = weights.find(best_of(args.model))
    except InputError:
        if not args.print or args.model is None:
            raise
        return None, Path(args.model).name
    folder = source.path.parent if source.path.name == "best" else Path(source.name)
    return source, folder.name


def fits_scale(cell: dict, scale: Scale) -> bool:
    """Whether a row of the file, whose cell this is, is of this scale, but for its share of the train rows."""
    return (
        (cell["model"], cell["data"]) == (scale.model_name, scale.data_name)
        and cell["epochs"] == scale.epochs.get(cell["option"])
        and cell["batch_size"] == scale.batch_size.get(cell["option"])
    )


def refuse_differences(differences: list[str], where: str) -> None:
    """Raises InputError if there is any."""
    if differences:
        raise InputError(
            f"{where}: a run of other options or data ({'; '.join(differences)}): move it away, or "
            "choose another --runs and --results"
        )


_hashes: dict[Path, str] = {}


def hash_of(path: Path) -> str:
    """Of a data file, or of a folder's files and their names, read once."""
    if path not in _hashes:
        files = [(file.relative_to(path), sha256(file)) for file in sorted(path.rglob("*")) if file.is_file()]
        names = "".join(f"{name.as_posix()} {digest}\n" for name, digest in files)
        _hashes[path] = hashlib.sha256(names.encode()).hexdigest() if path.is_dir() else sha256(path)
    return _hashes[path]


def cells_of(
    kind: type[Cell], table: Table, scale: Scale, seeds: Iterable[int], wanted: Callable[[Row, tuple], bool]
) -> list[Cell]:
    """The cells of a table, those of the first seed first, and a task's side by side, as their times are compared."""
    found = [
        kind(row, tuple(table.options_of(row).items()), tasks, seed, scale)
        for seed in seeds
        for row in table.rows
        for tasks in row.runs
        if wanted(row, tasks)
    ]
    return sorted(found, key=lambda cell: (list(seeds).index(cell.seed), cell.row.option, cell.tasks))


def with_teachers(cells: list[Cell], table: Table, rows: Rows) -> tuple[list[Cell], dict[Path, set[Path]]]:
    """The cells and the runs that new ones are distilled from, these first; folder -> the folders that it learns from,
    of those that are made already, too.

    Where a row of a teacher stands, but its model is gone, its students are left out, with a line that says so. Raises
    InputError if nothing else is wanted.
    """
    teachers, needs, orphans = {}, {}, {}
    for student in cells:
        if student.row.teacher is None:
            continue
        is_new = state_of(student, rows) == NEW
        of = tuple(table.options_of(student.row.teacher).items())
        for seed in TEACHING:
            teacher = replace(student, row=student.row.teacher, options=of, seed=seed)
            needs.setdefault(student.folder, set()).add(teacher.folder)
            if not is_new:
                continue
            if state_of(teacher, rows) == DONE and not (teacher.folder / "best").is_dir():
                orphans[student.folder] = (
                    f"{student} learns from {teacher}, whose row stands in {short(rows.path)} and whose model is gone: "
                )
                break
            teachers[teacher.folder] = teacher
    if orphans and len(orphans) == len(cells):
        raise InputError(
            f"{next(iter(orphans.values()))}leave it out with --rows, or choose another --runs and --results"
        )
    for said in orphans.values():
        warn(f"warning: {said}left out; another --runs and --results makes both")
    cells = [cell for cell in cells if cell.folder not in orphans]
    wanted = set().union(*(needs[cell.folder] for cell in cells if cell.folder in needs))
    teachers = {folder: teacher for folder, teacher in teachers.items() if folder in wanted}
    needs = {folder: of for folder, of in needs.items() if folder not in orphans}
    there = {cell.folder for cell in cells}
    return [teacher for folder, teacher in teachers.items() if folder not in there] + cells, needs


class Rows:
    """The file of rows, one JSON line a finished cell."""

    def __init__(self, path: Path):
        self.path = path
        self.rows = read_lines(path) if path.is_file() else []
        for found in self.rows:
            _check_row(found, path)

    def of(self, cell: Cell) -> dict | None:
        return next((found for found in self.rows if found["cell"] == cell.identity), None)

    def add(self, found: dict) -> None:
        """Append a row, whole or not at all. Raises InputError where the disk refuses."""
        append_line(self.path, json.dumps(found))
        self.rows.append(found)


def _check_row(found: dict, path: Path) -> None:
    """Raises InputError unless a row says whose it is, as every table looks for its own."""
    for key, kind in (("row", str), ("option", str), ("seed", int), ("tasks", list)):
        need(found, ("cell", key), kind, path)
    for task in found["cell"]["tasks"]:
        need({"task": task}, ("task",), str, path)
    need(found, ("call",), (str, type(None)), path)
    need(found, ("train_seconds",), (int, float), path)
    for part in ("dev", "data"):
        need(found, (part,), dict, path)


def state_of(cell: Cell, rows: Rows) -> str:
    """Raises InputError if what is there is of other options or data."""
    found = rows.of(cell)
    if found:
        cell.check(found, f"{short(rows.path)}, {cell}")
        return DONE
    state = cell.state()
    if state != NEW:
        cell.check(Run(cell.folder).config, short(cell.folder))
    return state


@dataclass
class Running:
    """A process that makes a cell; None for one of an earlier call, which was killed and left it behind."""

    cell: Cell
    process: subprocess.Popen | None
    resumed: bool

    def ended(self) -> bool:
        return self.process.poll() is not None if self.process else holder(self.cell.folder) is None


def start(cell: Cell, jobs: int, resumed: bool) -> Running:
    """Start its process, with a share of the cores where there are several; what it prints goes to a log."""
    environment = dict(os.environ)
    if jobs > 1:
        environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // jobs))
    command = cell.command()
    try:
        cell.folder.mkdir(parents=True, exist_ok=True)
        with open(cell.folder / LOG, "ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
    except OSError as error:
        raise cannot("write", cell.folder / LOG, error) from error
    return Running(cell, process, resumed)


def last_words(cell: Cell) -> str:
    """The last line of its log: what went wrong, if something did."""
    lines = (cell.folder / LOG).read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no word of it")


def stop(running: list[Running]) -> None:
    """End the processes of this call, which write checkpoints first; what doesn't end is killed."""
    ours = [each.process for each in running if each.process]
    for process in ours:
        process.send_signal(signal.SIGTERM)
    for process in ours:
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()


def run_all(
    cells: list[Cell],
    rows: Rows,
    jobs: int,
    call: str,
    keep_models: bool,
    say,
    needs: dict[Path, set[Path]] | None = None,
) -> list[Cell]:
    """Make the rows of these cells, `jobs` at a time. Returns those that failed; an interrupt stops what runs.

    needs: a cell's folder -> the folders of those that are made before it, and whose models it learns from. These stay
    until no cell is left that learns from them, in this call or a later one; what --keep_models kept stays for good.
    """
    waiting, running, failed, needs = list(cells), [], [], needs or {}
    unmade = {cell.folder for cell in cells}

    def ready() -> Cell | None:
        ahead = {cell.folder for cell in waiting} | {each.cell.folder for each in running}
        return next((cell for cell in waiting if not needs.get(cell.folder, set()) & ahead), None)

    def still_needed() -> set[Path]:
        return set().union(*(needs[folder] for folder in unmade & needs.keys()))

    def give_back() -> None:
        for folder in set().union(*needs.values()) - still_needed():
            if (folder / LENT).is_file() and keep_models:
                (folder / LENT).unlink()
            elif (folder / LENT).is_file():
                delete_model(folder)

    def collect(cell: Cell, whole: bool) -> None:
        found = cell.finished_row(call if whole else None)
        if cell.folder in still_needed() and not keep_models:
            lend(cell.folder)
        elif not keep_models:  # before there is a row, after which nobody looks there again
            delete_model(cell.folder)
        rows.add(found)
        unmade.discard(cell.folder)
        give_back()
        scores = [f"{name} {metric} {_show(found['dev'][name][metric])}" for name, metric in cell.selecting()]
        say(f"{len(cells) - len(waiting) - len(running)} of {len(cells)}: {cell}: {', '.join(scores)}")

    give_back()  # what a call was interrupted before
    try:
        while waiting or running:
            while len(running) < jobs and (cell := ready()):
                waiting.remove(cell)
                if cell.state() == FINISHED:
                    collect(cell, False)
                    continue
                if other := holder(cell.folder):
                    say(f"waiting    for process {other} of an earlier call, which still makes {cell}")
                    running.append(Running(cell, None, True))
                    continue
                resumed = cell.state() == STOPPED
                say(f"{'continued' if resumed else 'started'}  {cell}, in {short(cell.folder)}")
                running.append(start(cell, jobs, resumed))
            for each in [each for each in running if each.ended()]:
                running.remove(each)
                if each.process is None:  # finished or not: its folder tells
                    waiting.insert(0, each.cell)
                elif each.process.returncode and holder(each.cell.folder):  # one of an earlier call was just starting
                    waiting.insert(0, each.cell)
                elif each.process.returncode == 0 and each.cell.state() == FINISHED:
                    collect(each.cell, not each.resumed)
                elif each.process.returncode == 0 and each.cell.command() != each.process.args:  # its next part
                    running.append(start(each.cell, jobs, each.resumed))
                else:
                    failed.append(each.cell)
                    say(f"failed     {each.cell}: {last_words(each.cell)} ({short(each.cell.folder / LOG)})")
            time.sleep(0.2 if running else 0)
    finally:
        stop(running)
    return failed


def delete_model(folder: Path) -> None:
    """The best model of a finished run, whose row is kept: tables need no weights, and disks are finite."""
    if (folder / "best").is_dir():
        shutil.rmtree(folder / "best")
    (folder / LENT).unlink(missing_ok=True)


def lend(folder: Path) -> None:
    """Note that the model stays for others to learn from, and not because of --keep_models."""
    with atomic_write(folder / LENT) as file:
        file.write("best/ is deleted when the runs that learn from it are made\n")


def _show(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def parse_shares(text: str | None, option: str, known: Iterable[str], kind: type, default) -> dict:
    """`para=0.5,sts=1` or one number for all -> {name: number}. Raises InputError naming the known."""
    found = dict.fromkeys(known, default)
    for part in (text or "").split(",") if text is not None else ():
        name, equals, number = part.strip().rpartition("=")
        try:
            value = kind(number)
        except ValueError:
            value = None
        if value is None or (name not in found if equals else "," in text) or not value > 0:
            raise InputError(
                f"{option} {text}: {quoted(part)} is not understood; wanted one number above 0 for all, or "
                f"{','.join(f'{name}=NUMBER' for name in found)}, or some of these"
            )
        found.update({name: value} if equals else dict.fromkeys(found, value))
    return found
