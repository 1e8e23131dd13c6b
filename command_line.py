"""The training command's flags, each default with its reason in its help.

The CS 224N default project's command line, both seasons' flags.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from calibration import SETTLED
from finite import WAYS
from frozen import CACHE_GB
from heads import PAIR_SCORES
from model import FINE_TUNE_MODES, OPTIONS
from poolers import POOLERS
from precision import PRECISIONS
from recipes import RECIPES
from sampling import SCHEDULES
from schedules import SCHEDULES as LEARNING_RATES
from task_attention import INITIALIZATIONS
from tasks import PAIR_ENCODINGS, SPLITS, TASKS


def text_given(text: str) -> str:
    """A name, of a file or anything. Raises argparse's error for nothing, and for bytes that no text stands for."""
    if not text or "\0" in text:  # a NUL can't be typed, but may stand in a run's config.json
        raise argparse.ArgumentTypeError("is empty, or has a NUL in it: give a name")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{ascii(text)} is not UTF-8: choose another name") from error
    return text


def path_given(text: str) -> Path:
    return Path(text_given(text))


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        usage="%(prog)s [--help] [--option {pretrain,finetune}] [options]",
        description="Train one BERT for several tasks and write the leaderboard's prediction files.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=120),
        add_help=False,  # which would stand in a group of its own
    )
    modes = ", ".join(f"{mode} = {option}" for mode, option in FINE_TUNE_MODES.items())
    what = parser.add_argument_group("what to train")
    what.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
    what.add_argument(
        "--option",
        choices=OPTIONS,
        help="pretrain: the heads alone learn (default, the course's); finetune: everything",
    )
    what.add_argument(
        "--fine-tune-mode",
        choices=FINE_TUNE_MODES,
        metavar="MODE",
        help=f"2024's words for it: {modes} (no default)",
    )
    what.add_argument(
        "--recipe",
        choices=RECIPES,
        metavar="NAME",
        help=f"{', '.join(RECIPES)}: the options that did best with all-MiniLM-L6-v2 (default: as said here)",
    )
    what.add_argument(
        "--tasks", default="sst,para,sts", help=f"any of {','.join(TASKS)} (default %(default)s, the leaderboard's)"
    )
    what.add_argument(
        "--model",
        type=text_given,
        help="a known name, OWNER/NAME fetched from the hub, or a folder (default: what is set up)",
    )
    what.add_argument(
        "--reinitialize",
        type=int,
        metavar="N",
        default=0,
        help="the encoder's last N layers begin with new weights (default 0: none)",
    )
    what.add_argument(
        "--data",
        type=path_given,
        metavar="DIR",
        help="folder of the CSV files (default: data/ if they stand there, else data/sample)",
    )
    what.add_argument(
        "--exclude_shared",
        action="store_true",
        help="leave out train rows that stand in dev or test, too; default: kept, as in the course",
    )
    what.add_argument(
        "--fraction",
        metavar="SHARE",
        help="of train rows, the same for every --seed: 'sst=0.5,para=0.1' or one for all (default 1)",
    )

    heads = parser.add_argument_group("heads (the poster's by default)")
    heads.add_argument(
        "--attention",
        metavar="LAYERS",
        help="attention layers a task: 'sst=2,para=1,sts=3' (default), one number for all, 0 for none",
    )
    heads.add_argument(
        "--attention_init",
        choices=INITIALIZATIONS,
        metavar="HOW",
        default="default",
        help="their first weights: default, torch's own; uniform, U(0.9, 1), the poster's second",
    )
    heads.add_argument(
        "--pair_score",
        choices=PAIR_SCORES,
        metavar="HOW",
        default="calibrated",
        help="dot, <W a, W b>; calibrated (default): + an offset; cosine: + a map of |a-b|, a*b",
    )
    heads.add_argument(
        "--pair_encoding",
        choices=PAIR_ENCODINGS,
        metavar="HOW",
        help="a pair as two sentences, separate; one sequence, joint; both (default: the task's own)",
    )
    heads.add_argument(
        "--swap_pairs",
        action="store_true",
        help="train on pairs of one sequence in either order, at random (default: as they stand)",
    )
    heads.add_argument(
        "--pooler",
        metavar="[TASK=]NAME,...",
        help=f"{', '.join(POOLERS)} (default first; without attention mean)",
    )
    heads.add_argument(
        "--pooler_options",
        metavar="NAME=VALUE",
        help="of layer_attention, such as activation=none,query=last (default: the paper's)",
    )
    heads.add_argument(
        "--hidden_dropout_prob",
        type=float,
        metavar="P",
        default=0.3,
        help="in the heads (default 0.3, the course's)",
    )
    heads.add_argument(
        "--attention_ffn",
        action="store_true",
        help="a feed-forward block in each of these layers, as in the poster's code (default: none)",
    )
    heads.add_argument(
        "--loss",
        metavar="TASK=LOSS",
        help="sst=coral, corn, squared_emd, softmax_twice (default: cross entropy; sts: -Pearson's r)",
    )

    how = parser.add_argument_group("how to train")
    how.add_argument("--epochs", type=int, metavar="N", default=10, help="default 10, the course's")
    how.add_argument("--batch_size", type=int, metavar="N", default=8, help="default 8, the course's")
    how.add_argument("--lr", type=float, help="default: the one recommended for model and option, which is printed")
    how.add_argument("--head_lr", type=float, metavar="LR", help="of the heads (default: --lr)")
    how.add_argument(
        "--layer_decay",
        type=float,
        metavar="D",
        default=1.0,
        help="each encoder layer learns with D times the rate of the one above (default 1: the same)",
    )
    how.add_argument(
        "--lr_decay", choices=LEARNING_RATES, default="constant", help="of the rate; default constant, the course's"
    )
    how.add_argument(
        "--warmup",
        type=float,
        metavar="SHARE",
        default=0.0,
        help="share of all steps, 0 to 1, in which the rate climbs to --lr (default 0, the course's)",
    )
    how.add_argument(
        "--weight_decay",
        type=float,
        metavar="W",
        default=0.0,
        help="weights shrink by the rate times this each step (default 0, the course's)",
    )
    how.add_argument(
        "--clip",
        type=float,
        metavar="NORM",
        default=0.0,
        help="largest gradient norm (default 0: no clipping, as in the course)",
    )
    how.add_argument(
        "--average",
        type=float,
        metavar="D",
        default=0.0,
        help="judge and keep a moving average of the weights, its decay 0.999, say (default 0: none)",
    )
    how.add_argument(
        "--accumulate",
        type=int,
        metavar="N",
        default=1,
        help="batches whose mean gradient makes a step, mixed with --schedule even (default 1)",
    )
    how.add_argument(
        "--pcgrad",
        action="store_true",
        help="project tasks' gradients that conflict in a step; wants --accumulate 2 (default: off)",
    )
    how.add_argument(
        "--label_smoothing",
        type=float,
        metavar="E",
        default=0.0,
        help="spread this share of a label evenly over the classes (default 0: none)",
    )
    how.add_argument(
        "--distill",
        type=text_given,
        action="extend",
        nargs="+",
        metavar="RUN",
        help="learn what finished runs answer for the train rows, too (default: the labels alone)",
    )
    how.add_argument(
        "--distill_weight",
        type=float,
        metavar="W",
        help="their share of the label, 0 to 1 (default 0.5)",
    )
    how.add_argument(
        "--r_drop",
        type=float,
        metavar="ALPHA",
        default=0.0,
        help="R-Drop: each batch twice, both answers drawn together with this weight (default 0: once)",
    )
    how.add_argument(
        "--settle",
        choices=SETTLED,
        metavar="WHICH",
        default="cosine",
        help="offsets set anew without dropout to judge by: of cosine scores (default), all, none",
    )
    how.add_argument(
        "--non_finite",
        choices=WAYS,
        metavar="WAY",
        default="stop",
        help="at a loss or gradient that is NaN or infinite: stop (default), or skip that batch",
    )
    how.add_argument(
        "--schedule",
        choices=("separate", *SCHEDULES),
        metavar="WHICH",
        default="proportional",
        help="proportional (default): all rows an epoch, at random; even: evenly; sequential: by task; "
        "round_robin: in turn; square_root, annealed: small tasks more; separate: a model each",
    )
    how.add_argument(
        "--frozen_dropout",
        action="store_true",
        help="pretrain with the encoder's dropout on, as the poster's code does; slow (default: off)",
    )
    how.add_argument("--seed", type=int, metavar="N", default=11711, help="default 11711, the course's")

    where = parser.add_argument_group("where")
    where.add_argument("--use_gpu", action="store_true", help="insist on a GPU (default: the best device there is)")
    where.add_argument("--device", help="cuda, cuda:1, mps or cpu (default: the first of them that is there)")
    where.add_argument(
        "--precision",
        choices=PRECISIONS,
        metavar="TYPE",
        default="auto",
        help="of matrix products: bf16, fp16, fp32; auto (default): a GPU's bf16 or fp16, else fp32",
    )
    where.add_argument(
        "--compile", action="store_true", help="torch.compile for a GPU: minutes to start, then faster (default: off)"
    )
    where.add_argument(
        "--micro_batch",
        type=int,
        metavar="N",
        default=0,
        help="most rows at once; same gradient (default 0: all, fewer if a GPU's memory runs out)",
    )
    where.add_argument(
        "--cache_gb",
        type=float,
        metavar="GB",
        default=CACHE_GB,
        help="most that a frozen encoder's encodings take in cache/ (default %(default)g; 0: none are kept)",
    )
    where.add_argument(
        "--run",
        type=path_given,
        metavar="DIR",
        help="a new folder for this run (default runs/<time>-<option> beside this program)",
    )
    where.add_argument(
        "--resume",
        type=path_given,
        metavar="RUN",
        help="a stopped run, its folder or name in runs/, to continue as it was (default: a new run)",
    )
    where.add_argument(
        "--ensemble",
        action="extend",
        nargs="+",
        type=text_given,
        metavar="RUN",
        help="average the answers of finished runs, folders or names in runs/ (default: train a model)",
    )
    where.add_argument(
        "--soup",
        action="store_true",
        help="of these runs average the weights, into one model, a soup (default: their answers)",
    )
    where.add_argument(
        "--save_every",
        type=float,
        metavar="MINUTES",
        default=10.0,
        help="between checkpoints within an epoch, so what a crash costs at most (default 10)",
    )
    where.add_argument("--tensorboard", action="store_true", help="curves in the run's folder, too (default: off)")
    where.add_argument("--quiet", action="store_true", help="say nothing but errors (default: what happens)")

    files = parser.add_argument_group(
        "the course's file names",
        "--TASK_train, --TASK_dev, --TASK_test FILE (default: the course's names, in --data); --TASK_dev_out, "
        "--TASK_test_out FILE (default: predictions/TASK-dev-output.csv, -test-); "
        f"TASK: {', '.join(TASKS)}",
    )
    for name in TASKS:
        for role in (*SPLITS, "dev_out", "test_out"):
            files.add_argument(f"--{name}_{role}", type=path_given, help=argparse.SUPPRESS)
    # The course's; here nothing is ever downloaded.
    parser.add_argument("--local_files_only", action="store_true", help=argparse.SUPPRESS)
    return parser
