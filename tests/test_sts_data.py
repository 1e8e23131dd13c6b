"""Reading STS, its benchmark and SICK: small files in each set's layout, damaged ones, and the real ones' counts."""

import csv
import os

import pytest
from test_data_check import write

import course_data
from errors import InputError
from sts_data import DEPTH, NAMES, SUBSETS, read_pairs, read_sets
from tasks import STS


def year(folder, name, rows=None, prefix="STS", end="\n"):
    """A year's files. rows: subset -> list of (sentence, sentence, score as text); others get two rows of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    for subset in SUBSETS[name]:
        own = (rows or {}).get(subset, [(f"a {subset}", "b", "1.5"), (f"c {subset}", "d", "4")])
        for kind, lines in (("input", ["\t".join(row[:-1]) for row in own]), ("gs", [row[-1] for row in own])):
            content = "".join(line + end for line in lines)
            (folder / f"{prefix}.{kind}.{subset}.txt").write_bytes(content.encode())
    return folder


def benchmark(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def row(score="2.5", first="A man.", second="A dog.", more=()):
    return ("main-captions", "MSRvid", "2012test", "0001", score, first, second, *more)


def sick(path, rows, header="pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


# ---------------------------------------------------------------------------------------------------------------------
# The years


@pytest.mark.parametrize("name", SUBSETS)
def test_a_year_is_known_by_its_files(tmp_path, name):
    (found,) = read_sets([year(tmp_path / "any name", name)])
    assert found.name == name and tuple(found.subsets) == SUBSETS[name]
    assert len(found) == 2 * len(SUBSETS[name]) and found.skipped == 0
    pairs = found.subsets["headlines" if name != "STS12" else "MSRvid"]
    assert pairs.first[0].startswith("a ") and pairs.second == ["b", "d"] and pairs.scores.tolist() == [1.5, 4.0]


def test_pairs_that_nobody_scored_are_skipped_and_counted(tmp_path):
    rows = [("one", "two", "1.000"), ("three", "four", ""), ("five", "six", "0"), ("seven", "eight", " "), ("", "", "")]
    year(tmp_path, "STS15", {"belief": rows})
    (found,) = read_sets([tmp_path])
    pairs = found.subsets["belief"]
    assert (pairs.first, pairs.second, pairs.scores.tolist()) == (["one", "five"], ["two", "six"], [1.0, 0.0])
    assert len(pairs) == 2 and pairs.skipped == found.skipped == 3


def test_2016_has_four_columns_and_another_name(tmp_path):
    rows = {"plagiarism": [("one", "two", "a source", "another", "3"), ("three", "four", "a source", "another", "")]}
    year(tmp_path, "STS16", rows, prefix="STS2016")
    (found,) = read_sets([tmp_path])
    assert found.name == "STS16" and found.subsets["plagiarism"].second == ["two"] and found.skipped == 1


def test_line_ends_marks_and_what_unicode_calls_a_line(tmp_path):
    rows = {"FNWN": [("one\u2028more", "two\x85more", "3"), ("x", "y", "2")]}
    year(tmp_path, "STS13", rows, end="\r\n")
    path = tmp_path / "STS.gs.FNWN.txt"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    pairs = read_sets([tmp_path])[0].subsets["FNWN"]
    assert pairs.first == ["one\u2028more", "x"] and pairs.second == ["two\x85more", "y"]
    assert pairs.scores.tolist() == [3, 2]


def test_a_subset_that_is_not_reported_is_left_alone(tmp_path):
    year(tmp_path, "STS13")
    (tmp_path / "STS.input.SMT.txt").write_text("nothing of the kind")
    assert tuple(read_sets([tmp_path])[0].subsets) == SUBSETS["STS13"]


def test_files_that_could_be_of_several_years(tmp_path):
    year(tmp_path, "STS13")
    (tmp_path / "STS.input.FNWN.txt").unlink()
    with pytest.raises(InputError, match="'STS.input.OnWN.txt', 'STS.input.headlines.txt' could be of several years"):
        read_sets([tmp_path])
    for name in ("STS14", "STS16"):
        year(tmp_path, name)
    with pytest.raises(InputError, match="files of STS14 and STS16 in one folder"):
        read_sets([tmp_path])


DAMAGE = {
    "cut": ("STS.gs.images.txt", "3\n", r"gs\.images\.txt: 1 lines, wanted 2 as in STS\.input\.images\.txt"),
    "columns": ("STS.input.images.txt", "a b\nc\td\n", r"input\.images\.txt, line 1: 'a b', wanted two sentences"),
    "blank": ("STS.input.images.txt", "a\tb\n \td\n", r"input\.images\.txt, line 2: ' \\td', wanted two sentences"),
    "word": ("STS.gs.images.txt", "3\nx\n", r"gs\.images\.txt, line 2: the score is 'x', wanted a number from 0 to 5"),
    "range": ("STS.gs.images.txt", "5.1\n3\n", r"line 1: the score is '5\.1', wanted a number from 0 to 5"),
    "nan": ("STS.gs.images.txt", "nan\n3\n", r"line 1: the score is 'nan'"),
    "empty": ("STS.gs.images.txt", "", r"gs\.images\.txt: the file is empty: fetch"),
    "unscored": ("STS.gs.images.txt", "\n \n", r"gs\.images\.txt: no pair with a score: fetch"),
    "bytes": ("STS.input.images.txt", b"a\tb\n\xff\td\n", r"input\.images\.txt, line 2: byte 0xff is not UTF-8"),
}


@pytest.mark.parametrize("name, content, said", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_named(tmp_path, name, content, said):
    year(tmp_path, "STS14")
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=said) as error:
        read_sets([tmp_path])
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    year(tmp_path, "STS12")
    (tmp_path / "STS.gs.MSRvid.txt").unlink()
    with pytest.raises(InputError, match=r"cannot read .*STS\.gs\.MSRvid\.txt"):
        read_sets([tmp_path])
    (tmp_path / "STS.input.surprise.OnWN.txt").unlink()
    with pytest.raises(InputError, match=r"STS12 without 'STS\.input\.surprise\.OnWN\.txt': .*--sets"):
        read_sets([tmp_path])


# ---------------------------------------------------------------------------------------------------------------------
# The files of one piece


def test_the_benchmark_has_seven_columns_or_nine_and_bare_quotes(tmp_path):
    quotes = row("5.000", 'He said "no.', '"No" he said.')
    path = benchmark(tmp_path / "sts-test.csv", [quotes, row("0", more=("http", "http")), row("")])
    pairs = read_pairs(path)
    assert pairs.first == ['He said "no.', "A man."] and pairs.second == ['"No" he said.', "A dog."]
    assert pairs.scores.tolist() == [5.0, 0.0] and pairs.skipped == 1
    (found,) = read_sets([tmp_path])
    assert found.name == "STS-B-test" and found.subsets["test"].first == pairs.first


def test_the_course_s_file_of_the_same_name_is_told_apart(tmp_path):
    write(tmp_path, STS, "dev", [("A cat.", "Why, a dog?", 2.5), ("One.", "Two.", 1.0)])
    benchmark(tmp_path / "STSBenchmark" / "sts-dev.csv", [row()])
    course, theirs = reversed(read_sets([tmp_path]))
    assert (theirs.name, course.name) == ("STS-B-dev", "course-dev")
    assert course.subsets["dev"].second == ["why , a dog ?", "two ."]  # as the course cleans it
    assert read_pairs(tmp_path / "sts-dev.csv").scores.tolist() == [2.5, 1.0]


def test_sick_in_parts(tmp_path):
    sick(tmp_path / "SICK_trial.txt", ["4\tA boy\tNo boy\t3.6\tCONTRADICTION", "5\tOne\tTwo\t1\tNEUTRAL"])
    sick(tmp_path / "SICK_test_annotated.txt", ["9\tA\tB\t5\tENTAILMENT"])
    sick(tmp_path / "SICK_test.txt", ["9\tA\tB"], "pair_ID\tsentence_A\tsentence_B")  # without scores: not a set
    trial, test = read_sets([tmp_path])
    assert (trial.name, test.name) == ("SICK-R-trial", "SICK-R-test") and len(test) == 1
    assert trial.subsets["trial"].first == ["A boy", "One"] and trial.subsets["trial"].scores.tolist() == [3.6, 1.0]


def test_sick_in_one_file(tmp_path):
    header = "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tSemEval_set"
    rows = [f"{i}\t{part} {i}\tb\tNEUTRAL\t{i}\t{part}" for i, part in enumerate(("TRAIN", "TEST", "TRIAL", "TEST"), 1)]
    sick(tmp_path / "SICK.txt", rows, header)
    trial, test = read_sets([tmp_path])
    assert trial.subsets["trial"].first == ["TRIAL 3"] and test.subsets["test"].scores.tolist() == [2, 4]
    (train,) = read_sets([tmp_path], ["SICK-R-train"])
    assert train.subsets["train"].first == ["TRAIN 1"]


@pytest.mark.parametrize(
    "lines, said",
    (
        ([row(), row()[:6]], r"line 2: 6 columns, wanted 7 or more \(genre, file, year, number, score"),
        ([row("6")], "line 1: the score is '6', wanted a number from 0 to 5"),
        ([row(first=" ")], "line 1: a blank sentence, wanted two"),
        ([row("")], "no pair with a score"),
        ([("",)], "line 1: 1 columns, wanted 7"),
        ([], "the file is empty"),
    ),
)
def test_a_damaged_benchmark(tmp_path, lines, said):
    with pytest.raises(InputError, match=f"sts-dev.csv.*{said}"):
        read_pairs(benchmark(tmp_path / "sts-dev.csv", lines))


@pytest.mark.parametrize(
    "line, said",
    (
        ("4\tA\tB\t0.5\tNEUTRAL", "line 3: the score is '0.5', wanted a number from 1 to 5"),
        ("4\tA\tB\t3", "line 3: 4 columns, wanted 5 as in line 1"),
        ("4\tA\t\t3\tNEUTRAL", "line 3: a blank sentence"),
    ),
)
def test_a_damaged_sick(tmp_path, line, said):
    with pytest.raises(InputError, match=said):
        read_pairs(sick(tmp_path / "SICK_trial.txt", ["1\tA\tB\t3\tNEUTRAL", line]))


def test_sick_without_its_parts(tmp_path):
    sick(tmp_path / "SICK.txt", ["1\tA\tB\t3\tNEUTRAL"])
    with pytest.raises(InputError, match="SICK.txt, line 1: no column 'SemEval_set'; found 'pair_ID'"):
        read_sets([tmp_path])


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot read .*nowhere.csv"):
        read_pairs(tmp_path / "nowhere.csv")


# ---------------------------------------------------------------------------------------------------------------------
# Which sets


def test_sets_come_in_the_order_of_reports_from_folders_below(tmp_path):
    sick(tmp_path / "z" / "SICK_trial.txt", ["1\tA\tB\t3\tNEUTRAL"])
    benchmark(tmp_path / "b" / "sts-dev.csv", [row()])
    benchmark(tmp_path / "b" / "sts-train.csv", [row()])
    for name in reversed(SUBSETS):
        year(tmp_path / "a" / name, name)
    names = [found.name for found in read_sets([tmp_path / "z", tmp_path])]  # z is looked at twice, and found once
    assert names == [name for name in NAMES if name in {*SUBSETS, "STS-B-dev", "SICK-R-trial"}]
    assert [found.name for found in read_sets([tmp_path], ["STS-B-train", "STS14"])] == ["STS14", "STS-B-train"]


def test_what_is_not_wanted_is_not_read(tmp_path):
    (year(tmp_path / "12", "STS12") / "STS.gs.MSRvid.txt").write_text("damaged")
    benchmark(tmp_path / "sts-dev.csv", [row()])
    assert [found.name for found in read_sets([tmp_path], ["STS-B-dev"])] == ["STS-B-dev"]


def test_names_that_are_not_there_or_none(tmp_path):
    year(tmp_path, "STS12")
    with pytest.raises(InputError, match="no STS13 there; found STS12: name its folder"):
        read_sets([tmp_path], ["STS13"])
    with pytest.raises(InputError, match="'STSB' is not known; known: STS12, .*STS-B-dev"):
        read_sets([tmp_path], ["STSB"])
    with pytest.raises(InputError, match="nowhere: no such folder"):
        read_sets([tmp_path / "nowhere"])
    assert read_sets([tmp_path], []) == []


def test_one_set_in_two_places(tmp_path):
    for name in ("original", "tokenised"):
        year(tmp_path / name, "STS12")
    with pytest.raises(InputError, match="STS12 is in .*original and in .*tokenised: name the folder of one of them"):
        read_sets([tmp_path])
    assert len(read_sets([tmp_path / "original"])) == 1


def test_the_bundled_sample_below_the_course_s_files_is_not_another_set(tmp_path, monkeypatch):
    """After `setup.sh --full` both stand in data/, and the default folder is that one."""
    (tmp_path / "sample").mkdir()
    line = "\t0\tx\ta cat\ta dog\t{}\n"
    for folder, score in ((tmp_path, 1.0), (tmp_path / "sample", 2.0)):
        (folder / "sts-dev.csv").write_text("\tid\tsentence1\tsentence2\tsimilarity\n" + line.format(score)[1:])
    with pytest.raises(InputError, match="course-dev is in .* and in "):
        read_sets([tmp_path])
    monkeypatch.setattr(course_data, "DATA", tmp_path.resolve())
    assert [one.path for one in read_sets([tmp_path])] == [tmp_path / "sts-dev.csv"]
    assert [one.path for one in read_sets([tmp_path / "sample"])] == [tmp_path / "sample" / "sts-dev.csv"]
    (tmp_path / "sts-dev.csv").unlink()
    assert [one.path for one in read_sets([tmp_path])] == [tmp_path / "sample" / "sts-dev.csv"]


def test_links_are_followed_but_not_in_circles(tmp_path):
    year(tmp_path / "far" / "STS12", "STS12")
    (tmp_path / "data").mkdir()
    os.symlink(tmp_path / "far", tmp_path / "data" / "far")
    os.symlink(tmp_path / "data", tmp_path / "data" / "round")
    assert [found.name for found in read_sets([tmp_path / "data"])] == ["STS12"]
    benchmark(tmp_path / "deep" / "/".join("d" * (DEPTH + 1)) / "sts-dev.csv", [row()])
    benchmark(tmp_path / "deep" / ".hidden" / "sts-dev.csv", [row()])
    assert read_sets([tmp_path / "deep"]) == []


def test_sentences_are_said_once(tmp_path):
    benchmark(tmp_path / "sts-dev.csv", [row(), row(first="A dog.", second="A man."), row(second="A hat.")])
    assert read_sets([tmp_path])[0].sentences() == ["A man.", "A dog.", "A hat."]


# ---------------------------------------------------------------------------------------------------------------------
# The real files


@pytest.mark.real_data
def test_real_counts(real_data):
    found = {data.name: data for data in read_sets([real_data / "sts" / "original", real_data / "sts" / "SICK"])}
    assert {name: (len(data), data.skipped) for name, data in found.items()} == {
        "STS12": (3108, 0),
        "STS-B-dev": (1500, 0),
        "SICK-R-trial": (500, 0),
    }
    sizes = {name: len(pairs) for name, pairs in found["STS12"].subsets.items()}
    assert list(sizes.values()) == [750, 750, 459, 750, 399]
    assert found["STS-B-dev"].subsets["dev"].second[0] == "A man wearing a hard hat is dancing."
    (tokenised,) = read_sets([real_data / "sts" / "senteval_tokenised"])
    for name, pairs in tokenised.subsets.items():
        assert pairs.scores.tolist() == found["STS12"].subsets[name].scores.tolist()


@pytest.mark.real_data
def test_the_real_benchmark_as_csv_reads_it_without_quoting(real_data):
    path = real_data / "sts" / "original" / "STSBenchmark" / "sts-dev.csv"
    with open(path, encoding="utf-8", newline="") as file:
        theirs = [r[4:7] for r in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    ours = read_pairs(path)
    assert [(float(r[0]), r[1].strip(), r[2].strip()) for r in theirs] == list(
        zip(ours.scores.tolist(), ours.first, ours.second, strict=True)
    )
