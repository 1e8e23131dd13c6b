"""predict.py as its users meet it: texts, pairs, pipes, CSV and JSONL of any columns, a prompt, and every refusal."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import predict
from files import write_json
from model import ModelConfig, MultitaskBERT
from similarity_scale import Scale, write_scales

ROOT = Path(predict.__file__).parent
SST = ["sst", "sst_words", "sst_p0", "sst_p1", "sst_p2", "sst_p3", "sst_p4"]


@pytest.fixture
def run(tmp_path, tiny, tiny_tokenizer, monkeypatch):
    """runs/first below a folder that the command takes for the repository's, and is started in."""
    root = tmp_path / "root"
    folder = root / "runs" / "first"
    torch.manual_seed(0)
    MultitaskBERT(ModelConfig.for_tasks(), tiny()).save_pretrained(folder / "best")
    tiny_tokenizer.save_pretrained(folder / "best")
    write_scales(folder / "best", {"sts": Scale(0.01, 2.0, 3, 0.5)})
    write_json(folder / "config.json", {"command": "multitask_classifier.py"})
    monkeypatch.setattr(predict, "ROOT", root)
    monkeypatch.chdir(root)
    return folder


@pytest.fixture
def ask(run, capsys, monkeypatch):
    """ask(*arguments, stdin=None) -> (code, out, err) of the command for that run."""

    def ask(*arguments, stdin=None, run=str(run)):
        capsys.readouterr()
        typed = io.TextIOWrapper(io.BytesIO((stdin or "").encode()), encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", typed)
        code = predict.main([*([run] if run else []), "--device", "cpu", *map(str, arguments)])
        return code, *capsys.readouterr()

    return ask


def said(ask, *arguments, **more):
    code, out, err = ask(*arguments, **more)
    assert code == 0, err
    return out


def refused(ask, *arguments, **more):
    code, out, err = ask(*arguments, **more)
    assert code == 1 and out == "" and err.startswith("error: ") and err.count("\n") == 1, err
    return err


def test_a_text_and_a_pair(ask):
    (line,) = said(ask, "The film wasn't bad!").splitlines()
    assert line.startswith("sentiment (SST-5)") and line.count(" 0.") == 6
    paraphrase, similarity = said(ask, "a cat", "a dog").splitlines()
    assert paraphrase.startswith("paraphrase (Quora)") and similarity.endswith(", from 0 to 5")
    assert said(ask, "a cat", "a dog", "--tasks", "sts") == similarity + "\n"


def test_what_it_looks_at(ask):
    lines = said(ask, "the film was dull", "--explain").splitlines()
    assert lines[1].startswith("  attention layer 2 of 2, [CLS]: [CLS] 0.") and "  dull 0." in lines[1]
    pair = said(ask, "a cat", "the dog", "--explain", "--tasks", "para").splitlines()
    assert "what the first text takes of the second: [CLS] 0." in pair[1] and "  dog 0." in pair[1]
    assert "what the second text takes of the first: [CLS] 0." in pair[2] and "  cat 0." in pair[2]


def test_weights_that_prefer_no_word_are_said_to_be_even(ask, tmp_path, tiny, tiny_tokenizer):
    model = MultitaskBERT(ModelConfig.for_tasks(["sst"]), tiny())
    with torch.no_grad():  # of queries that are 0 every score is
        for name, parameter in model.heads["sst"].named_parameters():
            if "query" in name:
                parameter.zero_()
    model.save_pretrained(tmp_path / "even")
    tiny_tokenizer.save_pretrained(tmp_path / "even")
    even = said(ask, "the film was dull", "--explain", run=str(tmp_path / "even")).splitlines()[1]
    assert even.count(" 0.17") == 6 and even.endswith("  (nearly even: none stands out)")
    assert "even" not in said(ask, "the film was dull", "--explain")


def test_a_pooler_takes_of_its_own_text(ask, tmp_path, tiny, tiny_tokenizer):
    config = ModelConfig.for_tasks(["para"], attention={"para": 0}, pooler="attentive_cls")
    MultitaskBERT(config, tiny()).save_pretrained(tmp_path / "own")
    tiny_tokenizer.save_pretrained(tmp_path / "own")
    lines = said(ask, "a cat", "the dog", "--explain", run=str(tmp_path / "own")).splitlines()
    assert "for the first text: " in lines[1] and "  cat 0." in lines[1] and "  dog 0." in lines[2]


def test_of_a_pair_read_both_ways_each_sequence_has_its_line(ask, tmp_path, tiny, tiny_tokenizer):
    config = ModelConfig.for_tasks(
        ["para"], attention={"para": 0}, pooler="attentive_cls", pair_encoding="both", pair_score="cosine"
    )
    MultitaskBERT(config, tiny()).save_pretrained(tmp_path / "both")
    tiny_tokenizer.save_pretrained(tmp_path / "both")
    lines = said(ask, "a cat", "the dog", "--explain", run=str(tmp_path / "both")).splitlines()
    for line, whose in zip(lines[1:], ("the first text", "the second text", "both as one sequence"), strict=True):
        assert f", for {whose}: " in line
    assert "  cat 0." in lines[3] and "  dog 0." in lines[3]


def test_a_pooler_that_weighs_nothing_says_so(ask, tmp_path, tiny, tiny_tokenizer):
    MultitaskBERT(ModelConfig.for_tasks(["sst"], attention={"sst": 0}), tiny()).save_pretrained(tmp_path / "mean")
    tiny_tokenizer.save_pretrained(tmp_path / "mean")
    lines = said(ask, "a cat", "--explain", run=str(tmp_path / "mean")).splitlines()
    assert lines[0].startswith("sentiment") and lines[1].startswith("  no weights: pooler mean of sst weighs no tokens")


def test_a_run_that_is_named_and_unfinished_is_said_to_be(ask, run):
    write_json(run / "config.json", {"command": "multitask_classifier.py", "options": {}})
    for named in (str(run), str(run / "best"), "first"):
        assert "which is unfinished: its best model so far\n" in ask("a film", run=named)[2]
    write_json(run / "scores.json", {})
    assert ask("a film")[2] == ""


def test_a_standard_input_that_is_closed_is_said_to_be(ask, monkeypatch):
    monkeypatch.setattr(io, "TextIOWrapper", lambda *arguments, **more: None)  # what `<&-` makes of sys.stdin
    assert "standard input is closed: give a TEXT, or a file with --input" in refused(ask)


def test_lines_through_a_pipe(ask):
    lines = said(ask, stdin="dull\r\n\n  a good film\n").splitlines()
    assert lines[0] == "dull" and lines[2] == "a good film" and len(lines) == 4
    assert lines[1] == "  " + said(ask, "dull").rstrip("\n")
    pairs = said(ask, "--explain", stdin="a cat\ta dog\n").splitlines()
    assert pairs[0] == "a cat\ta dog" and len(pairs) == 7
    assert "line 2: a single text after pairs" in refused(ask, stdin="a\tb\nc\n")
    assert "line 1: 2 tabs" in refused(ask, stdin="a\tb\tc\n")
    assert "standard input: no rows in it" in refused(ask, stdin="\n")


def read(text, delimiter=","):
    header, *rows = csv.reader(io.StringIO(text), delimiter=delimiter)
    return header, rows


def test_csv_of_any_columns(ask, tmp_path):
    path, out = tmp_path / "reviews.csv", tmp_path / "judged.csv"
    path.write_text('﻿stars,what they said\r\n5,"a good film, very\r\ngood"\r\n1,"""bad"""\r\n3, \u200b \r\n')
    code, nothing, err = ask("--input", path, "--columns", "what they said", "--output", out)
    assert (code, nothing) == (0, "") and err == f"3 rows, sst: {out}\n1 row without text: no answer\n"
    header, rows = read(out.read_bytes().decode())
    assert header == ["stars", "what they said", *SST]
    assert [row[:2] for row in rows] == [["5", "a good film, very\r\ngood"], ["1", '"bad"'], ["3", " \u200b "]]
    assert rows[2][2:] == [""] * 7
    for row in rows[:2]:
        chances = list(map(float, row[4:]))
        assert sum(chances) == pytest.approx(1, abs=1e-3) and chances[int(row[2])] == max(chances)
    assert said(ask, "--input", path, "--columns", "what they said", "--quiet") == out.read_bytes().decode()
    assert ask("--input", path, "--columns", "what they said", "--quiet")[2] == ""


def test_a_pair_s_columns_and_other_separators(ask, tmp_path):
    path = tmp_path / "questions.tsv"
    path.write_text("\tid\tsentence1\tsentence2\n0\tx\ta cat\tthe dog\n")
    header, rows = read(said(ask, "--input", path), "\t")
    assert header == ["", "id", "sentence1", "sentence2", "para", "para_words", "para_p0", "para_p1", "sts"]
    assert 0 <= float(rows[0][-1]) <= 5
    path.write_text("b;a\nthe dog;a cat\n")
    _, again = read(said(ask, "--input", path, "--format", "csv", "--columns", "a", "b"), ";")
    assert again[0][2:] == rows[0][4:]
    assert read(said(ask, "--format", "csv", "--tasks", "sst", stdin="only\na cat\n"))[0] == ["only", *SST]
    assert read(said(ask, "--format", "csv", "--tasks", "sst", stdin="\n \r\nonly\na cat\n"))[0] == ["only", *SST]


def test_jsonl(ask, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"n": 1, "text": "a good film é"}\n\n{"text": " ", "n": [2]}\n')
    first, second = map(json.loads, said(ask, "--input", path).splitlines())
    assert (first["n"], first["text"]) == (1, "a good film é") and second == {"text": " ", "n": [2], "sst": None}
    chances = first["sst"]["probabilities"]
    assert list(chances) == ["negative", "somewhat negative", "neutral", "somewhat positive", "positive"]
    assert first["sst"]["words"] == max(chances, key=chances.get)
    path.write_text('{"a": "cat", "b": "dog"}\n')
    (row,) = map(json.loads, said(ask, "--input", path, "--columns", "a", "b").splitlines())
    assert set(row) == {"a", "b", "para", "sts"} and list(row["sts"]) == ["value"]


@pytest.mark.parametrize(
    "name, content, arguments, message",
    (
        ("x.csv", "a,b\n1,2\n", (), "x.csv, line 1: which columns hold the text? found 'a', 'b'; name one, or two"),
        ("x.csv", "a,b\n1,2\n", ("--columns", "c"), "x.csv, line 1: no column 'c'; found 'a', 'b'; name one of these"),
        ("x.csv", "\n \na,b\n1,2\n", ("--columns", "c"), "x.csv, line 3: no column 'c'; found 'a', 'b'"),
        ("x.csv", "\na,b\n1,2\n1\n", ("--columns", "a"), "x.csv, line 4: 1 columns, wanted 2 as in the header"),
        ("x.csv", "a,b\n1,2\n", ("--columns", "a", "b", "a"), "name one column for single texts, or two"),
        ("x.csv", "a,b\n1,2,3\n", ("--columns", "a"), "x.csv, line 2: 3 columns, wanted 2 as in the header"),
        ("x.csv", 'a,b\n1,"2\n', ("--columns", "a"), "is a quote opened there and never closed?"),
        ("x.csv", "text,sst\na,b\n", (), "has a column 'sst' already"),
        ("x.csv", "text,text\na,b\n", (), "column 'text' stands there twice"),
        ("x.csv", "", (), "which columns hold the text? there is no header"),
        ("x.csv", "text\n", (), "no rows in it"),
        ("x.csv", "text\na\n", ("--explain",), "read as csv, which has no place for it"),
        ("x.csv", "text\na\n", ("--tasks", "sts"), "which columns hold the text?"),
        ("x.csv", "p\na\n", ("--tasks", "sts", "--columns", "p"), "a single text, wanted a pair for sts: give two"),
        ("x.jsonl", '{"text": 3}\n', (), "x.jsonl, line 1: 'text' is 3, wanted text"),
        ("x.jsonl", '{"text": "a"}\n{"b": "a"}\n', (), "x.jsonl, line 2: 'text' is missing"),
        ("x.jsonl", "{\n", (), "x.jsonl, line 1: not JSON"),
        ("x.jsonl", '{"text": "a", "n": NaN}\n', (), "x.jsonl, line 1: not JSON (NaN is no finite number)"),
        ("x.jsonl", '{"text": "a", "n": 1e999}\n', (), "x.jsonl, line 1: not JSON (1e999 is no finite number)"),
        ("x.jsonl", "[1]\n", (), "x.jsonl, line 1: [1], wanted an object"),
        ("x.jsonl", '{"text": "a", "sst": 1}\n', (), "has a column 'sst' already"),
        ("x.txt", "a\n", ("--columns", "b"), "is read as text, which has none"),
        ("x.txt", "a\0b\n", (), "a NUL character, so not text"),
    ),
)
def test_files_that_cannot_be_read(ask, tmp_path, name, content, arguments, message):
    (tmp_path / name).write_text(content)
    assert message in refused(ask, "--input", tmp_path / name, "--output", tmp_path / "out", *arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root", name]


@pytest.mark.parametrize(
    "arguments, message",
    (
        (("a", "b", "c"), "3 texts: one is judged alone, two as a pair"),
        ((" ",), "the text is blank"),
        (("\u200b",), "the text is blank"),
        (("a", "--input", "x"), "a TEXT and --input"),
        (("a", "--output", "x"), "--output: for files"),
        (("a", "--tasks", "cola"), "--tasks cola: this model has no head for cola; it has sst, para, sts"),
        (("a", "--tasks", "sts"), "a single text, wanted a pair for sts: give two"),
        (("a", "b", "--tasks", "sst"), "a pair of texts, wanted a single one for sst: give one"),
        (("--input", "nowhere.csv"), "cannot read nowhere.csv"),
        (("--input", "x", "--output", "x"), "would overwrite the input"),
    ),
)
def test_what_cannot_be_asked(ask, arguments, message):
    assert message in refused(ask, *arguments)


def test_the_newest_run_is_asked_where_none_is_named(ask, run, tiny, tiny_tokenizer):
    (run.parent / "newer").mkdir()
    write_json(run.parent / "newer" / "config.json", {"command": "multitask_classifier.py"})  # has no model yet
    write_json(run / "scores.json", {})
    newest = f"model   {Path('runs', 'first')}, the newest run"
    code, out, err = ask("--tasks", "sst", stdin="a cat\n", run=None)
    assert code == 0 and err == newest + "\n" and len(out.splitlines()) == 2
    (run / "scores.json").unlink()
    write_json(run / "config.json", {"command": "multitask_classifier.py", "options": {}})
    assert ask(stdin="a cat\n", run=None)[2] == newest + ", which is unfinished: its best model so far\n"
    for path in run.glob("best/*"):
        path.unlink()
    assert "no run with a model in runs: train one" in refused(ask, stdin="a cat\n", run=None)


@pytest.mark.parametrize("options", [("--columns", "text"), ("--format", "jsonl")])
def test_options_of_files_are_refused_beside_a_text(ask, options):
    assert f"{options[0]}: for files" in refused(ask, "a good film", *options)


@pytest.mark.parametrize("options", [("--output", "x.csv"), ("--columns", "text"), ("--format", "jsonl")])
def test_options_of_files_are_refused_at_the_prompt(ask, options, monkeypatch):
    class Terminal(io.TextIOWrapper):
        def isatty(self):
            return True

    monkeypatch.setattr(io, "TextIOWrapper", Terminal)
    assert f"{options[0]}: for files" in refused(ask, *options, stdin="a good film\n")


def test_an_untrained_model_is_said_to_be_one(ask, run):
    write_json(run / "config.json", {"command": "multitask_classifier.py", "options": {"epochs": 0}})
    write_json(run / "scores.json", {})
    assert "the newest run, which is untrained\n" in ask("a good film", run=None)[2]
    assert ask("a good film")[2].endswith(", which is untrained\n")
    write_json(run / "config.json", {"command": "multitask_classifier.py", "options": {"epochs": 1}})
    assert "the newest run\n" in ask("a good film", run=None)[2]


def test_a_text_in_the_place_of_the_run_asks_the_newest(ask, run, tmp_path, monkeypatch):
    monkeypatch.setattr("predictor.ROOT", run.parent.parent)
    code, out, err = ask("a good film", run=None)
    assert code == 0 and "the newest run" in err and out == said(ask, "a good film")
    assert said(ask, "a good cat", "dogs", run=None) == said(ask, "a good cat", "dogs")
    assert said(ask, "a good film " * 30, run=None)  # no file system has such a name
    assert "dull: no run there" in refused(ask, "dull", run=None)
    run.rename(run.parent / "my first")
    for name in ("my first", str(run.parent / "my first")):
        assert said(ask, "dull", run=name).startswith("sentiment")
    (tmp_path / "some folder").mkdir()
    assert "no run there" in refused(ask, "dull", run=str(tmp_path / "some folder"))


def test_long_texts_are_counted(ask):
    assert ask("cat " * 50)[2] == "1 text cut, being longer than the model reads\n"


@pytest.mark.parametrize("arguments, stdin", [(["a text"], None), (["--tasks", "sst"], "a text\nanother\n")])
def test_answers_that_find_no_place_are_an_error(ask, monkeypatch, arguments, stdin):
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        code, _, err = ask(*arguments, stdin=stdin)
        assert code == 1 and "cannot write what was asked for: No space left on device" in err


def test_the_prompt(ask, run, capsys):
    predictor = predict.Predictor.load(run)
    typed = iter(["a cat", "a dog", "dull", "", ""])
    predict.prompt(predictor, predictor.tasks, False, lambda question: next(typed))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" ")[0] for line in lines[1:]] == ["paraphrase", "similarity", "sentiment"]
    typed = iter(["a cat", "", "a cat", "a dog"])

    def ask_of_pairs(question):
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    predict.prompt(predictor, [task for task in predictor.tasks if task.name == "sts"], True, ask_of_pairs)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("two texts; an empty line ends") and lines[1] == "a pair has two texts"
    assert lines[2].startswith("similarity") and len(lines) == 5


@pytest.mark.skipif(os.name == "nt", reason="a terminal is made by the pty module, which Windows lacks")
def test_alone_on_a_terminal_it_asks(run):
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, str(ROOT / "predict.py"), str(run), "--device", "cpu", "--tasks", "sst"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=run)
    os.close(theirs)
    shown, until = b"", time.monotonic() + 120
    asked = 0
    while time.monotonic() < until:
        try:
            shown += os.read(ours, 1000)
        except OSError:  # the other side is closed
            break
        if shown.count(b"text> ") > asked:
            asked = shown.count(b"text> ")
            os.write(ours, b"a good film\n" if asked == 1 else b"\n")
    os.close(ours)
    assert process.wait(timeout=60) == 0, shown
    assert b"a text; an empty line ends" in shown and b"sentiment (SST-5)" in shown
