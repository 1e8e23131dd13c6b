"""A folder of large files that several processes share: who waits, what is deleted, and what a killed one leaves.

Follows flock(2): a lock ends with the process that holds it.
"""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

import disk_cache
from disk_cache import DiskCache

NAMES = [letter * 32 for letter in "abcd"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Room for 100 bytes in three files of 30, `a` the longest unused one, on a disk that has space."""
    monkeypatch.setattr(disk_cache, "MARGIN", 0)
    for seconds, name in enumerate(NAMES[:3]):
        path = tmp_path / f"{name}.f32"
        path.write_bytes(bytes(30))
        os.utime(path, (seconds, seconds))
    return DiskCache(tmp_path, 100)


def left(cache):
    return {path.name[0] for path in cache.entries()}


@pytest.mark.parametrize(
    ("size", "files", "kept"), [(10, 0, "abc"), (11, 1, "bc"), (40, 1, "bc"), (41, 2, "c"), (100, 3, "")]
)
def test_as_many_are_deleted_as_needed(cache, size, files, kept):
    assert cache.room() == 100
    assert cache.make_room(size) == (files, 30 * files)
    assert left(cache) == set(kept)


def test_what_is_in_use_stays_and_counts(cache):
    descriptor = cache.open(cache.folder / f"{NAMES[0]}.f32", 30)
    assert cache.room() == 70
    assert cache.make_room(80) == (2, 60) and left(cache) == {"a"}  # more than there is room for
    os.close(descriptor)
    assert cache.room() == 100
    assert cache.make_room(80) == (1, 30) and left(cache) == set()


def test_opening_makes_a_file_the_last_to_go(cache):
    os.close(cache.open(cache.folder / f"{NAMES[0]}.f32", 30))
    assert [path.name[0] for path in cache.entries()] == ["b", "c", "a"]


def test_only_a_whole_file_is_opened(cache):
    path = cache.folder / f"{NAMES[0]}.f32"
    assert cache.open(path, 29) is None and cache.open(path, 31) is None
    assert cache.open(path.with_name("none"), 0) is None
    assert cache.room() == 100  # nothing of that holds a lock


def test_a_disk_with_less_space_than_the_budget(cache, monkeypatch):
    """60 bytes are free, 20 of them are to stay so; what is in the folder could go."""
    monkeypatch.setattr(disk_cache, "MARGIN", 20)
    sizes = lambda: sum(path.stat().st_size for path in cache.folder.iterdir())  # noqa: E731
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=150 - sizes()))
    large = DiskCache(cache.folder, 10**9)
    assert large.room() == 130
    assert large.make_room(70) == (1, 30)
    assert large.make_room(70) == (0, 0)


def test_what_is_not_of_the_cache_is_never_touched(cache):
    others = ["notes.txt", "f" * 32, f"{'f' * 31}.f32", f"x{'f' * 32}.f32", f"{'f' * 32}.lock", "some.tmp"]
    for name in others:
        (cache.folder / name).write_bytes(bytes(1000))
    assert cache.room() == 100
    cache.make_room(100)
    cache.sweep()
    assert {path.name for path in cache.folder.iterdir()} == set(others)


def test_a_file_takes_its_name_when_it_is_whole(cache):
    path = cache.folder / f"{NAMES[3]}.f32"
    with cache.writing(path, 5) as file:
        file.write(b"12")
        cache.sweep()  # another process's: this one is alive, so its half stays
        file.write(b"345")
        assert not path.exists() and len(cache.entries()) == 4
    assert path.read_bytes() == b"12345" and left(cache) == set("abcd")


def test_an_exception_leaves_nothing(cache):
    with pytest.raises(KeyError), cache.writing(cache.folder / f"{NAMES[3]}.f32", 5) as file:
        file.write(b"12345")
        raise KeyError
    assert left(cache) == set("abc")


def test_the_half_of_one_that_has_ended_is_swept_away(cache):
    (cache.folder / f"{NAMES[3]}.f32.0123456789ab.tmp").write_bytes(bytes(40))
    cache.sweep()
    assert left(cache) == set("abc")


def test_a_lock_file_that_a_killed_process_left_stops_nobody(cache):
    told = []
    (cache.folder / f"{NAMES[3]}.lock").write_text("4321\n")
    with cache.making(cache.folder / NAMES[3], told.append):
        assert (cache.folder / f"{NAMES[3]}.lock").read_text() == f"{os.getpid()}\n"
    assert told == [] and not (cache.folder / f"{NAMES[3]}.lock").exists()


# --- processes that build encodings in one folder ----------------------------------------------------------------

OTHER = """
    import sys, time
    from pathlib import Path
    import numpy as np, torch
    root, folder, pause, count = sys.argv[1:]
    sys.path.insert(0, root)
    import frozen
    from bert import BertConfig, BertModel
    frozen.TOKENS_AT_ONCE = 1
    torch.manual_seed(0)
    encoder = BertModel(BertConfig(vocab_size=29, hidden_size=24, num_hidden_layers=1, num_attention_heads=4,
                                   intermediate_size=40, max_position_embeddings=24)).eval()
    def slowly(done):
        print("busy", flush=True)
        time.sleep(float(pause))
    say = lambda text: print(text, flush=True)
    texts = [np.arange(2, 3 + n, dtype=np.int32) for n in range(int(count))]
    frozen.Store.build(frozen.Source(encoder, "weights"), texts, Path(folder), say=say, progress=slowly)
    print("done", flush=True)
"""


@pytest.fixture
def other(tmp_path):
    """other(pause, count=4) -> a process that encodes so many sentences, each of which takes so many seconds."""
    started = []
    script = tmp_path / "other.py"
    script.write_text(textwrap.dedent(OTHER))
    (tmp_path / "cache").mkdir()

    def start(pause, count=4):
        command = [sys.executable, script, Path(disk_cache.__file__).parent, tmp_path / "cache", pause, count]
        started.append(subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def suffixes(folder):
    return sorted(path.suffix for path in folder.iterdir())


def test_the_second_waits_for_the_first_and_finds_its_file(tmp_path, other):
    first = other(3)
    assert first.stdout.readline() == "busy\n"
    second = other(0)
    assert second.stdout.readline() == f"waiting for process {first.pid}, which encodes the same sentences\n"
    said = second.communicate(timeout=100)[0].splitlines()
    assert said == ["4 distinct sentences, 0.0 MB, found", "busy", "done"]
    assert "4 distinct sentences, 0.0 MB, encoded once\n" in first.communicate(timeout=100)[0]
    assert suffixes(tmp_path / "cache") == [".f32"]


def test_whoever_waits_for_one_that_is_killed_does_its_work(tmp_path, other):
    first = other(100)
    assert first.stdout.readline() == "busy\n"
    assert suffixes(tmp_path / "cache") == [".lock", ".tmp"]
    second = other(0)
    assert second.stdout.readline().startswith(f"waiting for process {first.pid}")
    first.kill()
    said = second.communicate(timeout=100)[0].splitlines()
    assert said == ["busy"] * 4 + ["4 distinct sentences, 0.0 MB, encoded once", "busy", "done"]
    assert suffixes(tmp_path / "cache") == [".f32"]


def test_a_live_one_s_half_is_left_alone(tmp_path, other):
    """Other sentences are encoded in the same folder meanwhile, without waiting."""
    first = other(1)
    assert first.stdout.readline() == "busy\n"
    second = other(0, count=3)
    assert "waiting" not in second.communicate(timeout=100)[0]
    assert first.communicate(timeout=100)[0].endswith("encoded once\nbusy\ndone\n")
    assert suffixes(tmp_path / "cache") == [".f32", ".f32"]
