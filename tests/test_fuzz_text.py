"""Data files damaged at random: every reader of text reads them or refuses them in one line, and raises nothing else.

Hypothesis draws the damage (mutations.py). `pytest --hypothesis-profile thorough` tries many more.
"""

import csv
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import altered, damaged, json_bytes, refused, write

from answer_files import read_rows, refuse_taken, written
from contrastive_data import read_pairs, read_sentences
from data_check import check_folder, describe
from evaluation import parse_predictions
from predictor import Answer, words_of
from search_data import open_corpus, read_collection
from search_evaluation import score_rankings
from sentence_keys import keys_of
from sts_data import SUBSETS, read_sets
from sts_data import read_pairs as read_scored_pairs
from task_files import read_split
from tasks import PARA, SST, STS, TASKS

LIMIT = csv.field_size_limit()
SENTENCES = ["a good film , bright", 'the "dull" cat', "why ?", "it's 5.0 \u00e9t\u00e9", "who ran"]


def table(header: list[str], rows: list[list[str]], separator: str = "\t") -> bytes:
    quoted = [[f'"{cell}"' if {separator, '"', "\r"} & {*cell} else cell for cell in row] for row in rows]
    return "".join(separator.join(row) + "\n" for row in [header, *quoted]).encode()


def glue(header: list[str], rows: list[list[str]]) -> bytes:
    return "".join("\t".join(row) + "\n" for row in [header, *rows]).encode()


COURSE = {
    "sst": table(
        ["", "id", "sentence", "sentiment"],
        [[str(i), f"x{i}", s.replace('"', '""'), str(i % 5)] for i, s in enumerate(SENTENCES)],
    ),
    "para": table(
        ["", "id", "sentence1", "sentence2", "is_duplicate"],
        [[str(i), f"x{i}", s.replace('"', '""'), "why", f"{i % 2}.0"] for i, s in enumerate(SENTENCES)],
    ),
    "sts": table(
        ["", "id", "sentence1", "sentence2", "similarity"],
        [[str(i), f"x{i}", s.replace('"', '""'), "why", f"{i % 5}.4"] for i, s in enumerate(SENTENCES)],
    ),
    "cola": glue([], [["gj04", str(i % 2), "*", s] for i, s in enumerate(SENTENCES)])[1:],
    "mrpc": glue(
        ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
        [[str(i % 2), "1", "2", s, s] for i, s in enumerate(SENTENCES)],
    ),
    "rte": glue(
        ["index", "sentence1", "sentence2", "label"], [[str(i), s, s, "entailment"] for i, s in enumerate(SENTENCES)]
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder that the examples of a test share: making one for each takes longer than reading."""
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("name", COURSE)
@given(data=st.data())
def test_the_tasks_files(folder, name, data):
    path = write(folder / f"{name}.csv", data.draw(damaged(COURSE[name])))
    split = data.draw(st.sampled_from(("train", "test")))
    if not refused(read_split, TASKS[name], split, path):
        found = read_split(TASKS[name], split, path)
        ids = [example.id for example in found]
        assert len(set(ids)) == len(ids) > 0
        low, high = TASKS[name].label_range
        assert all(split == "test" or low <= example.label <= high for example in found)
    faults = []
    refused(read_split, TASKS[name], split, path, faults)
    assert csv.field_size_limit() == LIMIT


@given(data=st.data())
def test_the_check_of_a_folder(folder, tiny_tokenizer, data):
    for task in (SST, PARA, STS):
        for split in ("train", "dev"):
            whole = COURSE[task.name]
            content = data.draw(damaged(whole)) if split == "train" else whole
            write(folder / "check" / task.files[split], content)
    describe(check_folder(folder / "check", tiny_tokenizer))
    json.dumps(check_folder(folder / "check", tiny_tokenizer))


PREDICTIONS = {
    "sst": "id \t Predicted_Sentiment \n" + "".join(f"x{i} , {i % 5} \n" for i in range(5)),
    "para": "id \t Predicted_Is_Paraphrase \n" + "".join(f"x{i} , {i % 2}.0 \n" for i in range(5)),
    "sts": "id \t Predicted_Similiary \n" + "".join(f"x{i} , {i}.5e-1 \n" for i in range(5)),
    "rte": "index\tprediction\n" + "".join(f"{i}\tnot_entailment\n" for i in range(5)),
}


@pytest.mark.parametrize("name", PREDICTIONS)
@given(data=st.data())
def test_prediction_files(name, data):
    content = data.draw(damaged(PREDICTIONS[name].encode()))
    refused(parse_predictions, TASKS[name], content, "predictions.csv")


BENCHMARK = "".join(f"main\tnews\t2012\t{i}\t{i % 5}.2\t{s}\t{s}\n" for i, s in enumerate(SENTENCES)).encode()
SICK_HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
SICK = (
    SICK_HEADER + "\n" + "".join(f"{i}\t{s}\t{s}\t{1 + i % 4}.2\tNEUTRAL\n" for i, s in enumerate(SENTENCES))
).encode()
ALL_SICK = (
    SICK_HEADER
    + "\tSemEval_set\n"
    + "".join(
        f"{i}\t{s}\t{s}\t{1 + i % 4}.2\tNEUTRAL\t{part}\n"
        for i, (s, part) in enumerate(zip(SENTENCES, ("TRAIN", "TRIAL", "TEST", "TEST", "TRAIN"), strict=True))
    )
).encode()


@pytest.mark.parametrize("whole", [BENCHMARK, SICK, COURSE["sts"]], ids=["benchmark", "sick", "course"])
@given(data=st.data())
def test_scored_pairs(folder, whole, data):
    refused(read_scored_pairs, write(folder / "pairs.csv", data.draw(damaged(whole))))


@given(data=st.data())
def test_folders_of_similarity_sets(folder, data):
    place = folder / "sets"
    files = {"SICK/SICK.txt": ALL_SICK, "STS-B/sts-dev.csv": BENCHMARK, "SICK2/SICK_test_annotated.txt": SICK}
    for subset in SUBSETS["STS13"]:
        files[f"STS13/STS.input.{subset}.txt"] = "".join(f"{s}\t{s}\n" for s in SENTENCES).encode()
        files[f"STS13/STS.gs.{subset}.txt"] = b"0.2\n5\n\n3.25\n1\n"
    hit = data.draw(st.sampled_from(sorted(files)))
    for name, content in files.items():
        write(place / name, data.draw(damaged(content)) if name == hit else content)
    names = data.draw(st.sampled_from((["STS13"], ["STS-B-dev"], ["SICK-R-train"], ["SICK-R-trial"], ["x"], [""])))
    refused(read_sets, [place], names)


LINES = "\n".join(SENTENCES).encode() + b"\n"
CSV = table(["sent0", "sent1", "hard_neg"], [[s.replace('"', '""'), "why", "no"] for s in SENTENCES], ",")
INFERENCE = [
    {"gold_label": label, "sentence1": s, "sentence2": f"{s} {label}"}
    for s in SENTENCES[:3]
    for label in ("entailment", "neutral", "contradiction", "-")
]
JSONL = b"".join(json_bytes(row) + b"\n" for row in INFERENCE)
TSV = glue(list(INFERENCE[0]), [list(row.values()) for row in INFERENCE])


@pytest.mark.parametrize(
    ("name", "whole"), [("a.csv", CSV), ("q.csv", COURSE["para"]), ("a.jsonl", JSONL), ("a.txt", TSV)]
)
@given(data=st.data())
def test_pairs_and_triples(folder, name, whole, data):
    path = write(folder / name, data.draw(damaged(whole)))
    if not refused(read_pairs, [path]):
        found = read_pairs([path])
        assert len(found) == len(found.ids) == sum(source.rows for source in found.sources) > 0
    refused(keys_of, [path])
    assert csv.field_size_limit() == LIMIT


@given(data=st.data())
def test_sentevals_three_files(folder, data):
    sides = zip(*(row.values() for row in INFERENCE), strict=True)
    files = dict(
        zip(("labels.train", "s1.train", "s2.train"), ("\n".join(side).encode() for side in sides), strict=True)
    )
    hit = data.draw(st.sampled_from(sorted(files)))
    for name, content in files.items():
        write(folder / "senteval" / name, data.draw(damaged(content)) if name == hit else content)
    refused(read_pairs, [folder / "senteval"])


@pytest.mark.parametrize(("name", "whole"), [("a.txt", LINES), ("a.csv", COURSE["sst"]), ("b.tsv", COURSE["sts"])])
@given(data=st.data())
def test_sentences_to_contrast(folder, name, whole, data):
    path = write(folder / name, data.draw(damaged(whole)))
    if not refused(read_sentences, [path]):
        found = read_sentences([path])
        assert len({row for row in found.rows}) == len(found) and all(text.strip() for (text,) in found.rows)
        keys = keys_of([path])
        refused(found.without, keys, "there")


CORPORA = {
    "corpus.txt": LINES,
    "corpus.csv": table(
        ["_id", "title", "text"], [[f"d{i}", "t", s.replace('"', '""')] for i, s in enumerate(SENTENCES)], ","
    ),
    "corpus.jsonl": b"".join(
        json_bytes({"_id": f"d{i}", "title": "t", "text": s}) + b"\n" for i, s in enumerate(SENTENCES)
    ),
    "cran.all.1400": "".join(f".I {i}\n.T\nt\n.A\nb\n.W\n{s}\n" for i, s in enumerate(SENTENCES, 1)).encode(),
}


@pytest.mark.parametrize("name", CORPORA)
@given(data=st.data())
def test_corpora(folder, name, data):
    corpus = open_corpus(write(folder / name, data.draw(damaged(CORPORA[name]))))
    if not refused(corpus.survey):
        documents = list(corpus)
        survey = corpus.survey()
        assert survey.documents + survey.blank == len(documents) == len({document.id for document in documents})
        assert survey.documents == len(list(corpus.with_text()))
        assert all(isinstance(d.id, str) and d.text.encode() is not None for d in documents)
    assert csv.field_size_limit() == LIMIT


COLLECTIONS = {
    "beir": {
        "corpus.jsonl": CORPORA["corpus.jsonl"],
        "queries.jsonl": b"".join(json_bytes({"_id": f"q{i}", "text": s}) + b"\n" for i, s in enumerate(SENTENCES)),
        "qrels/test.tsv": b"query-id\tcorpus-id\tscore\n"
        + b"".join(b"q%d\td%d\t%d\n" % (i, i, i % 3) for i in range(5)),
    },
    "cranfield": {
        "cran.all.1400": CORPORA["cran.all.1400"],
        "cran.qry": "".join(f".I {7 * i:03}\n.W\n{s}\n" for i, s in enumerate(SENTENCES, 1)).encode(),
        "cranqrel": b"".join(b"%d %d %d\n" % (i, i, (1, 2, -1)[i % 3]) for i in range(1, 6)),
    },
}


@given(data=st.data())
def test_lines_of_json(folder, data):
    """Whole JSON of other types than are wanted."""
    rows = [
        {"_id": f"d{i}", "title": "t", "text": s, **row}
        for i, (s, row) in enumerate(zip(SENTENCES, INFERENCE, strict=False))
    ]
    content = b"".join(json_bytes(data.draw(altered(row))) + b"\n" for row in rows)
    path = write(folder / "rows.jsonl", content)
    for call in (read_pairs, keys_of):
        refused(call, [path])
    columns, name = (
        data.draw(st.sampled_from((None, ("x",), ("text", "")))),
        data.draw(st.sampled_from((None, "x", ""))),
    )
    corpus = open_corpus(path, None, columns, name)
    if not refused(corpus.survey):
        assert all(d.id and (d.id + d.text).encode() for d in corpus)


@pytest.mark.parametrize("kind", COLLECTIONS)
@given(data=st.data())
def test_collections(folder, kind, data):
    files, place = COLLECTIONS[kind], folder / kind
    hit = data.draw(st.sampled_from(sorted(files)))
    for name, content in files.items():
        write(place / name, data.draw(damaged(content)) if name == hit else content)
    if not refused(read_collection, place):
        found = read_collection(place)
        rankings = {query.id: ["d1", "2", "d0"] for query in found.queries}
        assert all(0 <= value <= 1 for value in score_rankings(rankings, found.relevant).values())


ASKED = {
    "texts.csv": table(["id", "sentence"], [[f"x{i}", s.replace('"', '""')] for i, s in enumerate(SENTENCES)], ","),
    "pairs.tsv": table(
        ["sentence1", "sentence2", "more"], [[s.replace('"', '""'), "why", "a\rb"] for s in SENTENCES], ";"
    ),
    "texts.jsonl": b"".join(json_bytes({"sentence": s, "n": i}) + b"\n" for i, s in enumerate(SENTENCES)),
    "pairs.txt": "".join(f"{s}\twhy\n" for s in SENTENCES).encode(),
}


@pytest.mark.parametrize("name", ASKED)
@given(data=st.data())
def test_texts_to_be_answered(folder, name, data):
    """What is read is written with its answers, and reads back the same."""
    content = data.draw(damaged(ASKED[name]))
    if name.endswith("jsonl") and data.draw(st.booleans()):
        rows = [data.draw(altered(json.loads(line))) for line in ASKED[name].splitlines()]
        content = b"".join(json_bytes(row) + b"\n" for row in rows)
    path, tasks = folder / name, [SST, PARA]
    if refused(read_rows, path, content, None, None, tasks):
        return
    rows = read_rows(path, content, None, None, tasks)
    if rows.format == "text":
        return
    task = PARA if rows.is_pair else SST
    if refused(refuse_taken, path, rows, [task]):
        return
    answers = [
        None if texts is None else Answer(task.name, 1, "", (0.5,) * len(words_of(task))) for texts in rows.texts
    ]
    again = "".join(written(rows, [task], {task.name: answers})).encode()
    columns = rows.header if len(rows.header) == 1 else None  # the only one is taken whatever it is called
    back = read_rows(path, again, None, columns, tasks)
    assert back.texts == rows.texts and len(back.fields) == len(rows.fields)
    if rows.format == "csv":
        assert [row[: len(rows.header)] for row in back.fields] == rows.fields


def test_the_least_examples_are_whole(folder):
    """What is damaged above can be read undamaged: else these tests would try nothing."""
    for name, content in COURSE.items():
        assert len(read_split(TASKS[name], "train", write(folder / "whole" / name, content))) == 5
    for name, content in ASKED.items():
        assert len(read_rows(folder / name, content, None, None, [SST, PARA]).texts) == 5
    for name, content in PREDICTIONS.items():
        assert len(parse_predictions(TASKS[name], content.encode(), name)) == 5
    for content in (BENCHMARK, SICK, COURSE["sts"]):
        assert len(read_scored_pairs(write(folder / "whole" / "pairs", content))) == 5
    for name, content in (("a.csv", CSV), ("q.csv", COURSE["para"]), ("a.jsonl", JSONL), ("a.txt", TSV)):
        assert len(read_pairs([write(folder / "whole" / name, content)])) in (2, 3, 5)
    for name, content in CORPORA.items():
        assert open_corpus(write(folder / "whole" / name, content)).survey().documents == 5
    for kind, files in COLLECTIONS.items():
        for name, content in files.items():
            write(folder / "whole" / kind / name, content)
        assert len(read_collection(folder / "whole" / kind).corpus.survey().examples) == 0
