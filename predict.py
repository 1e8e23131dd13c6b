"""Ask a trained model: `python predict.py RUN "text"`, pairs, lines from a pipe, CSV, JSONL, or a prompt.

python predict.py runs/first "A gripping film!"                      sentiment, with the probability of each class
python predict.py runs/first "Who ran?" "Did the dog run?" --explain  a pair, and what the model looks at
python predict.py runs/first --input reviews.csv --columns review --output judged.csv
python predict.py                                                    the newest run, and a prompt
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import startup  # noqa: F401  # isort: skip: before what may be missing

from tqdm import tqdm

from answer_files import FORMATS, Rows, read_rows, refuse_taken, written
from command_line import path_given, text_given
from console import answer, counted, refuse, warn
from datasets import blank, read_bytes
from errors import InputError
from files import atomic_write, check_writable, short
from options import choose_device
from predictor import Answer, Predictor, best_folders, words_of
from run import ROOT, Run, is_run, newest
from tasks import TASKS, Task, parse_tasks

BLOCK = 2048  # rows judged at a time, so that a bar can move
EVEN = 0.01  # weights that differ by less look the same where two digits are shown


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Ask a trained model for a text's sentiment, or for a pair's paraphrase and similarity.",
        epilog="Without a TEXT or --input, what comes through a pipe is read, a text a line, a tab between the two of "
        "a pair; on a terminal it asks. CSV and JSONL come out as they went in; a text with what is said of it.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=28, width=120),
    )
    parser.add_argument(
        "run",
        nargs="?",
        type=text_given,
        metavar="RUN",
        help="a run, its name in runs/, or its best/ (default: the newest; what has a space in it, and is no run, is a "
        "TEXT for that)",
    )
    parser.add_argument("text", nargs="*", metavar="TEXT", help="one text, or the two of a pair")
    parser.add_argument("--tasks", help="answer for these alone (default: all of the run's that read one text, or two)")
    parser.add_argument("--input", type=path_given, metavar="FILE", help="many texts: text, CSV or JSONL")
    parser.add_argument("--output", type=path_given, metavar="FILE", help="default: the terminal")
    parser.add_argument(
        "--columns",
        action="extend",
        nargs="+",
        type=text_given,
        metavar="NAME",
        help="of CSV or JSONL, what holds the text, or the two of a pair (default: as the course's files name them, "
        "text, or the only one)",
    )
    parser.add_argument(
        "--format", choices=FORMATS, help="of what is read (default: by the suffix, .csv, .tsv or .jsonl, else text)"
    )
    parser.add_argument("--explain", action="store_true", help="also what the model looks at, a weight for each word")
    parser.add_argument("--device", type=text_given, help="cuda, cuda:1, mps or cpu (default: the best there is)")
    parser.add_argument("--quiet", action="store_true", help="answers and errors alone (default: remarks, too)")
    return parser


def newest_run(root: Path) -> Path:
    """The run in `root`/runs that was started last and has a model. Raises InputError where there is none."""

    def answers(run: Path) -> bool:
        try:
            return bool(best_folders(run))
        except InputError:
            return False

    found = newest(root, answers)
    if found is None:
        raise InputError(
            f"no run with a model in {short(root / 'runs')}: train one (python multitask_classifier.py --option "
            "finetune), or name a folder"
        )
    return found


def named(run: str | None, texts: list[str]) -> tuple[str | None, list[str]]:
    """RUN, None for the newest, and TEXTs: a first word that has a space in it and is no folder is meant as a text."""
    if run is None or any(map(os.path.exists, (run, ROOT / "runs" / run))):
        return run, texts
    if not any(map(str.isspace, run)):
        if texts:
            return run, texts
        raise InputError(
            f"{run}: no run there (no config.json); a text of one word wants the run before it, or --input"
        )
    return None, [run, *texts]


def choose_tasks(known: list[str], asked: str | None, pair: bool | None) -> list[Task]:
    """Of the tasks that a model has heads for those asked for, or all that read such texts. pair: None is both kinds.

    Raises InputError where none is left.
    """
    tasks = list(parse_tasks(asked)) if asked else [TASKS[name] for name in known]
    for task in tasks:
        if task.name not in known:
            raise InputError(f"--tasks {asked}: this model has no head for {task.name}; it has {', '.join(known)}")
    found = [task for task in tasks if pair in (None, task.is_pair)]
    if not found:
        names = ", ".join(task.name for task in tasks)
        if pair:
            raise InputError(f"a pair of texts, wanted a single one for {names}: give one")
        raise InputError(f"a single text, wanted a pair for {names}: give two")
    return found


# --- for people to read ----------------------------------------------------------------------------------------------


def describe(answer: Answer) -> str:
    """`sentiment (SST-5)   positive 0.89   (negative 0.04, ...)`: a task's answer as a line."""
    task = TASKS[answer.task]
    title = f"{task.title:<24}"
    if not answer.probabilities:
        return f"{title}{answer.value:.2f}, {answer.words}"
    words = words_of(task)
    others = ", ".join(f"{word} {p:.2f}" for word, p in zip(words, answer.probabilities, strict=True))
    more = f"  ({others})" if len(words) > 2 else ""
    return f"{title}{answer.words} {answer.probability:.2f}{more}"


def explain(predictor: Predictor, name: str, texts: tuple[str, ...]) -> Iterator[str]:
    """Lines that say what the model looks at; a line that says why not where it weighs no tokens."""
    try:
        found = predictor.explain(name, *texts)
    except InputError as error:
        yield f"  no weights: {error}"
        return
    for i, weights in enumerate(found):
        own = ("the first text", "the second text", "both as one sequence")[i]
        taken = f"what {own} takes of the {('second', 'first')[i]}" if weights.across else f"for {own}"
        whose = f", {taken}" if len(found) > 1 else ""
        shares = [weight for _, weight in weights]
        even = "  (nearly even: none stands out)" if len(shares) > 1 and max(shares) - min(shares) < EVEN else ""
        yield f"  {weights.source}{whose}: " + "  ".join(f"{word} {weight:.2f}" for word, weight in weights) + even


def judged(predictor: Predictor, tasks: list[Task], texts: tuple[str, ...], with_weights: bool) -> Iterator[str]:
    """The lines of what is said of one text or pair."""
    for task in tasks:
        yield describe(predictor.predict(task.name, *texts))
        if with_weights:
            yield from explain(predictor, task.name, texts)


def prompt(predictor: Predictor, tasks: list[Task], with_weights: bool, ask: Callable[[str], str] = input) -> None:
    """Ask for texts until an empty line, or the end of the input."""
    with suppress(ImportError):
        import readline  # noqa: F401  # lines can be edited, and earlier ones found again

    single, pair = ([task for task in tasks if task.is_pair == two] for two in (False, True))
    reads = "a text; a second one makes it a pair" if single and pair else "two texts" if pair else "a text"
    answer(f"{predictor.name}: {reads}; an empty line ends")
    with suppress(EOFError):
        while first := ask("text> ").strip():
            second = ask("second> " if not single else "second, or Enter> ").strip() if pair else ""
            if not second and not single:
                answer("a pair has two texts")
                continue
            for line in judged(
                predictor, pair if second else single, (first, second) if second else (first,), with_weights
            ):
                answer(line)


# --- files -----------------------------------------------------------------------------------------------------------


def answer_all(predictor: Predictor, tasks: list[Task], rows: Rows, quiet: bool) -> dict[str, list[Answer | None]]:
    """Task -> an answer a row, None where a text is blank; with a progress bar on a terminal."""
    answers: dict[str, list[Answer | None]] = {task.name: [None] * len(rows.texts) for task in tasks}
    at = [i for i, texts in enumerate(rows.texts) if texts is not None]
    hidden = True if quiet else None
    with tqdm(total=len(at) * len(tasks), unit="text", disable=hidden, leave=False, delay=1) as bar:
        for start in range(0, len(at), BLOCK):
            block = at[start : start + BLOCK]
            sides = [list(side) for side in zip(*(rows.texts[i] for i in block), strict=True)]
            for task in tasks:
                for i, answer in zip(block, predictor.predict(task.name, *sides), strict=True):
                    answers[task.name][i] = answer
                bar.update(len(block))
    return answers


def as_text(
    predictor: Predictor, tasks: list[Task], rows: Rows, answers: dict[str, list[Answer | None]], with_weights: bool
) -> Iterator[str]:
    """Each text, and below it what is said of it."""
    for i, texts in enumerate(rows.texts):
        yield "\t".join(texts) + "\n"
        for task in tasks:
            yield f"  {describe(answers[task.name][i])}\n"
            if with_weights:
                yield from (f"  {line}\n" for line in explain(predictor, task.name, texts))


def answer_file(args: argparse.Namespace, predictor: Predictor, known: list[str], say: Callable[[str], object]) -> None:
    """Judge a file, or what comes through a pipe, and write it with the answers."""
    path = args.input or Path("standard input")
    content = read_bytes(args.input) if args.input else sys.stdin.buffer.read()
    rows = read_rows(path, content, args.format, args.columns, choose_tasks(known, args.tasks, None))
    tasks = choose_tasks(known, args.tasks, rows.is_pair)
    if args.explain and rows.format != "text":
        raise InputError(f"--explain: {path} is read as {rows.format}, which has no place for it: ask for some texts")
    if rows.format != "text":
        refuse_taken(path, rows, tasks)
    if not rows.texts:
        raise InputError(f"{path}: no rows in it: choose a file of texts")
    answers = answer_all(predictor, tasks, rows, args.quiet)
    if rows.format == "text":
        lines = as_text(predictor, tasks, rows, answers, args.explain)
    else:
        lines = written(rows, tasks, answers)
    if args.output:
        with atomic_write(args.output) as file:
            file.writelines(lines)
        say(f"{counted(len(rows.texts), 'row')}, {', '.join(task.name for task in tasks)}: {short(args.output)}")
    else:
        for line in lines:
            answer(line.removesuffix("\n"))
    unanswered = sum(texts is None for texts in rows.texts)
    if unanswered:
        say(f"{counted(unanswered, 'row')} without text: no answer")


def remarks(name: str | Path) -> list[str]:
    """What is to be known of a run, or of its best/: that it still trains or was stopped, or was never trained."""
    with suppress(InputError):
        run = Run.open(name, ROOT)
        if is_run(run.folder) and not (run.folder / "scores.json").is_file():
            return ["which is unfinished: its best model so far"]
        options = run.config["options"] if is_run(run.folder) else None
        if isinstance(options, dict) and options.get("epochs") == 0:
            return ["which is untrained"]
    return []


def ask_all(args: argparse.Namespace) -> None:
    """Do what was asked. Raises InputError for what can't be used."""
    say = (lambda text: None) if args.quiet else warn
    args.run, args.text = named(args.run, args.text)
    if len(args.text) > 2:
        raise InputError(f"{len(args.text)} texts: one is judged alone, two as a pair; give more as lines of a file")
    if args.text and args.input:
        raise InputError("a TEXT and --input: give one of them")
    if args.text and args.output:
        raise InputError("--output: for files, --input or a pipe; without it answers are printed")
    idle = [name for name in ("columns", "format") if getattr(args, name)]
    if args.text and idle:
        raise InputError(f"--{idle[0]}: for files, --input or a pipe; a TEXT has none: leave it out")
    if any(map(blank, args.text)):
        raise InputError("the text is blank: say what is to be judged")
    if args.output:
        check_writable(args.output)
        if args.input and os.path.realpath(args.input) == os.path.realpath(args.output):
            raise InputError(f"--output {args.output} would overwrite the input: choose another")
    if not args.text and not args.input:
        if sys.stdin is None:
            raise InputError("standard input is closed: give a TEXT, or a file with --input")
        idle = [name for name in ("output", "columns", "format") if getattr(args, name)]
        if idle and sys.stdin.isatty():
            raise InputError(f"--{idle[0]}: for files, --input or a pipe; at the prompt there is none: leave it out")
    run = args.run or newest_run(ROOT)
    known_as = [*([] if args.run else ["the newest run"]), *remarks(run)]
    if known_as:
        say(f"model   {', '.join([short(run), *known_as])}")
    known = list(best_folders(run))
    pair = len(args.text) == 2 if args.text else None
    wanted = choose_tasks(known, args.tasks, pair)
    device, _ = choose_device(argparse.Namespace(device=args.device, use_gpu=False))
    predictor = Predictor.load(run, device, [task.name for task in wanted])
    if args.text:
        for line in judged(predictor, wanted, tuple(args.text), args.explain):
            answer(line)
    elif args.input or not sys.stdin.isatty():
        answer_file(args, predictor, [task.name for task in wanted], say)
    else:
        prompt(predictor, wanted, args.explain)
    if predictor.truncated:
        say(f"{counted(predictor.truncated, 'text')} cut, being longer than the model reads")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code. Errors of input are one line on stderr."""
    try:
        ask_all(build_parser().parse_intermixed_args(arguments))
    except (InputError, OSError) as error:
        return refuse(error)
    except KeyboardInterrupt:
        warn("stopped")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
