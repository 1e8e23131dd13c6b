"""GLUE's files read as GLUE writes them: every row accounted for, every fault by file and line.

Wang et al. 2018 (arXiv 1804.07461) and its download; the real files where MINBERT_REAL_DATA names them.
"""

import hashlib
from collections import Counter

import pytest
import torch

from batches import TaskData
from data_check import check_folder, describe
from datasets import Example
from errors import InputError
from task_files import is_optional, read_split
from tasks import COLA, MRPC, RTE, SST, SST2, TASKS
from tokenizer import BertTokenizer

GLUE = {task.name: task for task in (COLA, MRPC, RTE, SST2)}
MRPC_HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
RTE_HEADER = "index\tsentence1\tsentence2\tlabel"


@pytest.fixture
def write(tmp_path):
    """write(task, split, content) -> the file in its folder."""

    def write(task, split, content):
        path = tmp_path / task.files[split]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_cola_names_no_columns_where_it_has_labels(write):
    content = 'gj04\t1\t\tThe sailors rode the breeze.\ncj99\t0\t*\t She "left" . \n'
    path = write(COLA, "train", content)
    table = read_split(COLA, "train", path)
    assert table.examples == [
        Example("0", "The sailors rode the breeze.", None, 1, 1),
        Example("1", 'She "left" .', None, 0, 2),
    ]
    assert table.sha256 == hashlib.sha256(content.encode()).hexdigest() and table.dropped == []
    test = read_split(COLA, "test", write(COLA, "test", "index\tsentence\n0\tBill whistled.\n7\tBill ran."))
    assert test.examples == [Example("0", "Bill whistled.", None, None, 2), Example("7", "Bill ran.", None, None, 3)]


def test_mrpc_has_five_columns_a_byte_order_mark_and_carriage_returns(write):
    rows = f'{MRPC_HEADER}\r\n1\t702876\t702977\tHe said "no, twice.\tTwice "no".\r\n0\t1\t2\ta\tb\r\n'
    path = write(MRPC, "train", b"\xef\xbb\xbf" + rows.encode())
    assert read_split(MRPC, "train", path).examples == [
        Example("0", 'He said "no, twice.', 'Twice "no".', 1, 2),  # a quote is a quote, closed or not
        Example("1", "a", "b", 0, 3),
    ]
    header = "index\t#1 ID\t#2 ID\t#1 String\t#2 String"
    test = read_split(MRPC, "test", write(MRPC, "test", f"{header}\n0\t1\t2\ta\tb\n"))
    assert test.examples == [Example("0", "a", "b", None, 2)]


def test_rte_has_words_for_labels_and_an_index(write):
    path = write(RTE, "train", f"{RTE_HEADER}\n3\ta\tb\tnot_entailment\n9\tc\td\tentailment\n")
    assert read_split(RTE, "train", path).examples == [
        Example("3", "a", "b", 1, 2),
        Example("9", "c", "d", 0, 3),
    ]


def test_sst2_has_a_sentence_and_a_label(write):
    path = write(SST2, "dev", "sentence\tlabel\nit 's a charming journey . \t1\n\nbleak \t0\n")
    assert read_split(SST2, "dev", path).examples == [
        Example("0", "it 's a charming journey .", None, 1, 2),
        Example("1", "bleak", None, 0, 4),
    ]


def test_only_line_ends_end_a_line(write):
    path = write(SST2, "train", "sentence\tlabel\none\u2028two\x0bthree\x85four\t1\n")
    assert read_split(SST2, "train", path)[0].sentence == "one\u2028two\x0bthree\x85four"


def test_a_row_without_a_label_is_dropped_and_told(write):
    table = read_split(SST2, "train", write(SST2, "train", "sentence\tlabel\na\t1\nb\t \nc\t0\n"))
    assert [example.id for example in table] == ["0", "2"]  # a place in the file stays one
    assert "2 rows, 1 dropped (blank label on line 3)" in table.describe()


FAULTS = [
    (SST2, "", "the file is empty"),
    (SST2, "sentence\tlabel\n", "no rows"),
    (SST2, "sentence\tlabel\na\t\n", "all 1 rows have a blank label"),
    (SST2, "sentence\tlabel\na\t1\nb\n", "line 3: 1 columns, wanted 2 ('sentence', 'label')"),
    (SST2, "sentence\tlabel\na\tb\t1\n", "line 2: 3 columns, wanted 2"),
    (SST2, "sentence\tlabel\na\t2\n", "line 2: label is '2', wanted one of '0', '1'"),
    (SST2, "sentence\tlabel\na\t01\n", "line 2: label is '01'"),
    (SST2, "text\tlabel\na\t1\n", "line 1: no column 'sentence'; found 'text', 'label'"),
    (SST2, "sentence\tlabel\tlabel\na\t1\t1\n", "line 1: column 'label' stands there twice"),
    (SST2, b"sentence\tlabel\na\t1\n\xff\t1\n", "line 3: byte 0xff is not UTF-8"),
    (COLA, "gj04\t1\tThe sailors.\n", "line 1: 3 columns, wanted 4 ('source', 'acceptability', 'mark', 'sentence')"),
    (COLA, "index\tsentence\n0\ta\n", "line 1: 2 columns, wanted 4"),
    (
        RTE,
        f"{RTE_HEADER}\n0\ta\tb\tentails\n",
        "line 2: label is 'entails', wanted one of 'entailment', 'not_entailment'",
    ),
    (RTE, f"{RTE_HEADER}\n0\ta\tb\tentailment\n0\ta\tb\tentailment\n", "line 3: index '0' is on line 2 already"),
    (RTE, f"{RTE_HEADER}\n \ta\tb\tentailment\n", "line 2: the index is ''"),
    (RTE, f"{RTE_HEADER}\n1 2\ta\tb\tentailment\n", "line 2: the index is '1 2'"),
    (MRPC, "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\ta\tb\n", "line 1: no column 'Quality'"),
]


@pytest.mark.parametrize(("task", "content", "message"), FAULTS)
def test_faults_are_one_line_by_file_and_line(write, task, content, message):
    path = write(task, "train", content)
    with pytest.raises(InputError) as refused:
        read_split(task, "train", path)
    assert str(refused.value).startswith(str(path)) and message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_all_faults_are_found_in_one_look(write):
    faults = []
    path = write(SST2, "train", "sentence\tlabel\na\t1\nb\t7\nc\nd\t0\n")
    table = read_split(SST2, "train", path, faults)
    assert [example.sentence for example in table] == ["a", "d"]
    assert [str(fault).split(": ")[0] for fault in faults] == [f"{path}, line 3", f"{path}, line 4"]


def test_a_file_that_is_not_there_says_which_folder_to_name(tmp_path):
    with pytest.raises(
        InputError, match="CoLA/train.tsv: not there; name with --data the folder.*'CoLA', 'MRPC', 'RTE'"
    ):
        read_split(COLA, "train", tmp_path / "CoLA" / "train.tsv")


def test_glue_s_test_files_alone_may_be_missing():
    optional = [(task.name, split) for task in TASKS.values() for split in task.files if is_optional(task, split)]
    assert optional == [(name, "test") for name in GLUE]


def test_the_course_s_files_are_read_as_before(tmp_path):
    path = tmp_path / "dev.csv"
    path.write_text('\tid\tsentence\tsentiment\n0\tA1\t"say ""no"""\t3\n')
    assert read_split(SST, "dev", path).examples == [Example("a1", 'say "no"', None, 3, 2)]
    assert read_split(SST, "test", path)[0].label is None


def test_the_data_check_knows_them(write, tmp_path):
    """Missing test files are no error, and places in files no ids that two files share."""
    for split in ("train", "dev"):
        write(SST2, split, "sentence\tlabel\ngood film\t1\nbad\t0\n")
    report = check_folder(tmp_path)
    assert report["ok"] and set(report["tasks"]) == {"sst2"}
    files, shared = report["tasks"]["sst2"]["files"], report["tasks"]["sst2"]["shared"]
    assert set(files) == {"train", "dev"} and files["dev"]["labels"] == {"0": 1, "1": 1}
    assert shared == {"dev in train": {"rows": 2, "sentences": None, "lines": [[2, 2], [3, 3]], "ids": []}}
    assert "rows in train       dev 2" in describe(report)
    write(SST2, "test", "index\tsentence\n0\tx\ty\n")
    assert ", line 2: 3 columns, wanted 2" in check_folder(tmp_path)["errors"][0]


REAL = {  # rows of train and dev, and of each class in train; as the files' authors or GLUE's own page count them
    "cola": (8551, 1043, {0: 2528, 1: 6023}),
    "mrpc": (3576, 500, {0: 1169, 1: 2407}),
    "rte": (2490, 277, {0: 1249, 1: 1241}),
    "sst2": (10000, 872, {0: 4471, 1: 5529}),
}


@pytest.mark.parametrize("name", list(GLUE))
def test_the_real_files_are_read_whole(real_data, name):
    task, (rows, dev, labels) = GLUE[name], REAL[name]
    tables = {split: read_split(task, split, real_data / "glue" / task.files[split]) for split in ("train", "dev")}
    assert (len(tables["train"]), len(tables["dev"])) == (rows, dev)
    assert Counter(example.label for example in tables["train"]) == labels
    for table in tables.values():
        assert not table.dropped and len({example.id for example in table}) == len(table)
        assert all(example.sentence and (example.second is None) != task.is_pair for example in table)
        assert not any("\r" in text or "\t" in text for e in table for text in (e.sentence, e.second or ""))


def test_real_pairs_become_joint_sequences_of_two_segments(real_data, minilm):
    table = read_split(RTE, "train", real_data / "glue" / RTE.files["train"])
    tokenizer = BertTokenizer.from_folder(minilm)
    data = TaskData(RTE, table, tokenizer, max_length=128)
    longest = max(range(len(table)), key=lambda row: len(table[row].sentence))
    batch = data.batch([longest, 0])
    first, second = (tokenizer.tokenize(text) for text in (table[0].sentence, table[0].second))
    assert data.truncated > 50 and int(batch.layout.real()[0].sum()) == 128
    wanted = tokenizer.convert_tokens_to_ids(["[CLS]", *first, "[SEP]", *second, "[SEP]"])
    assert batch.input_ids[1, : len(wanted)].tolist() == wanted
    assert torch.equal(
        batch.token_type_ids[1, : len(wanted)], torch.tensor([0] * (len(first) + 2) + [1] * (len(second) + 1))
    )
