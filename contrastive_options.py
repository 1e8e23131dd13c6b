"""Options of `contrastive.py train`: its flags, their checks, and the defaults that depend on the mode.

Defaults are SimCSE's (Gao, Yao and Chen 2021, arXiv 2104.08821, appendix A) unless a help text gives another reason.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from command_line import path_given, text_given
from contrastive_data import SENTENCE_COLUMNS
from contrastive_loss import TEMPERATURE, Objective
from errors import InputError
from finite import WAYS
from options import LARGEST_DECAY, LARGEST_LR, LARGEST_SEED, MOST_EPOCHS, SCORES
from poolers import POOLERS, describe_options, parse_options, resolve_options
from precision import PRECISIONS
from resuming import resumed_options, typed_options
from schedules import SCHEDULES as LEARNING_RATES
from sentence_encoder import SHORTEST

COMMAND = "contrastive.py"
MASKED = "mlm"
MODES = ("unsup", "sup", MASKED)
NO_DEV = "none"
# For bert-base; supervised SimCSE's batch is 512. BERT's own rate for masked words is 1e-4.
RECOMMENDED = {
    "unsup": {"lr": 3e-5, "epochs": 1, "dev": None},
    "sup": {"lr": 5e-5, "epochs": 3, "dev": None},
    MASKED: {"lr": 1e-4, "epochs": 1, "dev": NO_DEV},
}
# What says something of a contrast, or of the vectors that are contrasted.
OF_A_CONTRAST = ("pooler", "pooler_options", "training_dense", "temperature", "hard_negative_weight", "mlm_weight")
YES_NO = ("yes", "no")
# A resumed run keeps its options, except those that say where and how often.
MAY_CHANGE = ("device", "save_every", "micro_batch", "non_finite", "tensorboard", "quiet")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `contrastive.py train`."""
    parser.description = (
        "Train an encoder by contrast, each sentence beside its pair and away from all others, or on hidden words."
    )
    what = parser.add_argument_group("what to train on")
    what.add_argument(
        "--mode",
        choices=MODES,
        default="unsup",
        help="unsup: sentences, each beside itself under another dropout (default, it needs no labels); sup: pairs, "
        "or triples with a hard negative; mlm: no contrast, sentences with hidden words to guess, as BERT was made",
    )
    what.add_argument(
        "--train",
        type=path_given,
        action="extend",
        nargs="+",
        metavar="FILE",
        help="unsup, mlm: text files, a sentence a line, or .csv and .tsv with columns; sup: CSV of "
        "sent0,sent1[,hard_neg], SNLI's or MNLI's files (default: of the files in --data the sentences of sst, quora "
        "and sts; sup: the duplicates of quora)",
    )
    what.add_argument(
        "--column",
        type=text_given,
        action="extend",
        nargs="+",
        metavar="NAME",
        help=f"columns with sentences, not in sup (default: those there are of {', '.join(SENTENCE_COLUMNS)})",
    )
    what.add_argument(
        "--exclude",
        type=path_given,
        action="extend",
        nargs="+",
        metavar="PATH",
        help="evaluation sets, files or folders of any layout, whose sentences are left out of training and counted; "
        "name --dev's, too (default: nothing is left out, and what --dev shares is said)",
    )
    what.add_argument(
        "--fraction",
        type=float,
        metavar="SHARE",
        default=1.0,
        help="train on this share of the rows, the same for every --seed (default 1)",
    )
    what.add_argument(
        "--dev",
        type=text_given,
        metavar="FILE",
        help="pairs with similarity scores, of STS-B, SICK or the course: Spearman's correlation selects the model "
        f"(default: sts-dev.csv in --data; mlm: {NO_DEV}; {NO_DEV}: the last model is kept)",
    )
    what.add_argument(
        "--data",
        type=path_given,
        metavar="DIR",
        help="folder of the course's files, for the defaults (default: data/ if they stand there, else data/sample)",
    )

    model = parser.add_argument_group("model")
    model.add_argument("--model", type=text_given, help="a known name, a folder or a run (default: what was set up)")
    model.add_argument(
        "--pooler",
        choices=POOLERS,
        metavar="NAME",
        help=f"{', '.join(POOLERS)} (default: the model's own, else mean, which the embedded weights were made for)",
    )
    model.add_argument(
        "--pooler_options",
        type=text_given,
        metavar="NAME=VALUE",
        help=f"{describe_options()} (default: the first of each)",
    )
    model.add_argument(
        "--reinitialize",
        type=int,
        metavar="N",
        default=0,
        help="the last N layers begin with new weights (default 0)",
    )
    model.add_argument(
        "--training_dense",
        choices=YES_NO,
        help="a new dense layer with tanh behind the pooler, in training only (default: yes for unsup with --pooler "
        "first, which is SimCSE's [CLS], else no)",
    )

    goal = parser.add_argument_group("the loss")
    goal.add_argument(
        "--temperature", type=float, metavar="T", default=TEMPERATURE, help="divides cosines (default %(default)s)"
    )
    goal.add_argument(
        "--hard_negative_weight",
        type=float,
        metavar="W",
        default=0.0,
        help="added to the logit of a row's own hard negative, of triples (default 0: as any other)",
    )
    goal.add_argument(
        "--mlm_weight",
        type=float,
        metavar="W",
        default=0.0,
        help="weight of a masked-language-model term; SimCSE tries 0.1 (default 0: none, which takes half the time)",
    )

    how = parser.add_argument_group("how")
    how.add_argument("--epochs", type=int, metavar="N", help="default: unsup and mlm 1, sup 3")
    how.add_argument(
        "--batch_size",
        type=int,
        metavar="N",
        default=64,
        help="rows whose sentences are each other's negatives (default 64; SimCSE's sup has 512: for files of many "
        "thousand rows, fewer make too few steps of it; for memory see --micro_batch)",
    )
    how.add_argument(
        "--max_length", type=int, metavar="N", default=32, help="tokens a sentence is cut to in training (default 32)"
    )
    how.add_argument(
        "--lr",
        type=float,
        help="default: unsup 3e-5, sup 5e-5, mlm 1e-4, for bert-base; give a smaller encoder more, 1e-4 say",
    )
    how.add_argument("--lr_decay", choices=LEARNING_RATES, default="linear", help="of the rate (default linear)")
    how.add_argument(
        "--warmup", type=float, metavar="SHARE", default=0.0, help="share of steps in which it climbs (default 0)"
    )
    how.add_argument("--weight_decay", type=float, metavar="W", default=0.0, help="default 0")
    how.add_argument(
        "--clip", type=float, metavar="NORM", default=1.0, help="largest gradient norm (default 1; 0 none)"
    )
    how.add_argument(
        "--non_finite",
        choices=WAYS,
        default="stop",
        help="at a loss or gradient that is NaN or infinite: stop (default), or skip that batch",
    )
    how.add_argument(
        "--evaluate_every",
        type=int,
        metavar="STEPS",
        default=100,
        help="between looks at --dev within an epoch (default 100, the layer-wise paper's; 0: at its end alone)",
    )
    how.add_argument(
        "--patience",
        type=int,
        metavar="N",
        default=0,
        help="stop after so many looks without a better score (default 0: never, since the rate falls to the end)",
    )
    how.add_argument("--seed", type=int, metavar="N", default=11711, help="default 11711, as in the other commands")

    where = parser.add_argument_group("where")
    where.add_argument("--device", type=text_given, help="cuda, cuda:1, mps or cpu (default: the best there is)")
    where.add_argument(
        "--precision", choices=PRECISIONS, metavar="TYPE", default="auto", help="auto (default), bf16, fp16 or fp32"
    )
    where.add_argument(
        "--micro_batch",
        type=int,
        metavar="N",
        default=0,
        help="most rows at once, with the whole batch's gradient, for two passes (default 0: all, fewer where a GPU's "
        "memory runs out)",
    )
    where.add_argument(
        "--run", type=path_given, metavar="DIR", help="a new folder (default runs/<time>-contrastive-<mode>)"
    )
    where.add_argument("--resume", type=path_given, metavar="RUN", help="a stopped run to continue as it was")
    where.add_argument(
        "--save_every", type=float, metavar="MINUTES", default=10.0, help="between checkpoints (default 10)"
    )
    where.add_argument("--tensorboard", action="store_true", help="curves in the run's folder, too (default: off)")
    where.add_argument("--quiet", action="store_true", help="say nothing but errors (default: what happens)")


def resolve(args: argparse.Namespace) -> argparse.Namespace:
    """The options with the mode's defaults filled in; with --resume the run's own. Raises InputError for nonsense.

    args.arguments: what was typed.
    """
    typed = args.arguments
    del args.arguments
    if args.resume:
        parser = argparse.ArgumentParser()
        add_options(parser)
        typed = typed_options(parser, typed)
        args = resumed_options(parser, args, typed, COMMAND, MAY_CHANGE, SCORES, RECOMMENDED[args.mode])
    for name, value in RECOMMENDED[args.mode].items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    check(args)
    return args


def check(args: argparse.Namespace) -> None:
    """Raises InputError for a number out of range, and for options that don't go together."""
    for name, low, high in (
        ("epochs", 0, MOST_EPOCHS),
        ("batch_size", 2, None),  # a row alone has nothing to be told from
        ("max_length", SHORTEST, None),
        ("seed", 0, LARGEST_SEED),
        ("warmup", 0, 1),
        ("lr", 0, LARGEST_LR),
        ("weight_decay", 0, LARGEST_DECAY),
        ("clip", 0, None),
        ("mlm_weight", 0, None),
        ("evaluate_every", 0, None),
        ("patience", 0, None),
        ("reinitialize", 0, None),
        ("save_every", 0, None),
        ("micro_batch", 0, None),
    ):
        value = getattr(args, name)
        most = sys.float_info.max if high is None else high  # infinity is out of every range, and NaN in none
        if not low <= value <= most:
            wanted = f"a number from {low} up" if high is None else f"{low} to {high}"
            raise InputError(f"--{name} is {value}, wanted {wanted}")
    if not 0 < args.fraction <= 1:
        raise InputError(f"--fraction is {args.fraction}, wanted a number above 0, up to 1")
    Objective(args.temperature, args.hard_negative_weight)
    if args.mode == MASKED:
        parser = argparse.ArgumentParser()
        add_options(parser)
        given = [name for name in OF_A_CONTRAST if getattr(args, name) != parser.get_default(name)]
        if given:
            raise InputError(f"--{given[0]}: in --mode {MASKED} nothing is contrasted: leave it out")
    if args.pooler_options:
        if not args.pooler:
            raise InputError("--pooler_options: of which pooler? Say --pooler, too")
        resolve_options(args.pooler, parse_options(args.pooler_options))
    if args.mode == "sup" and args.column:
        raise InputError("--column is for --mode unsup; in sup the columns are called sent0, sent1 and hard_neg")
    if args.mode != "sup" and args.hard_negative_weight:
        raise InputError("--hard_negative_weight is for --mode sup: sentences alone have no hard negatives")
    if args.dev == NO_DEV and args.patience:
        raise InputError("--patience: without scores nothing is better or worse: leave it out, or name a file by --dev")


def dense_in_training(args: argparse.Namespace, pooler: str) -> bool:
    """Whether there is a dense layer in training only."""
    if args.training_dense:
        return args.training_dense == "yes"
    return args.mode == "unsup" and pooler == "first"


def default_files(mode: str, folder: Path) -> list[Path]:
    names = ("ids-sst-train.csv", "quora-train.csv", "sts-train.csv") if mode != "sup" else ("quora-train.csv",)
    return [folder / name for name in names]
