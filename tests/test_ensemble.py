"""Finished runs averaged: by hand, as a command, and what is refused. Tiny runs of the real command.

Follows Lakshminarayanan and others 2017 (arXiv 1612.01474).
"""

import errno
import json
import shutil

import numpy as np
import pytest
import torch
from conftest import write_rows

import ensemble
import members
import multitask_classifier
import options
import predict
import result_row
from evaluation import judge, probabilities, read_predictions
from files import cannot, read_json, write_json
from run import Run
from task_files import read_split
from tasks import PARA, SST, STS

ROWS = {"train": 8, "dev": 12, "test": 4}


def said(task, outputs):
    outputs = np.array(outputs, dtype=np.float32)
    return judge(task, [str(i) for i in range(len(outputs))], outputs, None)


def test_the_mean_of_probabilities_of_classes():
    shares = np.array([[[0.6, 0.1, 0.1, 0.1, 0.1]], [[0.1, 0.5, 0.2, 0.1, 0.1]]])
    members = [said(SST, np.log(found)) for found in shares]
    found = ensemble.average(SST, members, [])
    assert probabilities(SST, found) == pytest.approx(np.array([[0.35, 0.3, 0.15, 0.1, 0.1]]), abs=1e-6)
    assert judge(SST, ["0"], found, None).values.tolist() == [0]


def test_a_loss_of_ordered_classes_is_averaged_as_its_own_probabilities():
    coral, plain = said(SST.with_loss("coral"), [[2.0, 1.0, -1.0, -2.0]]), said(SST, [[0.0, 1.0, 2.0, 3.0, 4.0]])
    wanted = (probabilities(coral.task, coral.outputs) + probabilities(SST, plain.outputs)) / 2
    assert probabilities(SST, ensemble.average(SST, [coral, plain], [])) == pytest.approx(wanted, abs=1e-6)


def test_the_mean_of_probabilities_of_two_is_no_mean_of_logits():
    """sigmoid(10) and sigmoid(-1) are 1.0000 and 0.2689: their mean is above one half, and so is the logits'; with -2
    and 1.5, 0.1192 and 0.8176, it is below, where the mean logit is below, too."""
    found = ensemble.average(PARA, [said(PARA, [10.0, 1.5]), said(PARA, [-1.0, -2.0])], [])
    both = [(1 / (1 + np.exp(-10)) + 1 / (1 + np.exp(1))) / 2, (1 / (1 + np.exp(-1.5)) + 1 / (1 + np.exp(2))) / 2]
    assert 1 / (1 + np.exp(-found.astype(float))) == pytest.approx(both, abs=1e-6)
    assert judge(PARA, ["0", "1"], found, None).values.tolist() == [1.0, 0.0]


def test_a_probability_of_zero_stays_finite():
    assert np.isfinite(ensemble.average(PARA, [said(PARA, [-200.0])] * 2, [])).all()
    assert np.isfinite(ensemble.average(SST, [said(SST, [[0.0, 0, 0, 0, 900.0]])] * 2, [])).all()


def test_scores_are_standardized_on_dev():
    dev = [said(STS, [1.0, 3.0]), said(STS, [-10.0, 10.0])]  # means 2 and 0, spreads 1 and 10
    test = [said(STS, [4.0]), said(STS, [5.0])]
    assert ensemble.average(STS, test, dev) == pytest.approx([(2 + 0.5) / 2])
    constant = said(STS, [7.0, 7.0])
    assert ensemble.average(STS, [said(STS, [4.0]), said(STS, [7.0])], [dev[0], constant]) == pytest.approx([1.0])


def test_scores_that_are_constant_on_dev_are_taken_as_they_are():
    one, other = said(STS, [0.1] * 7), said(STS, [1 / 3] * 7)  # whose deviation in float32 is not 0
    assert ensemble.average(STS, [said(STS, [4.0]), said(STS, [5.0])], [one, other]) == pytest.approx([4.5])


@pytest.fixture(scope="module")
def train(tmp_path_factory, tiny_folder):
    """train(name, options...) -> the folder of a run; train.root is the folder that is taken for the repository's."""
    root = tmp_path_factory.mktemp("root")
    write_rows(root / "data" / "sample", ROWS)
    with pytest.MonkeyPatch.context() as patch:
        for module in (multitask_classifier, options, ensemble, members, result_row):
            patch.setattr(module, "ROOT", root)
        patch.setattr(multitask_classifier, "CACHE", root / "cache")
        patch.chdir(root)

        def train(name, *more):
            given = ["--model", tiny_folder, "--data", "data/sample", "--run", f"runs/{name}", "--device", "cpu"]
            given += ["--epochs", 1, "--batch_size", 4, "--attention", 0, "--option", "finetune", *more]
            assert multitask_classifier.main([str(option) for option in given]) == 0
            return root / "runs" / name

        train.root = root
        yield train


@pytest.fixture(scope="module")
def runs(train):
    return train("one", "--seed", 1), train("other", "--seed", 2, "--loss", "sst=coral", "--pair_encoding", "joint")


@pytest.fixture(scope="module")
def both(train, runs):
    assert multitask_classifier.main(["--ensemble", "one", str(runs[1]), "--run", "runs/both"]) == 0
    return Run(train.root / "runs" / "both")


def test_it_leaves_what_a_run_leaves(train, runs, both, capsys):
    outputs, kept = both.read_outputs(), [Run(run).read_outputs() for run in runs]
    chances = [probabilities(task, kept[i]["sst"].numpy()) for i, task in enumerate((SST, SST.with_loss("coral")))]
    assert probabilities(SST, outputs["sst"].numpy()) == pytest.approx(sum(chances) / 2, abs=1e-5)
    scores = [found["sts"].double().numpy() for found in kept]
    wanted = sum((values - values.mean()) / values.std() for values in scores) / 2
    assert outputs["sts"].numpy() == pytest.approx(wanted, abs=1e-4)
    said = read_predictions(both.predictions / "para-dev-output.csv", PARA)
    logits = [torch.sigmoid(found["para"].double()).numpy() for found in kept]
    assert list(said.values()) == [float(value >= 0.5) for value in sum(logits) / 2]
    for split, count in (("dev", 12), ("test", 4)):
        for task in (SST, PARA, STS):
            path = both.predictions / task.predictions_file(split)
            assert len(read_predictions(path, task)) == count
            assert (train.root / "predictions" / path.name).read_bytes() == path.read_bytes()
    config, found = both.config, read_json(both.folder / "scores.json")
    assert config["options"] == {"ensemble": ["runs/one", "runs/other"]}
    labels = [example.label for example in read_split(SST, "dev", train.root / "data/sample/ids-sst-dev.csv")]
    values = list(read_predictions(both.predictions / "sst-dev-output.csv", SST).values())
    assert found["sst"]["accuracy"] == pytest.approx(np.mean([a == b for a, b in zip(labels, values, strict=True)]))
    page = (both.folder / "report.html").read_text(encoding="utf-8")
    assert "ensemble of 2 runs" in page and "untrained" not in page and 'id="curves"' not in page  # which it has not
    row = result_row.row("both")
    assert row["command"] == "python multitask_classifier.py --ensemble one other"
    ends = [json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["train_seconds"] for run in runs]
    assert row["train_seconds"] == pytest.approx(sum(ends), abs=0.1)
    assert "undefined" not in result_row.table([(row, "both")])


def test_the_same_runs_give_the_same_files(train, runs, both):
    assert multitask_classifier.main(["--ensemble", "one", "other", "--run", "runs/again"]) == 0
    again = Run(train.root / "runs" / "again")
    for path in both.predictions.iterdir():
        assert (again.predictions / path.name).read_bytes() == path.read_bytes()
    assert again.outputs.read_bytes() == both.outputs.read_bytes()


def test_models_of_single_tasks_become_one_submission(train, runs, capsys):
    train("sentiment", "--tasks", "sst")
    train("pairs", "--tasks", "para,sts", "--schedule", "separate")
    capsys.readouterr()
    assert multitask_classifier.main(["--ensemble", "sentiment", "pairs", "one", "--run", "runs/three"]) == 0
    printed = capsys.readouterr().out
    found = {path.name for path in (train.root / "runs/three/predictions").iterdir()}
    assert found == {task.predictions_file(split) for task in (SST, PARA, STS) for split in ("dev", "test")}
    assert "asking     runs/pairs: para, sts" in printed and "leaderboard score" in printed


def refused(capsys, *arguments):
    capsys.readouterr()
    assert multitask_classifier.main([*arguments, "--run", "runs/refused"]) == 1
    return capsys.readouterr().err


def test_what_is_refused(train, runs, both, capsys, tmp_path):
    assert "wants two runs or more" in refused(capsys, "--ensemble", "one")
    assert "wants two runs or more" in refused(capsys, "--ensemble", "one", "other", str(runs[0]))
    assert "nope: no run there" in refused(capsys, "--ensemble", "one", "nope")
    assert "--ensemble trains nothing, so --lr has nothing" in refused(
        capsys, "--ensemble", "one", "other", "--lr", "1"
    )
    wanted = "runs/both is an ensemble, without a model of its own: name one of its runs, runs/one, runs/other"
    assert wanted in refused(capsys, "--ensemble", "one", "both")
    shutil.copytree(runs[0], train.root / "runs" / "cut")
    wanted = "--ensemble: runs/cut has the same model of sst as runs/one: leave one of them out"
    assert wanted in refused(capsys, "--ensemble", "one", "other", "cut")
    (train.root / "runs/cut/scores.json").unlink()
    assert "runs/cut has lost its scores.json" in refused(capsys, "--ensemble", "one", "cut")
    write_rows(tmp_path / "data", {**ROWS, "dev": 11})
    message = refused(capsys, "--ensemble", "one", "other", "--data", str(tmp_path / "data"))
    assert "runs/one was judged on another file than" in message and "ids-sst-dev.csv" in message
    own = str(runs[1] / "predictions" / "sst-dev-output.csv")
    assert "is in the folder of another run" in refused(capsys, "--ensemble", "one", "other", "--sst_dev_out", own)
    for idle in ("--sst_train", "--cola_dev"):
        message = refused(capsys, "--ensemble", "one", "other", idle, "nowhere.csv")
        assert f"{idle}" in message and "leave it out" in message
    alone = shutil.copytree(train.root / "runs" / "other", train.root / "runs" / "alone")
    write_json(alone / "config.json", read_json(alone / "config.json") | {"command": "contrastive.py"})
    wanted = "runs/alone: a run of contrastive.py, which has no tasks: leave it out"
    assert wanted in refused(capsys, "--ensemble", "one", "alone")
    assert not (train.root / "runs" / "refused").exists()


def test_members_that_lack_something_are_refused_before_any_is_asked(train, runs, capsys):
    apart = train("apart", "--schedule", "separate", "--seed", "7")
    copies = {name: shutil.copytree(apart, train.root / "runs" / name) for name in ("no-model", "no-weights", "no-row")}
    shutil.rmtree(copies["no-model"] / "para" / "best")
    (copies["no-weights"] / "para/best/model.safetensors").unlink()
    (copies["no-row"] / "sts/metrics.jsonl").write_text("")
    for name, wanted in (
        ("no-model", "runs/no-model: scores.json has para, but there is no model of it"),
        ("no-weights", "runs/no-weights/para/best/model.safetensors is gone: copy the run again"),
        ("no-row", "runs/no-row/sts/metrics.jsonl: empty, no evaluation in it"),
    ):
        capsys.readouterr()
        assert multitask_classifier.main(["--ensemble", "one", name, "--run", "runs/refused"]) == 1
        printed = capsys.readouterr()
        assert wanted in printed.err and printed.out == "" and not (train.root / "runs/refused").exists()


def test_its_runs_are_named_from_wherever_one_stands(train, both, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert both.members() == [str(train.root / "runs" / name) for name in ("one", "other")]


def test_one_model_of_two_runs_counts_once(train, capsys):
    """Of separate models, that of one task may be the same in both: the seed decides it."""
    for name, tasks in (("sentiment-1", "sst,para"), ("sentiment-2", "sst,sts")):
        train(name, "--schedule", "separate", "--tasks", tasks, "--seed", 5)
    wanted = "runs/sentiment-2 has the same model of sst as runs/sentiment-1"
    assert wanted in refused(capsys, "--ensemble", "sentiment-1", "sentiment-2")
    teachers = ["--distill", "sentiment-1", "sentiment-2", "--model", str(train.root / "runs/sentiment-1/sst/best")]
    assert wanted in refused(capsys, *teachers, "--tasks", "sst", "--data", "data/sample", "--option", "finetune")


def test_weights_that_other_heads_read_are_another_model(train, capsys):
    """Poolers without weights of their own leave no trace in them."""
    for pooler in ("mean", "max"):
        train(f"untrained-{pooler}", "--pooler", pooler, "--epochs", 0, "--tasks", "sst")
    names = ("untrained-mean", "untrained-max")
    files = [train.root / "runs" / name / "best" / "model.safetensors" for name in names]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert multitask_classifier.main(["--ensemble", *names, "--run", "runs/untrained"]) == 0


def test_data_that_has_moved(train, runs, capsys):
    moved = shutil.copytree(runs[0], train.root / "runs" / "moved")
    config = read_json(moved / "config.json")
    config["data"]["sst"]["dev"]["path"] = str(train.root / "gone" / "dev.csv")
    write_json(moved / "config.json", config)
    message = refused(capsys, "--ensemble", "moved", "other")
    assert "gone/dev.csv is not there any more: name the folder it is in now with --data" in message
    config["data"].pop("sst")
    write_json(moved / "config.json", config)
    assert "config.json: no data.sst" in refused(capsys, "--ensemble", "moved", "other")


def test_train_rows_that_differ_are_not_said_to_be_those_of_all(train, runs):
    train("less", "--fraction", 0.5)
    assert multitask_classifier.main(["--ensemble", "less", "other", "--run", "runs/unlike"]) == 0
    assert set(Run(train.root / "runs/unlike").config["data"]["sst"]) == {"dev", "test"}
    assert "not said" not in (train.root / "runs/unlike/report.html").read_text(encoding="utf-8")
    assert result_row.row("unlike")["data"]["sst"].keys() == {"dev", "test"}
    train("plain", "--seed", 5)
    assert multitask_classifier.main(["--ensemble", "less", "plain", "--soup", "--run", "runs/mixed"]) == 0
    assert multitask_classifier.main(["--ensemble", "mixed", "plain", "--run", "runs/of-mixed"]) == 0


def test_who_asks_or_resumes_an_ensemble_is_told_what_it_is(both, capsys):
    assert predict.main([str(both.folder), "a film"]) == 1
    assert "is an ensemble, without a model of its own: name one of its runs, runs/one" in capsys.readouterr().err
    assert multitask_classifier.main(["--resume", str(both.folder)]) == 1
    assert "is an ensemble, which trains nothing" in capsys.readouterr().err


def test_one_that_is_cut_short_is_made_again_by_the_same_command(train, both, capsys, monkeypatch):
    """At any write, and by Ctrl-C: it has nothing to go on with, so nobody is sent to --resume."""
    command = ["--ensemble", "one", "other", "--run", "runs/short"]
    real, cut = ensemble.write_json, train.root / "runs" / "short"

    def full(path, value):
        if path.name == "scores.json":
            raise cannot("write", path, OSError(errno.ENOSPC, "No space left on device"))
        real(path, value)

    def stop(path, value):
        if path.name == "scores.json":
            raise KeyboardInterrupt
        real(path, value)

    monkeypatch.setattr(ensemble, "write_json", full)
    assert multitask_classifier.main(command) == 1
    err = capsys.readouterr().err
    assert err.endswith("scores.json: No space left on device: free some space on that disk, or write to another one\n")
    monkeypatch.setattr(ensemble, "write_json", stop)
    assert multitask_classifier.main(command) == 130
    assert capsys.readouterr().err == "stopped: the same command makes it again\n"
    assert (cut / "config.json").is_file()
    assert "make the ensemble again" in refused(capsys, "--ensemble", "one", "short")
    assert multitask_classifier.main(["--ensemble", "one", "other", "--soup", "--run", "runs/short"]) == 1
    capsys.readouterr()
    monkeypatch.setattr(ensemble, "write_json", real)
    assert multitask_classifier.main(command) == 0
    assert Run(cut).outputs.read_bytes() == both.outputs.read_bytes()
    assert (cut / "scores.json").read_bytes() == (both.folder / "scores.json").read_bytes()


def test_a_folder_that_is_taken_is_said_before_the_runs_are_asked(train, runs, both, capsys, monkeypatch):
    monkeypatch.setattr(ensemble, "predict", lambda *_: pytest.fail("they were asked"))
    for folder in (runs[0], both.folder):
        assert multitask_classifier.main(["--ensemble", "one", "other", "--run", str(folder)]) == 1
        assert "holds a finished run already: choose another --run" in capsys.readouterr().err
