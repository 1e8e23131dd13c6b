"""The search metrics: by hand, against scikit-learn, the golden values of Cranfield, and an encoder from end to end.

Follows search_evaluation.py; the golden values are scikit-learn's TfidfVectorizer with its defaults on "title body".
"""

import json
import math

import numpy as np
import pytest
from word_encoder import WordEncoder

from errors import InputError
from nearest import find_nearest
from search_data import read_collection
from search_evaluation import (
    evaluate_index,
    evaluate_search,
    metric_names,
    score_ranking,
    score_rankings,
)
from search_index import build


def test_by_hand():
    found = score_ranking(["x", "a", "y", "b", "c"], {"a": 1, "b": 1, "c": 1, "never found": 1}, recall_at=(1, 2, 4))
    assert list(found) == ["mrr@10", "ndcg@10", "map@100", "recall@1", "recall@2", "recall@4"]
    assert found["mrr@10"] == 1 / 2
    assert found["map@100"] == pytest.approx((1 / 2 + 2 / 4 + 3 / 5) / 4)
    most = 1 + 1 / math.log2(3) + 1 / math.log2(4) + 1 / math.log2(5)
    assert found["ndcg@10"] == pytest.approx((1 / math.log2(3) + 1 / math.log2(5) + 1 / math.log2(6)) / most)
    assert (found["recall@1"], found["recall@2"], found["recall@4"]) == (0, 1 / 4, 2 / 4)


def test_where_each_metric_stops_looking():
    ranking = [f"d{rank}" for rank in range(1, 151)]
    assert set(score_ranking(ranking, {"d11": 1}).items()) >= {("mrr@10", 0), ("ndcg@10", 0), ("map@100", 1 / 11)}
    assert score_ranking(ranking, {"d10": 1})["mrr@10"] == 1 / 10
    found = score_ranking(ranking, {"d101": 1}, recall_at=(100, 101))
    assert (found["map@100"], found["recall@100"], found["recall@101"]) == (0, 0, 1)
    everything = score_ranking(ranking, dict.fromkeys(ranking, 1), recall_at=(10,))
    assert everything == {"mrr@10": 1, "ndcg@10": 1, "map@100": 1, "recall@10": 10 / 150}


def test_gains_against_scikit_learn():
    from sklearn.metrics import ndcg_score

    random = np.random.default_rng(0)
    for _ in range(20):
        gains, scores = random.integers(0, 4, 30), random.permutation(30)
        gains[0] = 1
        ranking = [str(place) for place in np.argsort(-scores)]
        found = score_ranking(ranking, {str(place): int(gain) for place, gain in enumerate(gains) if gain})
        assert found["ndcg@10"] == pytest.approx(ndcg_score([gains], [scores], k=10))


def test_average_precision_against_scikit_learn():
    from sklearn.metrics import average_precision_score

    random = np.random.default_rng(1)
    for _ in range(20):
        wanted, scores = random.random(60) < 0.2, random.permutation(60)
        wanted[3] = True
        ranking = [str(place) for place in np.argsort(-scores)]
        found = score_ranking(ranking, {str(place): 1 for place in np.flatnonzero(wanted)})
        assert found["map@100"] == pytest.approx(average_precision_score(wanted, scores))


def test_means_over_queries_one_without_a_ranking_counts_as_zero():
    found = score_rankings({"q1": ["a"], "unjudged": ["b"]}, {"q1": {"a": 1}, "q2": {"b": 1}})
    assert found == dict.fromkeys(metric_names(), 0.5)


def test_what_is_no_ranking():
    with pytest.raises(ValueError, match="ranked twice"):
        score_ranking(["a", "a"], {"a": 1})
    with pytest.raises(ValueError, match="no document is relevant"):
        score_ranking(["a"], {})


@pytest.mark.real_data
@pytest.mark.parametrize(
    "judged, golden",
    [
        ("all", {"ndcg@10": 0.4872, "mrr@10": 0.7741, "map@100": 0.3811}),
        ("positive", {"ndcg@10": 0.3618, "mrr@10": 0.5046, "map@100": 0.2737}),
    ],
)
def test_golden_values_of_cranfield(real_data, judged, golden):
    from sklearn.feature_extraction.text import TfidfVectorizer

    collection = read_collection(real_data / "search" / "cranfield", judged=judged)
    documents = list(collection.corpus)
    vectorizer = TfidfVectorizer()
    vectors = vectorizer.fit_transform(document.text for document in documents)
    queries = vectorizer.transform(query.text for query in collection.queries)
    similar = (queries @ vectors.T).toarray()
    best = np.argsort(-similar, axis=1, kind="stable")[:, :100]
    rankings = {
        query.id: [documents[place].id for place in row] for query, row in zip(collection.queries, best, strict=True)
    }
    found = score_rankings(rankings, collection.relevant)
    assert {name: round(found[name], 4) for name in golden} == golden
    # Our own search over the same vectors, dense, gives the same.
    _, places = find_nearest(queries.toarray(), vectors.toarray(), 100)
    ours = {
        query.id: [documents[place].id for place in row] for query, row in zip(collection.queries, places, strict=True)
    }
    assert score_rankings(ours, collection.relevant) == pytest.approx(found, abs=2e-4)


# From end to end


@pytest.fixture
def beir(tmp_path):
    """Four documents, one of them blank; the second query is a document itself."""
    folder = tmp_path / "beir"
    folder.mkdir()
    texts = {"d1": "wings lift", "d2": "heat flows in slabs", "d3": "", "d4": "plates"}
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": name, "title": "", "text": text}) + "\n" for name, text in texts.items())
    )
    queries = {"q1": "heat in slabs", "d1": "wings lift"}
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in queries.items())
    )
    judgements = "query-id\tcorpus-id\tscore\nq1\td2\t2\nq1\td3\t1\nd1\td4\t1\n"
    (folder / "qrels.tsv").write_text(judgements)
    return read_collection(folder)


def test_an_encoder_from_end_to_end(beir):
    found = evaluate_search(WordEncoder(), beir, recall_at=(1, 10))
    # q1 finds d2 first, and d3 never, having no text; d1 does not find itself, so that d4 is first or second of two.
    assert found["recall@10"] == (1 / 2 + 1) / 2
    (first, second) = WordEncoder().encode(["heat flows in slabs", "plates"]) @ WordEncoder().encode(["wings lift"])[0]
    rank = 1 if second > first else 2
    assert found["mrr@10"] == (1 + 1 / rank) / 2
    assert found["recall@1"] == (1 / 2 + (rank == 1)) / 2
    assert found["ndcg@10"] == pytest.approx((2 / (2 + 1 / math.log2(3)) + 1 / math.log2(rank + 1)) / 2)


def test_an_index_of_another_encoder(beir, tmp_path):
    index = build(tmp_path / "index", beir.corpus, WordEncoder())
    assert evaluate_index(index, beir, WordEncoder()) == evaluate_search(WordEncoder(), beir)
    with pytest.raises(InputError, match="its vectors are words's"):
        evaluate_index(index, beir, WordEncoder(seed=1))
