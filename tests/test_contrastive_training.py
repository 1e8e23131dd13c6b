"""`contrastive.py train` from options to a folder: selection, early stop, exact resume, two processes, refusals."""

import dataclasses
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import contrastive
import report
import state_dicts
from bert import BertModel
from contrastive_model import ContrastiveGradients
from contrastive_training import SHARED
from errors import InputError
from run import Run
from sentence_encoder import SentenceEncoder
from sts_data import read_pairs
from sts_evaluation import spearman_of
from tokenizer import BertTokenizer
from training import Stopped, Trainer

ROOT = Path(__file__).resolve().parent.parent
LINES = ["a good film", "dull", "the cat sat on the mat", "why ?", "who ran", "very bad", "not good .", "bright , dull",
         "a dog ran", "the mat was dull", "quickly", "who sat ?", "film", "cat and dog"]  # fmt: skip
DEV = "genre\tfile\tyear\t0\t{}\t{}\t{}\n"
PAIRS = [("5.0", "a good film", "the film was good"), ("0.0", "dull", "who ran"), ("3.0", "a cat", "the cat sat"),
         ("1.5", "why ?", "who ran ?"), ("2.2", "very bad", "not good .")]  # fmt: skip


@pytest.fixture
def files(tmp_path, tiny_config, tiny_tokenizer):
    """A folder with a tiny model with dropout, the same without, sentences, triples and dev pairs."""
    torch.manual_seed(0)
    bert = BertModel(tiny_config)
    for name, dropout in (("tiny", 0.2), ("still", 0.0)):
        bert.config = dataclasses.replace(
            tiny_config, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
        )
        bert.save_pretrained(tmp_path / name)
        tiny_tokenizer.save_pretrained(tmp_path / name)
    (tmp_path / "lines.txt").write_text("\n".join(LINES) + "\n")
    triples = [f'"{LINES[i]}","{LINES[i + 1]}","{LINES[(i + 5) % 14]}"' for i in range(13)]
    (tmp_path / "triples.csv").write_text("sent0,sent1,hard_neg\n" + "\n".join(triples) + "\n")
    (tmp_path / "sts-dev.csv").write_text("".join(DEV.format(*row) for row in PAIRS))
    return tmp_path


def command(files, *options, model="tiny", run="run"):
    """Options of a short run on the sentences, or on the --train that is named; what comes last counts."""
    common = ["--model", files / model, "--dev", files / "sts-dev.csv"]
    common += [] if "--train" in options else ["--train", files / "lines.txt"]
    sizes = ["--batch_size", 4, "--max_length", 12, "--device", "cpu", "--lr", 0.001, "--epochs", 2]
    return [str(option) for option in ("train", *common, *sizes, "--run", files / run, *options)]


def train(files, *options, **where):
    return contrastive.main(command(files, *options, **where))


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_its_encoder_scores_and_all_it_was_asked(files, capsys):
    assert train(files, "--evaluate_every", 3, "--pooler", "layer_attention", "--pooler_options", "query=last") == 0
    run = files / "run"
    assert {path.name for path in run.iterdir()} == {
        "best",
        "config.json",
        "metrics.jsonl",
        "scores.json",
        "report.html",
    }
    places = [(row["epoch"], row["step"]) for row in rows(run)]
    assert places == [(0, 0), (0, 3), (1, 0), (1, 3), (2, 0)]
    best = max(rows(run)[1:], key=lambda row: row["score"])
    assert [row["best"] for row in rows(run)].count(True) >= 1 and best["best"] and not rows(run)[0]["best"]
    scores = json.loads((run / "scores.json").read_text())
    assert scores["trained"] == {**best["dev"], "epoch": best["epoch"], "step": best["step"]}
    encoder = SentenceEncoder.from_pretrained(run)
    assert encoder.pooler_options["query"] == "last" and encoder.max_length == 24
    assert spearman_of(encoder, read_pairs(files / "sts-dev.csv")) == pytest.approx(best["score"], abs=1e-6)
    config = json.loads((run / "config.json").read_text())
    assert config["command"] == "contrastive.py" and config["options"]["temperature"] == 0.05
    assert config["data"]["train"][0]["rows"] == 14 and config["data"]["dev"]["pairs"] == 5
    said = capsys.readouterr().out
    assert "data       14 sentences, each its own pair" in said and "layer_attention, activation rrelu" in said
    assert "6 rows with a sentence of that file: --exclude" in said


def test_what_is_shared_with_an_evaluation_set_is_left_out_and_counted(files, capsys):
    assert train(files, "--exclude", files / "sts-dev.csv", "--epochs", 1) == 0
    dropped = json.loads((files / "run" / "config.json").read_text())["data"]["train"][0]["dropped"]
    assert dropped == {SHARED: {"rows": 6, "first_lines": [1, 2, 4, 5, 6, 7]}}
    said = capsys.readouterr().out
    assert f"lines.txt: 8 rows (6 left out: {SHARED}, line 1, ...)" in said and "warning" not in said


@pytest.mark.parametrize("how", ["plain", "in parts", "hidden words"])
def test_stopped_and_resumed_it_is_the_same_to_the_bit(files, monkeypatch, capsys, how):
    """SIGTERM in the middle of the second epoch; dropout, RReLU and hidden tokens go on as they were."""
    options = ["--mlm_weight", 0.1, "--pooler", "layer_attention", "--evaluate_every", 2, "--clip", 0.5]
    options += ["--mode", "sup", "--train", files / "triples.csv", "--hard_negative_weight", 0.3]
    options += ["--micro_batch", 2] if how == "in parts" else []
    if how == "hidden words":
        options = ["--mode", "mlm", "--reinitialize", 1, "--fraction", 0.95, "--evaluate_every", 2, "--micro_batch", 3]
    assert train(files, *options, run="straight") == 0
    real, steps = Trainer._step, []

    def step(trainer, *arguments):
        real(trainer, *arguments)
        steps.append(1)
        if len(steps) == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "_step", step)
    assert train(files, *options, run="stopped") == 130
    assert f"train --resume {files / 'stopped'}" in capsys.readouterr().err
    assert not (files / "stopped" / "scores.json").exists()
    torch.manual_seed(999)
    assert contrastive.main(["train", "--resume", str(files / "stopped")]) == 0
    assert len(steps) == 8
    straight, stopped = files / "straight", files / "stopped"
    timeless = [
        [{k: v for k, v in row.items() if k != "train_seconds"} for row in rows(r)] for r in (straight, stopped)
    ]
    assert timeless[0] == timeless[1]
    assert (straight / "scores.json").read_bytes() == (stopped / "scores.json").read_bytes()
    one, other = (state_dicts.read_state(run / "best") for run in (straight, stopped))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert contrastive.main(["train", "--resume", str(stopped)]) == 1
    assert "is finished" in capsys.readouterr().err


def test_a_resumed_run_keeps_its_options_and_its_data(files, monkeypatch, capsys):
    def stop(trainer, say):
        raise Stopped

    monkeypatch.setattr(Trainer, "_train_epoch", stop)
    assert train(files) == 130
    run = str(files / "run")
    capsys.readouterr()
    for options, message in (
        (["--lr", "0.5"], "--lr 0.5 differs from the run's 0.001: leave it out"),
        (["--train", "other.txt"], "--train other.txt differs from the run's"),
    ):
        assert contrastive.main(["train", "--resume", run, *options]) == 1
        assert message in capsys.readouterr().err
    lines = (files / "lines.txt").read_text()
    (files / "lines.txt").write_text("another\nfile\nof\nlines\n")
    assert contrastive.main(["train", "--resume", run, "--save_every", "1"]) == 1
    error = capsys.readouterr().err
    assert "can't be continued, its inputs changed: " in error and "lines.txt (14 rows -> 4 rows): restore" in error
    (files / "lines.txt").write_text(lines)
    (files / "tiny" / "tokenizer_config.json").unlink()
    assert contrastive.main(["train", "--resume", run]) == 1
    assert re.search(r"/tiny/tokenizer_config.json .SHA-256 \w{12} -> none.: restore", capsys.readouterr().err)
    config = json.loads((files / "run" / "config.json").read_text())
    for change, message in (
        ({"epochs": "many"}, "config.json: epochs is 'many', which --epochs could not be"),
        ({"train": []}, "config.json: train is [], which --train could not be"),
        ({"mode": "both"}, "config.json: mode is 'both', which --mode could not be"),
    ):
        changed = {**config, "options": {**config["options"], **change}}
        (files / "run" / "config.json").write_text(json.dumps(changed))
        assert contrastive.main(["train", "--resume", run]) == 1
        assert message in capsys.readouterr().err
    del config["options"]["lr"]
    (files / "run" / "config.json").write_text(json.dumps(config))
    assert contrastive.main(["train", "--resume", run]) == 1
    assert "the options have no lr: restore it" in capsys.readouterr().err


@pytest.mark.parametrize("ended", ["whole", "early", "without metrics"])
def test_a_finished_run_that_has_lost_its_scores_is_not_trained_anew(files, monkeypatch, capsys, ended):
    """Its best model would be gone with the first epoch. report.py sends nobody to --resume either."""
    if ended == "early":
        falling = iter((0.5, 0.4, 0.3, 0.2))
        monkeypatch.setattr("contrastive_training.spearman_of", lambda encoder, pairs: next(falling))
    run = files / "run"
    assert train(files, *(["--patience", 2, "--epochs", 9] if ended == "early" else [])) == 0
    (run / "scores.json").unlink()
    if ended == "without metrics":
        (run / "metrics.jsonl").unlink()
    before = (run / "best" / "model.safetensors").read_bytes()
    lost = "run has lost its scores.json"
    back = "copy its scores.json back (its model is still in best/)"
    capsys.readouterr()
    assert contrastive.main(["train", "--resume", str(run)]) == 1
    error = capsys.readouterr().err
    assert f"{lost}, and training would start over: {back}, or train again with another --run" in error
    assert train(files) == 1
    assert f"run holds a run already: {back}, or choose another --run" in capsys.readouterr().err
    assert report.main([str(run)]) == 1
    assert f"{lost}: {back}" in capsys.readouterr().err
    assert (run / "best" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("when", ["before the first checkpoint", "its checkpoint deleted"])
def test_a_stopped_run_without_a_checkpoint_starts_over(files, monkeypatch, capsys, when):
    """As a damaged checkpoint's error says: not one that is finished, although a best model may be there."""
    real, saved = Trainer._save, []

    def save(trainer, say):
        saved.append(trainer.progress.epoch)
        if when == "its checkpoint deleted":
            real(trainer, say)
        if when == "before the first checkpoint" or len(saved) == 2:
            raise Stopped

    with monkeypatch.context() as stopped:
        stopped.setattr(Trainer, "_save", save)
        assert train(files) == 130
    if when == "its checkpoint deleted":
        assert (files / "run" / "best").is_dir()
        shutil.rmtree(files / "run" / "last")
    capsys.readouterr()
    assert contrastive.main(["train", "--resume", str(files / "run")]) == 0
    assert "there is no checkpoint yet: it starts over" in capsys.readouterr().out
    assert [row["epoch"] for row in rows(files / "run")] == [0, 1, 2]


def test_going_on_where_tensorboard_is_missing(files, monkeypatch, capsys):
    """It changes no number, and was asked for when the run began: left out, and said to be."""

    def missing():
        raise InputError("--tensorboard: not installed")

    def stop(trainer, say):
        raise Stopped

    with monkeypatch.context() as stopped:
        stopped.setattr(Trainer, "_train_epoch", stop)
        assert train(files) == 130
    config = json.loads((files / "run" / "config.json").read_text())
    config["options"]["tensorboard"] = True
    (files / "run" / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("contrastive_training.check_installed", missing)
    capsys.readouterr()
    assert contrastive.main(["train", "--resume", str(files / "run")]) == 0
    said = capsys.readouterr()
    assert "left out   --tensorboard: not installed" in said.out and not said.err
    assert train(files, "--tensorboard", run="new") == 1  # who types it can leave it out
    assert capsys.readouterr().err == "error: --tensorboard: not installed\n" and not (files / "new").exists()


@pytest.mark.parametrize("options", [[], ["--micro_batch", 2], ["--mlm_weight", 0.1]])
def test_a_batch_whose_loss_is_not_finite_ends_the_run_or_is_left_out(files, monkeypatch, capsys, options):
    """Its rows are named by file and line; going on with --non_finite skip ends well, and no file holds a NaN."""
    real, calls = ContrastiveGradients.backward, []

    def backward(gradients, parts, counts):
        calls.append(len(calls))
        return real(gradients, parts, counts) * (math.nan if len(calls) in (6, 7) else 1)

    monkeypatch.setattr(ContrastiveGradients, "backward", backward)
    assert train(files, *options, "--save_every", 0) == 1
    said = capsys.readouterr().err
    assert re.match(
        r"error: the loss is nan at epoch 2, step 2, task contrast, rows \[\"[^\"]*lines.txt:\d+\"", said
    ), said
    assert "--non_finite skip leaves such batches out" in said and said.count("\n") == 1
    assert contrastive.main(["train", "--resume", str(files / "run"), "--non_finite", "skip"]) == 0
    assert capsys.readouterr().out.count("skipped    the loss is nan at epoch 2, step 2") == 1
    assert [row.get("skipped") for row in rows(files / "run")][-1] == 1
    state = state_dicts.read_state(files / "run" / "best")
    assert all(tensor.isfinite().all() for tensor in state.values())


@pytest.mark.parametrize(
    ("name", "value"), [("train", ["a\0b"]), ("data", "\ud800"), ("model", "a\0b"), ("exclude", ["", "x"])]
)
def test_a_name_that_no_file_can_have_is_refused_when_going_on(files, monkeypatch, capsys, name, value):
    monkeypatch.setattr(Trainer, "_train_epoch", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    assert train(files) == 130
    path = files / "run" / "config.json"
    config = json.loads(path.read_text())
    config["options"][name] = value
    path.write_text(json.dumps(config))
    capsys.readouterr()
    assert contrastive.main(["train", "--resume", str(files / "run")]) == 1
    assert f"which --{name} could not be: restore it" in capsys.readouterr().err


def test_it_stops_early_when_nothing_gets_better(files, monkeypatch, capsys):
    scores = iter([0.1, 0.5, 0.4, 0.3])
    monkeypatch.setattr("contrastive_training.spearman_of", lambda encoder, pairs: next(scores))
    assert train(files, "--evaluate_every", 1, "--patience", 2, "--epochs", 50) == 0
    run = files / "run"
    assert [row["score"] for row in rows(run)] == [0.1, 0.5, 0.4, 0.3]
    assert "stopping early: 2 evaluations without a better score" in capsys.readouterr().out
    assert json.loads((run / "scores.json").read_text())["trained"] == {"spearman": 0.5, "epoch": 0, "step": 1}
    assert not (run / "last").exists()


def test_an_undefined_correlation_counts_as_minus_one(files, monkeypatch, capsys):
    monkeypatch.setattr("contrastive_training.spearman_of", lambda encoder, pairs: None)
    assert train(files, "--epochs", 1) == 0
    assert [row["score"] for row in rows(files / "run")] == [-1.0, -1.0]
    assert "undefined, counted as -1" in capsys.readouterr().out


def test_hidden_words_alone_train_the_encoder(files, capsys):
    """No contrast, no dev, and no head in what is kept; its loss falls."""
    assert train(files, "--mode", "mlm", "--dev", "none", "--epochs", 30, "--evaluate_every", 0) == 0
    said = capsys.readouterr().out
    assert "14 sentences with hidden words" in said and "mlm        the weights have no head for masked words" in said
    losses = [row["train_loss"]["mlm"] for row in rows(files / "run")[1:]]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    state = state_dicts.read_state(files / "run" / "best")
    assert state.keys() == state_dicts.read_state(files / "tiny").keys()
    encoder = SentenceEncoder.from_pretrained(files / "run")
    assert encoder.fingerprint != SentenceEncoder.from_pretrained(files / "tiny").fingerprint
    typed = command(files, "--mode", "mlm", "--epochs", 0, run="default")
    del typed[typed.index("--dev") : typed.index("--dev") + 2]
    assert contrastive.main(typed) == 0
    assert json.loads((files / "default" / "config.json").read_text())["options"]["dev"] == "none"


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--mode", "mlm"], "--mode mlm: the vocabulary of {} has no [MASK]: choose another --model"),
        (
            ["--mlm_weight", 0.1],
            "--mlm_weight 0.1: the vocabulary of {} has no [MASK]: leave it out, or choose another --model",
        ),
    ],
)
def test_a_vocabulary_without_a_mask_is_refused_before_anything_is_written(files, capsys, options, wanted):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(25))]
    BertTokenizer({word: i for i, word in enumerate(words)}, model_max_length=24).save_pretrained(files / "tiny")
    assert train(files, *options) == 1
    assert capsys.readouterr().err == f"error: {wanted.format(files / 'tiny')}\n" and not (files / "run").exists()
    assert train(files, "--epochs", 0) == 0  # without hidden words it needs none


def test_the_last_layers_begin_anew(files, capsys):
    assert train(files, "--mode", "mlm", "--epochs", 0, "--reinitialize", 2) == 0
    assert "its last 2 layers begin anew" in capsys.readouterr().out
    before, after = (state_dicts.read_state(files / name) for name in ("tiny", "run/best"))
    for name, tensor in before.items():
        anew = name.startswith(("encoder.layer.1.", "encoder.layer.2."))
        assert torch.equal(tensor, after[name]) != (anew and tensor.dim() > 1), name
    assert float(after["encoder.layer.2.output.dense.weight"].std()) == pytest.approx(0.3, rel=0.1)
    assert (after["encoder.layer.2.output.LayerNorm.weight"] == 1).all()
    assert train(files, "--epochs", 0, "--reinitialize", 4, run="more") == 1
    assert "--reinitialize 4: the model has 3 layers" in capsys.readouterr().err


def test_a_share_of_the_rows_is_the_same_for_every_seed(files, capsys):
    for seed in (1, 2):
        assert train(files, "--epochs", 0, "--fraction", 0.4, "--seed", seed, run=f"run{seed}") == 0
    one, other = (json.loads((files / f"run{seed}" / "config.json").read_text())["data"]["train"] for seed in (1, 2))
    assert one == other and one[0]["rows"] == 6 and one[0]["dropped"]["beyond --fraction 0.4"]["rows"] == 8
    assert "6 sentences, each its own pair" in capsys.readouterr().out


def test_without_dev_the_last_model_is_kept(files):
    assert train(files, "--dev", "none") == 0
    assert [(row["epoch"], row["best"]) for row in rows(files / "run")] == [(0, False), (1, True), (2, True)]
    assert json.loads((files / "run" / "scores.json").read_text()) == {"dev": None}
    before = SentenceEncoder.from_pretrained(files / "tiny").encode(LINES)
    assert np.abs(SentenceEncoder.from_pretrained(files / "run").encode(LINES) - before).max() > 1e-3


def test_where_every_step_overflowed_the_model_is_kept_as_it_was(files, monkeypatch, capsys):
    monkeypatch.setattr(ContrastiveGradients, "loss", lambda self, part, outputs, labels: outputs.sum() * 1e38)
    assert train(files, "--precision", "fp16", "--epochs", 1) == 0
    one, other = (SentenceEncoder.from_pretrained(files / name) for name in ("tiny", "run"))
    np.testing.assert_array_equal(one.encode(LINES), other.encode(LINES))


@pytest.mark.parametrize("seed", [6, 8])
def test_in_16_bits_a_batch_without_a_hidden_word_makes_no_step(files, seed):
    (files / "words.txt").write_text("why\ndull\n")
    options = ["--mode", "mlm", "--dev", "none", "--precision", "fp16", "--batch_size", 2, "--epochs", 4]
    assert train(files, *options, "--train", files / "words.txt", "--seed", seed) == 0


def test_no_epochs_keep_the_model_as_it_was(files):
    assert train(files, "--epochs", 0) == 0
    one, other = (SentenceEncoder.from_pretrained(files / name) for name in ("tiny", "run"))
    np.testing.assert_array_equal(one.encode(LINES), other.encode(LINES))


def test_simcses_dense_layer_is_in_training_only(files, capsys):
    assert train(files, "--pooler", "first") == 0
    assert "dense      a layer with tanh behind the pooler, in training only" in capsys.readouterr().out
    state = state_dicts.read_state(files / "run" / "best")
    assert not [name for name in state if "sentence_pooler" in name or name.startswith("dense")]
    encoder = SentenceEncoder.from_pretrained(files / "run")
    assert encoder.pooler_name == "first" and not list(encoder.pooler.parameters())
    assert train(files, "--pooler", "first", "--training_dense", "no", run="without") == 0
    assert "dense  " not in capsys.readouterr().out
    other = SentenceEncoder.from_pretrained(files / "without")
    assert encoder.fingerprint != other.fingerprint


def test_a_trained_encoder_is_trained_on(files, capsys):
    assert train(files, "--pooler", "layer_attention", "--epochs", 1) == 0
    first = SentenceEncoder.from_pretrained(files / "run")
    assert contrastive.main([*command(files, "--epochs", 0, run="again"), "--model", str(files / "run")]) == 0
    assert "pooler layer_attention" in capsys.readouterr().out
    assert SentenceEncoder.from_pretrained(files / "again").fingerprint == first.fingerprint


def test_two_processes_are_one(files, capsys):
    """The whole command under torchrun's variables, no dropout: triples, hidden tokens, a last batch of one row."""
    options = ["--mode", "sup", "--train", files / "triples.csv", "--hard_negative_weight", 0.5, "--mlm_weight", 0.2]
    options += ["--evaluate_every", 2, "--pooler", "cls"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, str(ROOT / "contrastive.py"), *command(files, *options, model="still", run="two")],
            env={**common, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    try:
        said = [process.communicate(timeout=400) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], said
    assert "2 processes, each a part of every batch" in said[0][0] and not said[1][0]
    assert train(files, *options, model="still", run="one") == 0
    one, two = (rows(files / name) for name in ("one", "two"))
    for a, b in zip(one, two, strict=True):
        assert (a["epoch"], a["step"], a["score"]) == (b["epoch"], b["step"], pytest.approx(b["score"], abs=2e-4))
        assert a["train_loss"] == {name: pytest.approx(loss, abs=2e-4) for name, loss in b["train_loss"].items()}
    one, two = (state_dicts.read_state(files / name / "best") for name in ("one", "two"))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch_size", 1], "--batch_size is 1, wanted a number from 2 up"),
        (["--temperature", 0], "--temperature is 0.0, wanted a number above 0"),
        (["--lr", "nan"], "--lr is nan, wanted 0 to 1e+30"),
        (["--max_length", 25], "--max_length 25: the model has 24 positions"),
        (["--pooler_options", "query=last"], "--pooler_options: of which pooler"),
        (["--pooler", "mean", "--pooler_options", "query=last"], "pooler mean takes none"),
        (["--mode", "sup", "--column", "a"], "--column is for --mode unsup"),
        (["--hard_negative_weight", 1], "--hard_negative_weight is for --mode sup"),
        (["--dev", "none", "--patience", 1], "--patience: without scores"),
        (["--mode", "mlm", "--pooler", "first"], "--pooler: in --mode mlm nothing is contrasted"),
        (["--mode", "mlm", "--mlm_weight", 0.1], "--mlm_weight: in --mode mlm nothing is contrasted"),
        (["--fraction", 0], "--fraction is 0.0, wanted a number above 0, up to 1"),
        (["--fraction", "nan"], "--fraction is nan"),
        (["--dev", "nowhere.csv"], "cannot read nowhere.csv"),
        (["--exclude", "nowhere"], "cannot read nowhere"),
        (["--train", "nowhere"], "cannot read nowhere"),
        (["--model", "nowhere"], "no weights at nowhere"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_written(files, capsys, options, message):
    assert train(files, *options) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
    assert not (files / "run").exists()


def test_pairs_have_no_hard_negatives_to_weigh_and_one_row_nothing_to_be_told_from(files, capsys):
    (files / "pairs.csv").write_text("sent0,sent1\na,cat\nthe,dog\n")
    assert train(files, "--mode", "sup", "--train", files / "pairs.csv", "--hard_negative_weight", 1) == 1
    assert "these are pairs, without hard negatives" in capsys.readouterr().err
    (files / "one.txt").write_text("cat\ncat\n")
    assert train(files, "--train", files / "one.txt") == 1
    error = capsys.readouterr().err
    assert "one.txt: 1 row (1 left out: said before, line 2); wanted two or more" in error
    (files / "same.csv").write_text("sent0,sent1\ncat,cat\ncat,cat\n")
    assert train(files, "--mode", "sup", "--train", files / "same.csv") == 1
    assert "same.csv: its 2 rows all say the same: nothing to be told from" in capsys.readouterr().err


def test_a_folder_with_a_run_is_not_written_over(files, capsys):
    assert train(files, "--epochs", 0) == 0
    assert train(files, "--epochs", 0) == 1
    assert "holds a finished run already: choose another --run" in capsys.readouterr().err


def test_a_folder_in_which_a_run_is_trained_is_left_alone(files, capsys):
    with Run(files / "run").locked():
        assert train(files) == 1
        assert f"run is being trained by process {os.getpid()}: wait until it has ended" in capsys.readouterr().err
    assert not (files / "run" / "config.json").exists()


def test_the_program_lists_its_commands(capsys):
    with pytest.raises(SystemExit) as left:
        contrastive.main(["--help"])
    said = capsys.readouterr().out
    assert left.value.code == 0 and all(f"  {name}" in said for name in ("train", "evaluate", "search"))
    with pytest.raises(SystemExit) as left:
        contrastive.main(["fly"])
    assert left.value.code == 2 and "choose from" in capsys.readouterr().err
