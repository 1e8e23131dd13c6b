"""Data files: every row becomes an example, is dropped and counted, or is an error with file and line.

Follows the course's loader, rewritten here as the expectation: csv.DictReader with tabs, and what it does to a column.
"""

import csv
import hashlib
import pickle
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

from datasets import (
    SentenceClassificationDataset,
    SentenceClassificationTestDataset,
    SentencePairDataset,
    SentencePairTestDataset,
    blank,
    load_data,
    load_multitask_data,
    load_multitask_test_data,
    preprocess_string,
    read_examples,
)
from errors import InputError, quoted
from tokenizer import BertTokenizer

ROOT = Path(__file__).resolve().parent.parent
PAIR = ("sentence1", "sentence2")
SINGLE_HEADER = "\tid\tsentence\tsentiment\n"
PAIR_HEADER = "\tid\tsentence1\tsentence2\tsimilarity\n"


@pytest.fixture
def write(tmp_path):
    def write(content, name="data.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    return write


def sentiment(path):
    return read_examples(path, label="sentiment")


def similarity(path):
    return read_examples(path, columns=PAIR, label="similarity", label_kind="score")


def test_preprocess_by_hand():
    assert preprocess_string("Why, Bob?  It's 3.5\tA.\n") == "why , bob ? it 's 3 .5 a ."
    assert preprocess_string("...") == ". . ."
    assert preprocess_string(" \u00a0É!") == "é!"


@pytest.mark.parametrize(
    "text", ["", " \t\r\n", "\u3000\xa0", "\u200b", "\ufeff\u200e", "\x00\x1b", "\ufffd", "\ue000"]
)
def test_what_a_tokenizer_finds_nothing_in_is_blank(text, tiny_folder):
    assert blank(text) and BertTokenizer.from_folder(tiny_folder).tokenize(text) == []


@pytest.mark.parametrize("text", [".", "\u200ba", "\u6c34", "\U0001f600", "\xb4"])
def test_what_a_tokenizer_finds_something_in_is_not(text, tiny_folder):
    assert not blank(text) and BertTokenizer.from_folder(tiny_folder).tokenize(text)


def test_single_sentences(write):
    content = SINGLE_HEADER + "0\t A1 \t It 's GOOD , Bob. \t3\n7\tb2\t\t0\n"
    table = sentiment(write(content))
    assert [(e.id, e.sentence, e.second, e.label, e.line) for e in table] == [
        ("a1", "it 's good , bob.", None, 3, 2),
        ("b2", "", None, 0, 3),
    ]
    assert type(table[0].label) is int and table.dropped == []
    assert table.sha256 == hashlib.sha256(content.encode()).hexdigest()
    assert table.path.name == "data.csv" and len(table) == 2
    assert pickle.loads(pickle.dumps(table)) == table


def test_pairs_and_float_labels(write):
    table = similarity(write(PAIR_HEADER + "0\ta\tWho's he?\tA man.\t4.6\n1\tb\tx\ty\t0\n"))
    assert [(e.sentence, e.second, e.label) for e in table] == [("who 's he ?", "a man .", 4.6), ("x", "y", 0.0)]
    assert type(table[1].label) is float


def test_binary_labels(write):
    path = write("\tid\tsentence1\tsentence2\tis_duplicate\n0\ta\tx\ty\t0.0\n1\tb\tx\ty\t1.0\n2\tc\tx\ty\t1\n")
    table = read_examples(path, columns=PAIR, label="is_duplicate", label_kind="binary")
    assert [e.label for e in table] == [0, 1, 1] and type(table[0].label) is int


def test_the_test_format_has_a_column_more(write):
    table = read_examples(write("0\t\tid\tsentence\n1\t0.0\tabc\t Fine .\n"))
    assert [(e.id, e.sentence, e.label) for e in table] == [("abc", "fine .", None)]


def test_blank_labels_are_dropped_and_counted(write):
    table = similarity(write(PAIR_HEADER + "0\ta\tx\ty\t1\n1\tb\tx\ty\t\n2\tc\tx\ty\t2\n3\td\tx\t\t \n"))
    assert [e.id for e in table] == ["a", "c"]
    assert table.dropped == [(3, "blank similarity"), (5, "blank similarity")]
    assert table.describe().endswith("data.csv: 2 rows, 2 dropped (blank similarity on lines 3, 5)")
    many = similarity(write(PAIR_HEADER + "0\ta\tx\ty\t1\n" + "".join(f"0\tb{i}\tx\ty\t\n" for i in range(12))))
    assert many.describe().endswith("12 dropped (blank similarity on lines 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 2 more)")


def test_a_byte_order_mark_is_no_part_of_the_header(write):
    content = b"\xef\xbb\xbfid\tsentence\tsentiment\na\tx\t1\n"
    table = sentiment(write(content))
    assert table[0].id == "a" and table.sha256 == hashlib.sha256(content).hexdigest()


def test_quotes_as_csv_gives_them(write):
    rows = [
        ('"He said ""no"" ."', 'he said "no" .'),
        ('"""Doubly """"escaped"""" quotes"""', '"doubly ""escaped"" quotes"'),
        ('a "bare" quote', 'a "bare" quote'),
        ('12" vinyl', '12" vinyl'),
        ('"closed" too early', "closed too early"),
        ("`` latex ''", "`` latex ''"),
    ]
    content = SINGLE_HEADER + "".join(f"{i}\tid{i}\t{raw}\t1\n" for i, (raw, _) in enumerate(rows))
    assert [e.sentence for e in sentiment(write(content))] == [text for _, text in rows]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_line_numbers_count_the_lines_inside_quotes(write, newline):
    content = SINGLE_HEADER + '0\ta\t"two\nlines"\t1\n\n1\tb\tx\t2\n2\tc\t"three\n\nlines"\t2\n3\td\ty\t0\n'
    path = write(content.replace("\n", newline))
    table = sentiment(path)
    assert [(e.id, e.line) for e in table] == [("a", 2), ("b", 5), ("c", 6), ("d", 9)]
    assert table[0].sentence == f"two{newline}lines"
    with pytest.raises(InputError, match="data.csv, line 9: sentiment is '7'"):
        sentiment(write(content.replace("y\t0", "y\t7").replace("\n", newline)))


def test_only_line_ends_end_a_line(write):
    odd = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\u00a0h\u200bi"
    table = sentiment(write(SINGLE_HEADER + f"0\ta\t{odd}\t1\n1\tb\tx\t1\n"))
    assert [(e.sentence, e.line) for e in table] == [(odd, 2), ("x", 3)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "data.csv: the file is empty"),
        (b"\xef\xbb\xbf", "data.csv: the file is empty"),
        ("\n\n", "data.csv: the file is empty"),
        (SINGLE_HEADER, "data.csv: a header but no rows"),
        (SINGLE_HEADER + "0\ta\tx\t\n", "data.csv: all 1 rows have a blank sentiment"),
        ("\tid\tsentence\n0\ta\tx\n", "line 1: no column 'sentiment'; found '', 'id', 'sentence'; choose the file"),
        (
            "id,sentence,sentiment\na,x,1\n",
            "line 1: no column 'id', .* found 'id,sentence,sentiment'; separate .* tabs",
        ),
        ("id\tid\tsentence\tsentiment\n", "line 1: column 'id' stands there twice"),
        (SINGLE_HEADER + "0\ta\tx\t1\n1\tb\tx\n", "line 3: 3 columns, wanted 4 as in the header"),
        (SINGLE_HEADER + "0\ta\tx\t1\n1\tb\tx\ty\t1\n", "line 3: 5 columns, wanted 4"),
        (SINGLE_HEADER + "0\ta\tx\t1\n1\tB\ty\t2\n2\t b\tz\t3\n", "line 4: id 'b' is on line 3 already"),
        (SINGLE_HEADER + "0\t \tx\t1\n", "line 2: the id is blank"),
        (SINGLE_HEADER + "0\ta\tx\t7\n", "line 2: sentiment is '7', wanted a whole number from 0 to 4"),
        (SINGLE_HEADER + "0\ta\tx\t-1\n", "line 2: sentiment is '-1'"),
        (SINGLE_HEADER + "0\ta\tx\t2.5\n", "line 2: sentiment is '2.5', wanted a whole number"),
        (SINGLE_HEADER + "0\ta\tx\tnan\n", "line 2: sentiment is 'nan'"),
        (SINGLE_HEADER + "0\ta\tx\tinf\n", "line 2: sentiment is 'inf'"),
        (SINGLE_HEADER + "0\ta\tx\tgood\n", "line 2: sentiment is 'good'"),
        (SINGLE_HEADER.encode() + b"0\ta\tx\t1\n1\tb\tcaf\xe9\t1\n", "line 3: byte 0xe9 is not UTF-8"),
        (SINGLE_HEADER.encode("utf-16"), "line 1: byte 0xff is not UTF-8"),
        (SINGLE_HEADER.encode("utf-16-le"), "line 1: a NUL character"),
        (SINGLE_HEADER + "0\ta\tx\t1\n1\tb\tx\0y\t1\n", "line 3: a NUL character"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_line(write, content, message):
    path = write(content)
    with pytest.raises(InputError, match=message) as caught:
        sentiment(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a b", "a\u00a0b", '"a\tb"', '"a\nb"', "a\u2028b", "a\x1fb", ",", " , ", "a , b"])
def test_an_id_that_breaks_the_prediction_format_is_refused(write, name):
    path = write(SINGLE_HEADER + f"0\tx\tx\t1\n1\t{name}\ty\t1\n")
    with pytest.raises(
        InputError, match="line 3: the id is '.*', wanted one without white space .*; rename it"
    ) as caught:
        sentiment(path)
    assert repr(name.strip('" '))[1:-1] in str(caught.value)
    faults = []
    assert [e.id for e in read_examples(path, label="sentiment", faults=faults)] == ["x"] and len(faults) == 1
    assert sentiment(write(SINGLE_HEADER + "0\t a,b;c \tx\t1\n"))[0].id == "a,b;c"


@pytest.mark.parametrize("value", ["5.2", "-0.1", "nan", "1,5", "NaN ", "0_1", "\u0661", "\uff11", "1e", ".", "0x1"])
def test_scores_out_of_range(write, value):
    with pytest.raises(InputError, match="line 2: similarity is '.*', wanted a number from 0.0 to 5.0"):
        similarity(write(PAIR_HEADER + f"0\ta\tx\ty\t{value}\n"))


@pytest.mark.parametrize("value", ["1", "+1", "1.", "01", "1.0", "1e0", "10E-1", ".1e1", " 1 "])
def test_ways_to_write_one(write, value):
    assert similarity(write(PAIR_HEADER + f"0\ta\tx\ty\t{value}\n"))[0].label == 1.0
    assert sentiment(write(SINGLE_HEADER + f"0\ta\tx\t{value}\n"))[0].label == 1


def test_faults_are_collected_where_a_list_for_them_is_given(write):
    path = write(SINGLE_HEADER + "0\ta\tx\t7\n1\tb\ty\t2\n2\tb\tz\t3\n3\t \tz\t3\n4\tc\tz\n5\td\tz\t\n")
    faults = []
    table = read_examples(path, label="sentiment", faults=faults)
    assert [e.id for e in table] == ["b"] and table.dropped == [(7, "blank sentiment")]
    assert [str(fault).split(":")[0][-6:] for fault in faults] == ["line 2", "line 4", "line 5", "line 6"]
    faults = []
    assert len(read_examples(write(SINGLE_HEADER + "0\ta\tx\t7\n"), label="sentiment", faults=faults)) == 0
    with pytest.raises(InputError, match="line 2: sentiment is '7'"):
        raise faults[0]


def test_a_range_of_its_own(write):
    path = write("id\tsentence\tlabel\na\tx\t2\n")
    with pytest.raises(InputError, match="label is '2', wanted a whole number from 0 to 1"):
        read_examples(path, label="label", label_kind="class", label_range=(0, 1))
    assert read_examples(path, label="label", label_kind="score", label_range=(1, 2))[0].label == 2.0
    with pytest.raises(ValueError, match="label_kind='rank': choose one of class, binary, score"):
        read_examples(path, label="label", label_kind="rank")
    assert read_examples(write("id\tsentence\na\t Cased Name \n"), clean=str.strip)[0].sentence == "Cased Name"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ('a\t"Great" film\nb\t"Great film\nc\tx\nd\ty\n', "line 3: .*swallows the rows after it"),
        ('a\t"Great film\nb\tso "so"\nc\tx\n', 'line 2: the quote before "Great film b so'),  # closed by another row's
        ('a\t"Great film\rb\t"So so"\r', "line 2: .*swallows the rows after it"),
        ('a\tx\nb\t"cut off', "line 3: a quote is opened there and never closed"),
        ('a\tx\nb\t"cut off"" \n', "line 3: a quote is opened there and never closed"),
    ],
)
def test_an_open_quote_swallows_no_row(write, rows, message):
    # The sentence comes last and takes in the rows after it, so the number of columns is right.
    with pytest.raises(InputError, match=message):
        read_examples(write("id\tsentence\n" + rows))


def test_a_quote_that_swallows_a_whole_file(write):
    rows = "".join(f"{i}\tid{i}\tsome words of a sentence\n" for i in range(10_000))
    with pytest.raises(InputError, match="line 2: .*is not closed in its row and swallows the rows after it"):
        read_examples(write('\tid\tsentence\n0\ta\t"open\n' + rows))


def test_a_text_longer_than_csv_s_limit_is_read(write):
    limit = csv.field_size_limit()
    text = "word " * 40_000
    table = sentiment(write(SINGLE_HEADER + f'0\ta\t{text}\t1\n1\tb\t"{text}\n"\t2\n'))
    assert [e.sentence for e in table] == [text.strip()] * 2
    assert csv.field_size_limit() == limit
    with pytest.raises(InputError, match="line 2: a quote is opened there and never closed"):
        read_examples(write(f'id\tsentence\na\t"{text}'))
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    "rows",
    [f"0\ta\tx\t{'7' * 5000}\n", f"0\t{'a ' * 5000}\tx\t1\n", f"0\t{'a' * 5000}\tx\t1\n" * 2, "x\t" * 5000 + "\n"],
    ids=["label", "id", "id twice", "columns"],
)
def test_long_values_are_quoted_in_part(write, rows):
    with pytest.raises(InputError, match="line [23]: ") as caught:
        sentiment(write(SINGLE_HEADER + rows))
    assert len(str(caught.value)) < 400
    with pytest.raises(InputError, match="line 1: no column") as caught:
        sentiment(write("long" * 5000 + "\n"))
    assert len(str(caught.value)) < 400


def test_how_a_value_is_quoted():
    assert quoted("it") == "'it'" and quoted(5) == "5" and quoted("a" * 58) == repr("a" * 58)
    assert quoted("a" * 59) == "'" + "a" * 56 + "..." and len(quoted("\0" * 5000)) == len(quoted([0] * 5000)) == 60


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot read .*nowhere.csv: No such file or directory"):
        sentiment(tmp_path / "nowhere.csv")
    with pytest.raises(InputError, match="cannot read .*: Is a directory"):
        sentiment(tmp_path)
    with pytest.raises(InputError, match="cannot read .*: Not a directory"):
        (tmp_path / "file").write_text("")
        sentiment(tmp_path / "file" / "data.csv")


def test_the_size_of_quora_is_read_in_seconds(write):
    words = "How can a student update the old phone, without losing what's on it, to version {}?"
    header = "\tid\tsentence1\tsentence2\tis_duplicate\n"
    path = write(
        header + "".join(f"{i}\t{i:025x}\t{words.format(i)}\t{words.format(-i)}\t0.0\n" for i in range(141_500))
    )
    start = time.process_time()
    table = read_examples(path, columns=PAIR, label="is_duplicate", label_kind="binary")
    assert len(table) == 141_500
    assert time.process_time() - start < 10  # about 1.5 s, whatever else the machine does


def test_reading_needs_neither_torch_nor_a_tokenizer():
    code = "import sys, datasets; print(sorted({'torch', 'numpy', 'tokenizers', 'tokenizer'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# The course's names.


@pytest.fixture
def course(write):
    """The three training files and the three test files."""
    sst = SINGLE_HEADER + "0\tS1\tA fine film .\t3\n1\ts2\tDull .\t1\n2\ts3\tIt 's fine .\t3\n"
    para = "\tid\tsentence1\tsentence2\tis_duplicate\n0\tp1\tWho's he?\tWho is he?\t1.0\n1\tp2\tx\ty\t\n"
    sts = PAIR_HEADER + "0\tt1\tA man, alone.\tA man.\t4.6\n1\tt2\tOne\tTwo or three or four\t0.0\n"
    train = [write(sst, "sst.csv"), write(para, "para.csv"), write(sts, "sts.csv")]
    test = [
        write("0\t\tid\tsentence\n1\t0.0\tS9\tFine .\n", "sst-test.csv"),
        write("\tid\tsentence1\tsentence2\n0\tp9\tA?\tB?\n", "para-test.csv"),
        write("\tid\tsentence1\tsentence2\n0\tt9\tA.\tB.\n", "sts-test.csv"),
    ]
    return SimpleNamespace(train=train, test=test)


def test_load_multitask_data(course, capsys):
    sentiment_rows, num_labels, paraphrase_rows, similarity_rows = load_multitask_data(*course.train, split="train")
    assert sentiment_rows == [("a fine film .", 3, "s1"), ("dull .", 1, "s2"), ("it 's fine .", 3, "s3")]
    assert num_labels == {3: 0, 1: 1}
    assert paraphrase_rows == [("who 's he ?", "who is he ?", 1, "p1")]
    assert similarity_rows == [("a man , alone .", "a man .", 4.6, "t1"), ("one", "two or three or four", 0.0, "t2")]
    printed = capsys.readouterr().out
    assert "para.csv: 1 row, 1 dropped (blank is_duplicate on line 3)" in printed
    assert load_multitask_data(*course.test, split="test") == (
        [("fine .", "s9")],
        {},
        [("a ?", "b ?", "p9")],
        [("a .", "b .", "t9")],
    )


def test_load_multitask_test_data(course, tmp_path, monkeypatch):
    """The names that the course gives its test files, in data/ of where the script runs."""
    (tmp_path / "data").mkdir()
    for path, name in zip(course.test, ("ids-sst", "quora", "sts"), strict=True):
        path.rename(tmp_path / "data" / f"{name}-test-student.csv")
    monkeypatch.chdir(tmp_path)
    wanted = (["fine ."], [("a ?", "b ?")], [("a .", "b .")])
    assert load_multitask_test_data() == wanted
    monkeypatch.chdir("/")
    assert load_multitask_test_data(tmp_path / "data") == wanted
    with pytest.raises(InputError, match="cannot read .*ids-sst-test-student.csv"):
        load_multitask_test_data(tmp_path)


def test_load_data(course):
    rows, classes = load_data(course.train[0], "train")
    assert classes == 2 and rows[1] == ("dull .", 1, "s2")
    assert load_data(course.train[0], "valid") == rows
    assert load_data(course.test[0], "test") == [("fine .", "s9")]


def batches(dataset, size=8):
    return list(DataLoader(dataset, shuffle=False, batch_size=size, collate_fn=dataset.collate_fn))


def test_sentence_batches_as_the_starter_drives_them(course):
    args = SimpleNamespace(local_files_only=True)
    rows, *_ = load_multitask_data(*course.train)
    (batch,) = batches(SentenceClassificationDataset(rows, args))
    assert set(batch) == {"token_ids", "attention_mask", "labels", "sents", "sent_ids"}
    assert batch["token_ids"].shape == batch["attention_mask"].shape == (3, 7)  # [CLS] it ' s fine . [SEP]
    assert batch["token_ids"].dtype == batch["attention_mask"].dtype == batch["labels"].dtype == torch.long
    assert batch["attention_mask"].sum(dim=1).tolist() == [6, 4, 7]
    assert batch["labels"].tolist() == [3, 1, 3] and batch["sent_ids"] == ["s1", "s2", "s3"]
    assert batch["sents"][1] == "dull ."
    rows, *_ = load_multitask_data(*course.test, split="test")
    (batch,) = batches(SentenceClassificationTestDataset(rows, args))
    assert set(batch) == {"token_ids", "attention_mask", "sents", "sent_ids"}


def test_pair_batches_as_the_starter_drives_them(course):
    args = SimpleNamespace()
    _, _, para, sts = load_multitask_data(*course.train)
    (batch,) = batches(SentencePairDataset(sts, args, isRegression=True))
    assert set(batch) == {
        *(f"{name}_{i}" for name in ("token_ids", "token_type_ids", "attention_mask") for i in (1, 2)),
        *("labels", "sent_ids"),
    }
    assert batch["token_ids_1"].shape == (2, 7) and batch["token_ids_2"].shape == (2, 7)
    assert batch["attention_mask_2"].sum(dim=1).tolist() == [5, 7]
    assert batch["token_type_ids_1"].sum() == 0
    assert batch["labels"].dtype == torch.float32 and batch["labels"].tolist() == pytest.approx([4.6, 0.0])
    assert batch["sent_ids"] == ["t1", "t2"]
    # The 2023 starter doesn't know isRegression and made 4 of 4.6.
    assert batches(SentencePairDataset(sts, args))[0]["labels"][0].item() == pytest.approx(4.6)
    (batch,) = batches(SentencePairDataset(para, args))
    assert batch["labels"].dtype == torch.long and batch["labels"].tolist() == [1]
    _, _, para, _ = load_multitask_data(*course.test, split="test")
    (batch,) = batches(SentencePairTestDataset(para, args))
    assert "labels" not in batch and batch["sent_ids"] == ["p9"]


def test_pad_data_gives_the_parts_in_the_starters_order(course):
    """As tuples, which a script unpacks; `collate_fn` gives the very same by name."""
    args = SimpleNamespace()
    single, _, para, sts = load_multitask_data(*course.train)
    single_test, _, para_test, _ = load_multitask_data(*course.test, split="test")

    def check(dataset, sentences, names):
        rows = dataset.dataset
        parts = dict(zip(names, dataset.pad_data(rows), strict=True))
        batch = dataset.collate_fn(rows)
        assert set(batch) == set(names)
        for name, part in parts.items():
            assert torch.equal(part, batch[name]) if isinstance(part, torch.Tensor) else part == batch[name]
        for i, texts in enumerate(sentences, start=1):
            side = f"_{i}" if len(sentences) == 2 else ""
            tokens = dataset.tokenizer(texts, return_tensors="pt", padding=True, truncation=True)
            assert torch.equal(parts["token_ids" + side], tokens["input_ids"])
            assert torch.equal(parts["attention_mask" + side], tokens["attention_mask"])
        assert parts["sent_ids"] == [row[-1] for row in rows]
        assert "labels" not in parts or parts["labels"].tolist() == pytest.approx([row[-2] for row in rows])
        assert "sents" not in parts or parts["sents"] == sentences[0]

    texts = [[row[0] for row in single]]
    check(
        SentenceClassificationDataset(single, args),
        texts,
        ["token_ids", "attention_mask", "labels", "sents", "sent_ids"],
    )
    texts = [[row[0] for row in single_test]]
    check(
        SentenceClassificationTestDataset(single_test, args),
        texts,
        ["token_ids", "attention_mask", "sents", "sent_ids"],
    )
    sides = [f"{name}_{i}" for i in (1, 2) for name in ("token_ids", "token_type_ids", "attention_mask")]
    for rows in (para, sts):
        texts = [[row[i] for row in rows] for i in (0, 1)]
        check(SentencePairDataset(rows, args), texts, [*sides, "labels", "sent_ids"])
    texts = [[row[i] for row in para_test] for i in (0, 1)]
    check(SentencePairTestDataset(para_test, args), texts, [*sides, "sent_ids"])


def test_a_dataset_of_ones_own_changes_its_batches_by_pad_data_alone(course):
    class Longer(SentenceClassificationTestDataset):
        def pad_data(self, data):
            return super().pad_data([(f"{sentence} indeed", name) for sentence, name in data])

    (batch,) = batches(Longer([("dull", "a")], SimpleNamespace()))
    assert batch["sents"] == ["dull indeed"] and batch["token_ids"].shape == (1, 4)


def test_batches_of_one_and_shuffled(course):
    rows, *_ = load_multitask_data(*course.train)
    dataset = SentenceClassificationDataset(rows, SimpleNamespace())
    assert [batch["token_ids"].shape for batch in batches(dataset, size=1)] == [(1, 6), (1, 4), (1, 7)]
    loader = DataLoader(dataset, shuffle=True, batch_size=2, collate_fn=dataset.collate_fn)
    assert sorted(i for batch in loader for i in batch["sent_ids"]) == ["s1", "s2", "s3"]


def test_a_text_longer_than_the_positions_is_cut(course):
    dataset = SentenceClassificationTestDataset([("word " * 600, "a")], SimpleNamespace())
    assert batches(dataset)[0]["token_ids"].shape == (1, 512)


# The real files.

REAL_ROWS = {
    "ids-sst-train.csv": 8544, "ids-sst-dev.csv": 1101, "ids-sst-test-student.csv": 2210,
    "ids-cfimdb-train.csv": 1707, "ids-cfimdb-dev.csv": 245, "ids-cfimdb-test-student.csv": 488,
    "quora-train.csv": 14143, "quora-dev.csv": 2060, "quora-test-student.csv": 4009,
    "sts-train.csv": 6040, "sts-dev.csv": 863, "sts-test-student.csv": 1725,
}  # fmt: skip
REAL_DROPPED = {"quora-train.csv": [1002], "quora-dev.csv": [502]}
LABELS = {
    "ids": ("sentiment", "class", int),
    "quo": ("is_duplicate", "binary", float),
    "sts": ("similarity", "score", float),
}


def course_rows(path, label, number):
    """(id, texts, label) as the course's loader makes them, without the rows whose label it can't read."""
    found = []
    with open(path, encoding="utf-8") as file:
        for record in csv.DictReader(file, delimiter="\t"):
            if "sentence" in record:
                texts = (record["sentence"].lower().strip(), None)
            else:
                texts = tuple(" ".join(re.sub("([.?,'])", r" \1", record[column].lower()).split()) for column in PAIR)
            if label and not record[label].strip():
                continue
            found.append((record["id"].lower().strip(), *texts, number(record[label].strip()) if label else None))
    return found


@pytest.mark.real_data
@pytest.mark.parametrize("name", REAL_ROWS)
def test_real_files_as_the_course_reads_them(real_data, name):
    label, kind, number = LABELS[name[:3]]
    label = None if "test" in name else label
    path = real_data / "cs224n" / name
    table = read_examples(path, columns=("sentence",) if name[:3] == "ids" else PAIR, label=label, label_kind=kind)
    assert [(e.id, e.sentence, e.second, e.label) for e in table] == course_rows(path, label, number)
    assert len(table) == REAL_ROWS[name]
    assert [line for line, _ in table.dropped] == REAL_DROPPED.get(name, [])
    lines = path.read_bytes().split(b"\n")
    assert all(e.id.encode() in lines[e.line - 1] for e in table)


@pytest.mark.real_data
def test_real_files_through_the_course_names(real_data):
    folder = real_data / "cs224n"
    files = [folder / f"{name}-dev.csv" for name in ("ids-sst", "quora", "sts")]
    sst, num_labels, para, sts = load_multitask_data(*files, split="dev")
    assert (len(sst), len(para), len(sts)) == (1101, 2060, 863) and sorted(num_labels) == [0, 1, 2, 3, 4]
    assert all(type(row[2]) is float for row in sts) and any(row[2] == 4.6 for row in sts)
    assert sum('""' in row[0] + row[1] for row in para) == 67
    files = [folder / f"{name}-test-student.csv" for name in ("ids-sst", "quora", "sts")]
    assert [len(rows) for rows in load_multitask_data(*files, split="test")] == [2210, 0, 4009, 1725]
    assert load_data(folder / "ids-cfimdb-train.csv")[1] == 2
