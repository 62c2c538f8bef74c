"""The book as a plain build of the committed files, in a real browser, from files, without network.

Needs Debian's chromium (or another Chrome). Screenshots of the main pages go to _build/screenshots.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import numpy as np
import pandas as pd
import pytest
import yaml
from axe_playwright_python.sync_playwright import Axe
from checkout import files
from oracle import variables
from playwright.sync_api import sync_playwright

from measurements.explorer import load
from meprop import TopK, select
from meprop.study.stats import better, not_worse

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "book" / "_ext"))
from meprop_book import glued  # noqa: E402

SCREENSHOTS = ROOT / "_build" / "screenshots"
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
REQUIRED = os.environ.get("CI", "").lower() == "true"
PHONE, DESK = {"width": 360, "height": 740}, {"width": 1280, "height": 900}
WIDTHS = (360, 520, 768, 1000, 1280, 1920)

pytestmark = pytest.mark.skipif(
    BROWSER is None and not REQUIRED, reason="no chromium on the path; it is required where CI=true"
)


def pages() -> list[str]:
    """Every document of the table of contents, in its order."""
    toc = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text("utf-8"))
    found = [toc["root"]]

    def walk(entries):
        for entry in entries:
            if "file" in entry:
                found.append(entry["file"])
            for path in sorted(ROOT.glob(entry.get("glob", "no such file") + ".ipynb")):
                found.append(path.relative_to(ROOT).with_suffix("").as_posix())
            walk(entry.get("sections", []))

    for part in toc["parts"]:
        walk(part["chapters"])
    return found


START, TABLE, METHOD = "book/index", "notebooks/03-tables", "notebooks/01-method"
CLAIMS, RUN = "notebooks/06-claims", "notebooks/runs/paper/table2-k05-d0-s0"
# Of the runs one of a suite: they are made by one notebook.
RUNS = {page.rpartition("/")[0]: page for page in pages() if "/runs/" in page}
PAGES = [page for page in pages() if "/runs/" not in page] + [*RUNS.values()]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """What `jupyter-book build . --toc book/_toc.yml` makes of a clone, without a warning."""
    assert BROWSER, "CI=true, but there is no chromium"
    clone, out = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("out")
    for name in files():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    command = [Path(sys.executable).with_name("jupyter-book"), "build", "."]
    command += ["--toc", "book/_toc.yml", "--path-output", out, "-W", "-n", "--keep-going"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return out / "_build" / "html"


@pytest.fixture(scope="module")
def browser():
    options = ["--no-sandbox"] if os.geteuid() == 0 else []  # root may not have one
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=BROWSER, args=options)
        yield chromium
        chromium.close()


@dataclass
class Log:
    """What a page said and asked for."""

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def opened(site, browser, log):
    """Open pages of the book, each in a browser of its own; none may complain on the console."""
    contexts = []

    def open_page(name, viewport=DESK, query="", **settings):
        context = browser.new_context(viewport=viewport, color_scheme="light", **settings)
        contexts.append(context)
        context.set_offline(True)
        context.set_default_timeout(120_000)  # a busy machine is no failure
        page = context.new_page()
        page.on("console", lambda m: log.errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: log.errors.append(str(error)))
        page.on("request", lambda request: log.requests.append(request.url))
        page.on("requestfailed", lambda request: log.failed.append(request.url))
        page.goto((site / f"{name}.html").as_uri() + query, wait_until="load")
        # MathJax is loaded late, and works on its own time.
        page.evaluate("window.MathJax?.startup?.promise")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not log.errors


WRONG = """() => ({
    "formulas that are not typeset": [...document.querySelectorAll(".math")].filter(
        (it) => !it.querySelector("mjx-container")).length,
    "images without a text": [...document.querySelectorAll("img")].filter(
        (it) => !it.alt && it.getAttribute("role") !== "presentation").map((it) => it.src),
    "figures and tables without a number": [
        ...document.querySelectorAll("article table, article figure")].filter(
        (it) => !it.querySelector(".caption-number")).map((it) => it.textContent.slice(0, 80)),
    "numbers that do not count from 1 on the page": ["Fig.", "Table"].flatMap((kind) => [
        ...document.querySelectorAll("article .caption-number")].map((it) => it.textContent.trim())
        .filter((text) => text.startsWith(kind)).filter((text, n) => text !== `${kind} ${n + 1}`)),
    "figures that move the text when they come": [
        ...document.querySelectorAll("article img[src$='.png']")].filter(
        (it) => !it.hasAttribute("width") || !it.hasAttribute("height")).map((it) => it.src),
    "scripts for formulas that are not there": [
        ...document.querySelectorAll("script[src*='mathjax']")].map((it) => it.src).filter(
        () => !document.querySelector(".math")),
})"""
ABOUT = """() => Object.fromEntries([...document.querySelectorAll(
    "meta[name=description], meta[property^='og:']")].map(
    (it) => [it.name || it.getAttribute("property"), it.content]))"""
# What makes the document wider than the screen: named, so that it can be mended.
WIDER = """() => document.documentElement.scrollWidth <= innerWidth ? [] :
    [...document.querySelectorAll("main *")].filter(
        (it) => it.getBoundingClientRect().right > innerWidth + 1).map(
        (it) => `${it.tagName}.${it.className}`).slice(0, 5).concat(
        `document: ${document.documentElement.scrollWidth}`)"""


def wider(page):
    """The widths at which something is wider than the screen, and what."""
    found = {}
    for width in WIDTHS:
        page.set_viewport_size(DESK | {"width": width})
        found[width] = page.evaluate(WIDER)
    return {width: what for width, what in found.items() if what}


def serious(page):
    """What somebody who cannot see well, or uses no mouse, stumbles over, light and dark."""
    # A colour on its way to another one has no contrast to speak of.
    page.add_style_tag(content="* { transition: none !important; animation: none !important }")
    said = []
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function("it => document.documentElement.dataset.theme === it", arg=scheme)
        page.wait_for_function("document.getAnimations().length === 0")
        found = Axe().run(page, options={"preload": False}).response["violations"]
        said += [
            f"{scheme}: {each['help']} at {[node['target'] for node in each['nodes']][:3]}"
            for each in found
            if each["impact"] in ("serious", "critical")
        ]
    return said


def keep_screenshots(page, name):
    """As build artefacts, for eyes."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for scheme, viewport in (("light", DESK), ("dark", DESK), ("light", PHONE)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(viewport)
        path = SCREENSHOTS / f"{name.replace('/', '-')}-{scheme}-{viewport['width']}.png"
        page.screenshot(path=path, full_page=True)
        assert path.stat().st_size > 5_000


def url_path(address: str) -> Path:
    return Path(url2pathname(unquote(urlsplit(address).path)))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_sound(opened, log, site, name):
    """Alone on a disk it works, looks right at every width, and can be heard as well as seen."""
    page = opened(name)
    wrong = page.evaluate(WRONG) | {"scrolls sideways": wider(page)}
    page.set_viewport_size(DESK)
    wrong["not accessible"] = serious(page)
    about = page.evaluate(ABOUT)
    if name in (START, METHOD, TABLE, CLAIMS):
        keep_screenshots(page, name)
    wrong["not found"] = log.failed
    own = (site.as_uri(), "data:", "blob:")
    wrong["asked for outside"] = [url for url in log.requests if not url.startswith(own)]
    assert not {what: where for what, where in wrong.items() if where}
    assert 30 < len(about["description"]) <= 200
    assert about["og:title"] and about["og:type"] == "article"
    assert about["og:description"] == about["description"]
    assert not any("<" in text for text in about.values())


def test_internal_links_and_anchors_resolve(site):
    """Of every page, those of all runs too, without a browser."""
    pages = {path: path.read_text("utf-8") for path in site.rglob("*.html")}
    ids = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}
    broken = []
    for page, text in pages.items():
        for link in set(re.findall(r'<a [^>]*?href="([^"]+)"', text)):
            parts = urlsplit(unescape(link))
            if parts.scheme:
                assert parts.scheme in ("http", "https", "mailto"), link
                continue
            path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            anchor = unquote(parts.fragment)
            if not path.is_file() or (anchor and path in ids and anchor not in ids[path]):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert len(pages) > 80 and not broken


@pytest.mark.parametrize(
    ("word", "found"), [("run_grad", "reading"), ("normalization", "reading"), ("install", "api")]
)
def test_search_finds(opened, word, found):
    page = opened("search", query=f"?q={word}")
    # Sphinx adds the results one by one: the first to come says nothing of the others
    page.wait_for_selector(f"#search-results li a[href*='book/{found}.html']")


def test_dark_mode_switches(opened):
    page = opened(TABLE)
    ground = "getComputedStyle(document.body).backgroundColor"
    seen = {page.evaluate("document.documentElement.dataset.theme"): page.evaluate(ground)}
    for _ in range(2):  # light, dark, as the system has it
        page.click("button.theme-switch-button:visible")
        seen[page.evaluate("document.documentElement.dataset.theme")] = page.evaluate(ground)
    assert seen.keys() == {"light", "dark"}
    assert seen["light"] != seen["dark"]
    # Figures have a white ground in both.
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    figure = page.query_selector(".cell_output img")
    assert figure.evaluate("it => getComputedStyle(it).backgroundColor") == "rgb(255, 255, 255)"


def test_the_idea_needs_no_script(opened):
    page = opened(START, PHONE, java_script_enabled=False)
    panels = page.locator("img[src*='idea-']")
    boxes = [panels.nth(place).bounding_box() for place in range(4)]
    assert panels.count() == 4 and all(box["width"] > 280 for box in boxes)
    assert [box["y"] for box in boxes] == sorted(box["y"] for box in boxes), "one below the other"


def test_start_leads_to_terms_and_claims(opened):
    page = opened(START)
    page.click("a[href*='#term-feature-map']")
    assert "What one filter" in page.inner_text("#term-feature-map ~ dd, dt#term-feature-map + dd")
    page.go_back()
    page.locator("#tab-central").get_by_role("link", name="a decay of 0.6 helps").click()
    assert page.url.endswith("06-claims.html#claim-decay-helps")
    assert "decay of 0.6" in page.locator("h3:has(#claim-decay-helps)").inner_text()


def test_wide_figures_stay_legible_on_a_phone(opened):
    page = opened(METHOD, PHONE)
    box = page.locator("figure:has(> img.wide)").first
    assert box.locator("img").bounding_box()["width"] > 600
    box.focus()
    page.keyboard.press("ArrowRight")
    box_id = box.get_attribute("id")
    page.wait_for_function("id => document.getElementById(id).scrollLeft > 0", arg=box_id)
    page.set_viewport_size(DESK)
    page.wait_for_function(
        "id => !document.getElementById(id).hasAttribute('tabindex')", arg=box_id
    )


def test_panels_stand_one_below_the_other_on_a_phone(opened):
    page = opened(METHOD, PHONE)
    figure = page.locator("figure:has(picture) img").first
    figure.scroll_into_view_if_needed()
    box = figure.bounding_box()
    assert box["x"] + box["width"] <= PHONE["width"] and box["height"] > box["width"]
    natural = figure.evaluate("it => it.naturalHeight / it.naturalWidth")
    assert box["height"] / box["width"] == pytest.approx(natural, rel=0.05), "not squeezed"
    assert figure.evaluate("it => it.currentSrc").endswith(".narrow.png")
    page.set_viewport_size(DESK)
    page.wait_for_function("it => !it.currentSrc.includes('narrow')", arg=figure.element_handle())


def test_runs_sort_and_filter(opened):
    page = opened("notebooks/09-runs")

    def column(place):
        shown = "(rows, place) => rows.map((row) => row.cells[place].innerText)"
        return page.eval_on_selector_all("#tab-runs tbody tr:not([hidden])", shown, place)

    settled = column(2)
    assert len(settled) > 100
    head = "#tab-runs th >> nth=2 >> button"
    page.click(head)
    assert column(2) == sorted(settled, key=float)
    page.click(head)
    assert column(2) == sorted(settled, key=float, reverse=True)
    page.fill(".runs-filter input", "paper table3 0.6")
    assert column(0) and all(name.startswith("table3") for name in column(0))
    page.fill(".runs-filter input", "no-such-run")
    assert not column(0)


def test_a_number_of_table_2_is_two_clicks_from_its_record(opened):
    page = opened(TABLE)
    row = page.locator("table", has=page.locator("th", has_text="test, protocol")).locator("tr")
    row.nth(2).locator("a").click()
    assert page.url.endswith(f"{RUN}.html")
    # A download, which a browser without a network does not begin.
    link = page.locator("article a.download", has_text="Record")
    record = json.loads(url_path(link.evaluate("it => it.href")).read_text("utf-8"))
    assert record == json.loads((ROOT / "results/paper/table2-k05-d0-s0.json").read_text("utf-8"))
    # The page is the executed notebook; its commit is a link where the repository has an address.
    source = page.locator("a.btn-download-source-button").evaluate("it => it.href")
    assert url_path(source).read_bytes() == (ROOT / f"{RUN}.ipynb").read_bytes()
    commit = page.locator("tr", has=page.get_by_role("cell", name="commit", exact=True))
    assert record["provenance"]["commit"].startswith(commit.locator("td").nth(1).inner_text())
    page.locator("article").get_by_role("link", name="suffices", exact=True).click()
    assert page.url.endswith("06-claims.html#claim-suffices")


def test_another_rule_gives_the_verdicts_of_the_notebook(opened, margin=0.02, level=80):
    page = opened(CLAIMS)
    page.fill("#claims-margin", str(margin))
    page.fill("#claims-level", str(level))
    shown = {it.get_attribute("data-claim"): it for it in page.locator("[data-claim]").all()}
    found = variables("06-claims", "verdicts", margin=margin, alpha=(100 - level) / 100)["judged"]
    assert {key: it.inner_text() for key, it in shown.items()} == found.verdict.to_dict()


def test_the_rules_of_the_page_are_those_of_the_module(opened):
    """On claims that no records wait for, decided either way or not at all."""
    page = opened(CLAIMS)
    rng, cases, known = np.random.default_rng(0), [], []
    for _ in range(60):
        rows = np.column_stack(
            [rng.normal(0, 0.15, 2), rng.uniform(0.01, 0.1, 2), rng.integers(2, 30, 2)]
        )
        found = pd.DataFrame(rows, columns=["estimate", "se", "df"])
        for name, rule in {"better": better, "not worse": not_worse}.items():
            cases.append([name, rows.tolist(), 0.1, 0.95])
            known.append((name, rule(found)))
    ask = "cases => cases.map(([rule, ...rest]) => [rule, window.mepropRules[rule](...rest)])"
    assert [tuple(told) for told in page.evaluate(ask, cases)] == known
    assert len(set(known)) == 6


def test_a_book_is_printed_whole(tmp_path):
    """Two pages as one PDF: both are there, and the link from one to the other."""
    (tmp_path / "book").mkdir()
    nav = '<nav class="bd-links"><a class="reference" href="{}">A</a>{}</nav>'
    nav = nav.format("#", '<a class="reference" href="other.html">B</a>')
    first = f"{nav}<article><h1>First</h1><a href='other.html#there'>on</a></article>"
    other = f"{nav}<article><h1>Other</h1><p id='there'>here</p></article>"
    (tmp_path / "book" / "index.html").write_text(first, encoding="utf-8")
    (tmp_path / "book" / "other.html").write_text(other, encoding="utf-8")
    program = ROOT / "book" / "_ext" / "pdf.py"
    subprocess.run([sys.executable, program, tmp_path, tmp_path / "book.pdf"], check=True)
    printed = (tmp_path / "book.pdf").read_bytes()
    assert printed.startswith(b"%PDF")
    assert printed.count(b"/Subtype /Link") == 3, "two of the contents, one of the text"
    assert b"book-other--there" in printed


def test_the_summary_is_one_page_of_paper(opened):
    page = opened("book/summary")
    margin = dict.fromkeys(("top", "right", "bottom", "left"), "16mm")
    assert len(re.findall(rb"/Type /Page\b", page.pdf(format="A4", margin=margin))) == 1


def test_the_site_and_its_first_page_are_light(opened, log, site):
    opened(START)
    loaded = {url_path(url) for url in log.requests if url.startswith("file:")}
    assert sum(path.stat().st_size for path in loaded) < 1_000_000
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < 40_000_000


@pytest.fixture
def method_page(opened):
    page = opened(METHOD)
    page.wait_for_selector("#meprop-explorer canvas")
    yield page
    assert page.url.partition("#")[0].endswith("01-method.html")


@pytest.fixture(scope="module")
def recorded(site):
    return load(site / "_static" / "explorer-data.js")


def check_explorer(page, recorded):
    """Compare what the explorer shows with `select`; returns its settings."""
    content, gradients = recorded
    shown = page.evaluate(
        """() => {
            const {kept, ...rest} = document.getElementById("meprop-explorer").state;
            const texts = (of) => [...document.querySelectorAll(of)].map((it) => it.innerText);
            return {...rest, kept: kept.join(''),
                shares: texts(".explorer-share"), names: texts(".explorer-name")};
        }"""
    )
    rule = TopK(shown["ratio"], shown["decay"], shown["scope"])
    history = None
    for grad in gradients[shown["layer"]][: shown["step"] + 1]:
        mask, history = select(grad, rule, history)
    assert shown["kept"] == "".join(map(str, mask.flatten().int().tolist()))
    passed = grad * mask
    assert shown["norm"] == pytest.approx(float(passed.double().norm() / grad.double().norm()))
    # What was selected while it is zero passes nothing back.
    assert shown["passed"] == int(passed.count_nonzero())
    assert shown["perMap"] == (passed != 0).sum((0, 2, 3)).tolist()
    own = (passed != 0).sum((1, 2, 3)).double()
    shares = (100 * own / own.sum().clamp(min=1)).tolist()
    told = [float(share.removesuffix("%")) for share in shown["shares"]]
    assert told == pytest.approx(shares, rel=0.005)  # three digits
    labels = content["images"]["labels"][shown["step"]]
    assert all(str(label) in name for label, name in zip(labels, shown["names"], strict=True))
    return tuple(shown[name] for name in ("layer", "scope", "ratio", "decay", "step"))


def test_explorer_selects_as_the_module_does(method_page, recorded):
    page, seen = method_page, set()
    for layer in recorded[1]:
        page.check(f"#meprop-explorer [value={layer}]")
        for scope in ("map", "sample", "layer", "mixed"):
            page.check(f"#meprop-explorer [value={scope}]")
            for place in (0, 97, 170, 231, 285, 300):  # beyond a quarter, zeros are chosen among
                page.fill("#explorer-ratio", str(place))
                seen.add(check_explorer(page, recorded))
    for layer, scope in (("conv1", "map"), ("conv2", "mixed")):
        page.check(f"#meprop-explorer [value={layer}]")
        page.check(f"#meprop-explorer [value={scope}]")
        for decay in (30, 60, 95):
            page.fill("#explorer-decay", str(decay))
            for step in (1, 2, 5, 8):
                page.fill("#explorer-step", str(step))
                seen.add(check_explorer(page, recorded))
    assert len(seen) == 2 * 4 * 6 + 2 * 3 * 4


def test_explorer_by_keyboard(method_page, recorded):
    """The theme would turn the page."""
    page, seen = method_page, set()
    for name in ("ratio", "decay", "step"):
        page.focus(f"#explorer-{name}")
        for key in ("Home", "ArrowRight", "PageUp", "ArrowLeft"):
            page.keyboard.press(key)
            seen.add(check_explorer(page, recorded))
    assert len(seen) > 6
    page.focus("#meprop-explorer canvas >> nth=2")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    assert "row 2, column 3:" in page.inner_text(".explorer-cell")


def test_explorer_tells_the_square_under_the_pointer(method_page, recorded):
    content, gradients = recorded
    page = method_page
    state = page.evaluate(
        "(({map, step}) => [map, step])(document.getElementById('meprop-explorer').state)"
    )
    number = content["layers"][0]["maps"][state[0]]
    grad = gradients["conv1"][state[1], :, state[0]]
    sample, row, column = (int(i[0]) for i in (grad == grad.min()).nonzero(as_tuple=True))
    canvas = page.locator("#meprop-explorer canvas").nth(sample)
    side = canvas.bounding_box()["width"] / grad.shape[-1]
    canvas.hover(position={"x": (column + 0.5) * side, "y": (row + 0.5) * side})
    digit = content["images"]["labels"][state[1]][sample]
    value = f"\N{MINUS SIGN}{abs(float(grad.min())):.2g}"
    told = page.inner_text(".explorer-cell")
    assert told.startswith(
        f"The {digit}, map {number}, row {row + 1}, column {column + 1}: {value}"
    )
    assert "passed back" in told, "it is the largest of its map"
    page.set_viewport_size(PHONE)
    assert canvas.bounding_box()["width"] / 28 > 4, "a finger finds a square"


def test_explorer_is_set_from_the_text(method_page, recorded):
    page, seen = method_page, set()
    links = page.locator("a[data-explorer]")
    for place in range(links.count()):
        links.nth(place).click()
        seen.add(check_explorer(page, recorded))
    assert ("conv1", "map", 0.05, 0.6, 7) in seen, "the paper's rule"
    assert len(seen) == links.count() > 3


def test_explorer_tells_what_the_choice_costs(method_page):
    notebooks = ROOT / "notebooks"
    known = glued(notebooks / "03-tables.ipynb") | glued(notebooks / "05-speed.ipynb")
    for layer, decay in (("conv1", 0.0), ("conv2", 0.6)):
        method_page.check(f"#meprop-explorer [value={layer}]")
        method_page.fill("#explorer-decay", str(round(100 * decay)))
        told = method_page.inner_text(".explorer-cost").replace("\N{MINUS SIGN}", "-")
        row = f"table2-k05-d{f'{decay:.1f}'.replace('.', '') if decay else 0}"
        assert f"is {known[f'speed-{layer}-0.05']:.2f} times as fast" in told
        assert f"comes out {known[f'{row}-estimate']:+z.2f} points" in told
        assert f"({known[f'{row}-low']:+.2f} to {known[f'{row}-high']:+.2f})" in told
    method_page.check("#meprop-explorer [value=mixed]")
    assert "points" not in method_page.inner_text(".explorer-cost")
