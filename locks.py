"""Locks on files, which the system releases when their process ends, however it ends.

flock(2). Where there are none (Windows), `fcntl` is None, and a lock is always taken.
"""

from __future__ import annotations

import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


def take_lock(descriptor: int, wait: bool, shared: bool = False) -> bool:
    """Whether the lock of an open file was taken; where the file system knows none, it always is."""
    if not fcntl:
        return True
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def is_still(path: Path, descriptor: int) -> bool:
    """Whether the file of that name is the one that is open, and not deleted or replaced since."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
