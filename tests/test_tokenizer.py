"""The tokenizer gives transformers' ids, on real sentences and on text that nobody writes on purpose.

Follows tokenizer.py's promise; the word pieces of the first tests are worked out by hand on an invented vocabulary.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

import tokenizer
from errors import InputError
from tokenizer import BertTokenizer
from weights import locate

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s", "un", "##want", "##ed", ",", "run"]

AWKWARD = {
    "empty": "",
    "spaces": " \t\n  \r ",
    "accents": "Café crème, naïve Ångström, ŁÓDŹ, façade, e\u0301a\u0308",
    "case that grows": "İstanbul STRASSE ß ǅ ﬁne",
    "emoji": "great 👍🏽 film 👩\u200d👩\u200d👧 🇨🇭 ❤️",
    "cjk": "我喜欢这部电影 と 영화",
    "other scripts": "кино مرحبا हिन्दी ไทย ελληνικά",
    "zero width": "zero\u200bwidth\u200d joiner\ufeff mark \u2060 \u00ad soft",
    "spaces of all kinds": "a\u00a0b\u2003c\u3000d\u2028e\u2029f\u0085g\u180eh",
    "control": "bell\x07 tab\tvt\x0b ff\x0c esc\x1b[0m del\x7f c1\x9f",
    "nul": "a\x00b \x00",
    "replacement": "a\ufffdb",
    "private and unassigned": "\ue000 \U0010ffff \u0378",
    "long word": "a" * 4000,
    "long word in a sentence": "the " + "ab" * 2000 + " end",
    "word of 100": "b" * 100,
    "word of 101": "b" * 101,
    "long punctuation": "!" * 4000,
    "special tokens as text": "[CLS] a [SEP][MASK] [mask] [PAD]x [UNK]",
    "punctuation": "it's (well-known) ``quoted'' — “curly” … $5.00 50% a/b\\c",
    "numbers": "1,000.5 ½ Ⅷ x² ①",
    "long text": "a sentence that goes on and on , " * 200,
}


@pytest.fixture
def tiny(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES), encoding="utf-8")
    return BertTokenizer(tmp_path / "vocab.txt", model_max_length=8)


@pytest.fixture(scope="module")
def folder():
    """The embedded weights' folder; the tests here read only its vocabulary."""
    return locate("all-MiniLM-L6-v2")


@pytest.fixture(scope="module")
def embedded(folder):
    return BertTokenizer.from_folder(folder)


def test_word_pieces_by_hand(tiny):
    assert tiny.tokenize("The cats sat, UNWANTED dog") == [
        "the", "cat", "##s", "sat", ",", "un", "##want", "##ed", "[UNK]",
    ]  # fmt: skip
    assert tiny("the cats") == {
        "input_ids": [2, 5, 6, 8, 3],
        "token_type_ids": [0, 0, 0, 0, 0],
        "attention_mask": [1, 1, 1, 1, 1],
    }


def test_pair_by_hand_has_two_segments(tiny):
    encoding = tiny("the cat", "sat")
    assert encoding.input_ids == [2, 5, 6, 3, 7, 3]
    assert encoding.token_type_ids == [0, 0, 0, 0, 1, 1]


def test_a_pair_is_cut_from_the_longer_side(tiny):
    encoding = tiny("the cat sat the cat sat", "run cat", truncation=True)
    assert encoding.input_ids == [2, 5, 6, 7, 3, 13, 6, 3]
    assert tiny("the cat sat the cat sat", "run cat").input_ids[-4:] == [3, 13, 6, 3]


def test_padding_and_tensors(tiny):
    encoding = tiny(["the cat sat", "run"], padding=True, return_tensors="pt")
    assert encoding["input_ids"].tolist() == [[2, 5, 6, 7, 3], [2, 13, 3, 0, 0]]
    assert encoding.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert encoding.input_ids.dtype == encoding.token_type_ids.dtype == torch.long
    assert encoding.to("cpu").input_ids.shape == (2, 5)
    assert tiny("run", return_tensors="np").input_ids.tolist() == [[2, 13, 3]]
    assert tiny(["run"], padding="max_length").input_ids == [[2, 13, 3, 0, 0, 0, 0, 0]]
    assert set(tiny("run", return_token_type_ids=False)) == {"input_ids", "attention_mask"}
    # The course's datasets wrap what they get once more.
    assert torch.LongTensor(encoding["input_ids"]).shape == (2, 5)


def test_a_whole_data_set_in_one_call(tiny):
    one = tiny.encode_batch(["the cat", "", "the cat sat the cat sat the"])
    assert [ids.tolist() for ids in one.ids] == [[2, 5, 6, 3], [2, 3], [2, 5, 6, 7, 5, 6, 7, 3]]
    assert one.ids[0].dtype == np.int32 and one.type_ids is None and one.truncated == 1
    two = tiny.encode_batch(["the cat", ""], ["", "run"], max_length=4)
    assert [ids.tolist() for ids in two.ids] == [[2, 5, 3, 3], [2, 3, 13, 3]]
    assert [ids.tolist() for ids in two.type_ids] == [[0, 0, 0, 1], [0, 0, 1, 1]]
    assert two.truncated == 1
    assert tiny.encode_batch([]).ids == []


def test_a_call_leaves_no_trace_in_the_next(tiny):
    before = tiny.fingerprint()
    tiny(["the cat sat"], padding="max_length", truncation=True, max_length=4)
    assert tiny("the cat sat the cat sat the cat").input_ids[-1] == 3
    assert len(tiny("the cat sat the cat sat the cat").input_ids) == 10
    assert tiny.fingerprint() == before


def test_tokens_and_ids(tiny):
    assert tiny.convert_tokens_to_ids(["cat", "dog"]) == [6, 1]
    assert tiny.convert_ids_to_tokens([6, np.int32(8)]) == ["cat", "##s"]
    assert tiny.convert_ids_to_tokens(6) == "cat" and tiny.convert_tokens_to_ids("cat") == 6
    assert tiny.decode([2, 5, 6, 8, 12, 3]) == "[CLS] the cats, [SEP]"
    assert tiny.decode(np.array([2, 5, 6, 8, 3]), skip_special_tokens=True) == "the cats"
    assert (tiny.vocab_size, len(tiny), tiny.vocab["cat"]) == (14, 14, 6)
    assert (tiny.pad_token_id, tiny.unk_token_id, tiny.cls_token_id, tiny.sep_token_id, tiny.mask_token_id) == (
        0, 1, 2, 3, 4,
    )  # fmt: skip
    with pytest.raises(ValueError, match="run from 0 to 13"):
        tiny.convert_ids_to_tokens([14])


def test_lone_surrogates_are_replaced_as_a_decoder_would(embedded):
    assert embedded("a\ud800b \udfff").input_ids == embedded("a\ufffdb \ufffd").input_ids
    assert embedded(["x"], ["\udcff"]).input_ids == embedded(["x"], ["\ufffd"]).input_ids
    assert embedded.encode_batch(["a\ud800"]).ids[0].tolist() == embedded("a\ufffd").input_ids
    assert embedded.tokenize("a\ud800") == ["a"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"padding": "longer"}, "padding='longer': choose False, True"),
        ({"truncation": "only_first"}, "truncation='only_first': choose"),
        ({"truncation": True, "max_length": 1}, "no room for the 2 special tokens"),
        ({"return_tensors": "tf", "padding": True}, "return_tensors='tf': choose None, 'pt' or 'np'"),
        ({"return_tensors": "pt"}, "needs padding=True"),
        ({"text_pair": ["a"]}, "2 first sentences need as many second ones; found 1 texts"),
        ({"text_pair": "ab"}, "2 first sentences need as many second ones; found one text"),
    ],
)
def test_wrong_arguments_are_named(tiny, arguments, message):
    with pytest.raises(ValueError, match=message):
        tiny(["the cat", "sat"], **arguments)


def test_an_attribute_that_is_not_there_lists_those_that_are(tiny):
    with pytest.raises(AttributeError, match="it has input_ids, token_type_ids, attention_mask"):
        assert tiny("cat").offsets


def test_settings_of_whoever_saved_the_file_are_not_ours(folder, embedded):
    saved = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    assert saved["truncation"]["max_length"] == saved["padding"]["strategy"]["Fixed"] == 128
    assert len(embedded("word " * 300).input_ids) == 302
    assert len(embedded("word " * 600, truncation=True).input_ids) == embedded.model_max_length == 512
    assert embedded("word").input_ids == [101, 2773, 102]


def test_three_ways_to_the_same_tokenizer(folder, embedded):
    from_text = BertTokenizer(folder / "vocab.txt")
    from_library = BertTokenizer(Tokenizer.from_file(str(folder / "tokenizer.json")))
    assert embedded.fingerprint() == from_text.fingerprint() == from_library.fingerprint()
    assert BertTokenizer(folder / "vocab.txt", lowercase=False).fingerprint() != embedded.fingerprint()
    assert BertTokenizer(folder / "vocab.txt", model_max_length=128).fingerprint() != embedded.fingerprint()


@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"])
def test_known_by_name_as_the_course_calls_it(embedded, name):
    assert BertTokenizer.from_pretrained(name, local_files_only=True).fingerprint() == embedded.fingerprint()
    with pytest.raises(InputError, match="neither a folder nor one of the known names"):
        BertTokenizer.from_pretrained("bert-large")


@pytest.mark.parametrize("without", ["tokenizer.json", "vocab.txt"])
def test_saved_and_loaded_again(tmp_path, without):
    vocab = {piece: i for i, piece in enumerate([*PIECES, "Cat", "電", "é"])}
    tokenizer = BertTokenizer(vocab, lowercase=False, strip_accents=False, chinese_chars=False, model_max_length=9)
    tokenizer.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / without).unlink()
    loaded = BertTokenizer.from_folder(tmp_path / "saved")
    assert loaded.fingerprint() == tokenizer.fingerprint()
    assert loaded.tokenize("Cat cat é 電") == ["Cat", "cat", "é", "電"]


def test_the_longest_text_is_what_the_positions_allow(tmp_path, tiny):
    tiny.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 6}')
    assert BertTokenizer.from_folder(tmp_path).model_max_length == 6
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 64}')
    assert BertTokenizer.from_folder(tmp_path).model_max_length == 8


@pytest.mark.parametrize("value", ['"x"', '"8"', "0", "1", "3", "-5", "-1e30", "2.5", "true", "[8]", "{}"])
@pytest.mark.parametrize(
    ("name", "key"), [("tokenizer_config.json", "model_max_length"), ("config.json", "max_position_embeddings")]
)
def test_a_length_without_sense_is_refused(tmp_path, tiny, name, key, value):
    tiny.save_pretrained(tmp_path)
    (tmp_path / name).write_text(f'{{"{key}": {value}}}')
    with pytest.raises(InputError, match=f"{tmp_path / name}: {key} is .*, wanted a whole number of tokens, 4 or more"):
        BertTokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("value", ["1000000000000000019884624838656", "1e30", "null"])
def test_no_limit_of_its_own_leaves_that_of_the_positions(tmp_path, tiny, value):
    tiny.save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(f'{{"model_max_length": {value}}}')
    loaded = BertTokenizer.from_folder(tmp_path)
    assert loaded.model_max_length == 512 and loaded.encode_batch(["the " * 600]).truncated == 1
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 64}')
    assert BertTokenizer.from_folder(tmp_path).model_max_length == 64


@pytest.mark.parametrize("key", ["do_lower_case", "strip_accents", "tokenize_chinese_chars"])
@pytest.mark.parametrize("file", ["tokenizer.json", "vocab.txt"])
def test_a_setting_that_is_neither_true_nor_false(tmp_path, tiny, key, file):
    tiny.save_pretrained(tmp_path)
    (tmp_path / {"tokenizer.json": "vocab.txt", "vocab.txt": "tokenizer.json"}[file]).unlink()
    for value in ("[]", '"false"', "0"):
        (tmp_path / "tokenizer_config.json").write_text(f'{{"{key}": {value}}}')
        with pytest.raises(InputError, match=f"tokenizer_config.json: {key} is .*, wanted true or false"):
            BertTokenizer.from_folder(tmp_path)


def test_files_that_are_no_vocabulary_are_named(tmp_path, tiny):
    with pytest.raises(InputError, match="neither tokenizer.json nor vocab.txt"):
        BertTokenizer.from_folder(tmp_path / "nowhere")
    with pytest.raises(InputError, match="cannot read .*nowhere.txt: No such file"):
        BertTokenizer(tmp_path / "nowhere.txt")
    vocab = tmp_path / "vocab.txt"
    for content, message in (
        (b"", r"vocab.txt: lacks \[PAD\], \[UNK\], \[CLS\], \[SEP\]"),
        (b"[PAD]\n[UNK]\n[CLS]\nthe\n", r"vocab.txt: lacks \[SEP\]"),
        (b"[PAD]\n\xff\xfe", "vocab.txt: byte 6 is not UTF-8"),
        (b"[PAD]\n[UNK]\n[PAD]\n", r"vocab.txt, line 3: '\[PAD\]' is on line 1 already"),
    ):
        vocab.write_bytes(content)
        with pytest.raises(InputError, match=message):
            BertTokenizer.from_folder(tmp_path)


def test_a_line_of_the_vocabulary_ends_with_a_newline_only(tmp_path):
    pieces = [*PIECES[:5], "\u2028", "\x85", "after"]
    (tmp_path / "vocab.txt").write_bytes("".join(f"{piece}\r\n" for piece in pieces).encode())
    assert BertTokenizer(tmp_path / "vocab.txt").vocab["after"] == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["model"].update(type="BPE"), "BPE, BertNormalizer, BertPreTokenizer is not BERT's"),
        (lambda d: d.update(normalizer={"type": "NFC"}), "WordPiece, NFC, BertPreTokenizer is not BERT's"),
        (lambda d: d.update(normalizer=None), "not a tokenizer.json of BERT's kind"),
        (lambda d: d["model"].pop("vocab"), "not a tokenizer.json of BERT's kind"),
        (lambda d: d["model"]["vocab"].pop("[SEP]"), "has the id 3, not 13"),
        (lambda d: d["added_tokens"][4].update(id=9), "'.MASK.' has the id 9, not 4"),
        (lambda d: d["model"].update(vocab=["a"]), "its vocabulary is "),
        (lambda d: d["model"]["vocab"].update(a=-1), "the id of 'a' is -1, wanted a whole number"),
        (lambda d: d["model"]["vocab"].update(a=10**30), "the id of 'a' is 1000"),
        (lambda d: d["model"]["vocab"].update(a=True), "the id of 'a' is True"),
        (lambda d: d["model"]["vocab"].update(a=3), "both have the id 3"),
        (lambda d: d["model"].update(max_input_chars_per_word=0), "max_input_chars_per_word is 0, wanted 1 to"),
        (lambda d: d["model"].update(max_input_chars_per_word=10**30), "max_input_chars_per_word is 1000"),
        (lambda d: d["normalizer"].update(lowercase=[]), r"lowercase is \[\], wanted true or false"),
        (lambda d: d["normalizer"].update(lowercase=None), "not a tokenizer.json of BERT's kind"),
        (lambda d: d["normalizer"].update(strip_accents="yes"), "strip_accents is 'yes', wanted true or false"),
    ],
)
def test_a_tokenizer_json_of_another_kind_is_refused(tmp_path, tiny, change, message):
    tiny.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    described = json.loads(path.read_text(encoding="utf-8"))
    change(described)
    path.write_text(json.dumps(described), encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        BertTokenizer.from_folder(tmp_path)
    assert str(path) in str(caught.value)
    path.write_text(json.dumps(described)[:-5], encoding="utf-8")
    with pytest.raises(InputError, match="not JSON"):
        BertTokenizer.from_folder(tmp_path)


def test_an_added_token_is_kept_whole(tmp_path, tiny):
    tiny.save_pretrained(tmp_path)
    library = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    library.add_tokens(["<name>"])
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = BertTokenizer.from_folder(tmp_path)
    assert tokenizer.tokenize("the <name> sat") == ["the", "<name>", "sat"]
    assert tokenizer("<name>").input_ids == [2, 14, 3]
    assert (len(tokenizer), tokenizer.vocab_size) == (15, 14)


CALLS = [
    {},
    {"padding": True},
    {"truncation": True},
    {"padding": True, "truncation": True},
    {"padding": "longest", "truncation": "longest_first", "max_length": 7},
    {"padding": "max_length", "max_length": 40},
    {"padding": "max_length", "truncation": True, "max_length": 16},
    {"padding": "max_length", "truncation": True},
    {"truncation": True, "max_length": 3},
    {"truncation": False, "max_length": 5},
    {"max_length": 6},
    {"padding": True, "max_length": 6},
]


def test_awkward_text_as_transformers(folder, embedded, reference):
    texts = list(AWKWARD.values())
    seconds = texts[1:] + texts[:1]
    calls = [{"text": texts, **options} for options in CALLS]
    calls += [{"text": texts, "text_pair": seconds, **options} for options in CALLS]
    calls += [{"text": text, "truncation": True} for text in texts]
    calls += [{"text": a, "text_pair": b, "max_length": 9} for a, b in zip(texts, seconds, strict=True)]
    expected = reference("tokenize", {"folder": str(folder), "calls": calls})
    for call, answer in zip(calls, expected, strict=True):
        assert embedded(**call) == answer, call


def test_random_text_as_transformers(folder, embedded, reference):
    found = []

    @settings(max_examples=300, deadline=None, database=None, derandomize=True)
    @given(st.text(max_size=60), st.text(max_size=60))
    def collect(first, second):
        found.append((first, second))

    collect()
    firsts, seconds = zip(*found, strict=True)
    calls = [
        {"text": list(firsts)},
        {"text": list(firsts), "text_pair": list(seconds), "truncation": True, "max_length": 12},
    ]
    for call, answer in zip(calls, reference("tokenize", {"folder": str(folder), "calls": calls}), strict=True):
        assert embedded(**call) == answer


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60, database=None)
@given(st.lists(st.tuples(st.text(st.characters(codec=None)), st.text()), max_size=6), st.integers(3, 12))
def test_one_batched_call_equals_single_calls(embedded, pairs, max_length):
    firsts, seconds = [a for a, _ in pairs], [b for _, b in pairs]
    batch = embedded.encode_batch(firsts, seconds, max_length=max_length)
    alone = [embedded([a], [b], truncation=True, max_length=max_length) for a, b in pairs]
    assert [ids.tolist() for ids in batch.ids] == [one.input_ids[0] for one in alone]
    assert [ids.tolist() for ids in batch.type_ids] == [one.token_type_ids[0] for one in alone]
    assert batch.truncated == sum(len(embedded([a], [b]).input_ids[0]) > max_length for a, b in pairs)


@pytest.mark.parametrize(
    "choices",
    [{}, {"lowercase": False}, {"lowercase": False, "strip_accents": True, "chinese_chars": False}],
    ids=["uncased", "cased", "cased, accents stripped, CJK unsplit"],
)
def test_transformers_loads_what_we_save(tmp_path, folder, reference, choices):
    tokenizer = BertTokenizer(folder / "vocab.txt", model_max_length=100, **choices)
    tokenizer.save_pretrained(tmp_path / "saved")
    calls = [{"text": list(AWKWARD.values()), "truncation": True}]
    assert reference("tokenize", {"folder": str(tmp_path / "saved"), "calls": calls}) == [tokenizer(**calls[0])]


@pytest.mark.real_data
def test_every_field_of_the_real_data_as_transformers(real_data, folder, embedded, reference):
    files = [path for path in real_data.rglob("*") if path.is_file()]
    lines = (line for path in files for line in path.read_bytes().decode("utf-8", "replace").split("\n"))
    fields = sorted({field for line in lines for field in line.split("\t")})
    assert len(fields) > 100_000
    cut = {"truncation": True, "max_length": 48}
    firsts, seconds = fields[0::10], fields[5::10]
    firsts = firsts[: len(seconds)]
    calls = [{"text": fields, "truncation": True}, {"text": firsts, "text_pair": seconds, **cut}]
    singles, pairs = reference("tokenize", {"folder": str(folder), "calls": calls})
    encoded = embedded.encode_batch(fields)
    assert [ids.tolist() for ids in encoded.ids] == singles["input_ids"]
    encoded = embedded.encode_batch(firsts, seconds, max_length=48)
    assert [ids.tolist() for ids in encoded.ids] == pairs["input_ids"]
    assert [ids.tolist() for ids in encoded.type_ids] == pairs["token_type_ids"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200, database=None)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(3, 24))
def test_a_pair_is_cut_as_the_library_cuts_it(tiny, first, second, limit):
    texts = [("the " * first, "on " * second)]
    library = Tokenizer.from_str(tiny._tokenizer.to_str())
    library.enable_truncation(limit, strategy="longest_first")
    (wanted,) = library.encode_batch(texts)
    found = tiny(*map(list, zip(*texts, strict=True)), truncation=True, max_length=limit)
    assert found["input_ids"] == [wanted.ids] and found["token_type_ids"] == [wanted.type_ids]
    many = tiny.encode_batch(*map(list, zip(*texts, strict=True)), max_length=limit)
    assert many.ids[0].tolist() == wanted.ids and many.type_ids[0].tolist() == wanted.type_ids
    assert many.truncated == (first + second + 3 > limit)


def test_a_very_long_pair_takes_no_more_memory_than_its_texts(tiny):
    """The library keeps every piece that it cuts off one text beside every piece of the other: 13 GB for this pair."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "from tokenizer import BertTokenizer\n"
        "pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', 'a']\n"
        "tokenizer = BertTokenizer({piece: i for i, piece in enumerate(pieces)})\n"
        "text = 'a ' * 50_000\n"
        "print(len(tokenizer.encode_batch([text], [text], max_length=20).ids[0]))\n"
        "print(len(tokenizer([text], [text], truncation=True, max_length=20).input_ids[0]))\n"
    )
    root = Path(tokenizer.__file__).parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["20", "20"]), done.stderr
