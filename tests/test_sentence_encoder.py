"""Texts to vectors: order, padding, odd texts; folders saved, loaded, and read by other libraries."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import state_dicts
from bert import BertModel
from errors import InputError
from model import ModelConfig, MultitaskBERT
from poolers import POOLERS, masked_max, masked_mean
from sentence_encoder import SentenceEncoder
from sentence_layout import MODES

TEXTS = ["a good film", "the cat sat on the mat , dull", "why ?", "a good film", "dull"]


@pytest.fixture
def folder(tmp_path, tiny, tiny_tokenizer):
    """A folder of weights, four layers, with their tokenizer."""
    tiny(num_hidden_layers=4).save_pretrained(tmp_path / "tiny")
    tiny_tokenizer.save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def test_vectors_are_the_poolers_of_each_text_alone(folder):
    encoder = SentenceEncoder.from_pretrained(folder)
    assert encoder.dimension == 24 and encoder.pooler_name == "mean" and encoder.max_length == 24
    for size in (1, 2, 32):
        raw = encoder.encode(TEXTS, batch_size=size, normalize=False)
        assert raw.shape == (5, 24) and raw.dtype == np.float32
        for text, vector in zip(TEXTS, raw, strict=True):
            batch = encoder.tokenizer([text], return_tensors="pt")
            with torch.no_grad():
                states = encoder.bert(batch["input_ids"], batch["attention_mask"])["last_hidden_state"]
            np.testing.assert_allclose(vector, states[0].mean(dim=0).numpy(), atol=1e-5)
    unit = encoder.encode(TEXTS)
    np.testing.assert_allclose(unit, raw / np.linalg.norm(raw, axis=1, keepdims=True), atol=1e-6)


def test_equal_texts_are_encoded_once_and_progress_counts_them_all(folder):
    encoder, done = SentenceEncoder.from_pretrained(folder), []
    found = encoder.encode(["dull", "cat", "dull", "dull"], batch_size=1, progress=done.append)
    assert sorted(done) == [1, 3]
    assert (found[0] == found[2]).all() and (found[0] == found[3]).all() and (found[0] != found[1]).any()


def test_blocks_of_texts_join(folder, monkeypatch):
    encoder = SentenceEncoder.from_pretrained(folder)
    texts = [f"{'a ' * (i % 5)}cat" for i in range(7)] + ["dog"]
    wanted = encoder.encode(texts)
    monkeypatch.setattr("sentence_encoder.BLOCK", 2)
    np.testing.assert_allclose(encoder.encode(texts, batch_size=1), wanted, atol=1e-6)


def test_odd_texts_have_defined_vectors(folder):
    encoder = SentenceEncoder.from_pretrained(folder)
    assert encoder.encode([]).shape == (0, 24)
    long, cut = "cat " * 100_000, "cat " * 22
    found = encoder.encode(["", "   \t\n", long, cut, "x" * 100_000, "\ud800", "\U0001f600"])
    assert np.isfinite(found).all() and np.allclose(np.linalg.norm(found, axis=1), 1)
    np.testing.assert_array_equal(found[0], found[1])  # [CLS] [SEP]
    np.testing.assert_allclose(found[2], found[3], atol=1e-6)  # what is past max_length is not read
    with pytest.raises(TypeError, match="one string, wanted a list"):
        encoder.encode("a cat")
    with pytest.raises(ValueError, match="batch_size is 0"):
        encoder.encode(["a"], batch_size=0)


def test_training_mode_is_left_as_it_was_and_never_used(folder):
    encoder = SentenceEncoder.from_pretrained(folder)
    wanted = encoder.encode(TEXTS)
    encoder.bert.train()
    np.testing.assert_array_equal(encoder.encode(TEXTS), wanted)
    assert encoder.bert.training and not encoder.pooler.training


@pytest.mark.parametrize("name", POOLERS)
def test_saved_and_loaded_it_is_the_same(folder, tmp_path, name):
    torch.manual_seed(1)
    encoder = SentenceEncoder.to_train(folder, name)
    encoder.max_length = 12
    for parameter in encoder.pooler.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    encoder.save_pretrained(tmp_path / "saved")
    again = SentenceEncoder.from_pretrained(tmp_path / "saved")
    assert (again.pooler_name, again.max_length) == (name, 12) and again.fingerprint == encoder.fingerprint
    np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))
    state, own = BertModel.from_pretrained(tmp_path / "saved").state_dict(), encoder.bert.state_dict()
    assert all(torch.equal(state[key], own[key]) for key in own)


def test_options_of_a_pooler_are_kept(folder, tmp_path):
    options = {"query": "last", "scale": "sqrt"}
    encoder = SentenceEncoder.to_train(folder, "layer_attention", options)
    encoder.save_pretrained(tmp_path / "saved")
    again = SentenceEncoder.from_pretrained(tmp_path / "saved")
    assert again.pooler_options == encoder.pooler_options and options.items() <= again.pooler_options.items()
    np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))


def test_the_fingerprint_is_of_all_that_a_vector_depends_on(folder):
    def encoder(**changes):
        return SentenceEncoder.from_pretrained(folder, **changes)

    one = encoder().fingerprint
    assert len(one) == 64 and one == encoder().fingerprint
    assert one != encoder(pooler="max").fingerprint and one != encoder(max_length=12).fingerprint
    other = encoder()
    with torch.no_grad():
        other.bert.encoder.layer[2].output.dense.bias[3] += 1e-6
    assert other.fingerprint != one
    idle = encoder()
    with torch.no_grad():
        idle.bert.pooler.dense.bias += 1  # nobody asks it
    assert idle.fingerprint == one


def test_the_first_token_is_read_without_the_others_in_the_last_layer(folder):
    encoder = SentenceEncoder.from_pretrained(folder, "first")
    batch = encoder.tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = encoder.bert(batch["input_ids"], batch["attention_mask"])["last_hidden_state"]
    np.testing.assert_allclose(encoder.encode(TEXTS, normalize=False), states[:, 0].numpy(), atol=1e-5)


def test_the_encoder_of_a_multi_task_run(tmp_path, tiny, tiny_tokenizer):
    model = MultitaskBERT(ModelConfig.for_tasks(["sst"]), tiny())
    run = tmp_path / "run"
    model.save_pretrained(run / "best")
    tiny_tokenizer.save_pretrained(run / "best")
    (run / "config.json").write_text(json.dumps({"command": "multitask_classifier.py", "options": {}}))
    wanted = SentenceEncoder(tiny(), POOLERS["mean"](24), tiny_tokenizer, 24).encode(TEXTS)
    for where in (run, run / "best"):
        encoder = SentenceEncoder.from_pretrained(where)
        assert encoder.pooler_name == "mean"
        np.testing.assert_allclose(encoder.encode(TEXTS), wanted, atol=1e-6)


def test_what_cannot_be_loaded_is_said(folder, tmp_path):
    def refused(match, *arguments, **options):
        with pytest.raises(InputError, match=match):
            SentenceEncoder.from_pretrained(*arguments, **options)

    refused("no weights at .*nowhere.*all-MiniLM-L6-v2", tmp_path / "nowhere")
    refused("--pooler average: not known; known: first, cls, mean", folder, "average")
    refused(
        "--pooler layer_attention: it has weights of its own, which .*tiny does not hold: train",
        folder,
        "layer_attention",
    )
    refused("max_length 25: wanted 3 to 24", folder, max_length=25)
    SentenceEncoder.from_pretrained(folder, "gem")  # which begins as it is defined, not at random
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text('{"command": "contrastive.py"}')
    refused("run: a run without a best model", run)
    (run / "config.json").write_text('{"command": "x", "options": {"ensemble": ["one", "two"]}}')
    refused("run is an ensemble, without a model of its own: name one of its runs, one, two", run)
    encoder = SentenceEncoder.to_train(folder, "cls")
    encoder.save_pretrained(tmp_path / "saved")
    state = state_dicts.read_state(tmp_path / "saved")
    del state["sentence_pooler.dense.bias"]
    state_dicts.write_state(tmp_path / "saved", state)
    refused("sentence_pooler.dense.bias is missing", tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    config["minbert"]["sentence_encoder"]["max_length"] = 1000
    (tmp_path / "saved" / "config.json").write_text(json.dumps(config))
    refused("config.json: max_length is 1000, wanted 3 to 24: restore it", tmp_path / "saved")
    config["minbert"]["sentence_encoder"] = {"pooler": "cls"}
    (tmp_path / "saved" / "config.json").write_text(json.dumps(config))
    refused("config.json: minbert.sentence_encoder.pooler_options is missing or wrong", tmp_path / "saved")


@pytest.mark.parametrize("name", MODES)
def test_the_modules_for_sentence_transformers_say_what_the_pooler_does(folder, tmp_path, name):
    """The files, interpreted by hand as that library documents them, give the encoder's vectors."""
    torch.manual_seed(1)
    encoder = SentenceEncoder.to_train(folder, name)
    encoder.max_length = 9
    encoder.save_pretrained(tmp_path)
    modules = [module["type"].rpartition(".")[2] for module in json.loads((tmp_path / "modules.json").read_text())]
    assert modules in (["Transformer", "Pooling", "Normalize"], ["Transformer", "Pooling", "Dense", "Normalize"])
    length = json.loads((tmp_path / "sentence_bert_config.json").read_text())["max_seq_length"]
    batch = encoder.tokenizer(TEXTS, padding=True, truncation=True, max_length=length, return_tensors="pt")
    mask = batch["attention_mask"]
    with torch.no_grad():
        states = BertModel.from_pretrained(tmp_path)(batch["input_ids"], mask)["last_hidden_state"]
    pooling = json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    parts = {
        "cls_token": states[:, 0],
        "max_tokens": masked_max(states, mask),
        "mean_tokens": masked_mean(states, mask),
    }
    vectors = torch.cat([part for mode, part in parts.items() if pooling[f"pooling_mode_{mode}"]], dim=1)
    if "Dense" in modules:
        dense = state_dicts.read_state(tmp_path / "2_Dense")
        vectors = torch.tanh(vectors @ dense["linear.weight"].T + dense["linear.bias"])
    vectors = torch.nn.functional.normalize(vectors, dim=1)
    np.testing.assert_allclose(encoder.encode(TEXTS), vectors.numpy(), atol=1e-5)


def test_the_pooling_of_a_folder_for_sentence_transformers_is_taken(folder):
    pooling = folder / "1_Pooling" / "config.json"
    pooling.parent.mkdir()
    for said, pooler in (
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first"),
        ({"pooling_mode": "max"}, "max"),
        ({"pooling_mode": ["mean"]}, "mean"),
    ):
        pooling.write_text(json.dumps({"word_embedding_dimension": 24, **said}))
        assert SentenceEncoder.from_pretrained(folder).pooler_name == pooler
        assert SentenceEncoder.from_pretrained(folder, "mean").pooler_name == "mean"
    for nonsense in (5, [{}], [], {"x": 1}, True):
        pooling.write_text(json.dumps({"pooling_mode": nonsense}))
        with pytest.raises(InputError, match="1_Pooling/config.json: pools by .*, which is no pooler here"):
            SentenceEncoder.from_pretrained(folder)
    pooling.write_text(json.dumps({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": True}))
    with pytest.raises(
        InputError, match="pools by lasttoken, mean_tokens, which is no pooler here: choose one of first"
    ):
        SentenceEncoder.from_pretrained(folder)


def test_a_vector_that_is_not_finite_is_none(folder):
    encoder = SentenceEncoder.from_pretrained(folder)
    with torch.no_grad():
        encoder.bert.embeddings.word_embeddings.weight[6] = torch.nan  # of `the`
    assert encoder.encode(["a film"]).shape == (1, 24)
    for normalize in (True, False):
        with pytest.raises(InputError, match="the vector of 'the film' is not finite: its weights are damaged, or"):
            encoder.encode(["a film", "the film"], normalize=normalize)


def test_a_token_that_the_model_has_no_vector_for(folder):
    """Told when the folder is loaded, not when a text first holds it."""
    (folder / "tokenizer.json").unlink()
    with open(folder / "vocab.txt", "a", encoding="utf-8") as file:
        file.write("sunny\n")
    with pytest.raises(InputError, match="its tokenizer gives 'sunny' the id 29, and its model knows 29: copy both"):
        SentenceEncoder.from_pretrained(folder)


def test_a_pooler_that_sentence_transformers_cannot_express_says_so(folder, tmp_path):
    SentenceEncoder.to_train(folder, "layer_attention").save_pretrained(tmp_path)
    (module,) = json.loads((tmp_path / "modules.json").read_text())
    assert module["type"].startswith("pooler layer_attention can't be expressed by SentenceTransformer")


THEIRS = """
import json, sys
from sentence_transformers import SentenceTransformer
answers = {}
for name in json.loads(sys.argv[2]):
    try:
        model = SentenceTransformer(f"{sys.argv[1]}/{name}", device="cpu")
        answers[name] = model.encode(json.loads(sys.argv[3])).tolist()
    except (ImportError, ValueError) as error:
        answers[name] = str(error)
print(json.dumps(answers))
"""


def test_sentence_transformers_gives_the_same_vectors(folder, tmp_path):
    """Or, where it can't, ends with a line that says so."""
    if importlib.util.find_spec("sentence_transformers") is None:
        pytest.skip("sentence-transformers is not installed")
    names, encoders = [*MODES, "layer_attention"], {}
    for name in names:
        encoders[name] = SentenceEncoder.to_train(folder, name)
        encoders[name].save_pretrained(tmp_path / "saved" / name)
    asked = [str(tmp_path / "saved"), json.dumps(names), json.dumps(TEXTS)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-E", "-c", THEIRS, *asked]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    assert "pooler layer_attention can't be expressed" in answers.pop("layer_attention")
    for name, vectors in answers.items():
        np.testing.assert_allclose(encoders[name].encode(TEXTS), np.array(vectors), atol=1e-5)
