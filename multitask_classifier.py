"""Train and evaluate the multi-task model: `python multitask_classifier.py --option finetune`.

The command of the CS 224N default project, both seasons' flags. With nothing said it takes what setup.sh has put in place,
trains one model for sentiment, paraphrase and similarity, and writes the leaderboard's six prediction files.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

import weights
from batches import TaskData
from bert import BertConfig, BertModel
from datasets import read_examples
from errors import InputError
from estimate import describe_cost
from evaluation import Predictions, predict, write_predictions
from files import write_json
from frozen import Store
from model import FINE_TUNE_MODES, OPTIONS, ModelConfig, MultitaskBERT
from poolers import POOLERS
from run import ROOT, Run, environment, new_name
from sampling import SCHEDULES, make_schedule
from schedules import SCHEDULES as LEARNING_RATES
from task_attention import INITIALIZATIONS
from tasks import TASKS, Task, leaderboard_score, parse_tasks
from tokenizer import BertTokenizer
from training import Stopped, Trainer, TrainingOptions

__all__ = ["MultitaskBERT", "get_args", "main"]

SCORES = "scores.json"
SPLITS = ("train", "dev", "test")
CACHE = ROOT / "cache" / "encodings"


def recommended_lr(hidden_size: int, option: str) -> float:
    """The learning rate used when none is given: the poster's for bert-base (1e-3 for heads alone, 1e-5 for everything);
    a smaller encoder bears, and needs, more when everything learns (tried: 2e-5, 5e-5, 1e-4)."""
    if option == "pretrain":
        return 1e-3
    return 1e-5 if hidden_size >= 768 else 5e-5


# ---------------------------------------------------------------------------------------------------------------------
# Options


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Train one BERT for several tasks and write the leaderboard's prediction files.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=120),
    )
    what = parser.add_argument_group("what to train")
    what.add_argument("--option", choices=OPTIONS, help="pretrain: the heads alone (default); finetune: everything")
    what.add_argument("--fine-tune-mode", choices=FINE_TUNE_MODES, help="the same in the 2024 season's words")
    what.add_argument("--tasks", default="sst,para,sts", help=f"any of {','.join(TASKS)} (default %(default)s)")
    what.add_argument(
        "--model", help="bert-base-uncased, all-MiniLM-L6-v2 or a folder (default: what setup.sh put in place)"
    )
    what.add_argument(
        "--data", type=Path, help="folder of the CSV files (default: data/ if they stand there, else data/sample)"
    )

    heads = parser.add_argument_group("heads (the poster's by default)")
    heads.add_argument(
        "--attention", help="attention layers a task: 'sst=2,para=1,sts=3' (default), one number for all, 0 for none"
    )
    heads.add_argument(
        "--attention_init", choices=INITIALIZATIONS, default="default", help="uniform: Q, K, V from U(0.9, 1)"
    )
    heads.add_argument("--pooler", choices=POOLERS, help="default: first after attention layers, mean without any")
    heads.add_argument(
        "--hidden_dropout_prob", type=float, default=0.3, help="in the heads (default 0.3, the course's)"
    )

    how = parser.add_argument_group("how to train")
    how.add_argument("--epochs", type=int, default=10, help="default 10, the course's")
    how.add_argument("--batch_size", type=int, default=8, help="default 8, the course's; it fits every GPU")
    how.add_argument("--lr", type=float, help="default: recommended for model and option, and printed")
    how.add_argument("--lr_decay", choices=LEARNING_RATES, default="constant", help="default constant, the course's")
    how.add_argument(
        "--warmup", type=float, default=0.0, help="share of all steps over which the rate climbs (default 0)"
    )
    how.add_argument("--weight_decay", type=float, default=0.0, help="default 0, the course's")
    how.add_argument(
        "--clip", type=float, default=0.0, help="largest gradient norm; default 0, no clipping, as the course"
    )
    how.add_argument(
        "--schedule",
        choices=("separate", *SCHEDULES),
        default="proportional",
        help="whose batch comes next (default proportional: every row once an epoch); separate: one model for each task",
    )
    how.add_argument("--seed", type=int, default=11711, help="default 11711, the course's")

    where = parser.add_argument_group("where")
    where.add_argument("--use_gpu", action="store_true", help="insist on a GPU (without it the best device there is)")
    where.add_argument("--device", help="cuda, cuda:1, mps or cpu")
    where.add_argument("--run", type=Path, help="folder for this run (default runs/<time>-<option>)")
    where.add_argument(
        "--resume", type=Path, metavar="RUN", help="continue a run that was stopped, with its own options"
    )
    where.add_argument(
        "--save_every", type=float, default=10.0, help="minutes between checkpoints within an epoch (default 10)"
    )

    files = parser.add_argument_group(
        "the course's file names (default: as the course names them, in --data and predictions/)"
    )
    for name in TASKS:
        for split in SPLITS:
            files.add_argument(f"--{name}_{split}", type=Path, help=argparse.SUPPRESS if name == "cfimdb" else None)
        for split in ("dev", "test"):
            files.add_argument(f"--{name}_{split}_out", type=Path, help=argparse.SUPPRESS if name == "cfimdb" else None)
    parser.add_argument(
        "--local_files_only", action="store_true", help=argparse.SUPPRESS
    )  # always so: nothing is downloaded
    return parser


def get_args(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse and check the options; --fine-tune-mode becomes --option."""
    args = build_parser().parse_args(arguments)
    mode = FINE_TUNE_MODES.get(args.fine_tune_mode)
    if mode and args.option and mode != args.option:
        raise InputError(
            f"--option {args.option} and --fine-tune-mode {args.fine_tune_mode} contradict each other: give one"
        )
    args.option = args.option or mode or "pretrain"
    for name, value, low, high in (
        ("epochs", args.epochs, 0, None),
        ("batch_size", args.batch_size, 1, None),
        ("seed", args.seed, 0, None),
        ("hidden_dropout_prob", args.hidden_dropout_prob, 0, 1),
        ("warmup", args.warmup, 0, 1),
        ("lr", args.lr, 0, None),
        ("weight_decay", args.weight_decay, 0, None),
        ("clip", args.clip, 0, None),
        ("save_every", args.save_every, 0, None),
    ):
        if value is not None and not (value >= low and (high is None or value <= high)):
            wanted = f"{low} or more" if high is None else f"{low} to {high}"
            raise InputError(f"--{name} is {value}, wanted {wanted}")
    return args


def parse_attention(text: str | None, tasks: tuple[Task, ...]) -> dict[str, int]:
    """`sst=2,sts=0` or `0` -> layers a task; tasks not named keep the poster's number."""
    layers = {task.name: task.attention[1] for task in tasks}
    for part in text.split(",") if text else []:
        name, _, number = part.strip().rpartition("=")
        if not number.isdigit() or (name and name not in layers):
            raise InputError(f"--attention {text}: {part!r} is not understood; wanted sst=2,para=1,sts=3 or one number")
        layers.update({name: int(number)} if name else dict.fromkeys(layers, int(number)))
    return layers


def choose_device(args: argparse.Namespace) -> tuple[torch.device, str]:
    """The device and why. Raises InputError where what was insisted on is not there."""
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if args.device:
        try:
            device = torch.device(args.device)
        except RuntimeError as error:
            raise InputError(f"--device {args.device}: not a device; wanted cuda, cuda:1, mps or cpu") from error
        there = {"cuda": cuda, "mps": mps, "cpu": True}.get(device.type, False)
        if device.type == "cuda" and cuda and (device.index or 0) >= torch.cuda.device_count():
            there = False
        if not there:
            raise InputError(
                f"--device {args.device}: not there (CUDA {cuda}, MPS {mps}); leave it out for the best there is"
            )
        return device, "asked for"
    if args.use_gpu and not (cuda or mps):
        driver = "" if torch.version.cuda else ": this torch is a CPU build"
        raise InputError(
            f"--use_gpu: no GPU that torch {torch.__version__} can use{driver}; leave it out to run on the CPU"
        )
    if cuda:
        return torch.device("cuda"), torch.cuda.get_device_name()
    if mps:
        return torch.device("mps"), "Apple GPU"
    return torch.device("cpu"), f"no GPU found; {torch.get_num_threads()} threads"


def choose_data(data: Path | None) -> tuple[Path, str]:
    """The data folder and why. A folder with some of the course's files counts as theirs, so that a missing one is named."""
    if data is not None:
        return data, "asked for"
    if any((ROOT / "data" / task.files["train"]).is_file() for task in TASKS.values()):
        return ROOT / "data", "the course's files stand there"
    return ROOT / "data" / "sample", "the bundled sample, since the course's files are not in data/"


def short(path: Path) -> str:
    """A path as short as it can be typed from here."""
    path = Path(path).resolve()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


# ---------------------------------------------------------------------------------------------------------------------
# One run


@dataclass
class Job:
    """All that one run needs, resolved."""

    args: argparse.Namespace
    tasks: tuple[Task, ...]
    source: weights.Weights
    device: torch.device
    tokenizer: BertTokenizer
    data: dict[str, dict[str, TaskData]]  # task -> split -> rows


def read_data(args: argparse.Namespace, tasks: tuple[Task, ...], folder: Path, tokenizer: BertTokenizer) -> dict:
    """Read and tokenize every file of the tasks. Raises InputError for the first that can't be used."""
    data = {}
    for task in tasks:
        data[task.name] = {}
        for split in SPLITS:
            path = getattr(args, f"{task.name}_{split}") or folder / task.files[split]
            label = None if split == "test" else task.label
            table = read_examples(
                path, columns=task.columns, label=label, label_kind=task.label_kind, label_range=task.label_range
            )
            data[task.name][split] = TaskData(task, table, tokenizer)
    return data


def describe_data(tasks: tuple[Task, ...], data: dict, say) -> None:
    for task in tasks:
        parts = []
        for split, rows in data[task.name].items():
            dropped = f" ({len(rows.table.dropped)} dropped: {rows.table.dropped[0][1]})" if rows.table.dropped else ""
            cut = f" ({rows.truncated} cut to {512} tokens)" if rows.truncated else ""
            parts.append(f"{split} {len(rows):,}{dropped}{cut}")
        say(f"           {task.name:<7}{', '.join(parts)}")


def start(args: argparse.Namespace, say) -> Job:
    """Resolve model, data and device, and say which and why."""
    tasks = parse_tasks(args.tasks)
    source = weights.find(args.model)
    say(f"model      {source.origin}")
    tokenizer = BertTokenizer.from_pretrained(source.path)
    folder, why = choose_data(args.data)
    say(f"data       {short(folder)}: {why}")
    data = read_data(args, tasks, folder, tokenizer)
    describe_data(tasks, data, say)
    device, why = choose_device(args)
    say(f"device     {device}: {why}")
    return Job(args, tasks, source, device, tokenizer, data)


def model_config(job: Job, tasks: tuple[Task, ...]) -> ModelConfig:
    args = job.args
    return ModelConfig.for_tasks(
        [task.name for task in tasks],
        attention=parse_attention(args.attention, job.tasks),
        attention_init=args.attention_init,
        pooler=args.pooler,
        hidden_dropout_prob=args.hidden_dropout_prob,
        option=args.option,
        model=str(job.source.path),
    )


def run_config(job: Job, lr: float) -> dict:
    """config.json: every resolved option, versions, commit, data and weights with their hashes."""
    options = {k: str(v) if isinstance(v, Path) else v for k, v in vars(job.args).items() if k not in ("run", "resume")}
    files = {
        task: {
            split: {
                "path": str(rows.table.path),
                "rows": len(rows),
                "dropped": rows.table.dropped,
                "sha256": rows.table.sha256,
            }
            for split, rows in splits.items()
        }
        for task, splits in job.data.items()
    }
    return {
        "command": "multitask_classifier.py",
        "options": {**options, "lr": lr},
        "model": {key: str(value) for key, value in dataclasses.asdict(job.source).items()},
        "data": files,
        **environment(job.device),
    }


def train_one(job: Job, tasks: tuple[Task, ...], folder: Path, lr: float, say) -> tuple[Run, MultitaskBERT, list[dict]]:
    """Train one model for these tasks in `folder`, or continue there. Returns the run, its best model and the evaluations."""
    args = job.args
    run = Run(folder)
    torch.manual_seed(args.seed)
    encoder = BertModel.from_pretrained(job.source.path)
    model = MultitaskBERT(model_config(job, tasks), encoder).to(job.device)
    data = {task.name: job.data[task.name] for task in tasks}
    train = {name: splits["train"] for name, splits in data.items()}
    sizes = {name: len(rows) for name, rows in train.items()}
    name = "sequential" if args.schedule == "separate" else args.schedule
    schedule = make_schedule(name, sizes, args.batch_size, args.epochs, args.seed)
    say(describe_cost(model, data, schedule, args.option))
    if args.option == "pretrain":
        encode_once(job, model, data)
    run.best.mkdir(parents=True, exist_ok=True)
    job.tokenizer.save_pretrained(run.best)

    def evaluate() -> tuple[float, dict, str]:
        found = {name: predict(model, splits["dev"]) for name, splits in data.items()}
        scores = {name: p.score for name, p in found.items()}
        row = {"dev": {name: {"loss": p.loss, **p.scores} for name, p in found.items()}}
        return leaderboard_score(scores), row, "   ".join(describe_score(p) for p in found.values())

    options = TrainingOptions(
        args.epochs, lr, args.weight_decay, args.lr_decay, args.warmup, args.clip, args.seed, args.save_every
    )
    save_best = lambda: model.save_pretrained(run.best)  # noqa: E731
    trainer = Trainer(model, train, schedule, model.loss, evaluate, save_best, run, options)
    progress = trainer.train(say)
    if progress.best_epoch:
        model.load_weights(weights.read_state(run.best), str(run.best))
    else:
        model.save_pretrained(run.best)
    rate = progress.tokens / progress.seconds if progress.seconds else 0
    say(f"trained    {progress.seconds:.0f} s in steps, {rate:,.0f} tokens/s; best after epoch {progress.best_epoch}")
    return run, model, progress.history


def encode_once(job: Job, model: MultitaskBERT, data: dict) -> None:
    """Encode every distinct sentence with the frozen encoder, or find it on disk."""
    files = [rows for splits in data.values() for rows in splits.values()]
    sentences = [ids for rows in files for side in rows.sentences for ids in side]
    total = sum(len(ids) for ids in {ids.tobytes(): ids for ids in sentences}.values())
    with tqdm(total=total, desc="encoding once", unit="token", unit_scale=True, disable=None, leave=False) as bar:
        store = Store.build(model.bert, job.source.sha256, sentences, CACHE, lambda done: bar.update(done - bar.n))
    for rows in files:
        rows.encodings = store


def describe_score(found: Predictions) -> str:
    """`sst accuracy 0.481 (loss 1.2)`."""
    value = "undefined (constant predictions)" if found.score is None else f"{found.score:.3f}"
    return f"{found.task.name} {found.task.metric} {value}"


def write_all(job: Job, model: MultitaskBERT, tasks: tuple[Task, ...], folder: Path) -> dict[str, Predictions]:
    """Predict dev and test with the best model; write both to the run's folder and where the course's flags say."""
    dev = {}
    for task in tasks:
        for split in ("dev", "test"):
            found = predict(model, job.data[task.name][split])
            name = task.predictions_file(split)
            write_predictions(folder / "predictions" / name, found)
            write_predictions(getattr(job.args, f"{task.name}_{split}_out") or Path("predictions") / name, found)
            if split == "dev":
                dev[task.name] = found
    return dev


def report(job: Job, untrained: dict[str, float | None], dev: dict[str, Predictions], say) -> None:
    """The last lines: each task's dev score beside the untrained one, and the leaderboard score."""

    def show(value):
        return "undefined" if value is None else f"{value:.3f}"

    say("")
    say(f"{'dev':<24}{'metric':<11}{'untrained':>9}{'trained':>10}")
    for name, found in dev.items():
        say(f"{found.task.title:<24}{found.task.metric:<11}{show(untrained[name]):>9}{show(found.score):>10}")
    if set(dev) == {"sst", "para", "sts"}:
        score = leaderboard_score({name: found.score for name, found in dev.items()})
        say(f"{'leaderboard score':<24}{'':<11}{show(leaderboard_score(untrained)):>9}{show(score):>10}")


def resumed_args(folder: Path) -> argparse.Namespace:
    """The options of the run in `folder`, as they were given then. Raises InputError if it is finished or no run."""
    options = dict(Run.open(folder).config.get("options", {}))
    if (folder / SCORES).is_file():
        raise InputError(
            f"{folder} is finished: its scores are in {folder / SCORES}; start a new run with another --run"
        )
    actions = {action.dest: action for action in build_parser()._actions}
    for name, value in options.items():
        if value is not None and name in actions and actions[name].type is Path:
            options[name] = Path(value)
    return argparse.Namespace(**{**vars(get_args([])), **options, "run": folder, "resume": folder})


def refuse_changes(run: Run, config: dict) -> None:
    """Raises InputError if weights or data are not what the run began with."""
    before = run.config
    changed = []
    if before["model"]["sha256"] != config["model"]["sha256"]:
        changed.append(f"weights {before['model']['name']} -> {config['model']['name']}")
    for task, splits in before["data"].items():
        for split, file in splits.items():
            now = config["data"][task][split]
            if file["sha256"] != now["sha256"]:
                changed.append(f"{now['path']} ({file['rows']} rows -> {now['rows']})")
    if changed:
        raise InputError(
            f"{run.folder} can't be continued, its inputs changed: {'; '.join(changed)}; restore them, or start anew"
        )


def train(args: argparse.Namespace, say=print) -> Path:
    """The whole command. Returns the run's folder."""
    began = time.monotonic()
    job = start(args, say)
    folder = args.run
    hidden = BertConfig.from_pretrained(job.source.path).hidden_size
    lr = recommended_lr(hidden, args.option) if args.lr is None else args.lr
    say(
        f"lr         {lr:g}{' (recommended for this model and option)' if args.lr is None else ''}, batch {args.batch_size}"
    )
    config = run_config(job, lr)
    if args.resume:
        refuse_changes(Run.open(folder), config)
    else:
        Run.create(folder, config)
    say(f"run        {short(folder)}")
    parts = [(task,) for task in job.tasks] if args.schedule == "separate" else [job.tasks]
    untrained, dev, runs = {}, {}, []
    for tasks in parts:
        part = folder / tasks[0].name if args.schedule == "separate" else folder
        run, model, history = train_one(job, tasks, part, lr, say)
        untrained.update({task.name: history[0]["dev"][task.name][task.metric] for task in tasks})
        dev.update(write_all(job, model, tasks, folder))
        runs.append(run)
    report(job, untrained, dev, say)
    write_json(folder / SCORES, {name: {"untrained": untrained[name], **found.scores} for name, found in dev.items()})
    for run in runs:
        run.finish()
    say(
        f"predictions/ and {short(folder)}/predictions/ hold the prediction files; {time.monotonic() - began:.0f} s in all"
    )
    return folder


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code. Errors of input are one line on stderr."""
    folder = None
    try:
        args = get_args(arguments)
        if args.resume:
            args = resumed_args(args.resume)
        args.run = folder = args.run or ROOT / "runs" / new_name(args.option)
        train(args)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Stopped:
        print(f"stopped; continue with: python multitask_classifier.py --resume {short(folder)}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
