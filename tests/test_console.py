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


def test_a_pipe_whose_reader_has_gone_is_no_traceback():
    read, write = os.pipe()
    os.close(read)
    code = "from console import tell\nfor _ in range(3):\n    tell('a line')\n"
    with os.fdopen(write, "w") as gone:
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=gone, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("count, words", [(0, "0 epochs"), (1, "1 epoch"), (1200, "1,200 epochs")])
def test_one_of_a_thing_and_several(count, words):
    assert counted(count, "epoch") == words and counted(2, "process") == "2 processes"
