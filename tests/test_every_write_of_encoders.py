"""As test_every_write.py, of contrastive training and of an index to search."""

import errno
import json
import os
import re
import shutil
from itertools import count

import pytest
import torch
from failing_calls import WriteCalls
from test_contrastive_training import command, files, train  # noqa: F401
from word_encoder import WordEncoder

import contrastive
import search_index
from files import CannotWrite
from search_data import open_corpus
from search_index import SearchIndex, build

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc, which names what is open")
OPTIONS = ("--pooler", "cls", "--epochs", 1)


def timed(name):
    """Whether a file has times in it, or is a lock's, which holds nobody up."""
    return name in ("config.json", ".lock") or "report.html" in name


def outcome(run):
    """All files of a finished run, its rows without seconds, and without those that are `timed`."""
    found = {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    rows = [{**json.loads(row), "train_seconds": None} for row in found.pop("metrics.jsonl").splitlines()]
    return {**{name: content for name, content in found.items() if not timed(name)}, "rows": rows}


def test_every_write_of_contrastive_training(files, monkeypatch, capsys):  # noqa: F811
    """Each file that is opened, synced or named, where it last is."""
    monkeypatch.chdir(files)
    run, counted = files / "run", WriteCalls(files, None, errno.ENOSPC)
    with monkeypatch.context() as patch:
        counted.install(patch)
        assert train(files, *OPTIONS) == 0
    wanted = outcome(run)
    names = [re.sub(r"\.[0-9a-f]{12}\.tmp", "", what) for what in counted.what]
    last = {what: number for number, what in enumerate(names) if re.match("open |fsync |replace ", what)}
    assert len(last) > 25
    for number in sorted(last.values()):
        shutil.rmtree(run)
        calls = WriteCalls(files, number, errno.ENOSPC)
        capsys.readouterr()
        with monkeypatch.context() as patch:
            calls.install(patch)
            code = train(files, *OPTIONS)
        said, begun = capsys.readouterr(), (run / "config.json").is_file()
        if "report.html" in names[number] or code == 0:  # a run is finished without its page
            assert code == 0 and "no report" in said.out and outcome(run) == wanted, names[number]
            continue
        error = said.err
        assert code == 1 and error.startswith("error: cannot write ") and error.count("\n") == 1, names[number]
        assert error.endswith("contrastive.py train --resume run\n") == begun and not list(files.rglob("*.tmp"))
        torch.manual_seed(999)
        code = contrastive.main(["train", "--resume", "run"]) if begun else train(files, *OPTIONS)
        assert code == 0 and outcome(run) == wanted, names[number]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_every_write_of_an_index(tmp_path, monkeypatch, code):
    monkeypatch.setattr(search_index, "AT_ONCE", 2)
    (tmp_path / "corpus.txt").write_text("".join(f"word{i} and more\n" for i in range(5)))
    corpus, contents = open_corpus(tmp_path / "corpus.txt"), []
    for number in count():
        folder = tmp_path / str(number)
        calls = WriteCalls(folder.parent, number, code)
        with monkeypatch.context() as patch:
            calls.install(patch)
            try:
                build(folder, corpus, WordEncoder())
            except CannotWrite as error:
                assert str(error).startswith(f"cannot write {folder}") and os.strerror(code) in str(error)
            else:
                assert len(calls.what) <= number or calls.what[number] == "unlink .lock"
        build(folder, corpus, WordEncoder())
        assert len(SearchIndex.open(folder)) == 5
        contents.append({path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"})
        if len(calls.what) <= number:
            break
    assert number > 40 and all(content == contents[-1] for content in contents)
