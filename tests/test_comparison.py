"""Two runs compared, and one's errors, as `python evaluation.py` prints them. Answers made by hand, dev rows of files.

Intervals: Efron and Tibshirani 1993; intervals.py has tests of its own.
"""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT

import comparison
import report
import report_scores
from errors import InputError
from evaluation import judge
from files import read_json, sha256
from report_data import read_run
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


def test_an_interval_that_begins_just_off_zero_says_on_which_side(make):
    one, other = (read_run(make(name, answers(1)), None, print) for name in ("one", "other"))
    for low, high, printed in ((0.00004, 0.012, "+0.00004 to +0.012 *"), (-0.0001, 0.0, "-0.0001 to +0.000")):
        one.judged["sst"].__dict__["samples"] = np.zeros(1000)
        other.judged["sst"].__dict__["samples"] = np.repeat([low, high], 500)
        found = next(line for line in comparison.compare(one, other) if line.startswith(SST.title))
        assert found.endswith(f"   {printed}")


def test_runs_on_other_rows_are_not_compared(make, data, tmp_path, capsys):
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in data.iterdir():
        (moved / path.name).write_text(path.read_text().replace("other", "another").replace("number", "no."))
    one, other = make("one", answers(2)), make("other", answers(2), moved)
    assert comparison.main(["compare", str(one), str(other)]) == 1
    assert "have no task that they were judged on the same rows of" in capsys.readouterr().err


def test_errors_by_class_and_the_hardest_rows(make, capsys):
    folder = make("one", answers(6))
    assert comparison.main(["errors", str(folder), "--most", "2"]) == 0
    printed = capsys.readouterr().out
    # Rows 0 to 5 are wrong: labels 0, 1, 2, 3, 4, 0, each taken for the class two further.
    assert re.search(r"0 negative +8 +75% +7 +86% +2 neutral \(2\)", printed)
    assert re.search(r"1 somewhat negative +8 +88% +8 +88% +3 somewhat positive \(1\)", printed)
    # The surest of the wrong paraphrases are rows 5 and 4: logits of 6 and 5 on the wrong side.
    section = printed[printed.index("paraphrase (Quora): 40 rows") : printed.index("similarity (STS): 40 rows")]
    assert re.findall(r"^  (p\d+) ", section, re.M) == ["p5", "p4"] and "0.002" in section
    section = printed[printed.index("similarity (STS): 40 rows") :]
    assert re.findall(r"^  (t\d+) ", section, re.M) == ["t0", "t1"]


def test_texts_are_cut_to_the_line_or_whole(make, data, capsys):
    path, long = data / SST.files["dev"], " ".join(["longer"] * 40)
    path.write_text(path.read_text().replace("number 1\t", f"{long}\t"))
    folder = str(make("one", answers(6)))
    for options, whole in (((), False), (("--whole",), True)):
        assert comparison.main(["errors", folder, *options]) == 0
        printed = capsys.readouterr().out
        assert (long in printed) == whole and "longer longer" in printed
        assert whole or max(map(len, printed.splitlines())) < comparison.WIDTH + 10


def test_the_newest_finished_run_is_taken_where_none_is_named(make, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(comparison, "ROOT", tmp_path)
    assert comparison.main(["errors"]) == 1
    assert "error: no finished run in " in capsys.readouterr().err
    for age, name in enumerate(("without-tasks", "unfinished", "last", "first")):
        made = make(f"runs/{name}", answers(6))
        os.utime(made / "config.json", (2e9 - age, 2e9 - age))
        if name == "unfinished":
            (made / "scores.json").unlink()
        if name != "without-tasks":
            made.joinpath("predictions").mkdir()
    assert comparison.main(["errors"]) == 0
    out, err = capsys.readouterr()
    assert err.endswith("last, the newest that is finished\n") and out.startswith("sentiment (SST-5): 40 rows")


def test_a_run_without_errors_says_so(make, capsys):
    assert comparison.main(["errors", str(make("one", answers(0)))]) == 0
    printed = capsys.readouterr().out
    assert printed.count("no wrong answer") == 2 and re.search(r"0 negative +8 +100% +8 +100% +none", printed)


def test_the_command_and_its_errors(make):
    folder = make("one", answers(3))
    itself = run("compare", folder, folder)
    assert itself.returncode == 0 and itself.stderr.endswith("are one run, which is compared with itself\n")
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
    one, two, both = (read_run(make(name, answers(1)), None, print) for name in ("one", "two", "both"))
    del one.judged["sts"]
    two.judged["para"].scores["accuracy"] = None
    said = "\n".join(comparison.compare(one, two, both))
    assert re.search(r"similarity \(STS\).* not a task of all of them", said)
    assert re.search(r"paraphrase \(Quora\) +accuracy +undefined +0.975   undefined in one of them", said)
    other, two, both = (read_run(make(name, answers(1)), None, print) for name in ("another", "second", "last"))
    other.config["data"]["sst"]["dev"]["sha256"] = "other"
    for runs in ((other, two, both), (both, two, other)):
        assert re.search(r"sentiment \(SST-5\).* judged on another file", "\n".join(comparison.compare(*runs)))


def test_nothing_in_common_is_an_error_of_input(make):
    one = read_run(make("one", answers(2)), None, print)
    other = read_run(make("other", answers(2)), None, print)
    other.judged = {}
    with pytest.raises(InputError, match="nothing to compare"):
        comparison.compare(one, other)


def test_a_run_without_tasks_has_no_errors_to_look_at(contrastive_run, capsys):
    assert comparison.main(["errors", str(contrastive_run)]) == 1
    assert "a run of contrastive.py, which has no tasks: python report.py " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["sst", "para", "sts"])
def test_with_a_dev_file_of_one_row_the_leaderboard_s_interval_is_unknown(make, name):
    runs = [read_run(make(folder, answers(wrong)), None, print) for folder, wrong in (("one", 2), ("two", 9))]
    for run_ in runs:
        judged = run_.judged[name]
        table = dataclasses.replace(judged.table, examples=judged.table[:1])
        run_.judged[name] = dataclasses.replace(judged, table=table, outputs=judged.outputs[:1])
    row = report_scores.scores(runs)["rows"][0]
    assert row["title"] == "leaderboard score" and [cell["interval"] for cell in row["cells"]] == [None, None]
    assert row["cells"][1]["of_difference"] is None and not row["cells"][1]["marked"]


# --- where dev files are --------------------------------------------------------------------------------------------


def test_a_folder_that_is_named_is_looked_into_first(make, data, tmp_path, capsys):
    """Its files count if they are those of then, whatever stands now where they were; others don't."""
    made, kept, other = make("one", answers(3)), tmp_path / "kept", tmp_path / "other"
    shutil.copytree(data, kept)
    shutil.copytree(data, other)
    for path in other.iterdir():
        path.write_text("no such columns\n")
    assert comparison.main(["errors", str(made), "--data", str(other)]) == 0
    assert capsys.readouterr().out.count(": 40 rows of ") == 3  # those of then are still where they were
    for path in data.iterdir():
        path.write_text(path.read_text() + "\n")
    assert comparison.main(["errors", str(made), "--data", str(kept)]) == 0
    assert "sentiment (SST-5): 40 rows of ids-sst-dev.csv" in capsys.readouterr().out
    for folder, wanted in (
        (other, "other/ids-sst-dev.csv is not the file that the run was judged on"),
        (tmp_path, f"has changed since the run, nor is ids-sst-dev.csv in {tmp_path}"),
    ):
        assert comparison.main(["errors", str(made), "--data", str(folder)]) == 1  # of no task is there anything to say
        printed = capsys.readouterr()
        assert printed.out == "" and wanted in printed.err and printed.err.count("\n") == 1
    shutil.rmtree(data)
    assert comparison.main(["errors", str(made), "--data", str(tmp_path)]) == 1
    assert f"is not there any more, nor is ids-sst-dev.csv in {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize("main", [report.main, lambda given: comparison.main(["errors", *given])])
def test_a_folder_of_data_that_is_none_is_refused(make, main, tmp_path, capsys):
    assert main([str(make("one", answers(3))), "--data", str(tmp_path / "none")]) == 1
    assert f"error: --data {tmp_path / 'none'}: no folder there" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["bad\udcff"], ["one", "--data", "bad\udcff"], ["one", "--out", "bad\udcff"]])
def test_names_that_are_not_utf_8_are_refused(given, capsys):
    commands = [report.main] + ([comparison.main] if "--out" not in given else [])
    for main in commands:
        with pytest.raises(SystemExit):
            main(given if main is report.main else ["errors", *given])
        assert "is not UTF-8: choose another name" in capsys.readouterr().err


# --- texts of somebody's files --------------------------------------------------------------------------------------


def test_a_terminal_gets_no_control_characters_and_some_of_a_long_word(make, data, capsys):
    path = data / SST.files["dev"]
    lines = path.read_text().splitlines()
    lines[1] = lines[1].replace("\ts0\t", "\ts0\x1b[1m\t").replace("number", "\x1b[31m\u202enumber")
    lines[2] = lines[2].replace("word number 1", "x" * 10_000)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert comparison.main(["errors", str(make("one", answers(3)))]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and "s0\\x1b[1m" in printed and "\\x1b[31m\\u202enumber 0" in printed
    assert re.search("  x{30,100} ...$", printed, re.M)


# --- outputs that no run leaves -------------------------------------------------------------------------------------


def no_number(value):
    def change(outputs):
        outputs[1] = value
        return outputs

    return change


OUTPUTS = {
    "nan": no_number(torch.nan),
    "infinite": no_number(-torch.inf),
    "double": torch.Tensor.double,
    "whole": torch.Tensor.int,
    "bfloat16": torch.Tensor.bfloat16,
    "short": lambda outputs: outputs[1:].clone(),
}


@pytest.mark.parametrize("ensemble", [False, True])
@pytest.mark.parametrize("kind", OUTPUTS)
def test_outputs_that_no_head_gave_are_damaged(make, kind, ensemble, capsys):
    made = Run(make("one", answers(3)))
    if ensemble:
        edit(made.folder / "config.json", ("options", "ensemble"), ["a", "b"])
    outputs = made.read_outputs()
    made.write_outputs({**outputs, "sts": OUTPUTS[kind](outputs["sts"])})
    assert comparison.main(["errors", str(made.folder)]) == 0
    printed = capsys.readouterr().out
    again = "make the ensemble again" if ensemble else "the model predicts again"
    assert f"similarity (STS): {made.outputs}: not the outputs of sts: delete it, and {again}" in printed
    assert printed.count(": 40 rows of ") == 2


def test_an_ensemble_that_kept_no_answers_has_to_be_made_again(make, capsys):
    made = Run(make("one", answers(3)))
    edit(made.folder / "config.json", ("options", "ensemble"), ["a", "b"])
    made.outputs.unlink()
    assert comparison.main(["errors", str(made.folder)]) == 1
    printed = capsys.readouterr()
    assert "has no answers for sst any more: make the ensemble again" in printed.err and printed.out == ""


def test_intervals_that_nobody_knows_are_not_said_to_be_drawn(make, capsys):
    one, other = (Run(make(name, answers(3))) for name in ("one", "other"))
    edit(other.folder / "config.json", ("options", "ensemble"), ["a", "b"])
    other.outputs.unlink()
    assert comparison.main(["compare", str(one.folder), str(other.folder)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("unknown") == 4 and "draws of the dev rows" not in printed


def test_outputs_and_scores_that_differ_are_shown_of_no_task(make, capsys):
    one, other = make("one", answers(3)), make("other", answers(20))
    edit(one / "scores.json", ("sst", "accuracy"), 0.5)
    Run(other).write_outputs({**Run(other).read_outputs(), "para": Run(one).read_outputs()["para"]})
    for folder, name in ((one, "sst"), (other, "para")):
        assert comparison.main(["errors", str(folder)]) == 0
        printed = capsys.readouterr().out
        assert f"say different things of {name}: one was altered: copy the run again" in printed
        assert printed.count(": 40 rows of ") == 2
    assert comparison.main(["compare", str(one), str(other)]) == 0
    assert capsys.readouterr().out.count("unknown") == 3  # these two tasks, and the leaderboard's score


def test_no_hardest_rows_are_asked_for(make, capsys):
    assert comparison.main(["errors", str(make("one", answers(6))), "--most", "0"]) == 0
    assert "no wrong answer" not in capsys.readouterr().out


def test_a_run_of_all_tasks_without_its_curve_is_not_taken_for_separate_runs(make, capsys):
    made = make("one", answers(3))
    (made / "metrics.jsonl").unlink()
    assert comparison.main(["errors", str(made)]) == 1
    assert f"{made / 'metrics.jsonl'}: can't be read" in capsys.readouterr().err


# --- files that somebody edited -------------------------------------------------------------------------------------

GONE = object()


def edit(path, keys, value):
    """Set, or take out, what stands under these keys of a JSON file; of JSON lines the first key is the line's."""
    lines = path.suffix == ".jsonl"
    content = [json.loads(line) for line in path.read_text().splitlines()] if lines else read_json(path)
    root = {"": content}
    *way, last = ("", *keys)
    place = root
    for key in way:
        place = place[key]
    if value is GONE:
        del place[last]
    else:
        place[last] = value
    path.write_text("\n".join(map(json.dumps, root[""])) + "\n" if lines else json.dumps(root[""]))


EDITS = [
    ("config.json", ("data", "sst"), GONE, "no data.sst.dev in it"),
    ("config.json", ("data", "sst", "dev", "dropped"), None, "data.sst.dev.dropped is None"),
    ("config.json", ("data", "sst", "dev", "dropped"), 7, "data.sst.dev.dropped is 7"),
    ("config.json", ("data", "sst", "dev", "of"), "x", "data.sst.dev.of is 'x'"),
    ("config.json", ("data", "sst", "train"), {"sha256": "0", "rows": 1}, "no data.sst.train.path in it"),
    ("config.json", ("options", "loss"), 7, "options.loss is 7"),
    ("config.json", ("options", "ensemble"), 7, "options.ensemble is 7"),
    ("config.json", ("options", "ensemble"), [7], "options.ensemble[0] is 7"),
    ("config.json", ("options", "distill"), [7], "options.distill[0] is 7"),
    ("config.json", ("device", "threads"), "x", "device.threads is 'x'"),
    ("config.json", ("processes",), "x", "processes is 'x'"),
    ("config.json", ("precision",), 7, "precision is 7"),
    ("scores.json", ("rte",), {"untrained": 0.1, "accuracy": 0.1}, "no data.rte.dev in it"),
    ("scores.json", ("sst", "macro_f1"), "x", "sst.macro_f1 is 'x'"),
    ("metrics.jsonl", (1, "dev"), GONE, "line 2: no dev.sst in it"),
    ("metrics.jsonl", (1, "dev", "sst"), GONE, "line 2: no dev.sst in it"),
    ("metrics.jsonl", (1, "dev", "sst", "accuracy"), "x", "line 2: dev.sst.accuracy is 'x'"),
    ("metrics.jsonl", (0, "dev"), [], "line 1: dev is []"),
    ("metrics.jsonl", (0, "train_loss"), {"sst": "x"}, "line 1: train_loss.sst is 'x'"),
]
CONTRASTIVE_EDITS = [
    ("config.json", ("data", "train"), {}, "data.train is {}"),
    ("config.json", ("data", "train", 0), 7, "no data.train[0].path in it"),
    ("config.json", ("data", "train", 0, "dropped"), {"blank": 7}, "no data.train[0].dropped.blank.rows in it"),
    ("config.json", ("data", "dev", "pairs"), None, "data.dev.pairs is None"),
    ("scores.json", (), [], "no scores in it"),
    ("scores.json", (), 7, "no scores in it"),
    ("scores.json", ("trained",), 7, "trained is 7"),
    ("scores.json", ("untrained", "spearman"), "x", "untrained.spearman is 'x'"),
    ("metrics.jsonl", (1, "dev"), 7, "line 2: dev is 7"),
    ("metrics.jsonl", (1, "dev"), {"spearman": "x"}, "line 2: dev.spearman is 'x'"),
]


@pytest.fixture
def contrastive_run(make):
    """The folder of a run of contrastive.py."""
    folder = make("encoder", answers(1))
    file = {"path": "lines.txt", "sha256": "1" * 64, "rows": 9, "dropped": {"blank": {"rows": 1, "first_lines": [3]}}}
    edit(folder / "config.json", ("command",), "contrastive.py")
    edit(folder / "config.json", ("data",), {"train": [file], "dev": {"path": "a", "sha256": "2" * 64, "pairs": 4}})
    spearman = {"spearman": 0.5}
    edit(folder / "scores.json", (), {"dev": {"path": "a", "pairs": 4}, "untrained": spearman, "trained": spearman})
    edit(folder / "metrics.jsonl", (0, "dev"), spearman)
    return folder


@pytest.mark.parametrize("file, keys, value, wanted", EDITS + CONTRASTIVE_EDITS)
def test_what_was_edited_is_refused_in_one_line(make, request, capsys, file, keys, value, wanted):
    contrastive = (file, keys, value, wanted) in CONTRASTIVE_EDITS
    made = request.getfixturevalue("contrastive_run") if contrastive else make("one", answers(1))
    metrics = made / "metrics.jsonl"
    metrics.write_text(metrics.read_text() * 2)
    whole = shutil.copytree(made, made.with_name("whole"))
    if contrastive:
        assert "similarity" in "\n".join(comparison.compare(*(read_run(run_, None, print) for run_ in (made, whole))))
    else:
        assert comparison.main(["compare", str(made), str(whole)]) == 0
    edit(made / file, keys, value)
    capsys.readouterr()
    for main, given in ((report.main, []), (comparison.main, ["errors"]), (comparison.main, ["compare", str(whole)])):
        assert main([*given, str(made)]) == 1
        err = capsys.readouterr().err
        named = "config.json" if file == "scores.json" and keys == ("rte",) else file
        assert err.startswith(f"error: {made / named}") and err.count("\n") == 1 and wanted in err, err
