"""The health of a folder of data files, before a run is spent on them: `python datasets.py [--check [DIR]]`.

Looks for test rows that stand in train, which Elangovan et al. 2021 (arXiv 2102.01818) found to flatter scores, and for
what the course's files are known to hold: blanks, quotes escaped twice, repeated rows. Texts are compared as the model
reads them (lower-cased, pairs with their punctuation apart; GLUE's as they stand), and pairs in either order.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from console import answer, refuse
from course_data import BLOBS, DATA, blob_id, choose_data
from datasets import Example, Table
from errors import InputError
from files import sha256, short
from task_files import is_optional, read_split
from tasks import TASKS, Task
from tokenizer import BertTokenizer
from weights import locate

LEFT_OVER = '""'  # a quote still doubled after csv parsing was escaped twice
SHARED = "stands in dev or test"
COURSE, SAMPLE = "course", "sample"
UNCUT = 1 << 30  # tokens: more than any text has
BLOCK = 10_000  # sentences encoded at a time, so that the tokenizer's answers for Quora need no gigabyte
SHOWN = 3  # lines or errors that the text names; --json has them all
# Of count_tokens' answer: key, heading, width.
TOKEN_COLUMNS = (
    *(("min", "min", 5), ("median", "median", 7), ("95%", "95%", 5), ("max", "max", 5)),
    *(("sentences_cut", "cut", 5), ("tokens_lost", "lost", 6), ("unknown", "[UNK]", 7)),
)


# ---------------------------------------------------------------------------------------------------------------------
# Rows that stand in two files


def key(example: Example) -> str | tuple[str, str]:
    """What makes two rows the same: the sentence, or the pair in either order."""
    first, second = example.sentence, example.second
    if second is None:
        return first
    return (first, second) if first <= second else (second, first)


def shared_rows(train: Table, *others: Table) -> list[int]:
    """Indexes of the train rows whose sentence, or pair in either order, stands in one of the others."""
    elsewhere = {key(example) for table in others for example in table}
    return [index for index, example in enumerate(train) if key(example) in elsewhere]


def exclude_shared(train: Table, *others: Table) -> Table:
    """`train` without those rows, which are then among its dropped ones. Raises InputError if no row is left."""
    gone = set(shared_rows(train, *others))
    left = [example for index, example in enumerate(train) if index not in gone]
    if not left:
        raise InputError(f"{train.path}: every row {SHARED}; leave out --exclude_shared, or choose another train file")
    dropped = sorted([*train.dropped, *((train[index].line, SHARED) for index in gone)])
    return dataclasses.replace(train, examples=left, dropped=dropped)


# ---------------------------------------------------------------------------------------------------------------------
# Looking: every answer is what JSON can hold


def check_folder(folder: Path, tokenizer: BertTokenizer | None = None) -> dict:
    """All that is known of each task with a file in `folder`; `errors` lists what would make training fail.

    A file that can't be read is an error, and the others are looked at all the same. Without a tokenizer nothing is
    said of tokens. Raises InputError if no task's file is there.
    """
    held = [task for task in TASKS.values() if any((folder / name).exists() for name in task.files.values())]
    if not held:
        wanted = ", ".join(task.files["train"] for task in TASKS.values())
        raise InputError(f"{folder}: no task's file is there; wanted {wanted} or one of their dev and test files")
    tasks = {task.name: check_task(task, folder, tokenizer) for task in held}
    files = [file for task in tasks.values() for file in task["files"].values()]
    errors = [error for file in files for error in file["errors"]]
    if {COURSE, SAMPLE} <= {file.get("origin") for file in files}:
        errors.append(f"{folder}: some files are the course's and some the sample's; keep one of the two there")
    return {"folder": str(folder), "ok": not errors, "errors": errors, "tasks": tasks}


def check_task(task: Task, folder: Path, tokenizer: BertTokenizer | None) -> dict:
    """The task's three files, what they share, and how many train rows --exclude_shared would leave out."""
    files, tables = {}, {}
    there = [split for split in task.files if (folder / task.files[split]).exists() or not is_optional(task, split)]
    for split in there:
        name = task.files[split]
        files[split], table = check_file(task, split, folder / name, tokenizer)
        if table is not None:
            tables[split] = table
    shared = {
        f"{split} in {other}": compare(tables[split], tables[other], task.file_format == "course")
        for split, other in (("dev", "train"), ("test", "train"), ("dev", "test"))
        if split in tables and other in tables
    }
    others = [table for split, table in tables.items() if split != "train"]
    excludable = len(shared_rows(tables["train"], *others)) if "train" in tables else 0
    return {"title": task.title, "files": files, "shared": shared, "excludable_train_rows": excludable}


def check_file(task: Task, split: str, path: Path, tokenizer: BertTokenizer | None) -> tuple[dict, Table | None]:
    """What one file holds, and its rows; only its errors, and None, if it can't be read to its end."""
    faults: list[InputError] = []
    try:
        table = read_split(task, split, path, faults)
    except InputError as error:
        return {"path": str(path), "errors": [str(fault) for fault in (*faults, error)]}, None
    found = {
        "path": str(path),
        "errors": [str(fault) for fault in faults],
        "origin": origin(path),
        "sha256": table.sha256,
        "rows": len(table),
        "labels": None if split == "test" else count_labels(task, table),
        "blank": blanks(task, table),
        "quotes": quotes(table),
        "repeated": repeats(table),
        "tokens": count_tokens(table, tokenizer) if tokenizer and len(table) else None,
    }
    return found, table


def origin(path: Path) -> str | None:
    """Whose the file is, byte for byte: "course", "sample", the name of another course file, or None."""
    blob = blob_id(path)
    names = [name for name, known in BLOBS.items() if known == blob]
    if names:
        return COURSE if path.name in names else names[0]
    ours = DATA / "sample" / path.name
    return SAMPLE if ours.is_file() and sha256(ours) == sha256(path) else None


def count_labels(task: Task, table: Table) -> dict[str, int]:
    """label -> rows, smallest label first; all classes that the task has, of scores those that occur."""
    counts = Counter(example.label for example in table)
    low, high = task.label_range
    known = sorted(counts) if task.label_kind == "score" else range(int(low), int(high) + 1)
    return {str(label): counts[label] for label in known}


def blanks(task: Task, table: Table) -> dict[str, list[int]]:
    """column -> lines on which it is blank. Training leaves a row without a label out; one without a text stays."""
    texts = [[example.line for example in table if not example.sentence]]
    if task.is_pair:
        texts.append([example.line for example in table if not example.second])
    found = {task.label: [line for line, _ in table.dropped], **dict(zip(task.columns, texts, strict=True))}
    return {column: lines for column, lines in found.items() if lines}


def quotes(table: Table) -> dict:
    """How many sentences still hold a doubled quote, how many quotes mostly stand in a row, and the rows' lines."""
    lines, runs = [], Counter()
    for example in table:
        for text in (example.sentence, example.second or ""):
            if LEFT_OVER in text:
                lines.append(example.line)
                runs.update(len(run) for run in re.findall('""+', text))
    in_a_row = runs.most_common(1)[0][0] if runs else 0
    return {"sentences": len(lines), "in_a_row": in_a_row, "lines": list(dict.fromkeys(lines))}


def repeats(table: Table) -> dict:
    """Rows that an earlier row says already, as [line, earlier line]; other_label: how many contradict it."""
    first: dict = {}
    pairs = [(example, first.setdefault(key(example), example)) for example in table]
    pairs = [(example, earlier) for example, earlier in pairs if example is not earlier]
    return {
        "rows": len(pairs),
        "other_label": sum(example.label != earlier.label for example, earlier in pairs),
        "lines": [[example.line, earlier.line] for example, earlier in pairs],
    }


def compare(table: Table, other: Table, ids_are_names: bool = True) -> dict:
    """Rows of `table` that stand in `other`, as [line, line there]; its distinct sentences that do; ids that both have.

    sentences is None for single sentences, where rows says it. ids_are_names: not GLUE's, which are places in a file.
    """
    there: dict = {}
    for example in other:
        there.setdefault(key(example), example.line)
    lines = [[example.line, there[key(example)]] for example in table if key(example) in there]
    sentences = None
    if table and table[0].second is not None:
        here, elsewhere = ({text for e in rows for text in (e.sentence, e.second)} for rows in (table, other))
        sentences = len(here & elsewhere)
    ids = sorted({example.id for example in table} & {example.id for example in other}) if ids_are_names else []
    return {"rows": len(lines), "sentences": sentences, "lines": lines, "ids": ids}


def count_tokens(table: Iterable[Example], tokenizer: BertTokenizer) -> dict:
    """Lengths with [CLS] and [SEP], what the model's limit cuts off, and what its vocabulary doesn't know.

    median, 95%: the shortest length that half, or 95 %, of the sentences don't exceed. unknown: tokens that are [UNK].
    cut_lines, unknown_lines: lines of rows with a sentence that is cut, or with an unknown token. unknown_words: the
    ten most frequent words with one, and how often they occur.
    """
    texts = [(e.line, text) for e in table for text in (e.sentence, e.second) if text is not None]
    lines, sentences = [line for line, _ in texts], [text for _, text in texts]
    limit, unknown = tokenizer.model_max_length, tokenizer.unk_token_id
    lengths, unknown_tokens, unknown_lines, words = [], 0, [], Counter()
    for start in range(0, len(sentences), BLOCK):
        block = sentences[start : start + BLOCK]
        for sentence, ids in zip(block, tokenizer.encode_batch(block, max_length=UNCUT).ids, strict=True):
            if unknown in ids:
                unknown_lines.append(lines[len(lengths)])
                unknown_tokens += int(np.count_nonzero(ids == unknown))
                words.update(word for word in sentence.split() if "[UNK]" in tokenizer.tokenize(word))
            lengths.append(len(ids))
    excess = [length - limit for length in lengths if length > limit]
    median, long = (int(length) for length in np.quantile(lengths, (0.5, 0.95), method="inverted_cdf"))
    return {
        "sentences": len(lengths),
        "tokens": sum(lengths),
        "min": min(lengths),
        "median": median,
        "95%": long,
        "max": max(lengths),
        "limit": limit,
        "sentences_cut": len(excess),
        "cut_lines": list(dict.fromkeys(line for line, n in zip(lines, lengths, strict=True) if n > limit)),
        "tokens_lost": sum(excess),
        "unknown": unknown_tokens,
        "unknown_lines": list(dict.fromkeys(unknown_lines)),
        "unknown_words": dict(words.most_common(10)),
    }


# ---------------------------------------------------------------------------------------------------------------------
# Saying


def describe(report: dict) -> str:
    """The report for people: a table a task, below it what is worth a look, and the verdict in the last line."""
    lines, files = [], [file for task in report["tasks"].values() for file in task["files"].values()]
    for name, task in report["tasks"].items():
        lines.append(
            _row(f"{name:<8}{task['title']}", "rows", "label: rows", {k: head for k, head, _ in TOKEN_COLUMNS})
        )
        for split, file in task["files"].items():
            if "rows" in file:
                lines.append(_row(f"  {split}", f"{file['rows']:,}", _labels(file["labels"]), file["tokens"] or {}))
        lines += [*(f"  {kind:<20}{text}" for kind, text in _findings(task)), ""]
    of_files = [error for file in files for error in file["errors"]]
    lines += [f"error: {error}" for error in report["errors"] if error not in of_files]
    verdict = [
        f"{len(report['errors']):,} found that would stop training" if report["errors"] else "training can use these"
    ]
    for origin, whose in ((COURSE, "the course's"), (SAMPLE, "the bundled sample's")):
        number = sum(file.get("origin") == origin for file in files)
        verdict += [f"{number} of {len(files)} files are {whose}, byte for byte"] if number else []
    return "\n".join([*lines, "; ".join(verdict)])


def _row(name: str, rows: str, labels: str, tokens: dict) -> str:
    cells = "".join(
        f"{cell:>{width},}" if isinstance(cell := tokens.get(column, ""), int) else f"{cell:>{width}}"
        for column, _, width in TOKEN_COLUMNS
    )
    return f"{name:<26}{rows:>7}  {labels:<45}{cells}".rstrip()


def _labels(labels: dict[str, int] | None) -> str:
    """`0: 1092  1: 2218`; for many values `0.0 to 5.0, mean 2.65`."""
    if labels is None:
        return "without labels"
    if len(labels) <= 5:
        return "  ".join(f"{label}: {rows}" for label, rows in labels.items())
    values = [float(label) for label in labels]
    mean = sum(value * rows for value, rows in zip(values, labels.values(), strict=True)) / sum(labels.values())
    return f"{min(values)} to {max(values)}, mean {mean:.2f}"


def _findings(task: dict) -> list[tuple[str, str]]:
    """(kind, one line) of what is worth a look, the errors first."""
    files = {split: file for split, file in task["files"].items() if "rows" in file}
    shared = task["shared"]
    in_train = {split: shared[f"{split} in train"] for split in files if f"{split} in train" in shared}
    leave_out = f"; --exclude_shared leaves {task['excludable_train_rows']:,} train rows out"
    in_both = shared.get("dev in test", {"rows": 0})["rows"]
    kinds = [
        *(("error", error) for file in task["files"].values() for error in _errors(file)),
        ("another file's", _each(files, lambda f: f["origin"] if f["origin"] in BLOBS else "")),
        ("one-sided labels", _each(files, _one_sided)),
        ("blank", _each(files, lambda f: " and ".join(f"{c} on {_lines(at)}" for c, at in f["blank"].items()))),
        (f"{LEFT_OVER} in sentences", _each(files, _quotes)),
        ("rows said before", _each(files, _repeated)),
        ("rows in train", _each(in_train, lambda c: _number(c["rows"]), leave_out)),
        ("sentences in train", _each(in_train, lambda c: _number(c["sentences"]), " distinct ones, in whatever pair")),
        ("dev rows in test", _number(in_both)),
        ("ids in two files", _each(shared, lambda c: _some(c["ids"]))),
        ("[UNK] for", _each(files, _unknown)),
    ]
    return [(kind, text) for kind, text in kinds if text]


def _each(files: dict[str, dict], say: Callable[[dict], str], after: str = "") -> str:
    """`train 43, dev 4` and `after`: what `say` says of each; empty if it has nothing to say of any."""
    said = [f"{name} {text}" for name, file in files.items() if (text := say(file))]
    return ", ".join(said) + after if said else ""


def _errors(file: dict) -> list[str]:
    more = len(file["errors"]) - SHOWN
    return file["errors"][:SHOWN] + ([f"{file['path']}: {more:,} more, which --json lists"] if more > 0 else [])


def _one_sided(file: dict) -> str:
    """Classes without a row, or one label on all rows: the score is then undefined or says little."""
    labels = file["labels"] or {}
    there = [label for label, rows in labels.items() if rows]
    if len(there) == 1:
        return f"all {there[0]}"
    missing = [label for label, rows in labels.items() if not rows]
    return f"without {', '.join(missing)}" if missing else ""


def _repeated(file: dict) -> str:
    rows, other = file["repeated"]["rows"], file["repeated"]["other_label"]
    return _number(rows) + (f" ({other:,} with another label)" if other else "")


def _quotes(file: dict) -> str:
    number, in_a_row = file["quotes"]["sentences"], file["quotes"]["in_a_row"]
    return _number(number) + (f" (mostly {in_a_row} in a row)" if in_a_row > len(LEFT_OVER) else "")


def _unknown(file: dict) -> str:
    words = list(file["tokens"]["unknown_words"]) if file["tokens"] else []
    return " ".join(_printable(word) for word in words[:SHOWN])


def _number(number: int | None) -> str:
    """With commas; nothing for 0 or None."""
    return f"{number:,}" if number else ""


def _lines(lines: list[int]) -> str:
    return f"line{'s' * (len(lines) > 1)} {_some(lines)}" if lines else ""


def _some(items: list) -> str:
    """The first few: `12, 40, 77 and 9 more`."""
    more = len(items) - SHOWN
    return ", ".join(map(str, items[:SHOWN])) + (f" and {more:,} more" if more > 0 else "")


def _printable(word: str) -> str:
    """A word as a terminal can show it, not longer than ten characters."""
    return (word if len(word) <= 10 else f"{word[:10]}...") if word.isprintable() else ascii(word[:10])


# ---------------------------------------------------------------------------------------------------------------------
# The command


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="datasets.py",
        description="Check a folder of data files: exit code 1 if training would stop at one of them.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=26, width=120),
    )
    parser.add_argument(
        "--check",
        nargs="?",
        type=Path,
        metavar="DIR",
        help="the folder (default, also without --check: as for training, data/ if the course's files stand there, "
        "else data/sample)",
    )
    parser.add_argument("--json", action="store_true", help="all that was found, every line number, as JSON")
    parser.add_argument(
        "--model", help="whose tokens are counted: a name or a folder (default: what setup.sh put there)"
    )
    return parser


def choose_tokenizer(model: str | None) -> tuple[BertTokenizer | None, str]:
    """The model's tokenizer, and what is counted with it; None if no model was asked for and none is set up."""
    try:
        folder = locate(model)
    except InputError as error:
        if model is not None:
            raise
        return None, f"not counted: {error}"
    tokenizer = BertTokenizer.from_folder(folder)
    return tokenizer, (
        f"a sentence, of {folder.name}, with [CLS] and [SEP]; one of more than {tokenizer.model_max_length} is cut, "
        "the rest of it lost"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the check; returns the exit code. Errors of input are one line on stderr."""
    args = build_parser().parse_args(arguments)
    try:
        folder, why = choose_data(args.check)
        folder = Path(short(folder))
        tokenizer, tokens = choose_tokenizer(args.model)
        report = {"why": why, "tokens": tokens, **check_folder(folder, tokenizer)}
        if args.json:
            answer(json.dumps(report))
        else:
            answer(f"data    {folder}: {why}\ntokens  {tokens}\n")
            answer(describe(report))
    except (InputError, OSError) as error:
        return refuse(error)
    return 0 if report["ok"] else 1
