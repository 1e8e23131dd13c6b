"""Every write of a run is made to fail, and to be the last before a kill: what was there is there, and it goes on.

The calls are numbered by failing_calls.py: a run for each of them, then another that goes on with it.
"""

import errno
import json
import os
import re
import shutil
from itertools import count

import pytest
import torch
from failing_calls import WriteCalls
from test_multitask_classifier import command, refused, relative_files, root  # noqa: F401

from evaluation import read_predictions
from files import read_json
from run import Run
from tasks import TASKS

CODES = (errno.ENOSPC, errno.EIO)
OPTIONS = ("--option", "pretrain", "--tasks", "sst", "--attention", "0")  # which writes encodings, too
pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc, which names what is open")


def outcome(folder):
    """All files that a finished run leaves, its rows without seconds, config.json left out, which has the time."""
    names = relative_files(folder) - {"config.json", ".lock"}  # a lock's file that is left holds nobody up
    found = {name: (folder / name).read_bytes() for name in names if "report.html" not in name}  # with times
    rows = [json.loads(row) for row in found["metrics.jsonl"].splitlines()]
    return {**found, "metrics.jsonl": [{**row, "train_seconds": None} for row in rows]}


def assert_whole(run):
    """Whatever is there can be read, however far it is."""
    if (run / "config.json").is_file():
        read_json(run / "config.json")
        Run(run).load_checkpoint()
    if (run / "metrics.jsonl").is_file():
        assert [json.loads(row) for row in (run / "metrics.jsonl").read_text().splitlines()]
    for path in [*run.glob("predictions/*.csv"), *run.parent.parent.glob("predictions/*.csv")]:
        read_predictions(path, TASKS[path.name.split("-")[0]])


def in_cache(call):
    """Whether a call was about the folder of encodings, whose files are named by a hash."""
    return re.search(r"cache|encodings|[0-9a-f]{32}", call) is not None


@pytest.fixture
def undisturbed(command, root):  # noqa: F811
    """undisturbed(...) -> the outcome of a run that nothing disturbs; its predictions are those of before."""

    def make(*more):
        run = root / "runs" / "-".join(("undisturbed", *more))
        assert command(*OPTIONS, *more, "--run", run).code == 0
        shutil.rmtree(root / "cache", ignore_errors=True)
        return outcome(run)

    return make


def test_every_write_that_fails(command, root, monkeypatch, undisturbed):  # noqa: F811
    """ENOSPC and EIO take turns. The message says what failed and how to go on; some files are not worth an error."""
    wanted, anew, forgiven = undisturbed(), undisturbed("--cache_gb", "0"), set()
    for number in count():
        name, code = f"runs/{number}", CODES[number % 2]
        calls = WriteCalls(root, number, code)
        with monkeypatch.context() as patch:
            calls.install(patch)
            found = command(*OPTIONS, "--run", name)
        if len(calls.what) <= number:
            break
        run, failed = root / name, calls.what[number]
        assert_whole(run)
        if found.code == 0:
            paged = "no report" not in found.out  # a run is finished without its page
            assert not ("report.html" in failed and paged), failed
            forgiven.add("cache" if in_cache(failed) else failed if paged else "report")
            if (run / "last").exists():
                assert "only its checkpoint was left" in command("--resume", name).out
        else:
            error = refused(found, "error: cannot write ", os.strerror(code))
            begun = (run / "config.json").is_file()
            goes_on = re.search(rf"; then continue with: python \S*multitask_classifier.py --resume {name}\n", error)
            assert bool(goes_on) == begun, (failed, error)
            assert not [path for path in root.rglob("*.tmp") if ".probe." not in path.name], failed
            torch.manual_seed(999)
            assert command(*(["--resume", name] if begun else [*OPTIONS, "--run", name])).code == 0, failed
        # Where encodings can't be kept, each epoch computes them anew, in batches whose rounding is another.
        assert outcome(run) == wanted or (found.code == 0 and in_cache(failed) and outcome(run) == anew), failed
        shutil.rmtree(run)
        shutil.rmtree(root / "cache", ignore_errors=True)
    assert number > 60
    assert forgiven <= {"cache", "report", "unlink checkpoint.safetensors", "rmdir last", "unlink .lock"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_every_write(command, root, monkeypatch, undisturbed):  # noqa: F811
    """In a process of its own, before each call that changes what the folders hold, with half of what it writes."""
    wanted = undisturbed()
    for number in count():
        name = f"runs/{number}"
        child = os.fork()
        if not child:
            try:
                WriteCalls(root, number).install(monkeypatch)
                command(*OPTIONS, "--run", name)
            finally:
                os._exit(0)
        killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        run = root / name
        assert_whole(run)
        finished = (run / "scores.json").is_file() and not (run / "last").exists()
        begun = (run / "config.json").is_file()
        if not finished:
            torch.manual_seed(999)
            assert command(*(["--resume", name] if begun else [*OPTIONS, "--run", name])).code == 0, number
        assert outcome(run) == wanted, number
        shutil.rmtree(run)
        shutil.rmtree(root / "cache", ignore_errors=True)
        if not killed:
            break
    assert number > 40
