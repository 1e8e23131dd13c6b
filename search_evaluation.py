"""How good a ranking is: reciprocal rank, NDCG, average precision, recall, and an encoder's on a test collection.

NDCG is Jarvelin and Kekalainen 2002 with gain over log2(rank + 1); the cut-offs are those of BEIR (arXiv 2104.08663).
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence

from nearest import find_nearest
from search_data import Collection
from search_index import Encoder, SearchIndex, build

MRR_AT, NDCG_AT, MAP_AT, RECALL_AT = 10, 10, 100, (10, 100)


def metric_names(recall_at: Sequence[int] = RECALL_AT) -> list[str]:
    return [f"mrr@{MRR_AT}", f"ndcg@{NDCG_AT}", f"map@{MAP_AT}", *(f"recall@{k}" for k in recall_at)]


def score_ranking(ranking: Sequence[str], relevant: dict[str, int], recall_at: Sequence[int] = RECALL_AT) -> dict:
    """One query's metrics, by name, each from 0 to 1. ranking: ids, best first. relevant: id -> gain above 0.

    A document that is relevant counts in the denominators whether it was indexed or not. Average precision is divided
    by min(100, relevant documents); only NDCG looks at gains. Raises ValueError for a document ranked twice, and for a
    query that nothing is relevant to.
    """
    if len(set(ranking)) < len(ranking):
        raise ValueError("a document is ranked twice")
    if not relevant:
        raise ValueError("no document is relevant: leave that query out")
    ranks = [rank for rank, name in enumerate(ranking, start=1) if name in relevant]
    precisions = [found / rank for found, rank in enumerate(ranks, start=1) if rank <= MAP_AT]
    gained = sum(relevant[ranking[rank - 1]] / math.log2(rank + 1) for rank in ranks if rank <= NDCG_AT)
    best = sorted(relevant.values(), reverse=True)[:NDCG_AT]
    most = sum(gain / math.log2(rank + 1) for rank, gain in enumerate(best, start=1))
    values = [
        1 / ranks[0] if ranks and ranks[0] <= MRR_AT else 0.0,
        gained / most,
        sum(precisions) / min(MAP_AT, len(relevant)),
        *(sum(rank <= k for rank in ranks) / len(relevant) for k in recall_at),
    ]
    return dict(zip(metric_names(recall_at), values, strict=True))


def score_rankings(
    rankings: dict[str, Sequence[str]], relevant: dict[str, dict[str, int]], recall_at: Sequence[int] = RECALL_AT
) -> dict[str, float]:
    """The metrics' means over all queries that something is relevant to; one without a ranking counts as 0."""
    scored = [score_ranking(rankings.get(query, ()), found, recall_at) for query, found in relevant.items()]
    return {name: math.fsum(row[name] for row in scored) / len(scored) for name in metric_names(recall_at)}


def evaluate_index(
    index: SearchIndex,
    collection: Collection,
    encoder: Encoder,
    recall_at: Sequence[int] = RECALL_AT,
    batch_size: int = 32,
    nearest: Callable = find_nearest,
) -> dict[str, float]:
    """The metrics of an index of the collection's documents; exact, unless `nearest` is not.

    Raises InputError where the index is another encoder's.
    """
    index.check(encoder)
    texts = [query.text for query in collection.queries]
    vectors = encoder.encode(texts, batch_size=batch_size, normalize=True, progress=None)
    own = 0 if collection.own_id_counts else 1  # a query that is a document itself finds that first
    scores, places = nearest(vectors, index.vectors, max(NDCG_AT, MAP_AT, *recall_at) + own)
    rankings = {}
    for query, row in zip(collection.queries, places, strict=True):
        names = [index.document(int(place)).id for place in row if place >= 0]
        rankings[query.id] = names if not own else [name for name in names if name != query.id]
    return score_rankings(rankings, collection.relevant, recall_at)


def evaluate_search(
    encoder: Encoder,
    collection: Collection,
    recall_at: Sequence[int] = RECALL_AT,
    batch_size: int = 32,
    progress: Callable[[int, int], None] = lambda done, total: None,
    say: Callable[[str], object] = lambda text: None,
) -> dict[str, float]:
    """The metrics of an encoder on a collection, whose index is made for this and not kept."""
    with tempfile.TemporaryDirectory() as folder:
        index = build(folder, collection.corpus, encoder, batch_size=batch_size, say=say, progress=progress)
        return evaluate_index(index, collection, encoder, recall_at, batch_size)
