"""What the poster's whole finetune recipe costs on a chip, from counted operations and the chip's stated peak.

The recipe is the task-specific attention poster's (Jia 2024): bert-base-uncased, every train row of the three tasks ten
times, the dev rows scored after each epoch. Forward and backward take three times forward (Kaplan et al. 2020, arXiv
2001.08361, section 2.1). A step of AdamW reads and writes seven floats a parameter and is bound by memory, so it has a
time of its own. Nothing is run: rows are tokenized, and operations counted.

    python benchmarks/recipe_cost.py                                              an NVIDIA T4
    python benchmarks/recipe_cost.py --peak 312e12 --bandwidth 1555e9 --share 0.4 another chip
"""

from __future__ import annotations

import argparse
from pathlib import Path

from measure import add_data_option, append_row, find_ours, machine, share, show

find_ours()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from subjects import RANDOM, forward_operations, load_encoder, load_rows, sentence_lengths  # noqa: E402

from estimate import linear_weights  # noqa: E402
from heads import TaskHead  # noqa: E402
from model import ModelConfig  # noqa: E402
from tasks import TASKS  # noqa: E402

# Rows that the poster trained on: 17,688 batches of 8 pairs of Quora's; of the others the files' own.
POSTER_ROWS = {"para": 17688 * 8}
# NVIDIA T4 Tensor Core GPU datasheet: mixed precision (FP16/FP32) 65 TFLOPS, single precision 8.1, memory 320 GB/s.
T4_FP16, T4_FP32, T4_BANDWIDTH = 65e12, 8.1e12, 320e9
# AdamW reads weight, gradient and both means, and writes all but the gradient: float32.
BYTES_A_STEP = 7 * 4
# Table 3 of the poster: seconds of training on one T4, all three tasks, experiment 1.
POSTER_SECONDS = 41_827


def count(name: str, folder: Path | None, encoder, tokenizer, epochs: int) -> tuple[int, int, float]:
    """(rows, tokens, operations) of a task's training, its dev evaluations included."""
    task, size = TASKS[name], encoder.config.hidden_size
    config = ModelConfig.for_tasks([name]).heads[name]
    head = linear_weights(TaskHead(task, size, encoder.config.num_attention_heads, config))
    operations = 0.0
    for split, passes in (("train", 3 * epochs), ("dev", epochs)):
        data, _ = load_rows(name, split, folder, tokenizer)
        lengths = sentence_lengths(data, np.arange(len(data)))
        forward = forward_operations(encoder, lengths) + 2 * head * int(lengths.sum())
        grown = POSTER_ROWS.get(name, len(data)) / len(data) if split == "train" else 1.0
        operations += passes * forward * grown
        if split == "train":
            rows, tokens = round(len(data) * grown), round(int(lengths.sum()) * grown)
    return rows, tokens, operations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--peak", type=float, default=T4_FP16, help="operations a second (default 65e12, a T4 in fp16)")
    parser.add_argument(
        "--share", type=share, default=0.3, help="of the peak that a step reaches (default 0.3, an assumption)"
    )
    parser.add_argument(
        "--bandwidth", type=float, default=T4_BANDWIDTH, help="of the memory, bytes a second (default 320e9, a T4)"
    )
    parser.add_argument("--batch_size", type=int, default=8, help="default 8, the poster's")
    parser.add_argument("--epochs", type=int, default=10, help="default 10, the poster's")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append a row to this file")
    add_data_option(parser)
    arguments = parser.parse_args()
    encoder, tokenizer, described = load_encoder(RANDOM)
    counts = {
        name: count(name, arguments.data, encoder, tokenizer, arguments.epochs) for name in ("sst", "para", "sts")
    }
    parameters = sum(p.numel() for p in encoder.parameters())
    a_step = BYTES_A_STEP * parameters / arguments.bandwidth / 3600
    lines, total, stepping = [], 0.0, 0.0
    for name, (rows, tokens, operations) in counts.items():
        steps = arguments.epochs * -(-rows // arguments.batch_size)
        lines.append(
            [
                TASKS[name].title,
                rows,
                tokens,
                operations / 1e15,
                operations / arguments.peak / 3600,
                steps,
                a_step * steps,
            ]
        )
        total, stepping = total + operations, stepping + a_step * steps
    lines.append(["all three", None, None, total / 1e15, total / arguments.peak / 3600, None, stepping])
    print()
    columns = ["", "train rows", "tokens an epoch", "10^15 operations", "hours at the peak", "steps", "hours of AdamW"]
    show(columns, lines)
    hours = total / arguments.peak / arguments.share / 3600 + stepping
    peak = f"{arguments.share:.0%} of {arguments.peak / 1e12:g} TFLOPS"
    print(f"\nat {peak}, and AdamW at {arguments.bandwidth / 1e9:g} GB/s: {hours:.1f} h")
    fp32 = total / T4_FP32 / 3600
    print(f"in single precision a T4 ({T4_FP32 / 1e12} TFLOPS) takes at least {fp32:.1f} h and AdamW's time;", end=" ")
    print(f"the poster's took {POSTER_SECONDS / 3600:.1f} h")
    if arguments.out:
        row = {"model": described, "peak": arguments.peak, "share": arguments.share, "epochs": arguments.epochs}
        row |= {"bandwidth": arguments.bandwidth, "batch_size": arguments.batch_size, "hours_of_adamw": stepping}
        row["operations"] = {name: operations for name, (_, _, operations) in counts.items()}
        append_row(arguments.out, machine(torch.device("cpu")), {**row, "hours": hours})


if __name__ == "__main__":
    main()
