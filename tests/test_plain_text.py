"""Plain text becomes what the task's files hold, and what the files hold already stays.

Follows the Penn Treebank's tokenization as the Stanford Sentiment Treebank has it; the real files say whether it does.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets import lower_and_strip, preprocess_string, read_examples
from plain_text import as_in_files, split_words, treebank
from tasks import CFIMDB, COLA, MRPC, PARA, SST, STS
from tokenizer import BertTokenizer


@pytest.mark.parametrize(
    "plain, written",
    (
        ("I don't, and CAN'T.", "I do n't, and CA N'T."),
        ("we cannot", "we can not"),
        ("isn’t it", "is n't it"),
        ('He said "wow" (twice)', "He said `` wow '' -lrb- twice -rrb-"),
        ('("no")', "-lrb- `` no '' -rrb-"),
        ("writer/director", r"writer\/director"),
        ("[sic]", "-lsb- sic -rsb-"),
        ("The Rock 's new `` Conan '' does n't -LRB- yet -RRB- and\\/or", None),
    ),
)
def test_treebank_by_hand(plain, written):
    assert " ".join(treebank(plain).split()) == (written or plain)


def test_other_styles_leave_marks_as_they_are():
    assert split_words('don’t say "cannot" (now)') == 'do n’t say "can not" (now)'
    assert as_in_files(CFIMDB, ' It "isn\'t" ') == 'it "is n\'t"'
    assert as_in_files(PARA, "Why don't  you?") == "why don 't you ?"
    assert as_in_files(COLA, " He didn't. ") == as_in_files(MRPC, "He didn't.") == "He didn't."


@given(st.text(alphabet="can'tno \"()[]/*\\`-’", max_size=30))
def test_a_second_time_changes_nothing(text):
    once = treebank(text)
    assert treebank(once).split() == once.split()


def undone(text):
    """A sentence of SST as its author may have typed it."""
    for written, plain in (("-LRB- ", "("), (" -RRB-", ")"), ("`` ", '"'), (" ''", '"'), (" n't", "n't")):
        text = text.replace(written, plain)
    text = text.replace("can not", "cannot").replace("\\/", "/").replace("\\*", "*")
    return re.sub(r" ([.,?!;:'])", r"\1", text)


def test_the_real_files_are_read_alike_when_typed_plainly(real_data, minilm):
    """Token by token: every sentence of SST; and what stands in the other tasks' files is left alone."""
    tokenizer, folder = BertTokenizer.from_pretrained(minilm), real_data / "cs224n"
    sentences = [example.sentence for example in read_examples(folder / "ids-sst-dev.csv", clean=str)]
    plain = [undone(sentence) for sentence in sentences]
    wanted = tokenizer.encode_batch([lower_and_strip(sentence) for sentence in sentences]).ids
    for texts in (sentences, plain):
        found = tokenizer.encode_batch([as_in_files(SST, text) for text in texts]).ids
        assert [ids.tolist() for ids in found] == [ids.tolist() for ids in wanted]
    unchanged = tokenizer.encode_batch(plain).ids
    different = sum(a.tolist() != b.tolist() for a, b in zip(unchanged, wanted, strict=True))
    assert different > 100  # or else rewriting would be for nothing
    for task, name in ((PARA, "quora-dev.csv"), (STS, "sts-dev.csv")):
        for example in read_examples(folder / name, columns=task.columns, clean=str):
            assert as_in_files(task, example.second) == preprocess_string(example.second)
