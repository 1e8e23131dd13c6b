"""The benchmarks: each runs with tiny settings and writes the row it promises; what they count is counted by hand.

Follows each program's --help. No time is asserted: what is, is what a time was taken of, and how it is summed up.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bert import BertConfig, BertModel
from datasets import read_examples
from errors import InputError
from tokenizer import BertTokenizer

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
SAMPLE = ROOT / "data" / "sample"

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


@pytest.fixture
def measure(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import measure

    return measure


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory, tiny_tokenizer):
    """A folder of small random weights with the invented vocabulary."""
    folder = tmp_path_factory.mktemp("weights")
    tiny_tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    numbers = {"vocab_size": 29, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
    BertModel(BertConfig(**numbers, intermediate_size=40, max_position_embeddings=24)).save_pretrained(folder)
    return folder


@pytest.fixture
def bench(tmp_path):
    """bench(program, options...) -> (the row it wrote, what it printed)."""

    def run(program, *options):
        out = tmp_path / "rows.jsonl"
        command = [sys.executable, str(BENCHMARKS / f"{program}.py"), *map(str, options), "--out", str(out)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (line,) = out.read_text(encoding="utf-8").splitlines()
        row = json.loads(line)
        assert row["command"].startswith(f"python benchmarks/{program}.py")
        assert str(tmp_path) not in row["command"] and str(ROOT) not in row["command"]
        assert row["versions"]["torch"] == torch.__version__
        assert row["machine"]["threads"] >= 1
        return row, done.stdout

    return run


def is_spread(found):
    low, high = found["quartiles"]
    return 0 < found["min"] <= low <= found["median"] <= high


# What is shared


def test_take_turns_calls_everybody_once_a_round_and_moves_who_is_first(measure):
    calls = []
    contestants = {name: (lambda turn, name=name: calls.append((turn, name))) for name in "abc"}
    seconds = measure.take_turns(contestants, 2, torch.device("cpu"))
    assert calls == [
        *((-2, name) for name in "bca"),
        *((-1, name) for name in "cab"),
        *((0, name) for name in "abc"),
        *((1, name) for name in "bca"),
    ]
    assert {name: len(times) for name, times in seconds.items()} == {"a": 2, "b": 2, "c": 2}


def test_spread_and_ratio_by_hand(measure):
    assert measure.spread([1, 2, 3, 4, 10], 1000) == {"median": 3000, "quartiles": [2000, 4000], "min": 1000}
    found = measure.ratio([2, 6, 3], [1, 2, 3])  # medians: 3 and 2; rounds: 2, 3, 1
    assert found == {"over_ours": 1.5, "over_ours_paired": 2, "over_ours_quartiles": [1.5, 2.5]}


def test_the_command_shown_names_no_place(measure):
    argv = ["/x/y/train_speed.py", "--data", "/x/data", "--rounds", "2", "--out=/x/o", "--model", "/x/tiny"]
    assert measure.shown_command(argv) == "python benchmarks/train_speed.py --rounds 2 --model tiny"


def test_theirs_does_not_find_our_datasets(measure, monkeypatch, tmp_path):
    (tmp_path / "looks_for_datasets.py").write_text(
        "import importlib.util\nfound = importlib.util.find_spec('datasets')\norigin = found and found.origin\n"
    )
    monkeypatch.setattr(sys, "path", ["", str(ROOT), str(tmp_path), *sys.path])
    monkeypatch.chdir(ROOT)
    path, ours = sys.path[:], sys.modules["datasets"]
    (module,) = measure.import_theirs("looks_for_datasets")
    assert module.origin != str(ROOT / "datasets.py")
    assert sys.path == path and sys.modules["datasets"] is ours


def test_peak_memory_sees_what_was_freed_again():
    """In a process of its own: in one that has freed as much before, it may not grow at all."""
    program = (
        "import json, measure, torch\n"
        "print(json.dumps(measure.peak_memory(lambda: torch.ones(2**25).sum(), torch.device('cpu'))))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=BENCHMARKS, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    if "since the start" in found["measured"]:
        pytest.skip("this system can't forget a peak, so the process's own start is in it")
    assert 120 < found["added_mb"] < 300  # 134 MB
    assert found["peak_mb"] == pytest.approx(found["before_mb"] + found["added_mb"])


def test_the_matrix_product_counts_its_operations(measure, monkeypatch):
    monkeypatch.setitem(measure.MatrixProduct.SHAPES, "cpu", [(2, 3, 5)])
    product = measure.MatrixProduct(torch.device("cpu"))
    assert product.operations == 2 * 2 * 3 * 5 * product.times
    a, b, out = product.matrices
    out.zero_()
    product.step(0)
    assert torch.allclose(out, a @ b)
    assert product.peak([1.0, 2.0, 4.0]) == product.operations / 2


def test_operations_by_hand(monkeypatch, tiny):
    """Hidden size 4, 8 wide, 2 layers; sentences of 3 and 2 tokens."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from subjects import forward_operations

    encoder = tiny(hidden_size=4, num_hidden_layers=2, intermediate_size=8, num_attention_heads=2)
    lengths = np.array([3, 2])
    maps, attention = 2 * (4 * 16 + 2 * 32) * 5, 4 * 4 * (9 + 4)
    assert forward_operations(encoder, lengths) == 2 * (maps + attention)
    last = 2 * (2 * 16) * 5 + 2 * (2 * 16 + 2 * 32) * 2 + 4 * 4 * 5
    assert forward_operations(encoder, lengths, first_only=True) == maps + attention + last


# The programs

TINY = ("--rounds", 2, "--threads", 1)


def test_optimizer_speed(bench):
    row, printed = bench("optimizer_speed", "--layers", 1, *TINY)
    assert row["parameters"] == 30522 * 768 + 514 * 768 + 2 * 768 + 7087872 + 590592
    assert set(row["contestants"]) == {"ours", "ours, fast=False", "torch default", "torch foreach", "torch fused"}
    assert all(is_spread(found["ms"]) for found in row["contestants"].values())
    assert row["contestants"]["ours"]["over_ours"] == 1
    assert "over ours" in printed


@needs_transformers
def test_train_speed(bench, tiny_folder):
    options = ("--model", tiny_folder, "--data", SAMPLE, "--tasks", "sst,para", "--batch_size", 4, "--no_memory")
    row, printed = bench("train_speed", *options, *TINY)
    assert row["largest_difference"] < 1e-4  # both encode the same: checked before they are timed
    assert row["model"]["name"] == tiny_folder.name and len(row["model"]["sha256"]) == 64
    assert set(row["tasks"]) == {"sst", "para"}
    assert "transformers" in row["versions"]
    for found in row["tasks"].values():
        assert found["peak_gflops"] > 0
        assert found["random"]["padded_over_real"] >= found["sorted"]["padded_over_real"] >= 1
        for order in ("random", "sorted"):
            for name in ("ours", "transformers"):
                assert is_spread(found[order][name]["ms"])
                assert 0 < found[order][name]["needed_share_of_peak"] < found[order][name]["share_of_peak"] < 1
            assert found[order]["ours"]["over_ours"] == 1
    assert "transformers, sorted" in printed


def test_train_speed_alone_and_its_memory(bench, tiny_folder):
    options = ("--model", tiny_folder, "--data", SAMPLE, "--tasks", "cfimdb", "--batch_size", 4, "--alone")
    row, _ = bench("train_speed", *options, "--attention", 1, "--pooler", "mean", *TINY)
    found = row["tasks"]["cfimdb"]
    assert set(found["memory"]) == {"ours"}
    memory = found["memory"]["ours"]
    assert memory["peak_mb"] >= memory["before_mb"] > 0
    assert (
        found["random"]["ours"]["needed_share_of_peak"] == found["random"]["ours"]["share_of_peak"]
    )  # the mean reads all
    assert row["pooler"] == "mean" and row["attention"] == "1"


def test_train_speed_refuses_what_theirs_cannot_do(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "train_speed.py"), "--tasks", "sts"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "choose among sst, para and cfimdb" in done.stderr


def test_encode_speed(bench, tiny_folder):
    alone = importlib.util.find_spec("sentence_transformers") is None
    options = ("--model", tiny_folder, "--data", SAMPLE, "--sentences", 9, "--batch_size", 4)
    row, printed = bench("encode_speed", *options, *(["--alone"] if alone else []), *TINY)
    names = ["ours"] if alone else ["ours", "sentence-transformers"]
    assert row["sentences"] == 9 and 9 * 2 < row["tokens"] <= 9 * 24
    for name in names:
        assert is_spread(row[name]["ms"])
        assert row[name]["sentences_per_second"] == pytest.approx(9000 / row[name]["ms"]["median"], rel=1e-2)
        assert row[name]["share_of_peak"] > 0
    assert alone or row["largest_difference"] < 1e-4
    assert "sentences/s" in printed


@pytest.mark.parametrize("program", ["encode_speed", "search_speed"])
def test_what_is_missing_is_named_with_how_to_install_it(tmp_path, program):
    (tmp_path / "sentence_transformers.py").write_text("raise ImportError\n")
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{program}.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "python -m pip install --no-deps sentence-transformers==" in done.stderr.splitlines()[-1]


def test_search_speed(bench, tiny_folder):
    alone = importlib.util.find_spec("sentence_transformers") is None
    sizes = ("--vectors", 300, "--queries", 7, "--dimension", 16, "--top_k", 5, "--documents", 9, "--batch_size", 4)
    options = ("--model", tiny_folder, "--data", SAMPLE, *sizes, *(["--alone"] if alone else []))
    row, printed = bench("search_speed", *options, *TINY)
    theirs = set() if alone else {"sentence-transformers"}
    query, indexing = row["query"], row["indexing"]
    assert (query["queries"], query["vectors"], query["dimension"], query["top_k"]) == (7, 300, 16, 5)
    assert {name for name, found in query.items() if isinstance(found, dict)} == {"ours", "product and topk"} | theirs
    for name in ("ours", "product and topk", *theirs):
        assert is_spread(query[name]["ms"])
        work = 2 * 7 * 300 * 16 / (query[name]["ms"]["median"] / 1000)
        assert query[name]["share_of_peak"] == pytest.approx(work / query["peak_gflops"] / 1e9, rel=1e-2)
    for name in ("ours", *theirs):
        assert is_spread(indexing[name]["ms"])
        assert indexing[name]["documents_per_second"] == pytest.approx(9000 / indexing[name]["ms"]["median"], rel=1e-2)
    assert alone or indexing["largest_difference"] < 1e-4  # both index the same: checked as they are timed
    assert indexing["documents"] == 9 and query["ours"]["over_ours"] == indexing["ours"]["over_ours"] == 1
    assert row["model"]["name"] == tiny_folder.name and len(row["model"]["fingerprint"]) == 64
    assert "documents/s" in printed and "7 queries over 300 vectors of 16" in printed


def test_a_search_that_finds_something_else_is_not_timed(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import search_speed

    searchers = search_speed.searchers

    def reversed_ones(*given):
        found = searchers(*given)
        return {**found, "product and topk": lambda: found["ours"]()[:, ::-1]}

    monkeypatch.setattr(search_speed, "searchers", reversed_ones)
    arguments = search_speed.parse(["--vectors", "50", "--queries", "3", "--dimension", "8", "--alone"])
    with pytest.raises(SystemExit, match="product and topk does not find what ours does"):
        search_speed.race_queries(arguments, torch.device("cpu"))


def test_pretrain_speed(bench, tiny_folder):
    options = ("--model", tiny_folder, "--data", SAMPLE, "--tasks", "sst,sts", "--fraction", 0.05, "--batch_size", 4)
    row, printed = bench("pretrain_speed", *options, *TINY)
    assert row["data"]["sst"]["train"]["rows_used"] == round(0.05 * row["data"]["sst"]["train"]["rows"])
    assert set(row["heads"]) == {"mean", "poster"}
    for heads in row["heads"].values():
        assert set(heads) == {"sst", "sts", "all"}
        for found in heads.values():
            one_pass, once, again = (found[f"{name}_ms"]["median"] / 1000 for name in ("pass", "once", "again"))
            assert found["ten_epochs_once_seconds"] == pytest.approx(one_pass + 10 * once, rel=1e-2)
            assert found["ten_epochs_again_seconds"] == pytest.approx(10 * again, rel=1e-2)
            assert found["again_over_once"] == pytest.approx(10 * again / (one_pass + 10 * once), rel=1e-2)
            assert found["once_over_pass"] == pytest.approx(1 + 10 * once / one_pass, rel=1e-2)
    assert "poster, all" in printed


def test_recipe_cost(bench):
    row, printed = bench("recipe_cost", "--data", SAMPLE, "--epochs", 2, "--share", 0.5)
    tokenizer = BertTokenizer.from_pretrained("all-MiniLM-L6-v2")
    size, layers, wanted = 768, 12, 0
    maps = layers * (4 * size**2 + 2 * size * 4 * size) + 2 * 4 * size**2 + 5 * size  # the encoder's and sentiment's
    for split, passes in (("train", 3 * 2), ("dev", 2)):
        table = read_examples(SAMPLE / f"ids-sst-{split}.csv", label="sentiment")
        lengths = np.array([len(ids) for ids in tokenizer.encode_batch([row.sentence for row in table]).ids])
        wanted += passes * int(2 * maps * lengths.sum() + 4 * size * layers * (lengths**2).sum())
    assert row["operations"]["sst"] == pytest.approx(wanted, rel=1e-3)
    total = sum(row["operations"].values())
    assert row["hours"] == pytest.approx(total / 65e12 / 0.5 / 3600 + row["hours_of_adamw"], rel=1e-3)
    assert "141,504" in printed  # rows that the poster trained on


def test_scale(bench, tiny_folder):
    options = ("--model", tiny_folder, "--data", SAMPLE, "--largest", 30, "--longest", 20, "--tokens", 60)
    row, printed = bench("scale", *options, *TINY)
    (stream,) = row["streams"]
    assert stream["sentences"] == 30
    assert stream["sentences_per_second"] == pytest.approx(30 / stream["seconds"], rel=1e-2)
    assert stream["peak_mb"] > 0
    assert [found["length"] for found in row["lengths"]] == [16, 20]
    assert [found["sentences"] for found in row["lengths"]] == [3, 3]
    assert all(is_spread(found[name]["ms"]) for found in row["lengths"] for name in ("encode", "train"))
    assert "train, 20 tokens" in printed


def test_pooler_speed(bench, tiny_folder):
    poolers = ["mean", "attentive_cls", "weighted_layers"]
    options = ("--model", tiny_folder, "--data", SAMPLE, "--poolers", ",".join(poolers), "--batch_size", 4)
    row, printed = bench("pooler_speed", *options, "--rounds", 2, "--threads", 1)
    assert list(row["poolers"]) == ["cls", *poolers, "cls, whole last layer"]
    for name, found in row["poolers"].items():
        assert is_spread(found["ms"]) and name in printed
        assert found["over_cls_quartiles"][0] <= found["over_cls"] <= found["over_cls_quartiles"][1]
    assert row["poolers"]["cls"]["over_cls"] == row["poolers"]["cls, whole last layer"]["over_whole"] == 1.0
    assert (row["batch_size"], row["data"]["rows"]) == (4, 220)


def test_every_pooler_is_raced_on_one_encoder_and_learns(measure, tiny):
    """Each step trains its own head and the encoder that all share, and only cls's other form computes the rest."""
    import pooler_speed
    from subjects import draw_batches

    from batches import TaskData
    from packed import SWITCHES
    from tasks import SST

    arguments = pooler_speed.parse(["--poolers", "max,gem", "--rounds", "2", "--batch_size", "2"])
    models = pooler_speed.build(arguments, tiny(), torch.device("cpu"))
    tokenizer = BertTokenizer({p: i for i, p in enumerate("[PAD] [UNK] [CLS] [SEP] [MASK] a b c".split())})
    table = read_examples(SAMPLE / SST.files["train"], label="sentiment")
    data = TaskData(SST, table, tokenizer, max_length=20)
    assert len(draw_batches(data, 2, 2)["random"]) == 2
    before = {name: model.heads["sst"].output.weight.clone() for name, model in models.items()}
    seen, encode = [], models["cls"].bert.encode
    models["cls"].bert.encode = lambda *given, **named: seen.append(SWITCHES.first_only) or encode(*given, **named)
    seconds = pooler_speed.race(arguments, models, data, torch.device("cpu"))
    assert list(seconds) == ["cls", "max", "gem", "cls, whole last layer"]
    assert seen.count(False) == 4 and seen.count(True) == 12 and SWITCHES.first_only  # two rounds, and two to warm up
    assert len({id(model.bert) for model in models.values()}) == 1
    for name, model in models.items():
        assert not torch.equal(model.heads["sst"].output.weight, before[name])


def test_the_stream_starts_again_and_ends_where_asked(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import scale

    monkeypatch.setattr(scale, "CHUNK", 4)
    assert list(scale.stream(["a", "b", "c"], 6)) == [["a", "b", "c", "a"], ["b", "c"]]
    assert list(scale.stream(["a"], 0)) == []


# The GPU's checks, with a Python that pretends

PRETENDER = """#!/usr/bin/env bash
case "$*" in
    -) cat > /dev/null; echo "$DEVICE"; exit "$CODE" ;;
    "-c "*) exec {python} "$@" ;;
    "-m pytest "*) exit 1 ;;
    benchmarks/encode_speed.py*) exec sleep 60 ;;
    *) echo "ran $*" ;;
esac
"""


@pytest.fixture
def gpu_check(tmp_path):
    """gpu_check(device, code of the question for it, seconds) -> (exit code, lines of the summary, log)."""
    pretender = tmp_path / "python"
    pretender.write_text(PRETENDER.replace("{python}", sys.executable))
    pretender.chmod(0o755)

    def run(device, code, limit="570"):
        environment = {**os.environ, "PYTHON": str(pretender), "DEVICE": device, "CODE": code, "LIMIT": limit}
        command = [str(BENCHMARKS / "gpu_check.sh"), str(tmp_path / "out")]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        summary = (tmp_path / "out" / "summary.txt").read_text()
        assert done.stdout == summary
        return done.returncode, summary.splitlines(), (tmp_path / "out" / "log.txt").read_text()

    return run


def test_gpu_check_without_a_gpu_says_so(gpu_check):
    code, summary, _ = gpu_check("torch 2, which is built for CPUs alone, finds no GPU", "1")
    assert (code, summary) == (2, ["nothing to check: torch 2, which is built for CPUs alone, finds no GPU"])


@pytest.mark.slow
def test_gpu_check_goes_on_after_a_failure_and_keeps_within_its_time(gpu_check):
    """The pretender's tests fail and its encode_speed never ends; everything before and after that still runs."""
    code, summary, log = gpu_check("a T4, no bf16 of its own", "0", "13")
    assert code == 1
    assert any(line.startswith("failed    GPU tests: exit code 1") for line in summary)
    assert any(line.startswith("ok        train_speed, bert-base, fp16") for line in summary)
    assert not any("bf16," in line and "train_speed" in line for line in summary)
    assert any(line.startswith("too long  encode_speed, fp16") for line in summary)
    assert any(line.startswith("ok        a run from end to end") for line in summary)
    assert summary[-2].startswith("not run   scale")
    assert "--device cuda" in log and "--precision fp16" in log


# What attention does before training


@pytest.fixture
def attention_start(measure):
    import attention_start

    return attention_start


def a_layer():
    """Rows of two sentences of 3 tokens and 2, and a self-attention layer of one head whose weights are all zero."""
    from packed import Layout
    from task_attention import SelfAttentionLayer

    torch.manual_seed(0)
    layer = SelfAttentionLayer(4, 1, 0.0).eval()
    for linear in (layer.query, layer.key):
        torch.nn.init.zeros_(linear.weight)
        torch.nn.init.zeros_(linear.bias)
    return layer, torch.randn(5, 4), Layout.of(torch.tensor([[1, 1, 1], [1, 1, 0]]))


def test_equal_weights_have_all_the_entropy(attention_start):
    entropy, largest, scores, _ = attention_start.describe_layer(*a_layer())
    assert entropy == pytest.approx(1) and scores == pytest.approx(0, abs=1e-6)
    assert largest == pytest.approx((3 / 3 + 2 / 2) / 5)  # a third for three tokens, a half for two


def test_saturated_weights_have_none(attention_start):
    layer, hidden, layout = a_layer()
    layer.query.bias.data[0] = layer.key.weight.data[0, 0] = 1.0
    hidden = torch.zeros(5, 4)
    hidden[layout.first, 0] = 200.0  # a score of 200 / sqrt(4) at the first token, zero elsewhere
    entropy, largest, scores, alike = attention_start.describe_layer(layer, hidden, layout)
    assert (entropy, largest, alike) == (pytest.approx(0), pytest.approx(1), 1.0)
    one, other = 100 * 2**0.5 / 3, 50.0  # the deviations of (100, 0, 0) and of (100, 0)
    assert scores == pytest.approx((3 * one + 2 * other) / 5)


def test_what_the_vectors_of_sentences_fill(attention_start):
    one, cosine = attention_start.space_of(torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]))
    assert (one, cosine) == (pytest.approx(1), pytest.approx(1))
    one, cosine = attention_start.space_of(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    assert (one, cosine) == (pytest.approx(0.5), pytest.approx(-1 / 3))


def test_attention_start_on_the_sample(bench):
    row, out = bench("attention_start", "--data", SAMPLE, "--rows", 16)
    assert set(row["found"]) == {"default", "U(0.9, 1)"}
    for start, entropy in (("default", 0.9), ("U(0.9, 1)", None)):
        assert {task: len(lines) for task, lines in row["found"][start].items()} == {"sst": 3, "para": 2, "sts": 4}
        first = row["found"][start]["sts"][1]
        assert 0 < first["largest"] <= 1 and first["layer"] == "1"
        assert entropy is None or first["entropy"] > entropy
    assert row["found"]["U(0.9, 1)"]["sts"][1]["one direction"] > 0.8
    assert "U(0.9, 1), sts" in out


# What a pair's score is before training


def test_pair_scores_counts_who_is_called_a_paraphrase(measure):
    import pair_scores

    found = pair_scores.describe(np.array([1.0, 5.0, 3.0]), np.array([-1.0, 2.0, 0.0, 0.5]), np.array([0, 1, 1, 0]))
    assert found == [1.0, 3.0, 5.0, 0.5, 0.5, 0.5]


def test_pair_scores_on_the_sample(bench, tiny_folder):
    row, out = bench("pair_scores", "--data", SAMPLE, "--model", tiny_folder)
    assert row["pairs"] == 160 and set(row["found"]) == {"cross-attention", "mean of the tokens"}
    for found in row["found"].values():
        assert found["least"] < found["median"] < found["largest"]
        assert 0 <= found["dev above 0"] <= 1 and found["paraphrases"] == 0.42
    assert row["data"]["dev"]["file"] == "quora-dev.csv" and "dev above 0" in out


# What attention costs


def test_attention_speed_weighs_the_tasks_by_their_rows(monkeypatch, measure):
    import attention_speed

    seconds = {
        "sst": {attention_speed.MEAN: [1.0, 1.0], "attention": [2.0, 2.0]},
        "para": {attention_speed.MEAN: [1.0, 2.0], "attention": [1.0, 2.0]},
        "sts": {attention_speed.MEAN: [1.0, 1.0], "attention": [4.0, 4.0]},
    }
    found = attention_speed.summarize(seconds)
    assert found["sts"]["attention"]["over_mean"] == pytest.approx(4.0)
    rows, extra = 8_544 + 141_504 + 6_040, 8_544 + 3 * 6_040
    first, second = 1 + extra / rows, 1 + extra / (rows + 141_504)
    assert found["all"]["attention"]["over_mean"] == pytest.approx((first + second) / 2)
    assert found["all"][attention_speed.MEAN]["over_mean"] == 1


@pytest.mark.parametrize("option", ["finetune", "pretrain"])
def test_attention_speed_on_the_sample(bench, tiny_folder, option):
    row, out = bench(
        "attention_speed",
        "--model",
        tiny_folder,
        "--data",
        SAMPLE,
        "--rounds",
        2,
        "--batch_size",
        2,
        "--option",
        option,
    )
    assert row["option"] == option and set(row["heads"]) == {"sst", "para", "sts", "all"}
    assert all(is_spread(found["ms"]) for task in ("sst", "para", "sts") for found in row["heads"][task].values())
    assert "over the mean of the tokens" in out


# Shapes


def test_a_shape_needs_the_embedded_word_list_alone(measure, tmp_path, monkeypatch, minilm):
    import subjects

    def gone(name):
        raise InputError(f"{name}: not there")

    monkeypatch.setattr(subjects.weights, "find", gone)
    monkeypatch.setattr(subjects.BertTokenizer, "from_pretrained", gone)
    monkeypatch.setattr(subjects.weights, "WEIGHTS", tmp_path)
    with pytest.raises(InputError, match="not there"):
        subjects.load_encoder(subjects.EMPTY)
    (tmp_path / subjects.EMBEDDED).mkdir()
    shutil.copy(minilm / "vocab.txt", tmp_path / subjects.EMBEDDED)
    encoder, tokenizer, _ = subjects.load_encoder(subjects.EMPTY)
    wanted = BertConfig.from_folder(minilm)
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
        assert getattr(encoder.config, name) == getattr(wanted, name)
    assert tokenizer.vocab == BertTokenizer.from_folder(minilm).vocab
