"""Which tokens a trained head looks at: the weights that AttentiveCLS gives to the tokens of a sentence or pair.

The pooler of Lee, Park, Seo and Kim 2021 (poolers.AttentiveCLS).

    >>> model = MultitaskBERT.from_pretrained("runs/cola/best")
    >>> tokenizer = BertTokenizer.from_folder("runs/cola/best")
    >>> token_weights(model, tokenizer, "cola", "They drank the pub dry.")
    [[('[CLS]', 0.0), ('they', 0.21), ('drank', 0.17), ...]]
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from batches import TaskData
from datasets import Example, Table
from errors import InputError
from model import MultitaskBERT
from tasks import TASKS
from tokenizer import BertTokenizer


@torch.no_grad()
def token_weights(
    model: MultitaskBERT, tokenizer: BertTokenizer, name: str, sentence: str, second: str | None = None
) -> list[list[tuple[str, float]]]:
    """(token, weight) of every token, for each sequence that the task's head reads: two for a pair encoded separately.

    A sequence's weights add up to 1, [CLS]'s is 0. name: of a task that the model has a head for. second: of a pair.
    The model answers in evaluation mode and is put back afterwards. Raises InputError for a task without a head, a
    pooler that weighs no tokens, and a sentence where a pair is wanted or the other way round.
    """
    if name not in model.heads:
        raise InputError(f"no head for {name}; this model has {', '.join(model.heads)}: train with --tasks {name}")
    task, head = TASKS[name], model.heads[name]
    if task.is_pair != (second is not None):
        raise InputError(f"{name} wants {'two sentences' if task.is_pair else 'one sentence'}: give as many")
    table = Table(Path("text"), [Example("0", sentence, second, None, 1)], [], "")
    data = TaskData(task, table, tokenizer, pair_encoding="joint" if head.config.joint else "separate")
    batch = data.batch(np.array([0])).to(model.device)
    was_training = model.training
    model.eval()
    states = model.encode(batch.input_ids, batch.layout, False, head.layers_wanted, batch.token_type_ids)
    weights = head.weigh(states, batch.layout)
    model.train(was_training)
    return [
        list(zip(tokenizer.convert_ids_to_tokens(ids[real].tolist()), row[real].tolist(), strict=True))
        for ids, row, real in zip(batch.input_ids, weights, batch.layout.real(), strict=True)
    ]
