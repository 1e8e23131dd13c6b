"""What is searched: every format as a stream, every fault by file and line, Cranfield's files and BEIR's layout.

Follows the formats' own definitions; the real files are read where MINBERT_REAL_DATA names them.
"""

import json
import os
import re
import tracemalloc

import pytest

import search_data
from errors import InputError
from search_data import Document, Survey, open_corpus, read_collection


@pytest.fixture
def corpus(tmp_path):
    """corpus(name, content, **options) -> that file, opened."""

    def write(name, content, **options):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return open_corpus(path, **options)

    return write


def texts(corpus):
    return [(document.id, document.text) for document in corpus]


def refused(corpus):
    with pytest.raises(InputError) as caught:
        list(corpus)
    return str(caught.value).replace(str(corpus.path), "FILE")


# Text


def test_a_text_file_has_a_document_a_line(corpus):
    found = corpus("a.txt", b"\xef\xbb\xbfone  two \r\n\n \t\nthr\xc3\xa9e\xe2\x80\xa8still three")
    assert list(found) == [
        Document("1", "one  two", 1),
        Document("2", "", 2),
        Document("3", "", 3),
        Document("4", "thrée\u2028still three", 4),
    ]
    assert [document.id for document in found.with_text()] == ["1", "4"]
    assert found.survey() == Survey(2, 2, ("2", "3"))


@pytest.mark.parametrize(
    "content, message",
    [
        (b"good\n\xff\n", "FILE, line 2: byte 0xff is not UTF-8; save it as UTF-8 text"),
        ("good\n".encode("utf-16-le"), "FILE, line 1: a NUL character, so not text; save it as UTF-8 text"),
    ],
)
def test_what_is_not_text(corpus, content, message):
    assert refused(corpus("a.txt", content)) == message


def test_a_line_too_long_for_a_text(corpus, monkeypatch):
    monkeypatch.setattr(search_data, "LONGEST", 100)
    found = corpus("a.txt", "a" * 99 + "\n" + "b" * 101)
    assert refused(found) == "FILE, line 1: longer than 100 bytes, so not a text: choose a file of texts"
    assert len(list(corpus("b.txt", "a" * 98 + "\n" + "b" * 99))) == 2


# CSV


def test_csv_takes_title_and_text_and_its_ids(corpus):
    found = corpus("a.csv", 'id,title,text\nx,On wings,"lift, ""drag""\nand more"\ny,,alone\n\nz,only,\n')
    assert list(found) == [
        Document("x", 'On wings lift, "drag"\nand more', 2),
        Document("y", "alone", 4),
        Document("z", "only", 6),
    ]


def test_csv_with_tabs_named_columns_and_no_ids(corpus):
    found = corpus("a.csv", "a\tb\tc\n1, 2\tx\ty\n3\tz\t\n", columns=("c", "a"))
    assert list(found) == [Document("2", "y 1, 2", 2), Document("3", "3", 3)]
    assert texts(corpus("b.tsv", "\tid\tsentence\n0\tq\tgood\n")) == [("q", "good")]
    assert texts(corpus("c.csv", "a\tb\nq\tgood\n", columns=("b",), id_column="a")) == [("q", "good")]
    assert texts(corpus("d.csv", "words\ngood\n")) == [("2", "good")]


def test_blank_lines_above_a_csv_header_are_no_header(corpus):
    found = corpus("a.csv", " \r\n\na\tb\r\n1, 2\tx\r\n\r\n3\ty\r\n", columns=("a",))
    assert list(found) == [Document("4", "1, 2", 4), Document("6", "3", 6)]


@pytest.mark.parametrize(
    "content, options, message",
    [
        ("", {}, "FILE, line 1: no column 'text'; the file is empty; name the one to read with --column"),
        ("a,b\n1,2\n", {}, "FILE, line 1: no column 'text'; found 'a', 'b'; name the one to read with --column"),
        ("\n\na,b\n1,2\n", {}, "FILE, line 3: no column 'text'; found 'a', 'b'; name the one to read with --column"),
        ("\n", {}, "FILE, line 1: no column 'text'; the file is empty; name the one to read with --column"),
        (
            "a,text\n1,2\n",
            {"columns": ("b",)},
            "FILE, line 1: no column 'b'; found 'a', 'text'; name one of these",
        ),
        (
            "a,text\n1,2\n",
            {"id_column": "c"},
            "FILE, line 1: no column 'c'; found 'a', 'text'; name one of these",
        ),
        (
            "id,text\n1,a\n2,b,c\n",
            {},
            "FILE, line 3: 3 columns, wanted 2 as in the header ('id', 'text'); double quotes inside quotes, and quote "
            "a text with a separator in it",
        ),
        ("id,text\n1,a\n ,b\n", {}, "FILE, line 3: the id is ' '; every document needs one of its own"),
        (
            'id,text\n1,a\n2,"b\n3,c\n',
            {},
            "FILE, line 3: unexpected end of data; is a quote opened there and never closed?",
        ),
        (
            'id,text\n1,a\n2,"b\n3,"c\n',
            {},
            "FILE, line 3: ',' expected after '\"'; is a quote opened there and never closed?",
        ),
    ],
)
def test_faults_of_csv_files(corpus, content, options, message):
    assert refused(corpus("a.csv", content, **options)) == message


def test_long_fields_are_read_and_the_process_limit_is_put_back(corpus):
    import csv

    before = csv.field_size_limit()
    assert [len(document.text) for document in corpus("a.csv", f"text,b\n{'a' * 200_000},c\n")] == [200_000]
    assert csv.field_size_limit() == before


# JSONL


def test_jsonl(corpus):
    rows = [{"_id": "d1", "title": "T", "text": "x\ny"}, {"_id": 7, "title": "", "text": " z "}]
    rows.append({"_id": "n", "text": ""})
    found = corpus("a.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    assert list(found) == [Document("d1", "T x\ny", 1), Document("7", "z", 2), Document("n", "", 3)]
    assert texts(corpus("b.jsonl", '\n{"text": "no id", "title": null}\n')) == [("2", "no id")]
    assert texts(corpus("c.jsonl", '{"k": "x", "body": "b"}', columns=("body",), id_column="k")) == [("x", "b")]


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "not JSON in UTF-8 ("),
        ('{"_id": "b", "text": "\\ud800"}', "not JSON in UTF-8 ("),
        ("[1]", "[1]; wanted an object {...} a line"),
        ('{"_id": "b"}', "no 'text'; found '_id'; add it, or name others with --column"),
        ('{"text": "b"}', "no '_id'; found 'text'; add it, or name others with --column"),
        ('{"_id": "b", "text": 3}', "'text' is 3, wanted a text"),
        ('{"_id": true, "text": "b"}', "the id is True; every document needs one of its own"),
    ],
)
def test_faults_of_jsonl_files(corpus, line, message):
    found = refused(corpus("a.jsonl", '{"_id": "a", "text": "good"}\n' + line))
    assert found.startswith(f"FILE, line 2: {message}") and "\n" not in found


# What holds for all


def test_an_id_that_stands_there_twice(corpus):
    found = corpus("a.csv", "id,text\nx,1\ny,2\nz,3\ny,4\n")
    with pytest.raises(InputError, match=re.escape("line 5: id 'y' is on line 3 already")):
        found.survey()


def test_two_ids_with_one_hash_are_two(corpus, monkeypatch):
    monkeypatch.setattr(search_data, "_hash", lambda name: len(name))
    assert corpus("a.csv", "id,text\nx,1\ny,2\n").survey() == Survey(2, 0, ())


def test_what_is_not_there_or_not_to_be_read(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        open_corpus(tmp_path / "none.txt")
    with pytest.raises(InputError, match=r"a folder without cran.all.1400 or corpus.jsonl"):
        open_corpus(tmp_path)
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(InputError, match="not a file that can be read twice"):
        open_corpus(tmp_path / "pipe.txt")
    (tmp_path / "a.txt").write_text("x\n")
    with pytest.raises(InputError, match="read as text: leave them out, or say --format csv"):
        open_corpus(tmp_path / "a.txt", columns=("text",))


def test_memory_does_not_grow_with_the_corpus(tmp_path):
    def most(lines):
        path = tmp_path / f"{lines}.jsonl"
        with path.open("w") as file:
            for i in range(lines):
                file.write(json.dumps({"_id": f"document {i}", "text": "a few words " * 20}) + "\n")
        tracemalloc.start()
        assert open_corpus(path).survey().documents == lines
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    # 8 bytes an id, twice while they are sorted; a document has 300.
    assert most(4000) - most(500) < 3500 * 40


# Cranfield

DOCUMENTS = """.I 1
.T
on wings
 .
.A
somebody
.B
a journal
.W
on wings
 .
lift  of
.I 3
.T
.A
.B
.W
.I 2
.T
drag
.W
first
.W
and more
.A
not this
"""
QUERIES = ".I 001\n.W\nwhat lifts .\n.I 004\n.W\nwhat\ndrags .\n"
JUDGEMENTS = "1 1 2 \n1 3 -1\n2 2 1 \n2 1 -1\n"


@pytest.fixture
def cranfield(tmp_path):
    for name, content in (("cran.all.1400", DOCUMENTS), ("cran.qry", QUERIES), ("cranqrel", JUDGEMENTS)):
        (tmp_path / name).write_bytes(content.replace("\n", "\r\n").encode())
    return tmp_path


def test_cranfield(cranfield):
    found = read_collection(cranfield)
    assert texts(found.corpus) == [("1", "on wings . on wings . lift of"), ("3", ""), ("2", "drag first and more")]
    assert [document.line for document in found.corpus] == [1, 13, 18]
    assert [(query.id, query.text) for query in found.queries] == [("1", "what lifts ."), ("2", "what drags .")]
    assert found.relevant == {"1": {"1": 1, "3": 1}, "2": {"2": 1, "1": 1}}
    assert found.own_id_counts  # a query's number says nothing of a document's
    assert read_collection(cranfield, judged="positive").relevant == {"1": {"1": 1}, "2": {"2": 1}}


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("cranqrel", "1 1\n", "cranqrel, line 1: '1 1', wanted query, document and grade; correct it"),
        ("cranqrel", "9 1 1\n", "cranqrel, line 1: no query '9' in "),
        ("cranqrel", "\n", "cranqrel: no judgement says that a document is relevant; choose another file"),
        ("cran.qry", ".I 1\n.W\n.I 2\n.W\nx\n", "cran.qry, line 1: query '1' has no text; correct it"),
        ("cran.qry", "what\n", "cran.qry, line 1: 'what', wanted .I and a number; correct it"),
        ("cran.qry", ".I a\n", "cran.qry, line 1: '.I a', wanted .I and a number; correct it"),
    ],
)
def test_faults_of_cranfield_files(cranfield, name, content, message):
    (cranfield / name).write_text(content)
    with pytest.raises(InputError) as caught:
        read_collection(cranfield)
    assert str(caught.value).startswith(f"{cranfield}/{message}")


def test_a_missing_file_of_a_collection(cranfield):
    (cranfield / "cranqrel").unlink()
    with pytest.raises(InputError, match="cannot read .*cranqrel"):
        read_collection(cranfield)
    with pytest.raises(InputError, match="no such folder"):
        read_collection(cranfield / "none")
    with pytest.raises(InputError, match="--split dev: Cranfield's judgements are one file: leave it out"):
        read_collection(cranfield, split="dev")


@pytest.mark.real_data
def test_cranfield_as_it_is(real_data):
    found = read_collection(real_data / "search" / "cranfield")
    assert found.corpus.survey() == Survey(1398, 2, ("471", "995"))
    assert [query.id for query in found.queries] == [str(i) for i in range(1, 226)]
    assert sum(map(len, found.relevant.values())) == 1837
    positive = read_collection(real_data / "search" / "cranfield", judged="positive")
    assert sum(map(len, positive.relevant.values())) == 1837 - 225
    by_id = dict(texts(found.corpus))
    title = "viscous and inviscid stagnation flow in a dissociated hypervelocity free stream ."
    assert by_id["576"].startswith(f"{title} {title} high reynolds number")
    assert len(by_id) == 1400


# BEIR


@pytest.fixture
def beir(tmp_path):
    corpus = [{"_id": "d1", "title": "T", "text": "x"}, {"_id": "d2", "title": "", "text": "y"}]
    queries = [{"_id": "q1", "text": "a"}, {"_id": "q2", "text": "b"}, {"_id": "unjudged", "text": "c"}]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq2\td9\t1\n")
    return tmp_path


def test_beir(beir):
    found = read_collection(beir)
    assert texts(found.corpus) == [("d1", "T x"), ("d2", "y")]
    assert [query.id for query in found.queries] == ["q1", "q2"]
    assert found.relevant == {"q1": {"d1": 2}, "q2": {"d9": 1}}
    assert not found.own_id_counts
    (beir / "qrels" / "test.tsv").rename(beir / "qrels.tsv")
    assert found.judgements == beir / "qrels" / "test.tsv" and read_collection(beir).judgements == beir / "qrels.tsv"
    assert read_collection(beir).relevant == found.relevant


def test_relevant_documents_that_the_corpus_lacks(beir):
    assert read_collection(beir).absent == ("d9",)
    (beir / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td8\t2\nq1\td9\t1\n")
    message = "test.tsv: none of its 2 relevant documents, 'd8' the first, is in "
    with pytest.raises(InputError, match=message):
        read_collection(beir)


@pytest.mark.parametrize(
    "content, message",
    [
        ("query-id\tcorpus-id\tscore\nq1 d1 1\n", r"test.tsv, line 2: 'q1 d1 1', wanted query-id, corpus-id and a"),
        ("q1\td1\t0.5\n", r"test.tsv, line 1: 'q1\td1\t0.5', wanted query-id, corpus-id and a"),
        ("q1 d1 relevance\n", "between tabs (or a header that ends in score)"),
        ("q7\td1\t1\n", "test.tsv, line 1: no query 'q7' in "),
        (
            "q1\td1\t1\nq1\td2\t1\nq1\td1\t0\n",
            "test.tsv, line 3: 0 for query 'q1' and document 'd1', which line 1 gives 1: remove one of the two",
        ),
    ],
)
def test_faults_of_beir_judgements(beir, content, message):
    (beir / "qrels" / "test.tsv").write_text(content)
    with pytest.raises(InputError) as caught:
        read_collection(beir)
    assert message in str(caught.value)


def test_a_missing_split_of_beir(beir):
    again = "fetch it, or choose another --split"
    (beir / "qrels.tsv").write_text("q1\td1\t1\n")  # of no split that was asked for
    with pytest.raises(InputError, match=f"no qrels/dev.tsv; qrels/ has test: {again}"):
        read_collection(beir, split="dev")
    (beir / "qrels.tsv").unlink()
    (beir / "qrels" / "test.tsv").rename(beir / "qrels" / "train.tsv")
    with pytest.raises(InputError, match=f"no qrels/test.tsv nor qrels.tsv; qrels/ has train: {again}"):
        read_collection(beir)
    assert read_collection(beir, split="train").relevant
    (beir / "qrels" / "train.tsv").unlink()
    with pytest.raises(InputError, match=rf"no qrels/test.tsv nor qrels.tsv; no qrels/\*.tsv is there: {again}"):
        read_collection(beir)


@pytest.mark.parametrize("score", ["9" * 5000, "9" * 10, "\u0663", "1_0", "", "-", "--1"])
def test_a_judgement_that_is_no_number_of_ours(tmp_path, score):
    """int() takes some of these, and fails on others with an error of its own."""
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d", "text": "x"}\n')
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "x"}\n')
    (tmp_path / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\nq\td\t{score}\n", encoding="utf-8")
    with pytest.raises(InputError, match="qrels.tsv, line 2: .* wanted query-id, corpus-id and a whole number"):
        read_collection(tmp_path)
    for name, line in (
        ("cran.all.1400", ".I 1\n.W\nx\n"),
        ("cran.qry", ".I 1\n.W\nx\n"),
        ("cranqrel", f"1 1 {score}x\n"),
    ):
        (tmp_path / name).write_text(line, encoding="utf-8")
    with pytest.raises(InputError, match="cranqrel, line 1: .* wanted query, document and grade"):
        read_collection(tmp_path)
