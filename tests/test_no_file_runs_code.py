"""No file that a command opens can run code: a malicious pickle is put in the place of every one of them in turn.

Which files those are is what Python's own audit events say (PEP 578), so that a file opened by new code is tried, too.
Each of them is also damaged, or gone, of which the command says a line.
"""

import ast
import io
import os
import pickle
import re
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import write_rows
from hypothesis import settings
from mutations import write
from safetensors.torch import load_file

import comparison
import contrastive
import contrastive_training
import course_data
import data_check
import ensemble
import export
import members
import multitask_classifier
import options
import predict
import prepare_submit
import report
import result_row
from training import Trainer

REPOSITORY = Path(multitask_classifier.__file__).parent
WATCH = {"opened": None, "pickles": []}


def audit(event, arguments):
    if WATCH["opened"] is None:
        return
    if event == "open" and isinstance(arguments[0], str):
        WATCH["opened"].append(arguments[0])
    elif event in ("pickle.find_class", "os.system", "os.exec"):
        WATCH["pickles"].append((event, arguments))


sys.addaudithook(audit)  # which nothing can take away again: it is idle while nobody watches


class Malicious:
    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def payloads(marker):
    """kind -> bytes that make the folder `marker` when whoever reads them unpickles."""
    bomb, array = Malicious(marker), np.array([Malicious(marker)], dtype=object)
    buffers = {kind: io.BytesIO() for kind in ("npy", "npz", "torch", "torch legacy", "zip")}
    np.save(buffers["npy"], array, allow_pickle=True)
    np.savez(buffers["npz"], array)
    torch.save({"a": bomb}, buffers["torch"])
    torch.save({"a": bomb}, buffers["torch legacy"], _use_new_zipfile_serialization=False)
    with zipfile.ZipFile(buffers["zip"], "w") as archive:
        archive.writestr(f"../{Path(marker).name}/x", b"x")
        archive.writestr("data.pkl", pickle.dumps(bomb))
    return {
        "pickle": pickle.dumps(bomb, protocol=2),
        "pickle in text": pickle.dumps(bomb, protocol=0),
        **{kind: buffer.getvalue() for kind, buffer in buffers.items()},
    }


@pytest.fixture(scope="module")
def root(tmp_path_factory, tiny_folder):
    """A repository of its own with runs, an index, similarity sets and rows: something of everything that is opened."""
    root = tmp_path_factory.mktemp("pickles")
    write_rows(root / "data" / "sample")
    (root / "data" / "sample" / "SICK_test_annotated.txt").write_text(
        "pair_ID\tsentence_A\tsentence_B\trelatedness_score\n1\ta film\tthe film\t4.5\n2\ta cat\twhy\t1.2\n"
    )
    sst = root / "data" / "sample" / "ids-sst-train.csv"
    header, *rows = sst.read_text().splitlines()
    again = [re.sub(r"^([^\t]*)\t([^\t]*)", r"\1\t\2again", row) for row in rows]  # two of each class
    sst.write_text("".join(f"{line}\n" for line in (header, *rows, *again)))
    shutil.copytree(tiny_folder, root / "tiny")
    shutil.copytree(tiny_folder, root / "pickled")
    (root / "pickled" / "model.safetensors").unlink()
    torch.save(load_file(root / "tiny" / "model.safetensors"), root / "pickled" / "pytorch_model.bin")
    (root / "corpus.csv").write_text("_id,text\n1,a film\n2,a cat\n")
    (root / "queries.jsonl").write_text('{"_id": "1", "text": "a film"}\n')
    (root / "beir" / "qrels").mkdir(parents=True)
    (root / "beir" / "corpus.jsonl").write_text('{"_id": "1", "text": "a film"}\n{"_id": "2", "text": "a cat"}\n')
    (root / "beir" / "queries.jsonl").write_text('{"_id": "1", "text": "a film"}\n')
    (root / "beir" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\t1\t1\n")
    (root / "triples.csv").write_text("sent0,sent1,hard_neg\na film,the film,a cat\nwhy,who,a dog\n")
    (root / "texts.csv").write_text("sentence\na film\n")
    with pytest.MonkeyPatch.context() as patch:
        for module in (
            multitask_classifier,
            options,
            contrastive_training,
            result_row,
            prepare_submit,
            predict,
            ensemble,
            members,
        ):
            patch.setattr(module, "ROOT", root)
        patch.setattr(multitask_classifier, "CACHE", root / "cache")
        for module in (multitask_classifier, contrastive_training, ensemble):  # report.py is a command of its own
            patch.setattr(module, "write_page", lambda folder, say: None)
        patch.setattr(course_data, "DATA", root / "data")
        patch.chdir(root)
        multitask = [*TRAIN, "--epochs", "1", "--option", "finetune", "--attention", "0"]
        assert multitask_classifier.main([*multitask, "--run", "runs/done"]) == 0
        assert multitask_classifier.main([*multitask, "--seed", "7", "--run", "runs/twin"]) == 0
        assert contrastive.main([*SENTENCES, "--run", "runs/encoder"]) == 0
        assert contrastive.main(INDEX) == 0

        def stop(trainer, say, real=Trainer._train_epoch):
            real(trainer, say)
            trainer.interrupted = True

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Trainer, "_train_epoch", stop)
            assert multitask_classifier.main([*multitask, "--run", "runs/stopped"]) == 130
        yield root


TRAIN = ["--model", "tiny", "--batch_size", "4", "--device", "cpu"]
SENTENCES = ["train", *TRAIN, "--mode", "sup", "--train", "triples.csv", "--epochs", "1", "--max_length", "8"]
INDEX = ["search", "index", "corpus.csv", "--index", "index", "--model", "runs/encoder", "--device", "cpu"]
COMMANDS = {
    "train": lambda: multitask_classifier.main([*TRAIN, "--epochs", "0", "--run", "runs/new"]),
    "train from a pickle": lambda: multitask_classifier.main(
        [*TRAIN, "--model", "pickled", "--tasks", "sst", "--option", "finetune", "--epochs", "0", "--run", "runs/new"]
    ),
    "resume": lambda: multitask_classifier.main(["--resume", "runs/new"]),
    "row": lambda: result_row.main(["runs/done"]),
    "report": lambda: report.main(["runs/done"]),
    "errors": lambda: comparison.main(["errors", "runs/done"]),
    "average": lambda: multitask_classifier.main(["--ensemble", "runs/done", "runs/twin", "--run", "runs/new"]),
    "submit": lambda: prepare_submit.main(["--sst", "runs/done", "--para", "runs/done", "--force"], Path.cwd()),
    "check": lambda: data_check.main(["--model", "tiny"]),
    "predict": lambda: predict.main(["--tasks", "sst", "--input", "texts.csv", "--output", "answers.csv", "runs/done"]),
    "export": lambda: export.main(["runs/done", "exported"]),
    "contrast": lambda: contrastive.main([*SENTENCES, "--exclude", "data/sample/sts-dev.csv", "--run", "runs/new"]),
    "judge": lambda: contrastive.main(["evaluate", "runs/encoder", "--transfer", "sst", "--device", "cpu"]),
    "index": lambda: contrastive.main(INDEX),
    "query": lambda: contrastive.main(["search", "query", "--queries", "queries.jsonl", "--index", "index"]),
    "judge search": lambda: contrastive.main(
        ["search", "evaluate", "beir", "--model", "tiny", "--index", "beir-index"]
    ),
}
MADE = ("runs/new", "exported", "answers.csv", "beir-ix")  # by a command, and made anew for each


def run(root, name):
    """(exit code, paths opened below the root) of a command on what is there."""
    for made in MADE:
        shutil.rmtree(root / made, ignore_errors=True)
    if name == "resume":
        shutil.copytree(root / "runs" / "stopped", root / "runs" / "new")
    WATCH["opened"] = []
    try:
        code = COMMANDS[name]()
    except SystemExit as ended:
        code = ended.code
    finally:
        opened, WATCH["opened"] = WATCH["opened"], None
    return code, opened


def source_of(root, path):
    """What a command would open again: None for what it makes itself."""
    path = Path(path)
    if not path.is_absolute():
        path = root / path
    if not path.is_relative_to(root):
        return None
    place = path.relative_to(root)
    if place.is_relative_to("runs/new") and (root / "runs/stopped" / place.relative_to("runs/new")).is_file():
        return root / "runs/stopped" / place.relative_to("runs/new")
    made = any(place.is_relative_to(made) for made in MADE) or path.suffix in (".tmp", ".zip") or path.name == ".lock"
    return None if made or not path.is_file() or place.parts[0] in ("predictions",) else path


@pytest.mark.parametrize("name", COMMANDS)
def test_a_pickle_in_the_place_of_every_file_that_is_opened(root, name, capsys):
    code, opened = run(root, name)
    assert code == 0, capsys.readouterr().err
    files = sorted({found for path in opened if (found := source_of(root, path))})
    wholes = {path: path.read_bytes() for path in files}
    assert wholes
    marker, refusals = root / "owned", 0
    for path in files:
        tensors, kinds = path.suffix in (".safetensors", ".bin", ".f32", ".f16"), payloads(marker)
        for kind in kinds if tensors else ("pickle", "pickle in text"):
            path.write_bytes(kinds[kind])
            capsys.readouterr()
            try:
                code, _ = run(root, name)
            finally:
                for other, whole in wholes.items():
                    write(other, whole)
            said, where = "".join(capsys.readouterr()), f"{path.relative_to(root)} as {kind}"
            assert not marker.exists() and not (root.parent / "owned").exists(), where
            assert not WATCH["pickles"], where
            # What can be made again is, and a text is a text, whatever it says; of all else there is a line.
            assert code == 0 or (code == 1 and "error" in said), f"{where}: {code}, {said}"
            refusals += code == 1
    assert refusals


DAMAGE = {
    "empty": lambda whole: b"",
    "cut": lambda whole: whole[: len(whole) // 2],
    "zeros": lambda whole: bytes(len(whole)),
    "a list": lambda whole: b"[]\n",
    "a number": lambda whole: b"7",
    "UTF-16": lambda whole: b"\xff\xfe" + whole[:200].decode("latin-1").encode("utf-16-le"),
    "its first line": lambda whole: whole.split(b"\n")[0] + b"\n",
    "too long": lambda whole: whole + b"x" * 1000,
    "gone": None,
    "a folder": None,
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_file_that_is_opened_damaged_or_gone(root, name, capsys):
    """Each kind of damage to each file with --hypothesis-profile thorough, else one to every third file."""
    code, opened = run(root, name)
    assert code == 0, capsys.readouterr().err
    files = sorted({found for path in opened if (found := source_of(root, path))})
    wholes = {path: path.read_bytes() for path in files}
    tried = [(path, kind) for path in files for kind in DAMAGE]
    if settings.default.max_examples < 1000:
        shift = list(COMMANDS).index(name)
        kinds = list(DAMAGE)
        tried = [(path, kinds[(i + shift) % len(kinds)]) for i, path in enumerate(files) if (i + shift) % 3 == 0]
    for path, kind in tried:
        path.unlink()
        if DAMAGE[kind]:
            path.write_bytes(DAMAGE[kind](wholes[path]))
        elif kind == "a folder":
            path.mkdir()
        capsys.readouterr()
        try:
            code, _ = run(root, name)
        finally:
            if path.is_dir():
                path.rmdir()
            for other, whole in wholes.items():
                write(other, whole)
        found, where = capsys.readouterr(), f"{path.relative_to(root)}: {kind}"
        told = re.search("error: ", found.err) or (name == "check" and found.out)
        assert code == 0 or (code == 1 and told), f"{where}: {code}, {found}"
        assert "Traceback" not in found.out + found.err, where


def test_the_payloads_would_run_code(tmp_path):
    """Else the test above would prove nothing: read the careless way, each makes the folder."""
    for kind, content in payloads(tmp_path / "owned").items():
        path = tmp_path / "file"
        path.write_bytes(content)
        if kind.startswith("pickle"):
            pickle.loads(content)
        elif kind.startswith("torch"):
            torch.load(path, weights_only=False)
        elif kind == "npy":
            np.load(path, allow_pickle=True)
        elif kind == "npz":
            np.load(path, allow_pickle=True)["arr_0"]
        else:
            with zipfile.ZipFile(path) as archive:
                pickle.loads(archive.read("data.pkl"))
        (tmp_path / "owned").rmdir()


FORBIDDEN = {"pickle": {"load", "loads", "Unpickler"}, "marshal": {"load", "loads"}, "shelve": {"open"}}
FORBIDDEN |= {"joblib": {"load"}, "yaml": {"load", "unsafe_load"}, "dill": {"load", "loads"}}
UNPACKING = {"extract", "extractall", "unpack_archive"}


@pytest.mark.parametrize("path", sorted(REPOSITORY.glob("*.py")), ids=lambda path: path.name)
def test_no_module_unpickles_evaluates_or_unpacks(path):
    """Archives are only ever written here; torch.load has its restricted reader, numpy its own format alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        where, keywords = f"{path.name}, line {node.lineno}", {word.arg: word.value for word in node.keywords}
        if isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "compile", "__import__"), where
        if isinstance(node.func, ast.Attribute):
            name = node.func.attr
            owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            assert name not in FORBIDDEN.get(owner, ()) and name not in UNPACKING, where
            if (owner, name) == ("torch", "load"):
                assert getattr(keywords.get("weights_only"), "value", None) is True, where
            if owner in ("np", "numpy") and name in ("load", "loadtxt", "genfromtxt", "fromregex"):
                assert "allow_pickle" not in keywords, where
