"""One process holds a folder, whoever comes second is told which; rows are appended whole, whoever else appends."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sharing
from errors import InputError
from locks import fcntl
from sharing import append_line, held, holder

REPOSITORY = Path(__file__).resolve().parent.parent
needs_locks = pytest.mark.skipif(fcntl is None, reason="no locks on this system")


def start(program, *arguments):
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


@needs_locks
def test_the_second_is_told_of_the_first_and_a_kill_blocks_nobody(tmp_path):
    folder = tmp_path / "new" / "folder"
    other = start(
        "import sys, time; from pathlib import Path; from sharing import held\n"
        "with held(Path(sys.argv[1]), 'being filled'): print('held', flush=True); time.sleep(600)",
        folder,
    )
    try:
        assert other.stdout.readline() == "held\n"
        assert holder(folder) == str(other.pid)
        with pytest.raises(InputError, match=f"^{folder} is being filled by process {other.pid}: wait until it has"):
            with held(folder, "being trained"):  # what the first does is what counts
                pass
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    assert holder(folder) is None and (folder / ".lock").exists()
    with held(folder, "being filled"):
        assert holder(folder) == str(os.getpid())
    assert holder(folder) is None and os.listdir(folder) == []


@needs_locks
def test_a_lock_that_can_not_be_written_is_not_held(tmp_path, monkeypatch):
    def full(descriptor, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(sharing.os, "write", full)
        with pytest.raises(InputError, match="cannot write .*lock: No space left on device: free some space"):
            with held(tmp_path, "being filled"):
                pass
    assert os.listdir(tmp_path) == [] and holder(tmp_path) is None
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write .*file/.lock: .*choose another path"):
        with held(tmp_path / "file", "being filled"):
            pass


def test_lines_are_appended(tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    for line in ("{}", '{"é": 1}'):
        append_line(path, line)
    assert path.read_bytes() == '{}\n{"é": 1}\n'.encode()
    (path.parent / ".rows.jsonl.0123456789ab.tmp").touch()  # of one that was killed
    (path.parent / ".other.jsonl.0123456789ab.tmp").touch()
    path.write_bytes(b'{}\n{"half')  # what a program that merely appends leaves on a full disk
    append_line(path, "[]")
    assert path.read_bytes() == b'{}\n{"half\n[]\n'
    assert {name.name for name in path.parent.iterdir()} == {"rows.jsonl", ".other.jsonl.0123456789ab.tmp"}


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("before", [None, "[1]\n"])
def test_a_line_is_there_whole_or_not_at_all(tmp_path, monkeypatch, call, before):
    path = tmp_path / "rows.jsonl"
    if before:
        path.write_text(before)

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(sharing.os, call, full)
        with pytest.raises(InputError, match="cannot write .*rows.jsonl: No space left on device: free some space"):
            append_line(path, "[2]")
    assert os.listdir(tmp_path) == (["rows.jsonl"] if before else [])
    append_line(path, "[2]")
    assert path.read_text() == f"{before or ''}[2]\n"


@needs_locks
def test_no_line_is_lost_when_several_append(tmp_path):
    program = (
        "import sys; from sharing import append_line\n"
        "for i in range(30): append_line(sys.argv[1], f'{sys.argv[2]} {i}')"
    )
    others = [start(program, tmp_path / "rows", name) for name in "abc"]
    assert [other.wait(100) for other in others] == [0, 0, 0]
    lines = (tmp_path / "rows").read_text().splitlines()
    assert sorted(lines) == sorted(f"{name} {i}" for name in "abc" for i in range(30))
    assert [line for line in lines if line[0] == "a"] == [f"a {i}" for i in range(30)]
