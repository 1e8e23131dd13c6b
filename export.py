"""Write a trained encoder as other libraries load it: `python export.py RUN FOLDER`.

The folder is in Hugging Face's layout, so that transformers' AutoModel loads it, with what sentence_transformers'
SentenceTransformer reads where its modules can express the pooling (sentence_layout.py), and a model card.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import startup  # noqa: F401  # isort: skip: before what may be missing

from command_line import path_given, text_given
from console import refuse, tell
from errors import InputError
from files import atomic_write, read_json, short, whole_folder
from model import MultitaskBERT
from model_card import facts_of, model_card
from poolers import POOLERS
from predictor import best_folders
from run import ROOT, Run
from sentence_encoder import SentenceEncoder
from sentence_layout import MODES
from tokenizer import BertTokenizer


def encoder_of_head(run: str | Path, name: str) -> SentenceEncoder:
    """The encoder with the pooler that a task's head was trained with.

    Raises InputError where the head's vector is not a pooler's of the encoder's output for one sentence.
    """
    folders = best_folders(run)
    if name not in folders:
        raise InputError(f"--head {name}: no such head; this model has {', '.join(folders)}")
    model, tokenizer = MultitaskBERT.from_pretrained(folders[name]), BertTokenizer.from_folder(folders[name])
    head = model.heads[name]
    other = None
    if len(head.attention):
        other = "has attention layers behind the encoder"
    elif head.config.pair_encoding != "separate":
        other = "reads a pair as one sequence"
    if other:
        raise InputError(f"--head {name}: its head {other}, which no other library has: leave --head out")
    return SentenceEncoder(
        model.bert,
        head.pooler,
        tokenizer,
        tokenizer.model_max_length,
        head.config.pooler,
        head.config.pooler_options,
        f"head of {name}",
    )


def run_folder(run: str) -> Path:
    """Where config.json and scores.json of the training stand: of a run, or beside its best/."""
    folder = Path(run) if (Path(run) / "config.json").is_file() else Run.open(run, ROOT).folder
    config = read_json(folder / "config.json")
    is_run = isinstance(config, dict) and "command" in config
    return folder if is_run else folder.parent


def export(run: str, folder: Path, head: str | None = None, pooler: str | None = None) -> SentenceEncoder:
    """Write the encoder of a run, of multitask_classifier.py or contrastive.py, into a new folder, whole; returns it.

    head: take this task's pooler. pooler: this one; None is the run's own, else the mean of the tokens. Raises
    InputError for what can't be exported or written, and for a folder that holds something.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{short(folder)} holds something already: choose a new folder")
    if head and pooler:
        raise InputError("--head and --pooler: give one of them")
    facts = facts_of(run_folder(run))
    encoder = encoder_of_head(run, head) if head else SentenceEncoder.from_pretrained(run, pooler)
    name = folder.resolve().name
    expressible = encoder.pooler_name in MODES
    card = model_card(name, facts, encoder.pooler_name, encoder.dimension, encoder.max_length, expressible)
    with whole_folder(folder):
        encoder.save_pretrained(folder)
        with atomic_write(folder / "README.md") as file:
            file.write(card)
    return encoder


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Write a run's encoder as transformers and sentence_transformers load it, with a model card."
    )
    parser.add_argument("run", type=text_given, metavar="RUN", help="a run, its name in runs/, or its best/")
    parser.add_argument("folder", type=path_given, metavar="FOLDER", help="a new one; its name is the model's")
    parser.add_argument(
        "--head", type=text_given, metavar="TASK", help="with the pooler that this task's head was trained with"
    )
    parser.add_argument(
        "--pooler",
        choices=POOLERS,
        metavar="NAME",
        help="with this one (default: of contrastive.py's runs their own, else mean)",
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code. Errors of input are one line on stderr."""
    args = build_parser().parse_args(arguments)
    try:
        encoder = export(args.run, args.folder, args.head, args.pooler)
    except (InputError, OSError) as error:
        return refuse(error)
    name = encoder.pooler_name
    others = (
        "AutoModel and SentenceTransformer load it"
        if name in MODES
        else f"AutoModel loads it; its pooler {name} is ours"
    )
    tell(f"{short(args.folder)}: {encoder.dimension} numbers a text, pooler {name}; {others}; README.md is its card")
    return 0


if __name__ == "__main__":
    sys.exit(main())
