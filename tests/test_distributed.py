"""Two processes train as one does, stop together, and don't wait for one that is dead. CPU and gloo."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from two_processes import PIECES, curve, make_trainer, state

from distributed import ALONE, Processes, find_processes
from errors import InputError
from sampling import SCHEDULES

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


def start_two(folder, what):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "two_processes.py"), str(folder), what]
    started = []
    for rank in ("0", "1"):
        environment = {**common, "RANK": rank, "LOCAL_RANK": rank}
        started.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    return started


def finish(started, seconds=240):
    """(exit code, stderr) of each; a process that hangs is killed and fails the test."""
    try:
        return [(process.wait(seconds), process.stderr.read()) for process in started]
    except subprocess.TimeoutExpired:
        pytest.fail("a process waits forever")
    finally:
        for process in started:
            process.kill()


def assert_close(one, other, absolute=2e-4):
    """Equal but for the order of sums."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_close(one[key], other[key], absolute)
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_close(a, b, absolute)
    elif isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, atol=absolute, rtol=1e-3)
    else:
        assert one == pytest.approx(other, abs=1e-3)  # a correlation over few rows


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What two processes left after training by every schedule, with whole batches and with parts of one row."""
    folder = tmp_path_factory.mktemp("two")
    for code, err in finish(start_two(folder, "schedules")):
        assert code == 0, err
    return folder


@pytest.mark.parametrize("micro_batch", [0, 1])
@pytest.mark.parametrize("name", SCHEDULES)
def test_two_processes_are_one_at_the_same_global_batch(both, tmp_path, name, micro_batch):
    trainer = make_trainer(tmp_path / "one", name)
    trainer.train(lambda line: None)
    (curves, weights), (curve_1, weights_1) = (torch.load(both / f"{name}-{micro_batch}-{rank}.pt") for rank in (0, 1))
    assert curves == curve_1 and all(torch.equal(weights[key], weights_1[key]) for key in weights)
    assert_close(curves, curve(trainer))
    assert_close(weights, state(trainer))
    assert {path.name for path in (both / f"{name}-{micro_batch}").iterdir()} == {"best", "last", "metrics.jsonl"}


def test_two_processes_are_one_with_all_that_makes_a_step_otherwise(tmp_path):
    """R-Drop, the mean gradient of three batches, PCGrad, the average that is judged, offsets that are settled."""
    for code, err in finish(start_two(tmp_path, "together")):
        assert code == 0, err
    trainer = make_trainer(tmp_path / "one", "even", together=True)
    trainer.train(lambda line: None)
    (curves, weights), (curve_1, weights_1) = (torch.load(tmp_path / f"together-{rank}.pt") for rank in (0, 1))
    assert curves == curve_1 and all(torch.equal(weights[key], weights_1[key]) for key in weights)
    assert_close(curves, curve(trainer))
    assert_close(weights, state(trainer))


def test_two_processes_are_one_for_a_loss_that_is_no_mean_over_rows(tmp_path):
    for code, err in finish(start_two(tmp_path, "corn")):
        assert code == 0, err
    trainer = make_trainer(tmp_path / "one", "proportional", loss="corn")
    trainer.train(lambda line: None)
    for micro_batch in (0, 1):
        (curves, weights), (curve_1, weights_1) = (
            torch.load(tmp_path / f"corn-{micro_batch}-{rank}.pt") for rank in (0, 1)
        )
        assert curves == curve_1 and all(torch.equal(weights[key], weights_1[key]) for key in weights)
        assert_close(curves, curve(trainer))
        # One bias has a gradient of next to nothing, and its sign, which AdamW follows, is the order of sums'.
        assert_close(weights, state(trainer), 1e-3)


def test_both_stop_after_the_same_step_and_go_on_to_the_same_bits(tmp_path):
    for what in ("straight", "stopped"):
        for code, err in finish(start_two(tmp_path, what)):
            assert code == 0, err
    for rank in (0, 1):
        (wanted, weights), (found, same) = (
            torch.load(tmp_path / f"{what}-{rank}.pt") for what in ("straight", "stopped")
        )
        assert found == wanted and all(torch.equal(weights[key], same[key]) for key in weights)


def test_nobody_waits_for_a_process_that_is_dead(tmp_path):
    (code, err), (dead, _) = finish(start_two(tmp_path, "dies"), seconds=100)
    assert dead == 9
    assert code == 1 and "error: another process has ended or does not answer (" in err


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no such signal on this system")
def test_nobody_waits_forever_for_a_process_that_hangs(tmp_path):
    """It is stopped in a step, and lives; the other's patience, here of five seconds, ends."""
    (first, hanging) = start_two(tmp_path, "hangs")
    try:
        assert first.wait(100) == 1 and hanging.poll() is None
        assert "error: another process has ended or does not answer (" in first.stderr.read()
    finally:
        for process in (first, hanging):
            process.kill()
            process.communicate()


def test_what_processes_tell_each_other(tmp_path):
    for code, err in finish(start_two(tmp_path, "words")):
        assert code == 0, err
    for rank in (0, 1):
        text, gathered, flags, shares = torch.load(tmp_path / f"words-{rank}.pt")
        assert text == "a – name" and gathered == [0.0, 1.0, 2.0, 10.0, 11.0] and flags == [True, False]
        assert shares == [[0], [], [0, 1, 2], [3, 4]]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="this system doesn't list threads")
def test_no_thread_of_the_connection_is_left(tmp_path):
    """One that is can abort a Python that ends, after everything was done: "terminate called ..."."""
    for code, err in finish(start_two(tmp_path, "imports")):
        assert code == 0, err
    for rank in (0, 1):
        assert [name for name in (tmp_path / f"threads-{rank}").read_text().split() if "gloo" in name] == []


def test_alone_nothing_changes(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert find_processes() == ALONE
    rows = torch.ones(2, requires_grad=True)
    assert ALONE.gather(rows, [2]).tolist() == [1.0, 1.0] and ALONE.from_first("x") == "x"
    assert [part.tolist() for part in ALONE.shares(np.arange(2))] == [[0, 1]]


@pytest.mark.parametrize(
    ("rank", "size", "message"),
    [("one", "2", "RANK=one in the environment is no number"), ("2", "2", "RANK=2 with WORLD_SIZE=2")],
)
def test_variables_that_make_no_sense_are_refused(monkeypatch, rank, size, message):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(InputError, match=f"^{message}.*start with torchrun"):
        find_processes()
    monkeypatch.setenv("RANK", "1")
    assert find_processes() == Processes(1, 2, 1)


def torchrun(folder, *options):
    """The whole command under torchrun, as the README starts it, on a few rows and a tiny model, made if missing."""
    data = folder / "data"
    if not data.exists():
        data.mkdir()
        for path in (ROOT / "data" / "sample").glob("*.csv"):
            (data / path.name).write_text("".join(path.read_text().splitlines(keepends=True)[:10]))
        make_trainer(folder / "none").model.bert.save_pretrained(folder / "tiny")
        (folder / "tiny" / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}", "--"]
    if "--resume" not in options:
        options = ("--option", "finetune", "--model", folder / "tiny", "--data", data, "--device", "cpu", *options)
    return subprocess.Popen(
        [*start, str(ROOT / "multitask_classifier.py"), *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc, which names a process's children")
def test_a_rank_that_is_killed_ends_the_run_which_goes_on_to_the_same_bytes(tmp_path):
    out = [
        option
        for name in ("sst-dev", "sst-test")
        for option in (f"--{name.replace('-', '_')}_out", str(tmp_path / f"{name}.csv"))
    ]
    options = ("--tasks", "sst", "--attention", "0", "--epochs", "12", "--batch_size", "4", *out)
    straight = torchrun(tmp_path, *options, "--run", tmp_path / "straight")
    assert straight.wait(200) == 0, straight.stderr.read()
    run = tmp_path / "killed"
    process = torchrun(tmp_path, *options, "--run", run)
    deadline = time.monotonic() + 100
    while not (run / "last" / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(ranks) == 2
    os.kill(int(ranks[1]), signal.SIGKILL)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 1 and "Traceback" not in said.split("torch/distributed")[0], said
    assert not (run / "scores.json").exists()
    resumed = torchrun(tmp_path, "--resume", run)
    assert resumed.wait(200) == 0, resumed.stderr.read()
    for name in ("best/model.safetensors", "predictions/sst-dev-output.csv", "predictions/sst-test-output.csv"):
        assert (run / name).read_bytes() == (tmp_path / "straight" / name).read_bytes(), name


def test_the_command_under_torchrun(tmp_path):
    """One run's files, printed once, and every prediction once."""
    out = [
        option
        for task in ("sst", "para", "sts")
        for split in ("dev", "test")
        for option in (f"--{task}_{split}_out", str(tmp_path / f"{task}-{split}.csv"))
    ]
    run = tmp_path / "run"
    process = torchrun(tmp_path, "--epochs", 1, "--run", run, *out)
    said, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert said.count("device     cpu") == 1 and "2 processes, each a part of every batch" in said
    assert {path.name for path in run.iterdir()} == {
        "best",
        "config.json",
        "dev_outputs.safetensors",
        "metrics.jsonl",
        "predictions",
        "report.html",
        "scores.json",
    }
    for path in (run / "predictions").iterdir():
        assert len(path.read_text().splitlines()) == 10
        assert (tmp_path / path.name.replace("-output", "")).read_bytes() == path.read_bytes()
