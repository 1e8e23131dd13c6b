"""The course's pairs, two batches of padded ids, as a head reads them: as two sentences, as one sequence, or both ways.

One sequence is `[CLS] a [SEP] b [SEP]` of two segments (Devlin et al. 2018, arXiv 1810.04805, section 4.1).
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from tokenizer import cut

Side = tuple[torch.Tensor, torch.Tensor]  # ids and mask, each (B, T)


def pair_inputs(
    first: Side, second: Side, encoding: str, longest: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(input_ids, attention_mask, token_type_ids) of B pairs, each (S, T), padded with zeros.

    first, second: (ids, mask), (B, T1) and (B, T2), where the mask is 1 a text's `[CLS] a [SEP]`. encoding: separate,
    S = 2B: all first sentences, then all second ones; joint, S = B; both, S = 3B: the joint sequences last. longest:
    tokens that a joint sequence is cut to, as the tokenizer cuts it; where both texts were cut before, to the same
    length, the odd token may be the other's. Raises ValueError where these don't fit.
    """
    for ids, mask in (first, second):
        if ids.shape != mask.shape:
            raise ValueError(f"attention_mask is {tuple(mask.shape)} but input_ids are {tuple(ids.shape)}")
    if len(first[0]) != len(second[0]):
        raise ValueError(f"{len(first[0])} first sentences but {len(second[0])} second ones: a pair has both")
    parts = [] if encoding == "joint" else [(ids, mask, torch.zeros_like(ids)) for ids, mask in (first, second)]
    if encoding != "separate":
        parts.append(_joined(first, second, longest))
    width = max(ids.shape[1] for ids, *_ in parts)
    return tuple(torch.cat([pad(x, (0, width - x.shape[1])) for x in same]) for same in zip(*parts, strict=True))


def _joined(first: Side, second: Side, longest: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each pair as one sequence, its mask, and its segments: 0 up to the first [SEP], then 1. (B, T) each."""
    rows = []
    for ids, mask in (first, second):
        rows.append([row[real.bool()].tolist() for row, real in zip(ids, mask, strict=True)])
        short = [i for i, row in enumerate(rows[-1]) if len(row) < 2]
        if short:
            raise ValueError(f"attention_mask has less than [CLS] and [SEP] in sentence(s) {short}")
    pairs = [
        cut([*a, *b[1:]], [0] * len(a) + [1] * (len(b) - 1), longest)  # without the second [CLS]
        for a, b in zip(*rows, strict=True)
    ]
    width = max((len(ids) for ids, _ in pairs), default=0)
    found = first[0].new_zeros((3, len(pairs), width))
    for i, (ids, types) in enumerate(pairs):
        found[:, i, : len(ids)] = found.new_tensor([ids, [1] * len(ids), types])
    return tuple(found)
