"""Checks the six prediction files and zips them with the code, as the course's leaderboard wants them.

Follows the CS 224N default project: its prediction format, its score, and the archive its own prepare_submit.py makes.

    python prepare_submit.py                              zips what stands in predictions/
    python prepare_submit.py --sst RUN --para RUN --sts RUN    takes each task's predictions from the run named
"""

import argparse
import ast
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import startup  # noqa: F401  # isort: skip: before what may be missing

import numpy as np

import weights
from command_line import path_given, text_given
from console import refuse, tell, warn
from course_data import is_course_file
from datasets import Table, read_examples
from errors import InputError, quoted
from evaluation import METRICS, parse_predictions
from experiments import SUBMISSION, SUBMISSION_SCORE
from files import atomic_write, atomic_write_all, cannot, read_json, sha256
from reporting import describe_aside, set_aside
from run import Run, predicted
from tasks import PARA, SST, STS, TASKS, Task, leaderboard_score

ROOT = Path(__file__).resolve().parent
ARCHIVE = "cs224n_default_final_project_submission.zip"
SUBMITTED = (SST, PARA, STS)
SPLITS = ("dev", "test")
# The course allows what its own setup installs; these bring other pretrained models.
FORBIDDEN_IMPORTS = {"transformers", "sentence_transformers"}
# What its setup.sh installs, and numpy and scipy, which torch and scikit-learn bring; by the names that are imported.
STARTER_PACKAGES = {
    *("torch", "torchvision", "torchaudio", "tqdm", "requests", "importlib_metadata", "filelock", "sklearn"),
    *("tokenizers", "explainaboard_client", "numpy", "scipy"),
}


@dataclass
class Submission:
    """What would be zipped, and what speaks against it.

    errors: would cost a submission, never zipped. objections: the leaderboard would take it but the course would not
    allow it, or it is likely a mistake; zipped with --force. remarks: worth knowing, no reason not to zip.
    """

    root: Path
    contents: dict[str, bytes] = field(default_factory=dict)  # prediction file's name -> bytes
    places: dict[str, str] = field(default_factory=dict)  # prediction file's name -> where it was read
    runs: dict[str, Path | None] = field(default_factory=dict)  # task -> the run that predicted
    # task -> the run whose data files it is for: also one whose predictions were changed since in one of the two files
    data_of: dict[str, Path | None] = field(default_factory=dict)
    scores: dict[str, float | None] = field(default_factory=dict)  # task -> metric on dev
    errors: list[str] = field(default_factory=list)
    objections: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def attempt(self, check: Callable, *arguments):
        """The check's answer; what it raises is noted, so that one look shows everything that is wrong."""
        try:
            return check(*arguments)
        except InputError as error:
            if str(error) not in self.errors:
                self.errors.append(str(error))
            return None


def check_ids(values: dict[str, float], table: Table, name: str) -> None:
    """Raises InputError unless the ids are exactly those of the data file."""
    wanted = [example.id for example in table]
    missing = [key for key in wanted if key not in values]
    foreign = sorted(values.keys() - set(wanted))
    for keys, problem in ((missing, "without a prediction"), (foreign, f"not in {table.path}")):
        if keys:
            ids = "1 id" if len(keys) == 1 else f"{len(keys)} ids"
            some = ", ".join(key[:60] for key in keys[:3]) + (", ..." if len(keys) > 3 else "")
            raise InputError(f"{name}: {ids} {problem} ({some}): predict {table.path} again")


# --- where predictions come from ---------------------------------------------------------------------------------


def read_contents(root: Path, chosen: dict[str, Path], submission: Submission) -> None:
    """Reads the six files, from a task's chosen run or from predictions/, and finds the runs they are of."""
    for task in SUBMITTED:
        folder = chosen[task.name] / "predictions" if task.name in chosen else root / "predictions"
        names = [task.predictions_file(split) for split in SPLITS]
        for name in names:
            submission.places[name] = shown(root, folder / name)
            content = submission.attempt(_content, root, folder / name, task, chosen.get(task.name))
            if content is not None:
                submission.contents[name] = content
        found = {name: submission.contents[name] for name in names if name in submission.contents}
        whole = len(found) == len(names)
        run = chosen.get(task.name) or (predicted(root, found) if whole else None)
        submission.runs[task.name] = run
        submission.data_of[task.name] = run or predicted(root, found, any)


def _content(root: Path, path: Path, task: Task, run: Path | None) -> bytes:
    """A prediction file's bytes. Raises InputError where it can't be read, or the run named has no such task."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        if run and task.name not in (trained := _recorded(run, "data", kind=dict)):
            tasks = ", ".join(name for name in trained if name in TASKS) or "none"
            raise InputError(
                f"--{task.name} {shown(root, run)}: this run has no such task; it has {tasks}: name another run"
            ) from error
        if run:
            Run(run).refuse_unfinished()
        how = "python multitask_classifier.py --option finetune writes it"
        raise InputError(f"{shown(root, path)} is missing: {how}") from error
    except OSError as error:
        raise cannot("read", path, error) from error


def shown(root: Path, path: Path) -> str:
    """`path` as it is typed in the repository's folder."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def data_file(submission: Submission, task: Task, split: str, folder: Path | None) -> Path:
    """The data file that the predictions of a task and split are for: of --data, of the run, or where data stands.

    Raises InputError if it has changed since the run.
    """
    root, run = submission.root, submission.data_of[task.name]
    if folder is not None or run is None:
        here = root / "data" if (root / "data" / task.files[split]).is_file() else root / "data" / "sample"
        return (folder or here) / task.files[split]
    path = root / _recorded(run, "data", task.name, split, "path")
    if not path.is_file() or sha256(path) != _recorded(run, "data", task.name, split, "sha256"):
        state = "has changed since" if path.is_file() else "is gone since"
        raise InputError(f"{shown(root, path)} {state} {shown(root, run)} used it: restore it, or name it with --data")
    return path


def _recorded(run: Path, *keys: str, kind: type = str):
    """What a run's config.json says under these keys, of this kind. Raises InputError where it doesn't."""
    value = read_json(run / "config.json")
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            raise InputError(f"{run / 'config.json'} has no {'.'.join(keys)}: run again, or name another run")
        value = value[key]
    if not isinstance(value, kind):
        wanted = "text" if kind is str else "an object {...}"
        found = f"{'.'.join(keys)} is {quoted(value)}, wanted {wanted}"
        raise InputError(f"{run / 'config.json'}: {found}: run again, or name another run")
    return value


# --- checks ------------------------------------------------------------------------------------------------------


def check_predictions(submission: Submission, task: Task, split: str, folder: Path | None) -> None:
    """Checks one file against its data file; dev predictions are scored."""
    name = task.predictions_file(split)
    place = submission.places[name]
    values = parse_predictions(task, submission.contents[name], place)
    label = task.label if split == "dev" else None
    path = data_file(submission, task, split, folder)
    table = read_examples(
        path, columns=task.columns, label=label, label_kind=task.label_kind, label_range=task.label_range
    )
    check_ids(values, table, place)
    if len(values) > 1 and len(set(values.values())) == 1:
        value = next(iter(values.values()))
        submission.objections.append(f"{place}: every prediction is {value:g}: the model learned nothing")
    if split == "dev":
        predictions = np.array([values[example.id] for example in table])
        labels = np.array([example.label for example in table], dtype=float)
        submission.scores[task.name] = METRICS[task.metric](labels, predictions)


def check_rules(submission: Submission, run: Path, folder: Path | None) -> None:
    """Notes as objections the weights and data that the course does not allow."""
    root, name = submission.root, shown(submission.root, run)
    foreign, lost, began = [], [], {}
    for part in dict.fromkeys(_parts(run)):
        if (part / "config.json").is_file():
            sha = _recorded(part, "model", "sha256")
            began[sha] = part, _recorded(part, "model", "name")
            foreign += _foreign(root, part, folder)
        else:
            lost.append(part)
    for sha, (part, used) in began.items():
        if sha != weights.BERT_BASE.tensors.sha256:
            other = shown(root, part)
            submission.objections.append(
                f"{other} started from {used}: the course allows {weights.BERT_BASE.name} alone"
            )
    files = list(dict.fromkeys(shown(root, path) for path in foreign))
    if files:
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        submission.objections.append(f"{name} used data that is not the course's: {files[0]}{more}")
    for part in dict.fromkeys(shown(root, part) for part in lost):
        why = "which is not there any more, so what it was trained on is unknown"
        submission.objections.append(f"{name} is made of {part}, {why}: put it back")


def _parts(run: Path, known: tuple[Path, ...] = ()) -> Iterator[Path]:
    """A run and those that it averages, or that taught it, and theirs; also those not there any more.

    Raises InputError for a config.json that is no run's, or says this in a circle.
    """
    path = run / "config.json"
    if run in known:
        raise InputError(f"{path}: it is said to be made of itself: name another run")
    config = read_json(path) if path.is_file() else {}
    others = [config.get(name) or [] for name in ("members", "teachers")] if isinstance(config, dict) else None
    if others is None or not all(isinstance(each, list | dict) for each in others):
        raise InputError(f"{path}: no run's: run again, or name another run")
    yield run
    for other in (other for each in others for other in each):
        yield from _parts(Path(str(other)), (*known, run))


def _foreign(root: Path, run: Path, folder: Path | None) -> Iterator[Path]:
    """The data files of a run that are not the course's."""
    for task in _recorded(run, "data", kind=dict):
        for split in _recorded(run, "data", task, kind=dict):
            recorded = Path(_recorded(run, "data", task, split, "path"))
            path = folder / recorded.name if folder else root / recorded
            same = path.is_file() and sha256(path) == _recorded(run, "data", task, split, "sha256")
            if not same or not is_course_file(path):
                yield path


def remark_on_training(submission: Submission, run: Path) -> None:
    """Notes a run, or an ensemble's member, that was not trained, or on a part of its rows: easily forgotten."""
    for part in dict.fromkeys(_parts(run)):
        if not (part / "config.json").is_file():
            continue
        name, config = shown(submission.root, part), read_json(part / "config.json")
        options = config.get("options") if isinstance(config, dict) else None
        if isinstance(options, dict) and options.get("epochs") == 0:
            submission.remarks.append(f"{name} is untrained (--epochs 0)")
        for task, splits in _recorded(part, "data", kind=dict).items():
            train = splits.get("train") if isinstance(splits, dict) else None
            rows, of = (train.get("rows"), train.get("of")) if isinstance(train, dict) else (None, None)
            if isinstance(rows, int) and isinstance(of, int) and rows < of:
                submission.remarks.append(f"{name} was trained on {rows:,} of {of:,} rows of {task} (--fraction)")


def check_code(submission: Submission, paths: list[Path]) -> None:
    """Notes as an objection each import that the course does not allow, and all that its setup doesn't bring."""
    others: dict[str, list[str]] = {}  # package -> files that import it
    known = STARTER_PACKAGES | sys.stdlib_module_names | {path.stem for path in paths}
    for path in paths:
        try:
            tree = ast.parse(path.read_bytes(), filename=str(path))
        except (SyntaxError, ValueError) as error:
            submission.objections.append(f"{path.name} does not parse ({error}): correct it, or move it away")
            continue
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            for name in sorted({name.split(".")[0] for name in names} - known):
                if name in FORBIDDEN_IMPORTS:
                    submission.objections.append(f"{path.name}, line {node.lineno}: the course doesn't allow {name}")
                elif path.name not in others.setdefault(name, []):
                    others[name].append(path.name)
    if others:
        which = ", ".join(f"{name} ({', '.join(files)})" for name, files in sorted(others.items()))
        submission.remarks.append(
            f"the code imports what the course's setup.sh does not install: {which}; ask if in doubt"
        )


def remark_on_mixture(submission: Submission, chosen: dict[str, Path]) -> None:
    """Notes that predictions/ holds files of several runs, unless it was asked for."""
    runs: dict[Path | None, list[str]] = {}
    for name, run in submission.runs.items():
        if name not in chosen:
            runs.setdefault(run, []).append(name)
    if len(runs) > 1:
        root = submission.root
        which = "; ".join(f"{', '.join(n)} of {shown(root, run) if run else 'no known run'}" for run, n in runs.items())
        submission.remarks.append(f"predictions/ holds files of several runs: {which}")


def members(root: Path) -> list[Path]:
    """The top-level Python files, the report's templates that they read, and what stands in predictions/.

    Hidden files and folders are no part of a submission. Raises InputError for a link that leads out of the folder.
    """
    found = [*root.glob("*.py"), *(root / "templates").glob("*"), *(root / "predictions").glob("*")]
    paths = sorted(path for path in found if path.is_file() and not path.name.startswith("."))
    for path in paths:
        if not path.resolve().is_relative_to(root.resolve()):
            raise InputError(f"{shown(root, path)} leads out of {root}, to {path.resolve()}: put the file itself there")
    return paths


# --- the command -------------------------------------------------------------------------------------------------


def examine(root: Path, chosen: dict[str, Path], folder: Path | None) -> Submission:
    """Reads and checks everything; changes nothing."""
    submission = Submission(root)
    read_contents(root, chosen, submission)
    for task in SUBMITTED:
        for split in SPLITS:
            if task.predictions_file(split) in submission.contents:
                submission.attempt(check_predictions, submission, task, split, folder)
    for run in dict.fromkeys(run for run in submission.runs.values() if run):
        submission.attempt(check_rules, submission, run, folder)
        submission.attempt(remark_on_training, submission, run)
    unknown = [name for name, run in submission.runs.items() if run is None]
    if unknown and not submission.errors:
        which = ", ".join(unknown)
        submission.objections.append(
            f"no run in runs/ predicted both files of {which}, so the weights and data used are unknown: "
            f"name the run with --{unknown[0]}"
        )
    remark_on_mixture(submission, chosen)
    paths = submission.attempt(members, root) or []
    check_code(submission, [path for path in paths if path.suffix == ".py" and path.parent == root])
    return submission


def write_archive(root: Path) -> int:
    """Writes the zip, whole or not at all, the same bytes for the same files; returns the number of members."""
    named = {path.relative_to(root).as_posix(): path for path in members(root)}
    with atomic_write(root / ARCHIVE, "wb") as file, zipfile.ZipFile(file, "w") as archive:
        for name in sorted(named):
            # A fixed date and mode, and no compression, whose bytes depend on the library's version.
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system = 3
            info.external_attr = 0o644 << 16
            archive.writestr(info, named[name].read_bytes())
    return len(named)


def describe(submission: Submission) -> None:
    """Prints where the predictions come from and what score to expect."""
    for name, run in submission.runs.items():
        found = any(f"{name}-" in file for file in submission.contents)
        unknown = "predictions/, of no known run" if found else "nothing to zip yet"
        tell(f"{name:<5} {shown(submission.root, run) if run else unknown}")
    if len(submission.scores) < len(SUBMITTED):
        return
    tell(f"\n{'':<22}{'metric':<10}{'dev':>9}{'poster, test':>14}")
    for task in SUBMITTED:
        score = submission.scores[task.name]
        text = "undefined" if score is None else f"{score:.3f}"
        tell(f"{task.title:<22}{task.metric:<10}{text:>9}{SUBMISSION[task.name][task.metric]:>14.3f}")
    expected = leaderboard_score(submission.scores)
    tell(f"{'leaderboard score':<32}{expected:>9.3f}{SUBMISSION_SCORE:>14.3f}\n")


def prepare(root: Path, chosen: dict[str, str], folder: Path | None, force: bool) -> None:
    """The whole command below `root`. Raises InputError, after printing what is wrong, where nothing is zipped."""
    runs = {name: Run.open(run, root).folder for name, run in chosen.items()}
    submission = examine(root, runs, folder)
    describe(submission)
    for line in submission.remarks:
        tell(f"note: {line}")
    for line in submission.errors:
        warn(f"error: {line}")
    for line in [] if force else submission.objections:
        warn(f"objection: {line}")
    old = " (the one there is from before)" if (root / ARCHIVE).exists() else ""
    if submission.errors:
        raise InputError(f"{ARCHIVE} was not written{old}: a submission with these faults is lost: correct them first")
    if submission.objections and not force:
        raise InputError(f"{ARCHIVE} was not written{old}: --force writes it in spite of the objections")
    for line in submission.objections:
        warn(f"warning: {line}")
    names = [task.predictions_file(split) for task in SUBMITTED if task.name in runs for split in SPLITS]
    contents = {root / "predictions" / name: submission.contents[name] for name in names}
    aside = set_aside(contents, root)
    atomic_write_all(aside | contents)
    if aside:
        tell(f"note: {describe_aside(aside)}")
    count = write_archive(root)
    tell(f"wrote {ARCHIVE}: {count} files, SHA-256 {sha256(root / ARCHIVE)[:12]}")


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        description="Check the six prediction files and zip them with the code for the course's leaderboard."
    )
    for task in SUBMITTED:
        parser.add_argument(
            f"--{task.name}",
            type=text_given,
            metavar="RUN",
            help=f"take {task.title} from this run (default: what predictions/ holds)",
        )
    parser.add_argument("--data", type=path_given, help="folder of the data files (default: those that the runs used)")
    parser.add_argument(
        "--force", action="store_true", help="zip also what the course may not allow; never what is missing or wrong"
    )
    args = parser.parse_args(arguments)
    chosen = {task.name: getattr(args, task.name) for task in SUBMITTED if getattr(args, task.name)}
    try:
        prepare(root, chosen, args.data, args.force)
    except (InputError, OSError) as error:
        return refuse(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
