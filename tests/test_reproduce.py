"""The papers' tables: what is run for them, what is kept, and what is printed.

Follows the tables of Jia 2024 and of Lee, Park, Seo and Kim 2021.
"""

import dataclasses
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import multivariate_t

import cells
import reproduce
import task_cells
from cells import FINISHED, NEW, Rows, Scale, parse_shares, run_all
from command_line import build_parser
from errors import InputError
from experiments import TABLES, TEACHING, Column, ContrastiveTable, Row, Table
from files import read_json, write_json
from locks import fcntl
from options import get_args
from result_tables import results_table, spread
from sharing import holder
from task_cells import TaskCell
from tasks import TASKS

ROWS = [(name, table, row) for name, table in TABLES.items() for row in table.rows]
OF_TASKS = [(name, table, row) for name, table, row in ROWS if not isinstance(table, ContrastiveTable)]


def test_table_2_is_the_posters(capsys):
    assert reproduce.main(["table2"]) == 0
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    found = {name.strip("| "): [cell.strip("| ") for cell in rest] for name, *rest in lines}
    assert found["baseline, no attention: ours"] == ["3,840", "589,824", "2,359,296"]
    assert found["2 self / 1 cross / 3 cross layers: ours"] == ["4,722,432", "3,538,944", "11,206,656"]
    for name in ("baseline, no attention", "2 self / 1 cross / 3 cross layers"):
        assert found[f"{name}: ours, rounded as there"] == found[f"{name}: the poster"]


# --- the tables as data ------------------------------------------------------------------------------------------


def test_rows_that_share_runs_are_alike():
    seen = {}
    for name, table, row in ROWS:
        what = (table.options_of(row), row.lr_times)
        first = seen.setdefault((row.key, row.option), (name, what))
        assert first[1] == what, f"{row.key} {row.option} of {first[0]} and of {name}"


@pytest.mark.parametrize(("name", "table", "row"), OF_TASKS, ids=[f"{n}-{r.key}-{r.option}" for n, _, r in OF_TASKS])
def test_a_row_is_options_that_the_command_takes(name, table, row, tmp_path):
    scale = make_scale(tmp_path, epochs={"pretrain": 1, "finetune": 1})
    for tasks in row.runs:
        args = get_args(TaskCell(row, tuple(table.options_of(row).items()), tasks, 5, scale).arguments())
        assert (args.option, args.tasks, args.seed, args.epochs) == (row.option, ",".join(tasks), 5, 1)
        assert args.batch_size == {"pretrain": 8, "finetune": 16}[row.option] * row.batch_times
    shown = {f"{column.task} {column.metric}" for column in table.columns}
    assert set(row.paper) <= shown
    assert {column.task for column in table.columns} & {task for tasks in row.runs for task in tasks}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_shows_what_its_tasks_report(table):
    for column in table.columns:
        if not isinstance(table, ContrastiveTable):
            assert column.metric in (*TASKS[column.task].metrics, "loss")
    assert table.compared_with in {row.key for row in table.rows}
    assert len({(row.key, row.option) for row in table.rows}) == len(table.rows)


# --- arithmetic --------------------------------------------------------------------------------------------------


def make_scale(runs, **changes):
    rates, sizes = {"pretrain": 1e-3, "finetune": 3e-5}, {"pretrain": 8, "finetune": 16}
    found = Scale(None, "tiny", None, "sample", rates, {}, sizes, {}, Path(runs))
    return dataclasses.replace(found, **changes)


def make_row(key, seed, value, call="a", seconds=10.0, option="finetune", tasks=("sst",)):
    """A row of the file, as far as the table reads it."""
    cell = {"row": key, "option": option, "tasks": list(tasks), "seed": seed}
    scores = {task: {TASKS[task].metric: value} for task in tasks}
    losses = {task: value / 2 for task in tasks}
    return {"cell": cell, "call": call, "train_seconds": seconds, "dev": scores, "loss": losses}


SST, STS = ("sst",), ("sts",)
OF_A_PAPER = Table(
    title="",
    source="",
    columns=(Column("sst", "accuracy", "acc."), Column("sst", "loss", "loss")),
    rows=(
        Row("base", "base", "finetune", {}, (SST, STS), {"sst accuracy": 0.5}, 100.0),
        Row("new", "new", "finetune", {}, (SST, STS), {"sst accuracy": 0.6}, 110.0),
    ),
    compared_with="base",
)


def printed(table, rows):
    lines = results_table(table, rows).splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_mean_spread_and_difference_by_hand():
    rows = [make_row("base", 1, 0.4), make_row("base", 2, 0.6), make_row("new", 1, 0.7)]
    base, new = printed(OF_A_PAPER, rows)
    # the standard deviation of 0.4 and 0.6 is sqrt(2 * 0.1 ** 2 / 1)
    assert base[2:5] == ["0.500", "0.500 ± 0.141 (2)", "+0.000"]
    assert base[5:8] == ["", "0.250 ± 0.071 (2)", ""]
    assert new[2:5] == ["0.600", "0.700 (1)", "+0.100"]


@pytest.mark.filterwarnings("error")
def test_the_rows_named_alone_are_printed_with_the_whole_tables_intervals(make):
    table = TABLES["recipe"]
    keys = ("steps", "best", "steps-swap")
    rows = [
        make_row(key, seed, 0.5 + 0.01 * seed * place, tasks=("sst", "para", "sts"))
        for place, key in enumerate(keys)
        for seed in (1, 2)
    ]
    whole = results_table(table, rows, table.rows).splitlines()
    some = results_table(table, rows, [row for row in table.rows if row.key in ("steps", "best")]).splitlines()
    assert [line.split(":")[0] for line in some[2:]] == ["| `steps`", "| `best`"]
    # 0.5 on all three, of which the correlation counts as 0.75; then 0.01 and 0.02 more, of which the third counts half
    assert "| 0.583 ± 0.000 (2) |" in some[2] and "| 0.596 ± 0.006 (2) | +0.013 [" in some[3]
    assert len(whole) == 2 + len(table.rows) and set(some) < set(whole) and "[" in some[-1]
    named = make("--print", "--rows", "best-both", table="recipe")[1]
    assert re.findall("^. `(.*?)`", named, re.MULTILINE) == ["steps", "best-both"]  # the one compared with, and that
    assert make("--print", "--option", "pretrain")[1].count("| pretrain |") == 2


def test_times_are_compared_within_a_call_and_whole():
    def both(key, call, seed, first, second):
        return [
            make_row(key, seed, 0.5, call, first, tasks=SST),
            make_row(key, seed, 0.5, call, second, tasks=STS),
        ]

    rows = [*both("base", "a", 1, 10, 30), *both("new", "a", 1, 20, 40)]
    assert [line[-2:] for line in printed(OF_A_PAPER, rows)] == [["1.000", "1.000"], ["1.100", "1.500"]]
    # Another call's times say nothing, nor does a row of which this call made only a part.
    apart = [*both("base", "a", 1, 10, 30), *both("new", "b", 1, 20, 40)]
    assert printed(OF_A_PAPER, apart)[1][-1] == ""
    assert printed(OF_A_PAPER, rows[:3])[1][-1] == ""


def test_without_a_paper_differences_are_of_the_same_seeds():
    table = dataclasses.replace(OF_A_PAPER, rows=tuple(dataclasses.replace(row, paper={}) for row in OF_A_PAPER.rows))
    rows = [make_row("base", 1, 0.1), make_row("base", 2, 0.5), make_row("base", 3, 0.9)]
    rows += [make_row("new", 1, 0.2), make_row("new", 2, 0.8)]
    base, new = printed(table, rows)
    assert base[3] == ""
    # Of +0.1 and +0.3; base's third seed has nothing beside it. The t of one degree of freedom is 12.706.
    assert new[3] == "+0.200 ± 0.141 [-1.071, +1.471]"
    same = [make_row(name, 1, 0.5) for name in ("base", "new")]
    assert [line[3] for line in printed(table, same)] == ["", "+0.000"]


def test_of_many_rows_the_intervals_hold_at_once():
    """With one other row it is the paired t interval; with several it is wider, and a row of one seed has one."""
    names = ("base", "new", "more", "none")
    table = dataclasses.replace(
        OF_A_PAPER, many=True, rows=tuple(Row(name, name, "finetune", {}, (SST,)) for name in names)
    )
    rows = [make_row("base", 1, 0.4), make_row("base", 2, 0.6), make_row("new", 1, 0.7), make_row("new", 2, 0.8)]

    def differences():
        """Of each row: the difference, and how far the ends of its interval are from it."""
        found = []
        for line in filter(lambda line: line[3], printed(table, rows)):
            value, *ends = [float(part) for part in re.findall(r"[-+][.0-9]+", line[3])]
            found.append((value, *(end - value for end in ends)))
        return found

    assert printed(table, rows[:2])[0][3] == printed(table, rows)[2][3] == ""
    # Differences 0.3 and 0.2: 12.706 standard errors of 0.0707 / sqrt(2), one degree of freedom.
    assert differences()[0] == pytest.approx((0.25, -0.635, 0.635), rel=0.05)

    # Of three rows and three seeds: s^2 is what is left over (3 - 1) * (3 - 1), errors are sqrt(2 s^2 / 3), which
    # Dunnett's quantile of two rows multiplies: of two t of four degrees of freedom whose correlation is one half.
    numbers = {"base": (0.4, 0.6, 0.5), "new": (0.7, 0.8, 0.7), "more": (0.5, 0.5, 0.6)}
    rows = [make_row(name, seed, value) for name, three in numbers.items() for seed, value in enumerate(three)]
    y = np.array(list(numbers.values()))
    left = y - y.mean(axis=0) - y.mean(axis=1, keepdims=True) + y.mean()
    both = multivariate_t(shape=[[1, 0.5], [0.5, 1]], df=4, seed=0)
    quantile = brentq(lambda q: both.cdf([q, q], lower_limit=[-q, -q]) - 0.95, 2, 5, xtol=1e-3)
    half = quantile * math.sqrt((left**2).sum() / 4 * 2 / 3)
    new, more = differences()
    assert new == pytest.approx((0.7333 - 0.5, -half, half), abs=0.003)
    assert more == pytest.approx((0.0333, -half, half), abs=0.003)

    # Rows that go alike over all seeds leave rounding alone, which is no spread.
    numbers = {"base": (0.49, 0.5, 0.51), "new": (0.5, 0.51, 0.52), "more": (0.47,)}
    rows = [make_row(name, seed, value) for name, of in numbers.items() for seed, value in enumerate(of)]
    assert differences() == [(0.01,), (-0.02,)]

    # A seed that is good for all rows is no row's merit; what shares no seed with the first has no interval.
    numbers = {"base": {1: 0.4, 2: 0.6}, "new": {1: 0.5, 2: 0.71}, "more": {2: 0.7}, "none": {3: 0.9}}
    rows = [make_row(name, seed, value) for name, seeds in numbers.items() for seed, value in seeds.items()]
    (_, *_), (value, low, high), apart = differences()
    assert value == pytest.approx(0.0975, abs=0.003) and -low == pytest.approx(high, abs=0.002) and high > 0
    assert apart == (0.4,)

    alone = [make_row(name, 1, value) for name, value in (("base", 0.4), ("new", 0.5), ("more", 0.3))]
    assert [line[3] for line in printed(table, alone)] == ["", "+0.100", "-0.100", ""]  # nothing to tell a spread by


def test_an_undefined_value_is_left_out():
    rows = [make_row("base", 1, 0.4)]
    rows[0]["dev"]["sst"]["accuracy"] = None
    assert printed(OF_A_PAPER, rows)[0][3] == ""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (None, {"a": 7, "b": 7}),
        ("3", {"a": 3, "b": 3}),
        ("b=2", {"a": 7, "b": 2}),
        ("a=1, b=2", {"a": 1, "b": 2}),
    ],
)
def test_shares(text, wanted):
    assert parse_shares(text, "--epochs", ("a", "b"), int, 7) == wanted


@pytest.mark.parametrize("text", ["", "x", "c=1", "a=0", "a=-1", "1,2", "a=1.5", "a="])
def test_shares_that_are_not_understood(text):
    with pytest.raises(InputError, match="--epochs .*a=NUMBER,b=NUMBER"):
        parse_shares(text, "--epochs", ("a", "b"), int, 7)


# --- runs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def make(program, tmp_path, monkeypatch, capsys):
    """make(*options) -> exit code, output, errors of reproduce.py with the tiny model and rows of the sample."""
    monkeypatch.setattr(cells, "ROOT", program)

    def make(*options, table="table1"):
        capsys.readouterr()
        code = reproduce.main([table, *arguments(program, tmp_path), *options])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return make


def arguments(program, folder):
    where = ["--model", str(program / "tiny"), "--data", str(program / "data" / "sample"), "--device", "cpu"]
    return [
        *where,
        "--epochs",
        "1",
        "--batch_size",
        "finetune=12",
        "--runs",
        str(folder / "runs"),
        "--results",
        str(folder / "rows.jsonl"),
    ]


MEAN_SST = ("--rows", "mean", "--tasks", "sst", "--option", "finetune")


def test_cells_are_made_once_and_the_table_is_of_what_is_there(make, tmp_path):
    code, out, err = make(*MEAN_SST, "--seeds", "1,2", "--jobs", "2")
    assert (code, err) == (0, "")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert sorted(row["cell"]["seed"] for row in rows) == [1, 2]
    folder = tmp_path / "runs" / "tiny-sample" / "mean-finetune" / "sst"
    for row in rows:
        run = folder / f"epochs1-batch12-seed{row['cell']['seed']}"
        history = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert row["dev"]["sst"]["accuracy"] == history[1]["dev"]["sst"]["accuracy"]
        assert row["loss"]["sst"] == history[1]["dev"]["sst"]["loss"]
        # the model is gone, what it predicted and said is not
        assert not (run / "best").exists()
        assert (run / "predictions" / "sst-dev-output.csv").is_file() and (run / "log.txt").stat().st_size
    values = [row["dev"]["sst"]["accuracy"] for row in rows]
    line = next(line for line in out.splitlines() if line.startswith("| `mean`: mean of the tokens | finetune"))
    assert f"| {spread(values)} |" in line and "| 0.515 |" in line
    assert "encoder tiny" in out and "finetune: 1 epoch (paper: 10), 12 rows a batch (paper: 8)," in out
    # nothing is run again, and printing needs no runs
    before = (tmp_path / "rows.jsonl").read_bytes()
    again = make(*MEAN_SST, "--seeds", "1,2")
    assert again[0] == 0 and "2 cells, 2 done" in again[1] and "started" not in again[1]
    assert line in make("--print")[1]
    assert (tmp_path / "rows.jsonl").read_bytes() == before
    # the same row of another table is the same run
    assert (
        line.split("|")[4]
        == make("--print", table="table3")[1].split("mean of the tokens | finetune |")[1].split("|")[1]
    )


def test_rows_of_other_options_or_data_are_not_taken_for_these(make, program, tmp_path, monkeypatch):
    """Printed or skipped: a row whose options are others now; skipped: one whose data are, the default ones, too."""
    assert make(*MEAN_SST)[0] == 0
    path, table = tmp_path / "rows.jsonl", TABLES["table1"]
    row = json.loads(path.read_text())

    mean = next(each for each in table.rows if (each.key, each.option) == ("mean", "finetune"))
    args = reproduce.parse(["table1", *arguments(program, tmp_path)])
    scale = dataclasses.replace(task_cells.scale_of(args, table), data=None)
    cell = TaskCell(mean, tuple(table.options_of(mean).items()), SST, 11711, scale)
    monkeypatch.setattr(task_cells, "choose_data", lambda data: (program / "data" / "sample", ""))
    cell.check(row, "here")
    row["data"]["sst"]["dev"]["sha256"] = "0" * 64
    with pytest.raises(InputError, match="here: .*ids-sst-dev.csv has changed"):
        cell.check(row, "here")

    row["options"]["hidden_dropout_prob"] = 0.9
    path.write_text(f"{json.dumps(row)}\n")
    for typed in (("--print",), MEAN_SST):
        code, _, err = make(*typed)
        assert code == 1 and "hidden_dropout_prob 0.9 -> 0.3" in err


def test_printing_needs_the_rows_alone(make, tmp_path, monkeypatch):
    """Of weights and data that aren't there it needs the names."""
    rows = [{**make_row("mean", seed, 0.25), "data": {"sst": {"train": {"rows": 9}}}} for seed in (1, 2)]
    for row in rows:
        row["cell"] |= {"model": "gone", "data": "away", "epochs": 1, "batch_size": 12, "fraction": {}}
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elsewhere = ("--model", "nowhere/gone", "--data", "nowhere/away")
    code, out, err = make(*elsewhere, "--print")
    assert (code, err) == (0, "") and "| 0.250 ± 0.000 (2) |" in out and "encoder gone, data away" in out
    assert "finetune: 1 epoch (paper: 10), 12 rows a batch (paper: 8)\n" in out.replace(";", "\n")  # no rate is known
    code, _, err = make(*elsewhere, "--plan")
    assert code == 1 and "nowhere" in err


def test_a_run_s_model_is_called_by_the_run_s_name(make, program, tmp_path):
    """The best/ of two runs are two encoders."""
    for run in ("one", "other"):
        shutil.copytree(program / "tiny", tmp_path / run / "best")
        write_json(tmp_path / run / "config.json", {"command": "contrastive.py"})
        assert make("--model", str(tmp_path / run / "best"), *MEAN_SST)[0] == 0
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["cell"]["model"] for row in rows] == ["one", "other"]
    assert "1 cell, 1 done" in make("--model", str(tmp_path / "one"), *MEAN_SST)[1]  # the run stands for its best/


def test_a_finished_run_without_a_row_gives_it(make, tmp_path):
    make(*MEAN_SST, "--keep_models")
    first = (tmp_path / "rows.jsonl").read_text()
    run = tmp_path / "runs" / "tiny-sample" / "mean-finetune" / "sst" / "epochs1-batch12-seed11711"
    assert (run / "best" / "model.safetensors").is_file()
    (tmp_path / "rows.jsonl").unlink()
    code, out, _ = make(*MEAN_SST)
    assert code == 0 and "started" not in out
    one, other = json.loads(first), json.loads((tmp_path / "rows.jsonl").read_text())
    assert {**one, "call": None} == {**other, "call": None}


def test_a_row_is_distilled_from_the_runs_of_another(make, tmp_path):
    distilled = ("--rows", "steps-distilled", "--seeds", "5", "--jobs", "2")
    assert re.findall("new +(steps[a-z-]*) .* seed ([0-9]+)", make(*distilled, "--plan", table="recipe")[1]) == [
        *(("steps", str(seed)) for seed in TEACHING),
        ("steps-distilled", "5"),
    ]
    code, out, _ = make(*distilled, table="recipe")
    assert code == 0 and re.findall("started +(steps[a-z-]*) ", out) == ["steps"] * 3 + ["steps-distilled"]
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == 4 and not list(tmp_path.glob("runs/**/best"))
    row = rows[-1]
    teachers = [f"tiny-sample/steps-finetune/sst-para-sts/epochs1-batch12-seed{seed}" for seed in TEACHING]
    assert f"--distill {' '.join(teachers)} " in row["command"]
    assert (tmp_path / "runs/tiny-sample/steps-distilled-finetune/sst-para-sts").is_dir()
    shutil.rmtree(tmp_path / "runs")  # the row is there, and its table, without them
    assert "half its labels from three of it" in make("--print", table="recipe")[1]
    assert "1 cell, 1 done" in make(*distilled, table="recipe")[1]
    code, _, err = make("--rows", "steps-distilled", "--seeds", "6", table="recipe")
    assert code == 1 and "whose model is gone" in err
    # Beside others it is left out, and these are made.
    code, out, err = make("--rows", "steps,steps-distilled", "--seeds", "6", "--plan", table="recipe")
    assert code == 0 and err.count("whose model is gone: left out") == 1
    assert re.findall("^new +(steps[a-z-]*) ", out, re.MULTILINE) == ["steps"]


class Made:
    """A cell that is made already, or can't be."""

    def __init__(self, folder, state=FINISHED):
        self.folder, self.made = folder, state
        (folder / "best").mkdir(parents=True)

    def state(self):
        return self.made

    def finished_row(self, call):
        return {**make_row("base", 1, 0.5), "data": {}}

    def selecting(self):
        return []

    def command(self):
        return [sys.executable, "-c", "raise SystemExit(1)"]


@pytest.fixture
def taught(tmp_path):
    """Two teachers, a student of the first and one of both; what run_all is told of these."""
    cells = {name: Made(tmp_path / name) for name in ("teacher", "other", "student", "second")}
    needs = {"student": {"teacher"}, "second": {"teacher", "other"}}
    needs = {tmp_path / name: {tmp_path / each for each in found} for name, found in needs.items()}

    def make(*names, keep_models=False):
        rows = Rows(tmp_path / "rows.jsonl")
        left = [cells[name] for name in names]
        failed = run_all(left, rows, 1, "call", keep_models, lambda text: None, needs)
        return [each.folder.name for each in failed], {name for name in cells if (tmp_path / name / "best").is_dir()}

    make.cells = cells
    (tmp_path / "rows.jsonl").touch()
    return make


def test_a_teachers_model_goes_with_the_last_that_learns_from_it(taught):
    assert taught("teacher", "other", "second") == ([], {"student"})


def test_what_a_failed_call_left_of_teachers_is_deleted_by_the_next(taught, tmp_path):
    taught.cells["second"].made = NEW
    assert taught("other", "teacher", "second", "student") == (["second"], {"teacher", "other", "second"})
    taught.cells["second"].made = FINISHED
    assert taught("second") == ([], set())
    assert not list(tmp_path.glob("*/lent.txt"))


@pytest.mark.parametrize(("before", "left"), [("student", ["student"]), ("teacher", [])])
def test_what_an_interrupted_call_left_of_teachers_is_deleted_by_the_next(taught, monkeypatch, before, left):
    """Before the student's row was written, or after it, when nothing is left to be made."""
    real = cells.delete_model

    def delete(folder):
        if folder.name == before:
            raise KeyboardInterrupt
        real(folder)

    with monkeypatch.context() as interrupted:
        interrupted.setattr(cells, "delete_model", delete)
        with pytest.raises(KeyboardInterrupt):
            taught("teacher", "student")
    assert taught(*left) == ([], {"other", "second"})


def test_a_teachers_model_that_was_kept_stays(taught):
    assert taught("teacher", keep_models=True)[1] == {"teacher", "other", "student", "second"}
    assert taught("student", "other", "second") == ([], {"teacher"})


def test_a_part_of_the_rows(make, tmp_path):
    code, out, _ = make(*MEAN_SST, "--fraction", "sst=0.5")
    assert code == 0
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    assert row["data"]["sst"]["train"]["rows"] == 6 and row["cell"]["fraction"] == {"sst": 0.5}
    assert "sst: 0.5 of the train rows (6)" in out
    _, out, err = make("--print")  # the whole has no run yet
    assert (
        "0.515 |  |  |" in out
        and ": 1 row, of tiny on sample, none this table's at the scale" in err
        and "--data" in err
    )
    assert make("--print", "--fraction", "sst=0.5")[2] == ""


def test_the_plan_says_what_there_is_and_runs_nothing(make, tmp_path):
    code, out, _ = make(*MEAN_SST, "--plan")
    assert code == 0 and not (tmp_path / "runs").exists() and not (tmp_path / "rows.jsonl").exists()
    assert re.search(r"^new +mean finetune sst seed 11711: about \d+ s$", out, re.MULTILINE)
    assert "1 cell; about" in out and "GB while they run" in out
    make(*MEAN_SST)
    assert re.search(r"^done +mean finetune sst seed 11711$", make(*MEAN_SST, "--plan")[1], re.MULTILINE)


def start_reproduce(program, tmp_path, options):
    """reproduce.py of one cell of 150 epochs, and the run's folder, once its first evaluation is there."""
    command = [sys.executable, str(program / "reproduce.py"), "table1", *arguments(program, tmp_path), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    run = tmp_path / "runs" / "tiny-sample" / "mean-finetune" / "sst" / "epochs150-batch12-seed11711"
    deadline = time.monotonic() + 120
    while not (run / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return process, run


def test_what_was_stopped_goes_on_to_the_same_end(program, tmp_path, make):
    options = [*MEAN_SST, "--epochs", "150"]
    process, run = start_reproduce(program, tmp_path, options)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130 and "stopped; continue with: python " in err
    assert (run / "last" / "checkpoint.safetensors").is_file()
    assert "stopped  mean" in make(*options, "--plan")[1]
    code, out, _ = make(*options)
    assert code == 0 and "continued  mean" in out
    stopped = json.loads((tmp_path / "rows.jsonl").read_text())
    straight = ["--runs", str(tmp_path / "other"), "--results", str(tmp_path / "other.jsonl")]
    make(*options, *straight)
    assert stopped["dev"] == json.loads((tmp_path / "other.jsonl").read_text())["dev"]


@pytest.mark.skipif(fcntl is None, reason="no locks on this system")
def test_two_at_once_are_refused_and_what_a_kill_left_is_waited_for(program, tmp_path, make, monkeypatch):
    options = [*MEAN_SST, "--epochs", "150"]
    process, run = start_reproduce(program, tmp_path, options)
    try:
        left = holder(run)
        os.kill(int(left), signal.SIGSTOP)  # it trains on as soon as somebody has seen that it is still there
        code, _, err = make(*options)
        assert code == 1 and f"{tmp_path / 'runs'} is being filled by process {process.pid}: wait" in err
    finally:
        process.kill()
        process.communicate()

    def see(folder, real=holder):
        found = real(folder)
        if found:
            os.kill(int(found), signal.SIGCONT)
        return found

    monkeypatch.setattr(cells, "holder", see)
    code, out, _ = make(*options)
    assert code == 0 and f"waiting    for process {left} of an earlier call, which still makes mean finetune sst" in out
    assert "started" not in out and len((tmp_path / "rows.jsonl").read_text().splitlines()) == 1
    assert not (run / "best").exists()


def test_a_run_that_fails_says_why_and_the_others_go_on(make, program, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for path in (program / "data" / "sample").glob("*.csv"):
        (data / path.name).write_bytes(path.read_bytes())
    (data / "ids-sst-dev.csv").write_text("nothing\n")
    code, out, _ = make("--rows", "mean", "--option", "finetune", "--data", str(data))
    assert code == 1
    assert re.search(r"failed +mean finetune sst seed 11711: error: .*ids-sst-dev.csv", out)
    done = {tuple(json.loads(line)["cell"]["tasks"]) for line in (tmp_path / "rows.jsonl").read_text().splitlines()}
    assert done == {("para",), ("sts",)}


def test_other_options_or_data_are_refused(make, tmp_path, program):
    make(*MEAN_SST)
    path = tmp_path / "rows.jsonl"
    row = json.loads(path.read_text())
    row["options"]["batch_size"] = 4
    path.write_text(json.dumps(row) + "\n")
    code, _, err = make(*MEAN_SST)
    assert code == 1 and "batch_size 4 -> 12" in err and "move it away" in err
    path.unlink()
    config = next((tmp_path / "runs").rglob("config.json"))
    changed = read_json(config)
    changed["data"]["sst"]["train"]["sha256"] = "0" * 64
    config.write_text(json.dumps(changed))
    code, _, err = make(*MEAN_SST)
    assert code == 1 and "ids-sst-train.csv has changed" in err


def test_a_run_from_before_an_option_is_taken_for_its_default(make, tmp_path):
    make(*MEAN_SST)
    path = tmp_path / "rows.jsonl"
    row = json.loads(path.read_text())
    del row["options"]["clip"]
    path.write_text(json.dumps(row) + "\n")
    assert make(*MEAN_SST)[0] == 0


def test_a_damaged_file_of_rows_is_named(make, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{}\n\x7b"cell": {"row": "mean"')
    code, _, err = make(*MEAN_SST)
    assert code == 1 and "rows.jsonl: can't be read as JSON lines (line 2: " in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--rows", "medium"], "known: first-token, mean"),
        (["--seeds", "1,1"], "each once"),
        (["--seeds", "x"], "whole numbers"),
        (["--jobs", "0"], "--jobs"),
        (["--fraction", "sst=2"], "above 1"),
        (["--epochs", "cleverly"], "pretrain=NUMBER"),
        (["--tasks", "cola"], "no run of these"),
    ],
)
def test_options_that_make_no_sense(make, options, wanted):
    code, _, err = make(*options)
    assert code == 1 and wanted in err and err.startswith("error: ") and err.count("\n") == 1


def test_every_option_of_the_tables_is_known():
    known = {option for action in build_parser()._actions for option in action.option_strings}
    assert {f"--{name}" for _, table, row in OF_TASKS for name in table.options_of(row)} <= known
