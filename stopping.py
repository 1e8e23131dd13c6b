"""Signals that ask a program to end: Ctrl-C, the system's, and those of a terminal that closes.

Follows POSIX signal names. Where nobody answers them they end a program wherever it is, with nothing said or saved.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

ASKING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def on_signals(handler: Callable) -> Iterator[None]:
    """Those signals call `handler` for as long as this lasts (in the main thread, the only one that may).

    SIGHUP stays ignored where it is, as after `nohup`.
    """
    previous = {}
    try:
        for number in ASKING:
            if number == getattr(signal, "SIGHUP", None) and signal.getsignal(number) is signal.SIG_IGN:
                continue
            with suppress(ValueError):  # not the main thread
                previous[number] = signal.signal(number, handler)
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


@contextmanager
def deferred() -> Iterator[None]:
    """Whoever asks the program to end is answered after this: what a signal raises in the middle of a library's own
    code may come out of it as another error, such as that of a damaged file.
    """
    came: list[int] = []
    try:
        with on_signals(lambda number, _: came.append(number)):
            yield
    finally:
        if came:
            signal.raise_signal(came[0])


def stop_at_once(*_) -> None:
    """A handler that takes each of them as Ctrl-C, so that whatever is being written is cleaned up."""
    raise KeyboardInterrupt
