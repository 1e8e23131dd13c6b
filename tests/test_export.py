"""An exported folder: other libraries load it and give the same numbers, and its card says what the run's files say.

transformers and sentence_transformers run in processes of their own, started outside the root.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import subprocess
import sys
from itertools import count

import numpy as np
import pytest
import torch
from failing_calls import WriteCalls

import export
from errors import InputError
from files import write_json
from model import ModelConfig, MultitaskBERT
from model_card import facts_of
from sentence_encoder import SentenceEncoder

TEXTS = ["The film wasn't bad!", "a cat sat on the mat", "why", "the dog ran , and ran , and ran"]

THEIRS = """
import json, sys
import torch
from transformers import AutoModel, AutoTokenizer
folder, texts = sys.argv[1], json.loads(sys.argv[2])
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
with torch.no_grad():
    states = model.eval()(**batch).last_hidden_state
answers = {"ids": batch["input_ids"].tolist(), "states": states.tolist()}
if sys.argv[3] == "sentences":
    from sentence_transformers import SentenceTransformer
    answers["vectors"] = SentenceTransformer(folder, device="cpu").encode(texts).tolist()
print(json.dumps(answers))
"""
has_transformers = importlib.util.find_spec("transformers") is not None
has_sentence_transformers = importlib.util.find_spec("sentence_transformers") is not None


def ask(folder, sentences=True):
    command = [sys.executable, "-E", "-c", THEIRS, str(folder), json.dumps(TEXTS), "sentences" if sentences else "no"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def save_run(folder, tiny, tiny_tokenizer, **options):
    torch.manual_seed(0)
    model = MultitaskBERT(ModelConfig.for_tasks(("sst", "sts"), **options), tiny()).eval()
    model.save_pretrained(folder / "best")
    tiny_tokenizer.save_pretrained(folder / "best")
    path = "/somewhere/data/sample/sts-{}.csv"
    splits = {
        split: {"path": path.format(split), "rows": 12, "sha256": split * 20} for split in ("train", "dev", "test")
    }
    config = {
        "command": "multitask_classifier.py",
        "options": {"option": "finetune", "epochs": 3, "compile": False, "lr": 5e-5, "data": "/somewhere/data/sample"},
        "model": {"name": "all-MiniLM-L6-v2", "sha256": "53aa"},
        "data": {"sts": splits},
        "versions": {"torch": "2.13.0"},
    }
    write_json(folder / "config.json", config)
    write_json(folder / "scores.json", {"sts": {"untrained": None, "pearson": 0.75}})
    return model


@pytest.mark.skipif(not has_transformers, reason="transformers is not installed")
def test_other_libraries_give_the_same_numbers(tmp_path, tiny, tiny_tokenizer, capsys):
    model = save_run(tmp_path / "run", tiny, tiny_tokenizer)
    assert export.main([str(tmp_path / "run"), str(tmp_path / "mine")]) == 0
    assert "24 numbers a text, pooler mean; AutoModel and SentenceTransformer load it" in capsys.readouterr().out
    theirs = ask(tmp_path / "mine", has_sentence_transformers)
    batch = tiny_tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
    assert theirs["ids"] == batch["input_ids"].tolist()
    mask = batch["attention_mask"]
    with torch.no_grad():
        states = model.bert(batch["input_ids"], mask)["last_hidden_state"]
        vectors = model(batch["input_ids"], mask)  # the course's: the mean of the tokens
    found = torch.tensor(theirs["states"])
    torch.testing.assert_close(found[mask.bool()], states[mask.bool()], atol=1e-5, rtol=1e-4)
    vectors = torch.nn.functional.normalize(vectors, dim=1).numpy()
    np.testing.assert_allclose(SentenceEncoder.from_pretrained(tmp_path / "mine").encode(TEXTS), vectors, atol=1e-5)
    if has_sentence_transformers:
        np.testing.assert_allclose(theirs["vectors"], vectors, atol=1e-5)


@pytest.mark.skipif(not has_sentence_transformers, reason="sentence-transformers is not installed")
def test_a_head_s_pooler_with_weights_of_its_own(tmp_path, tiny, tiny_tokenizer):
    model = save_run(tmp_path / "run", tiny, tiny_tokenizer, attention={"sst": 0, "sts": 0}, pooler="cls")
    export.export(str(tmp_path / "run"), tmp_path / "mine", head="sts")
    batch = tiny_tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        firsts = model.bert(batch["input_ids"], batch["attention_mask"])["last_hidden_state"][:, 0]
        vectors = torch.tanh(model.heads["sts"].pooler.dense(firsts))
    wanted = torch.nn.functional.normalize(vectors, dim=1).numpy()
    np.testing.assert_allclose(ask(tmp_path / "mine")["vectors"], wanted, atol=1e-5)


def test_a_pooler_that_only_we_have(tmp_path, tiny, tiny_tokenizer, capsys):
    model = save_run(tmp_path / "run", tiny, tiny_tokenizer, attention={"sst": 0, "sts": 0}, pooler="attentive_cls")
    assert export.main([str(tmp_path / "run" / "best"), str(tmp_path / "mine"), "--head", "sst"]) == 0
    assert "AutoModel loads it; its pooler attentive_cls is ours" in capsys.readouterr().out
    again = SentenceEncoder.from_pretrained(tmp_path / "mine")
    assert torch.equal(next(again.pooler.parameters()), next(model.heads["sst"].pooler.parameters()))
    card = (tmp_path / "mine" / "README.md").read_text()
    assert "library_name: transformers" in card and "SentenceTransformer can't express" in card
    assert "Texts are read up to 24 tokens" in card  # which its limits refer to
    assert "| similarity (STS) | pearson |" in card  # the run's facts are found beside best/


def test_the_card_says_what_the_run_s_files_say(tmp_path, tiny, tiny_tokenizer):
    save_run(tmp_path / "run", tiny, tiny_tokenizer)
    export.export(str(tmp_path / "run"), tmp_path / "mine")
    card = (tmp_path / "mine" / "README.md").read_text()
    _, metadata, text = card.split("---\n", 2)
    for line in ("license: apache-2.0", "base_model: sentence-transformers/all-MiniLM-L6-v2", "model_name: mine"):
        assert f"{line}\n" in metadata
    assert "| similarity (STS) | pearson | undefined | 0.750 |" in text
    assert f"| sts train | sts-train.csv | 12 | `{('train' * 20)[:12]}` |" in text and "sts-test" not in text
    assert "option finetune, epochs 3, lr 5e-05. With torch 2.13.0." in text
    assert "trained on an invented sample" in text and "/somewhere" not in card  # no path of one machine
    assert "are under apache-2.0, and so are these" in text and "read up to 24 tokens" in text
    assert "not finished" not in text
    (tmp_path / "run" / "scores.json").unlink()
    export.export(str(tmp_path / "run"), tmp_path / "early")
    assert "- Its run was not finished" in (tmp_path / "early" / "README.md").read_text()


def test_the_card_of_a_contrastive_run(tmp_path):
    dev = {"path": "/x/sts-dev.csv", "pairs": 7, "sha256": "b" * 64}
    train = [{"path": "/x/wiki.txt", "rows": 9, "sha256": "a" * 64, "dropped": {}}]
    config = {"command": "contrastive.py", "options": {"mode": "unsup"}, "model": {"name": "/home/me/bert-mine"}}
    write_json(
        tmp_path / "config.json", {**config, "data": {"train": train, "dev": dev, "excluded_sentences_sha256": None}}
    )
    scores = {
        "dev": {"path": "/x/sts-dev.csv"},
        "untrained": {"spearman": 0.5},
        "trained": {"spearman": 0.7, "epoch": 1},
    }
    write_json(tmp_path / "scores.json", scores)
    facts = facts_of(tmp_path)
    assert facts.files == (("train", "wiki.txt", 9, "a" * 64), ("dev", "sts-dev.csv", 7, "b" * 64))
    assert facts.scores == (("sts-dev.csv", "spearman", 0.5, 0.7),)
    assert facts.base == "bert-mine" and facts.licence is None and not facts.on_sample


def test_the_card_has_no_place_of_one_machine_and_every_zero(tmp_path):
    options = {"seed": 0, "hidden_dropout_prob": 0.0, "quiet": False, "loss": None, "sst_dev": "/home/me/my-dev.csv"}
    options |= {"distill": ["/home/me/runs/first", "/home/me/runs/second"], "dev": "/home/me/sts-dev.csv"}
    config = {"command": "multitask_classifier.py", "options": options, "model": {"name": "/home/me/runs/mine/best"}}
    write_json(tmp_path / "config.json", config)
    facts = facts_of(tmp_path)
    assert facts.options["seed"] == 0 and facts.options["hidden_dropout_prob"] == 0.0
    assert facts.options["distill"] == "first and second" and facts.base == "mine"
    assert "/home/me" not in str(facts) and not facts.options.keys() & {"quiet", "loss"}
    write_json(tmp_path / "config.json", config | {"model": {"name": "/home/me/runs/mine/sst/best"}})
    assert facts_of(tmp_path).base == "mine"


def test_what_cannot_be_exported(tmp_path, tiny, tiny_tokenizer, capsys):
    save_run(tmp_path / "run", tiny, tiny_tokenizer)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for arguments, message in (
        (("run", "full"), "holds something already"),
        (("run", "new", "--head", "sts"), "has attention layers behind the encoder, which no other library has"),
        (("run", "new", "--head", "para"), "--head para: no such head; this model has sst, sts"),
        (("run", "new", "--head", "sst", "--pooler", "mean"), "give one of them"),
        (("run", "new", "--pooler", "attentive_cls"), "it has weights of its own"),
        (("nowhere", "new"), "nowhere: no run there"),
    ):
        given = [str(tmp_path / part) if part in ("run", "full", "new", "nowhere") else part for part in arguments]
        assert export.main(given) == 1
        said = capsys.readouterr().err
        assert said.startswith("error: ") and said.count("\n") == 1 and message in said
        assert not (tmp_path / "new").exists()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc, which names what is open")
def test_every_write_that_fails_leaves_nothing_and_the_same_command_ends(
    tmp_path, tiny, tiny_tokenizer, monkeypatch, capsys
):
    save_run(tmp_path / "run", tiny, tiny_tokenizer, attention={"sst": 0, "sts": 0}, pooler="cls")
    place = tmp_path / "place"
    place.mkdir()
    command = [str(tmp_path / "run"), str(place / "new" / "mine"), "--head", "sst"]
    for number in count():
        calls = WriteCalls(place, number, errno.ENOSPC)
        with monkeypatch.context() as patch:
            calls.install(patch)
            code = export.main(command)
        if len(calls.what) <= number:
            break
        said = capsys.readouterr().err
        assert code == 1 and said.startswith(f"error: cannot write {place}") and said.count("\n") == 1, said
        assert not any(place.iterdir()), calls.what[number]
    assert code == 0 and number > 40


def test_a_run_with_a_model_for_each_task_names_those_that_export(tmp_path, tiny, tiny_tokenizer, capsys):
    run = tmp_path / "run"
    places = [run / name / "best" for name in ("sst", "sts")]
    for name, place in zip(("sst", "sts"), places, strict=True):
        torch.manual_seed(0)
        MultitaskBERT(ModelConfig.for_tasks((name,)), tiny()).save_pretrained(place)
        tiny_tokenizer.save_pretrained(place)
    data = {name: {"train": {"path": f"{name}.csv", "rows": 3, "sha256": "ab"}} for name in ("sst", "sts")}
    config = {"command": "multitask_classifier.py", "options": {"schedule": "separate"}, "data": data}
    write_json(run / "config.json", config)
    write_json(run / "scores.json", {"sst": {"accuracy": 0.25}, "sts": {"pearson": 0.75}})
    assert export.main([str(run), str(tmp_path / "mine")]) == 1
    said = f"error: {run}: a run with a model for each task: name one of {places[0]}, {places[1]}\n"
    assert capsys.readouterr().err == said
    for place, score, other in zip(places, ("0.250", "0.750"), ("sts", "sst"), strict=True):
        assert export.main([str(place), str(tmp_path / place.parent.name)]) == 0
        card = (tmp_path / place.parent.name / "README.md").read_text()
        assert "schedule separate" in card and score in card and f"{other}.csv" not in card


def test_a_pair_read_as_one_sequence_has_no_vector_for_a_text(tmp_path, tiny, tiny_tokenizer):
    torch.manual_seed(0)
    MultitaskBERT(ModelConfig.for_tasks(("mrpc",)), tiny()).save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="reads a pair as one sequence"):
        export.encoder_of_head(tmp_path, "mrpc")
