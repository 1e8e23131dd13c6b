"""Two runs compared, and one's errors, as `python evaluation.py` prints them. Answers made by hand, dev rows of files.

Intervals: Efron and Tibshirani 1993; intervals.py has tests of its own.
"""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT

import comparison
from errors import InputError
from evaluation import judge
from files import sha256
from run import Run
from task_files import read_split
from tasks import PARA, SST, STS

TASKS_ = (SST, PARA, STS)


@pytest.fixture
def data(tmp_path):
    """Dev files of 40 rows."""
    folder = tmp_path / "data"
    folder.mkdir()
    texts = [f"{'word ' * (i % 7)}number {i}" for i in range(40)]
    rows = {
        "sst": ["\tid\tsentence\tsentiment"] + [f"{i}\ts{i}\t{text}\t{i % 5}" for i, text in enumerate(texts)],
        "para": ["\tid\tsentence1\tsentence2\tis_duplicate"]
        + [f"{i}\tp{i}\t{text}\tother\t{float(i % 2)}" for i, text in enumerate(texts)],
        "sts": ["\tid\tsentence1\tsentence2\tsimilarity"]
        + [f"{i}\tt{i}\t{text}\tother\t{i / 8}" for i, text in enumerate(texts)],
    }
    for task in TASKS_:
        (folder / task.files["dev"]).write_text("\n".join(rows[task.name]) + "\n")
    return folder


@pytest.fixture
def make(tmp_path, data):
    """make(name, outputs of each task) -> the folder of a finished run that gave them for dev."""

    def make(name, outputs, folder=data):
        tables = {task.name: read_split(task, "dev", folder / task.files["dev"]) for task in TASKS_}
        found = {}
        for task in TASKS_:
            labels = torch.tensor([example.label for example in tables[task.name]])
            found[task.name] = judge(task, ["x"] * len(labels), outputs[task.name].astype(np.float32), labels)
        files = {
            task.name: {
                "dev": {
                    "path": str(folder / task.files["dev"]),
                    "rows": 40,
                    "dropped": [],
                    "sha256": sha256(folder / task.files["dev"]),
                }
            }
            for task in TASKS_
        }
        config = {
            "command": "multitask_classifier.py",
            "options": {"lr": 1e-5, "option": "finetune"},
            "model": {"name": "tiny", "sha256": "0" * 64},
            "data": files,
            "device": {"type": "cpu"},
            "versions": {},
            "commit": None,
            "started": "2026-01-31T12:00:00+00:00",
        }
        run = Run.create(tmp_path / name, config)
        row = {"epoch": 1, "best": True, "train_seconds": 1.0, "train_tokens": 9, "train_loss": {}}
        run.write_metrics([row | {"dev": {name: found[name].scores for name in found}}])
        run.write_outputs({name: torch.from_numpy(found[name].outputs) for name in found})
        scores = {name: {"untrained": 0.1, **found[name].scores} for name in found}
        (run.folder / "scores.json").write_text(json.dumps(scores))
        return run.folder

    return make


def answers(wrong):
    """Right for every row but the first `wrong`, whose answer is far off."""
    sst = np.full((40, 5), 0.0)
    sst[np.arange(40), [(i + 2) % 5 if i < wrong else i % 5 for i in range(40)]] = 4.0
    para = np.array([(1 if (i % 2) == (i >= wrong) else -1) * (i + 1.0) for i in range(40)])
    sts = np.array([5 - i / 8 if i < wrong else i / 8 for i in range(40)]) * 10 - 3
    return {"sst": sst, "para": para, "sts": sts}


def run(*arguments):
    command = [sys.executable, str(ROOT / "evaluation.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_compare_prints_differences_and_how_sure_they_are(make, capsys):
    one, other = make("one", answers(2)), make("other", answers(22))
    assert comparison.main(["compare", str(one), str(other)]) == 0
    printed = capsys.readouterr().out
    found = re.search(r"sentiment \(SST-5\) +accuracy +0.950 +0.450 +-0.500 +(\S+) to (\S+) \*", printed)
    assert -0.7 < float(found[1]) < -0.5 < float(found[2]) < -0.3  # of 40 rows 20 differ: 0.5 +- 2 * 0.08
    assert re.search(r"paraphrase \(Quora\) +accuracy +0.950 +0.450 +-0.500 ", printed)
    assert "leaderboard score" in printed and "similarity (STS)" in printed


def test_a_run_does_not_differ_from_its_equal(make, capsys):
    assert comparison.main(["compare", str(make("one", answers(5))), str(make("other", answers(5)))]) == 0
    printed = capsys.readouterr().out
    assert printed.count("+0.000   +0.000 to +0.000\n") == 4  # not marked


def test_runs_on_other_rows_are_not_compared(make, data, tmp_path, capsys):
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in data.iterdir():
        (moved / path.name).write_text(path.read_text().replace("other", "another").replace("number", "no."))
    one, other = make("one", answers(2)), make("other", answers(2), moved)
    assert comparison.main(["compare", str(one), str(other)]) == 1
    assert "have no task that they were judged on the same rows of" in capsys.readouterr().err


def test_errors_by_class_and_the_hardest_rows(make, capsys):
    assert comparison.main(["errors", str(make("one", answers(6))), "--most", "2"]) == 0
    printed = capsys.readouterr().out
    # Rows 0 to 5 are wrong: labels 0, 1, 2, 3, 4, 0, each taken for the class two further.
    assert re.search(r"0 negative +8 +75% +7 +86% +2 neutral \(2\)", printed)
    assert re.search(r"1 somewhat negative +8 +88% +8 +88% +3 somewhat positive \(1\)", printed)
    # The surest of the wrong paraphrases are rows 5 and 4: logits of 6 and 5 on the wrong side.
    section = printed[printed.index("paraphrase (Quora): 40 rows") : printed.index("similarity (STS): 40 rows")]
    assert re.findall(r"^  (p\d+) ", section, re.M) == ["p5", "p4"] and "0.002" in section
    section = printed[printed.index("similarity (STS): 40 rows") :]
    assert re.findall(r"^  (t\d+) ", section, re.M) == ["t0", "t1"]


def test_a_run_without_errors_says_so(make, capsys):
    assert comparison.main(["errors", str(make("one", answers(0)))]) == 0
    printed = capsys.readouterr().out
    assert printed.count("no wrong answer") == 2 and re.search(r"0 negative +8 +100% +8 +100% +none", printed)


def test_the_command_and_its_errors(make):
    folder = make("one", answers(3))
    assert run("compare", folder, folder).returncode == 0
    assert run("errors", folder, "--most", "1").stdout.startswith("sentiment (SST-5): 40 rows of ids-sst-dev.csv")
    for arguments, message in (
        (("compare", folder, "nope"), "error: nope: no run there"),
        (("compare", "nope"), "error: compare nope: with what: name two runs or more"),
        (("compare", folder, folder, folder), ": name each run once"),
        (("errors", folder, "--most", "-1"), "error: --most is -1, wanted a number from 0 up"),
    ):
        done = run(*arguments)
        assert done.returncode == 1 and message in done.stderr


def test_several_are_compared_by_their_mean(make):
    from report_data import read_run
    from report_scores import against_mean

    names = {"one": 2, "two": 9, "both": 1}
    runs = [read_run(make(name, answers(errors)), None, print) for name, errors in names.items()]
    accuracies = [run.judged["sst"].scores["accuracy"] for run in runs]
    row = next(row for row in against_mean(runs) if row["title"] == SST.title)
    mean, last = row["cells"]
    assert mean["value"] == pytest.approx(sum(accuracies[:2]) / 2)
    assert last["difference"] == pytest.approx(accuracies[2] - mean["value"])
    draws = [run.judged["sst"].samples for run in runs]
    wanted = np.quantile(draws[2] - (draws[0] + draws[1]) / 2, [0.025, 0.975])
    assert last["of_difference"] == pytest.approx(wanted)
    printed = "\n".join(comparison.compare(*runs))
    assert "mean of 2" in printed and f"{mean['value']:.3f}{accuracies[2]:>10.3f}" in printed


def test_why_there_is_no_difference(make):
    from report_data import read_run

    one, two, both = (read_run(make(name, answers(1)), None, print) for name in ("one", "two", "both"))
    del one.judged["sts"]
    two.judged["para"].scores["accuracy"] = None
    said = "\n".join(comparison.compare(one, two, both))
    assert re.search(r"similarity \(STS\).* not a task of all of them", said)
    assert re.search(r"paraphrase \(Quora\) +accuracy +undefined +0.975   undefined in one of them", said)
    other, two, both = (read_run(make(name, answers(1)), None, print) for name in ("another", "second", "last"))
    other.config["data"]["sst"]["dev"]["sha256"] = "other"
    for runs in ((other, two, both), (both, two, other)):
        assert re.search(r"sentiment \(SST-5\).* judged on other rows", "\n".join(comparison.compare(*runs)))


def test_nothing_in_common_is_an_error_of_input(make):
    from report_data import read_run

    one = read_run(make("one", answers(2)), None, print)
    other = read_run(make("other", answers(2)), None, print)
    other.judged = {}
    with pytest.raises(InputError, match="nothing to compare"):
        comparison.compare(one, other)
