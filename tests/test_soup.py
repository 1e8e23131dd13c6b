"""Soups: the mean of weights by hand, the folder that is left and all that is done with it, and what is refused.

Wortsman et al. 2022 (arXiv 2203.05482).
"""

import shutil

import pytest
import torch
from test_ensemble import refused, train  # noqa: F401 - a fixture

import comparison
import evaluation
import export
import multitask_classifier
import predict
import report_data
import result_row
import state_dicts
from batches import TaskData
from evaluation import read_predictions
from files import read_json
from model import MultitaskBERT
from run import Run
from similarity_scale import read_scales
from task_files import read_split
from tasks import PARA, SST, STS
from tokenizer import BertTokenizer

COSINE = ("--pair_score", "cosine")


@pytest.fixture(scope="module")
def runs(train):  # noqa: F811
    """Of another seed, rate and dropout, and of as many epochs as they like."""
    return [
        train("one", "--seed", 1, *COSINE),
        train("two", "--seed", 2, *COSINE, "--lr", 0.01, "--hidden_dropout_prob", 0.1),
        train("three", "--seed", 3, *COSINE, "--epochs", 2),
    ]


@pytest.fixture(scope="module")
def made(train, runs):  # noqa: F811
    command = ["--ensemble", "one", "two", str(runs[2]), "--soup", "--run", "runs/soup"]
    assert multitask_classifier.main(command) == 0
    return Run(train.root / "runs" / "soup")


def test_its_weights_are_the_mean(made, runs):
    found, states = state_dicts.read_state(made.best), [state_dicts.read_state(run / "best") for run in runs]
    assert all(found.keys() == state.keys() for state in states)
    for name, tensor in found.items():
        total = sum(state[name].double() for state in states)
        torch.testing.assert_close(tensor, (total / 3).float(), rtol=0, atol=0, msg=name)
    name = "bert.encoder.layer.0.output.dense.weight"
    assert all(not torch.equal(found[name], state[name]) for state in states)


def test_what_it_leaves_is_what_that_model_says(train, made):  # noqa: F811
    model, tokenizer = MultitaskBERT.from_pretrained(made.best), BertTokenizer.from_pretrained(made.best)
    outputs, scores = made.read_outputs(), read_json(made.folder / "scores.json")
    for task in (SST, PARA, STS):
        for split, count in (("dev", 12), ("test", 4)):
            rows = TaskData(task, read_split(task, split, train.root / "data/sample" / task.files[split]), tokenizer)
            said = evaluation.predict(model, rows)
            path = made.predictions / task.predictions_file(split)
            assert list(read_predictions(path, task).values()) == pytest.approx(said.values.tolist(), abs=1e-4)
            assert len(said.values) == count
            assert (train.root / "predictions" / path.name).read_bytes() == path.read_bytes()
            if split == "dev":
                torch.testing.assert_close(outputs[task.name], torch.from_numpy(said.outputs), atol=1e-5, rtol=1e-5)
                assert scores[task.name][task.metric] == pytest.approx(said.score, abs=1e-6)
    assert read_scales(made.best)["sts"].rows == 12
    assert result_row.row("soup")["command"] == ("python multitask_classifier.py --ensemble one two three --soup")
    assert "soup of 3 runs" in (made.folder / "report.html").read_text(encoding="utf-8")


def test_the_same_runs_give_the_same_files(train, made):  # noqa: F811
    assert multitask_classifier.main(["--ensemble", "one", "two", "three", "--soup", "--run", "runs/again"]) == 0
    again = Run(train.root / "runs" / "again")
    for path in [*made.predictions.iterdir(), *made.best.iterdir(), made.outputs]:
        assert (again.folder / path.relative_to(made.folder)).read_bytes() == path.read_bytes(), path


def test_it_is_asked_exported_compared_and_averaged_like_any_other(train, made, capsys, tmp_path, monkeypatch):  # noqa: F811
    assert predict.main([str(made.folder), "a film"]) == 0
    assert export.main([str(made.folder), str(tmp_path / "encoder")]) == 0
    card = (tmp_path / "encoder" / "README.md").read_text(encoding="utf-8")
    assert "The mean of the weights of 3 runs: one, two, three." in card
    assert "untrained" not in card and "one seed" not in card
    assert comparison.main(["compare", "runs/one", "runs/two", "runs/three", "runs/soup"]) == 0
    assert multitask_classifier.main(["--ensemble", "runs/soup", "runs/one", "--run", "runs/more"]) == 0
    train("student", *COSINE, "--distill", "runs/soup")
    capsys.readouterr()
    assert multitask_classifier.main(["--resume", str(made.folder)]) == 1
    assert "is an ensemble, which trains nothing" in capsys.readouterr().err


def test_one_whose_model_is_gone_says_so(train, made, capsys):  # noqa: F811
    copy = shutil.copytree(made.folder, train.root / "runs" / "emptied")
    shutil.rmtree(copy / "best")
    assert predict.main([str(copy), "a film"]) == 1
    assert "is a soup whose best/ is gone: make it again, or name one of runs/one" in capsys.readouterr().err


def test_of_a_loss_of_ordered_classes(train):  # noqa: F811
    """Its outputs are no logits of classes, and whoever reads them later has to know."""
    for seed in (1, 2):
        train(f"coral{seed}", "--tasks", "sst", "--loss", "sst=coral", "--seed", seed)
    assert multitask_classifier.main(["--ensemble", "coral1", "coral2", "--soup", "--run", "runs/coral"]) == 0
    assert Run(train.root / "runs/coral").read_outputs()["sst"].shape == (12, 4)
    read = report_data.read_run(train.root / "runs/coral", None, print).judged["sst"]
    assert not read.missing
    said = read_predictions(train.root / "runs/coral/predictions/sst-dev-output.csv", SST)
    assert read.values.tolist() == list(said.values())
    assert "--loss" not in result_row.row("coral")["command"]


def test_what_is_refused(train, runs, capsys, tiny_folder, tmp_path):  # noqa: F811
    def says(*others):
        return refused(capsys, "--ensemble", "one", *others, "--soup")

    train("heads", "--pooler", "max", *COSINE)
    wanted = "--soup: runs/one and runs/heads differ in their heads (pooler of sst: mean, max), so the mean"
    assert wanted in says("two", "heads")
    train("fewer", "--tasks", "sst,sts", *COSINE)
    assert "runs/one and runs/fewer differ in their tasks" in says("fewer")
    train("order", "--tasks", "sts,sst,para", *COSINE, "--seed", "9")
    names = ["--ensemble", "one", "order", "--soup", "--run", "runs/ordered"]
    assert multitask_classifier.main(names) == 0  # the same tasks, whatever came first
    train("apart", "--schedule", "separate", *COSINE)
    assert "--soup: runs/apart has a model for each task" in says("apart")
    model = MultitaskBERT.from_pretrained(runs[1] / "best")
    model.bert.save_pretrained(tmp_path / "other")
    BertTokenizer.from_pretrained(tiny_folder).save_pretrained(tmp_path / "other")
    train("began", *COSINE, "--model", tmp_path / "other")
    assert "runs/one and runs/began differ in their pretrained weights" in says("began")
    train("new", *COSINE, "--reinitialize", "1", "--seed", "4")
    train("drawn", *COSINE, "--reinitialize", "1", "--seed", "5")
    message = refused(capsys, "--ensemble", "new", "drawn", "--soup")
    assert "runs/new and runs/drawn differ in their pretrained weights" in message
    for name in ("new", "drawn"):  # a soup knows what its runs began with
        train(f"{name}2", *COSINE, "--reinitialize", "1", "--seed", {"new": "4", "drawn": "5"}[name], "--epochs", "2")
        names = ["--ensemble", name, f"{name}2", "--soup", "--run", f"runs/{name}-soup"]
        assert multitask_classifier.main(names) == 0
    message = refused(capsys, "--ensemble", "new-soup", "drawn-soup", "--soup")
    assert "runs/new-soup and runs/drawn-soup differ in their pretrained weights" in message
    assert multitask_classifier.main(["--ensemble", "new-soup", "new", "--soup", "--run", "runs/new-again"]) == 0
    assert "wants two runs or more" in refused(capsys, "--ensemble", "one", "--soup")
    assert "--soup: of which runs: name them, --ensemble RUN RUN" in refused(capsys, "--soup")
    assert not (train.root / "runs" / "refused").exists()
