"""Every call by which a program writes to a folder, numbered: one of them fails, or ends the process.

A stand-in for a disk: POSIX names the errors, and half of what is written when it fails is there.
"""

import builtins
import os
from pathlib import Path

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
BY_PATH = ("mkdir", "chmod", "replace", "unlink", "rmdir")
BY_DESCRIPTOR = ("write", "fsync", "ftruncate", "posix_fallocate")
METHODS = ("write", "writelines", "flush", "truncate")


CHANGING = ("os.open", "open", "write", "writelines", "mkdir", "replace", "unlink", "rmdir")


class WriteCalls:
    """Counts the calls that write below `root`; the one of number `at` (from 0) fails with `code`, None: none does.

    code: an errno, or None for the end of the process, as by SIGKILL, which comes before calls that change what a
    folder shows alone. what: for each call its name and its file's; the same one after the other count once.
    """

    def __init__(self, root, at=None, code=None):
        self.root, self.at, self.code, self.what = os.path.realpath(root), at, code, []

    def install(self, monkeypatch):
        for name in BY_PATH:
            monkeypatch.setattr(os, name, self._by_path(getattr(os, name), name))
        for name in BY_DESCRIPTOR:
            if hasattr(os, name):
                monkeypatch.setattr(os, name, self._by_descriptor(getattr(os, name), name))
        monkeypatch.setattr(os, "open", self._os_open(os.open))
        monkeypatch.setattr(os, "fdopen", self._fdopen(os.fdopen))
        monkeypatch.setattr(builtins, "open", self._open(open))

    def count(self, name, path, half=lambda: None):
        """Note a call; if it is the one, do half of it and fail."""
        what = f"{name} {Path(path).name}"
        if (self.code is None and name not in CHANGING) or self.what[-1:] == [what]:
            return
        self.what.append(what)
        if len(self.what) - 1 != self.at:
            return
        half()
        if self.code is None:
            os._exit(9)
        raise OSError(self.code, os.strerror(self.code), *([] if name in METHODS + BY_DESCRIPTOR else [path]))

    def below(self, path):
        return os.path.realpath(os.fsdecode(path)).startswith(self.root + os.sep)

    def _by_path(self, real, name):
        def call(path, *arguments, **options):
            if self.below(path) and not (name == "mkdir" and os.path.isdir(path)):
                self.count(name, path)
            return real(path, *arguments, **options)

        return call

    def _by_descriptor(self, real, name):
        def call(descriptor, *arguments):
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if self.below(path) or path == self.root:
                self.count(name, path)
            return real(descriptor, *arguments)

        return call

    def _os_open(self, real):
        def call(path, flags, *arguments, **options):
            if flags & WRITING and self.below(path):
                self.count("os.open", path)
            return real(path, flags, *arguments, **options)

        return call

    def _fdopen(self, real):
        def call(descriptor, *arguments):
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            file = real(descriptor, *arguments)
            return CountedFile(file, path, self) if self.below(path) else file

        return call

    def _open(self, real):
        def call(path, mode="r", *arguments, **options):
            if isinstance(path, int) or not set(mode) & set("wxa+") or not self.below(path):
                return real(path, mode, *arguments, **options)
            self.count("open", path)
            return CountedFile(real(path, mode, *arguments, **options), path, self)

        return call


class CountedFile:
    """A real file whose methods that write are counted."""

    def __init__(self, file, path, calls):
        self.file, self.path, self.calls = file, path, calls

    def __getattr__(self, name):
        real = getattr(self.file, name)
        if name not in METHODS:
            return real

        def call(*arguments):
            def half():
                if name == "write":
                    self.file.write(arguments[0][: len(arguments[0]) // 2])
                    self.file.flush()

            self.calls.count(name, self.path, half)
            return real(*arguments)

        return call

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def __iter__(self):
        return iter(self.file)
