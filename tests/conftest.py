"""What several tests share: the embedded weights, transformers' answers, and the real data where there is some.

Follows pytest's conftest convention.
"""

import dataclasses
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

import weights
from bert import BertConfig, BertModel
from errors import InputError
from tokenizer import BertTokenizer

ROOT = Path(__file__).resolve().parent.parent

# Threads that wait for each other on small matrices, or on a busy machine, cost many times what they save; the variable
# is for the commands that tests start.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Under nohup, or in the background of a script, signals are ignored, and so they would be by every command that a test
# starts: they mean here what they mean on a terminal.
for number, default in ((signal.SIGINT, signal.default_int_handler), (getattr(signal, "SIGHUP", None), signal.SIG_DFL)):
    if number is not None and signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, default)

# The fuzz tests' profiles: the same few inputs every time, or, with --hypothesis-profile thorough, many and others.
COMMON = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
}
settings.register_profile("quick", max_examples=60, derandomize=True, **COMMON)
settings.register_profile("thorough", max_examples=3000, print_blob=True, **COMMON)
settings.load_profile("quick")


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """reference(subcommand, request) -> answer of reference_transformers.py; both are what JSON can hold."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed: nothing to compare with")
    script = Path(__file__).with_name("reference_transformers.py")
    folder = tmp_path_factory.mktemp("reference")
    asked, answered = folder / "request.json", folder / "answer.json"

    def ask(subcommand, request):
        asked.write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-E", str(script), subcommand, str(asked), str(answered)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(answered.read_text(encoding="utf-8"))

    return ask


WORDS = "a the film was good bad very not dull bright , . ? cat dog sat ran on mat who why ##s ##ly ##ing".split()


@pytest.fixture(scope="session")
def tiny_tokenizer():
    """An invented vocabulary of 29 pieces; texts are cut at 24 tokens."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    return BertTokenizer({piece: i for i, piece in enumerate(pieces)}, model_max_length=24)


@pytest.fixture
def tiny_config():
    """Three small layers for that vocabulary. Wide initial weights, so that attention is far from uniform."""
    return BertConfig(
        vocab_size=29,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=24,
        initializer_range=0.3,
    )


@pytest.fixture
def tiny(tiny_config):
    """tiny(seed=0, **changes to the config) -> a random encoder in evaluation mode."""

    def build(seed=0, **changes):
        torch.manual_seed(seed)
        return BertModel(dataclasses.replace(tiny_config, **changes)).eval()

    return build


@pytest.fixture(scope="session")
def minilm():
    """The folder of the embedded weights, verified."""
    try:
        return weights.find("all-MiniLM-L6-v2").path
    except InputError as error:
        pytest.skip(f"the embedded weights can't be had: {error}")


@pytest.fixture(scope="session")
def real_data():
    """The folder that MINBERT_REAL_DATA names; without it the test is skipped."""
    folder = os.environ.get("MINBERT_REAL_DATA")
    if not folder:
        pytest.skip("MINBERT_REAL_DATA is not set: it names a folder with cs224n/, glue/, sts/, nli/ and search/")
    if not Path(folder).is_dir():
        pytest.fail(f"MINBERT_REAL_DATA names {folder}, which is not a folder")
    return Path(folder)


# --- the program, small enough to run whole -------------------------------------------------------------------------

SAMPLE = ROOT / "data" / "sample"
ROWS = {"train": 12, "dev": 8, "test": 6}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A model folder: two random layers for the sample's words, 40 positions."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    words = {word for path in SAMPLE.glob("*.csv") for word in re.findall(r"\w+|[^\w\s]", path.read_text().lower())}
    pieces = [*SPECIAL, *sorted(words)]
    BertTokenizer({piece: i for i, piece in enumerate(pieces)}, model_max_length=40).save_pretrained(folder)
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(pieces),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=40,
        initializer_range=0.3,
    )
    BertModel(config).save_pretrained(folder)
    return folder


def write_rows(folder, rows=ROWS):
    """The first rows of every file of the sample: so many for each split."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in SAMPLE.glob("*.csv"):
        split = next(split for split in rows if split in path.name)
        (folder / path.name).write_text("".join(path.read_text().splitlines(keepends=True)[: rows[split] + 1]))


@pytest.fixture(scope="session")
def program(tmp_path_factory, tiny_folder):
    """A copy of the program in a folder of its own, with a few rows as its sample and the model in `tiny`."""
    folder = tmp_path_factory.mktemp("program") / "minbert"
    folder.mkdir()
    for path in ROOT.glob("*.py"):
        shutil.copy(path, folder)
    if (ROOT / "templates").is_dir():
        shutil.copytree(ROOT / "templates", folder / "templates")
    write_rows(folder / "data" / "sample")
    shutil.copytree(tiny_folder, folder / "tiny")
    return folder
