"""A finished run as a page that opens anywhere, or several runs side by side.

    python report.py [RUN]                RUN/report.html, as the training command leaves it; without RUN the newest's
    python report.py RUN RUN [RUN...]     the first run's comparison.html: differences to it, with intervals

The page is one file: its style and script stand in it, and its Content-Security-Policy (W3C, level 3) forbids fetching
anything and running any other script. Texts from data, runs and models are escaped by jinja2, in SVG by matplotlib.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import startup  # noqa: F401  # isort: skip: before what may be missing

import jinja2
from markupsafe import Markup

from command_line import path_given, text_given
from console import refuse, tell
from errors import InputError, whole_number
from files import atomic_write, cannot
from files import short as short_path
from report_context import WORST, page
from report_data import read_run
from run import ROOT, Run, newest_finished

TEMPLATES = Path(__file__).resolve().parent / "templates"
REPORT, COMPARISON = "report.html", "comparison.html"
GENERATOR = "report.py of minBERT"
HEAD = b'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
# What pages begin with; the second are those from before they said who made them.
BEGINNINGS = (
    HEAD + f'<meta name="generator" content="{GENERATOR}">'.encode(),
    HEAD + b'<meta http-equiv="Content-Security-Policy" content="default-src &#39;none&#39;; img-src data:; style-src',
)


def write_report(
    names: list[str | Path],
    out: Path | None = None,
    *,
    data: Path | None = None,
    worst: int = WORST,
    say: Callable[[str], object] = tell,
) -> Path:
    """Write the page of one finished run, or of several side by side. Returns its path.

    names: folders, or names in runs/. out: default REPORT in the run's folder, or COMPARISON in the first one's. data:
    where to look first for dev files. worst: rows to show of each task. Raises InputError for what is no finished run,
    and where the page can't be written, or would replace what is none.
    """
    folders = [Run.open(name, ROOT).folder for name in names]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InputError(f"{' '.join(map(str, names))}: a run is named twice: name each once")
    out = out or folders[0] / (REPORT if len(folders) == 1 else COMPARISON)
    if out.is_file() and not starts_like_a_page(out):
        raise InputError(f"{short_path(out)} is there and no page of report.py: name another file with --out")
    runs = [read_run(name, data, say) for name in names]
    text = render(page(runs, worst, out.parent))
    with atomic_write(out, "wb") as file:
        file.write(text.encode("utf-8", "backslashreplace"))  # names of files and texts in JSON need not be UTF-8
    return out


def starts_like_a_page(path: Path) -> bool:
    """Whether report.py wrote a file, by its beginning; an empty file holds nothing to lose."""
    try:
        with open(path, "rb") as file:
            content = file.read(max(map(len, BEGINNINGS)))
    except OSError as error:
        raise cannot("read", path, error) from error
    return not content or content.startswith(BEGINNINGS)


def render(context: dict) -> str:
    """The page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.filters.update(number=number, signed=signed, hundredths=hundredths, count=lambda value: f"{value:,}")
    style, script = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    template = environment.get_template("report.html")
    parts = {"style": Markup(style), "script": Markup(script), "policy": policy, "generator": GENERATOR}
    return template.render(**parts, **context).lstrip()


def number(value: float | None, digits: int = 3) -> str:
    """A score as the page shows it: 0.829; `undefined` for a correlation that is."""
    return "undefined" if value is None else f"{value:.{digits}f}"


def signed(value: float | None, digits: int = 3) -> str:
    """A difference, with a minus that is as wide as the plus."""
    return "undefined" if value is None else f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def hundredths(value: float) -> str:
    """A share in [0, 1] as a whole per cent."""
    return f"{100 * value:.0f} %"


def _at_least_none(text: str) -> int:
    value = whole_number(text, sys.maxsize)
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r}, wanted a whole number from 0 up")
    return value


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make the page of a finished run, or of several side by side.")
    parser.add_argument(
        "runs",
        nargs="*",
        type=text_given,
        metavar="RUN",
        help="a run's folder, or its name in runs/ (default: the newest that is finished)",
    )
    parser.add_argument(
        "--out",
        type=path_given,
        metavar="FILE",
        help=f"the page to write (default: {REPORT} in the run's folder, of several {COMPARISON} in the first one's)",
    )
    parser.add_argument(
        "--data", type=path_given, metavar="DIR", help="where dev files are now that were moved since the run"
    )
    parser.add_argument(
        "--worst",
        type=_at_least_none,
        metavar="N",
        default=WORST,
        help="most rows to show of each task (default %(default)s: each costs a call of the model)",
    )
    args = parser.parse_args(arguments)
    try:
        runs = args.runs or [newest_finished(ROOT)]
        out = write_report(runs, args.out, data=args.data, worst=args.worst)
    except (InputError, OSError) as error:
        return refuse(error)
    tell(f"{short_path(os.path.abspath(out))}: open it in a browser")
    return 0


if __name__ == "__main__":
    sys.exit(main())
