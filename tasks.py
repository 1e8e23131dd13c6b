"""Tasks as data: one entry says all that is particular to a task, so that no other file mentions one by name.

File formats and prediction headers are those of the CS 224N default project (its spelling of "Similiary" included).
"""

from __future__ import annotations

from dataclasses import dataclass

from errors import InputError


@dataclass(frozen=True)
class Task:
    """A task: what its files hold, what its head looks like, how it is trained and judged.

    files: split -> file name in the data folder. columns: one text column, or two for a pair. label_kind, label_range:
    see datasets.read_examples. output_size: numbers the output map gives; `None` means output_multiple * H, and the
    prediction is the dot product of both sentences' maps. metric selects the best model; `metrics` are all that are
    reported. attention: kind and number of the poster's attention layers.
    """

    name: str
    title: str
    files: dict[str, str]
    columns: tuple[str, ...]
    label: str
    label_kind: str
    label_range: tuple[float, float]
    loss: str
    metric: str
    metrics: tuple[str, ...]
    header: str
    attention: tuple[str, int]
    output_size: int | None = None
    output_multiple: int = 1

    @property
    def is_pair(self) -> bool:
        return len(self.columns) == 2

    def predictions_file(self, split: str) -> str:
        """Name of the CSV with this task's predictions, in the course's predictions/ folder."""
        return f"{self.name}-{split}-output.csv"

    def leaderboard(self, value: float | None) -> float:
        """The metric as it counts for the leaderboard, in [0, 1]: a correlation r as (r + 1) / 2.

        An undefined correlation (None) counts as r = 0.
        """
        value = 0.0 if value is None else value
        return (value + 1) / 2 if self.metric == "pearson" else value


def _files(stem: str) -> dict[str, str]:
    return {"train": f"{stem}-train.csv", "dev": f"{stem}-dev.csv", "test": f"{stem}-test-student.csv"}


SST = Task(
    name="sst",
    title="sentiment (SST-5)",
    files=_files("ids-sst"),
    columns=("sentence",),
    label="sentiment",
    label_kind="class",
    label_range=(0, 4),
    loss="cross_entropy",
    metric="accuracy",
    metrics=("accuracy", "macro_f1"),
    header="id \t Predicted_Sentiment ",
    attention=("self", 2),
    output_size=5,
)
PARA = Task(
    name="para",
    title="paraphrase (Quora)",
    files=_files("quora"),
    columns=("sentence1", "sentence2"),
    label="is_duplicate",
    label_kind="binary",
    label_range=(0, 1),
    loss="binary_cross_entropy",
    metric="accuracy",
    metrics=("accuracy", "macro_f1"),
    header="id \t Predicted_Is_Paraphrase ",
    attention=("cross", 1),
    output_multiple=1,
)
STS = Task(
    name="sts",
    title="similarity (STS)",
    files=_files("sts"),
    columns=("sentence1", "sentence2"),
    label="similarity",
    label_kind="score",
    label_range=(0.0, 5.0),
    loss="negative_pearson",
    metric="pearson",
    metrics=("pearson",),
    header="id \t Predicted_Similiary ",
    attention=("cross", 3),
    output_multiple=4,
)
CFIMDB = Task(
    name="cfimdb",
    title="sentiment (CFIMDB)",
    files=_files("ids-cfimdb"),
    columns=("sentence",),
    label="sentiment",
    label_kind="class",
    label_range=(0, 1),
    loss="cross_entropy",
    metric="accuracy",
    metrics=("accuracy", "macro_f1"),
    header="id \t Predicted_Sentiment ",
    attention=("self", 2),
    output_size=2,
)

# Adding a task is one entry.
TASKS = {task.name: task for task in (SST, PARA, STS, CFIMDB)}


def parse_tasks(names: str) -> tuple[Task, ...]:
    """`sst,para,sts` -> the tasks. Raises InputError for an unknown or repeated name, listing the known."""
    found = []
    for name in (part.strip() for part in names.split(",")):
        if name not in TASKS:
            raise InputError(f"--tasks {names}: {name!r} is not known; known: {', '.join(TASKS)}")
        if TASKS[name] in found:
            raise InputError(f"--tasks {names}: {name!r} is named twice; name each task once")
        found.append(TASKS[name])
    return tuple(found)


def leaderboard_score(scores: dict[str, float | None]) -> float:
    """The course's score: the mean over tasks of the metric, correlations as (r + 1) / 2. task name -> metric value."""
    return sum(TASKS[name].leaderboard(value) for name, value in scores.items()) / len(scores)
