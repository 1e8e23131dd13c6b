"""GLUE's tasks from their entries to their prediction files, on a tiny model: metrics, whole runs, what is refused.

Wang et al. 2018 (arXiv 1804.07461) for metrics and files; poolers after Lee, Park, Seo and Kim 2021.
"""

import dataclasses
import json
import math
import shutil

import numpy as np
import pytest
import torch

import multitask_classifier
import options
from batches import TaskData
from bert import BertConfig, BertModel
from errors import InputError
from evaluation import METRICS, Predictions, parse_predictions, predict, read_predictions, write_predictions
from files import read_json
from model import ModelConfig, MultitaskBERT
from multitask_classifier import main
from poolers import POOLERS
from task_files import read_split
from tasks import COLA, MRPC, PARA, RTE, SST, SST2, TASKS, leaderboard_score, selection_score
from tokenizer import BertTokenizer

GLUE = (COLA, MRPC, RTE, SST2)
WORDS = ("good", "bad", "film", "dog", "cat", "ran", "sat", "very")


def predictions(task, values, ids=None):
    values = np.array(values)
    return Predictions(task, ids or [str(i) for i in range(len(values))], values, values, None, {})


# ---------------------------------------------------------------------------------------------------------------------
# Entries, metrics, prediction files


def test_the_entries_are_the_benchmark_s():
    assert [(task.metric, task.encoding(), task.output_size) for task in GLUE] == [
        ("matthews", "separate", 2),
        ("acc_and_f1", "joint", 2),
        ("accuracy", "joint", 2),
        ("accuracy", "separate", 2),
    ]
    assert [task.files["train"] for task in GLUE] == [
        "CoLA/train.tsv",
        "MRPC/train.tsv",
        "RTE/train.tsv",
        "SST-2/train.tsv",
    ]
    assert [task.predictions_file("test") for task in GLUE] == ["CoLA.tsv", "MRPC.tsv", "RTE.tsv", "SST-2.tsv"]
    assert MRPC.predictions_file("dev") == "MRPC-dev.tsv"
    config = ModelConfig.for_tasks([task.name for task in GLUE])
    assert {(head.attention_layers, head.pooler) for head in config.heads.values()} == {(0, "mean")}


def test_metrics_by_hand():
    """3 of class 1 found, 1 of 0; one 0 called 1, one 1 called 0."""
    labels, found = np.array([1, 1, 1, 0, 0, 1]), np.array([1, 1, 1, 0, 1, 0])
    precision, recall = 3 / 4, 3 / 4
    f1 = 2 * precision * recall / (precision + recall)
    assert METRICS["f1"](labels, found) == pytest.approx(f1)
    assert METRICS["acc_and_f1"](labels, found) == pytest.approx((4 / 6 + f1) / 2)
    assert METRICS["matthews"](labels, found) == pytest.approx((3 * 1 - 1 * 1) / math.sqrt(4 * 4 * 2 * 2))
    assert METRICS["f1"](1 - labels, np.zeros(6, dtype=int)) == 0.0  # class 1 is asked for, not the larger one
    assert METRICS["matthews"](labels, np.ones(6, dtype=int)) == 0.0  # as scikit-learn and GLUE count it


def test_what_the_best_epoch_is_chosen_by():
    course = {"sst": 0.5, "para": 0.7, "sts": 0.2}
    assert selection_score(course) == leaderboard_score(course) == pytest.approx((0.5 + 0.7 + 0.6) / 3)
    assert selection_score({"cola": -0.2, "mrpc": 0.8}) == pytest.approx(0.3)
    assert selection_score({"cola": None, "sts": 0.4}) == pytest.approx(0.2)


def test_prediction_files_to_the_byte(tmp_path):
    path = tmp_path / "RTE.tsv"
    write_predictions(path, predictions(RTE, [0, 1, 1], ["3", "0", "12"]))
    assert path.read_bytes() == b"index\tprediction\n3\tentailment\n0\tnot_entailment\n12\tnot_entailment\n"
    assert read_predictions(path, RTE) == {"3": 0.0, "0": 1.0, "12": 1.0}
    write_predictions(path, predictions(COLA, [1, 0]))
    assert path.read_bytes() == b"index\tprediction\n0\t1\n1\t0\n"
    assert read_predictions(path, COLA) == {"0": 1.0, "1": 0.0}


@pytest.mark.parametrize(
    ("task", "content", "message"),
    [
        (RTE, b"index\tprediction\n0\t1\n", "line 2: '1', wanted one of entailment, not_entailment"),
        (COLA, b"index\tprediction\n0 , 1 \n", "line 2: '0 , 1 ', wanted an index, a tab and a label"),
        (COLA, b"index\tprediction\n0\t2\n", "line 2: '2', wanted a whole number from 0 to 1"),
        (COLA, b"index\tprediction\n0\t1\n0\t1\n", "line 3: id '0' for the second time"),
        (COLA, b"id\tprediction\n0\t1\n", "line 1: the header is"),
        (SST, b"id \t Predicted_Sentiment \n0\t1\n", "wanted 'id , value ' (spaces included)"),
    ],
)
def test_other_prediction_files_are_refused_in_one_line(task, content, message):
    with pytest.raises(InputError) as refused:
        parse_predictions(task, content, "some.tsv")
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("entry", "changes", "message"),
    [
        (MRPC, {"label_range": (0, 2), "output_size": 3}, "metric (f1|acc_and_f1) is of two classes"),
        (RTE, {"class_names": ("yes",)}, "class_names are 1; wanted 2"),
        (RTE, {"file_format": "csv"}, "file_format is 'csv'; wanted one of course, glue"),
    ],
)
def test_an_entry_that_contradicts_itself_is_refused(entry, changes, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(entry, **changes)


# ---------------------------------------------------------------------------------------------------------------------
# Whole runs


def write_glue(folder):
    """Rows that say their label: `good` is 1; a pair is 1 where both sides have the same word for it."""
    random = np.random.default_rng(0)
    for split, count in (("train", 12), ("dev", 6)):
        labels = [i % 2 for i in range(count)]
        texts = [f"{random.choice(WORDS[2:])} {('bad', 'good')[label]}" for label in labels]
        seconds = [text if label else f"{text} bad" for text, label in zip(texts, labels, strict=True)]
        rows = list(zip(labels, texts, seconds, strict=True))
        contents = {
            COLA.name: [f"x\t{label}\t\t{text}" for label, text, _ in rows],
            SST2.name: ["sentence\tlabel", *(f"{text} \t{label}" for label, text, _ in rows)],
            MRPC.name: [
                "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
                *(f"{label}\t1\t2\t{a}\t{b}\r" for label, a, b in rows),
            ],
            RTE.name: [
                "index\tsentence1\tsentence2\tlabel",
                *(f"{2 * i}\t{a}\t{b}\t{RTE.class_names[label]}" for i, (label, a, b) in enumerate(rows)),
            ],
        }
        for name, lines in contents.items():
            path = folder / TASKS[name].files[split]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(("\n".join(lines) + "\n").encode())


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """command(options) -> (exit code, out, err) on a tiny model and a few rows of each task, in a folder of its own."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    BertTokenizer({piece: i for i, piece in enumerate(pieces)}, model_max_length=24).save_pretrained(tmp_path / "tiny")
    torch.manual_seed(1)
    shape = {"hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 40}
    config = BertConfig(vocab_size=len(pieces), max_position_embeddings=24, initializer_range=0.3, **shape)
    BertModel(config).save_pretrained(tmp_path / "tiny")
    write_glue(tmp_path / "glue")
    monkeypatch.setattr(multitask_classifier, "ROOT", tmp_path)
    monkeypatch.setattr(options, "ROOT", tmp_path)
    monkeypatch.setattr(multitask_classifier, "CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)

    def command(text, data="--data glue"):
        capsys.readouterr()
        code = main([*text.split(), *data.split(), *"--model tiny --device cpu --run runs/x --batch_size 4".split()])
        said = capsys.readouterr()
        return code, said.out, said.err

    return command


def test_all_four_train_jointly_and_are_predicted(command, tmp_path):
    (tmp_path / "glue" / "RTE" / "test.tsv").write_text(
        "index\tsentence1\tsentence2\n0\tdog ran\tdog ran\n5\tcat\tbad\n"
    )
    names = [task.name for task in GLUE]
    code, out, err = command(f"--tasks {','.join(names)} --option finetune --pooler attentive_cls --epochs 2 --lr 1e-3")
    assert code == 0, err
    assert "rte    train 12, dev 6, test 2; a pair is one sequence\n" in out and "cola   train 12, dev 6\n" in out
    found = {path.name for path in (tmp_path / "predictions").iterdir()}
    assert found == {"CoLA-dev.tsv", "MRPC-dev.tsv", "RTE-dev.tsv", "SST-2-dev.tsv", "RTE.tsv"}
    assert list(read_predictions(tmp_path / "predictions" / "RTE.tsv", RTE)) == ["0", "5"]
    assert list(read_predictions(tmp_path / "predictions" / "RTE-dev.tsv", RTE)) == [str(2 * i) for i in range(6)]
    scores = read_json(tmp_path / "runs" / "x" / "scores.json")
    assert {name: set(row) for name, row in scores.items()} == {
        task.name: {"untrained", *task.metrics} for task in GLUE
    }
    history = [json.loads(line) for line in (tmp_path / "runs" / "x" / "metrics.jsonl").read_text().splitlines()]
    for row in history:
        dev = {name: row["dev"][name] for name in names}
        assert row["score"] == pytest.approx(np.mean([dev[task.name][task.metric] for task in GLUE]))
        assert all(value["loss"] > 0 for value in dev.values())
    untrained, best = history[0]["score"], max(row["score"] for row in history[1:])
    assert out.split("\nmean ")[1].split()[:2] == [f"{untrained:.3f}", f"{best:.3f}"] and "leaderboard" not in out
    model = MultitaskBERT.from_pretrained(tmp_path / "runs" / "x" / "best")
    assert {name: head.config.joint for name, head in model.heads.items()} == {
        "cola": False, "mrpc": True, "rte": True, "sst2": False
    }  # fmt: skip


@pytest.mark.parametrize("pooler", list(POOLERS))
def test_every_pooler_frozen(command, tmp_path, pooler):
    code, _, err = command(f"--tasks sst2,mrpc --option pretrain --pooler {pooler} --epochs 1")
    assert code == 0, err
    assert (tmp_path / "predictions" / "SST-2-dev.tsv").read_text().startswith("index\tprediction\n0\t")


@pytest.mark.parametrize("encoding", ["joint", "separate"])
def test_a_pair_is_learned_either_way(command, tmp_path, encoding):
    code, out, err = command(
        f"--tasks mrpc --option finetune --pooler mean_max --epochs 15 --lr 1e-3 --hidden_dropout_prob 0 "
        f"--pair_encoding {encoding}"
    )
    assert code == 0, err
    scores = read_json(tmp_path / "runs" / "x" / "scores.json")["mrpc"]
    assert scores["acc_and_f1"] == pytest.approx((scores["accuracy"] + scores["f1"]) / 2) and scores["f1"] > 0.9
    model = MultitaskBERT.from_pretrained(tmp_path / "runs" / "x" / "best")
    assert model.heads["mrpc"].config.joint == (encoding == "joint")
    assert read_json(tmp_path / "runs" / "x" / "config.json")["options"]["pair_encoding"] == encoding


def test_a_test_file_that_came_or_went_since_the_run_was_stopped_is_named(command, tmp_path, monkeypatch, capsys):
    test = tmp_path / "glue" / "SST-2" / "test.tsv"
    going_on = ["--resume", "runs/x"]

    def interrupt(*_):
        raise KeyboardInterrupt

    for there in (False, True):
        if there:
            test.write_text("index\tsentence\n0\tgood film\n")
        with monkeypatch.context() as patch:
            patch.setattr(multitask_classifier, "describe_cost", interrupt)
            assert command("--tasks sst2")[0] == 130
        if there:
            test.unlink()
        else:
            test.write_text("index\tsentence\n0\tgood film\n")
        assert main(going_on) == 1
        what = "is gone" if there else "was added after the run began"
        wanted = f"runs/x can't be continued, its inputs changed: glue/SST-2/test.tsv {what}; undo that, or start anew"
        assert wanted in capsys.readouterr().err
        shutil.rmtree(tmp_path / "runs")


def test_without_the_folder_it_is_asked_for(command, tmp_path):
    code, _, err = command("--tasks cola", data=f"--data {tmp_path / 'tiny'}")
    assert code == 1 and "CoLA/train.tsv: not there; name with --data the folder" in err and err.count("\n") == 1
    code, _, err = command("--tasks cola --cola_test nowhere.tsv")  # asked for by name, so wanted
    assert code == 1 and "nowhere.tsv: not there" in err


def test_other_files_are_not_overwritten(command, tmp_path):
    (tmp_path / "predictions").mkdir()
    (tmp_path / "predictions" / "CoLA-dev.tsv").write_text("id \t Predicted_Sentiment \n")
    code, _, err = command("--tasks cola")
    assert code == 1 and "--cola_dev_out would overwrite predictions/CoLA-dev.tsv" in err


def test_a_course_task_beside_one_of_glue_s(command, tmp_path):
    """Files of both layouts from one folder, and the plain mean to select by."""
    for split in ("train", "dev", "test"):
        label = "" if split == "test" else "\tis_duplicate"
        lines = [f"\tid\tsentence1\tsentence2{label}"]
        lines += [f"{i}\tr{i}\tgood dog\tbad cat" + (f"\t{i % 2}" if label else "") for i in range(4)]
        (tmp_path / "glue" / PARA.files[split]).write_text("\n".join(lines) + "\n")
    code, out, err = command("--tasks para,cola --epochs 1 --pooler top_k --attention 0")
    assert code == 0, err
    assert (tmp_path / "predictions" / "para-test-output.csv").read_text().startswith(PARA.header)
    row = json.loads((tmp_path / "runs" / "x" / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["score"] == pytest.approx((row["dev"]["para"]["accuracy"] + row["dev"]["cola"]["matthews"]) / 2)


def test_the_model_that_was_kept_is_the_one_that_predicted(command, tmp_path):
    assert command("--tasks rte --option finetune --epochs 2 --pooler cls --lr 1e-3")[0] == 0
    model = MultitaskBERT.from_pretrained(tmp_path / "runs" / "x" / "best")
    tokenizer = BertTokenizer.from_folder(tmp_path / "runs" / "x" / "best")
    found = predict(model, TaskData(RTE, read_split(RTE, "dev", tmp_path / "glue" / RTE.files["dev"]), tokenizer))
    written = read_predictions(tmp_path / "predictions" / "RTE-dev.tsv", RTE)
    assert written == dict(zip(found.ids, found.values.tolist(), strict=True))
