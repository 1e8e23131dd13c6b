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


def encode(jobs):
    """Jobs {"folder", "inputs", "outputs", "double"} -> one {"missing", "unexpected"} a job: keys of the weights' file.

    inputs: a safetensors file with input_ids, attention_mask and token_type_ids, and hidden_weights and pooled_weights,
    whose products with the last hidden state and the pooler's output are summed to the scalar that is differentiated.
    outputs: where hidden_states (L + 1, B, T, H), pooler_output and the gradient of every parameter by its name go.
    """
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import BertModel

    torch.set_num_threads(1)
    answers = []
    for job in jobs:
        model, loading = BertModel.from_pretrained(job["folder"], output_loading_info=True)
        model = (model.double() if job["double"] else model).eval()
        given = load_file(job["inputs"])
        batch = {name: given[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
        out = model(**batch, output_hidden_states=True)
        scalar = (out.last_hidden_state * given["hidden_weights"]).sum()
        (scalar + (out.pooler_output * given["pooled_weights"]).sum()).backward()
        outputs = {"hidden_states": torch.stack(out.hidden_states), "pooler_output": out.pooler_output}
        outputs = {name: tensor.detach() for name, tensor in outputs.items()}
        save_file({**outputs, **{name: p.grad for name, p in model.named_parameters()}}, job["outputs"])
        answers.append({"missing": sorted(loading["missing_keys"]), "unexpected": sorted(loading["unexpected_keys"])})
    return answers


SUBCOMMANDS = {"tokenize": tokenize, "encode": encode}

if __name__ == "__main__":
    subcommand, request, answer = sys.argv[1:]
    answered = SUBCOMMANDS[subcommand](json.loads(Path(request).read_text(encoding="utf-8")))
    Path(answer).write_text(json.dumps(answered), encoding="utf-8")
