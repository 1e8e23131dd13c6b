"""The gradient of a batch is the same at once, in micro-batches, and by halves where memory runs out."""

import dataclasses

import numpy as np
import pytest
import torch

from batches import TaskData, prepared
from datasets import Example, Table
from errors import InputError
from gradients import Gradients, out_of_memory, random_state
from model import ModelConfig, MultitaskBERT
from precision import FULL, Precision, choose_precision
from run import Run
from sampling import make_schedule
from tasks import PARA, SST, STS
from training import Trainer, TrainingOptions

WORDS = ["good", "bad", "the film", "a cat", "very", "not", "bright", "mat ."]
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def make_data(task, tokenizer, rows=7):
    labels = {"sst": lambda i: i % 5, "para": lambda i: float(i % 2), "sts": lambda i: i * 0.6}[task.name]
    texts = [" ".join(WORDS[: 1 + i % 8]) for i in range(rows + 1)]
    found = [Example(f"r{i}", texts[i], texts[-i] if task.is_pair else None, labels(i), i + 2) for i in range(rows)]
    return TaskData(task, Table(None, found, [], ""), tokenizer)


def make_model(tiny, dropout, **heads):
    heads = heads if dropout else {"hidden_dropout_prob": 0.0, **heads}
    model = MultitaskBERT(ModelConfig.for_tasks(**heads), tiny(seed=3, **({} if dropout else NO_DROPOUT)))
    if not dropout:
        for head in model.heads.values():
            for layer in head.attention:
                layer.attention_dropout_prob = 0.0
    return model.train()


def gradient_of(model, data, most, seed=1):
    torch.manual_seed(seed)
    model.zero_grad(set_to_none=True)
    parts = data.parts(np.arange(len(data)), most, model.device)
    loss = Gradients(model.device, model.outputs).backward(parts, [len(data)])
    return loss, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}, len(parts)


# CORN is a mean, but not over rows: how much a row counts depends on all the others' labels.
TRAINED = [
    *(SST.with_loss(name) for name in ("cross_entropy", "softmax_twice", "coral", "corn", "squared_emd")),
    PARA,
    STS,
]


@pytest.mark.parametrize("task", TRAINED, ids=lambda task: f"{task.name}-{task.loss}")
@pytest.mark.parametrize("most", [1, 3, 4, 6])
def test_micro_batches_have_the_whole_batch_s_gradient(tiny, tiny_tokenizer, task, most):
    model, data = make_model(tiny, dropout=False, losses={task.name: task.loss}), make_data(task, tiny_tokenizer)
    loss, wanted, one = gradient_of(model, data, None)
    plain = model.loss(data.batch(np.arange(len(data))))
    assert one == 1 and loss == plain.detach()
    parts_loss, found, count = gradient_of(model, data, most)
    assert count == -(-len(data) // most)
    torch.testing.assert_close(parts_loss, loss, atol=1e-6, rtol=1e-5)
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], atol=1e-5, rtol=1e-4, msg=name)


def test_a_correlation_s_parts_draw_the_same_dropout_twice(tiny, tiny_tokenizer):
    """The cached way against its definition: a graph over all parts, each with the dropout it drew first."""
    model, data = make_model(tiny, dropout=True), make_data(STS, tiny_tokenizer)
    loss, found, count = gradient_of(model, data, 3)
    after = random_state(model.device)
    torch.manual_seed(1)
    model.zero_grad(set_to_none=True)
    parts = data.parts(np.arange(len(data)), 3, model.device)
    outputs = torch.cat([model.outputs(part) for part in parts])
    whole = parts[0].loss(outputs, torch.cat([part.labels for part in parts]))
    whole.backward()
    assert count == 3 and torch.equal(loss, whole.detach())
    assert torch.equal(after, random_state(model.device))  # the second forward leaves no trace
    for name, p in model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(found[name], p.grad, atol=1e-5, rtol=1e-4, msg=name)


def make_trainer(model, data, folder, precision=FULL, **options):
    steps = make_schedule("proportional", {n: len(d) for n, d in data.items()}, 7, 2, 5)
    run = Run(folder)
    evaluate = lambda: (0.5, {"dev": {}}, "words")  # noqa: E731
    options = TrainingOptions(epochs=2, lr=1e-3, seed=5, **options)
    return Trainer(model, data, steps, evaluate, lambda: None, run, options, precision)


def test_memory_that_runs_out_halves_what_goes_through_at_once(tiny, tiny_tokenizer, tmp_path):
    """A model that can take two rows at once ends where one that can take seven does."""
    weights, said = [], []
    for limit in (None, 2):
        model = make_model(tiny, dropout=False)
        data = {task.name: make_data(task, tiny_tokenizer) for task in (SST, PARA, STS)}
        trainer = make_trainer(model, data, tmp_path / str(limit))

        def outputs(batch, limit=limit, real=model.outputs):
            if limit and len(batch) > limit:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
            return real(batch)

        trainer.gradients.outputs = outputs
        trainer.train(said.append)
        assert trainer.progress.micro_batch == trainer.micro_batch == (limit or 0)
        weights.append(model.state_dict())
    assert [line for line in said if line.startswith("memory")] == [
        "memory     not enough for 7 rows at once: from here on 4, the same batches",
        "memory     not enough for 4 rows at once: from here on 2, the same batches",
    ]
    for name in weights[0]:
        torch.testing.assert_close(weights[1][name], weights[0][name], atol=1e-4, rtol=1e-3, msg=name)


def test_a_smaller_part_may_be_asked_for_and_a_larger_one_again(tiny, tiny_tokenizer, tmp_path):
    """What memory allowed stays, what was asked for is the latest wish's."""
    trainer = make_trainer(make_model(tiny, False), {"sst": make_data(SST, tiny_tokenizer)}, tmp_path)
    for forced, asked, wanted in ((0, 0, 0), (0, 3, 3), (4, 0, 4), (4, 8, 4), (4, 2, 2), (0, 8, 8)):
        trainer.progress.micro_batch = forced
        trainer.options = dataclasses.replace(trainer.options, micro_batch=asked)
        assert trainer.micro_batch == wanted


def test_no_memory_for_one_row_is_an_error_that_says_what_to_do(tiny, tiny_tokenizer, tmp_path):
    trainer = make_trainer(make_model(tiny, False), {"sst": make_data(SST, tiny_tokenizer)}, tmp_path)

    def outputs(batch):
        raise torch.OutOfMemoryError("CUDA out of memory.\nmore")

    trainer.gradients.outputs = outputs
    with pytest.raises(InputError, match=r"with one row at once \(CUDA out of memory\.\): choose a smaller --model"):
        trainer.train(lambda line: None)


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    assert out_of_memory(RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"))
    assert out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 8.94 GB, other allocations: 1 GB)"))
    assert not out_of_memory(RuntimeError("shape mismatch"))


# --- 16 bits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_16_bits_train_32_bit_weights(tiny, tiny_tokenizer, tmp_path, name):
    precision = Precision(name, "asked for")
    model = make_model(tiny, dropout=True)
    model.autocast = precision.dtype
    data = {task.name: make_data(task, tiny_tokenizer) for task in (SST, PARA, STS)}
    before = {n: p.clone() for n, p in model.named_parameters()}
    trainer = make_trainer(model, data, tmp_path, precision, clip=1.0)
    trainer.train(lambda line: None)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert any(not torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert all(torch.isfinite(p).all() for p in model.parameters())
    with torch.no_grad():
        batch = data["sts"].batch(np.arange(7))
        half = model.eval().outputs(batch)
        model.autocast = None
        full = model.outputs(batch)
    assert half.dtype == torch.float32 and not torch.equal(half, full)
    torch.testing.assert_close(half, full, atol=0.05, rtol=0.1)


@pytest.mark.parametrize("gradients", [[torch.inf], [torch.inf, 1.0], [1.0, torch.inf]])
def test_a_step_that_overflows_in_fp16_is_skipped(tiny, tiny_tokenizer, tmp_path, gradients):
    precision = Precision("fp16", "asked for")
    model = make_model(tiny, dropout=False)
    data, many = {"sst": make_data(SST, tiny_tokenizer)}, len(gradients)
    trainer = make_trainer(model, data, tmp_path, precision, accumulate=many)
    before = {n: p.clone() for n, p in model.named_parameters()}
    scale = trainer.scaler.get_scale()  # no loss was scaled yet, as where a process's share of the first batch is empty
    for number, gradient in enumerate(gradients, start=1):
        for p in model.parameters():
            p.grad = torch.full_like(p, gradient)
        trainer._step(torch.ones(()), "sst", np.arange(3), number == many, print)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert trainer.scaler.get_scale() == trainer.scaler.state_dict()["backoff_factor"] * scale
    assert trainer.overflows == 1
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    trainer._step(torch.ones(()), "sst", np.arange(3), True, print)
    assert trainer.overflows == 0
    assert not any(torch.equal(p, before[n]) for n, p in model.named_parameters() if p.requires_grad)


def test_in_fp16_a_batch_that_is_left_out_leaves_the_others_of_its_step(tiny, tiny_tokenizer, tmp_path):
    model = make_model(tiny, dropout=False)
    options = {"accumulate": 2, "non_finite": "skip"}
    data = {"sst": make_data(SST, tiny_tokenizer)}
    trainer = make_trainer(model, data, tmp_path, Precision("fp16", "asked for"), **options)
    before = {n: p.clone() for n, p in model.named_parameters()}
    for number, (loss, gradient) in enumerate([(torch.nan, torch.nan), (1.0, 1.0)], start=1):
        for p in model.parameters():
            p.grad = torch.full_like(p, gradient)
        trainer._step(torch.tensor(loss), "sst", np.arange(3), number == 2, lambda text: None)
    assert trainer.progress.skipped == 1
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert not any(torch.equal(p, before[n]) for n, p in model.named_parameters())
    for number in (1, 2):  # and a step of nothing is none
        for p in model.parameters():
            p.grad = torch.full_like(p, torch.nan)
        trainer._step(torch.tensor(torch.nan), "sst", np.arange(3), number == 2, lambda text: None)
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize(
    ("capability", "wanted", "name"),
    [((7, 5), "auto", "fp16"), ((8, 0), "auto", "bf16"), ((9, 0), "fp32", "fp32"), ((7, 5), "bf16", None)],
)
def test_bf16_where_the_chip_has_it(monkeypatch, capability, wanted, name):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    device = torch.device("cuda")
    if name is None:
        with pytest.raises(InputError, match=r"--precision bf16: this GPU \(compute capability 7.5\) only emulates it"):
            choose_precision(wanted, device)
    else:
        assert choose_precision(wanted, device).name == name
    assert choose_precision("auto", torch.device("cpu")).name == "fp32"


# --- batches ahead of need ------------------------------------------------------------------------------------------


def test_prepared_keeps_the_order_and_runs_ahead_by_no_more_than_it_may():
    made, seen = [], []

    def make(item):
        made.append(item)
        return item * 10

    for value in prepared(make, range(20), ahead=2):
        seen.append(value)
        assert len(made) <= len(seen) + 2
    assert seen == [i * 10 for i in range(20)] and made == list(range(20))


def test_what_goes_wrong_in_the_other_thread_is_raised_here():
    def make(item):
        if item == 3:
            raise InputError("row 3")
        return item

    seen = []
    with pytest.raises(InputError, match="row 3"):
        for value in prepared(make, range(10)):
            seen.append(value)
    assert seen == [0, 1, 2]
