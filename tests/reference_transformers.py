"""Answers from transformers, to compare ours with: `python reference_transformers.py SUBCOMMAND REQUEST ANSWER`.

Follows transformers' public interface. It looks for a package named `datasets`, which a file of ours shadows, so this
runs in a process of its own, outside the repository root (the fixture `reference` in conftest.py starts it).
"""

import json
import sys
from pathlib import Path


def tokenize(request):
    """{"folder": ..., "calls": [{"text": ..., other arguments of a tokenizer's call}]} -> one dict of lists a call."""
    from transformers import BertTokenizerFast

    tokenizer = BertTokenizerFast.from_pretrained(request["folder"])
    return [dict(tokenizer(**call)) for call in request["calls"]]


SUBCOMMANDS = {"tokenize": tokenize}

if __name__ == "__main__":
    subcommand, request, answer = sys.argv[1:]
    answered = SUBCOMMANDS[subcommand](json.loads(Path(request).read_text(encoding="utf-8")))
    Path(answer).write_text(json.dumps(answered), encoding="utf-8")
