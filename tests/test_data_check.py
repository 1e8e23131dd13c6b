"""The data check: what it looks for, each on files written here; the command; and the numbers of the course's files.

The expectations for the latter are what others counted in them: "sts-train shares 16 pairs with dev and 19 with test;
it has 43 internal duplicates", "810 quora-dev sentences still hold two quotes", two rows of it with blank labels.
"""

import csv
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import course_data
import data_check
import multitask_classifier
from course_data import choose_data
from data_check import check_folder, count_tokens, describe, exclude_shared, main, shared_rows
from datasets import Example, read_examples
from errors import InputError
from job import read_data
from options import get_args
from reporting import describe_data
from tasks import PARA, SST, STS, TASKS

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "data" / "sample"
PAIR = STS.columns


def write(folder, task, split, rows):
    """A data file as the course writes it. rows: (sentence, label) or (sentence1, sentence2, label); test without."""
    rows = [row if len(row) > len(task.columns) else (*row, None) for row in rows]
    header = ["", "id", *task.columns, *([] if split == "test" else [task.label])]
    with open(folder / task.files[split], "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(header)
        for number, row in enumerate(rows):
            writer.writerow([number, f"{task.name}{split}{number}", *row][: len(header)])


@pytest.fixture
def sst(tmp_path):
    """sst(train=..., dev=..., test=...) -> a folder with that task; what is not given is a row of its own."""
    return lambda **splits: _folder(tmp_path, SST, splits, [("a fine film .", 3), ("dull .", 1), ("what ?", 2)])


@pytest.fixture
def sts(tmp_path):
    return lambda **splits: _folder(
        tmp_path, STS, splits, [("A cat.", "A dog.", 2.5), ("One.", "Two.", 1.0), ("Why?", "How?", 0.0)]
    )


def _folder(folder, task, splits, rows):
    for split, row in zip(task.files, rows, strict=True):
        write(folder, task, split, splits.get(split, [row]))
    return folder


def files(folder, task="sst", **options):
    return check_folder(folder, **options)["tasks"][task]["files"]


# ---------------------------------------------------------------------------------------------------------------------
# What a file holds


def test_rows_and_label_counts(sst):
    report = check_folder(sst(train=[("a", 0), ("b", 4), ("c", 4)]))
    assert report["ok"] and report["errors"] == [] and list(report["tasks"]) == ["sst"]
    train, dev, test = report["tasks"]["sst"]["files"].values()
    assert (train["rows"], dev["rows"], test["rows"]) == (3, 1, 1)
    assert train["labels"] == {"0": 1, "1": 0, "2": 0, "3": 0, "4": 2}
    assert test["labels"] is None
    said = describe(report)
    assert "0: 1  1: 0  2: 0  3: 0  4: 2" in said and "without labels" in said
    assert "one-sided labels    train without 1, 2, 3, dev all 1" in said


def test_scores_are_told_by_range_and_mean(sts):
    report = check_folder(sts(train=[(f"a {i}", "b", i / 2) for i in range(8)]))
    assert report["tasks"]["sts"]["files"]["train"]["labels"] == {str(i / 2): 1 for i in range(8)}
    assert "0.0 to 3.5, mean 1.75" in describe(report)


def test_blanks_are_named_with_their_lines(sts):
    folder = sts(train=[("a", "b", 1.0), ("c", "d", " "), ("", "e", 2.0), ("f", " ", 3.0), ("g", "h", "")])
    report = check_folder(folder)
    train = report["tasks"]["sts"]["files"]["train"]
    assert train["rows"] == 3 and report["ok"]  # training leaves the two without a label out
    assert train["blank"] == {"similarity": [3, 6], "sentence1": [4], "sentence2": [5]}
    said = describe(report)
    assert "blank               train similarity on lines 3, 6 and sentence1 on line 4 and sentence2 on line 5" in said


def test_quotes_escaped_twice(sts):
    rows = [('say ""hi"" now', 'say "hi"', 1.0), ('""a"" and ""b""', '""c""', 2.0), ("d", "e", 3.0)]
    folder = sts(train=rows, test=[('""""four""""', "x")])
    found = files(folder, "sts")
    assert found["train"]["quotes"] == {"sentences": 3, "in_a_row": 2, "lines": [2, 3]}
    assert found["test"]["quotes"] == {"sentences": 1, "in_a_row": 4, "lines": [2]}
    assert found["dev"]["quotes"] == {"sentences": 0, "in_a_row": 0, "lines": []}
    assert '"" in sentences     train 3, test 1 (mostly 4 in a row)' in describe(check_folder(folder))


def test_rows_said_before(sts):
    rows = [("A cat.", "A dog.", 2.0), ("a dog .", "a  CAT.", 2.0), ("A cat.", "A dog.", 4.0), ("a dog.", "b", 2.0)]
    folder = sts(train=rows)
    assert files(folder, "sts")["train"]["repeated"] == {"rows": 2, "other_label": 1, "lines": [[3, 2], [4, 2]]}
    assert "rows said before    train 2 (1 with another label)" in describe(check_folder(folder))


def test_lengths_cuts_and_unknown_words(tiny_tokenizer):
    # Lengths 3, 4, 8 and 2 + 30; the limit is 24, so the last loses 8.
    texts = ["cat", "the cat", "the zebra 's zebra bright", "cat " * 30]
    assert count_tokens([Example(str(i), text, None, None, i + 2) for i, text in enumerate(texts)], tiny_tokenizer) == {
        "sentences": 4,
        "tokens": 3 + 4 + 8 + 32,
        "min": 3,
        "median": 4,
        "95%": 32,
        "max": 32,
        "limit": 24,
        "sentences_cut": 1,
        "tokens_lost": 8,
        "cut_lines": [5],
        "unknown": 4,
        "unknown_lines": [4],
        "unknown_words": {"zebra": 2, "'s": 1},
    }


def test_a_pair_s_lines_are_named_once(tiny_tokenizer):
    pairs = [("cat", "dog"), ("cat " * 30, "zebra " * 30), ("zebra", "cat"), ("dog", "cat " * 23)]
    found = count_tokens([Example(str(i), a, b, None, i + 2) for i, (a, b) in enumerate(pairs)], tiny_tokenizer)
    assert (found["sentences_cut"], found["cut_lines"], found["unknown_lines"]) == (3, [3, 5], [3, 4])


def test_blocks_change_nothing(tiny_tokenizer, monkeypatch):
    rows = [Example(str(n), "cat " * n if n % 2 else "zebra", None, None, n) for n in range(50)]
    whole = count_tokens(rows, tiny_tokenizer)
    monkeypatch.setattr(data_check, "BLOCK", 7)
    assert count_tokens(rows, tiny_tokenizer) == whole


def test_tokens_in_the_text(sst, tiny_tokenizer):
    folder = sst(train=[("the zebra sat " + "on " * 40, 3), ("cat \u202ezebra" + "a" * 30, 3)])
    report = check_folder(folder, tiny_tokenizer)
    said = describe(report)
    assert [line for line in said.splitlines() if line.startswith("  train ")][0].split()[-7:] == (
        "4 4 45 45 1 21 2".split()
    )
    assert "[UNK] for           train zebra '\\u202ezebraaaaa'" in said
    assert "[UNK]" in said and files(folder)["train"]["tokens"] is None  # without a tokenizer


# ---------------------------------------------------------------------------------------------------------------------
# What two files share


def test_single_sentences_shared(sst):
    folder = sst(
        train=[("A fine film .", 3), ("good", 3), ("a FINE film .", 4), ("bad", 1), ("seen in test", 0)],
        dev=[("a fine film .", 3), ("new", 1), ("A fine film . ", 2)],
        test=[("seen in test",), ("new",)],
    )
    task = check_folder(folder)["tasks"]["sst"]
    assert task["shared"]["dev in train"] == {"rows": 2, "sentences": None, "lines": [[2, 2], [4, 2]], "ids": []}
    assert task["shared"]["test in train"]["lines"] == [[2, 6]]
    assert task["shared"]["dev in test"]["lines"] == [[3, 3]]
    assert task["excludable_train_rows"] == 3
    said = describe(check_folder(folder))
    assert "rows in train       dev 2, test 1; --exclude_shared leaves 3 train rows out" in said
    assert "dev rows in test    1" in said and "sentences in train" not in said


def test_pairs_are_shared_in_either_order_and_sentences_in_any_pair(sts):
    folder = sts(
        train=[("A cat.", "A dog.", 2.0), ("One.", "Two.", 1.0), ("Red.", "Blue.", 1.0)],
        dev=[("a dog .", "a cat .", 5.0), ("One.", "Three.", 1.0), ("Two.", "One, too.", 1.0)],
    )
    shared = check_folder(folder)["tasks"]["sts"]["shared"]["dev in train"]
    assert shared == {"rows": 1, "sentences": 4, "lines": [[2, 2]], "ids": []}
    assert "sentences in train  dev 4 distinct ones, in whatever pair" in describe(check_folder(folder))


def test_ids_in_two_files(sst):
    folder = sst()
    path = folder / SST.files["dev"]
    path.write_text(path.read_text().replace("sstdev0", "SSTtrain0 "))
    report = check_folder(folder)
    assert report["tasks"]["sst"]["shared"]["dev in train"]["ids"] == ["ssttrain0"]
    assert report["ok"] and "ids in two files    dev in train ssttrain0" in describe(report)


def test_excluding_shared_rows(sts):
    folder = sts(
        train=[("a", "b", 1.0), ("x", "y", ""), ("c", "d", 2.0), ("e", "f", 3.0), ("b", "a", 4.0)],
        dev=[("b", "a", 1.0)],
        test=[("f", "e")],
    )
    train, dev = (
        read_examples(folder / STS.files[s], columns=PAIR, label=STS.label, label_kind="score")
        for s in ("train", "dev")
    )
    test = read_examples(folder / STS.files["test"], columns=PAIR)
    assert shared_rows(train, dev, test) == [0, 2, 3] and shared_rows(train, dev) == [0, 3] and shared_rows(train) == []
    left = exclude_shared(train, dev, test)
    assert [(e.sentence, e.line) for e in left] == [("c", 4)]
    shared = "stands in dev or test"
    assert left.dropped == [(2, shared), (3, "blank similarity"), (5, shared), (6, shared)]
    assert (left.sha256, left.path) == (train.sha256, train.path) and len(train) == 4
    with pytest.raises(InputError, match="sts-train.csv: every row stands in dev or test; leave out --exclude_shared"):
        exclude_shared(train, train)


def test_the_size_of_quora_costs_less_than_two_seconds(tmp_path):
    rows = [(f"How can a student {i} update the old phone?", f"What about {i}?", 0) for i in range(141_500)]
    write(tmp_path, PARA, "train", rows)
    write(tmp_path, PARA, "dev", [(second, first, label) for first, second, label in rows[:20_000]])
    train, dev = (
        read_examples(tmp_path / PARA.files[s], columns=PAIR, label=PARA.label, label_kind="binary")
        for s in ("train", "dev")
    )
    start = time.process_time()
    assert len(exclude_shared(train, dev)) == 121_500
    assert time.process_time() - start < 2  # about 0.2 s on an idle core


def described(folder, tokenizer, *options):
    """What training says of the data, and what it read."""
    args, said = get_args(["--tasks", "sts", *options]), []
    data = read_data(args, (STS,), folder, tokenizer)
    describe_data((STS,), data, said.append)
    return said, data


def test_training_warns_of_shared_rows_and_leaves_them_out_when_asked(sts, tiny_tokenizer):
    rows = [("a cat", "a dog", 1.0), ("x", "y", ""), ("the film", "a film", 2.0), ("a dog", "a cat .", 3.0)]
    folder = sts(train=[*rows, ("ran", "sat", 4.0)], dev=[("a dog", "a cat", 1.0)], test=[("sat", "ran")])
    said, data = described(folder, tiny_tokenizer)
    assert len(data["sts"]["train"]) == 4
    assert said[1:] == ["warning    train rows that stand in dev or test, too: sts 2; --exclude_shared leaves them out"]
    said, data = described(folder, tiny_tokenizer, "--exclude_shared")
    assert data["sts"]["train"].ids == ["ststrain2", "ststrain3"] and len(said) == 1
    assert (
        "train 2 (2 left out: stands in dev or test, line 2, ...; 1 left out: blank similarity, line 3), dev 1"
        in said[0]
    )
    said, _ = described(sts(), tiny_tokenizer)
    assert len(said) == 1  # nothing is shared


def test_what_was_left_out_stands_in_the_runs_config(sts, minilm, tmp_path):
    rows = [(f"cat {i}", f"dog {i}", i / 2) for i in range(4)]
    folder = sts(train=rows, dev=rows[:1] + [("Red.", "Blue.", 2.0)])
    out = [f"--sts_{split}_out={tmp_path / split}" for split in ("dev", "test")]
    options = ["--tasks", "sts", "--data", str(folder), "--model", str(minilm), "--epochs", "0", "--device", "cpu"]
    run = tmp_path / "run"
    assert multitask_classifier.main([*options, "--exclude_shared", "--run", str(run), *out]) == 0
    config = json.loads((run / "config.json").read_text())
    assert config["options"]["exclude_shared"] is True
    assert config["data"]["sts"]["train"]["rows"] == 3
    assert config["data"]["sts"]["train"]["dropped"] == [[2, "stands in dev or test"]]


# ---------------------------------------------------------------------------------------------------------------------
# What would make training fail


def test_every_fault_of_a_file_is_found_in_one_look(sst):
    folder = sst(train=[("a", 3), ("b", 7), ("c", "x"), ("d", 4), ("e", 9), ("f", -1)])
    path = folder / SST.files["train"]
    path.write_text(path.read_text() + "9\tssttrain3\tagain\t2\n9\t \tno id\t2\n9\tcut\n")
    report = check_folder(folder)
    assert not report["ok"] and len(report["errors"]) == 7
    train = report["tasks"]["sst"]["files"]["train"]
    assert train["errors"] == report["errors"] and train["rows"] == 2
    for line, wrong in (
        (3, "'7'"),
        (4, "'x'"),
        (6, "'9'"),
        (7, "'-1'"),
        (8, "is on line 5"),
        (9, "blank"),
        (10, "2 col"),
    ):
        assert sum(f"train.csv, line {line}:" in error and wrong in error for error in train["errors"]) == 1
    said = describe(report)
    assert said.count("  error") == 4 and "4 more, which --json lists" in said
    assert said.endswith("7 found that would stop training")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "No such file or directory"),
        (lambda path: path.write_text(""), "the file is empty"),
        (lambda path: path.write_bytes(b"\tid\tsentence\tsentiment\n0\ta\tcaf\xe9\t1\n"), "is not UTF-8"),
        (lambda path: path.write_text("<html>sign in</html>"), "no column 'id'"),
        (lambda path: path.write_text('\tid\tsentence\tsentiment\n0\ta\tx\t9\n1\tb\t"open\t1\n'), "never closed"),
        (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_reported_and_the_others_are_checked(sst, spoil, message):
    folder = sst(dev=[("a fine film .", 3)])
    spoil(folder / SST.files["train"])
    report = check_folder(folder)
    assert not report["ok"] and message in report["errors"][-1]
    task = report["tasks"]["sst"]
    assert "rows" not in task["files"]["train"] and task["files"]["dev"]["rows"] == 1
    assert list(task["shared"]) == ["dev in test"] and task["excludable_train_rows"] == 0
    assert message in describe(report) and "would stop training" in describe(report)


def test_course_and_sample_files_do_not_mix(sst, monkeypatch):
    folder = sst()
    for split in ("dev", "test"):
        (folder / SST.files[split]).write_bytes((SAMPLE / SST.files[split]).read_bytes())
    assert files(folder)["dev"]["origin"] == "sample" and check_folder(folder)["ok"]
    monkeypatch.setattr(data_check, "BLOBS", {SST.files["train"]: course_data.blob_id(folder / SST.files["train"])})
    report = check_folder(folder)
    assert report["tasks"]["sst"]["files"]["train"]["origin"] == "course" and not report["ok"]
    assert "error: " in describe(report) and "some files are the course's and some the sample's" in describe(report)
    assert "1 of 3 files are the course's, byte for byte" in describe(report)


def test_a_course_file_under_another_name(sst, monkeypatch):
    folder = sst()
    monkeypatch.setattr(data_check, "BLOBS", {"ids-sst-train.csv": course_data.blob_id(folder / SST.files["dev"])})
    report = check_folder(folder)
    assert report["tasks"]["sst"]["files"]["dev"]["origin"] == "ids-sst-train.csv"
    assert "another file's      dev ids-sst-train.csv" in describe(report)


def test_folders_without_data(tmp_path):
    with pytest.raises(InputError, match="nowhere: no such folder"):
        choose_data(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no task's file is there; wanted ids-sst-train.csv, quora-train.csv"):
        check_folder(tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# The command


def test_the_bundled_sample_is_in_order(minilm, capsys):
    assert main(["--check", str(SAMPLE), "--model", str(minilm)]) == 0
    said = capsys.readouterr().out
    assert "tokens  a sentence, of all-MiniLM-L6-v2, with [CLS] and [SEP]; one of more than 512 is cut, " in said
    assert all(task.title in said for task in TASKS.values() if (SAMPLE / task.files["train"]).exists())
    assert said.endswith("training can use these; 12 of 12 files are the bundled sample's, byte for byte\n")
    assert not any(
        line.startswith("  ") and line.split()[0] not in ("train", "dev", "test") for line in said.split("\n") if line
    )


def test_json(sst, minilm, capsys):
    folder = sst(train=[("a", 3), ("b", 9)])
    assert main(["--check", str(folder), "--model", str(minilm), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["folder"] == str(folder) and report["why"] == "asked for" and not report["ok"]
    assert report["tasks"]["sst"]["files"]["train"]["tokens"]["max"] == 3
    assert "line 3: sentiment is '9'" in report["errors"][0]


def test_errors_of_input_are_one_line(tmp_path, capsys):
    assert main(["--check", str(tmp_path / "nowhere")]) == 1
    assert main(["--check", str(SAMPLE), "--model", str(tmp_path / "no-model")]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 2 and said.err.count("error: ") == 2


def test_without_weights_all_but_the_tokens_is_said(sst, capsys, monkeypatch):
    def absent(name):
        raise InputError("no weights; run ./setup.sh")

    monkeypatch.setattr(data_check, "locate", absent)
    assert main(["--check", str(sst())]) == 0
    said = capsys.readouterr().out
    assert "tokens  not counted: no weights; run ./setup.sh" in said and "training can use these" in said


def test_the_default_folder_is_what_training_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(course_data, "DATA", tmp_path)
    assert choose_data(tmp_path) == (tmp_path, "asked for")
    assert choose_data()[0] == tmp_path / "sample"
    (tmp_path / "sts-train.csv").write_text("")
    assert choose_data() == (tmp_path, "the course's files stand there")


def test_the_command_starts_without_torch():
    code = "import sys, data_check; data_check.main(['--check', 'data/sample']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0


def test_the_documented_command(sst):
    command = [sys.executable, "datasets.py", "--check"]
    done = subprocess.run([*command, "data/sample"], cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0 and done.stderr == "" and "training can use these" in done.stdout
    folder = sst(train=[("a", 9)])
    ascii_only = {"PYTHONIOENCODING": "ascii", "PATH": ""}
    done = subprocess.run([*command, folder], cwd=ROOT, capture_output=True, text=True, env=ascii_only)
    assert done.returncode == 1 and "sentiment is '9'" in done.stdout
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    unasked = subprocess.run(command[:2], cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    assert (unasked.returncode, unasked.stdout) == (asked.returncode, asked.stdout)  # the check is all that it does


def test_folders_and_files_are_named_as_they_are_typed_from_here(sst, capsys, monkeypatch):
    folder = sst(train=[("a", 9)])
    monkeypatch.chdir(folder.parent)
    assert main(["--check", str(folder)]) == 1
    said = capsys.readouterr().out
    assert f"data    {folder.name}: asked for\n" in said
    assert f"error               {folder.name}/ids-sst-train.csv, line 2: " in said


# ---------------------------------------------------------------------------------------------------------------------
# The course's real files. Quora's here are its quora-dev.csv (20,214 rows) split in three, so what is known of the
# whole is tested on the three put together again.


@pytest.fixture(scope="module")
def course(real_data):
    return check_folder(real_data / "cs224n")


@pytest.mark.real_data
def test_real_sts_shares_pairs(course):
    task = course["tasks"]["sts"]
    shared = task["shared"]
    assert (shared["dev in train"]["rows"], shared["test in train"]["rows"]) == (16, 19)
    assert task["files"]["train"]["repeated"]["rows"] == 43
    assert task["files"]["train"]["repeated"]["other_label"] == 17
    assert [task["files"][split]["repeated"]["rows"] for split in ("dev", "test")] == [4, 3]
    assert task["excludable_train_rows"] == 41 and shared["dev in test"]["rows"] == 2
    assert (shared["dev in train"]["sentences"], shared["test in train"]["sentences"]) == (221, 398)


@pytest.mark.real_data
def test_real_sst_and_cfimdb(course):
    sst, cfimdb = course["tasks"]["sst"], course["tasks"]["cfimdb"]
    assert [sst["shared"][f"{split} in train"]["rows"] for split in ("dev", "test")] == [2, 2]
    assert [sst["files"][split]["repeated"]["rows"] for split in sst["files"]] == [10, 1, 0]
    assert sst["excludable_train_rows"] == 4 and cfimdb["excludable_train_rows"] == 0
    assert sst["files"]["train"]["labels"] == {"0": 1092, "1": 2218, "2": 1624, "3": 2322, "4": 1288}
    quotes = [file["quotes"] for file in cfimdb["files"].values()]
    assert [(q["sentences"], q["in_a_row"]) for q in quotes] == [(692, 2), (108, 2), (196, 4)]
    assert course["ok"]
    origins = [file["origin"] for task in ("sst", "sts", "cfimdb") for file in course["tasks"][task]["files"].values()]
    assert set(origins) == {"course"}


@pytest.mark.real_data
def test_real_lengths(real_data, minilm):
    tokenizer = data_check.BertTokenizer.from_folder(minilm)
    tokens = {
        split: file["tokens"] for split, file in files(real_data / "cs224n", "cfimdb", tokenizer=tokenizer).items()
    }
    assert {s: (t["max"], t["sentences_cut"], t["tokens_lost"]) for s, t in tokens.items()} == {
        "train": (514, 1, 2),
        "dev": (471, 0, 0),
        "test": (547, 2, 46),
    }


@pytest.mark.real_data
def test_real_quora_dev_as_a_whole(real_data, tmp_path, minilm):
    rows, header = [], None
    for split in ("train", "dev", "test"):
        with open(real_data / "cs224n" / PARA.files[split], encoding="utf-8", newline="") as file:
            read = csv.DictReader(file, delimiter="\t")
            header = header or read.fieldnames
            rows += list(read)
    assert len(rows) == 20_214
    blank = [row[""] for row in rows if row.get(PARA.label) == ""]  # None in the test part, which has no labels
    assert blank == ["65479", "264614"]
    write(tmp_path, PARA, "test", [(row["sentence1"], row["sentence2"]) for row in rows])
    whole = files(tmp_path, "para", tokenizer=data_check.BertTokenizer.from_folder(minilm))["test"]
    assert whole["tokens"]["unknown"] == 37 and whole["tokens"]["sentences_cut"] == 0
    assert whole["rows"] == 20_214 and whole["quotes"]["sentences"] == 810
    assert whole["repeated"]["rows"] == 0
