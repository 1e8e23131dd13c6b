"""A run's row: the command that makes it again, and what its files say.

Follows the run files that run.py documents.
"""

import json
import shlex
from pathlib import Path

import pytest

import result_row
from errors import InputError
from files import write_json
from options import build_parser, get_args
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
    "--data",
    "my files",
]


@pytest.fixture
def run(tmp_path):
    options = {name: value if value is None else str(value) for name, value in vars(get_args(TYPED)).items()}
    options.update(exclude_shared=True, use_gpu=False, local_files_only=False)
    for name in (
        "epochs",
        "batch_size",
        "seed",
        "hidden_dropout_prob",
        "warmup",
        "weight_decay",
        "clip",
        "save_every",
        "lr",
    ):
        options[name] = getattr(get_args(TYPED), name)
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
        ("scores.json", '{"nli": {}}', "scores of an unknown task 'nli'"),
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
        ("5\n", "no dev.sst.accuracy in it"),
        ("{}\n", "no dev.sst.accuracy in it"),
        ("[" * 200_000, "can't be read as JSON lines"),
        ("1" * 5_000, "can't be read as JSON lines"),
        ({"leaderboard": "high"}, "leaderboard is 'high'"),
        ({"dev": {**SCORES, "para": 1}}, "no dev.para.accuracy in it"),
    ],
)
def test_damaged_rows_make_no_table_but_one_line(run, content, message, tmp_path, capsys):
    write_json(run.folder / "scores.json", SCORES)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(content if isinstance(content, str) else json.dumps({**result_row.row(run.folder), **content}))
    assert result_row.main(["--table", str(rows)]) == bool(message)
    assert capsys.readouterr().err.startswith(f"error: {rows}: {message}" if message else "")


def test_the_readme_s_table_is_what_the_rows_say():
    root = Path(result_row.__file__).parent
    rows = result_row.read_lines(root / "results" / "course_data.jsonl")
    assert result_row.table(rows, root) in (root / "README.md").read_text(encoding="utf-8")
