"""Sentence encoders: train one by contrast, judge it, search with it: `python contrastive.py {train,evaluate,search}`.

Gao, Yao and Chen 2021 (SimCSE, arXiv 2104.08821) and Oh et al. 2022 (layer-wise attention pooling, arXiv 2209.05972).
Each subcommand's options and work are in a module of its own, which is imported only when it is asked for.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
from pathlib import Path

import startup  # noqa: F401  # isort: skip: before what may be missing

from console import answer, refuse, tell, warn
from errors import InputError
from files import short
from stopping import on_signals, stop_at_once

# Subcommand -> its module, with add_options(parser) and run(args, say) -> exit code, and what it is for.
COMMANDS = {
    "train": ("contrastive_training", "train an encoder on sentences, pairs or triples"),
    "evaluate": ("sts_evaluation", "judge an encoder: similarity, the space it fills, what else it holds"),
    "search": ("search_command", "index a corpus, ask it, and judge the answers"),
}


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand; returns the exit code. Errors of input are one line on stderr."""
    arguments = sys.argv[1:] if arguments is None else arguments
    described = "\n".join(f"  {name:<10}{about}" for name, (_, about) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        usage="%(prog)s {" + ",".join(COMMANDS) + "} [options]",
        description=f"Sentence encoders.\n\n{described}",
        epilog="%(prog)s COMMAND --help shows a subcommand's options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, help=argparse.SUPPRESS)
    command = parser.parse_args(arguments[:1]).command
    try:
        module = importlib.import_module(COMMANDS[command][0])
        options = argparse.ArgumentParser(
            prog=f"{parser.prog} {command}",
            formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=120),
        )
        module.add_options(options)
        args = options.parse_args(arguments[1:])
        args.arguments = arguments[1:]  # which of the options were typed
        with on_signals(stop_at_once):
            # What is trained, indexed or named by --json FILE is in files, whoever listens; other answers are printed.
            in_files = command == "train" or getattr(args, "action", "") == "index" or isinstance(args.json, Path)
            return module.run(args, tell if in_files else answer)
    except (InputError, OSError) as error:
        return refuse(error)
    except KeyboardInterrupt:
        goes_on = (command, *arguments[1:2]) == ("search", "index")
        again = shlex.join(["python", short(Path(__file__)), *arguments])
        warn(f"stopped; continue with: {again}" if goes_on else "stopped")
        return 130


if __name__ == "__main__":
    sys.exit(main())
