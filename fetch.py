"""Fetch bert-base-uncased and the course's data, and make them the default: what `./setup.sh --full` runs.

Follows the lists of files and hashes in weights.py and course_data.py. Nothing takes its name before everything is
there and fits its hash, so that half of it is never used.

    python fetch.py [data|weights]    both, unless one is named
"""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import startup  # noqa: F401  # isort: skip: before what may be missing

import course_data
import weights
from download import AGAIN, Download, say
from errors import InputError
from files import cannot, make_folder, sha256, sync_folder
from weights import short


class Changed(InputError):
    """A file of the user's own stands where a fetched one belongs."""


@dataclass(frozen=True)
class Wanted:
    """A file to fetch: its name, its size where that is pinned, its hash, and the function that computes the hash."""

    name: str
    size: int | None
    digest: str
    compute: Callable[[Path], str]


@dataclass(frozen=True)
class Group:
    """Files that become the default together.

    They wait in `staging`, beside `folder`, and take their names in the order of `files`. request: file name -> address
    and headers. mirror: the environment variable that names another address. vouched: whether somebody already knows
    that all of them are in place.
    """

    name: str
    title: str
    folder: Path
    staging: Path
    files: tuple[Wanted, ...]
    request: Callable[[str], tuple[str, dict[str, str]]]
    mirror: str
    by_hand: str
    vouched: Callable[[], bool]

    def missing(self) -> list[Wanted]:
        """The files that are not in place. Raises Changed for one that is there but isn't the one wanted."""
        return [] if self.vouched() else [file for file in self.files if not self._stands(file)]

    def _stands(self, file: Wanted) -> bool:
        path = self.folder / file.name
        if not os.path.lexists(path):
            return False
        found = file.compute(path)
        if found != file.digest:
            raise Changed(
                f"{short(path)} is not the one of {self.title} (hash {found[:12]}..., wanted {file.digest[:12]}...) "
                f"and stays as it is: move it away and {AGAIN}, or fetch the other half alone with "
                "`python fetch.py data` or `python fetch.py weights`"
            )
        return True

    def part(self, file: Wanted) -> Path:
        """Where a file waits. The hash in its name keeps what belongs to another revision apart."""
        return self.staging / f"{file.name}.{file.digest[:12]}.part"

    def download(self, file: Wanted) -> Download:
        return Download(file.name, self.part(file), file.size, file.digest, file.compute, self.mirror)


def weights_group() -> Group:
    """bert-base-uncased at its pinned revision, from the hub."""
    known = weights.BERT_BASE

    def request(name: str) -> tuple[str, dict[str, str]]:
        from huggingface_hub import hf_hub_url

        # The weights are public, and a token of an old login would be refused: only one named on purpose is sent. The
        # library's own headers are left out because making them asks the hub about its clients first.
        token = os.environ.get("HF_TOKEN")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return hf_hub_url(known.hub, name, revision=known.revision), headers

    def vouched() -> bool:
        # weights.py leaves a stamp, which saves hashing 440 MB at each call.
        with suppress(InputError):
            return weights.find(known.name).verified
        return False

    # What makes these weights the default, model.safetensors, takes its name last.
    files = sorted(known.files, key=lambda file: file.name == weights.SAFETENSORS)
    names = ", ".join(file.name for file in files)
    return Group(
        name="weights",
        title=known.name,
        folder=known.folder,
        staging=weights.WEIGHTS / ".incoming",
        files=tuple(Wanted(file.name, file.size, file.sha256, sha256) for file in files),
        request=request,
        mirror="HF_ENDPOINT",
        by_hand=f"{names} of {known.hub} at revision {known.revision} belong in {short(known.folder)}",
        vouched=vouched,
    )


def data_group() -> Group:
    """The course's files at the pinned commit."""
    folder = os.environ.get("MINBERT_DATA_URL") or course_data.ADDRESS
    return Group(
        name="data",
        title="the course's data",
        folder=course_data.DATA,
        staging=course_data.DATA / ".incoming",
        files=tuple(Wanted(name, None, blob, course_data.blob_id) for name, blob in course_data.BLOBS.items()),
        request=lambda name: (f"{folder.rstrip('/')}/{name}", {}),
        mirror="MINBERT_DATA_URL",
        by_hand=f"the CSV files in data/ of {course_data.REPOSITORY} at commit {course_data.COMMIT} belong in "
        f"{short(course_data.DATA)}",
        vouched=lambda: False,
    )


# The small ones first, so that a network without the internet is found out soon.
GROUPS = {"data": data_group, "weights": weights_group}


def missing(groups: list[Group]) -> list[tuple[Group, Wanted]]:
    """All that is not in place. Raises Changed for a file that is there but isn't the one wanted."""
    return [(group, file) for group in groups for file in group.missing()]


def fetch(groups: list[Group]) -> None:
    """Puts what is missing of the groups in place, all of it or nothing.

    Raises InputError where something can't be had, and Changed where a user's own file stands. Then nothing that was
    used before has changed, and the next call goes on from what arrived.
    """
    if missing(groups):
        from huggingface_hub import is_offline_mode

        if is_offline_mode():
            raise InputError("HF_HUB_OFFLINE is set, so nothing can be fetched: unset it")
        with alone():
            # Asked again, since whoever was at work before may have fetched it.
            for group, file in missing(groups):
                group.download(file).run(*group.request(file.name))
            # And again, since a user may have lost patience and put files there by hand.
            put_in_place(missing(groups))
    for group in groups:
        shutil.rmtree(group.staging, ignore_errors=True)
        group.vouched()  # has the stamp written
        say(f"{group.title} in {short(group.folder)}: in place, {len(group.files)} files with the right hash")


@contextmanager
def alone() -> Iterator[None]:
    """Keeps a second fetch waiting: two that append to one file would both have to begin again."""
    from huggingface_hub.utils import WeakFileLock

    path = weights.WEIGHTS / ".fetch.lock"
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(WeakFileLock(path, timeout=0.1))
            except TimeoutError:
                say("another fetch is at work here: waiting for it")
                stack.enter_context(WeakFileLock(path))
        except OSError as error:
            raise cannot("write", path, error) from error
        yield


def put_in_place(files: list[tuple[Group, Wanted]]) -> None:
    """Gives every file its name, or none: where one can't have it, those before it go back to wait."""
    moves = [(group.part(file), group.folder / file.name) for group, file in files]
    try:
        for part, path in moves:
            make_folder(path.parent)
            os.replace(part, path)
            sync_folder(path.parent)
    except BaseException as error:
        for part, path in moves:
            if not part.exists():
                os.replace(path, part)
            with suppress(OSError):  # which is what a folder that isn't empty answers
                path.parent.rmdir()
        if isinstance(error, OSError):
            raise cannot("write", path, error) from error
        raise


def explain(groups: list[Group]) -> None:
    """After a failure: what stands, what goes on from where, and how to do without a network."""
    say("nothing has changed for runs, and what arrived is kept: the next call goes on from there")
    for group in groups:
        left = group.missing()
        if left and all(group.download(file).arrived() for file in left):
            say(f"{group.title} has arrived: `python fetch.py {group.name}` puts it in place without the rest")
        elif left:
            say(f"by hand: {group.by_hand}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Fetch bert-base-uncased and the course's data, and make them the default.",
        epilog="HF_ENDPOINT and MINBERT_DATA_URL name mirrors of the hub and of the folder with the course's files.",
    )
    parser.add_argument("only", nargs="?", choices=list(GROUPS), help="fetch only these (default: both)")
    only = parser.parse_args(arguments).only
    groups = [make() for name, make in GROUPS.items() if only in (None, name)]
    try:
        fetch(groups)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        if not isinstance(error, Changed):
            explain(groups)
        return 1
    except KeyboardInterrupt:
        say(f"stopped: nothing has changed for runs, and what arrived is kept: to go on, {AGAIN}")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
