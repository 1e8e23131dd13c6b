"""The course's own data files: what they are called, how a copy is recognised, and when they are what a command reads.

Follows the public starter gpoesia/minbert-default-final-project at commit 7ac8260; git names a file by the SHA-1 of
"blob <size>\\0" and its bytes, so a copy can be checked without fetching it again.
"""

import filecmp
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from errors import InputError
from files import cannot, sha256

REPOSITORY = "github.com/gpoesia/minbert-default-final-project"
COMMIT = "7ac8260577fc12a86c7aaf38918056c30054ef39"
ADDRESS = f"https://raw.githubusercontent.com/gpoesia/minbert-default-final-project/{COMMIT}/data"
DATA = Path(__file__).resolve().parent / "data"
BLOBS = {
    "ids-sst-train.csv": "9cb7333cb1dae49c2bd2a4b56a24882a6e8704b5",
    "ids-sst-dev.csv": "3171aa629a340809d2db4a50df8f6e5ec9420ab0",
    "ids-sst-test-student.csv": "bbd2313758825f86e24416d6aad64cd93370cf7a",
    "ids-cfimdb-train.csv": "cd57bcbd2f7214ea6dd1783d3e885d324b1f478d",
    "ids-cfimdb-dev.csv": "8a0f5dcf3d40189b96c801a12cd79bf8003e61de",
    "ids-cfimdb-test-student.csv": "1e789c709b3ca0511f027a309b6d8bd21cde41b2",
    "quora-train.csv": "a3b5546f6a0e65b60a328a5d294d1038f5bed1da",
    "quora-dev.csv": "de7cfa32428fd470b93f778fccc45a619e01336f",
    "quora-test-student.csv": "f257ef00558555afb50819578a58205732b16354",
    "sts-train.csv": "12b17760e7795fee35aeeabc290d5651de02622a",
    "sts-dev.csv": "9392860e584717976b8d817cc40c9e6ceeec27e0",
    "sts-test-student.csv": "25f0cf8fafdd1f82b9e2bb460c708af34341ce60",
}


def blob_id(path: str | os.PathLike) -> str:
    """The name git gives to a file's content, 40 hex digits. Raises InputError where it can't be read."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise cannot("read", path, error) from error
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def is_course_file(path: str | os.PathLike) -> bool:
    """Whether the file is one of the course's, byte for byte, whatever it is called here."""
    return blob_id(path) in BLOBS.values()


def choose_data(data: Path | None = None) -> tuple[Path, str]:
    """The folder a command reads its data from, and why: the one asked for, else the course's files, else the sample.

    data/ with any of the course's training files in it counts as theirs, so that a missing one is named. Raises
    InputError for a folder that isn't there.
    """
    if data is not None:
        if not data.is_dir():
            raise InputError(f"{data}: no such folder; name the one that holds the CSV files, or leave it out")
        return data, "asked for"
    if any((DATA / name).is_file() for name in BLOBS if name.endswith("-train.csv")):
        return DATA, "the course's files stand there"
    return DATA / "sample", "the bundled sample, since the course's files are not in data/"


def refuse_mixture(paths: Iterable[str | os.PathLike]) -> None:
    """Raises InputError unless the files of one run are one set.

    None may be missing in data/, and the bundled sample's, or copies of them, don't go with the course's.
    """
    # The folder is resolved, as DATA is, but not the file, which may be a link to one elsewhere.
    paths = [Path(path).parent.resolve() / Path(path).name for path in paths]
    absent = [path.name for path in paths if path.parent == DATA and path.name in BLOBS and not path.is_file()]
    if absent:
        raise InputError(
            f"{DATA} has other files of the course, but not {', '.join(absent)}: run ./setup.sh --full, which fetches "
            "them, or take the bundled sample with --data data/sample"
        )
    files = [path for path in paths if path.is_file()]  # whoever reads one that is gone says so
    samples = [path for path in files if _is_sample(path)]
    others = [path for path in files if path not in samples and (path.parent == DATA or is_course_file(path))]
    if samples and others:
        raise InputError(
            f"{samples[0]} is the bundled sample's, and {others[0]} is not: scores of a mixture would mean nothing: "
            "run ./setup.sh --full for the course's files, or take the sample alone with --data data/sample"
        )


def was_sample(file: dict) -> bool:
    """Whether a file, as config.json has it, {"path": ..., "sha256": ...}, is one of the bundled sample's."""
    sample = DATA / "sample" / Path(file["path"]).name
    return sample.is_file() and sha256(sample) == file["sha256"]


def _is_sample(path: Path) -> bool:
    sample = DATA / "sample" / path.name
    return sample.is_file() and filecmp.cmp(path, sample, shallow=False)
