"""`contrastive.py search` from its command line: index, query, evaluate, with a small random encoder.

Follows search_command.py's options and contrastive.py's exit codes.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import search_command
import search_index
from errors import InputError
from search_index import HEADER, SearchIndex
from sentence_encoder import SentenceEncoder

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ["the film was good", "the film was very bad", "a cat sat on the mat", " ", "a dog ran", "why not , cat ?"]
needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="faiss is not installed: optional")


@pytest.fixture
def model(tmp_path, tiny, tiny_tokenizer):
    """model(seed) -> a folder of small random weights."""

    def write(seed=0):
        folder = tmp_path / f"model{seed}"
        tiny(seed).save_pretrained(folder)
        tiny_tokenizer.save_pretrained(folder)
        return folder

    return write


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("".join(text + "\n" for text in TEXTS))
    return path


@pytest.fixture
def search():
    """search(words...) -> the lines said; options are typed as on the command line."""

    def ask(*words):
        parser, said = argparse.ArgumentParser(), []
        search_command.add_options(parser)
        args = parser.parse_args([*map(str, words), "--device", "cpu"])
        assert search_command.run(args, lambda line: said.extend(str(line).split("\n"))) == 0
        return said

    return ask


def refused(search, *words):
    with pytest.raises(InputError) as caught:
        search(*words)
    return str(caught.value)


def answers(lines):
    return [json.loads(line) for line in lines]


def test_index_then_ask(search, model, corpus, tmp_path):
    folder = tmp_path / "index"
    said = search("index", corpus, "--index", folder, "--model", model())
    assert "1 document without text is left out: 4" in said
    assert said[-1].endswith("index, 5 documents, 0.0 MB of vectors")
    (found,) = answers(search("query", "the film was good", "--index", folder, "--json", "--top_k", 3))
    assert found["text"] == "the film was good" and len(found["hits"]) == 3
    assert found["hits"][0] == {"id": "1", "score": pytest.approx(1, abs=1e-5), "text": "the film was good"}
    scores = [hit["score"] for hit in found["hits"]]
    assert scores == sorted(scores, reverse=True)
    encoder = SentenceEncoder.from_pretrained(model())
    cosines = encoder.encode([text for text in TEXTS if text.strip()]) @ encoder.encode(["the film was good"])[0]
    np.testing.assert_allclose(scores, np.sort(cosines)[::-1][:3], atol=1e-5)
    lines = search("query", "the film was good", "--index", folder)
    assert lines[0].split() == ["1", "1.0000", "1:", "the", "film", "was", "good"] and len(lines) == 5 + 2
    assert lines[-1].startswith("1 query encoded in ") and "5 documents searched in" in lines[-1]
    assert (
        search("query", "good", "--index", folder, "--threshold", 1.5)[0].strip() == "no document reaches the threshold"
    )


def test_a_file_of_queries(search, model, corpus, tmp_path, capsys):
    folder, queries = tmp_path / "index", tmp_path / "queries.jsonl"
    search("index", corpus, "--index", folder, "--model", model())
    asked = {"x": "a dog ran", "n": "", "y": "why not , cat ?"}
    queries.write_text("".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in asked.items()))
    found = answers(search("query", "--queries", queries, "--index", folder, "--json", "--top_k", 50))
    assert [(query["id"], query["hits"][0]["id"]) for query in found] == [("x", "5"), ("y", "6")]
    assert all(len({hit["id"] for hit in query["hits"]}) == 5 for query in found)
    notes = capsys.readouterr().err
    assert "1 query without text is left out: n" in notes and "2 queries encoded in" in notes
    lines = search("query", "--queries", queries, "--index", folder, "--top_k", 1)
    assert lines[2] == "x: a dog ran" and lines[3].endswith("5: a dog ran") and lines[5] == "y: why not , cat ?"


def test_the_index_remembers_its_encoder(search, model, corpus, tmp_path, monkeypatch):
    folder = tmp_path / "index"
    monkeypatch.chdir(tmp_path)
    search(
        "index", corpus, "--index", folder, "--model", "model0" if model() else "", "--pooler", "max", "--max_length", 5
    )
    found = json.loads((folder / HEADER).read_text())["encoder"]
    assert found == {"model": str(tmp_path / "model0"), "pooler": "max", "max_length": 5}
    monkeypatch.chdir("/")
    (answer,) = answers(search("query", "a dog ran", "--index", folder, "--json"))
    assert answer["hits"][0]["id"] == "5" and answer["hits"][0]["score"] == pytest.approx(1, abs=1e-5)


def test_another_encoder_is_refused(search, model, corpus, tmp_path):
    folder = tmp_path / "index"
    search("index", corpus, "--index", folder, "--model", model())
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert refused(search, "query", "dog", "--index", folder, "--max_length", 0).startswith(
        "max_length 0: wanted 3 to "
    )
    for words in (["--model", model(1)], ["--pooler", "max"], ["--max_length", "6"]):
        for asked in (["query", "dog"], ["index", corpus, *(["--model", model()] if "--model" not in words else [])]):
            message = refused(search, *asked, "--index", folder, *words)
            assert "choose that model, pooler and length, or index again in another folder" in message
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_columns_and_half_precision(search, model, tmp_path):
    path, folder = tmp_path / "a.csv", tmp_path / "index"
    path.write_text("key,head,body\nk1,the film,was good\nk2,a dog,ran\n")
    options = ["--column", "head", "body", "--id_column", "key", "--float16", "--model", model()]
    search("index", path, "--index", folder, *options)
    assert SearchIndex.open(folder).vectors.dtype == np.float16
    (found,) = answers(search("query", "a dog ran", "--index", folder, "--json", "--top_k", 1))
    assert found["hits"][0]["id"] == "k2" and found["hits"][0]["text"] == "a dog ran"


@pytest.fixture
def beir(tmp_path):
    folder = tmp_path / "beir"
    folder.mkdir()
    rows = [{"_id": f"d{place}", "title": "", "text": text} for place, text in enumerate(TEXTS)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "queries.jsonl").write_text(
        '{"_id": "q", "text": "a dog ran"}\n{"_id": "d0", "text": "the film was good"}\n'
    )
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq\td4\t1\nd0\td0\t1\n")
    return folder


def test_evaluate(search, model, beir, tmp_path):
    lines = search("evaluate", beir, "--model", model(), "--json", tmp_path / "a.json", "--recall_at", 1, 5)
    assert any(line.startswith("data    beir, 2 queries, 2 relevant answers (all) in ") for line in lines)
    assert not any("not in the corpus" in line for line in lines)
    # The first query finds its document; the second is one itself, and does not find that.
    wanted = {"mrr@10": 0.5, "ndcg@10": 0.5, "map@100": 0.5, "recall@1": 0.5, "recall@5": 0.5}
    assert lines[-4].split() == list(wanted) and lines[-3].split() == ["exact", *["0.5000"] * 5]
    written = json.loads((tmp_path / "a.json").read_text())
    assert written["exact"] == wanted
    assert written["model"]["fingerprint"] == SentenceEncoder.from_pretrained(model()).fingerprint
    kept = search("evaluate", beir, "--model", model(), "--index", tmp_path / "index", "--recall_at", 1, 5)
    assert kept[-1] == lines[-3] and len(SearchIndex.open(tmp_path / "index")) == 5
    again = search("evaluate", beir, "--model", model(), "--index", tmp_path / "index", "--recall_at", 1, 5)
    assert again[-1] == lines[-3] and any(line.startswith("5 documents are in ") for line in again)


def test_relevant_documents_that_the_corpus_lacks_are_said(search, model, beir):
    with open(beir / "qrels.tsv", "a") as file:
        file.write("q\tgone\t1\n")
    lines = search("evaluate", beir, "--model", model(), "--recall_at", 123456789012)
    assert "        1 relevant document not in the corpus, so never found: gone" in lines
    assert lines[-2].split() == ["mrr@10", "ndcg@10", "map@100", "recall@123456789012"]
    assert lines[-1].split()[0] == "exact" and lines[-1].split()[4] == "0.2500"  # one of two, and of the other none


def test_what_a_terminal_would_obey_is_not_printed(search, model, tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"id": "a\x1b[2J", "text": "dog\x00 \x1b[31mran\tfast"}) + "\n")
    search("index", tmp_path / "a.jsonl", "--index", tmp_path / "index", "--model", model())
    lines = search("query", "a dog ran", "--index", tmp_path / "index")
    assert lines[0].split()[2:] == ["a", "[2J:", "dog", "[31mran", "fast"] and "\x1b" not in lines[0]


@needs_faiss
def test_approximate(search, model, corpus, beir, tmp_path):
    folder = tmp_path / "index"
    said = search("index", corpus, "--index", folder, "--model", model(), "--approximate")
    assert said[-1] == "graph   finds 100.0% of the exact search's ten best, asked with 5 of the documents"
    exact = search("query", "a dog ran", "--index", folder, "--json")
    assert search("query", "a dog ran", "--index", folder, "--json", "--approximate") == exact
    lines = search("evaluate", beir, "--model", model(), "--index", tmp_path / "beir-index", "--approximate")
    assert "graph   finds 100.0% of the exact search's ten best for these queries" in lines
    assert lines[-2].split()[1:] == lines[-1].split()[1:] and lines[-1].startswith("approximate")


def test_a_hint_past_many_documents(search, model, corpus, tmp_path, monkeypatch):
    search("index", corpus, "--index", tmp_path / "index", "--model", model())
    monkeypatch.setattr(search_command, "MANY", 4)
    assert any("--approximate is faster" in line for line in search("query", "dog", "--index", tmp_path / "index"))


@pytest.mark.parametrize(
    "words, message",
    [
        (["query"], "ask one thing, a TEXT or --queries FILE"),
        (["query", "a", "--queries", "b"], "ask one thing, a TEXT or --queries FILE"),
        (["query", " \t"], "the query ' \\t' has no text: say what to look for"),
        (["query", "\u200b\ufeff"], "the query '\\u200b\\ufeff' has no text: say what to look for"),
        (["query", "a", "--top_k", "0"], "--top_k 0: wanted 1 or more"),
        (["query", "a", "--threshold", "nan"], "--threshold nan: wanted a number, a cosine from -1 to 1"),
        (["query", "a", "--batch_size", "0"], "--batch_size 0: wanted 1 or more"),
        (["query", "a"], "INDEX: no index there (no index.json): make one with contrastive.py search index"),
        (["evaluate", "nowhere"], "nowhere: no such folder; name one with Cranfield's files, or with BEIR's layout"),
        (["evaluate", "nowhere", "--recall_at", "0"], "--recall_at 0: wanted 1 or more"),
    ],
)
def test_what_cannot_be_used(search, tmp_path, words, message):
    folder = tmp_path / "index"
    assert refused(search, *words, "--index", folder) == message.replace("INDEX", str(folder))


def test_without_faiss(search, tmp_path, monkeypatch, beir):
    monkeypatch.setitem(sys.modules, "faiss", None)
    for words in (["query", "a"], ["index", "a.txt"], ["evaluate", beir]):
        assert "faiss is not installed" in refused(search, *words, "--index", tmp_path / "index", "--approximate")
    message = refused(search, "evaluate", beir, "--approximate")
    assert message == "--approximate: its graph stands beside an index: name one with --index"


def test_blank_queries_only(search, model, corpus, tmp_path):
    (tmp_path / "queries.txt").write_text(" \n\n")
    search("index", corpus, "--index", tmp_path / "index", "--model", model())
    message = refused(search, "query", "--queries", tmp_path / "queries.txt", "--index", tmp_path / "index")
    assert message == f"{tmp_path}/queries.txt: no query with text: choose a file of queries, one a line"


def test_an_index_of_half_precision_is_judged_as_it_is(search, model, beir, tmp_path):
    folder, where = tmp_path / "index", ("--model", model())
    search("index", beir, "--index", folder, "--float16", *where)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    search("evaluate", beir, "--index", folder, "--json", tmp_path / "half.json", *where)
    search("evaluate", beir, "--json", tmp_path / "whole.json", *where)
    half, whole = (json.loads((tmp_path / name).read_text())["exact"] for name in ("half.json", "whole.json"))
    assert half == pytest.approx(whole)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    message = refused(search, "index", beir, "--index", folder, *where)
    assert message.endswith("dtype is float16, not float32: say --float16, too, or index in another folder")


def test_killed_while_it_encodes(model, corpus, tmp_path):
    """A whole command, ended by SIGKILL in its second chunk, then given again."""
    program = (
        "import os, sys, search_index; sys.argv[0] = 'contrastive.py'\n"
        "search_index.AT_ONCE = 2\n"
        "if os.environ.get('DIE'):\n"
        "    from sentence_encoder import SentenceEncoder\n"
        "    encode, calls = SentenceEncoder.encode, []\n"
        "    def dying(self, texts, **options):\n"
        "        calls.append(texts)\n"
        "        return encode(self, texts, **options) if len(calls) < 2 else os.kill(os.getpid(), 9)\n"
        "    SentenceEncoder.encode = dying\n"
        "import contrastive; sys.exit(contrastive.main())\n"
    )
    folder = tmp_path / "index"
    words = ["search", "index", str(corpus), "--index", str(folder), "--model", str(model()), "--device", "cpu"]
    command = [sys.executable, "-c", program, *words]
    run = {"cwd": ROOT, "capture_output": True, "text": True}
    killed = subprocess.run(command, env={**os.environ, "DIE": "1"}, **run)
    assert killed.returncode == -9, killed.stderr
    assert search_index.read_header(folder).documents == 2
    unfinished = subprocess.run([*command[:3], "search", "query", "dog", "--index", str(folder)], **run)
    assert unfinished.returncode == 1
    assert unfinished.stderr.startswith(f"error: {folder}: unfinished, 2 documents so far") and unfinished.stdout == ""
    done = subprocess.run(command, **run)
    assert done.returncode == 0, done.stderr
    assert "2 documents are in " in done.stdout
    index = SearchIndex.open(folder)
    assert [index.document(place).text for place in range(5)] == [text for text in TEXTS if text.strip()]
    wanted = SentenceEncoder.from_pretrained(model()).encode([text for text in TEXTS if text.strip()])
    np.testing.assert_allclose(index.vectors, wanted, atol=1e-5)
