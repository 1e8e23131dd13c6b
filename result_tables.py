"""The papers' tables as they are printed: the paper's numbers, ours of rows that were made, and the difference."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from bert import BertConfig
from experiments import LEADERBOARD, Column, Row, Table
from heads import HeadConfig, TaskHead
from run_checks import need
from seed_differences import in_blocks, t_interval
from tasks import TASKS, leaderboard_score

SCORE = Column("sst", "leaderboard", "score")  # beside the leaderboard's tasks, in a table of many rows


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
    mean = statistics.fmean(differences)
    if len(differences) == 1:
        return signed(mean)
    low, high = t_interval(differences)
    return f"{signed(mean)} ± {statistics.stdev(differences):.3f} [{signed(low)}, {signed(high)}]"


def differences_at_once(table: Table, column: Column, rows: list[dict]) -> dict[tuple[str, str], str]:
    """(key, option) -> `+0.007 [-0.005, +0.019]`: how far a row is from the one compared with, seed for seed.

    The intervals are seed_differences.in_blocks's, which hold for the whole column at once. A row without a seed in
    common, by way of others even, has a difference of means alone.
    """
    found = {}
    for option in dict.fromkeys(row.option for row in table.rows):
        values = {row.key: values_of(row, column, rows) for row in table.rows if row.option == option}
        base = values.pop(table.compared_with, {})
        others = {key: of_seeds for key, of_seeds in values.items() if of_seeds}
        if not base or not others:
            continue
        told = [signed(statistics.fmean(each.values()) - statistics.fmean(base.values())) for each in others.values()]
        for place, (value, half) in in_blocks([base, *others.values()]).items():
            ends = "" if half is None else f" [{signed(value - half)}, {signed(value + half)}]"
            told[place] = f"{signed(value)}{ends}"
        found |= {(key, option): each for key, each in zip(others, told, strict=True)}
    return found


def time_ratio(row: Row, base: Row | None, rows: list[dict]) -> str:
    """Median over the calls and seeds that made this row and the one compared with."""
    if base is None:
        return ""
    ours, theirs = seconds_of(row, rows), seconds_of(base, rows)
    ratios = [seconds / theirs[which] for which, seconds in ours.items() if theirs.get(which)]
    return _ratio(statistics.median(ratios), 1.0) if ratios else ""


def _ratio(value: float | None, base: float | None) -> str:
    return f"{value / base:.3f}" if value and base else ""
