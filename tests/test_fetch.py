"""Fetching survives what networks and disks do, and nothing becomes the default before all of it is there.

Follows fetch.py's and download.py's promises, against a server on loopback with small stand-ins for the hub's files and
the course's; the last tests fetch real files from it where there are some.
"""

import errno
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants
from loopback import PAGE, Served, Server

import course_data
import download
import fetch
import weights
from errors import InputError
from sentence_encoder import SentenceEncoder
from weights import File, Known

ROOT = Path(__file__).resolve().parent.parent
MODEL = "model.safetensors"
REVISION = "0123456789abcdef0123456789abcdef01234567"


def content(seed, size):
    return hashlib.shake_256(seed.encode()).digest(size)


HUB = {MODEL: content("model", 1_000_000), "config.json": b'{"model_type": "bert"}', "vocab.txt": b"[PAD]\n[UNK]\n"}
COURSE = {
    f"{task}-{split}.csv": content(task + split, 40_000)
    for task in ("ids-sst", "quora")
    for split in ("train", "dev", "test-student")
}


def blob_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def known(name, files=HUB, hub="someone/big"):
    pinned = tuple(File(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items())
    return Known(name, hub, REVISION, "a stand-in", pinned)


class Place:
    """A folder with weights/tiny, which is the default, and data/sample; and a server that has the rest."""

    def __init__(self, folder, server):
        self.folder, self.server = folder, server
        self.data, self.weights = folder / "data", folder / "weights"
        (self.data / "sample").mkdir(parents=True)
        (self.weights / "tiny").mkdir(parents=True)
        for name, data in HUB.items():
            (self.weights / "tiny" / name).write_bytes(data)
        for name, data in HUB.items():
            server.files[f"/someone/big/resolve/{REVISION}/{name}"] = Served(data)
        for name, data in COURSE.items():
            server.files[f"/data/{name}"] = Served(data)

    def served(self, name):
        return next(served for path, served in self.server.files.items() if path.endswith(f"/{name}"))

    def defaults(self):
        return weights.find().name, course_data.choose_data()[0].relative_to(self.folder).as_posix()

    def fetched(self):
        """Whether everything is in place, and nothing of the fetching is left."""
        files = {self.weights / "big" / name: data for name, data in HUB.items()}
        files |= {self.data / name: data for name, data in COURSE.items()}
        left = [*self.folder.glob("*/.incoming"), *self.folder.rglob("*.part")]
        return all(path.is_file() and path.read_bytes() == data for path, data in files.items()) and not left

    def untouched(self):
        """Whether runs find what they found before."""
        names = {path.name for path in self.data.iterdir()} | {path.name for path in self.weights.iterdir()}
        return names <= {"sample", "tiny", ".incoming", ".fetch.lock"} and self.defaults() == ("tiny", "data/sample")

    def driver(self):
        """A script that does what `python fetch.py` does, with these stand-ins."""
        script = self.folder / "driver.py"
        script.write_text(
            f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
            "import course_data, fetch, weights\nfrom pathlib import Path\nfrom weights import File, Known\n"
            f"weights.WEIGHTS = Path({str(self.weights)!r})\ncourse_data.DATA = Path({str(self.data)!r})\n"
            f"weights.BERT_BASE = {known('big')!r}\nweights.KNOWN = {{'big': weights.BERT_BASE}}\n"
            f"course_data.BLOBS = {course_data.BLOBS!r}\nsys.exit(fetch.main(sys.argv[1:]))\n"
        )
        return {
            "args": [sys.executable, str(script)],
            "env": {
                **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
                "HF_ENDPOINT": self.server.address,
                "MINBERT_DATA_URL": f"{self.server.address}/data",
                "NO_PROXY": "127.0.0.1",
            },
            "stderr": subprocess.PIPE,
            "text": True,
        }


@pytest.fixture
def place(tmp_path, monkeypatch):
    with Server() as server:
        place = Place(tmp_path, server)
        monkeypatch.setattr(weights, "WEIGHTS", place.weights)
        monkeypatch.setattr(weights, "MINILM", known("tiny", hub="someone/tiny"))
        monkeypatch.setattr(weights, "BERT_BASE", known("big"))
        monkeypatch.setattr(weights, "KNOWN", {"tiny": weights.MINILM, "big": weights.BERT_BASE})
        monkeypatch.setattr(course_data, "DATA", place.data)
        monkeypatch.setattr(course_data, "BLOBS", {name: blob_id(data) for name, data in COURSE.items()})
        monkeypatch.setattr(download, "WAITS", (0.0, 0.0, 0.0, 0.0))
        monkeypatch.setenv("MINBERT_DATA_URL", f"{server.address}/data/")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        close_session()
        yield place
        close_session()


def refused(place, capsys, *arguments):
    """What a fetch that fails says: its error line, and what follows. Nothing may have changed for runs."""
    capsys.readouterr()
    assert fetch.main(list(arguments)) == 1
    output = capsys.readouterr()
    assert output.out == "" and "Traceback" not in output.err
    lines = [line for line in output.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert place.untouched()
    return lines[0], output.err.partition(lines[0])[2]


# --- all goes well -----------------------------------------------------------------------------------------------


def test_everything_becomes_the_default(place, capsys):
    assert place.untouched()
    assert fetch.main([]) == 0
    assert place.fetched() and place.defaults() == ("big", "data")
    assert "fetch: the course's data in " in capsys.readouterr().err
    assert {method for method, _, _ in place.server.asked} == {"GET"}
    assert len(place.server.asked) == len(HUB) + len(COURSE)


def test_what_is_in_place_asks_no_network_and_hashes_no_weights(place, capsys, monkeypatch):
    assert fetch.main([]) == 0
    place.server.asked.clear()
    capsys.readouterr()
    monkeypatch.setattr(fetch, "sha256", lambda path: pytest.fail(f"{path} was hashed again"))
    monkeypatch.setattr(weights, "sha256", lambda path: pytest.fail(f"{path} was hashed again"))
    start = time.perf_counter()
    assert fetch.main([]) == 0
    assert time.perf_counter() - start < 1
    said = capsys.readouterr().err
    assert "in place, 6 files with the right hash" in said and "in place, 3 files with the right hash" in said
    assert place.server.asked == []


@pytest.mark.parametrize("only", ["data", "weights"])
def test_one_half_can_be_fetched_alone(place, only):
    assert fetch.main([only]) == 0
    assert place.defaults() == {"data": ("tiny", "data"), "weights": ("big", "data/sample")}[only]
    assert fetch.main([]) == 0
    assert place.fetched() and len(place.server.asked) == len(HUB) + len(COURSE)


def test_files_placed_by_hand_are_taken(place):
    (place.weights / "big").mkdir()
    (place.weights / "big" / MODEL).write_bytes(HUB[MODEL])
    (place.data / "quora-dev.csv").write_bytes(COURSE["quora-dev.csv"])
    assert fetch.main([]) == 0
    assert place.fetched()
    assert place.server.ranges(MODEL) == place.server.ranges("quora-dev.csv") == []


def test_a_redirect_is_followed_with_the_range(place):
    place.server.files["/elsewhere"] = Served(HUB[MODEL], cut=300_000, failures=1)
    place.served(MODEL).redirect = f"{place.server.address}/elsewhere"
    assert fetch.main([]) == 0
    assert place.fetched()
    assert [r for _, path, r in place.server.asked if path == "/elsewhere"] == [None, "bytes=300000-"]


def test_a_token_is_sent_to_the_hub_alone_and_only_when_named(place, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert fetch.main([]) == 0
    sent = {
        path.rsplit("/", 1)[-1]: "Authorization" in headers
        for (_, path, _), headers in zip(place.server.asked, place.server.headers, strict=True)
    }
    assert {name for name, token in sent.items() if token} == set(HUB)


# --- cut off -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [MODEL, "quora-train.csv"])
def test_a_cut_off_is_continued_at_once(place, capsys, name):
    size = len((HUB | COURSE)[name])
    place.served(name).cut, place.served(name).failures = size * 3 // 10, 1
    assert fetch.main([]) == 0
    assert place.fetched()
    assert place.server.ranges(name) == [None, f"bytes={size * 3 // 10}-"]
    assert place.server.sent == sum(map(len, [*HUB.values(), *COURSE.values()]))
    assert "trying again in" in capsys.readouterr().err


@pytest.mark.parametrize("name", [MODEL, "quora-train.csv"])
def test_a_cut_off_is_continued_by_the_next_call(place, capsys, monkeypatch, name):
    monkeypatch.setattr(download, "WAITS", ())
    size = len((HUB | COURSE)[name])
    place.served(name).cut = size * 3 // 10
    error, after = refused(place, capsys)
    assert f"{name}: the connection to 127.0.0.1 failed (" in error and "run ./setup.sh --full again" in error
    assert "nothing has changed for runs, and what arrived is kept" in after
    place.served(name).cut = None
    place.server.asked.clear()
    assert fetch.main([]) == 0
    assert place.fetched() and place.defaults() == ("big", "data")
    assert place.server.ranges(name) == [f"bytes={size * 3 // 10}-"]


def test_a_long_download_may_be_cut_off_often(place, monkeypatch):
    monkeypatch.setattr(download, "PROGRESS", 50_000)
    place.served(MODEL).cut = 90_000
    assert fetch.main([]) == 0
    assert place.fetched() and len(place.server.ranges(MODEL)) == 12


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_stopped_in_the_middle_it_goes_on_later(place, sign, code):
    place.served(MODEL).slow = 0.05
    process = subprocess.Popen(**place.driver())
    deadline = time.monotonic() + 60
    while not any(download.size_of(part) > 150_000 for part in place.weights.glob(".incoming/*")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.send_signal(sign)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == code and "Traceback" not in said
    if sign == signal.SIGINT:
        assert said.splitlines()[-1].startswith("fetch: stopped: nothing has changed for runs, and what arrived is")
    assert place.untouched()
    place.served(MODEL).slow = 0.0
    assert fetch.main([]) == 0
    assert place.fetched()
    assert int(place.server.ranges(MODEL)[-1].removeprefix("bytes=").rstrip("-")) > 150_000


def test_two_at_once_fetch_once(place):
    place.served(MODEL).slow = 0.03
    processes = [subprocess.Popen(**place.driver()) for _ in range(2)]
    said = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert sum("another fetch is at work here: waiting" in text for text in said) == 1
    assert place.fetched() and len(place.server.asked) == len(HUB) + len(COURSE)


# --- not the file ------------------------------------------------------------------------------------------------


def flipped(data):
    return data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]


@pytest.mark.parametrize("name", [MODEL, "vocab.txt", "ids-sst-dev.csv"])
def test_a_flipped_byte_is_refused(place, capsys, name):
    data = (HUB | COURSE)[name]
    place.served(name).content = data[:-1] + bytes([data[-1] ^ 1])
    error, after = refused(place, capsys)
    assert f"{name}: what {place.server.address}/" in error and " sends is altered or cut short (hash " in error
    assert len(place.server.ranges(name)) == 1
    assert not list(place.folder.rglob(f"{name}.*.part"))
    place.served(name).content = data
    assert fetch.main([]) == 0 and place.fetched()


def test_a_flipped_byte_is_refused_after_a_cut_off(place, capsys):
    place.served(MODEL).cut, place.served(MODEL).failures = 300_000, 1
    place.served(MODEL).content = flipped(HUB[MODEL])
    assert "altered or cut short" in refused(place, capsys)[0]
    # The part that was there might have been at fault, so the file is asked for whole, once.
    assert place.server.ranges(MODEL) == [None, "bytes=300000-", None]


def test_a_part_that_does_not_fit_is_thrown_away(place, capsys):
    part = fetch.weights_group().download(fetch.weights_group().files[-1]).path
    part.parent.mkdir()
    part.write_bytes(bytes(400_000))
    assert fetch.main([]) == 0 and place.fetched()
    assert "does not fit what an earlier call left; beginning again" in capsys.readouterr().err
    assert place.server.ranges(MODEL) == ["bytes=400000-", None]


@pytest.mark.parametrize("name", [MODEL, "quora-dev.csv"])
def test_a_part_that_is_too_long_is_thrown_away(place, name):
    group = fetch.weights_group() if name == MODEL else fetch.data_group()
    part = next(group.download(file).path for file in group.files if file.name == name)
    part.parent.mkdir()
    part.write_bytes(bytes(2_000_000))
    assert fetch.main([]) == 0 and place.fetched()
    assert place.server.ranges(name) == ([None] if name == MODEL else ["bytes=2000000-", None])


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/octet-stream"])
@pytest.mark.parametrize("name", [MODEL, "ids-sst-train.csv"])
def test_a_web_page_is_named_as_one_and_spoils_no_part(place, capsys, monkeypatch, name, kind):
    monkeypatch.setattr(download, "WAITS", ())
    place.served(name).cut = 10_000
    refused(place, capsys)
    honest = place.served(name)
    path = next(path for path, served in place.server.files.items() if served is honest)
    place.server.files[path] = Served(PAGE, kind=kind, ranges=False)
    error, after = refused(place, capsys)
    assert f"{name} sends a web page in its place: sign in where your network asks for it" in error
    assert "by hand: config.json, vocab.txt, model.safetensors of someone/big at revision 0123456789abcdef" in after
    honest.cut = None
    place.server.files[path] = honest
    assert fetch.main([]) == 0 and place.fetched()
    assert place.server.ranges(name)[-1] == "bytes=10000-"


def test_another_size_is_refused_before_anything_is_written(place, capsys):
    place.served(MODEL).content = HUB[MODEL][:-1]
    error, _ = refused(place, capsys)
    assert "has 999,999 bytes, wanted 1,000,000, so it is cut short or another file: check the connection" in error
    assert not list(place.folder.rglob(f"{MODEL}.*.part"))


def test_a_server_that_knows_no_ranges_sends_it_all_again(place):
    place.served(MODEL).cut, place.served(MODEL).failures, place.served(MODEL).ranges = 300_000, 1, False
    assert fetch.main([]) == 0 and place.fetched()
    assert place.server.ranges(MODEL) == [None, "bytes=300000-"]


def test_a_server_that_tells_no_length(place, capsys):
    for served in place.server.files.values():
        served.length = False
    place.served(MODEL).cut, place.served(MODEL).failures = 300_000, 1
    assert fetch.main([]) == 0 and place.fetched()
    assert "model.safetensors: the server stopped early; trying again" in capsys.readouterr().err
    assert place.server.ranges(MODEL) == [None, "bytes=300000-"]


# --- no answer, or not this one ----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [403, 404, 410, 451])
def test_a_refusal_is_not_asked_for_twice(place, capsys, status):
    place.served(MODEL).status = status
    error, after = refused(place, capsys)
    assert f"model.safetensors: 127.0.0.1 answers {status} " in error and "in the variable HF_ENDPOINT" in error
    assert "the course's data has arrived: `python fetch.py data` puts it in place without the rest" in after
    assert len(place.server.ranges(MODEL)) == 1
    place.served("ids-sst-train.csv").status = status
    shutil.rmtree(place.data / ".incoming")
    error, after = refused(place, capsys)
    assert f"ids-sst-train.csv: 127.0.0.1 answers {status} " in error and "variable MINBERT_DATA_URL" in error
    assert "by hand: the CSV files in data/ of github.com/gpoesia/minbert-default-final-project at commit 7a" in after


def test_an_old_token_is_named(place, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_old")
    place.served("config.json").status = 401
    assert "it refuses the token in HF_TOKEN: renew or unset that variable" in refused(place, capsys)[0]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_passing_failure_passes(place, status):
    for name in (MODEL, "quora-dev.csv"):
        place.served(name).status, place.served(name).failures = status, 4
    assert fetch.main([]) == 0 and place.fetched()
    assert len(place.server.ranges(MODEL)) == len(place.server.ranges("quora-dev.csv")) == 5


def test_a_lasting_failure_ends(place, capsys):
    place.served("quora-dev.csv").status = 500
    error, _ = refused(place, capsys)
    assert "quora-dev.csv: 127.0.0.1 answers 500 Internal Server Error, 5 times in a row: check the connection" in error
    assert len(place.server.ranges("quora-dev.csv")) == 5


def test_a_busy_server_is_given_the_time_it_asks_for(place, monkeypatch):
    waits = []
    monkeypatch.setattr(download, "WAITS", (1.0, 2.0, 4.0, 8.0))
    monkeypatch.setattr(download.time, "sleep", waits.append)
    for name, asked in (("ids-sst-dev.csv", "7"), ("quora-dev.csv", "9999"), (MODEL, "Wed, 21 Oct 2026 07:28:00 GMT")):
        place.served(name).status, place.served(name).failures = 429, 2
        place.served(name).headers["Retry-After"] = asked
    assert fetch.main([]) == 0 and place.fetched()
    assert waits == [7, 7, 60, 60, 1, 2]


def test_no_server(place, capsys):
    place.server.shutdown()
    place.server.server_close()
    error, after = refused(place, capsys)
    assert "ids-sst-train.csv: the connection to 127.0.0.1 failed (" in error and ", 5 times in a row: " in error
    assert after.count("by hand:") == 2


def test_a_server_that_goes_away_in_the_middle(place, capsys, monkeypatch):
    def cut_and_close(*arguments):
        place.server.shutdown()
        place.server.server_close()

    place.served(MODEL).cut = 300_000
    monkeypatch.setattr(download.time, "sleep", cut_and_close)
    error, _ = refused(place, capsys)
    assert "model.safetensors: the connection to 127.0.0.1 failed (" in error
    assert [part.stat().st_size for part in place.weights.glob(".incoming/model*")] == [300_000]


def test_a_name_that_does_not_resolve(place, capsys, monkeypatch):
    monkeypatch.setattr(download, "WAITS", ())
    monkeypatch.setenv("MINBERT_DATA_URL", "http://nowhere.invalid/data")
    assert "ids-sst-train.csv: the connection to nowhere.invalid failed (" in refused(place, capsys)[0]


@pytest.mark.parametrize("address", ["here/data", "ftp://127.0.0.1/data", "http://127.0.0.1:here"])
def test_an_address_that_is_none(place, capsys, monkeypatch, address):
    monkeypatch.setenv("MINBERT_DATA_URL", address)
    error, _ = refused(place, capsys)
    assert f"{address}/ids-sst-train.csv is no address: correct the variable MINBERT_DATA_URL" in error


@pytest.mark.parametrize("address", ["http://...", f"http://{'a' * 300}/data"])
def test_a_host_whose_name_can_not_be_looked_up(place, capsys, monkeypatch, address):
    monkeypatch.setenv("MINBERT_DATA_URL", address)
    assert "is no address: correct the variable MINBERT_DATA_URL" in refused(place, capsys)[0]


@pytest.mark.parametrize(
    "variable, value",
    [
        ("HTTPS_PROXY", "http://[::1"),
        ("https_proxy", "http://a:x"),
        ("ALL_PROXY", "socks5://127.0.0.1:9"),
        ("SSL_CERT_FILE", "/nowhere/at/all"),
    ],
)
def test_proxies_and_certificates_that_are_none(place, capsys, monkeypatch, variable, value):
    for name in [name for name in os.environ if name.upper() in (*download.PROXIES, *download.CERTIFICATES)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(variable, value)
    close_session()
    error, _ = refused(place, capsys)
    assert f"no connection can be made as {variable} would have it (" in error and "correct or unset" in error
    monkeypatch.setattr(fetch, "explain", lambda _: None)
    assert refused(place, capsys, "someone/other")[0].startswith(f"error: no connection can be made as {variable} ")


@pytest.mark.parametrize("arguments", [["data"], ["someone/other"]])
@pytest.mark.parametrize("address", ["http://[::1", "http://a:x"])
def test_a_hub_whose_address_is_none(place, arguments, address):
    """As a process, since the hub's library reads it when it is imported."""
    driver = place.driver()
    driver["args"] += arguments
    driver["env"] |= {"HF_ENDPOINT": address, "MINBERT_DATA_URL": "here"}
    found = subprocess.run(**driver, timeout=60)
    assert found.returncode == 1 and "Traceback" not in found.stderr
    (error,) = [line for line in found.stderr.splitlines() if line.startswith("error: ")]
    assert error.startswith(f"error: HF_ENDPOINT is {address!r}, no address (")


def test_a_hub_told_to_be_offline(place, capsys, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set, so nothing can be fetched: unset it" in refused(place, capsys)[0]
    assert place.server.asked == []


# --- the disk ----------------------------------------------------------------------------------------------------


def test_too_little_space_is_said_before_it_is_filled(place, capsys, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: usage(0, 0, 900_000))
    error, _ = refused(place, capsys)
    assert "1,000,000 bytes are needed and 900,000 are free: free some space on that disk and run ./setup.sh" in error
    monkeypatch.undo()


class Full:
    """A real file on a disk that is full after some bytes, for all files together."""

    def __init__(self, file, disk):
        self.file, self.disk = file, disk

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        count = self.file.write(data[: self.disk["free"]])
        self.disk["free"] -= count
        if count < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_keeps_what_fits(place, capsys, monkeypatch):
    disk = {"free": 500_000}
    monkeypatch.setattr(download, "open", lambda *a: Full(open(*a), disk), raising=False)
    error, after = refused(place, capsys)
    assert "model.safetensors." in error and "No space left on device: free some space on that disk" in error
    assert "what arrived is kept" in after
    disk["free"] = 10_000_000
    assert fetch.main([]) == 0 and place.fetched()
    assert place.server.sent < 2_000_000 and place.server.ranges(MODEL)[-1].startswith("bytes=")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_no_permission(place, capsys, monkeypatch, code):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(download, "open", fail, raising=False)
    error, _ = refused(place, capsys)
    assert "cannot write " in error and os.strerror(code) in error


def test_no_permission_for_the_lock(place, capsys, monkeypatch):
    monkeypatch.setattr(Path, "mkdir", lambda *a, **k: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    assert "cannot write " in refused(place, capsys)[0]


@pytest.mark.parametrize("error", [OSError(errno.EACCES, "Permission denied"), KeyboardInterrupt()])
def test_a_file_that_cannot_take_its_name_takes_all_others_back(place, capsys, monkeypatch, error):
    replace = os.replace

    def fail(source, target):
        if Path(target).name == MODEL:
            raise error
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    assert fetch.main([]) == (1 if isinstance(error, OSError) else 130)
    assert place.untouched()
    monkeypatch.setattr(os, "replace", replace)
    place.server.asked.clear()
    assert fetch.main([]) == 0 and place.fetched()
    assert place.server.asked == []


def test_what_can_not_be_taken_back_is_said_and_taken_as_it_is(place, capsys, monkeypatch):
    replace = os.replace

    def fail(source, target):
        if Path(target).name == MODEL or Path(source).name == "quora-dev.csv":
            raise OSError(errno.EACCES, "Permission denied")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    assert fetch.main([]) == 1
    assert f"in place already, and right: {place.data / 'quora-dev.csv'}\n" in capsys.readouterr().err
    assert [file.name for file in place.data.glob("*.csv")] == ["quora-dev.csv"]
    monkeypatch.setattr(os, "replace", replace)
    place.server.asked.clear()
    assert fetch.main([]) == 0 and place.fetched()
    assert place.server.asked == []


def test_the_path_that_is_in_the_way_is_named(place, capsys):
    (place.weights / "big").write_text("mine")
    assert fetch.main([]) == 1
    said = capsys.readouterr().err
    assert f"error: cannot write {place.weights / 'big' / 'config.json'}: " in said and said.count("error: ") == 1
    assert (place.weights / "big").read_text() == "mine"
    (place.weights / "big").unlink()
    assert place.untouched()
    place.server.asked.clear()
    assert fetch.main([]) == 0 and place.fetched() and place.server.asked == []


# --- a user's own files ------------------------------------------------------------------------------------------


def test_a_changed_data_file_is_never_overwritten(place, capsys):
    mine = place.data / "ids-sst-train.csv"
    mine.write_text("my own rows")
    assert fetch.main([]) == 1
    said = capsys.readouterr().err
    assert f"error: {mine} is not the one of the course's data (hash " in said
    assert "stays as it is: move it away and run ./setup.sh --full again" in said and "by hand" not in said
    assert place.server.asked == [] and mine.read_text() == "my own rows"
    assert fetch.main(["weights"]) == 0 and weights.find().name == "big"
    mine.unlink()
    assert fetch.main([]) == 0 and place.fetched()


def test_other_weights_under_the_name_are_never_overwritten(place, capsys):
    (place.weights / "big").mkdir()
    (place.weights / "big" / MODEL).write_bytes(flipped(HUB[MODEL]))
    assert fetch.main([]) == 1
    assert "is not the one of big (hash " in capsys.readouterr().err
    assert place.server.asked == [] and (place.weights / "big" / MODEL).read_bytes() == flipped(HUB[MODEL])


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("nowhere")])
def test_what_is_no_file_in_a_files_place_is_said_once_and_stays(place, capsys, make):
    path = place.data / "quora-dev.csv"
    make(path)
    assert fetch.main([]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith(f"error: {path} is no file, where one of the course's data belongs, ")
    assert "stays as it is: move it away and run ./setup.sh --full again" in said[0]
    assert os.path.lexists(path) and place.server.asked == []


def test_a_file_that_can_not_be_read_is_said_once(place, capsys, monkeypatch):
    path, read = place.data / "quora-dev.csv", Path.read_bytes
    path.write_bytes(COURSE["quora-dev.csv"])

    def refuse(self):
        if self == path:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert fetch.main([]) == 1
    said = capsys.readouterr().err
    assert f"error: cannot read {path}: Permission denied: check the path and its permissions" in said
    assert (
        said.count("cannot read") == 1 and "by hand: config.json, vocab.txt, model.safetensors of someone/big" in said
    )


def test_a_file_placed_by_hand_meanwhile_stays(place, capsys, monkeypatch):
    run = download.Download.run

    def run_and_place(self, *arguments):
        run(self, *arguments)
        if self.name == MODEL:
            (place.data / "quora-dev.csv").write_text("mine")

    monkeypatch.setattr(download.Download, "run", run_and_place)
    assert fetch.main([]) == 1
    assert "quora-dev.csv is not the one of the course's data" in capsys.readouterr().err
    assert (place.data / "quora-dev.csv").read_text() == "mine" and not (place.weights / "big").exists()


# --- what is mixed -----------------------------------------------------------------------------------------------


def test_a_set_with_gaps_names_them_and_a_whole_one_passes(place):
    assert fetch.main(["data"]) == 0
    paths = [place.data / name for name in COURSE]
    course_data.refuse_mixture(paths)
    for name in ("quora-train.csv", "ids-sst-dev.csv"):
        (place.data / name).unlink()
    with pytest.raises(InputError) as caught:
        course_data.refuse_mixture(paths)
    assert "not ids-sst-dev.csv, quora-train.csv: run ./setup.sh --full, which fetches them" in str(caught.value)
    course_data.refuse_mixture(path for path in paths if path.is_file())
    course_data.refuse_mixture([place.folder / "gone.csv"])


def test_the_samples_files_do_not_go_with_the_courses(place, tmp_path):
    for name in COURSE:
        (place.data / "sample" / name).write_text(f"the sample's {name}")
    sample = [place.data / "sample" / name for name in COURSE]
    course_data.refuse_mixture(sample)
    assert fetch.main(["data"]) == 0
    paths = [place.data / name for name in COURSE]
    course_data.refuse_mixture(paths)
    shutil.copy(sample[0], paths[0])
    own = tmp_path / "my-own.csv"
    own.write_text("1")
    course_data.refuse_mixture([*sample, own])
    course_data.refuse_mixture([*paths[1:], own])
    shutil.copy(paths[1], tmp_path / "course.csv")
    for mixture in (paths, [*paths[1:], sample[0]], [*sample, tmp_path / "course.csv"]):
        with pytest.raises(InputError, match="is the bundled sample's, and .* is not: scores of a mixture would mean"):
            course_data.refuse_mixture(mixture)


# --- the command, and the real thing -----------------------------------------------------------------------------


def test_the_help_names_the_variables(capsys):
    with pytest.raises(SystemExit) as caught:
        fetch.main(["--help"])
    assert caught.value.code == 0
    assert "HF_ENDPOINT and MINBERT_DATA_URL name mirrors" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit) as caught:
        fetch.main(["everything"])
    assert caught.value.code == 2


def test_the_command_from_any_folder(place):
    result = subprocess.run(**place.driver(), cwd="/")
    assert result.returncode == 0 and place.fetched()
    lines = result.stderr.splitlines()
    assert "fetch: model.safetensors, 1.0 MB" in lines and lines[-1].endswith("in place, 3 files with the right hash")


def test_the_real_addresses_are_pinned():
    data, hub = fetch.data_group(), fetch.weights_group()
    commit = "7ac8260577fc12a86c7aaf38918056c30054ef39"
    assert course_data.ADDRESS.endswith(f"/gpoesia/minbert-default-final-project/{commit}/data")
    assert len(data.files) == 12 and {file.name for file in hub.files} == {MODEL, "config.json", "vocab.txt"}
    path = f"/google-bert/bert-base-uncased/resolve/86b5e0934494bd15c9632b12f734a8a67f723594/{MODEL}"
    assert hub.request(MODEL)[0].endswith(path)
    assert hub.files[-1].name == MODEL and all(len(file.digest) == 64 and file.size for file in hub.files)


@pytest.mark.slow
def test_real_weights_cut_off_resumed_and_refused(place, minilm, monkeypatch, capsys):
    monkeypatch.setattr(download, "WAITS", ())
    files = {name: (minilm / name).read_bytes() for name in (MODEL, "config.json", "vocab.txt")}
    monkeypatch.setattr(weights, "BERT_BASE", known("big", files))
    monkeypatch.setitem(weights.KNOWN, "big", weights.BERT_BASE)
    for name, data in files.items():
        place.served(name).content = data
    size = len(files[MODEL])
    place.served(MODEL).cut = size * 3 // 10
    refused(place, capsys)
    place.served(MODEL).cut = None
    place.served(MODEL).content = flipped(files[MODEL])
    assert "altered or cut short" in refused(place, capsys)[0]
    assert place.server.ranges(MODEL) == [None, f"bytes={size * 3 // 10}-", None]
    place.served(MODEL).cut = size * 3 // 10
    place.served(MODEL).content = files[MODEL]
    refused(place, capsys)
    place.served(MODEL).cut = None
    assert fetch.main([]) == 0
    assert place.server.ranges(MODEL)[-1] == f"bytes={size * 3 // 10}-"
    assert weights.find().verified and weights.find().name == "big"


def test_the_courses_files_are_known_and_a_re_split_is_refused(place, real_data, capsys, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(weights, "WEIGHTS", place.weights)
    monkeypatch.setattr(course_data, "DATA", place.data)
    monkeypatch.setenv("MINBERT_DATA_URL", f"{place.server.address}/data")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in course_data.BLOBS:
        place.server.files[f"/data/{name}"] = Served((real_data / "cs224n" / name).read_bytes())
    group = fetch.data_group()
    assert fetch.main(["data"]) == 1
    assert "error: quora-train.csv: what http://127.0.0.1:" in capsys.readouterr().err
    for file in group.files:
        if not file.name.startswith("quora"):
            group.download(file).run(*group.request(file.name))
        else:
            with pytest.raises(InputError, match="altered or cut short"):
                group.download(file).run(*group.request(file.name))
    assert sorted(path.name for path in place.data.iterdir()) == [".incoming", "sample"]


# --- another BERT of the hub --------------------------------------------------------------------------------------


OTHER = "someone/bert-mini"
COMMIT = "fedcba9876543210fedcba9876543210fedcba98"


@pytest.fixture
def hub(place, monkeypatch):
    """hub(files, **more of what the hub says): `OTHER` with these files, listed as the hub's API lists them."""

    def serve(files, **more):
        siblings = []
        for name, data in files.items():
            lfs = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 134}
            known = {"rfilename": name, "size": len(data), "blobId": blob_id(data)}
            siblings.append(known | ({"lfs": lfs} if name.endswith((".safetensors", ".bin")) else {}))
            place.server.files[f"/{OTHER}/resolve/{COMMIT}/{name}"] = Served(data)
        told = {"id": OTHER, "sha": COMMIT, "siblings": siblings, "config": {"model_type": "bert"}, **more}
        answer = Served(json.dumps(told).encode(), kind="application/json")
        for path in (f"/api/models/{OTHER}", f"/api/models/{OTHER}/revision/v1"):
            place.server.files[f"{path}?blobs=True"] = place.server.files[f"{path}?blobs=true"] = answer
        return place.weights / "someone--bert-mini"

    monkeypatch.setattr(constants, "ENDPOINT", place.server.address)
    return serve


ALSO = {"tokenizer.json": b"{}", "tokenizer_config.json": b"{}", "README.md": b"card", "tf_model.h5": b"another"}


def test_a_model_of_the_hub_is_fetched_and_found_by_its_name(place, hub, capsys):
    folder = hub({**HUB, **ALSO, weights.PICKLED: b"not needed"})
    assert fetch.main([OTHER]) == 0
    said = capsys.readouterr().err
    assert f"{OTHER}, revision fedcba9, in {folder}: in place, 5 files with the right hash; --model {OTHER}" in said
    wanted = {*HUB, "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in folder.iterdir()} == wanted and not [*place.weights.glob(".incoming")]
    assert all((folder / name).read_bytes() == data for name, data in HUB.items())
    found = weights.find(OTHER)
    assert found.path == folder and found.sha256 == hashlib.sha256(HUB[MODEL]).hexdigest()
    assert weights.locate(OTHER) == folder
    assert place.defaults() == ("tiny", "data/sample")  # nothing else has changed
    sent = place.server.sent
    assert fetch.main([OTHER, "--revision", "v1"]) == 0 and place.server.sent - sent < 5000  # the hub's answer alone


def test_an_older_model_has_its_weights_pickled_and_a_word_list(place, hub):
    folder = hub({"config.json": b"{}", "vocab.txt": b"[PAD]\n", weights.PICKLED: content("old", 3000)})
    assert fetch.main([OTHER]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", weights.PICKLED, "vocab.txt"]


@pytest.fixture
def sentence_model(tmp_path, tiny, tiny_tokenizer):
    """The files of a sentence model that pools by its first token, in SentenceTransformer's layout: name -> bytes."""
    folder = tmp_path / "local" / "model"
    tiny().save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    SentenceEncoder.to_train(folder, "first").save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    del config["minbert"]  # as others publish one
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "onnx").mkdir()
    (folder / "onnx" / "config.json").write_text("{}")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_fetched_sentence_model_pools_as_a_full_copy_does(place, hub, sentence_model, tmp_path):
    copy, texts = tmp_path / "local" / "model", ["a good film", "dull"]
    folder = hub(sentence_model)
    assert fetch.main([OTHER]) == 0
    left_out = set(sentence_model) - {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert left_out == {"sentence_bert_config.json", "onnx/config.json"}  # which nothing here reads
    encoder = SentenceEncoder.from_pretrained(OTHER)
    assert encoder.pooler_name == "first" and not [*place.folder.glob("*/.incoming")]
    assert (encoder.encode(texts) == SentenceEncoder.from_pretrained(copy).encode(texts)).all()
    # What an earlier version left without its pooling is made whole.
    shutil.rmtree(folder / "1_Pooling")
    assert fetch.main([OTHER]) == 0 and SentenceEncoder.from_pretrained(OTHER).pooler_name == "first"


def test_a_fetched_sentence_model_that_can_not_be_followed_is_refused_as_a_full_copy_is(place, hub, sentence_model):
    hub({**sentence_model, "2_Dense/config.json": b"{}", "2_Dense/model.safetensors": content("dense", 1000)})
    assert fetch.main([OTHER]) == 0 and not place.server.ranges("model.safetensors")[1:]
    with pytest.raises(InputError, match="1_Pooling/config.json: pools by cls_token, which is no pooler here"):
        SentenceEncoder.from_pretrained(OTHER)


def test_a_pooling_that_is_altered_leaves_nothing_of_its_model(place, hub, sentence_model, capsys):
    folder = hub(sentence_model)
    served = place.server.files[f"/{OTHER}/resolve/{COMMIT}/1_Pooling/config.json"]
    served.content = flipped(served.content)
    assert "1_Pooling/config.json: what " in refused(place, capsys, OTHER)[0] and not folder.exists()


def test_a_model_whose_last_file_can_not_take_its_name_leaves_no_folder(place, hub, sentence_model, monkeypatch):
    folder, replace = hub(sentence_model), os.replace

    def fail(source, target):
        if Path(target) == folder / MODEL:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    assert fetch.main([OTHER]) == 130 and not folder.exists()


@pytest.mark.parametrize("revision", [[], ["--revision", "v1"], ["--revision", "my branch"]])
def test_each_remedy_is_the_command_that_was_given(place, hub, capsys, monkeypatch, revision):
    hub(HUB)
    asked = f"/api/models/{OTHER}/revision/my%20branch?blobs="
    place.server.files |= {
        f"{asked}{yes}": place.server.files[f"/api/models/{OTHER}?blobs={yes}"] for yes in ("True", "true")
    }
    command = [OTHER, *revision]
    again = f"run `python fetch.py {shlex.join(command)}` again"
    served = place.server.files[f"/{OTHER}/resolve/{COMMIT}/{MODEL}"]
    for changes in ({"content": PAGE, "kind": "text/html"}, {"status": 404}, {"status": 500}):
        place.server.files[f"/{OTHER}/resolve/{COMMIT}/{MODEL}"] = replace(served, **changes)
        assert again in refused(place, capsys, *command)[0]
    place.server.files[f"/{OTHER}/resolve/{COMMIT}/{MODEL}"] = served
    with monkeypatch.context() as patched:
        usage = namedtuple("usage", "total used free")
        patched.setattr(download.shutil, "disk_usage", lambda path: usage(0, 0, 900_000))
        assert f"free some space on that disk and {again}" in refused(place, capsys, *command)[0]
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.EACCES, "Permission denied")))
        assert f"has arrived: `python fetch.py {shlex.join(command)}` puts it in" in refused(place, capsys, *command)[1]
    for name in ("_hub_info", "missing"):  # while the hub is asked, and later
        with monkeypatch.context() as patched:
            patched.setattr(fetch, name, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            assert fetch.main(command) == 130
            assert capsys.readouterr().err.endswith(f"and what arrived is kept: to go on, {again}\n")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert f"check the connection and {again}, or name a mirror" in refused(place, capsys, *command)[0]


@pytest.mark.parametrize("command", [["data"], ["weights"], ["someone/big"]])
def test_each_remedy_of_one_half_is_the_command_that_was_given(place, capsys, command):
    for served in place.server.files.values():
        served.status = 404
    assert f"check the connection and run `python fetch.py {command[0]}` again" in refused(place, capsys, *command)[0]


def test_what_was_cut_off_goes_on(place, hub, capsys):
    folder = hub(HUB)
    served = place.server.files[f"/{OTHER}/resolve/{COMMIT}/{MODEL}"]
    served.cut = 10_000
    assert f"run `python fetch.py {OTHER}` again" in refused(place, capsys, OTHER)[0]
    assert not folder.exists()
    served.cut = None
    assert fetch.main([OTHER]) == 0 and (folder / MODEL).read_bytes() == HUB[MODEL]


@pytest.mark.parametrize("first, second", [(["weights"], [OTHER]), ([OTHER], ["weights"])])
def test_what_arrived_of_one_model_outlives_the_fetch_of_another(place, hub, capsys, monkeypatch, first, second):
    other = {**HUB, MODEL: content("other", 500_000), "config.json": b"{}"}
    hub(other)
    paths = {"weights": f"/someone/big/resolve/{REVISION}/{MODEL}", OTHER: f"/{OTHER}/resolve/{COMMIT}/{MODEL}"}
    path = paths[first[0]]
    monkeypatch.setattr(download, "WAITS", ())
    place.server.files[path].cut = 200_000
    refused(place, capsys, *first)
    place.server.files[path].cut = None
    for _ in range(2):  # the second time nothing is missing
        assert fetch.main(second) == 0
        assert [part.stat().st_size for part in place.weights.glob(".incoming/*")].count(200_000) == 1
    place.server.asked.clear()
    assert fetch.main(first) == 0 and not [*place.weights.glob(".incoming")]
    assert [asked for _, at, asked in place.server.asked if at == path] == ["bytes=200000-"]


def test_what_waits_of_files_placed_by_hand_goes_while_no_other_fetch_is_at_work(place, monkeypatch):
    assert fetch.main(["weights"]) == 0
    own = fetch.weights_group().part(fetch.weights_group().files[-1])
    own.parent.mkdir()
    own.write_bytes(HUB[MODEL][:1000])
    alone, held = fetch.alone, []

    @contextmanager
    def watched():
        with alone():
            held.append(own.exists())
            yield
            held.append(own.exists())

    monkeypatch.setattr(fetch, "alone", watched)
    assert fetch.main(["weights"]) == 0
    assert held == [True, False] and not own.parent.exists()
    own.parent.mkdir()
    own.write_bytes(HUB[MODEL][:1000])
    monkeypatch.setattr(fetch, "alone", lambda: (_ for _ in ()).throw(InputError("a disk that is read-only")))
    assert fetch.main(["weights"]) == 0 and own.exists()


def test_a_file_that_is_another_stays(place, hub, capsys):
    folder = hub(HUB)
    folder.mkdir()
    (folder / "config.json").write_text("mine")
    assert fetch.main([OTHER]) == 1
    said = capsys.readouterr().err
    assert "config.json is not the one of someone/bert-mini" in said and f"run `python fetch.py {OTHER}` again" in said
    assert "the other half" not in said and [path.name for path in folder.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    "files, more, message",
    (
        (HUB, {"config": {"model_type": "gpt2"}}, "is a gpt2 model, wanted a bert one"),
        ({"config.json": b"{}", "vocab.txt": b"x"}, {}, "has no model.safetensors, so it can't be read"),
        ({"config.json": b"{}", MODEL: b"x"}, {}, "has no tokenizer.json, so it can't be read"),
        ({**ALSO, "config.json": b"{}", f"{MODEL}.index.json": b"{}"}, {}, "split over several files"),
    ),
)
def test_a_model_that_could_not_be_read_is_not_fetched(place, hub, capsys, files, more, message):
    folder = hub(files, **more)
    assert message in refused(place, capsys, OTHER)[0]
    assert not folder.exists() and not [path for _, path, _ in place.server.asked if "/resolve/" in path]


def test_a_hub_that_does_not_have_it_or_does_not_answer(place, hub, capsys, monkeypatch):
    assert "the hub has no such model, or it is private" in refused(place, capsys, "someone/nothing")[0]
    hub(HUB)
    for served in (served for path, served in place.server.files.items() if path.startswith("/api/")):
        served.status = 503
    assert "the hub gave no answer" in refused(place, capsys, OTHER)[0]
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "the hub gave no answer" in refused(place, capsys, OTHER)[0]
    with pytest.raises(InputError, match="of the hub\\? `python fetch.py someone/bert-mini` fetches it"):
        weights.find(OTHER)


def test_known_models_by_their_names_on_the_hub(place, capsys):
    assert fetch.main(["someone/big"]) == 0 and (place.weights / "big" / MODEL).is_file()
    for arguments in (["big"], ["nonsense"], ["a/b/c"], ["data", "--revision", "x"], [OTHER, "--revision", ""]):
        with pytest.raises(SystemExit):
            fetch.main(arguments)


@pytest.mark.parametrize("name", ["someone/big", "someone/tiny"])
def test_a_revision_of_what_is_pinned_is_refused(place, capsys, name):
    with pytest.raises(SystemExit) as caught:
        fetch.main([name, "--revision", "v1"])
    assert caught.value.code == 2 and place.untouched() and place.server.asked == []
    assert f"--revision v1: {name} is pinned to revision 0123456: leave it out" in capsys.readouterr().err
