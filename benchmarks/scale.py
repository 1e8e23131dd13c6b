"""How time and peak memory grow: with the number of sentences, encoded in a stream, and with their length up to 512.

Follows proc(5) for peak memory (see measure.py).

    python benchmarks/scale.py                           # 1,000 and 10,000 sentences; lengths from 16 to 512
    python benchmarks/scale.py --largest 1000000         # 100,000 and 1,000,000 too: hours on two cores
    python benchmarks/scale.py --model bert-tiny --largest 1000000 --longest 0    # nearly all but the arithmetic
    python benchmarks/scale.py --model bert-base --largest 1000

Sentences are those of SST's train file, over and over, read as a stream: tokenized, encoded and written to disk (the
mean of the tokens) a chunk at a time, so the memory should not grow. Lengths: batches of about the same number of
tokens, of random words, encoded, and trained on for one step. Every number of sentences and every length is measured in
a process of its own, since memory once taken is not always given back.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator

import measure
import numpy as np
import torch

measure.find_ours()  # what is imported below is found only now

from subjects import EMBEDDED, MODEL_HELP, TextEncoder, forward_operations, load_encoder, read_rows  # noqa: E402

from batches import Batch  # noqa: E402
from errors import InputError  # noqa: E402
from model import ModelConfig, MultitaskBERT  # noqa: E402
from optimizer import AdamW  # noqa: E402
from packed import Layout  # noqa: E402
from tasks import TASKS  # noqa: E402

SIZES = (1_000, 10_000, 100_000, 1_000_000)
LENGTHS = (16, 32, 64, 128, 256, 512)
CHUNK = 4096


def stream(texts: list[str], count: int) -> Iterator[list[str]]:
    """`count` texts in chunks, from the start again where there are fewer."""
    endless = itertools.islice(itertools.cycle(texts), count)
    while chunk := list(itertools.islice(endless, CHUNK)):
        yield chunk


def encode_stream(count: int, arguments: argparse.Namespace, device: torch.device) -> dict:
    """Seconds, sentences a second and memory of encoding that many sentences to a file."""
    encoder, tokenizer, _ = load_encoder(arguments.model)
    table, _ = read_rows("sst", "train", arguments.data)
    texts = [example.sentence for example in table]
    ours = TextEncoder(encoder.to(device), tokenizer, arguments.batch_size)
    ours.encode(texts[: arguments.batch_size])

    def work():
        with tempfile.TemporaryFile() as file:
            for chunk in stream(texts, count):
                file.write(ours.encode(chunk).tobytes())

    began = time.perf_counter()
    memory = measure.peak_memory(work, device)
    seconds = time.perf_counter() - began
    return {"sentences": count, "seconds": seconds, "sentences_per_second": count / seconds, **memory}


def make_batch(length: int, tokens: int, words: int, device: torch.device) -> Batch:
    """About that many tokens of random words in sentences of that length."""
    count = max(1, tokens // length)
    ids = torch.randint(words, (count, length), generator=torch.Generator().manual_seed(0))
    layout, labels = Layout.of(torch.ones_like(ids)), torch.zeros(count, dtype=torch.long)
    return Batch(TASKS["sst"], [str(i) for i in range(count)], ids, layout, labels).to(device)


def length_part(length: int, arguments: argparse.Namespace, device: torch.device) -> dict:
    """Time and memory of encoding a batch of sentences of that length, and of one training step on it."""
    encoder, _, _ = load_encoder(arguments.model)
    config = ModelConfig.for_tasks(["sst"], attention={"sst": 0}, option="finetune")
    model = MultitaskBERT(config, encoder).to(device)
    optimizer = AdamW(model.parameters(), lr=1e-5)
    batch = make_batch(length, arguments.tokens, encoder.config.vocab_size, device)

    def encode(turn):
        with torch.inference_mode():
            model.eval()
            return model.encode(batch.input_ids, batch.layout)

    def train(turn):
        model.train()
        optimizer.zero_grad(set_to_none=True)
        model.loss(batch).backward()
        optimizer.step()

    operations, found = forward_operations(encoder, np.full(len(batch.ids), length)), {}
    for name, step, passes in (("encode", encode, 1), ("train", train, 3)):
        times: list[float] = []
        memory = measure.peak_memory(
            lambda step=step, times=times: times.extend(
                measure.take_turns({"step": step}, arguments.rounds, device)["step"]
            ),
            device,
        )
        speeds = {"tokens_per_second": batch.tokens / statistics.median(times)}
        speeds["gflops"] = passes * operations / statistics.median(times) / 1e9
        found[name] = {"ms": measure.spread(times, 1000), **speeds, **memory}
    return {"length": length, "sentences": len(batch.ids), **found}


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=EMBEDDED, help=MODEL_HELP)
    parser.add_argument(
        "--largest", type=measure.at_least(0), default=10_000, help="number of sentences (default 10000); 0: none"
    )
    parser.add_argument("--batch_size", type=measure.at_least(1), default=32, help="of the stream (default 32)")
    parser.add_argument(
        "--longest", type=measure.at_least(0), default=LENGTHS[-1], help="length in tokens (default 512); 0: none"
    )
    parser.add_argument(
        "--tokens", type=measure.at_least(1), default=4096, help="in a batch of a length (default 4096)"
    )
    parser.add_argument("--apart", help=argparse.SUPPRESS)
    measure.add_data_option(parser)
    measure.add_options(parser)
    return parser.parse_args(argv)


def main() -> None:
    arguments = parse()
    device = measure.prepare(arguments)
    if arguments.apart:
        what, number = arguments.apart.split()
        part = {"sentences": encode_stream, "length": length_part}[what]
        print(json.dumps(part(int(number), arguments, device)))
        return
    *_, model = load_encoder(arguments.model)
    described = measure.machine(device)
    # The largest number asked for is measured, whether it is one of the steps or not.
    sizes = sorted({size for size in SIZES if size < arguments.largest} | ({arguments.largest} - {0}))
    lengths = sorted({length for length in LENGTHS if length < arguments.longest} | ({arguments.longest} - {0}))
    print(f"{arguments.model}, {described}")
    streams = [measure.measured_apart(f"sentences {size}") for size in sizes]
    if streams:
        header = ["sentences", "seconds", "sentences/s", "before MB", "peak MB", "added MB"]
        keys = ("sentences", "seconds", "sentences_per_second", "before_mb", "peak_mb", "added_mb")
        measure.show(header, [[f"{row[keys[0]]:,}", *(row[key] for key in keys[1:])] for row in streams])
    found = [measure.measured_apart(f"length {length}") for length in lengths]
    lines = []
    for row in found:
        for name in ("encode", "train"):
            part = row[name]
            line = [f"{name}, {row['length']} tokens", row["sentences"], part["ms"]["median"], part["ms"]["quartiles"]]
            lines.append([*line, part["tokens_per_second"], part["gflops"], part["peak_mb"], part["added_mb"]])
    if lines:
        header = ["", "sentences", "median ms", "quartiles", "tokens/s", "GFLOP/s", "peak MB", "added MB"]
        measure.show(header, lines)
    options = {"model": model, "batch_size": arguments.batch_size, "tokens": arguments.tokens}
    measure.append_row(
        arguments.out, described, {**options, "rounds": arguments.rounds, "streams": streams, "lengths": found}
    )


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
