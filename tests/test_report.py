"""The report page of runs of every kind: what stands in it, what is left out and said, and that it never ends a run.

Tiny runs of the real commands; the page as html.parser reads it. In a browser: test_report_browser.py.
"""

import csv
import html.parser
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import torch
from conftest import ROOT, SAMPLE

import contrastive
import course_data
import multitask_classifier
import options
import report
import report_plots
from evaluation import probabilities
from files import read_json, short
from report_context import _link, _option, short_names
from report_data import Judged, read_run
from report_examples import describe, differing, worst
from report_scores import beside
from run import Run
from tasks import TASKS
from token_weights import AttentionMatrix, TokenWeights

ROWS = {"train": 8, "dev": 16, "test": 4}
HOSTILE = """</td></script><script>hacked = 1</script> '"><img src=x onerror="hacked = 1"> {{ 7 * 7 }} &lt;"""
NAME = "<img src=x onerror=hacked=1>"


def write_data(folder):
    """The first rows of every file of the sample; each of dev's sentences ends in what no page should run."""
    folder.mkdir(parents=True)
    for path in SAMPLE.glob("*.csv"):
        split = next(split for split in ROWS if split in path.name)
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file, delimiter="\t"))[: ROWS[split] + 1]
        if split == "dev":
            texts = [i for i, name in enumerate(rows[0]) if name.startswith("sentence")]
            rows[1:] = [[f"{v} {HOSTILE}" if i in texts else v for i, v in enumerate(row)] for row in rows[1:]]
        with open(folder / path.name, "w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter="\t", lineterminator="\n").writerows(rows)


@pytest.fixture(scope="module")
def train(tmp_path_factory, tiny_folder):
    """train(name, *options) -> the folder of a run of the training command on a tiny model, one epoch."""
    root = tmp_path_factory.mktemp("root")
    write_data(root / "data")
    with pytest.MonkeyPatch.context() as patch:
        for module in (multitask_classifier, options):
            patch.setattr(module, "ROOT", root)
        patch.setattr(multitask_classifier, "CACHE", root / "cache")

        def train(name, *more, model=tiny_folder):
            folder = root / "runs" / name
            given = ["--model", model, "--data", root / "data", "--run", folder, "--device", "cpu"]
            given += ["--epochs", 1, "--batch_size", 4, "--option", "finetune", *more]
            assert multitask_classifier.main([str(option) for option in given]) == 0
            return folder

        yield train


@pytest.fixture(scope="module")
def finished(train):
    """A run of the three tasks with attention layers, its name and texts hostile; and one without them."""
    return train(NAME), train("mean", "--attention", 0)


class Page(html.parser.HTMLParser):
    """A page's tags, its text, and its data."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.words, self.inside, self.ids = [], [], [], []
        self.source = Path(path).read_text(encoding="utf-8")
        self.feed(self.source)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside.append(tag)

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self.inside):
            self.words.append(data)

    def named(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


def test_a_run_ends_in_its_page(finished):
    run = finished[0]
    page, scores, config = Page(run / "report.html"), read_json(run / "scores.json"), read_json(run / "config.json")
    for name, found in scores.items():
        assert TASKS[name].title in page.text
        for metric in TASKS[name].metrics:
            assert f"{metric.replace('_', ' ')} {found[metric]:.3f}" in page.text
        assert f"{found['untrained']:.3f} untrained" in page.text
    wanted = [config["model"]["sha256"][:12], config["commit"] or "not from", config["started"], "torch", "epochs 1"]
    wanted += ["python multitask_classifier.py --option finetune", config["data"]["para"]["dev"]["sha256"][:12]]
    assert [text for text in wanted if text not in page.text] == []
    assert "Jia 2024: the poster's submission, on test 0.759 0.524 0.842 0.826" in page.text
    for title in ("calibration", "where to cut", "labels and predictions", "what it says, by label"):
        assert title in page.text
    assert page.source.count("<svg") == 3 + 3 + 2 + 1 + 1  # scores, losses, calibrations, thresholds, scatter
    assert len(page.source) < 2_000_000  # a plotting library's own script would be more


def test_the_page_fetches_nothing_and_runs_no_script_but_its_own(finished):
    for folder, name in ((finished[0], "report.html"), (finished[1], "report.html")):
        page = Page(folder / name)
        policy = next(found["content"] for found in page.named("meta") if "http-equiv" in found)
        assert policy.startswith("default-src 'none'") and "script-src 'sha256-" in policy
        assert [found for found in page.named("script") if found.get("type") != "application/json"] == [{}]
        assert not page.named("img") and not page.named("iframe") and not page.named("object")
        for tag, found in page.tags:
            for attribute in ("src", "href", "xlink:href", "action", "srcset"):
                link = found.get(attribute)
                assert link is None or link.startswith("#") or link == "data:,", (tag, link)
            assert not [attribute for attribute in found if attribute.startswith("on")], (tag, found)
        assert "url(http" not in page.source and "@import" not in page.source


def test_what_a_text_or_a_name_says_stays_text(finished):
    page = Page(finished[0] / "report.html")
    assert NAME in page.text
    assert any(HOSTILE.lower() in (found.get("data-text") or "") for found in page.named("tr"))
    assert "{{ 7 * 7 }}" in page.source and "49" not in re.findall(r"\{\{(.*?)\}\}", page.source)


def test_the_worst_come_first_with_what_was_looked_at(finished):
    run = read_run(finished[0], None, print)
    page = Page(finished[0] / "report.html")
    rows = {name: [] for name in run.judged}
    for found in page.named("details"):
        if "data-key" in found:
            rows[found["data-key"].split("-")[0]].append(found["data-key"])
    assert len(rows["sts"]) == ROWS["dev"] and len(rows["para"]) == min(
        50, (run.judged["para"].values != run.judged["para"].labels).sum()
    )
    matrices = [
        json.loads(text) for text in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page.source)
    ]
    found = {key: value for part in matrices for key, value in part.items()}
    assert sorted(found) == sorted(key for keys in rows.values() for key in keys)
    for key, value in found.items():
        assert len(value) == (6 if key.startswith("sts") else 2)  # layers times directions
        for matrix in value:
            cells = np.array(matrix["cells"])
            assert cells.shape == (len(matrix["rows"]), len(matrix["columns"]))
            assert np.abs(cells.sum(axis=1) - 100).max() <= cells.shape[1] / 2 + 1e-9  # each cell is rounded
    for name in ("sst", "para"):
        judged = run.judged[name]
        shown = worst(judged, 50)
        assert (judged.values[shown] != judged.labels[shown]).all()
        assert (np.diff(judged.badness[shown]) <= 0).all()


def test_a_run_from_before_kept_outputs_gives_the_same_page(finished, tmp_path, capsys):
    """And they are kept then. What differs is the time it was made, and numbers in their last bits."""
    old = shutil.copytree(finished[0], tmp_path / "old")
    kept = Run(old).read_outputs()
    Run(old).outputs.unlink()
    assert report.main([str(old)]) == 0
    assert "predicts dev again" in capsys.readouterr().out
    again = Run(old).read_outputs()
    assert {name: tensor.shape for name, tensor in kept.items()} == {
        name: tensor.shape for name, tensor in again.items()
    }
    for name, tensor in kept.items():
        assert torch.allclose(again[name], tensor, atol=1e-5)
    assert report.main([str(old)]) == 0
    assert "predicts dev again" not in capsys.readouterr().out
    assert Page(old / "report.html").source.count("<svg") == Page(finished[0] / "report.html").source.count("<svg")


def test_what_is_gone_is_left_out_and_said(finished, tmp_path, capsys):
    """A data file that was moved or changed, a model that was deleted, an output file cut off."""
    run = shutil.copytree(finished[0], tmp_path / "run")
    config = read_json(run / "config.json")
    dev = {name: Path(splits["dev"]["path"]) for name, splits in config["data"].items()}
    moved = tmp_path / "elsewhere"
    shutil.copytree(dev["sst"].parent, moved)
    config["data"]["sst"]["dev"]["path"] = str(tmp_path / "gone" / dev["sst"].name)
    changed = tmp_path / "changed.csv"
    changed.write_text(dev["sts"].read_text() + "30\tabc\ta\tb\t1.0\n")
    config["data"]["sts"]["dev"]["path"] = str(changed)
    (run / "config.json").write_text(json.dumps(config))
    shutil.rmtree(run / "best")
    assert report.main([str(run)]) == 0
    page = Page(run / "report.html")
    assert "ids-sst-dev.csv is not there any more: name the folder it is in now with --data" in page.text
    assert "changed.csv has changed since the run" in page.text
    assert "Words are not coloured: cannot read" in page.text
    assert "where to cut" in page.text and "labels and predictions" not in page.text
    assert f"{read_json(run / 'scores.json')['sts']['pearson']:.3f}" in page.text
    assert (
        report.main([str(run), "--data", str(moved), "--worst", "3", "--out", str(tmp_path / "new" / "page.html")]) == 0
    )
    page = Page(tmp_path / "new" / "page.html")
    assert "is not there any more" not in page.text
    assert "has changed since the run" not in page.text  # the folder has that file, too, as it was
    assert len([found for found in page.named("tr") if "data-text" in found]) == 9
    Run(run).outputs.write_bytes(b"half")
    capsys.readouterr()
    assert report.main([str(run)]) == 1
    assert "dev_outputs.safetensors: cut short or altered" in capsys.readouterr().err


def test_runs_side_by_side(finished, tmp_path):
    out = report.write_report(list(finished), tmp_path / "comparison.html", say=lambda text: None)
    page = Page(out)
    runs = [read_run(folder, None, print) for folder in finished]
    for name, first in runs[0].judged.items():
        second = runs[1].judged[name]
        difference = second.scores[first.task.metric] - first.scores[first.task.metric]
        assert f"{difference:+.3f}".replace("-", "\N{MINUS SIGN}") in page.text
        rows = differing([first, second], 50)
        assert sorted(rows) == np.flatnonzero(first.values != second.values).tolist()
    assert "attention default 0" in page.text  # the option that differs, and no other
    assert "Words are not coloured: pooler mean of sst weighs no tokens" in page.text
    assert HOSTILE.lower() in page.text
    links = [found["href"] for found in page.named("a") if not found["href"].startswith("#")]
    assert [(out.parent / unquote(link)).resolve() for link in links] == [
        (run.folder / "report.html").resolve() for run in runs
    ]


def test_a_clear_difference_is_red_if_it_is_for_the_worse(finished, tmp_path, monkeypatch):
    monkeypatch.setattr("report_scores.interval", lambda samples: (0.1, 0.2))
    found = set()
    for runs in (list(finished), list(reversed(finished))):
        page = report.write_report(runs, tmp_path / "page.html", say=lambda text: None).read_text(encoding="utf-8")
        found |= set(re.findall(r'class="(difference[^"]*)">(\+|\N{MINUS SIGN})', page))
    assert found == {("difference clear", "+"), ("difference clear worse", "\N{MINUS SIGN}")}


def test_runs_on_other_rows_have_no_difference(finished, train, tmp_path):
    config = read_json(finished[1] / "config.json")
    other = shutil.copytree(finished[1], tmp_path / "other")
    dev = tmp_path / "quora-dev.csv"
    text = Path(config["data"]["para"]["dev"]["path"]).read_text(encoding="utf-8")
    dev.write_text("".join(text.splitlines(keepends=True)[:-1]), encoding="utf-8")
    alone = train("alone", "--tasks", "para", "--para_dev", dev)
    page = Page(report.write_report([other, alone], tmp_path / "page.html", say=lambda text: None))
    assert "other dev rows" in page.text and "not trained for" in page.text
    assert "judged on different dev rows, so no rows are compared" in page.text


def test_other_runs_of_the_same_tasks_stand_beside_a_run(finished, tmp_path):
    """Those judged on other rows are marked; what is no finished run of these tasks is left out."""
    this, same, other, sst = (
        shutil.copytree(finished[1], tmp_path / name) for name in ("this", "same", "other", "sst")
    )
    config = read_json(other / "config.json")
    config["data"]["sts"]["dev"]["sha256"] = "0" * 64
    (other / "config.json").write_text(json.dumps(config))
    scores = read_json(sst / "scores.json")
    (sst / "scores.json").write_text(json.dumps({"sst": scores["sst"]}))
    for name, text in (
        ("broken", "[1]"),
        ("half", "{"),
        ("alone", json.dumps(scores)),
        ("odd", json.dumps(dict.fromkeys(scores))),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "scores.json").write_text(text)
    shutil.copy(same / "config.json", tmp_path / "odd")
    found = beside(read_run(this, None, print))["entries"]
    assert {entry["name"].split()[0]: entry["kind"] for entry in found if entry["kind"] != "paper"} == {
        "this": "this",
        "same": "run",
        "other": "other",
    }
    assert len({entry["score"] for entry in found if entry["kind"] != "paper"}) == 1


def test_a_page_of_the_sample_says_that_it_is_invented(finished, tmp_path, monkeypatch):
    """By what is in the file, wherever it was."""
    said = "rows are the bundled sample's, invented for this project"
    run = shutil.copytree(finished[1], tmp_path / "run")
    assert said not in report.write_report([run], say=print).read_text(encoding="utf-8")
    (tmp_path / "data" / "sample").mkdir(parents=True)
    shutil.copy(read_json(run / "config.json")["data"]["sst"]["dev"]["path"], tmp_path / "data" / "sample")
    monkeypatch.setattr(course_data, "DATA", tmp_path / "data")
    assert said in report.write_report([run], say=print).read_text(encoding="utf-8")


KINDS = {
    "ordinal": ("--tasks", "sst", "--loss", "sst=coral"),
    "films": ("--tasks", "cfimdb", "--option", "pretrain", "--pooler", "max", "--attention", "0"),
    "apart": ("--schedule", "separate", "--tasks", "sst,para"),
    "weighed": ("--tasks", "sst,sts", "--pooler", "attentive_cls"),
    "one sequence": ("--tasks", "para", "--pair_encoding", "joint"),
    "untrained": ("--epochs", "0", "--tasks", "para"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_has_a_page(train, kind):
    run = train(kind, *KINDS[kind])
    page = Page(run / "report.html")
    assert "no report" not in page.text and "can be shown" not in page.text
    assert page.text.count("calibration") >= ("sts" not in KINDS[kind][1])
    coloured = "weighs no tokens" not in page.text
    assert coloured == (kind != "films")
    if coloured:
        assert any("weighed" in found.get("class", "") for found in page.named("span"))


def test_glue_s_tasks_have_a_page_with_the_paper_s_numbers(train, tmp_path):
    pairs = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + "".join(
        f"{i % 2}\t{i}\t{i}\tThe film number {i} was good.\tA {'good' if i % 2 else 'bad'} film\n" for i in range(12)
    )
    (tmp_path / "MRPC").mkdir()
    for split in ("train", "dev"):
        (tmp_path / "MRPC" / f"{split}.tsv").write_text(pairs)
    run = train("mrpc", "--tasks", "mrpc", "--data", tmp_path, "--pooler", "attentive_cls")
    page = Page(run / "report.html")
    assert "acc and f1" in page.text and "Lee, Park, Seo and Kim 2021: AttentiveCLS, finetune 0.854 0.901" in page.text
    assert "Worst errors" in page.text


def test_a_contrastive_run_has_a_page(train, tiny_folder, tmp_path, monkeypatch):
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(["a good film", "dull", "the cat sat", "why ?", "who ran", "very bad"]) + "\n")
    dev = SAMPLE / "sts-dev.csv"
    given = [
        "train",
        "--model",
        tiny_folder,
        "--train",
        lines,
        "--dev",
        dev,
        "--run",
        tmp_path / "run",
        "--device",
        "cpu",
    ]
    given += ["--batch_size", 2, "--max_length", 12, "--evaluate_every", 2, "--epochs", 2]
    assert contrastive.main([str(option) for option in given]) == 0
    page, scores = Page(tmp_path / "run" / "report.html"), read_json(tmp_path / "run" / "scores.json")
    assert f"{scores['trained']['spearman']:.3f}" in page.text
    assert "python contrastive.py train --train" in page.text
    assert page.source.count("<svg") == 2


# --- the page never ends a run, and costs what does not make one nothing -------------------------------------------


@pytest.mark.parametrize(
    "fault", [RuntimeError("no fonts"), ModuleNotFoundError("No module named 'matplotlib'"), KeyboardInterrupt()]
)
def test_a_run_whose_page_fails_is_finished_all_the_same(train, fault, monkeypatch, capsys):
    def fail(*_, **__):
        raise fault

    monkeypatch.setattr(report, "write_report", fail)
    run = train(f"without {type(fault).__name__}", "--tasks", "sst")
    said = capsys.readouterr().out
    assert f"no report: {type(fault).__name__} {fault}: to try again, " in said
    assert said.split("to try again, ")[1].splitlines()[0] == f"python report.py {shlex.quote(short(run))}"
    assert "predictions are in" in said and not (run / "report.html").exists() and (run / "scores.json").exists()
    monkeypatch.undo()
    assert report.main([str(run)]) == 0


def test_what_a_page_needs_is_imported_for_a_page_alone():
    wanted = "{'matplotlib', 'jinja2', 'report'}"
    code = f"import multitask_classifier, contrastive_training, sys; print(sorted({wanted} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_the_newest_finished_run_is_taken_where_none_is_named(finished, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "ROOT", tmp_path)
    assert report.main([]) == 1
    assert "error: no finished run in " in capsys.readouterr().err
    run = shutil.copytree(finished[1], tmp_path / "runs" / "only", ignore=shutil.ignore_patterns(report.REPORT))
    assert report.main([]) == 0 and (run / report.REPORT).is_file()


def test_what_is_no_finished_run_is_refused_in_one_line(finished, tmp_path, capsys):
    unfinished = shutil.copytree(finished[1], tmp_path / "unfinished")
    (unfinished / "scores.json").unlink()
    damaged = shutil.copytree(finished[1], tmp_path / "damaged")
    (damaged / "metrics.jsonl").write_text("")
    altered = shutil.copytree(finished[1], tmp_path / "altered")
    config = read_json(altered / "config.json")
    del config["data"]["para"]["dev"]["path"]
    (altered / "config.json").write_text(json.dumps(config))
    cut = shutil.copytree(finished[1], tmp_path / "cut")
    lines = (cut / "metrics.jsonl").read_text().splitlines()
    (cut / "metrics.jsonl").write_text(json.dumps({**json.loads(lines[0]), "best": None}) + "\n" + lines[1] + "\n")
    for given, wanted in (
        ([tmp_path / "none"], "no run there"),
        ([unfinished], "has lost its scores.json"),
        ([damaged], "empty, no evaluation"),
        ([altered], "no data.para.dev.path in it"),
        ([cut], "best is None"),
        ([finished[1], finished[1]], "a run is named twice"),
        ([finished[1], "--out", tmp_path], "it is a folder"),
    ):
        assert report.main([str(value) for value in given]) == 1
        err = capsys.readouterr().err
        assert err.startswith("error: ") and err.count("\n") == 1 and wanted in err


# --- names and files that are not a run's ---------------------------------------------------------------------------


def test_an_ensemble_says_that_it_has_no_model_and_neighbours_of_any_name_survive(finished, tmp_path):
    """A page made of files that are not UTF-8, of half a surrogate and of what is no score; it may be replaced."""
    this, odd, broken, high = (
        shutil.copytree(finished[1], tmp_path / name) for name in ("this", "bad\udcff", "broken", "high")
    )
    for folder, name, change in (
        (this, "config.json", lambda config: config["options"].update(ensemble=["a", "b"])),
        (odd, "config.json", lambda config: config["model"].update(name="half \ud800")),
        (broken, "scores.json", lambda scores: scores["sst"].update(macro_f1="x")),
        (high, "scores.json", lambda scores: scores["sts"].update(pearson=10**400)),
    ):
        content = read_json(folder / name)
        change(content)
        (folder / name).write_text(json.dumps(content))
    (this / "report.html").unlink()
    assert report.main([str(this)]) == 0
    page = Page(this / "report.html")
    assert "Words are not coloured: an ensemble has no model of its own that could say what it looks at" in page.text
    assert "bad\\udcff (half \\ud800)" in page.text and "broken" not in page.text and "high" not in page.text
    assert report.starts_like_a_page(this / "report.html")
    before = page.source.replace(f'<meta name="generator" content="{report.GENERATOR}">\n', "")
    (tmp_path / "old.html").write_text(before, encoding="utf-8")
    assert before != page.source and report.starts_like_a_page(tmp_path / "old.html")


@pytest.mark.parametrize("names", [[0], [0, 1]])
@pytest.mark.parametrize("given", [True, False])
def test_a_page_replaces_nothing_but_a_page(finished, tmp_path, monkeypatch, capsys, names, given):
    """And that is said before the work is done."""
    monkeypatch.setattr(report, "read_run", lambda *_: pytest.fail("work that nobody will see"))
    runs = [shutil.copytree(finished[i], tmp_path / str(i)) for i in names]
    out = tmp_path / "thesis.html" if given else runs[0] / (report.REPORT if len(runs) == 1 else report.COMPARISON)
    thesis = '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>My thesis</title>\n'
    out.write_text(thesis)
    assert report.main([*map(str, runs), *(["--out", str(out)] if given else [])]) == 1
    assert capsys.readouterr().err.startswith(f"error: {short(out)} is there and no page of report.py: name another")
    assert out.read_text() == thesis


@pytest.mark.parametrize("stdout", ["ascii", "full"])
def test_a_page_that_is_written_is_no_error_whoever_listens(tmp_path, monkeypatch, stdout):
    monkeypatch.setattr(report, "write_report", lambda *_, **__: tmp_path / "\xfc.html")
    listener = io.BytesIO() if stdout == "ascii" else open("/dev/full", "wb")
    with io.TextIOWrapper(listener, encoding="ascii" if stdout == "ascii" else "utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert report.main(["run"]) == 0
        monkeypatch.undo()


@pytest.mark.parametrize("number", ["-1", "1.5", "x", "9" * 5000])
def test_a_number_of_rows_says_what_is_wanted(number, capsys):
    with pytest.raises(SystemExit):
        report.main(["run", "--worst", number])
    assert "wanted a whole number from 0 up" in capsys.readouterr().err


def test_a_link_is_a_url(tmp_path):
    page = tmp_path / "a#b?c%20" / "report.html"
    page.parent.mkdir()
    page.touch()
    assert _link(page, tmp_path / "other") == "../a%23b%3Fc%2520/report.html"


def test_options_that_are_one_and_zero_are_numbers():
    assert [_option(value) for value in (None, False, True, 0, 1, 0.0, "x", [1, 2], {})] == [
        *("default", "no", "yes", "0", "1", "0.0", "x", "1 2", "{}")
    ]


# --- by hand --------------------------------------------------------------------------------------------------------


def judge(name, labels, outputs):
    judged = Judged(TASKS[name], {}, Path("none"), outputs=np.array(outputs, dtype=float))
    judged.labels = np.array(labels)
    return judged


def test_how_wrong_an_answer_is_by_hand():
    log_3 = np.log(3)
    judged = judge("para", [1.0, 0.0, 1.0], [log_3, log_3, -log_3])
    assert judged.badness.tolist() == pytest.approx([0.25, 0.75, 0.75])
    assert worst(judged, 9).tolist() == [1, 2] and worst(judged, 1).tolist() == [1]
    score = judge("sts", [0.0, 5.0, 2.5, 2.5], [10.0, 20.0, 15.0, 15.0])
    assert score.scaled == pytest.approx([0.0, 5.0, 2.5, 2.5]) and score.badness == pytest.approx([0, 0, 0, 0])
    beyond = judge("sts", [0.0, 5.0, 5.0], [0.0, 10.0, 30.0])  # the line goes beyond the scale, the answers don't
    assert beyond.scaled.max() == 5.0
    assert judge("sts", [1.0, 2.0], [3.0, 3.0]).scaled.tolist() == [1.5, 1.5]


def test_where_runs_differ_most_comes_first():
    log_3 = np.log(3)
    first, second = (
        judge("para", [1.0, 1.0, 1.0], [log_3, log_3, log_3]),
        judge("para", [1.0, 1.0, 1.0], [log_3, -1.0, -9.0]),
    )
    assert differing([first, second], 9).tolist() == [2, 1]


def test_calibration_by_hand():
    """Three answers of 3/4, of which two are right, and one of 0.95 that is: errors of 1/12 and 0.05, by share."""
    log_3 = np.log(3)
    outputs = [log_3, log_3, -log_3, np.log(19)]
    judged = judge("para", [1.0, 1.0, 1.0, 1.0], outputs)
    svg, error = report_plots.calibration(judged, "x")
    assert error == pytest.approx(0.75 * (0.75 - 2 / 3) + 0.25 * 0.05)
    assert "var(--c1)" in svg and "#0102" not in svg and svg.startswith("<svg viewBox=")


def test_the_best_threshold_by_hand():
    probability = np.array([0.2, 0.6, 0.7, 0.9])
    judged = judge("para", [0.0, 0.0, 1.0, 1.0], np.log(probability / (1 - probability)))
    _, best, accuracy, at_half = report_plots.thresholds(judged, "x")
    assert 0.6 < best <= 0.7 and (accuracy, at_half) == (1.0, 0.75)
    assert probabilities(TASKS["para"], judged.outputs)[:, 1] == pytest.approx(probability)


def weights_of(tokens, weights, rows=None, columns=None, source="attention layer 1 of 1, [CLS]"):
    layers = ()
    if rows:
        layers = (AttentionMatrix(rows, columns, torch.full((2, len(rows), len(columns)), 1 / len(columns))),)
    return TokenWeights(tokens, torch.tensor(weights), None, source, layers)


def test_words_are_coloured_by_what_is_more_than_an_even_share():
    look = describe([weights_of(("[CLS]", "a", "b", "[SEP]"), [0.125, 0.375, 0.25, 0.25])])
    assert [(word.text, word.share, word.special) for word in look.words[0]] == [
        ("[CLS]", 0, True),
        ("a", 50, False),
        ("b", 0, False),
        ("[SEP]", 0, True),
    ]
    strong = describe([weights_of(("a", "b", "c", "d"), [0.625, 0.375, 0.0, 0.0])])  # the largest is 2.5 even shares
    assert [word.share for word in strong.words[0]] == [100, 33, 0, 0]


def test_a_sentence_s_words_have_the_weights_that_the_other_s_vector_gives_them():
    first, second = ("[CLS]", "a"), ("[CLS]", "x", "y")
    views = [weights_of(second, [0.0, 0.75, 0.25], first, second), weights_of(first, [0.25, 0.75], second, first)]
    look = describe(views)
    assert [[word.text for word in text] for text in look.words] == [list(first), list(second)]
    assert [matrix["title"] for matrix in look.matrices] == [
        "first sentence looks at the second",
        "second sentence looks at the first",
    ]
    assert look.matrices[0]["rows"] == first and look.matrices[0]["cells"] == [[33, 33, 33], [33, 33, 33]]
    pooled = [
        weights_of(text, [1 / len(text)] * len(text), text, other, "pooler x")
        for text, other in ((first, second), (second, first))
    ]
    assert [[word.text for word in text] for text in describe(pooled).words] == [list(first), list(second)]
    joint = describe([weights_of(("[CLS]", "a", "[SEP]", "x", "[SEP]"), [0.2] * 5, source="pooler x")])
    assert [[word.text for word in text] for text in joint.words] == [["[CLS]", "a", "[SEP]"], ["x", "[SEP]"]]


def test_short_names_tell_folders_apart():
    assert short_names([Path("/runs/a"), Path("/runs/b")]) == ["a", "b"]
    assert short_names([Path("/x/one/seed1"), Path("/x/two/seed1")]) == ["one/seed1", "two/seed1"]
