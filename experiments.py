"""The papers' tables as data: which runs each row is made of, and what the paper reports; reproduce.py makes them.

Numbers are the papers' own: Jia 2024 (Stanford CS 224N poster, "task-specific attention"), tables 1 to 3; Lee, Park,
Seo and Kim 2021 (Stanford CS 224N report, "AttentiveCLS pooler"). Oh and others 2022 (arXiv 2209.05972), layer-wise
attention, is asked without its numbers. A row is one entry, and so is a table.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SEPARATELY = (("sst",), ("para",), ("sts",))  # a model for each task, as the poster trains
TOGETHER = (("sst", "para", "sts"),)
GLUE = (("cola",), ("mrpc",), ("rte",), ("sst2",))


@dataclass(frozen=True)
class Column:
    """What of a task's dev file, or of another data set, a column shows: one of its metrics, or "loss".

    compared: whether, in a table without a paper's numbers, the difference from another row stands beside it.
    """

    task: str
    metric: str
    title: str
    compared: bool = True


TEACHING = (11711, 11712, 11713)


@dataclass(frozen=True)
class Row:
    """One row: a way to train, the runs it takes, and the paper's numbers.

    name: as printed. key: the folder of its runs; rows of several tables with one key, options and option share their
    runs. option: pretrain or finetune, or an objective. options: of multitask_classifier.py or contrastive.py train,
    beyond their defaults; "" for one without a value. runs: the tasks, or the data sets, of each. paper: "task metric"
    -> the paper's number; seconds: its training time over all tasks. lr_times: how much of the learning rate
    recommended for the encoder. batch_times: how many times the table's rows a batch. teacher: a row whose finished
    runs, those of the seeds TEACHING, it is distilled from.
    """

    name: str
    key: str
    option: str
    options: dict[str, str] = field(default_factory=dict)
    runs: tuple[tuple[str, ...], ...] = SEPARATELY
    paper: dict[str, float] = field(default_factory=dict)
    seconds: float | None = None
    lr_times: float = 1.0
    batch_times: int = 1
    teacher: Row | None = None


@dataclass(frozen=True)
class Table:
    """A table: its columns and rows, and what all its rows have in common.

    options: of every row, under a row's own. epochs, batch_size, lr, encoder: the paper's (lr: option -> rate), one
    number or one for each option.
    compared_with: key of the row that times are divided by and, in a table without a paper's numbers, differences are
    taken from. many: whether the intervals of these hold for all rows at once, one spread of seeds for all of them,
    which is for tables of many rows with few seeds. note: what a reader has to know beside it.
    """

    title: str
    source: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    compared_with: str
    epochs: int | dict[str, int] = 10
    batch_size: int | dict[str, int] = 8
    options: dict[str, str] = field(default_factory=dict)
    lr: dict[str, str] = field(default_factory=dict)
    encoder: str = "bert-base-uncased"
    many: bool = False
    note: str = ""

    @property
    def of_a_paper(self) -> bool:
        return any(row.paper for row in self.rows)

    def options_of(self, row: Row) -> dict[str, str]:
        return {**self.options, **row.options}


@dataclass(frozen=True)
class ContrastiveTable(Table):
    """A table of sentence encoders: contrastive.py train, then evaluate and search evaluate.

    What they read, below the folder that reproduce.py --data names: train: objective -> files; dev: what selects the
    model; similarity: a folder of sets; search: a test collection, which columns call `searched`. No sentence of dev
    and similarity is trained on, and no pair that holds one of dev is judged by. narrow_lr: objective -> rate of an
    encoder narrower than bert-base.
    """

    train: dict[str, tuple[str, ...]] = field(default_factory=dict)
    dev: str = ""
    similarity: str = ""
    search: str = ""
    searched: str = ""
    narrow_lr: dict[str, float] = field(default_factory=dict)


SENTIMENT = Column("sst", "accuracy", "sentiment acc.")
SENTIMENT_ERROR = Column("sst", "mean_absolute_error", "sentiment mean abs. error")
PARAPHRASE = Column("para", "accuracy", "paraphrase acc.")
SIMILARITY = Column("sts", "pearson", "STS corr.")
LEADERBOARD = (SENTIMENT, PARAPHRASE, SIMILARITY)

POSTER = "Jia 2024"
# The poster's logit of a paraphrase is the plain dot product; the program's own default adds an offset.
AS_THE_POSTER = {"pair_score": "dot"}
POSTER_LR = {"pretrain": "1e-3", "finetune": "1e-5"}
# Its submission, on test: each task from the better experiment, and the score as it is printed there; these give .7597.
SUBMISSION = {"sst": {"accuracy": 0.524}, "para": {"accuracy": 0.842}, "sts": {"pearson": 0.826}}
SUBMISSION_SCORE = 0.759
FIRST, MEAN = {"attention": "0", "pooler": "cls"}, {"attention": "0", "pooler": "mean"}
UNIFORM = {"attention_init": "uniform"}
CALIBRATED = {"pair_score": "calibrated"}
SOFTMAX_TWICE = {"loss": "sst=softmax_twice"}
FFN_AND_SOFTMAX = {"attention_ffn": "", **SOFTMAX_TWICE}
AS_ITS_CODE = {"attention_ffn": "", "frozen_dropout": "", **SOFTMAX_TWICE}


def _leaderboard(sentiment: float, paraphrase: float, similarity: float) -> dict[str, float]:
    return {"sst accuracy": sentiment, "para accuracy": paraphrase, "sts pearson": similarity}


def _attention(name: str, key: str, option: str, options: dict, paper: tuple, seconds: float) -> Row:
    return Row(name, key, option, options, SEPARATELY, _leaderboard(*paper), seconds)


MEAN_ROWS = (
    Row("mean of the tokens", "mean", "pretrain", MEAN, SEPARATELY, _leaderboard(0.460, 0.386, 0.643), 15_608),
    Row("mean of the tokens", "mean", "finetune", MEAN, SEPARATELY, _leaderboard(0.515, 0.561, 0.854), 38_161),
)

TABLE_1 = Table(
    title="First token or mean of the tokens, without attention layers (poster, table 1)",
    source=POSTER,
    columns=LEADERBOARD,
    rows=(
        Row("first token", "first-token", "pretrain", FIRST, SEPARATELY, _leaderboard(0.389, 0.401, 0.298), 15_006),
        Row("first token", "first-token", "finetune", FIRST, SEPARATELY, _leaderboard(0.504, 0.595, 0.587), 37_183),
        *MEAN_ROWS,
    ),
    compared_with="mean",
    options=AS_THE_POSTER,
    lr=POSTER_LR,
)

TABLE_3 = Table(
    title="Task-specific attention: two self-, one cross-, three cross-attention layers (poster, table 3)",
    source=POSTER,
    columns=LEADERBOARD,
    rows=(
        *MEAN_ROWS,
        _attention("attention, default start", "attention", "pretrain", {}, (0.253, 0.469, 0.251), 18_086),
        _attention("attention, default start", "attention", "finetune", {}, (0.509, 0.843, 0.822), 41_827),
        _attention("attention, U(0.9, 1)", "attention-uniform", "pretrain", UNIFORM, (0.262, 0.429, 0.148), 17_648),
        _attention("attention, U(0.9, 1)", "attention-uniform", "finetune", UNIFORM, (0.539, 0.838, 0.386), 41_036),
    ),
    compared_with="mean",
    options=AS_THE_POSTER,
    lr=POSTER_LR,
    note="The poster's rows of test scores can't be made again: the course doesn't give out the test files' labels.",
)


def _both(name: str, key: str, options: dict[str, str], runs: tuple = SEPARATELY, **more) -> tuple[Row, ...]:
    """A row for each option, of what no paper has numbers for."""
    return tuple(Row(name, key, option, options, runs, **more) for option in ("pretrain", "finetune"))


ORDINAL = Table(
    title="Losses that know that sentiment labels are ordered",
    source="left open by Jia 2024",
    columns=(SENTIMENT, SENTIMENT_ERROR),
    rows=(
        *_both("cross entropy", "mean", MEAN, (("sst",),)),
        *_both("CORAL (proportional odds)", "coral", {**MEAN, "loss": "sst=coral"}, (("sst",),)),
        *_both("CORN (conditional thresholds)", "corn", {**MEAN, "loss": "sst=corn"}, (("sst",),)),
        *_both("squared earth mover's distance", "emd", {**MEAN, "loss": "sst=squared_emd"}, (("sst",),)),
    ),
    compared_with="mean",
    options=AS_THE_POSTER,
)

ABLATION = Table(
    title="What the poster leaves open, and where its author's code differs from its text",
    source="left open by Jia 2024",
    columns=LEADERBOARD,
    rows=(
        *_both("attention layers", "attention", {}),
        *_both("+ an offset of the paraphrase logit", "attention-calibrated", CALIBRATED, (("para",),)),
        *_both("+ a feed-forward block in each layer", "attention-ffn", {"attention_ffn": ""}),
        Row("+ dropout in the frozen encoder", "attention-frozen-dropout", "pretrain", {"frozen_dropout": ""}),
        Row("+ softmax twice", "attention-softmax-twice", "pretrain", SOFTMAX_TWICE, (("sst",),)),
        Row("+ the block and softmax twice", "attention-ffn-softmax-twice", "pretrain", FFN_AND_SOFTMAX, (("sst",),)),
        Row("+ these and dropout, its code", "attention-as-its-code", "pretrain", AS_ITS_CODE, (("sst",),)),
        *_both("+ warmup 10 %, linear decay", "attention-decay", {"warmup": "0.1", "lr_decay": "linear"}),
        *_both("a third of the learning rate", "attention-lr-low", {}, lr_times=1 / 3),
        *_both("three times the learning rate", "attention-lr-high", {}, lr_times=3.0),
        Row("+ heads learn at 1e-3", "attention-head-lr", "finetune", {"head_lr": "0.001"}),
        Row("no attention layer, heads at 1e-3", "mean-head-lr", "finetune", {**MEAN, "head_lr": "0.001"}),
        *_both("+ CFIMDB as a further task", "attention-cfimdb", {}, (("sst", "cfimdb"),)),
    ),
    compared_with="attention",
    options=AS_THE_POSTER,
)

BASELINE_SCORE = Table(
    title="The mean baseline with the offset of the paraphrase logit",
    source="left open by Jia 2024",
    columns=(PARAPHRASE,),
    rows=(
        *_both("mean, dot product", "mean", MEAN, (("para",),)),
        *_both("mean, with an offset", "mean-calibrated", {**MEAN, **CALIBRATED}, (("para",),)),
    ),
    compared_with="mean",
    options=AS_THE_POSTER,
)

# How one shared model trains in the tables that no paper has.
SHARED = {**MEAN, "warmup": "0.1", "lr_decay": "linear"}
SHARING = Table(
    title="One encoder for each task, or one for all",
    source="left open by Jia 2024",
    columns=LEADERBOARD,
    rows=(
        Row("separately", "separate", "finetune", {}),
        Row("one after another in each epoch", "sequential", "finetune", {"schedule": "sequential"}, TOGETHER),
        Row("jointly", "shared", "finetune", {}, TOGETHER),
    ),
    compared_with="separate",
    epochs=3,
    batch_size=32,
    options=SHARED,
)


def _shared(name: str, key: str, options: dict[str, str], **more) -> Row:
    """One model for the three tasks."""
    return Row(name, key, "finetune", options, TOGETHER, **more)


BOTH = {"pair_encoding": "both", "pair_score": "cosine"}
HEADS = BOTH | {"head_lr": "0.001"}
STEPS = HEADS | {"schedule": "even", "accumulate": "3"}
ONE_TASK = STEPS | {"accumulate": "1"}
SENTIMENT_ATTENTION = {"attention": "sst=2,para=0,sts=0"}
JOINT_ATTENTION = {"pair_encoding": "joint", "attention": "sst=2,para=1,sts=3", "pooler": "first"}
STEPS_JOINT = {name: value for name, value in STEPS.items() if name != "pair_score"} | {"pair_encoding": "joint"}
LAST_FOUR = {"pooler": "sst=concat_last4"}  # and the mean for pairs, which is the default without attention layers
STEPS_ROW = _shared("+ steps of three batches, tasks mixed, 1.73 times the encoder's rate", "steps", STEPS)
BEST_BOTH = STEPS | {"r_drop": "1"}
BEST = BEST_BOTH | {"pair_encoding": "separate"}
RECIPE = Table(
    title="What makes one shared model better",
    source="left open by Jia 2024",
    columns=LEADERBOARD,
    rows=(
        _shared("pairs as two sentences, dot product", "shared", {}),
        _shared("pairs as two sentences, cosine and features", "shared-cosine", {"pair_score": "cosine"}),
        _shared("pairs as one sequence", "shared-joint", {"pair_encoding": "joint"}),
        _shared("pairs as one sequence, attention layers", "shared-joint-attention", JOINT_ATTENTION),
        _shared("pairs both ways, cosine and features", "shared-both", BOTH),
        _shared("+ heads at 1e-3", "shared-both-head", HEADS),
        STEPS_ROW,
        _shared("+ each batch twice, R-Drop", "best-both", BEST_BOTH),
        _shared("the same, pairs as two sentences alone: `--recipe best`", "best", BEST),
        _shared("steps; half the encoder's learning rate", "steps-lr-low", STEPS, lr_times=0.5),
        _shared("steps; twice the encoder's learning rate", "steps-lr-high", STEPS, lr_times=2.0),
        _shared("steps; each layer nine tenths of the rate above", "steps-decay", STEPS | {"layer_decay": "0.9"}),
        _shared("steps; a moving average of the weights", "steps-average", STEPS | {"average": "0.99"}),
        _shared("steps; sentiment by CORAL", "steps-coral", STEPS | {"loss": "sst=coral"}),
        _shared("steps; sentiment by squared distance", "steps-emd", STEPS | {"loss": "sst=squared_emd"}),
        _shared("steps; less dropout in the heads", "steps-dropout", STEPS | {"hidden_dropout_prob": "0.1"}),
        _shared("steps; pairs as two sentences alone", "steps-separate", STEPS | {"pair_encoding": "separate"}),
        _shared("steps; pairs as one sequence alone", "steps-joint", STEPS_JOINT),
        _shared("steps; pairs in either order", "steps-swap", STEPS | {"swap_pairs": ""}),
        _shared("steps; offsets of all classes settled", "steps-settled", STEPS | {"settle": "all"}),
        _shared("steps; MeanMax", "steps-max", STEPS | {"pooler": "mean_max"}),
        _shared("steps; AttentiveCLS", "steps-attentive", STEPS | {"pooler": "attentive_cls"}),
        _shared("steps; sentiment from the last four layers", "steps-last4", STEPS | LAST_FOUR),
        _shared("best; sentiment from the last four layers", "best-last4", BEST | LAST_FOUR),
        _shared("steps; two attention layers for sentiment", "steps-attention", STEPS | SENTIMENT_ATTENTION),
        _shared("steps; the last layer begins anew", "steps-anew", STEPS | {"reinitialize": "1"}),
        _shared("steps; the full rate from the first step", "steps-no-warmup", STEPS | {"warmup": "0"}),
        _shared("steps; label smoothing", "steps-smooth", STEPS | {"label_smoothing": "0.1"}),
        _shared("steps; conflicting gradients projected (PCGrad)", "steps-pcgrad", STEPS | {"pcgrad": ""}),
        _shared("steps; steps of six batches, √2 times the encoder's rate", "steps-six", STEPS | {"accumulate": "6"}),
        _shared(
            "steps; of one task, three times its batch", "steps-one-task", ONE_TASK, lr_times=3**0.5, batch_times=3
        ),
        _shared("steps; tasks drawn by the root of their rows", "steps-root", STEPS | {"schedule": "square_root"}),
        _shared("steps; annealed", "steps-annealed", STEPS | {"schedule": "annealed"}),
        Row("steps; CFIMDB as a fourth task", "steps-cfimdb", "finetune", STEPS, (TOGETHER[0] + ("cfimdb",),)),
        _shared("steps; half its labels from three of it", "steps-distilled", STEPS, teacher=STEPS_ROW),
    ),
    compared_with="steps",
    epochs=2,
    batch_size=32,
    options=SHARED,
    many=True,
)

LEE = "Lee, Park, Seo and Kim 2021"


def _glue(cola: tuple, mrpc: tuple, rte: tuple, sst2: tuple) -> dict[str, float]:
    """The report's numbers: loss and Matthews; accuracy, F1 and loss; accuracy and loss, twice."""
    names = (
        ("cola loss", "cola matthews"),
        ("mrpc accuracy", "mrpc f1", "mrpc loss"),
        ("rte accuracy", "rte loss"),
        ("sst2 accuracy", "sst2 loss"),
    )
    pairs = zip(names, (cola, mrpc, rte, sst2), strict=True)
    return {name: value for task, values in pairs for name, value in zip(task, values, strict=True)}


def _pooler(name: str, pooler: str, paper: dict[str, float] | None = None) -> Row:
    return Row(name, f"pooler-{pooler}", "finetune", {"pooler": pooler}, GLUE, paper or {})


POOLERS = Table(
    title="Poolers on GLUE (report, table of dev scores)",
    source=LEE,
    columns=(
        Column("cola", "matthews", "CoLA Matthews"),
        Column("cola", "loss", "CoLA loss"),
        Column("mrpc", "accuracy", "MRPC acc."),
        Column("mrpc", "f1", "MRPC F1"),
        Column("mrpc", "loss", "MRPC loss"),
        Column("rte", "accuracy", "RTE acc."),
        Column("rte", "loss", "RTE loss"),
        Column("sst2", "accuracy", "SST-2 acc."),
        Column("sst2", "loss", "SST-2 loss"),
    ),
    rows=(
        _pooler(
            "AttentiveCLS",
            "attentive_cls",
            _glue((0.4588, 0.6044), (0.8544, 0.9012, 0.3952), (0.6137, 0.7498), (0.9289, 0.3272)),
        ),
        _pooler(
            "MeanMax",
            "mean_max",
            _glue((0.4208, 0.5375), (0.8162, 0.8777, 0.4424), (0.5379, 0.6920), (0.9312, 0.2711)),
        ),
        _pooler(
            "BERTPooler", "cls", _glue((0.4388, 0.5934), (0.8456, 0.8934, 0.4000), (0.6462, 0.7058), (0.9300, 0.2387))
        ),
        _pooler("mean of the tokens", "mean"),
    ),
    compared_with="pooler-cls",
    epochs=3,
    batch_size=16,
    options={"weight_decay": "0.01", "hidden_dropout_prob": "0.1"},
    lr={"finetune": "2e-5"},
    note="The report's is one run of code that takes the softmax over the batch and lets padding in; ours is its text.",
)

OH = "Oh, Kim, Lee, Huang and Lim 2022"
UNTRAINED, UNSUP, SUP = "untrained", "unsup", "sup"
SENTENCES = (("STS12", "STS-B-dev", "Cranfield"),)
# What a row is called, its key, and its pooler for each objective. SimCSE's [CLS] has its dense layer in training only,
# unless it is supervised.
ENCODERS = (
    ("[CLS], as SimCSE", "cls", {UNTRAINED: "first", UNSUP: "first", SUP: "cls"}),
    ("mean of the tokens", "mean", dict.fromkeys((UNTRAINED, UNSUP, SUP), "mean")),
    ("layer-wise attention", "layer_attention", dict.fromkeys((UNTRAINED, UNSUP, SUP), "layer_attention")),
)

LAYER_ATTENTION = ContrastiveTable(
    title="Layer-wise attention pooling: pooler and objective",
    source=OH,
    columns=(
        Column("STS12", "spearman", "STS12"),
        Column("STS-B-dev", "spearman", "STS-B dev"),
        Column("Cranfield", "ndcg@10", "Cranfield NDCG@10"),
        Column("Cranfield", "map@100", "Cranfield MAP@100"),
        Column("STS-B-dev", "alignment", "alignment", compared=False),
        Column("STS-B-dev", "uniformity", "uniformity", compared=False),
        Column("STS-B-dev", "mean_cosine", "mean cosine", compared=False),
        Column("STS-B-dev", "top_1", "variance in one direction", compared=False),
    ),
    rows=tuple(
        Row(name, key, objective, {"pooler": poolers[objective]}, SENTENCES)
        for objective in (UNTRAINED, UNSUP, SUP)
        for name, key, poolers in ENCODERS
    ),
    compared_with="cls",
    epochs={UNTRAINED: 0, UNSUP: 1, SUP: 3},
    batch_size=64,
    options={"evaluate_every": "50"},
    lr={UNSUP: "3e-5", SUP: "5e-5"},
    narrow_lr={UNSUP: 1e-4, SUP: 2e-4},
    note="STS is Spearman's correlation over all pairs of a set; alignment and what follows are of STS-B dev.",
    train={
        UNSUP: ("cs224n/ids-sst-train.csv", "cs224n/quora-train.csv", "cs224n/sts-train.csv"),
        SUP: ("nli/SNLI",),
    },
    dev="cs224n/sts-dev.csv",
    similarity="sts/original",
    search="search/cranfield",
    searched="Cranfield",
)

TABLES = {
    "table1": TABLE_1,
    "table3": TABLE_3,
    "ordinal": ORDINAL,
    "ablation": ABLATION,
    "offset": BASELINE_SCORE,
    "sharing": SHARING,
    "recipe": RECIPE,
    "poolers": POOLERS,
    "layer_attention": LAYER_ATTENTION,
}
