"""Packing, grouping and cheap dropout change what a batch costs, and nothing else.

Follows packed.py's promises: layouts worked out by hand, attention against a literal loop, dropout against the
binomial.
"""

import ctypes
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import packed
from packed import (
    SWITCHES,
    Layout,
    _best_cuts,
    _GroupedAttention,
    add_dropout,
    draw_bits,
    dropout,
    kept,
    packed_attention,
)

ROOT = Path(__file__).resolve().parent.parent
# The same examples each time, and a busy machine is no failure.
REPEATABLE = settings(deadline=None, derandomize=True)
LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=12)
COSTS = st.sampled_from([0, 1, 10, 100, 1500, 10**9])


def lists(layout):
    return [tensor.tolist() for tensor in (layout.rows, layout.back, layout.positions, layout.first)]


def masked(lengths):
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()


def blocks(layout):
    """Each group as plain numbers."""
    tensors = [[None if x is None else x.tolist() for x in (g.pad, g.unpad, g.real)] for g in layout.groups]
    return [(g.start, g.stop, g.sentences, g.length, *t) for g, t in zip(layout.groups, tensors, strict=True)]


# --- Layout


def test_layout_by_hand():
    layout = Layout.of(torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]))
    rows = [4, 5, 6, 7, 0, 1, 8]  # the sentence of four, of two, of one
    back = [4, 5, 7, 7, 0, 1, 2, 3, 6, 7, 7, 7]  # 7 is one past the last row: padding
    assert lists(layout) == [rows, back, [0, 1, 2, 3, 0, 1, 0], [4, 0, 6]]
    assert (layout.batch, layout.width) == (3, 4)
    assert layout.real().tolist() == [[True, True, False, False], [True] * 4, [True, False, False, False]]
    pad = [0, 1, 2, 3, 4, 5, 0, 0, 6, 0, 0, 0]
    real = [[True] * 4, [True, True, False, False], [True, False, False, False]]
    assert blocks(layout) == [(0, 7, 3, 4, pad, [0, 1, 2, 3, 4, 5, 8], real)]


def test_groups_by_hand_where_a_group_costs_nothing(monkeypatch):
    monkeypatch.setattr(packed, "GROUP_COST", 0)
    layout = Layout.of(torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]]))
    assert blocks(layout) == [(0, 4, 1, 4, None, None, None), (4, 8, 2, 2, None, None, None)]
    assert len(Layout.of(torch.tensor([[1, 1, 0], [1, 1, 1]]), grouping=False).groups) == 1
    monkeypatch.setattr(SWITCHES, "grouping", False)
    assert len(Layout.of(torch.tensor([[1, 1, 0], [1, 1, 1]])).groups) == 1


def test_order_rank_and_the_layout_of_first_tokens_by_hand():
    layout = Layout.of(torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 0]]))
    assert layout.order.tolist() == [1, 3, 0, 2] and layout.rank.tolist() == [2, 0, 3, 1]
    assert [group.before for group in Layout.of(masked([3, 100, 100, 2])).groups] == [0, 2]
    firsts = layout.firsts()
    assert lists(firsts) == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 0, 0, 0], [0, 1, 2, 3]]
    assert (firsts.batch, firsts.width, firsts.real().tolist()) == (4, 1, [[True]] * 4)
    wanted = Layout.of(torch.ones(4, 1))
    assert lists(firsts) == lists(wanted) and firsts.groups == wanted.groups
    assert firsts.order.tolist() == firsts.rank.tolist() == [0, 1, 2, 3]


def test_a_hole_in_the_mask_keeps_its_column():
    # The second sentence's first column is padding too: its first token is the first real one.
    layout = Layout.of(torch.tensor([[1, 0, 1], [0, 1, 1]]))
    assert lists(layout) == [[0, 2, 4, 5], [0, 4, 1, 4, 2, 3], [0, 2, 1, 2], [0, 2]]
    assert blocks(layout) == [(0, 4, 2, 2, None, None, None)]


def test_one_sentence_of_one_token():
    assert lists(Layout.of(torch.tensor([[1]]))) == [[0], [0], [0], [0]]


def test_equal_lengths_keep_the_order_of_the_batch():
    layout = Layout.of(torch.ones(3, 2))
    assert lists(layout) == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [0, 1, 0, 1, 0, 1], [0, 2, 4]]
    assert blocks(layout) == [(0, 6, 3, 2, None, None, None)]


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.uint8, torch.float32])
def test_a_mask_of_any_kind_gives_the_same_layout(kind):
    mask = torch.tensor([[1, 0, 0], [1, 1, 0]])
    assert lists(Layout.of(mask.to(kind))) == lists(Layout.of(mask))


def test_a_sentence_without_a_real_token_is_refused_by_number():
    with pytest.raises(ValueError, match=r"no real token in sentence\(s\) \[0, 2\]"):
        Layout.of(torch.tensor([[0, 0], [1, 0], [0, 0]]))
    with pytest.raises(ValueError, match="no real token"):
        Layout.of(torch.ones(2, 0))
    with pytest.raises(ValueError, match=r"must be \(B, T\), got \(3,\)"):
        Layout.of(torch.ones(3))


@REPEATABLE
@given(st.integers(0, 10**6))
def test_pack_then_unpack_keeps_the_real_tokens_and_zeroes_the_rest(seed):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(5, 7, generator=generator) < 0.4
    mask[torch.arange(5), torch.randint(7, (5,), generator=generator)] = True
    x = torch.randn(5, 7, 3, generator=generator)
    layout = Layout.of(mask)
    rows = layout.pack(x)
    assert rows.shape == (int(mask.sum()), 3)
    assert torch.equal(layout.unpack(rows), x * mask[..., None])
    assert torch.equal(layout.pack(layout.unpack(rows)), rows)
    assert torch.equal(rows[layout.first], x[torch.arange(5), mask.long().argmax(dim=1)])


def test_unpacking_passes_gradients_to_the_real_tokens_alone():
    layout = Layout.of(torch.tensor([[1, 0, 0], [1, 1, 0]]))
    rows = torch.zeros(3, 2, requires_grad=True)
    (layout.unpack(rows) * torch.arange(12.0).view(2, 3, 2)).sum().backward()
    assert rows.grad.tolist() == [[6, 7], [8, 9], [0, 1]]


# --- Groups


@REPEATABLE
@given(LENGTHS, COSTS)
def test_groups_hold_every_sentence_once_whatever_a_group_costs(lengths, cost):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "GROUP_COST", cost)
        layout = Layout.of(masked(lengths))
    number = torch.arange(sum(lengths))[:, None]  # every packed row holds its own number
    sentences, at = [], 0
    for group in layout.groups:
        assert group.start == at
        block = packed._block(number, group, heads=1)[:, 0, :, 0]  # (n, t)
        assert block.shape == (group.sentences, group.length)
        real = torch.ones_like(block, dtype=torch.bool) if group.real is None else group.real
        sentences += [row[keep].tolist() for row, keep in zip(block, real, strict=True)]
        rows = packed._rows(packed._block(number, group, heads=1), group)
        assert rows.flatten().tolist() == list(range(group.start, group.stop))
        at = group.stop
    assert at == sum(lengths)
    assert [row for sentence in sentences for row in sentence] == list(range(at))
    assert [len(sentence) for sentence in sentences] == sorted(lengths, reverse=True)


@REPEATABLE
@given(st.lists(st.integers(1, 60), min_size=1, max_size=7), COSTS)
def test_the_cuts_are_the_cheapest_of_all(lengths, cost):
    lengths = sorted(lengths, reverse=True)

    def price(cuts):
        parts = zip(cuts, cuts[1:], strict=False)
        return sum(cost + (last - first) * lengths[first] ** 2 / 8 for first, last in parts)

    inner = range(1, len(lengths))
    choices = [[i for i in inner if bits >> i & 1] for bits in range(0, 2 ** len(lengths), 2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "GROUP_COST", cost)
        found = _best_cuts(lengths)
    assert price(found) == min(price([0, *cuts, len(lengths)]) for cuts in choices)


# --- Dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 1 / 3, 1e-4, 0.999])
def test_the_probability_is_exact_to_half_a_step_of_sixteen_bits(p, monkeypatch):
    def every_pattern_once(bits, *_):
        bits.view(torch.int16).copy_(torch.arange(-(2**15), 2**15))
        return bits

    monkeypatch.setattr(torch.Tensor, "random_", every_pattern_once)
    share = kept(draw_bits((256, 256)), p, torch.float32).double().mean()
    assert abs(share - (1 - p)) <= 1 / 131072


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_elements_are_kept_independently_with_the_same_probability(p):
    torch.manual_seed(1)
    count = 2**20
    mask = kept(draw_bits((count,)), p, torch.float32).double()
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    sigma = math.sqrt(p * (1 - p) / count)
    assert abs(mask.mean() - (1 - p)) < 5 * sigma
    centred = (mask - mask.mean()) / mask.std()
    for lag in range(1, 10):  # neighbours, within a random word and across
        assert abs((centred[lag:] * centred[:-lag]).mean()) < 5 / math.sqrt(count)
    words = centred.view(-1, 4)  # four elements share the 64 bits of a word
    assert (words.mean(dim=0).abs() < 5 / math.sqrt(count / 4)).all()
    together = words.T @ words / len(words) - torch.eye(4)
    assert (together.abs() < 5 / math.sqrt(count / 4)).all()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 7])
def test_counts_that_are_no_multiple_of_four(count):
    assert draw_bits((count, 1)).shape == (count, 1)


def test_the_seed_decides_the_mask():
    x = torch.ones(40, 50)

    def draw(seed):
        torch.manual_seed(seed)
        return dropout(x, 0.3, True), dropout(x, 0.3, True)

    first, second = draw(7)
    assert not torch.equal(first, second)
    again, and_again = draw(7)
    assert torch.equal(first, again) and torch.equal(second, and_again)
    assert not torch.equal(first, draw(8)[0])


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_what_is_kept_is_divided_by_the_probability_of_keeping(kind):
    torch.manual_seed(0)
    x = torch.full((200, 100), 3.0, dtype=kind)
    out = dropout(x, 0.2, True)
    assert out.dtype == kind
    torch.testing.assert_close(out.unique().double(), torch.tensor([0, 3.75], dtype=torch.float64), rtol=1e-2, atol=0)
    sigma = 3.75 * math.sqrt(0.2 * 0.8 / x.numel())
    assert abs(out.double().mean() - 3) < 5 * sigma
    assert (x == 3).all()  # the caller's tensor stays as it was


def test_the_gradient_passes_where_the_value_passed():
    torch.manual_seed(0)
    x = torch.randn(200, requires_grad=True)
    out = dropout(x, 0.4, True)
    out.sum().backward()
    torch.testing.assert_close(x.grad, (out != 0) / 0.6)


def test_adding_a_residual_is_the_sum_of_both():
    residual, x = torch.randn(30, 20), torch.randn(30, 20)
    before = residual.clone()
    torch.manual_seed(3)
    added = add_dropout(residual, x, 0.3, True)
    torch.manual_seed(3)
    torch.testing.assert_close(added, residual + dropout(x, 0.3, True))
    assert torch.equal(residual, before)
    for p, training in ((0.0, True), (0.3, False)):
        torch.testing.assert_close(add_dropout(residual, x, p, training), residual + x, rtol=0, atol=0)


def test_nothing_is_dropped_with_probability_zero_or_in_evaluation():
    x = torch.randn(5, 5)
    assert dropout(x, 0.0, True) is x
    assert dropout(x, 0.5, False) is x


@pytest.mark.parametrize("p", [0.999995, 1.0])
def test_probabilities_too_near_one_for_sixteen_bits(p):
    torch.manual_seed(0)
    x = torch.ones(1000, 10)
    for out in (dropout(x, p, True), add_dropout(torch.zeros_like(x), x, p, True)):
        assert (out != 0).sum() < 5
    layout = Layout.of(masked([5, 3]))
    attended = packed_attention(*torch.ones(3, 8, 4), layout, heads=2, p=p, training=True)
    assert (attended != 0).sum() < 3


def test_with_the_switch_off_dropout_is_torchs(monkeypatch):
    monkeypatch.setattr(SWITCHES, "cheap_dropout", False)
    x = torch.randn(50, 50)
    torch.manual_seed(5)
    found = dropout(x, 0.3, True), add_dropout(x, x, 0.3, True)
    torch.manual_seed(5)
    assert torch.equal(found[0], F.dropout(x, 0.3)) and torch.equal(found[1], x + F.dropout(x, 0.3))


# --- Attention


def sentence_by_sentence(query, key, value, lengths, heads, masks=None):
    """softmax(Q K^T / sqrt(D)) V of packed rows, one sentence and one head at a time.

    masks: a sentence's (N, t, t) factors that dropout multiplies the weights by.
    """
    out, start = torch.empty_like(query), 0
    size = query.shape[1] // heads
    for i, length in enumerate(sorted(lengths, reverse=True)):
        for head in range(heads):
            where = slice(start, start + length), slice(head * size, (head + 1) * size)
            probs = torch.softmax(query[where] @ key[where].T / math.sqrt(size), dim=1)
            out[where] = (probs if masks is None else probs * masks[i][head]) @ value[where]
        start += length
    return out


CASES = {
    "no padding": ([4, 4], 1500),
    "padding": ([4, 2, 3, 1], 1500),
    "several groups": ([4, 2, 2, 1], 0),
    "several groups with padding": ([9, 8, 2, 1], 4),
    "one token": ([1], 1500),
}


@pytest.fixture(params=list(CASES))
def case(request, monkeypatch):
    """(lengths, their layout)"""
    lengths, cost = CASES[request.param]
    monkeypatch.setattr(packed, "GROUP_COST", cost)
    return lengths, Layout.of(masked(lengths))


def test_the_cases_are_what_they_are_called(monkeypatch):
    found = {}
    for name, (lengths, cost) in CASES.items():
        monkeypatch.setattr(packed, "GROUP_COST", cost)
        found[name] = [group.pad is not None for group in Layout.of(masked(lengths)).groups]
    assert found == {
        "no padding": [False],
        "padding": [True],
        "several groups": [False, False, False],
        "several groups with padding": [True, True],
        "one token": [False],
    }


def test_attention_is_softmax_inside_each_sentence(case):
    lengths, layout = case
    q, k, v = 3 * torch.randn(3, sum(lengths), 12)
    wanted = sentence_by_sentence(q, k, v, lengths, heads=3)
    for training, p in ((False, 0.5), (True, 0.0)):
        found = packed_attention(q, k, v, layout, heads=3, p=p, training=training)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_where_first_tokens_alone_ask_they_get_what_they_got_among_all(p, case, monkeypatch):
    lengths, layout = case

    def ones(shape):  # one mask for a key, whoever asks
        generator = torch.Generator().manual_seed(shape[-1])
        bits = torch.randint(-(2**15), 2**15, (shape[0], 1, shape[2]), dtype=torch.int16, generator=generator)
        return bits.expand(shape).contiguous()

    monkeypatch.setattr(packed, "draw_bits", ones)
    q, k, v = 3 * torch.randn(3, sum(lengths), 12)
    wanted = packed_attention(q, k, v, layout, heads=3, p=p, training=True)[layout.first]
    found = packed_attention(q[layout.first], k, v, layout, heads=3, p=p, training=True, first_only=True)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_attention_drops_weights_and_scales_the_rest(case, monkeypatch):
    lengths, layout = case
    drawn = []

    def remember(bits, p, dtype):
        drawn.append(kept(bits, p, dtype))
        return drawn[-1].clone()

    monkeypatch.setattr(packed, "kept", remember)
    q, k, v = 3 * torch.randn(3, sum(lengths), 12)
    torch.manual_seed(0)
    found = packed_attention(q, k, v, layout, heads=3, p=0.3, training=True)
    masks = [mask for block in drawn for mask in block.unflatten(0, (-1, 3)) / 0.7]  # (N, t, t) a sentence
    ordered = sorted(lengths, reverse=True)
    masks = [mask[:, :n, :n] for mask, n in zip(masks, ordered, strict=True)]
    torch.testing.assert_close(found, sentence_by_sentence(q, k, v, lengths, 3, masks), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("first_only", [False, True])
def test_the_gradients_written_by_hand_are_right(first_only, case, monkeypatch):
    lengths, layout = case

    def fixed(shape):  # gradcheck calls again and again, and wants the same function each time
        generator = torch.Generator().manual_seed(math.prod(shape))
        return torch.randint(-(2**15), 2**15, shape, dtype=torch.int16, generator=generator)

    monkeypatch.setattr(packed, "draw_bits", fixed)
    asking = len(lengths) if first_only else sum(lengths)
    inputs = [torch.randn(rows, 4, dtype=torch.float64) for rows in (asking, sum(lengths), sum(lengths))]
    inputs = [x.requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(lambda *qkv: _GroupedAttention.apply(*qkv, layout, 2, 0.3, first_only), inputs)


# --- The whole encoder


@pytest.mark.parametrize("switch", ["packing", "grouping", "cheap_dropout", "by_hand", "lazy_zeros"])
def test_a_switch_changes_no_output_and_no_gradient(switch, tiny, monkeypatch):
    monkeypatch.setattr(packed, "GROUP_COST", 4)  # several groups even in a small batch
    model = tiny(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).train()
    torch.manual_seed(1)
    ids, mask = torch.randint(5, 29, (6, 12)), masked([12, 3, 7, 1, 7, 11])
    weights = torch.randn(4, 6, 12, 24) * mask[:, :, None]

    def run():
        model.zero_grad()
        out = model(ids, mask, output_hidden_states=True)
        loss = (torch.stack(out["hidden_states"]) * weights).sum() + out["pooler_output"].sum()
        loss.backward()
        return [*out["hidden_states"], out["pooler_output"]], {n: p.grad for n, p in model.named_parameters()}

    states, gradients = run()
    assert len(Layout.of(mask).groups) > 1
    monkeypatch.setattr(SWITCHES, switch, False)
    plain_states, plain_gradients = run()
    for found, wanted in zip(states, plain_states, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    for name, wanted in plain_gradients.items():
        scale = max(1.0, wanted.abs().max().item())
        torch.testing.assert_close(gradients[name] / scale, wanted / scale, rtol=0, atol=1e-5, msg=name)


def test_a_gradient_of_the_gradient_is_refused():
    layout = Layout.of(masked([3, 2]))
    q, k, v = torch.randn(3, 5, 4, requires_grad=True)
    out = packed_attention(q, k, v, layout, 2, 0.2, True)
    (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


FORWARDS = """
import ctypes, sys
import torch
from bert import BertConfig, BertModel
from packed import Layout

class Heap(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Heap
encoder = BertModel(BertConfig(vocab_size=29, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)).eval()

def run(counts):
    for count in counts:
        ids = torch.ones(count, 3, dtype=torch.long)
        with torch.inference_mode():
            encoder.encode(ids, Layout.of(ids))

run(range(1, 101))
before = libc.mallinfo2().uordblks
run(range(101, 901))
print(libc.mallinfo2().uordblks - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="tells glibc's heap alone")
def test_memory_does_not_grow_with_the_number_of_shapes():
    done = subprocess.run([sys.executable, "-c", FORWARDS], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1_000_000  # 23 MB where each shape is kept
