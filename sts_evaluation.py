"""How well cosines of sentence embeddings rank pairs as people do: `contrastive.py evaluate`.

Correlations and their aggregation over subsets as SentEval has them (Conneau and Kiela 2018, arXiv 1803.05449), and as
Gao, Yao and Chen 2021 (SimCSE, arXiv 2104.08821, appendix B) sort out: Spearman over all pairs of a set together.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import spearmanr
from tqdm import tqdm

from command_line import path_given, text_given
from course_data import choose_data
from datasets import Table
from embedding_quality import RESOLUTION, TOP, alignment, mean_cosine, uniformity, unit, variance_shares
from errors import InputError
from evaluation import pearson
from files import check_writable, short, write_json
from options import choose_device
from poolers import POOLERS
from sentence_keys import keys_of
from sts_data import NAMES, SEVEN, TRAINED_ON, ScoredPairs, SimilaritySet, read_sets
from tasks import Task
from transfer import TRANSFER_TASKS, TransferScore, find_tables, transfer

if TYPE_CHECKING:
    from sentence_encoder import SentenceEncoder

AGGREGATIONS = {
    "all": "all pairs of a set together",
    "mean": "the mean over a set's subsets",
    "wmean": "the mean over a set's subsets, weighted by their pairs",
}
CORRELATIONS = {
    "spearman": lambda gold, found: float(spearmanr(gold, found).statistic),
    "pearson": pearson,
}
# Pairs scored above this mean the same: what SimCSE takes alignment over.
SIMILAR = 4.0
BATCH = 64


class Embedded:
    """Texts and their unit vectors: each text encoded once, whatever sets it stands in."""

    def __init__(self, encoder: SentenceEncoder, texts: Sequence[str], batch_size: int = BATCH, bar: bool = False):
        """Raises InputError if a vector has NaN or infinity in it."""
        texts = list(dict.fromkeys(texts))
        self.rows = {text: row for row, text in enumerate(texts)}
        self.vectors = unit(vectors_of(encoder, texts, batch_size, bar))

    def of(self, texts: Sequence[str]) -> np.ndarray:
        """(n, H) unit vectors of texts that are among the encoded."""
        return self.vectors[[self.rows[text] for text in texts]]

    def similarity(self, first: Sequence[str], second: Sequence[str]) -> np.ndarray:
        """Cosine of first[i] and second[i], (n,) float64; 0 where a vector is all zeros."""
        return np.einsum("nh,nh->n", self.of(first).astype(np.float64), self.of(second).astype(np.float64))


def vectors_of(
    encoder: SentenceEncoder, texts: Sequence[str], batch_size: int, bar: bool = False, normalize: bool = True
) -> np.ndarray:
    """encoder.encode, with a progress bar if wanted. Raises InputError if a vector has NaN or infinity in it."""
    with tqdm(total=len(texts), desc="encoding", unit="text", leave=False, disable=None if bar else True) as shown:
        vectors = encoder.encode(texts, batch_size=batch_size, normalize=normalize, progress=shown.update)
    broken = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(broken):
        raise InputError(
            f"{encoder.name}: {len(broken)} of {len(vectors)} embeddings are not finite, the first of "
            f"{texts[broken[0]][:60]!r}: its weights are damaged or training diverged: choose another model"
        )
    return vectors


def undefined(gold: np.ndarray, found: np.ndarray) -> str | None:
    """Why two columns of n numbers have no correlation, or None if they have one.

    Similarities that float32 can't tell apart (RESOLUTION) count as equal: their order is rounding's, not the model's.
    """
    if len(gold) < 2:
        return "there is one pair"
    if np.ptp(gold) == 0:
        return "every pair has the same gold score"
    if np.ptp(found) <= RESOLUTION:
        return "the model gives every pair the same similarity"
    return None


def spearman_of(encoder: SentenceEncoder, pairs: ScoredPairs, batch_size: int = BATCH) -> float | None:
    """Spearman's correlation of cosines with the gold scores, in [-1, 1]; None where it is undefined.

    Raises InputError if an embedding is not finite.
    """
    found = Embedded(encoder, [*pairs.first, *pairs.second], batch_size).similarity(pairs.first, pairs.second)
    return None if undefined(pairs.scores, found) else CORRELATIONS["spearman"](pairs.scores, found)


def score_set(data: SimilaritySet, similarity: Callable[[Sequence[str], Sequence[str]], np.ndarray]) -> dict:
    """What a report has of one set.

    pairs, skipped (those without a gold score), left_out (see SimilaritySet.without); spearman and pearson: aggregation
    -> correlation in [-1, 1], None if undefined; subsets: name -> the same of each; undefined: a line for each
    correlation that is, with its reason.
    """
    found = {name: similarity(pairs.first, pairs.second) for name, pairs in data.subsets.items()}
    gold = {name: pairs.scores for name, pairs in data.subsets.items()}
    subsets = {
        name: {"pairs": len(pairs), "skipped": pairs.skipped, **_correlations(gold[name], found[name])}
        for name, pairs in data.subsets.items()
    }
    together = np.concatenate(list(gold.values())), np.concatenate(list(found.values()))
    over_all = _correlations(*together)
    sizes = [len(pairs) for pairs in data.subsets.values()]
    scores: dict = {"path": str(data.path), "pairs": len(data), "skipped": data.skipped, "left_out": data.left_out}
    for name in CORRELATIONS:
        parts = [subset[name] for subset in subsets.values()]
        known = None not in parts
        scores[name] = {
            "all": over_all[name],
            "mean": float(np.mean(parts)) if known else None,
            "wmean": float(np.average(parts, weights=sizes)) if known else None,
        }
    reasons = {"": undefined(*together), **{f" {name}": undefined(gold[name], found[name]) for name in data.subsets}}
    reasons = {where: reason for where, reason in reasons.items() if reason and (len(subsets) > 1 or not where)}
    scores["undefined"] = [f"{data.name}{where}: no correlation, since {reason}" for where, reason in reasons.items()]
    return {**scores, "subsets": subsets}


def _correlations(gold: np.ndarray, found: np.ndarray) -> dict[str, float | None]:
    nothing = undefined(gold, found) is not None
    return {name: None if nothing else correlate(gold, found) for name, correlate in CORRELATIONS.items()}


def average(sets: dict[str, dict], correlation: str, aggregation: str) -> float | None:
    """The papers' last column: the mean over SEVEN; None where one of them is missing or undefined."""
    values = [sets[name][correlation][aggregation] if name in sets else None for name in SEVEN]
    return None if None in values else float(np.mean(values))


def score_space(data: SimilaritySet, embedded: Embedded) -> dict:
    """Alignment over the pairs that mean the same, uniformity and anisotropy over the set's distinct sentences."""
    pairs = list(data.subsets.values())
    rows = (row for part in pairs for row in zip(part.first, part.second, part.scores, strict=True))
    alike = [(first, second) for first, second, score in rows if score > SIMILAR]
    sentences = data.sentences()
    vectors = embedded.of(sentences)
    return {
        "sentences": len(sentences),
        "similar_pairs": len(alike),
        "alignment": alignment(*(embedded.of(side) for side in zip(*alike, strict=True))) if alike else None,
        "uniformity": uniformity(vectors),
        "mean_cosine": mean_cosine(vectors),
        "variance_in_top": {str(k): share for k, share in variance_shares(vectors).items()},
    }


# ---------------------------------------------------------------------------------------------------------------------
# The command


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `contrastive.py evaluate`."""
    parser.description = "Judge sentence embeddings: similarity, the space they fill, and what else they hold."
    parser.add_argument(
        "model",
        nargs="?",
        type=text_given,
        metavar="MODEL",
        help="a run, a folder of weights, or a known name (default: what setup.sh put in place)",
    )
    parser.add_argument("--pooler", choices=POOLERS, metavar="NAME", help="default: the model's own, else mean")
    parser.add_argument(
        "--data",
        type=path_given,
        action="extend",
        nargs="+",
        metavar="DIR",
        help="folders in and below which data sets are looked for (default: where training would look)",
    )
    parser.add_argument(
        "--sets",
        type=text_given,
        metavar="NAMES",
        help=f"any of {','.join(NAMES)}, and {','.join(TRAINED_ON)} (default: those of the former that are there)",
    )
    parser.add_argument(
        "--exclude",
        type=path_given,
        action="extend",
        nargs="+",
        metavar="PATH",
        help="files or folders of any layout: pairs that hold a sentence of them are left out and counted; name what "
        "the model was trained on or selected by (default: none)",
    )
    parser.add_argument(
        "--aggregation",
        choices=AGGREGATIONS,
        default="all",
        help="how STS12 to STS16 become one number each: all pairs together (default, as SimCSE reports), the mean of "
        "their subsets, or the mean weighted by pairs",
    )
    parser.add_argument(
        "--transfer",
        type=text_given,
        metavar="TASKS",
        help=f"any of {','.join(TRANSFER_TASKS)}: logistic regression on the frozen embedding (default: none)",
    )
    parser.add_argument(
        "--batch_size", type=int, default=BATCH, metavar="N", help="texts encoded at once (default %(default)s)"
    )
    parser.add_argument(
        "--max_length", type=int, metavar="TOKENS", help="longer texts are cut (default: the model's own)"
    )
    parser.add_argument("--device", type=text_given, help="cuda, cuda:1, mps or cpu (default: the best there is)")
    parser.add_argument("--json", type=path_given, metavar="FILE", help="write all of it there, subsets too")


def run(args: argparse.Namespace, say: Callable[[str], object] = print) -> int:
    """Evaluate and report. Raises InputError before anything is encoded for what can't be read or written."""
    from sentence_encoder import SentenceEncoder

    if args.batch_size < 1:
        raise InputError(f"--batch_size {args.batch_size}: wanted 1 or more")
    if args.json:
        check_writable(args.json)
    folders, why = ([choose_data(folder)[0] for folder in args.data], "asked for") if args.data else _default_data()
    sets = read_sets(folders, None if args.sets is None else _names(args.sets))
    if args.exclude:
        keys = keys_of(args.exclude)
        sets = [data.without(keys) for data in sets]
    tables = [find_tables(name, folders) for name in _names(args.transfer or "")]
    where = ", ".join(short(folder) for folder in folders)
    if not sets and not tables:
        raise InputError(f"{where}: none of {', '.join(NAMES)} there: name folders that hold some with --data")
    device, _ = choose_device(argparse.Namespace(device=args.device, use_gpu=False))
    encoder = SentenceEncoder.from_pretrained(args.model, args.pooler, device, args.max_length)
    say(f"model   {encoder.name}, pooler {encoder.pooler_name}, {encoder.dimension} dimensions")
    say(f"data    {where}: {why}")
    report = evaluate(encoder, sets, tables, args.batch_size, bar=True)
    asked = {"data": [str(folder) for folder in folders], "exclude": [str(path) for path in args.exclude or ()]}
    report = {"aggregation": args.aggregation, **asked, **report}
    for line in describe(report):
        say(line)
    if args.json:
        write_json(args.json, report)
        say(f"\nall of it: {short(args.json)}")
    return 0


def _default_data() -> tuple[list[Path], str]:
    folder, why = choose_data()
    return [folder], why


def _names(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]


def evaluate(
    encoder: SentenceEncoder,
    sets: list[SimilaritySet],
    tables: list[tuple[Task, Table, Table]],
    batch_size: int = BATCH,
    bar: bool = False,
) -> dict:
    """All that is reported, as JSON can hold it. tables: of `find_tables`. Raises InputError as `transfer` does."""
    report: dict = {
        "model": {
            "name": encoder.name,
            "pooler": encoder.pooler_name,
            "max_length": encoder.max_length,
            "fingerprint": encoder.fingerprint,
        }
    }
    if sets:
        embedded = Embedded(encoder, [text for data in sets for text in data.sentences()], batch_size, bar)
        report["similarity"] = {data.name: score_set(data, embedded.similarity) for data in sets}
        report["average"] = {
            name: {how: average(report["similarity"], name, how) for how in AGGREGATIONS} for name in CORRELATIONS
        }
        report["space"] = {data.name: score_space(data, embedded) for data in sets}
    scores = {}
    for task, train, dev in tables:
        sides = [
            vectors_of(encoder, [row.sentence for row in table], batch_size, bar, normalize=False)
            for table in (train, dev)
        ]
        scores[task.name] = dataclasses.asdict(transfer(task, train, dev, *sides))
    return {**report, "transfer": scores}


def describe(report: dict) -> list[str]:
    """The report as the lines of its tables."""
    lines = []
    if sets := report.get("similarity"):
        how = report["aggregation"]
        lines += [f"\nsimilarity: correlation of cosine and gold score x 100, over {AGGREGATIONS[how]} ({how})"]
        lines += [f"  {'':14}{'pairs':>8}{'unscored':>10}{'Spearman':>11}{'Pearson':>11}"]
        for name, found in sets.items():
            values = (_hundredfold(found[key][how]) for key in CORRELATIONS)
            lines += [f"  {name:14}{found['pairs']:>8,}{found['skipped']:>10,}" + "".join(f"{v:>11}" for v in values)]
        missing = [name for name in SEVEN if name not in sets]
        if missing:
            lines += [f"  without {', '.join(missing)}: no average of the seven that papers report"]
        else:
            values = (_hundredfold(report["average"][key][how]) for key in CORRELATIONS)
            lines += [f"  {'average of the seven':32}" + "".join(f"{v:>11}" for v in values)]
        lines += [f"  {line}" for found in sets.values() for line in found["undefined"]]
        if left_out := [f"{found['left_out']:,} of {name}" for name, found in sets.items() if found["left_out"]]:
            lines += [f"  left out, since they hold a sentence of --exclude: {', '.join(left_out)}"]
        lines += ["\nspace: unit vectors of each set's distinct sentences; alignment over pairs scored above 4"]
        shares = [f"top {k}" for k in TOP]
        headings = ("sentences", "alignment", "uniformity", "mean cosine", *shares)
        lines += [f"  {'':14}" + "".join(f"{heading:>13}" for heading in headings)]
        for name, found in report["space"].items():
            numbers = [_three(found[key]) for key in ("alignment", "uniformity", "mean_cosine")]
            numbers += [_percent(share) for share in found["variance_in_top"].values()]
            lines += [f"  {name:14}{found['sentences']:>13,}" + "".join(f"{number:>13}" for number in numbers)]
        lines += ["  top k: share of the variance in the k directions that hold most of it"]
    if found := [TransferScore(**score) for score in report["transfer"].values()]:
        lines += ["\ntransfer: logistic regression on the frozen embedding, its penalty chosen within train"]
        lines += [f"  {'':14}{'train':>8}{'dev':>10}{'metric':>11}{'dev score':>11}{'constant':>11}{'C':>9}"]
        for s in found:
            counts = f"  {s.task:14}{s.train_rows:>8,}{s.dev_rows:>10,}{s.metric:>11}"
            lines += [f"{counts}{s.score:>11.3f}{s.constant:>11.3f}{s.strength:>9g}"]
        lines += ["  constant: the commonest class of train for every row"]
        lines += [f"  {s.task}: the fit had not ended after its last iteration" for s in found if not s.converged]
    return lines


def _hundredfold(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:.2f}"


def _three(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:.1f} %"
