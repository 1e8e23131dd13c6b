"""Cells about sentence encoders: what is run for them, in which order, what their rows hold, and what is refused.

Follows the table that asks layer-wise attention pooling (Oh et al. 2022), on files made for it.
"""

import argparse
import dataclasses
import json

import pytest
import torch
from test_search_data import DOCUMENTS, JUDGEMENTS, QUERIES
from test_sts_data import benchmark, row, year

import cells
import contrastive
import contrastive_cells
import reproduce
from bert import BertModel
from cells import DONE, FINISHED, NEW, STOPPED, Rows, delete_model, run_all, state_of
from contrastive_cells import SEARCH, SIMILARITY, ContrastiveCell, caption, fits, scale_of
from contrastive_options import add_options, resolve
from errors import InputError
from experiments import SUP, TABLES, UNSUP, UNTRAINED, ContrastiveTable
from files import read_json, write_json
from search_data import read_collection
from search_evaluation import evaluate_search
from sentence_encoder import SentenceEncoder
from sentence_keys import keys_of
from sts_data import read_sets
from sts_evaluation import evaluate

TABLE = TABLES["layer_attention"]
ROWS = {(each.key, each.option): each for each in TABLE.rows}
HEADER = "\tid\tsentence1\tsentence2\t{}\n"
PAIRS = [("a good film", "the film was good", 4), ("dull", "who ran", 0), ("a cat sat", "the dog sat", 2),
         ("why ?", "who ?", 3), ("very bad", "bad", 4.5), ("bright", "not dull", 3.5)]  # fmt: skip
TRIPLES = [("the cat ran on", "cat", "a dog ran"), ("the film was dull", "dull film", "bright"),
           ("a dog", "dog", "cat"), ("who sat on", "who sat", "ran"), ("very very good", "good", "cat ran"),
           ("on the mat", "a mat", "film")]  # fmt: skip


@pytest.fixture
def made(tmp_path, tiny_config, tiny_tokenizer):
    """A folder with a tiny model, and in data/ everything that the table's runs read."""
    torch.manual_seed(0)
    BertModel(dataclasses.replace(tiny_config, max_position_embeddings=40)).save_pretrained(tmp_path / "tiny")
    tiny_tokenizer.save_pretrained(tmp_path / "tiny")
    course = tmp_path / "data" / "cs224n"
    course.mkdir(parents=True)
    sentences = [f"{word} {other}" for word in ("good", "bad", "dull") for other in ("film", "cat", "mat", "dog")]
    lines = [f"{i}\tx{i}\t{sentence}\t2\n" for i, sentence in enumerate(sentences)]
    (course / "ids-sst-train.csv").write_text("\tid\tsentence\tsentiment\n" + "".join(lines))
    for name, label in (("quora-train", "is_duplicate"), ("sts-train", "similarity"), ("sts-dev", "similarity")):
        pairs = PAIRS if name == "sts-dev" else [(f"{one} {name[0]}", other, 1.0) for one, other, _ in PAIRS[2:]]
        lines = [f"{i}\tx{i}\t{one}\t{other}\t{score}\n" for i, (one, other, score) in enumerate(pairs)]
        (course / f"{name}.csv").write_text(HEADER.format(label) + "".join(lines))
    snli = tmp_path / "data" / "nli" / "SNLI"
    snli.mkdir(parents=True)
    for place, name in enumerate(("s1", "s2", "labels")):
        of = [(one, two, "entailment") for one, two, _ in TRIPLES] + [
            (one, no, "contradiction") for one, _, no in TRIPLES
        ]
        (snli / f"{name}.dev").write_text("".join(f"{line[place]}\n" for line in of))
    sts = tmp_path / "data" / "sts" / "original"
    year(sts / "STS12", "STS12")
    scored = [row(str(i % 6), f"the {one}", f"very {other}") for i, (one, other, _) in enumerate(PAIRS)]
    benchmark(sts / "sts-dev.csv", [*scored, row("1", "a good film", "the mat was bright")])
    search = tmp_path / "data" / "search" / "cranfield"
    search.mkdir(parents=True)
    for name, content in (("cran.all.1400", DOCUMENTS), ("cran.qry", QUERIES), ("cranqrel", JUDGEMENTS)):
        (search / name).write_text(content)
    return tmp_path


def asked(made, *options):
    where = ["--model", str(made / "tiny"), "--data", str(made / "data"), "--device", "cpu"]
    kept = ["--runs", str(made / "runs"), "--results", str(made / "rows.jsonl")]
    return ["layer_attention", *where, *kept, "--batch_size", "4", *map(str, options)]


@pytest.fixture
def make(made, capsys):
    """make(*options) -> exit code, output, errors of reproduce.py layer_attention with the tiny model."""

    def make(*options):
        capsys.readouterr()
        code = reproduce.main(asked(made, *options))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return make


def cell_of(made, key, objective, *options, seed=5):
    scale = scale_of(reproduce.parse(asked(made, *options)), TABLE)
    found = ROWS[key, objective]
    return ContrastiveCell(found, tuple(TABLE.options_of(found).items()), found.runs[0], seed, scale)


def resolved(words):
    parser = argparse.ArgumentParser()
    add_options(parser)
    args = parser.parse_args(words)
    args.arguments = []
    return resolve(args)


@pytest.mark.parametrize(("key", "objective"), ROWS)
def test_a_row_is_options_that_training_takes(made, key, objective):
    cell = cell_of(made, key, objective, "--fraction", "unsup=0.5", "--epochs", "sup=2")
    args = resolved(cell.arguments())
    assert args.mode == (SUP if objective == SUP else UNSUP)
    assert args.epochs == {UNTRAINED: 0, UNSUP: 1, SUP: 2}[objective]
    assert args.fraction == (0.5 if objective == UNSUP else 1.0)
    assert args.lr == TABLE.narrow_lr[args.mode]  # the tiny model is narrower than bert-base
    assert args.seed == 5 and args.batch_size == 4 and args.evaluate_every == 50
    # SimCSE's dense layer: thrown away after unsupervised training, kept after supervised
    assert key != "cls" or args.pooler == ("cls" if objective == SUP else "first")
    assert {path.name for path in args.exclude} == {"original", "sts-dev.csv"} and args.dev.endswith(
        "cs224n/sts-dev.csv"
    )
    assert all(path.exists() for path in (*args.train, *args.exclude))


def test_what_is_shown_is_what_judging_reports():
    assert isinstance(TABLE, ContrastiveTable) and {each.option for each in TABLE.rows} == {UNTRAINED, UNSUP, SUP}
    for each in TABLE.rows:
        assert {column.task for column in TABLE.columns} <= set(each.runs[0])
    assert set(TABLE.train) == set(TABLE.lr) == set(TABLE.narrow_lr) == {UNSUP, SUP}


def test_a_cell_is_trained_judged_and_shown(make, made):
    options = ("--rows", "cls", "--option", "sup", "--epochs", "sup=1", "--seeds", "1", "--keep_models")
    code, out, err = make(*options)
    assert (code, err) == (0, "")
    rows = [json.loads(line) for line in (made / "rows.jsonl").read_text().splitlines()]
    assert [found["cell"]["seed"] for found in rows] == [1]
    cell = cell_of(made, "cls", "sup", "--epochs", "sup=1", seed=1)
    encoder = SentenceEncoder.from_pretrained(cell.folder)
    assert encoder.pooler_name == "cls" == rows[0]["pooler"]["name"]
    # The row has what the encoder scores on the sets, without what selected it.
    sets = [found.without(keys_of([made / "data" / TABLE.dev])) for found in read_sets([made / "data" / "sts"])]
    wanted = evaluate(encoder, sets, [])
    dev = rows[0]["dev"]
    assert dev["STS-B-dev"]["spearman"] == pytest.approx(wanted["similarity"]["STS-B-dev"]["spearman"]["all"])
    assert (dev["STS-B-dev"]["pairs"], dev["STS-B-dev"]["left_out"]) == (5, 2)  # a good film; very bad
    space = wanted["space"]["STS-B-dev"]
    assert dev["STS-B-dev"]["uniformity"] == pytest.approx(space["uniformity"])
    assert dev["STS-B-dev"]["top_1"] == pytest.approx(space["variance_in_top"]["1"])
    assert dev["STS12"]["spearman_mean"] == pytest.approx(wanted["similarity"]["STS12"]["spearman"]["mean"])
    found = evaluate_search(encoder, read_collection(made / "data" / "search" / "cranfield"))
    assert dev["Cranfield"] == pytest.approx(found)
    assert rows[0]["data"]["rows"] == 5 and rows[0]["call"] is not None and rows[0]["train_seconds"] >= 0
    assert rows[0]["data"]["left_out"] == {"s1.dev": {"stands in an evaluation set": 1}}  # bright is one of dev's
    shown = "\n".join(rows[0]["commands"])
    assert str(made) not in (made / "rows.jsonl").read_text()  # nowhere in a row
    assert "train --mode sup --train DATA/nli/SNLI" in shown and shown.count("\n") == 2
    # Printed, with the ways in which it differs from what is published.
    line = next(line for line in out.splitlines() if line.startswith("| `cls`: [CLS], as SimCSE | sup |"))
    assert (
        f"| {dev['STS-B-dev']['spearman']:.3f} (1) |" in line and f"| {dev['Cranfield']['ndcg@10']:.3f} (1) |" in line
    )
    assert "sup: 5 rows, 1 epoch, 4 rows a batch, learning rate 0.0002 (published for bert-base-uncased: 5e-5)" in out
    assert "2 of STS-B-dev" in out and "concludes for tiny only" in out
    # Nothing is made again, whatever is printed.
    again = make(*options)
    assert again[0] == 0 and "1 cell, 1 done" in again[1] and "started" not in again[1] and line in again[1]
    assert line in make("--print", "--epochs", "sup=1")[1] and line not in make("--print")[1]


def test_before_training_nothing_learns_and_what_does_not_belong_together_is_refused(make, made):
    options = ("--rows", "layer_attention", "--option", "untrained")
    assert make(*options)[0] == 0
    (found,) = [json.loads(line) for line in (made / "rows.jsonl").read_text().splitlines()]
    assert found["train_seconds"] == 0 and found["tokens_per_second"] is None
    cell = cell_of(made, "layer_attention", UNTRAINED, seed=11711)
    assert found["cell"] == cell.identity and not (cell.folder / "best").exists()
    torch.manual_seed(11711)
    encoder = SentenceEncoder.to_train(made / "tiny", "layer_attention")
    collection = read_collection(made / "data" / "search" / "cranfield")
    assert found["dev"]["Cranfield"] == pytest.approx(evaluate_search(encoder, collection))
    path = made / "rows.jsonl"
    assert state_of(cell, Rows(path)) == DONE
    for change, message in (
        ({"options": {**found["options"], "temperature": 0.1}}, "temperature 0.1 -> 0.05"),
        ({"model": {**found["model"], "sha256": "0" * 64}}, "the weights have changed"),
        ({"files": {**found["files"], TABLE.search: "0" * 64}}, "search/cranfield has changed"),
    ):
        path.write_text(json.dumps({**found, **change}) + "\n")
        code, _, err = make(*options)
        assert code == 1 and message in err and "move it away" in err
    path.write_text("")
    config = read_json(cell.folder / "config.json")
    write_json(cell.folder / "config.json", {**config, "options": {**config["options"], "batch_size": 3}})
    code, _, err = make(*options)
    assert code == 1 and "batch_size 3 -> 4" in err


@pytest.mark.parametrize(
    ("objective", "changed", "named"),
    [
        (UNTRAINED, TABLE.train[UNSUP][0], TABLE.train[UNSUP][0]),
        (UNTRAINED, TABLE.dev, TABLE.dev),
        (UNTRAINED, f"{TABLE.similarity}/STS12/STS.input.MSRpar.txt", TABLE.similarity),
        (SUP, f"{TABLE.train[SUP][0]}/s1.dev", TABLE.train[SUP][0]),
        (SUP, f"{TABLE.train[SUP][0]}/s2.dev", TABLE.train[SUP][0]),
    ],
)
def test_a_run_without_a_row_is_not_taken_for_one_of_other_data(made, monkeypatch, objective, changed, named):
    """Finished, so that its row alone is missing, or stopped: its config says what it was trained on."""
    monkeypatch.setattr(cells, "_hashes", {})
    cell = cell_of(made, "mean", objective, "--epochs", "sup=1")
    assert contrastive.main(cell.words()[1:]) == 0
    write_json(cell.folder / SIMILARITY, {})
    write_json(cell.folder / SEARCH, {})
    rows = Rows(made / "none.jsonl")
    assert state_of(cell, rows) == FINISHED
    path = made / "data" / changed
    path.write_text("changed " + path.read_text())
    monkeypatch.setattr(cells, "_hashes", {})
    contrastive_cells._hash_excluded.cache_clear()
    for state in (FINISHED, STOPPED):
        assert cell.state() == state
        with pytest.raises(InputError, match=rf"a run of other options or data \([^;]*{named} has changed\): move"):
            state_of(cell, rows)
        (cell.folder / SEARCH).unlink(missing_ok=True)
    with pytest.raises(InputError, match="has changed"):  # in the middle of a call, too
        cell.finished_row("call")


def test_each_part_is_made_once_and_in_order(made):
    """Whatever a kill left: training goes on, what is judged is not judged again."""
    cell = cell_of(made, "mean", "unsup")
    assert cell.state() == NEW and cell.words()[:2] == ["contrastive.py", "train"] and "--resume" not in cell.words()
    write_json(cell.folder / "config.json", {})
    assert cell.state() == STOPPED and cell.words() == ["contrastive.py", "train", "--resume", str(cell.folder)]
    write_json(cell.folder / "scores.json", {})
    assert cell.state() == STOPPED and cell.words()[:3] == ["contrastive.py", "evaluate", str(cell.folder)]
    write_json(cell.folder / SIMILARITY, {})
    assert cell.state() == STOPPED and cell.words()[:3] == ["contrastive.py", "search", "evaluate"]
    write_json(cell.folder / SEARCH, {})
    assert cell.state() == FINISHED


def test_the_plan_counts_what_is_left(make, made):
    code, out, _ = make("--plan", "--option", "unsup")
    assert code == 0 and out.count("new      ") == 3 and "3 cells; about" in out and not (made / "runs").exists()
    cell = cell_of(made, "mean", "unsup")
    whole, size = cell.estimate(None)
    learning = sum(p.numel() for p in SentenceEncoder.from_pretrained(made / "tiny").bert.parameters())
    assert size == 4 * 4 * learning and 0 < whole < 60
    write_json(cell.folder / "config.json", {})
    write_json(cell.folder / "scores.json", {})
    tokens = cell._judged(SentenceEncoder.from_pretrained(made / "tiny"))
    write_json(cell.folder / SIMILARITY, {})
    assert 0 < cell._judged(SentenceEncoder.from_pretrained(made / "tiny")) < tokens


def test_what_is_missing_is_named(make, made):
    code, _, err = make("--option", "finetune")
    assert code == 1 and "--option finetune: layer_attention has untrained, unsup, sup" in err
    code, _, err = make("--fraction", "untrained=0.5")
    assert code == 1 and "unsup=NUMBER,sup=NUMBER" in err
    gone = made / "data" / TABLE.similarity / "STS12"
    gone.rename(made / "gone")
    code, _, err = make("--plan")
    assert code == 1 and "no STS12 there; found" in err
    (made / "gone").rename(gone)
    (made / "data" / "nli").rename(made / "elsewhere")
    code, _, err = make()
    assert code == 1 and "data: no nli/SNLI there: docs/sentences.md says what stands where" in err
    assert make("--print")[0] == 0  # what was made elsewhere can be shown
    code, out, _ = make("--print", "--model", "nowhere/gone")
    assert code == 0 and "encoder gone" in out and "learning rate" not in out


def test_a_model_is_deleted_with_the_folders_in_it(made):
    SentenceEncoder.to_train(made / "tiny", "cls").save_pretrained(made / "run" / "best")
    (made / "run" / "log.txt").write_text("")
    assert (made / "run" / "best" / "1_Pooling").is_dir()
    delete_model(made / "run")
    assert [path.name for path in (made / "run").iterdir()] == ["log.txt"]
    delete_model(made / "run")  # killed in between, it is asked again


def test_a_program_that_leaves_nothing_is_not_started_forever(made, monkeypatch):
    cell = cell_of(made, "mean", UNTRAINED)
    monkeypatch.setattr(ContrastiveCell, "words", lambda self: ["contrastive.py", "--help"])
    said = []
    failed = run_all([cell], Rows(made / "none.jsonl"), 1, "call", True, said.append)
    assert failed == [cell] and said[0].startswith("started") and said[-1].startswith("failed     mean untrained")


def test_the_same_rows_of_other_tables_are_not_these(made):
    scale = scale_of(reproduce.parse(asked(made)), TABLE)
    cell = {"model": "tiny", "data": "data", "row": "mean", "option": "finetune", "epochs": 1, "batch_size": 4}
    assert not fits({**cell, "fraction": {}, "tasks": ["sst"]}, scale)
    assert fits({**cell, "option": "unsup", "fraction": {}}, scale)
    assert not fits({**cell, "option": "unsup", "fraction": {"unsup": 0.5}}, scale)
    assert "unsup: 1 epoch" in caption(TABLE, scale, [])


def test_a_run_gives_its_name_to_what_is_made_from_it(made):
    (made / "tiny").rename(made / "best")
    (made / "undone").mkdir()
    (made / "best").rename(made / "undone" / "best")
    write_json(made / "undone" / "config.json", {"command": "contrastive.py"})
    for name in ("undone", "undone/best"):
        args = reproduce.parse(asked(made, "--model", made / name))
        scale = scale_of(args, TABLE)
        assert (scale.model_name, scale.model) == ("undone", str(made / "undone" / "best"))
    (made / "undone" / "best" / "model.safetensors").unlink()
    with pytest.raises(InputError, match="a run without a best model"):
        scale_of(reproduce.parse(asked(made, "--model", made / "undone")), TABLE)
