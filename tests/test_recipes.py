"""Recipes: options that could be typed one by one, tried as a row of a table, followed unless others are typed."""

import pytest
from test_multitask_classifier import command, root  # noqa: F401

import result_row
from command_line import build_parser
from errors import InputError
from experiments import TABLES
from files import read_json
from options import get_args, recommended_lr
from recipes import BEST, RECIPES


def words(options):
    return [part for name, value in options.items() for part in (f"--{name}", str(value))]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_its_options(name):
    followed, typed = vars(get_args(["--recipe", name])), vars(get_args(words(RECIPES[name])))
    assert followed | {"recipe": None} == typed


def test_what_is_typed_wins():
    args = get_args(["--recipe", "best", "--epochs", "5", "--pooler", "gem", "--lr", "2e-5"])
    assert (args.epochs, args.pooler, args.lr) == (5, "gem", 2e-5)
    assert (args.pair_encoding, args.option) == (BEST["pair_encoding"], "finetune")
    defaults = get_args(["--recipe", "best", "--epochs", "10", "--fine-tune-mode", "full-model"])
    assert defaults.epochs == 10  # though it is what would stand there without the recipe


@pytest.mark.parametrize("frozen", [("--option", "pretrain"), ("--fine-tune-mode", "last-linear-layer")])
def test_a_frozen_encoder_is_refused(frozen):
    with pytest.raises(InputError, match="--recipe best was tried with --option finetune: leave one of them out"):
        get_args(["--recipe", "best", *frozen])


def test_an_ensemble_trains_nothing():
    with pytest.raises(InputError, match="--ensemble trains nothing, so --recipe has nothing to say"):
        get_args(["--recipe", "best", "--ensemble", "a", "b"])


def test_the_best_was_tried_as_it_is():
    """It is a row of the table of tried changes, at the rate that is recommended."""
    table = TABLES["recipe"]
    tried = []
    for row in table.rows:
        options = {**table.options, **row.options, "option": row.option}
        options |= {"epochs": str(table.epochs), "batch_size": str(table.batch_size)}
        if row.lr_times != 1:
            options["lr"] = f"{recommended_lr(384, row.option) * row.lr_times:g}"
        tried.append({name: value for name, value in options.items()})
    assert {name: str(value) for name, value in BEST.items()} in tried


def test_a_run_says_what_it_follows_and_can_be_made_without_it(command, root):  # noqa: F811
    found = command("--recipe", "best", "--tasks", "sst", "--run", "other")  # with --epochs 1 --batch_size 4
    assert found.code == 0, found.err
    said = " ".join(found.out.split())
    assert "recipe best: --option finetune " in said and " --epochs 1 --batch_size 4 " in said
    options = read_json(root / "other" / "config.json")["options"]
    assert options["recipe"] == "best" and options["pooler"] == BEST["pooler"]
    row = result_row.row(root / "other")["command"]
    assert "--recipe" not in row
    again = get_args(row.split()[2:])
    of_the_run = {action.dest for action in build_parser()._actions} - {"help", "recipe", "model"}
    for name in of_the_run:
        if not result_row.is_place(name) and name != "lr":
            assert getattr(again, name) == options[name], name
