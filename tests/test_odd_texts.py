"""Texts that no one expects go through every command: very long, blank, right to left, with every line separator.

Unicode's line separators (Unicode Standard Annex 14) end no line of a file here; NUL and half surrogate pairs are no
text in a file, and a character like any other in a call from Python.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import write_rows

import contrastive
import contrastive_training
import course_data
import data_check
import multitask_classifier
import options
import predict
from datasets import blank, read_examples
from evaluation import read_predictions
from search_index import SearchIndex
from sentence_encoder import SentenceEncoder
from tasks import PARA, SST, STS
from tokenizer import BertTokenizer

REPOSITORY = Path(multitask_classifier.__file__).parent
SEPARATORS = "\v\f\x1c\x1d\x1e\x85\u2028\u2029"
ODD = {
    "a letter 100,000 times": "a" * 100_000,
    "a word 20,000 times": "film " * 20_000,
    "spaces": "    ",
    "all kinds of spaces": "\u00a0\u2003\u3000\u200b",
    "right to left": "\u05e9\u05dc\u05d5\u05dd \u202e\u0645\u0631\u062d\u0628\u0627\u202c !",
    "line separators": f"one{SEPARATORS}two".join(SEPARATORS),
    "marks on marks": "e" + "\u0301" * 500,
    "emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "quotes": '"" """ " a',
    "control characters": "\x01\x02\x7f\ufffe\uffff",
}
FROM_PYTHON = {"NUL": "a\0b", "half a pair": "\ud800 film \udfff", "a pair in halves": "\ud83d\ude00", "nothing": ""}


@pytest.fixture(scope="module")
def root(tmp_path_factory, tiny_folder):
    """A repository whose data are these texts, and a run on them."""
    root = tmp_path_factory.mktemp("odd")
    write_rows(root / "data" / "sample")
    shutil.copytree(tiny_folder, root / "tiny")
    texts = list(ODD.values())
    for path in (root / "data" / "sample").glob("*.csv"):
        header, *rows = path.read_text().splitlines()
        names = header.split("\t")
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(header + "\n")
            for number, text in enumerate(texts):
                row = dict(zip(names, rows[number % len(rows)].split("\t"), strict=True))
                row["id"] = f"x{number}"
                for name in names:
                    if name.startswith("sentence"):
                        quoted = text.replace('"', '""') + ("\r\nand\nmore" if number % 2 else "")
                        row[name] = f'"{quoted}"'
                file.write("\t".join(row.values()) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        for module in (multitask_classifier, options, contrastive_training, predict):
            patch.setattr(module, "ROOT", root)
        patch.setattr(multitask_classifier, "CACHE", root / "cache")
        patch.setattr(course_data, "DATA", root / "data")
        patch.chdir(root)
        yield root


@pytest.mark.parametrize("options", [["--option", "finetune", "--pair_encoding", "joint"], ["--option", "pretrain"]])
def test_they_are_trained_on_and_predicted(root, options, capsys):
    command = ["--model", "tiny", "--epochs", "1", "--batch_size", "4", "--device", "cpu", "--attention", "0"]
    run = f"runs/{options[1]}"
    assert multitask_classifier.main([*command, *options, "--run", run]) == 0, capsys.readouterr().err
    for task in (SST, PARA, STS):
        table = read_examples(root / "data" / "sample" / task.files["test"], columns=task.columns)
        assert len(table) == len(ODD) and all(not table[i].sentence.strip() for i in (2,))
        found = read_predictions(root / run / "predictions" / task.predictions_file("test"), task)
        assert list(found) == [example.id for example in table]


def test_the_check_says_what_is_blank(root, capsys):
    assert data_check.main(["--check", "data/sample", "--model", "tiny"]) == 0
    said = capsys.readouterr().out
    assert "blank" in said and "training can use these" in said


def lines(path):
    """The texts as a file of lines: each in one, whatever separators it holds."""
    path.write_text("".join(f"{text}\n" for text in ODD.values()), encoding="utf-8", newline="")
    return path


def test_they_are_contrasted_indexed_and_found(root, capsys):
    lines(root / "lines.txt")
    command = ["train", "--model", "tiny", "--train", "lines.txt", "--dev", "none", "--run", "runs/c"]
    sizes = ["--epochs", "1", "--batch_size", "3", "--max_length", "12", "--device", "cpu"]
    assert contrastive.main([*command, *sizes]) == 0
    with_text = [text for text in ODD.values() if not blank(text)]
    assert f"data       {len(with_text)} sentences" in capsys.readouterr().out
    index = ["search", "index", "lines.txt", "--index", "index", "--model", "runs/c", "--device", "cpu"]
    assert contrastive.main(index) == 0, capsys.readouterr().err
    opened = SearchIndex.open(root / "index")
    assert [opened.document(i).text for i in range(len(opened))] == [text.strip() for text in with_text]
    ask = ["search", "query", "--queries", "lines.txt", "--index", "index", "--top_k", "20", "--json"]
    capsys.readouterr()
    assert contrastive.main(ask) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.split("\n") if line]
    assert [answer["text"] for answer in answers] == [text.strip() for text in with_text]
    for answer in answers:  # each is its own nearest, beside those that the model reads the same
        assert answer["hits"][0]["score"] == pytest.approx(1, abs=1e-4)
        assert len(answer["hits"]) == len(with_text)


def test_they_are_answered(root, capsys):
    if not (root / "runs" / "finetune").is_dir():
        pytest.skip("test_they_are_trained_on_and_predicted trains the model")
    texts = [text for text in ODD.values() if text.strip()]
    content = "".join(json.dumps({"sentence": text}) + "\n" for text in texts)
    (root / "texts.jsonl").write_text(content)
    ask = ["--input", "texts.jsonl", "--output", "answers.jsonl", "--tasks", "sst", "runs/finetune"]
    assert predict.main(ask) == 0, capsys.readouterr().err
    answered = (root / "answers.jsonl").read_text(encoding="utf-8").split("\n")
    assert [json.loads(line)["sentence"] for line in answered if line] == texts


@pytest.mark.parametrize("name", [*ODD, *FROM_PYTHON])
def test_from_python_each_has_a_vector_and_an_answer(root, name):
    text = {**ODD, **FROM_PYTHON}[name]
    encoder = SentenceEncoder.from_pretrained(root / "tiny")
    vectors = encoder.encode([text, "a film", text])
    assert np.isfinite(vectors).all() and np.array_equal(vectors[0], vectors[2])
    tokenizer = BertTokenizer.from_folder(root / "tiny")
    tokens = tokenizer([text, "a film"], return_tensors="pt", padding=True, truncation=True)
    assert tokens["input_ids"].shape[1] <= 40


def test_what_is_no_text_in_a_file_is_refused_by_line(root, capsys):
    sample = (REPOSITORY / "data" / "sample" / "ids-sst-train.csv").read_bytes().split(b"\n")
    for bad, wanted in (
        (b"a\0b", "line 3: a NUL character"),
        ("\ud800".encode("utf-8", "surrogatepass"), "line 3: byte 0xed is not UTF-8"),
        ("a film".encode("utf-16"), "line 3: byte 0xff is not UTF-8"),
    ):
        row = sample[2].split(b"\t")
        (root / "bad.csv").write_bytes(b"\n".join([*sample[:2], b"\t".join([row[0], row[1], bad, row[-1]]), b""]))
        command = ["--model", "tiny", "--tasks", "sst", "--sst_train", "bad.csv", "--device", "cpu", "--epochs", "0"]
        assert multitask_classifier.main(command) == 1
        assert wanted in capsys.readouterr().err
