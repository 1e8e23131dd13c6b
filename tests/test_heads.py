"""Heads: the poster's parameter counts, scores worked out by hand, and sentences that don't see their batch-mates.

Follows Jia 2024 (Stanford CS 224N poster), its Table 2 above all.
"""

import dataclasses
import math

import pytest
import torch

from errors import InputError
from heads import HeadConfig, TaskHead
from losses import LOSSES
from packed import Layout
from poolers import POOLERS
from tasks import PARA, SST, STS, TASKS

MORE_POOLERS = [name for name in POOLERS if name not in ("first", "cls", "mean")]
HEADS = {
    "attention": lambda task: HeadConfig(task.attention[1], pooler="first"),
    "uniform": lambda task: HeadConfig(task.attention[1], attention_init="uniform", pooler="first"),
    "attention, mean": lambda task: HeadConfig(1, pooler="mean"),
    "attention, cls": lambda task: HeadConfig(1, pooler="cls"),
    "baseline mean": lambda task: HeadConfig(0, pooler="mean"),
    "baseline first": lambda task: HeadConfig(0, pooler="first"),
    "baseline cls": lambda task: HeadConfig(0, pooler="cls"),
    **{pooler: lambda task, pooler=pooler: HeadConfig(0, pooler=pooler) for pooler in MORE_POOLERS},
    **{f"attention, {pooler}": lambda task, pooler=pooler: HeadConfig(1, pooler=pooler) for pooler in MORE_POOLERS},
}
# Rows of ids: sentences of several lengths, the second half the partners of the first; all within the tiny vocabulary.
SENTENCES = [[2, 6, 7, 8, 9, 3], [2, 5, 3], [2, 10, 11, 12, 3], [2, 7, 3], [2, 8, 20, 21, 22, 23, 3], [2, 3]]


@pytest.fixture(params=list(TASKS))
def task(request):
    return TASKS[request.param]


@pytest.fixture
def encoder(tiny):
    return tiny(max_position_embeddings=128, num_hidden_layers=4)  # as many as a pooler may read


def build(task, config, size=24, seed=0):
    """A head in evaluation mode with biases that count."""
    torch.manual_seed(seed)
    head = TaskHead(task, size, 4, config, 4).eval()
    for name, p in head.named_parameters():
        if name.endswith("bias"):
            p.data.normal_(std=0.1)
    return head


def encode(encoder, sentences, width=None):
    width = width or max(len(ids) for ids in sentences)
    padded = torch.tensor([ids + [0] * (width - len(ids)) for ids in sentences])
    layout = Layout.of(torch.arange(width) < torch.tensor([len(ids) for ids in sentences])[:, None])
    return encoder.encode(padded, layout, keep=None), layout


def both_sides(rows):
    """The batch of these pairs: all first sentences, then all second ones."""
    return [SENTENCES[i] for i in rows] + [SENTENCES[i + 3] for i in rows]


@pytest.mark.parametrize(
    ("task", "layers", "count"),
    [
        (SST, 0, 3_840),
        (PARA, 0, 589_824),
        (STS, 0, 2_359_296),
        (SST, 2, 4_722_432),
        (PARA, 1, 3_538_944),
        (STS, 3, 11_206_656),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_table_2(task, layers, count):
    """Weights of the linear maps at bert-base's size."""
    assert layers in (0, task.attention[1])
    for pooler in ("first", "mean"):
        with torch.device("meta"):
            head = TaskHead(task, 768, 12, HeadConfig(layers, pooler=pooler))
        assert head.linear_parameters() == count
        weights = {name: p.numel() for name, p in head.named_parameters() if p.dim() == 2}
        assert sum(weights.values()) == count  # nothing but linear maps is a matrix
        biases_and_norms = sum(p.numel() for p in head.parameters()) - count
        maps = {"self": 4, "cross": 5}[task.attention[0]]
        offset = 1 if task is PARA else 0
        assert biases_and_norms == layers * (maps + 2) * 768 + head.output.out_features + offset


@pytest.mark.parametrize(("task", "layers"), [(SST, 2), (PARA, 1), (STS, 3)], ids=lambda v: getattr(v, "name", str(v)))
def test_the_feed_forward_block_adds_what_berts_has(task, layers):
    """Two maps of 768 x 3,072 a layer, their biases, and a norm; Table 2 counts none of it."""
    with torch.device("meta"):
        plain, with_block = (
            TaskHead(task, 768, 12, HeadConfig(layers, attention_ffn=block)) for block in (False, True)
        )
    assert with_block.linear_parameters() - plain.linear_parameters() == layers * 2 * 768 * 3072
    plain, with_block = (sum(p.numel() for p in head.parameters()) for head in (plain, with_block))
    assert with_block - plain == layers * (2 * 768 * 3072 + 3072 + 768 + 2 * 768)


@pytest.mark.parametrize(("loss", "outputs", "count"), [("coral", 4, 768), ("corn", 4, 3072), ("squared_emd", 5, 3840)])
def test_the_output_map_is_the_loss_s(loss, outputs, count, encoder):
    """CORAL has one map H -> 1 for all thresholds, CORN one number a threshold, the distance one a class."""
    head = build(SST, HeadConfig(0, pooler="mean", loss=loss))
    found = head(*encode(encoder, SENTENCES))
    assert found.shape == (6, outputs) == head.task.output_shape(6)
    assert head.class_logits(found).shape == (6, 5)
    with torch.device("meta"):
        assert TaskHead(SST, 768, 12, HeadConfig(0, pooler="mean", loss=loss)).linear_parameters() == count


@pytest.mark.parametrize("loss", ["coral", "corn", "squared_emd"])
@pytest.mark.parametrize("block", [False, True])
def test_gradients_reach_every_parameter_from_every_loss(loss, block, encoder):
    head = build(SST, HeadConfig(2, loss=loss, attention_ffn=block)).train()
    LOSSES[loss](head(*encode(encoder, SENTENCES)), torch.tensor([0, 1, 2, 3, 4, 2])).backward()
    for parameter, p in head.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all(), parameter
        assert parameter.endswith("key.bias") or p.grad.abs().max() > 0, parameter


def test_a_loss_that_can_not_be_is_refused_with_those_that_can():
    with pytest.raises(
        InputError, match="loss 'huber' of sst is not known.*; known: cross_entropy, softmax_twice, coral, corn, squ"
    ):
        TaskHead(SST, 24, 4, HeadConfig(1, loss="huber"))
    with pytest.raises(InputError, match="loss 'coral' of para .* labels of kind binary; known: binary_cross_entropy"):
        TaskHead(PARA, 24, 4, HeadConfig(1, loss="coral"))


def test_outputs_of_one_sentence_by_hand():
    head = build(
        dataclasses.replace(SST, label_range=(0, 2), output_size=3, label_words=()),
        HeadConfig(0, pooler="mean"),
        size=2,
    )
    head.output.weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]])
    head.output.bias.data = torch.tensor([0.0, 0.5, 0.0])
    layout = Layout.of(torch.tensor([[1, 0, 0], [1, 1, 1]]))
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, -3.0], [7.0, 8.0]])  # the longer sentence is packed first
    # Means (7, 8) and (3, 1).
    assert head((rows,), layout).tolist() == [[7.0, 8.5, -1.0], [3.0, 1.5, 2.0]]


def test_score_of_a_pair_by_hand():
    head = build(PARA, HeadConfig(0, pooler="first"), size=2)
    head.output.weight.data = torch.tensor([[1.0, 2.0], [0.0, -1.0]])
    head.output.bias.data = torch.tensor([0.0, 0.5])
    layout = Layout.of(torch.tensor([[1, 1], [1, 0], [1, 0], [1, 1]]))  # a0 b0 of 2 and 1, a1 b1 of 1 and 2 tokens
    rows = torch.tensor([[1.0, 0.0], [9.0, 9.0], [0.0, 1.0], [9.0, 9.0], [2.0, 1.0], [3.0, -1.0]])
    # Packed: a0, a0's second, b1, b1's second, a1, b0. W of them: (1, .5), (2, -.5), (4, -.5), (1, 1.5).
    # <W a0, W b0> = 1 * 1 + .5 * 1.5; <W a1, W b1> = 4 * 2 + .5 * .5.
    assert head((rows,), layout).tolist() == [1.75, 8.25]


def test_calibration_centers_a_pair_s_logits(encoder):
    """Deviation 1 around the log odds of the share given; the order of the pairs by score stays."""
    head = build(PARA, HeadConfig(1)).train()
    states, layout = encode(encoder, both_sides([0, 1, 2]))
    with torch.no_grad():
        before = head.eval()(states, layout) - head.offset
        head.train()
        head.calibrate(states, layout, positive=0.37)
        assert head.training
        after = head.eval()(states, layout)
    assert after.mean().item() == pytest.approx(math.log(0.37 / 0.63), abs=1e-5)
    assert after.std().item() == pytest.approx(1.0, abs=1e-5)
    assert after.argsort().tolist() == before.argsort().tolist()


@pytest.mark.parametrize("rows", [[0], [1, 1, 1]], ids=["one pair", "the same pair"])
def test_calibration_on_pairs_that_do_not_differ_sets_the_offset_alone(rows, encoder):
    head = build(PARA, HeadConfig(1))
    weight = head.output.weight.clone()
    states, layout = encode(encoder, both_sides(rows))
    head.calibrate(states, layout, positive=0.25)
    assert torch.equal(head.output.weight, weight)
    torch.testing.assert_close(head(states, layout), torch.full((len(rows),), -math.log(3)), rtol=0, atol=1e-5)


def test_only_a_score_that_is_compared_with_zero_has_an_offset():
    with_offset = [task.name for task in TASKS.values() if TaskHead(task, 24, 4, HeadConfig(1)).offset is not None]
    assert with_offset == ["para"]
    assert TaskHead(PARA, 24, 4, HeadConfig(1, pair_score="dot")).offset is None


def test_calibration_leaves_heads_without_offset_alone(encoder):
    head = build(STS, HeadConfig(1))
    before = {name: p.clone() for name, p in head.named_parameters()}
    head.calibrate(*encode(encoder, both_sides([0, 1, 2])), positive=0.5)
    assert all(torch.equal(before[name], p) for name, p in head.named_parameters())


@pytest.mark.parametrize("name", list(HEADS))
def test_a_row_alone_in_a_batch_and_padded_to_128_is_scored_the_same(task, name, encoder):
    head = build(task, HEADS[name](task))
    with torch.no_grad():
        if task.is_pair:
            together = head(*encode(encoder, both_sides([0, 1, 2])))
            alone = [head(*encode(encoder, both_sides([i]))) for i in range(3)]
            padded = head(*encode(encoder, both_sides([0, 1, 2]), width=128))
        else:
            together = head(*encode(encoder, SENTENCES))
            alone = [head(*encode(encoder, [ids])) for ids in SENTENCES]
            padded = head(*encode(encoder, SENTENCES, width=128))
    # The tiny encoder's numbers are larger than BERT's; the promise is for numbers of order 1.
    scale = max(1.0, together.abs().max().item())
    assert together.std(dim=0).min() / scale > 1e-3  # rows differ by much more than what is allowed below
    torch.testing.assert_close(together / scale, torch.cat(alone) / scale, rtol=0, atol=1e-5)
    torch.testing.assert_close(together / scale, padded / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", list(HEADS))
@pytest.mark.parametrize("task", [PARA, STS], ids=lambda task: task.name)
def test_a_swapped_pair_has_the_same_score(task, name, encoder):
    # <W a, W b> = <W b, W a>, and each cross-attention layer does the same to both.
    head = build(task, HEADS[name](task))
    with torch.no_grad():
        score = head(*encode(encoder, both_sides([0, 1, 2])))
        swapped = head(*encode(encoder, [SENTENCES[i] for i in (3, 4, 5, 0, 1, 2)]))
    scale = max(1.0, score.abs().max().item())
    torch.testing.assert_close(score / scale, swapped / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 2])
def test_only_the_last_layer_is_cut_to_the_first_token(task, layers, encoder):
    head = build(task, HeadConfig(layers, pooler="first"))
    states, layout = encode(encoder, SENTENCES)
    hidden = states[-1]
    for layer in head.attention:
        hidden = layer(hidden, layout)
    torch.testing.assert_close(head.represent(states, layout), hidden[layout.first], rtol=0, atol=1e-5)


def test_dropout_is_in_front_of_the_output_map_and_in_training_alone():
    head = build(
        dataclasses.replace(SST, label_range=(0, 7), output_size=8, label_words=()),
        HeadConfig(0, pooler="mean", dropout_prob=0.25),
        size=8,
    )
    head.output.weight.data = torch.eye(8)
    head.output.bias.data.zero_()
    layout = Layout.of(torch.ones(500, 1))
    assert (head((torch.ones(500, 8),), layout) == 1).all()
    head.train()
    torch.manual_seed(0)
    out = head((torch.ones(500, 8),), layout)
    torch.testing.assert_close(out.unique(), torch.tensor([0, 4 / 3]))
    assert abs(out.mean() - 1) < 5 * math.sqrt(0.25 * 0.75 / 4000) / 0.75


def test_the_configured_dropout_reaches_the_attention_layers(task):
    head = TaskHead(task, 24, 4, HeadConfig(2, dropout_prob=0.45))
    assert [layer.dropout_prob for layer in head.attention] == [0.45, 0.45]


@pytest.mark.parametrize("name", list(HEADS))
def test_gradients_reach_every_parameter_that_learns(task, name, encoder):
    head = build(task, HEADS[name](task)).train()
    states, layout = encode(encoder, SENTENCES)
    outputs = head(states, layout)
    (outputs * torch.randn(outputs.shape)).sum().backward()
    for parameter, p in head.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all(), parameter
        # Nothing can teach a key's bias: it adds the same to all scores of a query, and softmax ignores that.
        assert parameter.endswith("key.bias") or p.grad.abs().max() > 0, parameter


def test_a_batch_of_one_keeps_its_dimension(task, encoder):
    head = build(task, HeadConfig(1))
    rows = both_sides([0]) if task.is_pair else SENTENCES[:1]
    assert head(*encode(encoder, rows)).shape == task.output_shape(1)


def test_unknown_words_are_refused():
    with pytest.raises(InputError, match="--attention_init normal: not known"):
        TaskHead(SST, 24, 4, HeadConfig(1, attention_init="normal"))
    with pytest.raises(InputError, match="--pooler last: not known"):
        TaskHead(SST, 24, 4, HeadConfig(1, pooler="last"))
    with pytest.raises(InputError, match="known: calibrated, dot"):
        TaskHead(PARA, 24, 4, HeadConfig(1, pair_score="angle"))
