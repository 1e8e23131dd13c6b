"""A report's plots, drawn by matplotlib as SVG that stands in the page itself.

SVG, because it is small (plotly's script alone is 4 MB), prints sharply, and takes the page's fonts and colours: what
is drawn in COLOURS and SERIES, which no plot has by chance, leaves as the page's CSS variables, so that a plot is dark
where the page is. Texts in it are the program's own words alone; matplotlib escapes them.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells on stderr that it looks for fonts

import matplotlib  # noqa: E402
from markupsafe import Markup  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import MaxNLocator  # noqa: E402

from report_data import Curve, Judged  # noqa: E402

COLOURS = {"ink": "#010203", "muted": "#010204", "grid": "#010205", "paper": "#010206"}
SERIES = [f"#0102{i:02x}" for i in range(0x10, 0x18)]  # of run or line i
SIZE = (4.0, 2.75)  # inches: a phone's width at the size of the page's text
MOST_POINTS = 2000
BINS = 10
STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
    "axes.edgecolor": COLOURS["grid"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.titlecolor": COLOURS["ink"],
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 0.6,
    "text.color": COLOURS["ink"],
    "xtick.color": COLOURS["grid"],
    "ytick.color": COLOURS["grid"],
    "xtick.labelcolor": COLOURS["muted"],
    "ytick.labelcolor": COLOURS["muted"],
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 2.8,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
}


@contextmanager
def _plot(found: list[Markup], name: str, alt: str, title: str, size: tuple[float, float] = SIZE) -> Iterator:
    """Yields axes to draw on; what was drawn is added to `found`. name: tells its SVG's ids from other plots'."""
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        axes.set_title(title)
        yield axes
        found.append(_svg(figure, alt))


def _svg(figure: Figure, alt: str) -> Markup:
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    for name, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    for i, colour in enumerate(SERIES):
        text = text.replace(colour, f"var(--c{i + 1})")
    # The viewBox is enough: the page gives the width.
    opening = re.match(r"<svg[^>]*>", text)[0]
    box = re.search(r'viewBox="[^"]*"', opening)[0]
    head = Markup('<svg {} role="img" aria-label="{}" xmlns:xlink="http://www.w3.org/1999/xlink">')
    return head.format(Markup(box), alt) + Markup(text[len(opening) :])


def curves(runs: list[list[Curve]]) -> list[Markup]:
    """Of each task the loss and the dev score through training, a line for each run."""
    found: list[Markup] = []
    names = list(dict.fromkeys(curve.name for run in runs for curve in run))
    for name in names:
        own = [(i, curve) for i, run in enumerate(runs) for curve in run if curve.name == name]
        title, metric, x_label = own[0][1].title, own[0][1].metric, own[0][1].x_label
        if any(curve.score for _, curve in own):
            with _plot(found, f"score-{name}", f"{title}: dev {metric} through training", f"{title}: dev") as axes:
                for i, curve in own:
                    axes.plot(*_columns(curve.score), marker="o", color=SERIES[i % len(SERIES)], label=metric)
                    kept = [y for x, y in curve.score if x == curve.best]
                    if kept:
                        mark = {"markersize": 9, "markerfacecolor": "none", "color": SERIES[i % len(SERIES)]}
                        axes.plot([curve.best], kept, "o", **mark, label="kept" if i == own[0][0] else None)
                axes.set(xlabel=x_label, ylabel=_plain(metric))
                axes.xaxis.set_major_locator(MaxNLocator(6, integer=x_label == "epoch"))
        with _plot(found, f"loss-{name}", f"{title}: loss through training", f"{title}: loss") as axes:
            for i, curve in own:
                colour, first = SERIES[i % len(SERIES)], i == own[0][0]
                for points, line, label in ((curve.train_loss, "-", "train"), (curve.dev_loss, "--", "dev")):
                    if points:
                        shown = {"marker": "o", "color": colour, "label": label if first else None}
                        axes.plot(*_columns(points), line, **shown)
            axes.set(xlabel=x_label, ylabel="loss")
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=x_label == "epoch"))
            if axes.get_legend_handles_labels()[0]:
                axes.legend()
    return found


def _columns(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _plain(metric: str) -> str:
    return metric.replace("_", " ")


def calibration(judged: Judged, name: str, i: int = 0) -> tuple[Markup, float]:
    """How often answers of a given probability are right, and the expected calibration error in [0, 1].

    Guo, Pleiss, Sun and Weinberger 2017 (arXiv 1706.04599), section 2: the answer's own probability in BINS bins of
    equal width; the error is the mean distance of both over the answers.
    """
    rows = np.arange(len(judged.values))
    sure = judged.probabilities[rows, judged.values.astype(int)]
    right = judged.values == judged.labels
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    counts = np.bincount(bins, minlength=BINS)
    filled = counts > 0
    mean_sure = np.bincount(bins, sure, BINS)[filled] / counts[filled]
    mean_right = np.bincount(bins, right, BINS)[filled] / counts[filled]
    error = float((counts[filled] * np.abs(mean_sure - mean_right)).sum() / len(rows))
    found: list[Markup] = []
    with _plot(found, name, f"{judged.task.title}: calibration, error {error:.3f}", "calibration") as axes:
        axes.plot([0, 1], [0, 1], "--", color=COLOURS["muted"], linewidth=1)
        axes.vlines(mean_sure, mean_sure, mean_right, color=SERIES[i % len(SERIES)], linewidth=1, alpha=0.6)
        sizes = 12 + 200 * counts[filled] / counts.max()
        axes.scatter(mean_sure, mean_right, s=sizes, color=SERIES[i % len(SERIES)], alpha=0.75, linewidths=0)
        axes.set(xlim=(0, 1.02), ylim=(-0.03, 1.05), xlabel="probability of its answer", ylabel="share that is right")
    return found[0], error


def thresholds(judged: Judged, name: str) -> tuple[Markup, float, float, float]:
    """Accuracy, precision, recall and F1 of the class 1, where it is said from a probability of t on, for each t.

    Returns the plot, the threshold of the best accuracy, that accuracy, and the one at one half.
    """
    probability, labels = judged.probabilities[:, 1], judged.labels == 1
    cuts = np.linspace(0, 1, 101)
    said = probability[None] >= cuts[:, None]  # (cuts, n)
    hits, called, wanted = (said & labels).sum(axis=1), said.sum(axis=1), labels.sum()
    accuracy = (said == labels).mean(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        lines = {
            "accuracy": accuracy,
            "precision": hits / called,  # NaN, and so no line, where nothing is called 1
            "recall": hits / wanted,
            "F1": 2 * hits / (called + wanted),
        }
    at_best = np.flatnonzero(accuracy == accuracy.max())
    best = cuts[at_best[len(at_best) // 2]]
    found: list[Markup] = []
    with _plot(found, name, f"{judged.task.title}: scores by threshold", "where to cut") as axes:
        for i, (label, values) in enumerate(lines.items()):
            style = (
                {"linewidth": 2.4}
                if label == "accuracy"
                else {"linewidth": 1.3, "linestyle": ("-", "--", ":", "-.")[i]}
            )
            axes.plot(cuts, values, color=SERIES[i], label=label, **style)
        axes.axvline(0.5, color=COLOURS["muted"], linewidth=1)
        axes.axvline(best, color=SERIES[0], linewidth=1, linestyle=":")
        axes.set(xlim=(0, 1), ylim=(0, 1.03), xlabel="probability from which a row is called 1", ylabel="on dev")
        axes.legend(loc="lower center", ncols=2)
    return found[0], float(best), float(accuracy.max()), float(accuracy[50])


def scatter(judged: Judged, name: str, i: int = 0) -> Markup:
    """Labels and predictions, with the straight line that puts predictions on the labels' scale."""
    labels, values = judged.labels, judged.values
    if len(labels) > MOST_POINTS:
        picked = np.random.default_rng(0).choice(len(labels), MOST_POINTS, replace=False)
        labels, values = labels[picked], values[picked]
    found: list[Markup] = []
    alt = f"{judged.task.title}: labels and predictions"
    with _plot(found, name, alt, "labels and predictions", (4.0, 3.2)) as axes:
        alpha = 0.6 if len(labels) < 300 else 0.3
        axes.scatter(values, labels, s=14, color=SERIES[i % len(SERIES)], alpha=alpha, linewidths=0)
        order = np.argsort(judged.values)
        axes.plot(judged.values[order], judged.scaled[order], color=COLOURS["muted"], linewidth=1.2)
        axes.set(xlabel="the model's score (it has no scale of its own)", ylabel="label")
    return found[0]


def differences(rows: list[tuple[str, list[tuple[int, float, tuple[float, float] | None]]]]) -> Markup:
    """Differences to the first run with their intervals: (what, [(run, difference, interval)]), first at the top."""
    found: list[Markup] = []
    several = max(len(marks) for _, marks in rows)
    height = 0.75 + 0.3 * len(rows) * max(1, 0.7 * several)
    with _plot(
        found, "differences", "differences to the first run", "difference to the first run", (4.0, height)
    ) as axes:
        for place, (_, marks) in enumerate(rows):
            for k, (run, value, found_interval) in enumerate(marks):
                y = place + (k - (len(marks) - 1) / 2) * 0.22
                colour = SERIES[run % len(SERIES)]
                if found_interval:
                    axes.plot(found_interval, [y, y], color=colour, linewidth=2.5, solid_capstyle="round")
                axes.plot([value], [y], "o", color=colour, markersize=6)
        axes.axvline(0, color=COLOURS["muted"], linewidth=1)
        axes.set_yticks(range(len(rows)), [what for what, _ in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
    return found[0]
