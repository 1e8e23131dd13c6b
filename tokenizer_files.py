"""A tokenizer's files: the vocabulary and the settings in a folder of Hugging Face layout, read and checked.

Follows tokenizer.json as the `tokenizers` library writes it, vocab.txt as the BERT paper's release has it (a piece a
line), and transformers' tokenizer_config.json.
"""

from __future__ import annotations

import os
from pathlib import Path

from tokenizers import AddedToken

from errors import InputError, quoted
from files import cannot, read_json

SPECIAL_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
SHORTEST = 4  # [CLS], [SEP] twice, and one piece to tell a pair by
NO_LIMIT = 10**9  # more than any text: transformers writes int(1e30) for a model whose limit it doesn't know
DEFAULT_MAX_LENGTH = 512  # the positions of every checkpoint that the BERT paper released
LARGEST_ID = (1 << 30) - 1  # what batches.SEGMENT leaves
LONGEST_WORD = 10**6
AGAIN = "fetch the file again"
REMEDY = "give a BERT vocabulary, one piece a line"


def read_folder(folder: Path) -> tuple[dict[str, int], dict]:
    """The vocabulary of a folder, and the other arguments of BertTokenizer: of tokenizer.json if there is one.

    Texts are cut at config.json's max_position_embeddings, or earlier if tokenizer_config.json says so. Raises
    InputError, naming file and value, for a folder without either file, and for what can't be such a file's.
    """
    path, config = folder / "tokenizer_config.json", folder / "config.json"
    settings = _read_settings(path)
    lengths = [
        _length(_read_settings(config), "max_position_embeddings", config),
        _length(settings, "model_max_length", path),
    ]
    length = min([n for n in lengths if n is not None], default=DEFAULT_MAX_LENGTH)
    lowercase, strip_accents, chinese_chars = (
        _flag(settings, key, path) for key in ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
    )
    if (folder / "tokenizer.json").is_file():
        vocab, own = parts_of(read_json(folder / "tokenizer.json"), folder / "tokenizer.json")
        # Where the two files disagree about case, transformers follows tokenizer_config.json.
        own["lowercase"] = own["lowercase"] if lowercase is None else lowercase
    elif (folder / "vocab.txt").is_file():
        vocab = read_vocabulary(folder / "vocab.txt")
        own = {
            "lowercase": lowercase is not False,
            "strip_accents": strip_accents,
            "chinese_chars": chinese_chars is not False,
        }
    else:
        raise InputError(
            f"{folder}: neither tokenizer.json nor vocab.txt is here; copy one from where the weights came from"
        )
    return vocab, {**own, "model_max_length": DEFAULT_MAX_LENGTH if length >= NO_LIMIT else length}


def parts_of(described: object, source: str | os.PathLike) -> tuple[dict[str, int], dict]:
    """The vocabulary in a tokenizer.json, and what else of it changes ids, as arguments of BertTokenizer.

    Its truncation and padding are left out: they are what whoever saved it last used (the embedded one: 128 and 128).
    """
    try:
        model, normalizer = described["model"], described["normalizer"]
        # Older files don't name the model's type; then only a WordPiece has this prefix.
        kinds = (model.get("type", "WordPiece"), normalizer["type"], described["pre_tokenizer"]["type"])
        wanted = ("WordPiece", "BertNormalizer", "BertPreTokenizer")
        if kinds != wanted or model["continuing_subword_prefix"] != "##" or not normalizer["clean_text"]:
            raise InputError(
                f"{source}: {', '.join(kinds)} is not BERT's {', '.join(wanted)}; choose a BERT model's folder"
            )
        _check_vocabulary(model["vocab"], source)
        added = sorted(described["added_tokens"], key=lambda token: token["id"])
        # A token has the id of its piece, or else the next free one: a file that says otherwise can't be followed.
        free = len(model["vocab"])
        for token in added:
            expected = model["vocab"].get(token["content"], free)
            free += expected == free
            if token["id"] != expected:
                name = quoted(token["content"])
                raise InputError(f"{source}: {name} has the id {token['id']}, not {expected}; {AGAIN}")
        check_special_tokens(model["vocab"], source)
        fields = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
        if normalizer["lowercase"] is None or normalizer["handle_chinese_chars"] is None:
            raise TypeError("null where true or false is wanted")
        longest = model["max_input_chars_per_word"]
        if type(longest) is not int or not 1 <= longest <= LONGEST_WORD:
            wanted = f"wanted 1 to {LONGEST_WORD:,}"
            raise InputError(f"{source}: max_input_chars_per_word is {quoted(longest)}, {wanted}; {AGAIN}")
        return model["vocab"], {
            "lowercase": _flag(normalizer, "lowercase", source),
            "strip_accents": _flag(normalizer, "strip_accents", source),
            "chinese_chars": _flag(normalizer, "handle_chinese_chars", source),
            "max_word_chars": longest,
            "added_tokens": [AddedToken(**{f: token[f] for f in fields}) for token in added],
        }
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(f"{source}: not a tokenizer.json of BERT's kind ({error!r}); {AGAIN}") from error


def read_vocabulary(path: str | os.PathLike) -> dict[str, int]:
    """token -> id, which is the line number from 0. Only \\n ends a line: a piece may be any other character."""
    try:
        lines = Path(path).read_bytes().decode("utf-8").rstrip("\r\n").split("\n")
    except OSError as error:
        raise cannot("read", path, error) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8; {REMEDY}") from error
    vocab = {}
    for i, line in enumerate(lines):
        piece = line.rstrip("\r")
        if vocab.setdefault(piece, i) != i:
            raise InputError(f"{path}, line {i + 1}: {quoted(piece)} is on line {vocab[piece] + 1} already; {REMEDY}")
    check_special_tokens(vocab, path)
    return vocab


def check_special_tokens(vocab: dict[str, int], source: str | os.PathLike) -> None:
    """Raises InputError for a vocabulary without BERT's; it may do without [MASK]."""
    missing = [token for name, token in SPECIAL_TOKENS.items() if token not in vocab and name != "mask"]
    if missing:
        raise InputError(f"{source}: lacks {', '.join(missing)}; {REMEDY}")


def _read_settings(path: Path) -> dict:
    """The JSON object in `path`, empty if there is no such file."""
    settings = read_json(path) if path.is_file() else {}
    if not isinstance(settings, dict):
        raise InputError(f"{path}: holds {type(settings).__name__}, not a JSON object; {AGAIN}")
    return settings


def _length(settings: dict, key: str, path: Path) -> int | None:
    """A number of tokens among the settings, or None. Raises InputError for what can't be one.

    A float that is whole counts, since 1e30 is how some write that there is no limit.
    """
    value = settings.get(key)
    if value is None:
        return None
    whole = isinstance(value, int) and not isinstance(value, bool) or isinstance(value, float) and value.is_integer()
    if not whole or value < SHORTEST:
        wanted = f"wanted a whole number of tokens, {SHORTEST} or more"
        raise InputError(f"{path}: {key} is {quoted(value)}, {wanted}; correct it, or {AGAIN}")
    return int(value)


def _flag(settings: dict, key: str, path: str | os.PathLike) -> bool | None:
    """What is true, false, or not said."""
    value = settings.get(key)
    if not isinstance(value, bool | None):
        raise InputError(f"{path}: {key} is {quoted(value)}, wanted true or false; {AGAIN}")
    return value


def _check_vocabulary(vocab: object, source: str | os.PathLike) -> None:
    """Raises InputError unless it gives each piece an id of its own."""
    if not isinstance(vocab, dict):
        raise InputError(f"{source}: its vocabulary is {quoted(vocab)}, wanted pieces with their ids; {AGAIN}")
    pieces: dict[int, str] = {}
    for piece, i in vocab.items():
        if type(i) is not int or not 0 <= i <= LARGEST_ID:
            raise InputError(f"{source}: the id of {quoted(piece)} is {quoted(i)}, wanted a whole number; {AGAIN}")
        if pieces.setdefault(i, piece) != piece:
            raise InputError(f"{source}: {quoted(piece)} and {quoted(pieces[i])} both have the id {i}; {AGAIN}")
