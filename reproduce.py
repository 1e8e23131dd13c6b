"""Make a paper's table again: `python reproduce.py table3 --plan`, then without --plan.

Each number is a run of multitask_classifier.py or contrastive.py in a folder of its own. Finished ones are skipped,
stopped ones resumed, so parts can be made on different days, by naming them, and the table is printed from what is
there. The tables are data, in experiments.py. table2 counts parameters and trains nothing.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from datetime import datetime
from pathlib import Path

import startup  # noqa: F401  # isort: skip: before what may be missing

import contrastive_cells
import task_cells
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
from experiments import TABLES, ContrastiveTable, Table
from files import short
from options import LARGEST_SEED
from result_tables import parameters_table, results_table
from run import ROOT, Run
from sharing import held
from stopping import on_signals, stop_at_once
from task_cells import TaskCell

# Kind of table -> who makes its runs, with scale_of(args, table), fits(cell, scale) and caption(table, scale, rows).
KINDS = {Table: (task_cells, TaskCell), ContrastiveTable: (contrastive_cells, ContrastiveCell)}


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
