"""Fetch bert-base-uncased and the course's data, and make them the default: what `./setup.sh --full` runs.

Follows the lists of files and hashes in weights.py and course_data.py. Nothing takes its name before everything is
there and fits its hash, so that half of it is never used.

    python fetch.py [data|weights]    both, unless one is named
    python fetch.py OWNER/NAME        another BERT of the hub, for --model OWNER/NAME
"""

import argparse
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import startup  # noqa: F401  # isort: skip: before what may be missing

import course_data
import weights
from console import warn
from download import AGAIN, Download, check_hub, connections, remove, say
from errors import InputError, quoted
from files import cannot, make_folder, sha256, short, sync_folder

HALVES = ", or fetch the other half alone with `python fetch.py data` or `python fetch.py weights`"
# Of a model on the hub: what is needed, of two that say the same the first.
TENSORS, VOCABULARY = (weights.SAFETENSORS, weights.PICKLED), ("tokenizer.json", "vocab.txt")
# What is read besides, where it is there: the tokenizer's settings, and what a sentence model says of its pooling (see
# sentence_layout.py). Of a module with weights of its own, which nothing here reads, its config is what refuses it.
BESIDE = re.compile(r"vocab\.txt|tokenizer_config\.json|modules\.json|[0-9]+_\w+/config\.json", re.ASCII)


class Changed(InputError):
    """Something of the user's own stands where a fetched file belongs."""


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
    that all of them are in place. command: what fetches these alone. again: what to do to go on after a failure.
    is_default: whether runs take them without being told to.
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
    command: str
    again: str = AGAIN
    is_default: bool = True

    def missing(self) -> list[Wanted]:
        """The files that are not in place. Raises Changed for one that is there but isn't the one wanted."""
        return [] if self.vouched() else [file for file in self.files if not self._stands(file)]

    def _stands(self, file: Wanted) -> bool:
        path = self.folder / file.name
        if not os.path.lexists(path):
            return False
        if not path.is_file():
            found = f"is no file, where one of {self.title} belongs,"
        elif (digest := file.compute(path)) != file.digest:
            found = f"is not the one of {self.title} (hash {digest[:12]}..., wanted {file.digest[:12]}...)"
        else:
            return True
        remedy = f"move it away and {self.again}" + (HALVES if self.is_default else "")
        raise Changed(f"{short(path)} {found} and stays as it is: {remedy}")

    def part(self, file: Wanted) -> Path:
        """Where a file waits. The hash in its name keeps what belongs to another revision apart."""
        return self.staging / f"{file.name.replace('/', '--')}.{file.digest[:12]}.part"

    def download(self, file: Wanted) -> Download:
        return Download(file.name, self.part(file), file.size, file.digest, file.compute, self.mirror, self.again)


def typed(only: str, revision: str | None = None) -> str:
    """The command that fetches this alone."""
    return shlex.join(["python", "fetch.py", only, *(["--revision", revision] if revision else [])])


def to_go_on(only: str | None, revision: str | None = None) -> str:
    """What to do to go on after a failure of that command; None stands for both halves."""
    return f"run `{typed(only, revision)}` again" if only else AGAIN


def hub_request(repository: str, revision: str, name: str) -> tuple[str, dict[str, str]]:
    """Address and headers of a file on the hub."""
    from huggingface_hub import hf_hub_url

    # Most weights are public, and a token of an old login would be refused: only one named on purpose is sent. The
    # library's own headers are left out because making them asks the hub about its clients first.
    token = os.environ.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return hf_hub_url(repository, name, revision=revision), headers


def weights_group() -> Group:
    """bert-base-uncased at its pinned revision, from the hub."""
    known = weights.BERT_BASE

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
        request=lambda name: hub_request(known.hub, known.revision, name),
        mirror="HF_ENDPOINT",
        by_hand=f"{names} of {known.hub} at revision {known.revision} belong in {short(known.folder)}",
        vouched=vouched,
        command=typed("weights"),
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
        command=typed("data"),
    )


def hub_group(repository: str, revision: str | None = None) -> Group:
    """Any BERT of the hub, by its name there, at a revision (None: the newest), with the hashes that the hub tells.

    Raises InputError where there is no such model, where it is no BERT, and where it has not the files that are read.
    """
    info = _hub_info(repository, revision)
    kind = (info.config or {}).get("model_type", "bert")
    if kind != "bert":
        raise InputError(f"{repository} is a {kind} model, wanted a bert one: choose a BERT checkpoint")
    there = {file.rfilename: file for file in info.siblings or ()}
    if f"{weights.SAFETENSORS}.index.json" in there and weights.SAFETENSORS not in there:
        raise InputError(f"{repository}: its weights are split over several files: choose one with {TENSORS[0]}")
    chosen = ["config.json"]
    for what in (VOCABULARY, TENSORS):
        chosen.append(next((name for name in what if name in there), what[0]))
    for name in chosen:
        if name not in there:
            raise InputError(f"{repository} has no {name}, so it can't be read: choose another BERT checkpoint")
    # The tensors take their name last: a folder with them is whole.
    chosen[2:2] = sorted(name for name in there if BESIDE.fullmatch(name) and name not in chosen)
    files = []
    for name in chosen:
        file = there[name]
        if file.lfs is not None:
            files.append(Wanted(name, file.lfs.size, file.lfs.sha256, sha256))
        else:
            files.append(Wanted(name, file.size, file.blob_id, course_data.blob_id))
    folder = weights.hub_folder(repository)
    return Group(
        name=repository,
        title=f"{repository}, revision {info.sha[:7]},",
        folder=folder,
        staging=weights.WEIGHTS / ".incoming",
        files=tuple(files),
        request=lambda name: hub_request(repository, info.sha, name),
        mirror="HF_ENDPOINT",
        by_hand=f"{', '.join(chosen)} of {repository} at revision {info.sha} belong in {short(folder)}",
        vouched=lambda: False,
        command=typed(repository, revision),
        again=to_go_on(repository, revision),
        is_default=False,
    )


def _hub_info(repository: str, revision: str | None):
    """What the hub says of a model. Raises InputError where it doesn't, with its reason."""
    import httpx2

    connections()
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    absent = f"{repository}: the hub has no such model, or it is private: check its name"
    try:
        token = os.environ.get("HF_TOKEN") or False  # see hub_request
        return HfApi().model_info(repository, revision=revision, files_metadata=True, token=token, timeout=30)
    except OfflineModeIsEnabled as error:
        raise InputError("HF_HUB_OFFLINE is set, so nothing can be fetched: unset it") from error
    except GatedRepoError as error:
        raise InputError(f"{repository} wants its terms accepted: do so on the hub, and set HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise InputError(f"{repository} has no revision {revision}: leave --revision out for the newest") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise InputError(absent) from error
    except httpx2.InvalidURL as error:
        found = quoted(os.environ.get("HF_ENDPOINT", ""))
        raise InputError(f"HF_ENDPOINT is {found}, no address ({error}): correct or unset that variable") from error
    except (HfHubHTTPError, httpx2.HTTPError, OSError, ValueError) as error:
        if getattr(getattr(error, "response", None), "status_code", None) in (401, 404):  # said without the hub's code
            raise InputError(absent) from error
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(
            f"{repository}: the hub gave no answer ({reason}): check the connection and "
            f"{to_go_on(repository, revision)}, or name a mirror in the variable HF_ENDPOINT"
        ) from error


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
        check_hub()
        from huggingface_hub import is_offline_mode

        if is_offline_mode():
            raise InputError("HF_HUB_OFFLINE is set, so nothing can be fetched: unset it")
        with alone():
            # Asked again, since whoever was at work before may have fetched it.
            for group, file in missing(groups):
                group.download(file).run(*group.request(file.name))
            # And again, since a user may have lost patience and put files there by hand.
            put_in_place(missing(groups))
            clear(groups)
    elif any(group.part(file).exists() for group in groups for file in group.files):
        with suppress(InputError):  # on a disk that can't be written to it stays, and does no harm
            check_hub()
            with alone():
                clear(groups)
    for group in groups:
        group.vouched()  # has the stamp written
        use = "" if group.is_default else f"; --model {group.name} takes it"
        say(f"{group.title} in {short(group.folder)}: in place, {len(group.files)} files with the right hash{use}")


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
    """Gives every file its name, or none: where one can't have it, those before it go back to wait.

    What can't go back, either, stays, which the error says: it is the right file, and the next call takes it so.
    """
    moves = [(group.part(file), group.folder / file.name) for group, file in files]
    try:
        for part, path in moves:
            make_folder(path.parent)
            os.replace(part, path)
            sync_folder(path.parent)
    except BaseException as error:
        stuck = []
        for part, moved in moves:
            if not part.exists():
                try:
                    os.replace(moved, part)
                except OSError:
                    stuck.append(short(moved))
            with suppress(OSError):  # which is what a folder that isn't empty answers
                moved.parent.rmdir()
        if isinstance(error, OSError):
            refusal = cannot("write", path, error)
            there = f"; in place already, and right: {', '.join(stuck)}" if stuck else ""
            raise type(refusal)(f"{refusal}{there}") from error
        raise


def clear(groups: list[Group]) -> None:
    """Deletes what waits of files that are in place. What arrived of other models, which wait there, too, stays."""
    for group in groups:
        for file in group.files:
            remove(group.part(file))
        with suppress(OSError):  # which is what a folder that isn't empty answers
            group.staging.rmdir()


def explain(groups: list[Group]) -> None:
    """After a failure: what stands, what goes on from where, and how to do without a network."""
    if not groups:
        return
    say("nothing has changed for runs, and what arrived is kept: the next call goes on from there")
    for group in groups:
        with suppress(InputError):  # what can't be read, of which that very failure may have told
            left = group.missing()
            if left and all(group.download(file).arrived() for file in left):
                say(f"{group.title} has arrived: `{group.command}` puts it in place without the rest")
            elif left:
                say(f"by hand: {group.by_hand}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Fetch bert-base-uncased and the course's data, and make them the default.",
        epilog="HF_ENDPOINT and MINBERT_DATA_URL name mirrors of the hub and of the folder with the course's files.",
    )
    parser.add_argument(
        "only",
        nargs="?",
        metavar="{data,weights,OWNER/NAME}",
        help="fetch only these (default: both), or this BERT of the hub, which --model OWNER/NAME then finds",
    )
    parser.add_argument("--revision", metavar="R", help="of OWNER/NAME, a commit, branch or tag (default: the newest)")
    args = parser.parse_args(arguments)
    only, groups = args.only, []
    hub = only is not None and weights.is_hub_name(only)
    if only is not None and only not in GROUPS and not hub:
        parser.error(f"{only!r}: wanted {', '.join(GROUPS)}, or a model of the hub as OWNER/NAME")
    pinned = next((known.revision for known in weights.KNOWN.values() if known.hub == only), None)
    if args.revision is not None:
        if not hub:
            parser.error("--revision goes with OWNER/NAME: the others are pinned")
        if pinned:
            parser.error(f"--revision {args.revision}: {only} is pinned to revision {pinned[:7]}: leave it out")
        if not args.revision:
            parser.error("--revision is empty, wanted a commit, branch or tag: leave it out for the newest")
    again = to_go_on(only, args.revision)
    try:
        if only == weights.MINILM.hub:
            raise InputError(f"{only} comes with the environment: run ./setup.sh")
        if hub and only != weights.BERT_BASE.hub:
            groups = [hub_group(only, args.revision)]
        else:
            wanted = "weights" if hub else only
            groups = [replace(make(), again=again) for name, make in GROUPS.items() if wanted in (None, name)]
        fetch(groups)
    except InputError as error:
        warn(f"error: {error}")
        if not isinstance(error, Changed):
            explain(groups)
        return 1
    except KeyboardInterrupt:
        say(f"stopped: nothing has changed for runs, and what arrived is kept: to go on, {again}")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
