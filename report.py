"""A finished run as a page that opens anywhere, or several runs side by side.

    python report.py RUN                  RUN/report.html, as the training command leaves it
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

from console import refuse, tell
from errors import InputError
from files import atomic_write
from files import short as short_path
from report_context import WORST, page
from report_data import read_run

TEMPLATES = Path(__file__).resolve().parent / "templates"
REPORT, COMPARISON = "report.html", "comparison.html"


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
    where to look for dev files that were moved. worst: rows to show of each task. Raises InputError for what is no
    finished run, or can't be written.
    """
    runs = [read_run(name, data, say) for name in names]
    if len({run.folder.resolve() for run in runs}) < len(runs):
        raise InputError(f"{' '.join(map(str, names))}: a run is named twice: name each once")
    out = out or runs[0].folder / (REPORT if len(runs) == 1 else COMPARISON)
    text = render(page(runs, worst, out.parent))
    with atomic_write(out) as file:
        file.write(text)
    return out


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
    return template.render(style=Markup(style), script=Markup(script), policy=policy, **context).lstrip()


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
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make the page of a finished run, or of several side by side.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, or its name in runs/")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help=f"the page to write (default: {REPORT} in the run's folder, of several {COMPARISON} in the first one's)",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="where dev files are now that were moved since the run"
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
        out = write_report(args.runs, args.out, data=args.data, worst=args.worst)
    except (InputError, OSError) as error:
        return refuse(error)
    print(f"{short_path(os.path.abspath(out))}: open it in a browser")
    return 0


if __name__ == "__main__":
    sys.exit(main())
