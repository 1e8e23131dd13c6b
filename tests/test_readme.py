"""README.md and docs/ say what is there: every module in the map, every link to a file, within three screens.

Follows the repository's own files.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]


def test_the_map_names_every_module_and_nothing_else():
    text = README.read_text(encoding="utf-8")
    rows = text[text.index("## The map") :].split("\n\n")[1].splitlines()[2:]
    named = [name for row in rows for name in re.findall(r"`([\w*]+\.py)`", row.split("|")[1])]
    modules = [path.name for path in ROOT.glob("*.py")]
    missing = [name for name in modules if not any(fnmatch(name, pattern) for pattern in named)]
    assert not missing, f"not in the README's map: {missing}"
    gone = [pattern for pattern in named if not any(fnmatch(name, pattern) for name in modules)]
    assert not gone, f"in the README's map, but no file: {gone}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert "://" in link or (page.parent / link).exists(), f"{page.name}: {link}"


def test_every_page_is_linked_from_the_readme():
    links = re.findall(r"\]\((docs/[^)#\s]+\.md)", README.read_text(encoding="utf-8"))
    assert sorted(set(links)) == [f"docs/{page.name}" for page in PAGES[1:]]


def test_the_readme_stays_within_three_screens():
    """Sixty-five lines a screen; what is longer has a page in docs/."""
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 195


def test_every_fault_has_a_test():
    """Each row of docs/faults.md's tables of faults names one, which is there and makes that fault happen."""
    blocks = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8").split("\n\n")
    rows = [row for block in blocks if block.startswith("| fault |") for row in block.strip().splitlines()[2:]]
    assert len(rows) >= 25
    for row in rows:
        (file, name), *more = re.findall(r"`(test_\w+\.py)::(test_\w+)`", row)
        assert not more and row.count("|") == 5, row
        assert f"\ndef {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), row


def test_the_citation_can_be_read_and_says_the_licence():
    yaml = pytest.importorskip("yaml")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0" and {"message", "title", "authors"} <= cited.keys()
    assert cited["license"] == "Apache-2.0" and "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    for reference in cited["references"]:
        assert {"type", "title", "authors"} <= reference.keys()
        number = reference.get("url", "").rpartition("/")[2]
        assert number in "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("*.py"))  # what we follow


def test_the_workflow_runs_what_a_change_must_pass():
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))
    steps = [step.get("run") for step in workflow["jobs"]["test"]["steps"] if "run" in step]
    wanted = re.findall(r"\./setup\.sh (?:pytest|ruff)[^|\n]*?(?= 2>|\s*\|)", (ROOT / ".ci" / "run").read_text())
    assert steps == [line.strip() for line in wanted] and len(steps) == 3
    asked = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert "./setup.sh pytest" in asked and "./setup.sh ruff check ." in asked
