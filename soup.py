"""One model out of several finished runs, the mean of their weights: a model soup.

    python multitask_classifier.py --ensemble RUN RUN [RUN...] --soup

Wortsman et al. 2022, "Model soups: averaging weights of multiple fine-tuned models improves accuracy without increasing
inference time" (arXiv 2203.05482), of whose recipes this is the uniform one. What was fine-tuned from the same weights
lies close enough together that the mean is a model, too; it costs what one of them costs.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from errors import InputError
from heads import HeadConfig
from model import MultitaskBERT
from tokenizer import BertTokenizer

if TYPE_CHECKING:
    from members import Member


def soup(members: list[Member]) -> tuple[MultitaskBERT, BertTokenizer]:
    """The mean of the members' models, in evaluation mode, and their tokenizer.

    Raises InputError for members that have several models, began with other weights than the first, or have other heads
    or another vocabulary.
    """
    first = members[0]
    model, tokenizer = _load(first)
    sums = {name: tensor.double() for name, tensor in model.state_dict().items()}
    for member in members[1:]:
        other, others_tokenizer = _load(member)
        for what, own, its in (
            ("pretrained weights", _began(first), _began(member)),
            ("tasks", set(model.heads), set(other.heads)),
            (f"heads{_apart(_heads(model), _heads(other))}", _heads(model), _heads(other)),
            ("vocabulary", tokenizer.fingerprint(), others_tokenizer.fingerprint()),
        ):
            if own != its:
                raise InputError(
                    f"--soup: {first.name} and {member.name} differ in their {what}, so the mean of "
                    "their weights can't answer: name runs that agree in that, or leave --soup out"
                )
        for name, tensor in other.state_dict().items():
            sums[name] += tensor
    model.load_state_dict({name: (total / len(members)).float() for name, total in sums.items()})
    return model, tokenizer


def _load(member: Member) -> tuple[MultitaskBERT, BertTokenizer]:
    folders = set(member.folders.values())
    if len(folders) > 1:
        raise InputError(f"--soup: {member.name} has a model for each task: name runs of one model for all of theirs")
    (best,) = folders
    return MultitaskBERT.from_pretrained(best), BertTokenizer.from_pretrained(best)


def _began(member: Member) -> tuple:
    """What its encoder began with: layers that began anew were drawn by the seed."""
    options = member.config["options"]
    anew = options.get("reinitialize") or 0
    return member.config["model"]["sha256"], anew, options.get("seed") if anew else None


def _apart(own: dict[str, HeadConfig], its: dict[str, HeadConfig]) -> str:
    """` (pooler of sst: mean, max)`: in what heads of the same tasks differ first."""
    for name in [name for name in own if name in its]:
        for field in dataclasses.fields(HeadConfig):
            here, there = getattr(own[name], field.name), getattr(its[name], field.name)
            if here != there:
                return f" ({field.name} of {name}: {here}, {there})"
    return ""


def _heads(model: MultitaskBERT) -> dict[str, HeadConfig]:
    """What decides a head's answers: all of it but the dropout it was trained with."""
    return {name: dataclasses.replace(head, dropout_prob=0.0) for name, head in model.config.heads.items()}
