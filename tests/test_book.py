"""The book's own extension: what it generates from records, and what it does to pages."""

import dataclasses
import re
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from docutils import nodes
from docutils.utils import new_document
from PIL import Image

from meprop.study import Config, train
from meprop.study.book import (
    PIECES,
    citing,
    definitions,
    effects,
    finishing,
    meta,
    repository_buttons,
    runs,
    status,
)  # fmt: skip
from meprop.study.book.docstrings import to_rst
from meprop.study.book.finishing import sized
from meprop.study.book.idea import RATIO, STEPS, gradient, idea
from meprop.study.experiments import load
from meprop.study.report.results import Results

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "book").glob("*.md"))


@pytest.fixture(scope="module")
def record():
    return train(Config(dataset="digits", train_size=20, epochs=1), progress=False)


@pytest.fixture
def results(record, monkeypatch):
    """Stand in for the committed records: `results[run id] = test accuracy`."""
    chosen: dict[str, float] = {}

    def gather(suite, names=None):
        declared = [
            run for run in load().suites[suite].runs if names is None or run.name in set(names)
        ]
        made = {
            run.id: dataclasses.replace(record, id=run.id, test_accuracy=chosen[run.id])
            for run in declared
            if run.id in chosen
        }
        return Results(tuple(declared), made)

    for module in (runs, effects, status):
        monkeypatch.setattr(module, "gather", gather)
    return chosen


# Generated pieces


def test_every_piece_is_used_and_every_used_piece_exists():
    used = set()
    for page in PAGES:
        used |= set(re.findall(r"^```\{generated\} (\S+)", page.read_text("utf-8"), re.MULTILINE))
    assert used == set(PIECES)


def test_effects_name_declared_runs():
    """A study that is renamed must not leave a page behind."""
    studies = load().studies
    for page in PAGES:
        for line in re.findall(r"^```\{generated\} effect (.+)", page.read_text("utf-8"), re.M):
            study, *names = line.split()
            assert set(names) <= set(studies[study].runs), line


def test_runs_without_any_record(results):
    assert runs.runs_table().startswith("0 of ")


def test_runs_have_a_row_a_record(results):
    results["paper/table3-k05-d06-s1"] = 99.25
    results["ablation/scope-mixed-s0"] = 97.5
    table = runs.runs_table()
    rows = [line.split(" | ") for line in table.splitlines() if "[JSON]" in line]
    assert len(rows) == 2
    assert rows[0][1:4] == ["paper", "1", "99.25"]
    assert rows[0][6:10] == ["5", "0.6", "yes", ""]
    assert "(../results/paper/table3-k05-d06-s1.json)" in rows[0][-1]
    assert rows[1][9] == "scope mixed"
    # Only the first seed's notebook is part of the repository.
    assert rows[0][0] == "| [table3-k05-d06](../results/paper/table3-k05-d06-s1.json)"


def test_effect_is_paired_by_seed(results):
    for seed, (ours, other) in enumerate([(97.0, 96.8), (97.2, 97.1), (97.1, 96.8)]):
        results[f"ablation/ratio-k05-s{seed}"] = ours
        results[f"ablation/bias-sparse-s{seed}"] = other
    results["ablation/ratio-k05-s3"] = 50.0  # has no partner
    text = effects.effect("bias", "ratio-k05", "bias-sparse")
    assert "-0.20 points of test accuracy, 95% interval -0.45 to +0.05, 3 seeds" in text


def test_one_seed_is_no_more_than_a_description(results):
    results["ablation/ratio-k05-s0"], results["ablation/bias-sparse-s0"] = 97.0, 97.1
    text = effects.effect("bias", "ratio-k05", "bias-sparse")
    assert "+0.10 points" in text and "description" in text and "interval" not in text


def test_effect_says_what_is_missing(results):
    readings = ("scope", "ratio-k05", "scope-sample", "scope-layer")
    text = effects.effect(*readings)
    assert "Declared as `scope-sample` and `scope-layer`" in text and "not trained yet" in text
    assert "Measured" not in text
    results["ablation/ratio-k05-s0"], results["ablation/scope-layer-s0"] = 97.0, 97.1
    text = effects.effect(*readings)
    assert "`scope-sample`: not trained yet" in text and "+0.10 points" in text


def test_costs_and_hardware(results):
    assert "No record" in status.costs() and "No record" in status.hardware()
    results["paper/table2-baseline-s0"] = 99.0
    assert status.costs().count("\n|") == 3 and status.hardware().count("\n|") == 3
    assert "| 1 of " in status.suites()


def test_notebook_times():
    stamps = ("2026-01-02T03:04:05+00:00", "2026-01-02T03:04:07.500000Z")
    execution = dict(zip(("iopub.execute_input", "shell.execute_reply"), stamps, strict=True))
    cells = [{"metadata": {"execution": execution}}, {"metadata": {}}]
    assert status.executed({"cells": cells}) == ("2026-01-02 03:04", 2.5)
    assert status.executed({"cells": cells[1:]}) == ("not recorded", 0.0)


def test_cite_box_agrees_with_the_citation_file():
    about = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert f"version = {{{about['version']}}}" in citing.cite_box()


def test_idea_shows_what_select_keeps():
    text, size = idea(), gradient()[:, 0].numel()
    assert text.count('class="kept"') == gradient().shape[1] * round(RATIO * size)
    assert text.count('class="kept"') + text.count('class="dropped"') == gradient().numel()
    assert text.count("<li>") == len(STEPS)
    assert "\n\n" not in text  # would end the HTML block


# Docstrings


def test_docstring_fields_become_definitions():
    lines = ["ratio: a share", "    of all.", "scope, pick: `x` and", "    more."]
    assert to_rst(lines) == [
        "``ratio``", "    a share of all.", "``scope``, ``pick``", "    ``x`` and more.", "",
    ]  # fmt: skip


def test_docstring_fields_in_running_text():
    lines = ["before, after: shares of", "the whole. norm: a norm."]
    assert to_rst(lines)[::2] == ["``before``, ``after``", "``norm``", ""]


def test_docstring_prose_and_examples_stay():
    lines = ["Takes `x`: that is all.", "", ">>> f(`1`)", "2"]
    assert to_rst(lines) == ["Takes ``x``: that is all.", "", ">>> f(`1`)", "2", ""]


# Definitions


def defined(*children):
    """The terms that are explained in a page with these children."""
    document = new_document("page")
    document += children
    transform = definitions.Define(document)
    transform.run()
    return [(node["term"], node.astext()) for node in document.findall(definitions.explained)]


def test_a_term_is_explained_once():
    first = nodes.paragraph("", "Densities, and the decay. A density again.")
    second = nodes.paragraph("", "decay")
    assert defined(first, second) == [("density", "Densities"), ("decay", "decay")]


def test_no_definition_in_titles_links_and_parts_of_words():
    link = nodes.reference("", "decay")
    heading = nodes.title("", "decay")
    assert not defined(nodes.section("", heading, nodes.paragraph("", "", link)))
    assert not defined(nodes.paragraph("", "decayed"), nodes.paragraph("", "weight-decay"))


def test_code_is_explained_where_it_is_the_term():
    whole, part = nodes.literal("", "run_grad"), nodes.literal("", "TopK(decay=0.6)")
    assert defined(nodes.paragraph("", "", part, whole)) == [("run_grad", "run_grad")]


# Pages


def test_finishing_keeps_the_rest():
    page = '<link rel="preload" as="script" href="x.js"/><script src="_static/idea.js"></script>'
    assert finishing.finish(page) == page
    preload = '<link rel="preload" as="font" type="font/woff2" crossorigin href="a.woff2" />'
    assert finishing.finish(f"{page}\n{preload}") == page


def test_finishing_keeps_mathjax_where_there_are_formulas():
    scripts = (
        '<script>window.MathJax = {"options": {}}</script>'
        '<script defer="defer" src="../_static/mathjax/tex-chtml.js"></script>'
    )
    formula = '<span class="math notranslate">x</span>'
    assert finishing.finish(scripts + formula) == scripts + formula
    assert finishing.finish(scripts) == ""


def test_figures_get_their_size(tmp_path):
    Image.new("1", (900, 300)).save(tmp_path / "a.png")
    Image.new("1", (300, 300)).save(tmp_path / "b.png")
    page = '<p><img alt="a" src="a.png" /><img src="b.png"><img src="c.svg"></p>'
    expected = page.replace('"a.png"', '"a.png" width="900" height="300" class="wide"')
    expected = expected.replace('"b.png"', '"b.png" width="300" height="300"')
    assert sized(page, tmp_path) == expected
    assert sized(expected, tmp_path) == expected


def test_pages_without_a_description_are_described_by_their_first_words():
    page = nodes.section("", nodes.title("", "T"), nodes.paragraph("", "Is it & fast?"))
    context = {"metatags": ""}
    meta.describe(None, "page", "page.html", context, page)
    assert context["metatags"].strip() == '<meta name="description" content="Is it &amp; fast?" />'
    meta.describe(None, "page", "page.html", context, page)
    assert context["metatags"].count("description") == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_describe_themselves(page):
    _, front, _ = page.read_text("utf-8").split("---\n", 2)
    description = yaml.safe_load(front)["myst"]["html_meta"]["description"]
    assert 30 < len(description) < 200


def test_every_notebook_is_a_page():
    """All but the one that makes a page of each run."""
    toc = (ROOT / "book" / "_toc.yml").read_text("utf-8")
    patterns = re.findall(r"(?:file|glob): (\S+)", toc)
    notebooks = [*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("notebooks/*/**/*.ipynb")]
    names = {path.relative_to(ROOT).with_suffix("").as_posix() for path in notebooks}
    shown = {name for name in names if any(fnmatchcase(name, each) for each in patterns)}
    assert names - shown == {"notebooks/train"}


def test_context_cites_what_the_bibliography_has():
    works = yaml.safe_load((ROOT / "book" / "context.yml").read_text("utf-8"))
    keys = set(
        re.findall(r"^@\w+\{(\w+),", (ROOT / "book/references.bib").read_text("utf-8"), re.M)
    )
    assert {work["key"] for work in works} <= keys


def test_launch_buttons_hang_on_one_key():
    config = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))
    buttons = config["launch_buttons"]
    assert buttons["binderhub_url"] and buttons["colab_url"]
    for address in ("", "https://example.org/us/meprop"):
        options = {"repository_url": address, "launch_buttons": buttons}
        repository_buttons(None, SimpleNamespace(html_theme_options=options))
        assert bool(options["launch_buttons"]) == bool(address)
        assert bool(options.get("use_repository_button")) == bool(address)
