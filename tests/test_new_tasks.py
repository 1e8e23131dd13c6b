"""A new task is one entry: kinds of task that the course doesn't have, from files to learned prediction files.

Classes of pairs after Reimers and Gurevych 2019 (arXiv 1908.10084); nonsense entries are refused in one line.
"""

import dataclasses
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

import losses
import poolers
import tasks
from batches import TaskData
from datasets import read_examples
from errors import InputError
from evaluation import check_known, predict, read_predictions, write_predictions
from heads import HeadConfig, TaskHead
from model import ModelConfig, MultitaskBERT
from packed import Layout
from run import Run
from sampling import make_schedule
from tasks import CFIMDB, PARA, SST, STS, Task
from training import Trainer, TrainingOptions

PAIR = ("sentence1", "sentence2")
NLI = Task(
    name="nli",
    title="inference",
    files={split: f"nli-{split}.csv" for split in tasks.SPLITS},
    columns=PAIR,
    label="entailment",
    label_kind="class",
    label_range=(0, 2),
    loss="cross_entropy",
    metric="accuracy",
    metrics=("accuracy", "macro_f1"),
    header="id \t Predicted_Entailment ",
    attention=("cross", 1),
    output_size=3,
)
COLA = dataclasses.replace(
    NLI,
    name="cola",
    columns=("sentence",),
    label="acceptable",
    label_kind="binary",
    label_range=(0, 1),
    loss="binary_cross_entropy",
    attention=("self", 1),
    output_size=1,
)
LENGTH = dataclasses.replace(
    COLA, name="length", label_kind="score", label_range=(0.0, 5.0), loss="negative_pearson", metric="pearson",
    metrics=("pearson",),
)  # fmt: skip
QNLI = dataclasses.replace(COLA, name="qnli", columns=PAIR, attention=("cross", 1))
SENTENCES = [
    "the film was good",
    "the cat was not good",
    "a dog ran",
    "bad",
    "very bright",
    "why sat the cat on the mat",
]
LABELS = {
    "nli": [0, 1, 2, 0, 1, 2],
    "cola": [1, 0, 1, 0, 0, 1],
    "length": [2.5, 3.0, 1.5, 0.0, 0.5, 5.0],
    "qnli": [1, 1, 0, 0, 1, 0],
}
# Twice the lowest loss that a model blind to its input reaches: log 3 and log 2 for even classes; no correlation is 0.
LOW = {"nli": 0.2, "cola": 0.1, "length": -0.9, "qnli": 0.1}


@pytest.fixture(params=[NLI, COLA, LENGTH, QNLI], ids=lambda task: task.name)
def task(request, monkeypatch):
    """The task, added to the known ones as its entry in tasks.py would."""
    monkeypatch.setitem(tasks.TASKS, request.param.name, request.param)
    return request.param


@pytest.fixture
def rows(task, tmp_path, tiny_tokenizer):
    """Six rows read from a file."""
    lines = ["\t".join(["", "id", *task.columns, task.label])]
    for i, label in enumerate(LABELS[task.name]):
        texts = [SENTENCES[i], SENTENCES[-1 - i]][: len(task.columns)]
        lines.append("\t".join([str(i), f"r{i}", *texts, str(label)]))
    path = tmp_path / task.files["train"]
    path.write_text("\n".join(lines) + "\n")
    table = read_examples(
        path, columns=task.columns, label=task.label, label_kind=task.label_kind, label_range=task.label_range
    )
    return TaskData(task, table, tiny_tokenizer)


def test_such_a_task_is_learned_and_written(task, rows, tmp_path, tiny):
    model = MultitaskBERT(ModelConfig.for_tasks([task.name], hidden_dropout_prob=0.0), tiny())
    run, options = Run(tmp_path / "run"), TrainingOptions(epochs=60, lr=2e-3)
    schedule = make_schedule("proportional", {task.name: len(rows)}, 6, options.epochs, 0)

    def evaluate():
        found = predict(model, rows)
        return -found.loss, {"loss": found.loss}, ""

    Trainer(model, {task.name: rows}, schedule, evaluate, lambda: model.save_pretrained(run.best), run, options).train(
        lambda text: None
    )
    again = MultitaskBERT.from_pretrained(run.best)
    found = predict(again, rows, batch_size=4)
    assert found.loss < LOW[task.name]
    assert found.score > 0.9 and set(found.scores) == set(task.metrics)
    assert found.outputs.shape == ((6, 3) if task is NLI else (6,))
    path = tmp_path / task.predictions_file("dev")
    write_predictions(path, found)
    written = read_predictions(path, task)
    assert written == dict(zip(found.ids, found.values.tolist(), strict=True))
    if task.label_kind != "score":
        assert [written[i] for i in rows.ids] == LABELS[task.name]


def test_a_batch_of_one_row_keeps_its_shape(task, rows, tiny):
    model = MultitaskBERT(ModelConfig.for_tasks([task.name]), tiny()).eval()
    with torch.no_grad():
        outputs = model.outputs(rows.batch(np.array([4])))
    assert outputs.shape == task.output_shape(1)


def test_classes_of_a_pair_by_hand():
    head = TaskHead(NLI, 2, 1, HeadConfig(0, pooler="first")).eval()
    head.output.weight.data = torch.tensor([[1.0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 1, 1]])
    head.output.bias.data = torch.tensor([0.0, 0.5, 0.0])
    layout = Layout.of(torch.ones(4, 1))  # a0, a1, b0, b1, one token each
    states = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, -3.0], [7.0, 8.0]])
    # First number of a, second of b and a half, and |a - b| summed: 4 + 5 and 4 + 4.
    assert head((states,), layout).tolist() == [[1.0, -2.5, 9.0], [3.0, 8.5, 8.0]]
    assert head.linear_parameters() == 3 * 6


NONSENSE = [
    (SST, {"output_size": None}, "output_size is None; wanted 5, one output for each class from 0 to 4"),
    (SST, {"output_size": 4}, "output_size is 4; wanted 5"),
    (SST, {"label_range": (1, 5)}, "label_range is 1 to 5; wanted classes numbered from 0"),
    (SST, {"label_range": (0, 0), "output_size": 1}, "label_range is 0 to 0; wanted classes numbered from 0 to 1"),
    (SST, {"loss": "binary_cross_entropy"}, "loss binary_cross_entropy is for labels of kind binary, not class"),
    (SST, {"metric": "pearson"}, "metric 'pearson' is not among its metrics"),
    (SST, {"attention": ("cross", 1)}, "cross-attention needs two text columns"),
    (SST, {"attention": ("soft", 1)}, "wanted .'self' or 'cross', number of layers"),
    (SST, {"attention": ("self", -1)}, "attention is .'self', -1."),
    (SST, {"columns": "sentence"}, "columns is 'sentence'; wanted a tuple"),
    (SST, {"columns": ("a", "b", "c")}, "wanted a tuple of one text column, or of two"),
    (SST, {"label_kind": "stars"}, "label_kind is 'stars'; wanted one of class, binary, score"),
    (SST, {"files": {"train": "a.csv", "dev": "b.csv"}}, "files are of train, dev; wanted one of each of train"),
    (SST, {"name": "my task"}, "task 'my task' in tasks.py: name a task with letters"),
    (SST, {"output_multiple": 2}, "output_multiple is 2; it goes with output_size None alone"),
    (PARA, {"output_size": 2}, "output_size is 2; wanted 1, or None for the dot product of both sentences"),
    (PARA, {"output_multiple": 0}, "output_multiple is 0"),
    (PARA, {"label_range": (0, 4)}, "label_range is 0 to 4; wanted 0 to 1 for binary labels"),
    (COLA, {"output_size": None}, "output_size is None; wanted 1, as a binary label is one number"),
    (STS, {"loss": "cross_entropy"}, "loss cross_entropy is for labels of kind class, not score"),
    (STS, {"metrics": ("pearson", "accuracy")}, "metrics accuracy is for labels of kind class or binary, not score"),
    (SST, {"metric": "mean_absolute_error"}, "metric mean_absolute_error is lower where a model is better"),
    (STS, {"label_range": (5.0, 0.0)}, "label_range is 5.0 to 0.0; wanted the smallest label, then the largest"),
]


@pytest.mark.parametrize(("entry", "changes", "message"), NONSENSE)
def test_an_entry_that_contradicts_itself_is_refused_in_one_line(entry, changes, message):
    with pytest.raises(InputError, match=message) as refused:
        dataclasses.replace(entry, **changes)
    assert str(refused.value).startswith("task '") and "\n" not in str(refused.value)


def test_a_loss_or_metric_of_one_s_own_is_looked_up_when_a_run_starts():
    mine = dataclasses.replace(STS, loss="huber", metrics=("pearson", "none"))
    with pytest.raises(InputError, match="task 'sts' in tasks.py: loss 'huber' is not known; known: cross_entropy"):
        check_known([SST, mine])
    with pytest.raises(InputError, match="metric 'none' is not known; known: accuracy, macro_f1, .*pearson"):
        check_known([dataclasses.replace(mine, loss=STS.loss)])
    check_known([SST, PARA, STS, CFIMDB])


def test_what_the_readme_shows_is_all_it_takes(tmp_path, tiny, tiny_tokenizer, monkeypatch):
    """Its block, run where it says, then the task trained with that pooler and that loss, and asked."""
    readme = (Path(tasks.__file__).parent / "README.md").read_text(encoding="utf-8")
    section = readme[readme.index("## Add a task") :].split("\n## ")[0]
    block = textwrap.dedent("\n".join(line for line in section.splitlines() if line.startswith("    ") or not line))
    for registry in (tasks.TASKS, poolers.POOLERS, losses.LOSSES):
        for name in ("irony", "before_last", "smoothed"):
            monkeypatch.setitem(registry, name, None)  # so that all is as before afterwards
            del registry[name]
    exec(block, {**vars(losses), **vars(poolers), **vars(tasks)})
    lines = ["\tid\tsentence\tironic", "0\ta\tthe film was good\t0", "1\tb\tnot very dull , was it ?\t1"]
    (tmp_path / "irony-train.csv").write_text("\n".join(lines) + "\n")
    (task,) = tasks.parse_tasks("irony")
    table = read_examples(tmp_path / task.files["train"], columns=task.columns, label=task.label, label_range=(0, 1))
    rows = TaskData(task, table, tiny_tokenizer)
    options = {"pooler": "before_last", "losses": {"irony": "smoothed"}, "hidden_dropout_prob": 0.0}
    model = MultitaskBERT(ModelConfig.for_tasks(["irony"], **options), tiny())
    batch = rows.batch(np.arange(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        loss = losses.LOSSES["smoothed"](model.outputs(batch), batch.labels)
        loss.backward()
        optimizer.step()
    assert type(model.heads["irony"].pooler).__name__ == "BeforeLast" and model.heads["irony"].task.loss == "smoothed"
    assert predict(model, rows).scores["accuracy"] == 1.0
