"""Long runs need no more than short ones: memory over 5,000 steps, and files, threads and processes over many runs.

What is counted stands in Linux's /proc; elsewhere these tests are skipped. As a program, `test_long_runs.py FOLDER
STEPS LEAK` prints by how much the memory of one run grows.
"""

import gc
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, write_rows

import contrastive
import contrastive_training
import course_data
import multitask_classifier
import options
from batches import TaskData, prepared
from bert import BertConfig, BertModel
from datasets import Example, Table
from errors import InputError
from model import ModelConfig, MultitaskBERT
from run import Run
from sampling import make_schedule
from search_data import open_corpus
from search_index import SearchIndex, build
from sentence_encoder import SentenceEncoder
from tasks import SST
from tokenizer import BertTokenizer
from training import Trainer, TrainingOptions

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system has no /proc")

EPOCHS, EVERY = 5, 100
LIMIT = 6e6  # bytes: over 4,000 steps 1.5 kB each
WORDS = "a the film was good bad very not dull bright".split()


def resident() -> int:
    """Bytes of memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(folder: Path, steps: int, leak: int) -> int:
    """Bytes that a run of so many steps holds more at its end than after a fifth; leak: bytes that each step keeps.

    The smallest model there can be, five epochs with an evaluation and a checkpoint each.
    """
    torch.manual_seed(0)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    bert = BertModel(BertConfig(vocab_size=len(pieces), max_position_embeddings=24, **sizes))
    model = MultitaskBERT(ModelConfig.for_tasks(["sst"], attention={"sst": 0}), bert)
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(WORDS, generator.integers(1, 9))) for _ in range(2 * steps // EPOCHS)]
    rows = [Example(f"s{i}", text, None, i % 5, i) for i, text in enumerate(texts)]
    tokenizer = BertTokenizer({piece: i for i, piece in enumerate(pieces)}, model_max_length=24)
    data = {"sst": TaskData(SST, Table(None, rows, [], ""), tokenizer)}
    trainer = Trainer(
        model,
        data,
        make_schedule("proportional", {"sst": len(rows)}, 2, EPOCHS, 0),
        lambda: (0.0, {"dev": {}}, ""),
        lambda: model.save_pretrained(folder / "best"),
        Run(folder / "run"),
        TrainingOptions(epochs=EPOCHS, lr=1e-3, clip=1.0),
    )
    real, held, kept = trainer.gradients.backward, [], []

    def backward(parts, counts):
        if leak:
            kept.append(os.urandom(leak))
        if trainer.steps_made % EVERY == 0:
            gc.collect()
            held.append(resident())
        return real(parts, counts)

    trainer.gradients.backward = backward
    trainer.train(lambda text: None)
    assert trainer.steps_made == steps and len(held) == steps // EVERY
    return min(held[-4:]) - held[len(held) // EPOCHS]


def measured(folder, steps, leak=0):
    """growth in a process of its own, where no memory is free that others have held."""
    command = [sys.executable, __file__, str(folder), str(steps), str(leak)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
def test_memory_does_not_grow_over_5000_steps(tmp_path):
    assert measured(tmp_path, 5000) < LIMIT


def test_a_leak_would_be_seen(tmp_path):
    """Else the test above would prove nothing: here each of 1,000 steps keeps 30 kB."""
    assert measured(tmp_path, 1000, 30_000) > LIMIT


# --- files, threads, processes -----------------------------------------------------------------------------------


def held_now():
    """What this process holds open: files by kind, threads, child processes."""
    gc.collect()
    files = []
    for name in os.listdir("/proc/self/fd"):
        try:
            files.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:  # the one by which the folder was listed
            continue
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/pytest-of-" in line}
    children = []
    for task in os.listdir("/proc/self/task"):
        path = Path(f"/proc/self/task/{task}/children")
        children += path.read_text().split() if path.exists() else []
    return sorted(files), sorted(mapped), threading.active_count(), children


@pytest.fixture
def root(tmp_path, tiny_folder, monkeypatch):
    write_rows(tmp_path / "data" / "sample")
    shutil.copytree(tiny_folder, tmp_path / "tiny")
    for module in (multitask_classifier, options, contrastive_training):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(multitask_classifier, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(course_data, "DATA", tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("a film\na cat\n")
    (tmp_path / "bad.csv").write_text("\tid\tsentence\tsentiment\n0\tx\ta film\t9\n")
    return tmp_path


COMMON = ["--model", "tiny", "--device", "cpu"]
TRAIN = [*COMMON, "--batch_size", "4", "--epochs", "1"]
COMMANDS = {
    "a run": (multitask_classifier.main, [*TRAIN, "--option", "finetune", "--run", "runs/{}"], 0),
    "a run of a frozen encoder": (multitask_classifier.main, [*TRAIN, "--run", "runs/{}"], 0),
    "a run that fails in the middle": (
        multitask_classifier.main,
        [*TRAIN, "--option", "finetune", "--lr", "1e30", "--run", "runs/{}"],
        1,
    ),
    "a refused file": (multitask_classifier.main, [*TRAIN, "--tasks", "sst", "--sst_train", "bad.csv"], 1),
    "contrastive training": (contrastive.main, ["train", *TRAIN, "--dev", "none", "--run", "runs/{}"], 0),
    "an index": (contrastive.main, ["search", "index", "corpus.txt", "--index", "index{}", *COMMON], 0),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_leaves_no_file_thread_or_process_behind(root, name, capsys):
    main, arguments, wanted = COMMANDS[name]
    found = []
    for number in range(4):
        assert main([word.format(number) for word in arguments]) == wanted, capsys.readouterr().err
        found.append(held_now())
    assert found[1] == found[3]  # the first may import something, and a library start threads of its own


def test_searching_and_encoding_leave_nothing_behind(root):
    encoder = SentenceEncoder.from_pretrained("tiny")
    build("index", open_corpus("corpus.txt"), encoder)
    vectors = encoder.encode(["a film"])
    before = held_now()
    for _ in range(50):
        index = SearchIndex.open("index")
        assert len(index.search(vectors, 2)[0]) == 2
        encoder.encode(["a film", "a cat"])
    del index
    assert held_now() == before


@pytest.mark.parametrize("end", ["break", "error", "all"])
def test_batches_prepared_ahead_leave_no_thread(end):
    def make(item):
        if end == "error" and item == 5:
            raise InputError("no batch")
        return item

    before = threading.active_count()
    for _ in range(5):
        try:
            for item in prepared(make, range(10)):
                if end == "break" and item == 4:
                    break
        except InputError:
            assert end == "error"
    gc.collect()
    assert threading.active_count() == before


if __name__ == "__main__":
    print(growth(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
