"""What the task attention does before training, and what is left of a sentence behind it: why U(0.9, 1) hurts.

Follows Jia 2024 (Stanford CS 224N poster) for the two starts; saturation is told by the entropy of each row of
attention, beside that of equal weights.

    python benchmarks/attention_start.py                              # both starts, the course's three tasks
    python benchmarks/attention_start.py --trained runs/a/best runs/b/best
    python benchmarks/attention_start.py --uniform 0.9,1 -0.05,0.05   # other intervals, for comparison

For each layer, over dev rows: the entropy of a token's weights as a share of what equal weights have (1: it takes the
mean of the tokens; 0: one token alone), the largest weight, the standard deviation of the scores under the softmax, the
share of tokens whose largest weight is at the one place that is most common in their sentence; and behind the layer, of
the first tokens, which are what the head reads: the share of their variance in its first direction, and the mean cosine
between sentences.
"""

import argparse
import math
import sys
from pathlib import Path

import measure
import numpy as np
import torch

measure.find_ours()  # what is imported below is found only now

from subjects import EMBEDDED, load_encoder, load_rows  # noqa: E402

from batches import TaskData  # noqa: E402
from errors import InputError  # noqa: E402
from heads import TaskHead  # noqa: E402
from model import ModelConfig, MultitaskBERT  # noqa: E402
from tokenizer import BertTokenizer  # noqa: E402

TASKS = ("sst", "para", "sts")
HEADER = ["layer", "entropy", "largest", "scores", "same place", "one direction", "cosine"]


def interval(text: str) -> tuple[float, float]:
    """An argparse type: `0.9,1`."""
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        low, high = math.nan, math.nan
    if not low < high:
        raise argparse.ArgumentTypeError(f"{text}: wanted two numbers, the smaller first, with a comma between them")
    return low, high


def scores_of(layer, hidden: torch.Tensor, layout) -> torch.Tensor:
    """Standard deviation of each token's scores over the tokens that it attends to: (S, N, T), nan at padding."""
    query, key, real = layout.unpack(layer.query(hidden)), layout.unpack(layer.key(hidden)), layout.real()
    query, key, seen = layer.split_heads(query), layer.split_heads(layer.attended(key)), layer.attended(real)
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])  # (S, N, T, T)
    seen = seen[:, None, None, :].to(scores.dtype)
    count = seen.sum(dim=-1)
    mean = (scores * seen).sum(dim=-1) / count
    deviation = (((scores - mean[..., None]) ** 2 * seen).sum(dim=-1) / count).sqrt()
    return deviation.masked_fill(~real[:, None, :], math.nan)


def describe_layer(layer, hidden: torch.Tensor, layout) -> list[float]:
    """The columns of HEADER between the first and the last two."""
    weights, real = layer.weights(hidden, layout), layout.real()  # (S, N, T, T), (S, T)
    seen = layer.attended(real).sum(dim=-1).clamp(min=2).to(weights.dtype)  # (S,)
    entropy = -(weights * weights.clamp(min=1e-30).log()).sum(dim=-1) / seen.log()[:, None, None]
    rows = real[:, None, :].expand(entropy.shape)
    largest, place = weights.max(dim=-1)
    alike = []
    for sentence, mask in zip(place, real, strict=True):
        for head in sentence[:, mask]:
            alike.append(head.bincount().max().item() / len(head))
    scores = scores_of(layer, hidden, layout)
    return [entropy[rows].mean().item(), largest[rows].mean().item(), scores.nanmean().item(), float(np.mean(alike))]


def space_of(vectors: torch.Tensor) -> list[float]:
    """Of rows (S, H): the share of their variance in its first direction; the mean cosine of two of them."""
    variances = torch.linalg.svdvals(vectors - vectors.mean(dim=0)).square()
    unit = torch.nn.functional.normalize(vectors, dim=-1)
    count = len(unit)
    cosine = (unit.sum(dim=0).square().sum() - count) / (count * (count - 1))
    return [(variances[0] / variances.sum()).item(), cosine.item()]


@torch.no_grad()
def look(model: MultitaskBERT, head: TaskHead, data: TaskData, rows: int) -> list[list]:
    """A line for the encoder's output, then one for each attention layer."""
    batch = data.batch(np.arange(min(rows, len(data))))
    hidden = model.encode(batch.input_ids, batch.layout)[-1]
    first = batch.layout.first
    lines = [["encoder", None, None, None, None, *space_of(hidden[first])]]
    for number, layer in enumerate(head.attention, 1):
        found = describe_layer(layer, hidden, batch.layout)
        hidden = layer(hidden, batch.layout)
        lines.append([f"{number}", *found, *space_of(hidden[first])])
    return lines


def starts(arguments: argparse.Namespace):
    """(name, model, tokenizer): of each start, or of each trained model."""
    for folder in arguments.trained or ():
        yield str(folder), MultitaskBERT.from_pretrained(folder), BertTokenizer.from_folder(folder)
    if arguments.trained:
        return
    encoder, tokenizer, _ = load_encoder(arguments.model)
    wanted = [
        ("default", None),
        *((f"U({low:g}, {high:g})", (low, high)) for low, high in arguments.uniform or POSTERS),
    ]
    for name, ends in wanted:
        torch.manual_seed(arguments.seed)
        model = MultitaskBERT(ModelConfig.for_tasks(TASKS, option="pretrain", pair_score="dot"), encoder)
        for head in model.heads.values() if ends else ():
            for layer in head.attention:
                for linear in (layer.query, layer.key, layer.value):
                    torch.nn.init.uniform_(linear.weight, *ends)
        yield name, model, tokenizer


POSTERS = [(0.9, 1.0)]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=EMBEDDED, help=f"{EMBEDDED} (default), bert-base or a folder of weights")
    parser.add_argument(
        "--trained", type=Path, action="extend", nargs="+", metavar="DIR", help="models with attention: a run's best/"
    )
    parser.add_argument(
        "--uniform", type=interval, action="extend", nargs="+", metavar="LOW,HIGH", help="default 0.9,1"
    )
    parser.add_argument("--rows", type=measure.at_least(2), default=256, help="of each dev file (default 256)")
    parser.add_argument("--seed", type=measure.at_least(0), default=11711, help="default 11711, the poster's")
    parser.add_argument("--threads", type=measure.at_least(1), help="CPU threads (default: torch's, one a core)")
    parser.add_argument("--out", type=Path, metavar="FILE", default=measure.ROOT / "results" / "attention_start.jsonl")
    measure.add_data_option(parser)
    return parser.parse_args(argv)


def main() -> None:
    arguments = parse()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    found, data = {}, {}
    for name, model, tokenizer in starts(arguments):
        model.eval()
        for task, head in model.heads.items():
            if not head.attention:
                continue
            if task not in data:
                data[task] = load_rows(task, "dev", arguments.data, tokenizer)
            lines = look(model, head, data[task][0], arguments.rows)
            found.setdefault(name, {})[task] = [dict(zip(HEADER, line, strict=True)) for line in lines]
            print(f"\n{name}, {task}")
            measure.show(HEADER, lines)
    row = {"model": Path(arguments.model).name, "rows": arguments.rows, "seed": arguments.seed}
    row["data"] = {task: described for task, (_, described) in data.items()}
    measure.append_row(arguments.out, measure.machine(torch.device("cpu")), {**row, "found": found})


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
