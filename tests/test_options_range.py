"""Every option of every command with values that no option should take: one line names the fault, and nothing breaks.

The options are the parsers' own, so that a new one is tried, too. A value that is taken all the same meets an input
that isn't there, or a small one.
"""

import argparse
import contextlib
import io
import json
import math
import shutil
from pathlib import Path

import pytest
from conftest import ROOT, write_rows

import command_line
import comparison
import contrastive
import contrastive_options
import contrastive_training
import course_data
import data_check
import export
import multitask_classifier
import options
import predict
import prepare_submit
import report
import reproduce
import result_row
import search_command
import sts_evaluation

HUGE = "9" * 5000
NUMBERS = (
    "-1",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "-1e400",
    "",
    " ",
    "x",
    "1.5",
    "0x10",
    str(10**30),
    HUGE,
    "\u0663",
    "1,2",
)
WORDS = (
    "",
    " ",
    "x",
    "x=",
    "=",
    "=1",
    "x=1,x=1",
    ",",
    HUGE,
    "\udcff",
    "../..",
    "/dev/null",
    "-",
    "sst=-1",
    "0.5",
    "nan",
)


class Parsed(Exception):
    """A parser that was caught before it could read anything."""


def parser_of(main, *arguments):
    """The parser that a command makes for itself."""
    found = []

    def parse(parser, *_, **__):
        found.append(parser)
        raise Parsed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse)
        with pytest.raises(Parsed):
            main(list(arguments))
    return found[0]


def made(add_options):
    parser = argparse.ArgumentParser()
    add_options(parser)
    return parser


def subparser(parser, name):
    (actions,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return actions.choices[name]


@pytest.fixture
def root(tmp_path, monkeypatch, tiny_folder):
    """A folder that the commands take for the repository's: a tiny model, a few rows, a corpus and its index."""
    root = tmp_path / "root"
    write_rows(root / "data" / "sample")
    shutil.copytree(tiny_folder, root / "tiny")
    for module in (multitask_classifier, options, contrastive_training, result_row, prepare_submit):
        monkeypatch.setattr(module, "ROOT", root)
    monkeypatch.setattr(course_data, "DATA", root / "data")
    monkeypatch.chdir(root)
    (root / "corpus.txt").write_text("a film\na cat\n")
    (root / "beir").mkdir()
    for name in ("corpus", "queries"):
        (root / "beir" / f"{name}.jsonl").write_text(json.dumps({"_id": "1", "text": "a film"}) + "\n")
    (root / "beir" / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n1\t1\t1\n")
    return root


SEARCH = ("search", "index", "corpus.txt", "--index", "index", "--model", "tiny")
QUERY = ("search", "query", "film", "--index", "index", "--model", "tiny")
JUDGE = ("search", "evaluate", "beir", "--model", "tiny")
EVALUATE = ("evaluate", "tiny", "--data", "data/sample")
SHORT = ("--model", "tiny", "--data", "nowhere")  # what is taken ends there

# Name -> the command, the parser whose options it has, and what else is typed.
COMMANDS = {
    "multitask_classifier.py": (multitask_classifier.main, command_line.build_parser, SHORT),
    "contrastive.py train": (contrastive.main, lambda: made(contrastive_options.add_options), ("train", *SHORT)),
    "contrastive.py evaluate": (contrastive.main, lambda: made(sts_evaluation.add_options), EVALUATE),
    "search index": (contrastive.main, lambda: subparser(made(search_command.add_options), "index"), SEARCH),
    "search query": (contrastive.main, lambda: subparser(made(search_command.add_options), "query"), QUERY),
    "search evaluate": (contrastive.main, lambda: subparser(made(search_command.add_options), "evaluate"), JUDGE),
    "datasets.py": (data_check.main, data_check.build_parser, ("--check", "nowhere")),
    "reproduce.py": (
        reproduce.main,
        lambda: parser_of(reproduce.parse),
        ("table1", "--print", "--model", "tiny", "--data", "data/sample", "--runs", "none"),
    ),
    "prepare_submit.py": (
        lambda given: prepare_submit.main(given, Path.cwd()),
        lambda: parser_of(prepare_submit.main),
        (),
    ),
    "predict.py": (predict.main, predict.build_parser, ("nowhere", "a film")),
    "export.py": (export.main, export.build_parser, ("nowhere", "new")),
    "comparison.py": (comparison.main, lambda: subparser(comparison.build_parser(), "errors"), ("errors", "nowhere")),
    "compare": (comparison.main, lambda: subparser(comparison.build_parser(), "compare"), ("compare", "nowhere", "no")),
    "report.py": (report.main, lambda: parser_of(report.main), ("nowhere",)),
    "result_row.py": (result_row.main, lambda: parser_of(result_row.main), ("nowhere",)),
}


# What would fetch from a network, and what takes one of a list of names.
ELSEWHERE = {"fetch.py", "weights.py"}


def test_every_command_is_tried():
    """data_check.py is the command of datasets.py."""
    found = {path.name for path in ROOT.glob("*.py") if "\ndef main(" in path.read_text(encoding="utf-8")}
    tried = {name.split()[0] for name in COMMANDS} | {"data_check.py"}
    assert found - ELSEWHERE <= tried


def outcome(main, arguments):
    """(exit code, what stands on stderr), which writes half a surrogate pair as Python's own does."""
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = ended.code
        said.flush()
    return code, said.buffer.getvalue().decode()


@pytest.mark.parametrize("name", COMMANDS)
def test_values_that_no_option_should_take(name, root):
    main, parser, others = COMMANDS[name]
    if name == "search query":
        assert outcome(main, [*SEARCH])[0] == 0
    tried, faults = 0, []
    for action in parser()._actions:
        if not action.option_strings or action.nargs == 0 or action.dest == "help":
            continue
        number = action.type in (int, float)
        for value in NUMBERS if number else WORDS:
            given, option = [*others, f"{action.option_strings[-1]}={value}"], action.option_strings[-1]
            if action.nargs in ("+", "*"):
                given = [*others, option, f" {value}" if value.startswith("-") else value]
            tried += 1
            try:
                code, said = outcome(main, given)
            except BaseException as error:
                faults.append(f"{option} {value[:20]!r}: {type(error).__name__}: {str(error)[:200]}")
                continue
            errors = [line for line in said.splitlines() if "error: " in line]
            if code not in (0, 1, 2) or (code and not errors) or "Traceback" in said:
                faults.append(f"{option} {value[:20]!r}: exit code {code}, {said[-300:]!r}")
            wrong = number and (not is_finite(value) or (action.type is int and value == "-1"))
            if wrong and (code == 0 or option.lstrip("-").replace("-", "_") not in errors[0].replace("-", "_")):
                faults.append(f"{option} {value[:20]!r}: taken, or the message does not name it: {said[-300:]!r}")
    assert tried > 0 or name == "result_row.py"
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_of_several_values_may_be_said_twice(name):
    """Both count: argparse's own would take the last and drop the others without a word."""
    for action in COMMANDS[name][1]()._actions:
        if action.option_strings and action.nargs in ("+", "*"):
            parser = argparse.ArgumentParser()
            parser._add_action(action)
            given = ["7", "8", "9"] if action.type is int else ["a", "b", "c"]
            option = action.option_strings[-1]
            found = vars(parser.parse_args([option, given[0], option, *given[1:]]))[action.dest]
            assert list(map(str, found)) == given, option


def is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


PLACES = {
    "predict.py RUN": lambda value: predict.main([value, "a film"]),
    "predict.py TEXT": lambda value: predict.main(["nowhere", value]),
    "export.py RUN": lambda value: export.main([value, "new"]),
    "export.py FOLDER": lambda value: export.main(["nowhere", value]),
    "result_row.py RUN": lambda value: result_row.main([value]),
    "contrastive.py evaluate MODEL": lambda value: contrastive.main(["evaluate", value, "--data", "data/sample"]),
    "search index CORPUS": lambda value: contrastive.main(["search", "index", value, "--index", "i"]),
    "search query TEXT": lambda value: contrastive.main(["search", "query", value, "--index", "nowhere"]),
    "search evaluate DIR": lambda value: contrastive.main(["search", "evaluate", value, "--model", "tiny"]),
    "reproduce.py TABLE": lambda value: reproduce.main([value, "--print"]),
}


@pytest.mark.parametrize("name", PLACES)
def test_names_that_nothing_has(name, root):
    faults = []
    for value in ("", " ", HUGE, "x" * 300, "\udcff", "../..", "/dev/null", "nowhere/at/all"):
        try:
            code, said = outcome(PLACES[name], value)
        except BaseException as error:
            faults.append(f"{value[:20]!r}: {type(error).__name__}: {str(error)[:200]}")
            continue
        if code not in (1, 2) or "error: " not in said:
            faults.append(f"{value[:20]!r}: exit code {code}, {said[-300:]!r}")
    assert not faults, "\n".join(faults)
