"""What a pooler costs: one finetune step with each of them over one with cls, on bert-base's shapes.

Poolers after poolers.py; the settings are those of Lee, Park, Seo and Kim 2021: batches of 16, one linear map behind.

    python benchmarks/pooler_speed.py                          # bert-base's shapes, randomly initialized
    python benchmarks/pooler_speed.py --model all-MiniLM-L6-v2 --poolers mean,mean_max,attentive_cls

All share one encoder and one optimizer and take turns on the same random batches; a step is to put the batch together
from token ids, forward, backward and optimizer. With cls the encoder's last layer computes the first tokens alone,
which no pooler that reads other tokens can spare: so there are two things to compare with, cls as it is trained, and
cls with the whole last layer, as it is where nobody takes that shortcut. The second says what the pooler itself costs.
"""

import argparse
import sys

import measure
import torch

measure.find_ours()  # what is imported below is found only now

from subjects import EMBEDDED, RANDOM, draw_batches, load_encoder, load_rows  # noqa: E402

from errors import InputError  # noqa: E402
from model import ModelConfig, MultitaskBERT  # noqa: E402
from optimizer import AdamW  # noqa: E402
from packed import SWITCHES  # noqa: E402
from poolers import POOLERS  # noqa: E402
from precision import choose_precision  # noqa: E402
from tasks import TASKS  # noqa: E402

OPTIMIZER = {"lr": 1e-5, "eps": 1e-6, "weight_decay": 0.01}
DROPOUT = 0.1
CLS, WHOLE = "cls", "cls, whole last layer"


def parse_poolers(text: str) -> list[str]:
    """Names of poolers, cls always among them."""
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in POOLERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is not known; known: {', '.join(POOLERS)}")
    return list(dict.fromkeys([CLS, *names]))


def build(arguments: argparse.Namespace, encoder, device: torch.device) -> dict[str, MultitaskBERT]:
    """A model for each pooler, all around one encoder."""
    models = {}
    for name in arguments.poolers:
        torch.manual_seed(0)
        config = ModelConfig.for_tasks(
            [arguments.task], attention={arguments.task: 0}, pooler=name, hidden_dropout_prob=DROPOUT
        )
        models[name] = MultitaskBERT(config, encoder).to(device).train()
        models[name].autocast = choose_precision(arguments.precision, device).dtype
    return models


def race(arguments: argparse.Namespace, models: dict[str, MultitaskBERT], data, device: torch.device) -> dict:
    """{contestant: seconds of each round}, on the same batch in the same round."""
    encoder = next(iter(models.values())).bert
    heads = [p for model in models.values() for p in model.heads.parameters()]
    optimizer = AdamW([*encoder.parameters(), *heads], **OPTIMIZER)  # heads that a step doesn't use have no gradient
    scaler = torch.amp.GradScaler(device.type, enabled=arguments.precision == "fp16")
    batches = draw_batches(data, arguments.batch_size, arguments.rounds)["random"]

    def step(model: MultitaskBERT, turn: int, first_only: bool) -> None:
        SWITCHES.first_only = first_only
        optimizer.zero_grad(set_to_none=True)
        loss = model.loss(data.batch(batches[turn % len(batches)]).to(device))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        SWITCHES.first_only = True

    contestants = {name: lambda turn, model=model: step(model, turn, True) for name, model in models.items()}
    contestants[WHOLE] = lambda turn: step(models[CLS], turn, False)
    return measure.take_turns(contestants, arguments.rounds, device)


def summarize(seconds: dict[str, list[float]]) -> dict[str, dict]:
    """Milliseconds of each, and how many times as long as both kinds of cls they take, round by round."""
    found = {}
    for name, times in seconds.items():
        ratios = {"over_cls": measure.ratio(times, seconds[CLS]), "over_whole": measure.ratio(times, seconds[WHOLE])}
        found[name] = {
            "ms": measure.spread(times, 1000),
            **{key: found["over_ours_paired"] for key, found in ratios.items()},
            **{f"{key}_quartiles": found["over_ours_quartiles"] for key, found in ratios.items()},
        }
    return found


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model",
        default=RANDOM,
        help=f"{RANDOM} (default; its shapes, randomly initialized), {EMBEDDED}, or a folder of weights",
    )
    parser.add_argument("--task", choices=TASKS, default="sst", help="whose train rows; default sst")
    parser.add_argument("--poolers", type=parse_poolers, default=",".join(POOLERS), help="default: all of %(default)s")
    parser.add_argument("--batch_size", type=measure.at_least(1), default=16, help="default 16, the paper's")
    measure.add_precision_option(parser)
    measure.add_data_option(parser)
    measure.add_options(parser)
    return parser.parse_args(argv)


def main() -> None:
    arguments = parse()
    device = measure.prepare(arguments)
    described = measure.machine(device)
    encoder, tokenizer, model = load_encoder(arguments.model)
    data, file = load_rows(arguments.task, "train", arguments.data, tokenizer)
    found = summarize(race(arguments, build(arguments, encoder.to(device), device), data, device))
    options = {"batch_size": arguments.batch_size, "rounds": arguments.rounds, "precision": arguments.precision}
    print(f"one step of {arguments.model} on {TASKS[arguments.task].title}, batch {arguments.batch_size}; {described}")
    header = ["pooler", "median ms", "quartiles", "over cls", "quartiles", "over whole", "quartiles"]
    lines = []
    for name, row in found.items():
        line = [name, row["ms"]["median"], row["ms"]["quartiles"]]
        lines.append([*line, *(row[f"{key}{end}"] for key in ("over_cls", "over_whole") for end in ("", "_quartiles"))])
    measure.show(header, lines)
    measure.append_row(arguments.out, described, {"model": model, "data": file, **options, "poolers": found})


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
