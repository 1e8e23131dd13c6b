"""The estimate of a run's cost, against counts made by hand on a model small enough to count; no time is asserted.

Two operations a weight and token forward, twice that backward (Kaplan et al. 2020, arXiv 2001.08361).
"""

import pytest
import torch

import estimate
from batches import TaskData
from datasets import Example, Table
from estimate import (
    EFFICIENCY,
    Demands,
    Left,
    count_batches,
    count_memory,
    count_operations,
    describe_cost,
    measured_speed,
    measured_step,
)
from model import ModelConfig, MultitaskBERT
from options import get_args
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
    def build(option, **more):
        config = ModelConfig.for_tasks(["sts"], attention={"sts": 2}, option=option, **more)
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


def schedule(rows, batch_size=8, epochs=2):
    return make_schedule("proportional", {"sts": rows}, batch_size, epochs, 0)


def test_what_is_left_of_a_run():
    """Two epochs of three steps: dev is predicted before, twice, and at the end."""
    steps = schedule(3, batch_size=1)
    assert Left.of(steps) == Left({"sts": 2.0}, 6, 4, True)
    assert Left.of(steps, (0, 0)) == Left({"sts": 2.0}, 6, 3, False)  # stopped after the first evaluation
    assert Left.of(steps, (0, 2)) == Left({"sts": 4 / 3}, 4, 3, False)
    assert Left.of(steps, (1, 0)) == Left({"sts": 1.0}, 3, 2, False)
    assert Left.of(steps, (2, 0)) == Left({"sts": 0.0}, 0, 1, False)
    assert Left.of(schedule(3, epochs=0)) == Left({"sts": 0.0}, 0, 2, True)


def test_what_is_left_where_the_tasks_have_equal_shares_of_the_steps():
    """Epochs of four steps, by turns: three batches go through 4/3 times, one four times."""
    steps = make_schedule("round_robin", {"sts": 3, "sst": 1}, 1, 2, 0)
    assert Left.of(steps).rounds == {"sts": 4 / 3, "sst": 4.0}
    assert Left.of(steps, (1, 1)).rounds == {"sts": 1 / 3, "sst": 2.0}


ALL = Left.of(schedule(2))
FINETUNED, FROZEN = Demands("finetune"), Demands("pretrain")


def test_operations_of_finetune(build, data):
    assert count_operations(build("finetune"), data, ALL, FINETUNED) == 2 * (ENCODER + HEAD) * PASSES
    rest = Left.of(schedule(2, batch_size=1), (1, 1))  # half of the second epoch, and dev twice
    passes = 3 * 0.5 * TRAIN + 2 * DEV + TEST
    assert count_operations(build("finetune"), data, rest, FINETUNED) == 2 * (ENCODER + HEAD) * passes

    twice = 2 * (ENCODER + HEAD) * (PASSES + 3 * 2 * TRAIN)  # both epochs' batches once more
    assert count_operations(build("finetune"), data, ALL, Demands("finetune", passes=2)) == twice


def test_operations_of_pretrain(build, data):
    """The encoder runs once over every file, whatever the number of epochs."""
    wanted = 2 * ENCODER * (TRAIN + DEV + TEST) + 2 * HEAD * PASSES
    assert count_operations(build("pretrain"), data, ALL, FROZEN) == wanted
    rest = Left.of(schedule(2), (1, 0))
    assert count_operations(build("pretrain"), data, rest, FROZEN) == 2 * HEAD * (3 * TRAIN + 2 * DEV + TEST)


def test_operations_of_pretrain_with_the_encoders_dropout_on(build, data):
    """The encoder runs over train in each of the two epochs, and once over dev and test."""
    model = build("pretrain", frozen_dropout=True)
    wanted = 2 * ENCODER * (2 * TRAIN + DEV + TEST) + 2 * HEAD * PASSES
    assert count_operations(model, data, ALL, FROZEN) == wanted


def test_operations_of_settling_the_offset(build, data, monkeypatch):
    """Of one of the two train pairs, before training and after each epoch; the best model is kept as it was judged."""
    monkeypatch.setattr(estimate, "is_settled", lambda head, which: which == "all")
    for rows, share in ((1, 1 / 2), (2, 1)):
        monkeypatch.setattr(estimate, "rows_to_settle", lambda data, rows=rows: rows)
        wanted = 2 * (ENCODER + HEAD) * (PASSES + 3 * TRAIN * share)
        assert count_operations(build("finetune"), data, ALL, Demands("finetune", settle="all")) == wanted
    assert count_operations(build("finetune"), data, ALL, FINETUNED) == 2 * (ENCODER + HEAD) * PASSES
    frozen = build("pretrain", frozen_dropout=True)  # the encoder runs over them, too
    wanted = 2 * ENCODER * (2 * TRAIN + DEV + TEST + 3 * TRAIN) + 2 * HEAD * (PASSES + 3 * TRAIN)
    assert count_operations(frozen, data, ALL, Demands("pretrain", settle="all")) == wanted


def test_batches_of_evaluation(data, monkeypatch):
    assert count_batches(data, ALL) == 4 + 1
    monkeypatch.setattr(estimate, "EVALUATION_BATCH", 1)
    data["sts"]["dev"] = data["sts"]["train"]  # two rows
    assert count_batches(data, ALL) == 4 * 2 + 1
    settled = count_batches(data, ALL, ["sts"])  # by both train rows, before training and after each epoch
    assert settled == 4 * 2 + 1 + 3


def test_what_a_run_demands_is_read_from_its_options():
    """R-Drop's two passes, and the sums of gradients: of all batches of a step, or with PCGrad one for each task."""

    def of(line, tasks=3):
        return Demands.of(get_args(["--option", "finetune", *line.split()]), tasks)

    assert of("") == Demands("finetune", passes=1, sums=0, settle="cosine")
    assert of("--average 0.9 --accumulate 2 --micro_batch 3") == Demands("finetune", sums=2, micro_batch=3)
    assert of("--r_drop 1 --settle all") == Demands("finetune", passes=2, settle="all")
    assert of("--accumulate 4 --schedule even").sums == 1
    assert [of("--accumulate 4 --schedule even --pcgrad", tasks).sums for tasks in (2, 3, 5)] == [2, 3, 4]


def test_memory(build, data):
    """Weights once; gradients and the optimizer's two states of what learns; 24 rows of 4 floats a layer and token."""
    layers, norms, biases = 3, 2 * 4, 4
    embeddings = (29 + 24 + 2) * 4 + norms
    encoder = layers * (4 * 16 + 2 * 32 + 4 * biases + 8 + 4 + 2 * norms) + embeddings + 16 + biases
    head = 2 * (5 * 16 + 5 * biases + norms) + 64 + 16
    average = TRAIN / 2
    kept = 24 * 4 * 8 * average  # batch size 8
    assert count_memory(build("finetune"), data, 8, FINETUNED) == 4 * (4 * (encoder + head) + (3 + 2) * kept)
    assert count_memory(build("pretrain"), data, 8, FROZEN) == 4 * (encoder + 4 * head + 2 * kept)
    parts = count_memory(build("finetune"), data, 8, Demands("finetune", micro_batch=2))
    assert parts == 4 * (4 * (encoder + head) + (3 + 2) * kept / 4)
    several = count_memory(build("finetune"), data, 8, Demands("finetune", sums=1))  # the sum of gradients, once more
    assert several == 4 * (5 * (encoder + head) + (3 + 2) * kept)
    half = build("finetune")
    half.autocast = torch.bfloat16  # the weights once more, in 2 bytes
    assert count_memory(half, data, 8, FINETUNED) == 4 * (4.5 * (encoder + head) + (3 + 2) * kept)


def test_the_line_that_is_printed(build, data, monkeypatch):
    """Operations at the speed measured, and so much a step and a batch of evaluation."""
    model = build("pretrain")
    learning = sum(p.numel() for p in model.heads.parameters())
    total = sum(p.numel() for p in model.parameters())
    operations = count_operations(model, data, ALL, FROZEN)
    monkeypatch.setattr(estimate, "measured_speed", lambda *_, **__: operations / 10 / EFFICIENCY)
    monkeypatch.setattr(estimate, "measured_step", lambda *_: (7.0, 2.0))
    line = describe_cost(model, data, schedule(2), FROZEN)
    # 10 s of operations, two steps of 7 s, five batches of 2 s.
    assert line == f"learning   {learning:,} of {total:,} parameters; about 34 s on this device, 0.0 GB of memory"
    monkeypatch.setattr(estimate, "measured_speed", lambda *_, **__: float("inf"))
    assert "; about 13 s more on this device" in describe_cost(model, data, schedule(2), FROZEN, (1, 0))
    assert "; about 20 s more on this device" in describe_cost(
        model, data, schedule(2), Demands("pretrain", passes=2), (1, 0)
    )


@pytest.mark.parametrize("option", ["finetune", "pretrain"])
def test_measuring_a_step_leaves_no_trace(option, build, data):
    model = build(option).train()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    random = torch.get_rng_state()
    assert all(0 < seconds < float("inf") for seconds in measured_step(model, data))
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())
    assert model.training and all(p.grad is None for p in model.parameters())
    assert data["sts"]["train"].batch([0]).states is None


def test_the_optimizer_is_timed_on_a_part_of_a_large_model(build, monkeypatch):
    """What the part takes, times its share of all that learns."""
    model, timed = build("finetune"), []
    monkeypatch.setattr(estimate, "TIMED_NUMBERS", 100)

    def seconds(do, device):
        timed.append(sum(p.numel() for group in do.__self__.param_groups for p in group["params"]))
        return timed[-1] / 1000

    monkeypatch.setattr(estimate, "_seconds", seconds)
    numbers = sum(p.numel() for p in model.parameters())
    assert estimate._optimizer_seconds(model) == pytest.approx(numbers / 1000)
    assert 100 <= timed[0] < numbers


def test_speed_is_one_of_this_planet():
    assert 1e6 < measured_speed(torch.device("cpu"), 24, seconds=0.01) < 1e16
    assert 1e5 < measured_speed(torch.device("cpu"), 24, seconds=0.01, dtype=torch.bfloat16) < 1e16
