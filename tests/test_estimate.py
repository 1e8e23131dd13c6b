"""The estimate of a run's cost, against counts made by hand on a model small enough to count.

Two operations a weight and token forward, twice that backward (Kaplan et al. 2020, arXiv 2001.08361).
"""

import re

import pytest
import torch

from batches import TaskData
from datasets import Example, Table
from estimate import count_memory, count_operations, describe_cost, measured_speed
from model import ModelConfig, MultitaskBERT
from sampling import make_schedule
from tasks import STS

# Tokens a row, [CLS] and [SEP] of both sentences counted: 5 + 4 and 3 + 3.
PAIRS = [("the cat sat", "a dog"), ("good", "bad")]
ROWS = {"train": 2, "dev": 1, "test": 1}


@pytest.fixture
def data(tiny_tokenizer):
    def table(rows):
        return Table(None, [Example(str(i), *PAIRS[i], 2.0, i + 2) for i in range(rows)], [], "")

    return {"sts": {split: TaskData(STS, table(rows), tiny_tokenizer) for split, rows in ROWS.items()}}


@pytest.fixture
def build(tiny):
    def build(option):
        config = ModelConfig.for_tasks(["sts"], attention={"sts": 2}, option=option)
        return MultitaskBERT(
            config, tiny(hidden_size=4, num_hidden_layers=3, intermediate_size=8, num_attention_heads=2)
        )

    return build


# By hand, hidden size 4: a layer of the encoder has four 4 x 4 maps and two of 4 x 8; a cross-attention layer has five
# 4 x 4 maps, two of them; the output map is 16 x 4.
ENCODER = 3 * (4 * 16 + 2 * 32)
HEAD = 2 * 5 * 16 + 64
TRAIN, DEV, TEST = 9 + 6, 9, 9
PASSES = 3 * 2 * TRAIN + (2 + 2) * DEV + TEST  # two epochs


def test_tokens_are_counted_as_the_hand_count_has_them(data):
    assert [data["sts"][split].tokens for split in ROWS] == [TRAIN, DEV, TEST]


def test_operations_of_finetune(build, data):
    assert count_operations(build("finetune"), data, 2, "finetune") == 2 * (ENCODER + HEAD) * PASSES


def test_operations_of_pretrain(build, data):
    """The encoder runs once over every file, whatever the number of epochs."""
    wanted = 2 * ENCODER * (TRAIN + DEV + TEST) + 2 * HEAD * PASSES
    assert count_operations(build("pretrain"), data, 2, "pretrain") == wanted


def test_memory(build, data):
    """Weights once; gradients and the optimizer's two states of what learns; 24 rows of 4 floats a layer and token."""
    layers, norms, biases = 3, 2 * 4, 4
    embeddings = (29 + 24 + 2) * 4 + norms
    encoder = layers * (4 * 16 + 2 * 32 + 4 * biases + 8 + 4 + 2 * norms) + embeddings + 16 + biases
    head = 2 * (5 * 16 + 5 * biases + norms) + 64 + 16
    average = TRAIN / 2
    kept = 24 * 4 * 8 * average  # batch size 8
    assert count_memory(build("finetune"), data, 8, "finetune") == 4 * (4 * (encoder + head) + (3 + 2) * kept)
    assert count_memory(build("pretrain"), data, 8, "pretrain") == 4 * (encoder + 4 * head + 2 * kept)


def test_the_line_that_is_printed(build, data):
    model = build("pretrain")
    line = describe_cost(model, data, make_schedule("proportional", {"sts": 2}, 8, 2, 0), "pretrain")
    learning = sum(p.numel() for p in model.heads.parameters())
    total = sum(p.numel() for p in model.parameters())
    assert re.fullmatch(
        rf"learning   {learning:,} of {total:,} parameters; about \d+ s on this device, 0\.0 GB .*", line
    )


def test_speed_is_one_of_this_planet():
    assert 1e6 < measured_speed(torch.device("cpu"), 24, seconds=0.01) < 1e16
