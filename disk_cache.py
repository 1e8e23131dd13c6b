"""A folder of large files that can be made again, kept within a budget: who writes, who reads, what is deleted.

Locks are those of flock(2), which the system releases when their process ends, however it ends: whoever writes a file
holds an exclusive lock on it, whoever reads it a shared one, and only what nobody holds is deleted. Where there are no
such locks (Windows), the system itself refuses to delete what is open.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from files import sync_folder
from locks import fcntl, is_still, take_lock

# Left free on the disk for everything else that a run writes: bert-base's weights and a checkpoint take 2 GB.
MARGIN = 2 * 10**9
ENTRY = re.compile(r"[0-9a-f]{32}\.\w+(\.[0-9a-f]{12}\.tmp)?")
TOO_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
LOCK, TEMPORARY = ".lock", ".tmp"


@dataclass(frozen=True)
class DiskCache:
    """Files named by 32 hex digits in one folder. budget: bytes that all of them together may take."""

    folder: Path
    budget: int

    def entries(self) -> list[Path]:
        """Whole files and half-written ones, the longest unused first. Raises OSError if the folder is not there."""
        found = []
        for path in self.folder.iterdir():
            if ENTRY.fullmatch(path.name) and path.suffix != LOCK:
                with suppress(FileNotFoundError):  # deleted by somebody else meanwhile
                    found.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(found)]

    def room(self) -> int:
        """Bytes that a new file may take, were everything deleted that nobody uses."""
        sizes = {path: _size(path) for path in self.entries()}
        unused = sum(size for path, size in sizes.items() if _unused(path))
        free = shutil.disk_usage(self.folder).free
        return max(0, min(self.budget - sum(sizes.values()), free - MARGIN) + unused)

    def make_room(self, size: int) -> tuple[int, int]:
        """Delete what nobody uses, the one longest unused first, until `size` more bytes fit: (files, bytes)."""
        files = freed = 0
        for path in self.entries():
            total = sum(_size(other) for other in self.entries())
            if total + size <= self.budget and shutil.disk_usage(self.folder).free - size >= MARGIN:
                break
            found = _size(path)
            if _delete(path):
                files, freed = files + 1, freed + found
        return files, freed

    def sweep(self) -> None:
        """Delete the half-written files of processes that have ended."""
        for path in self.entries():
            if path.suffix == TEMPORARY:
                _delete(path)

    @contextmanager
    def making(self, path: Path, wait: Callable[[str], None]) -> Iterator[None]:
        """Nobody else makes the file `path` for as long as this lasts; whoever does is waited for.

        wait is told that process, once. Raises OSError if the folder can't be written to.
        """
        lock, told = path.with_name(path.name + LOCK), False
        while True:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                if not take_lock(descriptor, wait=False):
                    holder = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
                    if not told:
                        wait(holder)
                    told = True
                    take_lock(descriptor, wait=True)
                if is_still(lock, descriptor):
                    os.ftruncate(descriptor, 0)
                    os.write(descriptor, f"{os.getpid()}\n".encode())
                    break
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # its holder has ended, and taken the file along
        try:
            yield
        finally:
            if not fcntl:  # Windows deletes no file that is open
                os.close(descriptor)
            with suppress(OSError):
                lock.unlink()
            if fcntl:
                os.close(descriptor)

    @contextmanager
    def writing(self, path: Path, size: int) -> Iterator[IO[bytes]]:
        """A file of `size` bytes that takes its name when the block ends well; after any exception nothing is left.

        Its space is reserved at once where the system can. Raises OSError where the disk refuses.
        """
        while True:
            # Not the process's number: two containers on one disk may both have number 1.
            temporary = path.with_name(f"{path.name}.{secrets.token_hex(6)}{TEMPORARY}")
            file = open(temporary, "xb")
            take_lock(file.fileno(), wait=True)
            if not fcntl or is_still(temporary, file.fileno()):
                break
            file.close()  # swept away before it was locked
        try:
            with file:
                _reserve(file.fileno(), size)
                yield file
                file.flush()
                os.fsync(file.fileno())
                if fcntl:  # before the lock goes with the file
                    os.replace(temporary, path)
            if not fcntl:
                os.replace(temporary, path)
            sync_folder(path.parent)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def open(self, path: Path, size: int) -> int | None:
        """A descriptor of a whole file of `size` bytes, or None if there is none.

        Nobody deletes it before the descriptor and its duplicates (a memory map has one) are closed. It counts as just
        used.
        """
        while True:
            try:
                descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            except OSError:  # not there, or not to be read: then it is made (again)
                return None
            take_lock(descriptor, wait=True, shared=True)
            if not fcntl or is_still(path, descriptor):
                break
            os.close(descriptor)
        if os.fstat(descriptor).st_size != size:
            os.close(descriptor)
            return None
        with suppress(OSError):  # somebody else's file
            os.utime(path)
        return descriptor


def _reserve(descriptor: int, size: int) -> None:
    """Take the space now, so that a disk that is too full says so before hours of work, not after."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno in TOO_FULL:  # others: a file system that can't reserve
                raise


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


@contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Whether nobody else uses the file; if so, nobody starts to for as long as this lasts."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = True
    except OSError:  # in use, or on a file system where nobody can know
        free = False
    try:
        yield free
    finally:
        os.close(descriptor)


def _unused(path: Path) -> bool:
    if not fcntl:
        return True  # and if it isn't, it will not let itself be deleted
    with _held(path) as free:
        return free


def _delete(path: Path) -> bool:
    """Delete the file if nobody uses it; whether that was done."""
    try:
        if not fcntl:
            path.unlink()
            return True
        with _held(path) as free:
            if free:
                path.unlink()
            return free
    except OSError:
        return False
