"""A model card: what an exported encoder is, what it was trained on, how good it is, what it must not be taken for.

Follows Mitchell et al. 2019, "Model Cards for Model Reporting" (arXiv 1810.03993) in its parts, and the hub's layout: a
README.md that begins with metadata (huggingface_hub.ModelCardData writes them).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import weights
from files import read_json
from result_row import without_places
from tasks import TASKS

# What their publishers say; of other weights nothing is known here.
LICENCES = {weights.MINILM.name: "apache-2.0", weights.BERT_BASE.name: "apache-2.0"}
LIMITS = (
    "A language that the base weights don't know, these don't know either. A text longer than said above is cut.",
    "What the encoder's own training texts say of people stands in its vectors, too; nothing was done about it.",
    "Scores are on the development rows that also chose the epoch, so they are a little too good.",
    "A cosine here is no probability: where it decides something, choose a threshold on data of your own.",
)
UNFINISHED = "Its run was not finished when it was exported: it is the best model until then."
SAMPLE = "It was trained on an invented sample, to show that the program works: don't use it for anything."


@dataclass(frozen=True)
class Facts:
    """What a run's folder says, as far as it does.

    base: the weights it began with. command, options: what was asked, without what says nothing. files: (what for, file
    name, rows, SHA-256), of train and dev. scores: (title, metric, untrained, trained). on_sample: whether the data
    were the bundled sample's.
    """

    base: str | None = None
    base_hub: str | None = None
    base_sha256: str | None = None
    command: str | None = None
    options: dict[str, object] = field(default_factory=dict)
    files: tuple[tuple[str, str, int, str], ...] = ()
    scores: tuple[tuple[str, str, float | None, float | None], ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    on_sample: bool = False
    soup: tuple[str, ...] = ()
    finished: bool = True

    @property
    def licence(self) -> str | None:
        return LICENCES.get(self.base)


def facts_of(run: Path) -> Facts:
    """From config.json and scores.json of a run of either training command; what is not there is left out.

    run: its folder, or a task's in one of --schedule separate, whose files and scores are then those of this task.
    """
    tasks = (run.name,) if run.name in TASKS and not (run / "config.json").is_file() else ()
    run = run.parent if tasks else run
    config = read_json(run / "config.json") if (run / "config.json").is_file() else {}
    if not isinstance(config, dict) or "command" not in config:
        return Facts()
    model = config.get("model") or {}
    known = weights.KNOWN.get(model.get("name"))
    folder = Path(model.get("path") or "")
    fetched = folder.parent.name == weights.WEIGHTS.name and "--" in folder.name  # see weights.hub_folder
    hub = known.hub if known else folder.name.replace("--", "/", 1) if fetched else None
    options = without_places(config.get("options") or {})
    for name in ("distill", "ensemble"):
        if isinstance(options.get(name), list):
            options[name] = " and ".join(options[name])
    options = {name: _told(value) for name, value in options.items() if value is not None and value is not False}
    files = tuple(_files(_of(config.get("data") or {}, tasks)))
    soup = options.pop("ensemble", None) if options.pop("soup", False) else None
    scores = read_json(run / "scores.json") if (run / "scores.json").is_file() else {}
    return Facts(
        base=(hub if fetched else _name_of(model["name"])) if model.get("name") else None,
        base_hub=hub,
        base_sha256=model.get("sha256"),
        command=config["command"],
        options={name: value for name, value in options.items() if isinstance(value, str | int | float | bool)},
        files=tuple((what, Path(path).name, rows, digest) for what, path, rows, digest in files),
        scores=tuple(_scores(_of(scores if isinstance(scores, dict) else {}, tasks))),
        versions=dict(config.get("versions") or {}),
        soup=tuple(soup.split(" and ")) if soup else (),
        finished=(run / "scores.json").is_file(),
        on_sample=any(Path(path).parent.parts[-2:] == ("data", "sample") for _, path, _, _ in files),
    )


def _name_of(model: str) -> str:
    """A folder's path says where it was on one machine, which is no name; a run's best/ is the run's."""
    path = Path(model)
    path = path.parent if path.name == "best" else path
    return path.parent.name if path.name in TASKS and path.parent.name else path.name


def _told(value: object) -> object:
    return Path(value).name if isinstance(value, str) and os.path.isabs(value) else value


def _of(found: dict, tasks: tuple[str, ...]) -> dict:
    """What is said of these tasks; of none all."""
    return {task: found[task] for task in tasks if task in found} if tasks else found


def _files(data: dict) -> Iterator[tuple[str, str, int, str]]:
    """(what for, path, rows, SHA-256), as multitask_classifier.py and contrastive.py note them."""
    for name, entry in data.items():
        if name in TASKS and isinstance(entry, dict):
            splits = {split: file for split, file in entry.items() if split != "test"}
            yield from ((f"{name} {split}", f["path"], f["rows"], f["sha256"]) for split, f in splits.items())
        elif isinstance(entry, list):
            yield from ((name, f["path"], f["rows"], f["sha256"]) for f in entry)
        elif isinstance(entry, dict):
            yield name, entry["path"], entry["pairs"], entry["sha256"]


def _scores(scores: dict) -> Iterator[tuple[str, str, float | None, float | None]]:
    """(title, metric, before training, after), of what is selected by."""
    for name, found in scores.items():
        if name in TASKS and isinstance(found, dict):
            task = TASKS[name]
            yield task.title, task.metric, found.get("untrained"), found.get(task.metric)
    before, after = scores.get("untrained"), scores.get("trained")
    if isinstance(before, dict) and isinstance(after, dict):
        yield from (
            (Path(scores["dev"]["path"]).name, metric, before[metric], after[metric])
            for metric in before
            if isinstance(before[metric], float) and isinstance(after.get(metric), float)
        )


def model_card(name: str, facts: Facts, pooler: str, dimension: int, max_length: int, expressible: bool) -> str:
    """README.md of an exported folder. expressible: whether SentenceTransformer loads its pooling, too."""
    parts = [f"---\n{_metadata(name, facts, expressible)}\n---\n", f"# {name}\n", _what(facts, pooler, dimension)]
    parts += ["## Use\n", _use(pooler, expressible, max_length)]
    parts += ["## Training\n", _training(facts)]
    parts += ["## Scores\n", _score_table(facts)]
    limits = [*([SAMPLE] if facts.on_sample else []), *([] if facts.finished else [UNFINISHED]), *LIMITS]
    parts += ["## Limits\n", "".join(f"- {line}\n" for line in limits)]
    parts += ["## Licence\n", _licence(facts)]
    return "\n".join(parts)


def _metadata(name: str, facts: Facts, expressible: bool) -> str:
    from huggingface_hub import ModelCardData

    return ModelCardData(
        model_name=name,
        language="en",
        license=facts.licence,
        base_model=facts.base_hub,
        library_name="sentence-transformers" if expressible else "transformers",
        pipeline_tag="sentence-similarity" if expressible else "feature-extraction",
        tags=["bert", "sentence-embeddings"],
    ).to_yaml()


def _what(facts: Facts, pooler: str, dimension: int) -> str:
    began = f", which began as {facts.base}" if facts.base else ""
    by = f" by `{facts.command}` of minBERT" if facts.command else ""
    return (
        f"A BERT encoder fine-tuned{by}{began}. A text's vector has {dimension} numbers: the encoder's output through "
        f"the pooler `{pooler}`. Heads for tasks (classes, scores of pairs) are not part of this folder.\n"
    )


def _use(pooler: str, expressible: bool, max_length: int) -> str:
    lines = [
        "    from transformers import AutoModel, AutoTokenizer",
        "    model, tokenizer = AutoModel.from_pretrained(FOLDER), AutoTokenizer.from_pretrained(FOLDER)",
        "",
    ]
    note = f"Texts are read up to {max_length} tokens; vectors have length 1, so that their product is the cosine."
    if expressible:
        lines += [
            "    from sentence_transformers import SentenceTransformer",
            '    vectors = SentenceTransformer(FOLDER).encode(["a text", "another"])',
            "",
        ]
    else:
        lines += [
            f"SentenceTransformer can't express the pooler `{pooler}`, and says so; `SentenceEncoder` of minBERT does."
        ]
    return "\n".join([*lines, note, ""])


def _training(facts: Facts) -> str:
    if not facts.command:
        return "Nothing is known here of how these weights were trained.\n"
    options = ", ".join(f"{name} {value}" for name, value in facts.options.items() if name not in ("model", "data"))
    how = (
        f"The mean of the weights of {len(facts.soup)} runs: {', '.join(facts.soup)}"
        if facts.soup
        else f"Options: {options}"
    )
    rows = "".join(f"| {what} | {file} | {rows:,} | `{digest[:12]}` |\n" for what, file, rows, digest in facts.files)
    table = f"\n| for | file | rows | SHA-256 |\n|---|---|---|---|\n{rows}" if rows else ""
    base = f"Base weights: SHA-256 `{facts.base_sha256}`. " if facts.base_sha256 else ""
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    return f"{base}{how}. With {versions}.\n{table}"


def _score_table(facts: Facts) -> str:
    if not facts.scores:
        return "None were measured.\n"

    def show(value: float | None) -> str:
        return "undefined" if value is None else f"{value:.3f}"

    if facts.soup:
        rows = "".join(f"| {title} | {metric} | {show(b)} |\n" for title, metric, _, b in facts.scores)
        return f"Of the whole model, its heads included, on dev.\n\n| task | metric | score |\n|---|---|---|\n{rows}"
    rows = "".join(f"| {title} | {metric} | {show(a)} | {show(b)} |\n" for title, metric, a, b in facts.scores)
    return (
        "Of the whole model, its heads included, on dev, before and after training; one run, one seed.\n"
        f"\n| task | metric | untrained | trained |\n|---|---|---|---|\n{rows}"
    )


def _licence(facts: Facts) -> str:
    if facts.licence:
        base = f"The base weights, {facts.base}, are under {facts.licence}, and so are these."
    else:
        base = "These weights are under the licence of those they began with, which is not known here."
    return f"{base} The data belong to their authors, whose terms hold for what was trained on them.\n"
