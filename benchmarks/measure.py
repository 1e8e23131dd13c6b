"""What the benchmarks share: contestants that take turns, medians with their spread, peak memory, a row of JSON a run.

Follows proc(5) for a process's resident memory and its peak (VmRSS, VmHWM, clear_refs).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

import torch

ROOT = Path(__file__).resolve().parent.parent
WARMUP = 2
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# ---------------------------------------------------------------------------------------------------------------------
# Ours and theirs in one process


def import_theirs(*names: str) -> list[ModuleType]:
    """Import packages that look for another one named `datasets`, which a file of ours shadows.

    To be called before anything of ours is imported: the root is off the path for as long as this lasts, and what they
    found under that name is forgotten afterwards. A test may have imported ours before, which is put aside meanwhile.
    Raises ImportError for what is not installed.
    """
    path, ours = sys.path[:], sys.modules.pop("datasets", None)
    sys.path[:] = [place for place in path if Path(place or os.curdir).resolve() != ROOT]
    try:
        modules = [importlib.import_module(name) for name in names]
        if "transformers" in sys.modules:
            # It remembers the answer, and would find ours if it asked later.
            sys.modules["transformers"].utils.is_datasets_available()
            sys.modules["transformers"].utils.logging.set_verbosity_error()
    finally:
        sys.path[:] = path
        sys.modules.pop("datasets", None)
        if ours is not None:
            sys.modules["datasets"] = ours
    return modules


def find_ours() -> None:
    """Put the root on the path, in front: from here on `import datasets` is ours."""
    sys.path.insert(0, str(ROOT))


# ---------------------------------------------------------------------------------------------------------------------
# Options


def add_options(parser: argparse.ArgumentParser, rounds: int = 20) -> None:
    """The options that every benchmark has."""
    parser.add_argument("--rounds", type=at_least(2), default=rounds, help=f"default {rounds}; medians settle by 20")
    parser.add_argument("--threads", type=at_least(1), help="CPU threads (default: torch's, one a core)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default cpu")
    name = Path(sys.argv[0]).stem
    parser.add_argument(
        "--out", type=Path, metavar="FILE", default=ROOT / "results" / f"{name}.jsonl", help="where the row is appended"
    )


def add_data_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of the CSV files (default: what training would choose)"
    )


def add_precision_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="fp32",
        help="of the matrix products, for all (default fp32)",
    )


def at_least(low: int) -> Callable[[str], int]:
    """An argparse type: whole numbers from `low` up."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < low:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number from {low} up")
        return int(text)

    return parse


def share(text: str) -> float:
    """An argparse type: numbers above 0, up to 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0, up to 1")
    return value


def prepare(arguments: argparse.Namespace) -> torch.device:
    """Set the threads and return the device. Ends the program where it, or what is asked of it, is not there."""
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit(f"error: --device cuda: no GPU that torch {torch.__version__} can use; leave it out for the CPU")
    return torch.device(arguments.device)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context of a forward pass in that precision."""
    return torch.autocast(device.type, PRECISIONS[precision], enabled=precision != "fp32")


# ---------------------------------------------------------------------------------------------------------------------
# Time


def waiter(device: torch.device) -> Callable[[], None]:
    """What waits until the device has done all it was given."""
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def take_turns(
    contestants: dict[str, Callable[[int], object]], rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """{name: [seconds of each round]}: every contestant is called once a round with the round's number.

    Whoever comes first moves on every round. Two rounds before the counted ones, numbered -2 and -1, make states and
    warm caches. A call counts until its last kernel is done.
    """
    wait, names = waiter(device), list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-WARMUP, rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            wait()
            began = time.perf_counter()
            contestants[name](turn)
            wait()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def spread(values: Iterable[float], scale: float = 1.0) -> dict:
    """{"median", "quartiles": [lower, upper], "min"} of two values or more, each times `scale`."""
    values = [scale * value for value in values]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "quartiles": [low, high], "min": min(values)}


def ratio(seconds: list[float], ours: list[float]) -> dict:
    """How many times as long as ours: the ratio of the medians; and of the rounds' own ratios median and quartiles.

    Where every round has another batch, the rounds' own ratios are the ones that compare like with like.
    """
    rounds = spread(time / our for time, our in zip(seconds, ours, strict=True))
    return {
        "over_ours": statistics.median(seconds) / statistics.median(ours),
        "over_ours_paired": rounds["median"],
        "over_ours_quartiles": rounds["quartiles"],
    }


class MatrixProduct:
    """The machine's peak: products of preallocated matrices, of the shape that does most operations a second here.

    `step` is a contestant like any other, so that the peak is measured under the same conditions.
    """

    SHAPES = {
        "cpu": [(512, 512, 512), (1024, 1024, 1024), (1024, 768, 3072)],
        "cuda": [(2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192)],
    }
    SECONDS = 0.02  # a turn: long enough for the clock, short enough to cost nothing

    def __init__(self, device: torch.device, precision: str = "fp32"):
        wait, best = waiter(device), 0.0
        for n, k, m in self.SHAPES[device.type]:
            a, b = (torch.randn(shape, device=device).to(PRECISIONS[precision]) for shape in ((n, k), (k, m)))
            out = torch.empty(n, m, device=device, dtype=a.dtype)
            torch.mm(a, b, out=out)
            taken = []
            for _ in range(5):
                wait()
                began = time.perf_counter()
                torch.mm(a, b, out=out)
                wait()
                taken.append(time.perf_counter() - began)
            operations = 2 * n * k * m
            if operations / min(taken) > best:
                best, self.matrices, self.shape = operations / min(taken), (a, b, out), [n, k, m]
                self.times = max(1, round(self.SECONDS / min(taken)))
                self.operations = operations * self.times

    def step(self, turn: int) -> None:
        a, b, out = self.matrices
        for _ in range(self.times):
            torch.mm(a, b, out=out)

    def peak(self, seconds: list[float]) -> float:
        """Operations a second, the median over the rounds."""
        return self.operations / statistics.median(seconds)


# ---------------------------------------------------------------------------------------------------------------------
# Memory


def peak_memory(work: Callable[[], object], device: torch.device) -> dict:
    """Megabytes before `work`, at most during it, and the difference.

    On the CPU the process's resident memory as the system counts it: what the allocator keeps for later is part of it,
    so `work` belongs in a process of its own (`measured_apart`). On a GPU what torch has allocated.
    """
    if device.type == "cuda":
        waiter(device)()
        torch.cuda.reset_peak_memory_stats(device)
        before, how = torch.cuda.memory_allocated(device), "allocated by torch on the GPU"
        work()
        waiter(device)()
        peak = torch.cuda.max_memory_allocated(device)
    else:
        before, how = _resident("VmRSS"), "resident memory of a process"
        if not _forget_peak():
            how += ", its peak since the start"
        work()
        peak = _resident("VmHWM")
    return {"before_mb": before / 1e6, "peak_mb": peak / 1e6, "added_mb": (peak - before) / 1e6, "measured": how}


def _resident(which: str) -> int:
    """Bytes of this process that are in memory (VmRSS), or were at most (VmHWM)."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith(f"{which}:"):
                return 1024 * int(line.split()[1])
    import resource  # not on Windows, which has no such number for us

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _forget_peak() -> bool:
    """Start VmHWM anew from what is resident now; False where the system has no such thing."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return _resident("VmHWM") < 1.1 * _resident("VmRSS")


def measured_apart(part: str) -> dict:
    """What this same command answers in a process of its own, asked for one part of its work alone."""
    command = [sys.executable, *sys.argv, "--apart", part]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"error: {part!r}, measured in a process of its own, ended with exit code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


# ---------------------------------------------------------------------------------------------------------------------
# Results


def machine(device: torch.device) -> dict:
    """What the numbers depend on besides the code."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    described = {"cpu": name, "cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    if hasattr(os, "getloadavg"):
        described["load_before"] = round(os.getloadavg()[0], 2)
    if device.type == "cuda":
        described["gpu"] = torch.cuda.get_device_name(device)
    return described


def shown_command(argv: list[str]) -> str:
    """The command that makes a row again, without the options that only say where files are."""
    shown, places = ["python", f"benchmarks/{Path(argv[0]).name}"], ("--data", "--out")
    words = iter(argv[1:])
    for word in words:
        if word in places:
            next(words, None)
        elif not word.startswith(tuple(f"{place}=" for place in places)):
            shown.append(Path(word).name if os.path.isabs(word) else word)
    return " ".join(shown)


def append_row(path: Path, described: dict, row: dict) -> None:
    """Append one line of JSON: command, versions, commit, machine, then `row`, its floats to four digits."""
    from run import environment
    from sharing import append_line

    found = environment(torch.device("cpu"))
    versions = found["versions"]
    for name in ("transformers", "sentence_transformers"):
        if name in sys.modules:
            versions[name] = sys.modules[name].__version__
    start = {"command": shown_command(sys.argv), "date": found["started"][:10], "commit": found["commit"]}
    line = json.dumps({**start, "versions": versions, "machine": described, **_rounded(row)})
    append_line(path, line)


def _rounded(value):
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def show(header: list[str], lines: list[list]) -> None:
    """A table on standard output: the first column to the left, the others to the right; None is left blank."""
    cells = [header, *([_cell(value) for value in line] for line in lines)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    for row in cells:
        print(row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)))


def _cell(value) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return " to ".join(_cell(item) for item in value)
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
