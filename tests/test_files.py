"""Files are whole or absent: every system call of a write is made to fail once, and the old file must stay.

Follows files.py's promise; one test lets the real system refuse (a file size limit) instead of a stand-in.
"""

import ast
import errno
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import files
from errors import InputError
from files import atomic_write, atomic_write_all, check_writable, read_json, sha256, whole_folder, write_json

ROOT = Path(__file__).resolve().parent.parent


class FailingFile:
    """A real file whose one method fails as on a full disk."""

    def __init__(self, file, method, code):
        self.file, self.method, self.code = file, method, code

    def __getattr__(self, name):
        if name == self.method:
            return self.fail
        return getattr(self.file, name)

    def fail(self, *args):
        raise OSError(self.code, os.strerror(self.code))


def inject(monkeypatch, call, code):
    """Makes one call of atomic_write fail with error number `code`."""
    if call in ("write", "flush"):
        monkeypatch.setattr(files, "open", lambda *a, **k: FailingFile(open(*a, **k), call, code), raising=False)
    else:

        def fail(*args, **kwargs):
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(files if call == "open" else os, call, fail, raising=False)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("call", ["open", "write", "flush", "fsync", "chmod", "replace"])
def test_a_failing_call_leaves_the_old_file(tmp_path, monkeypatch, call, code):
    path = tmp_path / "scores.csv"
    path.write_text("old")
    inject(monkeypatch, call, code)
    with pytest.raises(InputError) as caught:
        with atomic_write(path) as file:
            file.write("new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["scores.csv"]
    message = str(caught.value)
    assert str(path) in message and os.strerror(code) in message
    assert "\n" not in message


@pytest.mark.parametrize("call", ["open", "write", "flush", "fsync", "replace"])
def test_a_failing_call_leaves_no_new_file(tmp_path, monkeypatch, call):
    inject(monkeypatch, call, errno.ENOSPC)
    with pytest.raises(InputError, match="free some space"):
        with atomic_write(tmp_path / "new.bin", "wb") as file:
            file.write(b"new")
    monkeypatch.undo()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
@pytest.mark.parametrize("there", [[], ["a"], ["a", "a/b"]])
def test_a_folder_is_whole_or_as_it_was(tmp_path, there, error):
    """With the folders above it; what stands beside it stays."""
    (tmp_path / "beside").write_text("old")
    for name in there:
        (tmp_path / name).mkdir()
    folder = tmp_path / "a" / "b"
    with pytest.raises(type(error)), whole_folder(folder):
        write_json(folder / "c" / "d.json", 1)
        write_json(folder / "e.json", 2)
        raise error
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [*there, "beside"]
    with whole_folder(folder):
        write_json(folder / "c" / "d.json", 1)
    assert read_json(folder / "c" / "d.json") == 1


def test_the_system_itself_refuses(tmp_path):
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "from files import atomic_write\n"
        "with atomic_write(sys.argv[1], 'wb') as file:\n"
        "    file.write(bytes(200_000))\n"
    )
    pytest.importorskip("resource", reason="file size limits are a POSIX thing")
    path = tmp_path / "weights.bin"
    path.write_bytes(b"old")
    result = subprocess.run([sys.executable, "-c", script, path], cwd=ROOT, capture_output=True, text=True)
    assert f"CannotWrite: cannot write {path}: File too large: raise the file size limit" in result.stderr
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["weights.bin"]


@pytest.mark.parametrize("error", [KeyError("a"), KeyboardInterrupt(), SystemExit(2)])
def test_the_blocks_own_exception_passes_through(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(type(error)):
        with atomic_write(path) as file:
            file.write("half")
            raise error
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_an_error_about_another_file_keeps_its_name(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        with atomic_write(tmp_path / "a.txt"):
            open(tmp_path / "absent.csv")
    assert os.listdir(tmp_path) == []


def test_text_is_utf8_with_plain_newlines(tmp_path):
    path = tmp_path / "deep" / "er" / "a.txt"
    with atomic_write(path) as file:
        file.write("é\n雪\n")
    assert path.read_bytes() == "é\n雪\n".encode()


def test_the_old_files_mode_stays(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    path.chmod(0o640)
    write_json(path, {})
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_new_files_mode_is_the_users(tmp_path):
    write_json(tmp_path / "ours", {})
    (tmp_path / "theirs").write_text("")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "theirs").stat().st_mode


def test_a_link_is_followed(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    with atomic_write(tmp_path / "link") as file:
        file.write("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_name_of_full_length_can_be_written(tmp_path):
    path = tmp_path / ("n" * 255)
    write_json(path, [1])
    assert read_json(path) == [1]


@pytest.mark.skipif(os.name == "nt", reason="devices have other names there")
def test_devices_and_folders_are_refused(tmp_path):
    with pytest.raises(InputError, match="device or pipe"), atomic_write("/dev/null"):
        pass
    with pytest.raises(InputError, match="it is a folder"), atomic_write(tmp_path):
        pass


def test_a_file_where_a_folder_should_be(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(InputError, match=r"a/b/c.json: .*choose"):
        write_json(tmp_path / "a" / "b" / "c.json", {})


def test_json_comes_back(tmp_path):
    value = {"options": {"lr": 1e-5, "names": ["é", None, True]}, "path": "a/b"}
    write_json(tmp_path / "a.json", {**value, "path": Path("a/b")})
    assert read_json(tmp_path / "a.json") == value


def test_json_has_no_nan(tmp_path):
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"pearson": float("nan")})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"a.json, line 1, column 1: not JSON"),
        (b'{"a": 1,\n "b" 2}', r"a.json, line 2, column 6: not JSON"),
        (b'{"a": "\xff"}', r"a.json: byte 7 is not UTF-8"),
        (b"[" * 200_000, r"a.json: nested too deeply"),
        (b"1" * 5_000, r"a number too long"),
        (None, r"cannot read .*a.json: No such file"),
    ],
)
def test_bad_json_is_named_by_place(tmp_path, content, message):
    if content is not None:
        (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_json(tmp_path / "a.json")
    assert "\n" not in str(caught.value)


def test_json_with_a_byte_order_mark(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf[1]")
    assert read_json(tmp_path / "a.json") == [1]


def test_sha256_is_hashlibs(tmp_path):
    content = os.urandom(3_000_000)
    (tmp_path / "a").write_bytes(content)
    assert sha256(tmp_path / "a") == hashlib.sha256(content).hexdigest()
    with pytest.raises(InputError, match="cannot read .*absent"):
        sha256(tmp_path / "absent")


def test_an_input_error_is_one_line():
    assert str(InputError("a.csv, line 3:\n  bad \t value")) == "a.csv, line 3: bad value"


@pytest.mark.parametrize("name", ["two  spaces", "no\xa0break", "wide\u3000space"])
def test_an_input_error_keeps_a_name_as_it_is(name):
    assert str(InputError(f"{name}: \n no run there")) == f"{name}: no run there"


def test_several_files_are_written_all_or_none(tmp_path, monkeypatch):
    old = tmp_path / "a"
    old.write_bytes(b"old")
    real, calls = os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor)

    contents = {tmp_path / name: name.encode() for name in "abc"}
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InputError, match=r"cannot write .*/c: No space left on device: free some space"):
            atomic_write_all(contents)
    assert list(tmp_path.iterdir()) == [old] and old.read_bytes() == b"old"
    atomic_write_all(contents)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == contents


def test_whether_a_file_could_be_written_is_found_without_writing_it(tmp_path):
    check_writable(tmp_path / "new" / "folder" / "file")
    (tmp_path / "file").touch()
    check_writable(tmp_path / "file")
    for path in (tmp_path / "file" / "x", tmp_path / "new" / ("x" * 300), tmp_path):
        with pytest.raises(InputError, match="cannot write .*: (choose|a part of that path is a file)"):
            check_writable(path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_part_of_the_path_that_is_a_file_has_a_remedy(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="a part of that path is a file"), atomic_write(tmp_path / "file" / "x"):
        pass


# What writes by itself, and why nothing is lost: a log that grows; a download, whose hash decides; a file of encodings,
# which takes its name when it is whole. An index opens its files by os.open; its header says what counts of them.
# A program without a stderr has the null device in its place.
BY_THEMSELVES = {"files.py", "cells.py", "download.py", "disk_cache.py", "startup.py"}
METHODS = {"write_text", "write_bytes", "tofile", "to_csv"}
FUNCTIONS = {"np.save", "np.savez", "numpy.save", "torch.save", "shutil.copy", "shutil.copyfile", "shutil.move"}


def writes(call):
    """Whether a call in a syntax tree opens a file to write to it, or has a library do so."""
    name = ast.unparse(call.func)
    if name in ("open", "io.open"):
        modes = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "mode")]
        return any(not isinstance(mode, ast.Constant) or set(mode.value) & set("wax+") for mode in modes)
    return name in FUNCTIONS or name.rpartition(".")[2] in METHODS or name.endswith("save_file")


def test_nothing_is_written_past_atomic_write():
    found = {
        path.name
        for path in ROOT.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and writes(node)
    }
    assert found == BY_THEMSELVES, "write it with files.atomic_write"


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_what_json_has_no_words_for_is_refused(tmp_path, value):
    """Python reads it all the same, and it would break what is computed with it."""
    path = tmp_path / "a.json"
    path.write_text(f'{{"score": [{value}]}}')
    with pytest.raises(InputError, match="a.json: nested too deeply, or a number too long or not finite, to be ours"):
        read_json(path)
