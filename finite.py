"""What is done about a batch whose loss or gradient is NaN or infinite: the run ends, or leaves that batch out.

After one step with such a gradient AdamW's running means, and with them all weights, are NaN for good; gradient scaling
for fp16 (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2) skips such steps, too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence

import torch

WAYS = ("stop", "skip")
# So many left out one after the other are no chance: the weights themselves, or the data, are what is wrong.
MOST_IN_A_ROW = 10
SHOWN = 64  # ids of a batch that a message names
REMEDY = "try a lower --lr or --clip 1.0"


def gradient_norm(parameters: Iterable[torch.nn.Parameter]) -> torch.Tensor:
    """The norm over all of their gradients, () float: not finite if any number is not. 0 where nothing has one."""
    return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


def wrong_with(loss: float, norm: float) -> str | None:
    """What of a batch's loss and its gradient's norm is not finite, in words; None if both are."""
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    return None if math.isfinite(norm) else f"the gradient's norm is {norm}"


def named(ids: Sequence[str]) -> str:
    """A batch's ids as a message has them: `["s1", "s2"]`, the first SHOWN."""
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return f"{json.dumps(list(ids[:SHOWN]))}{more}"
