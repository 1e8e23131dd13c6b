"""Tensors come back from their file, or any one bit that was flipped in it is found."""

import json
import signal
from contextlib import contextmanager

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import state_dicts
import tensor_files
from errors import InputError
from run import Run
from tensor_files import DAMAGE, checksum, read_tensors, write_tensors

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3).T,
    "half": torch.ones(3, dtype=torch.bfloat16),
    "b.step": torch.tensor(3),
    "none": torch.zeros(0, 2),
}
TEXTS = {"format": "pt", "state": '{"é": -Infinity}'}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_they_come_back_and_are_the_same_bytes_each_time(tmp_path):
    contents = set()
    for _ in range(20):
        write_tensors(tmp_path / "file", TENSORS, TEXTS)
        contents.add((tmp_path / "file").read_bytes())
    found, texts = read_tensors(tmp_path / "file")
    assert len(contents) == 1 and same(found, TENSORS)
    assert texts == {**TEXTS, "checksum": checksum({name: t.contiguous() for name, t in TENSORS.items()}, TEXTS)}
    assert same(load_file(tmp_path / "file"), TENSORS)  # the library's own reader takes it
    with safe_open(tmp_path / "file", "pt") as file:
        assert file.metadata() == texts


def test_any_bit_that_is_flipped_is_found_or_changes_nothing(tmp_path):
    """The header has blanks at its end, and the checksum's own name, without which it is a file of somebody else."""
    path = tmp_path / "file"
    write_tensors(path, TENSORS, TEXTS)
    content, refused = path.read_bytes(), 0
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
        try:
            found, _ = read_tensors(path)
        except DAMAGE:
            refused += 1
            continue
        assert same(found, TENSORS), place
    assert refused > len(content) / 2


@pytest.mark.parametrize("read", [lambda path: read_tensors(path), lambda path: state_dicts.read_state(path.parent)])
def test_who_asks_to_stop_while_it_is_read_is_no_damage(tmp_path, monkeypatch, read):
    """An interrupt in the middle of a library's own code would come out of it as a ValueError."""
    path, opened = tmp_path / "model.safetensors", []
    write_tensors(path, {"a": torch.ones(2), "b": torch.ones(3)}, {})

    @contextmanager
    def asked(*args, **kwargs):
        with safe_open(*args, **kwargs) as file:
            opened.append(True)
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt as error:
                raise ValueError("could not determine the shape") from error
            yield file

    monkeypatch.setattr(tensor_files, "safe_open", asked)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        read(path)
    assert opened and signal.getsignal(signal.SIGINT) is before


def test_a_file_of_somebody_else_has_no_checksum(tmp_path):
    save_file(TENSORS | {"a": TENSORS["a"].contiguous()}, tmp_path / "file")
    found, texts = read_tensors(tmp_path / "file")
    assert same(found, TENSORS) and texts == {}


def test_the_numbers_decide_and_not_the_header_alone(tmp_path):
    """Another tensor of the same bytes is another one."""
    write_tensors(tmp_path / "file", {"a": torch.zeros(2, 3)}, {})
    content = (tmp_path / "file").read_bytes()
    for before, after in ((b'"a"', b'"b"'), (b"[2,3]", b"[3,2]"), (b'"F32"', b'"I32"')):
        assert before in content
        (tmp_path / "file").write_bytes(content.replace(before, after))
        with pytest.raises(ValueError, match="its checksum is [0-9a-f]{8}, and says [0-9a-f]{8}"):
            read_tensors(tmp_path / "file")


@pytest.mark.parametrize("bit", [0, 7])
def test_a_flipped_bit_in_trained_weights_is_refused(tmp_path, bit):
    """A number that is a little larger is finite, and would be taken for what was trained."""
    state_dicts.write_state(tmp_path, {"a": torch.ones(5)})
    path = tmp_path / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-20] ^= 1 << bit
    path.write_bytes(content)
    with pytest.raises(InputError, match="model.safetensors: cut short or altered .its checksum .*: copy it again"):
        state_dicts.read_state(tmp_path)


def test_a_flipped_bit_in_a_runs_outputs_is_refused(tmp_path):
    run = Run(tmp_path)
    run.write_outputs({"sst": torch.ones(2, 5)})
    assert run.read_outputs()["sst"].tolist() == [[1.0] * 5] * 2
    content = bytearray(run.outputs.read_bytes())
    content[-3] ^= 1
    run.outputs.write_bytes(content)
    with pytest.raises(InputError, match="dev_outputs.safetensors: cut short or altered .*: delete it"):
        run.read_outputs()


def test_a_checkpoint_without_a_checksum_is_none_of_ours(tmp_path):
    run = Run(tmp_path)
    run.checkpoint.parent.mkdir()
    save_file({"a": torch.ones(2)}, run.checkpoint, metadata={"state": json.dumps({"epoch": 1})})
    with pytest.raises(InputError, match="cut short or altered .it has no checksum.: delete .*/last and resume"):
        run.load_checkpoint()
