"""Kills real runs at random moments, goes on with them, and compares what they end with to an undisturbed run.

    python tests/torture.py --kills 50                        # a tiny model, a few rows: every command in turn
    python tests/torture.py --kills 50 --command finetune     # of one
    python tests/torture.py --kills 10 --command finetune --model all-MiniLM-L6-v2 --rows 24

SIGKILL, SIGTERM and Ctrl-C are mixed (POSIX signals). Each run is a process of its own, of a copy of the program; it is
gone on with by the command that it printed, or where it could print none by --resume. The hash is of the weights,
metrics but for seconds, scores and predictions. The exit code is 1 if one differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import weights  # noqa: E402
from bert import BertConfig, BertModel  # noqa: E402
from files import TEMPORARY  # noqa: E402
from tokenizer import BertTokenizer  # noqa: E402

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
EARLY = 0.2  # share of the kills that come at any moment from the start of the process, not of the run
LONGEST = 900  # seconds that a process may take to end after it was asked to
# who was killed -> the exit codes that a signal may lead to
ALLOWED = {"it": lambda number: {-number, 130}, "its process": lambda number: {1}, "nobody": lambda number: set()}
COURSE = "--epochs 2 --batch_size 4 --save_every 0 --device cpu"
# command -> what is typed, but for model and run; each writes a checkpoint after every step
COMMANDS = {
    "finetune": f"multitask_classifier.py --option finetune --lr_decay linear --warmup 0.1 {COURSE}",
    "separate": f"multitask_classifier.py --option finetune --schedule separate --attention 0 {COURSE}",
    "pretrain": f"multitask_classifier.py --option pretrain --lr 0.01 {COURSE}",
    "contrastive": "contrastive.py train --pooler layer_attention --mlm_weight 0.1 --evaluate_every 3 --epochs 2 "
    "--batch_size 8 --save_every 0 --device cpu",
    "reproduce": "reproduce.py table1 --rows mean,first-token --tasks sst --epochs 3 --batch_size 4 --device cpu",
    "index": "contrastive.py search index corpus.txt --index indexes/run --device cpu",
}


@dataclass
class Subject:
    """A command that is killed, in a copy of the program. rows: of each file of the sample, at most."""

    name: str
    folder: Path
    model: str
    found: Counter = field(default_factory=Counter)

    @property
    def run(self) -> Path:
        return self.folder / {"reproduce": "runs", "index": "indexes"}.get(self.name, "runs/run")

    def begin(self) -> list[str]:
        where = {"reproduce": "--runs runs", "index": ""}.get(self.name, "--run runs/run")
        return shlex.split(f"{COMMANDS[self.name]} --model {shlex.quote(self.model)} {where}")

    def go_on(self) -> list[str]:
        """What continues a run that could not say so."""
        if self.name in ("reproduce", "index") or not (self.run / "config.json").is_file():
            return self.begin()
        program = shlex.split(COMMANDS[self.name])[: 2 if self.name == "contrastive" else 1]
        return [*program, "--resume", "runs/run"]

    def is_finished(self) -> bool:
        return (self.run / "scores.json").is_file() and not list(self.run.rglob("last"))

    def clear(self) -> None:
        for name in ("runs", "predictions", "cache", "indexes"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def state(self) -> dict[str, str]:
        """Name -> hash of all that a finished run leaves, but for what is a time, a place or a process's number."""
        found = {}
        for path in sorted((*self.run.rglob("*"), *(self.folder / "predictions").rglob("*"))):
            if path.name == "report.html":  # which has times in it
                continue
            if not path.is_file() or path.name in (".lock", "log.txt", "config.json") and path.parent.name != "best":
                continue
            if path.parent == self.folder / "predictions" and TEMPORARY.fullmatch(path.name):
                continue  # which goes an hour later, when surely nobody is writing it
            content = _timeless(path).encode() if path.suffix == ".jsonl" else path.read_bytes()
            found[str(path.relative_to(self.folder))] = hashlib.sha256(content).hexdigest()
        return found


def _timeless(path: Path) -> str:
    """Rows without what differs from run to run."""
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "cell" in row:
            row = {name: row[name] for name in ("cell", "dev", "loss", "model")}
        kept.append(json.dumps({name: value for name, value in row.items() if name != "train_seconds"}))
    return "\n".join(sorted(kept))


class Process:
    """One start of a command, and what it has said so far."""

    def __init__(self, command: list[str], folder: Path):
        self.began = time.monotonic()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_heed_signals,
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self.said = queue.Queue()
        self.readers = [
            threading.Thread(target=self._read, args=(stream, lines))
            for stream, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self.readers:
            reader.start()

    def _read(self, stream, lines) -> None:
        for line in stream:
            lines.append(line)
            self.said.put(line)
        self.said.put(None)

    def wait_for_work(self) -> bool:
        """Until the run has begun, as its output says; whether it did."""
        while (line := self.said.get(timeout=LONGEST)) is not None:
            if re.match(r"run  |continuing|started|continued|waiting|corpus  ", line):
                return True
        return False

    def pause(self, seconds: float) -> None:
        """Wait so long, or until it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def send(self, number: int, to_child: bool) -> str:
        """Send the signal; SIGKILL may go to a process that this one has started, where there is one. Returns which."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        found = children.read_text().split() if to_child and children.exists() else []
        if number == signal.SIGKILL and found:
            os.kill(int(found[0]), number)
            return "its process"
        self.process.send_signal(number)
        return "it"

    def end(self) -> int:
        code = self.process.wait(LONGEST)
        for reader in self.readers:
            reader.join(LONGEST)
        return code


def _heed_signals() -> None:
    """A shell's background job ignores Ctrl-C, and so would what it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def make(folder: Path, model: str | None, rows: int) -> str:
    """A copy of the program, some rows of its sample, a corpus, and a tiny model if none is named. Returns its name."""
    folder.mkdir(parents=True)
    for path in ROOT.glob("*.py"):
        shutil.copy(path, folder)
    if (ROOT / "templates").is_dir():  # of the page that a run ends with
        shutil.copytree(ROOT / "templates", folder / "templates")
    sample = folder / "data" / "sample"
    sample.mkdir(parents=True)
    words: set[str] = set()
    for path in (ROOT / "data" / "sample").glob("*.csv"):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)[: rows + 1]
        (sample / path.name).write_text("".join(lines), encoding="utf-8")
        words |= set(re.findall(r"\w+|[^\w\s]", "".join(lines).lower()))
    sentences = (sample / "ids-sst-train.csv").read_text(encoding="utf-8").splitlines()[1:]
    texts = [line.split("\t")[2] for line in sentences]
    (folder / "corpus.txt").write_text("".join(f"{text} {i}\n" for i in range(400) for text in texts), encoding="utf-8")
    if model is not None:
        found = weights.find(model)
        return str(found.path.resolve())
    pieces = [*PIECES, *sorted(words)]
    BertTokenizer({piece: i for i, piece in enumerate(pieces)}, model_max_length=40).save_pretrained(folder / "tiny")
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(pieces),
        hidden_size=24,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=40,
        initializer_range=0.3,
    )
    BertModel(config).save_pretrained(folder / "tiny")
    return "tiny"


def undisturbed(subject: Subject) -> tuple[dict, float]:
    """The state of a run that nothing disturbs, and its seconds from its first word on."""
    subject.clear()
    process = Process(subject.begin(), subject.folder)
    process.wait_for_work()
    began = time.monotonic()
    code = process.end()
    if code:
        raise SystemExit(f"{subject.name}: the undisturbed run ends with {code}:\n{''.join(process.err)}")
    return subject.state(), time.monotonic() - began


def disturbed(subject: Subject, seconds: float, signals: list[int], chance: random.Random) -> dict | None:
    """The state of a run that is killed and gone on with until it ends, or None where one step of that goes wrong.

    signals: what is still to be sent; those that came before the process had ended by itself are taken out.
    """
    subject.clear()
    command = subject.begin()
    while True:
        process, victim = Process(command, subject.folder), "nobody"
        if signals:
            early = chance.random() < EARLY
            working = not early and process.wait_for_work()
            process.pause(chance.uniform(0, seconds * (2 if early else 1)))
            victim = process.send(signals[-1], chance.random() < 0.5)
        code = process.end()
        said = "".join(process.err)
        if code == 0:
            return subject.state()
        if not signals or code not in ALLOWED[victim](signals[-1]) or "Traceback" in said:
            print(f"{subject.name}: ends with {code}, {victim} killed:\n{said}", file=sys.stderr)
            return None
        number = signals.pop()
        subject.found[f"{number.name} {'in the run' if working else 'at any moment'}"] += 1
        if len(signals) % 10 == 0:
            print(f"{subject.name}: {len(signals)} kills to go", file=sys.stderr, flush=True)
        subject.found["left half a file"] += any(subject.folder.rglob(".*.tmp"))
        if subject.is_finished():  # killed after its last write
            return subject.state()
        printed = re.search(r"continue with: python (.*)", said)
        command = shlex.split(printed.group(1)) if printed else subject.go_on()


def torture(subject: Subject, kills: int, chance: random.Random) -> bool:
    """Whether runs that are killed so often in all end as one that is not; says so, with numbers."""
    began = time.monotonic()
    wanted, seconds = undisturbed(subject)
    signals, runs, same = [chance.choice(SIGNALS) for _ in range(kills)], 0, True
    while (signals or not runs) and same:
        found, runs = disturbed(subject, seconds, signals, chance), runs + 1
        same = found == wanted
        if not same:
            differing = {name for name in {*wanted, *(found or {})} if wanted.get(name) != (found or {}).get(name)}
            print(f"{subject.name}: not the same: {', '.join(sorted(differing))}", file=sys.stderr)
    counts = ", ".join(f"{count} {what}" for what, count in sorted(subject.found.items()) if count)
    verdict = "the same" if same else "NOT the same"
    whole = hashlib.sha256(json.dumps(wanted).encode()).hexdigest()[:16]
    took = time.monotonic() - began
    print(f"{subject.name}: {runs} runs, {counts}; {verdict} as undisturbed ({whole}); {took:.0f} s", flush=True)
    return same


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=50, help="of each command (default %(default)s)")
    parser.add_argument("--command", choices=COMMANDS, nargs="+", default=list(COMMANDS), help="default: all in turn")
    parser.add_argument("--model", help="a folder or known name (default: a tiny one, of random weights)")
    parser.add_argument(
        "--rows", type=int, default=12, help="of each file of the sample, at most (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the moments and signals (default %(default)s)")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "minbert"
        model = make(folder, args.model, args.rows)
        done = [
            torture(Subject(name, folder, model), args.kills, random.Random(f"{args.seed} {name}"))
            for name in args.command
        ]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
