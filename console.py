"""What a command prints: while it runs for hours, whoever listens; what was asked for; and what is wrong.

Follows the POSIX meaning of EPIPE: a reader that has gone is no error of the program's work.
"""

from __future__ import annotations

import errno
import os
import sys

from errors import InputError
from files import cannot


def tell(text: str) -> None:
    """print, which ends no run of hours because nobody listens any more (`| head`, a full disk): then it is silent."""
    _print(text, "stdout")


def answer(text: str) -> None:
    """print what a command was asked for and keeps nowhere else, such as a line of predict.py's.

    That a reader has gone (`| head`) is no error; raises InputError where it is lost otherwise (a full disk).
    """
    error = _print(text, "stdout")
    if error and error.errno not in (errno.EPIPE, errno.EINVAL):  # EINVAL is Windows' word for it
        raise cannot("write", "what was asked for", error) from error


def warn(text: str) -> None:
    """print on stderr, whoever listens: silent where nobody does."""
    _print(text, "stderr")


def _print(text: str, name: str) -> OSError | None:
    """Returns what went wrong; from then on the stream leads nowhere. Letters that it lacks are escaped."""
    stream = getattr(sys, name)
    if stream is None:  # closed before the program began
        return None
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())  # what is still buffered goes there, too
        finally:
            os.close(nowhere)
        return error
    return None


def counted(count: int, what: str) -> str:
    """`1 epoch`, `2 epochs`, `3 processes`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}{'es' if what.endswith('s') else 's'}"


def refuse(error: InputError | OSError) -> int:
    """Print an error of input as one line on stderr; returns a command's exit code.

    An OSError of a file that was named is one, too: a name too long, a folder that may not be entered. Any other is the
    program's own, and raised again.
    """
    if isinstance(error, OSError):
        if error.filename is None:
            raise error
        error = cannot("use", error.filename, error)
    warn(f"error: {error}")
    return 1
