"""The report page in a real browser: nothing on the console, nothing fetched; it sorts, searches, draws and prints.

Debian's Chromium without a window, driven by playwright; skipped where neither is installed.
"""

import shutil

import pytest
from test_report import HOSTILE, ROWS, finished, train  # noqa: F401

import report

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: the page is not looked at")
BROWSERS = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
PHONE, DESK = {"width": 400, "height": 800}, {"width": 1200, "height": 900}


@pytest.fixture(scope="module")
def browser():
    """Chromium, with no network that it could reach by a name."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no Chromium is installed ({', '.join(BROWSERS)}): the report's page is not looked at")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, timeout=300_000)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(finished, tmp_path_factory):  # noqa: F811
    """The page of a run with attention layers, and the comparison of it with one without."""
    out = tmp_path_factory.mktemp("pages") / "comparison.html"
    return {"run": finished[0] / "report.html", "runs": report.write_report(list(finished), out, say=lambda text: None)}


@pytest.fixture
def open_page(browser, pages):
    """open_page(which, viewport, scheme) -> the page; at the end nothing is on the console, and nothing was fetched."""
    contexts, said, fetched, opened = [], [], [], []

    def open_page(which="run", viewport=DESK, scheme="light"):
        context = browser.new_context(viewport=viewport, color_scheme=scheme)
        contexts.append(context)
        context.set_default_timeout(120_000)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("request", lambda request: fetched.append(request.url))
        opened.append(pages[which].as_uri())
        page.goto(opened[-1])
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert fetched == opened


def column(page, table, place):
    """What a table's rows that can be seen have in a column, in the order on the page."""
    rows = page.locator(f"{table} > tbody > tr:visible > td:nth-child({place})")
    return rows.evaluate_all("cells => cells.map((cell) => cell.dataset.value)")


def colour(page, place, name):
    """A colour of the first such element: red, green, blue, 0 to 255."""
    code = "([place, name]) => getComputedStyle(document.querySelector(place))[name].match(/[0-9.]+/g).map(Number)"
    return page.evaluate(code, [place, name])[:3]


def contrast(first, second):
    """WCAG 2's contrast ratio of two colours, 1 to 21."""

    def luminance(rgb):
        parts = [part / 255 for part in rgb]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("which", ["run", "runs"])
@pytest.mark.parametrize(("viewport", "scheme"), [(DESK, "light"), (DESK, "dark"), (PHONE, "light"), (PHONE, "dark")])
def test_it_opens_and_nothing_is_wider_than_the_page(open_page, which, viewport, scheme):
    page = open_page(which, viewport, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    for details in page.locator("#sts details:visible").all()[:2]:
        details.locator("summary").first.click()
    assert page.locator("table.attention:visible").count() >= (which == "run")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    texts = page.locator("#errors-sts > tbody > tr:visible > td.text").first.bounding_box()["width"]
    assert texts > (0.5 if which == "run" or viewport == PHONE else 0.3) * viewport["width"]
    # As large as can be read, and as far from the background as WCAG 2 (success criterion 1.4.3) wants of text.
    assert page.locator(".chart svg text").first.bounding_box()["height"] >= 8
    paper = colour(page, "body", "backgroundColor")
    assert (sum(paper) < 3 * 128) == (scheme == "dark")
    texts = ("body", ".note", "nav a", "figcaption", ".wrong") if which == "run" else ("body", ".note", "nav a")
    for place, name in [*((text, "color") for text in texts), (".chart svg text", "fill")]:
        assert contrast(colour(page, place, name), paper) >= 4.5, place


def test_sorting(open_page):
    page = open_page()
    page.locator("#sts .more button").click()
    found = column(page, "#errors-sts", 1)
    assert len(found) == ROWS["dev"]
    button, head = page.locator("#errors-sts thead button").first, page.locator("#errors-sts thead th").first
    button.click()
    up = column(page, "#errors-sts", 1)
    assert up == sorted(found, key=float) and head.get_attribute("aria-sort") == "ascending"
    button.click()
    assert column(page, "#errors-sts", 1) == sorted(found, key=float, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    page.locator("#errors-sts thead button").last.click()
    texts = column(page, "#errors-sts", 4)
    assert texts == page.evaluate("(texts) => texts.toSorted((a, b) => a.localeCompare(b))", texts)
    assert head.get_attribute("aria-sort") is None


def test_the_first_rows_stay_the_first_of_any_order(open_page):
    page = open_page()
    assert len(column(page, "#errors-sts", 1)) == 10
    every = page.locator("#errors-sts > tbody > tr > td:first-child").evaluate_all(
        "all => all.map((x) => x.dataset.value)"
    )
    page.locator("#errors-sts thead button").first.click()
    assert column(page, "#errors-sts", 1) == sorted(every, key=float)[:10]


def test_searching(open_page):
    page = open_page()
    texts = page.locator("#errors-sts > tbody > tr").evaluate_all("rows => rows.map((row) => row.dataset.text)")
    word = next(word for word in texts[-1].split() if word.isalpha() and len(word) > 4)
    wanted = sum(word in text for text in texts)
    field, status = page.locator("#sts input"), page.locator("#sts .status")
    field.fill(f"  {word.upper()} ")
    assert len(column(page, "#errors-sts", 1)) == wanted and status.text_content() == f"{wanted} of {len(texts)} rows"
    field.fill("nosuchword")
    assert column(page, "#errors-sts", 1) == [] and status.text_content() == f"0 of {len(texts)} rows"
    field.fill("")
    assert len(column(page, "#errors-sts", 1)) == 10 and status.text_content() == ""
    assert len(column(page, "#errors-para", 1)) > 0  # another table's search is its own


def test_a_matrix_is_drawn_when_it_is_opened(open_page):
    page = open_page(viewport=PHONE)
    row = page.locator("#errors-sts > tbody > tr").first
    assert row.locator("table").count() == 0
    row.locator("summary").click()
    table, found = row.locator("table.attention"), page.evaluate("matrices['sts-0-0']")
    assert len(found) == 6
    for place in (0, 1):
        row.locator("select").select_option(index=place)
        assert table.locator("thead th").all_text_contents() == found[place]["columns"]
        assert table.locator("tbody th").all_text_contents() == found[place]["rows"]
        cells = [int(text) for text in table.locator("tbody td").all_text_contents()]
        assert cells == [value for line in found[place]["cells"] for value in line]
    table.locator("tbody td").first.click()
    said = f"“{found[1]['rows'][0]}” takes {found[1]['cells'][0][0]} % of “{found[1]['columns'][0]}”"
    assert row.locator("td.text p.quiet").first.text_content() == said
    colours = table.locator("tbody td").evaluate_all("all => all.map((cell) => getComputedStyle(cell).backgroundColor)")
    assert len(set(colours)) > 1


def test_hostile_texts_do_nothing_and_are_shown(open_page):
    page = open_page("runs")
    assert page.evaluate("window.hacked") is None
    shown = page.locator("#errors-sts p.words").first.text_content()
    assert shown.endswith(HOSTILE.lower())
    page.locator("#sts input").fill("<script>hacked")
    assert len(column(page, "#errors-sts", 1)) == ROWS["dev"]
    for details in page.locator("#errors-sts details.looks").all()[:3]:
        details.locator("summary").first.click()
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0


def test_it_prints_all_rows_on_white_without_its_tools(open_page):
    page = open_page(scheme="dark")
    page.emulate_media(media="print")
    assert len(column(page, "#errors-sts", 1)) == ROWS["dev"]
    assert page.locator(".tools:visible, nav:visible, .more:visible").count() == 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_it_can_be_read_without_scripts(browser, pages):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["run"].as_uri())
    assert page.locator("#errors-sts > tbody > tr:visible").count() == ROWS["dev"]
    context.close()
