"""The book's prose and extension: what it says is what the executed notebooks say."""

import re
import sys
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from docutils import nodes
from docutils.utils import new_document
from PIL import Image

from meprop.study import experiments, style

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "book" / "_ext"))
import meprop_book as book  # noqa: E402

PAGES = sorted((ROOT / "book").glob("*.md"))
README = (ROOT / "README.md").read_text("utf-8")


@cache
def glued(path):
    return book.glued(ROOT / path)


# What the prose says


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_glued_values_are_there(page):
    text = page.read_text("utf-8")
    for path, name, form in re.findall(r"\{glue:text\}`\.\./(\S+?)::(\S+?)(?::(\S+))?`", text):
        values = glued(path)
        assert name in values, f"{page.name}: {path} has no {name}"
        assert format(values[name], form)


def test_numbers_in_readme_are_those_of_the_notebooks():
    """`1.27<!-- 05-speed speed-step .2f -->`: the notebook, the value and its format."""
    found = re.findall(r"([-+]?[\d.]+)<!--\s+(\S+)\s+(\S+)\s+(\S+)\s+-->", README)
    assert len(found) > 8
    for shown, notebook, name, form in found:
        value = glued(f"notebooks/{notebook}.ipynb")[name]
        assert shown == format(value, form), (
            f"README.md: {name} of {notebook} is {value:{form}} now"
        )


# Sentences of Start, README and the ablations, and the facts they were written for.
FACTS = [
    (["Yes, for the paper's network, without and with batch normalisation",
      "is supported, without and with batch normalisation"],
     lambda v: v["claim-suffices"] == v["claim-suffices-bn"] == "supported"),
    (["does lose accuracy below batch normalisation"],
     lambda v: v["claim-few-images-bn"] == "supported"),
    (["A little, and mostly for free", "little time is saved by it, and most of that is free"],
     lambda v: 1 < v["speed-step-PaperCNN"] < 1.5 and v["speed-free-PaperCNN"] > 50),
    (["nothing is"],
     lambda v: v["speed-free-PaperCNN-BN"] < 10 and v["speed-step-PaperCNN-BN"] > 1),
    (["Not in deep networks, as it stands"],
     lambda v: v["deep-bn-average-top"] < 60 and v["deep-bn-average-dense"] > 85),
    (["in the time that this saves"], lambda v: v["worth-lost"] > v["worth-shorter"] > 0),
    (["Selecting above batch normalisation is better than below it", "Above it"],
     lambda v: v["ablation-bn-position-bn-position-above-verdict"] == "better"),
    (["With batch normalisation, 5% is worse than all gradients"],
     lambda v: v["ablation-ratio-ratio-k05-bn-verdict"] == "worse"),
    (["Centring what is kept of each map gives most of that back"],
     lambda v: v["claim-centred-mends"] == "supported"
     and v["centred-estimate"] > -0.5 * v["ablation-ratio-ratio-k05-bn-difference"]),
    (["Without batch normalisation, 0.1% cannot be told from all gradients"],
     lambda v: v["ablation-ratio-ratio-k0p1-verdict"] == "not told apart"),
    (["Mixing the maps of an image does no visible harm"],
     lambda v: v["ablation-scope-scope-mixed-verdict"] == "not told apart"),
    (["With sigmoid in place of ReLU, 5% often does not learn at all",
      "It seems so: with sigmoid, 5% often does not learn at all"],
     lambda v: v["ablation-activation-activation-sigmoid-difference"] < -20),
    (["With batch normalisation it matters how much is kept, and where"],
     lambda v: v["ablation-ratio-ratio-k05-bn-verdict"] == "worse"
     and v["ablation-ratio-ratio-k25-bn-verdict"] == "not told apart"
     and v["ablation-bn-position-bn-position-above-verdict"] == "better"),
    (["without it no choice at the convolutions shows"],
     lambda v: {"not told apart"} == {
         verdict for name, verdict in v.items()
         if re.fullmatch("ablation-((?!fc1).)*(?<!-bn)-verdict", name)
         and "bn-position" not in name}),
    (["Below BN 5% are too few; without BN even 0.1% cannot be told from all"],
     lambda v: v["ablation-ratio-ratio-k05-bn-verdict"] == "worse"
     and v["ablation-ratio-ratio-k0p1-verdict"] == "not told apart"),
    (["At 1% it does, at 5% no loss shows"],
     lambda v: v["ablation-fc1-fc1-k01-verdict"] == "worse"
     and v["ablation-fc1-fc1-k05-verdict"] == "not told apart"),
]  # fmt: skip
SENTENCES = {sentence: facts for sentences, facts in FACTS for sentence in sentences}
NOTHING_SHOWN = {"Not shown", "No scope stands out", "Both", "These runs cannot tell"}


def values_of(*notebooks):
    values: dict[str, object] = {}
    for name in notebooks:
        for path in (ROOT / "notebooks").glob(f"{name}.ipynb"):
            values |= glued(path)
    return values


@pytest.mark.parametrize("sentence", SENTENCES)
def test_sentences_are_still_true(sentence):
    pages = (f"book/{name}.md" for name in ("index", "ablations", "summary"))
    prose = [ROOT / name for name in ("README.md", *pages)]
    said = [path.name for path in prose if sentence in " ".join(path.read_text("utf-8").split())]
    assert said, f"nobody says {sentence!r} any more: take it out here"
    names = ("04-ablations", "05-speed", "06-claims", "13-deep", "14-worth", "pages/ablation-*")
    values = values_of(*names)
    assert SENTENCES[sentence](values), f"look at the sentence {sentence!r} in {' and '.join(said)}"


def test_ablations_answer_as_their_pages_do():
    text = (ROOT / "book" / "ablations.md").read_text("utf-8")
    rows = re.findall(r"^\| \[.*?\]\(\.\./notebooks/(\S+)\.ipynb\) \| (.*?) \|", text, re.MULTILINE)
    assert len(rows) == len(experiments.load().studies)
    for page, answer in rows:
        verdicts = {key: its for key, its in values_of(page).items() if key.endswith("-verdict")}
        nothing = set(verdicts.values()) == {"not told apart"}
        told = nothing if answer in NOTHING_SHOWN else answer in SENTENCES
        assert told, f"look at the answer {answer!r} in ablations.md; {page} says {verdicts}"


def test_start_computes_nothing():
    """Its numbers are glued from the pages, so the two cannot disagree."""
    text = (ROOT / "book" / "index.md").read_text("utf-8")
    assert text.count("{glue:text}") > 20
    prose = re.sub("^:.*$", "", text.partition("## Three ways on")[0], flags=re.MULTILINE)
    plain = re.sub(r"`[^`]*`|\(\S+\)|<[^>]*>", "", prose)
    typed = {number for number in re.findall(r"(?<![\w-])[-+]?\d+\.?\d*", plain)}
    assert typed <= {"5", "0.1", "0.6", "2", "3"}, "settings and tables of the paper, no results"


def test_citation_is_that_of_the_citation_file():
    about = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    year = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))["copyright"]
    entry = (ROOT / "book" / "index.md").read_text("utf-8").partition("```bibtex")[2]
    title = about["title"].replace("meprop", "{meprop}", 1)
    authors = " and ".join(f"{{{author['name']}}}" for author in about["authors"])
    stated = {"title": title, "author": authors, "version": about["version"], "year": year}
    for field in stated.items():
        assert "{} = {{{}}},".format(*field) in entry


def test_every_notebook_is_a_page():
    """All but the one that makes a page of each run."""
    toc = (ROOT / "book" / "_toc.yml").read_text("utf-8")
    patterns = re.findall(r"(?:file|glob): (\S+)", toc)
    names = {
        path.relative_to(ROOT).with_suffix("").as_posix()
        for path in (ROOT / "notebooks").rglob("*.ipynb")
        if ".ipynb_checkpoints" not in path.parts
    }
    shown = {name for name in names if any(fnmatchcase(name, each) for each in patterns)}
    assert names - shown == {"notebooks/train"}


def entries(step):
    """The squares of a panel of the idea, by feature map: their places and how strong they are."""
    drawn = (ROOT / "book" / "_static" / f"idea-{step}.svg").read_text("utf-8")
    found: dict[str, dict[tuple[str, ...], float]] = {"map1": {}, "map2": {}}
    for image, name, group in re.findall(r'<g id="(image\d)-(map\d)"[^>]*>(.*?)</g>', drawn):
        squares = re.findall(r'<rect x="(\d+)" y="(\d+)"[^>]*?(?:opacity="(.*?)")?/>', group)
        found[name] |= {(image, x, y): float(strong or 1) for x, y, strong in squares}
    return found


def test_the_idea_shows_the_largest_twentieth_of_each_map():
    for before, after in zip(entries(2).values(), entries(3).values(), strict=True):
        assert len(after) == round(0.05 * len(before)) == 10
        assert min(before[place] for place in after) >= sorted(before.values())[-10]
    assert entries(4) == entries(3)


# The extension


def test_docstring_fields_become_definitions():
    lines = ["ratio: a share", "    of all.", "scope, pick: `x` and", "    more."]
    assert book.to_rst(lines) == [
        "``ratio``", "    a share of all.", "``scope``, ``pick``", "    ``x`` and more.", "",
    ]  # fmt: skip
    lines = ["before, after: shares of", "the whole. norm: a norm."]
    assert book.to_rst(lines)[::2] == ["``before``, ``after``", "``norm``", ""]
    lines = ["Takes `x`: that is all.", "", ">>> f(`1`)", "2"]
    assert book.to_rst(lines) == ["Takes ``x``: that is all.", "", ">>> f(`1`)", "2", ""]


def test_verdicts_have_their_colour_and_intervals_one_line(tmp_path):
    glued = '<td><p><span class="pasted-text">{}</span></p></td>'
    done = book.finish(glued.format("not supported") + "<p>worse</p><p>worse than</p>", tmp_path)
    assert done == (
        '<td><p><span class="verdict not-supported">not supported</span></p></td>'
        '<p class="verdict worse">worse</p><p>worse than</p>'
    )
    number = '<span class="pasted-text">-0.06</span>'
    assert book.finish(f"({number} to +0.07), 1 to 2", tmp_path) == (
        f"({number}&nbsp;to&nbsp;+0.07), 1 to 2"
    )


def test_panels_stand_one_below_the_other_on_a_phone(tmp_path):
    figure, axes = style.subplots(1, 2, figsize=(9, 3), sharey=True)
    for axis, colour in zip(axes, ("red", "blue"), strict=True):
        axis.set_facecolor(colour)
        axis.grid(visible=False)
    picture, shown = figure.small_png()
    (tmp_path / "two.png").write_bytes(picture)
    page = book.finish('<img alt="Two" src="two.png" />', tmp_path)
    assert shown == {"width": 720, "height": 240} and 'src="two.png" width="720"' in page
    assert 'srcset="two.narrow.png"' in page
    with Image.open(tmp_path / "two.narrow.png") as narrow:
        pixels = np.asarray(narrow.convert("RGB"), int)
    is_red, is_blue = (pixels @ sign > 200 for sign in ([1, -1, -1], [-1, -1, 1]))
    rows = [np.flatnonzero(colour.any(axis=1)) for colour in (is_red, is_blue)]
    assert rows[0].max() < rows[1].min()
    # What both share stands beside each: the numbers of the y axis.
    for own, colour in zip(rows, (is_red, is_blue), strict=True):
        left = np.flatnonzero(colour.any(axis=0)).min()
        assert left > 20 and pixels[own.min() : own.max(), : left - 4].min() < 100


def test_only_the_finished_page_knows_the_sizes_of_figures():
    document = new_document("page.ipynb")
    document += [nodes.image(uri=f"one.{kind}", width="720px", alt="A") for kind in ("png", "svg")]
    book.Sizes(document).apply()
    figure, drawing = document.children
    assert "width" not in figure and figure["alt"] == "A" and drawing["width"] == "720px"


def test_commits_lead_to_the_repository():
    def row(*texts):
        cells = [nodes.entry("", nodes.paragraph("", text)) for text in texts]
        return nodes.row("", *cells)

    rows = [row("commit", "0123456789abcdef"), row("commit", "None"), row("code", "0123456789ab")]
    page = new_document("a page")
    page += nodes.tbody("", *rows)
    book.link_commit(page, "https://example.org/us/meprop/")
    linked = [link["refuri"] for each in rows for link in each.findall(nodes.reference)]
    assert linked == ["https://example.org/us/meprop/commit/0123456789abcdef"]


def test_references_can_be_followed():
    entries = (ROOT / "book" / "references.bib").read_text("utf-8").split("@")[1:]
    assert len(entries) > 15
    for entry in entries:
        assert re.search(r"^  (doi|url|eprint) = ", entry, re.MULTILINE), entry.partition(",")[0]


def test_launch_buttons_hang_on_one_key():
    config = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))
    buttons = config["launch_buttons"]
    assert buttons["binderhub_url"] and buttons["colab_url"]
    for address in ("", "https://example.org/us/meprop"):
        options = {"repository_url": address, "launch_buttons": buttons}
        book.repository_buttons(None, SimpleNamespace(html_theme_options=options))
        assert bool(options["launch_buttons"]) == bool(address)
        assert bool(options.get("use_repository_button")) == bool(address)
