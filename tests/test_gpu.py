"""On a GPU the same is computed as on the CPU, and what only a GPU does works: 16 bits, pinned memory, its generator.

Skipped where there is none. With dropout the two draw other numbers, so what is compared has none.
"""

import copy

import numpy as np
import pytest
import torch

import as_written
import options
from batches import TaskData
from bert import BertIntermediate
from contrastive_data import Contrast
from contrastive_loss import Objective
from contrastive_model import ContrastiveGradients, ContrastiveModel, ContrastiveRows
from datasets import Example, Table
from evaluation import predict
from frozen import Source, Store
from gradients import Gradients, out_of_memory, random_state, set_random_state
from masked_language import MaskedLanguageHead, Masking
from model import ModelConfig, MultitaskBERT
from packed import Layout
from poolers import make_pooler
from precision import FULL, choose_precision
from r_drop import RDrop
from run import Run
from sampling import make_schedule
from sentence_encoder import SentenceEncoder
from tasks import PARA, SST, STS
from training import Stopped, Trainer, TrainingOptions

CPU = torch.device("cpu")
WORDS = ["good", "bad", "the film", "a cat", "very", "not", "bright", "mat ."]
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LABELS = {"sst": lambda i: i % 5, "para": lambda i: float(i % 2), "sts": lambda i: i * 0.4}
TASKS = (SST, PARA, STS)


@pytest.fixture
def gpu():
    """The first one, taken as every command takes it."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    args = options.get_args(["--device", "cuda"])
    device, _ = options.choose_device(args)
    return device


def make_data(task, tokenizer, rows=11):
    texts = [" ".join(WORDS[: 1 + i % 8]) for i in range(rows + 1)]
    found = [
        Example(f"r{i}", texts[i], texts[-i] if task.is_pair else None, LABELS[task.name](i), i + 2)
        for i in range(rows)
    ]
    return TaskData(task, Table(None, found, [], ""), tokenizer)


@pytest.fixture
def make(tiny):
    """make(dropout, **of the heads) -> a model of the three tasks, in training mode."""

    def build(dropout=False, **heads):
        off = {} if dropout else NO_DROPOUT
        heads = heads if dropout else {"hidden_dropout_prob": 0.0, **heads}
        model = MultitaskBERT(ModelConfig.for_tasks(**heads), tiny(seed=3, **off))
        for head in model.heads.values():
            for layer in head.attention:
                layer.attention_dropout_prob = layer.attention_dropout_prob if dropout else 0.0
        return model.train()

    return build


def gradient_of(model, data, most=None, kind=Gradients):
    """(loss, name -> gradient) of all rows' batch, on the CPU."""
    model.zero_grad(set_to_none=True)
    parts = [part.to(model.device) for part in data.parts(np.arange(len(data)), most, model.device)]
    loss = kind(model.device, model.outputs).backward(parts, [len(data)])
    return loss.cpu(), {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}


def assert_close(found, wanted, atol=2e-4, rtol=2e-3):
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(
            found[name], wanted[name], atol=atol, rtol=rtol, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
@pytest.mark.parametrize("most", [None, 4])
@pytest.mark.parametrize("heads", [{}, {"attention": dict.fromkeys(("sst", "para", "sts"), 0)}], ids=["layers", "none"])
def test_a_batch_has_the_cpus_loss_and_gradient(gpu, make, tiny_tokenizer, task, most, heads):
    data, model = make_data(task, tiny_tokenizer), make(**heads)
    loss, wanted = gradient_of(model, data, most)
    on_gpu, found = gradient_of(copy.deepcopy(model).to(gpu), data, most)
    torch.testing.assert_close(on_gpu, loss, atol=1e-4, rtol=1e-3)
    assert_close(found, wanted)


def test_two_passes_pulled_together_have_the_cpus_gradient(gpu, make, tiny_tokenizer):
    data, model = make_data(SST, tiny_tokenizer), make()
    _, wanted = gradient_of(model, data, None, RDrop)
    assert_close(gradient_of(copy.deepcopy(model).to(gpu), data, None, RDrop)[1], wanted)


def test_a_correlations_parts_draw_the_same_dropout_twice(gpu, make, tiny_tokenizer):
    data, model = make_data(STS, tiny_tokenizer), make(dropout=True).to(gpu)
    torch.manual_seed(1)
    before = random_state(gpu)
    loss, found = gradient_of(model, data, 4)
    set_random_state(gpu, before)
    parts = [part.to(gpu) for part in data.parts(np.arange(len(data)), 4, gpu)]
    model.zero_grad(set_to_none=True)
    outputs = torch.cat([model.outputs(part) for part in parts])
    whole = parts[0].loss(outputs, torch.cat([part.labels for part in parts]))
    whole.backward()
    torch.testing.assert_close(loss, whole.detach().cpu())
    assert_close(found, {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None})


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_file_is_predicted_as_on_the_cpu(gpu, make, tiny_tokenizer, task):
    data, model = make_data(task, tiny_tokenizer), make()
    wanted = predict(model, data, batch_size=4)
    found = predict(copy.deepcopy(model).to(gpu), data, batch_size=4)
    np.testing.assert_allclose(found.outputs, wanted.outputs, atol=1e-4, rtol=1e-3)


def test_a_frozen_encoders_encodings_are_the_cpus(gpu, tiny, tiny_tokenizer, tmp_path):
    data, encoder, kept = make_data(PARA, tiny_tokenizer), tiny(), []
    sentences = [ids for side in data.sentences for ids in side]
    for device in (CPU, gpu):
        model = copy.deepcopy(encoder).to(device)
        store = Store.build(Source(model, "weights"), sentences, tmp_path / device.type)
        kept.append(np.array(store.rows, dtype=np.float32))
    np.testing.assert_allclose(kept[1], kept[0], atol=1e-4, rtol=1e-3)


def test_sentences_are_encoded_as_on_the_cpu(gpu, tiny, tiny_tokenizer):
    encoder = SentenceEncoder(tiny(), make_pooler("mean", 24, 3), tiny_tokenizer, 24)
    texts = [" ".join(WORDS[:count]) for count in range(1, 9)]
    wanted = encoder.encode(texts)
    encoder.bert.to(gpu)
    encoder.pooler.to(gpu)
    np.testing.assert_allclose(encoder.encode(texts), wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("most", [None, 3])
def test_a_contrast_with_hidden_tokens_has_the_cpus_gradient(gpu, tiny, tiny_tokenizer, most):
    bert = tiny(**NO_DROPOUT)
    encoder = SentenceEncoder(bert, make_pooler("mean", 24, 3), tiny_tokenizer, 24)
    texts = [(" ".join(WORDS[:count]),) for count in range(1, 9)]
    data = Contrast(texts, [f"file:{line}" for line in range(8)], [])
    rows = ContrastiveRows(data, encoder, 9, Objective(0.05), Masking(tiny_tokenizer, seed=1))
    model, found = ContrastiveModel(encoder, masked_head=MaskedLanguageHead(bert)).train(), []
    for device in (CPU, gpu):
        model = copy.deepcopy(model).to(device)
        gradients = ContrastiveGradients(device, model.outputs, masked_loss=model.masked_loss, masked_weight=0.5)
        parts = [part.to(device) for part in rows.parts(np.arange(8), most, device)]
        assert parts[0].device.type == device.type
        gradients.backward(parts, [8])
        found.append({n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None})
    assert_close(found[1], found[0])


def make_trainer(model, data, folder, precision, **choices):
    choices = {"epochs": 2, "lr": 1e-3, "seed": 5, "clip": 1.0, **choices}
    steps = make_schedule("proportional", {n: len(d) for n, d in data.items()}, 4, choices["epochs"], 5)
    evaluate = lambda: (0.5, {"dev": {}}, "words")  # noqa: E731
    return Trainer(model, data, steps, evaluate, lambda: None, Run(folder), TrainingOptions(**choices), precision)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "auto"])
def test_stopped_and_continued_it_ends_as_if_it_had_not(gpu, make, tiny_tokenizer, tmp_path, precision):
    """Up to the order in which a GPU adds: dropout is drawn from where it was, the scale of fp16 goes on."""
    precision = choose_precision(precision, gpu)
    data, ends = {task.name: make_data(task, tiny_tokenizer) for task in TASKS}, []
    for stops in (False, True):
        folder = tmp_path / str(stops)

        def trainer(folder=folder):
            model = make(dropout=True).to(gpu)
            model.autocast = precision.dtype
            torch.manual_seed(7)
            return make_trainer(model, data, folder, precision)

        runner = trainer()
        if stops:
            real, steps = runner.gradients.outputs, iter(range(100))

            def outputs(batch, real=real, steps=steps, runner=runner):
                runner.interrupted = runner.interrupted or next(steps) == 4
                return real(batch)

            runner.gradients.outputs = outputs
            with pytest.raises(Stopped):
                runner.train(lambda line: None)
            torch.rand(100, device=gpu)
            runner = trainer()
        runner.train(lambda line: None)
        ends.append((runner.scaler.state_dict(), {n: p.detach().cpu() for n, p in runner.model.named_parameters()}))
    assert ends[0][0] == ends[1][0]
    assert_close(ends[1][1], ends[0][1], atol=5e-3, rtol=5e-2)


def test_in_fp16_a_gradient_that_overflows_makes_no_step(gpu, make, tiny_tokenizer, tmp_path):
    precision = choose_precision("fp16", gpu)
    model = make().to(gpu)
    trainer = make_trainer(model, {"sst": make_data(SST, tiny_tokenizer)}, tmp_path, precision)
    before, scale = {n: p.clone() for n, p in model.named_parameters()}, trainer.scaler.get_scale()
    for gradient, overflows in ((torch.inf, 1), (1.0, 0)):
        for p in model.parameters():
            p.grad = torch.full_like(p, gradient)
        trainer._step(torch.ones((), device=gpu), "sst", np.arange(3), True, lambda line: None)
        assert trainer.overflows == overflows
        assert all(torch.equal(p, before[n]) == bool(overflows) for n, p in trainer.learning.items())
    assert trainer.scaler.get_scale() == scale / 2


def test_memory_that_runs_out_is_known_and_halves_the_batch(gpu, make, tiny_tokenizer, tmp_path):
    model = make().to(gpu)
    trainer = make_trainer(model, {"sst": make_data(SST, tiny_tokenizer)}, tmp_path, FULL, epochs=1)
    real, said = trainer.gradients.outputs, []

    def outputs(batch):
        if len(batch) > 2:
            torch.empty(1 << 50, device=gpu)  # more than there is anywhere
        return real(batch)

    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 50, device=gpu)
    assert out_of_memory(error.value)
    trainer.gradients.outputs = outputs
    trainer.train(said.append)
    assert trainer.micro_batch == 2 and any(line.startswith("memory ") for line in said)


def test_attention_makes_no_plan_for_every_shape(gpu):
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_who_changes_a_line_is_obeyed(gpu, tiny, monkeypatch):
    """as_written.py asks a tiny model on the CPU; what it answers holds on the GPU, too."""
    ids = torch.tensor([[2, 7, 8, 9, 3], [2, 8, 3, 0, 0], [2, 9, 7, 3, 0]])
    mask, encoder = (ids != 0).long(), tiny(**NO_DROPOUT)
    on_gpu = copy.deepcopy(encoder).to(gpu)

    def encoded(model, device):
        answers = []
        for _ in (model.train(), model.eval()):
            answers.append(model(ids.to(device), mask.to(device))["last_hidden_state"].detach().cpu())
        return answers

    as_written.forget()
    plain = encoded(on_gpu, gpu)
    forward = BertIntermediate.forward
    monkeypatch.setattr(BertIntermediate, "forward", lambda self, x: 0.5 * forward(self, x))
    as_written.forget()
    try:
        state = random_state(gpu)
        changed, wanted = encoded(on_gpu, gpu), encoded(encoder, CPU)
        assert torch.equal(state, random_state(gpu))
        for one, other, before in zip(changed, wanted, plain, strict=True):
            real = mask.bool()
            torch.testing.assert_close(one[real], other[real], atol=1e-4, rtol=1e-3)
            assert not torch.allclose(one[real], before[real], atol=1e-2)
    finally:
        as_written.forget()


def test_a_layout_travels_whole(gpu):
    layout, x = Layout.of(torch.tensor([[1, 1, 0], [1, 1, 1]])), torch.arange(6.0).view(2, 3, 1)
    assert torch.equal(layout.to(gpu).pack(x.to(gpu)).cpu(), layout.pack(x))
