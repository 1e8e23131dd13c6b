"""Folders that one process at a time may write in, and files of rows that several may append to.

Follows flock(2): the system releases the locks of a process that ends, however it ends, so that a kill blocks nobody.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from errors import InputError
from files import TEMPORARY, atomic_write, cannot, make_folder
from locks import fcntl, is_still, take_lock

LOCK = ".lock"


@contextmanager
def held(folder: Path, doing: str) -> Iterator[None]:
    """No other process holds the folder (made if missing) for as long as this lasts.

    doing: what is done there, e.g. `being trained`. Raises InputError naming the process that holds it already, and
    where the folder can't be written.
    """
    path, descriptor = folder / LOCK, -1
    try:
        make_folder(folder)
        while descriptor < 0:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            if not take_lock(descriptor, wait=False):
                number, _, told = _content(descriptor).partition(" ")
                raise InputError(
                    f"{folder} is {told or 'in use'} by process {number}: wait until it has ended, or stop it first"
                )
            if fcntl and not is_still(path, descriptor):  # its holder has ended, and taken the file along
                os.close(descriptor)
                descriptor = -1
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()} {doing}\n".encode())
        except OSError:
            _release(path, descriptor)
            descriptor = -1
            raise
    except BaseException as error:
        if descriptor >= 0:
            os.close(descriptor)
        if isinstance(error, OSError):
            raise cannot("write", path, error) from error
        raise
    try:
        yield
    finally:
        _release(path, descriptor)


def holder(folder: Path) -> str | None:
    """The number of the process that holds the folder, None if nobody does."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR)
    except OSError:
        return None
    try:
        return None if take_lock(descriptor, wait=False) else _content(descriptor).partition(" ")[0]
    finally:
        os.close(descriptor)


def _content(descriptor: int) -> str:
    """Whose lock it is, as `held` writes it: a process's number, and what it does."""
    return os.read(descriptor, 100).decode(errors="replace").strip() or "unknown"


def _release(path: Path, descriptor: int) -> None:
    """Delete a lock's file while it is still locked, and close it."""
    if not fcntl:  # Windows deletes no file that is open
        os.close(descriptor)
    with suppress(OSError):
        path.unlink()
    if fcntl:
        os.close(descriptor)


def append_line(path: str | os.PathLike, line: str) -> None:
    """Add a line to a file (made if missing), whole or not at all: its new content takes the name of the old.

    Half a line at its end, which a full disk or a power cut leaves where a program merely appends, is left a line of
    its own. Whoever else appends meanwhile is waited for. Raises InputError where the system refuses.
    """
    path = Path(os.path.realpath(path))
    try:
        make_folder(path.parent)
        with _turn(path) if fcntl else nullcontext():  # Windows replaces no file that is open
            content = path.read_bytes() if path.exists() else b""
            gap = b"\n" if content and not content.endswith(b"\n") else b""
            with atomic_write(path, "wb") as file:
                file.write(content + gap + line.encode() + b"\n")
    except OSError as error:
        raise cannot("write", path, error) from error


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Nobody else appends to the file for as long as this lasts. One that was made for its lock alone goes again."""
    descriptor = -1
    try:
        while descriptor < 0:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            take_lock(descriptor, wait=True)
            if not is_still(path, descriptor):  # another line was added meanwhile
                os.close(descriptor)
                descriptor = -1
        for left in path.parent.glob(f".{glob.escape(path.name[:40])}.*.tmp"):  # by one that was killed in its turn
            if TEMPORARY.fullmatch(left.name):
                left.unlink()
        yield
    finally:
        if descriptor >= 0:
            with suppress(OSError):
                if is_still(path, descriptor) and not os.fstat(descriptor).st_size:
                    path.unlink()
            os.close(descriptor)
