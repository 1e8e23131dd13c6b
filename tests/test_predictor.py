"""A model asked in plain strings answers as it does for the course's files, and says what the numbers mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from batches import TaskData
from datasets import Example, Table, read_examples
from errors import InputError
from evaluation import predict, probabilities
from files import write_json
from model import ModelConfig, MultitaskBERT
from predictor import Predictor, best_folders
from similarity_scale import Scale, write_scales
from tasks import PARA, SST, STS

PAIRS = [("the cat sat", "a cat ran"), ("good film", "bad film"), ("who", "the dog sat on the mat")]


def save(folder, tiny, tiny_tokenizer, *names, seed=0, **options):
    torch.manual_seed(seed)
    model = MultitaskBERT(ModelConfig.for_tasks(names, **options), tiny(seed))
    model.save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return model.eval()


@pytest.fixture
def run(tmp_path, tiny, tiny_tokenizer):
    """A run of the course's three tasks, with a scale for similarity."""
    folder = tmp_path / "run"
    save(folder / "best", tiny, tiny_tokenizer, "sst", "para", "sts")
    write_scales(folder / "best", {"sts": Scale(0.01, 2.0, 3, 0.5)})
    write_json(folder / "config.json", {"command": "multitask_classifier.py"})
    return folder


def test_answers_are_those_for_a_file(run, tmp_path, tiny_tokenizer):
    """A file as the course writes it, and the same texts as anybody does."""
    lines = ["\tid\tsentence", "0\ta\tThe film was n't dull .", "1\tb\ta cat , a dog", "2\tc\tbad"]
    (tmp_path / "sst.csv").write_text("\n".join(lines) + "\n")
    rows = TaskData(SST, read_examples(tmp_path / "sst.csv"), tiny_tokenizer)
    wanted = predict(MultitaskBERT.from_pretrained(run / "best"), rows)
    answers = MultitaskBERT.load(run).predict_sentiment(["The film wasn't dull.", "A cat, a dog", "Bad"])
    assert [answer.value for answer in answers] == wanted.values.tolist()
    found = np.array([answer.probabilities for answer in answers])
    np.testing.assert_allclose(found, probabilities(SST, wanted.outputs), atol=1e-6)
    for answer in answers:
        assert answer.words == SST.label_words[answer.value]
        assert answer.probability == max(answer.probabilities) and sum(answer.probabilities) == pytest.approx(1)


def test_pairs_have_a_probability_and_a_place_on_the_scale(run):
    model = MultitaskBERT.load(run / "best")
    firsts, seconds = zip(*PAIRS, strict=True)
    ids = model.tokenizers["para"](list(firsts), padding=True, return_tensors="pt")
    others = model.tokenizers["para"](list(seconds), padding=True, return_tensors="pt")
    given = (ids["input_ids"], ids["attention_mask"], others["input_ids"], others["attention_mask"])
    with torch.no_grad():
        logits = model.models["para"].predict_paraphrase(*given)
        scores = model.models["sts"].predict_similarity(*given)
    for answer, logit in zip(model.predict_paraphrase(firsts, seconds), logits, strict=True):
        assert answer.probabilities[1] == pytest.approx(logit.sigmoid().item(), abs=1e-5)
        assert answer.value == (logit >= 0) and answer.words == PARA.label_words[answer.value]
    for answer, score in zip(model.predict_similarity(firsts, seconds), scores, strict=True):
        assert answer.value == pytest.approx(min(5, max(0, 0.01 * score.item() + 2)), abs=1e-4)
        assert answer.words == "from 0 to 5" and answer.probability is None


def test_without_a_scale_a_score_is_as_it_is(tmp_path, tiny, tiny_tokenizer):
    model = save(tmp_path, tiny, tiny_tokenizer, "sts")
    answer = Predictor({"sts": model}, {"sts": tiny_tokenizer}).predict_similarity("a cat", "a dog")
    assert answer.words == "on no scale" and abs(answer.value) > 0


def test_one_text_is_one_answer_and_none_is_none(run):
    model = MultitaskBERT.load(run)
    alone, listed = model.predict_sentiment("a good film"), model.predict_sentiment(["a good film", "bad"])[0]
    assert alone.probabilities == pytest.approx(listed.probabilities, abs=1e-6)
    assert model.predict_similarity([], []) == []
    model.predict_sentiment(["film " * 40, "bad"])
    assert model.truncated == 1


def test_a_pair_read_as_one_sequence(tmp_path, tiny, tiny_tokenizer):
    model = save(tmp_path, tiny, tiny_tokenizer, "mrpc")
    predictor = Predictor.load(tmp_path)
    answers = predictor.predict("mrpc", ["a cat", "a cat"], ["a dog", "who ran"])
    assert answers[0].words in ("no paraphrase", "paraphrase")
    batch = tiny_tokenizer(["a cat"], ["a dog"], return_tensors="pt")
    with torch.no_grad():
        states = model.bert(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])["last_hidden_state"]
        logits = model.heads["mrpc"].output(states.mean(dim=1))
    assert answers[0].probabilities == pytest.approx(logits.softmax(dim=1)[0].tolist(), abs=1e-5)


def test_pairs_encoded_both_ways_are_answered_as_for_a_file(tmp_path, tiny, tiny_tokenizer):
    options = {"pair_encoding": "both", "pair_score": "cosine", "attention": {"para": 0, "sts": 0}}
    model = save(tmp_path, tiny, tiny_tokenizer, "para", "sts", **options)
    examples = [Example(str(i), *pair, None, i) for i, pair in enumerate(PAIRS)]
    predictor, (firsts, seconds) = Predictor.load(tmp_path), zip(*PAIRS, strict=True)
    for task in (PARA, STS):
        rows = TaskData(task, Table(tmp_path, examples, [], ""), tiny_tokenizer, pair_encoding="both")
        wanted = predict(model, rows)
        assert [answer.value for answer in predictor.predict(task.name, firsts, seconds)] == pytest.approx(
            wanted.values
        )


@pytest.mark.parametrize("loss", ("coral", "corn", "squared_emd"))
def test_losses_of_ordered_classes_have_probabilities_too(tmp_path, tiny, tiny_tokenizer, loss):
    save(tmp_path, tiny, tiny_tokenizer, "sst", losses={"sst": loss})
    answer = Predictor.load(tmp_path).predict_sentiment("a good film")
    assert len(answer.probabilities) == 5 and sum(answer.probabilities) == pytest.approx(1)
    assert answer.value in range(5)


def test_a_run_of_separate_models(tmp_path, tiny, tiny_tokenizer):
    models = {
        name: save(tmp_path / name / "best", tiny, tiny_tokenizer, name, seed=i)
        for i, name in enumerate(("sst", "para", "sts"), start=1)
    }
    write_json(tmp_path / "config.json", {"command": "multitask_classifier.py"})
    predictor = Predictor.load(tmp_path)
    assert [task.name for task in predictor.tasks] == ["sst", "para", "sts"]
    for name, model in models.items():
        assert torch.equal(predictor.models[name].heads[name].output.weight, model.heads[name].output.weight)
    assert list(Predictor.load(tmp_path, tasks=["para"]).models) == ["para"]


def test_what_it_looks_at_is_said_of_the_text_as_it_was_read(run):
    (found,) = MultitaskBERT.load(run).explain("sst", "The film wasn't DULL.")
    assert [word for word, _ in found][:3] == ["[CLS]", "the", "film"] and "dull" in found.tokens
    first, _ = MultitaskBERT.load(run).explain("para", "a cat?", "the dog ran")
    assert first.tokens == ("[CLS]", "the", "dog", "ran", "[SEP]")


def test_what_cannot_be_asked(run, tmp_path):
    model = MultitaskBERT.load(run)
    for ask, message in (
        (lambda: model.predict("cola", "a cat"), "no head for cola; it has sst, para, sts"),
        (lambda: model.predict("sst", "a cat", "a dog"), "sst wants one sentence"),
        (lambda: model.predict("sts", "a cat"), "sts wants two sentences"),
        (lambda: model.predict_sentiment(["a cat", "  "]), "text 2 of 2 is blank"),
        (lambda: Predictor.load(run, tasks=["cola"]), "no head for cola"),
        (lambda: Predictor.load(tmp_path / "nowhere"), "no run there"),
    ):
        with pytest.raises(InputError, match=message):
            ask()
    with pytest.raises(ValueError, match="2 first texts but 1 second ones"):
        model.predict_similarity(["a", "b"], ["c"])


@pytest.mark.parametrize("config", ({"command": "contrastive.py"}, {"minbert": {"sentence_encoder": {}}}, [], {}))
def test_a_folder_without_heads_is_refused(tmp_path, config):
    write_json(tmp_path / "config.json", config)
    with pytest.raises(InputError, match="no model with heads in it"):
        best_folders(tmp_path)


def test_the_course_s_methods_take_ids_as_before(run, tiny_tokenizer):
    model = MultitaskBERT.from_pretrained(run / "best")
    batch = tiny_tokenizer(["a cat", "the dog ran"], padding=True, return_tensors="pt")
    assert model.predict_sentiment(batch["input_ids"], batch["attention_mask"]).shape == (2, 5)
