"""Options that say something of each task: `--attention sst=2,sts=0`, `--pooler sst=max`, `--loss sst=coral`.

Numbers of layers and losses are the poster's (Jia 2024) unless they are said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from errors import InputError, whole_number
from heads import MOST_LAYERS
from poolers import POOLERS
from tasks import Task

Value = TypeVar("Value")


def parse_attention(text: str | None, tasks: tuple[Task, ...]) -> dict[str, int]:
    """`sst=2,sts=0` or `0` -> layers a task; tasks not named keep the poster's number."""
    layers = {task.name: task.attention[1] for task in tasks}
    wanted = ",".join(f"{name}={number}" for name, number in layers.items())

    def read(task: Task, number: str) -> int | None:
        return whole_number(number, MOST_LAYERS)

    said = f"{wanted} or one number for all, each from 0 to {MOST_LAYERS}"
    return {**layers, **parse_by_task("attention", text, tasks, read, said)}


def parse_loss(text: str | None, tasks: tuple[Task, ...]) -> dict[str, str]:
    """`sst=coral` -> {"sst": "coral"}: the loss of those tasks that are not trained with their own."""
    wanted = ", ".join(f"{task.name}={'|'.join(task.losses)}" for task in tasks)
    read = lambda task, name: name if name in task.losses else None  # noqa: E731
    return parse_by_task("loss", text, tasks, read, wanted, for_all=False)


def parse_pooler(text: str | None, tasks: tuple[Task, ...]) -> dict[str, str]:
    """`sst=concat_last4` or `mean` -> {"sst": "concat_last4"}: poolers of those tasks that don't have the default."""
    wanted = f"one for all, or TASK=POOLER of {', '.join(task.name for task in tasks)}; poolers: {', '.join(POOLERS)}"
    return parse_by_task("pooler", text, tasks, lambda task, name: name if name in POOLERS else None, wanted)


def parse_fraction(text: str | None, tasks: tuple[Task, ...]) -> dict[str, float]:
    """`sst=0.5,para=0.1` or `0.1` -> the share of its train rows that a task learns from; tasks not named have all."""

    def read(task: Task, number: str) -> float | None:
        try:
            share = float(number)
        except ValueError:
            return None
        return share if 0 < share <= 1 else None

    wanted = f"{','.join(f'{task.name}=0.1' for task in tasks)} or one number for all, each above 0 and at most 1"
    return {**dict.fromkeys((task.name for task in tasks), 1.0), **parse_by_task("fraction", text, tasks, read, wanted)}


def parse_by_task(
    option: str,
    text: str | None,
    tasks: tuple[Task, ...],
    read: Callable[[Task, str], Value | None],
    wanted: str,
    for_all: bool = True,
) -> dict[str, Value]:
    """`TASK=VALUE,TASK=VALUE`, or `VALUE` for_all, as task -> value.

    read: from a task and what is said of it to its value, None for nonsense. wanted: what the option takes, in words.
    Raises InputError naming the part that is not understood, or the task that is named twice.
    """
    known, found = {task.name: task for task in tasks}, {}
    parts = [part.strip() for part in text.split(",")] if text is not None else []
    for part in parts:
        name, equals, value = part.rpartition("=")
        if equals and name in found:
            raise InputError(f"--{option} {text}: {name!r} is named twice; name each task once")
        named = [name] if equals else list(known) if for_all and len(parts) == 1 else []
        values = {name: read(known[name], value) for name in named if name in known}
        if not values or None in values.values():
            raise InputError(f"--{option} {text}: {part!r} is not understood; wanted {wanted}")
        found.update(values)
    return found
