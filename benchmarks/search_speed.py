"""How fast a search answers and how fast a corpus is indexed: ours against torch's plain way and sentence-transformers.

Exact search as nearest.py has it; a sentence's vector is the mean of its tokens (Reimers and Gurevych 2019).

    python benchmarks/search_speed.py                    # 1,000 queries over 100,000 vectors; 512 sentences indexed
    python benchmarks/search_speed.py --vectors 1000000 --queries 10 --alone

Vectors are random, of length one, in a memory-mapped file as an index has them. Theirs is
sentence_transformers.util.semantic_search; the plain way is one product of all with all, and torch.topk. Indexing is
from a file of texts to files of texts and vectors, flushed to the disk; theirs is SentenceTransformer.encode and
numpy.save. That all find the same is checked before.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import measure
import numpy as np
import torch
from encode_speed import INSTALL, make_theirs, sentence_transformers  # puts the root on the path, after theirs
from subjects import EMBEDDED, part_of, read_rows

from datasets import Table
from errors import InputError
from nearest import find_nearest
from search_data import Corpus, open_corpus
from search_index import build
from sentence_encoder import SentenceEncoder

OURS, THEIRS, PLAIN, PEAK = "ours", "sentence-transformers", "product and topk", "matrix product"


def unit_vectors(count: int, size: int, seed: int) -> np.ndarray:
    """(count, size) float32, random directions."""
    vectors = np.random.default_rng(seed).standard_normal((count, size), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def searchers(queries: np.ndarray, vectors: np.ndarray, top_k: int, alone: bool) -> dict:
    """name -> a search that answers places (Q, k), best first."""
    asked, kept = torch.from_numpy(queries), torch.from_numpy(np.array(vectors))

    def plain() -> np.ndarray:
        return (asked @ kept.T).topk(top_k, dim=1).indices.numpy()

    def theirs() -> np.ndarray:
        found = sentence_transformers.util.semantic_search(
            asked, kept, top_k=top_k, score_function=sentence_transformers.util.dot_score
        )
        return np.array([[hit["corpus_id"] for hit in hits] for hits in found])

    found = {OURS: lambda: find_nearest(queries, vectors, top_k)[1], PLAIN: plain}
    return found if alone else {**found, THEIRS: theirs}


def race_queries(arguments: argparse.Namespace, device: torch.device) -> dict:
    queries = unit_vectors(arguments.queries, arguments.dimension, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.bin"
        unit_vectors(arguments.vectors, arguments.dimension, 0).tofile(path)
        vectors = np.memmap(path, np.float32, "r", shape=(arguments.vectors, arguments.dimension))
        found = searchers(queries, vectors, arguments.top_k, arguments.alone)
        places = {name: search() for name, search in found.items()}
        for name, answers in places.items():
            if (answers == places[OURS]).mean() < 0.999:  # float32 may swap two that are all but equal
                sys.exit(f"error: {name} does not find what ours does")
        product = measure.MatrixProduct(device)
        steps = {name: lambda turn, search=search: search() for name, search in found.items()}
        seconds = measure.take_turns({**steps, PEAK: product.step}, arguments.rounds, device)
    work, peak = 2 * arguments.queries * arguments.vectors * arguments.dimension, product.peak(seconds[PEAK])
    numbers = {key: getattr(arguments, key) for key in ("queries", "vectors", "dimension", "top_k")}
    row: dict = {**numbers, "peak_gflops": peak / 1e9}
    for name in found:
        spread = measure.spread(seconds[name], 1000)
        share = work / (spread["median"] / 1000 * peak)
        row[name] = {"ms": spread, **measure.ratio(seconds[name], seconds[OURS]), "share_of_peak": share}
    return row


def write_corpus(table: Table, path: Path) -> Corpus:
    rows = [json.dumps({"_id": example.id, "text": example.sentence}) + "\n" for example in table]
    path.write_text("".join(rows), encoding="utf-8")
    return open_corpus(path)


def race_indexing(arguments: argparse.Namespace, table: Table, device: torch.device) -> tuple[dict, dict]:
    """(what the row says of the model, and of the race)."""
    encoder = SentenceEncoder.from_pretrained(arguments.model, "mean", device)
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(table, Path(folder) / "corpus.jsonl")
        vectors = {}

        def ours(turn: int) -> None:
            index = build(Path(folder) / str(turn), corpus, encoder, batch_size=arguments.batch_size)
            vectors[OURS] = index.vectors

        contestants = {OURS: ours}
        if not arguments.alone:
            arguments.precision = "fp32"
            encode = make_theirs(arguments, encoder.max_length)

            def theirs(turn: int) -> None:
                vectors[THEIRS] = encode([document.text for document in corpus])
                np.save(Path(folder) / f"{turn}.npy", vectors[THEIRS])

            contestants[THEIRS] = theirs
        seconds = measure.take_turns(contestants, arguments.rounds, device)
        row: dict = {"documents": len(table), "batch_size": arguments.batch_size}
        if not arguments.alone:
            row["largest_difference"] = float(np.abs(vectors[OURS] - vectors[THEIRS]).max())
            if not row["largest_difference"] < 1e-4:
                sys.exit(f"error: the vectors differ by {row['largest_difference']}: not the same work")
    for name in contestants:
        spread = measure.spread(seconds[name], 1000)
        speed = len(table) / (spread["median"] / 1000)
        row[name] = {"ms": spread, "documents_per_second": speed, **measure.ratio(seconds[name], seconds[OURS])}
    return {"name": Path(encoder.name).name, "fingerprint": encoder.fingerprint}, row


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=measure.at_least(1), default=1000, help="default 1000")
    parser.add_argument("--vectors", type=measure.at_least(1), default=100_000, help="default 100000")
    parser.add_argument("--dimension", type=measure.at_least(1), default=384, help="default 384, the embedded weights'")
    parser.add_argument("--top_k", type=measure.at_least(1), default=10, help="default 10")
    parser.add_argument("--model", default=EMBEDDED, help=f"to index with: {EMBEDDED} (default) or a folder of weights")
    parser.add_argument("--documents", type=measure.at_least(1), default=512, help="of SST's train file (default 512)")
    parser.add_argument("--batch_size", type=measure.at_least(1), default=32, help="default 32, which is theirs")
    parser.add_argument("--alone", action="store_true", help="without sentence-transformers")
    measure.add_data_option(parser)
    measure.add_options(parser)
    arguments = parser.parse_args(argv)
    if sentence_transformers is None and not arguments.alone:
        parser.error(f"sentence-transformers is not installed: {INSTALL}; or add --alone")
    arguments.top_k = min(arguments.top_k, arguments.vectors)
    return arguments


def main() -> None:
    arguments = parse()
    device = measure.prepare(arguments)
    described = measure.machine(device)
    table, file = read_rows("sst", "train", arguments.data)
    model, indexing = race_indexing(arguments, part_of(table, arguments.documents), device)
    query = race_queries(arguments, device)
    print(f"{arguments.queries:,} queries over {arguments.vectors:,} vectors of {arguments.dimension}, {described}")
    header = ["", "median ms", "quartiles", "over ours", "quartiles", "share"]
    names = (OURS, PLAIN, THEIRS)
    rows = [(name, query[name]) for name in names if name in query]
    measure.show(header, [[*shown(name, row), row["share_of_peak"]] for name, row in rows])
    print(f"\n{indexing['documents']:,} documents indexed with {arguments.model}")
    rows = [(name, indexing[name]) for name in names if name in indexing]
    measure.show(
        [*header[:-1], "documents/s"], [[*shown(name, row), row["documents_per_second"]] for name, row in rows]
    )
    row = {"model": model, "data": file, "rounds": arguments.rounds, "query": query, "indexing": indexing}
    measure.append_row(arguments.out, described, row)


def shown(name: str, row: dict) -> list:
    return [name, row["ms"]["median"], row["ms"]["quartiles"], row["over_ours"], row["over_ours_quartiles"]]


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
