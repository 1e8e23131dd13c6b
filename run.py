"""A run's folder: what it was asked, what it measured, its best model, and what resuming needs.

Tensors are kept as safetensors (github.com/huggingface/safetensors), the rest as JSON, so no file needs pickle to load:
runs/<name>/config.json, metrics.jsonl, best/, last/, predictions/, dev_outputs.safetensors. Every file is written whole
or not at all.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

import torch

from errors import InputError
from files import atomic_write, cannot, read_json, remove_temporaries, short, write_json
from sharing import held
from tensor_files import CHECKSUM, DAMAGE, read_tensors, write_tensors

ROOT = Path(__file__).resolve().parent
# What a run writes beside config.json: a folder that has one of these is somebody's.
WRITTEN = ("metrics.jsonl", "scores.json", "dev_outputs.safetensors", "soft_labels.safetensors", "report.html")
WRITTEN += ("best", "last", "predictions")
CHECKPOINT = "checkpoint.safetensors"


class Run:
    """One run's folder."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.best = self.folder / "best"
        self.checkpoint = self.folder / "last" / CHECKPOINT
        self.metrics = self.folder / "metrics.jsonl"
        self.predictions = self.folder / "predictions"
        self.outputs = self.folder / "dev_outputs.safetensors"

    @classmethod
    def create(cls, folder: Path, config: dict) -> Run:
        """Make the folder and write config.json before anything else. Raises InputError if a run is there already."""
        run = cls(folder)
        run.refuse_taken()
        write_json(run.folder / "config.json", config)
        return run

    def refuse_taken(self) -> None:
        """Raises InputError if a run is there already, finished or not, or anything that a run would overwrite; and for
        the program's own folder, and one that holds runs, whose files another process may be writing.
        """
        if (self.folder / "config.json").exists():
            finished = (self.folder / "scores.json").exists()
            going_on = "" if finished else f"{self.going_on()}, or "
            raise InputError(
                f"{self.folder} holds a {'finished ' if finished else ''}run already: {going_on}choose another --run"
            )
        runs = [path.parent.name for path in self.folder.glob("*/config.json") if is_run(path.parent)]
        if runs or self.folder.resolve() == ROOT:
            what = f"holds runs ({runs[0]})" if runs else "is the program's own folder"
            raise InputError(f"{self.folder} {what}: choose another --run, say a new folder in it")
        there = next((name for name in WRITTEN if os.path.lexists(self.folder / name)), None)
        if there:
            raise InputError(
                f"{self.folder} has {there} in it, which a run would overwrite: choose another --run, or move it away"
            )

    def part(self, task: str) -> Path:
        """The folder that a task was trained in: the run's, or its own of --schedule separate."""
        own = self.folder / task
        return own if own.is_dir() and not self.metrics.is_file() else self.folder

    @property
    def has_lost_scores(self) -> bool:
        """Whether it was finished: what comes before its scores is there, and no checkpoint to make them from."""
        if (self.folder / "scores.json").is_file() or self.members():
            return False
        if any(self.folder.glob(f"**/last/{CHECKPOINT}")):
            return False
        return self.outputs.is_file() or self._has_trained_an_encoder()

    def _has_trained_an_encoder(self) -> bool:
        """Whether it is one of contrastive.py's, which keep no outputs of dev, whose training is over.

        There is no best model before the first checkpoint, unless no epoch is asked for. If the checkpoint was deleted,
        to start over, metrics end before the last epoch.
        """
        config = self.config if is_run(self.folder) else {}
        options = config.get("options")
        asked = {name: options.get(name) for name in ("epochs", "patience")} if isinstance(options, dict) else {}
        if config.get("command") != "contrastive.py" or not asked.get("epochs") or not self.best.is_dir():
            return False
        try:
            rows = [json.loads(line) for line in self.metrics.read_text(encoding="utf-8").splitlines()]
            last, kept = rows[-1]["epoch"], [number for number, row in enumerate(rows) if row["best"]]
        except (OSError, ValueError, RecursionError, LookupError, TypeError):
            return True
        given_up = isinstance(asked["patience"], int) and 0 < asked["patience"] <= len(rows) - 1 - max(kept, default=0)
        return last == asked["epochs"] or given_up

    def going_on(self) -> str:
        """What to do with one that is not finished. An ensemble has nothing to continue from."""
        if self.has_lost_scores:
            model = "still answers: predict.py" if self.outputs.is_file() else "is still in best/"
            return f"copy its scores.json back (its model {model})"
        if self.members():
            other = " and another --run" if (self.folder / "scores.json").is_file() else ""
            return f"make the ensemble again, by its command{other}"
        return f"continue it with --resume {shlex.quote(str(self.folder))}"

    def refuse_unfinished(self) -> None:
        """Raises InputError where its scores aren't there yet, which come last."""
        if not (self.folder / "scores.json").is_file():
            so_far = "has lost its scores.json" if self.has_lost_scores else "is not finished (no scores.json)"
            raise InputError(f"{self.folder} {so_far}: {self.going_on()}")

    def refuse_to_start_over(self) -> None:
        """Raises InputError for a finished run without its scores, which would be trained anew over its best model."""
        if self.has_lost_scores:
            raise InputError(
                f"{self.folder} has lost its scores.json, and training would start over: {self.going_on()}, or train "
                "again with another --run"
            )

    def members(self) -> list[str]:
        """The runs that an ensemble, or a soup, is made of; [] of a run that trained, or of a model's folder."""
        config = self.config if is_run(self.folder) else {}
        options, places = config.get("options"), config.get("members")
        runs = options.get("ensemble") if isinstance(options, dict) else None
        if not isinstance(runs, list):
            return []
        if isinstance(places, list) and len(places) == len(runs):  # whole, so true from any folder
            runs = [short(Path(str(place))) for place in places]
        return [str(run) for run in runs]

    def refuse_ensemble(self) -> None:
        """Raises InputError for an ensemble, naming its runs, where a model is asked for: it has none, or lost it."""
        if self.members():
            names, folder = ", ".join(self.members()), short(self.folder)
            if self.config["options"].get("soup"):
                raise InputError(f"{folder} is a soup whose best/ is gone: make it again, or name one of {names}")
            raise InputError(f"{folder} is an ensemble, without a model of its own: name one of its runs, {names}")

    @classmethod
    def open(cls, name: str | Path, root: Path) -> Run:
        """A run that exists, given as its folder, its best/, or its name below `root`/runs.

        Every command that is told of a run finds it here. Raises InputError if there is none.
        """
        for folder in (Path(name), root / "runs" / name):
            if folder.name == "best" and is_run(folder.parent) and not is_run(folder):
                return cls(folder.parent)
            if (folder / "config.json").is_file():
                return cls(folder)
        raise InputError(f"{name}: no run there (no config.json): name a run's folder, or its name in runs/")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No other process trains in the folder (made if missing) for as long as this lasts.

        What a killed one left half-written of a run is deleted. Raises InputError, naming the process that holds the
        lock.
        """
        with held(self.folder, "being trained"):
            if is_run(self.folder):  # else it may be a folder of runs, or the program's own
                self._remove_temporaries()
            yield

    def _remove_temporaries(self) -> None:
        """Of this run alone: below its folder others may be writing theirs."""
        parts = [path for path in self.folder.glob("*") if path.is_dir() and not (path / "config.json").exists()]
        for folder in (self.folder, *parts):
            remove_temporaries(folder, below=False)
            for name in ("best", "last", "predictions"):
                remove_temporaries(folder / name)

    def position(self) -> tuple[int, int] | None:
        """Epochs finished and steps made in the one then running, as the checkpoint says; None without one.

        Raises InputError for a damaged file, as far as that can be told from its beginning.
        """
        if not self.checkpoint.is_file():
            return None
        with self._reading():
            state = json.loads(self._header()["state"])
            return int(state["epoch"]), int(state["step"])

    def _header(self) -> dict[str, str]:
        """What stands before the checkpoint's tensors."""
        with open(self.checkpoint, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            return json.loads(file.read(min(size, 100_000_000)))["__metadata__"]

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Whatever a damaged checkpoint leads to is one line that says what to do."""
        try:
            yield
        except OSError as error:
            raise cannot("read", self.checkpoint, error) from error
        except DAMAGE as error:
            raise InputError(
                f"{self.checkpoint}: cut short or altered ({error}): delete {self.checkpoint.parent} and resume, "
                "which starts over, or start a new run"
            ) from error

    @property
    def config(self) -> dict:
        return read_json(self.folder / "config.json")

    def write_metrics(self, history: list[dict]) -> None:
        """metrics.jsonl: one row an evaluation."""
        with atomic_write(self.metrics) as file:
            file.writelines(json.dumps(row) + "\n" for row in history)

    def write_outputs(self, outputs: dict[str, torch.Tensor]) -> None:
        """What the best model's heads gave for dev, task -> (n, C) or (n,) in the file's order.

        Prediction files hold decisions alone; probabilities come from these without the model running again.
        """
        write_tensors(self.outputs, outputs, {})

    def read_outputs(self) -> dict[str, torch.Tensor]:
        """What write_outputs wrote; {} of a run from before there was such a file.

        Raises InputError for a damaged one.
        """
        if not self.outputs.is_file():
            return {}
        try:
            return read_tensors(self.outputs)[0]
        except OSError as error:
            raise cannot("read", self.outputs, error) from error
        except DAMAGE as error:
            model = self.best.is_dir() or not self.members()
            remedy = "delete it, and the model predicts again" if model else self.going_on()
            raise InputError(f"{self.outputs}: cut short or altered ({error}): {remedy}") from error

    def save_checkpoint(self, tensors: dict[str, torch.Tensor], state: dict) -> None:
        """One file, so that it is there whole or not at all: tensors, and in its header `state` and a checksum."""
        write_tensors(self.checkpoint, tensors, {"state": json.dumps(state)})

    def load_checkpoint(self) -> tuple[dict[str, torch.Tensor], dict] | None:
        """What save_checkpoint wrote, or None if nothing was saved yet. Raises InputError for a damaged file."""
        if not self.checkpoint.is_file():
            return None
        with self._reading():
            tensors, texts = read_tensors(self.checkpoint)
            if CHECKSUM not in texts:
                raise ValueError("it has no checksum")
            return tensors, json.loads(texts["state"])

    def finish(self) -> None:
        """A finished run needs no checkpoint: best/ has the model. What can't be deleted stays, and ends no run."""
        with suppress(OSError):
            self.checkpoint.unlink(missing_ok=True)
        with suppress(OSError):
            self._remove_temporaries()
        with suppress(OSError):
            self.checkpoint.parent.rmdir()


def is_run(folder: Path) -> bool:
    """Whether a folder is a run's, finished or not."""
    config = None
    with suppress(InputError):
        config = read_json(folder / "config.json") if (folder / "config.json").is_file() else None
    return isinstance(config, dict) and {"command", "options"} <= config.keys()


def newest(root: Path, fits: Callable[[Path], bool]) -> Path | None:
    """The folder in `root`/runs whose run was started last, of those that fit; None: there is none."""
    configs = sorted((root / "runs").glob("*/config.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    return next((config.parent for config in configs if fits(config.parent)), None)


def newest_finished(root: Path, holds: str = "scores.json") -> Path:
    """The newest run in `root`/runs that is finished and holds this file or folder. Raises InputError without one."""
    found = newest(root, lambda run: is_run(run) and all((run / name).exists() for name in ("scores.json", holds)))
    if found is None:
        raise InputError(f"no finished run in {short(root / 'runs')}: name a run's folder")
    return found


def predicted(root: Path, contents: dict[str, bytes], how_many: Callable[[Iterable[bool]], bool] = all) -> Path | None:
    """The newest run in `root`/runs that predicted all, or `any`, of these files, byte for byte; None: there is none.

    contents: prediction file's name -> bytes.
    """

    def fits(run: Path) -> bool:
        files = [(run / "predictions" / name, content) for name, content in contents.items()]
        return how_many(file.is_file() and file.read_bytes() == content for file, content in files)

    return newest(root, fits)


def new_name(option: str) -> str:
    """A folder name that sorts by time: 2024-05-01-173000-finetune."""
    return f"{datetime.now():%Y-%m-%d-%H%M%S}-{option}"


def environment(device: torch.device) -> dict:
    """Versions, commit, time and device: what config.json says of where a run happened."""
    import numpy
    import scipy
    import sklearn
    import tokenizers

    modules = (torch, numpy, scipy, sklearn, tokenizers)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "versions": {"python": platform.python_version(), **{m.__name__: str(m.__version__) for m in modules}},
        "commit": _commit(),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": {"type": device.type, "name": name, "threads": torch.get_num_threads()},
    }


def _commit() -> str | None:
    """The checkout's commit, with a + if files differ from it; None outside a checkout."""
    try:
        command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty=+"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
