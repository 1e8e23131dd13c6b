"""Tokenization: text to the ids BERT reads, one sentence, a pair, or a whole data set in one call.

Follows BERT's WordPiece (Devlin et al. 2019, arXiv 1810.04805) as the `tokenizers` library implements it; the ids are
those of transformers' fast BertTokenizer, and a test compares them.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from errors import InputError, quoted
from files import atomic_write, write_json
from tokenizer_files import (
    DEFAULT_MAX_LENGTH,
    SPECIAL_TOKENS,
    check_special_tokens,
    parts_of,
    read_folder,
    read_vocabulary,
)
from weights import locate

LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class BatchEncoding(dict):
    """`input_ids`, `token_type_ids` and `attention_mask`, also readable as attributes."""

    def __getattr__(self, name):
        if name in self:
            return self[name]
        raise AttributeError(f"no {name!r} in this encoding; it has {', '.join(self)}")

    def to(self, device):
        """The same encoding with its torch tensors on `device`."""
        return BatchEncoding({name: value.to(device) for name, value in self.items()})


@dataclass(frozen=True)
class Encoded:
    """A data set's token ids, [CLS] and [SEP] included, without padding.

    ids: one int32 array a row. type_ids: the same shapes, 0 for the first sentence and 1 for the second; None for
    single sentences, where all are 0. truncated: how many rows were too long and lost tokens.
    """

    ids: list[np.ndarray]
    type_ids: list[np.ndarray] | None
    truncated: int


class BertTokenizer:
    """WordPiece with BERT's pre-processing: clean, lower-case (uncased models), split, longest known piece first."""

    def __init__(
        self,
        vocab: str | os.PathLike | dict[str, int] | Tokenizer,
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        chinese_chars: bool = True,
        max_word_chars: int = 100,
        added_tokens: Iterable[AddedToken] = (),
        model_max_length: int = DEFAULT_MAX_LENGTH,
    ):
        """vocab: a vocab.txt (one piece a line), a dict of ids, or a `tokenizers.Tokenizer`, whose own settings count.

        strip_accents: None means as `lowercase`, which is what the original BERT did. A word of more than
        `max_word_chars` characters is [UNK]. added_tokens: `tokenizers.AddedToken`s, never split, with the ids after
        the vocabulary's. Raises InputError for a vocabulary without BERT's special tokens, or a tokenizer that isn't
        BERT's WordPiece.
        """
        if isinstance(vocab, Tokenizer):
            vocab, own = parts_of(json.loads(vocab.to_str()), "the tokenizer given")
            lowercase, strip_accents, chinese_chars = own["lowercase"], own["strip_accents"], own["chinese_chars"]
            max_word_chars, added_tokens = own["max_word_chars"], own["added_tokens"]
        elif not isinstance(vocab, dict):
            vocab = read_vocabulary(vocab)
        check_special_tokens(vocab, "the vocabulary")
        self._vocab = dict(vocab)
        self._settings = {"lowercase": lowercase, "strip_accents": strip_accents, "chinese_chars": chinese_chars}
        self._tokenizer = _build(self._vocab, self._settings, max_word_chars, added_tokens)
        self.model_max_length = model_max_length
        self.pad_token_id, self.unk_token_id, self.cls_token_id, self.sep_token_id, self.mask_token_id = (
            self._vocab.get(token) for token in SPECIAL_TOKENS.values()
        )

    @classmethod
    def from_pretrained(cls, name_or_dir: str | os.PathLike | None = None, **ignored) -> "BertTokenizer":
        """The tokenizer of a known model name or a folder; None is the default model of what was set up.

        Download options (`local_files_only`, `cache_dir`, ...) are accepted for callers written for a hub and have no
        effect: nothing is downloaded here. Raises InputError if there is no such model.
        """
        return cls.from_folder(locate(name_or_dir))

    @classmethod
    def from_folder(cls, folder: str | os.PathLike) -> "BertTokenizer":
        """The tokenizer of a folder in Hugging Face layout: tokenizer.json if there is one, else vocab.txt.

        Texts are cut at config.json's max_position_embeddings, or earlier if tokenizer_config.json says so.
        """
        vocab, own = read_folder(Path(folder))
        return cls(vocab, **own)

    def check_fits(self, vocab_size: int, source: str | os.PathLike) -> None:
        """Raises InputError if there is a token that a model of so many has no vector for."""
        token, largest = max(self.vocab.items(), key=lambda item: item[1])
        if largest >= vocab_size:
            raise InputError(
                f"{source}: its tokenizer gives {quoted(token)} the id {largest}, and its model knows {vocab_size}: "
                "copy both again from where they came"
            )

    def __call__(
        self,
        text: str | list[str],
        text_pair: str | list[str] | None = None,
        return_tensors: str | None = None,
        padding: bool | str = False,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        return_token_type_ids: bool = True,
    ) -> BatchEncoding:
        """Encode one text or a list, or pairs of them, as transformers' fast tokenizer does.

        padding: False, True or "longest" (to the longest of this call), "max_length". truncation: True or
        "longest_first" cuts to `max_length`, by default the model's positions, taking from the longer sentence of a
        pair; False returns a too long text whole (the model refuses it); None cuts only if `max_length` is given and
        `padding` isn't. Raises ValueError for other choices, and for rows of several lengths asked for as a tensor.
        return_tensors: None (lists), "pt" or "np" (int64, `(B, T)`, B = 1 for a single text).
        """
        batched = not isinstance(text, str)
        # An empty second text of a single call counts as none, in a list it is a second sentence: so does transformers.
        texts = _pairs(text, text_pair) if batched else _pairs([text], [text_pair] if text_pair else None)
        limit = self._limit(padding, truncation, max_length, paired=bool(texts) and isinstance(texts[0], tuple))
        encoded = self._encode(texts, limit)
        rows = {
            "input_ids": [ids for ids, _ in encoded],
            "token_type_ids": [types for _, types in encoded],
            "attention_mask": [[1] * len(ids) for ids, _ in encoded],
        }
        if not return_token_type_ids:
            del rows["token_type_ids"]
        if padding is not False:
            if padding == "max_length":  # rows that are longer stay as they are
                length = self.model_max_length if max_length is None else max_length
            else:
                length = max((len(ids) for ids in rows["input_ids"]), default=0)
            for name, fill in (("input_ids", self.pad_token_id), ("token_type_ids", 0), ("attention_mask", 0)):
                if name in rows:
                    rows[name] = [row + [fill] * (length - len(row)) for row in rows[name]]
        if return_tensors is not None:
            return BatchEncoding({name: _tensor(value, return_tensors) for name, value in rows.items()})
        return BatchEncoding({name: value if batched else value[0] for name, value in rows.items()})

    def encode_batch(
        self, sentences: list[str], seconds: list[str] | None = None, max_length: int | None = None
    ) -> Encoded:
        """Encode a whole data set in one call: sentences, or with `seconds` pairs `[CLS] a [SEP] b [SEP]`.

        Rows longer than `max_length` (default: the model's positions) are cut, the longer sentence of a pair first.
        """
        texts = _pairs(sentences, seconds)
        limit = self._limit(False, True, max_length, paired=seconds is not None)
        encodings = self._tokenizer.encode_batch_fast(texts)
        rows = [cut(e.ids, [] if seconds is None else e.type_ids, limit) for e in encodings]
        return Encoded(
            ids=[np.array(ids, dtype=np.int32) for ids, _ in rows],
            type_ids=None if seconds is None else [np.array(types, dtype=np.int32) for _, types in rows],
            truncated=sum(len(e) > limit for e in encodings),
        )

    def tokenize(self, text: str) -> list[str]:
        """The word pieces of `text`, without [CLS] and [SEP]."""
        return self._tokenizer.encode(_clean(text), add_special_tokens=False).tokens

    def convert_tokens_to_ids(self, tokens):
        """The id of a token, or a list of them; [UNK]'s for a token that isn't in the vocabulary."""
        if isinstance(tokens, str):
            found = self._tokenizer.token_to_id(tokens)
            return self.unk_token_id if found is None else found
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def convert_ids_to_tokens(self, ids):
        """The token of an id, or a list of them. Raises ValueError for an id outside the vocabulary."""
        if isinstance(ids, (int, np.integer)):
            token = self._tokenizer.id_to_token(int(ids))
            if token is None:
                raise ValueError(f"no token has the id {ids}; ids here run from 0 to {len(self) - 1}")
            return token
        return [self.convert_ids_to_tokens(int(i)) for i in ids]

    def decode(self, ids, skip_special_tokens: bool = False) -> str:
        """The text of a row of ids: pieces joined, no space before punctuation. Case and accents stay lost."""
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)

    @property
    def vocab(self) -> dict[str, int]:
        """Every token, added ones too, and its id."""
        return self._tokenizer.get_vocab()

    @property
    def vocab_size(self) -> int:
        """How many word pieces there are, without tokens added later."""
        return len(self._vocab)

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def fingerprint(self) -> str:
        """SHA-256 over vocabulary and every setting that changes an id: equal fingerprints give equal ids."""
        described = f"{self._tokenizer.to_str()}{self.model_max_length}"
        return hashlib.sha256(described.encode()).hexdigest()

    def save_pretrained(self, folder: str | os.PathLike) -> None:
        """Write vocab.txt, tokenizer.json and tokenizer_config.json, which transformers and `from_folder` load."""
        folder = Path(folder)
        settings = {
            "tokenizer_class": "BertTokenizer",
            "model_max_length": self.model_max_length,
            "do_lower_case": self._settings["lowercase"],
            "strip_accents": self._settings["strip_accents"],
            "tokenize_chinese_chars": self._settings["chinese_chars"],
            **{f"{name}_token": token for name, token in SPECIAL_TOKENS.items() if token in self._vocab},
        }
        with atomic_write(folder / "vocab.txt") as file:
            file.writelines(f"{piece}\n" for piece in sorted(self._vocab, key=self._vocab.get))
        with atomic_write(folder / "tokenizer.json") as file:
            file.write(self._tokenizer.to_str(pretty=True))
        write_json(folder / "tokenizer_config.json", settings)

    def _limit(self, padding, truncation, max_length, paired):
        """The number of tokens to cut to, or None. Raises ValueError for a choice that doesn't exist."""
        if padding not in (False, True, "longest", "max_length"):
            raise ValueError(f"padding={padding!r}: choose False, True, 'longest' or 'max_length'")
        if truncation not in (None, False, True, "longest_first"):
            raise ValueError(f"truncation={truncation!r}: choose False, True or 'longest_first'")
        if truncation is False or (truncation is None and (max_length is None or padding is not False)):
            return None
        limit = self.model_max_length if max_length is None else max_length
        special = 3 if paired else 2
        if limit < special:
            raise ValueError(f"max_length={limit} has no room for the {special} special tokens; give {special} or more")
        return limit

    def _encode(self, texts, limit):
        """(ids, segments) of each text, cut to `limit` tokens if there is one."""
        return [cut(e.ids, e.type_ids, limit) for e in self._tokenizer.encode_batch_fast(texts)]


def cut(ids, types, limit):
    """`[CLS] a [SEP]`, or `[CLS] a [SEP] b [SEP]`, cut to `limit` tokens if there is one: (ids, segments).

    Of a pair the longer text is cut to the length of the other, and then both, as the library's "longest_first" does.
    The library keeps what it cuts off, of a pair every piece of one beside every piece of the other: 20 GB for two
    texts of 100,000 characters.
    """
    if limit is None or len(ids) <= limit:
        return ids, types
    second = sum(types)  # tokens of `b [SEP]`
    if not second:
        return [*ids[: limit - 1], ids[-1]], types[:limit]
    lengths = len(ids) - second - 2, second - 1  # of a and b
    room = limit - 3
    shorter = min(*lengths, room // 2)
    a, b = (room - shorter, shorter) if lengths[0] > lengths[1] else (shorter, room - shorter)
    start = lengths[0] + 2
    kept = [*ids[: a + 1], ids[start - 1], *ids[start : start + b], ids[-1]]
    return kept, [0] * (a + 2) + [1] * (b + 1)


def _clean(text):
    """`text` with lone surrogates replaced as a decoder would; they are no characters and no library takes them."""
    return LONE_SURROGATE.sub("\ufffd", text)


def _pairs(texts, seconds):
    """The library's input: a list of texts, or of pairs. Raises ValueError if the two lists differ in length."""
    texts = [_clean(text) for text in texts]
    if seconds is None:
        return texts
    if isinstance(seconds, str) or len(seconds) != len(texts):
        found = "one text" if isinstance(seconds, str) else f"{len(seconds)} texts"
        raise ValueError(f"{len(texts)} first sentences need as many second ones; found {found}")
    return [(text, _clean(second)) for text, second in zip(texts, seconds, strict=True)]


def _tensor(rows, kind):
    """`(B, T)` int64. Raises ValueError for rows of several lengths or a kind that doesn't exist."""
    if len({len(row) for row in rows}) > 1:
        raise ValueError("the texts have different numbers of tokens; a tensor needs padding=True")
    if kind == "np":
        return np.array(rows, dtype=np.int64)
    if kind == "pt":
        import torch  # here, so that lists and arrays don't wait for it

        return torch.tensor(rows, dtype=torch.long)
    raise ValueError(f"return_tensors={kind!r}: choose None, 'pt' or 'np'")


def _build(vocab, settings, max_word_chars, added_tokens):
    """A `tokenizers.Tokenizer` that does what the original BERT did with this vocabulary."""
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=max_word_chars))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings["chinese_chars"],
        strip_accents=settings["strip_accents"],
        lowercase=settings["lowercase"],
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, vocab[token]) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens([token for token in SPECIAL_TOKENS.values() if token in vocab])
    tokenizer.add_tokens(list(added_tokens))
    return tokenizer
