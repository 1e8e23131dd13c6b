"""Runs damaged at random: their configuration, scores, metrics, rows and checkpoints are read, or refused in one line.

Hypothesis draws the damage (mutations.py).
"""

import argparse
import json
import shutil

import pytest
import torch
from conftest import write_rows
from hypothesis import given
from hypothesis import strategies as st
from mutations import altered, damaged, json_bytes, refused, write
from test_training import Bench

import contrastive
import contrastive_options
import contrastive_training
import course_data
import multitask_classifier
import options
import prepare_submit
import result_row
from cells import Rows
from contrastive_training import refuse_changes as refuse_contrastive
from experiments import TABLES
from files import read_json
from job import refuse_changes
from options import get_args
from result_tables import results_table
from run import Run
from sentence_encoder import SentenceEncoder
from training import Stopped, Trainer


class Whole(dict):
    """Folder and file -> content; a failure's report does without them."""

    def __repr__(self):
        return "whole"


@pytest.fixture(scope="module")
def root(tmp_path_factory, tiny_folder):
    """A repository of its own with a finished and a stopped run of both commands, and what is in their files."""
    root = tmp_path_factory.mktemp("root")
    write_rows(root / "data" / "sample")
    shutil.copytree(tiny_folder, root / "tiny")
    with pytest.MonkeyPatch.context() as patch:
        for module in (multitask_classifier, options, contrastive_training, result_row, prepare_submit):
            patch.setattr(module, "ROOT", root)
        patch.setattr(multitask_classifier, "CACHE", root / "cache")
        for module in (multitask_classifier, contrastive_training):  # nothing here reads the page
            patch.setattr(module, "write_page", lambda folder, say: None)
        patch.setattr(course_data, "DATA", root / "data")
        patch.chdir(root)
        common = ["--model", "tiny", "--epochs", "1", "--batch_size", "4", "--device", "cpu"]
        multitask = [*common, "--option", "finetune", "--attention", "0"]
        sentences = ["train", *common, "--max_length", "8", "--dev", "none"]
        assert multitask_classifier.main([*multitask, "--run", "runs/done"]) == 0
        assert contrastive.main([*sentences, "--run", "runs/encoder"]) == 0

        def stop(trainer, say, real=Trainer._train_epoch):
            real(trainer, say)
            trainer.interrupted = True

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Trainer, "_train_epoch", stop)
            assert multitask_classifier.main([*multitask, "--run", "runs/stopped"]) == 130
            assert contrastive.main([*sentences, "--run", "runs/half"]) == 130
        yield root


def whole(root, run, name):
    kept = root / "kept" / run / name
    if not kept.is_file():
        write(kept, (root / "runs" / run / name).read_bytes())
    return kept.read_bytes()


def draw_json(data, content: bytes) -> bytes:
    return (
        json_bytes(data.draw(altered(json.loads(content)))) if data.draw(st.booleans()) else data.draw(damaged(content))
    )


def draw_lines(data, content: bytes) -> bytes:
    """JSON lines, one of them altered; or any damage."""
    if data.draw(st.booleans()):
        return data.draw(damaged(content))
    lines = content.splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    lines[at] = json_bytes(data.draw(altered(json.loads(lines[at]))))
    return b"\n".join(lines) + b"\n"


@given(data=st.data())
def test_a_stopped_run_to_go_on_with(root, data):
    content = whole(root, "stopped", "config.json")
    path = write(root / "runs" / "stopped" / "config.json", draw_json(data, content))
    refused(get_args, ["--resume", "runs/stopped"])
    refused(get_args, ["--resume", "runs/stopped", "--epochs", "3"])
    refused(refuse_changes, Run(path.parent), json.loads(content))


@given(data=st.data())
def test_a_stopped_contrastive_run_to_go_on_with(root, data):
    content = whole(root, "half", "config.json")
    path = write(root / "runs" / "half" / "config.json", draw_json(data, content))
    typed = ["--resume", "runs/half"]

    def resolve():
        parser = argparse.ArgumentParser()
        contrastive_options.add_options(parser)
        args = parser.parse_args(typed)
        args.arguments = typed
        contrastive_options.resolve(args)

    refused(resolve)
    refused(refuse_contrastive, Run(path.parent), json.loads(content))


@pytest.mark.parametrize("name", ["config.json", "scores.json", "metrics.jsonl"])
@given(data=st.data())
def test_a_finished_run_as_a_row(root, name, data):
    content = whole(root, "done", name)
    write(root / "runs" / "done" / name, (draw_lines if name == "metrics.jsonl" else draw_json)(data, content))

    def use():
        found = result_row.row("runs/done")
        result_row.table([(found, "runs/done")])
        json.dumps(found, allow_nan=False)

    refused(use)
    write(root / "runs" / "done" / name, content)


@given(data=st.data())
def test_a_submission_of_a_run(root, data):
    content = whole(root, "done", "config.json")
    path = write(root / "runs" / "done" / "config.json", draw_json(data, content))
    chosen = dict.fromkeys(("sst", "para", "sts"), path.parent)
    refused(prepare_submit.examine, root, chosen, None)
    refused(prepare_submit.examine, root, {}, None)
    write(path, content)


@given(data=st.data())
def test_a_run_as_an_encoder(root, data):
    name = data.draw(st.sampled_from(("config.json", "best/config.json")))
    content = whole(root, "encoder", name)
    path = write(root / "runs" / "encoder" / name, draw_json(data, content))
    refused(SentenceEncoder.from_pretrained, root / "runs" / "encoder")
    write(path, content)


@given(data=st.data())
def test_rows_of_a_table(root, data):
    table = TABLES["table1"]
    cell = {"model": "m", "data": "d", "row": "mean", "option": "pretrain", "tasks": ["sst"], "epochs": 1}
    cell |= {"batch_size": 4, "fraction": {}, "seed": 1}
    found = {"cell": cell, "call": "now", "loss": {"sst": 0.5}, **result_row.row("runs/done")}
    content = draw_lines(data, json_bytes(found) + b"\n" + json_bytes(found) + b"\n")

    def use():
        rows = Rows(write(root / "rows.jsonl", content)).rows
        results_table(table, rows)

    refused(use)


@pytest.fixture(scope="module")
def stopped_trainer(tmp_path_factory, tiny_tokenizer):
    """bench -> trainers of one stopped run; with its checkpoint's content."""
    from bert import BertConfig, BertModel

    def tiny(seed=0, **changes):
        torch.manual_seed(seed)
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        return BertModel(BertConfig(vocab_size=29, max_position_embeddings=24, **{**sizes, **changes})).eval()

    maker = Bench(tmp_path_factory.mktemp("bench"), tiny, tiny_tokenizer, option="finetune", epochs=2, dropout=False)

    def stop(trainer, number, batch):
        trainer.interrupted = number == 3

    with pytest.raises(Stopped):
        maker.train(loss=stop)
    return maker, (maker.folder / "run" / "last" / "checkpoint.safetensors").read_bytes()


@given(data=st.data())
def test_checkpoints_damaged(stopped_trainer, data):
    maker, content = stopped_trainer
    run = Run(maker.folder / "run")
    run.checkpoint.write_bytes(data.draw(damaged(content)))
    refused(run.position)
    if not refused(run.load_checkpoint):
        assert run.checkpoint.read_bytes() == content or run.load_checkpoint() is not None


DAMAGE = {
    "shape": lambda t: t.reshape(1, *t.shape),
    "longer": lambda t: torch.cat([t.flatten(), t.flatten()]),
    "whole numbers": lambda t: t.to(torch.int32),
    "double": lambda t: t.to(torch.float64),
    "bytes": lambda t: t.to(torch.uint8),
    "NaN": lambda t: torch.full_like(t, torch.nan) if t.is_floating_point() else t - 300,
    "empty": lambda t: t.flatten()[:0],
    "large": lambda t: torch.full_like(t, 255),
}


@given(data=st.data())
def test_checkpoints_of_somebody_else(stopped_trainer, data):
    """With a checksum that is right: what is in them is what a run never wrote."""
    maker, content = stopped_trainer
    run = Run(maker.folder / "run")
    run.checkpoint.write_bytes(content)
    tensors, state = run.load_checkpoint()
    for name in data.draw(st.lists(st.sampled_from(sorted(tensors)), max_size=2)):
        kind = data.draw(st.sampled_from(("gone", *DAMAGE)))
        if kind == "gone":
            tensors.pop(name, None)
        elif name in tensors:
            tensors[name] = DAMAGE[kind](tensors[name])
    if data.draw(st.booleans()):
        state = data.draw(altered(state))
    run.save_checkpoint(tensors, state)
    refused(run.position)
    trainer = maker.trainer()

    def use():
        trainer._resume(lambda text: None)
        for p in trainer.learning.values():
            p.grad = torch.zeros_like(p)
        trainer.optimizer.step()

    refused(use)
    assert all(p.isfinite().all() for p in trainer.learning.values())


def test_the_least_examples_are_whole(root, stopped_trainer):
    """What is damaged above can be read undamaged: else these tests would try nothing."""
    for run, name in (("stopped", "config.json"), ("half", "config.json"), ("done", "config.json")):
        write(root / "runs" / run / name, whole(root, run, name))
    assert get_args(["--resume", "runs/stopped"]).epochs == 1
    refuse_changes(Run(root / "runs" / "stopped"), read_json(root / "runs" / "stopped" / "config.json"))
    assert result_row.row("runs/done")["dev"].keys() == {"sst", "para", "sts"}
    assert SentenceEncoder.from_pretrained(root / "runs" / "encoder").dimension == 24
    maker, content = stopped_trainer
    (maker.folder / "run" / "last" / "checkpoint.safetensors").write_bytes(content)
    maker.trainer()._resume(lambda text: None)
