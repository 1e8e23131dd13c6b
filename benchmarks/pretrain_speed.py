"""What ten epochs with the encoder frozen cost: every sentence encoded once, against encoding again in every epoch.

Follows Devlin et al. 2018 (arXiv 1810.04805), section 5.3, for the feature-based approach; heads after Jia 2024.

    python benchmarks/pretrain_speed.py                        # a fiftieth of the rows, batches of 8
    python benchmarks/pretrain_speed.py --fraction 0.2 --batch_size 32 --tasks sts

Encoded once: one pass over train and dev, written to disk, then in every epoch a training pass over train and an
evaluation of dev from there. What is written is what the heads read: one vector a sentence for the mean, all tokens for
attention layers. Encoding again, as the course's code does: in every epoch the encoder runs in the training
pass over train, in an evaluation of train, and in one of dev. Both use our encoder, which is the quicker one, so the
ratio is what keeping the encodings saves and nothing else. In each round one pass, one epoch this way and one that way
take turns, for the baseline's heads (mean of the tokens) and the poster's; ten epochs are ten times the median epoch,
for the first with one pass before. Over all tasks the times are added up.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import measure
import torch

measure.find_ours()  # what is imported below is found only now

from subjects import EMBEDDED, MODEL_HELP, load_encoder, part_of, read_rows  # noqa: E402

from batches import TaskData  # noqa: E402
from bert import BertModel  # noqa: E402
from errors import InputError  # noqa: E402
from evaluation import predict  # noqa: E402
from frozen import Source, Store  # noqa: E402
from model import ModelConfig, MultitaskBERT  # noqa: E402
from optimizer import AdamW  # noqa: E402
from sampling import make_schedule  # noqa: E402
from tasks import TASKS, parse_tasks  # noqa: E402

EPOCHS, LR, SEED = 10, 1e-3, 11711
KINDS = {"mean": 0, "poster": None}  # attention layers: none, or the task's own
MEASURED = PASS, ONCE, AGAIN = "pass", "once", "again"


def encode_once(source: Source, splits: dict[str, TaskData], folder: Path) -> Store:
    """One pass over the distinct sentences of a task's files, kept in the folder. Ends the program if that is full."""
    sentences, said = [ids for data in splits.values() for side in data.sentences for ids in side], []
    store = Store.build(source, sentences, folder, say=said.append)
    if store is None or store.rows.dtype != "float32":
        sys.exit(f"error: {folder}: {said[-1]}: free some space, or take a smaller --fraction")
    return store


def train_epoch(model: MultitaskBERT, optimizer: AdamW, data: TaskData, batch_size: int) -> None:
    """Every row of train once, in random order."""
    model.train()
    schedule = make_schedule("sequential", {data.task.name: len(data)}, batch_size, EPOCHS, SEED)
    for _, rows in schedule.epoch(0):
        optimizer.zero_grad(set_to_none=True)
        loss = model.loss(data.batch(rows).to(model.device))
        loss.backward()
        optimizer.step()


class Heads:
    """One task's head of one kind, trained from a store or with the encoder in every step."""

    def __init__(self, encoder: BertModel, sha256: str, kind: str, task: str, batch_size: int):
        layers = None if KINDS[kind] is None else {task: KINDS[kind]}
        config = ModelConfig.for_tasks([task], attention=layers, option="pretrain")
        self.model = MultitaskBERT(config, encoder).to(encoder.embeddings.word_embeddings.weight.device)
        self.optimizer = AdamW([p for p in self.model.parameters() if p.requires_grad], lr=LR)
        self.source = Source(encoder, sha256, self.model.heads[task])
        self.batch_size = batch_size

    def encode(self, splits: dict[str, TaskData], scratch: Path) -> None:
        encode_once(self.source, splits, scratch)
        shutil.rmtree(scratch)

    def epoch_once(self, splits: dict[str, TaskData]) -> None:
        train_epoch(self.model, self.optimizer, splits["train"], self.batch_size)
        predict(self.model, splits["dev"])

    def epoch_again(self, splits: dict[str, TaskData]) -> None:
        train_epoch(self.model, self.optimizer, splits["train"], self.batch_size)
        for data in splits.values():
            predict(self.model, data)


def take_part(name: str, arguments: argparse.Namespace, tokenizer) -> tuple[dict, dict, dict]:
    """A fraction of the task's files, to be encoded again and for each kind's store; and what the row says of them."""
    plain, stored, described = {}, {kind: {} for kind in KINDS}, {}
    for split in ("train", "dev"):
        table, described[split] = read_rows(name, split, arguments.data)
        table = part_of(table, max(2, round(arguments.fraction * len(table))))
        for splits in (plain, *stored.values()):
            splits[split] = TaskData(TASKS[name], table, tokenizer)
        described[split]["rows_used"] = len(table)
    return plain, stored, described


def race(arguments: argparse.Namespace, device: torch.device) -> tuple[dict, dict, dict]:
    """({kind: {task: {pass, once, again: seconds of each round}}}, what the row says of the data, and of the model)."""
    encoder, tokenizer, model = load_encoder(arguments.model)
    encoder = encoder.to(device)
    names, steps, described = [task.name for task in arguments.tasks], {}, {}
    with tempfile.TemporaryDirectory() as place:
        keep, scratch = Path(place, "kept"), Path(place, "scratch")
        for name in names:
            plain, stored, described[name] = take_part(name, arguments, tokenizer)
            for kind, splits in stored.items():
                heads = Heads(encoder, str(model["sha256"]), kind, name, arguments.batch_size)
                store = encode_once(heads.source, splits, keep)
                described[name].setdefault("kept_mb", {})[kind] = store.rows.nbytes / 1e6
                for data in splits.values():
                    data.read_from(store)
                steps[name, kind, PASS] = lambda turn, heads=heads, data=plain: heads.encode(data, scratch)
                steps[name, kind, ONCE] = lambda turn, heads=heads, data=splits: heads.epoch_once(data)
                steps[name, kind, AGAIN] = lambda turn, heads=heads, data=plain: heads.epoch_again(data)
        taken = measure.take_turns(steps, arguments.rounds, device)
        del store, stored, splits, steps, data  # a mapped file is open until then, and some systems delete no open file
    seconds = {kind: {name: {what: taken[name, kind, what] for what in MEASURED} for name in names} for kind in KINDS}
    return seconds, described, model


def summarize(seconds: dict[str, list[float]]) -> dict:
    """From the seconds of each round of pass, once and again: their spread, and ten epochs both ways."""
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    once, again = medians[PASS] + EPOCHS * medians[ONCE], EPOCHS * medians[AGAIN]
    ratios = [
        EPOCHS * again / (one_pass + EPOCHS * once)
        for one_pass, once, again in zip(seconds[PASS], seconds[ONCE], seconds[AGAIN], strict=True)
    ]
    return {
        **{f"{name}_ms": measure.spread(times, 1000) for name, times in seconds.items()},
        "ten_epochs_once_seconds": once,
        "ten_epochs_again_seconds": again,
        "again_over_once": again / once,
        "again_over_once_quartiles": measure.spread(ratios)["quartiles"],
        "once_over_pass": once / medians[PASS],
    }


def add_up(tasks: dict[str, dict[str, list[float]]]) -> dict[str, list[float]]:
    """The same rounds' times of several tasks together."""
    return {name: [sum(times) for times in zip(*(t[name] for t in tasks.values()), strict=True)] for name in MEASURED}


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=EMBEDDED, help=MODEL_HELP)
    parser.add_argument("--tasks", type=parse_tasks, default="sst,para,sts", help="default %(default)s")
    parser.add_argument("--batch_size", type=measure.at_least(1), default=8, help="default 8, as in training")
    parser.add_argument(
        "--fraction", type=measure.share, default=0.02, help="of each file's rows, from its start (default 0.02)"
    )
    measure.add_data_option(parser)
    measure.add_options(parser)
    return parser.parse_args(argv)


def main() -> None:
    arguments = parse()
    device = measure.prepare(arguments)
    described = measure.machine(device)
    seconds, files, model = race(arguments, device)
    options = {"batch_size": arguments.batch_size, "rounds": arguments.rounds, "fraction": arguments.fraction}
    row, lines = {"model": model, "data": files, **options, "heads": {}}, []
    for kind, tasks in seconds.items():
        found = {name: summarize(times) for name, times in tasks.items()}
        found["all"] = summarize(add_up(tasks))
        row["heads"][kind] = found
        for name, got in found.items():
            line = [f"{kind}, {name}", *(got[f"{what}_ms"]["median"] for what in MEASURED)]
            line += [got["ten_epochs_once_seconds"], got["ten_epochs_again_seconds"]]
            lines.append([*line, got["again_over_once"], got["again_over_once_quartiles"], got["once_over_pass"]])
    print(f"{EPOCHS} epochs of heads on {arguments.model}, frozen; {described}")
    header = ["heads, task", "pass ms", "epoch once ms", "epoch again ms", "10 once s", "10 again s"]
    measure.show([*header, "again/once", "quartiles", "once/pass"], lines)
    measure.append_row(arguments.out, described, row)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
