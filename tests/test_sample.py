"""The bundled sample: made by its generator, in the course's format, balanced, with nothing shared between its parts.

Follows the files of the CS 224N default project, whose names and columns tasks.py has.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from datasets import read_examples
from tasks import TASKS

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "data" / "sample"
ROWS = {"sst": (220, 100, 80), "cfimdb": (120, 60, 40), "para": (160, 100, 80), "sts": (160, 100, 80)}
SPLITS = ("train", "dev", "test")


def read(name, split):
    task = TASKS[name]
    return read_examples(
        SAMPLE / task.files[split],
        columns=task.columns,
        label=None if split == "test" else task.label,
        label_kind=task.label_kind,
        label_range=task.label_range,
    )


def raw(name, split):
    return (SAMPLE / TASKS[name].files[split]).read_text(encoding="utf-8").split("\n")


def test_the_generator_gives_these_files(tmp_path):
    subprocess.run([sys.executable, str(ROOT / "data" / "make_sample.py"), str(tmp_path)], check=True)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_bytes() for path in SAMPLE.iterdir()}
    assert sorted(made) == sorted(file for task in ROWS for file in TASKS[task].files.values())


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_read(name):
    tables = [read(name, split) for split in SPLITS]
    assert tuple(len(table) for table in tables) == ROWS[name]
    assert all(table.dropped == [] for table in tables)
    assert all(example.label is None for example in tables[2])


@pytest.mark.parametrize(
    ("name", "header", "test_header"),
    [
        ("sst", "\tid\tsentence\tsentiment", "0\t\tid\tsentence"),
        ("cfimdb", "\tid\tsentence\tsentiment", "0\t\tid\tsentence"),
        ("para", "\tid\tsentence1\tsentence2\tis_duplicate", "\tid\tsentence1\tsentence2"),
        ("sts", "\tid\tsentence1\tsentence2\tsimilarity", "\tid\tsentence1\tsentence2"),
    ],
)
def test_the_format_is_the_courses_own(name, header, test_header):
    for split in SPLITS:
        first, *rows, last = raw(name, split)
        assert first == (test_header if split == "test" else header) and last == ""
        assert all(row.count("\t") == first.count("\t") for row in rows)
        cells = [row.split("\t") for row in rows]
        if name in ("sst", "cfimdb"):
            shift = 1 if split == "test" else 0
            assert [int(row[0]) for row in cells] == list(range(shift, len(rows) + shift))
            assert all(row[2 + shift].lstrip('"').startswith(" ") for row in cells)
            assert not shift or [row[1] for row in cells] == [f"{i}.0" for i in range(len(rows))]
        else:
            assert len({int(row[0]) for row in cells}) == len(rows)
        if name == "para" and split != "test":
            assert {row[-1] for row in cells} == {"0.0", "1.0"}


def test_ids_are_the_courses_kind_and_never_repeat():
    ids = [example.id for name in ROWS for split in SPLITS for example in read(name, split)]
    assert all(len(i) == 25 and set(i) <= set("0123456789abcdef") for i in ids)
    assert len(set(ids)) == len(ids) == sum(map(sum, ROWS.values()))


@pytest.mark.parametrize("name", ROWS)
def test_no_sentence_stands_in_two_rows(name):
    examples = [example for split in SPLITS for example in read(name, split)]
    texts = [text for example in examples for text in (example.sentence, example.second) if text is not None]
    assert [text for text, times in Counter(texts).items() if times > 1] == []


@pytest.mark.parametrize("split", ["train", "dev"])
def test_labels_are_balanced_as_in_the_real_sets(split):
    sst = Counter(example.label for example in read("sst", split))
    assert sorted(sst) == [0, 1, 2, 3, 4] and all(0.1 < n / sst.total() < 0.3 for n in sst.values())
    cfimdb = Counter(example.label for example in read("cfimdb", split))
    assert cfimdb[0] == cfimdb[1]
    para = Counter(example.label for example in read("para", split))
    assert 0.35 < para[1] / para.total() < 0.5
    sts = [example.label for example in read("sts", split)]
    assert min(sts) == 0 and max(sts) == 5
    assert all(label == round(label * 5) / 5 for label in sts)
    fifths = Counter(min(4, int(label)) for label in sts)
    assert all(0.05 < fifths[i] / len(sts) < 0.5 for i in range(5))


def test_sentences_are_short_enough_for_a_minutes_training():
    for name in ("sst", "para", "sts"):
        lengths = [
            len(text.split())
            for split in SPLITS
            for example in read(name, split)
            for text in (example.sentence, example.second)
            if text is not None
        ]
        assert 5 <= min(lengths) and max(lengths) <= 21 and sum(lengths) / len(lengths) < 16
    reviews = [example.sentence for split in SPLITS for example in read("cfimdb", split)]
    assert all(3 <= review.count(" .") <= 6 for review in reviews)


def test_quotes_are_there_to_be_read():
    assert any('""' in line for split in SPLITS for line in raw("sst", split))
    assert any('"' in example.sentence for example in read("sst", "train"))
