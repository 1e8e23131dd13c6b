"""The encoder gives transformers' numbers and gradients, reads every BERT checkpoint, and refuses what is none.

Follows bert.py's promises; transformers answers from a process of its own (see reference_transformers.py).
"""

import dataclasses
import json
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import as_written
import bert
import weights
from bert import ACTIVATIONS, BertConfig, BertLayer, BertModel, BertSelfAttention, additive_mask
from errors import InputError
from files import read_json, write_json
from packed import SWITCHES, Layout
from tokenizer import BertTokenizer

SENTENCES = [
    "The film is a quiet, stubborn wonder that nobody at the festival saw coming.",
    "Dull.",
    "Why does my cat sit on the keyboard whenever I work from home?",
    "An unbelievably overwrought, mis-cast 3-hour epic; the score by Zimmermann doesn't help!",
]
# The ids and the mask of the course's own check, sanity_check.py.
SANITY = {
    "input_ids": torch.tensor([[101, 7592, 2088, 102, 0, 0, 0, 0], [101, 7592, 15756, 2897, 2005, 17953, 2361, 102]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1]]),
    "token_type_ids": torch.zeros(2, 8, dtype=torch.long),
}
PAIRS = ["What is the best way to learn?", "He ran.", "A man is playing a flute.", ""]

# Two encoders unlike bert-base in everything that a config can say.
ODD = {
    "odd": BertConfig(
        vocab_size=53,
        hidden_size=30,
        num_hidden_layers=3,
        num_attention_heads=5,
        intermediate_size=37,
        hidden_act="gelu_new",
        max_position_embeddings=19,
        type_vocab_size=3,
        layer_norm_eps=1e-3,
        pad_token_id=4,
    ),
    "odder": BertConfig(
        vocab_size=31,
        hidden_size=21,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=8,
        hidden_act="silu",
        max_position_embeddings=11,
        type_vocab_size=1,
        layer_norm_eps=1e-6,
    ),
}


def random_model(config, seed=0):
    """An encoder whose every parameter counts: no zero bias, no norm at identity, no flat attention."""
    torch.manual_seed(seed)
    model = BertModel(config).eval()
    for p in model.parameters():
        p.data.normal_(std=0.4)
    return model


def random_batch(config, seed=0):
    """Sentences of several lengths up to the last position, a hole in one mask, and segments where there are some."""
    torch.manual_seed(seed)
    width = config.max_position_embeddings
    shape = (5, width)
    mask = torch.arange(width) < torch.tensor([width, 1, 4, width - 2, 2])[:, None]
    mask[0, 2] = False
    return {
        "input_ids": torch.randint(config.vocab_size, shape),
        "attention_mask": mask.long(),
        "token_type_ids": torch.randint(config.type_vocab_size, shape),
    }


def sentence_batch(tokenizer):
    """Real tokens: single sentences and pairs with their segments, in one padded batch."""
    texts = [(text, None) for text in SENTENCES] + list(zip(SENTENCES, PAIRS, strict=True))
    rows = [tokenizer(first, second) for first, second in texts]
    longest = max(len(row["input_ids"]) for row in rows)
    names = ("input_ids", "attention_mask", "token_type_ids")
    return {name: torch.tensor([row[name] + [0] * (longest - len(row[name])) for row in rows]) for name in names}


def differentiate(model, given, double):
    """What the subcommand `encode` of the reference computes, by ours: (its tensors, every parameter's gradient)."""
    batch = {name: given[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    model = (model.double() if double else model).eval()
    out = model(**batch, output_hidden_states=True)
    assert torch.equal(out["hidden_states"][-1], out["last_hidden_state"])
    loss = (out["last_hidden_state"] * given["hidden_weights"]).sum()
    (loss + (out["pooler_output"] * given["pooled_weights"]).sum()).backward()
    states = {"hidden_states": torch.stack(out["hidden_states"]), "pooler_output": out["pooler_output"]}
    return states, {name: p.grad for name, p in model.named_parameters()}


@pytest.fixture(scope="module")
def compared(minilm, reference, tmp_path_factory):
    """name -> ((states, gradients) of ours, those of transformers, keys it missed or did not expect, mask)."""
    folder = tmp_path_factory.mktemp("parity")
    jobs, ours, masks = [], {}, {}
    for name in ("minilm", "sanity", *ODD, *ACTIVATIONS):
        if name in ("minilm", "sanity"):
            source, model, double = minilm, BertModel.from_pretrained(minilm), False
            batch = SANITY if name == "sanity" else sentence_batch(BertTokenizer.from_pretrained(minilm))
        else:
            config = ODD.get(name) or dataclasses.replace(ODD["odder"], hidden_act=name)
            # In double precision rounding hides nothing.
            source, model, double = folder / name, random_model(config), True
            model.save_pretrained(source)
            batch = random_batch(config)
        torch.manual_seed(0)
        kind = torch.float64 if double else torch.float32
        size, mask = model.config.hidden_size, batch["attention_mask"]
        given = {
            **batch,
            # Nothing is asked of padding, where transformers leaves numbers and ours are zero.
            "hidden_weights": torch.randn(*mask.shape, size, dtype=kind) * mask[:, :, None],
            "pooled_weights": torch.randn(len(mask), size, dtype=kind),
        }
        files = {kind: str(folder / f"{name}.{kind}.safetensors") for kind in ("inputs", "outputs")}
        save_file(given, files["inputs"])
        jobs.append({"folder": str(source), "double": double, **files})
        ours[name], masks[name] = differentiate(model, given, double), mask
    keys = reference("encode", jobs)
    found = {}
    for name, job, loaded in zip(ours, jobs, keys, strict=True):
        theirs = load_file(job["outputs"])
        states = {key: theirs.pop(key) for key in ("hidden_states", "pooler_output")}
        found[name] = (ours[name], (states, theirs), loaded, masks[name])
    return found


@pytest.mark.parametrize("name", ["minilm", "sanity", *ODD, *ACTIVATIONS])
def test_every_hidden_state_and_gradient_is_that_of_transformers(name, compared):
    (states, gradients), (their_states, their_gradients), keys, mask = compared[name]
    assert keys == {"missing": [], "unexpected": []}
    close = 1e-5 if name in ("minilm", "sanity") else 1e-11
    real = mask.bool()
    assert states["hidden_states"].shape == their_states["hidden_states"].shape
    for layer, (found, wanted) in enumerate(zip(states["hidden_states"], their_states["hidden_states"], strict=True)):
        torch.testing.assert_close(found[real], wanted[real], rtol=0, atol=close, msg=lambda m, i=layer: f"{i}: {m}")
        assert (found[~real] == 0).all()
    torch.testing.assert_close(states["pooler_output"], their_states["pooler_output"], rtol=0, atol=close)
    assert set(gradients) == set(their_gradients)
    for parameter, wanted in their_gradients.items():
        scale = max(1.0, wanted.abs().max().item())
        error = (gradients[parameter] - wanted).abs().max().item() / scale
        assert error <= close, (parameter, error, scale)
    # The scalar weighs real tokens by numbers of order 1, so the gradients that were compared are not small.
    sizes = [g.abs().max().item() for parameter, g in their_gradients.items() if not parameter.endswith("key.bias")]
    assert sorted(sizes)[len(sizes) // 10] > 1e-2


def test_defaults_are_those_of_bert_base():
    config = BertConfig()
    with torch.device("meta"):
        model = BertModel(config)
    assert sum(p.numel() for p in model.parameters()) == 109_482_240  # as published for google-bert/bert-base-uncased
    assert (config.hidden_dropout_prob, config.layer_norm_eps, config.hidden_act) == (0.1, 1e-12, "gelu")


# --- What a sentence's encoding depends on


@pytest.mark.parametrize("name", ["minilm", "tiny"])
def test_a_sentence_alone_in_a_batch_and_padded_to_128_is_encoded_the_same(name, tiny, request):
    if name == "minilm":
        folder = request.getfixturevalue("minilm")
        model, tokenizer = BertModel.from_pretrained(folder), BertTokenizer.from_pretrained(folder)
        batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
        ids, mask = batch["input_ids"], batch["attention_mask"]
    else:
        model = tiny(max_position_embeddings=128)
        torch.manual_seed(0)
        mask = (torch.arange(9) < torch.tensor([9, 1, 4, 9, 2])[:, None]).long()
        ids = torch.randint(5, 29, mask.shape) * mask
    wide = [nn.functional.pad(x, (0, 128 - x.shape[1])) for x in (ids, mask)]
    noise = torch.where(wide[1] == 0, torch.randint(5, 29, wide[0].shape), wide[0])  # padding may hold any id
    with torch.no_grad():
        together, padded, noisy = (
            model(x, m, output_hidden_states=True) for x, m in ((ids, mask), wide, (noise, wide[1]))
        )
        alone = [model(x[None, : m.sum()], output_hidden_states=True) for x, m in zip(ids, mask, strict=True)]
    for layer, state in enumerate(together["hidden_states"]):
        for i, single in enumerate(alone):
            length = int(mask[i].sum())
            for other in (single["hidden_states"][layer][0], padded["hidden_states"][layer][i]):
                torch.testing.assert_close(state[i, :length], other[:length], rtol=0, atol=1e-5)
            assert (padded["hidden_states"][layer][i, length:] == 0).all()
            assert torch.equal(padded["hidden_states"][layer][i], noisy["hidden_states"][layer][i])
    pooled = torch.cat([single["pooler_output"] for single in alone])
    for other in (pooled, padded["pooler_output"], noisy["pooler_output"]):
        torch.testing.assert_close(together["pooler_output"], other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("switch", [None, "packing", "first_only", "by_hand"])
def test_first_tokens_alone_are_encoded_as_among_all(switch, gradients, monkeypatch):
    model, batch = random_model(ODD["odd"]).double(), random_batch(ODD["odd"])
    ids, mask, types = (batch[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
    mask[1, :2], mask[2, 0] = torch.tensor([0, 1]), 0  # the first real token need not be the first column
    layout = Layout.of(mask)
    with torch.no_grad():
        wanted = model.encode(ids, layout, types, keep=None)
    if switch:
        monkeypatch.setattr(SWITCHES, switch, False)
    with torch.set_grad_enabled(gradients):
        (first,) = model.encode(ids, layout, types, first_only=True)
        *others, last = model.encode(ids, layout, types, keep=None, first_only=True)
    assert first.shape == (5, 30) and torch.equal(first, last)
    torch.testing.assert_close(first, wanted[-1][layout.first], rtol=0, atol=1e-11)
    torch.testing.assert_close(tuple(others), wanted[:-1], rtol=0, atol=1e-11)


def test_no_mask_means_all_real_and_no_segments_mean_the_first():
    model, batch = random_model(ODD["odd"]), random_batch(ODD["odd"])
    ids = batch["input_ids"]
    zeros, ones = torch.zeros_like(ids), torch.ones_like(ids)
    wanted = model(ids, ones, zeros)
    torch.testing.assert_close(model(ids), wanted, rtol=0, atol=0)
    assert set(wanted) == {"last_hidden_state", "pooler_output"}
    assert not torch.allclose(model(ids, ones, ones)["pooler_output"], wanted["pooler_output"], atol=1e-3)


def test_dropout_is_drawn_in_training_alone(tiny):
    model, ids = tiny(hidden_dropout_prob=0.2), torch.tensor([[2, 7, 8, 9, 3], [2, 6, 5, 4, 3]])

    def run():
        return model(ids)["last_hidden_state"]

    calm = run()
    assert torch.equal(calm, run())
    model.train()
    torch.manual_seed(0)
    first, second = run(), run()
    torch.manual_seed(0)
    assert not torch.allclose(first, second, atol=1e-2) and torch.equal(first, run())
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):  # each of the two, by itself
        other = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, name: 0.2}
        model = tiny(**other)
        model.train()
        assert not torch.allclose(run(), calm, atol=1e-2)


def test_dropout_is_where_bert_has_it(tiny, monkeypatch):
    drawn = []

    def recording(function, name, place):
        def record(*arguments):
            drawn.append((name, arguments[place], arguments[place + 1]))
            return function(*arguments)

        return record

    monkeypatch.setattr(SWITCHES, "by_hand", False)  # which draws the same masks: see test_fused.py
    model, ids = tiny(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3), torch.tensor([[2, 7, 8, 9, 3]])
    assert as_written.packing(model.config)  # asked once, by masks of its own
    for name, place in (("dropout", 1), ("add_dropout", 2), ("packed_attention", 5)):
        monkeypatch.setattr(bert, name, recording(getattr(bert, name), name, place))
    for training in (True, False):
        drawn.clear()
        model.train(training)(ids)
        # After the embeddings; in each of three layers on the attention weights and before both residual sums.
        layer = [("packed_attention", 0.3, training), *[("add_dropout", 0.2, training)] * 2]
        assert drawn == [("dropout", 0.2, training), *layer * 3]


# --- The layers by themselves, on padded batches


@pytest.mark.parametrize("kind", [BertSelfAttention, BertLayer])
def test_a_layer_called_by_itself_takes_padding_and_gives_what_it_gives_packed(kind, tiny_config):
    torch.manual_seed(0)
    layer = kind(tiny_config).eval()
    for p in layer.parameters():
        p.data.normal_(std=0.4)
    mask = torch.arange(7) < torch.tensor([7, 1, 4])[:, None]
    hidden = torch.randn(3, 7, 24, requires_grad=True)
    layout = Layout.of(mask)
    padded = layer(hidden, additive_mask(mask))
    assert padded.shape == (3, 7, 24)
    packed = layer(layout.pack(hidden), layout)
    torch.testing.assert_close(layout.pack(padded), packed, rtol=0, atol=1e-5)
    # The course's mask has -10000 where padding is.
    course = (1 - mask[:, None, None, :].float()) * -10000.0
    torch.testing.assert_close(layout.pack(layer(hidden, course)), packed, rtol=0, atol=1e-5)
    weight = torch.randn(packed.shape)
    (from_padded,) = torch.autograd.grad((layout.pack(padded) * weight).sum(), hidden)
    (from_packed,) = torch.autograd.grad((packed * weight).sum(), hidden)
    torch.testing.assert_close(from_padded, from_packed, rtol=1e-5, atol=1e-5)


def test_padded_attention_has_dropout_in_training(tiny_config):
    torch.manual_seed(0)
    attention = BertSelfAttention(dataclasses.replace(tiny_config, attention_probs_dropout_prob=0.25))
    attention.value.weight.data.zero_()
    attention.value.bias.data.fill_(1.0)
    hidden, mask = torch.randn(300, 6, 24), torch.zeros(300, 1, 1, 6)
    assert (attention.eval()(hidden, mask) - 1).abs().max() < 1e-5
    dropped = attention.train()(hidden, mask)
    assert dropped.std() > 0.1 and abs(dropped.mean() - 1) < 0.02


def test_additive_mask_by_hand():
    lowest = torch.finfo(torch.float32).min
    assert additive_mask(torch.tensor([[1, 0]])).tolist() == [[[[0.0, lowest]]]]
    assert additive_mask(torch.tensor([[True, False]]), torch.float64).dtype == torch.float64


# --- Initialization


def test_a_new_encoder_starts_as_bert_did():
    torch.manual_seed(0)
    model = BertModel(BertConfig(vocab_size=400, hidden_size=60, num_hidden_layers=2, intermediate_size=240))
    for name, p in model.named_parameters():
        if name.endswith("LayerNorm.weight"):
            assert (p == 1).all()
        elif name.endswith("bias"):
            assert (p == 0).all()
        else:
            assert abs(p.mean()) < 5 * 0.02 / p.numel() ** 0.5, name
            assert p.std().item() == pytest.approx(0.02, rel=0.25), name
    assert (model.embeddings.word_embeddings.weight[0] == 0).all()


# --- Checkpoints


@pytest.fixture
def model():
    return random_model(ODD["odd"])


@pytest.fixture
def folder(model, tmp_path):
    model.save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def rewrite(folder, state):
    (folder / "model.safetensors").unlink()
    save_file(state, folder / "model.safetensors")


def assert_same(found, wanted):
    assert {name: tensor.tolist() for name, tensor in found.state_dict().items()} == {
        name: tensor.tolist() for name, tensor in wanted.state_dict().items()
    }


def test_saved_and_loaded_is_the_same_model_in_evaluation_mode(model, folder):
    found = BertModel.from_pretrained(folder)
    assert not any(module.training for module in found.modules())
    assert found.config == model.config
    assert_same(found, model)
    assert set(json.loads((folder / "config.json").read_text())) >= {"model_type", "architectures", "hidden_act"}


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: f"bert.{name}",
        lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"),
        lambda name: f"bert.{name}".replace("LayerNorm.weight", "LayerNorm.gamma"),
    ],
    ids=["prefix", "gamma and beta", "prefix and gamma"],
)
@pytest.mark.parametrize("pickled", [False, True])
def test_names_of_other_times_are_understood(rename, pickled, model, folder):
    state = {rename(name): tensor for name, tensor in model.state_dict().items()}
    # What else such files hold: other heads (one of them with a LayerNorm), a buffer of positions.
    state["cls.predictions.bias"] = torch.zeros(53)
    state["cls.predictions.transform.LayerNorm.weight"] = torch.zeros(30)
    state["cls.seq_relationship.weight"] = torch.zeros(2, 30)
    state["bert.embeddings.position_ids"] = torch.arange(19)[None]
    if pickled:
        (folder / "model.safetensors").unlink()
        torch.save(state, folder / "pytorch_model.bin")
    else:
        rewrite(folder, state)
    assert_same(BertModel.from_pretrained(folder), model)


def test_half_precision_weights_are_read_as_single(model, folder):
    rewrite(folder, {name: tensor.half() for name, tensor in model.state_dict().items()})
    found = BertModel.from_pretrained(folder)
    assert {p.dtype for p in found.parameters()} == {torch.float32}
    wanted = model.pooler.dense.weight.half().float()
    assert torch.equal(found.pooler.dense.weight, wanted)


def test_a_pickle_that_would_run_code_is_refused(folder, tmp_path):
    class Malicious:
        def __reduce__(self):
            return (open, (str(tmp_path / "was here"), "w"))

    (folder / "model.safetensors").unlink()
    with open(folder / "pytorch_model.bin", "wb") as file:
        pickle.dump({"embeddings.word_embeddings.weight": Malicious()}, file)
    with pytest.raises(InputError, match="pytorch_model.bin: "):
        BertModel.from_pretrained(folder)
    assert not (tmp_path / "was here").exists()


def test_missing_weights_are_listed(model, folder):
    state = model.state_dict()
    del state["encoder.layer.1.attention.self.key.bias"]
    rewrite(folder, state)
    with pytest.raises(InputError, match=r"saved: no weights for encoder\.layer\.1\.attention\.self\.key\.bias: not a"):
        BertModel.from_pretrained(folder)
    rewrite(folder, {name: tensor for name, tensor in state.items() if not name.startswith("encoder.layer.0.a")})
    with pytest.raises(InputError, match=r"encoder\.layer\.0\.attention\.self\.query\.weight, .* and 6 more: not a"):
        BertModel.from_pretrained(folder)
    rewrite(folder, {name: tensor for name, tensor in state.items() if not name.startswith("embeddings.")})
    with pytest.raises(InputError, match=r"no weights for embeddings\.word_embeddings\.weight, .*type_embeddings"):
        BertModel.from_pretrained(folder)


def test_a_config_can_not_ask_for_memory_that_its_weights_do_not_need(model, folder):
    """A number in config.json decides how much is allocated: it has to be the weights' own."""
    config = read_json(folder / "config.json")
    for name in ("vocab_size", "max_position_embeddings", "type_vocab_size", "intermediate_size"):
        write_json(folder / "config.json", {**config, name: 1 << 24})
        with pytest.raises(
            InputError, match="config.json asks for .*16777216.*: weights and config belong to different"
        ):
            BertModel.from_pretrained(folder)
    write_json(folder / "config.json", {**config, "num_hidden_layers": 1000})
    with pytest.raises(InputError, match=r"no weights for encoder\.layer\.999\.intermediate"):
        BertModel.from_pretrained(folder)
    for name in ("hidden_size", "num_hidden_layers", "vocab_size"):
        write_json(folder / "config.json", {**config, name: 10**30})
        with pytest.raises(InputError, match=f"config.json: {name} is 10000.*, at most"):
            BertModel.from_pretrained(folder)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_weights_of_other_numbers_are_refused(model, folder, dtype):
    """A copy would convert them, and a complex number would lose half of itself."""
    state = model.state_dict()
    state["embeddings.LayerNorm.bias"] = state["embeddings.LayerNorm.bias"].to(dtype)
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=f"embeddings.LayerNorm.bias holds {dtype}, wanted floating-point numbers"):
        BertModel.from_pretrained(folder)


def test_weights_of_another_shape_are_named(model, folder):
    state = model.state_dict()
    state["embeddings.word_embeddings.weight"] = torch.zeros(54, 30)
    rewrite(folder, state)
    with pytest.raises(InputError, match=r"word_embeddings\.weight is \(54, 30\), config\.json asks for \(53, 30\)"):
        BertModel.from_pretrained(folder)


def test_a_checkpoint_may_come_without_a_pooler_but_not_with_half_of_one(model, folder):
    state = model.state_dict()
    del state["pooler.dense.weight"]
    rewrite(folder, state)
    with pytest.raises(InputError, match=r"no weights for pooler\.dense\.weight"):
        BertModel.from_pretrained(folder)
    del state["pooler.dense.bias"]
    rewrite(folder, state)
    found = BertModel.from_pretrained(folder)
    assert (found.pooler.dense.bias == 0).all() and found.pooler.dense.weight.std() < 0.03  # as initialized
    ids = torch.tensor([[2, 7, 3]])
    assert torch.equal(found(ids)["last_hidden_state"], model(ids)["last_hidden_state"])


def test_numbers_of_the_config_can_be_replaced(folder):
    assert BertModel.from_pretrained(folder, hidden_dropout_prob=0.25).config.hidden_dropout_prob == 0.25
    with pytest.raises(InputError, match="hidden_dropout_prob is 1.5; wanted a probability"):
        BertModel.from_pretrained(folder, hidden_dropout_prob=1.5)


LIES = {
    "hidden_act": ("mish", "hidden_act 'mish' is not known; known: gelu, "),
    "model_type": ("roberta", "model_type is 'roberta'"),
    "position_embedding_type": ("relative_key", "position_embedding_type is 'relative_key'; only 'absolute'"),
    "hidden_size": (31, "hidden_size 31 is not a multiple of num_attention_heads 5"),
    "num_attention_heads": (0, "num_attention_heads is 0; wanted 1 or more"),
    "num_hidden_layers": (3.5, "num_hidden_layers is 3.5; wanted a whole number"),
    "intermediate_size": ("37", "intermediate_size is '37'; wanted a whole number"),
    "vocab_size": (True, "vocab_size is True; wanted a whole number"),
    "max_position_embeddings": (-1, "max_position_embeddings is -1; wanted 1 or more"),
    "layer_norm_eps": ("tiny", "layer_norm_eps is 'tiny'; wanted a number"),
    "attention_probs_dropout_prob": (-0.1, "attention_probs_dropout_prob is -0.1; wanted a probability from 0 to 1"),
    "pad_token_id": (53, "pad_token_id 53 is outside the vocabulary of 53"),
}


@pytest.mark.parametrize("key", list(LIES))
def test_a_config_that_lies_is_refused_in_one_line(key, folder):
    value, words = LIES[key]
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(InputError) as caught:
        BertModel.from_pretrained(folder)
    message = str(caught.value)
    assert message.startswith(f"{path}: {words}") and "choose a BERT checkpoint" in message and "\n" not in message


def test_a_config_that_is_no_object_is_refused(folder):
    with pytest.raises(InputError, match="an object"):
        BertConfig.from_dict([1, 2], "config.json")
    (folder / "config.json").write_text("[1, 2]")
    for read in (BertModel.from_pretrained, BertConfig.from_pretrained, BertConfig.from_folder):
        with pytest.raises(InputError, match="config.json: an object"):
            read(folder)


def test_what_a_config_leaves_out_or_empty_is_bert_bases():
    config = BertConfig.from_dict({"model_type": "bert", "hidden_size": 24, "type_vocab_size": None, "gradient": "x"})
    assert config == BertConfig(hidden_size=24)


# --- Inputs that don't fit


def test_inputs_that_do_not_fit_are_refused_by_name():
    model = random_model(ODD["odd"])
    ids = torch.zeros(2, 5, dtype=torch.long)
    ones = torch.ones_like(ids)
    cases = [
        ((torch.zeros(1, 20, dtype=torch.long),), "input of 20 tokens, but the model has 19 positions"),
        ((ids + 53,), "token id 53 is outside the 53"),
        ((ids - 1,), "token id -1 is outside the 53"),
        ((ids, ones, ids + 3), "token type 3 is outside the 3"),
        ((ids[0],), r"input_ids must be \(B, T\), got \(5,\)"),
        ((ids, ones[:, :4]), r"attention_mask is \(2, 4\) but input_ids are \(2, 5\)"),
        ((ids, ones[:1]), r"attention_mask is \(1, 5\) but input_ids are \(2, 5\)"),
        ((ids, ones, ids[:, :4]), r"token_type_ids is \(2, 4\) but input_ids are \(2, 5\)"),
        ((ids, ones * 0), r"no real token in sentence\(s\) \[0, 1\]"),
        ((ids, ones[0]), r"attention_mask must be \(B, T\), got \(5,\)"),
    ]
    for arguments, words in cases:
        with pytest.raises(ValueError, match=words):
            model(*arguments)
    with pytest.raises(ValueError, match="attention_mask is"):
        model.encode(ids, Layout.of(ones[:, :4]))
    model(torch.full((1, 19), 52))  # the last position and the last id are inside


# --- The course's own check


def test_the_courses_sanity_check_on_figures_of_transformers(compared):
    # The course calls the model with ids and mask by position and compares both entries, the first one at real tokens.
    _, (stored, _), _, mask = compared["sanity"]
    sanity_data = {"last_hidden_state": stored["hidden_states"][-1], "pooler_output": stored["pooler_output"]}
    model = BertModel.from_pretrained("all-MiniLM-L6-v2")
    outputs = model(SANITY["input_ids"], mask)
    assert list(outputs) == ["last_hidden_state", "pooler_output"]
    for name in outputs:
        if name == "last_hidden_state":
            outputs[name] = outputs[name] * mask[:, :, None]
            sanity_data[name] = sanity_data[name] * mask[:, :, None]
        assert torch.allclose(outputs[name], sanity_data[name], atol=1e-5, rtol=1e-3)


def test_known_names_go_through_the_finder(monkeypatch, folder, model):
    asked = []
    real = weights.find
    monkeypatch.setattr(weights, "find", lambda name: asked.append(name) or real(folder))
    assert_same(BertModel.from_pretrained("bert-base-uncased"), model)
    assert_same(BertModel.from_pretrained(), model)
    assert BertConfig.from_pretrained("google-bert/bert-base-uncased") == model.config
    assert asked == ["bert-base-uncased", None, "google-bert/bert-base-uncased"]
