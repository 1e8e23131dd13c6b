"""Cells of tables about sentence encoders: contrastive.py train, then evaluate and search evaluate, a process each.

Follows Oh et al. 2022 (arXiv 2209.05972) and SimCSE (Gao, Yao and Chen 2021, arXiv 2104.08821) in what is judged: rank
correlation on sentence pairs, search, and the space that the vectors fill.
"""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bert import BertConfig
from cells import FINISHED, STOPPED, Cell, Scale, encoder_of, fits_scale, hash_of, parse_shares, refuse_differences
from console import counted
from contrastive_data import hash_of_pairs
from contrastive_loss import Objective
from contrastive_model import ContrastiveRows
from contrastive_options import COMMAND, add_options, resolve
from contrastive_training import start
from distributed import ALONE
from errors import InputError
from estimate import EFFICIENCY, FLOAT_BYTES, linear_weights, measured_speed
from experiments import SUP, UNSUP, UNTRAINED, ContrastiveTable
from files import read_json, short
from options import SCORES
from run import ROOT, Run
from run_checks import last_row, need
from search_data import read_collection
from sentence_keys import hash_of_keys, keys_of
from sts_data import NAMES, read_sets

SIMILARITY, SEARCH = "similarity.json", "search.json"  # what judging leaves in a run's folder
BASE = 768  # bert-base's hidden size, which published learning rates are for
STATES = 3  # of the optimizer's two numbers and the weight itself, a checkpoint's size a learning number
# Options that say where something is, which is compared by its content, or change no number.
PLACES = ("model", "train", "exclude", "dev", "data", "run", "resume", "device", "save_every", "micro_batch")


@dataclass(frozen=True)
class ContrastiveScale(Scale):
    """sha256: of the weights that training begins with."""

    table: ContrastiveTable | None = None
    sha256: str = ""

    def path(self, name: str) -> Path:
        return self.data / name


@dataclass(frozen=True)
class ContrastiveCell(Cell):
    """A sentence encoder: a pooler, an objective, a seed; trained, then judged."""

    @property
    def parts(self) -> dict[str, float]:
        return self.scale.parts([self.row.option])

    @property
    def objective(self) -> str:
        """What it is trained by; before training that is read, and no step is made."""
        return UNSUP if self.row.option == UNTRAINED else self.row.option

    def arguments(self) -> list[str]:
        """The options of contrastive.py train for a new run."""
        scale, option, table = self.scale, self.row.option, self.scale.table
        typed = {"mode": [self.objective], "train": [str(scale.path(name)) for name in table.train[self.objective]]}
        typed |= {"exclude": [str(scale.path(name)) for name in (table.similarity, table.dev)]}
        typed |= {"dev": [str(scale.path(table.dev))], "epochs": [str(scale.epochs[option])]}
        typed |= {"batch_size": [str(scale.batch_size[option])], "lr": [f"{scale.lr[self.objective]:g}"]}
        typed |= {name: [value] for name, value in self.options} | {"seed": [str(self.seed)]}
        if self.parts:
            typed["fraction"] = [f"{self.parts[option]:g}"]
        if scale.model is not None:
            typed["model"] = [scale.model]
        typed["run"] = [str(self.folder)]
        return [word for name, values in typed.items() for word in (f"--{name}", *values)]

    def judgements(self) -> dict[str, list[str]]:
        """The file that each leaves in the folder -> words of contrastive.py."""
        path, table, folder = self.scale.path, self.scale.table, str(self.folder)
        similarity = ["evaluate", folder, "--data", str(path(table.similarity)), "--exclude", str(path(table.dev))]
        search = ["search", "evaluate", str(path(table.search)), "--model", folder]
        both = {SIMILARITY: similarity, SEARCH: search}
        return {name: [*words, "--json", str(self.folder / name)] for name, words in both.items()}

    def words(self) -> list[str]:
        trained = super().state()
        if trained != FINISHED:
            return [COMMAND, "train", *(["--resume", str(self.folder)] if trained == STOPPED else self.arguments())]
        left = [words for name, words in self.judgements().items() if not (self.folder / name).is_file()]
        return [COMMAND, *left[0]] if left else []

    def state(self) -> str:
        trained = super().state()
        judged = all((self.folder / name).is_file() for name in self.judgements())
        return STOPPED if trained == FINISHED and not judged else trained

    def hashes(self) -> dict[str, str]:
        """Name below the data's folder -> hash of what is read: a file's, or that of a folder's files."""
        table = self.scale.table
        names = (*table.train[self.objective], table.dev, table.similarity, table.search)
        return {name: hash_of(self.scale.path(name)) for name in names}

    def changed_options(self, found: dict, where: str) -> list[str]:
        parser = argparse.ArgumentParser()
        add_options(parser)
        wanted = parser.parse_args(self.arguments())
        wanted.arguments = []
        options = need(found, ("options",), dict, where)
        return [
            f"{name} {options[name]} -> {value}"
            for name, value in vars(resolve(wanted)).items()
            if name not in PLACES and name in options and options[name] != value
        ]

    def check(self, found: dict, where: str) -> None:
        differences = self.changed_options(found, where)
        if need(found, ("model", "sha256"), str, where) != self.scale.sha256:
            differences.append("the weights have changed")
        if "files" in found:  # a row
            then, now = found["files"], self.hashes()
            changed = [name for name in then if then[name] != now.get(name)]
        else:
            changed = self.changed_files(found, where)
        differences += [f"{short(self.scale.path(name))} has changed" for name in changed]
        refuse_differences(differences, where)

    def changed_files(self, config: dict, where: str) -> list[str]:
        """Names of what training reads that is not what a run of this config read."""
        table = self.scale.table
        names, files = table.train[self.objective], need(config, ("data", "train"), list, where)
        if len(files) != len(names):
            return list(names)
        hash_one = hash_of_pairs if self.objective == SUP else hash_of
        wanted = {name: hash_one(self.scale.path(name)) for name in names}
        then = {name: need(file, ("sha256",), str, where) for name, file in zip(names, files, strict=True)}
        wanted[table.dev] = hash_of(self.scale.path(table.dev))
        then[table.dev] = need(config, ("data", "dev", "sha256"), str, where)
        # Left out of training are the sentences of both, so that it says something of these where dev is the same.
        wanted[table.similarity] = _hash_excluded(self.scale.path(table.similarity), self.scale.path(table.dev))
        then[table.similarity] = need(config, ("data", "excluded_sentences_sha256"), str, where)
        changed = [name for name, digest in wanted.items() if then[name] != digest]
        return [name for name in changed if name != table.similarity or table.dev not in changed]

    def finished_row(self, call: str | None) -> dict:
        config, metrics = Run(self.folder).config, self.folder / "metrics.jsonl"
        self.check(config, short(self.folder))  # the row says that it was made of these data
        end, judged = last_row(metrics), self.folder / SIMILARITY
        similarity, search = read_json(judged), read_json(self.folder / SEARCH)
        dev = {self.scale.table.searched: need(search, ("exact",), dict, self.folder / SEARCH)}
        for name, found in need(similarity, ("similarity",), dict, judged).items():
            space = need(similarity, ("space", name), dict, judged)
            dev[name] = {key: found[key] for key in ("pairs", "left_out")}
            dev[name] |= {key: found[key]["all"] for key in ("spearman", "pearson")}
            dev[name] |= {f"spearman_{how}": found["spearman"][how] for how in ("mean", "wmean")}
            dev[name] |= {key: space[key] for key in ("alignment", "uniformity", "mean_cosine")}
            dev[name] |= {f"top_{k}": share for k, share in space["variance_in_top"].items()}
        for name, metric in self.selecting():  # before the model that they are made from is deleted
            need(dev, (name, metric), (int, float, type(None)), judged)
        selected = read_json(self.folder / SCORES)
        selected["dev"]["path"] = Path(selected["dev"]["path"]).name  # no place of this machine; its hash is in files
        seconds, tokens = end["train_seconds"], end["train_tokens"]
        return {
            "cell": self.identity,
            "call": call,
            "commands": self.shown(),
            "dev": dev,
            "selected": selected,
            "train_seconds": round(seconds, 1),
            "tokens_per_second": round(tokens / seconds) if seconds else None,
            "model": {"name": self.scale.model_name, "sha256": config["model"]["sha256"]},
            "pooler": config["pooler"],
            "data": {
                "rows": sum(file["rows"] for file in config["data"]["train"]),
                "left_out": {
                    Path(file["path"]).name: {reason: found["rows"] for reason, found in file["dropped"].items()}
                    for file in config["data"]["train"]
                },
            },
            "files": self.hashes(),
            **{key: config[key] for key in ("device", "versions", "commit", "started")},
            "options": {name: value for name, value in config["options"].items() if name not in PLACES},
        }

    def shown(self) -> list[str]:
        """The command lines that make it, with DATA, MODEL and RUN for places of this machine."""
        places = {str(self.folder): "RUN", str(self.scale.data): "DATA", self.scale.model: "MODEL"}
        shown = []
        for words in (["train", *self.arguments()], *self.judgements().values()):
            for place, name in places.items():
                words = [word.replace(place, name) for word in words] if place else words
            shown.append(shlex.join(["python", COMMAND, *words]))
        return shown

    def estimate(self, position: tuple[int, int] | None) -> tuple[float, float]:
        """By arithmetic alone, as estimate.py counts it: what a step costs however few tokens it has is left out."""
        parser = argparse.ArgumentParser()
        add_options(parser)
        args = parser.parse_args(self.arguments())
        args.arguments = []
        job = start(resolve(args), ALONE, lambda text: None)
        rows = ContrastiveRows(job.data, job.encoder, args.max_length, Objective())
        bert, steps = job.encoder.bert, -(-len(rows) // args.batch_size)
        epoch, step = (args.epochs, 0) if super().state() == FINISHED else position or (0, 0)
        left = args.epochs - epoch - step / steps  # epochs
        looks = (epoch < args.epochs or not args.epochs) + left * max(1, steps / (args.evaluate_every or steps))
        dev = self._tokens(job.encoder, [*job.dev.first, *job.dev.second])
        forward = 3 * left * rows.lengths.sum() + looks * dev + self._judged(job.encoder)
        speed = EFFICIENCY * measured_speed(job.device, bert.config.hidden_size, dtype=job.precision.dtype)
        numbers = sum(p.numel() for module in (bert, job.encoder.pooler) for p in module.parameters())
        return 2 * linear_weights(bert.encoder) * forward / speed, FLOAT_BYTES * numbers * (1 + STATES)

    def _judged(self, encoder) -> int:
        """Tokens that judging encodes and has not yet."""
        texts, table = [], self.scale.table
        if not (self.folder / SIMILARITY).is_file():
            texts += [text for found in read_sets([self.scale.path(table.similarity)]) for text in found.sentences()]
        if not (self.folder / SEARCH).is_file():
            collection = read_collection(self.scale.path(table.search))
            texts += [document.text for document in (*collection.corpus.with_text(), *collection.queries)]
        return self._tokens(encoder, texts)

    @staticmethod
    def _tokens(encoder, texts: list[str]) -> int:
        return sum(map(len, encoder.token_ids(texts)))

    def selecting(self) -> list[tuple[str, str]]:
        """What the table compares."""
        return [(column.task, column.metric) for column in self.scale.table.columns if column.compared]


@cache
def _hash_excluded(*paths: Path) -> str:
    return hash_of_keys(keys_of(paths))


def scale_of(args: argparse.Namespace, table: ContrastiveTable) -> ContrastiveScale:
    """What is asked for, resolved. Raises InputError where a file is missing that the table's runs read."""
    options = list(dict.fromkeys(row.option for row in table.rows))
    trained = [option for option in options if option != UNTRAINED]
    epochs = parse_shares(args.epochs, "--epochs", trained, int, None)
    epochs = {option: epochs.get(option) or table.epochs[option] for option in options}
    batch_size = parse_shares(args.batch_size, "--batch_size", options, int, table.batch_size)
    fraction = parse_shares(args.fraction, "--fraction", trained, float, 1.0)
    too_large = [option for option, share in fraction.items() if share > 1]
    if too_large:
        raise InputError(f"--fraction {args.fraction}: {too_large[0]}'s is above 1, which is all")
    data = (args.data or ROOT / "data").resolve()
    wanted = [*(name for names in table.train.values() for name in names), table.dev, table.similarity, table.search]
    missing = [name for name in wanted if not (data / name).exists()]
    if missing and not args.print:
        raise InputError(f"{data}: no {', '.join(missing)} there: docs/sentences.md says what stands where; see --data")
    if not args.print:
        read_sets([data / table.similarity], {column.task for column in table.columns} & {*NAMES})
    source, name = encoder_of(args)
    wide = source is not None and BertConfig.from_pretrained(source.path).hidden_size >= BASE
    rates = {option: float(table.lr[option]) if wide else table.narrow_lr[option] for option in trained}
    return ContrastiveScale(
        str(source.path) if source and args.model else None,
        name,
        data,
        data.name,
        rates if source else {},
        epochs,
        batch_size,
        fraction,
        args.runs.resolve(),
        () if args.device is None else ("--device", args.device),
        table,
        source.sha256 if source else "",
    )


def fits(cell: dict, scale: ContrastiveScale) -> bool:
    """Whether a row of the file, whose cell this is, is of this scale, whatever its seed."""
    return fits_scale(cell, scale) and cell["fraction"] == scale.parts([cell["option"]])


def caption(table: ContrastiveTable, scale: ContrastiveScale, rows: list[dict]) -> str:
    """What was run, and how it differs from what is published."""
    said = [f"{table.title} ({table.source}); encoder {scale.model_name}, data {scale.data_name}"]
    for option in scale.epochs:
        if option == UNTRAINED:
            continue
        counts = {found["data"]["rows"] for found in rows if found["cell"]["option"] == option}
        share = f"{scale.fraction[option]:g} of the rows" if scale.fraction[option] < 1 else ""
        many = f"{counts.pop():,} rows" if len(counts) == 1 else ""
        rate = scale.lr.get(option)
        theirs = "" if rate == float(table.lr[option]) else f" (published for {table.encoder}: {table.lr[option]})"
        parts = [many, share, counted(scale.epochs[option], "epoch"), f"{scale.batch_size[option]} rows a batch"]
        parts += [] if rate is None else [f"learning rate {rate:g}{theirs}"]
        said.append(f"{option}: {', '.join(filter(None, parts))}")
    left = {name: found["dev"][name]["left_out"] for found in rows for name in found["dev"] if name != table.searched}
    if any(left.values()):
        counts = ", ".join(f"{count:,} of {name}" for name, count in left.items() if count)
        said.append(f"pairs left out, since they hold a sentence of what selects the model: {counts}")
    if scale.model_name != table.encoder:
        said.append(f"the paper's encoder is {table.encoder}: this concludes for {scale.model_name} only")
    said.append("mean ± standard deviation between seeds (number of seeds); differences, seed by seed, are from [CLS]")
    said.append("in brackets their 95 % t interval")
    return "; ".join(said) + f". {table.note}"
