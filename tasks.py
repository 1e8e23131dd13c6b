"""Tasks as data: one entry says all that training, prediction files and the data check need to know of a task.

File formats and prediction headers are those of the CS 224N default project (its spelling of "Similiary" included).
The GLUE tasks' files, metrics and predictions are those of the benchmark's own distribution (Wang et al. 2018, arXiv
1804.07461). Other files name a task only where the course does: its evaluation functions, its model's methods, its
submission and leaderboard score, and the default of --tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from errors import InputError, quoted

SPLITS = ("train", "dev", "test")
LABEL_KINDS = ("class", "binary", "score")
PAIR_ENCODINGS = ("separate", "joint", "both")
FILE_FORMATS = ("course", "glue")
TEXT_STYLES = ("plain", "split", "treebank")
# What a loss or metric can say something of; one that is not listed here may be given any kind of label.
KINDS_OF = {
    "cross_entropy": ("class",),
    "softmax_twice": ("class",),
    "binary_cross_entropy": ("binary",),
    "negative_pearson": ("score",),  # it sees no offset, so where yes begins would be anywhere
    "coral": ("class",),
    "corn": ("class",),
    "squared_emd": ("class",),
    "accuracy": ("class", "binary"),
    "macro_f1": ("class", "binary"),
    "mean_absolute_error": ("class", "binary"),
    "matthews": ("class", "binary"),
    "f1": ("class", "binary"),
    "acc_and_f1": ("class", "binary"),
}
OF_TWO_CLASSES = ("f1", "acc_and_f1")  # of the class 1
LOWER_IS_BETTER = ("mean_absolute_error",)


@dataclass(frozen=True)
class Task:
    """A task: what its files hold, what its head looks like, how it is trained and judged.

    files: split -> file name in the data folder. columns: one text column, or two for a pair. label_kind, label_range:
    see datasets.read_examples; classes are numbered from 0. output_size: numbers that the output map gives, one a class
    (label_kind "class"), else 1. `None`, for pairs of another kind: the map gives output_multiple * H, and the score is
    the dot product of both sentences' maps. metric selects the best model; `metrics` are all that are reported.
    attention: kind and number of the poster's attention layers. pair_encoding: how a pair is encoded if nothing else is
    asked for: separate, two sentences; joint, one sequence `[CLS] a [SEP] b [SEP]` (Devlin et al. 2018, section 4.1),
    which is from there on treated like a single sentence; both, all three. file_format: whose layout data and
    prediction files have, the course's or GLUE's. class_names: what the classes are called in the files, from class 0
    on; () if by their numbers. without_header: the columns of GLUE's labelled files that begin without naming them.
    label_words: what the labels 0, 1, ... mean, for whoever reads an answer; () if nothing but the class names.
    text_style: how the files write text (plain_text.py).

    Raises InputError where these contradict each other.
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
    pair_encoding: str = "separate"
    file_format: str = "course"
    class_names: tuple[str, ...] = ()
    without_header: tuple[str, ...] = ()
    label_words: tuple[str, ...] = ()
    text_style: str = "plain"

    def __post_init__(self):
        for fault in self._faults():
            raise InputError(f"task {quoted(self.name)} in tasks.py: {fault}")

    def _faults(self) -> Iterator[str]:
        """What is wrong with the entry, and what is wanted."""
        if not self.name.isidentifier():
            yield "name a task with letters, digits and underscores, as its options and files are named after it"
        if sorted(self.files) != sorted(SPLITS):
            yield f"files are of {', '.join(self.files) or 'no split'}; wanted one of each of {', '.join(SPLITS)}"
        if isinstance(self.columns, str) or len(self.columns) not in (1, 2):
            yield f"columns is {quoted(self.columns)}; wanted a tuple of one text column, or of two for a pair"
        if self.label_kind not in LABEL_KINDS:
            yield f"label_kind is {quoted(self.label_kind)}; wanted one of {', '.join(LABEL_KINDS)}"
        yield from self._output_faults()
        for what, name in (("loss", self.loss), *(("metrics", name) for name in self.metrics)):
            if self.label_kind not in KINDS_OF.get(name, LABEL_KINDS):
                yield f"{what} {name} is for labels of kind {' or '.join(KINDS_OF[name])}, not {self.label_kind}"
        for name in {*self.metrics}.intersection(OF_TWO_CLASSES):
            if self.label_range != (0, 1):
                yield f"metric {name} is of two classes, and label_range is {self.label_range}"
        if self.class_names and len(self.class_names) != self.output_size:
            yield f"class_names are {len(self.class_names)}; wanted {self.output_size}, as output_size says, or none"
        if self.label_words and len(self.label_words) != self.label_range[1] + 1:
            yield f"label_words are {len(self.label_words)}; wanted {self.label_range[1] + 1}, one a label, or none"
        if self.file_format not in FILE_FORMATS:
            yield f"file_format is {quoted(self.file_format)}; wanted one of {', '.join(FILE_FORMATS)}"
        if self.text_style not in TEXT_STYLES:
            yield f"text_style is {quoted(self.text_style)}; wanted one of {', '.join(TEXT_STYLES)}"
        if self.metric not in self.metrics:
            yield f"metric {quoted(self.metric)} is not among its metrics ({', '.join(self.metrics)}): add it there"
        if self.metric in LOWER_IS_BETTER:
            yield f"metric {self.metric} is lower where a model is better, so it can't select one: choose another"
        kind, layers = self.attention
        if kind not in ("self", "cross") or not isinstance(layers, int) or layers < 0:
            yield f"attention is {quoted(self.attention)}; wanted ('self' or 'cross', number of layers)"
        if self.pair_encoding not in PAIR_ENCODINGS:
            yield f"pair_encoding is {quoted(self.pair_encoding)}; wanted one of {', '.join(PAIR_ENCODINGS)}"
        if kind == "cross" and not self.is_pair:
            yield "cross-attention needs two text columns; wanted attention ('self', number of layers)"

    def _output_faults(self) -> Iterator[str]:
        (low, high), size = self.label_range, self.output_size
        if self.label_kind == "class":
            if low != 0 or high < 1 or high != int(high):
                yield f"label_range is {low} to {high}; wanted classes numbered from 0 to 1 or more"
            if size != high + 1:
                yield f"output_size is {size}; wanted {high + 1}, one output for each class from 0 to {high}"
        else:
            if self.label_kind == "binary" and (low, high) != (0, 1):
                yield f"label_range is {low} to {high}; wanted 0 to 1 for binary labels"
            if not low < high:
                yield f"label_range is {low} to {high}; wanted the smallest label, then the largest"
            if size != 1 and not (size is None and self.is_pair):
                pair = ", or None for the dot product of both sentences" if self.is_pair else ""
                yield f"output_size is {size}; wanted 1{pair}, as a {self.label_kind} label is one number"
        if self.output_multiple < 1 or (size is not None and self.output_multiple != 1):
            yield f"output_multiple is {self.output_multiple}; it goes with output_size None alone, and is at least 1"

    @property
    def is_pair(self) -> bool:
        return len(self.columns) == 2

    def encoding(self, pair_encoding: str | None = None) -> str:
        """How a row is encoded: separate, joint or both. pair_encoding: of pairs, None is the task's own."""
        return (pair_encoding or self.pair_encoding) if self.is_pair else "separate"

    def with_loss(self, name: str | None) -> Task:
        """The same task trained with another loss; None: its own. Raises InputError for one that isn't among losses."""
        if name in (None, self.loss):
            return self
        if name not in self.losses:
            raise InputError(
                f"loss {quoted(name)} of {self.name} is not known, or not for labels of kind {self.label_kind}; "
                f"known: {', '.join(self.losses)}"
            )
        return replace(self, loss=name)

    @property
    def losses(self) -> list[str]:
        """The losses that labels of this kind can be learned with."""
        from losses import LOSSES  # here, since it takes torch, without which data can be read

        return [name for name in LOSSES if self.label_kind in KINDS_OF.get(name, LABEL_KINDS)]

    def output_shape(self, rows: int) -> tuple[int, ...]:
        """The shape of a head's outputs: (rows, C) logits of C classes, or (rows,): a logit or a score each.

        For the losses of ordinal.THRESHOLD_LOSSES (rows, C - 1): one number between each class and the next.
        """
        from ordinal import THRESHOLD_LOSSES  # here for the same reason

        if self.label_kind != "class":
            return (rows,)
        return (rows, self.output_size - (self.loss in THRESHOLD_LOSSES))

    def predictions_file(self, split: str) -> str:
        """Name of the file with this task's predictions, in the predictions/ folder.

        The course's, or for test the one that GLUE's server looks for in a submission: CoLA.tsv.
        """
        if self.file_format == "glue":
            folder = self.files[split].split("/")[0]
            return f"{folder}.tsv" if split == "test" else f"{folder}-{split}.tsv"
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
    metrics=("accuracy", "macro_f1", "mean_absolute_error"),
    header="id \t Predicted_Sentiment ",
    attention=("self", 2),
    output_size=5,
    label_words=("negative", "somewhat negative", "neutral", "somewhat positive", "positive"),
    text_style="treebank",
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
    label_words=("no paraphrase", "paraphrase"),
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
    label_words=("negative", "positive"),
    text_style="split",
)


def _glue(
    name: str, title: str, folder: str, columns: tuple[str, ...], label: str, metrics: tuple[str, ...], **more
) -> Task:
    """A GLUE task of two classes, whose first metric selects; no attention layers if none are asked for."""
    return Task(
        name=name,
        title=title,
        files={split: f"{folder}/{split}.tsv" for split in SPLITS},
        columns=columns,
        label=label,
        label_kind="class",
        label_range=(0, 1),
        loss="cross_entropy",
        metric=metrics[0],
        metrics=metrics,
        header="index\tprediction",
        attention=("cross" if len(columns) == 2 else "self", 0),
        output_size=2,
        pair_encoding="joint",
        file_format="glue",
        **more,
    )


COLA = _glue(
    "cola",
    "acceptability (CoLA)",
    "CoLA",
    ("sentence",),
    "acceptability",
    ("matthews", "accuracy"),
    without_header=("source", "acceptability", "mark", "sentence"),
    label_words=("unacceptable", "acceptable"),
)
MRPC = _glue(
    "mrpc",
    "paraphrase (MRPC)",
    "MRPC",
    ("#1 String", "#2 String"),
    "Quality",
    ("acc_and_f1", "accuracy", "f1"),
    label_words=("no paraphrase", "paraphrase"),
)
RTE = _glue(
    "rte",
    "entailment (RTE)",
    "RTE",
    ("sentence1", "sentence2"),
    "label",
    ("accuracy",),
    class_names=("entailment", "not_entailment"),
)
SST2 = _glue(
    "sst2",
    "sentiment (SST-2)",
    "SST-2",
    ("sentence",),
    "label",
    ("accuracy",),
    label_words=("negative", "positive"),
    text_style="treebank",
)

# Adding a task is one entry.
TASKS = {task.name: task for task in (SST, PARA, STS, CFIMDB, COLA, MRPC, RTE, SST2)}


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


def selection_score(scores: dict[str, float | None]) -> float:
    """What the best epoch is chosen by: the course's score where all tasks are of its leaderboard.

    For other tasks the mean of the metrics that select, an undefined one as 0.
    """
    if set(scores) <= {SST.name, PARA.name, STS.name}:
        return leaderboard_score(scores)
    return sum(value or 0.0 for value in scores.values()) / len(scores)
