"""The same seed on the same machine gives the same bytes: both training commands, in one process and in two, on a CPU.

Follows docs/faults.md, which says what a GPU can't promise.
"""

import json
import os
import shutil
import socket
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, write_rows

import contrastive
import contrastive_training
import course_data
import multitask_classifier
import options

SIZES = ["--model", "tiny", "--epochs", "2", "--batch_size", "4", "--device", "cpu"]
COMMANDS = {
    "multitask_classifier.py": [*SIZES, "--option", "finetune", "--clip", "1", "--attention", "1"],
    "contrastive.py": ["train", *SIZES, "--max_length", "12", "--mlm_weight", "0.1", "--pooler", "layer_attention"],
}
MAIN = {"multitask_classifier.py": multitask_classifier.main, "contrastive.py": contrastive.main}


@pytest.fixture
def root(tmp_path, tiny_folder, monkeypatch):
    """A folder that the commands take for the repository's: a few rows, and a tiny model with dropout."""
    write_rows(tmp_path / "data" / "sample")
    shutil.copytree(tiny_folder, tmp_path / "tiny")
    config = json.loads((tmp_path / "tiny" / "config.json").read_text())
    assert config["hidden_dropout_prob"] > 0 and config["attention_probs_dropout_prob"] > 0
    for module in (multitask_classifier, options, contrastive_training):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(course_data, "DATA", tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def content(run):
    """What a run leaves, but for times, and for where and when it was: file -> bytes."""
    found = {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    rows = [json.loads(line) for line in found.pop("metrics.jsonl").splitlines()]
    found["metrics"] = [{name: value for name, value in row.items() if name != "train_seconds"} for row in rows]
    del found["config.json"]
    found.pop("report.html", None)  # which says when, and how long
    return found


def assert_same(one, other):
    one, other = content(one), content(other)
    assert one.keys() == other.keys() and {"best/model.safetensors", "scores.json"} < one.keys()
    assert [name for name in one if one[name] != other[name]] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_one_process(root, name, capsys):
    """Whatever stood in the generators before, and whoever ran before in the same process."""
    for seed, run in ((1, "one"), (2, "other")):
        torch.manual_seed(seed)
        assert MAIN[name]([*COMMANDS[name], "--data", "data/sample", "--run", run]) == 0, capsys.readouterr().err
    assert_same(root / "one", root / "other")
    assert MAIN[name]([*COMMANDS[name], "--data", "data/sample", "--run", "third", "--seed", "5"]) == 0
    assert content(root / "third") != content(root / "one")


def test_the_best_recipe_its_ensemble_and_their_student(root, capsys):
    """All six prediction files of each, twice; the second model reads its pairs both ways."""
    train = ["--data", "data/sample", *SIZES, "--recipe", "best"]
    for again in ("a", "b"):
        first, second, both, student = (f"{again}/{name}" for name in ("first", "second", "both", "student"))
        for command in (
            [*train, "--run", first, "--seed", "1"],
            [*train, "--run", second, "--seed", "2", "--pair_encoding", "both"],
            ["--ensemble", first, second, "--run", both, "--device", "cpu"],
            [*train, "--run", student, "--distill", first, second, "--label_smoothing", "0.1"],
        ):
            assert multitask_classifier.main(command) == 0, capsys.readouterr().err
    for name in ("first", "second", "student"):
        assert_same(root / "a" / name, root / "b" / name)
    for name in ("first", "second", "both", "student"):
        files = sorted(path.name for path in (root / "a" / name / "predictions").iterdir())
        assert len(files) == 6
        for file in files:
            one, other = (root / again / name / "predictions" / file for again in ("a", "b"))
            assert one.read_bytes() == other.read_bytes()


def two(root, name, run):
    """The program itself, as torchrun starts it twice."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    outputs = [f"{task}_{split}_out" for task in ("sst", "para", "sts") for split in ("dev", "test")]
    command = [sys.executable, str(ROOT / name), *COMMANDS[name], "--data", "data/sample", "--run", run]
    if name.startswith("multi"):  # else they would go to the repository's own predictions/
        command += [f"--{output}={root / f'{run}-{output}'}" for output in outputs]
    quiet = {"cwd": root, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    started = [
        subprocess.Popen(command, env={**common, "RANK": rank, "LOCAL_RANK": rank}, **quiet) for rank in ("0", "1")
    ]
    try:
        said = [process.communicate(timeout=300)[1].decode() for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], said
    return root / run


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_two_processes(root, name):
    assert_same(two(root, name, "one"), two(root, name, "other"))
