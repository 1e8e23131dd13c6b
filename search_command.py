"""`contrastive.py search`: index a corpus, ask the index, judge the answers on a test collection.

Semantic search as Reimers and Gurevych 2019 (arXiv 1908.10084) have it: a text's vector is its encoder's, and the
nearest by cosine answers.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tqdm import tqdm

from approximate import MANY, PROBES, build_graph, load_faiss, open_graph, recall, search_graph
from command_line import path_given, text_given
from console import counted, warn
from errors import InputError, quoted
from files import check_writable, short, write_json
from nearest import find_nearest
from options import choose_device
from poolers import POOLERS
from search_data import FORMATS, JUDGED, Document, open_corpus, read_collection
from search_evaluation import RECALL_AT, evaluate_index, evaluate_search
from search_index import SearchIndex, build

SHOWN = 100  # characters of a document in a list of answers
SHOWN_IDS = 10  # of documents that a line names


def add_options(parser: argparse.ArgumentParser) -> None:
    """The subcommands and their options."""
    parser.description = "Semantic search: index a corpus, ask the index, judge the answers."
    commands = parser.add_subparsers(dest="action", required=True, metavar="{index,query,evaluate}")
    add = partial(commands.add_parser, formatter_class=parser.formatter_class)

    index = add("index", help="encode a corpus, once", description="Encode a corpus into an index, or go on with it.")
    index.add_argument(
        "corpus",
        type=path_given,
        metavar="CORPUS",
        help="a text file (a document a line), CSV or JSONL, or a folder with corpus.jsonl (BEIR) or Cranfield's files",
    )
    index.add_argument("--index", type=path_given, metavar="DIR", required=True, help="folder to keep it in")
    index.add_argument(
        "--float16",
        action="store_true",
        help="vectors in 16 bits: half the space, scores off by a few 1e-4 (default: float32, what the encoder gives)",
    )
    index.add_argument(
        "--approximate",
        action="store_true",
        help="also a graph for approximate search, and its recall; worth it past a million documents; needs faiss",
    )
    _add_columns(index)
    _add_encoder(index, "default: what was set up")

    query = add("query", help="ask an index", description="The documents whose vectors are nearest to a text's.")
    query.add_argument("text", nargs="?", metavar="TEXT", help="what to look for")
    query.add_argument("--queries", type=path_given, metavar="FILE", help="many instead: text, CSV or JSONL")
    query.add_argument("--index", type=path_given, metavar="DIR", required=True, help="what `index` made")
    query.add_argument("--top_k", type=int, metavar="N", default=10, help="answers to a query (default 10)")
    query.add_argument(
        "--threshold", type=float, metavar="COSINE", help="only answers with this score or more (default: all)"
    )
    query.add_argument(
        "--json", action="store_true", help="an object a query and line, texts whole (default: for people to read)"
    )
    query.add_argument("--approximate", action="store_true", help="by the graph that index --approximate made")
    _add_columns(query)
    _add_encoder(query, "default: the one that the index was made with")

    judge = add("evaluate", help="judge the answers", description="MRR, NDCG, MAP and recall on a test collection.")
    judge.add_argument(
        "collection",
        type=path_given,
        metavar="DIR",
        help="Cranfield's files, or BEIR's layout (corpus.jsonl, queries.jsonl, qrels/test.tsv or qrels.tsv)",
    )
    judge.add_argument(
        "--index", type=path_given, metavar="DIR", help="folder to keep the index in (default: it is not kept)"
    )
    judge.add_argument(
        "--split", type=text_given, metavar="NAME", help="of BEIR's qrels/ (default: test, else the file qrels.tsv)"
    )
    judge.add_argument(
        "--judged",
        choices=JUDGED,
        default="all",
        help="of Cranfield's judgements: all (default), or positive: without -1, the document a query came from",
    )
    judge.add_argument(
        "--recall_at", type=int, action="extend", nargs="+", metavar="K", help="default 10 100, as BEIR reports"
    )
    judge.add_argument(
        "--approximate", action="store_true", help="judge the graph's answers, too, and their share of the exact ones"
    )
    judge.add_argument("--json", type=path_given, metavar="FILE", help="write the numbers there")
    _add_encoder(judge, "default: what was set up")


def _add_columns(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=FORMATS, help="default: by the file's suffix, .csv, .tsv, .jsonl, else text, a line each"
    )
    parser.add_argument(
        "--column",
        type=text_given,
        action="extend",
        nargs="+",
        metavar="NAME",
        help="of CSV or JSONL, what is searched (default: title, where there is one, and text)",
    )
    parser.add_argument(
        "--id_column", type=text_given, metavar="NAME", help="default: _id or id, where there is one, else line numbers"
    )


def _add_encoder(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--model", type=text_given, metavar="MODEL", help=f"a run, a folder of weights, or a known name ({default})"
    )
    parser.add_argument("--pooler", choices=POOLERS, metavar="NAME", help="default: the model's own, else mean")
    parser.add_argument(
        "--max_length", type=int, metavar="TOKENS", help="longer texts are cut (default: the model's own)"
    )
    parser.add_argument(
        "--batch_size", type=int, metavar="N", default=32, help="texts encoded at once (default 32; more gain nothing)"
    )
    parser.add_argument("--device", type=text_given, help="cuda, cuda:1, mps or cpu (default: the best there is)")


def run(args: argparse.Namespace, say: Callable[[str], object] = print) -> int:
    """Do what was asked; returns the exit code. Raises InputError for what can't be used."""
    if args.batch_size < 1:
        raise InputError(f"--batch_size {args.batch_size}: wanted 1 or more")
    if args.action != "evaluate" and args.approximate:
        load_faiss()  # before hours of work
    {"index": _index, "query": _query, "evaluate": _evaluate}[args.action](args, say)
    return 0


def _index(args: argparse.Namespace, say: Callable[[str], object]) -> None:
    corpus = open_corpus(args.corpus, args.format, _columns(args), args.id_column)
    encoder = load_encoder(args)
    say(f"model   {encoder.name}, pooler {encoder.pooler_name}, {encoder.dimension} dimensions")
    say(f"corpus  {short(corpus.path)}, read as {corpus.format}")
    with bar("encoding") as progress:
        index = build(
            args.index,
            corpus,
            encoder,
            source=source_of(args, encoder),
            half=args.float16,
            batch_size=args.batch_size,
            say=say,
            progress=progress,
        )
    megabytes = index.vectors.nbytes / 1e6
    say(f"index   {short(args.index)}, {counted(len(index), 'document')}, {megabytes:,.1f} MB of vectors")
    if args.approximate:
        with bar("linking") as progress:
            share = build_graph(index, progress)
        asked = min(PROBES, len(index))
        say(f"graph   finds {share:.1%} of the exact search's ten best, asked with {asked} of the documents")


def _query(args: argparse.Namespace, say: Callable[[str], object]) -> None:
    if (args.text is None) == (args.queries is None):
        raise InputError("ask one thing, a TEXT or --queries FILE")
    if args.top_k < 1:
        raise InputError(f"--top_k {args.top_k}: wanted 1 or more")
    if args.threshold is not None and not math.isfinite(args.threshold):
        raise InputError(f"--threshold {args.threshold}: wanted a number, a cosine from -1 to 1")
    note = warn if args.json else say
    queries = _queries(args, note)
    index = SearchIndex.open(args.index)
    graph = open_graph(index) if args.approximate else None
    args.model = args.model or index.header.encoder["model"]
    args.pooler = args.pooler or index.header.encoder.get("pooler")
    if args.max_length is None:
        args.max_length = index.header.encoder.get("max_length")
    encoder = load_encoder(args)
    index.check(encoder)
    if graph is None and len(index) > MANY:
        note(f"{len(index):,} documents are compared one by one; --approximate is faster and misses a few")
    began = time.perf_counter()
    with bar("encoding") as progress:
        vectors = encoder.encode(
            [query.text for query in queries],
            batch_size=args.batch_size,
            normalize=True,
            progress=_counter(progress, len(queries)),
        )
    encoded = time.perf_counter()
    nearest = find_nearest if graph is None else partial(search_graph, graph)
    hits = index.hits(*nearest(vectors, index.vectors, args.top_k, args.threshold))
    done = time.perf_counter()
    for query, found in zip(queries, hits, strict=True):
        if args.json:
            answers = [{"id": hit.id, "score": round(hit.score, 6), "text": hit.text} for hit in found]
            say(json.dumps({"id": query.id, "text": query.text, "hits": answers}, ensure_ascii=False))
            continue
        if args.queries:
            say(f"\n{cut(query.id)}: {cut(query.text)}")
        for rank, hit in enumerate(found, start=1):
            say(f"{rank:>5}  {hit.score:.4f}  {cut(hit.id)}: {cut(hit.text)}")
        if not found:
            say("       no document reaches the threshold")
    what = "1 query" if len(queries) == 1 else f"{len(queries):,} queries"
    documents = counted(len(index), "document")
    note(f"\n{what} encoded in {encoded - began:.2f} s, {documents} searched in {done - encoded:.2f} s")


def _queries(args: argparse.Namespace, note: Callable[[str], object]) -> list[Document]:
    """What is asked. Raises InputError for queries without text, where nothing else is asked."""
    if args.queries is None:
        query = Document("1", args.text, 1)
        if query.blank:
            raise InputError(f"the query {quoted(args.text)} has no text: say what to look for")
        return [query]
    corpus = open_corpus(args.queries, args.format, _columns(args), args.id_column)
    survey = corpus.survey()
    if not survey.documents:
        raise InputError(f"{corpus.path}: no query with text: choose a file of queries, one a line")
    if survey.blank:
        left = "query without text is" if survey.blank == 1 else "queries without text are"
        note(f"{survey.blank:,} {left} left out: {', '.join(survey.examples)}")
    return list(corpus.with_text())


def _evaluate(args: argparse.Namespace, say: Callable[[str], object]) -> None:
    recall_at = sorted(set(args.recall_at or RECALL_AT))
    if recall_at[0] < 1:
        raise InputError(f"--recall_at {recall_at[0]}: wanted 1 or more")
    if args.approximate:
        if args.index is None:
            raise InputError("--approximate: its graph stands beside an index: name one with --index")
        load_faiss()
    if args.json:
        check_writable(args.json)
    collection = read_collection(args.collection, args.split, args.judged)
    encoder = load_encoder(args)
    judged = sum(map(len, collection.relevant.values()))
    say(f"model   {encoder.name}, pooler {encoder.pooler_name}, at most {encoder.max_length} tokens of a text")
    judgements = f"{judged:,} relevant answers ({args.judged}) in {short(collection.judgements)}"
    say(f"data    {collection.name}, {len(collection.queries):,} queries, {judgements}")
    if collection.absent:
        names, more = ", ".join(collection.absent[:SHOWN_IDS]), ", ..." if len(collection.absent) > SHOWN_IDS else ""
        say(
            f"        {counted(len(collection.absent), 'relevant document')} not in the corpus, so never found: "
            f"{names}{more}"
        )
    with bar("encoding") as progress:
        if args.index is None:
            found = {"exact": evaluate_search(encoder, collection, recall_at, args.batch_size, progress, say)}
        else:
            index = build(
                args.index,
                collection.corpus,
                encoder,
                source=source_of(args, encoder),
                half=None,
                batch_size=args.batch_size,
                say=say,
                progress=progress,
            )
            found = {"exact": evaluate_index(index, collection, encoder, recall_at, args.batch_size)}
    if args.approximate:
        graph = _graph(index)
        nearest = partial(search_graph, graph)
        found["approximate"] = evaluate_index(index, collection, encoder, recall_at, args.batch_size, nearest)
        vectors = encoder.encode([query.text for query in collection.queries], batch_size=args.batch_size)
        say(f"graph   finds {recall(index, graph, vectors):.1%} of the exact search's ten best for these queries")
    names = list(found["exact"])
    wide = max(10, *map(len, names)) + 2
    say(f"\n{'':12}" + "".join(f"{name:>{wide}}" for name in names))
    for how, values in found.items():
        say(f"{how:12}" + "".join(f"{values[name]:>{wide}.4f}" for name in names))
    if args.json:
        described = {"name": encoder.name, "pooler": encoder.pooler_name, "max_length": encoder.max_length}
        described["fingerprint"] = encoder.fingerprint
        data = {"name": collection.name, "queries": len(collection.queries), "judged": args.judged}
        write_json(args.json, {"model": described, "data": data, **found})
        say(f"\nall of it: {short(args.json)}")


def _graph(index: SearchIndex):
    """The graph beside the index, made if it is not there, or is one of fewer documents."""
    try:
        return open_graph(index)
    except InputError:
        with bar("linking") as progress:
            build_graph(index, progress)
        return open_graph(index)


def _columns(args: argparse.Namespace) -> tuple[str, ...] | None:
    return tuple(args.column) if args.column else None


def load_encoder(args: argparse.Namespace):
    """The SentenceEncoder asked for. Raises InputError for a device or a model that isn't there."""
    from sentence_encoder import SentenceEncoder

    device, _ = choose_device(argparse.Namespace(device=args.device, use_gpu=False))
    return SentenceEncoder.from_pretrained(args.model, args.pooler, device, args.max_length)


def source_of(args: argparse.Namespace, encoder) -> dict:
    """What loads the same encoder again, from any folder."""
    model = args.model or encoder.name
    return {
        "model": os.path.abspath(model) if Path(model).is_dir() else model,
        "pooler": encoder.pooler_name,
        "max_length": encoder.max_length,
    }


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal, from its first word on; told (done, total)."""
    shown: list[tqdm] = []

    def progress(done: int, total: int) -> None:
        if not shown:
            shown.append(tqdm(desc=what, total=total, initial=done, unit="text", disable=None, leave=False))
        shown[0].update(done - shown[0].n)

    try:
        yield progress
    finally:
        for found in shown:
            found.close()


def _counter(progress: Callable[[int, int], None], total: int) -> Callable[[int], None]:
    done = 0

    def count(texts: int) -> None:
        nonlocal done
        done += texts
        progress(done, total)

    return count


def cut(text: str) -> str:
    """A text as one line that fits into a list, without the control characters that a terminal would obey."""
    text = "".join(" " if unicodedata.category(sign) == "Cc" else sign for sign in text[: 20 * SHOWN])
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
