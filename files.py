"""Files written whole or not at all, JSON whose faults are named by line, and content hashes.

Follows POSIX rename(2): a name points to the old file or to the new one, never to half of one.
"""

import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from errors import InputError

REMEDIES = {
    errno.ENOSPC: "free some space on that disk, or write to another one",
    errno.EDQUOT: "free some of your quota, or write to another disk",
    errno.EFBIG: "raise the file size limit (ulimit -f), or write to another disk",
    errno.EACCES: "get permission to write there, or choose another folder",
    errno.EPERM: "get permission to write there, or choose another folder",
    errno.EROFS: "that disk is read-only: choose a folder on another one",
    errno.EEXIST: "a part of that path is a file, not a folder: choose another path",
    errno.ENOTDIR: "a part of that path is a file, not a folder: choose another path",
    errno.EISDIR: "that path is a folder: choose a file name inside it",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "too many files are open: raise the limit (ulimit -n)",
}

# File systems that can't sync a folder say one of these; the file itself is safe on disk by then.
FOLDER_CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EBADF}


class CannotWrite(InputError):
    """The system refuses to write; what was written before is whole, so that the work goes on once it doesn't."""


def cannot(verb: str, path: str | os.PathLike, error: OSError) -> InputError:
    """The InputError for a system call that failed, e.g. `cannot write a.csv: No space left on device: free ...`.

    A CannotWrite where `verb` is "write".
    """
    if error.errno == errno.ENOENT:
        remedy = "check the path"
    elif verb == "read" and error.errno != errno.ENAMETOOLONG:
        remedy = "check the path and its permissions"
    else:
        remedy = REMEDIES.get(error.errno or 0, "check that disk, or write to another one")
    kind = CannotWrite if verb == "write" else InputError
    return kind(f"cannot {verb} {os.fspath(path)}: {error.strerror or error}: {remedy}")


@contextmanager
def atomic_write(path: str | os.PathLike, mode: str = "w") -> Iterator[IO]:
    """Yields a file object; when the block ends well its content is on disk under `path`, else nothing has changed.

    `mode` is "w" (UTF-8, newlines as "\\n" on every system) or "wb". The content goes to a temporary file in the same
    folder (made if missing), is flushed and synced, and then takes the name in one step; a symbolic link is followed,
    not replaced. After any exception the temporary file is gone and the old file stays. Raises InputError, with path
    and remedy, where the system refuses (full disk, no permission, read-only, ...).
    """
    if mode not in ("w", "wb"):
        raise ValueError(f'mode {mode!r}: atomic_write knows "w" and "wb"')
    target = Path(os.path.realpath(path))
    _refuse_what_is_no_file(target, path)
    # A name of full length leaves no room for a suffix, so the temporary name holds only its beginning.
    temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(6)}.tmp")
    text = {} if mode == "wb" else {"encoding": "utf-8", "newline": "\n"}
    done = False
    try:
        make_folder(target.parent)
        file = open(temporary, mode.replace("w", "x"), **text)
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
        finally:
            # Closing flushes what is left, which fails again on a full disk: the first failure is the one to report.
            with suppress(OSError):
                file.close()
        if target.exists():
            os.chmod(temporary, target.stat().st_mode & 0o7777)
        os.replace(temporary, target)
        done = True
        sync_folder(target.parent)
    except OSError as error:
        # The block may have opened other files; an error that names one of those is not about this one.
        if error.filename is not None and Path(error.filename) not in (temporary, target, *target.parents):
            raise
        raise cannot("write", path, error) from error
    finally:
        if not done:
            with suppress(OSError):
                os.unlink(temporary)


def _refuse_what_is_no_file(target: Path, path: str | os.PathLike) -> None:
    """Replacing a device or a pipe by a file would break it for everyone (`--sst_dev_out /dev/null` run by root)."""
    try:
        if target.exists() and not target.is_file():
            kind = "a folder" if target.is_dir() else "a device or pipe"
            raise InputError(f"cannot write {os.fspath(path)}: it is {kind}: choose a file name")
    except OSError as error:
        raise cannot("write", path, error) from error


def atomic_write_all(contents: dict[Path, bytes]) -> None:
    """Writes several files, all or none: each takes its name only when the content of all is on disk.

    Raises InputError as `atomic_write` does.
    """
    with ExitStack() as stack:
        for path, content in contents.items():
            file = stack.enter_context(atomic_write(path, "wb"))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def check_writable(path: str | os.PathLike) -> None:
    """Raises InputError if `atomic_write` could not write there, which is tried in the nearest folder that exists."""
    target = Path(os.path.realpath(path))
    _refuse_what_is_no_file(target, path)
    try:
        folder = next(parent for parent in target.parents if parent.exists())
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        # The names still to be made are looked up once, so that one too long is found now.
        for name in target.relative_to(folder).parts:
            with suppress(FileNotFoundError):
                os.lstat(folder / name)
        probe = folder / f".probe.{secrets.token_hex(6)}.tmp"
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(probe)
    except OSError as error:
        raise cannot("write", path, error) from error


TEMPORARY = re.compile(r"\..*\.[0-9a-f]{12}\.tmp", re.DOTALL)


def remove_temporaries(folder: Path, below: bool = True, seconds: float = 0.0) -> None:
    """Deletes what a killed `atomic_write` left in `folder` (and `below` it); what can't be deleted stays.

    seconds: how long ago it was written to at the least, where others may be writing now.
    """
    for path in folder.rglob(".*.tmp") if below else folder.glob(".*.tmp"):
        with suppress(OSError):
            if TEMPORARY.fullmatch(path.name) and time.time() - path.stat().st_mtime >= seconds:
                path.unlink()


def make_folder(folder: Path) -> None:
    """Makes a folder and those above it, if missing, so that they survive a power cut. Raises OSError."""
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for new in reversed(made):
        sync_folder(new.parent)


@contextmanager
def whole_folder(folder: Path) -> Iterator[None]:
    """What the block writes into a new or empty folder stays if it ends well; after any exception all of it is gone.

    So are the folders that were made for it. It is written in place: an empty folder may be a disk's own, which can't
    be replaced by another.
    """
    made = [part for part in (folder, *folder.parents) if not part.exists()]
    try:
        yield
    except BaseException:
        for path in folder.glob("*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):
                    path.unlink()
        for part in made:
            with suppress(OSError):
                part.rmdir()
        raise


def sync_folder(folder: Path) -> None:
    """Makes a rename in `folder` survive a power cut, where the system can (Windows can't open a folder)."""
    if os.name == "nt":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in FOLDER_CANNOT_SYNC:
            raise
    finally:
        os.close(descriptor)


def read_json(path: str | os.PathLike) -> Any:
    """The value in a UTF-8 JSON file (a byte-order mark is skipped). Raises InputError naming path, line and column."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise cannot("read", path, error) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{os.fspath(path)}: byte {error.start} is not UTF-8: write the file again, as UTF-8"
        ) from error
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        where = f"{os.fspath(path)}, line {error.lineno}, column {error.colno}"
        raise InputError(f"{where}: not JSON ({error.msg}): correct it, or write the file again") from error
    except (RecursionError, ValueError) as error:  # ValueError: an integer of more digits than Python converts, too
        raise InputError(
            f"{os.fspath(path)}: nested too deeply, or a number too long or not finite, to be ours: "
            "write the file again"
        ) from error


def parse_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError for NaN and infinity, which JSON doesn't have, and as json.loads."""
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:30]} is no finite number")
    return value


def write_json(path: str | os.PathLike, obj: Any) -> None:
    """Writes `obj` as indented JSON, whole or not at all; paths in it become strings.

    Raises InputError as `atomic_write` does, and ValueError for NaN and infinity, which JSON has no words for: an
    undefined score is written as None.
    """
    text = json.dumps(obj, indent=2, allow_nan=False, default=os.fspath)
    with atomic_write(path) as file:
        file.write(text + "\n")


def short(path: str | os.PathLike) -> str:
    """A path as short as it can be typed from here."""
    path = Path(os.path.abspath(path))
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def sha256(path: str | os.PathLike) -> str:
    """The SHA-256 of a file's bytes, 64 hex digits. Raises InputError where it can't be read."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise cannot("read", path, error) from error
    return digest.hexdigest()
