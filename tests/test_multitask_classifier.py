"""The command as its users meet it: whole runs, both seasons' flags, every way of going on, every way of being refused.

A few rows of the bundled sample and a tiny random model, so that a run takes a second.
"""

import argparse
import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROWS, write_rows
from safetensors.torch import load_file, save_file

import course_data
import files
import job
import multitask_classifier
import options
import result_row
import state_dicts
import weights
from batches import TaskData
from bert import BertModel
from command_line import build_parser
from datasets import read_examples
from errors import InputError
from evaluation import METRICS, predict, read_predictions
from files import read_json, sha256, write_json
from model import MultitaskBERT
from multitask_classifier import main
from options import get_args
from resuming import defaults_then
from run import Run
from task_files import read_split
from task_options import parse_attention, parse_fraction, parse_loss, parse_pooler
from tasks import SST, TASKS, leaderboard_score, parse_tasks
from tokenizer import BertTokenizer
from training import Trainer, TrainingOptions
from weights import File, Known

REPOSITORY = Path(multitask_classifier.__file__).parent
COURSE = ("sst", "para", "sts")


@pytest.fixture
def root(tmp_path, monkeypatch, tiny_folder):
    """A folder that the command takes for the repository's, with a few rows as its sample and a model in `tiny`."""
    root = tmp_path / "root"
    write_rows(root / "data" / "sample")
    shutil.copytree(tiny_folder, root / "tiny")
    monkeypatch.setattr(multitask_classifier, "ROOT", root)
    monkeypatch.setattr(options, "ROOT", root)
    monkeypatch.setattr(multitask_classifier, "CACHE", root / "cache" / "encodings")
    monkeypatch.setattr(course_data, "DATA", root / "data")
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def command(root, capsys):
    """command(*options) -> code, out and err of the command on the tiny model, one epoch, batches of 4."""

    def command(*options, defaults=("--model", "tiny", "--epochs", "1", "--batch_size", "4", "--device", "cpu")):
        given = [str(option) for option in options]
        capsys.readouterr()
        kept = [] if "--resume" in given else list(defaults)
        code = main([*kept, *given])
        captured = capsys.readouterr()
        return SimpleNamespace(code=code, out=captured.out, err=captured.err)

    return command


def refused(result, *wanted):
    """The one line on stderr of a refusal that names what is wanted."""
    assert result.code == 1
    assert result.err.count("\n") == 1 and result.err.startswith("error: "), result.err
    assert all(text in result.err for text in wanted), result.err
    return result.err


def relative_files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


MODEL = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
KEPT = {"config.json", "metrics.jsonl", "scores.json", "dev_outputs.safetensors", "report.html"}
BEST = {f"best/{name}" for name in MODEL}
SCALE = "best/calibration.json"


def predictions(tasks=COURSE):
    return {f"predictions/{task}-{split}-output.csv" for task in tasks for split in ("dev", "test")}


def assert_whole(run, data, out, tasks=COURSE):
    """Everything that a finished run leaves is there and says the same thing."""
    assert relative_files(run) == KEPT | BEST | predictions(tasks) | ({SCALE} if "sts" in tasks else set())
    history = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scores = read_json(run / "scores.json")
    assert set(scores) == set(tasks)
    model = MultitaskBERT.from_pretrained(run / "best")
    assert set(model.heads) == set(tasks)
    assert [row["epoch"] for row in history] == list(range(len(history)))
    best = max(history[1:], key=lambda row: row["score"])
    for name in tasks:
        task = TASKS[name]
        assert scores[name] == {
            "untrained": history[0]["dev"][name][task.metric],
            **{metric: best["dev"][name][metric] for metric in task.metrics},
        }
        for split in ("dev", "test"):
            path = out / task.predictions_file(split)
            assert path.read_bytes() == (run / "predictions" / path.name).read_bytes()
            table = read_examples(data / task.files[split], columns=task.columns)
            found = read_predictions(path, task)
            assert list(found) == [example.id for example in table]
        labelled = read_examples(
            data / task.files["dev"], columns=task.columns, label=task.label, label_kind=task.label_kind
        )
        dev = read_predictions(out / task.predictions_file("dev"), task)
        values = np.array([dev[example.id] for example in labelled])
        labels = np.array([example.label for example in labelled])
        assert METRICS[task.metric](labels, values) == pytest.approx(scores[name][task.metric], nan_ok=True)
    return history


# --- whole runs of the program -----------------------------------------------------------------------------------


def start(program, *options, cwd):
    command = [sys.executable, str(program / "multitask_classifier.py"), "--model", str(program / "tiny"), *options]
    return subprocess.Popen(
        command,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(process):
    out, err = process.communicate(timeout=600)
    assert "Traceback" not in err, err
    return SimpleNamespace(code=process.returncode, out=out, err=err)


def test_a_whole_finetune_from_another_folder(program, tmp_path):
    """Predictions go where prepare_submit.py looks for them, beside the program, and not where it was started."""
    found = finish(start(program, "--option", "finetune", "--epochs", "2", "--batch_size", "4", cwd=tmp_path))
    assert (found.code, found.err) == (0, "")
    assert list(tmp_path.iterdir()) == []
    (run,) = (program / "runs").glob("*-finetune")
    history = assert_whole(run, program / "data" / "sample", program / "predictions")
    assert len(history) == 3
    lines = found.out.splitlines()
    assert all(len(line) <= 120 for line in lines if str(tmp_path.parent.parent) not in line)
    assert [line.split()[0] for line in lines if line[:1].strip()][:6] == [
        "model",
        "data",
        "device",
        "lr",
        "run",
        "learning",
    ]
    for title in ("sentiment (SST-5)", "paraphrase (Quora)", "similarity (STS)", "leaderboard score"):
        assert title in found.out
    untrained, trained = found.out.split("leaderboard score")[1].split()[:2]
    assert untrained == f"{history[0]['score']:.3f}"
    assert trained == f"{max(row['score'] for row in history[1:]):.3f}"
    shutil.rmtree(program / "predictions")


def test_a_whole_pretrain_with_the_courses_output_flags(program):
    outputs = [f"{task}_{split}" for task in COURSE for split in ("dev", "test")]
    flags = [part for name in outputs for part in (f"--{name}_out", f"mine/{name.replace('_', '-')}-output.csv")]
    options = ["--epochs", "2", "--batch_size", "4", "--run", "runs/heads", *flags]
    found = finish(start(program, *options, cwd=program))
    assert (found.code, found.err) == (0, "")
    assert_whole(program / "runs" / "heads", program / "data" / "sample", program / "mine")
    assert not (program / "predictions").exists()
    before = BertModel.from_pretrained(program / "tiny").state_dict()
    after = MultitaskBERT.from_pretrained(program / "runs" / "heads" / "best").bert.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert len(list((program / "cache" / "encodings").iterdir())) == 1


def test_sigterm_says_how_to_go_on_and_going_on_loses_nothing(program, command, root):
    """Ended by the system in the middle, continued by the very command that it printed."""
    options = ("--option", "finetune", "--epochs", "14", "--batch_size", "4")
    process = start(program, *options, "--run", "runs/long", cwd=program)
    metrics = program / "runs" / "long" / "metrics.jsonl"
    while process.poll() is None and not (metrics.is_file() and len(metrics.read_text().splitlines()) > 2):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    stopped = finish(process)
    assert stopped.code == 130, stopped.err
    printed = re.fullmatch(
        r"stopped; continue with: (python multitask_classifier.py --resume runs/long)", stopped.err.splitlines()[-1]
    )
    assert printed, stopped.err
    assert (program / "runs" / "long" / "last" / "checkpoint.safetensors").is_file()
    _, state = Run(program / "runs" / "long").load_checkpoint()
    assert 2 <= state["epoch"] < 14

    arguments = [sys.executable, *printed.group(1).split()[1:]]
    going_on = finish(
        subprocess.Popen(arguments, cwd=program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    )
    assert (going_on.code, going_on.err) == (0, "")
    assert f"continuing at epoch {state['epoch'] + 1}, step {state['step'] + 1}" in going_on.out
    assert_whole(program / "runs" / "long", program / "data" / "sample", program / "predictions")

    assert command(*options, "--run", "runs/never-stopped").code == 0
    one, other = program / "runs" / "long", root / "runs" / "never-stopped"
    for name in ("best/model.safetensors", *predictions()):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    shutil.rmtree(program / "predictions")


def test_a_refusal_of_the_program_itself(program, tmp_path):
    found = finish(start(program, "--data", "nowhere", cwd=tmp_path))
    refused(found, "nowhere: no such folder")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "ending", ["| head -n 1", "> /dev/full", ">&-", "> /dev/full 2>&1", ">&- 2>&-", "> /dev/full 2>&-"]
)
def test_a_run_goes_on_when_nobody_listens(program, ending):
    run = program / "runs" / "unheard"
    options = "--tasks sst --epochs 1 --batch_size 4 --model tiny --device cpu --run runs/unheard"
    line = f"set -o pipefail; {sys.executable} multitask_classifier.py {options} {ending}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=program, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert_whole(run, program / "data" / "sample", program / "predictions", ["sst"])
    shutil.rmtree(run)
    shutil.rmtree(program / "predictions")


# --- what a run says and writes ----------------------------------------------------------------------------------


def test_config_is_written_before_the_first_step(command, root, monkeypatch):
    seen = {}

    def look(trainer, say):
        seen.update(read_json(root / "runs" / "x" / "config.json"))
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "train", look)
    stopped = command("--option", "finetune", "--run", "runs/x", "--lr", "0.25")
    assert stopped.code == 130 and stopped.err.endswith("multitask_classifier.py --resume runs/x\n")
    assert seen["command"] == "multitask_classifier.py"
    assert seen["options"]["lr"] == 0.25 and seen["options"]["epochs"] == 1 and seen["options"]["option"] == "finetune"
    assert seen["model"]["sha256"] == sha256(root / "tiny" / "model.safetensors")
    assert seen["model"]["path"] == str(root / "tiny") and seen["model"]["verified"] is False
    file = seen["data"]["para"]["dev"]
    assert file["path"] == str(root / "data" / "sample" / "quora-dev.csv")
    assert (file["rows"], file["dropped"], file["sha256"]) == (8, [], sha256(file["path"]))
    assert seen["versions"]["torch"] == torch.__version__
    assert {"commit", "started", "device"} <= set(seen)


def test_stopped_before_anything_was_written(command, root, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "read_split", interrupt)
    stopped = command()
    assert (stopped.code, stopped.err) == (130, "stopped before anything was written\n")
    assert not (root / "runs").exists()


def test_what_was_recommended_and_what_was_asked_for(command):
    found = command("--tasks", "sst")
    assert "lr         0.001 (recommended for this model and option)" in found.out
    found = command("--tasks", "sst", "--option", "finetune", "--run", "runs/other")
    assert "lr         5e-05 (recommended for this model and option)" in found.out
    found = command("--tasks", "sst", "--lr", "0.5", "--run", "runs/third")
    assert "lr         0.5, batch size 4, 1 epoch" in found.out


def test_rows_left_out_and_sentences_cut_are_said(command, root):
    """With the limit of the model, which is not always 512."""
    path = root / "data" / "sample" / "ids-sst-train.csv"
    lines = path.read_text().splitlines(keepends=True)
    lines[2] = re.sub(r"\t\d\n", "\t\n", lines[2])
    lines.append(f"99\tlong\t{'word ' * 50}\t3\n")
    path.write_text("".join(lines))
    found = command("--tasks", "sst")
    assert "sst    train 12 (1 left out: blank sentiment, line 3; 1 cut to 40 tokens), dev 8, test 6\n" in found.out


def test_an_undefined_correlation_is_said(command, root):
    """One row has no correlation; it counts as 0 and ends no run."""
    path = root / "data" / "sample" / "sts-dev.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    found = command("--run", "runs/x")
    assert found.code == 0
    assert "sts pearson undefined, counted as 0" in found.out
    assert re.search(r"similarity \(STS\) +pearson +undefined +undefined\n", found.out)
    scores = read_json(root / "runs" / "x" / "scores.json")
    assert scores["sts"] == {"untrained": None, "pearson": None}
    wanted = leaderboard_score({name: scores[name][TASKS[name].metric] for name in COURSE})
    assert f"{wanted:.3f}\n" in found.out.split("leaderboard score")[1]


@pytest.mark.parametrize("tasks", ["sst", "cfimdb", "para,cfimdb"])
def test_some_tasks_alone(command, root, tasks):
    assert command("--tasks", tasks, "--option", "finetune", "--run", "runs/x").code == 0
    assert_whole(root / "runs" / "x", root / "data" / "sample", root / "predictions", tasks.split(","))


def test_predictions_that_stand_beside_another_run_s_are_said_so(command, root):
    assert "other runs" not in command("--run", "runs/first").out
    found = command("--tasks", "sst", "--option", "finetune", "--lr", "0.01", "--run", "runs/second")
    assert "\npredictions also holds predictions of other runs: para, sts of runs/first\n" in found.out
    assert "\npredictions held other predictions until now: sst of runs/first, whose folder keeps them\n" in found.out
    again = command("--tasks", "sst", "--option", "finetune", "--lr", "0.01", "--run", "runs/same")
    assert "until now" not in again.out  # the same bytes: none gave way
    with open(root / "predictions" / "sts-dev-output.csv", "a") as file:
        file.write("mine , 1.0 \n")
    found = command("--tasks", "sst", "--run", "runs/third")
    assert "predictions of other runs: para of runs/first; sts of an unknown run\n" in found.out
    found = command("--tasks", "sst", "--run", "runs/fourth", "--sst_dev_out", "a/x.csv", "--sst_test_out", "a/y.csv")
    assert found.code == 0 and "other runs" not in found.out


def test_predictions_that_no_run_keeps_are_set_aside(command, root):
    command("--run", "runs/first")
    place = root / "predictions" / "sts-dev-output.csv"
    place.write_text(mine := place.read_text() + "mine , 1.0 \n")
    found = command("--run", "runs/second", "--lr", "0.01", "--option", "finetune")
    assert (
        found.code == 0
        and "predictions of an unknown run were replaced, and are kept in predictions/replaced: sts-" in found.out
    )
    kept = list((root / "predictions" / "replaced").iterdir())  # the test file's is in the first run's folder
    assert [path.read_text() for path in kept] == [mine] and kept[0].name.startswith("sts-dev-output-")


def test_a_model_that_nothing_was_taught_replaces_no_predictions(command, root):
    untaught = ("--tasks", "sst", "--epochs", "0", "--option", "finetune")
    assert command("--tasks", "sst", "--option", "finetune").code == 0
    before = {path: path.read_bytes() for path in (root / "predictions").iterdir()}
    found = command(*untaught, "--run", "runs/untaught")
    assert found.code == 0 and len(before) == 2
    assert {path: path.read_bytes() for path in (root / "predictions").iterdir()} == before
    assert "nothing was trained (--epochs 0): they are copied only where an option names a file" in found.out
    assert "predictions are in runs/untaught/predictions; " in found.out
    assert re.search(r"dev +metric +untrained\n.*accuracy +0\.\d{3}\n", found.out)
    assert "best so far" not in found.out
    assert command(*untaught, "--run", "runs/named", "--sst_dev_out", "mine.csv").code == 0
    assert (root / "mine.csv").read_bytes() == (root / "runs/named/predictions/sst-dev-output.csv").read_bytes()
    assert {path: path.read_bytes() for path in (root / "predictions").iterdir()} == before


def test_a_task_of_an_unknown_loss_is_refused_before_files_are_read(command, monkeypatch):
    monkeypatch.setitem(TASKS, "sst", dataclasses.replace(SST, loss="huber"))
    refused(command("--data", "nowhere"), "task 'sst' in tasks.py: loss 'huber' is not known; known: cross_entropy")


def test_separate_models_overwrite_no_run(command, root):
    assert command("--tasks", "sst", "--run", "runs/x/sst").code == 0
    before = (root / "runs/x/sst/best/model.safetensors").read_bytes()
    refused(command("--schedule", "separate", "--run", "runs/x"), "runs/x holds runs (sst): choose another --run")
    assert (root / "runs/x/sst/best/model.safetensors").read_bytes() == before


def test_files_of_other_tasks_and_other_runs(command, stop, root):
    """Refused where a run begins; one that began with them goes on."""
    refused(
        command("--tasks", "sst", "--para_dev_out", "p.csv"), "--para_dev_out: the tasks here are sst: leave it out"
    )
    assert command("--tasks", "sst", "--schedule", "separate", "--run", "runs/other").code == 0
    taken = "runs/other/predictions/sst-dev-output.csv"
    refused(command("--sst_dev_out", taken, "--run", "runs/y"), "is in the folder of another run: choose another")
    stop("--tasks", "sst")
    path = root / "runs" / "x" / "config.json"
    config = read_json(path)
    config["options"]["para_dev_out"] = str(root / "p.csv")
    files.write_json(path, config)
    assert command("--resume", "runs/x").code == 0


def test_separate_trains_a_model_for_each_task(command, root):
    found = command("--option", "finetune", "--schedule", "separate", "--run", "runs/x")
    assert found.code == 0
    run = root / "runs" / "x"
    wanted = predictions() | KEPT - {"metrics.jsonl"}
    wanted |= {f"{task}/{name}" for task in COURSE for name in BEST | {"metrics.jsonl"}}
    assert relative_files(run) == wanted | {f"sts/{SCALE}"}
    states = {}
    for task in COURSE:
        model = MultitaskBERT.from_pretrained(run / task / "best")
        assert list(model.heads) == [task]
        states[task] = model.bert.embeddings.word_embeddings.weight
        assert TASKS[task].title in found.out
    assert not torch.equal(states["sst"], states["sts"])  # each learned its own


# Options, layers and pooler of each task's head, how attention starts.
HEADS = [
    ("", {"sst": (2, "first"), "para": (1, "first"), "sts": (3, "first")}, "default"),
    ("--attention 0", dict.fromkeys(COURSE, (0, "mean")), "default"),
    (
        "--attention sst=1,para=0 --attention_init uniform",
        {"sst": (1, "first"), "para": (0, "mean"), "sts": (3, "first")},
        "uniform",
    ),
    ("--attention 1 --pooler cls", dict.fromkeys(COURSE, (1, "cls")), "default"),
    ("--attention 1 --pooler mean", dict.fromkeys(COURSE, (1, "mean")), "default"),
    ("--attention 0 --pooler first", dict.fromkeys(COURSE, (0, "first")), "default"),
    (
        "--attention 0 --pooler attentive_cls --pair_encoding joint",
        dict.fromkeys(COURSE, (0, "attentive_cls")),
        "default",
    ),
    (
        "--attention para=0,sts=0 --pair_encoding both --pair_score cosine",
        {"sst": (2, "first"), "para": (0, "mean"), "sts": (0, "mean")},
        "default",
    ),
    ("--attention 1 --pooler weighted_layers", dict.fromkeys(COURSE, (1, "weighted_layers")), "default"),
    (
        "--attention sst=0,para=0 --pooler sst=last_two,sts=layer_attention --pooler_options query=last",
        {"sst": (0, "last_two"), "para": (0, "mean"), "sts": (3, "layer_attention")},
        "default",
    ),
]


@pytest.mark.parametrize("options, wanted, init", HEADS)
def test_heads(command, root, options, wanted, init):
    """Trained, written and loaded again; an untrained uniform layer has its query weights in (0.9, 1)."""
    assert command(*options.split(), "--run", "runs/x", "--lr", "1e-6").code == 0
    model = MultitaskBERT.from_pretrained(root / "runs" / "x" / "best")
    found = {name: (head.config.attention_layers, head.config.pooler) for name, head in model.heads.items()}
    assert found == wanted
    for head in model.heads.values():
        assert len(head.attention) == head.config.attention_layers
        for layer in head.attention:
            low, high = layer.query.weight.aminmax()
            assert (low > 0.89 and high < 1.01) == (init == "uniform")


def test_separate_models_have_their_own_poolers(command, root):
    """Of sst's options nothing is asked of the model of para, whose pooler takes none."""
    poolers = ("--pooler", "sst=layer_attention", "--pooler_options", "query=last")
    assert command(*poolers, "--schedule", "separate", "--tasks", "sst,para", "--run", "runs/x").code == 0
    found = {
        name: MultitaskBERT.from_pretrained(root / "runs" / "x" / name / "best").heads[name].config
        for name in ("sst", "para")
    }
    assert {name: config.pooler for name, config in found.items()} == {"sst": "layer_attention", "para": "first"}
    assert found["sst"].pooler_options["query"] == "last" and found["para"].pooler_options == {}


@pytest.mark.parametrize("loss", ["coral", "corn", "squared_emd"])
def test_a_loss_that_knows_the_order_of_labels(command, root, loss):
    """Trained, predicted, written and loaded again; the other tasks keep their own."""
    found = command("--loss", f"sst={loss}", "--attention_ffn", "--option", "finetune", "--run", "runs/x")
    assert (found.code, found.err) == (0, "")
    assert_whole(root / "runs" / "x", root / "data" / "sample", root / "predictions")
    model = MultitaskBERT.from_pretrained(root / "runs" / "x" / "best")
    own = {name: TASKS[name].loss for name in COURSE}
    assert {name: head.task.loss for name, head in model.heads.items()} == {**own, "sst": loss}
    assert all(layer.up is not None for head in model.heads.values() for layer in head.attention)
    options = read_json(root / "runs" / "x" / "config.json")["options"]
    assert (options["loss"], options["attention_ffn"]) == (f"sst={loss}", True)


def test_dropout_in_a_frozen_encoder_keeps_no_encodings_to_train_on(command, root, monkeypatch):
    seen, told = {}, []

    def look(trainer, say, real=Trainer.train):
        seen.update({name: (rows.store, trainer.model.bert.training) for name, rows in trainer.data.items()})
        batch = next(iter(trainer.data.values())).batch(np.arange(2))
        trainer.model.train()
        told.append([trainer.model.encode(batch.input_ids, batch.layout)[0] for _ in range(2)])
        return real(trainer, say)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", look)
        found = command("--frozen_dropout", "--run", "runs/x")
    assert (found.code, found.err) == (0, "")
    assert_whole(root / "runs" / "x", root / "data" / "sample", root / "predictions")
    assert seen.keys() == set(COURSE) and all(store is None for store, _ in seen.values())
    assert not torch.allclose(*told[0], atol=1e-3)  # another encoding of the same sentences each time
    lines = encodings(found)
    assert lines[0] == "train: none kept, the encoder runs in every step (--frozen_dropout)" and len(lines) == 2
    sentences = {
        (e.sentence if side == 0 else e.second)
        for name in COURSE
        for split in ("dev", "test")
        for e in read_split(TASKS[name], split, root / "data" / "sample" / TASKS[name].files[split])
        for side in range(len(TASKS[name].columns))
    }
    assert int(re.search(r"(\d+) distinct sentences", lines[1]).group(1)) <= len(sentences)
    assert command("--run", "runs/without").code == 0
    rows = [
        json.loads((root / "runs" / name / "metrics.jsonl").read_text().splitlines()[0]) for name in ("x", "without")
    ]
    for task in COURSE:  # dev is predicted without dropout
        assert rows[0]["dev"][task]["loss"] == pytest.approx(rows[1]["dev"][task]["loss"], rel=1e-4)


def test_dropout_in_an_encoder_that_learns_is_refused(command, root):
    refused(command("--frozen_dropout", "--option", "finetune"), "--frozen_dropout: with --option finetune no encoder")
    assert not (root / "runs").exists()


def test_a_share_of_the_train_rows_is_the_same_for_every_seed(command, root, monkeypatch):
    def ids(options, name):
        found = []
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "train", lambda trainer, say: found.append(trainer.data) or stop())
            stopped = command(*options.split(), "--run", f"runs/{name}")
        assert stopped.code == 130
        return {task: rows.ids for task, rows in found[0].items()}, stopped.out

    def stop():
        raise KeyboardInterrupt

    whole, _ = ids("", "whole")
    some, out = ids("--fraction sst=0.5,para=0.01", "some")
    assert "sst    train 6 of 12, dev 8, test 6\n" in out and "para   train 1 of 12, dev 8, test 6\n" in out
    assert "sts    train 12, dev 8, test 6\n" in out
    assert [len(some[task]) for task in COURSE] == [6, 1, 12]
    assert some["sst"] == [i for i in whole["sst"] if i in some["sst"]] != whole["sst"][:6]
    assert ids("--fraction sst=0.5,para=0.01 --seed 7", "other")[0] == some
    more, _ = ids("--fraction 0.75", "more")
    assert [len(more[task]) for task in COURSE] == [9, 9, 9] and set(some["sst"]) < set(more["sst"])
    assert ids("--fraction 1", "all")[0] == whole
    config = read_json(root / "runs" / "some" / "config.json")
    assert config["options"]["fraction"] == "sst=0.5,para=0.01"
    assert [config["data"][task]["train"].get("of") for task in COURSE] == [12, 12, None]
    assert config["data"]["sst"]["train"]["rows"] == 6
    assert all("of" not in config["data"]["sst"][split] for split in ("dev", "test"))


def test_the_best_model_is_what_predicted(command, root):
    """Loaded from best/ and asked again, it gives the file's predictions."""
    assert command("--option", "finetune", "--epochs", "3", "--run", "runs/x", "--lr", "1e-3").code == 0
    model = MultitaskBERT.from_pretrained(root / "runs" / "x" / "best")
    table = read_examples(root / "data" / "sample" / SST.files["test"])
    rows = TaskData(SST, table, BertTokenizer.from_pretrained(root / "runs" / "x" / "best"))
    found = predict(model, rows)
    written = read_predictions(root / "predictions" / "sst-test-output.csv", SST)
    assert written == dict(zip(found.ids, found.values.tolist(), strict=True))


# --- options -----------------------------------------------------------------------------------------------------

# The command lines that the two seasons' handouts give.
DIALECTS = [
    ("", "--fine-tune-mode last-linear-layer"),
    ("--option pretrain --lr 1e-3", "--fine-tune-mode last-linear-layer --lr 1e-3"),
    ("--option finetune --lr 1e-5 --use_gpu", "--fine-tune-mode full-model --lr 1e-5 --use_gpu"),
    (
        "--option finetune --epochs 10 --batch_size 8 --hidden_dropout_prob 0.3 --seed 11711 "
        "--sst_train data/ids-sst-train.csv --para_dev data/quora-dev.csv --sts_test data/sts-test-student.csv "
        "--sst_dev_out predictions/sst-dev-output.csv --sts_test_out predictions/sts-test-output.csv",
        "--fine-tune-mode full-model --local_files_only "
        "--sst_train data/ids-sst-train.csv --para_dev data/quora-dev.csv --sts_test data/sts-test-student.csv "
        "--sst_dev_out predictions/sst-dev-output.csv --sts_test_out predictions/sts-test-output.csv",
    ),
]


@pytest.mark.parametrize("first, second", DIALECTS)
def test_both_dialects_say_the_same(first, second):
    one, other = (vars(get_args(line.split())) for line in (first, second))
    for name in ("fine_tune_mode", "local_files_only"):
        del one[name], other[name]
    assert one == other


FILE_FLAGS = " ".join(
    [f"--{name}_{split} data/{TASKS[name].files[split]}" for name in COURSE for split in ROWS]
    + [f"--{name}_{s}_out predictions/{name}-{s}-output.csv" for name in COURSE for s in ("dev", "test")]
)
WHOLE_LINES = [
    (
        "finetune",
        "--option finetune --epochs 10 --lr 1e-5 --batch_size 8 --hidden_dropout_prob 0.3 --seed 11711 " + FILE_FLAGS,
        "--fine-tune-mode full-model --lr 1e-5",
    ),
    ("pretrain", "--option pretrain --lr 1e-3 " + FILE_FLAGS, "--fine-tune-mode last-linear-layer --lr 1e-3"),
]


@pytest.mark.parametrize("option, first, second", WHOLE_LINES, ids=[option for option, *_ in WHOLE_LINES])
def test_both_dialects_run_to_the_end(command, root, monkeypatch, option, first, second):
    """With the course's files in data/, either line writes the same six files; without a GPU, --use_gpu writes none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for path in sorted((root / "data" / "sample").iterdir()):
        path.rename(root / "data" / path.name)
    before, written = relative_files(root), []
    for line in (first, second):
        asked = command(*line.split(), "--use_gpu", defaults=("--model", "tiny"))
        refused(asked, "--use_gpu: no GPU that torch", "leave it out for the CPU")
        assert relative_files(root) == before
        found = command(*line.split(), defaults=("--model", "tiny"))
        assert (found.code, found.err) == (0, "")
        (run,) = (root / "runs").iterdir()
        assert run.name.endswith(f"-{option}")
        assert len(assert_whole(run, root / "data", root / "predictions")) == 11  # untrained, then ten epochs
        assert relative_files(root / "predictions") == {Path(name).name for name in predictions()}
        encoder = MultitaskBERT.from_pretrained(run / "best").bert.state_dict()
        same = [torch.equal(encoder[n], w) for n, w in BertModel.from_pretrained("tiny").state_dict().items()]
        assert all(same) == (option == "pretrain")
        written.append({path.name: path.read_bytes() for path in (root / "predictions").iterdir()})
        for folder in ("runs", "predictions", "cache"):
            shutil.rmtree(root / folder, ignore_errors=True)
    assert written[0] == written[1]


def test_the_courses_defaults():
    args = get_args([])
    assert (args.option, args.seed, args.epochs, args.batch_size) == ("pretrain", 11711, 10, 8)
    assert (args.hidden_dropout_prob, args.weight_decay, args.clip, args.lr_decay) == (0.3, 0, 0, "constant")
    for name in COURSE:
        for role in ("train", "dev", "test", "dev_out", "test_out"):
            assert get_args([f"--{name}_{role}", "x"]).__dict__[f"{name}_{role}"] == Path("x")


def test_the_modes_may_agree_but_not_contradict(command):
    assert get_args(["--option", "finetune", "--fine-tune-mode", "full-model"]).option == "finetune"
    found = command("--option", "pretrain", "--fine-tune-mode", "full-model")
    refused(found, "--option pretrain and --fine-tune-mode full-model contradict each other")


def test_help_fits_one_screen_in_groups(capsys):
    with pytest.raises(SystemExit) as ended:
        get_args(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert len(lines) <= 70 and max(len(line) for line in lines) <= 120
    groups = [
        "what to train:",
        "heads (the poster's by default):",
        "how to train:",
        "where:",
        "the course's file names:",
    ]
    places = [lines.index(group) for group in groups]
    assert places == sorted(places)
    per_task = {f"--{task}_{role}" for task in TASKS for role in ("train", "dev", "test", "dev_out", "test_out")}
    for action in build_parser()._actions:
        option = action.option_strings[-1]
        assert option in per_task | {"--local_files_only"} or option in shown
        if action.dest == "help" or option in per_task | {"--local_files_only"}:
            continue
        assert "default" in action.help, option
        if action.metavar and action.choices:  # then the help says which there are
            assert all(re.search(rf"\b{choice}\b", action.help) for choice in action.choices if choice != "auto"), (
                option
            )


OUT_OF_RANGE = [
    ("--epochs", "-1", "0 to 1000000"),
    ("--epochs", str(10**18), "0 to 1000000"),
    ("--device", "cpu:7", "leave it out for the best there is"),
    ("--batch_size", "0", "a number from 1 up"),
    ("--seed", "-1", "0 to 9223372036854775807"),
    ("--seed", str(2**63), "0 to 9223372036854775807"),
    ("--hidden_dropout_prob", "1.5", "0 to 1"),
    ("--hidden_dropout_prob", "nan", "0 to 1"),
    ("--warmup", "-0.1", "0 to 1"),
    ("--lr", "-0.1", "0 to 1e+30"),
    ("--lr", "inf", "0 to 1e+30"),
    ("--lr", "nan", "0 to 1e+30"),
    ("--weight_decay", "inf", "0 to 1000.0"),
    ("--weight_decay", "1e+300", "0 to 1000.0"),
    ("--lr", "1e+300", "0 to 1e+30"),
    ("--data", "d" * 300, "File name too long: choose a shorter name"),
    ("--clip", "-1", "a number from 0 up"),
    ("--clip", "nan", "a number from 0 up"),
    ("--save_every", "-1", "a number from 0 up"),
    ("--attention", "-1", "one number for all, each from 0 to 99"),
    ("--attention", "100", "one number for all, each from 0 to 99"),
    ("--attention", "²", "one number for all, each from 0 to 99"),
    ("--attention", "", "one number for all, each from 0 to 99"),
    ("--attention", "sst=", "sst=2,para=1,sts=3"),
    ("--attention", "sst=2,3", "sst=2,para=1,sts=3"),
    ("--attention", "none=1", "sst=2,para=1,sts=3"),
    ("--attention", "sst=1,sst=2", "'sst' is named twice; name each task once"),
    (
        "--loss",
        "sst=huber",
        "wanted sst=cross_entropy|softmax_twice|coral|corn|squared_emd, para=binary_cross_entropy, sts=negative_pear",
    ),
    ("--loss", "none=coral", "'none=coral' is not understood; wanted sst=cross_entropy|softmax_twice|coral"),
    ("--loss", "para=coral", "'para=coral' is not understood; wanted sst="),
    ("--loss", "coral", "'coral' is not understood; wanted sst="),
    ("--loss", "sst=coral,sst=corn", "'sst' is named twice"),
    ("--loss", "", "'' is not understood"),
    ("--fraction", "0", "one number for all, each above 0 and at most 1"),
    ("--fraction", "1.01", "each above 0 and at most 1"),
    ("--fraction", "nan", "each above 0 and at most 1"),
    ("--fraction", "sst=half", "wanted sst=0.1,para=0.1,sts=0.1 or one number"),
    ("--fraction", "none=0.5", "wanted sst=0.1,para=0.1,sts=0.1 or one number"),
    ("--tasks", "sst,none", "'none' is not known; known: sst, para, sts, cfimdb"),
    ("--tasks", "sst,sst", "'sst' is named twice"),
    ("--tasks", "", "'' is not known"),
    ("--cache_gb", "-1", "wanted 0 to 1000000"),
    ("--cache_gb", "nan", "wanted 0 to 1000000"),
    ("--device", "gpu9", "not a device; wanted cuda, cuda:1, mps or cpu"),
    ("--device", "cuda:77", "not there"),
    ("--device", "meta", "not there"),
    ("--data", "nowhere", "nowhere: no such folder"),
    ("--model", "nothing", "no weights at nothing"),
    ("--sst_dev_out", "data", "--sst_dev_out data: that is a folder: name a file in it"),
    ("--resume", "runs/none", "no run there (no config.json)"),
]


@pytest.mark.parametrize("option, value, wanted", OUT_OF_RANGE)
def test_options_out_of_range(command, root, option, value, wanted):
    refused(command(option, value), f"{value}", wanted)
    assert not (root / "runs").exists()


@pytest.mark.parametrize(
    "option, value",
    [
        ("--epochs", "many"),
        ("--option", "both"),
        ("--unknown", "1"),
        ("--run", ""),
        ("--data", ""),
        ("--model", ""),
        ("--run", "caf\udce9"),
    ],
)
def test_what_argparse_refuses(root, capsys, option, value):
    """In its own way: a short usage, one line, code 2."""
    with pytest.raises(SystemExit) as ended:
        main([option, value])
    err = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and len(err) == 2 and option in err[1]


def test_outputs_that_would_overwrite_something_else_are_refused(command, root):
    data = root / "data" / "sample" / "ids-sst-train.csv"
    before = data.read_bytes()
    (root / "link.csv").symlink_to(data)
    (root / "notes.txt").write_text("mine\n")
    (root / "empty").touch()
    for path in ("data/sample/ids-sst-train.csv", "link.csv"):
        refused(command("--sst_dev_out", path), f"would overwrite {path}, which this run reads: choose another")
    refused(
        command("--sst_dev_out", "notes.txt"), "overwrite notes.txt, which is not a prediction file: choose another"
    )
    refused(command("--tasks", "sst", "--sst_dev_out", "data/sample/sts-dev.csv"), "which is not a prediction file")
    for path in ("runs/x/config.json", "runs/x/predictions/sts-dev-output.csv"):
        refused(command("--run", "runs/x", "--sst_dev_out", path), f"{path} is in the run's own folder")
    assert options.starts_like_predictions(root / "empty", SST)
    assert data.read_bytes() == before and not (root / "runs").exists()


def test_outputs_that_can_not_be_written_are_found_before_training(command, root):
    (root / "file").write_text("")
    for path, wanted in (
        ("file/x.csv", "a part of that path is a file, not a folder"),
        ("/dev/null", "it is a device or pipe"),
        ("/proc/none/x.csv", "cannot write /proc/none/x.csv"),
        ("x" * 300, "choose a shorter name"),
        ("new/" + "x" * 300, "choose a shorter name"),
    ):
        refused(command("--sst_dev_out", path), wanted)
    assert not (root / "runs").exists() and not list(root.rglob("*.tmp"))


def test_two_predictions_in_one_file_are_refused(command):
    found = command("--sst_dev_out", "out.csv", "--sts_test_out", "./out.csv")
    refused(found, "--sts_test_out and --sst_dev_out both name out.csv")


def test_a_gpu_that_is_not_there(command, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    bare = ("--model", "tiny")
    refused(command("--use_gpu", defaults=bare), "--use_gpu: no GPU that torch", "leave it out for the CPU")
    refused(command("--device", "cuda", defaults=bare), "--device cuda: not there", "leave it out")
    refused(command("--use_gpu", "--device", "cpu", defaults=bare), "--use_gpu and --device cpu contradict each other")


def test_layers_a_task():
    tasks = parse_tasks("sst,para,sts")
    assert parse_attention(None, tasks) == {"sst": 2, "para": 1, "sts": 3}
    assert parse_attention("0", tasks) == {"sst": 0, "para": 0, "sts": 0}
    assert parse_attention("sts=1, sst=0", tasks) == {"sst": 0, "para": 1, "sts": 1}


def test_losses_and_shares_a_task():
    tasks = parse_tasks("sst,para,sts")
    assert parse_loss(None, tasks) == {}
    assert parse_loss("sst=corn, sts=negative_pearson", tasks) == {"sst": "corn", "sts": "negative_pearson"}
    assert parse_pooler(None, tasks) == {}
    assert parse_pooler("max", tasks) == dict.fromkeys(COURSE, "max")
    assert parse_pooler("sts=first_last, sst=gem", tasks) == {"sts": "first_last", "sst": "gem"}
    assert parse_fraction(None, tasks) == {"sst": 1, "para": 1, "sts": 1}
    assert parse_fraction("0.25", tasks) == {"sst": 0.25, "para": 0.25, "sts": 0.25}
    assert parse_fraction("para=.1,sts=1", tasks) == {"sst": 1, "para": 0.1, "sts": 1}


def test_every_option_of_training_arrives(command, root, monkeypatch):
    """Each at a value that is not its default: what the command gives the loop is what was typed."""
    given = {}

    def trainer(model, data, schedule, evaluate, save_best, run, options, *others, **more):
        given.update(vars(options), schedule=type(schedule).__name__)
        raise InputError("seen")

    monkeypatch.setattr(multitask_classifier, "Trainer", trainer)
    wanted = {
        "epochs": 3, "lr": 0.02, "weight_decay": 0.03, "decay": "linear", "warmup": 0.1, "clip": 0.5, "seed": 7,
        "save_every": 2.0, "micro_batch": 5, "layer_decay": 0.9, "head_lr": 0.04, "quiet": True, "non_finite": "skip",
        "average": 0.99, "accumulate": 4, "pcgrad": True,
    }  # fmt: skip
    named = {"lr_decay" if name == "decay" else name: value for name, value in wanted.items()}
    typed = [part for name, value in named.items() for part in (f"--{name}", str(value)) if part != "True"]
    refused(command("--option", "finetune", "--tasks", "sst,sts", "--schedule", "even", *typed), "seen")
    left = {field.name for field in dataclasses.fields(TrainingOptions)} - set(wanted)
    assert left == {"evaluate_every", "patience"}  # contrastive.py's
    assert {name: given[name] for name in wanted} == wanted and given["schedule"] == "Even"


def test_options_that_would_say_nothing_are_refused(command, root):
    bare = ("--attention", "0")
    refused(command("--attention_init", "uniform", *bare), "--attention_init uniform: none of these tasks has an att")
    joint = ("--pair_encoding", "joint", "--pair_score", "cosine")
    refused(command(*joint, *bare), "--pair_score cosine: pairs that are read as one sequence have no such score")
    refused(command("--loss", "para=negative_pearson"), "para=negative_pearson", "para=binary_cross_entropy")
    refused(
        command("--pooler", "median"), "'median' is not understood", "TASK=POOLER of sst, para, sts", "layer_attention"
    )
    refused(command("--pooler", "sst=max,para=median"), "'para=median' is not understood")
    refused(command("--tasks", "sst,sts", "--pooler", "para=max"), "TASK=POOLER of sst, sts;")
    assert not (root / "runs").exists()


def test_each_of_several_processes_takes_a_gpu_of_its_own(monkeypatch):
    taken = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90a", "sm_100", "compute_120"])
    for typed in ("cuda", None):
        args = argparse.Namespace(device=typed, use_gpu=False)
        assert [options.choose_device(args, rank)[0].index for rank in (0, 1)] == [0, 1]
        with pytest.raises(InputError, match="not there|3 processes but 2 GPUs"):
            options.choose_device(args, 2)
    assert [device.index for device in taken] == [0, 1, 0, 1]
    one = argparse.Namespace(device="cuda:1", use_gpu=False)
    assert options.choose_device(one)[0].index == 1
    with pytest.raises(InputError, match="--device cuda:1: each of several processes takes a GPU of its own: say cuda"):
        options.choose_device(one, 1)


def test_a_gpu_that_torch_was_not_built_for_is_refused_and_attention_that_plans_every_shape_is_off(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90", "compute_120"])
    args = argparse.Namespace(device=None, use_gpu=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    with pytest.raises(InputError, match=r"no kernels for a GPU \(compute capability 7.0\): install .*--device cpu"):
        options.choose_device(args)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        for capability in ((7, 5), (12, 1)):
            torch.backends.cuda.enable_cudnn_sdp(True)
            monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
            assert options.choose_device(args) == (torch.device("cuda", 0), "a GPU")
            assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def test_a_feed_forward_block_without_a_layer_is_refused(command, root):
    refused(
        command("--attention_ffn", "--attention", "0"), "--attention_ffn: none of these tasks has an attention layer"
    )
    assert not (root / "runs").exists()


# --- what is said and shown --------------------------------------------------------------------------------------


def test_quiet_says_nothing_and_does_the_same(command, root):
    found = command("--quiet", "--run", "runs/x")
    assert (found.code, found.out, found.err) == (0, "", "")
    assert command("--run", "runs/y").code == 0
    for name in ("best/model.safetensors", *predictions()):
        assert (root / "runs" / "x" / name).read_bytes() == (root / "runs" / "y" / name).read_bytes()
    refused(command("--quiet", "--data", "nowhere"), "nowhere: no such folder")


def test_curves_for_tensorboard_say_what_metrics_jsonl_says(command, stop, root):
    """A batch's loss each step, dev's scores each evaluation; a run that went on has one curve, not two."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = stop("--option", "finetune", "--tasks", "sst,sts", "--tensorboard")
    assert command("--resume", "runs/x").code == 0
    curves = EventAccumulator(str(run / "tensorboard")).Reload()
    assert set(curves.Tags()["scalars"]) == {
        *("loss/sst", "loss/sts", "lr", "score"),
        *("dev/sst/loss", "dev/sst/accuracy", "dev/sst/macro_f1", "dev/sst/mean_absolute_error"),
        *("dev/sts/loss", "dev/sts/pearson"),
    }
    history = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = 2 * ROWS["train"] // 4  # of an epoch, two tasks in batches of 4
    scores = curves.Scalars("dev/sts/pearson")
    assert [event.step for event in scores] == [0, steps, 2 * steps]
    assert [event.value for event in scores] == pytest.approx([row["dev"]["sts"]["pearson"] for row in history])
    losses = [[event for event in curves.Scalars(f"loss/{task}")] for task in ("sst", "sts")]
    assert sorted(event.step for task in losses for event in task) == list(range(1, 2 * steps + 1))
    first = [event.value for event in losses[0] if event.step <= steps]
    assert sum(first) / len(first) == pytest.approx(history[1]["train_loss"]["sst"])


def test_tensorboard_that_is_not_installed_is_said_before_a_run_has_a_folder(command, root, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    wanted = "install it (python -m pip install -r requirements-tensorboard.txt)"
    refused(command("--tensorboard"), "--tensorboard: ", wanted)
    assert not (root / "runs").exists() and (REPOSITORY / "requirements-tensorboard.txt").is_file()


def test_a_disk_that_takes_no_curves_ends_them_and_not_the_run(command, root, monkeypatch):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SummaryWriter, "add_scalar", full)
    found = command("--tensorboard", "--tasks", "sst")
    assert found.code == 0 and found.out.count("tensorboard no curves from here on: ") == 1
    assert (root / "runs").exists()


# --- going on ----------------------------------------------------------------------------------------------------


@pytest.fixture
def stop(command, root, monkeypatch):
    """stop(*options) -> a run of two epochs with these options that was stopped after its first."""

    def stop_after_one(trainer, say, real=Trainer._train_epoch):
        real(trainer, say)
        trainer.interrupted = True

    def stop(*options):
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "_train_epoch", stop_after_one)
            found = command("--epochs", "2", "--run", "runs/x", *options)
        assert found.code == 130, found.err
        return root / "runs" / "x"

    return stop


@pytest.fixture
def stopped(stop):
    return stop("--option", "finetune", "--data", "data/sample")


@pytest.mark.parametrize(
    "options",
    [
        "--option finetune --loss sst=corn --attention_ffn --fraction sst=0.5,para=0.75",
        "--frozen_dropout --fraction 0.5",
        "--option finetune --layer_decay 0.7 --head_lr 0.001 --lr_decay linear --attention 0 --pair_score cosine",
        "--option finetune --reinitialize 1 --fraction 0.5",
    ],
)
def test_going_on_equals_not_stopping(command, stop, root, options):
    stop(*options.split())
    found = command("--resume", "runs/x", *options.split()[-2:])
    assert (found.code, found.err) == (0, "") and "continuing at epoch 2, step 1" in found.out
    assert command("--epochs", "2", "--run", "runs/straight", *options.split()).code == 0
    for name in ("best/model.safetensors", *predictions()):
        assert (root / "runs" / "x" / name).read_bytes() == (root / "runs" / "straight" / name).read_bytes()


@pytest.mark.parametrize("again", [(), ("--data", "data/sample")])
def test_going_on_takes_the_defaults_of_then(command, stop, root, again):
    """What stood nowhere when the run began, and is the default by now, is not its data."""
    stop("--option", "finetune")
    shutil.copy(root / "data" / "sample" / "ids-sst-train.csv", root / "data" / "ids-sst-train.csv")
    found = command("--resume", "runs/x", *again)
    assert (found.code, found.err) == (0, "") and "data/sample: as when the run began" in found.out


def test_what_a_run_wished_for_gives_way_to_what_is_typed_now(stopped):
    path = stopped / "config.json"
    for then, typed, wanted in (
        ({"device": "cpu", "use_gpu": False}, ["--use_gpu"], (None, True)),
        ({"device": None, "use_gpu": True}, ["--device", "cpu"], ("cpu", False)),
    ):
        config = read_json(path)
        write_json(path, config | {"options": config["options"] | then})
        args = options.get_args(["--resume", "runs/x", *typed])
        assert (args.device, args.use_gpu) == wanted


def test_the_model_and_the_data_that_a_run_took_untold():
    def files(folder):
        return {"sst": {"train": {"path": f"/somewhere/{folder}/ids-sst-train.csv", "rows": 1}}}

    untold, model = {"model": None, "data": None, "lr": 1}, {"name": "all-MiniLM-L6-v2", "path": "/somewhere"}
    for folder, place in (("data/sample", course_data.DATA / "sample"), ("data", course_data.DATA), ("mine", None)):
        found = defaults_then(untold, {"model": model, "data": files(folder)})
        assert found == {"model": "all-MiniLM-L6-v2", "data": place and str(place), "lr": 1}
    contrastive = {"train": [{"path": "/x/data/sample/ids-sst-train.csv"}], "dev": {"path": "/x/other.csv"}}
    assert defaults_then(untold, {"data": contrastive})["data"] == str(course_data.DATA / "sample")
    mine = {"sst": {**files("data")["sst"], "dev": {"path": "/mine/data/sample/ids-sst-dev.csv"}}}
    assert defaults_then(untold | {"sst_dev": "x"}, {"data": mine})["data"] == str(course_data.DATA)
    told = {"model": "mine", "data": "there"}
    assert defaults_then(told, {"model": model, "data": files("data")}) == told
    assert defaults_then(untold, {"model": {"name": "mine"}, "data": None}) == untold


def test_going_on_where_a_gpu_or_a_package_is_missing(command, stopped, root, monkeypatch):
    """What changes no number is left out, and said: a flag that the run began with can't be taken back."""

    def missing():
        raise InputError("--tensorboard: not installed")

    config = read_json(root / "runs" / "x" / "config.json")
    config["options"] |= {"compile": True, "tensorboard": True}
    (root / "runs" / "x" / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(job, "check_installed", missing)
    found = command("--resume", "runs/x", "--device", "cpu")
    assert (found.code, found.err) == (0, "")
    assert "left out   --tensorboard: not installed" in found.out and "left out   --compile: for a GPU" in found.out


def test_going_on_from_another_folder_with_options_said_again(command, stopped, root, tmp_path, monkeypatch):
    """What is the run's own may be said again, and where it runs may be said anew."""
    monkeypatch.chdir(tmp_path)
    again = ("--fine-tune-mode", "full-model", "--epochs", "2", "--model", "root/tiny", "--data", "root/data/sample")
    found = command("--resume", "root/runs/x", *again, "--device", "cpu", "--save_every", "3", "--run", "root/runs/x")
    assert (found.code, found.err) == (0, "")
    assert "continuing at epoch 2, step 1" in found.out
    assert re.search(r"learning .*; about \d+ s more on this device, ", found.out)  # of what is left
    assert_whole(stopped, root / "data" / "sample", root / "predictions")


@pytest.mark.parametrize(
    "options, wanted",
    [
        (["--epochs", "3"], "--epochs 3 differs from the run's 2"),
        (["--option", "pretrain"], "--option pretrain differs from the run's finetune"),
        (["--fine-tune-mode", "last-linear-layer"], "--option pretrain differs from the run's finetune"),
        (["--lr", "0.1"], "--lr 0.1 differs from the run's 5e-05"),
        (["--data", "elsewhere"], "--data elsewhere differs from the run's"),
        (["--run", "runs/y"], "--run runs/y differs from the run's runs/x"),
        (["--fraction", "0.5"], "--fraction 0.5 differs from the run's None"),
        (["--loss", "sst=coral"], "--loss sst=coral differs from the run's None"),
        (["--seed", "11710"], "--seed 11710 differs from the run's 11711"),
    ],
)
def test_going_on_with_other_options_is_refused(command, stopped, options, wanted):
    before = {name: sha256(stopped / name) for name in relative_files(stopped)}
    refused(command("--resume", "runs/x", *options), wanted)
    assert {name: sha256(stopped / name) for name in relative_files(stopped)} == before


def test_going_on_with_other_data_or_weights_is_refused(command, stopped, root):
    path = root / "data" / "sample" / "quora-dev.csv"
    before = path.read_text()
    path.write_text("".join(before.splitlines(keepends=True)[:-1]))
    found = command("--resume", "runs/x")
    refused(found, "runs/x can't be continued, its inputs changed: data/sample/quora-dev.csv (8 rows -> 7)")
    path.write_text(before)
    weight = root / "tiny" / "model.safetensors"
    content = bytearray(weight.read_bytes())
    content[-1] ^= 1
    weight.write_bytes(content)
    refused(command("--resume", "runs/x"), "its inputs changed: weights", "undo that, or start anew")


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_going_on_with_other_words_or_numbers_beside_the_weights_is_refused(command, stopped, root, name):
    """Two pieces that change places, or another epsilon, are another model with the same weights."""
    path = root / "tiny" / name
    found = read_json(path)
    if name == "config.json":
        found["layer_norm_eps"] *= 1000
    else:
        pieces = found["model"]["vocab"]
        pieces["film"], pieces["the"] = pieces["the"], pieces["film"]
    files.write_json(path, found)
    changed = rf"its inputs changed: tiny/{name} \(SHA-256 \w{{12}} -> SHA-256 \w{{12}}\); undo that, or start anew"
    found = command("--resume", "runs/x")
    assert found.code == 1 and re.search(changed, found.err)
    config = read_json(stopped / "config.json")
    del config["model"]["files"]  # a run of before they were written down
    files.write_json(stopped / "config.json", config)
    assert command("--resume", "runs/x").code == 0


def test_what_may_change_the_last_bits_is_said(command, stopped):
    config = read_json(stopped / "config.json")
    config["device"]["threads"], config["versions"]["torch"] = 64, "1.13.1"
    del config["precision"]  # of before it was written there
    files.write_json(stopped / "config.json", config)
    found = command("--resume", "runs/x")
    wanted = (
        f"changed    threads 64 -> {torch.get_num_threads()}, torch 1.13.1 -> {torch.__version__[:12]}: the numbers"
    )
    assert found.code == 0 and wanted in found.out


def test_a_run_of_before_an_option_was_there_goes_on_as_it_did(command, stop, root):
    """Whatever config.json lacks has its default, the same as when it is said; a row can be made of such a run."""
    run = stop("--option", "finetune")
    config = read_json(run / "config.json")
    told = {"epochs", "batch_size", "model", "device"} | set(options.RESOLVED)
    lacking = {name for name in config["options"] if name not in told}
    assert {"loss", "attention_ffn", "frozen_dropout", "fraction", "schedule", "seed", "clip"} < lacking
    config["options"] = {name: value for name, value in config["options"].items() if name in told}
    files.write_json(run / "config.json", config)
    refused(command("--resume", "runs/x", "--loss", "sst=coral"), "--loss sst=coral differs from the run's None")
    refused(command("--resume", "runs/x", "--seed", "5"), "--seed 5 differs from the run's 11711")
    assert command("--resume", "runs/x").code == 0
    assert command("--epochs", "2", "--option", "finetune", "--run", "runs/straight").code == 0
    one, other = (root / "runs" / name / "best" / "model.safetensors" for name in ("x", "straight"))
    assert sha256(one) == sha256(other)
    row = result_row.row(run)
    assert "--loss" not in row["command"] and "--batch_size 4" in row["command"]


@pytest.mark.parametrize("name", options.RESOLVED)
def test_an_option_that_is_always_written_is_missed(command, stopped, name):
    config = read_json(stopped / "config.json")
    del config["options"][name]
    files.write_json(stopped / "config.json", config)
    refused(command("--resume", "runs/x"), f"config.json: the options have no {name}: restore it")


def test_a_run_to_go_on_with_may_be_named(command, stopped, tmp_path, monkeypatch):
    """By its name below the program's runs/, from anywhere."""
    monkeypatch.chdir(tmp_path)
    found = command("--resume", "x")
    assert (found.code, found.err) == (0, "")
    assert "continuing at epoch 2, step 1" in found.out and (stopped / "scores.json").is_file()


def test_going_on_with_a_finished_run_is_refused(command):
    assert command("--tasks", "sst", "--run", "runs/x").code == 0
    refused(command("--resume", "runs/x"), "runs/x is finished: its scores are in runs/x/scores.json")
    again = command("--run", "runs/x")
    refused(again, "runs/x holds a finished run already: choose another --run")
    assert again.out == ""  # said at once, before the model is looked for


def test_a_finished_run_that_has_lost_its_scores_is_not_trained_anew(command, root):
    """Its best model would be gone with the first epoch."""
    assert command("--tasks", "sst", "--run", "runs/x").code == 0
    (root / "runs/x/scores.json").unlink()
    before = (root / "runs/x/best/model.safetensors").read_bytes()
    wanted = "runs/x has lost its scores.json, and training would start over: copy its scores.json back"
    refused(command("--resume", "runs/x"), wanted)
    refused(command("--run", "runs/x"), "runs/x holds a run already: copy its scores.json back")
    assert (root / "runs/x/best/model.safetensors").read_bytes() == before


def test_a_run_without_a_checkpoint_says_that_it_starts_over(command, stopped):
    shutil.rmtree(stopped / "last")
    found = command("--resume", "runs/x")
    assert found.code == 0 and "there is no checkpoint yet: it starts over\n" in found.out
    assert found.out.endswith(" s since it went on\n")


def test_options_of_tasks_may_be_typed_in_another_order(command, stop):
    stop("--option", "finetune", "--attention", "0", "--pooler", "sst=max,para=mean")
    refused(command("--resume", "runs/x", "--pooler", "sst=max,para=max"), "--pooler sst=max,para=max differs from")
    assert command("--resume", "runs/x", "--pooler", "para=mean,sst=max").code == 0


def test_a_run_that_was_killed_while_it_cleaned_up_is_cleaned_up(command, stopped):
    (stopped / "scores.json").write_text("{}")
    found = command("--resume", "runs/x")
    assert found.code == 0
    assert found.out.endswith("runs/x is finished: only its checkpoint was left, which is deleted now\n")
    assert not (stopped / "last").exists()
    refused(command("--resume", "runs/x"), "runs/x is finished")


@pytest.mark.parametrize("content", ["", "[]", '{"sst": '])
def test_a_checkpoint_stays_where_the_scores_are_none(command, stopped, content):
    (stopped / "scores.json").write_text(content)
    found = command("--resume", "runs/x")
    refused(found, "scores.json")
    assert found.err.endswith("; or delete it and resume, which writes it again\n")
    assert (stopped / "last" / "checkpoint.safetensors").is_file()
    (stopped / "scores.json").unlink()  # as told
    assert command("--resume", "runs/x").code == 0
    assert json.loads((stopped / "scores.json").read_text())


def test_what_is_asked_to_load_the_best_model_is_written_again(command, stopped):
    """Where the best came before the stop, nothing else would."""
    (stopped / "best" / "config.json").unlink()
    assert command("--resume", "runs/x", "--local_files_only").code == 0
    MultitaskBERT.from_pretrained(stopped / "best")


def test_a_run_that_is_being_trained_is_left_alone(command, stopped):
    with Run(stopped).locked():
        refused(command("--resume", "runs/x"), f"is being trained by process {os.getpid()}")
        refused(command("--run", "runs/x", "--tasks", "sst"), f"is being trained by process {os.getpid()}")


@pytest.mark.parametrize(
    "content, wanted",
    [
        ("[]", "not a run's configuration"),
        ("{", "line 1, column 2: not JSON"),
        ('{"command": "contrastive.py", "options": {}}', "is a run of contrastive.py: continue it with that command"),
        ('{"command": "multitask_classifier.py", "options": []}', "the options have no option"),
        ('{"command": "multitask_classifier.py", "options": 5}', "not a run's configuration"),
    ],
)
def test_going_on_with_a_damaged_configuration_is_refused(command, stopped, content, wanted):
    (stopped / "config.json").write_text(content)
    refused(command("--resume", "runs/x"), wanted)


@pytest.mark.parametrize(
    "name, value, wanted",
    [
        ("epochs", -4, "--epochs is -4"),
        ("epochs", "4", "config.json: epochs is '4', which --epochs could not be"),
        ("epochs", True, "config.json: epochs is True, which"),
        ("epochs", None, "config.json: epochs is None, which"),
        ("tasks", 5, "config.json: tasks is 5, which"),
        ("lr_decay", "x", "config.json: lr_decay is 'x', which"),
        ("pooler", "median", "config.json: --pooler median: 'median' is not understood"),
        ("attention", "many", "config.json: --attention many: 'many' is not understood"),
        ("tasks", "sst,irony", "config.json: --tasks"),
        ("pooler", {"sst": "max"}, "config.json: pooler is {'sst': 'max'}, which"),
        ("use_gpu", 1, "config.json: use_gpu is 1, which"),
        ("data", [], "config.json: data is [], which"),
        ("model", "", "config.json: model is '', which"),
        ("sst_train", "a\0b", "config.json: sst_train is 'a\\x00b', which"),
        ("data", "\ud800", "config.json: data is '\\ud800', which"),
        ("device", {"x": "y" * 9000}, "..., which --device could not be: restore it"),
    ],
)
def test_going_on_with_an_edited_option_is_refused(command, root, name, value, wanted):
    options = {key: v for key, v in vars(get_args([])).items() if key not in ("run", "resume")}
    config = {"command": "multitask_classifier.py", "options": {**options, name: value}}
    files.write_json(root / "runs" / "x" / "config.json", config)
    refused(command("--resume", "runs/x"), wanted)


def test_a_configuration_without_its_data_is_refused(command, stopped):
    config = read_json(stopped / "config.json")
    del config["data"]
    (stopped / "config.json").write_text(json.dumps(config))
    refused(command("--resume", "runs/x"), "does not say which weights and data the run used")


# --- encodings of a frozen encoder -------------------------------------------------------------------------------


def encodings(found):
    return [line.removeprefix("encodings  ") for line in found.out.splitlines() if line.startswith("encodings")]


def test_heads_that_read_the_same_share_a_file_and_a_second_run_finds_it(command, root):
    attention = ("--attention", "sst=0,para=0,sts=1", "--pooler", "mean")
    first = command("--run", "runs/first", *attention)
    assert [re.sub("[0-9.]+", "N", line) for line in encodings(first)] == [
        "sst, para: N distinct sentences, N MB, encoded once",
        "sts: N distinct sentences, N MB, encoded once",
    ]
    second = command("--run", "runs/second", *attention)
    assert [line.rsplit(", ", 1)[1] for line in encodings(second)] == ["found", "found"]
    assert len(list((root / "cache" / "encodings").iterdir())) == 2
    for name in predictions():
        assert (root / "runs" / "first" / name).read_bytes() == (root / "runs" / "second" / name).read_bytes()


def test_without_room_for_encodings_the_same_is_learned(command, root):
    kept, anew = command("--run", "runs/kept"), command("--run", "runs/anew", "--cache_gb", "0")
    assert kept.code == anew.code == 0
    assert [re.sub(r"[0-9]+ distinct", "N distinct", line.split(":")[1]) for line in encodings(anew)] == [
        " N distinct sentences not kept, encoded anew in every epoch"
    ]
    assert_whole(root / "runs" / "anew", root / "data" / "sample", root / "predictions")
    rows = [(root / "runs" / name / "metrics.jsonl").read_text().splitlines() for name in ("kept", "anew")]
    for one, other in zip(*(map(json.loads, lines) for lines in rows), strict=True):
        for task in COURSE:
            assert one["dev"][task]["loss"] == pytest.approx(other["dev"][task]["loss"], rel=1e-4)


# --- every fault is one line, and leaves nothing half-written ----------------------------------------------------


def without_last_column(line):
    return "\t".join(line.rstrip("\n").split("\t")[:-1]) + "\n"


def with_label(line, label):
    return re.sub(r"[\d.]+\n", f"{label}\n", line)


# Name of the file, what becomes of its lines (bytes: its content; None: it goes), what the message says.
FAULTS = {
    "a missing label": (
        "ids-sst-train.csv",
        lambda lines: [*lines[:3], without_last_column(lines[3]), *lines[4:]],
        "ids-sst-train.csv, line 4: 3 columns, wanted 4",
    ),
    "labels all blank": (
        "sts-dev.csv",
        lambda lines: [lines[0], *(with_label(line, "") for line in lines[1:])],
        "sts-dev.csv: all 8 rows have a blank similarity",
    ),
    "a missing column": (
        "quora-train.csv",
        lambda lines: [without_last_column(line) for line in lines],
        "quora-train.csv, line 1: no column 'is_duplicate'",
    ),
    "a missing file": ("sts-test-student.csv", None, "cannot read data/sample/sts-test-student.csv: No such file"),
    "a missing directory": ("", None, "cannot read data/sample/ids-sst-train.csv: No such file"),
    "not UTF-8": (
        "quora-dev.csv",
        b"\tid\tsentence1\tsentence2\tis_duplicate\n0\ta\tb\xe9\tc\t1.0\n",
        "quora-dev.csv, line 2: byte 0xe9 is not UTF-8",
    ),
    "an id twice": ("sts-train.csv", lambda lines: [*lines, lines[2]], "is on line 3 already"),
    "a label of 7": (
        "ids-sst-dev.csv",
        lambda lines: [*lines[:2], with_label(lines[2], 7), *lines[3:]],
        "ids-sst-dev.csv, line 3: sentiment is '7', wanted a whole number from 0 to 4",
    ),
    "an empty file": ("ids-sst-test-student.csv", b"", "ids-sst-test-student.csv: the file is empty"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_in_data(command, root, fault):
    name, change, wanted = FAULTS[fault]
    path = root / "data" / "sample" / name
    if change is None:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif isinstance(change, bytes):
        path.write_bytes(change)
    else:
        path.write_text("".join(change(path.read_text().splitlines(keepends=True))))
    before = relative_files(root)
    error = refused(command("--option", "finetune"), wanted)
    assert name in error
    assert relative_files(root) == before


@pytest.fixture
def known(root, monkeypatch):
    """The tiny model under a known name with a known hash, the default; the folder it stands in."""
    folder = root / "weights" / "all-tiny"
    shutil.copytree(root / "tiny", folder)
    listed = tuple(File(path.name, path.stat().st_size, sha256(path)) for path in sorted(folder.iterdir()))
    tiny = Known("all-tiny", "nobody/all-tiny", "0" * 40, "a tiny model", listed)
    monkeypatch.setattr(weights, "WEIGHTS", root / "weights")
    monkeypatch.setattr(weights, "KNOWN", {"all-tiny": tiny})
    monkeypatch.setattr(weights, "MINILM", tiny)
    return folder


def test_known_weights_are_the_default(command, known):
    found = command("--tasks", "sst", defaults=("--epochs", "0"))
    assert found.code == 0
    assert "model      all-tiny from" in found.out and "SHA-256 verified" in found.out


@pytest.mark.parametrize("fault, wanted", [("cut", "cut short"), ("flip", "altered")])
def test_faults_in_known_weights(command, known, root, fault, wanted):
    path = known / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content if fault == "flip" else content[:-1])
    before = relative_files(root)
    refused(command(defaults=()), "all-tiny/model.safetensors", wanted)
    assert relative_files(root) == before


def test_weights_in_a_folder_cut_short(command, root):
    path = root / "tiny" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    before = relative_files(root)
    refused(command("--option", "finetune", "--run", "runs/x"), "tiny/model.safetensors", "cut short")
    assert relative_files(root) == before


def test_a_head_that_can_not_be_made_of_the_weights_is_refused_before_there_is_a_run(command, root):
    """A frozen pooler that the weights don't have, more layers than they have, two segments where they know one."""
    path = root / "tiny" / "model.safetensors"
    state = {name: tensor.clone() for name, tensor in load_file(path).items() if not name.startswith("pooler.")}
    path.unlink()
    save_file(state, path)
    before = relative_files(root)
    refused(
        command("--pooler", "cls", "--run", "runs/x"), "--pooler cls --option pretrain: these weights hold no pooler"
    )
    refused(command("--pooler", "concat_last4", "--run", "runs/x"), "reads the last 4 layers, and this encoder has 2")
    assert relative_files(root) == before and not (root / "runs").exists()
    assert command("--pooler", "cls", "--option", "finetune", "--run", "runs/x").code == 0


def test_a_full_disk_at_the_checkpoint(command, root, monkeypatch):
    """One line; what was saved before stays and is gone on with once there is room."""
    options = ("--option", "finetune", "--epochs", "2")
    assert command(*options, "--run", "runs/undisturbed").code == 0
    real, saved = os.fsync, []

    def full(descriptor):
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if name.endswith(".tmp") and "checkpoint" in name:
            saved.append(name)
            if len(saved) > 2:  # untrained, first epoch, and now the second
                raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        found = command(*options, "--run", "runs/x")
    error = refused(
        found, "cannot write runs/x/last/checkpoint.safetensors: No space left on device", "free some space"
    )
    assert re.search(r"; then continue with: python \S*multitask_classifier.py --resume runs/x$", error.strip())
    assert not list(root.rglob("*.tmp"))
    assert Run(root / "runs" / "x").load_checkpoint()[1]["epoch"] == 1
    assert command("--resume", "runs/x").code == 0
    one, other = (root / "runs" / name / "best" / "model.safetensors" for name in ("x", "undisturbed"))
    assert sha256(one) == sha256(other)


def test_a_loss_that_is_not_finite(command, root):
    found = command("--option", "finetune", "--lr", "1e30", "--run", "runs/x")
    error = refused(found, "finite" if "finite" in found.err else "the loss is", "try a lower --lr or --clip 1.0")
    assert "there is no best model yet" in error
    assert not (root / "predictions").exists() and not list(root.rglob("*.tmp"))


@pytest.mark.parametrize(
    "more",
    [("--r_drop", "1.5"), ("--reinitialize", "1"), ("--pair_encoding", "joint", "--swap_pairs")],
    ids=["R-Drop", "a new layer", "swapped pairs"],
)
def test_an_option_that_changes_how_it_learns(command, root, more):
    """It trains another model than without its last part, says in config.json that it did, and goes on as it was."""
    *beside, option = more if more[-1].startswith("--") else (more,)
    option = list(option) if isinstance(option, tuple) else [option]
    common = ("--option", "finetune", "--attention", "0", *beside)
    plain, other = command(*common, "--run", "plain"), command(*common, *option, "--run", "other")
    assert plain.code == other.code == 0, other.err
    best = [(root / name / "best" / "model.safetensors").read_bytes() for name in ("plain", "other")]
    assert best[0] != best[1]
    name = option[0].removeprefix("--")
    found = [read_json(root / run / "config.json")["options"][name] for run in ("plain", "other")]
    assert found == ([False, True] if len(option) == 1 else [0.0, float(option[1])])
    assert " ".join(option) in result_row.row(root / "other")["command"]


def test_the_last_layers_begin_anew(command, root):
    finetune, more = ("--option", "finetune", "--attention", "0", "--epochs", "0"), ("--reinitialize", "1")
    plain, other = command(*finetune, "--run", "plain"), command(*finetune, *more, "--run", "other")
    assert plain.code == other.code == 0, other.err
    assert "its last 1 layers begin anew" in " ".join(other.out.split()) and "anew" not in plain.out
    before, after = (state_dicts.read_state(root / name / "best") for name in ("plain", "other"))
    layers = 1 + max(int(name.split(".")[3]) for name in before if name.startswith("bert.encoder.layer."))
    anew = {name for name in before if name.startswith(f"bert.encoder.layer.{layers - 1}.") and before[name].dim() > 1}
    assert anew == {
        name
        for name in before
        if before[name].dim() > 1 and "heads" not in name and not torch.equal(before[name], after[name])
    }


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (("--reinitialize", "1"), "in a frozen encoder new layers would stay as they are: say --option finetune"),
        (("--option", "finetune", "--reinitialize", "99"), "--reinitialize 99: the model has"),
        (("--option", "finetune", "--reinitialize", "-1"), "--reinitialize is -1, wanted a number from 0 up"),
    ],
)
def test_layers_that_can_t_begin_anew(command, root, given, wanted):
    refused(command(*given), wanted)
    assert not (root / "runs").exists()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (("--swap_pairs",), "a frozen encoder's encodings are computed once: say --option finetune"),
        (("--option", "finetune", "--swap_pairs"), "no pair of these tasks is one sequence: leave it out"),
        (("--option", "finetune", "--tasks", "sst", "--pair_encoding", "joint", "--swap_pairs"), "no pair of these"),
    ],
)
def test_pairs_that_can_t_be_swapped(command, given, wanted):
    refused(command(*given), wanted)
