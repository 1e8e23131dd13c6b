"""What the poster's attention layers cost: training steps with them over steps with the mean of the tokens.

Follows Jia 2024 (Stanford CS 224N poster): batches of 8, two self-, one cross-, three cross-attention layers; its times
are sums over the three tasks, so each task's step counts as often as its train file has batches.

    python benchmarks/attention_speed.py                             # bert-base's shapes, everything learns
    python benchmarks/attention_speed.py --option pretrain           # the encoder frozen, and run in every step
    python benchmarks/attention_speed.py --model all-MiniLM-L6-v2

All heads of a task share one encoder and take turns on the same random batches; a step is to put the batch together
from token ids, forward, backward and optimizer. The poster's ratios hold its dev and train evaluations, too, which have
no backward pass.
"""

import argparse
import sys

import measure
import torch

measure.find_ours()  # what is imported below is found only now

from subjects import MODEL_HELP, RANDOM, draw_batches, load_encoder, load_rows  # noqa: E402

from errors import InputError  # noqa: E402
from model import OPTIONS, ModelConfig, MultitaskBERT  # noqa: E402
from optimizer import AdamW  # noqa: E402

TASKS = ("sst", "para", "sts")
MEAN = "mean of the tokens"
HEADS = {
    MEAN: {"attention": 0, "pooler": "mean"},
    "first token": {"attention": 0, "pooler": "cls"},
    "attention": {},
    "attention, U(0.9, 1)": {"attention_init": "uniform"},
}
# Train rows of the poster's data, whatever part of them is drawn from here.
ROWS = {"sst": 8_544, "para": 141_504, "sts": 6_040}


def build(task: str, option: str, encoder, device: torch.device) -> dict[str, MultitaskBERT]:
    """A model for each kind of head, all around one encoder."""
    models = {}
    for name, choices in HEADS.items():
        torch.manual_seed(0)
        layers = {"attention": {task: choices["attention"]}} if "attention" in choices else {}
        config = ModelConfig.for_tasks(
            [task], **{**choices, **layers}, option=option, frozen_dropout=option == "pretrain", pair_score="dot"
        )
        models[name] = MultitaskBERT(config, encoder).to(device).train()
    return models


def race(arguments: argparse.Namespace, models: dict[str, MultitaskBERT], data, device: torch.device) -> dict:
    """{head: seconds of each round}, on the same batch in the same round."""
    batches = draw_batches(data, arguments.batch_size, arguments.rounds)["random"]
    parameters = {id(p): p for model in models.values() for p in model.parameters() if p.requires_grad}
    optimizer = AdamW(parameters.values(), lr=1e-5)  # heads that a step doesn't use have no gradient

    def step(model: MultitaskBERT, turn: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        model.loss(data.batch(batches[turn % len(batches)]).to(device)).backward()
        optimizer.step()

    contestants = {name: lambda turn, model=model: step(model, turn) for name, model in models.items()}
    return measure.take_turns(contestants, arguments.rounds, device)


def summarize(seconds: dict[str, dict[str, list[float]]]) -> dict:
    """{task or "all": {head: ms, ratio to the mean of the tokens}}; all weighs the tasks by their rows."""
    rounds = {
        name: [sum(ROWS[task] * seconds[task][name][i] for task in seconds) for i in range(len(times))]
        for name, times in next(iter(seconds.values())).items()
    }
    found = {}
    for task, heads in (*seconds.items(), ("all", rounds)):
        found[task] = {}
        for name, times in heads.items():
            ratio = measure.ratio(times, heads[MEAN])
            found[task][name] = {
                **({} if task == "all" else {"ms": measure.spread(times, 1000)}),
                "over_mean": ratio["over_ours_paired"],
                "over_mean_quartiles": ratio["over_ours_quartiles"],
            }
    return found


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=RANDOM, help=MODEL_HELP.replace(" (default)", ""))
    parser.add_argument("--option", choices=OPTIONS, default="finetune", help="default finetune")
    parser.add_argument("--batch_size", type=measure.at_least(1), default=8, help="default 8, the poster's")
    measure.add_data_option(parser)
    measure.add_options(parser)
    return parser.parse_args(argv)


def main() -> None:
    arguments = parse()
    device = measure.prepare(arguments)
    described = measure.machine(device)
    encoder, tokenizer, model = load_encoder(arguments.model)
    encoder, seconds, files = encoder.to(device), {}, {}
    for task in TASKS:
        data, files[task] = load_rows(task, "train", arguments.data, tokenizer)
        seconds[task] = race(arguments, build(task, arguments.option, encoder, device), data, device)
    found = summarize(seconds)
    print(f"one step of {arguments.model}, {arguments.option}, batch {arguments.batch_size}; {described}")
    lines = []
    for name in HEADS:
        ratios = [found[task][name]["over_mean"] for task in (*TASKS, "all")]
        lines.append([name, *ratios, found["all"][name]["over_mean_quartiles"]])
    measure.show(["over the mean of the tokens", *TASKS, "all", "quartiles"], lines)
    options = {key: getattr(arguments, key) for key in ("option", "batch_size", "rounds")}
    measure.append_row(arguments.out, described, {"model": model, "data": files, **options, "heads": found})


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
