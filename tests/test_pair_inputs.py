"""The course's methods on pairs of ids give what the files' rows give, however a head reads its pairs."""

from pathlib import Path

import numpy as np
import pytest
import torch

from batches import TaskData
from datasets import Example, Table
from model import ModelConfig, MultitaskBERT
from pair_inputs import pair_inputs
from tasks import PARA, STS

# The tiny model has 24 positions: alone each of these texts fits or is cut, and so is their pair.
LONG = [
    ("a film " * 11, "the dog"),
    ("bad", "the dog " * 15),
    ("good film " * 10, "the dog " * 9),
    ("a " * 40, "the " * 40),
]
PAIRS = [("a film", "the film was good"), ("the dog", "a dog"), ("good", "bad film was"), *LONG]
CLS, SEP = 2, 3


@pytest.mark.parametrize("encoding", ["separate", "joint", "both"])
@pytest.mark.parametrize("task", [PARA, STS], ids=lambda task: task.name)
@pytest.mark.parametrize("rows", [range(len(PAIRS)), [1], [3, 0]], ids=str)
def test_ids_give_what_rows_give(task, encoding, rows, tiny, tiny_tokenizer):
    score = "cosine" if encoding == "both" else "calibrated"
    config = ModelConfig.for_tasks(
        [task.name], attention={task.name: 0}, pair_encoding=encoding, pair_score=score, pooler="mean"
    )
    model = MultitaskBERT(config, tiny(num_hidden_layers=2, initializer_range=0.1)).eval()
    torch.manual_seed(1)
    torch.nn.init.normal_(model.heads[task.name].output.weight, std=0.1)
    pairs = [PAIRS[row] for row in rows]
    examples = [Example(f"r{i}", *pair, None, i + 2) for i, pair in enumerate(pairs)]
    data = TaskData(task, Table(Path("made up"), examples, [], ""), tiny_tokenizer, pair_encoding=encoding)
    wanted = model.outputs(data.batch(np.arange(len(pairs))))

    first, second = (
        tiny_tokenizer(list(side), padding=True, truncation=True, return_tensors="pt")
        for side in zip(*pairs, strict=True)
    )
    method = {"para": model.predict_paraphrase, "sts": model.predict_similarity}[task.name]
    found = method(first["input_ids"], first["attention_mask"], second["input_ids"], second["attention_mask"])
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)
    assert len(pairs) == 1 or found.std() > 1e-4  # so that pairs differ


def test_both_ways_by_hand():
    ids = torch.tensor([[CLS, 7, SEP, 0], [CLS, 8, 9, SEP]])
    other = torch.tensor([[CLS, 10, SEP], [CLS, SEP, 0]])
    given = (ids, (ids > 0).long()), (other, (other > 0).long())
    found, mask, types = pair_inputs(*given, "both", 24)
    assert found.tolist() == [
        [CLS, 7, SEP, 0, 0],
        [CLS, 8, 9, SEP, 0],
        [CLS, 10, SEP, 0, 0],
        [CLS, SEP, 0, 0, 0],
        [CLS, 7, SEP, 10, SEP],
        [CLS, 8, 9, SEP, SEP],
    ]
    assert torch.equal(mask, (found > 0).long())
    assert types.tolist() == [[0] * 5] * 4 + [[0, 0, 0, 1, 1], [0, 0, 0, 0, 1]]
    joint = pair_inputs(*given, "joint", 4)[0]  # room for one word beside the three special tokens
    assert joint.tolist() == [[CLS, SEP, 10, SEP], [CLS, 8, SEP, SEP]]


def test_a_sentence_without_tokens_is_refused():
    ids, mask = torch.tensor([[CLS, 7, SEP], [CLS, 7, SEP]]), torch.tensor([[1, 1, 1], [0, 0, 0]])
    with pytest.raises(ValueError, match=r"less than \[CLS\] and \[SEP\] in sentence\(s\) \[1\]"):
        pair_inputs((ids, torch.ones_like(ids)), (ids, mask), "joint", 24)
