"""How long one optimizer step takes on bert-base's parameters: ours against torch's three forms of AdamW.

Follows google-research/bert's bert_config.json (uncased_L-12_H-768_A-12) for the 199 shapes, 109,482,240 parameters.

    python benchmarks/optimizer_speed.py                  # every core; about a minute, 7 GB of memory
    python benchmarks/optimizer_speed.py --device cuda

The contestants take turns within one process, in an order that moves on every round, on the same gradients, each with
parameters and state of its own. Prints a table and appends the numbers to results/optimizer_speed.jsonl.
"""

import argparse

import measure
import torch

measure.find_ours()

from optimizer import AdamW  # noqa: E402  (found only once the root is on the path)

VOCABULARY, POSITIONS, TYPES, HIDDEN, INTERMEDIATE, LAYERS = 30522, 512, 2, 768, 3072, 12
OURS = "ours"


def bert_base_shapes(layers):
    """The shapes of bert-base's parameters in the model's order, with that many layers."""
    square, bias, norm = (HIDDEN, HIDDEN), (HIDDEN,), [(HIDDEN,), (HIDDEN,)]
    attention = [square, bias] * 4 + norm
    feed_forward = [(INTERMEDIATE, HIDDEN), (INTERMEDIATE,), (HIDDEN, INTERMEDIATE), bias] + norm
    embeddings = [(VOCABULARY, HIDDEN), (POSITIONS, HIDDEN), (TYPES, HIDDEN)] + norm
    return embeddings + (attention + feed_forward) * layers + [square, bias]


def make_contestants(shapes, device):
    """{name: optimizer}, each over parameters of its own that share one set of gradients."""
    torch.manual_seed(0)
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


def measured(contestants, rounds, device):
    """{name: median, quartiles and minimum in ms, and how many times as long as ours}."""
    steps = {name: (lambda turn, step=contestant.step: step()) for name, contestant in contestants.items()}
    seconds = measure.take_turns(steps, rounds, device)
    return {
        name: {"ms": measure.spread(times, 1000), **measure.ratio(times, seconds[OURS])}
        for name, times in seconds.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=measure.at_least(1), default=LAYERS, help=f"default {LAYERS}, bert-base's")
    measure.add_options(parser, rounds=24)
    arguments = parser.parse_args()
    device = measure.prepare(arguments)
    described = measure.machine(device)
    shapes = bert_base_shapes(arguments.layers)
    contestants = measured(make_contestants(shapes, device), arguments.rounds, device)

    parameters = sum(torch.Size(shape).numel() for shape in shapes)
    print(f"one step, {parameters:,} parameters, {described}")
    lines = []
    for name, row in contestants.items():
        milliseconds = row["ms"]
        line = [name, milliseconds["median"], milliseconds["quartiles"], milliseconds["min"]]
        lines.append([*line, row["over_ours"], row["over_ours_quartiles"]])
    measure.show(["", "median ms", "quartiles", "min", "over ours", "quartiles"], lines)
    print(f"ours over torch fused: {1 / contestants['torch fused']['over_ours']:.2f}")
    row = {"parameters": parameters, "rounds": arguments.rounds, "contestants": contestants}
    measure.append_row(arguments.out, described, row)


if __name__ == "__main__":
    main()
