"""A right submission is zipped, the same bytes each time, and each way of being wrong is refused by name.

Follows the course's prediction format; data, runs and predictions are a few rows made here.
"""

import hashlib
import os
import shutil
import zipfile

import pytest

import prepare_submit
import weights
from course_data import BLOBS, blob_id, is_course_file
from errors import InputError
from files import read_json, write_json
from prepare_submit import ARCHIVE, SPLITS, SUBMITTED, main
from tasks import PARA, SST, STS

IDS = ["aa1", "bb2", "cc3", "dd4"]
LABELS = {"sst": [0, 4, 2, 3], "para": [1.0, 0.0, 1.0, 1.0], "sts": [0.0, 4.6, 2.5, 5.0]}
# On dev: 3 of 4 right, 2 of 4 right, and a correlation of exactly 1.
ANSWERS = {"sst": [0, 4, 2, 1], "para": [0.0, 0.0, 1.0, 0.0], "sts": [-10.0, 36.0, 15.0, 40.0]}


def write_data(folder):
    folder.mkdir(parents=True)
    for task in SUBMITTED:
        for split, name in task.files.items():
            columns = ["", "id", *task.columns] + ([] if split == "test" else [task.label])
            ids = IDS if split == "dev" else [f"{split}{key}" for key in IDS]
            rows = ["\t".join(columns)]
            for number, key in enumerate(ids):
                label = [] if split == "test" else [str(LABELS[task.name][number])]
                rows.append("\t".join([str(number), key, *[f"{column} {number}" for column in task.columns], *label]))
            (folder / name).write_text("\n".join(rows) + "\n")


def write_predictions(folder, answers):
    folder.mkdir(parents=True, exist_ok=True)
    for task in SUBMITTED:
        for split in SPLITS:
            # Another order than the data's: rows are joined by id.
            pairs = list(zip(IDS, answers[task.name], strict=True))[::-1]
            prefix = "" if split == "dev" else split
            text = "".join(f"{prefix}{key} , {value} \n" for key, value in pairs)
            (folder / task.predictions_file(split)).write_text(f"{task.header}\n{text}")


def write_run(root, name, answers, data="data"):
    run = root / "runs" / name
    write_predictions(run / "predictions", answers)
    files = {
        task.name: {
            split: {
                "path": f"{data}/{file}",
                "rows": 4,
                "dropped": 0,
                "sha256": hashlib.sha256((root / data / file).read_bytes()).hexdigest(),
            }
            for split, file in task.files.items()
        }
        for task in SUBMITTED
    }
    model = {"name": "bert-base-uncased", "sha256": weights.BERT_BASE.tensors.sha256}
    write_json(run / "config.json", {"model": model, "data": files})
    return run


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder like the repository's after a finished run that the course allows."""
    monkeypatch.setattr(prepare_submit, "is_course_file", lambda path: path.parent.name == "data")
    root = tmp_path / "root"
    write_data(root / "data")
    write_predictions(root / "predictions", ANSWERS)
    write_run(root, "first", ANSWERS)
    (root / "bert.py").write_text("import torch\n")
    (root / "tests").mkdir()
    (root / "tests" / "test_bert.py").write_text("")
    (root / "README.md").write_text("")
    return root


def edit(root, task, split, change):
    """Changes one prediction file, in predictions/ and in the run that wrote it."""
    for folder in (root / "predictions", root / "runs" / "first" / "predictions"):
        path = folder / task.predictions_file(split)
        path.write_bytes(change(path.read_bytes()))


def refused(root, capsys, *arguments):
    """The lines on stderr of a refusal, which left no archive."""
    assert main([*arguments], root) == 1
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith(("error: ", "objection: ")) for line in lines)
    assert lines[-1].startswith(f"error: {ARCHIVE} was not written")
    assert not (root / ARCHIVE).exists()
    return lines[:-1]


def only(lines, *parts):
    assert len(lines) == 1, lines
    assert all(part in lines[0] for part in parts), lines[0]


# --- what is right -----------------------------------------------------------------------------------------------


def test_the_archive_holds_what_the_course_wants(root, capsys):
    (root / "predictions" / "README").write_text("extra")
    (root / "predictions" / ".half.tmp").write_text("never")
    (root / "templates").mkdir()
    (root / "templates" / "report.css").write_text("p { margin: 0 }")  # read where the code makes a report
    assert main([], root) == 0
    with zipfile.ZipFile(root / ARCHIVE) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [
            "bert.py",
            "predictions/README",
            "predictions/para-dev-output.csv",
            "predictions/para-test-output.csv",
            "predictions/sst-dev-output.csv",
            "predictions/sst-test-output.csv",
            "predictions/sts-dev-output.csv",
            "predictions/sts-test-output.csv",
            "templates/report.css",
        ]
        for name in archive.namelist():
            assert archive.read(name) == (root / name).read_bytes()
    out, err = capsys.readouterr()
    assert (
        err == "" and "sst   runs/first" in out and "wrote cs224n_default_final_project_submission.zip: 9 files" in out
    )


def test_the_expected_score_stands_beside_the_posters(root, capsys):
    assert main([], root) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["sentiment", "(SST-5)", "accuracy", "0.750", "0.524"] in lines
    assert ["paraphrase", "(Quora)", "accuracy", "0.500", "0.842"] in lines
    assert ["similarity", "(STS)", "pearson", "1.000", "0.826"] in lines
    # (0.75 + 0.5 + (1 + 1) / 2) / 3
    assert ["leaderboard", "score", "0.750", "0.759"] in lines


def test_the_same_input_gives_the_same_bytes(root):
    assert main([], root) == 0
    first = (root / ARCHIVE).read_bytes()
    for path in (root / "bert.py", root / "predictions" / "sst-dev-output.csv"):
        os.utime(path, (10**9, 10**9))
        path.chmod(0o600)
    assert main([], root) == 0
    assert (root / ARCHIVE).read_bytes() == first


def test_the_best_run_for_each_task_is_assembled(root, capsys):
    second = {**ANSWERS, "para": [1.0, 0.0, 1.0, 0.0]}
    run = write_run(root, "second", second)
    assert main(["--para", "second", "--sts", str(run)], root) == 0
    assert "0.833" in capsys.readouterr().out  # (0.75 + 0.75 + 1) / 3
    with zipfile.ZipFile(root / ARCHIVE) as archive:
        for task, name in ((SST, "first"), (PARA, "second"), (STS, "second")):
            for split in SPLITS:
                file = task.predictions_file(split)
                wanted = (root / "runs" / name / "predictions" / file).read_bytes()
                assert archive.read(f"predictions/{file}") == wanted == (root / "predictions" / file).read_bytes()


def test_a_refusal_changes_nothing(root, capsys):
    assert main([], root) == 0
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    write_run(root, "second", {**ANSWERS, "para": [1.0, 0.0, 1.0, 7.0]})
    assert main(["--para", "second"], root) == 1
    assert "(the one there is from before)" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before


def test_a_full_disk_keeps_the_old_archive(root, capsys, monkeypatch):
    (root / ARCHIVE).write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", lambda *a: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert main([], root) == 1
    assert "free some space on that disk" in capsys.readouterr().err
    assert (root / ARCHIVE).read_bytes() == b"old"
    assert not list(root.glob(".*"))


def test_data_that_moved_is_named(root, capsys):
    (root / "data").rename(root / "elsewhere")
    assert "data/ids-sst-dev.csv is gone since runs/first used it" in refused(root, capsys)[0]
    assert main(["--data", str(root / "elsewhere"), "--force"], root) == 0


# --- what is wrong -----------------------------------------------------------------------------------------------


def test_where_nothing_was_predicted_no_run_is_looked_for(tmp_path, capsys):
    assert main([], tmp_path) == 1
    assert [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()[:3]] == [
        "nothing to zip yet"
    ] * 3


def test_a_missing_file(root, capsys):
    (root / "predictions" / "sts-test-output.csv").unlink()
    only(refused(root, capsys), "predictions/sts-test-output.csv is missing: python multitask_classifier.py")


def test_a_header_spelled_rightly(root, capsys):
    edit(root, STS, "dev", lambda data: data.replace(b"Similiary", b"Similarity"))
    only(
        refused(root, capsys), "predictions/sts-dev-output.csv, line 1: the header is", "'id \\t Predicted_Similiary '"
    )


def test_a_row_without_its_spaces(root, capsys):
    edit(root, SST, "test", lambda data: data.replace(b"testbb2 , 4 ", b"testbb2,4"))
    only(refused(root, capsys), "predictions/sst-test-output.csv, line 4: 'testbb2,4', wanted 'id , value '")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (b"bb2 , 1 ", b"bb2 , 5 ", ", line 4: '5', wanted a whole number"),
        (b"bb2", b"zz9", ": 1 id without a prediction (bb2)"),
        (b" , 0 \n", b" , 1 \n", ": every prediction is 1: the model learned nothing"),
    ],
)
def test_a_named_run_s_own_file_is_named(root, capsys, old, new, fault):
    """Not the one in predictions/, which has no fault."""
    run = write_run(root, "second", {**ANSWERS, "sst": [0, 1, 1, 1]})
    path = run / "predictions" / SST.predictions_file("dev")
    path.write_bytes(path.read_bytes().replace(old, new))
    only(refused(root, capsys, "--sst", "second"), f" runs/second/predictions/sst-dev-output.csv{fault}")


def test_an_id_twice(root, capsys):
    edit(root, PARA, "dev", lambda data: data.replace(b"bb2", b"aa1"))
    only(refused(root, capsys), "predictions/para-dev-output.csv, line 5: id 'aa1' for the second time")


def test_an_id_missing(root, capsys):
    edit(root, PARA, "test", lambda data: data[: data.index(b"testaa1")])
    only(
        refused(root, capsys),
        "para-test-output.csv: 1 id without a prediction (testaa1): predict",
        "quora-test-student",
    )


def test_a_foreign_id(root, capsys):
    edit(root, SST, "dev", lambda data: data + b"zz9 , 1 \nyy8 , 2 \n")
    only(refused(root, capsys), "sst-dev-output.csv: 2 ids not in", "data/ids-sst-dev.csv (yy8, zz9)")


def test_test_predictions_in_the_place_of_dev(root, capsys):
    dev = (root / "predictions" / "sst-test-output.csv").read_bytes()
    edit(root, SST, "dev", lambda data: dev)
    only(refused(root, capsys), "sst-dev-output.csv: 4 ids without a prediction (aa1, bb2, cc3, ...)")


@pytest.mark.parametrize(
    ("task", "old", "new", "wanted"),
    [
        (SST, b"bb2 , 4 ", b"bb2 , 5 ", "line 4: '5', wanted a whole number from 0 to 4"),
        (SST, b"bb2 , 4 ", b"bb2 , 3.7 ", "line 4: '3.7', wanted a whole number"),
        (SST, b"bb2 , 4 ", b"bb2 , -1 ", "line 4: '-1', wanted a whole number"),
        (PARA, b"bb2 , 0.0 ", b"bb2 , 0.3 ", "line 4: '0.3', wanted a whole number from 0 to 1"),
        (PARA, b"bb2 , 0.0 ", b"bb2 , True ", "line 4: 'True', wanted a whole number from 0 to 1"),
        (STS, b"bb2 , 36.0 ", b"bb2 , nan ", "line 4: 'nan', wanted a finite number"),
        (STS, b"bb2 , 36.0 ", b"bb2 , inf ", "line 4: 'inf', wanted a finite number"),
        (STS, b"bb2 , 36.0 ", b"bb2 , [36.0] ", "line 4: '[36.0]', wanted a finite number"),
    ],
)
def test_a_value_out_of_range(root, capsys, task, old, new, wanted):
    edit(root, task, "dev", lambda data: data.replace(old, new))
    only(refused(root, capsys), wanted)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda data: b"", "line 1: the header is ''"),
        (lambda data: data[:-3], "line 5: the last line has no end, so it is cut off"),
        (lambda data: data.replace(b"\n", b"\r\n"), "carriage returns"),
        (lambda data: data.replace(b"cc3", b"cc\xff"), "line 3: not UTF-8"),
        (lambda data: data.replace(b"cc3", b"\xef\xbb\xbfcc3"), "without a prediction (cc3)"),
        (lambda data: b"\xef\xbb\xbf" + data, "line 1: the header is '\\ufeffid"),
    ],
)
def test_a_file_that_is_cut_or_of_another_kind(root, capsys, change, wanted):
    edit(root, SST, "dev", change)
    only(refused(root, capsys), wanted)


def test_a_file_changed_since_its_run_is_held_to_the_data_of_that_run(root, capsys):
    # Fetched meanwhile, the course's files stand in data/, and none of their ids is the sample's.
    (root / "data").rename(root / "sample")
    (root / "data").mkdir()
    (root / "sample").rename(root / "data" / "sample")
    write_run(root, "first", ANSWERS, data="data/sample")
    for path in (root / "data" / "sample").iterdir():
        text = path.read_text()
        (root / "data" / path.name).write_text(text.replace("aa1", "ww1").replace("bb2", "ww2"))
    changed = root / "predictions" / "sst-dev-output.csv"
    changed.write_bytes(changed.read_bytes().replace(b"bb2 , 4 ", b"bb2 , 5 "))
    only(refused(root, capsys, "--force"), "sst-dev-output.csv, line 4: '5', wanted a whole number from 0 to 4")


def test_what_can_be_forced_is_told_from_what_can_not(root, capsys):
    (root / "bert.py").write_text("import transformers\n")
    assert main([], root) == 1
    assert "--force writes it in spite of the objections" in capsys.readouterr().err
    (root / "predictions" / "sts-test-output.csv").unlink()
    for force, kinds in (([], ["error", "objection", "error"]), (["--force"], ["error", "error"])):
        assert main(force, root) == 1
        lines = capsys.readouterr().err.splitlines()
        assert [line.split(":")[0] for line in lines] == kinds
        assert "--force" not in lines[-1] and not (root / ARCHIVE).exists()


def test_every_fault_is_shown_at_once(root, capsys):
    (root / "predictions" / "sts-test-output.csv").unlink()
    edit(root, SST, "dev", lambda data: data.replace(b"bb2", b"aa1"))
    edit(root, PARA, "test", lambda data: data + b"zz9 , 1.0 \n")
    assert len(refused(root, capsys)) == 3


def test_data_that_changed_since_the_run(root, capsys):
    with open(root / "data" / "sts-dev.csv", "a") as file:
        file.write("4\tee5\ta\tb\t1.0\n")
    line = "data/sts-dev.csv has changed since runs/first used it: restore it"
    assert any(line in found for found in refused(root, capsys))


def test_a_link_that_leads_out(root, capsys, tmp_path):
    (tmp_path / "secret.txt").write_text("not yours")
    (root / "predictions" / "notes.txt").symlink_to(tmp_path / "secret.txt")
    only(refused(root, capsys, "--force"), "predictions/notes.txt leads out of")


def test_a_run_that_is_none(root, capsys):
    assert main(["--sst", "third"], root) == 1
    assert (
        capsys.readouterr().err
        == "error: third: no run there (no config.json): name a run's folder, or its name in runs/\n"
    )


@pytest.mark.parametrize("option", ["--sst", "--data"])
def test_an_empty_name_is_not_taken_for_none(root, capsys, option):
    """As of a shell's variable that is not set."""
    with pytest.raises(SystemExit) as ended:
        main([option, ""], root)
    assert ended.value.code == 2 and f"argument {option}: is empty" in capsys.readouterr().err
    assert not (root / ARCHIVE).exists()


@pytest.mark.parametrize(
    ("data", "tasks"),
    [
        (lambda found: {name: found[name] for name in ("sst", "sts")}, "sst, sts"),
        (lambda found: {"train": [], "dev": {}}, "none"),  # a run of contrastive.py
    ],
)
def test_a_run_without_the_task_it_is_named_for(root, capsys, data, tasks):
    """Said once for both files, and not as if the run had lost them."""
    run = write_run(root, "second", ANSWERS)
    path = run / "config.json"
    write_json(path, {**read_json(path), "data": data(read_json(path)["data"])})
    for split in SPLITS:
        (run / "predictions" / PARA.predictions_file(split)).unlink()
    lines = refused(root, capsys, "--para", "second")
    assert lines[0] == f"error: --para runs/second: this run has no such task; it has {tasks}: name another run"
    assert not any("para" in line for line in lines[1:])


def test_a_run_named_that_is_not_finished_is_said_to_be(root, capsys):
    run = write_run(root, "second", ANSWERS)
    (run / "scores.json").unlink(missing_ok=True)
    for split in SPLITS:
        (run / "predictions" / PARA.predictions_file(split)).unlink()
    lines = refused(root, capsys, "--para", "second")
    wanted = f"error: {run} is not finished (no scores.json): continue it with --resume {run}"
    assert lines[0] == wanted and not any("writes it" in line for line in lines)


# --- what the course does not allow: zipped only with --force ----------------------------------------------------


def zipped_only_with_force(root, capsys, *parts):
    lines = refused(root, capsys)
    only(lines, *parts)
    assert lines[0].startswith("objection: ")
    assert main(["--force"], root) == 0
    assert f"warning: {parts[0]}" in capsys.readouterr().err
    assert (root / ARCHIVE).exists()


def test_a_constant_column(root, capsys):
    edit(
        root,
        STS,
        "dev",
        lambda data: b"id \t Predicted_Similiary \n" + b"".join(b"%s , 2.5 \n" % k.encode() for k in IDS),
    )
    zipped_only_with_force(root, capsys, "predictions/sts-dev-output.csv: every prediction is 2.5: the model learned")
    assert main(["--force"], root) == 0
    assert "undefined" in capsys.readouterr().out


def test_other_weights(root, capsys):
    path = root / "runs" / "first" / "config.json"
    config = read_json(path)
    config["model"] = {"name": "all-MiniLM-L6-v2", "sha256": weights.MINILM.tensors.sha256}
    write_json(path, config)
    zipped_only_with_force(
        root, capsys, "runs/first started from all-MiniLM-L6-v2: the course allows bert-base-uncased"
    )


def test_the_sample_in_the_place_of_the_courses_data(root, capsys):
    (root / "data" / "sample").mkdir()
    for task in SUBMITTED:
        for file in task.files.values():
            (root / "data" / "sample" / file).write_bytes((root / "data" / file).read_bytes())
    write_run(root, "first", ANSWERS, data="data/sample")
    zipped_only_with_force(
        root, capsys, "runs/first used data that is not the course's: data/sample/ids-sst-train.csv and 8 more"
    )


def test_what_an_ensemble_s_runs_used_counts_too(root, capsys):
    """The ensemble's own config.json need not say what its runs were trained on."""
    sample = root / "data" / "sample"
    shutil.copytree(root / "data", sample)
    elsewhere = write_run(root, "elsewhere", ANSWERS, data="data/sample")
    shutil.rmtree(elsewhere / "predictions")
    path = root / "runs" / "first" / "config.json"
    write_json(path, read_json(path) | {"members": [str(elsewhere)]})
    message = "runs/first used data that is not the course's: data/sample/ids-sst-train.csv and 8 more"
    zipped_only_with_force(root, capsys, message)


def test_what_taught_a_run_counts_too(root, capsys):
    shutil.copytree(root / "data", root / "data" / "sample")
    teacher = write_run(root, "teacher", ANSWERS, data="data/sample")
    shutil.rmtree(teacher / "predictions")
    config = read_json(teacher / "config.json") | {"model": {"name": "another", "sha256": "0" * 64}}
    write_json(teacher / "config.json", config | {"options": {"epochs": 0}})
    path = root / "runs" / "first" / "config.json"
    write_json(path, read_json(path) | {"teachers": {str(teacher): "0" * 64}})
    assert prepare_submit.main([], root) == 1
    out, err = capsys.readouterr()
    assert "objection: runs/teacher started from another: the course allows bert-base-uncased alone\n" in err
    assert "objection: runs/first used data that is not the course's: data/sample/ids-sst-train.csv and 8 more\n" in err
    assert "note: runs/teacher is untrained (--epochs 0)\n" in out


@pytest.mark.parametrize(
    ("config", "message"),
    [([1], "no run's: run again"), ({"members": "x"}, "no run's"), (None, "made of itself")],
)
def test_a_member_s_config_that_is_none_is_one_line(root, capsys, config, message):
    member = write_run(root, "member", ANSWERS)
    shutil.rmtree(member / "predictions")
    whole = read_json(member / "config.json")
    if isinstance(config, list):
        write_json(member / "config.json", config)
    else:
        write_json(member / "config.json", whole | (config or {"members": [str(member)]}))
    path = root / "runs" / "first" / "config.json"
    write_json(path, read_json(path) | {"members": [str(member)]})
    assert prepare_submit.main([], root) == 1
    first, last = capsys.readouterr().err.splitlines()
    assert message in first and "was not written" in last


def test_an_ensemble_s_run_that_is_gone_is_no_data_file(root, capsys):
    path = root / "runs" / "first" / "config.json"
    write_json(path, read_json(path) | {"members": [str(root / "runs" / "gone")]})
    message = "runs/first is made of runs/gone, which is not there any more, so what it was trained on is unknown"
    zipped_only_with_force(root, capsys, message)


@pytest.mark.parametrize("member", [False, True])
def test_a_run_on_a_part_of_its_rows_or_without_training_is_remarked_on(root, capsys, member):
    run = write_run(root, "part", ANSWERS) if member else root / "runs" / "first"
    config = read_json(run / "config.json") | {"options": {"epochs": 0}}
    config["data"]["sst"]["train"] |= {"rows": 2136, "of": 8544}
    write_json(run / "config.json", config)
    if member:
        shutil.rmtree(run / "predictions")
        path = root / "runs" / "first" / "config.json"
        write_json(path, read_json(path) | {"members": [str(run)]})
    assert prepare_submit.main([], root) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if f"runs/{run.name} " in line and "note" in line]
    assert notes == [
        f"note: runs/{run.name} is untrained (--epochs 0)",
        f"note: runs/{run.name} was trained on 2,136 of 8,544 rows of sst (--fraction)",
    ]


def test_predictions_that_are_nowhere_else_are_kept(root, capsys):
    place = root / "predictions" / "sst-dev-output.csv"
    place.write_text(place.read_text() + "\n")
    mine = place.read_bytes()
    assert prepare_submit.main(["--sst", "first"], root) == 0
    assert "note: predictions of an unknown run were replaced, and are kept in " in capsys.readouterr().out
    kept = list((root / "predictions" / "replaced").iterdir())
    assert [path.read_bytes() for path in kept] == [mine] and place.read_bytes() != mine
    with zipfile.ZipFile(root / prepare_submit.ARCHIVE) as archive:
        assert not any("replaced" in name for name in archive.namelist())


def test_predictions_of_no_known_run(root, capsys):
    (root / "runs" / "first" / "predictions" / "para-test-output.csv").unlink()
    zipped_only_with_force(root, capsys, "no run in runs/ predicted both files of para, so the weights and data used")


def test_predictions_mixed_from_two_runs(root, capsys):
    other = write_run(root, "second", {**ANSWERS, "sst": [1, 1, 1, 2]})
    (root / "predictions" / "sst-test-output.csv").write_bytes(
        (other / "predictions" / "sst-test-output.csv").read_bytes()
    )
    zipped_only_with_force(root, capsys, "no run in runs/ predicted both files of sst")


def test_code_that_the_course_does_not_allow(root, capsys):
    (root / "bert.py").write_text("import torch\n\n\ndef load():\n    from transformers.models import bert\n")
    zipped_only_with_force(root, capsys, "bert.py, line 5: the course doesn't allow transformers")


def test_what_the_courses_setup_does_not_install_is_named_once(root, capsys):
    """Computed from the imports: not the standard library's, the starter's, or the code's own modules."""
    (root / "bert.py").write_text("import os, torch.nn, zeta.one\nimport zeta.two\nfrom . import heads\n")
    (root / "heads.py").write_text(
        "import bert\nfrom tqdm import tqdm\n\n\ndef f():\n    from alpha.b import c, zeta\n"
    )
    assert main([], root) == 0
    out, err = capsys.readouterr()
    wanted = (
        "note: the code imports what the course's setup.sh does not install: alpha (heads.py), zeta (bert.py); ask if"
    )
    assert wanted in out and err == ""
    (root / "bert.py").write_text("import sklearn\n")
    (root / "heads.py").unlink()
    assert main([], root) == 0 and "note: " not in capsys.readouterr().out


def test_predictions_of_several_runs_are_remarked_on_unless_asked_for(root, capsys):
    other = write_run(root, "second", {"sst": [1, 1, 1, 2], "para": [1.0, 1.0, 1.0, 0.0], "sts": [1.0, 2.0, 3.0, 5.0]})
    for split in SPLITS:
        name = SST.predictions_file(split)
        (root / "predictions" / name).write_bytes((other / "predictions" / name).read_bytes())
    remark = "note: predictions/ holds files of several runs: sst of runs/second; para, sts of runs/first\n"
    assert main([], root) == 0
    out, err = capsys.readouterr()
    assert remark in out and err == ""
    assert main(["--sst", "second"], root) == 0 and "note: " not in capsys.readouterr().out


def test_our_own_code_is_allowed():
    submission = prepare_submit.Submission(prepare_submit.ROOT)
    code = [path for path in prepare_submit.members(prepare_submit.ROOT) if path.suffix == ".py"]
    prepare_submit.check_code(submission, code)
    assert code and submission.objections == []
    assert [remark.count("safetensors (") for remark in submission.remarks] == [1]


def test_a_run_without_what_it_should_record(root, capsys):
    write_json(root / "runs" / "first" / "config.json", {"model": {}, "data": []})
    assert any("config.json has no model.sha256: run again" in line for line in refused(root, capsys))


@pytest.mark.parametrize("value", [5, None, True, [], {}, ["a"]])
@pytest.mark.parametrize("keys", ["model.sha256", "data", "data.sst", "data.sst.dev", "data.sst.dev.path"])
def test_a_run_that_records_another_type(root, capsys, keys, value):
    path = root / "runs" / "first" / "config.json"
    config = read_json(path)
    *above, last = keys.split(".")
    place = config
    for key in above:
        place = place[key]
    place[last] = value
    write_json(path, config)
    assert any(f"{path}" in line and keys in line for line in refused(root, capsys))


# --- the course's files ------------------------------------------------------------------------------------------


def test_blob_ids_are_gits(tmp_path):
    (tmp_path / "a").write_bytes(b"hello\n")
    assert blob_id(tmp_path / "a") == "ce013625030ba8dba906f756967f9e9ca394464a"  # git hash-object
    assert not is_course_file(tmp_path / "a")
    with pytest.raises(InputError, match="cannot read"):
        blob_id(tmp_path / "absent")


@pytest.mark.real_data
def test_the_courses_files_are_recognised(real_data):
    folder = real_data / "cs224n"
    # The Quora files there are another split of the course's.
    for name in (name for name in BLOBS if not name.startswith("quora")):
        assert blob_id(folder / name) == BLOBS[name], name
