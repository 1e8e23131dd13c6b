"""Recipes: options that made one shared model better when they were tried together, under one name.

Each choice is an ordinary option with help of its own; results/recipe.md says what is known of them together, and
`python reproduce.py recipe` has rows that change one thing of `steps`: the best without R-Drop, pairs read both ways.
"""

from __future__ import annotations

import argparse

from errors import InputError

BEST = {
    "option": "finetune",
    "attention": "0",
    "pooler": "mean",
    "pair_encoding": "separate",
    "pair_score": "cosine",
    "head_lr": 0.001,
    "schedule": "even",
    "accumulate": 3,
    "r_drop": 1,
    "epochs": 2,
    "batch_size": 32,
    "warmup": 0.1,
    "lr_decay": "linear",
}
RECIPES = {"best": BEST}


def follow(args: argparse.Namespace, typed: set[str]) -> None:
    """Give args what its recipe says, except where something else was typed.

    Raises InputError for a frozen encoder, which no recipe was tried with.
    """
    recipe = RECIPES[args.recipe]
    if "option" in typed and args.option != recipe["option"]:
        raise InputError(f"--recipe {args.recipe} was tried with --option {recipe['option']}: leave one of them out")
    for name in recipe.keys() - typed:
        setattr(args, name, recipe[name])


def describe(args: argparse.Namespace) -> str:
    """`recipe     best: --option finetune --epochs 5, ...`: all that it set, and what was typed in its place."""
    words = " ".join(f"--{name} {getattr(args, name)}" for name in RECIPES[args.recipe])
    return f"recipe     {args.recipe}: {words}"
