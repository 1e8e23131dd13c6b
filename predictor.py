"""A trained model asked in plain strings: classes with their probabilities, and similarity on the scale of its labels.

The course's methods of MultitaskBERT take padded ids and give a head's raw outputs (model.py); these take texts as
anybody writes them and give answers.

    >>> model = MultitaskBERT.load("runs/first")
    >>> model.predict_sentiment("A gripping film, and I didn't see it coming!").words
    'positive'
    >>> round(model.predict_similarity("The cat sat.", "A cat was sitting.").value, 1)  # 0 to 5
    4.3
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from batches import TaskData
from datasets import Example, Table, blank
from errors import InputError
from evaluation import EVALUATION_BATCH, Predictions, decide, predict, probabilities
from files import read_json, short
from model import MultitaskBERT
from plain_text import as_in_files
from run import ROOT, Run
from similarity_scale import Scale, scales_of
from tasks import TASKS, Task
from token_weights import TokenWeights, token_weights
from tokenizer import BertTokenizer


@dataclass(frozen=True)
class Answer:
    """What a model says of a text or a pair.

    task: its name. value: the class, from 0, or the score on the scale of the task's labels; without a scale (see
    similarity_scale.py) as the head gives it. words: what the value means. probabilities: of each class from 0 on; ()
    for a score.
    """

    task: str
    value: int | float
    words: str
    probabilities: tuple[float, ...] = ()

    @property
    def probability(self) -> float | None:
        """Of the class that is the value; None for a score."""
        return self.probabilities[self.value] if self.probabilities else None


class Predictor:
    """One model or several, each for tasks of its own, that answer for texts.

    truncated: how many texts so far were longer than a model reads, and were cut.
    """

    def __init__(
        self,
        models: dict[str, MultitaskBERT],
        tokenizers: dict[str, BertTokenizer],
        scales: dict[str, Scale] | None = None,
        name: str = "model",
    ):
        """models, tokenizers: of each task. scales: of those tasks whose outputs can be put on their labels' scale."""
        self.models, self.tokenizers, self.scales, self.name = models, tokenizers, dict(scales or {}), name
        self.truncated = 0

    @classmethod
    def load(cls, run: str | Path, device: str | torch.device = "cpu", tasks: Iterable[str] | None = None) -> Predictor:
        """The best model of a run, given as its folder, its name in runs/, or its best/; of one that trained each task
        separately, the best of each.

        tasks: those that will be asked for; None is all. Raises InputError where there is no model, or none for a task.
        """
        folders = best_folders(run)
        wanted = list(folders) if tasks is None else list(tasks)
        missing = [name for name in wanted if name not in folders]
        if missing:
            raise InputError(
                f"{run}: no head for {', '.join(missing)}; it has {', '.join(folders)}: choose among these"
            )
        loaded = {folder: MultitaskBERT.from_pretrained(folder) for folder in {folders[name] for name in wanted}}
        tokenizers = {folder: BertTokenizer.from_folder(folder) for folder in loaded}
        scales: dict[str, Scale] = {}
        for folder, model in loaded.items():
            model.to(device)
            scales.update(scales_of(folder, [name for name in wanted if folders[name] == folder]))
        return cls(
            {name: loaded[folders[name]] for name in wanted},
            {name: tokenizers[folders[name]] for name in wanted},
            scales,
            short(run) if Path(run).exists() else str(run),
        )

    @property
    def tasks(self) -> list[Task]:
        """Those it answers for."""
        return [TASKS[name] for name in self.models]

    # The course's three, on texts.

    def predict_sentiment(self, texts: str | Sequence[str]) -> Answer | list[Answer]:
        """The sentiment of a text, or of each of a list: 0 (negative) to 4 (positive), and the five probabilities."""
        return self.predict("sst", texts)

    def predict_paraphrase(self, first: str | Sequence[str], second: str | Sequence[str]) -> Answer | list[Answer]:
        """Whether two texts say the same, 1 or 0, and the probabilities of both."""
        return self.predict("para", first, second)

    def predict_similarity(self, first: str | Sequence[str], second: str | Sequence[str]) -> Answer | list[Answer]:
        """How similar two texts are, 0 to 5."""
        return self.predict("sts", first, second)

    # Any task.

    def predict(
        self,
        name: str,
        texts: str | Sequence[str],
        seconds: str | Sequence[str] | None = None,
        batch_size: int = EVALUATION_BATCH,
    ) -> Answer | list[Answer]:
        """A task's answer for a text, or for each of a list; for a pair task `seconds` has as many.

        Raises InputError for a task without a head, for text that is blank, and for a sentence where a pair is wanted
        or the other way round; ValueError for lists of different lengths.
        """
        task = self._task(name)
        if task.is_pair != (seconds is not None):
            raise InputError(f"{name} wants {'two sentences' if task.is_pair else 'one sentence'}: give as many")
        if isinstance(texts, str):
            return self.predict(name, [texts], None if seconds is None else [seconds], batch_size)[0]
        sides = [list(texts)] + ([] if seconds is None else [[seconds] if isinstance(seconds, str) else list(seconds)])
        if len(sides) == 2 and len(sides[0]) != len(sides[1]):
            raise ValueError(f"{len(sides[0])} first texts but {len(sides[1])} second ones: a pair has both")
        for side in sides:
            for i, text in enumerate(side, start=1):
                if blank(text):
                    raise InputError(f"text {i} of {len(side)} is blank: leave it out")
        if not sides[0]:
            return []
        return self._answers(self._outputs(name, sides, batch_size))

    def _task(self, name: str) -> Task:
        """With the loss that its head was trained with."""
        if name not in self.models:
            raise InputError(f"{self.name}: no head for {name}; it has {', '.join(self.models)}: choose among these")
        return self.models[name].heads[name].task

    def _outputs(self, name: str, sides: list[list[str]], batch_size: int) -> Predictions:
        task, model, tokenizer = self._task(name), self.models[name], self.tokenizers[name]
        rewritten = [[as_in_files(task, text) for text in side] for side in sides]
        rows = zip(*rewritten, strict=True)
        examples = [Example(str(i), row[0], row[1] if task.is_pair else None, None, i) for i, row in enumerate(rows, 1)]
        data = TaskData(
            task,
            Table(Path("texts"), examples, [], ""),
            tokenizer,
            pair_encoding=model.heads[name].config.pair_encoding,
        )
        self.truncated += data.truncated
        return predict(model, data, batch_size)

    def _answers(self, found: Predictions) -> list[Answer]:
        task = found.task
        chances = probabilities(task, found.outputs)
        if chances is None:
            scale = self.scales.get(task.name)
            low, high = task.label_range
            values = found.values if scale is None else scale.apply(found.values, low, high)
            words = "on no scale" if scale is None else f"from {low:g} to {high:g}"
            return [Answer(task.name, float(value), words) for value in values]
        names = words_of(task)
        return [
            Answer(task.name, int(value), names[int(value)], tuple(row.tolist()))
            for value, row in zip(decide(task, found.outputs), chances, strict=True)
        ]

    def explain(self, name: str, text: str, second: str | None = None) -> list[TokenWeights]:
        """What the head looks at, by whole words: see token_weights.token_weights, whose errors it raises."""
        task = self._task(name)
        texts = [as_in_files(task, part) for part in (text, second) if part is not None]
        return token_weights(self.models[name], self.tokenizers[name], name, *texts, whole_words=True)


def words_of(task: Task) -> tuple[str, ...]:
    """What a task's labels mean, from 0 on, or else what they are; () where they are scores."""
    if task.label_kind == "score":
        return ()
    return task.label_words or task.class_names or tuple(map(str, range(int(task.label_range[1]) + 1)))


def best_folders(run: str | Path) -> dict[str, Path]:
    """Task -> the folder of the best model that has a head for it. Raises InputError where there is none."""
    folder = Path(run)
    if not (folder / "config.json").is_file():
        folder = Run.open(run, ROOT).folder
    if _heads(folder) is not None:
        candidates = [folder]
    else:
        candidates = [folder / "best", *(folder / name / "best" for name in TASKS)]
    found = {name: candidate for candidate in candidates for name in _heads(candidate) or () if name in TASKS}
    if not found:
        Run(folder).refuse_ensemble()
        raise InputError(
            f"{short(folder)}: no model with heads in it (yet): name a run of multitask_classifier.py that has best/"
        )
    return found


def _heads(folder: Path) -> dict | None:
    """What the folder's config.json says of heads; None where it says nothing."""
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else None
    ours = config.get("minbert") if isinstance(config, dict) else None
    heads = ours.get("heads") if isinstance(ours, dict) else None
    return heads if isinstance(heads, dict) else None
