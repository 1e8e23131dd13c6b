"""Runs command lines one after the other in one process, in the folder of a copy of the program: for test_readme.py.

    python run_commands.py FOLDER COMMANDS ANSWERS

COMMANDS: a JSON list of lists of words, without `python`. ANSWERS: an [exit code, what was said] for each. In that
folder a tiny model plays bert-base-uncased and a few rows the course's files, both known by hash as the real ones are:
so the commands are run to the letter, and the imports, which take longest, once.
"""

import contextlib
import io
import itertools
import json
import runpy
import sys
import traceback
from pathlib import Path


def pretend(folder):
    """The tiny model is the one that `setup.sh --full` puts in place, the rows in data/ are the course's."""
    import course_data
    import run
    import weights
    from files import sha256

    placed = folder / "weights" / "bert-base-uncased"
    files = tuple(weights.File(path.name, path.stat().st_size, sha256(path)) for path in sorted(placed.iterdir()))
    known = weights.Known("bert-base-uncased", "google-bert/bert-base-uncased", "0" * 40, "a stand-in", files)
    weights.BERT_BASE, weights.KNOWN = known, {**weights.KNOWN, known.name: known}
    course_data.BLOBS = {path.name: course_data.blob_id(path) for path in (folder / "data").glob("*.csv")}
    # Names of runs go by the second, which two tiny runs share.
    numbers = itertools.count(1)
    run.new_name = lambda option: f"2026-01-31-12{next(numbers):04d}-{option}"


def stop_early(folder, name):
    """Leave a run of that name that was stopped after its first epoch, for --resume."""
    import multitask_classifier
    from training import Trainer

    whole = Trainer._train_epoch

    def once(trainer, say):
        whole(trainer, say)
        trainer.interrupted = True

    Trainer._train_epoch = once
    try:
        code = multitask_classifier.main(["--option", "finetune", "--epochs", "2", "--run", f"runs/{name}"])
    finally:
        Trainer._train_epoch = whole
    assert code == 130, code


def call(words):
    """[exit code, what was said] of a command."""
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    sys.argv = list(words)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            runpy.run_path(words[0], run_name="__main__")
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:
            traceback.print_exc()
            code = -1
    said.flush()
    return [code, said.buffer.getvalue().decode()]


def main(folder, commands, answers):
    sys.path.insert(0, str(folder))
    import torch

    torch.set_num_threads(1)
    pretend(folder)
    found, resumed = [], set()
    for words in json.loads(commands.read_text()):
        if "--resume" in words:
            name = Path(words[words.index("--resume") + 1]).name
            if name in resumed:  # said on another page, too: the run is finished by now
                found.append([0, "as before"])
                continue
            resumed.add(name)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                stop_early(folder, name)
        found.append(call(words))
    answers.write_text(json.dumps(found))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
