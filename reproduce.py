"""Make a paper's table again: `python reproduce.py table3 --plan`, then without --plan.

Each number is a run of multitask_classifier.py or contrastive.py in a folder of its own. Finished ones are skipped,
stopped ones resumed, so parts can be made on different days, by naming them, and the table is printed from what is
there. The tables are data, in experiments.py. table2 counts parameters and trains nothing.
"""

from __future__ import annotations

import argparse
import math
import shlex
import statistics
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import startup  # noqa: F401  # isort: skip: before what may be missing

import numpy as np
from scipy.stats import t as students_t

import contrastive_cells
import task_cells
from bert import BertConfig
from cells import (
    DONE,
    FINISHED,
    STOPPED,
    Cell,
    Rows,
    Scale,
    cells_of,
    refuse_differences,
    run_all,
    state_of,
    with_teachers,
)
from command_line import path_given, text_given
from console import answer, counted, refuse, tell, warn
from contrastive_cells import ContrastiveCell
from errors import InputError, quoted, whole_number
from estimate import show_duration
from experiments import LEADERBOARD, TABLES, Column, ContrastiveTable, Row, Table
from files import short
from heads import HeadConfig, TaskHead
from intervals import CONFIDENCE, SEED
from options import LARGEST_SEED
from run import ROOT, Run
from run_checks import need
from sharing import held
from stopping import on_signals, stop_at_once
from task_cells import TaskCell
from tasks import TASKS, leaderboard_score

SCORE = Column("sst", "leaderboard", "score")  # beside the leaderboard's tasks, in a table of many rows
ROUNDING = 1e-20  # of a sum of squares that is 0
DRAWS = 100_000  # a quantile that is drawn so is good to two digits

# Kind of table -> who makes its runs, with scale_of(args, table), fits(cell, scale) and caption(table, scale, rows).
KINDS = {Table: (task_cells, TaskCell), ContrastiveTable: (contrastive_cells, ContrastiveCell)}


def parameters_table() -> str:
    """The poster's table 2 beside the same counts from our modules: weights of the linear maps, biases not counted."""
    config = BertConfig()
    papers = {
        "baseline, no attention": (False, ("3,840", "0.59 M", "2.36 M")),
        "2 self / 1 cross / 3 cross layers": (True, ("4.72 M", "3.54 M", "11.2 M")),
    }
    lines = [["task-specific parameters", *(column.title.split()[0] for column in LEADERBOARD)]]
    for name, (attention, printed) in papers.items():
        ours = []
        for column in LEADERBOARD:
            task = TASKS[column.task]
            layers = task.attention[1] if attention else 0
            head = TaskHead(task, config.hidden_size, config.num_attention_heads, HeadConfig(layers))
            ours.append(head.linear_parameters())
        lines.append([f"{name}: the poster", *printed])
        lines.append([f"{name}: ours", *(f"{count:,}" for count in ours)])
        lines.append([f"{name}: ours, rounded as there", *map(_as_printed, ours, printed)])
    return "Task-specific parameters at bert-base's size (Jia 2024, table 2)\n\n" + markdown(lines)


def _as_printed(count: int, printed: str) -> str:
    """The count with as many digits as the poster gives it."""
    if not printed.endswith(" M"):
        return f"{count:,}"
    return f"{count / 1e6:.{len(printed.split('.')[1]) - 2}f} M"


def markdown(lines: list[list[str]]) -> str:
    """The first line is the header."""
    drawn = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([drawn[0], "|" + "---|" * len(lines[0]), *drawn[1:]])


def value_of(found: dict, column: Column) -> float | None:
    """What a column shows of a row of the file."""
    where, number = f"the row of {found['cell']}", (int, float, type(None))
    if column == SCORE:
        return leaderboard_score({each.task: value_of(found, each) for each in LEADERBOARD})
    if column.metric == "loss":
        return need(found, ("loss", column.task), number, where)
    scores = need(found, ("dev", column.task), dict, where)
    return need(scores, (column.metric,), number, where) if column.metric in scores else None


def values_of(row: Row, column: Column, rows: list[dict]) -> dict[int, float]:
    """seed -> the column's value in the runs of this row; undefined ones are left out."""
    fits = [found for found in rows if (found["cell"]["row"], found["cell"]["option"]) == (row.key, row.option)]
    tasks = {each.task for each in (LEADERBOARD if column == SCORE else [column])}
    found = {each["cell"]["seed"]: value_of(each, column) for each in fits if tasks <= set(each["cell"]["tasks"])}
    return {seed: value for seed, value in found.items() if value is not None}


def seconds_of(row: Row, rows: list[dict]) -> dict[tuple[str, int], float]:
    """(call, seed) -> seconds of training over all of the row's runs, where one call made all of them."""
    parts: dict[tuple[str, int], dict[tuple, float]] = {}
    for found in rows:
        cell = found["cell"]
        if found["call"] and (cell["row"], cell["option"]) == (row.key, row.option):
            parts.setdefault((found["call"], cell["seed"]), {})[tuple(cell["tasks"])] = found["train_seconds"]
    return {which: sum(of[run] for run in row.runs) for which, of in parts.items() if set(of) >= set(row.runs)}


def spread(values: list[float]) -> str:
    """`0.489 ± 0.004 (3)`: mean, standard deviation between seeds, number of seeds."""
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.3f}"
    return f"{mean} ± {statistics.stdev(values):.3f} ({len(values)})" if len(values) > 1 else f"{mean} (1)"


def signed(value: float) -> str:
    return f"{value:+.3f}"


def results_table(table: Table, rows: list[dict], shown: Iterable[Row] | None = None) -> str:
    """The paper's numbers, ours and the difference; without a paper, the difference from the row compared with.

    Each line begins with the key that --rows takes. shown: the table's rows to print (default: all); the intervals are
    those of the whole table.
    """
    header, times = ["", "option"], any(row.seconds for row in table.rows)
    columns = table.columns + ((SCORE,) if table.many and table.columns == LEADERBOARD else ())
    for column in columns:
        if table.of_a_paper:
            header += [f"{column.title}: paper", "ours", "difference"]
        else:
            header += [column.title, "difference"][: 1 + column.compared]
    if times:
        header += ["training time, by the baseline's: paper", "ours"]
    lines, together = [header], {}
    if table.many:
        together = {column: differences_at_once(table, column, rows) for column in columns if column.compared}
    for row in table.rows if shown is None else shown:
        base = baseline_of(row, table)
        line = [f"`{row.key}`: {row.name}", row.option]
        for column in columns:
            ours = values_of(row, column, rows)
            if table.of_a_paper:
                paper = row.paper.get(f"{column.task} {column.metric}")
                both = paper is not None and ours
                line += ["" if paper is None else f"{paper:.3f}", spread(list(ours.values()))]
                line += [signed(statistics.fmean(ours.values()) - paper) if both else ""]
            else:
                line.append(spread(list(ours.values())))
                if column.compared and table.many:
                    line.append(together[column].get((row.key, row.option), ""))
                elif column.compared:
                    compared = base and base is not row
                    line.append(paired(ours, values_of(base, column, rows)) if compared else "")
        if times:
            line += [_ratio(row.seconds, base and base.seconds), time_ratio(row, base, rows)]
        lines.append(line)
    return markdown(lines)


def baseline_of(row: Row, table: Table) -> Row | None:
    """The row that this one is compared with."""
    alike = [each for each in table.rows if (each.key, each.option) == (table.compared_with, row.option)]
    return alike[0] if alike else None


def paired(ours: dict[int, float], base: dict[int, float]) -> str:
    """`+0.043 ± 0.039 [-0.053, +0.139]`: mean and standard deviation of the differences, seed by seed, 95 % t interval.

    Over the seeds that both have; one seed has a difference alone.
    """
    differences = [value - base[seed] for seed, value in ours.items() if seed in base]
    if not differences:
        return ""
    mean, count = statistics.fmean(differences), len(differences)
    if count == 1:
        return signed(mean)
    deviation = statistics.stdev(differences)
    half = float(students_t.ppf((1 + CONFIDENCE) / 2, count - 1)) * deviation / math.sqrt(count)
    return f"{signed(mean)} ± {deviation:.3f} [{signed(mean - half)}, {signed(mean + half)}]"


def differences_at_once(table: Table, column: Column, rows: list[dict]) -> dict[tuple[str, str], str]:
    """(key, option) -> `+0.007 [-0.005, +0.019]`: how far a row is from the one compared with, seed for seed.

    Least squares with an effect of each row and one of each seed, which all rows share (randomized blocks, Fisher
    1935), and one spread of what is left, so that rows of one seed have an interval, too, where others have more. In
    95 % of columns all intervals hold, as Dunnett's do (1955, J. Am. Stat. Assoc. 50); their width is found by drawing
    (Edwards and Berry 1987, Biometrics 43). A row without a seed in common, by way of others even, has a difference of
    means alone.
    """
    found = {}
    for option in dict.fromkeys(row.option for row in table.rows):
        values = {row.key: values_of(row, column, rows) for row in table.rows if row.option == option}
        base = values.pop(table.compared_with, {})
        others = {key: of_seeds for key, of_seeds in values.items() if of_seeds}
        if not base or not others:
            continue
        told = [signed(statistics.fmean(each.values()) - statistics.fmean(base.values())) for each in others.values()]
        for place, (value, half) in _in_blocks([base, *others.values()]).items():
            ends = "" if half is None else f" [{signed(value - half)}, {signed(value + half)}]"
            told[place] = f"{signed(value)}{ends}"
        found |= {(key, option): each for key, each in zip(others, told, strict=True)}
    return found


def _in_blocks(values: list[dict[int, float]]) -> dict[int, tuple[float, float | None]]:
    """Of each row after the first, by its place there: its difference from the first, and half its interval.

    values: of each row, seed -> number. None where nothing is left to tell a spread by; no entry without common seeds.
    """
    seeds = sorted({seed for row in values for seed in row})
    cells = [(place, seeds.index(seed), value) for place, row in enumerate(values) for seed, value in row.items()]
    effects, y = np.zeros((len(cells), len(values) + len(seeds))), np.array([value for _, _, value in cells])
    for number, (place, seed, _) in enumerate(cells):
        effects[number, [place, len(values) + seed]] = 1
    solved = np.linalg.pinv(effects)
    wanted = np.zeros((len(values) - 1, effects.shape[1]))
    wanted[:, 0], wanted[:, 1 : len(values)] = -1, np.eye(len(values) - 1)
    known = [place for place, row in enumerate(wanted) if np.allclose(row @ solved @ effects, row)]
    weights = wanted[known] @ solved  # of each number, in each difference
    left, freedom = y - effects @ (solved @ y), len(cells) - np.linalg.matrix_rank(effects)
    halves: list[float | None] = [None] * len(known)
    if freedom and known and left @ left > ROUNDING * (y @ y):
        errors = np.linalg.norm(weights, axis=1)
        rng = np.random.default_rng(SEED)
        drawn = np.abs(rng.standard_normal((DRAWS, len(cells))) @ weights.T / errors).max(axis=1)
        drawn /= np.sqrt(rng.chisquare(freedom, DRAWS) / freedom)
        halves = list(np.quantile(drawn, CONFIDENCE) * errors * math.sqrt(left @ left / freedom))
    return dict(zip(known, zip(weights @ y, halves, strict=True), strict=True))


def time_ratio(row: Row, base: Row | None, rows: list[dict]) -> str:
    """Median over the calls and seeds that made this row and the one compared with."""
    if base is None:
        return ""
    ours, theirs = seconds_of(row, rows), seconds_of(base, rows)
    ratios = [seconds / theirs[which] for which, seconds in ours.items() if theirs.get(which)]
    return _ratio(statistics.median(ratios), 1.0) if ratios else ""


def _ratio(value: float | None, base: float | None) -> str:
    return f"{value / base:.3f}" if value and base else ""


def plan(cells: list[Cell], rows: Rows, jobs: int, say) -> None:
    """Print each cell with its state, about the time it takes, and the disk."""
    times: dict[tuple, tuple[float, float]] = {}
    total, largest = 0.0, 0.0
    for cell in cells:
        state, told = state_of(cell, rows), ""
        if state not in (DONE, FINISHED):
            alike = (cell.row.key, cell.row.option, cell.tasks)
            position = None
            if state == STOPPED:
                position = Run(cell.folder).position()
            if alike not in times or state == STOPPED:
                times[alike] = cell.estimate(position)
            seconds, size = times[alike]
            total, largest = total + seconds, max(largest, size)
            told = f"about {show_duration(seconds)}"
        say(f"{state:<9}{cell}" + (f": {told}" if told else ""))
    say(f"\n{counted(len(cells), 'cell')}; about {show_duration(total / jobs)} of training, {jobs} at a time")
    say(
        f"disk       up to {jobs * largest / 1e9:.1f} GB while they run, in {short(cells[0].scale.runs)}; then rows, "
        "logs and predictions alone, unless --keep_models; encodings of a frozen encoder in cache/, see --cache_gb"
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Make a paper's table again. Finished runs are skipped, stopped ones resumed.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=120),
    )
    parser.add_argument(
        "table",
        choices=["table2", *TABLES],
        help="table1 to 3: Jia 2024; poolers: Lee and others 2021; layer_attention: Oh and others 2022",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--plan", action="store_true", help="print the runs with estimated time and disk; train nothing")
    what.add_argument(
        "--print",
        action="store_true",
        help="print the table of the runs there are, of all seeds, or of --rows and --option alone; train nothing",
    )
    scale = parser.add_argument_group("scaling down, which the caption says")
    scale.add_argument("--model", type=text_given, help="as multitask_classifier.py's (default: what was set up)")
    scale.add_argument("--data", type=path_given, metavar="DIR", help="folder of the data files (default: data/)")
    scale.add_argument("--epochs", help="one number, or pretrain=10,finetune=3 (default: the paper's)")
    scale.add_argument("--batch_size", help="rows: one number, or finetune=32 (default: the paper's)")
    scale.add_argument("--fraction", help="of train rows: one number, or para=0.1,sts=0.5, or unsup=0.3 (default: all)")
    part = parser.add_argument_group("making a part")
    part.add_argument("--seeds", default="11711", help="several give a spread: 11711,11712,11713 (default %(default)s)")
    part.add_argument("--rows", metavar="KEYS", help="keys of rows, which --print shows: mean,attention (default: all)")
    part.add_argument("--option", help="one alone: pretrain or finetune, or untrained, unsup or sup (default: all)")
    part.add_argument("--tasks", help="runs of these tasks alone: sst,sts (default: all)")
    where = parser.add_argument_group("where")
    where.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="runs at a time, each on its share of the cores (default 1)"
    )
    where.add_argument("--device", help="as multitask_classifier.py's")
    where.add_argument(
        "--runs",
        type=path_given,
        default=ROOT / "runs" / "reproduce",
        metavar="DIR",
        help="where the runs are (default: runs/reproduce)",
    )
    where.add_argument("--results", type=path_given, metavar="FILE", help="of the rows (default: rows.jsonl in --runs)")
    where.add_argument("--keep_models", action="store_true", help="keep each run's best model (default: its row alone)")
    args = parser.parse_args(arguments)
    if args.jobs < 1:
        raise InputError(f"--jobs is {args.jobs}, wanted a number from 1 up")
    args.results = args.results or args.runs / "rows.jsonl"
    args.seeds = _seeds(args.seeds)
    return args


def _seeds(text: str) -> list[int]:
    seeds = [whole_number(part.strip(), LARGEST_SEED) for part in text.split(",")]
    if None in seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"--seeds {text}: wanted whole numbers from 0 up, each once, with commas between them")
    return seeds


def reproduce(args: argparse.Namespace, say=tell) -> int:
    """The whole command. Returns the exit code: 1 if a run failed."""
    if args.table == "table2":
        say(parameters_table())
        return 0
    table = TABLES[args.table]
    kind, cell = KINDS[type(table)]
    scale, rows = kind.scale_of(args, table), Rows(args.results)
    keys, options = {row.key for row in table.rows}, dict.fromkeys(row.option for row in table.rows)
    if args.option not in (None, *options):
        raise InputError(f"--option {args.option}: {args.table} has {', '.join(options)}")
    wanted = set(args.rows.split(",")) if args.rows else keys
    if wanted - keys:
        raise InputError(f"--rows: {quoted(min(wanted - keys))} is not known; known: {', '.join(sorted(keys))}")
    known = {task for row in table.rows for run in row.runs for task in run}
    tasks = set(args.tasks.split(",")) if args.tasks else known
    cells = cells_of(
        cell,
        table,
        scale,
        args.seeds,
        lambda row, run: row.key in wanted and args.option in (None, row.option) and tasks >= set(run),
    )
    if not cells and not args.print:
        raise InputError(f"{args.table} has no run of these --rows, --option and --tasks")
    failed: list[Cell] = []
    needs = {}
    if not args.print:
        cells, needs = with_teachers(cells, table, rows)
    if args.plan:
        plan(cells, rows, args.jobs, say)
        return 0
    if not args.print:
        with held(args.runs, "being filled"):
            left = [cell for cell in cells if state_of(cell, rows) != DONE]
            say(f"{counted(len(cells), 'cell')}, {len(cells) - len(left)} done; rows in {short(args.results)}")
            call = f"{datetime.now():%Y-%m-%d-%H%M%S}"
            failed = run_all(left, rows, args.jobs, call, args.keep_models, say, needs)
    found = [each for each in rows.rows if kind.fits(each["cell"], scale)]
    if args.print and scale.lr:  # whatever runs is checked before
        check_options(cell, table, scale, found, short(args.results))
    if args.print and not keys & {each["cell"]["row"] for each in found}:
        made = sorted({f"of {each['cell'].get('model')} on {each['cell'].get('data')}" for each in rows.rows})
        there = ", ".join([counted(len(rows.rows), "row"), *made])
        warn(
            f"warning: {short(args.results)}: {there}, none this table's at the scale that the caption says: --results "
            "names another file, --data, --model, --epochs and so on another scale"
        )
    shown = table.rows
    if args.print:
        named = wanted | {table.compared_with}
        shown = [row for row in table.rows if row.key in named and args.option in (None, row.option)]
    say(f"\n{results_table(table, found, shown)}\n\n{kind.caption(table, scale, found)}")
    return 1 if failed else 0


def check_options(kind: type[Cell], table: Table, scale: Scale, rows: list[dict], where: str) -> None:
    """Raises InputError if a row was made by other options than its row of the table has now."""
    for found in rows:
        cell = found["cell"]
        for row in table.rows:
            if (row.key, row.option) == (cell["row"], cell["option"]) and tuple(cell["tasks"]) in row.runs:
                of = tuple(table.options_of(row).items())
                now = kind(row, of, tuple(cell["tasks"]), cell["seed"], scale)
                refuse_differences(now.changed_options(found, f"{where}, {now}"), f"{where}, {now}")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code. Errors of input are one line on stderr."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        with on_signals(stop_at_once):
            args = parse(arguments)
            printed_alone = args.print or args.plan or args.table == "table2"
            return reproduce(args, answer if printed_alone else tell)
    except (InputError, OSError) as error:
        return refuse(error)
    except KeyboardInterrupt:
        command = shlex.join(["python", short(Path(__file__)), *arguments])
        warn(f"stopped; continue with: {command}")
        return 130


if __name__ == "__main__":
    sys.exit(main())
