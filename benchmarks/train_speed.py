"""How long one finetune step takes: ours against transformers' BertForSequenceClassification, SDPA and fused AdamW.

Follows google-research/bert for what is trained: every weight, dropout 0.1, one linear map on the pooled first token.

    python benchmarks/train_speed.py                                  # the embedded weights, batch 32
    python benchmarks/train_speed.py --batch_size 8
    python benchmarks/train_speed.py --model bert-base --batch_size 8 --tasks sst,para
    python benchmarks/train_speed.py --attention 1                    # ours with the poster's heads, theirs without

Both start from the same weights (their encodings are compared first) and take turns in one process, on real batches:
(a) the same random ones, (b) both on the same batches of rows sorted by length. A step is to put the batch together
from token ids, forward, backward and optimizer. Theirs gets it padded; of a pair both sides, as two sentences with the
pair's label, so that its encoder does the same work as ours. The share of the peak is what the encoder's linear maps
and attention products need on REAL tokens, forward and backward, against products of preallocated matrices that take
turns with the rest; `needed` counts the last layer at the first tokens alone, where the head reads nothing else. Heads
and optimizer count as no work. Peak memory is measured in processes of their own, over the first random batches.
"""

import argparse
import json
import statistics
import sys

import measure
import numpy as np
import torch

try:
    (transformers, _) = measure.import_theirs("transformers", "transformers.models.bert.modeling_bert")
except ImportError:
    transformers = None
measure.find_ours()  # what is imported below is found only now

from subjects import (  # noqa: E402
    EMBEDDED,
    MODEL_HELP,
    draw_batches,
    forward_operations,
    load_encoder,
    load_rows,
    sentence_lengths,
)

from batches import TaskData  # noqa: E402
from bert import BertModel  # noqa: E402
from errors import InputError  # noqa: E402
from model import ModelConfig, MultitaskBERT  # noqa: E402
from optimizer import AdamW  # noqa: E402
from poolers import POOLERS  # noqa: E402
from precision import choose_precision  # noqa: E402
from tasks import parse_tasks  # noqa: E402

OPTIMIZER = {"lr": 1e-5, "eps": 1e-6, "weight_decay": 0.01}
DROPOUT = 0.1
MEMORY_STEPS = 8
OURS, THEIRS, PEAK = "ours", "transformers", "matrix product"
ORDERS = ("random", "sorted")


class Contestant:
    """A model with its optimizer. loss_of(data, rows) puts the batch together and gives its loss."""

    def __init__(self, model, optimizer, device: torch.device, precision: str):
        self.model, self.optimizer = model.to(device).train(), optimizer
        self.device, self.precision = device, precision
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")

    def step(self, data: TaskData, rows: np.ndarray) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(self.loss_of(data, rows)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


class Ours(Contestant):
    def __init__(self, encoder: BertModel, arguments: argparse.Namespace, device: torch.device):
        names = [task.name for task in arguments.tasks]
        layers = dict.fromkeys(names, 0) if arguments.attention == "0" else None
        config = ModelConfig.for_tasks(
            names, attention=layers, pooler=arguments.pooler, hidden_dropout_prob=DROPOUT, option="finetune"
        )
        model = MultitaskBERT(config, encoder).to(device)
        model.autocast = choose_precision(arguments.precision, device).dtype
        super().__init__(model, AdamW(model.parameters(), **OPTIMIZER), device, arguments.precision)

    def loss_of(self, data: TaskData, rows: np.ndarray) -> torch.Tensor:
        return self.model.loss(data.batch(rows).to(self.device))

    def encodings(self, data: TaskData, rows: np.ndarray) -> torch.Tensor:
        batch = data.batch(rows).to(self.device)
        return batch.layout.unpack(self.model.encode(batch.input_ids, batch.layout)[-1])

    def reads_first_only(self, task: str) -> bool:
        head = self.model.heads[task]
        return head.pooler.first_token_only and not head.attention


class Theirs(Contestant):
    def __init__(self, encoder: BertModel, arguments: argparse.Namespace, device: torch.device):
        classes = max(2 if task.is_pair else task.output_size for task in arguments.tasks)
        config = transformers.BertConfig(**encoder.config.to_dict(), num_labels=classes)
        config._attn_implementation = "sdpa"
        model = transformers.BertForSequenceClassification(config)
        model.bert.load_state_dict(encoder.state_dict(), strict=False)  # position ids are a buffer of theirs
        model = model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), **OPTIMIZER, fused=True)
        super().__init__(model, optimizer, device, arguments.precision)

    def inputs(self, data: TaskData, rows: np.ndarray) -> dict[str, torch.Tensor]:
        """The padded batch of these rows, token ids and mask (S, T)."""
        sentences = [side[row] for side in data.sentences for row in rows]
        lengths = np.array([len(ids) for ids in sentences])
        ids = np.zeros((len(sentences), lengths.max()), dtype=np.int64)
        real = np.arange(ids.shape[1]) < lengths[:, None]
        ids[real] = np.concatenate(sentences)
        padded = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(real.astype(np.int64))}
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in padded.items()}

    def loss_of(self, data: TaskData, rows: np.ndarray) -> torch.Tensor:
        labels = data.labels[torch.from_numpy(rows)].long().repeat(len(data.sentences))
        inputs = {**self.inputs(data, rows), "labels": labels.to(self.device, non_blocking=True)}
        with measure.autocast(self.device, self.precision):
            return self.model(**inputs).loss

    def encodings(self, data: TaskData, rows: np.ndarray) -> torch.Tensor:
        inputs = self.inputs(data, rows)
        return self.model.bert(**inputs).last_hidden_state * inputs["attention_mask"][..., None]


MAKERS = {OURS: Ours, THEIRS: Theirs}


@torch.no_grad()
def largest_difference(ours: Ours, theirs: Theirs, data: TaskData, rows: np.ndarray) -> float:
    """Between both encodings of a batch, without dropout. Ends the program if they are not the same."""
    for contestant in (ours, theirs):
        contestant.model.eval()
    difference = (ours.encodings(data, rows) - theirs.encodings(data, rows)).abs().max().item()
    for contestant in (ours, theirs):
        contestant.model.train()
    if not difference < 1e-3:
        sys.exit(f"error: the encodings differ by {difference}: the contestants don't compute the same thing")
    return difference


def race(contestants: dict[str, Contestant], data: TaskData, arguments: argparse.Namespace, device) -> dict:
    """Both orders of one task's batches, a round after the other: what the row says of the task."""
    batches = draw_batches(data, arguments.batch_size, arguments.rounds)
    product = measure.MatrixProduct(device, arguments.precision)

    def stepper(contestant, chosen):
        return lambda turn: contestant.step(data, chosen[turn % len(chosen)])

    steps = {f"{name}, {order}": stepper(c, batches[order]) for order in ORDERS for name, c in contestants.items()}
    seconds = measure.take_turns({**steps, PEAK: product.step}, arguments.rounds, device)
    peak, model = product.peak(seconds[PEAK]), contestants[OURS].model
    found = {"peak_gflops": peak / 1e9, "peak_shape": product.shape}
    for order in ORDERS:
        chosen = [batches[order][turn % len(batches[order])] for turn in range(arguments.rounds)]
        lengths = [sentence_lengths(data, rows) for rows in chosen]
        tokens = [int(some.sum()) for some in lengths]
        padded = sum(len(some) * int(some.max()) for some in lengths)
        found[order] = {"tokens_a_step": statistics.mean(tokens), "padded_over_real": padded / sum(tokens)}
        for name in contestants:
            times = seconds[f"{name}, {order}"]
            row = {
                "ms": measure.spread(times, 1000),
                "tokens_per_second": sum(tokens) / sum(times),
                **measure.ratio(times, seconds[f"{OURS}, {order}"]),
            }
            firsts_only = contestants[OURS].reads_first_only(data.task.name)
            for key, first_only in (("share_of_peak", False), ("needed_share_of_peak", firsts_only)):
                work = [3 * forward_operations(model.bert, some, first_only) for some in lengths]
                row[key] = statistics.median(w / (s * peak) for w, s in zip(work, times, strict=True))
            found[order][name] = row
    return found


def memory_of(part: str, arguments: argparse.Namespace, device: torch.device) -> dict:
    """Peak memory of the first random batches' steps; part: `task contestant`. Before them only weights are there."""
    task, name = part.split()
    encoder, tokenizer, _ = load_encoder(arguments.model)
    data, _ = load_rows(task, "train", arguments.data, tokenizer)
    contestant = MAKERS[name](encoder, arguments, device)
    del encoder
    batches = draw_batches(data, arguments.batch_size, MEMORY_STEPS)["random"]
    return measure.peak_memory(lambda: [contestant.step(data, rows) for rows in batches], device)


def show(task: str, found: dict, names: list[str], arguments: argparse.Namespace) -> None:
    print(f"\n{task}, batch {arguments.batch_size}; matrix products at most {found['peak_gflops']:,.0f} GFLOP/s")
    header = [
        "",
        "median ms",
        "quartiles",
        "tokens/s",
        "over ours",
        "paired",
        "quartiles",
        "share",
        "needed",
        "peak MB",
        "added MB",
    ]
    lines = []
    for order in ORDERS:
        for name in names:
            row, memory = found[order][name], found.get("memory", {}).get(name) if order == "random" else None
            line = [f"{name}, {order}", row["ms"]["median"], row["ms"]["quartiles"], row["tokens_per_second"]]
            line += [
                row["over_ours"],
                row["over_ours_paired"],
                row["over_ours_quartiles"],
                row["share_of_peak"],
                row["needed_share_of_peak"],
            ]
            lines.append(line + ([memory["peak_mb"], memory["added_mb"]] if memory else [None, None]))
    measure.show(header, lines)
    padding = ", ".join(f"{order} {found[order]['padded_over_real']:.2f}" for order in ORDERS)
    print(f"padded over real tokens: {padding}")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=EMBEDDED, help=MODEL_HELP)
    parser.add_argument("--tasks", type=parse_tasks, default="sst,para,cfimdb", help="default %(default)s")
    parser.add_argument("--batch_size", type=measure.at_least(1), default=32, help="default 32")
    parser.add_argument("--attention", choices=["0", "1"], default="0", help="1: the poster's layers; default 0: none")
    parser.add_argument("--pooler", choices=POOLERS, default="cls", help="ours; default cls, which is theirs")
    parser.add_argument("--alone", action="store_true", help="ours without transformers")
    parser.add_argument("--no_memory", action="store_true", help="leave out peak memory, two processes a task")
    parser.add_argument("--apart", help=argparse.SUPPRESS)
    measure.add_precision_option(parser)
    measure.add_data_option(parser)
    measure.add_options(parser)
    arguments = parser.parse_args(argv)
    if any(task.label_kind == "score" for task in arguments.tasks):
        parser.error("--tasks: theirs is a classifier, so choose among sst, para and cfimdb")
    if transformers is None and not arguments.alone:
        parser.error("transformers is not installed: ./setup.sh pytest --version installs it, or add --alone")
    return arguments


def main() -> None:
    arguments = parse()
    device = measure.prepare(arguments)
    if arguments.apart:
        print(json.dumps(memory_of(arguments.apart, arguments, device)))
        return
    described = measure.machine(device)
    encoder, tokenizer, model = load_encoder(arguments.model)
    makers = {name: make for name, make in MAKERS.items() if name == OURS or not arguments.alone}
    contestants = {THEIRS: Theirs(encoder, arguments, device)} if THEIRS in makers else {}
    contestants = {OURS: Ours(encoder, arguments, device), **contestants}
    options = {"batch_size": arguments.batch_size, "rounds": arguments.rounds, "precision": arguments.precision}
    row = {"model": model, **options, "attention": arguments.attention, "pooler": arguments.pooler, "tasks": {}}
    print(f"one step of {arguments.model}, {sum(p.numel() for p in encoder.parameters()):,} parameters, {described}")
    loaded = {task.name: load_rows(task.name, "train", arguments.data, tokenizer) for task in arguments.tasks}
    if THEIRS in contestants:  # before any step: afterwards each has learned on its own
        batches = [(data, draw_batches(data, arguments.batch_size, 1)["random"][0]) for data, _ in loaded.values()]
        row["largest_difference"] = max(largest_difference(*contestants.values(), *batch) for batch in batches)
    for task in arguments.tasks:
        data, file = loaded[task.name]
        found = race(contestants, data, arguments, device)
        if not arguments.no_memory:
            found["memory"] = {name: measure.measured_apart(f"{task.name} {name}") for name in contestants}
        row["tasks"][task.name] = {"data": file, **found}
        show(task.title, found, list(contestants), arguments)
    measure.append_row(arguments.out, described, row)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
