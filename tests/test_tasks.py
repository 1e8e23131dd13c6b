"""Tasks: the course's file names and headers to the letter, and its leaderboard's arithmetic.

Follows the CS 224N default project's handout and starter.
"""

import pytest

from errors import InputError
from evaluation import check_known
from tasks import PARA, SST, STS, TASKS, leaderboard_score, parse_tasks


def test_files_and_headers_are_the_courses():
    assert SST.files == {"train": "ids-sst-train.csv", "dev": "ids-sst-dev.csv", "test": "ids-sst-test-student.csv"}
    assert PARA.files == {"train": "quora-train.csv", "dev": "quora-dev.csv", "test": "quora-test-student.csv"}
    assert STS.files == {"train": "sts-train.csv", "dev": "sts-dev.csv", "test": "sts-test-student.csv"}
    assert TASKS["cfimdb"].files["test"] == "ids-cfimdb-test-student.csv"
    assert [task.header for task in (SST, PARA, STS)] == [
        "id \t Predicted_Sentiment ",
        "id \t Predicted_Is_Paraphrase ",
        "id \t Predicted_Similiary ",  # spelled so
    ]
    assert [task.predictions_file("dev") for task in (SST, PARA, STS)] == [
        "sst-dev-output.csv",
        "para-dev-output.csv",
        "sts-dev-output.csv",
    ]


def test_the_posters_heads():
    assert [(task.attention, task.output_size, task.output_multiple) for task in (SST, PARA, STS)] == [
        (("self", 2), 5, 1),
        (("cross", 1), None, 1),
        (("cross", 3), None, 4),
    ]


@pytest.mark.parametrize("task", list(TASKS.values()), ids=lambda task: task.name)
def test_an_entry_agrees_with_itself(task):
    assert TASKS[task.name] is task
    check_known([task])
    assert task.title.isprintable() and "\n" not in task.header


def test_names_become_tasks_in_the_order_given():
    assert parse_tasks("sts, sst") == (STS, SST)
    for names, words in (
        ("sst,none", "--tasks sst,none: 'none' is not known; known: sst, para, sts, cfimdb"),
        ("sst,sts,sst", "--tasks sst,sts,sst: 'sst' is named twice"),
        ("", "--tasks : '' is not known"),
        ("sst,", "'' is not known"),
    ):
        with pytest.raises(InputError, match=words):
            parse_tasks(names)


def test_the_posters_leaderboard_score():
    # (0.524 + 0.842 + 1.826 / 2) / 3 = 0.759..., from its best submission.
    assert leaderboard_score({"sst": 0.524, "para": 0.842, "sts": 0.826}) == pytest.approx(0.75967, abs=1e-5)
    assert leaderboard_score({"sts": -1.0}) == 0.0
    assert leaderboard_score({"cfimdb": 0.9}) == pytest.approx(0.9)


def test_an_undefined_correlation_counts_as_none():
    assert STS.leaderboard(None) == 0.5 == STS.leaderboard(0.0)
    assert SST.leaderboard(None) == 0.0
