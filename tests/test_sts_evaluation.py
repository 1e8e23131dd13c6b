"""The STS evaluator: published golden values, aggregation by hand, what is undefined, and the command itself.

Golden values: Spearman of the token-set Jaccard similarity on STS12's files as SentEval tokenises them.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics.pairwise import cosine_similarity
from test_data_check import write
from test_sts_data import benchmark, row, sick, year

import contrastive
import sts_evaluation
from errors import InputError
from poolers import make_pooler
from sentence_encoder import SentenceEncoder
from sts_data import SEVEN, ScoredPairs, SimilaritySet, read_sets
from sts_evaluation import Embedded, add_options, evaluate, run, score_set, spearman_of
from tasks import SST, STS

ROOT = Path(__file__).resolve().parent.parent


class Fake:
    """An encoder whose vectors are looked up, or else made from how often a text has each letter."""

    name, pooler_name, max_length, fingerprint, dimension = "fake", "letters", 32, "f" * 64, 26

    def __init__(self, **known):
        self.known, self.asked = known, []

    def encode(self, texts, batch_size=32, normalize=True, progress=None):
        self.asked += texts
        letters = [self.known.get(text, [1 + i * text.count(chr(96 + i)) for i in range(1, 27)]) for text in texts]
        if progress is not None:
            progress(len(texts))
        return np.array(letters, dtype=np.float32).reshape(len(texts), -1)


def pairs(*rows):
    first, second, scores = zip(*rows, strict=True)
    return ScoredPairs(list(first), list(second), np.array(scores, dtype=np.float64))


def jaccard(first, second):
    sets = [({*a.split()}, {*b.split()}) for a, b in zip(first, second, strict=True)]
    return np.array([len(a & b) / len(a | b) for a, b in sets])


# ---------------------------------------------------------------------------------------------------------------------
# Correlations


@pytest.mark.real_data
def test_golden_values(real_data):
    (data,) = read_sets([real_data / "sts" / "senteval_tokenised"])
    found = score_set(data, jaccard)
    assert found["pairs"] == 3108
    assert {how: round(value, 4) for how, value in found["spearman"].items()} == {
        "all": 0.4304,
        "mean": 0.5152,
        "wmean": 0.5243,
    }


def test_aggregation_by_hand():
    # Similarities are given: within x they rank as the gold does, within y the other way round.
    subsets = {
        "x": pairs(("1", "", 1), ("2", "", 2), ("3", "", 3)),
        "y": pairs(("9", "", 4), ("8", "", 5)),
    }
    found = score_set(SimilaritySet("STS13", "there", subsets), lambda first, second: np.array([*map(float, first)]))
    assert found["subsets"]["x"]["spearman"] == pytest.approx(1)
    assert found["subsets"]["y"]["spearman"] == pytest.approx(-1)
    assert found["spearman"]["mean"] == pytest.approx(0)
    assert found["spearman"]["wmean"] == pytest.approx((3 * 1 + 2 * -1) / 5)
    assert found["spearman"]["all"] == pytest.approx(0.9)  # ranks 1 2 3 4 5 and 1 2 3 5 4: 1 - 6 * 2 / 120
    # Distances from the means 3 and 4.6: their products add up to 21, their squares to 10 and 53.2.
    assert found["pearson"]["all"] == pytest.approx(21 / np.sqrt(10 * 53.2))
    assert found["pairs"] == 5 and found["undefined"] == []


def test_as_scipy_and_scikit_learn_have_it():
    chance = np.random.default_rng(0)
    known = {str(i): chance.normal(size=6) for i in range(60)}
    data = pairs(*((str(i), str(i + 30), chance.uniform(0, 5)) for i in range(30)))
    x, y = (np.array([known[text] for text in side]) for side in (data.first, data.second))
    cosines = cosine_similarity(x, y).diagonal()
    assert spearman_of(Fake(**known), data) == pytest.approx(spearmanr(data.scores, cosines).statistic)
    embedded = Embedded(Fake(**known), [*data.first, *data.second])
    found = score_set(SimilaritySet("STS-B-dev", "there", {"dev": data}), embedded.similarity)
    assert found["pearson"]["all"] == pytest.approx(pearsonr(data.scores, cosines).statistic, abs=1e-6)
    assert found["pearson"]["all"] == found["pearson"]["mean"] == found["pearson"]["wmean"]


def test_the_length_of_a_vector_does_not_count():
    known = {"a": [1, 0], "b": [5, 5], "c": [0, 0.1], "d": [3, -4]}
    data = pairs(("a", "b", 3), ("a", "c", 2), ("d", "c", 0), ("b", "c", 3))
    scaled = {text: [7 * i * x for x in vector] for i, (text, vector) in enumerate(known.items(), 1)}
    assert spearman_of(Fake(**known), data) == pytest.approx(spearman_of(Fake(**scaled), data))


def test_each_text_is_encoded_once():
    encoder = Fake()
    spearman_of(encoder, pairs(("abc", "bcd", 1), ("bcd", "abc", 2), ("abc", "abc", 5)))
    assert encoder.asked == ["abc", "bcd"]


# ---------------------------------------------------------------------------------------------------------------------
# What has no correlation


@pytest.mark.parametrize("wobble", (0, 1e-4))
def test_constant_embeddings(wobble):
    data = pairs(("a", "b", 3), ("c", "d", 2), ("e", "f", 0))
    known = {text: [1 + wobble * i, 2, 3] for i, text in enumerate("abcdef")}
    assert spearman_of(Fake(**known), data) is None
    report = evaluate(Fake(**known), [SimilaritySet("STS-B-dev", "there", {"dev": data})], [])
    found = report["similarity"]["STS-B-dev"]
    assert found["undefined"] == ["STS-B-dev: no correlation, since the model gives every pair the same similarity"]
    assert found["spearman"] == found["pearson"] == {"all": None, "mean": None, "wmean": None}
    text = "\n".join(sts_evaluation.describe({"aggregation": "all", **report}))
    assert "undefined  undefined" in text and "nan" not in text.lower() and found["undefined"][0] in text
    json.dumps(report, allow_nan=False)


def test_only_the_subset_without_one_is_named():
    subsets = {"x": pairs(("a", "ab", 1), ("b", "c", 2)), "y": pairs(("abc", "abd", 2), ("a", "abe", 2))}
    embedded = Embedded(Fake(), ["a", "ab", "b", "c", "abc", "abd", "abe"])
    found = score_set(SimilaritySet("STS13", "there", subsets), embedded.similarity)
    assert found["undefined"] == ["STS13 y: no correlation, since every pair has the same gold score"]
    assert found["spearman"]["all"] is not None and found["spearman"]["mean"] is found["spearman"]["wmean"] is None
    assert found["subsets"]["y"]["pearson"] is None and found["subsets"]["x"]["pearson"] == pytest.approx(-1)


def test_one_pair():
    found = score_set(SimilaritySet("STS-B-dev", "there", {"dev": pairs(("a", "b", 1))}), jaccard)
    assert found["undefined"] == ["STS-B-dev: no correlation, since there is one pair"]


@pytest.mark.parametrize("value", (np.nan, np.inf))
def test_vectors_that_are_not_finite(value):
    with pytest.raises(InputError, match="fake: 1 of 3 embeddings are not finite, the first of 'b': .*choose another"):
        spearman_of(Fake(a=[1, 2], b=[1, value], c=[0, 1]), pairs(("a", "b", 1), ("a", "c", 2)))


def test_a_vector_of_zeros_is_similar_to_nothing():
    embedded = Embedded(Fake(a=[0, 0], b=[1, 2]), ["a", "b"])
    assert embedded.similarity(["a", "b", "a"], ["b", "b", "a"]).tolist() == [0, pytest.approx(1), 0]


# ---------------------------------------------------------------------------------------------------------------------
# The report


def test_the_space_is_that_of_the_distinct_sentences():
    known = {"a": [1, 0, 0], "b": [0, 2, 0], "c": [-3, 0, 0]}
    data = pairs(("a", "b", 4.5), ("b", "c", 4.0), ("a", "b", 1.0), ("c", "a", 5.0))
    found = evaluate(Fake(**known), [SimilaritySet("STS-B-dev", "there", {"dev": data})], [])["space"]
    space = found["STS-B-dev"]
    assert (space["sentences"], space["similar_pairs"]) == (3, 2)  # above 4, not from 4 on
    assert space["alignment"] == pytest.approx((2 + 4) / 2) and space["mean_cosine"] == pytest.approx(-1 / 3)
    assert space["uniformity"] == pytest.approx(np.log((2 * np.exp(-4) + np.exp(-8)) / 3))
    assert space["variance_in_top"] == {"1": pytest.approx(0.75), "10": pytest.approx(1)}


def all_seven(folder):
    for name in SEVEN[:5]:
        year(folder / name, name)
    rows = [row(str(i), f"text {'ab' * i}", "text bc") for i in range(6)]
    benchmark(folder / "sts-test.csv", rows)
    sick(folder / "SICK_test_annotated.txt", [f"{i}\tA {'x' * i}\tB yx\t{i}\tNEUTRAL" for i in range(1, 6)])
    return folder


def test_the_average_is_of_the_seven_that_papers_report(tmp_path):
    sets = read_sets([all_seven(tmp_path)])
    report = {"aggregation": "wmean", **evaluate(Fake(), sets, [])}
    assert tuple(report["similarity"]) == SEVEN
    for how in ("all", "mean", "wmean"):
        values = [found["spearman"][how] for found in report["similarity"].values()]
        assert report["average"]["spearman"][how] == pytest.approx(np.mean(values))
    lines = sts_evaluation.describe(report)
    assert f"{100 * report['average']['spearman']['wmean']:.2f}" in next(li for li in lines if "average of" in li)
    assert "weighted by their pairs (wmean)" in lines[0]
    fewer = {"aggregation": "all", **evaluate(Fake(), sets[1:], [])}
    assert fewer["average"]["pearson"] == {"all": None, "mean": None, "wmean": None}
    assert any("without STS12: no average" in line for line in sts_evaluation.describe(fewer))


# ---------------------------------------------------------------------------------------------------------------------
# The command, with a tiny encoder


@pytest.fixture
def model(tmp_path, tiny, tiny_tokenizer):
    folder = tmp_path / "model"
    bert = tiny()
    pooler = make_pooler("mean", bert.config.hidden_size, bert.config.num_hidden_layers)
    SentenceEncoder(bert, pooler, tiny_tokenizer, 24).save_pretrained(folder)
    return folder


@pytest.fixture
def ask(model):
    def ask(*arguments):
        parser = argparse.ArgumentParser()
        add_options(parser)
        said = []
        status = run(parser.parse_args([str(model), "--device", "cpu", *map(str, arguments)]), said.append)
        return status, "\n".join(said)

    return ask


def test_the_command(tmp_path, ask, model):
    data = tmp_path / "data"
    benchmark(data / "sts-dev.csv", [row("1", "the cat sat", "bad film"), row("3", "a dog", "the dog ran"), row("5")])
    for split in ("train", "dev"):
        write(data, SST, split, [("a good film", 3), ("bad , bad film", 1)] * 4)
    status, said = ask("--data", data, "--transfer", "sst", "--json", tmp_path / "out.json")
    assert status == 0
    report = json.loads((tmp_path / "out.json").read_text())
    encoder = SentenceEncoder.from_pretrained(model)
    assert report["model"]["fingerprint"] == encoder.fingerprint and report["model"]["pooler"] == "mean"
    ours = report["similarity"]["STS-B-dev"]["spearman"]["all"]
    assert ours == pytest.approx(spearman_of(encoder, read_sets([data])[0].subsets["dev"]))
    assert f"{100 * ours:.2f}" in said and "STS-B-dev" in said and "without STS12, STS13" in said
    assert report["transfer"]["sst"]["score"] == 1.0 and "accuracy      1.000      0.500" in said
    assert ask("--data", data, "--pooler", "max", "--sets", "STS-B-dev")[0] == 0


def test_on_the_bundled_sample_from_the_command_line(model, capsys):
    """The README's command, but for the model and the folder, which it leaves to what is set up."""
    data = str(ROOT / "data" / "sample")
    asked = ["evaluate", str(model), "--data", data, "--device", "cpu", "--sets", "course-dev", "--transfer", "sst"]
    assert contrastive.main(asked) == 0
    said = capsys.readouterr().out
    assert "course-dev" in said and "accuracy" in said and "nan" not in said
    assert contrastive.main(["evaluate", str(model), "--data", data, "--sets", "STS12"]) == 1
    failed = capsys.readouterr()
    assert failed.out == "" and failed.err.startswith("error: ") and failed.err.count("\n") == 1
    assert "no STS12 there; found course-dev, course-train" in failed.err


def test_the_course_s_data_alone(tmp_path, ask):
    write(tmp_path, STS, "dev", [("the cat sat", "bad film", 1), ("a dog", "the dog ran", 4.5), ("who", "why", 3)])
    assert "course-dev" in ask("--data", tmp_path)[1]


def test_pairs_that_a_model_was_selected_by_are_left_out_and_counted(tmp_path, ask):
    """By letters and digits, whoever tokenised the sentences; a pair goes if one of its two is shared."""
    data = tmp_path / "data"
    benchmark(data / "sts-dev.csv", [row("1", "The cat sat.", "bad film"), row("3", "a dog", "the dog ran"),
              row("2", "who ran ?", "the mat"), row("4", "dull", "very dull")])  # fmt: skip
    (tmp_path / "seen.txt").write_text("the cat sat\nDOG\nwhy\n")
    (tmp_path / "more").mkdir()
    write(tmp_path / "more", STS, "dev", [("x", "Who ran?", 1)])
    asked = ("--data", data, "--exclude", tmp_path / "seen.txt", tmp_path / "more", "--json", tmp_path / "out.json")
    assert "left out, since they hold a sentence of --exclude: 2 of STS-B-dev" in ask(*asked)[1]
    report = json.loads((tmp_path / "out.json").read_text())
    found = report["similarity"]["STS-B-dev"]
    assert (found["pairs"], found["left_out"], report["space"]["STS-B-dev"]["sentences"]) == (2, 2, 4)
    assert report["exclude"] == [str(tmp_path / "seen.txt"), str(tmp_path / "more")]
    (tmp_path / "seen.txt").write_text("a dog\nvery dull\nTHE cat sat\n")
    with pytest.raises(InputError, match="sts-dev.csv: every pair of STS-B-dev dev holds a sentence that --exclude"):
        ask(*asked)
    assert "left out" not in ask("--data", data)[1]


@pytest.mark.parametrize(
    "arguments, said",
    (
        (("--exclude", "nowhere"), "cannot read nowhere"),
        (("--sets", "STS99"), "'STS99' is not known; known: STS12"),
        (("--sets", "STS12"), "no STS12 there; found none"),
        (("--transfer", "cola"), "no CoLA/train.tsv and CoLA/dev.tsv there"),
        (("--batch_size", "0"), "--batch_size 0: wanted 1 or more"),
        (("--max_length", "1"), "max_length 1: wanted"),
        (("--device", "abacus"), "--device abacus: not a device"),
        (("--json", "/proc/nowhere/x.json"), "cannot write /proc/nowhere/x.json"),
        ((), "none of STS12, STS13, .* there: name folders that hold some with --data"),
    ),
)
def test_what_cannot_be_asked(tmp_path, ask, arguments, said):
    data = tmp_path / "data"
    data.mkdir()
    if arguments and arguments[0] in ("--max_length", "--device", "--exclude"):
        benchmark(data / "sts-dev.csv", [row()])
    with pytest.raises(InputError, match=said):
        ask("--data", data, *arguments)
