"""Label smoothing against torch's, distillation against its definition, and the command, stopped and resumed."""

import shutil

import pytest
import torch
import torch.nn.functional as F
from test_ensemble import ROWS, said, train  # noqa: F401 - a fixture

import multitask_classifier
import result_row
import soft_labels
from files import read_json, write_json
from losses import LOSSES
from model_card import facts_of
from run import Run
from tasks import PARA, SST, STS
from tensor_files import read_tensors, write_tensors

GENERATOR = torch.Generator().manual_seed(0)
LOGITS, CLASSES = torch.randn(6, 5, generator=GENERATOR), torch.tensor([0, 1, 2, 3, 4, 2])
NUMBERS, BITS = torch.randn(6, generator=GENERATOR), torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0, 1.0])
SCORES = torch.tensor([0.0, 5.0, 1.2, 3.0, 3.0, 4.4])


def test_smoothed_classes_are_those_of_torch():
    found = LOSSES["cross_entropy"](LOGITS, soft_labels.smooth(SST, CLASSES, 0.1))
    torch.testing.assert_close(found, F.cross_entropy(LOGITS, CLASSES, label_smoothing=0.1))


def test_two_classes_and_scores_by_hand():
    assert soft_labels.smooth(PARA, torch.tensor([0.0, 1.0]), 0.2).tolist() == pytest.approx([0.1, 0.9])
    assert soft_labels.smooth(STS, SCORES, 0.2) is SCORES and soft_labels.smooth(SST, CLASSES, 0.0) is CLASSES


def test_what_teachers_say_together_is_their_mean():
    classes = [LOGITS.numpy(), LOGITS.flip(0).numpy()]
    wanted = (LOGITS.softmax(1) + LOGITS.flip(0).softmax(1)) / 2
    torch.testing.assert_close(soft_labels.taught(SST, [said(SST, one) for one in classes]), wanted)
    bits = [NUMBERS, -3 * NUMBERS]
    wanted = (NUMBERS.sigmoid() + (-3 * NUMBERS).sigmoid()) / 2
    torch.testing.assert_close(soft_labels.taught(PARA, [said(PARA, one.numpy()) for one in bits]), wanted)
    scores = [NUMBERS, 100 + 7 * NUMBERS]  # on other scales, the same
    wanted = (NUMBERS - NUMBERS.mean()) / NUMBERS.std(correction=0)
    torch.testing.assert_close(soft_labels.taught(STS, [said(STS, one.numpy()) for one in scores]), wanted)


@pytest.mark.parametrize(
    ("task", "outputs", "labels", "taught"),
    [(SST, LOGITS, CLASSES, LOGITS.flip(1).softmax(1)), (PARA, NUMBERS, BITS, NUMBERS.flip(0).sigmoid())],
    ids=["classes", "two classes"],
)
def test_the_loss_of_a_mixed_label_is_the_mixture(task, outputs, labels, taught):
    loss = LOSSES[task.loss]
    found = loss(outputs, soft_labels.mixed(task, labels, taught, 0.3))
    torch.testing.assert_close(found, 0.7 * loss(outputs, labels) + 0.3 * loss(outputs, taught))


def test_mixed_scores_lie_between():
    loss, taught = LOSSES[STS.loss], soft_labels.taught(STS, [said(STS, NUMBERS.numpy())])
    for weight, wanted in ((0.0, SCORES), (1.0, NUMBERS)):
        mixed = soft_labels.mixed(STS, SCORES, taught, weight)
        torch.testing.assert_close(loss(LOGITS[:, 0], mixed), loss(LOGITS[:, 0], wanted))
    between = soft_labels.mixed(STS, SCORES, taught, 0.5)
    halves = (SCORES - SCORES.mean()) / SCORES.std(correction=0) + taught
    torch.testing.assert_close(between, halves / 2)
    assert torch.isfinite(soft_labels.mixed(STS, torch.full((6,), 3.0), taught, 0.5)).all()  # labels all the same


@pytest.fixture(scope="module")
def teachers(train):  # noqa: F811
    return train("one", "--seed", 1), train("other", "--seed", 2, "--tasks", "sst,sts", "--schedule", "separate")


def labels_seen(monkeypatch):
    """name -> the train labels that a run begins with."""
    seen, real = {}, multitask_classifier.soften

    def look(job, folder, say):
        real(job, folder, say)
        seen.update({name: splits["train"].labels.clone() for name, splits in job.data.items()})
        seen["dev"] = job.data["sst"]["dev"].labels

    monkeypatch.setattr(multitask_classifier, "soften", look)
    return seen


def test_a_student_learns_the_mean_of_labels_and_teachers(train, teachers, monkeypatch, capsys):  # noqa: F811
    seen = labels_seen(monkeypatch)
    plain = train("plain")
    given = dict(seen)
    capsys.readouterr()
    assert set(read_json(train.root / "runs/plain/config.json")) & {"teachers"} == set()
    student = train("student", "--distill", "one", teachers[1], "--distill_weight", "0.25")
    assert "asking     runs/one: sst, para, sts" in (printed := capsys.readouterr().out)
    assert "asking     runs/other: sst, sts" in printed
    kept = read_tensors(student / soft_labels.FILE)[0]
    assert set(kept) == {"sst", "para", "sts"} and torch.equal(seen["dev"], given["dev"])
    torch.testing.assert_close(kept["sst"].sum(1), torch.ones(ROWS["train"]))
    wanted = 0.75 * F.one_hot(given["sst"], 5) + 0.25 * kept["sst"]
    torch.testing.assert_close(seen["sst"], wanted)
    torch.testing.assert_close(seen["para"], 0.75 * given["para"] + 0.25 * kept["para"])
    assert (student / "best/model.safetensors").read_bytes() != (plain / "best/model.safetensors").read_bytes()
    assert facts_of(student).options["distill"] == "one and other"
    assert not facts_of(plain).options.keys() & {"distill", "distill_weight"}
    options = read_json(student / "config.json")["options"]
    assert options["distill"] == [str(folder.resolve()) for folder in teachers]
    assert "--distill one other --distill_weight 0.25" in result_row.row(student)["command"]


def test_smoothed_labels_reach_training(train, monkeypatch):  # noqa: F811
    seen = labels_seen(monkeypatch)
    train("smooth", "--label_smoothing", "0.1", "--option", "pretrain")
    assert seen["sst"].max().item() == pytest.approx(0.92)
    assert seen["para"].unique().tolist() == pytest.approx([0.05, 0.95])
    assert seen["sts"].max() > 1 and seen["dev"].dtype == torch.long


def test_a_stopped_student_needs_its_teachers_no_more(train, teachers, monkeypatch):  # noqa: F811
    root = train.root
    copies = [shutil.copytree(teacher, root / "runs" / f"copy-{teacher.name}") for teacher in teachers]
    more = ("--distill", *copies, "--epochs", "2")
    whole, real = train("whole", *more), Run.write_metrics

    def stop(self, history):
        real(self, history)
        if len(history) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "write_metrics", stop)
        with pytest.raises(AssertionError):  # it ends with 130
            train("cut", *more)
    for copy in copies:
        shutil.rmtree(copy)
    kept = root / "runs/cut" / soft_labels.FILE
    good = kept.read_bytes()
    for damage, wanted in ((good[:-3], "cut short or altered"), (None, "not what this run's teachers said of")):
        if damage is None:
            write_tensors(kept, {"sst": torch.zeros(3, 5)}, {})
        else:
            kept.write_bytes(damage)
        assert wanted in resumed(root, code=1)
    path = root / "runs/cut/config.json"
    config = read_json(path)
    for key, value, wanted in (
        ("distill", None, "teachers and options.distill differ: restore it"),
        ("distill_weight", None, "options.distill_weight is None, wanted 0 to 1: restore it"),
    ):
        write_json(path, config | {"options": config["options"] | {key: value}})
        assert wanted in resumed(root, code=1)
    write_json(path, config)
    kept.unlink()
    assert "no run there" in resumed(root, code=1)
    shutil.copytree(teachers[1], copies[1])
    shutil.copytree(teachers[1], copies[0])  # another under the name of the first
    assert "copy-one: another model than when the run began" in resumed(root, code=1)
    for copy in copies:
        shutil.rmtree(copy)
    kept.write_bytes(good)
    resumed(root, "--distill", *copies, code=0)
    for name in ("best/model.safetensors", "predictions/sst-test-output.csv", soft_labels.FILE):
        assert (root / "runs/cut" / name).read_bytes() == (whole / name).read_bytes()


def resumed(root, *more, code):
    with pytest.MonkeyPatch.context() as patch:
        lines = []
        patch.setattr("sys.stderr", type("Lines", (), {"write": lines.append, "flush": lambda *_: None})())
        assert multitask_classifier.main(["--resume", str(root / "runs/cut"), *map(str, more)]) == code, "".join(lines)
    return "".join(lines)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["--distill", "nope"], "error: --distill nope: nope: no run there"),
        (["--distill", "one", "runs/one"], "name each run once"),
        (["--distill_weight", "0.3"], "of what: name the runs that teach, --distill RUN"),
        (["--distill", "one", "--distill_weight", "1.5"], "--distill_weight is 1.5, wanted 0 to 1"),
        (["--label_smoothing", "-0.1"], "--label_smoothing is -0.1, wanted 0 to 1"),
        (["--distill", "one", "--loss", "sst=coral"], "--distill: the loss coral of sst wants whole labels"),
        (["--label_smoothing", "0.1", "--loss", "sst=corn"], "--label_smoothing: the loss corn of sst"),
        (["--label_smoothing", "0.1", "--tasks", "sts"], "--label_smoothing 0.1: sts has no classes"),
        (
            ["--distill", "other", "one", "--tasks", "para"],
            "--distill runs/other: it has no head for para: leave it out",
        ),
    ],
)
def test_what_is_refused(train, teachers, capsys, given, wanted):  # noqa: F811
    capsys.readouterr()
    common = ["--data", "data/sample", "--run", "runs/refused", "--device", "cpu"]
    assert multitask_classifier.main([*common, *given]) == 1
    assert wanted in capsys.readouterr().err
    assert not (train.root / "runs/refused").exists()


def test_teachers_of_other_dev_rows_are_refused(train, teachers, capsys, tmp_path):  # noqa: F811
    other = tmp_path / "data"
    shutil.copytree(train.root / "data/sample", other)
    path = other / "sts-dev.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    capsys.readouterr()
    code = multitask_classifier.main(["--distill", "one", "--data", str(other), "--run", "runs/refused"])
    assert code == 1 and "runs/one was judged on another file than" in capsys.readouterr().err
