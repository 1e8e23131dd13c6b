"""Sentence pairs with the similarity people gave them: STS 2012 to 2016, the STS benchmark, SICK and the course's STS.

Layouts as the sets' own archives have them (Agirre et al. 2012 to 2016; Cer et al. 2017, arXiv 1708.00055; Marelli et
al. 2014), which SentEval's tokenised copies share. Texts are only stripped; the course's are read as the course does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

import course_data
from datasets import NUMBER, decode_text, listed, read_bytes
from errors import InputError, quoted
from sentence_keys import key
from task_files import read_split
from tasks import STS

# The subsets that SentEval, and who reports on it, takes; 2013 had a fourth, SMT, which may not be handed on.
SUBSETS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
# What papers report, and average over.
SEVEN = (*SUBSETS, "STS-B-test", "SICK-R-test")
# Every set there can be, in the order of a report. Parts that models are trained on are read only if named.
NAMES = (*SUBSETS, "STS-B-dev", "STS-B-test", "SICK-R-trial", "SICK-R-test", "course-dev")
TRAINED_ON = ("STS-B-train", "SICK-R-train", "course-train")
BENCHMARK = ("genre", "file", "year", "number", "score", "sentence", "sentence")
SICK = ("sentence_A", "sentence_B", "relatedness_score")
RANGES = {"STS": (0.0, 5.0), "SICK": (1.0, 5.0)}
DEPTH = 4  # folders below the one that is named in which sets are looked for
INPUT = re.compile(r"STS(?:20\d\d)?\.input\.(.+)\.txt")
AGAIN = "fetch the file again"


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs in their file's order: first[i] and second[i] have the similarity scores[i], (n,) float64.

    skipped: how many of the file's pairs are not among them, since nobody scored them. left_out: how many that hold a
    sentence which was not to be judged by, see `without`.
    """

    first: list[str]
    second: list[str]
    scores: np.ndarray
    skipped: int = 0
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.scores)

    def without(self, keys: set[str]) -> ScoredPairs:
        """Without the pairs of which a sentence is among `keys` (see sentence_keys.key)."""
        pairs = zip(self.first, self.second, strict=True)
        kept = [row for row, pair in enumerate(pairs) if not any(key(text) in keys for text in pair)]
        sides = [[side[row] for row in kept] for side in (self.first, self.second)]
        return ScoredPairs(*sides, self.scores[kept], self.skipped, self.left_out + len(self) - len(kept))


@dataclass(frozen=True)
class SimilaritySet:
    """A data set: its name, one of NAMES or TRAINED_ON, where it is, and its subsets by their names."""

    name: str
    path: Path
    subsets: dict[str, ScoredPairs]

    def __len__(self) -> int:
        return sum(map(len, self.subsets.values()))

    @property
    def skipped(self) -> int:
        return sum(pairs.skipped for pairs in self.subsets.values())

    @property
    def left_out(self) -> int:
        return sum(pairs.left_out for pairs in self.subsets.values())

    def without(self, keys: set[str]) -> SimilaritySet:
        """Without the pairs of which a sentence is among `keys`. Raises InputError where a subset has no pair left."""
        subsets = {name: pairs.without(keys) for name, pairs in self.subsets.items()}
        for name, pairs in subsets.items():
            if not len(pairs):
                raise InputError(
                    f"{self.path}: every pair of {self.name} {name} holds a sentence that --exclude names: leave the "
                    "set out with --sets, or name other files"
                )
        return SimilaritySet(self.name, self.path, subsets)

    def sentences(self) -> list[str]:
        """Its distinct sentences, in order of appearance."""
        return list(dict.fromkeys(text for pairs in self.subsets.values() for text in (*pairs.first, *pairs.second)))


@dataclass(frozen=True)
class Found:
    """A data set that is there: where, and how it is read."""

    name: str
    path: Path
    read: Callable[[], dict[str, ScoredPairs]]


def read_sets(folders: Iterable[Path], names: Collection[str] | None = None) -> list[SimilaritySet]:
    """The data sets found in these folders and up to DEPTH below, in the order of NAMES.

    names: which ones, each of which must be there; None: all of NAMES that are. Raises InputError for a name that is
    none or is not there, for a set found in two places, and where a file of a wanted set is missing or damaged.
    """
    folders = [Path(folder) for folder in folders]
    found: dict[str, dict[str, Found]] = {}
    for one in (one for folder in folders for one in _look(folder)):
        found.setdefault(one.name, {}).setdefault(os.path.realpath(one.path), one)
    where = ", ".join(map(str, folders))
    for name in names or ():
        if name not in NAMES + TRAINED_ON:
            raise InputError(f"data set {quoted(name)} is not known; known: {', '.join(NAMES + TRAINED_ON)}")
        if name not in found:
            raise InputError(f"{where}: no {name} there; found {', '.join(sorted(found)) or 'none'}: name its folder")
    sets = []
    for name in NAMES + TRAINED_ON:
        if name not in (found.keys() & {*NAMES} if names is None else names):
            continue
        one, *others = found[name].values()
        if others:
            raise InputError(f"{name} is in {one.path} and in {others[0].path}: name the folder of one of them")
        sets.append(SimilaritySet(name, one.path, one.read()))
    return sets


def _look(folder: Path) -> Iterator[Found]:
    """The data sets in a folder and below, by their files' names; nothing is read but first lines.

    Where the course's files stand in data/, the bundled sample below it is left out.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder: name one that holds data sets, or a folder above them")
    root = len(folder.parts)
    for place, folders, files in os.walk(folder, followlinks=True):
        here = Path(place)
        # A link may lead back up: what is too deep is not entered.
        folders[:] = sorted(name for name in folders if name[0] != "." and len(here.parts) - root < DEPTH)
        if "sample" in folders and here.resolve() == course_data.DATA and course_data.BLOBS.keys() & {*files}:
            folders.remove("sample")  # the course's files stand beside it, and are what is meant
        inputs = {match[1]: name for name in files if (match := INPUT.fullmatch(name))}
        if inputs:
            year = _year(here, inputs)
            yield Found(year, here, partial(_read_year, here, year, inputs))
        for name in sorted(files):
            yield from _look_at(here / name)


def _year(folder: Path, inputs: dict[str, str]) -> str:
    """Which of SUBSETS a folder's input files are. Subsets of one name come in several years: the others tell."""
    years = [year for year in SUBSETS if any(_only_in(year, subset) for subset in inputs)]
    if len(years) == 1:
        return years[0]
    if years:
        raise InputError(f"{folder}: files of {' and '.join(years)} in one folder: give each year a folder of its own")
    names = listed(sorted(inputs.values()))
    raise InputError(f"{folder}: {names} could be of several years, or of none: put a whole year's files there")


def _only_in(year: str, subset: str) -> bool:
    return [other for other, subsets in SUBSETS.items() if subset in subsets] == [year]


def _look_at(path: Path) -> Iterator[Found]:
    """The data sets in a file of the STS benchmark, SICK or the course."""
    if match := re.fullmatch(r"sts-(train|dev|test)\.csv", path.name):
        name = "course" if _header(path) >= {"sentence1", "sentence2"} else "STS-B"
        yield Found(f"{name}-{match[1]}", path, lambda: {match[1]: read_pairs(path)})
    elif match := re.fullmatch(r"SICK_(train|trial|test)(_annotated)?\.txt", path.name):
        # The test part was first handed out without its scores, under the shorter name.
        if SICK[-1] in _header(path):
            yield Found(f"SICK-R-{match[1]}", path, lambda: {match[1]: read_pairs(path)})
    elif path.name == "SICK.txt":
        for part in ("train", "trial", "test"):
            yield Found(f"SICK-R-{part}", path, lambda part=part: {part: _read_sick(path, part)})


def read_pairs(path: str | os.PathLike) -> ScoredPairs:
    """The pairs of one file: of the STS benchmark, SICK or the course, told apart by the first line.

    Raises InputError, naming file, line, what was found and what to do, for a file that can't be read, has no pairs, or
    has a row without its columns, a sentence or a score within range. A row whose score is blank is skipped.
    """
    path = Path(path)
    names = _header(path)
    if SICK[-1] in names:
        return _read_sick(path)
    if names >= set(STS.columns):
        table = read_split(STS, "dev", path)
        first, second, scores = zip(*((row.sentence, row.second, row.label) for row in table), strict=True)
        return ScoredPairs(list(first), list(second), np.array(scores), len(table.dropped))
    return _scored(path, _benchmark_rows(path), "STS")


def _header(path: Path) -> set[str]:
    """What stands in a file's first line."""
    try:
        with open(path, "rb") as file:
            return set(file.readline(1 << 16).decode("utf-8", "replace").lstrip("\ufeff").strip().split("\t"))
    except OSError:
        return set()  # whoever reads it says why it can't be


# ---------------------------------------------------------------------------------------------------------------------
# Rows: (line, first sentence, second sentence, score as text)


def _read_year(folder: Path, year: str, inputs: dict[str, str]) -> dict[str, ScoredPairs]:
    """A year's subsets: each a file of pairs, and one of scores with a line a pair, blank where nobody scored it."""
    missing = [f"STS.input.{subset}.txt" for subset in SUBSETS[year] if subset not in inputs]
    if missing:
        raise InputError(
            f"{folder}: {year} without {listed(missing)}: fetch the set again, or leave it out with --sets"
        )
    subsets = {}
    for subset in SUBSETS[year]:
        path = folder / inputs[subset]
        gold = folder / inputs[subset].replace(".input.", ".gs.", 1)
        subsets[subset] = _scored(gold, _year_rows(path, gold), "STS")
    return subsets


def _year_rows(path: Path, gold: Path) -> Iterator[tuple[int, str, str, str]]:
    rows, scores = _lines(path), _lines(gold)
    if len(rows) != len(scores):
        raise InputError(f"{gold}: {len(scores)} lines, wanted {len(rows)} as in {path.name}: fetch both files again")
    for line, (row, score) in enumerate(zip(rows, scores, strict=True), start=1):
        fields = row.split("\t")  # 2016 has two more, where the sentences come from
        if score.strip():
            if len(fields) < 2 or not (fields[0].strip() and fields[1].strip()):
                wanted = "wanted two sentences with a tab between them"
                raise InputError(f"{path}, line {line}: {quoted(row)}, {wanted}: {AGAIN}")
            yield line, fields[0], fields[1], score
        else:
            yield line, "", "", score


def _benchmark_rows(path: Path) -> Iterator[tuple[int, str, str, str]]:
    for line, row in enumerate(_lines(path), start=1):
        fields = row.split("\t")  # some rows have two more, where the sentences come from
        if len(fields) < len(BENCHMARK):
            wanted = f"wanted {len(BENCHMARK)} or more ({', '.join(BENCHMARK)}), tabs between them"
            raise InputError(f"{path}, line {line}: {len(fields)} columns, {wanted}: {AGAIN}")
        yield line, fields[5], fields[6], fields[4]


def _read_sick(path: Path, part: str | None = None) -> ScoredPairs:
    """part: train, trial or test, for the file that holds all three."""
    return _scored(path, _sick_rows(path, part), "SICK")


def _sick_rows(path: Path, part: str | None) -> Iterator[tuple[int, str, str, str]]:
    header, *rows = _lines(path)
    names = [name.strip() for name in header.split("\t")]
    wanted = (*SICK, *(["SemEval_set"] if part else []))
    if missing := [name for name in wanted if name not in names]:
        raise InputError(f"{path}, line 1: no column {listed(missing)}; found {listed(names)}: {AGAIN}")
    for line, row in enumerate(rows, start=2):
        fields = row.split("\t")
        if len(fields) != len(names):
            raise InputError(f"{path}, line {line}: {len(fields)} columns, wanted {len(names)} as in line 1: {AGAIN}")
        first, second, score, *of = (fields[names.index(name)] for name in wanted)
        if not part or of[0].strip().lower() == part:
            yield line, first, second, score


def _lines(path: Path) -> list[str]:
    r"""Line i + 1 at i, blank ones too. Only \n and \r\n end a line, whatever Unicode says of others."""
    text = decode_text(path, read_bytes(path))
    if not text:
        raise InputError(f"{path}: the file is empty: {AGAIN}")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _scored(path: Path, rows: Iterable[tuple[int, str, str, str]], kind: str) -> ScoredPairs:
    """Rows as pairs. path: the file that the scores stand in. Raises InputError where nothing has a score."""
    low, high = RANGES[kind]
    first, second, scores, skipped = [], [], [], 0
    for line, one, other, text in rows:
        one, other, text = one.strip(), other.strip(), text.strip()
        if not text:
            skipped += 1
            continue
        score = float(text) if NUMBER.fullmatch(text) else float("nan")
        if not low <= score <= high:  # NaN compares false
            wanted = f"wanted a number from {low:g} to {high:g}"
            raise InputError(f"{path}, line {line}: the score is {quoted(text)}, {wanted}: {AGAIN}")
        if not (one and other):
            raise InputError(f"{path}, line {line}: a blank sentence, wanted two with words in them: {AGAIN}")
        first.append(one)
        second.append(other)
        scores.append(score)
    if not scores:
        raise InputError(f"{path}: no pair with a score: {AGAIN}")
    return ScoredPairs(first, second, np.array(scores), skipped)
