"""The multi-task model: the course's methods, what a frozen encoder means, files that come back as they were.

Follows model.py's promises and the interface of the CS 224N default project's MultitaskBERT.
"""

import json
import math
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import bert
import weights
from batches import TaskData
from bert import BertModel
from datasets import Example, Table
from errors import InputError
from evaluation import predict
from model import ModelConfig, MultitaskBERT
from optimizer import AdamW
from packed import SWITCHES
from poolers import masked_mean
from tasks import CFIMDB, PARA, SST, STS

TEXTS = [
    "the film was very good",
    "dull",
    "a cat sat on the mat , who ran ?",
    "not good , not bad .",
    "bright",
    "why sat the dog on a mat",
    "bad film",
    "good cat , dull dog",
]
LABELS = {
    "sst": [3, 0, 2, 2, 4, 1, 0, 3],
    "para": [1, 0, 0, 1, 1, 0, 1, 0],
    "sts": [4.6, 0.0, 2.2, 5.0, 1.0, 3.2, 0.4, 2.8],
    "cfimdb": [1, 0, 1, 0, 1, 0, 0, 1],
}


def data(task, tokenizer):
    """Eight examples of a task; a pair's second sentence is the next text."""
    seconds = [*TEXTS[1:], TEXTS[0]] if task.is_pair else [None] * 8
    rows = enumerate(zip(TEXTS, seconds, LABELS[task.name], strict=True))
    return TaskData(task, Table(Path("made up"), [Example(f"id{i}", *r, i + 2) for i, r in rows], [], ""), tokenizer)


def tokens(tokenizer, texts):
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    return encoded.input_ids, encoded.attention_mask


@pytest.fixture
def build(tiny):
    """build(names, options of ModelConfig.for_tasks) -> a model in evaluation mode, its heads drawn with seed 0."""

    def make(names=("sst", "para", "sts"), **options):
        encoder = tiny(**options.pop("encoder", {}))
        torch.manual_seed(0)
        return MultitaskBERT(ModelConfig.for_tasks(names, **options), encoder).eval()

    return make


# --- The course's methods


def test_the_courses_methods_give_what_a_batch_gives(build, tiny_tokenizer):
    model = build()
    seconds = [*TEXTS[1:], TEXTS[0]]
    first, second = tokens(tiny_tokenizer, TEXTS[:5]), tokens(tiny_tokenizer, seconds[:5])
    # Each side is padded to its own longest; the batch pads both to the longest of all.
    short = tokens(tiny_tokenizer, TEXTS[:2]), tokens(tiny_tokenizer, seconds[:2])
    assert short[0][0].shape[1] != short[1][0].shape[1]
    with torch.no_grad():
        sentiment = model.predict_sentiment(*first)
        wanted = model.outputs(data(SST, tiny_tokenizer).batch(np.arange(5)))
        assert sentiment.shape == (5, 5)
        torch.testing.assert_close(sentiment, wanted, rtol=1e-5, atol=1e-5)
        for method, task in ((model.predict_paraphrase, PARA), (model.predict_similarity, STS)):
            for count, sides in ((5, (first, second)), (2, short)):
                score = method(*sides[0], *sides[1])
                wanted = model.outputs(data(task, tiny_tokenizer).batch(np.arange(count)))
                assert score.shape == (count,)
                torch.testing.assert_close(score, wanted, rtol=1e-5, atol=1e-4)
        embedding = model(*first)
        hidden = model.bert(*first)["last_hidden_state"]
        torch.testing.assert_close(embedding, masked_mean(hidden, first[1]), rtol=0, atol=1e-6)
        torch.testing.assert_close(embedding[1], hidden[1, :3].mean(dim=0), rtol=0, atol=1e-6)  # [CLS] dull [SEP]


def test_a_batch_of_one(build, tiny_tokenizer):
    model, one = build(), tokens(tiny_tokenizer, TEXTS[:1])
    assert model(*one).shape == (1, 24)
    assert model.predict_sentiment(*one).shape == (1, 5)
    assert model.predict_paraphrase(*one, *one).shape == model.predict_similarity(*one, *one).shape == (1,)


@pytest.mark.parametrize(
    ("options", "frozen"),
    [
        ({"option": "pretrain"}, True),
        ({"option": "finetune"}, False),
        ({"fine_tune_mode": "last-linear-layer"}, True),
        ({"fine_tune_mode": "full-model"}, False),
        ({}, True),  # the course's default
    ],
)
def test_the_courses_namespace_in_both_seasons_words(options, frozen, tiny):
    course = {"hidden_dropout_prob": 0.2, "num_labels": {0: 0}, "hidden_size": 768, "data_dir": "."}
    model = MultitaskBERT(SimpleNamespace(**course, **options), tiny())
    assert list(model.heads) == ["sst", "para", "sts"]
    assert model.frozen == frozen
    assert {p.requires_grad for p in model.bert.parameters()} == {not frozen}
    assert all(p.requires_grad for p in model.heads.parameters())
    assert {head.config.dropout_prob for head in model.heads.values()} == {0.2}
    assert [head.config.attention_layers for head in model.heads.values()] == [2, 1, 3]


def test_weights_come_from_the_config_where_no_encoder_is_given(tiny, tmp_path, monkeypatch):
    tiny(seed=3).save_pretrained(tmp_path)
    asked = []
    real = weights.find
    monkeypatch.setattr(weights, "find", lambda name: asked.append(name) or real(tmp_path))
    first = MultitaskBERT(SimpleNamespace(option="finetune"))
    second = MultitaskBERT(ModelConfig.for_tasks(model="a name"))
    assert asked == [None, "a name"]
    for model in (first, second):
        assert torch.equal(model.bert.pooler.dense.weight, tiny(seed=3).pooler.dense.weight)


def test_unknown_options_are_refused(tiny):
    with pytest.raises(InputError, match="--option thaw: not known; known: pretrain, finetune"):
        MultitaskBERT(SimpleNamespace(fine_tune_mode="thaw"), tiny())


def test_for_tasks_gives_the_posters_heads():
    heads = ModelConfig.for_tasks(("sst", "para", "sts", "cfimdb"), attention={"sts": 0}).heads
    assert [(h.attention_layers, h.pooler) for h in heads.values()] == [
        (2, "first"),
        (1, "first"),
        (0, "mean"),
        (2, "first"),
    ]
    assert {h.pooler for h in ModelConfig.for_tasks(pooler="cls").heads.values()} == {"cls"}


def test_inputs_that_do_not_fit_are_refused(build, tiny_tokenizer):
    model = build(("para",))
    ids, mask = tokens(tiny_tokenizer, TEXTS[:3])
    with pytest.raises(InputError, match="no head for sst; it has para: train with --tasks sst"):
        model.predict_sentiment(ids, mask)
    with pytest.raises(ValueError, match=r"attention_mask is \(3, 11\) but input_ids are \(3, 12\)"):
        model(ids, mask[:, :11])
    with pytest.raises(ValueError, match=r"attention_mask is \(3, 11\) but input_ids are \(3, 12\)"):
        model.predict_paraphrase(ids, mask[:, :11], ids, mask)
    with pytest.raises(ValueError, match="3 first sentences but 1 second"):
        model.predict_paraphrase(ids, mask, ids[:1], mask[:1])
    long = torch.full((1, 25), 7)
    with pytest.raises(ValueError, match="input of 25 tokens, but the model has 24 positions"):
        model(long, torch.ones_like(long))
    with pytest.raises(ValueError, match="token id 29 is outside the 29"):
        model(torch.full((1, 3), 29), torch.ones(1, 3))


# --- What learns


@pytest.mark.parametrize("pooler", [None, "cls"])
def test_a_frozen_encoder_learns_nothing_and_drops_nothing(build, tiny_tokenizer, pooler):
    model = build(option="pretrain", pooler=pooler).train()
    assert not any(module.training for module in model.bert.modules())
    assert all(module.training for module in model.heads.modules())
    batch = data(SST, tiny_tokenizer).batch(np.arange(8))
    (state,) = model.encode(batch.input_ids, batch.layout)
    assert not state.requires_grad
    assert torch.equal(state, model.encode(batch.input_ids, batch.layout)[0])
    assert not torch.allclose(model.outputs(batch), model.outputs(batch), atol=1e-3)  # the heads do drop
    sum(model.loss(data(task, tiny_tokenizer).batch(np.arange(8))) for task in (SST, PARA, STS)).backward()
    assert all(p.grad is None for p in model.bert.parameters())
    for name, p in model.heads.named_parameters():
        # A pooler that came from the checkpoint was pretrained, so it stays as it is too.
        assert p.requires_grad == (p.grad is not None) == (".pooler." not in name), name


def test_a_frozen_encoder_may_drop_in_training_alone(build, tiny_tokenizer):
    """As the poster's code has it: other outputs each time, still nothing learned, and the same ones in evaluation."""
    model = build(option="pretrain", frozen_dropout=True, hidden_dropout_prob=0.0).train()
    assert all(module.training for module in model.bert.modules())
    batch = data(SST, tiny_tokenizer).batch(np.arange(8))
    one, other = (model.encode(batch.input_ids, batch.layout)[0] for _ in range(2))
    assert not one.requires_grad and not torch.allclose(one, other, atol=1e-3)
    model.loss(batch).backward()
    assert all(p.grad is None for p in model.bert.parameters())
    model.eval()
    calm = build(option="pretrain", hidden_dropout_prob=0.0)
    assert torch.equal(model.outputs(batch), calm.outputs(batch))


@pytest.mark.parametrize("pooler", [None, "cls"])
def test_gradients_reach_every_parameter_that_learns(build, tiny_tokenizer, pooler):
    model = build(option="finetune", pooler=pooler).train()
    assert all(module.training for module in model.modules())
    sum(model.loss(data(task, tiny_tokenizer).batch(np.arange(8))) for task in (SST, PARA, STS)).backward()
    for name, p in model.named_parameters():
        # By design nothing reaches these: the encoder's own pooler, which no head reads, and the bias of a key, which
        # adds the same number to all of a query's scores and so changes no softmax.
        if name.startswith("bert.pooler."):
            assert p.grad is None
        elif name.endswith("key.bias"):
            assert p.grad.abs().max() < 1e-3 * model.get_parameter(name.replace("bias", "weight")).grad.abs().max()
        else:
            assert p.grad.isfinite().all() and p.grad.abs().max() > 0, name
    embeddings = model.bert.embeddings
    words = data(SST, tiny_tokenizer).batch(np.arange(8)).input_ids.unique()[1:]  # without padding
    reached = embeddings.word_embeddings.weight.grad.abs().sum(dim=1) > 0
    assert reached.nonzero().flatten().tolist() == words.tolist()
    assert (embeddings.position_embeddings.weight.grad.abs().sum(dim=1) > 0).tolist() == [True] * 12 + [False] * 12
    assert (embeddings.token_type_embeddings.weight.grad.abs().sum(dim=1) > 0).tolist() == [True, False]


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("pooler", ["first", "cls", "mean"])
def test_a_last_layer_read_at_first_tokens_alone_is_computed_for_them_alone(
    pooler, packing, build, tiny_tokenizer, monkeypatch
):
    calm = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    none = {"sst": 0, "para": 0}
    model = build(("sst", "para"), attention=none, pooler=pooler, hidden_dropout_prob=0.0, encoder=calm).train()
    rows = []
    for layer in model.bert.encoder.layer:
        layer.register_forward_hook(lambda _module, _given, out: rows.append(out.shape[0]))
    monkeypatch.setattr(SWITCHES, "packing", packing)

    def run(task):
        rows.clear()
        model.zero_grad()
        batch = data(task, tiny_tokenizer).batch(np.arange(8))
        outputs = model.outputs(batch)
        model.loss(batch).backward()
        return outputs, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, batch.tokens

    for task, sentences in ((SST, 8), (PARA, 16)):
        monkeypatch.setattr(SWITCHES, "first_only", True)
        found, gradients, tokens = run(task)
        if packing:
            assert rows[:3] == [tokens, tokens, tokens if pooler == "mean" else sentences]
        monkeypatch.setattr(SWITCHES, "first_only", False)
        wanted, wanted_gradients, _ = run(task)
        if packing:
            assert rows[:3] == [tokens] * 3
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        assert set(gradients) == set(wanted_gradients)
        for name, gradient in wanted_gradients.items():
            scale = max(1.0, gradient.abs().max().item())
            torch.testing.assert_close(gradients[name] / scale, gradient / scale, rtol=0, atol=1e-5, msg=name)


def test_freezing_can_be_taken_back(build):
    model = build(option="pretrain")
    model.freeze(False)
    assert all(p.requires_grad for p in model.parameters())
    assert all(module.training for module in model.train().modules())
    model.freeze(True)
    assert not any(module.training for module in model.bert.modules())


def test_stored_encodings_give_the_same_outputs(build, tiny_tokenizer):
    model = build(option="pretrain")
    batch = data(PARA, tiny_tokenizer).batch(np.arange(8))
    wanted = model.outputs(batch)
    batch.states = model.encode(batch.input_ids, batch.layout)
    model.bert = None  # not needed any more
    assert torch.equal(model.outputs(batch), wanted)


def test_a_pooler_starts_from_the_checkpoints(build):
    model = build(("sst",), pooler="cls")
    assert torch.equal(model.heads["sst"].pooler.dense.weight, model.bert.pooler.dense.weight)


def perfect(task, outputs, labels):
    if task.is_pair and task.label_kind == "score":
        return torch.corrcoef(torch.stack([outputs, labels]))[0, 1] > 0.99
    guess = (outputs > 0) if task.is_pair else outputs.argmax(dim=1)
    return (guess == labels).all()


@pytest.mark.parametrize("layers", [0, None], ids=["mean", "attention"])
@pytest.mark.parametrize("task", [SST, PARA, STS, CFIMDB], ids=lambda task: task.name)
def test_eight_examples_are_learned_by_heart(task, layers, build, tiny_tokenizer):
    attention = {} if layers is None else {task.name: layers}
    calm = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = build((task.name,), attention=attention, hidden_dropout_prob=0.0, encoder=calm).train()
    batch = data(task, tiny_tokenizer).batch(np.arange(8))
    assert not perfect(task, model.outputs(batch).detach(), batch.labels)
    optimizer = AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        loss = model.loss(batch)
        loss.backward()
        optimizer.step()
    model.eval()
    assert perfect(task, model.outputs(batch).detach(), batch.labels)
    assert model.loss(batch) < (-0.99 if task is STS else 0.1)


@pytest.mark.parametrize("loss", ["coral", "corn", "squared_emd"])
def test_eight_examples_are_learned_by_heart_with_every_ordinal_loss(loss, build, tiny_tokenizer):
    calm = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = build(("sst",), losses={"sst": loss}, attention_ffn=True, hidden_dropout_prob=0.0, encoder=calm).train()
    batch = data(SST.with_loss(loss), tiny_tokenizer).batch(np.arange(8))
    optimizer = AdamW(model.parameters(), lr=3e-3)
    for _ in range(100):
        optimizer.zero_grad()
        model.loss(batch).backward()
        optimizer.step()
    found = predict(model, data(SST, tiny_tokenizer))  # rows that know nothing of the head's loss
    assert found.values.tolist() == LABELS["sst"]
    assert found.scores == {"accuracy": 1.0, "macro_f1": 1.0, "mean_absolute_error": 0.0}
    assert found.loss == pytest.approx(model.eval().loss(batch).item(), abs=1e-5)


def test_calibration_on_one_pair_warns_of_nothing_and_stays_finite(build, tiny_tokenizer):
    model = build(("para",)).train()
    batch = data(PARA, tiny_tokenizer).batch(np.arange(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.calibrate(batch, positive=0.25)
    assert model.training and all(p.isfinite().all() for p in model.parameters())
    torch.testing.assert_close(model.eval().outputs(batch), torch.tensor([-math.log(3)]), rtol=0, atol=1e-5)


# --- Files


@pytest.fixture
def saved(build, tmp_path):
    model = build(("sst", "para", "sts"), attention={"sst": 1, "sts": 0}, option="pretrain")
    model.save_pretrained(tmp_path / "best")
    return model, tmp_path / "best"


def test_saved_and_loaded_predicts_the_same(saved, tiny_tokenizer):
    model, folder = saved
    torch.manual_seed(99)
    found = MultitaskBERT.from_pretrained(folder)
    assert not any(module.training for module in found.modules())
    assert found.config.heads == model.config.heads and found.frozen
    for task in (SST, PARA, STS):
        batch = data(task, tiny_tokenizer).batch(np.arange(8))
        assert torch.equal(found.outputs(batch), model.outputs(batch))
    found.save_pretrained(folder / "again")
    files = [(f / "model.safetensors").read_bytes() for f in (folder, folder / "again")]
    assert files[0] == files[1]


@pytest.mark.parametrize("loss", ["coral", "corn", "squared_emd"])
def test_a_head_of_every_ordinal_loss_is_saved_and_loaded(loss, build, tiny_tokenizer, tmp_path):
    options = {"losses": {"sst": loss}, "attention_ffn": True, "frozen_dropout": True, "option": "pretrain"}
    model = build(("sst", "sts"), **options)
    model.save_pretrained(tmp_path / "best")
    found = MultitaskBERT.from_pretrained(tmp_path / "best")
    assert found.config.heads == model.config.heads and found.config.frozen_dropout
    assert found.heads["sst"].task.loss == loss
    batch = data(SST, tiny_tokenizer).batch(np.arange(8))
    assert torch.equal(found.outputs(batch), model.outputs(batch))
    ids, mask = tokens(tiny_tokenizer, TEXTS)
    wanted = predict(model, data(SST, tiny_tokenizer)).values
    assert found.predict_sentiment(ids, mask).shape == (8, 5)
    assert found.predict_sentiment(ids, mask).argmax(dim=1).tolist() == wanted.tolist()


def test_a_folder_of_before_a_loss_could_be_chosen_loads(saved):
    model, folder = saved
    path = folder / "config.json"
    values = json.loads(path.read_text())
    del values["minbert"]["frozen_dropout"]
    for head in values["minbert"]["heads"].values():
        del head["loss"], head["attention_ffn"]
    path.write_text(json.dumps(values))
    assert MultitaskBERT.from_pretrained(folder).config.heads == model.config.heads


def test_transformers_loads_the_folder(saved, reference, tiny_tokenizer, tmp_path):
    model, folder = saved
    ids, mask = tokens(tiny_tokenizer, TEXTS)
    given = {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": torch.zeros_like(ids),
        "hidden_weights": torch.ones(*ids.shape, 24, dtype=torch.float64),
        "pooled_weights": torch.ones(8, 24, dtype=torch.float64),
    }
    files = {kind: str(tmp_path / f"{kind}.safetensors") for kind in ("inputs", "outputs")}
    save_file(given, files["inputs"])
    (keys,) = reference("encode", [{"folder": str(folder), "double": True, **files}])
    assert keys["missing"] == [] and all(name.startswith("heads.") for name in keys["unexpected"])
    theirs, ours = load_file(files["outputs"]), model.double().bert(ids, mask)
    real = mask.bool()
    wanted = theirs["hidden_states"][-1][real]
    torch.testing.assert_close(ours["last_hidden_state"][real], wanted, rtol=0, atol=1e-11)
    torch.testing.assert_close(ours["pooler_output"], theirs["pooler_output"], rtol=0, atol=1e-11)


def test_our_encoder_loads_the_folder_too(saved):
    model, folder = saved
    found = BertModel.from_pretrained(folder).state_dict()
    assert all(torch.equal(found[name], p) for name, p in model.bert.state_dict().items())


def change(folder, edit):
    path = folder / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(edit(values)))


def with_head(**changes):
    """An edit that changes the sentiment head's description."""

    def edit(values):
        values["minbert"]["heads"]["sst"].update(changes)
        return values

    return edit


FOREIGN = {
    "an encoder alone": (
        lambda v: {k: x for k, x in v.items() if k != "minbert"},
        "no heads described under 'minbert'",
    ),
    "a list": (lambda v: [v], "an object {...} is wanted"),
    "no option": (lambda v: {**v, "minbert": {"heads": v["minbert"]["heads"]}}, "no heads described"),
    "heads in a list": (lambda v: {**v, "minbert": {"option": "pretrain", "heads": ["sst"]}}, "no heads described"),
    "a word too many": (with_head(colour="red"), "no heads described"),
    "no number of layers": (with_head(attention_layers=None), "attention_layers is None"),
    "layers in words": (with_head(attention_layers="two"), "attention_layers is 'two'"),
    "layers below zero": (with_head(attention_layers=-1), "attention_layers is -1"),
    "impossible dropout": (with_head(dropout_prob=1.5), "dropout_prob is 1.5"),
    "dropout in words": (with_head(dropout_prob="some"), "dropout_prob is 'some'"),
    "an unknown loss": (with_head(loss="huber"), "loss 'huber' of sst is not known"),
    "a feed-forward block in words": (with_head(attention_ffn="yes"), "attention_ffn is 'yes'; wanted true or false"),
    "an unknown pooler": (with_head(pooler="medium"), "pooler medium: not known"),
    "an unknown option": (lambda v: {**v, "minbert": {**v["minbert"], "option": "thaw"}}, "option thaw: not known"),
    "an unknown task": (
        lambda v: {**v, "minbert": {**v["minbert"], "heads": {"none": v["minbert"]["heads"]["sst"]}}},
        "head for unknown task 'none'; known: sst",
    ),
    "another kind": (lambda v: {**v, "model_type": "gpt2"}, "model_type is 'gpt2'"),
}


@pytest.mark.parametrize("name", list(FOREIGN))
def test_a_folder_of_another_kind_is_refused_in_one_line(name, saved):
    edit, words = FOREIGN[name]
    change(saved[1], edit)
    with pytest.raises(InputError) as caught:
        MultitaskBERT.from_pretrained(saved[1])
    message = str(caught.value)
    assert words in message and message.startswith(str(saved[1] / "config.json")) and "\n" not in message


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda s: s.pop("heads.para.output.bias"), "heads.para.output.bias is missing"),
        (lambda s: s.pop("bert.pooler.dense.bias"), "no weights for pooler.dense.bias: not a BERT"),
        (lambda s: s.update({"heads.none.output.bias": torch.zeros(3)}), "heads.none.output.bias is not part of"),
        (
            lambda s: s.update({"heads.sst.output.bias": torch.zeros(4)}),
            r"heads.sst.output.bias is \(4,\), wanted \(5,\)",
        ),
    ],
    ids=["missing", "missing in the encoder", "foreign", "misshapen"],
)
def test_weights_that_do_not_fit_are_named(edit, words, saved):
    path = saved[1] / "model.safetensors"
    state = load_file(path)
    edit(state)
    path.unlink()
    save_file(state, path)
    with pytest.raises(InputError, match=f"{saved[1]}: {words}"):
        MultitaskBERT.from_pretrained(saved[1])


@pytest.mark.parametrize("name", ["bert.encoder.layer.1.output.dense.weight", "heads.sts.output.bias"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_no_numbers_are_named(name, value, saved):
    path = saved[1] / "model.safetensors"
    state = load_file(path)
    state[name].view(-1)[-1] = value
    path.unlink()
    save_file(state, path)
    with pytest.raises(InputError, match=f"^{path}: {name} holds numbers that are NaN or infinite: copy it again"):
        MultitaskBERT.from_pretrained(saved[1])
    with pytest.raises(InputError, match=f"^{path}: {name} "):
        BertModel.from_pretrained(saved[1])


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="nowhere/config.json"):
        MultitaskBERT.from_pretrained(tmp_path / "nowhere")


def test_nothing_is_loaded_halfway(build, saved):
    model = build(("sst",))
    before = {name: p.clone() for name, p in model.state_dict().items()}
    with pytest.raises(InputError):
        model.load_weights(load_file(saved[1] / "model.safetensors"), "there")
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())


def test_every_known_activation_survives_the_round_trip(build, tmp_path):
    for name in bert.ACTIVATIONS:
        build(("sst",), encoder={"hidden_act": name}).save_pretrained(tmp_path / name)
        assert MultitaskBERT.from_pretrained(tmp_path / name).bert.config.hidden_act == name


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler here")
def test_compiled_layers_are_the_same_function(tiny, tiny_tokenizer, monkeypatch):
    """On a CPU, where it is of no use, since no GPU is at hand; without the layers by hand, which would go past it."""
    monkeypatch.setattr(SWITCHES, "by_hand", False)
    found = []
    for compiled in (False, True):
        model = MultitaskBERT(ModelConfig.for_tasks(), tiny(seed=1)).eval()
        names = list(model.state_dict())
        if compiled:
            model.load_state_dict(found[0][0])
            model.compile_layers()
        assert list(model.state_dict()) == names  # weights keep their names
        batches = [data(task, tiny_tokenizer).batch(np.arange(size)) for task, size in ((SST, 3), (STS, 8))]
        losses = [model.loss(batch) for batch in batches]
        sum(losses).backward()
        found.append(
            (model.state_dict(), losses, {n: p.grad for n, p in model.named_parameters() if p.grad is not None})
        )
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-5, rtol=1e-5)
    assert found[0][2].keys() == found[1][2].keys()
    for name, gradient in found[0][2].items():
        torch.testing.assert_close(gradient, found[1][2][name], atol=1e-4, rtol=1e-4, msg=name)
