"""Sentences, pairs, triples and what is left out of them: every layout, every row, every fault by line."""

import json

import pytest

from contrastive_data import read_pairs, read_sentences
from errors import InputError
from sentence_keys import key, keys_of


@pytest.fixture
def write(tmp_path):
    def make(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


def test_a_text_file_has_a_sentence_a_line(write):
    path = write("a.txt", "\ufeffOne cat .\n\nTwo  dogs\u2028there\r\nOne cat .\n")
    found = read_sentences([path])
    assert found.rows == [("One cat .",), ("Two dogs there",)] and found.width == 1
    assert found.ids == [f"{path}:1", f"{path}:3"]
    assert found.sources[0].rows == 2 and found.sources[0].dropped == {"blank": [2], "said before": [4]}
    assert (
        found.sources[0]
        .describe()
        .endswith("a.txt: 2 rows (1 left out: blank, line 2; 1 left out: said before, line 4)")
    )


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_a_tables_columns(write, delimiter):
    rows = [["id", "sentence1", "sentence2"], ["1", '"a ""b"", c"', "d"], ["2", '"two\nlines"', "d"], ["3", "e", ""]]
    path = write("a.csv", "\n".join(delimiter.join(row) for row in rows) + "\n")
    found = read_sentences([path])
    assert [row for (row,) in found.rows] == ['a "b", c', "d", "two lines", "e"]
    assert [name.rpartition(":")[2] for name in found.ids] == ["2", "2", "3", "5"]
    assert found.sources[0].dropped == {"said before": [3], "blank": [5]}
    assert [row for (row,) in read_sentences([path], ["sentence2"]).rows] == ["d"]


def test_several_files_say_each_sentence_once(write):
    files = [write("a.txt", "one\ntwo\n"), write("b.tsv", "id\ttext\n1\ttwo\n2\tthree\n")]
    found = read_sentences(files)
    assert [row for (row,) in found.rows] == ["one", "two", "three"]
    assert [source.rows for source in found.sources] == [2, 1] and found.sources[1].dropped == {"said before": [2]}


def test_a_files_kind_is_told_by_its_name_in_small_and_large_letters(write):
    found = read_sentences([write("T.CSV", "id,text\n1,one\n"), write("U.Tsv", "text\tid\ntwo\t2\n")])
    assert found.rows == [("one",), ("two",)]
    inference = [
        {"sentence1": "p", "sentence2": f"h {label}", "gold_label": label} for label in ("entailment", "contradiction")
    ]
    lines = "".join(json.dumps(row) + "\n" for row in inference)
    for name in ("SNLI.JSONL", "snli.ndjson"):
        assert read_pairs([write(name, lines)]).rows == [("p", "h entailment", "h contradiction")]
        assert keys_of([write(name, lines)]) == {"p", "hentailment", "hcontradiction", "entailment", "contradiction"}
    assert key("a, b") in keys_of([write("C.CSV", 'id,sentence\n7,"a, b"\n')])


@pytest.mark.parametrize("above", ["\n", "\r\n \t\r\n\n"])
def test_blank_lines_above_the_header_are_no_rows(write, above):
    """They count as lines of the file, and say nothing of what separates its columns."""
    lines = 1 + above.count("\n")
    for mark in ",\t":
        table = write("t.csv", above + f"id{mark}sentence\n1{mark}one\n\n2{mark}two\n")
        found = read_sentences([table])
        assert found.rows == [("one",), ("two",)]
        assert found.ids == [f"{table}:{lines + 1}", f"{table}:{lines + 3}"]
    assert key("two") in keys_of([table])
    assert read_pairs([write("p.csv", f"{above}sent0,sent1\na,b\n")]).rows == [("a", "b")]
    rows = "gold_label\tsentence1\tsentence2\nentailment\tp\th\ncontradiction\tp\tc\n"
    assert read_pairs([write("m.txt", above + rows)]).rows == [("p", "h", "c")]
    for read, name, content, message in (
        (read_sentences, "a.csv", "id,words\n1,x\n", f"a.csv, line {lines}: no column"),
        (read_sentences, "a.csv", "id,text\n1,a,b\n", f"a.csv, line {lines + 1}: 3 columns"),
        (read_pairs, "a.csv", "a,b\n1,2\n", f"a.csv, line {lines}: found 'a', 'b'"),
        (read_pairs, "a.txt", "gold_label\tsentence1\n", f"a.txt, line {lines}: no column 'sentence2'"),
    ):
        with pytest.raises(InputError, match=message):
            read([write(name, above + content)])


def test_pairs_triples_and_duplicates(write):
    pairs = write("p.csv", 'sent0,sent1\n"a, b",c\nd,\n')
    found = read_pairs([pairs])
    assert found.rows == [("a, b", "c")] and found.sources[0].dropped == {"blank": [3]}
    triples = write("t.csv", "sent0,sent1,hard_neg\na,b,c\n")
    assert read_pairs([triples]).rows == [("a", "b", "c")]
    course = write(
        "q.csv", "\tid\tsentence1\tsentence2\tis_duplicate\n0\tx\ta\tb\t1.0\n1\ty\tc\td\t0.0\n2\tz\te\tf\t\n"
    )
    found = read_pairs([course])
    assert found.rows == [("a", "b")]
    assert found.sources[0].dropped == {"no duplicates": [3], "blank is_duplicate": [4]}
    with pytest.raises(InputError, match="p.csv has pairs and .*t.csv has triples: train on the one or the other"):
        read_pairs([pairs, triples])


INFERENCE = [
    ("p", "e1", "entailment"),
    ("p", "c1", "contradiction"),
    ("p", "n", "neutral"),
    ("p", "e2", "entailment"),
    ("q", "e3", "entailment"),
    ("r", "c2", "contradiction"),
    ("p", "e4", "-"),
]
TRIPLES = [("p", "e1", "c1"), ("p", "e2", "c1")]
LEFT_OUT = {"no label that annotators agree on": 7, "an entailment of a premise without contradiction": 5}


def test_inference_becomes_triples_in_every_layout(write):
    lines = [json.dumps({"sentence1": p, "sentence2": h, "gold_label": label}) for p, h, label in INFERENCE]
    jsonl = write("snli_1.0_train.jsonl", "\n".join(lines) + "\n")
    official = "gold_label\tx\tsentence1\tsentence2\tlabel1\n" + "".join(
        f"{label}\t( {p} )\t{p}\t{h}\t{label}\n" for p, h, label in INFERENCE
    )
    tsv = write("snli_1.0_train.txt", official)
    folder = write("SNLI/s1.dev", "".join(f"{p} \n" for p, _, _ in INFERENCE)).parent
    write("SNLI/s2.dev", "".join(f"{h}\n" for _, h, _ in INFERENCE))
    write("SNLI/labels.dev", "".join(f"{label}\n" for _, _, label in INFERENCE))
    for path, first in ((jsonl, 1), (tsv, 2), (folder, 1), (folder / "s1.dev", 1)):
        found = read_pairs([path])
        assert found.rows == TRIPLES and found.width == 3
        assert found.sources[0].dropped == {reason: [line + first - 1] for reason, line in LEFT_OUT.items()}
    write("SNLI/s1.train", "p\np\n")
    write("SNLI/s2.train", "e\nc\n")
    write("SNLI/labels.train", "entailment\ncontradiction\n")
    found = read_pairs([folder])  # the train part, where there is one
    assert found.rows == [("p", "e", "c")] and found.sources[0].path.name == "s1.train"
    before = found.sources[0].sha256
    write("SNLI/labels.train", "entailment\ncontradiction\n\n".replace("\n\n", "\n"))
    assert read_pairs([folder]).sources[0].sha256 == before
    write("SNLI/s2.train", "e!\nc\n")
    assert read_pairs([folder]).sources[0].sha256 != before  # it is of all three files


def test_a_quote_is_a_quote_in_the_authors_tables(write):
    rows = 'gold_label\tsentence1\tsentence2\nentailment\t"p\th\ncontradiction\t"p\t"c"\n'
    assert read_pairs([write("m.txt", rows)]).rows == [('"p', "h", '"c"')]


def test_a_course_file_is_read_as_the_tasks_read_it(write):
    """A quote that ends before its field does is no fault there."""
    path = write("quora.csv", 'id\tsentence\n1\t"Quoted" start of a question\n2\t"two ""words"""\n')
    assert read_sentences([path]).rows == [("Quoted start of a question",), ('two "words"',)]


def test_sentences_of_evaluation_sets_are_left_out_and_counted(write):
    """Whatever their layout and tokenisation; of a triple one sentence is enough."""
    files = [
        write("sets/STS.input.x.txt", "A man , a plan .\tSomething else\n"),
        write("sets/sts-dev.csv", 'genre\tfile\t2012\t0001\t3.80\tHe said "no\tBare quotes\n'),
        write("sets/deep/q.jsonl", '{"_id": "1", "text": "What is it?"}\n'),
        write("sets/c.csv", 'id,sentence\n7,"Comma, here"\n'),
    ]
    keys = keys_of([files[0].parent])
    assert keys == keys_of([files[1], files[0], *files[2:]])
    for text in ("a man, a plan.", 'HE SAID "NO', "bare QUOTES", "What is it ?", "comma , here"):
        assert key(text) in keys
    assert "380" not in keys and "" not in keys
    data = read_sentences(
        [write("t.txt", "what is it\nfresh\n3.80\n...\nbare quotes\n"), write("u.txt", "Comma here\nold\n")]
    )
    assert data.shared(keys) == [0, 4, 5]
    left = data.without(keys, "shared")
    assert [row for (row,) in left.rows] == ["fresh", "3.80", "...", "old"]
    assert [source.dropped for source in left.sources] == [{"shared": [1, 5]}, {"shared": [1]}]
    assert [source.rows for source in left.sources] == [3, 1]
    assert data.sources[0].dropped == {}  # what was handed in stays
    triples = read_pairs([write("t.csv", "sent0,sent1,hard_neg\na,b,c\nd,e,What is it!\n")])
    assert triples.without(keys, "shared").rows == [("a", "b", "c")]
    with pytest.raises(InputError, match="every row is left out: shared: choose other files"):
        data.without({key(row[0]) for row in data.rows}, "shared")


def test_a_share_is_a_part_of_a_larger_one_and_the_rest_is_counted(write):
    sizes = (("a.txt", 30), ("b.txt", 10))
    files = [write(name, "".join(f"{name} {i}\n" for i in range(lines))) for name, lines in sizes]
    data = read_sentences(files)
    half, fifth = (data.share(share, "beyond") for share in (0.5, 0.2))
    assert len(half) == 20 and len(fifth) == 8 and set(fifth.rows) < set(half.rows) < set(data.rows)
    assert half.rows == [row for row in data.rows if row in half.rows]  # in the files' order
    for source, path in zip(half.sources, files, strict=True):
        kept = [int(name.rpartition(":")[2]) for name in half.ids if name.startswith(f"{path}:")]
        everything = sorted(kept + source.dropped["beyond"])
        assert source.rows == len(kept) and everything == list(range(1, dict(sizes)[path.name] + 1))
    assert data.sources[0].dropped == {} and len(data.share(1e-9, "beyond")) == 1


@pytest.mark.parametrize(
    ("read", "name", "content", "message"),
    [
        (read_sentences, "a.txt", b"", "a.txt: the file is empty"),
        (read_sentences, "a.txt", b"\n \n", "a.txt: nothing but blank lines: fetch"),
        (read_sentences, "a.txt", "\u200b\n\u200e \n".encode(), "a.txt: nothing but blank lines: fetch"),
        (read_sentences, "a.txt", b"one\ntw\xff\n", "a.txt, line 2: byte 0xff is not UTF-8; save the file as UTF-8"),
        (read_sentences, "a.txt", "one\n".encode("utf-16-le"), "a.txt, line 1: a NUL character"),
        (
            read_sentences,
            "a.csv",
            b"id,words\n1,x\n",
            "a.csv, line 1: no column 'sentence'.*found 'id', 'words'.*--column",
        ),
        (read_sentences, "a.csv", b"text\n", "a.csv: no sentence: choose another"),
        (read_sentences, "a.csv", b'id,text\n1,ok\n2,"open\n3,x\n', "a.csv, line 3: unexpected end of data: close"),
        (read_sentences, "a.csv", b'id,text\n1,"a" b\n', "a.csv, line 2: .*double quotes inside quotes"),
        (read_sentences, "a.csv", b'id\ttext\n1\t"a\n2\tb\n', 'a.csv, line 2: the quote before "a'),
        (read_sentences, "a.csv", b"\n\nid\ttext\n1\ta\tb\n", "a.csv, line 4: 3 columns, wanted 2 as in the header"),
        (read_sentences, "a.csv", b"id,text\n1,a,b\n", "a.csv, line 2: 3 columns, wanted 2 as in the header"),
        (read_pairs, "a.csv", b"a,b\n1,2\n", "a.csv, line 1: found 'a', 'b'; wanted sent0, sent1"),
        (read_pairs, "a.csv", b"sent0,sent1\n,x\n", r"a.csv: nothing to train on \(1 blank\)"),
        (read_pairs, "a.jsonl", b'{"sentence1": "a"\n', "a.jsonl, line 1: not JSON"),
        (read_pairs, "a.jsonl", b"\n[1]\n", r"a.jsonl, line 2: '\[1\]', wanted a JSON object"),
        (read_pairs, "a.jsonl", b'{"sentence1": "a"}\n', "a.jsonl, line 1: found 'sentence1'; wanted texts"),
        (
            read_pairs,
            "a.txt",
            b"gold_label\tsentence1\tsentence2\nmaybe\ta\tb\n",
            "a.txt, line 2: the label is 'maybe', wanted entailment, neutral, contradiction or -",
        ),
        (read_pairs, "a.txt", b"gold_label\tsentence1\n", "a.txt, line 1: no column 'sentence2'"),
        (read_pairs, "a.txt", b"gold_label\tsentence1\tsentence2\nneutral\n", "a.txt, line 2: 1 columns, wanted 3"),
    ],
)
def test_bad_files_are_named_with_line_and_remedy(write, read, name, content, message):
    with pytest.raises(InputError, match=message):
        read([write(name, content)])


def test_files_of_a_set_that_do_not_fit(write):
    folder = write("S/s1.dev", "a\nb\n").parent
    write("S/s2.dev", "a\n")
    write("S/labels.dev", "neutral\nneutral\n")
    with pytest.raises(InputError, match="s2.dev: 1 lines, wanted 2 as in s1.dev: fetch both again"):
        read_pairs([folder])
    with pytest.raises(InputError, match="a folder without s1.train or s1.dev"):
        read_pairs([folder.parent])
    with pytest.raises(InputError, match="cannot read .*nowhere"):
        read_sentences([folder / "nowhere.txt"])
    (folder / "empty").mkdir()
    with pytest.raises(InputError, match="empty: no file in this folder"):
        keys_of([folder / "empty"])


def test_a_field_may_be_longer_than_csv_likes(write):
    long = "word " * 40_000
    assert read_sentences([write("a.csv", f"text\n{long}\n")]).rows == [(long.strip(),)]


@pytest.mark.real_data
def test_real_files(real_data):
    triples = read_pairs([real_data / "nli" / "SNLI"])
    assert triples.width == 3 and len({row[0] for row in triples.rows}) == 2943
    course = real_data / "cs224n"
    names = ("ids-sst-train.csv", "quora-train.csv", "sts-train.csv")
    sentences = read_sentences([course / name for name in names])
    assert len(sentences) > 10_000
    keys = keys_of([real_data / "sts" / "original", course / "sts-dev.csv"])
    left = sentences.without(keys, "shared")
    assert 0 < len(left) < len(sentences)
    assert not left.shared(keys)
