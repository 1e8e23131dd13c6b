"""How many sentences a second are encoded: ours against sentence-transformers' SentenceTransformer.encode.

Follows Reimers and Gurevych 2019 (arXiv 1908.10084): a sentence's vector is the mean of its tokens, of length one.

    python benchmarks/encode_speed.py                       # 512 of SST's sentences, batches of 32
    python benchmarks/encode_speed.py --sentences 8544 --rounds 5
    python benchmarks/encode_speed.py --alone               # ours without sentence-transformers

Both get texts and give vectors, tokenizing included, longest sentences first; the vectors are compared before. The
share of the peak is what the encoder's linear maps and attention products need on real tokens, against products of
preallocated matrices that take turns with the rest.
"""

import argparse
import logging
import statistics
import sys

import measure
import numpy as np
import torch

try:
    (sentence_transformers,) = measure.import_theirs("sentence_transformers")
except ImportError:
    sentence_transformers = None
measure.find_ours()  # what is imported below is found only now

from subjects import (  # noqa: E402
    EMBEDDED,
    MODEL_HELP,
    SHAPES,
    TextEncoder,
    forward_operations,
    load_encoder,
    part_of,
    read_rows,
)

import weights  # noqa: E402
from datasets import Table  # noqa: E402
from errors import InputError  # noqa: E402
from precision import choose_precision  # noqa: E402

INSTALL = "python -m pip install --no-deps sentence-transformers==6.2.0"
OURS, THEIRS, PEAK = "ours", "sentence-transformers", "matrix product"


def make_theirs(arguments: argparse.Namespace, longest: int):
    """Their model on the same weights and with the same limit of tokens: encode(texts) -> vectors (n, H)."""
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    # A folder without its own description of poolers, as ours are, gets the mean of the tokens.
    folder = str(weights.find(arguments.model).path)
    model = sentence_transformers.SentenceTransformer(folder, device=arguments.device)
    model.max_seq_length = longest
    options = {"batch_size": arguments.batch_size, "normalize_embeddings": True, "show_progress_bar": False}

    def encode(texts: list[str]) -> np.ndarray:
        device = torch.device(arguments.device)
        with torch.no_grad(), measure.autocast(device, arguments.precision):
            return model.encode(texts, **options)

    return encode


def race(encoders: dict, table: Table, ours: TextEncoder, arguments: argparse.Namespace, device) -> dict:
    """What the row says: for each the time of all texts, sentences a second, and its share of the peak."""
    texts = [example.sentence for example in table]
    product = measure.MatrixProduct(device, arguments.precision)

    def stepper(encode):
        return lambda turn: encode(texts)

    steps = {name: stepper(encode) for name, encode in encoders.items()}
    seconds = measure.take_turns({**steps, PEAK: product.step}, arguments.rounds, device)
    lengths = ours.lengths(texts)
    work, peak = forward_operations(ours.encoder, lengths), product.peak(seconds[PEAK])
    found = {"tokens": int(lengths.sum()), "peak_gflops": peak / 1e9, "peak_shape": product.shape}
    for name in encoders:
        median = statistics.median(seconds[name])
        found[name] = {
            "ms": measure.spread(seconds[name], 1000),
            "sentences_per_second": len(texts) / median,
            **measure.ratio(seconds[name], seconds[OURS]),
            "share_of_peak": work / (median * peak),
        }
    return found


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=EMBEDDED, help=MODEL_HELP)
    parser.add_argument("--sentences", type=measure.at_least(1), default=512, help="of SST's train file (default 512)")
    parser.add_argument("--batch_size", type=measure.at_least(1), default=32, help="default 32, which is theirs")
    parser.add_argument("--alone", action="store_true", help="ours without sentence-transformers")
    measure.add_precision_option(parser)
    measure.add_data_option(parser)
    measure.add_options(parser)
    arguments = parser.parse_args(argv)
    if sentence_transformers is None and not arguments.alone:
        parser.error(f"sentence-transformers is not installed: {INSTALL}; or add --alone")
    if arguments.model in SHAPES and not arguments.alone:
        parser.error(f"--model {arguments.model}: theirs reads a folder: give one, or add --alone")
    return arguments


def main() -> None:
    arguments = parse()
    device = measure.prepare(arguments)
    choose_precision(arguments.precision, device)  # refuses what the device only emulates
    described = measure.machine(device)
    encoder, tokenizer, model = load_encoder(arguments.model)
    ours = TextEncoder(encoder.to(device), tokenizer, arguments.batch_size, arguments.precision)
    table, file = read_rows("sst", "train", arguments.data)
    table = part_of(table, arguments.sentences)
    encoders, difference = {OURS: ours.encode}, None
    if not arguments.alone:
        encoders[THEIRS] = make_theirs(arguments, tokenizer.model_max_length)
        some = [example.sentence for example in table][: 2 * arguments.batch_size]
        difference = float(np.abs(encoders[OURS](some) - encoders[THEIRS](some)).max())
        if not difference < (1e-4 if arguments.precision == "fp32" else 3e-2):
            sys.exit(f"error: the vectors differ by {difference}: the contestants don't compute the same thing")
    found = race(encoders, table, ours, arguments, device)
    print(f"{len(table):,} sentences with {arguments.model}, {described}")
    print(f"matrix products at most {found['peak_gflops']:,.0f} GFLOP/s")
    header = ["", "median ms", "quartiles", "sentences/s", "over ours", "quartiles", "share"]
    lines = []
    for name in encoders:
        row = found[name]
        line = [name, row["ms"]["median"], row["ms"]["quartiles"], row["sentences_per_second"], row["over_ours"]]
        lines.append([*line, row["over_ours_quartiles"], row["share_of_peak"]])
    measure.show(header, lines)
    options = {"batch_size": arguments.batch_size, "rounds": arguments.rounds, "precision": arguments.precision}
    row = {"model": model, "data": file, "sentences": len(table), **options, "largest_difference": difference, **found}
    measure.append_row(arguments.out, described, row)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
