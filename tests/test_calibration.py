"""The offsets that a model is judged and kept with: right without dropout, gone again afterwards, kept in best/.

Calibration in the large: the mean probability is the share of the labels, of each class.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from test_multitask_classifier import command, root  # noqa: F401
from test_training import Bench

from batches import TaskData
from calibration import SETTLED, SETTLING_PAIRS, SETTLING_ROWS, is_settled, missing_offset, settled
from datasets import Example, Table
from files import read_json
from model import ModelConfig, MultitaskBERT
from run import Run
from tasks import COLA, PARA, SST, STS

WORDS = ["film", "dog", "cat", "mat", "good", "bad"]


def rows_of(tokenizer, task, labels):
    some = np.random.default_rng(0)
    pairs = [(" ".join(some.choice(WORDS, 3)), " ".join(some.choice(WORDS, 3))) for _ in labels]
    pairs = pairs if task.is_pair else [(first, None) for first, _ in pairs]
    examples = [
        Example(f"r{i}", *pair, label, i + 2) for i, (pair, label) in enumerate(zip(pairs, labels, strict=True))
    ]
    return TaskData(task, Table(Path("made up"), examples, [], ""), tokenizer)


def build(tiny, pair_score="cosine", **dropout):
    config = ModelConfig.for_tasks(["para", "sts"], attention={"para": 0, "sts": 0}, pair_score=pair_score)
    model = MultitaskBERT(config, tiny(num_hidden_layers=2, initializer_range=0.3, **dropout))
    torch.manual_seed(1)
    for head in model.heads.values():
        torch.nn.init.normal_(head.output.weight, std=0.1)
    return model


@pytest.mark.parametrize("spoiled", [0.0, 3.0, -40.0])
def test_the_mean_probability_is_the_share_of_positive_labels(spoiled, tiny, tiny_tokenizer):
    rows, model = rows_of(tiny_tokenizer, PARA, [1.0, 0.0, 0.0, 0.0] * 20), build(tiny)
    train = {"para": rows, "sts": rows_of(tiny_tokenizer, STS, [float(i % 6) for i in range(80)])}
    head = model.train().heads["para"]
    with torch.no_grad():
        head.offset += spoiled
        learned, random = head.offset.clone(), torch.get_rng_state()
        with settled(model, train, seed=3):
            assert model.training and torch.equal(torch.get_rng_state(), random)
            model.eval()
            mean = torch.sigmoid(model.outputs(rows.batch(np.arange(80)))).mean().item()
            model.train()
    assert mean == pytest.approx(0.25, abs=1e-5)
    assert torch.equal(head.offset, learned)
    with pytest.raises(KeyError), settled(model, train, seed=3):
        raise KeyError
    assert torch.equal(head.offset, learned)


def test_it_undoes_what_dropout_does_to_the_score(tiny, tiny_tokenizer):
    """Scores have another mean in training than without dropout, so that an offset learned there is wrong here."""
    rows, model = rows_of(tiny_tokenizer, PARA, [1.0, 0.0] * 40), build(tiny, hidden_dropout_prob=0.3)
    head, batch = model.heads["para"], rows.batch(np.arange(80))
    with torch.no_grad():
        head.output.weight[:, : head.output.weight.shape[1] // 2] = -1.0  # of |a - b|
        model.train()
        in_training = torch.stack([model.outputs(batch) for _ in range(20)]).mean().item()
        without = model.eval().outputs(batch).mean().item()
    assert in_training < without - 0.1
    with torch.no_grad():
        low, high = -200.0, 200.0
        for _ in range(60):  # the offset under which training's mean probability is one half
            middle = (low + high) / 2
            torch.manual_seed(0)
            share = torch.sigmoid(model.train().outputs(batch) + middle).mean().item()
            low, high = (middle, high) if share < 0.5 else (low, middle)
        head.offset += low
    assert missing_offset(model, rows, seed=1) < -0.1


def test_scores_that_are_huge_say_nothing(tiny, tiny_tokenizer):
    """No offset moves them: added to 1e18, any is lost."""
    model = build(tiny)
    with torch.no_grad():
        model.heads["para"].scale.fill_(1e18)
    assert missing_offset(model, rows_of(tiny_tokenizer, PARA, [1.0, 0.0, 0.0]), seed=1) == 0


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_labels_that_are_all_the_same_say_nothing(label, tiny, tiny_tokenizer):
    assert missing_offset(build(tiny), rows_of(tiny_tokenizer, PARA, [label] * 5), seed=1) == 0


@pytest.mark.parametrize("share", [1e-18, 0.3, 1 - 1e-16])
def test_a_share_however_small_has_an_offset(share, tiny, tiny_tokenizer):
    """As soft labels may have it, which no label has."""
    model, rows = build(tiny), rows_of(tiny_tokenizer, PARA, [0.0, 1.0] * 20)
    rows.labels = torch.full((40,), share, dtype=torch.float64)
    found = missing_offset(model, rows, seed=1)
    with torch.no_grad():
        outputs = model.eval().outputs(rows.batch(np.arange(40))).double()
    assert (outputs + torch.from_numpy(found)).sigmoid().mean().item() == pytest.approx(share, abs=1e-6)


def test_where_all_are_sure_and_right_nothing_moves(tiny, tiny_tokenizer, monkeypatch):
    """Any of many offsets would leave the mean as it is; the learned one stays."""
    model, rows = build(tiny), rows_of(tiny_tokenizer, PARA, [0.0, 1.0] * 20)
    monkeypatch.setattr(model, "outputs", lambda batch: 2000 * batch.labels - 300)
    assert missing_offset(model, rows, seed=1) == 0


def test_scores_that_are_not_finite_say_nothing(tiny, tiny_tokenizer):
    model = build(tiny)
    with torch.no_grad():
        model.heads["para"].offset.fill_(float("nan"))
    assert missing_offset(model, rows_of(tiny_tokenizer, PARA, [1.0, 0.0]), seed=1) == 0


def test_a_fixed_number_of_pairs_is_asked(tiny, tiny_tokenizer, monkeypatch):
    model, asked = build(tiny), []
    real = model.outputs
    monkeypatch.setattr(model, "outputs", lambda batch: asked.append(len(batch)) or real(batch))
    missing_offset(model, rows_of(tiny_tokenizer, PARA, [1.0, 0.0] * SETTLING_PAIRS), seed=1)
    assert sum(asked) == SETTLING_PAIRS


def test_pairs_are_asked_as_they_stand(tiny, tiny_tokenizer, monkeypatch):
    """Whatever the order that they are trained in: dev's aren't swapped either."""
    config = ModelConfig.for_tasks(["para"], attention={"para": 0}, pair_score="cosine", pair_encoding="both")
    pairs = [(f"{a} film", f"{b} dog") for a in ("a", "the", "good", "bad") for b in ("very", "not", "why", "bright")]
    examples = [Example(f"r{i}", *pair, float(i % 2), i + 2) for i, pair in enumerate(pairs)]
    model, found = MultitaskBERT(config, tiny()), []
    real = model.outputs
    for swap_seed in (None, 5):
        data = TaskData(PARA, Table(None, examples, [], ""), tiny_tokenizer, pair_encoding="both", swap_seed=swap_seed)
        seen = []
        monkeypatch.setattr(model, "outputs", lambda batch, seen=seen: seen.append(batch.input_ids) or real(batch))
        missing_offset(model, data, seed=1)
        found.append(torch.cat(seen))
    assert torch.equal(*found)


def test_of_single_texts_more_are_asked(tiny, tiny_tokenizer, monkeypatch):
    (model, rows), asked = classes(tiny, tiny_tokenizer, [0, 1, 2, 3, 4] * 900), []
    monkeypatch.setattr(model, "outputs", lambda batch: asked.append(len(batch)) or torch.zeros(len(batch), 5))
    missing_offset(model, rows, seed=1)
    assert sum(asked) == SETTLING_ROWS < len(rows)


def classes(tiny, tokenizer, labels, task=SST, **head):
    """A model with a head for classes, its maps large, and rows with these labels."""
    model = MultitaskBERT(ModelConfig.for_tasks([task.name], attention={task.name: 0}, **head), tiny())
    torch.manual_seed(1)
    torch.nn.init.normal_(model.heads[task.name].output.weight, std=1.0)
    rows = rows_of(tokenizer, task, labels)
    return model, rows


@pytest.mark.parametrize("task, labels", [(SST, [0, 1, 1, 2, 3, 3, 3, 4]), (COLA, [0, 1, 1, 1])])
def test_the_mean_probability_of_each_class_is_its_share(task, labels, tiny, tiny_tokenizer):
    model, rows = classes(tiny, tiny_tokenizer, labels * 10, task)
    wanted = torch.bincount(torch.tensor(labels)) / len(labels)
    batch, bias = rows.batch(np.arange(len(rows))), model.heads[task.name].output.bias
    learned = bias.detach().clone()
    with torch.no_grad(), settled(model.eval(), {task.name: rows}, 3, "all"):
        found = model.outputs(batch).softmax(dim=1).mean(dim=0)
        loss = batch.loss(model.outputs(batch), batch.labels)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    assert torch.equal(bias, learned)
    with torch.no_grad():
        assert loss < batch.loss(model.outputs(batch), batch.labels)  # no other offsets have a lower one on these rows


def test_soft_labels_are_shares(tiny, tiny_tokenizer):
    model, rows = classes(tiny, tiny_tokenizer, [0, 1, 2, 3, 4])
    rows.labels = torch.full((5, 5), 0.2)
    found = missing_offset(model, rows, seed=1)
    with torch.no_grad():
        outputs = model.eval().outputs(rows.batch(np.arange(5)))
    mean = (outputs + torch.from_numpy(found)).softmax(dim=1).mean(dim=0)
    torch.testing.assert_close(mean, torch.full((5,), 0.2).double(), atol=1e-5, rtol=0)


def test_a_class_that_no_row_has_leaves_all_alone(tiny, tiny_tokenizer):
    model, rows = classes(tiny, tiny_tokenizer, [0, 1, 2, 3, 3])
    assert (missing_offset(model, rows, seed=1) == 0).all()


@pytest.mark.parametrize("which", SETTLED)
def test_whose_offsets(which, tiny, tiny_tokenizer):
    """A plain dot product has none, and neither has a score without classes or a loss that knows their order."""
    settled_by = {
        "cosine": {"cosine"},
        "all": {"cosine", "calibrated", "classes", "joint"},
        "none": set(),
    }
    kinds = {kind: build(tiny, pair_score=kind).heads["para"] for kind in ("cosine", "calibrated", "dot")}
    kinds["score"] = build(tiny).heads["sts"]
    both = {"para": 0, "sts": 0}
    joint = MultitaskBERT(ModelConfig.for_tasks([*both], attention=both, pair_encoding="joint"), tiny())
    kinds |= {"joint": joint.heads["para"], "joint score": joint.heads["sts"]}
    for name, loss in (("classes", {}), ("coral", {"sst": "coral"}), ("twice", {"sst": "softmax_twice"})):
        kinds[name] = classes(tiny, tiny_tokenizer, [0], losses=loss)[0].heads["sst"]
    assert {name for name, head in kinds.items() if is_settled(head, which)} == settled_by[which]


@pytest.mark.parametrize("pair_score, which", [("calibrated", "cosine"), ("cosine", "none"), ("dot", "all")])
def test_other_scores_are_left_alone(pair_score, which, tiny, tiny_tokenizer):
    rows, model = rows_of(tiny_tokenizer, PARA, [1.0, 0.0, 0.0]), build(tiny, pair_score=pair_score)
    before = {name: p.clone() for name, p in model.state_dict().items()}
    with settled(model, {"para": rows}, 1, which):
        assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())


def test_what_is_judged_is_what_is_kept(tmp_path, tiny, tiny_tokenizer):
    """Training goes on with its own offset: to the bit as if nothing had been settled."""
    plain, _ = Bench(tmp_path, tiny, tiny_tokenizer, epochs=1).train(folder="plain")
    trainer = Bench(tmp_path, tiny, tiny_tokenizer, epochs=1).trainer()
    offset, judged = trainer.model.heads["para"].offset, []

    class Settled:
        def __enter__(self):
            self.own = offset.detach().clone()
            offset.data.fill_(7.0)

        def __exit__(self, *_):
            offset.data.copy_(self.own)

    real = trainer.evaluate
    trainer.settled, trainer.evaluate = Settled, lambda: judged.append(offset.item()) or real()
    trainer.train(lambda text: None)
    assert judged == [7.0, 7.0]
    assert MultitaskBERT.from_pretrained(trainer.run.best).heads["para"].offset.item() == 7.0
    for name, p in plain.learning.items():
        assert torch.equal(p, trainer.learning[name]), name


@pytest.mark.parametrize("words", ["--tasks sts", "--tasks sst --loss sst=coral", "--tasks para --pair_score dot"])
def test_where_nothing_can_be_settled_it_is_said(words, command, root):  # noqa: F811
    found = command("--settle", "all", *words.split(), "--run", "none")
    assert found.code == 1 and "--settle all: no head here gives logits of classes with an offset" in found.err
    assert not (root / "none").exists()


@pytest.mark.parametrize("words", ["--pair_score cosine", "--settle all"])
def test_untrained_what_is_judged_is_what_answers(words, command, root):  # noqa: F811
    found = command("--epochs", "0", "--attention", "0", *words.split(), "--tasks", "para", "--run", "none")
    assert found.code == 0, found.err
    run = Run(root / "none")
    loss = read_json(run.metrics)["dev"]["para"]["loss"]
    labels = [float(line.split("\t")[-1]) for line in (root / "data/sample/quora-dev.csv").read_text().splitlines()[1:]]
    outputs = run.read_outputs()["para"]
    again = torch.nn.functional.binary_cross_entropy_with_logits(outputs, torch.tensor(labels)).item()
    assert again == pytest.approx(loss, abs=1e-6)
