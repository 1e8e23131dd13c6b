"""Download a file over HTTP so that a cut-off costs nothing and only the right bytes count.

Follows HTTP's range requests (RFC 9110, section 14): what an earlier call left is continued, and a hash known
beforehand decides whether it all fits together.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from console import warn
from errors import InputError, quoted
from files import cannot

if TYPE_CHECKING:  # httpx2 and huggingface_hub take half a second to import; what has arrived already needs neither
    import httpx2

AGAIN = "run ./setup.sh --full again"
# Seconds to wait before the next try when a connection brought next to nothing; after the last one the user is told.
WAITS = (1.0, 2.0, 4.0, 8.0)
LONGEST_WAIT = 60.0  # however long a busy server asks for
# After so many bytes the count of tries begins anew: 440 MB may take more than five connections.
PROGRESS = 1 << 20
# Seconds without an answer, or without a byte, after which a connection counts as lost.
CONNECTING, SILENCE = 10.0, 30.0
# Environment variables that httpx2 obeys.
PROXIES = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
CERTIFICATES = ("SSL_CERT_DIR", "SSL_CERT_FILE")
PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504}


class Passing(Exception):
    """A failure that may be over a moment later; `wait` is what the server asked for, in seconds."""

    def __init__(self, message: str, wait: float = 0.0):
        super().__init__(message)
        self.wait = wait


@dataclass(frozen=True)
class Download:
    """A file to get: its name, where it grows, its size in bytes if known, its hash, and the function that computes it.

    mirror: the environment variable that names another address. again: what to do to go on after a failure.
    """

    name: str
    path: Path
    size: int | None
    digest: str
    compute: Callable[[Path], str]
    mirror: str
    again: str = AGAIN

    @property
    def remedy(self) -> str:
        return f"check the connection and {self.again}, or name a mirror in the variable {self.mirror}"

    def arrived(self) -> bool:
        """Whether the whole file, and nothing else, is there."""
        size = size_of(self.path)
        return size > 0 and size == (self.size or size) and self.compute(self.path) == self.digest

    def run(self, url: str, headers: dict[str, str]) -> None:
        """Leaves the whole file at `path`, its hash verified.

        Raises InputError, one line with the reason and the remedy, where it can't be had; what came of it stays.
        """
        if self.size and size_of(self.path) >= self.size and not self.arrived():
            remove(self.path)  # nothing that could be added would make it right
        tries, began_again = 0, False
        while not self.arrived():
            before = size_of(self.path)
            try:
                self._receive(url, headers)
            except Passing as failure:
                tries = 1 if size_of(self.path) >= before + PROGRESS else tries + 1
                if tries > len(WAITS):
                    raise InputError(f"{self.name}: {failure}, {tries} times in a row: {self.remedy}") from failure
                wait = min(max(WAITS[tries - 1], failure.wait), LONGEST_WAIT)
                say(f"{self.name}: {failure}; trying again in {wait:.0f} s")
                time.sleep(wait)
                continue
            found = self.compute(self.path)
            if found == self.digest:
                return
            remove(self.path)
            if before == 0 or began_again:
                raise InputError(
                    f"{self.name}: what {url} sends is altered or cut short (hash {found[:12]}..., wanted "
                    f"{self.digest[:12]}...): {self.remedy}"
                )
            # The fault may lie in what an earlier call left.
            say(f"{self.name}: it does not fit what an earlier call left; beginning again")
            began_again = True

    def _receive(self, url: str, headers: dict[str, str]) -> None:
        """Makes one request and appends what it brings; if the server sends the file from its start, replaces it.

        Raises Passing, or InputError where no other try can help.
        """
        # huggingface_hub 2.4 can't continue a download in a new process: its temporary file has a random name and is
        # removed after a failure. So only its session is used, which knows proxies, certificates and redirects.
        import httpx2

        session = connections()
        offset = size_of(self.path)
        headers = {**headers, "Accept-Encoding": "identity", **({"Range": f"bytes={offset}-"} if offset else {})}
        timeout = httpx2.Timeout(SILENCE, connect=CONNECTING)
        try:
            with session.stream("GET", url, headers=headers, timeout=timeout) as response:
                self._refuse_status(response)
                if response.status_code == 200:
                    offset = 0
                elif not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
                    raise Passing("the server sends another part than the one asked for")
                chunks = response.iter_bytes()
                first = next(chunks, b"")
                self._refuse_page(response, first)
                total = announced_size(response, offset)
                if self.size and total not in (None, self.size):
                    raise InputError(
                        f"{self.name}: {url} has {total:,} bytes, wanted {self.size:,}, so it is cut short or another "
                        f"file: {self.remedy}"
                    )
                self._store(offset, total or self.size, chain([first], chunks))
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, UnicodeError) as error:
            variables = " or ".join([self.mirror, *named_in(os.environ, PROXIES[:3])])
            raise InputError(f"{self.name}: {url} is no address: correct the variable {variables}") from error
        except httpx2.RequestError as error:
            reason = str(error) or type(error).__name__
            raise Passing(f"the connection to {error.request.url.host} failed ({reason})") from error
        if self.size and size_of(self.path) < self.size:
            raise Passing("the server stopped early")

    def _refuse_status(self, response: "httpx2.Response") -> None:
        """Raises Passing or InputError unless the answer brings the file, or the part asked for."""
        status, url = response.status_code, response.request.url
        if status in (200, 206):
            return
        if status == 416:
            if not self.size:  # then what is there may be longer than the file
                remove(self.path)
            raise Passing("the server has no such part of it")
        answer = f"{url.host} answers {status} {response.reason_phrase}".rstrip()
        if status in PASSING_STATUS:
            wait = response.headers.get("Retry-After", "")
            raise Passing(answer, float(wait) if wait.isdigit() else 0.0)
        if status == 401 and "Authorization" in response.request.headers:
            raise InputError(f"{self.name}: {answer}: it refuses the token in HF_TOKEN: renew or unset that variable")
        raise InputError(f"{self.name}: {answer} when asked for {url}: {self.remedy}")

    def _refuse_page(self, response: "httpx2.Response", first: bytes) -> None:
        """Raises InputError for what a proxy or a login page sends in place of a file."""
        kind = response.headers.get("Content-Type", "")
        if kind.startswith("text/html") or first.lstrip()[:9].lower().startswith((b"<!doctype", b"<html")):
            raise InputError(
                f"{self.name}: {response.request.url} sends a web page in its place: sign in where your network asks "
                f"for it, or set HTTPS_PROXY, and {self.again}, or name a mirror in the variable {self.mirror}"
            )

    def _store(self, offset: int, total: int | None, chunks: Iterator[bytes]) -> None:
        """Writes the chunks from `offset` on, which is the end of what is there or 0.

        Raises InputError where the disk refuses.
        """
        from tqdm import tqdm

        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.path.parent).free
            if total and free < total - offset:
                needed = f"{total - offset:,} bytes are needed and {free:,} are free"
                raise InputError(f"{self.path.parent}: {needed}: free some space on that disk and {self.again}")
            if not sys.stderr.isatty():  # where nobody watches a bar grow, a line a file tells how far it is
                start = f", from {offset / 1e6:,.1f} MB on" if offset else ""
                say(f"{self.name}, {(total or 0) / 1e6:,.1f} MB{start}")
            with (
                open(self.path, "ab" if offset else "wb") as out,
                tqdm(desc=self.name, initial=offset, total=total, unit="B", unit_scale=True, disable=None) as bar,
            ):
                for chunk in chunks:
                    out.write(chunk)
                    bar.update(len(chunk))
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:
            raise cannot("write", self.path, error) from error


def check_hub() -> None:
    """Raises InputError for an HF_ENDPOINT that the hub's library, which reads it when it is imported, can't take."""
    try:
        from huggingface_hub import get_session  # noqa: F401
    except ValueError as error:
        found = quoted(os.environ.get("HF_ENDPOINT", ""))
        raise InputError(f"HF_ENDPOINT is {found}, no address ({error}): correct or unset that variable") from error


def connections() -> "httpx2.Client":
    """The hub library's session. Raises InputError where the proxies or certificates that are named can't be used."""
    import httpx2

    check_hub()
    from huggingface_hub import get_session

    try:
        return get_session()
    except (httpx2.InvalidURL, ImportError, OSError, ValueError) as error:
        names = named_in(os.environ, (*PROXIES, *CERTIFICATES))
        reason = str(error).partition(". ")[0]
        raise InputError(
            f"no connection can be made as {', '.join(names) or 'the system'} would have it ({reason}): "
            "correct or unset what names a proxy or certificates"
        ) from error


def named_in(variables: Iterable[str], names: tuple[str, ...]) -> list[str]:
    """The variables that are one of these names, in capitals or not."""
    return sorted(variable for variable in variables if variable.upper() in names)


def say(message: str) -> None:
    warn(f"fetch: {message}")


def announced_size(response: "httpx2.Response", offset: int) -> int | None:
    """The size of the whole file as the server announces it, where it does."""
    length = response.headers.get("Content-Length", "")
    # The length of a compressed body says nothing of the file's.
    return offset + int(length) if length.isdigit() and "Content-Encoding" not in response.headers else None


def size_of(path: Path) -> int:
    """The size of a file in bytes, 0 for one that isn't there."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
