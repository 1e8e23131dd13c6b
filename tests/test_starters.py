"""Scripts written over the course's starters find what they import, and the six files that they leave are accepted.

Names, arguments and order of answers of the CS 224N default project's public starters, seasons 2023 and 2024.
"""

import importlib
import inspect
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import evaluation
from datasets import (
    SentenceClassificationDataset,
    SentenceClassificationTestDataset,
    SentencePairDataset,
    SentencePairTestDataset,
    load_multitask_data,
    read_examples,
)
from errors import InputError
from evaluation import model_eval_multitask, model_eval_sst, model_eval_test_multitask, read_predictions
from files import sha256
from optimizer import AdamW
from prepare_submit import SPLITS, SUBMITTED, examine
from tasks import PARA, SST, STS

# Module -> what a season's scripts import of it -> the arguments that they give, in this order.
LOADERS = "sentiment_dataloader paraphrase_dataloader sts_dataloader model device"
BOTH = {
    "bert": {"BertModel.from_pretrained": "name_or_folder", "BertModel.forward": "self input_ids attention_mask"},
    "tokenizer": {"BertTokenizer.from_pretrained": "name_or_dir"},
    "optimizer": {"AdamW": "params lr betas eps weight_decay correct_bias"},
    "datasets": {
        "preprocess_string": "s",
        "load_multitask_data": "sentiment_filename paraphrase_filename similarity_filename split",
        "SentenceClassificationDataset": "dataset args",
        "SentenceClassificationDataset.pad_data": "self data",
        "SentenceClassificationDataset.collate_fn": "self all_data",
        "SentenceClassificationTestDataset": "dataset args",
        "SentenceClassificationTestDataset.pad_data": "self data",
        "SentenceClassificationTestDataset.collate_fn": "self all_data",
        "SentencePairDataset": "dataset args isRegression",
        "SentencePairDataset.pad_data": "self data",
        "SentencePairDataset.collate_fn": "self all_data",
        "SentencePairTestDataset": "dataset args",
        "SentencePairTestDataset.pad_data": "self data",
        "SentencePairTestDataset.collate_fn": "self all_data",
    },
    "evaluation": {
        "model_eval_sst": "dataloader model device",
        "model_eval_multitask": LOADERS,
        "model_eval_test_multitask": LOADERS,
    },
}
ONLY_2023 = {
    "datasets": {"load_multitask_test_data": ""},
    "evaluation": {"test_model_multitask": "args model device"},
}
IMPORTS = [
    pytest.param(module, name, arguments, id=f"{season}-{module}-{name}")
    for season, modules in (("2023", BOTH), ("2023", ONLY_2023), ("2024", BOTH))
    for module, names in modules.items()
    for name, arguments in names.items()
]


@pytest.mark.parametrize("module, name, arguments", IMPORTS)
def test_what_a_season_imports(module, name, arguments):
    """Under its name, with the arguments in their places; whatever else it takes has a default."""
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    found, wanted = list(inspect.signature(found).parameters.values()), arguments.split()
    assert [parameter.name for parameter in found[: len(wanted)]] == wanted
    optional = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    assert all(p.default is not p.empty or p.kind in optional for p in found[len(wanted) :])


# --- six files ---------------------------------------------------------------------------------------------------


class CourseModel(nn.Module):
    """The simplest that the handout asks for: a linear layer a task over [CLS], pairs as (B, 1)."""

    def __init__(self, bert):
        super().__init__()
        self.bert = bert
        self.dropout = nn.Dropout(0.3)
        self.sentiment = nn.Linear(bert.config.hidden_size, 5)
        self.paraphrase = nn.Linear(2 * bert.config.hidden_size, 1)
        self.similarity = nn.Linear(2 * bert.config.hidden_size, 1)

    def predict_sentiment(self, input_ids, attention_mask):
        return self.sentiment(self.dropout(self.bert(input_ids, attention_mask)["pooler_output"]))

    def predict_paraphrase(self, input_ids_1, attention_mask_1, input_ids_2, attention_mask_2):
        return self.paraphrase(self._pair(input_ids_1, attention_mask_1, input_ids_2, attention_mask_2))

    def predict_similarity(self, input_ids_1, attention_mask_1, input_ids_2, attention_mask_2):
        return self.similarity(self._pair(input_ids_1, attention_mask_1, input_ids_2, attention_mask_2))

    def _pair(self, *inputs):
        sides = (self.bert(*inputs[i : i + 2])["pooler_output"] for i in (0, 2))
        return self.dropout(torch.cat(list(sides), dim=1))  # (B, 2H)


# Five of them: in batches of two the last is of one.
TEXTS = ["good", "the film was not very good .", "why ?", "a dog ran on the mat", "bad cat"]
LABELS = {"sst": [4, 1, 2, 3, 0], "para": [1.0, 0.0, 0.0, 1.0, 1.0], "sts": [4.6, 0.0, 2.5, 5.0, 1.2]}


@pytest.fixture
def root(tmp_path, monkeypatch, tiny_tokenizer):
    """The folder of a script, with the course's files in data/; the tokenizer is the tiny one, whatever is named."""
    monkeypatch.setattr("tokenizer.BertTokenizer.from_pretrained", lambda *_, **__: tiny_tokenizer)
    (tmp_path / "data").mkdir()
    for task in SUBMITTED:
        for split, name in task.files.items():
            texts = TEXTS[1:] if split == "test" else TEXTS
            columns = ["", "id", *task.columns, *([] if split == "test" else [task.label])]
            lines = ["\t".join(columns)]
            for number, text in enumerate(texts):
                label = [] if split == "test" else [str(LABELS[task.name][number])]
                second = [texts[number - 1]] if task.is_pair else []
                lines.append("\t".join([str(number), f"{split}{number}", text, *second, *label]))
            (tmp_path / "data" / name).write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def args():
    """What the starter's get_args gives without flags, but batches of two."""
    files = {f"{task.name}_{split}": f"data/{name}" for task in SUBMITTED for split, name in task.files.items()}
    outs = {
        f"{task.name}_{split}_out": f"predictions/{task.predictions_file(split)}"
        for task in SUBMITTED
        for split in SPLITS
    }
    return SimpleNamespace(batch_size=2, **files, **outs)


@pytest.fixture
def course_model(tiny):
    return CourseModel(tiny()).train()


CPU = torch.device("cpu")


def assert_accepted(root, model, args):
    """The submission's check finds no fault in the six files, and each row is what the model says of it alone."""
    submission = examine(root, {}, root / "data")
    assert submission.errors == []
    assert sorted(submission.contents) == sorted(path.name for path in (root / "predictions").iterdir())
    assert len(submission.contents) == 6
    model.eval()
    methods = (model.predict_sentiment, model.predict_paraphrase, model.predict_similarity)
    for task, method in zip((SST, PARA, STS), methods, strict=True):
        for split in SPLITS:
            found = read_predictions(root / getattr(args, f"{task.name}_{split}_out"), task)
            assert len(found) == (5 if split == "dev" else 4)
            dataset = (SentencePairTestDataset if task.is_pair else SentenceClassificationTestDataset)([], args)
            for example in read_examples(root / getattr(args, f"{task.name}_{split}"), columns=task.columns):
                texts = [text for text in (example.sentence, example.second) if text is not None]
                *parts, _ = dataset.pad_data([(*texts, example.id)])
                inputs = [parts[i] for i in (0, 2, 3, 5)] if task.is_pair else parts[:2]
                with torch.no_grad():
                    (alone,) = method(*inputs)
                wanted = {
                    "sst": alone.argmax(dim=-1),
                    "para": torch.sigmoid(alone).round(),
                    "sts": alone,
                }[task.name].item()
                assert found[example.id] == pytest.approx(wanted, abs=1e-5)
    return submission.scores


def test_2023_writes_its_six_files(root, args, course_model, capsys):
    """Its script trains sentiment, asks model_eval_sst, and leaves the rest to test_model_multitask."""
    rows, num_labels, _, _ = load_multitask_data(args.sst_train, args.para_train, args.sts_train, split="train")
    assert len(num_labels) == 5
    data = SentenceClassificationDataset(rows, args)
    loader = DataLoader(data, shuffle=True, batch_size=args.batch_size, collate_fn=data.collate_fn)
    before, *_ = model_eval_sst(loader, course_model, CPU)
    optimizer = AdamW(course_model.parameters(), lr=3e-3)
    for _ in range(40):
        for batch in loader:
            optimizer.zero_grad()
            logits = course_model.predict_sentiment(batch["token_ids"], batch["attention_mask"])
            loss = nn.functional.cross_entropy(logits, batch["labels"].view(-1), reduction="sum") / args.batch_size
            loss.backward()
            optimizer.step()
    accuracy, *_ = model_eval_sst(loader, course_model, CPU)
    assert before < accuracy == 1
    capsys.readouterr()

    evaluation.test_model_multitask(args, course_model, CPU)
    assert course_model.training
    printed = capsys.readouterr().out
    scores = assert_accepted(root, course_model, args)
    assert scores["sst"] == accuracy  # dev's rows are train's here
    said = re.findall(r"^dev (.*) :: (\S+)$", printed, re.MULTILINE)
    names = ("sentiment acc", "paraphrase acc", "sts corr")
    assert said == [(name, f"{scores[task.name]:.3f}") for name, task in zip(names, SUBMITTED, strict=True)]


def test_2024_writes_its_six_files(root, args, course_model):
    """Its script makes the loaders, shuffled for the test files, and writes the files itself."""

    def loaders(split, single, pair, **regression):
        files = (getattr(args, f"{task.name}_{split}") for task in (SST, PARA, STS))
        sentiment, _, paraphrase, similarity = load_multitask_data(*files, split=split)
        for data in (single(sentiment, args), pair(paraphrase, args), pair(similarity, args, **regression)):
            yield DataLoader(data, shuffle=split == "test", batch_size=args.batch_size, collate_fn=data.collate_fn)

    dev = loaders("dev", SentenceClassificationDataset, SentencePairDataset, isRegression=True)
    test = loaders("test", SentenceClassificationTestDataset, SentencePairTestDataset)
    scores = {}
    (scores["sst"], sst, sst_ids, scores["para"], para, para_ids, scores["sts"], sts, sts_ids) = model_eval_multitask(
        *dev, course_model, CPU
    )
    tested = model_eval_test_multitask(*test, course_model, CPU)
    answers = {"dev": (sst, sst_ids, para, para_ids, sts, sts_ids), "test": tested}
    (root / "predictions").mkdir()
    for split, (sst, sst_ids, para, para_ids, sts, sts_ids) in answers.items():
        for task, values, ids in ((SST, sst, sst_ids), (PARA, para, para_ids), (STS, sts, sts_ids)):
            with open(getattr(args, f"{task.name}_{split}_out"), "w+") as file:
                file.write(f"{task.header}\n")
                for key, value in zip(ids, values, strict=True):
                    file.write(f"{key} , {value} \n")
    assert assert_accepted(root, course_model, args) == pytest.approx(scores)


def test_2023_writes_nothing_where_a_file_is_wrong(root, args, course_model):
    """What stands in predictions/ from before stays, since a half of each would be submitted unseen."""
    evaluation.test_model_multitask(args, course_model, CPU)
    before = {path: sha256(path) for path in (root / "predictions").iterdir()}
    with torch.no_grad():
        for parameter in course_model.parameters():
            parameter.neg_()
    path = root / args.sts_test
    path.write_text(path.read_text().replace("sentence2", "second"))
    with pytest.raises(InputError, match="sts-test-student.csv, line 1: no column 'sentence2'"):
        evaluation.test_model_multitask(args, course_model, CPU)
    assert {path: sha256(path) for path in (root / "predictions").iterdir()} == before
