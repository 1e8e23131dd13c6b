"""What the plain score of a pair is before training: why the paraphrase logit gets an offset.

Follows Jia 2024 (Stanford CS 224N poster) for the score <W a, W b>; the pairs are those that `--pair_score calibrated`
sets its offset from.

    python benchmarks/pair_scores.py                 # with the poster's cross-attention layer, and without

Least, middle and largest score of 256 training pairs; and of dev the share that is above zero, which is called a
paraphrase, the accuracy, and the share of paraphrases.
"""

import argparse
import sys
from pathlib import Path

import measure
import numpy as np
import torch

measure.find_ours()  # what is imported below is found only now

from subjects import EMBEDDED, load_encoder, load_rows  # noqa: E402

from calibration import CALIBRATION_PAIRS  # noqa: E402
from errors import InputError  # noqa: E402
from model import ModelConfig, MultitaskBERT  # noqa: E402

TASKS = ("sst", "para", "sts")
HEADS = {"cross-attention": None, "mean of the tokens": dict.fromkeys(TASKS, 0)}
HEADER = ["head", "least", "median", "largest", "dev above 0", "accuracy", "paraphrases"]


def describe(scores: np.ndarray, dev: np.ndarray, labels: np.ndarray) -> list[float]:
    """HEADER's columns behind the first, of scores of training pairs, and of dev with its labels, 0 or 1."""
    called = dev > 0
    quantiles = np.quantile(scores, [0, 0.5, 1])
    return [float(value) for value in (*quantiles, called.mean(), (called == labels).mean(), labels.mean())]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=EMBEDDED, help=f"{EMBEDDED} (default), bert-base or a folder of weights")
    parser.add_argument("--seed", type=measure.at_least(0), default=11711, help="default 11711, the poster's")
    parser.add_argument("--threads", type=measure.at_least(1), help="CPU threads (default: torch's, one a core)")
    parser.add_argument("--out", type=Path, metavar="FILE", default=measure.ROOT / "results" / "pair_scores.jsonl")
    measure.add_data_option(parser)
    return parser.parse_args(argv)


@torch.no_grad()
def main() -> None:
    arguments = parse()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    _, tokenizer, described = load_encoder(arguments.model)
    train, train_file = load_rows("para", "train", arguments.data, tokenizer)
    dev, dev_file = load_rows("para", "dev", arguments.data, tokenizer)
    some = np.random.default_rng(arguments.seed).permutation(len(train))[:CALIBRATION_PAIRS]  # as training draws them
    lines = []
    for name, attention in HEADS.items():
        torch.manual_seed(arguments.seed)
        encoder, _, _ = load_encoder(arguments.model)
        model = MultitaskBERT(ModelConfig.for_tasks(TASKS, attention=attention, pair_score="dot"), encoder).eval()
        scores = model.outputs(train.batch(some)).numpy()
        answers = np.concatenate([model.outputs(dev.batch(rows)).numpy() for rows in dev.chunks(64)])
        labels = np.concatenate([dev.batch(rows).labels.numpy() for rows in dev.chunks(64)])
        lines.append([name, *describe(scores, answers, labels)])
    measure.show(HEADER, lines)
    row = {
        "model": described,
        "seed": arguments.seed,
        "pairs": len(some),
        "data": {"train": train_file, "dev": dev_file},
    }
    found = {name: dict(zip(HEADER[1:], numbers, strict=True)) for name, *numbers in lines}
    measure.append_row(arguments.out, measure.machine(torch.device("cpu")), {**row, "found": found})


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
