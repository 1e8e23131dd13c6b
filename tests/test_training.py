"""The loop learns, keeps the best, loses nothing when stopped anywhere, and writes no nonsense.

Three tasks of an invented vocabulary, the encoder of conftest.py, dropout on.
"""

import errno
import json
import math
import random
import shutil
import signal
from itertools import product

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import files
import training
from batches import TaskData
from datasets import Example, Table
from errors import InputError
from evaluation import predict
from frozen import Source, Store
from model import ModelConfig, MultitaskBERT
from optimizer import AdamW
from precision import FULL, Precision
from run import Run
from sampling import make_schedule
from stopping import ASKING, on_signals
from tasks import PARA, SST, STS, leaderboard_score
from training import Stopped, Trainer, TrainingOptions

SUBJECTS = ["the film", "the cat", "a dog", "the mat"]
WORDS = {"good": 4, "bright": 3, "not good": 1, "very bad": 0}
TEXTS = [(f"{subject} was {word} .", label) for subject, (word, label) in product(SUBJECTS, WORDS.items())]
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
OTHERS = random.Random(4).sample(TEXTS, len(TEXTS))


def make_data(tokenizer):
    """task -> 11 rows, which make batches of 4, 4 and 3."""
    pairs = [(a, b, x, y) for (a, x), (b, y) in zip(TEXTS, OTHERS, strict=True)]
    found = (
        (SST, [Example(f"s{i}", text, None, label, i) for i, (text, label) in enumerate(TEXTS)]),
        (PARA, [Example(f"p{i}", a, b, float((x > 2) == (y > 2)), i) for i, (a, b, x, y) in enumerate(pairs)]),
        (STS, [Example(f"t{i}", a, b, 5.0 - abs(x - y), i) for i, (a, b, x, y) in enumerate(pairs)]),
    )
    return {task.name: TaskData(task, Table(None, rows[:11], [], ""), tokenizer) for task, rows in found}


class Bench:
    """Makes trainers of one and the same run, each as a new process would: all from the start, but for the folder."""

    def __init__(self, folder, tiny, tokenizer, **choices):
        self.folder, self.tiny, self.tokenizer = folder, tiny, tokenizer
        self.choices = {"option": "finetune", "epochs": 2, "lr": 2e-3, "schedule": "proportional", **choices}

    def trainer(self, folder="run", loss=None, evaluate=None):
        """loss(trainer, number of the step, batch) and evaluate(trainer, number) are called before the real ones.

        What evaluate returns stands for the real one's answer.
        """
        choices = dict(self.choices)
        option, schedule, batch_size = choices.pop("option"), choices.pop("schedule"), choices.pop("batch_size", 4)
        dropout, precision = choices.pop("dropout", True), choices.pop("precision", FULL)
        choices = {"clip": 1.0, **choices}
        options = TrainingOptions(decay="linear", warmup=0.2, seed=5, **choices)
        data = make_data(self.tokenizer)
        heads = (
            {"attention": {"sts": 1}} if dropout else {"attention": dict.fromkeys(data, 0), "hidden_dropout_prob": 0.0}
        )
        encoder = self.tiny(seed=options.seed, **({} if dropout else NO_DROPOUT))
        model = MultitaskBERT(ModelConfig.for_tasks(option=option, **heads), encoder)
        if option == "pretrain":
            sentences = [ids for rows in data.values() for side in rows.sentences for ids in side]
            store = Store.build(Source(model.bert, "weights"), sentences, self.folder / "cache")
            for rows in data.values():
                rows.read_from(store)
        run = Run(self.folder / folder)
        sizes = {name: len(rows) for name, rows in data.items()}
        steps = make_schedule(schedule, sizes, batch_size, options.epochs, options.seed)
        counts = {"loss": 0, "evaluate": 0}

        def real_outputs(batch):
            counts["loss"] += 1
            if loss:
                loss(trainer, counts["loss"], batch)
            return model.outputs(batch)

        def real_evaluate():
            counts["evaluate"] += 1
            if evaluate:
                changed = evaluate(trainer, counts["evaluate"])
                if changed is not None:
                    return changed
            found = {name: predict(model, rows) for name, rows in data.items()}
            scores = {name: p.score for name, p in found.items()}
            return leaderboard_score(scores), {"dev": scores, "loss": {n: p.loss for n, p in found.items()}}, "words"

        save_best = lambda: model.save_pretrained(run.best)  # noqa: E731
        trainer = Trainer(model, data, steps, real_evaluate, save_best, run, options, precision)
        trainer.gradients.outputs = real_outputs
        return trainer

    def train(self, **hooks):
        said = []
        trainer = self.trainer(**hooks)
        trainer.train(said.append)
        return trainer, said


@pytest.fixture
def bench(tmp_path, tiny, tiny_tokenizer):
    def make(**choices):
        return Bench(tmp_path, tiny, tiny_tokenizer, **choices)

    return make


def outcome(trainer):
    """All that a run leaves, but for times: weights to the bit, metrics, best model, predictions, random state."""
    history = [{k: v for k, v in row.items() if k != "train_seconds"} for row in trainer.progress.history]
    weights = {name: p.clone() for name, p in trainer.model.state_dict().items()}
    best = {path.name: path.read_bytes() for path in sorted(trainer.run.best.iterdir())}
    outputs = [predict(trainer.model, rows).outputs for rows in trainer.data.values()]
    generator = torch.get_rng_state()
    return history, weights, best, outputs, generator, (trainer.progress.best, trainer.progress.best_epoch)


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        if isinstance(a, dict) and all(isinstance(value, torch.Tensor) for value in a.values()):
            assert a.keys() == b.keys()
            assert [name for name in a if not torch.equal(a[name], b[name])] == []
        elif isinstance(a, torch.Tensor):
            assert torch.equal(a, b)
        elif isinstance(a, list) and isinstance(a[0], np.ndarray):
            assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
        else:
            assert a == b


def assert_stop_changes_nothing(bench, where, number):
    """Stopped at that call of the hook (loss or evaluate) and continued, a run ends as if it had not been stopped."""
    wanted = outcome(bench.train(folder="straight")[0])

    def stop(trainer, count, *_):
        trainer.interrupted = trainer.interrupted or count == number

    with pytest.raises(Stopped):
        bench.train(**{where: stop})
    torch.manual_seed(999)
    assert_same(outcome(bench.train()[0]), wanted)


@pytest.fixture(scope="module")
def undisturbed():
    """option -> what a run that nothing stopped leaves; trained once."""
    return {}


def wanted_of(undisturbed, maker):
    option = maker.choices["option"]
    if option not in undisturbed:
        undisturbed[option] = outcome(maker.train(folder="undisturbed")[0])
    return undisturbed[option]


# --- it learns ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option, lr, least", [("finetune", 3e-3, 0.9), ("pretrain", 3e-2, 0.6)])
def test_it_learns_its_rows_by_heart(bench, option, lr, least):
    """Random vectors of a frozen encoder tell less, but the heads make the most of them."""
    trainer, _ = bench(option=option, lr=lr, epochs=40, batch_size=11, dropout=False).train()
    first, last = trainer.progress.history[0], trainer.progress.history[-1]
    assert first["score"] < 0.6
    assert all(score > least for score in last["dev"].values())
    assert all(last["loss"][task] < first["loss"][task] / 1.5 for task in ("sst", "para"))


def test_a_run_is_the_plain_loop(bench):
    """Set the rate, forward and backward, clip, step: written out here with torch's clipping and rates by hand."""
    maker = bench(dropout=False, epochs=2)
    trainer, _ = maker.train()
    model, data = maker.trainer(folder="plain").model.train(), make_data(maker.tokenizer)
    steps = [step for epoch in range(2) for step in trainer.schedule.epoch(epoch)]
    optimizer = AdamW(model.parameters(), lr=1.0)
    norms = []
    for number, (task, rows) in enumerate(steps):
        # 18 steps, a fifth of them (4) of warmup to the rate 2e-3, then down to 0 just after the last.
        factor = (number + 1) / 4 if number < 4 else (18 - number) / 14
        optimizer.param_groups[0]["lr"] = 2e-3 * factor
        gradients = torch.autograd.grad(model.loss(data[task].batch(rows)), list(model.parameters()), allow_unused=True)
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            p.grad = gradient
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
    assert max(norms) > 1  # so that clipping did something
    for name, p in trainer.model.state_dict().items():
        torch.testing.assert_close(
            p, model.state_dict()[name], atol=2e-5, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}"
        )


@pytest.mark.parametrize("schedule", ["sequential", "round_robin", "square_root", "annealed"])
def test_every_schedule_trains(bench, schedule):
    trainer, _ = bench(schedule=schedule, epochs=1).train()
    assert len(trainer.progress.history) == 2
    assert all(math.isfinite(row["score"]) for row in trainer.progress.history)


def test_pretrain_leaves_the_encoder_as_it_was(bench, tiny):
    trainer, _ = bench(option="pretrain").train()
    before = tiny(seed=5).state_dict()
    after = trainer.model.bert.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not [name for name in trainer.learning if name.startswith("bert.")]


@pytest.mark.parametrize("option", ["finetune", "pretrain"])
def test_the_same_seed_gives_the_same_bits(bench, option):
    one, other = (bench(option=option).train(folder=folder)[0] for folder in ("one", "other"))
    assert_same(outcome(one), outcome(other))


def test_another_seed_does_not(bench):
    def train(seed):
        maker = bench(epochs=1)
        trainer = maker.trainer(folder=f"run{seed}")
        torch.manual_seed(seed)  # dropout alone: data order and first weights are the same
        trainer.train(lambda line: None)
        return trainer.progress.history[-1]["loss"]

    assert train(1) != train(2)


def test_rows_of_metrics_and_what_is_said(bench):
    trainer, said = bench().train()
    lines = trainer.run.metrics.read_text().splitlines()
    rows = [files.json.loads(line) for line in lines]
    assert rows == trainer.progress.history
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    assert [line.split()[0] for line in said] == ["untrained", "epoch", "epoch"]
    assert [("best so far" in line) for line in said] == [row["best"] for row in rows]
    assert trainer.progress.tokens == 2 * sum(rows.tokens for rows in trainer.data.values())


# --- it keeps the best -------------------------------------------------------------------------------------------


def test_the_best_is_kept_and_the_untrained_never(bench):
    scores, states = [0.9, 0.3, 0.7, 0.7, 0.5], []

    def script(trainer, number):
        states.append({name: p.clone() for name, p in trainer.model.state_dict().items()})
        return scores[number - 1], {}, ""

    trainer, _ = bench(epochs=4).train(evaluate=script)
    assert (trainer.progress.best, trainer.progress.best_epoch) == (0.7, 2)  # the first of equals
    assert [row["best"] for row in trainer.progress.history] == [False, True, True, False, False]
    kept = MultitaskBERT.from_pretrained(trainer.run.best).state_dict()
    assert all(torch.equal(kept[name], states[2][name]) for name in kept)
    assert not all(torch.equal(kept[name], states[3][name]) for name in kept)


def test_without_epochs_the_untrained_is_what_there_is(bench):
    trainer, _ = bench(epochs=0).train()
    assert [row["best"] for row in trainer.progress.history] == [True]
    kept = MultitaskBERT.from_pretrained(trainer.run.best).state_dict()
    assert all(torch.equal(value, kept[name]) for name, value in trainer.model.state_dict().items())


# --- it goes on where it stopped ---------------------------------------------------------------------------------

# 9 steps an epoch, 3 evaluations: the first step, the middle, the last of an epoch, the first of the next, the last.
STOPS = [("loss", n) for n in (1, 5, 9, 10, 18)] + [("evaluate", n) for n in (1, 2, 3)]


@pytest.mark.parametrize("option", ["finetune", "pretrain"])
def test_stopped_anywhere_it_ends_as_if_it_had_not(bench, undisturbed, option):
    maker = bench(option=option)
    wanted = wanted_of(undisturbed, maker)
    for where, number in STOPS if option == "finetune" else STOPS[1::2]:
        folder = f"{where}{number}"

        def stop(trainer, count, *_, number=number):
            trainer.interrupted = trainer.interrupted or count == number

        with pytest.raises(Stopped):
            maker.train(folder=folder, **{where: stop})
        assert (maker.folder / folder / "last" / "checkpoint.safetensors").is_file()
        torch.manual_seed(999)  # another process has another random state
        assert_same(outcome(maker.train(folder=folder)[0]), wanted)


def test_stopped_many_times_it_ends_as_if_it_had_not(bench, undisturbed):
    maker = bench()
    wanted = wanted_of(undisturbed, maker)

    def every_third(trainer, count, *_):
        trainer.interrupted = count == 3

    for _ in range(6):
        with pytest.raises(Stopped):
            maker.train(loss=every_third)
    assert_same(outcome(maker.train()[0]), wanted)


@pytest.mark.parametrize("where", ["outputs", "evaluate", "save_checkpoint", "write_metrics", "save_best"])
def test_killed_anywhere_it_ends_as_if_it_had_not(bench, undisturbed, where):
    """No chance to write a checkpoint: the last one serves."""
    maker = bench()
    wanted = wanted_of(undisturbed, maker)

    class Killed(BaseException):
        pass

    moments = {"outputs": (2, 14), "save_best": (1,)}.get(where, (1, 2))
    for moment in moments:
        trainer = maker.trainer(folder=f"{where}{moment}")
        owner = next(part for part in (trainer.gradients, trainer, trainer.run) if hasattr(part, where))
        real, calls = getattr(owner, where), []

        def killed(*arguments, real=real, calls=calls, moment=moment):
            calls.append(1)
            if len(calls) == moment:
                raise Killed
            return real(*arguments)

        setattr(owner, where, killed)
        with pytest.raises(Killed):
            trainer.train(lambda line: None)
        torch.manual_seed(999)
        assert_same(outcome(maker.train(folder=f"{where}{moment}")[0]), wanted)


@pytest.mark.parametrize("stops", [(3, 8, 14), (2, 4, 6, 10, 12, 15)])
def test_an_early_stop_counts_on(bench, stops):
    """Three evaluations an epoch of nine steps; two that are not better than the third end it."""
    scores = [0.1, 0.2, 0.3, 0.9, 0.8, 0.7, 1.0]
    maker = bench(epochs=9, evaluate_every=3, patience=2)

    def evaluate(trainer, number):
        count = len(trainer.progress.history)
        return scores[count], {"dev": count}, "words"

    wanted = outcome(maker.train(folder="undisturbed", evaluate=evaluate)[0])
    assert [row["score"] for row in wanted[0]] == scores[:6] and wanted[-1] == (0.9, 1)

    for number in stops:

        def stop(trainer, *_, number=number):
            trainer.interrupted = 9 * trainer.progress.epoch + trainer.progress.step + 1 == number

        trainer = maker.trainer(loss=stop, evaluate=evaluate)
        with pytest.raises(Stopped):
            trainer.train(lambda line: None)
        torch.manual_seed(999)
    assert_same(outcome(maker.train(evaluate=evaluate)[0]), wanted)


def test_the_loss_scale_goes_on(bench):
    """Of float16; and where a run goes on in float16 that did not begin so, it begins there."""

    def shrink(trainer, count, *_):
        trainer.interrupted = count == 6
        if count == 2 and trainer.progress.step == 1:
            trainer.scaler.update(new_scale=64.0)

    maker = bench(precision=Precision("fp16", "asked for"))
    with pytest.raises(Stopped):
        maker.train(loss=shrink)
    trainer, _ = maker.train()
    assert trainer.scaler.get_scale() == 64.0

    def stop(trainer, count, *_):
        trainer.interrupted = count == 6

    with pytest.raises(Stopped):
        bench().train(folder="full", loss=stop)
    trainer, _ = maker.train(folder="full")
    assert trainer.scaler.get_scale() == 65536.0


def test_a_gradient_that_always_overflows_ends_the_run(bench, monkeypatch):
    """In float16 such steps are left out by the scaler, silently: the weights would stay as they were."""
    monkeypatch.setattr(training, "MOST_OVERFLOWS", 5)
    trainer = bench(precision=Precision("fp16", "asked for")).trainer()
    broken = next(p for p in trainer.learning.values())
    broken.register_hook(lambda gradient: torch.full_like(gradient, math.nan))
    with pytest.raises(InputError, match="overflowed float16 in 5 steps in a row, .*there is no best model yet"):
        trainer.train(lambda line: None)
    assert trainer.scaler.get_scale() == 65536 / 2**5 and trainer.progress.step == 4


def test_a_model_that_made_no_step_is_not_the_best(bench):
    trainer = bench(precision=Precision("fp16", "asked for"), epochs=1).trainer()
    next(p for p in trainer.learning.values()).register_hook(lambda gradient: torch.full_like(gradient, math.nan))
    progress = trainer.train(lambda line: None)  # nine steps, fewer than end it
    assert progress.best_epoch == 0 and not any(row["best"] for row in progress.history)


def test_clipping_in_float16_is_that_of_float32(bench):
    """The norm is that of the gradient without the loss scale: after a step of SGD's kind both have moved alike."""
    moved = []
    for precision in (FULL, Precision("fp16", "asked for")):
        trainer = bench(precision=precision, clip=0.01, epochs=1, dropout=False).trainer(folder=precision.name)
        norms = []
        real = trainer.optimizer.step

        def step(*, real=real, trainer=trainer, norms=norms, **options):
            norms.append(torch.stack([p.grad.norm() for p in trainer.learning.values() if p.grad is not None]).norm())
            return real(**options)

        trainer.optimizer.step = step
        trainer.train(lambda line: None)
        moved.append(torch.stack(norms))
    for norms in moved:
        torch.testing.assert_close(norms, torch.full_like(norms, 0.01), atol=1e-5, rtol=1e-3)
    assert len(moved[0]) == 9 and len(moved[1]) == 9


@pytest.mark.parametrize("save_every, wanted", [(0.0, 18), (4.0, 2), (10.0, 0)])
def test_checkpoints_within_an_epoch(bench, monkeypatch, save_every, wanted):
    """Nine steps an epoch of a minute each: with a checkpoint every four, one comes after the fifth step."""
    clock, saved = [0.0], []
    monkeypatch.setattr(training.time, "monotonic", lambda: clock[0])

    def minute(trainer, number, batch):
        clock[0] += 60

    trainer = bench(save_every=save_every).trainer(loss=minute)
    real = trainer.run.save_checkpoint
    trainer.run.save_checkpoint = lambda *arguments: (saved.append(1), real(*arguments))
    trainer.train(lambda line: None)
    assert len(saved) == 3 + wanted  # always before the first epoch and after each


def test_a_checkpoint_holds_no_frozen_weight(bench):
    maker = bench(option="pretrain", epochs=1)
    maker.train()
    tensors, _ = Run(maker.folder / "run").load_checkpoint()
    assert not [name for name in tensors if name.startswith("model.bert")]


def test_a_random_state_that_is_none_is_refused(bench):
    maker = bench(epochs=1)
    maker.train()
    run = Run(maker.folder / "run")
    tensors, state = run.load_checkpoint()
    for damage in (torch.full_like(tensors["random.cpu.0"], 255), tensors["random.cpu.0"].float()):
        run.save_checkpoint({**tensors, "random.cpu.0": damage}, state)
        with pytest.raises(InputError, match="random.cpu.*: it belongs to another run: delete .*last and resume"):
            bench(epochs=1).train()


@pytest.mark.parametrize("name", ["model.heads.sst.pooler.query", "optimizer.heads.sst.pooler.query.step", "average.x"])
def test_a_tensor_that_the_model_lacks_is_anothers(bench, name):
    maker = bench(epochs=1)
    maker.train()
    run = Run(maker.folder / "run")
    tensors, state = run.load_checkpoint()
    run.save_checkpoint({**tensors, name: torch.zeros(1)}, state)
    with pytest.raises(InputError, match=f"{name} is a tensor that the run doesn't have: it belongs to another run"):
        bench(epochs=1).train()


def test_another_models_checkpoint_is_refused(bench):
    bench(option="pretrain", epochs=1).train()
    with pytest.raises(InputError, match="bert.embeddings.word_embeddings.weight is missing: it belongs to another"):
        bench(epochs=1).train()


@pytest.mark.parametrize("number", ASKING)
def test_signals_stop_it_and_are_given_back(bench, number):
    before = [signal.getsignal(each) for each in ASKING]

    def send(trainer, count, batch):
        if count == 2:
            signal.raise_signal(number)

    with pytest.raises(Stopped):
        bench().train(loss=send)
    assert [signal.getsignal(each) for each in ASKING] == before
    trainer, said = bench().train()
    assert said[0] == "continuing at epoch 1, step 3"


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no such signal on this system")
def test_a_terminal_that_closes_ends_nothing_after_nohup(bench, monkeypatch):
    def send(trainer, count, batch):
        if count == 2:
            signal.raise_signal(signal.SIGHUP)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        trainer, _ = bench(epochs=1).train(loss=send)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert trainer.progress.epoch == 1


def test_asked_twice_it_stops_at_once(bench, capsys):
    def send(trainer, count, batch):
        if count == 2:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        bench().train(loss=send)
    assert "once more to stop at once" in capsys.readouterr().err


def test_handlers_come_back_after_an_error():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError), on_signals(lambda *_: None):
        assert signal.getsignal(signal.SIGTERM) is not before
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGTERM) is before


# --- files: whole, or refused ------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    run = Run(tmp_path / "run")
    tensors = {"a": torch.arange(6.0).view(2, 3), "b.step": torch.tensor(3), "empty": torch.zeros(0, 2)}
    run.save_checkpoint(tensors, {"epoch": 2, "best": -math.inf})
    return run, tensors


def test_a_checkpoint_comes_back(saved):
    run, tensors = saved
    found, state = run.load_checkpoint()
    assert state == {"epoch": 2, "best": -math.inf}
    assert found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert Run(run.folder / "elsewhere").load_checkpoint() is None


def test_a_checkpoint_cut_short_is_refused(saved):
    run, _ = saved
    content = run.checkpoint.read_bytes()
    for size in range(len(content)):
        run.checkpoint.write_bytes(content[:size])
        with pytest.raises(
            InputError, match="last/checkpoint.safetensors: cut short or altered .*: delete .*/last and"
        ):
            run.load_checkpoint()


def test_a_checkpoint_with_any_byte_altered_is_refused_or_reads_the_same(saved):
    """The header has blanks at its end whose change changes nothing."""
    run, tensors = saved
    content = run.checkpoint.read_bytes()
    refused = 0
    for place, bit in product(range(len(content)), (1, 32)):
        run.checkpoint.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
        try:
            found, state = run.load_checkpoint()
        except InputError:
            refused += 1
            continue
        assert state == {"epoch": 2, "best": -math.inf}
        assert found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert refused > 2 * len(content) - 20


def test_a_trainer_says_what_to_do_about_a_damaged_checkpoint(bench):
    maker = bench(epochs=1)
    wanted = outcome(maker.train()[0])
    checkpoint = maker.folder / "run" / "last" / "checkpoint.safetensors"
    content = bytearray(checkpoint.read_bytes())
    content[len(content) // 2] ^= 1
    checkpoint.write_bytes(content)
    with pytest.raises(InputError, match="delete .*/last and resume, which starts over"):
        maker.train()
    shutil.rmtree(checkpoint.parent)  # as told
    assert_same(outcome(maker.train()[0]), wanted)


@pytest.mark.parametrize("damage", ["a bit", "cut", "gone"])
def test_a_damaged_best_model_is_said_before_training_goes_on(bench, damage):
    """A run whose later epochs are no better would end with it, hours later, or with an error."""
    maker = bench(epochs=2)
    wanted = outcome(maker.train()[0])
    path = maker.folder / "run" / "best" / "model.safetensors"
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        content[-50] ^= 1
        path.write_bytes(content if damage == "a bit" else content[:-50])
    with pytest.raises(InputError, match="run/best.*; or delete .*/last and resume, which starts over"):
        maker.train(loss=lambda *_: pytest.fail("it went on"))
    shutil.rmtree(maker.folder / "run" / "last")  # as told
    assert_same(outcome(maker.train()[0]), wanted)


@pytest.mark.parametrize("fault", ["fsync", "write"])
def test_a_full_disk_leaves_the_last_good_state(bench, undisturbed, monkeypatch, fault):
    maker = bench()
    wanted = wanted_of(undisturbed, maker)
    full = OSError(errno.ENOSPC, "No space left on device")
    trainer = maker.trainer()
    real = trainer.run.save_checkpoint

    def fail(*_):
        raise full

    def save(tensors, state):
        if state["epoch"] < 2:
            return real(tensors, state)
        with monkeypatch.context() as patch:
            if fault == "fsync":
                patch.setattr(files.os, "fsync", fail)
            else:
                patch.setattr(files, "open", FullDisk, raising=False)
            real(tensors, state)

    class FullDisk:
        """A file that takes half of what it is given."""

        def __init__(self, path, mode):
            self.file = open(path, mode)

        def write(self, content):
            self.file.write(content[: len(content) // 2])
            fail()

        def __getattr__(self, name):
            return getattr(self.file, name)

    trainer.run.save_checkpoint = save
    with pytest.raises(InputError, match="cannot write .*checkpoint.safetensors: No space left on device: free some"):
        trainer.train(lambda line: None)
    last = maker.folder / "run" / "last"
    assert [path.name for path in last.iterdir()] == ["checkpoint.safetensors"]
    assert Run(maker.folder / "run").load_checkpoint()[1]["epoch"] == 1
    assert_same(outcome(maker.train()[0]), wanted)


# --- numbers -----------------------------------------------------------------------------------------------------


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_names_its_rows_and_writes_nothing(bench, bad):
    before = {}

    def loss(trainer, number, batch):
        if number == 11:
            before.update(contents(trainer.run.folder), ids=batch.ids, task=batch.task.name)
            real = batch.loss
            batch.loss = lambda outputs, labels: real(outputs, labels) * 0 + bad

    maker = bench()
    with pytest.raises(InputError) as caught:
        maker.train(loss=loss)
    ids, task = before.pop("ids"), before.pop("task")
    assert f"the loss is {bad} at epoch 2, step 2, task {task}, rows" in str(caught.value)
    assert all(f'"{i}"' in str(caught.value) for i in ids)
    assert f"the best model so far, of epoch 1, is in {maker.folder / 'run' / 'best'}" in str(caught.value)
    assert contents(maker.folder / "run") == before


def break_gradient(trainer, batch):
    """The loss stays as it is, and its gradient is NaN: the square root of 0."""
    weight, real = trainer.model.heads["sst"].output.weight, batch.loss
    batch.loss = lambda outputs, labels: real(outputs, labels) + (weight * 0).sum().sqrt()


def break_loss(trainer, batch):
    real = batch.loss
    batch.loss = lambda outputs, labels: real(outputs, labels) * math.nan


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_gradient_that_is_not_finite_names_its_rows_and_reaches_no_file(bench, clip):
    """In the epoch's last step, after which a checkpoint would be written."""
    before = {}

    def loss(trainer, number, batch):
        if number == 9:
            before.update(contents(trainer.run.folder), ids=batch.ids)
            break_gradient(trainer, batch)

    maker = bench(clip=clip)
    with pytest.raises(InputError) as caught:
        maker.train(loss=loss, evaluate=lambda trainer, number: (float(number), {}, ""))
    ids = before.pop("ids")
    assert str(caught.value).startswith("the gradient's norm is nan at epoch 1, step 9, task ")
    assert all(f'"{i}"' in str(caught.value) for i in ids) and "there is no best model yet" in str(caught.value)
    assert contents(maker.folder / "run") == before


@pytest.mark.parametrize("damage", [break_loss, break_gradient])
def test_what_is_looked_at_late_reaches_no_file_either(bench, damage):
    """As on a GPU, whose losses are read after several steps: the first bad one is named, its weights are not kept."""
    before = {}

    def loss(trainer, number, batch):
        trainer.looks_late = True
        if number == 12:
            before.update(contents(trainer.run.folder), ids=batch.ids)
            damage(trainer, batch)

    maker = bench()
    with pytest.raises(InputError, match="is nan at epoch 2, step 3, task") as caught:
        maker.train(loss=loss)
    assert all(f'"{i}"' in str(caught.value) for i in before.pop("ids"))
    assert contents(maker.folder / "run") == before


@pytest.mark.parametrize("damage", [break_loss, break_gradient])
def test_a_batch_that_is_left_out_changes_nothing(bench, damage):
    """Neither weights nor running means; the others are learned as if it had not been there."""
    states, ids = [], []

    def loss(trainer, number, batch):
        if number in (4, 5):
            states.append({name: p.detach().clone() for name, p in trainer.learning.items()})
            states.extend(v.clone() for s in trainer.optimizer.state.values() for v in (s["exp_avg"], s["exp_avg_sq"]))
        if number == 4:
            ids.extend(batch.ids)
            damage(trainer, batch)

    trainer, said = bench(non_finite="skip").train(loss=loss)
    before, after = states[: len(states) // 2], states[len(states) // 2 :]
    assert all(torch.equal(before[0][name], after[0][name]) for name in before[0])
    assert len(before) > 10 and all(torch.equal(a, b) for a, b in zip(before[1:], after[1:], strict=True))
    (skipped,) = [line for line in said if line.startswith("skipped")]
    assert "at epoch 1, step 4, task" in skipped and all(f'"{i}"' in skipped for i in ids)
    assert [row.get("skipped") for row in trainer.progress.history] == [None, 1, 1]
    assert trainer.progress.in_a_row == 0
    for path in trainer.run.folder.rglob("*.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_file(path).values())
    rows = [json.loads(line, parse_constant=pytest.fail) for line in trainer.run.metrics.read_text().splitlines()]
    assert all(math.isfinite(value) for row in rows for value in row["train_loss"].values())


def test_leaving_out_goes_on_after_a_stop_as_without_one(bench):
    def loss(trainer, number, batch):
        if {"s3", "p5"} & {*batch.ids}:
            break_loss(trainer, batch)

    straight, _ = bench(non_finite="skip").train(loss=loss, folder="straight")
    assert straight.progress.skipped > 0

    def stop(trainer, number, batch):
        loss(trainer, number, batch)
        trainer.interrupted = number == 12

    maker = bench(non_finite="skip")
    with pytest.raises(Stopped):
        maker.train(loss=stop)
    assert_same(outcome(maker.train(loss=loss)[0]), outcome(straight))


def test_nothing_but_batches_to_leave_out_ends_the_run(bench):
    """Ten in a row: the fault is no batch's."""
    maker = bench(non_finite="skip")
    with pytest.raises(
        InputError, match="the loss is nan at epoch 2, step 1, .*, the 10th batch in a row: try a lower"
    ):
        maker.train(loss=lambda trainer, number, batch: break_loss(trainer, batch))


# --- what is said ------------------------------------------------------------------------------------------------


def test_a_row_has_each_task_s_mean_training_loss(bench):
    seen = {}

    def loss(trainer, number, batch):
        real = batch.loss

        def noted(outputs, labels):
            value = real(outputs, labels)
            seen.setdefault((trainer.progress.epoch, batch.task.name), []).append(value.item())
            return value

        batch.loss = noted

    trainer, _ = bench().train(loss=loss)
    rows = trainer.progress.history
    assert rows[0]["train_loss"] == {}
    for epoch in (0, 1):
        wanted = {task: np.mean(values) for (e, task), values in seen.items() if e == epoch}
        assert set(wanted) == {"sst", "para", "sts"} and rows[epoch + 1]["train_loss"] == pytest.approx(wanted)


def test_where_there_is_no_terminal_a_line_a_minute(bench, monkeypatch):
    clock, said = [0.0], []
    monkeypatch.setattr(training.time, "monotonic", lambda: clock[0])

    def half_a_minute(trainer, number, batch):
        clock[0] += 30

    bench(epochs=1).trainer(loss=half_a_minute).train(said.append)
    steps = [line.split(": loss ")[0].split() for line in said if " step " in line]
    assert steps == [["epoch", "1/1", "step", str(step), "of", "9"] for step in (2, 4, 6, 8)]
