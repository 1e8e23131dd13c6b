"""A command that can't start says why in one line: packages that a Python lacks, an entry that is wrong.

`python -S` knows no installed packages, as a Python outside of the environment.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import startup

REPOSITORY = Path(startup.__file__).parent
COMMANDS = [
    ["multitask_classifier.py", "--option", "finetune"],
    ["predict.py", "runs/x", "a text"],
    ["prepare_submit.py"],
    ["datasets.py", "--check"],
    ["result_row.py", "runs/x"],
    ["report.py", "runs/x"],
    ["weights.py"],
    ["fetch.py"],
]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A copy of the program without weights, so that there is something to fetch and to place."""
    folder = tmp_path_factory.mktemp("program")
    for path in REPOSITORY.glob("*.py"):
        shutil.copy(path, folder)
    return folder


def start(folder, *command):
    return subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_python_without_packages_is_told_in_one_line(program, command):
    done = start(program, "-S", *command)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert "run ./setup.sh" in done.stderr
    if command[0] != "weights.py":  # it needs none, and misses the weights alone
        assert f"is not installed in this Python ({sys.executable}): run ./setup.sh, then . .venv/bin/" in done.stderr


def test_an_entry_that_is_wrong_is_one_line(program, tmp_path):
    for path in program.glob("*.py"):
        shutil.copy(path, tmp_path)
    tasks = (tmp_path / "tasks.py").read_text()
    (tmp_path / "tasks.py").write_text(tasks.replace("output_size=5,", "output_size=4,"))
    done = start(tmp_path, "multitask_classifier.py")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: task 'sst' in tasks.py: output_size is 4; wanted 5")
    assert done.stderr.count("\n") == 1


def test_stopped_while_it_loads_is_one_line(program, tmp_path):
    for path in program.glob("*.py"):
        shutil.copy(path, tmp_path)
    (tmp_path / "tasks.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    done = start(
        tmp_path,
        "-c",
        "import signal, runpy; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import sys; sys.argv = ['multitask_classifier.py']; sys.modules['__main__'].__file__ = sys.argv[0]\n"
        "runpy.run_path(sys.argv[0])",
    )
    assert (done.stdout, done.stderr) == ("", "stopped\n")


def test_a_fault_of_the_program_keeps_its_traceback(program, tmp_path):
    for path in program.glob("*.py"):
        shutil.copy(path, tmp_path)
    for fault, wanted in (("1 / 0", "ZeroDivisionError"), ("import weights.deep", "No module named 'weights.deep'")):
        (tmp_path / "tasks.py").write_text(f"{fault}\n")
        said = start(tmp_path, "datasets.py", "--check").stderr
        assert said.startswith("Traceback") and wanted in said


def test_only_a_command_of_ours_says_it_so(program):
    """Whoever imports a command keeps Python's own way."""
    done = start(program, "-S", "-c", "import prepare_submit")
    assert "Traceback" in done.stderr and "No module named 'numpy'" in done.stderr
