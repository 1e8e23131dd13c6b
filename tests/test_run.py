"""A run's folder: one process at a time trains in it, and what a kill left there never ends a run."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from errors import InputError
from files import remove_temporaries, write_json
from locks import fcntl
from run import ROOT, Run, predicted

REPOSITORY = Path(__file__).resolve().parent.parent
HOLD = (
    "import sys, time; from run import Run\nwith Run(sys.argv[1]).locked(): print('held', flush=True); time.sleep(600)"
)


def leave(folder, name="last/.checkpoint.safetensors.0123456789ab.tmp"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"half")
    return path


def test_finishing_deletes_what_a_kill_left(tmp_path):
    run = Run(tmp_path / "run")
    leave(run.folder)
    run.checkpoint.touch()
    run.finish()
    assert not run.checkpoint.parent.exists()
    run.finish()


def test_finishing_never_ends_a_run(tmp_path):
    """What is not ours stays, and its folder with it."""
    run = Run(tmp_path / "run")
    kept = leave(run.folder, "last/notes.txt")
    run.finish()
    assert kept.exists()


def test_the_lock_deletes_what_a_kill_left_and_itself(tmp_path):
    run = Run(tmp_path / "run")
    write_json(run.folder / "config.json", {"command": "multitask_classifier.py", "options": {}})
    left, kept = leave(run.folder, "sst/best/.vocab.txt.0123456789ab.tmp"), leave(run.folder, ".mine.tmp")
    with run.locked():
        assert not left.exists() and kept.exists()
        assert (run.folder / ".lock").read_text() == f"{os.getpid()} being trained\n"
    assert not (run.folder / ".lock").exists()


def test_a_folder_of_runs_is_no_run_and_nothing_in_it_is_touched(tmp_path):
    other = Run(tmp_path / "runs" / "other")
    write_json(other.folder / "config.json", {"command": "multitask_classifier.py", "options": {}})
    writing = [leave(other.folder, f"{place}.x.0123456789ab.tmp") for place in ("", "best/", "last/", "sst/best/")]
    writing += [leave(tmp_path / "runs" / "predictions", ".y.0123456789ab.tmp")]
    runs = Run(tmp_path / "runs")
    with pytest.raises(InputError, match=r"runs holds runs \(other\): choose another --run, say a new folder in it"):
        runs.refuse_taken()
    with runs.locked():
        assert all(path.exists() for path in writing)
    with pytest.raises(InputError, match="is the program's own folder: choose another --run"):
        Run(ROOT).refuse_taken()


def test_what_others_may_be_writing_now_stays(tmp_path):
    old, new = leave(tmp_path, ".a.csv.0123456789ab.tmp"), leave(tmp_path, ".b.csv.0123456789ab.tmp")
    os.utime(old, (time.time() - 4000, time.time() - 4000))
    remove_temporaries(tmp_path, seconds=3600)
    assert not old.exists() and new.exists()


def test_the_position_is_read_without_the_tensors(tmp_path):
    run = Run(tmp_path / "run")
    assert run.position() is None
    run.save_checkpoint({"x": torch.ones(3)}, {"epoch": 2, "step": 5})
    assert run.position() == (2, 5) and run.load_checkpoint()[1] == {"epoch": 2, "step": 5}
    for nonsense in ({"epoch": float("inf"), "step": 5}, {"epoch": float("nan"), "step": 5}, {"step": 5}, [], None):
        run.save_checkpoint({"x": torch.ones(3)}, nonsense)
        with pytest.raises(InputError, match="cut short or altered .* delete .*last and resume"):
            run.position()
    run.save_checkpoint({"x": torch.ones(3)}, {"epoch": 2, "step": 5})
    run.checkpoint.write_bytes(run.checkpoint.read_bytes()[:20])
    with pytest.raises(InputError, match="cut short or altered .* delete .*last and resume"):
        run.position()


def test_a_folder_that_is_taken_says_how_to_go_on_if_that_can_be(tmp_path):
    run = Run.create(tmp_path / "x", {})
    with pytest.raises(
        InputError, match="x holds a run already: continue it with --resume .*x, or choose another --run"
    ):
        Run.create(tmp_path / "x", {})
    write_json(run.folder / "scores.json", {})
    with pytest.raises(InputError, match="x holds a finished run already: choose another --run"):
        Run.create(tmp_path / "x", {})


def test_one_of_an_ensemble_is_made_again(tmp_path):
    run = Run.create(tmp_path / "x", {"command": "c", "options": {"ensemble": ["a", "b"]}})
    again = "make the ensemble again, by its command"
    with pytest.raises(InputError, match=f"x holds a run already: {again}, or choose another --run"):
        run.refuse_taken()
    with pytest.raises(InputError, match=f"x is not finished .no scores.json.: {again}"):
        run.refuse_unfinished()
    run.outputs.write_bytes(b"cut")
    with pytest.raises(InputError, match=f"dev_outputs.safetensors: cut short or altered .*: {again}$"):
        run.read_outputs()
    write_json(run.folder / "scores.json", {})  # then its folder is taken
    with pytest.raises(
        InputError, match=f"dev_outputs.safetensors: cut short or altered .*: {again} and another --run"
    ):
        run.read_outputs()
    (run.folder / "config.json").write_text("{")
    with pytest.raises(InputError, match="x holds a finished run already: choose another --run"):
        run.refuse_taken()


@pytest.mark.parametrize("name", ["metrics.jsonl", "report.html", "predictions", "best"])
def test_what_stands_in_a_folder_is_not_overwritten(tmp_path, name):
    (tmp_path / name).write_text("precious")
    with pytest.raises(InputError, match=f"has {name} in it, which a run would overwrite: choose another --run"):
        Run.create(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_command_in_a_message_can_be_typed(tmp_path):
    run = Run.create(tmp_path / "a  folder", {})
    with pytest.raises(InputError) as error:
        run.refuse_unfinished()
    assert shlex.split(str(error.value).partition("with ")[2]) == ["--resume", str(run.folder)]


def test_a_run_is_found_by_its_folder_its_best_or_its_name(tmp_path, monkeypatch):
    """A folder that is there goes before a name."""
    made = Run.create(tmp_path / "root" / "runs" / "x", {"command": "c", "options": {}})
    monkeypatch.chdir(tmp_path)
    assert Run.open("x", tmp_path / "root").folder == made.folder == Run.open(made.folder, tmp_path).folder
    write_json(made.best / "config.json", {})
    assert Run.open(made.best, tmp_path).folder == Run.open("x/best", tmp_path / "root").folder == made.folder
    (tmp_path / "exp").mkdir()
    write_json(tmp_path / "exp" / "config.json", {"mine": True})  # somebody's, beside a run that is called best
    called = Run.create(tmp_path / "exp" / "best", {"command": "c", "options": {}})
    assert Run.open(called.folder, tmp_path).folder == called.folder
    here = Run.create(Path("x"), {})
    assert Run.open("x", tmp_path / "root").folder == here.folder
    with pytest.raises(
        InputError, match="^y: no run there .no config.json.: name a run's folder, or its name in runs/"
    ):
        Run.open("y", tmp_path / "root")


def test_whose_predictions_these_are(tmp_path):
    """Byte for byte, the newest run; all files of one run, or any."""
    for age, name in enumerate(("second", "first")):
        run = Run.create(tmp_path / "runs" / name, {})
        os.utime(run.folder / "config.json", (10**9 - age, 10**9 - age))
        run.predictions.mkdir()
        (run.predictions / "a.csv").write_text("same")
        (run.predictions / "b.csv").write_text(name)
    assert predicted(tmp_path, {"a.csv": b"same"}) == tmp_path / "runs" / "second"
    assert predicted(tmp_path, {"a.csv": b"same", "b.csv": b"first"}) == tmp_path / "runs" / "first"
    assert predicted(tmp_path, {"a.csv": b"same", "b.csv": b"third"}) is None
    assert predicted(tmp_path, {"a.csv": b"other", "b.csv": b"first"}, any) == tmp_path / "runs" / "first"


@pytest.mark.skipif(fcntl is None, reason="no locks on this system")
def test_one_process_at_a_time_and_a_kill_blocks_nobody(tmp_path):
    run = Run(tmp_path / "run")
    command = [sys.executable, "-c", HOLD, str(run.folder)]
    other = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=f"run is being trained by process {other.pid}: wait"), run.locked():
            pass
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    assert (run.folder / ".lock").exists()
    with run.locked():
        pass
