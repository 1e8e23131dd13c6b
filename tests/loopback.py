"""A web server on loopback that a test can tell to misbehave, and that notes what it was asked and how much it sent.

Speaks as much HTTP/1.1 (RFC 9110) as downloads need: GET and HEAD, one byte range, redirects.
"""

import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = b"<!DOCTYPE html><html><title>Sign in to the guest network</title></html>"


@dataclass
class Served:
    """A file and how it is served.

    cut: how many bytes to send before the connection is dropped. status: what to answer instead. failures: how many
    answers these two apply to, -1 for all. ranges, length: whether byte ranges are honoured, and the length is told.
    redirect: where the file really is. kind, headers: what to say of it. slow: seconds to wait after each 64 KiB.
    """

    content: bytes
    cut: int | None = None
    status: int | None = None
    failures: int = -1
    ranges: bool = True
    length: bool = True
    redirect: str | None = None
    kind: str = "application/octet-stream"
    headers: dict[str, str] = field(default_factory=dict)
    slow: float = 0.0


class Server(ThreadingHTTPServer):
    """Serves `files`, path -> Served, until it is closed; `with Server() as server:`."""

    daemon_threads = True

    def __init__(self, files=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files if files is not None else {}
        self.asked: list[tuple[str, str, str | None]] = []  # (method, path, Range)
        self.headers: list[dict[str, str]] = []  # of each request
        self.sent = 0  # bytes of bodies
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        pass  # a client that hangs up is part of the tests

    def ranges(self, name):
        """The Range of each request for files called `name`, None for one without."""
        return [asked for _, path, asked in self.asked if path.rsplit("/", 1)[-1] == name]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        asked = self.headers.get("Range")
        self.server.asked.append((self.command, self.path, asked))
        self.server.headers.append(dict(self.headers))
        served = self.server.files.get(self.path)
        if served is None:
            self.reply(404, b"no such file", {}, body)
            return
        failing = served.failures != 0
        served.failures -= served.failures > 0
        if served.redirect:
            self.reply(302, b"", {"Location": served.redirect}, body)
        elif served.status and failing:
            self.reply(served.status, b"not now", served.headers, body)
        else:
            self.send_file(served, asked, served.cut if failing else None, body)

    def send_file(self, served, asked, cut, body):
        content, status = served.content, 200
        headers = {"Content-Type": served.kind, **served.headers}
        if asked and served.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
            if start >= len(content):
                self.reply(416, b"", {"Content-Range": f"bytes */{len(content)}"}, body)
                return
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            content, status = content[start:], 206
        self.reply(status, content, headers, body, cut, served)

    def reply(self, status, content, headers, body, cut=None, served=None):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if served is None or served.length:
            self.send_header("Content-Length", str(len(content)))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        if not body:
            return
        left = memoryview(content)[:cut]
        # A client may hang up, which is its right.
        with suppress(OSError):
            while left:
                count = self.request.send(left[: 1 << 16])
                self.server.sent += count
                left = left[count:]
                if served and served.slow:
                    time.sleep(served.slow)
        if cut is not None or (served and not served.length):
            self.close_connection = True
