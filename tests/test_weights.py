"""Weights are found, verified and read, and every way of being damaged is one line that names the file and the remedy.

Follows weights.py's promises; the known weights are a tiny stand-in, so that no test touches the real ones.
"""

import hashlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save, save_file

import fetch
import state_dicts
import weights
from errors import InputError
from weights import File, Known

ROOT = Path(__file__).resolve().parent.parent
STATE = {"embeddings.weight": torch.arange(12.0).reshape(3, 4), "pooler.dense.bias": torch.tensor([0.5, -0.5])}
CONTENT = {
    "model.safetensors": save(STATE),
    "config.json": b'{"model_type": "bert", "hidden_size": 4}',
    "vocab.txt": b"[PAD]\n[UNK]\n",
}


def write_folder(folder, content=CONTENT):
    folder.mkdir(parents=True)
    for name, data in content.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def known(tmp_path, monkeypatch):
    """Known weights `tiny`, shipped by a package in tmp_path that fails when its code is run."""
    package = tmp_path / "site" / "tiny_weights"
    write_folder(package / "model")
    (package / "__init__.py").write_text("raise RuntimeError('the code of the package was run')")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(weights, "WEIGHTS", tmp_path / "weights")
    files = tuple(File(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in CONTENT.items())
    tiny = Known("tiny", "someone/tiny", "0123456789", "a stand-in", files, "tiny_weights")
    monkeypatch.setattr(weights, "KNOWN", {"tiny": tiny})
    monkeypatch.setattr(weights, "MINILM", tiny)
    return tiny


@pytest.fixture
def from_hub(known, monkeypatch):
    """Known weights `big`, shipped by no package."""
    big = Known("big", "someone/big", "9876543210", "another stand-in", known.files)
    monkeypatch.setattr(weights, "KNOWN", {"tiny": known, "big": big})
    monkeypatch.setattr(weights, "BERT_BASE", big)
    return big


def refusal(call, *arguments):
    """The message of the InputError that `call` raises: one line, with something to do after the last colon."""
    with pytest.raises(InputError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- known weights -----------------------------------------------------------------------------------------------


def test_place_copies_verifies_and_is_found(known):
    assert "copied model.safetensors, config.json, vocab.txt from the installed" in weights.place(known)
    assert {name: (known.folder / name).read_bytes() for name in CONTENT} == CONTENT
    assert sorted(os.listdir(known.folder)) == sorted([*CONTENT, ".verified"])
    found = weights.find("tiny")
    assert (found.name, found.path, found.verified) == ("tiny", known.folder, True)
    assert found.sha256 == hashlib.sha256(CONTENT["model.safetensors"]).hexdigest()
    assert weights.find("someone/tiny").path == known.folder
    assert weights.find(known.folder).verified
    assert weights.place(known).endswith("in place, SHA-256 verified")


def test_a_known_name_is_found_in_the_package_when_nothing_was_placed(known, tmp_path):
    found = weights.find("tiny")
    assert found.path == tmp_path / "site" / "tiny_weights" / "model"
    assert found.verified
    assert not (found.path / ".verified").exists()
    assert weights.locate("tiny") == found.path


def test_locate_looks_where_find_does(known, from_hub, tmp_path):
    """A folder without tensors is not what is used, whatever else stands in it."""
    known.folder.mkdir(parents=True)
    for content in ({}, {"vocab.txt": b"another word list"}):
        for name, data in content.items():
            (known.folder / name).write_bytes(data)
        for asked in (None, "tiny", "someone/tiny", known.folder):
            assert weights.locate(asked) == weights.find(asked).path == tmp_path / "site" / "tiny_weights" / "model"
    weights.place(known)
    assert weights.locate("tiny") == weights.find("tiny").path == known.folder
    from_hub.folder.mkdir()
    for call in (weights.find, weights.locate):
        assert refusal(call, "big").startswith("big is not set up: run ./setup.sh --full, which fetches it")
    # Whoever reads only the vocabulary needs no tensors.
    (from_hub.folder / "vocab.txt").write_bytes(CONTENT["vocab.txt"])
    assert weights.locate("big") == from_hub.folder


def test_a_second_start_hashes_nothing(known, monkeypatch):
    weights.place(known)
    monkeypatch.setattr(weights, "sha256", lambda path: pytest.fail(f"{path} was hashed again"))
    assert weights.find("tiny").verified


@pytest.mark.parametrize("name", list(CONTENT))
def test_a_flipped_byte_is_refused_then_repaired(known, name):
    weights.place(known)
    data = bytearray(CONTENT[name])
    data[-1] ^= 1
    (known.folder / name).write_bytes(data)
    message = refusal(weights.find, "tiny")
    assert f"tiny/{name}: altered: SHA-256 " in message and message.endswith("run ./setup.sh, which copies it again")
    assert f"copied {name} from" in weights.place(known)
    assert weights.find("tiny").verified


def test_weights_cut_short_are_refused_then_repaired(known):
    weights.place(known)
    os.truncate(known.folder / "model.safetensors", 100)
    assert "model.safetensors: cut short: 100 bytes, wanted " in refusal(weights.find, "tiny")
    assert "copied model.safetensors from" in weights.place(known)


def test_an_altered_package_takes_no_name(known, tmp_path):
    source = tmp_path / "site" / "tiny_weights" / "model" / "model.safetensors"
    source.write_bytes(CONTENT["model.safetensors"][:-1] + b"?")
    message = refusal(weights.place, known)
    assert message.startswith(f"{source}: altered") and "remove the folder .venv" in message
    assert os.listdir(known.folder) == []
    assert "remove the folder .venv" in refusal(weights.find, "tiny")


def test_a_stamp_of_rubbish_vouches_for_nothing(known):
    weights.place(known)
    for rubbish in (b"", b"\xff\xfe", b"a\nb c\n\n", b" " * 100):
        (known.folder / ".verified").write_bytes(rubbish)
        assert weights.find("tiny").verified
    (known.folder / "model.safetensors").write_bytes(b"")
    assert "cut short: 0 bytes" in refusal(weights.find, "tiny")


def test_a_stamp_that_cannot_be_written_costs_only_time(known, monkeypatch):
    weights.place(known)
    (known.folder / ".verified").unlink()
    monkeypatch.setattr(os, "replace", lambda *a: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    assert weights.find("tiny").verified


def test_the_package_is_absent(known, tmp_path):
    (tmp_path / "site" / "tiny_weights" / "model" / "model.safetensors").unlink()
    for call in (weights.find, weights.locate):
        assert refusal(call, "tiny").endswith("nor is the package that ships it installed: run ./setup.sh")
    assert refusal(weights.place, known).endswith("run ./setup.sh")


def test_hub_weights_placed_by_hand_become_the_default(from_hub):
    assert weights.find().name == "tiny"
    message = refusal(weights.find, "big")
    assert (
        "big is not set up: run ./setup.sh --full, which fetches it, or put model.safetensors, config.json" in message
    )
    assert "config.json and vocab.txt of someone/big (revision 9876543) into" in message
    assert refusal(weights.place, from_hub) == message
    write_folder(from_hub.folder)
    found = weights.find()
    assert (found.name, found.verified) == ("big", True)
    assert weights.find("tiny").name == "tiny"
    (from_hub.folder / "config.json").unlink()
    message = refusal(weights.find)
    assert "config.json: No such file or directory: move it away if it is there and run ./setup.sh --full" in message
    (from_hub.folder / "model.safetensors").write_bytes(b"")
    assert "cut short" in refusal(weights.place, from_hub)


def test_a_remedy_names_the_place_as_it_can_be_typed_from_here(monkeypatch, tmp_path):
    monkeypatch.setattr(weights, "WEIGHTS", ROOT / "tests" / "no-such-folder")
    monkeypatch.chdir(ROOT)
    for folder, place in ((ROOT, "tests/no-such-folder/"), (ROOT / "tests", "no-such-folder/"), (tmp_path, None)):
        monkeypatch.chdir(folder)
        place = place or f"{ROOT}/tests/no-such-folder/"
        assert f" into {place}bert-base-uncased, or choose" in refusal(weights.find, "bert-base-uncased")
        assert f" belong in {place}bert-base-uncased" in fetch.weights_group().by_hand


# --- any folder --------------------------------------------------------------------------------------------------


def test_a_folder_is_found_and_not_verified(tmp_path):
    folder = write_folder(tmp_path / "mine", {**CONTENT, "config.json": b"{}"})
    found = weights.find(str(folder))
    assert (found.name, found.path, found.verified) == (str(folder), folder, False)
    assert found.sha256 == hashlib.sha256(CONTENT["model.safetensors"]).hexdigest()
    (folder / "model.safetensors").write_bytes(save({"a": torch.zeros(1)}))
    assert weights.find(folder).sha256 != found.sha256


def test_a_copy_of_known_weights_is_recognised(known, tmp_path):
    found = weights.find(write_folder(tmp_path / "copy"))
    assert found.verified and "which is tiny's" in found.origin


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config.json": None}, "has no config.json: copy the one that belongs"),
        ({"config.json": b"{"}, "config.json, line 1, column 2: not JSON"),
        ({"config.json": b"[]"}, "config.json: an object {...} is wanted"),
        ({"config.json": b'{"model_type": "gpt2"}'}, "model_type is 'gpt2', wanted 'bert'"),
        ({"model.safetensors": None}, "has no model.safetensors and no pytorch_model.bin: copy one"),
        ({"model.safetensors": None, "model.safetensors.index.json": b"{}"}, "split over several files: save them"),
    ],
)
def test_a_folder_that_lacks_something(tmp_path, change, message):
    content = {name: data for name, data in {**CONTENT, **change}.items() if data is not None}
    folder = write_folder(tmp_path / "mine", content)
    refused = refusal(weights.find, folder)
    assert message in refused and str(folder) in refused


def test_a_name_that_is_nothing(tmp_path):
    for call in (weights.find, weights.locate):
        message = refusal(call, str(tmp_path / "typo"))
        assert "typo: neither a folder nor one of the known names all-MiniLM-L6-v2, bert-base-uncased" in message


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 5000])
def test_a_name_that_no_file_can_have(name):
    """From a file: an index says whose its vectors are."""
    for call in (weights.find, weights.locate):
        assert refusal(call, name).startswith("no weights at ")


def test_locate_asks_for_no_tensors(tmp_path):
    folder = write_folder(tmp_path / "words", {"vocab.txt": b"[PAD]\n"})
    assert weights.locate(folder) == folder


# --- tensors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["safetensors", "zip", "legacy"])
def test_tensors_come_back(tmp_path, kind):
    if kind == "safetensors":
        save_file(STATE, tmp_path / "model.safetensors")
    else:
        torch.save(STATE, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=kind == "zip")
    state = state_dicts.read_state(tmp_path)
    assert state.keys() == STATE.keys()
    assert all(torch.equal(state[key], STATE[key]) for key in STATE)


def test_what_is_written_comes_back_and_a_full_disk_costs_nothing(tmp_path, monkeypatch):
    transposed = {**STATE, "pooler.dense.weight": torch.arange(6.0).reshape(2, 3).T.requires_grad_()}
    state_dicts.write_state(tmp_path / "best", transposed)
    state = state_dicts.read_state(tmp_path / "best")
    assert {name: tensor.tolist() for name, tensor in state.items()} == {n: t.tolist() for n, t in transposed.items()}
    with safe_open(tmp_path / "best" / "model.safetensors", "pt") as file:
        assert file.metadata()["format"] == "pt"  # without which transformers takes no file
    monkeypatch.setattr(os, "fsync", lambda *a: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert "free some space on that disk" in refusal(state_dicts.write_state, tmp_path / "best", {"a": torch.zeros(1)})
    assert state_dicts.read_state(tmp_path / "best").keys() == transposed.keys()
    assert os.listdir(tmp_path / "best") == ["model.safetensors"]


def test_safetensors_are_preferred(tmp_path):
    save_file(STATE, tmp_path / "model.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(b"never read")
    assert state_dicts.read_state(tmp_path).keys() == STATE.keys()


HEADER = len(CONTENT["model.safetensors"]) - sum(tensor.nbytes for tensor in STATE.values())


@pytest.mark.parametrize("length", [0, 4, 8, HEADER // 2, HEADER, HEADER + 8, len(CONTENT["model.safetensors"]) - 1])
def test_safetensors_cut_short(tmp_path, length):
    (tmp_path / "model.safetensors").write_bytes(CONTENT["model.safetensors"][:length])
    message = refusal(state_dicts.read_state, tmp_path)
    assert f"{tmp_path / 'model.safetensors'}: " in message and message.endswith("copy it again from where it came")


@pytest.mark.parametrize("header", [b"\xff" * 8, b"\x02" + bytes(7) + b"{", b"\x02" + bytes(7) + b"[]", b"rubbish" * 9])
def test_safetensors_with_an_unreadable_header(tmp_path, header):
    (tmp_path / "model.safetensors").write_bytes(header)
    assert "model.safetensors: cut short or altered (" in refusal(state_dicts.read_state, tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
def test_pickles_cut_or_flipped_are_one_line_or_tensors(tmp_path, zipped):
    path = tmp_path / "pytorch_model.bin"
    torch.save(STATE, path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    damaged = [whole[:length] for length in range(0, len(whole), 97)]
    for place in torch.randint(len(whole), (300,), generator=generator).tolist():
        damaged.append(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
    refused = 0
    for data in damaged:
        path.write_bytes(data)
        try:
            # A flip inside a tensor's numbers can't be seen, and one inside a name is for the model to notice.
            assert len(state_dicts.read_state(tmp_path)) == 2
        except InputError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            refused += 1
    assert refused > 50


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("kind", ["zip", "legacy", "plain pickle"])
def test_a_pickle_that_runs_code_does_not(tmp_path, kind):
    path, owned = tmp_path / "pytorch_model.bin", tmp_path / "owned"
    content = {**STATE, "pooler.dense.weight": Malicious(owned)}
    if kind == "plain pickle":
        path.write_bytes(pickle.dumps({"a": Malicious(owned)}, protocol=2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=kind == "zip")
    message = refusal(state_dicts.read_state, tmp_path)
    assert message == (
        f"{path}: holds more than tensors and could run code, so it was not loaded: "
        "have its author save it as model.safetensors"
    )
    assert not owned.exists()


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, {0: torch.zeros(1)}, torch.zeros(2)])
def test_a_pickle_that_is_no_state_dict(tmp_path, content):
    torch.save(content, tmp_path / "pytorch_model.bin")
    assert "a dictionary of tensors is wanted: save the model's state_dict()" in refusal(
        state_dicts.read_state, tmp_path
    )


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:53aa\nsize 90868376\n", "a Git LFS pointer"),
        (b"\n<!DOCTYPE html><title>Sign in</title>", "a web page, not weights"),
    ],
)
def test_what_a_download_leaves_instead(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    assert f"{tmp_path / name}: {message}" in refusal(state_dicts.read_state, tmp_path)


# --- the command, on the real weights ----------------------------------------------------------------------------


def test_the_command_says_what_it_did(minilm):
    result = subprocess.run([sys.executable, "weights.py"], cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert "weights/all-MiniLM-L6-v2: " in result.stdout and result.stdout.endswith("SHA-256 verified\n")


def test_the_command_fails_on_one_line(tmp_path):
    for name in ("weights.py", "console.py", "errors.py", "files.py"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    command = [sys.executable, "weights.py", "bert-base-uncased"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("error: bert-base-uncased is not set up: run ./setup.sh --full, which fetches")
    assert result.stderr.count("\n") == 1


def test_the_embedded_weights_are_the_publishers(minilm):
    found = weights.find("all-MiniLM-L6-v2")
    assert found.verified and found.path == minilm
    state = state_dicts.read_state(found.path)
    config = json.loads((minilm / "config.json").read_text())
    assert state["embeddings.word_embeddings.weight"].shape == (config["vocab_size"], config["hidden_size"])
    assert sum(tensor.numel() for tensor in state.values() if tensor.is_floating_point()) == 22_713_216
