"""Models, indexes and tokenizers damaged at random: they load and answer, or are refused in one line.

What loads is also used, since a value that is wrong may show only then. Hypothesis draws the damage (mutations.py).
"""

import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mutations import altered, damaged, json_bytes, refused, write

from model import ModelConfig, MultitaskBERT
from search_data import open_corpus
from search_index import SearchIndex, build
from sentence_encoder import SentenceEncoder
from tokenizer import BertTokenizer

TEXTS = ["the film was good", "", "\ud800 \0 \u2028 why ?", "a " * 50]


class Whole(dict):
    """Kind of folder -> file name -> content; a failure's report does without them."""

    def __repr__(self):
        return "whole"


@pytest.fixture(scope="module")
def parts(tmp_path_factory, tiny_tokenizer):
    """Whole folders, by kind: what is in each file."""
    from bert import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
    bert = BertModel(BertConfig(vocab_size=29, max_position_embeddings=24, **sizes))
    folder = tmp_path_factory.mktemp("whole")
    config = ModelConfig.for_tasks(attention={"sst": 1, "para": 0, "sts": 1})
    MultitaskBERT(config, bert).save_pretrained(folder / "multitask")
    tiny_tokenizer.save_pretrained(folder / "multitask")
    encoder = SentenceEncoder.to_train(folder / "multitask", "layer_attention", {"query": "last"})
    encoder.save_pretrained(folder / "own")
    plain = SentenceEncoder.to_train(folder / "multitask", "mean")
    plain.save_pretrained(folder / "layout")
    config = json.loads((folder / "layout" / "config.json").read_text())
    del config["minbert"]
    (folder / "layout" / "config.json").write_text(json.dumps(config))
    corpus = folder / "corpus.txt"
    corpus.write_text("the film\na cat\nwhy ?\n")
    build(folder / "index", open_corpus(corpus), plain)
    return Whole(
        {
            kind: {
                str(path.relative_to(folder / kind)): path.read_bytes()
                for path in (folder / kind).rglob("*")
                if path.is_file()
            }
            for kind in ("multitask", "own", "layout", "index")
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def lay_out(folder, files, name, content):
    """The files of a folder, one of them with other content."""
    for other, whole in files.items():
        path = folder / other
        if other == name or not path.is_file() or path.read_bytes() != whole:
            write(path, content if other == name else whole)


def safetensors(header: dict, body: bytes) -> bytes:
    described = json_bytes(header)
    return struct.pack("<Q", len(described)) + described + body


def take_apart(content: bytes) -> tuple[dict, bytes]:
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def draw_json(data, whole: bytes) -> bytes:
    return json_bytes(data.draw(altered(json.loads(whole)))) if data.draw(st.booleans()) else data.draw(damaged(whole))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json", "vocab.txt"])
@given(data=st.data())
def test_tokenizers(folder, parts, name, data):
    files = dict(parts["multitask"])
    if name == "vocab.txt":
        del files["tokenizer.json"]
    whole = files[name]
    content = draw_json(data, whole) if name.endswith("json") else data.draw(damaged(whole))
    place = folder / f"tokenizer-{name}"
    lay_out(place, files, name, content)

    def use():
        tokenizer = BertTokenizer.from_folder(place)
        found = tokenizer.encode_batch(TEXTS)
        assert all(0 < len(ids) <= tokenizer.model_max_length for ids in found.ids)
        tokenizer.encode_batch(TEXTS, TEXTS)
        assert all(0 <= int(i) < len(tokenizer) for ids in found.ids for i in ids)
        tokenizer.fingerprint()

    refused(use)


def predict(place):
    model = MultitaskBERT.from_pretrained(place)
    tokens = BertTokenizer.from_folder(place)(["the film", "why ?"], return_tensors="pt", padding=True)
    ids, mask = tokens["input_ids"], tokens["attention_mask"]
    calls = {"sst": model.predict_sentiment, "para": model.predict_paraphrase, "sts": model.predict_similarity}
    with torch.no_grad():
        for name, head in model.heads.items():
            if not head.config.joint:
                calls[name](*((ids, mask) if name == "sst" else (ids, mask, ids, mask)))


def encode(place):
    encoder = SentenceEncoder.from_pretrained(place)
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (4, encoder.dimension)
    assert len(encoder.fingerprint) == 64


CALLS = {"multitask": predict, "own": encode, "layout": encode}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("multitask", "config.json"),
        ("multitask", "model.safetensors"),
        ("own", "config.json"),
        ("own", "model.safetensors"),
        ("layout", "config.json"),
        ("layout", "1_Pooling/config.json"),
    ],
)
@given(data=st.data())
def test_models(folder, parts, kind, name, data):
    whole, place = parts[kind][name], folder / kind
    if name.endswith("json"):
        content = draw_json(data, whole)
    elif data.draw(st.booleans()):
        content = data.draw(damaged(whole))
    else:
        header, body = take_apart(whole)
        content = safetensors(data.draw(altered(header)), body)
    lay_out(place, parts[kind], name, content)
    refused(CALLS[kind], place)


@pytest.mark.parametrize("name", ["index.json", "vectors.bin", "documents.jsonl", "offsets.bin"])
@given(data=st.data())
def test_indexes(folder, parts, name, data):
    files, place = parts["index"], folder / "index"
    whole = files[name]
    lay_out(place, files, name, draw_json(data, whole) if name == "index.json" else data.draw(damaged(whole)))

    def use():
        index = SearchIndex.open(place)
        vectors = np.eye(index.header.dimension, dtype=np.float32)[:2]
        for hit in (hit for hits in index.search(vectors, 5) for hit in hits):
            assert isinstance(hit.id, str) and isinstance(hit.text, str)

    refused(use)
