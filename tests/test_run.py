"""A run's folder: one process at a time trains in it, and what a kill left there never ends a run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from errors import InputError
from run import Run, fcntl

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
    left, kept = leave(run.folder, "sst/best/.vocab.txt.0123456789ab.tmp"), leave(run.folder, ".mine.tmp")
    with run.locked():
        assert not left.exists() and kept.exists()
        assert (run.folder / ".lock").read_text() == f"{os.getpid()}\n"
    assert not (run.folder / ".lock").exists()


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
