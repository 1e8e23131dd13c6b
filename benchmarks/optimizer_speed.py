"""How long one optimizer step takes on bert-base's parameters: ours against torch's three forms of AdamW.

Follows google-research/bert's bert_config.json (uncased_L-12_H-768_A-12) for the 199 shapes, 109,482,240 parameters.

    python benchmarks/optimizer_speed.py                  # every core; about a minute, 7 GB of memory
    python benchmarks/optimizer_speed.py --device cuda

The contestants take turns within one process, in an order that moves on every round, on the same gradients, each with
parameters and state of its own. Prints a table and appends the numbers to results/optimizer_speed.jsonl.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from optimizer import AdamW  # noqa: E402  (found only once the root is on the path)

VOCABULARY, POSITIONS, TYPES, HIDDEN, INTERMEDIATE, LAYERS = 30522, 512, 2, 768, 3072, 12
OURS = "ours"


def bert_base_shapes():
    """The shapes of bert-base's parameters in the model's order."""
    square, bias, norm = (HIDDEN, HIDDEN), (HIDDEN,), [(HIDDEN,), (HIDDEN,)]
    attention = [square, bias] * 4 + norm
    feed_forward = [(INTERMEDIATE, HIDDEN), (INTERMEDIATE,), (HIDDEN, INTERMEDIATE), bias] + norm
    embeddings = [(VOCABULARY, HIDDEN), (POSITIONS, HIDDEN), (TYPES, HIDDEN)] + norm
    return embeddings + (attention + feed_forward) * LAYERS + [square, bias]


def make_contestants(device):
    """{name: optimizer}, each over parameters of its own that share one set of gradients."""
    torch.manual_seed(0)
    shapes = bert_base_shapes()
    gradients = [torch.randn(shape, device=device) * 0.01 for shape in shapes]
    options = {"lr": 1e-5, "eps": 1e-6, "weight_decay": 0.01}
    makers = {
        OURS: lambda parameters: AdamW(parameters, **options),
        "ours, fast=False": lambda parameters: AdamW(parameters, **options, fast=False),
        "torch default": lambda parameters: torch.optim.AdamW(parameters, **options),
        "torch foreach": lambda parameters: torch.optim.AdamW(parameters, **options, foreach=True),
        "torch fused": lambda parameters: torch.optim.AdamW(parameters, **options, fused=True),
    }
    contestants = {}
    for name, make in makers.items():
        parameters = [torch.nn.Parameter(torch.randn(shape, device=device) * 0.02) for shape in shapes]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        contestants[name] = make(parameters)
    return contestants


def timed(step, device):
    """Seconds that one call of `step` takes until its last kernel is done."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    step()
    wait()
    return time.perf_counter() - start


def measure(contestants, rounds, device):
    """{name: [seconds of each round]}; two rounds before the counted ones make the state and warm the caches."""
    seconds = {name: [] for name in contestants}
    names = list(contestants)
    for turn in range(-2, rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            taken = timed(contestants[name].step, device)
            if turn >= 0:
                seconds[name].append(taken)
    return seconds


def summarize(seconds):
    """{name: median and quartiles in ms, median over the rounds of its time divided by ours}."""
    rows = {}
    for name, times in seconds.items():
        low, median, high = (1000 * quartile for quartile in statistics.quantiles(times, n=4))
        ratio = statistics.median(time / ours for time, ours in zip(times, seconds[OURS], strict=True))
        rows[name] = {"median_ms": median, "quartiles_ms": [low, high], "min_ms": 1000 * min(times), "over_ours": ratio}
    return rows


def machine(device):
    """What the numbers depend on besides the code."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    described = {"cpu": name, "cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    if hasattr(os, "getloadavg"):
        described["load_before"] = round(os.getloadavg()[0], 2)
    if device == "cuda":
        described["gpu"] = torch.cuda.get_device_name()
    return described


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's, one a core)")
    parser.add_argument("--rounds", type=int, default=24, help="steps a contestant (default: 24, medians settle by 20)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the parameters are")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    described = machine(arguments.device)
    rows = summarize(measure(make_contestants(arguments.device), arguments.rounds, arguments.device))

    print(f"one step, {sum(torch.Size(shape).numel() for shape in bert_base_shapes()):,} parameters, {described}")
    print(f"{'':18}{'median ms':>10}{'quartiles':>16}{'min':>8}{'over ours':>11}")
    for name, row in rows.items():
        low, high = row["quartiles_ms"]
        quartiles = f"{low:.0f} to {high:.0f}"
        print(f"{name:18}{row['median_ms']:10.1f}{quartiles:>16}{row['min_ms']:8.1f}{row['over_ours']:11.2f}")
    print(f"ours over torch fused: {1 / rows['torch fused']['over_ours']:.2f}")

    result = {
        "command": " ".join(["python", "benchmarks/optimizer_speed.py", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "rounds": arguments.rounds,
        "machine": described,
        "contestants": {
            name: {key: [round(x, 2) for x in v] if isinstance(v, list) else round(v, 3) for key, v in row.items()}
            for name, row in rows.items()
        },
    }
    path = ROOT / "results" / "optimizer_speed.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
