"""Two runs on the same dev rows, and where one run errs: `python evaluation.py compare RUN RUN`, `... errors RUN`.

    python evaluation.py compare RUN RUN            each task's difference, and how sure it is
    python evaluation.py compare RUN RUN ... RUN    the last one's from the mean score of those before
    python evaluation.py errors RUN                 each class's errors, and the examples that are hardest for the run

Intervals are a paired bootstrap's (intervals.py; for systems of language processing, Koehn 2004, "Statistical
Significance Tests for Machine Translation Evaluation"): all runs are scored on the same draws of dev rows.
"""

from __future__ import annotations

import argparse
import shlex
import textwrap
from itertools import combinations

import numpy as np

from command_line import path_given, text_given
from console import answer, refuse, tell, warn
from errors import InputError
from files import short
from intervals import CONFIDENCE, RESAMPLES
from report_data import Judged, ReadRun, read_run
from report_examples import class_name, worst
from report_scores import against_mean
from run import ROOT, Run, newest_finished

HARDEST = 10
NOTHING = 1e-9  # a difference as small as this is float arithmetic's
WIDTH = 120
ELLIPSIS = " ..."
JOINERS = "\u200c\u200d"  # of Persian's and Hindi's letters, and of emoji


def compare(*runs: ReadRun) -> list[str]:
    """Lines: a score of each of two runs, the second's difference from the first, and its interval.

    Of more runs all but the last are taken for one, which has their mean score. Raises InputError where they have no
    dev file in common.
    """
    rows = against_mean(list(runs))
    names = ("first", "second") if len(runs) == 2 else (f"mean of {len(runs) - 1}", "last")
    lines = [f"{'dev':<24}{'metric':<12}{names[0]:>10}{names[1]:>10}{'difference':>12}   {CONFIDENCE:.0%} interval"]
    compared, missing = 0, {}
    for row in rows:
        one, other = row["cells"]
        metric = "" if row["title"].startswith("leaderboard") else row["metric"]
        line = f"{row['title']:<24}{metric:<12}{_number(one):>10}{_number(other):>10}"
        if other and other["difference"] is not None:
            compared += 1
            line += f"{other['difference']:>+12.3f}"
            found = other["of_difference"]
            ends = f"{_end(found[0])} to {_end(found[1])}{' *' if other['marked'] else ''}" if found else "unknown"
            line += f"   {ends}"
        elif not one or not other:
            line += "   not a task of all of them"
        elif one["rows"] != other["rows"]:
            line += "   judged on another file"
        else:
            line += "   undefined in one of them"
        lines.append(line)
    for run in runs:
        missing |= {judged.missing: None for judged in run.judged.values() if judged.missing}
    if not compared:
        folders = " and ".join(short(run.folder) for run in runs)
        raise InputError(f"{folders} have no task that they were judged on the same rows of: nothing to compare")
    lines += [f"note: {visible(reason)}" for reason in missing]
    if not any(row["cells"][-1] and row["cells"][-1]["of_difference"] for row in rows):
        return lines
    lines.append(
        f"\n* zero is not in it. From {RESAMPLES:,} draws of the dev rows, the same for all runs: what another seed "
        "of training\nwould change is not in these intervals."
        + (
            " With several seeds, compare their means, too."
            if len(runs) == 2
            else " The mean is that\nof these very runs."
        )
    )
    return lines


def _refuse_copies(runs: list[ReadRun]) -> None:
    """Raises InputError for two runs of a mean that answer the same, row by row: a copy would count twice."""
    for one, other in combinations(runs, 2):
        pairs = [
            (judged.outputs, other.judged[name].outputs) for name, judged in one.judged.items() if name in other.judged
        ]
        kept = [pair for pair in pairs if pair[0] is not None and pair[1] is not None]
        if any(np.array_equal(*pair) for pair in kept):
            raise InputError(
                f"compare: {short(other.folder)} answers as {short(one.folder)} does, row by row: leave one of them out"
            )


def _number(cell: dict | None) -> str:
    return "" if cell is None else "undefined" if cell["value"] is None else f"{cell['value']:.3f}"


def _end(value: float) -> str:
    """An interval's end with three digits, or with as many as say on which side of zero it lies."""
    digits = 3
    while float(f"{value:.{digits}f}") == 0 and abs(value) > NOTHING:
        digits += 1
    return f"{value:+.{digits}f}"


def errors(run: ReadRun, most: int = HARDEST, width: int | None = WIDTH) -> list[str]:
    """Lines for each task: a row for each class, then at most `most` of the rows that the run is most wrong about.

    width: of a line, for which texts are cut (None: they are whole). Raises InputError for a run without tasks.
    """
    if not run.judged:
        command = f"python report.py {shlex.quote(short(run.folder))}"
        raise InputError(f"{short(run.folder)} is a run of contrastive.py, which has no tasks: {command} shows it")
    if all(judged.missing for judged in run.judged.values()):
        raise InputError("; ".join(dict.fromkeys(visible(judged.missing) for judged in run.judged.values())))
    lines = []
    for judged in run.judged.values():
        if judged.missing:
            lines += [f"{judged.task.title}: {visible(judged.missing)}", ""]
            continue
        lines += [
            f"{judged.task.title}: {len(judged.labels):,} rows of {visible(judged.table.path.name)}",
            *_by_class(judged),
            "",
        ]
        lines += [*_hardest(judged, most, width), ""]
    return lines[:-1]


def _by_class(judged: Judged) -> list[str]:
    """Of classes how many rows, how many right, and what they are taken for; of scores the error near each label."""
    if judged.probabilities is None:
        lines = [f"  {'label':<28}{'rows':>7}{'mean error':>12}{'mean abs. error':>17}"]
        apart, nearest = judged.scaled - judged.labels, np.rint(judged.labels)
        for value in np.unique(nearest):
            own = apart[nearest == value]
            lines.append(f"  {f'about {value:g}':<28}{len(own):>7,}{own.mean():>+12.2f}{np.abs(own).mean():>17.2f}")
        return lines
    head = f"{'rows':>7}{'found':>8}{'said':>7}{'right of these':>16}"
    lines = [f"  {'label':<28}{head}   most often taken for"]
    for value in range(judged.probabilities.shape[1]):
        own, said = judged.labels == value, judged.values == value
        right = int((own & said).sum())
        taken = np.bincount(judged.values[own & ~said].astype(int), minlength=judged.probabilities.shape[1])
        other = f"{class_name(judged, taken.argmax())} ({taken.max():,})" if taken.any() else "none"
        shares = f"{_share(right, own.sum()):>8}{said.sum():>7,}{_share(right, said.sum()):>16}"
        lines.append(f"  {class_name(judged, value):<28}{own.sum():>7,}{shares}   {other}")
    return lines


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "none"


def _hardest(judged: Judged, most: int, width: int | None) -> list[str]:
    rows = worst(judged, most)
    if not len(rows):
        return [] if len(worst(judged, 1)) else ["  no wrong answer"]
    sure = "off by" if judged.probabilities is None else "its share"
    lines = [f"  {'id':<26}{'line':>7}  {'label':<20}{'said':<20}{sure:>9}  text"]
    for row in rows:
        example, label = judged.table[row], judged.labels[row]
        if judged.probabilities is None:
            said, number = f"{judged.scaled[row]:.1f}", f"{judged.scaled[row] - label:+.1f}"
        else:
            said = class_name(judged, judged.values[row])
            number = f"{judged.probabilities[row, int(label)]:.3f}"
        texts = " | ".join(text for text in (example.sentence, example.second) if text is not None)
        line = f"  {visible(example.id):<26}{example.line:>7}  {class_name(judged, label):<20}{said:<20}{number:>9}  "
        lines.append(line + shorten(texts, width and max(width - len(line), 40)))
    note = "its share: the probability that the run gave to the label" if judged.probabilities is not None else ""
    return lines + ([f"  ({note})"] if note else [])


def visible(text: str) -> str:
    """A text of somebody's files as a terminal may have it: what would move its cursor or turn its writing escaped."""
    return "".join(c if c.isprintable() or c in JOINERS else ascii(c)[1:-1] for c in text)


def shorten(text: str, width: int | None) -> str:
    """One line of at most `width` characters (None: of all), cut between words, or within one that is too long."""
    text = visible(" ".join(text.split()))
    if width is None:
        return text
    found = textwrap.shorten(text, width, placeholder=ELLIPSIS)
    cut_within = found == ELLIPSIS.strip() and len(text) > width
    return text[: width - len(ELLIPSIS)] + ELLIPSIS if cut_within else found


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="evaluation.py", description="Compare finished runs, or look at one's errors."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="{compare,errors}")
    data = {"type": path_given, "metavar": "DIR", "help": "where dev files are now that were moved since the run"}
    two = commands.add_parser(
        "compare", help="each task's difference, with its interval, of two runs or from several' mean"
    )
    two.add_argument(
        "runs",
        nargs="+",
        type=text_given,
        metavar="RUN",
        help="its folder, or its name in runs/; the last against the mean of the others",
    )
    two.add_argument("--data", **data)
    one = commands.add_parser("errors", help="each class's errors, and the hardest examples")
    one.add_argument(
        "run",
        nargs="?",
        type=text_given,
        metavar="RUN",
        help="a run's folder, or its name in runs/ (default: the newest that is finished)",
    )
    one.add_argument("--data", **data)
    one.add_argument(
        "--most", type=int, metavar="N", default=HARDEST, help=f"examples of each task (default {HARDEST})"
    )
    one.add_argument(
        "--whole", action="store_true", help=f"print texts whole (default: cut to lines of about {WIDTH} characters)"
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    args = build_parser().parse_args(arguments)
    try:
        if args.command == "compare":
            if len(args.runs) < 2:
                raise InputError(f"compare {args.runs[0]}: with what: name two runs or more")
            if len({Run.open(name, ROOT).folder.resolve() for name in args.runs}) < len(args.runs):
                if len(args.runs) > 2:
                    raise InputError(f"compare {' '.join(args.runs)}: name each run once")
                warn(f"warning: {' and '.join(args.runs)} are one run, which is compared with itself")
            runs = [read_run(name, args.data, tell) for name in args.runs]
            _refuse_copies(runs[:-1])
            lines = compare(*runs)
        else:
            if args.most < 0:
                raise InputError(f"--most is {args.most}, wanted a number from 0 up")
            run = args.run or newest_finished(ROOT, "predictions")
            if not args.run:
                warn(f"run     {short(run)}, the newest that is finished")
            lines = errors(read_run(run, args.data, tell), args.most, None if args.whole else WIDTH)
        for line in lines:
            answer(line)
    except (InputError, OSError) as error:
        return refuse(error)
    return 0
