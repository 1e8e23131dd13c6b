"""Several finished runs as one: the mean of their probabilities, and of their similarity scores once standardized.

    python multitask_classifier.py --ensemble RUN RUN [RUN...]           --soup: of their weights, see soup.py

After Lakshminarayanan, Pritzel and Blundell 2017, "Simple and Scalable Predictive Uncertainty Estimation using Deep
Ensembles" (arXiv 1612.01474), which average the predictive distributions of networks trained from other seeds. Nothing
is trained; what is fitted, on dev, is the mean and the spread of each run's similarity scores, of a soup their scale.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from batches import TaskData
from course_data import choose_data, refuse_mixture
from datasets import Table
from distributed import ALONE, Processes
from errors import InputError
from evaluation import Predictions, judge, predict, probabilities, write_predictions
from files import short, write_json
from members import Member, read_members, refuse_other_rows
from model import MultitaskBERT
from options import COMMAND, SCORES, check_outputs, choose_device, input_paths
from precision import choose_precision
from reporting import hand_over, show_score, write_page
from run import ROOT, Run, environment
from run_checks import need
from similarity_scale import fit_scales, write_scales
from soup import soup
from task_files import is_optional, read_split
from tasks import TASKS, Task, leaderboard_score
from tokenizer import BertTokenizer

Say = Callable[[str], None]
Souped = tuple[MultitaskBERT, BertTokenizer]
LEADERBOARD = ("sst", "para", "sts")
BEGINNING = ("reinitialize", "seed")  # what of a run's options says which layers its encoder drew anew
SMALLEST = 1e-12  # of a probability whose logarithm is taken: far below what a float32 softmax tells from zero


def average(task: Task, members: list[Predictions], on_dev: list[Predictions]) -> np.ndarray:
    """What one head would have to give to say what the members say together: (n, C) or (n,) float32.

    members: their answers for a file, each with the loss that its head was trained with. on_dev: the same members' for
    dev, whose mean and standard deviation put similarity scores on one scale; a constant one counts for nothing, and
    where all are, their scores are taken as they are. Of classes it is the logarithm of the mean probability, whose
    softmax is that mean again; of two, its logit.
    """
    if task.label_kind == "score":
        # A constant's deviation in floating point is seldom 0: its range is.
        scales = [(found.values.mean(), found.values.std() if np.ptp(found.values) else 0.0) for found in on_dev]
        if not any(spread for _, spread in scales):
            return np.mean([found.values for found in members], axis=0).astype(np.float32)
        scores = [
            (found.values - mean) / spread if spread else np.zeros(len(found.values))
            for found, (mean, spread) in zip(members, scales, strict=True)
        ]
        return np.mean(scores, axis=0).astype(np.float32)
    mean = np.mean([probabilities(found.task, found.outputs) for found in members], axis=0)
    logs = np.log(np.maximum(mean, SMALLEST))
    return (logs[:, 1] - logs[:, 0] if task.label_kind == "binary" else logs).astype(np.float32)


def ensemble(args: argparse.Namespace, say: Say) -> Path:
    """The whole command: answers of the runs args.ensemble for dev and test, averaged; a folder like a run's.

    Returns it. Each task is answered by the runs that have a head for it. With args.soup it is their weights that are
    averaged, and the one model that they make answers and is kept. Raises InputError for runs that aren't finished, or
    that were judged on other dev rows than those that are read.
    """
    members = read_members(args.ensemble)
    _refuse_taken(args.run, members, args.soup)
    tasks = tuple(TASKS[name] for name in TASKS if any(name in member.folders for member in members))
    device, reason = choose_device(args)
    precision = choose_precision(args.precision, device)
    paths = find_files(args, tasks, members, say)
    check_outputs(args, tasks, paths.values())
    tables = {key: read_split(TASKS[key[0]], key[1], path) for key, path in paths.items()}
    for (name, split), table in tables.items():
        for member in [member for member in members if name in member.folders and split == "dev"]:
            refuse_other_rows(member, name, table)
    say(f"device     {device}: {reason}; {precision.name}: {precision.why}")
    found_by: dict[tuple[str, str], list[Predictions]] = {key: [] for key in tables}
    data: dict[str, dict[str, TaskData]] = {task.name: {} for task in tasks}
    souped = soup(members) if args.soup else None
    if souped:
        say(f"asking     the mean of {len(members)} runs' weights: {', '.join(task.name for task in tasks)}")
        souped[0].to(device).autocast = precision.dtype
        asked = answers_of(*souped, tables)
    else:
        asked = answers(members, tables, device, precision.dtype, say)
    for (name, split), found, rows in asked:
        data[name].setdefault(split, rows)
        found_by[name, split].append(found)
    together = {}
    for (name, split), found in found_by.items():
        if souped:
            (together[name, split],) = found
            continue
        outputs = average(TASKS[name], found, found_by[name, "dev"])
        together[name, split] = judge(TASKS[name], found[0].ids, outputs, data[name][split].labels)
    dev = {name: found for (name, split), found in together.items() if split == "dev"}
    describe(members, dev, say)
    config = _config(members, data, precision.name, device, args.soup)
    with Run(args.run).locked():
        outputs = _write(args, members, together, data, config, souped, say)
    write_page(args.run, say)
    places = dict.fromkeys(short(place) for place in (args.run / "predictions", *(path.parent for path in outputs)))
    say(f"\npredictions are in {' and '.join(places)}")
    return args.run


def answers(
    members: list[Member],
    tables: dict[tuple[str, str], Table],
    device: torch.device,
    autocast: torch.dtype | None,
    say: Say,
    processes: Processes = ALONE,
) -> Iterator[tuple[tuple[str, str], Predictions, TaskData]]:
    """Each member's answer for each file it has a head for: (task, split), the answer, the rows as it read them.

    tables: (task, split) -> the file. Each model is loaded once.
    """
    for member in members:
        asked = dict.fromkeys(name for name, _ in tables if name in member.folders)
        if asked:
            say(f"asking     {member.name}: {', '.join(asked)}")
        for best in dict.fromkeys(member.folders[name] for name in asked):
            model, tokenizer = MultitaskBERT.from_pretrained(best).to(device), BertTokenizer.from_pretrained(best)
            model.autocast = autocast
            own = {key: table for key, table in tables.items() if member.folders.get(key[0]) == best}
            yield from answers_of(model, tokenizer, own, processes)


def answers_of(
    model: MultitaskBERT,
    tokenizer: BertTokenizer,
    tables: dict[tuple[str, str], Table],
    processes: Processes = ALONE,
) -> Iterator[tuple[tuple[str, str], Predictions, TaskData]]:
    """One model's, as `answers`."""
    for (name, split), table in tables.items():
        rows = TaskData(TASKS[name], table, tokenizer, pair_encoding=model.heads[name].config.pair_encoding)
        yield (name, split), predict(model, rows, processes=processes), rows


def find_files(args: argparse.Namespace, tasks: tuple[Task, ...], members: list[Member], say: Say) -> dict:
    """(task, split) -> the data file, of dev and test: where the options say, else where the first run's stood."""
    given = input_paths(args, tasks, choose_data(args.data)[0])
    refuse_mixture(given.values() if args.data else ())
    found = {}
    for task in tasks:
        first = next(member for member in members if task.name in member.folders)
        for split in ("dev", "test"):
            if args.data or getattr(args, f"{task.name}_{split}"):
                path = given[task.name, split]
            elif split in first.config["data"].get(task.name, ()):
                path = Path(first.recorded(task.name, split, "path"))
                if not path.exists() and not is_optional(task, split):
                    raise InputError(f"{short(path)} is not there any more: name the folder it is in now with --data")
            else:
                continue
            if path.exists() or not is_optional(task, split):
                found[task.name, split] = path
    for folder in dict.fromkeys(short(path.parent) for path in found.values()):
        say(f"data       {folder}")
    return found


def _config(members: list[Member], data: dict, precision: str, device: torch.device, soup: bool) -> dict:
    """config.json of the ensemble's folder: as a run's, with the runs that it is made of."""
    first = members[0].config["options"]
    models = {member.config["model"]["sha256"]: member.config["model"]["name"] for member in members}
    names = list(dict.fromkeys(models.values()))
    return {
        "command": COMMAND,
        "options": {
            "ensemble": [member.name for member in members],
            # Whoever reads a soup's dev_outputs.safetensors has to know what the model's outputs are.
            **({"soup": True, "loss": first.get("loss")} if soup else {}),
            # And who averages it again, what its encoder began with.
            **(
                {name: first.get(name) for name in ("reinitialize", "seed")}
                if soup and first.get("reinitialize")
                else {}
            ),
        },
        "members": _places(members),
        "model": members[0].config["model"] if len(models) == 1 else {"name": " and ".join(names), "sha256": ""},
        "data": {
            name: {
                **_trained_on(members, name),
                **{
                    split: {
                        "path": str(rows.table.path.resolve()),
                        "rows": len(rows),
                        "dropped": rows.table.dropped,
                        "sha256": rows.table.sha256,
                    }
                    for split, rows in splits.items()
                },
            }
            for name, splits in data.items()
        },
        "precision": precision,
        "processes": 1,
        **environment(device),
    }


def _places(members: list[Member]) -> list[str]:
    return [str(member.run.folder.resolve()) for member in members]


def _trained_on(members: list[Member], task: str) -> dict:
    """{"train": the file} that all of the task's runs were trained on, as the first has it; {} where they differ."""
    own = [member for member in members if task in member.folders]
    files = [
        need(member.config, ("data", task), dict, member.run.folder / "config.json").get("train") for member in own
    ]
    known = [(file.get("sha256"), file.get("rows")) for file in files if isinstance(file, dict)]
    return {"train": files[0]} if len(known) == len(own) and len(set(known)) == 1 else {}


def _refuse_taken(folder: Path, members: list[Member], soup: bool) -> None:
    """Raises InputError, before the runs are asked, if a run is there. An ensemble that was cut short is made again.

    By its own command alone: what it left would be taken for the new one's.
    """
    run, same = Run(folder), False
    if (folder / "config.json").is_file() and not (folder / SCORES).is_file():
        with suppress(InputError):  # no ensemble's: whatever it is, the folder is taken
            began = run.config
            options = began.get("options") if isinstance(began, dict) else None
            same = isinstance(options, dict) and began.get("members") == _places(members)
            same = same and bool(options.get("soup")) == soup
    if not same:
        run.refuse_taken()


def _write(
    args, members: list[Member], together: dict, data: dict, config: dict, souped: Souped | None, say: Say
) -> list[Path]:
    """Everything that a run leaves, a model only of a soup; scores come last, so that what lacks them was cut short.

    Returns where the predictions were handed over to.
    """
    dev = {name: found for (name, split), found in together.items() if split == "dev"}
    run, costs = Run(args.run), [member.cost() for member in members]
    _refuse_taken(run.folder, members, args.soup)
    write_json(run.folder / "config.json", config)
    if souped:
        model, tokenizer = souped
        tokenizer.save_pretrained(run.best)
        model.save_pretrained(run.best)
        write_scales(run.best, fit_scales(dev, {name: splits["dev"].labels.numpy() for name, splits in data.items()}))
    for (name, split), found in together.items():
        write_predictions(run.predictions / TASKS[name].predictions_file(split), found)
    row = {
        "epoch": 0,
        "step": 0,
        "best": True,
        "train_seconds": sum(seconds for seconds, _ in costs),
        "train_tokens": sum(tokens for _, tokens in costs),
        "train_loss": {},
        "dev": {name: {"loss": found.loss, **found.scores} for name, found in dev.items()},
    }
    run.write_metrics([row])
    run.write_outputs({name: torch.from_numpy(found.outputs) for name, found in dev.items()})
    outputs = hand_over(args, data, run.folder, ROOT, say)
    write_json(run.folder / SCORES, {name: {"untrained": None, **found.scores} for name, found in dev.items()})
    return outputs


def describe(members: list[Member], dev: dict[str, Predictions], say: Say) -> None:
    """Dev scores of each run as it was written when it ended, and of all together, one line each."""
    columns = {name: found.task.title for name, found in dev.items()}
    whole = set(dev) == set(LEADERBOARD)
    rows = [(member.name, member.scores) for member in members]
    rows.append(("together", {name: found.score for name, found in dev.items()}))
    width = max(len(name) for name, _ in rows) + 2
    heads = [*columns.values(), *(["leaderboard score"] if whole else [])]
    say(f"\n{'dev':<{width}}" + "".join(f"{head:>{len(head) + 2}}" for head in heads))
    for name, scores in rows:
        shown = ["" if task not in scores else show_score(scores[task]) for task in columns]
        shown += [show_score(leaderboard_score(scores)) if set(scores) >= set(LEADERBOARD) else ""] if whole else []
        say(f"{name:<{width}}" + "".join(f"{text:>{len(head) + 2}}" for text, head in zip(shown, heads, strict=True)))
