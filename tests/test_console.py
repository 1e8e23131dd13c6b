"""What commands print suits a log file as well as a terminal.

Follows tqdm's `disable=None`: a bar on a terminal, and none elsewhere.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from console import counted

ROOT = Path(__file__).resolve().parent.parent


def bars():
    """(file, line, call) of every tqdm that the product makes."""
    for path in sorted(ROOT.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "tqdm":
                yield path.name, node.lineno, node


def test_every_bar_is_for_a_terminal_alone():
    """It asks tqdm to find out (None), or is told that there is to be none; one that would always show has no place."""
    found = list(bars())
    assert len(found) >= 5
    for name, line, call in found:
        disable = {keyword.arg: keyword.value for keyword in call.keywords}.get("disable")
        assert disable is not None, f"{name}, line {line}: tqdm without disable=None fills a log file"
        assert not (isinstance(disable, ast.Constant) and disable.value is False), f"{name}, line {line}"


# What prints by itself: the course's own functions, and a command that couldn't even start.
PRINT = {"console.py", "datasets.py", "evaluation.py", "startup.py"}


def test_commands_print_by_tell_answer_or_warn():
    """A bare print ends a command, with a traceback, whose reader has gone (`| head`), or whose disk is full."""
    found = set()
    for path in ROOT.glob("*.py"):
        calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
        # A function's default, say=print, is for whoever calls it from Python.
        if any(ast.unparse(part) == "print" for call in calls for part in (call.func, *call.args)):
            found.add(path.name)
    assert found == PRINT


def printing(code: str, stdout) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=stdout, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("how", ["tell", "answer"])
def test_letters_that_a_stream_lacks_are_escaped(how):
    code = f"from console import {how}\n{how}('a \\u00b1 b, \\udcff\\nc')\n"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("a \\xb1 b, \\udcff\nc\n", "")


@pytest.mark.parametrize("ending", ["2> /dev/full", "2>&-"])
def test_nobody_who_listens_to_errors(ending, tmp_path):
    """They don't stand among the answers then."""
    line = f"{sys.executable} result_row.py nowhere > {tmp_path}/out {ending}"
    assert subprocess.run(["bash", "-c", line], cwd=ROOT).returncode == 1
    assert (tmp_path / "out").read_bytes() == b""


@pytest.mark.parametrize("how", ["tell", "answer"])
def test_a_pipe_whose_reader_has_gone_is_no_traceback(how):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone:
        done = printing(f"from console import {how}\nfor _ in range(3):\n    {how}('a line')\n", gone)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_is_an_error_of_answers_alone():
    with open("/dev/full", "w") as full:
        told = printing("from console import tell\ntell('a line')\ntell('another')", full)
        answered = printing("import sys, result_row\nsys.exit(result_row.main(['results/recipe.jsonl']))", full)
    assert (told.returncode, told.stderr) == (0, "")
    assert answered.returncode == 1
    wanted = "error: cannot write what was asked for: No space left on device: free some space on that disk"
    assert answered.stderr.startswith(wanted) and answered.stderr.count("\n") == 1


@pytest.mark.parametrize("count, words", [(0, "0 epochs"), (1, "1 epoch"), (1200, "1,200 epochs")])
def test_one_of_a_thing_and_several(count, words):
    assert counted(count, "epoch") == words and counted(2, "process") == "2 processes"
