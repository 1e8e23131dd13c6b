"""A run's row: the command that makes it again, and what its files say.

Follows the run files that run.py documents.
"""

import argparse
import json
import shlex
from pathlib import Path

import pytest

import contrastive_options
import result_row
from command_line import build_parser
from errors import InputError
from files import write_json
from options import get_args
from run import Run

SCORES = {
    "sst": {"untrained": 0.2, "accuracy": 0.48, "macro_f1": 0.4},
    "para": {"untrained": 0.7, "accuracy": 0.8, "macro_f1": 0.78},
    "sts": {"untrained": 0.5, "pearson": 0.84},
}
TYPED = [
    "--option",
    "finetune",
    "--lr",
    "0.0001",
    "--attention",
    "sst=2,sts=0",
    "--exclude_shared",
    "--loss",
    "sst=coral",
    "--attention_ffn",
    "--fraction",
    "sst=0.5",
    "--hidden_dropout_prob",
    "0",
    "--seed",
    "0",
    "--data",
    "my files",
]


@pytest.fixture
def run(tmp_path):
    options = {name: str(value) if isinstance(value, Path) else value for name, value in vars(get_args(TYPED)).items()}
    data = {"sst": {"train": {"path": "/a/b.csv", "rows": 9, "dropped": [], "sha256": "d" * 64}}}
    config = {
        "command": "multitask_classifier.py",
        "options": options,
        "model": {"name": "all-MiniLM-L6-v2", "path": "/a/b", "sha256": "e" * 64, "origin": "here"},
        "data": data,
        "device": {"type": "cpu"},
        "versions": {"torch": "2"},
        "commit": "abc",
        "started": "2026-01-01",
    }
    run = Run.create(tmp_path / "run", config)
    run.write_metrics(
        [{"epoch": 0, "train_seconds": 0, "train_tokens": 0}, {"epoch": 1, "train_seconds": 4.0, "train_tokens": 600}]
    )
    return run


def test_a_row_says_what_the_run_s_files_say(run):
    write_json(run.folder / "scores.json", SCORES)
    row = result_row.row(run.folder)
    assert row["dev"] == SCORES
    assert row["leaderboard"] == pytest.approx((0.48 + 0.8 + 1.84 / 2) / 3)
    assert (row["train_seconds"], row["tokens_per_second"]) == (4.0, 150)
    assert row["data"] == {"sst": {"train": {"rows": 9, "sha256": "d" * 64}}}
    assert "my files" not in json.dumps(row) and "/a/b" not in json.dumps(row)  # no place on this machine


def test_a_row_says_of_how_many_rows_a_share_was_taken(run):
    write_json(run.folder / "scores.json", SCORES)
    config = run.config
    config["data"]["sst"]["train"]["of"] = 90
    config["options"]["fraction"] = "0.1"
    write_json(run.folder / "config.json", config)
    row = result_row.row(run.folder)
    assert row["data"] == {"sst": {"train": {"rows": 9, "of": 90, "sha256": "d" * 64}}}
    assert "--fraction 0.1" in row["command"] and row["options"]["fraction"] == "0.1"


def test_the_command_makes_the_same_run_again(run):
    write_json(run.folder / "scores.json", SCORES)
    command = shlex.split(result_row.row(run.folder)["command"])
    assert command[:2] == ["python", "multitask_classifier.py"]
    again, first = vars(get_args(command[2:])), vars(get_args(TYPED))
    assert {name: value for name, value in again.items() if name != "data"} == {
        n: v for n, v in first.items() if n != "data"
    }
    assert len(command) < 2 * len(build_parser()._actions)  # what is at its default is left out
    assert "--epochs" not in command


@pytest.mark.parametrize(
    "model, named",
    [
        ("/home/me/project/runs/words/best", "runs/words/best"),
        ("/home/me/weights/mine", "mine"),
        ("runs/words/best", "runs/words/best"),
        ("all-MiniLM-L6-v2", "all-MiniLM-L6-v2"),
    ],
)
def test_weights_are_named_without_the_places_of_one_machine(run, model, named):
    config = run.config
    config["options"]["model"] = model
    write_json(run.folder / "config.json", config)
    write_json(run.folder / "scores.json", SCORES)
    row = result_row.row(run.folder)
    assert row["options"]["model"] == named and f"--model {named}" in row["command"] and "/home" not in json.dumps(row)


def test_a_run_of_contrastive_py_has_no_row_and_is_said_to_be_one(run, capsys):
    write_json(run.folder / "config.json", {"command": "contrastive.py", "options": {}})
    write_json(run.folder / "scores.json", {"dev": {"pairs": 5}, "untrained": {}, "trained": {}})
    for arguments in ([], ["--table"]):
        assert result_row.main([*arguments, str(run.folder)]) == 1
        error = (
            f"error: {run.folder}: a run of contrastive.py, which has no tasks' scores, so no row: see python report.py"
        )
        said = capsys.readouterr()
        assert said.err.startswith(error) and said.err.count("\n") == 1 and said.out == ""


def test_a_command_of_contrastive_py_names_files_without_their_places():
    parser = argparse.ArgumentParser()
    contrastive_options.add_options(parser)
    typed = [
        "--train",
        "/home/me/lines.txt",
        "/home/me/more.txt",
        "--exclude",
        "/home/me/sts",
        "--data",
        "/home/me/data",
    ]
    typed += ["--model", "/home/me/runs/x/best", "--seed", "3"]
    for dev, shown in (("/home/me/sts-dev.csv", "sts-dev.csv"), ("none", "none")):
        options = vars(parser.parse_args([*typed, "--dev", dev]))
        options = {name: [*map(str, value)] if isinstance(value, list) else value for name, value in options.items()}
        found = result_row.command({"command": "contrastive.py", "options": options}, parser, "train")
        assert found == (
            f"python contrastive.py train --train lines.txt more.txt --exclude sts --dev {shown} --model runs/x/best "
            "--seed 3"
        )
    options = {"train": None, "dev": None}  # nothing was named
    assert result_row.without_places(options) == options


def test_an_unfinished_run_has_no_row(run, capsys):
    with pytest.raises(InputError, match="not finished .* --resume"):
        result_row.row(run.folder)
    assert result_row.main([str(run.folder)]) == 1
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.jsonl", "", "empty, no evaluation"),
        ("metrics.jsonl", "{}\n", "no train_seconds"),
        ("metrics.jsonl", "[]\n", "no train_seconds"),
        ("metrics.jsonl", '{"train_seconds": "4", "train_tokens": 1}\n', "train_seconds is '4'"),
        ("metrics.jsonl", '{"train_sec', "can't be read as JSON lines"),
        ("config.json", "{}", "no command"),
        ("config.json", "[]", "no command"),
        ("config.json", {"options": []}, r"options is \[\]"),
        ("config.json", {"model": {"name": "a"}}, "no model.sha256"),
        ("config.json", {"data": {"sst": 5}}, "data.sst is 5"),
        ("config.json", {"data": {"sst": {"dev": {"rows": 5}}}}, "no data.sst.dev.sha256"),
        ("scores.json", "{}", "no task's scores"),
        ("scores.json", "[]", "no task's scores"),
        ("scores.json", "5", "no task's scores"),
        ("scores.json", '{"sst": {}}', "no sst.untrained"),
        ("scores.json", '{"sst": {"untrained": 0.2, "macro_f1": 0.4}}', "no sst.accuracy"),
        ("scores.json", '{"none": {}}', "scores of an unknown task 'none'"),
    ],
)
def test_a_damaged_run_has_no_row_but_one_line(run, name, content, message, capsys):
    write_json(run.folder / "scores.json", SCORES)
    path = run.folder / name
    path.write_text(content if isinstance(content, str) else json.dumps({**run.config, **content}))
    with pytest.raises(InputError, match=f"^{path}: {message}"):
        result_row.row(run.folder)
    assert result_row.main([str(run.folder)]) == 1
    assert capsys.readouterr().out == ""


def test_tasks_trained_separately_are_added_up(run):
    run.metrics.unlink()
    for task in SCORES:
        Run(run.folder / task).write_metrics([{"epoch": 1, "train_seconds": 2.0, "train_tokens": 100}])
    write_json(run.folder / "scores.json", SCORES)
    row = result_row.row(run.folder)
    assert (row["train_seconds"], row["tokens_per_second"]) == (6.0, 50)


def test_rows_as_a_table(run, tmp_path, capsys):
    write_json(run.folder / "scores.json", {**SCORES, "sts": {"untrained": 0.5, "pearson": None}})
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(result_row.row(run.folder)) + "\n")
    assert result_row.main(["--table", str(rows)]) == 0
    line = capsys.readouterr().out.splitlines()[2]
    assert line.startswith(
        "| 0.480 (0.200) | 0.800 (0.700) | undefined (0.500) | 0.593 | 0 min | 150 | `python multitask"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", None),
        ("5\n", "no dev in it"),
        ("{}\n", "no dev in it"),
        ("[" * 200_000, "can't be read as JSON lines"),
        ("1" * 5_000, "can't be read as JSON lines"),
        ({"leaderboard": "high"}, "leaderboard is 'high'"),
        ({"dev": {**SCORES, "none": {}}}, "scores of an unknown task 'none'"),
        ({"dev": {**SCORES, "para": 1}}, "no dev.para.accuracy in it"),
    ],
)
def test_damaged_rows_make_no_table_but_one_line(run, content, message, tmp_path, capsys):
    write_json(run.folder / "scores.json", SCORES)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(content if isinstance(content, str) else json.dumps({**result_row.row(run.folder), **content}))
    assert result_row.main(["--table", str(rows)]) == bool(message)
    assert capsys.readouterr().err.startswith(f"error: {rows}: {message}" if message else "")


def finish(run, scores):
    write_json(run.folder / "scores.json", scores)
    return str(run.folder)


def test_a_table_of_runs_themselves_has_the_columns_of_what_they_were_trained_for(run, capsys):
    film = {"cfimdb": {"untrained": 0.5, "accuracy": 0.9, "macro_f1": 0.9}}
    other = Run.create(run.folder.parent / "other", run.config)
    other.write_metrics([{"epoch": 0, "train_seconds": 0, "train_tokens": 0}])
    assert result_row.main(["--table", finish(run, {"sst": SCORES["sst"]}), finish(other, film)]) == 0
    head, rule, first, second = capsys.readouterr().out.splitlines()
    assert head == "| sentiment acc. | sentiment (CFIMDB) accuracy | score | training | tokens/s | command |"
    assert rule == "|---|---|---|---|---|---|"
    assert first.startswith("| 0.480 (0.200) |  |  | 0 min | 150 | `python ")
    assert second.startswith("|  | 0.900 (0.500) |  | 0 min |  | `python ")


def test_runs_and_files_of_rows_may_stand_in_one_table(run, tmp_path, capsys):
    assert result_row.main([finish(run, SCORES)]) == 0
    (tmp_path / "rows.jsonl").write_text(capsys.readouterr().out)
    assert result_row.main(["--table", str(tmp_path / "rows.jsonl"), str(run.folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and lines[2] == lines[3]


def test_a_run_is_found_by_its_name(run, monkeypatch, tmp_path):
    finish(run, SCORES)
    (tmp_path / "runs").mkdir()
    run.folder.rename(tmp_path / "runs" / "mine")
    assert Run.open("mine", tmp_path).folder == tmp_path / "runs" / "mine"
    monkeypatch.setattr(result_row, "ROOT", tmp_path)
    assert result_row.row("mine")["dev"] == SCORES


def test_without_a_run_the_usage_is_shown(capsys):
    for arguments in ([], ["--table"]):
        with pytest.raises(SystemExit) as ended:
            result_row.main(arguments)
        said = capsys.readouterr()
        assert ended.value.code == 2 and said.out == ""
        assert said.err.startswith("usage: ") and "required: RUN" in said.err


def test_the_readme_s_table_is_what_the_rows_say(capsys):
    """To the byte, as the README's command prints it."""
    root = Path(result_row.__file__).parent
    assert result_row.main(["--table", str(root / "results" / "course_data.jsonl")]) == 0
    assert capsys.readouterr().out in (root / "README.md").read_text(encoding="utf-8")
