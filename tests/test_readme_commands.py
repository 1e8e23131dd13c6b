"""Every command line in README.md and docs/ runs as it stands there, on a few rows and a tiny model, or elsewhere.

The commands run in one process, one after the other as a reader would (run_commands.py). A word in capitals stands for
something of the reader's own.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import write_rows

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = "runs/2026-01-31-120000-finetune"
MEANT = {"MODEL": RUN, "RUN": RUN, "DIR": "data", "FOLDER": "exported", "OTHER": "runs/other"}
# How a command begins -> which test runs it.
ELSEWHERE = {
    "./setup.sh pytest": "this is it",
    "torchrun": "test_distributed.py and test_contrastive_training.py start two processes",
    "python reproduce.py": "test_reproduce.py makes such tables",
    "python fetch.py": "test_fetch.py fetches from a server of its own",
    "python benchmarks/": "test_benchmarks.py runs them",
    "python tests/torture.py": "test_torture.py takes a short turn of it",
    "python -m pip": "an installation",
    "python multitask_classifier.py --model google/bert_uncased": "test_fetch.py: fetched models are found by name",
    "python contrastive.py train --mode mlm": "test_contrastive_training.py: it reads folders of other archives",
}
# What a reader has done before who asks for what other libraries can express, or compares; and what RUN is then.
BEFORE = {
    "python export.py RUN FOLDER --head sts": (
        "multitask_classifier.py --run runs/mean --attention 0 --epochs 1",
        "runs/mean",
    ),
    **dict.fromkeys(  # the first of them makes it, the others find it
        (
            "python report.py RUN OTHER [OTHER...]",
            "python evaluation.py compare RUN OTHER",
            "python multitask_classifier.py --ensemble RUN OTHER",
        ),
        ("multitask_classifier.py --run runs/other --attention 0 --epochs 1", RUN),
    ),
}
# Of a model that has learned nothing, as the tiny one, a submission is refused, and nothing else may speak against it.
TOO_TINY = "every prediction is "
TEXTS = {
    "sentences.txt": "the cat sat\na dog ran\nwho did it\nthe film was good\n" * 4,
    "reviews.csv": "review,body\na good film,a good film that was long\ndull,so dull\nthe cat,the cat sat on a mat\n",
    "pairs.csv": "sent0,sent1,hard_neg\nthe cat sat,a cat was sitting,the dog ran\nwho,who was it,why\n",
    "corpus.txt": "the cat sat\na dog ran\nthe film was good\n",
    "corpus.jsonl": '{"_id": "1", "text": "heat in a layer"}\n{"_id": "2", "text": "a cat"}\n',
    "data/corpus.jsonl": '{"_id": "1", "text": "heat in a layer"}\n{"_id": "2", "text": "a cat"}\n',
    "data/queries.jsonl": '{"_id": "q", "text": "a cat"}\n',
    "data/qrels/test.tsv": "query-id\tcorpus-id\tscore\nq\t2\t1\n",
    "snli_1.0_train.jsonl": "".join(
        json.dumps({"gold_label": label, "sentence1": first, "sentence2": second}) + "\n"
        for first in ("the cat sat", "who did it")
        for label, second in (("entailment", f"{first} again"), ("contradiction", "the dog ran"))
    ),
}


def command_lines():
    """(page, line as it stands there), those in backticks, too, each once."""
    seen = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = re.findall(r"^    ((?:\./setup\.sh|python|torchrun) .*)$", text, re.MULTILINE)
        lines += re.findall(r"`(python [\w./-]+\.py(?: [^`]*)?)`", text)
        for line in lines:
            seen.setdefault(re.sub(r"\s+#.*$", "", line).strip(), page.name)
    return [(page, line) for line, page in seen.items()]


def words_of(line):
    """The words after `python`, with something in place of what is meant; what brackets enclose is left out."""
    line = re.sub(r"^\./setup\.sh (--full )?", "", line)
    words = shlex.split(re.sub(r" \[[^\]]*\]", "", line))
    assert words[0] == "python", line
    return [MEANT.get(word, word) for word in words[1:]]


def elsewhere(line):
    return next((begin for begin in ELSEWHERE if line.startswith(begin)), None)


@pytest.fixture(scope="module")
def answers(program, tmp_path_factory):
    """line -> (exit code, what was said), of every command that is run here."""
    folder = tmp_path_factory.mktemp("reader") / "minbert"
    shutil.copytree(program, folder, ignore=shutil.ignore_patterns("runs", "predictions", "cache", "__pycache__"))
    write_rows(folder / "data", {"train": 30, "dev": 12, "test": 12})
    (folder / "weights").mkdir()
    (folder / "tiny").rename(folder / "weights" / "bert-base-uncased")
    shutil.copytree(ROOT / "results", folder / "results")
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    lines = [line for _, line in command_lines() if not elsewhere(line)]
    # Who goes on, or asks, needs a run: that of the line that goes on comes first.
    lines.sort(key=lambda line: "--resume" not in line)
    commands, places = [], []
    for line in lines:
        words = words_of(line)
        if line in BEFORE:
            command, run = BEFORE[line]
            commands.append(command.split())
            words = [run if word == RUN else word for word in words]
        if "exported" in words:  # a new folder each time
            words[words.index("exported")] = f"exported-{len(commands)}"
        if "indexes/mine" in words:  # the pages have one each
            words[words.index("indexes/mine")] = f"indexes/{dict(map(reversed, command_lines()))[line]}"
        places.append(len(commands))
        commands.append(words)
    asked, answered = folder / "commands.json", folder / "answers.json"
    asked.write_text(json.dumps(commands))
    script = Path(__file__).with_name("run_commands.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder), str(asked), str(answered)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(answered.read_text())
    return {line: found[place] for line, place in zip(lines, places, strict=True)}


@pytest.mark.parametrize("page, line", command_lines())
def test_it_runs(answers, page, line):
    if elsewhere(line):
        pytest.skip(ELSEWHERE[elsewhere(line)])
    code, said = answers[line]
    if line == "python prepare_submit.py" and code:
        objections = [part for part in said.splitlines() if part.startswith(("objection", "error"))]
        assert all(TOO_TINY in part for part in objections[:-1]) and "--force writes it" in objections[-1], said
        return
    assert code == 0, f"{page}: {line}\n{said}"


def test_no_command_is_skipped_that_is_not_there():
    lines = [line for _, line in command_lines()]
    assert len(lines) > 30
    assert all(any(line.startswith(begin) for line in lines) for begin in ELSEWHERE if begin != "python -m pip")
