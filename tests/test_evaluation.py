"""Judgement: metrics against other libraries and by hand, predictions joined by id, files to the byte.

The prediction files and the evaluation functions are those of the CS 224N default project, season 2024.
"""

import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from batches import TaskData
from datasets import (
    Example,
    SentenceClassificationDataset,
    SentenceClassificationTestDataset,
    SentencePairDataset,
    SentencePairTestDataset,
    Table,
)
from errors import InputError
from evaluation import (
    Predictions,
    absolute_error,
    accuracy,
    decide,
    macro_f1,
    model_eval_multitask,
    model_eval_sst,
    model_eval_test_multitask,
    pearson,
    predict,
    probabilities,
    read_predictions,
    write_predictions,
)
from model import ModelConfig, MultitaskBERT
from tasks import CFIMDB, PARA, SST, STS, leaderboard_score

# Of several lengths, so that evaluation, which takes the longest first, meets them in another order than the file's.
TEXTS = [
    "good",
    "the film was not very good .",
    "why",
    "a dog ran on the mat",
    "bad cat",
    "the film was dull , very dull",
]
IDS = ["0a", "1b", "2c", "3d", "4e", "5f"]
LABELS = {"sst": [4, 1, 2, 3, 0, 0], "para": [1.0, 0.0, 0.0, 1.0, 1.0, 0.0], "sts": [4.6, 0.0, 2.5, 5.0, 1.2, 3.3]}


def table(task, ids=IDS, labels=True):
    seconds = TEXTS[::-1] if task.is_pair else [None] * len(TEXTS)
    values = LABELS[task.name] if labels else [None] * len(TEXTS)
    rows = zip(ids, TEXTS, seconds, values, strict=True)
    return Table(None, [Example(*row, line) for line, row in enumerate(rows, start=2)], [], "")


@pytest.fixture
def model(tiny):
    return MultitaskBERT(ModelConfig.for_tasks(), tiny()).train()


# --- metrics -----------------------------------------------------------------------------------------------------


def test_accuracy_by_hand():
    assert accuracy(np.array([4, 1, 2, 3]), np.array([4, 0, 2, 2])) == 0.5


def test_mean_absolute_error_by_hand():
    assert absolute_error(np.array([4, 1, 2, 3]), np.array([4, 0, 2, 0])) == (0 + 1 + 0 + 3) / 4


def test_macro_f1_by_hand():
    """Class 0: precision 1/2, recall 1: 2/3. Class 1: 1, 1/2: 2/3. Class 2, never predicted: 0."""
    found = macro_f1(np.array([0, 1, 1, 2]), np.array([0, 1, 0, 0]))
    assert found == pytest.approx((2 * (1 / 3) * 1 / (1 / 3 + 1) + 2 / 3 + 0) / 3)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
def test_macro_f1_from_its_definition(pairs):
    labels, predictions = (np.array(side) for side in zip(*pairs, strict=True))
    scores = []
    for kind in set(labels) | set(predictions):
        hits = np.sum((labels == kind) & (predictions == kind))
        scores.append(2 * hits / (np.sum(labels == kind) + np.sum(predictions == kind)))
    assert macro_f1(labels, predictions) == pytest.approx(np.mean(scores))
    assert accuracy(labels, predictions) == pytest.approx(np.mean(labels == predictions))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(-90, 90)), min_size=2, max_size=30))
def test_pearson_from_the_standard_library(pairs):
    labels, predictions = (np.array(side) / 10 for side in zip(*pairs, strict=True))
    if len(set(labels)) == 1 or len(set(predictions)) == 1:
        assert pearson(labels, predictions) is None
    else:
        assert pearson(labels, predictions) == pytest.approx(statistics.correlation(labels, predictions), abs=1e-9)


@pytest.mark.parametrize(
    "labels, predictions",
    [
        ([1.0], [2.0]),
        ([], []),
        ([1.0, 2.0, 3.0], [4.0] * 3),
        ([2.0] * 3, [1.0, 2.0, 3.0]),
        ([1.0, 2.0], [math.nan, 1.0]),
    ],
)
def test_pearson_is_undefined_and_never_nan(labels, predictions):
    assert pearson(np.array(labels), np.array(predictions)) is None


def test_an_undefined_pearson_counts_as_none_at_all():
    """The course's score: the mean of two accuracies and (r + 1) / 2."""
    assert leaderboard_score({"sst": 0.5, "para": 0.7, "sts": None}) == pytest.approx((0.5 + 0.7 + 0.5) / 3)
    assert leaderboard_score({"sst": 0.5, "para": 0.7, "sts": 0.0}) == pytest.approx((0.5 + 0.7 + 0.5) / 3)
    assert leaderboard_score({"sst": 0.5, "para": 0.7, "sts": 0.8}) == pytest.approx((0.5 + 0.7 + 0.9) / 3)


def test_what_is_decided_from_outputs():
    assert decide(SST, np.array([[0.0, 3.0, -1.0, 2.0, 2.5], [9.0, 0.0, 0.0, 0.0, 0.0]])).tolist() == [1, 0]
    assert decide(PARA, np.array([-0.1, 0.0, 0.1])).tolist() == [0.0, 1.0, 1.0]
    assert decide(STS, np.array([-3.5, 7.25])).tolist() == [-3.5, 7.25]


def test_probabilities_from_outputs():
    log_3 = np.log(3)
    assert probabilities(PARA, np.array([0.0, log_3])).tolist() == [[0.5, 0.5], pytest.approx([0.25, 0.75])]
    assert probabilities(SST, np.array([[log_3, 0, 0, 0, 0]])).tolist() == [pytest.approx([3 / 7] + [1 / 7] * 4)]
    assert probabilities(STS, np.array([-3.5, 7.25])) is None
    ordered = SST.with_loss("coral")
    assert probabilities(ordered, np.array([[log_3, 0.0, 0.0, -log_3]])).tolist() == [
        pytest.approx([0.25, 0.25, 0, 0.25, 0.25])
    ]


# --- predictions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [SST, PARA, STS], ids=lambda task: task.name)
@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_predictions_stand_in_the_files_order(model, tiny_tokenizer, task, batch_size):
    """Each row's answer is the one it gets alone, although the batches are in another order."""
    data = TaskData(task, table(task), tiny_tokenizer)
    order = [data.ids[row] for rows in data.chunks(batch_size) for row in rows]
    assert order != IDS and sorted(order) == IDS
    found = predict(model, data, batch_size)
    assert found.ids == IDS
    model.eval()
    with torch.no_grad():
        for row, outputs in enumerate(found.outputs):
            alone = model.outputs(data.batch(np.array([row])))[0]
            np.testing.assert_allclose(outputs, alone.numpy(), atol=1e-5)


def test_predicting_leaves_the_model_as_it_was(model, tiny_tokenizer):
    data = TaskData(SST, table(SST), tiny_tokenizer)
    before = torch.get_rng_state()
    found = predict(model, data)
    assert model.training and model.heads["sst"].training
    assert torch.equal(torch.get_rng_state(), before)
    again = predict(model.eval(), data)
    assert not model.training
    np.testing.assert_array_equal(found.outputs, again.outputs)


@pytest.mark.parametrize("task", [SST, PARA, STS], ids=lambda task: task.name)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_answer_that_is_not_finite_is_none(tiny, tiny_tokenizer, task, value):
    """Any class could be made of it, and a prediction file would say so."""
    model = MultitaskBERT(ModelConfig.for_tasks(), tiny())
    real = model.outputs
    model.outputs = lambda batch: torch.where(
        torch.tensor([i in ("1b", "5f") for i in batch.ids]).view(-1, *[1] * (real(batch).dim() - 1)),
        value,
        real(batch),
    )
    with pytest.raises(InputError, match="of 2 of 6 rows the model's answer is not finite .*1b.*5f.*try a lower --lr"):
        predict(model, TaskData(task, table(task), tiny_tokenizer))


def test_scores_and_loss_of_predictions(model, tiny_tokenizer):
    data = TaskData(SST, table(SST), tiny_tokenizer)
    found = predict(model, data)
    labels = torch.tensor(LABELS["sst"])
    assert found.scores == {
        "accuracy": accuracy(labels.numpy(), found.values),
        "macro_f1": macro_f1(labels.numpy(), found.values),
        "mean_absolute_error": np.abs(labels.numpy() - found.values).mean(),
    }
    assert found.score == found.scores["accuracy"]
    assert found.loss == pytest.approx(torch.nn.functional.cross_entropy(torch.tensor(found.outputs), labels).item())


def test_without_labels_there_are_no_scores(model, tiny_tokenizer):
    found = predict(model, TaskData(STS, table(STS, labels=False), tiny_tokenizer))
    assert (found.loss, found.scores, found.score) == (None, {}, None)


# --- files -------------------------------------------------------------------------------------------------------

# As the course writes them, to the byte: blanks around the tab, a blank at every line's end, one comma with blanks.
FILES = [
    (SST, np.array([3, 0]), b"id \t Predicted_Sentiment \na1 , 3 \nb2 , 0 \n"),
    (PARA, np.array([1.0, 0.0]), b"id \t Predicted_Is_Paraphrase \na1 , 1.0 \nb2 , 0.0 \n"),
    (STS, np.array([2.5, -0.125]), b"id \t Predicted_Similiary \na1 , 2.5 \nb2 , -0.125 \n"),
    (CFIMDB, np.array([1, 0]), b"id \t Predicted_Sentiment \na1 , 1 \nb2 , 0 \n"),
]
every_file = pytest.mark.parametrize("task, values, content", FILES, ids=[task.name for task, *_ in FILES])


@every_file
def test_files_are_the_courses_to_the_byte(tmp_path, task, values, content):
    path = tmp_path / "predictions" / "out.csv"
    write_predictions(path, Predictions(task, ["a1", "b2"], values, values, None, {}))
    assert path.read_bytes() == content
    assert read_predictions(path, task) == {"a1": values[0], "b2": values[1]}


def test_every_task_of_the_course_is_covered():
    assert {task.name for task, *_ in FILES} == {task.name for task in (SST, PARA, STS, CFIMDB)}


HEADER = "id \t Predicted_Sentiment \n"


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "line 1: the header is ''"),
        ("id\tPredicted_Sentiment\na , 1 \n", "line 1: the header is 'id\\\\tPredicted_Sentiment', wanted"),
        (HEADER.replace("\t", ","), "line 1: the header is"),
        (HEADER + "a , 1 \nb , 2 ", "line 3: the last line has no end"),
        (HEADER + "a , 1 \nb,2 \n", "line 3: 'b,2 ', wanted 'id , value '"),
        (HEADER + "a , 1 \n\nb , 2 \n", "line 3: '', wanted"),
        (HEADER + "a , 1\n", "line 2: 'a , 1', wanted"),
        (HEADER + "a , 1 \na , 1 \n", "line 3: id 'a' for the second time"),
        (HEADER + "a , 5 \n", "line 2: '5', wanted a whole number from 0 to 4"),
        (HEADER + "a , 3.0 \n", "line 2: '3.0', wanted a whole number"),
        (HEADER + "a , -1 \n", "line 2: '-1', wanted"),
        (HEADER + "a , nan \n", "line 2: 'nan', wanted"),
        (HEADER.replace("\n", "\r\n") + "a , 1 \r\n", "carriage returns"),
    ],
)
def test_a_file_that_is_not_so_is_refused_with_its_line(tmp_path, content, message):
    path = tmp_path / "out.csv"
    path.write_bytes(content.encode())
    with pytest.raises(InputError, match=message) as caught:
        read_predictions(path, SST)
    assert str(caught.value).startswith(f"{path}")


def test_other_refusals(tmp_path):
    path = tmp_path / "out.csv"
    with pytest.raises(InputError, match="cannot read .*out.csv: No such file"):
        read_predictions(path, SST)
    path.write_bytes(HEADER.encode() + b"a , 1 \n\xff , 2 \n")
    with pytest.raises(InputError, match="line 3: not UTF-8"):
        read_predictions(path, SST)
    path.write_text("id \t Predicted_Similiary \na , inf \n")
    with pytest.raises(InputError, match="line 2: 'inf', wanted a finite number"):
        read_predictions(path, STS)


# --- the course's functions --------------------------------------------------------------------------------------


@pytest.fixture
def loaders(tiny_tokenizer, monkeypatch):
    """loaders(labels, order) -> the course's three DataLoaders; `order` is that of the rows in the batches."""
    monkeypatch.setattr("tokenizer.BertTokenizer.from_pretrained", lambda *_, **__: tiny_tokenizer)

    def loaders(labels=True, order=(3, 0, 5, 1, 4, 2), ids=IDS):
        found = []
        for task in (SST, PARA, STS):
            rows = [
                tuple(value for value in (e.sentence, e.second, e.label, e.id) if value is not None)
                for e in table(task, ids, labels)
            ]
            kinds = {
                (False, False): SentenceClassificationTestDataset,
                (False, True): SentenceClassificationDataset,
                (True, False): SentencePairTestDataset,
                (True, True): SentencePairDataset,
            }
            dataset = kinds[task.is_pair, labels](rows, None)
            found.append(DataLoader(dataset, batch_size=2, sampler=list(order), collate_fn=dataset.collate_fn))
        return found

    return loaders


def test_the_courses_functions_give_what_predict_gives(model, loaders, tiny_tokenizer):
    """In the 2024 order: sentiment, paraphrase, STS, each as score, predictions, ids; joined by id."""
    device = torch.device("cpu")
    found = model_eval_multitask(*loaders(), model, device)
    tested = model_eval_test_multitask(*loaders(labels=False), model, device)
    assert model.training
    for number, task in enumerate((SST, PARA, STS)):
        score, predictions, ids = found[3 * number : 3 * number + 3]
        wanted = predict(model, TaskData(task, table(task), tiny_tokenizer))
        assert ids == ["3d", "0a", "5f", "1b", "4e", "2c"]
        by_id = dict(zip(wanted.ids, wanted.values, strict=True))
        np.testing.assert_allclose(predictions, [by_id[i] for i in ids], atol=1e-5)
        assert score == pytest.approx(wanted.score, abs=1e-6)
        assert tested[2 * number : 2 * number + 2] == (predictions, ids)


@pytest.mark.parametrize("loss", ["coral", "corn", "squared_emd"])
def test_every_way_to_predict_decides_as_the_head_s_loss_wants(loss, loaders, tiny, tiny_tokenizer, tmp_path):
    """The course's functions, a prediction file and `predict`, whose answers the outputs' argmax would not be."""
    torch.manual_seed(2)
    model = MultitaskBERT(ModelConfig.for_tasks(losses={"sst": loss}, hidden_dropout_prob=0.0), tiny()).eval()
    if loss == "coral":
        model.heads["sst"].output.weight.data *= 4  # far enough apart for several classes
    found = predict(model, TaskData(SST, table(SST), tiny_tokenizer))
    data = TaskData(SST, table(SST), tiny_tokenizer)
    with torch.no_grad():
        outputs = torch.cat([model.outputs(data.batch(rows)) for rows in data.chunks(64)])
    if loss == "squared_emd":
        wanted = {tuple(row): int(np.argmax(row)) for row in outputs.numpy()}
    else:
        above = torch.sigmoid(outputs)
        above = above.cumprod(dim=1) if loss == "corn" else above
        wanted = {tuple(row): n for row, n in zip(outputs.numpy(), (above > 0.5).sum(dim=1).tolist(), strict=True)}
        assert [wanted[key] for key in wanted] != outputs.argmax(dim=1).tolist()
    assert len(set(found.values.tolist())) > 1
    assert sorted(found.values.tolist()) == sorted(wanted.values())
    by_id = dict(zip(found.ids, found.values.tolist(), strict=True))
    write_predictions(tmp_path / "sst.csv", found)
    assert read_predictions(tmp_path / "sst.csv", SST) == by_id
    device = torch.device("cpu")
    _, _, predictions, _, _, ids = model_eval_sst(loaders()[0], model, device)
    assert dict(zip(ids, predictions, strict=True)) == by_id
    assert dict(zip(*model_eval_multitask(*loaders(), model, device)[2:0:-1], strict=True)) == by_id
    assert dict(zip(*model_eval_test_multitask(*loaders(labels=False), model, device)[1::-1], strict=True)) == by_id


@pytest.mark.parametrize("shape", [lambda x: x.unsqueeze(dim=1), torch.squeeze], ids=["a column", "squeezed"])
def test_a_single_logit_a_pair_in_other_shapes(model, loaders, shape):
    """(B, 1), as a linear layer gives it, and what squeezing leaves of it: () for the last batch, of one pair."""
    order, device = (3, 0, 5, 1, 4), torch.device("cpu")
    wanted = model_eval_multitask(*loaders(order=order), model, device)
    tested = model_eval_test_multitask(*loaders(labels=False, order=order), model, device)
    assert len(set(wanted[7])) > 2  # so that an answer in the wrong place is seen
    paraphrase, similarity = model.predict_paraphrase, model.predict_similarity
    model.predict_paraphrase = lambda *inputs: shape(paraphrase(*inputs))
    model.predict_similarity = lambda *inputs: shape(similarity(*inputs))
    assert model_eval_multitask(*loaders(order=order), model, device) == wanted
    assert model_eval_test_multitask(*loaders(labels=False, order=order), model, device) == tested


def test_sst_alone(model, loaders):
    found = model_eval_sst(loaders()[0], model, torch.device("cpu"))
    score, f1, predictions, labels, sentences, ids = found
    order = [3, 0, 5, 1, 4, 2]
    assert ids == [IDS[i] for i in order]
    assert sentences == [TEXTS[i] for i in order]
    assert labels == [LABELS["sst"][i] for i in order]
    assert score == accuracy(np.array(labels), np.array(predictions))
    assert f1 == macro_f1(np.array(labels), np.array(predictions))


def test_an_undefined_correlation_is_nan_for_the_courses_callers(model, loaders):
    """They print it with three digits and compare it, which None would not bear."""
    score = model_eval_multitask(*loaders(order=[2]), model, torch.device("cpu"))[6]
    assert f"{score:.3f}" == "nan" and not score > 0.5


def test_no_gradients_are_kept(model, loaders):
    """None is asked for, so that a long evaluation needs no memory for them."""
    asked = []
    model.predict_sentiment = lambda ids, mask: asked.append(torch.is_grad_enabled()) or torch.zeros(len(ids), 5)
    model_eval_sst(loaders()[0], model, torch.device("cpu"))
    assert asked == [False] * 3 and torch.is_grad_enabled()


def test_an_id_that_comes_twice_is_refused(model, loaders):
    with pytest.raises(InputError, match="sst: id '0a' comes twice from the loader"):
        model_eval_sst(loaders(ids=["0a", "0a", *IDS[2:]])[0], model, torch.device("cpu"))
