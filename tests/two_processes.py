"""One of the processes of test_distributed.py: `python two_processes.py FOLDER WHAT`, under torchrun's variables.

Trains the tiny model by every schedule, or dies in the middle; the functions serve the test as well.
"""

import importlib
import os
import signal
import sys
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from batches import TaskData  # noqa: E402
from bert import BertConfig, BertModel  # noqa: E402
from calibration import settled  # noqa: E402
from datasets import Example, Table  # noqa: E402
from distributed import ALONE, find_processes, joined  # noqa: E402
from errors import InputError  # noqa: E402
from evaluation import predict  # noqa: E402
from model import ModelConfig, MultitaskBERT  # noqa: E402
from r_drop import RDrop  # noqa: E402
from run import Run  # noqa: E402
from sampling import SCHEDULES, make_schedule  # noqa: E402
from tasks import PARA, SST, STS, leaderboard_score  # noqa: E402
from tokenizer import BertTokenizer  # noqa: E402
from training import Stopped, Trainer, TrainingOptions  # noqa: E402

WORDS = ["good", "bad", "the film", "a cat", "very", "not", "bright", "mat ."]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *" ".join(WORDS).split()]
CONFIG = BertConfig(
    vocab_size=len(PIECES),
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=40,
    max_position_embeddings=24,
    initializer_range=0.3,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def make_data(sst=SST):
    """task -> rows: their last batches of 4 have 1, 2 and 3 rows, so that one has fewer than there are processes."""
    tokenizer = BertTokenizer({piece: i for i, piece in enumerate(PIECES)}, model_max_length=24)
    found = {}
    for task, rows in ((sst, 9), (PARA, 10), (STS, 11)):
        texts = [" ".join(WORDS[i % 4 : 1 + i % 8 + i % 4]) or "not" for i in range(rows + 1)]
        labels = {"sst": [i % 5 for i in range(rows)], "para": [i % 2 for i in range(rows)]}.get(task.name)
        labels = labels or [i * 0.4 for i in range(rows)]
        pairs = [texts[-i] if task.is_pair else None for i in range(rows)]
        table = [Example(f"r{i}", texts[i], pairs[i], labels[i], i + 2) for i in range(rows)]
        found[task.name] = TaskData(task, Table(None, table, [], ""), tokenizer)
    return found


def make_trainer(
    folder, schedule="proportional", processes=ALONE, micro_batch=0, dropout=0.0, loss=None, together=False
):
    """loss: of sst; None is its own. together: R-Drop, steps of three batches, PCGrad, an average, settled offsets."""
    torch.manual_seed(3)
    heads = {"attention": dict.fromkeys(("sst", "para", "sts"), 0), "hidden_dropout_prob": dropout}
    heads["losses"] = {"sst": loss}
    model = MultitaskBERT(ModelConfig.for_tasks(**heads), BertModel(replace(CONFIG, hidden_dropout_prob=dropout)))
    torch.manual_seed(3 + processes.rank)
    data = make_data(SST.with_loss(loss))
    steps = make_schedule(schedule, {name: len(rows) for name, rows in data.items()}, 4, 2, seed=5)

    def evaluate():
        found = {name: predict(model, rows, 3, processes) for name, rows in data.items()}
        row = {"dev": {name: p.scores for name, p in found.items()}, "loss": {n: p.loss for n, p in found.items()}}
        return leaderboard_score({name: p.score for name, p in found.items()}), row, "words"

    run = Run(folder)
    options = TrainingOptions(epochs=2, lr=2e-3, clip=1.0, seed=5, micro_batch=micro_batch)
    save_best = lambda: model.save_pretrained(run.best)  # noqa: E731
    more = {}
    if together:
        model.double()  # since PCGrad makes steps of the rounding in key biases, whose gradient is 0
        options = replace(options, accumulate=3, pcgrad=True, average=0.8)
        more = {"gradients": partial(RDrop, alpha=1.0), "settled": partial(settled, model, data, 5, "all", processes)}
    return Trainer(model, data, steps, evaluate, save_best, run, options, processes=processes, **more)


def curve(trainer):
    """What a run measured, without times."""
    return [{k: v for k, v in row.items() if k != "train_seconds"} for row in trainer.progress.history]


def state(trainer):
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def main(folder, what):
    torch.set_num_threads(1)
    processes = find_processes()
    with joined(processes, timedelta(seconds=5 if what == "hangs" else 60)):
        if what == "schedules":
            for name in SCHEDULES:
                for micro_batch in (0, 1):
                    trainer = make_trainer(folder / f"{name}-{micro_batch}", name, processes, micro_batch)
                    trainer.train(lambda line: None)
                    torch.save((curve(trainer), state(trainer)), folder / f"{name}-{micro_batch}-{processes.rank}.pt")
        elif what == "corn":
            for micro_batch in (0, 1):
                trainer = make_trainer(folder / f"{micro_batch}", "proportional", processes, micro_batch, loss="corn")
                trainer.train(lambda line: None)
                torch.save((curve(trainer), state(trainer)), folder / f"corn-{micro_batch}-{processes.rank}.pt")
        elif what == "together":
            trainer = make_trainer(folder / "two", "even", processes, together=True)
            trainer.train(lambda line: None)
            torch.save((curve(trainer), state(trainer)), folder / f"together-{processes.rank}.pt")
        elif what in ("stopped", "straight"):
            trainer = make_trainer(folder / what, processes=processes, dropout=0.2)
            real = trainer._step

            def step(*arguments):
                real(*arguments)
                # One process is asked to stop; both have to after the same step.
                trainer.interrupted |= what == "stopped" and processes.rank == 1 and trainer.progress.step == 4

            trainer._step = step
            try:
                trainer.train(lambda line: None)
            except Stopped:  # go on as a new process would
                assert trainer.progress.step == 5
                trainer = make_trainer(folder / what, processes=processes, dropout=0.2)
                torch.manual_seed(999)
                trainer.train(lambda line: None)
            torch.save((curve(trainer), state(trainer)), folder / f"{what}-{processes.rank}.pt")
        elif what in ("dies", "hangs"):
            trainer = make_trainer(folder / "run", processes=processes)
            real = trainer._step

            def step(*arguments):
                real(*arguments)
                if processes.rank == 1 and trainer.progress.step == 2:
                    os._exit(9) if what == "dies" else os.kill(os.getpid(), signal.SIGSTOP)

            trainer._step = step
            try:
                trainer.train(lambda line: None)
            except InputError as error:
                print(f"error: {error}", file=sys.stderr)
                os._exit(1)
        elif what == "words":
            text = processes.from_first("a – name" if processes.first else "not this")
            rows = torch.arange(3 - processes.rank, dtype=torch.float32) + 10 * processes.rank
            gathered = processes.gather(rows, [3, 2]).tolist()
            flags = processes.any(torch.tensor([processes.rank == 1, False])).tolist()
            shares = [part.tolist() for n in (1, 5) for part in processes.shares(np.arange(n))]
            torch.save((text, gathered, flags, shares), folder / f"words-{processes.rank}.pt")
        elif what == "imports":
            importlib.import_module("torch._dynamo")  # as torch's optimizers and compiler do, at any time
            processes.wait()
    if what == "imports":
        names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
        (folder / f"threads-{processes.rank}").write_text("\n".join(names))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
