"""The pages of the repository: what they depend on, and who executes them when."""

import json
import os
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
import synthetic
from checkout import ROOT, Checkout
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from meprop.__main__ import main
from meprop.study import _papermill, notebook, pages, pipeline
from meprop.study.config import Config
from meprop.study.experiments import Run, load
from meprop.study.notebook import FILES
from meprop.study.record import Record
from meprop.study.training import train

# An executed notebook as it is kept


@pytest.fixture
def executed():
    cells = [new_code_cell("a = 1"), new_markdown_cell("# One run\n\nWords ± more.\n\n## Part")]
    cells += [new_code_cell("a = 2"), new_code_cell("a", execution_count=3)]
    cells[0].metadata["tags"] = ["parameters"]
    cells[2].metadata["tags"] = ["injected-parameters"]
    for cell in cells:
        cell.metadata["papermill"] = {"duration": 0.1, "start_time": "2026-01-02T03:04:05"}
    cells[3].metadata |= {"execution": {"iopub.execute_input": "now"}, "tags": []}
    metadata = {"papermill": {"duration": 1.0}, "kernelspec": {"name": "p", "display_name": "p"}}
    return json.loads(nbformat.writes(new_notebook(cells=cells, metadata=metadata)))


def test_a_page_has_its_title_and_no_times(executed):
    page = _papermill.finished(executed, "ratio-k05: 5%", "abc")
    assert "".join(page["cells"][1]["source"]) == "# ratio-k05: 5%\n\nWords ± more.\n\n## Part"
    assert page["metadata"].keys() == {"kernelspec", "meprop"}
    # The book shows one cell of parameters: the values that count.
    hidden, shown = {"tags": ["parameters", "remove-cell"]}, {"tags": ["injected-parameters"]}
    assert [cell["metadata"] for cell in page["cells"]] == [hidden, {}, shown, {}]
    assert [cell["source"] for cell in page["cells"]][2:] == [["a = 2"], ["a"]]
    nbformat.validate(nbformat.from_dict(page))
    # The same page whether the kernels were compiled; folded where the defaults are.
    texts = "meprop: compiling its kernels, once for this machine\n", "\rdata: 9%", "\n", "look\n"
    said = [{"output_type": "stream", "name": "stderr", "text": [text]} for text in texts]
    executed["cells"][3]["outputs"] = said
    executed["cells"][0]["metadata"]["tags"] = ["parameters", "hide-input"]
    kept = _papermill.finished(executed, None, "abc")
    assert kept["cells"][1]["source"] == executed["cells"][1]["source"]
    assert kept["cells"][2]["metadata"]["tags"] == ["injected-parameters", "hide-input"]
    assert kept["cells"][3]["outputs"] == said[-1:]


def test_what_a_page_depends_on(executed):
    """Its source, title and inputs, and nothing that executing it in place changes."""
    executed["cells"].pop(2)
    digest = _papermill.digest(executed, "T", {"reads": {}})
    page = _papermill.finished(executed, "T", digest)
    assert page["cells"][0]["metadata"] == {"tags": ["parameters"]}, "nothing else was given"
    assert _papermill.digest(page, "T", {"reads": {}}) == digest
    assert _papermill.digest(executed, "U", {"reads": {}}) != digest
    assert _papermill.digest(executed, "T", {"reads": {"a": "1"}}) != digest
    for change in ({"source": "a + 1"}, {"metadata": {"tags": ["hide-input"]}}):
        other = executed | {"cells": [*executed["cells"][:2], executed["cells"][2] | change]}
        assert _papermill.digest(other, "T", {"reads": {}}) != digest


# What is out of date


def out_of_date():
    return {p.name for p in [*pages.pages(), *pages.run_pages()] if not p.up_to_date()}


def test_the_committed_pages_are_of_the_committed_records():
    assert not out_of_date(), "make notebooks executes them; commit them with the records"


def test_a_notebook_says_what_it_reads_and_it_is_there():
    assert set(pages.READS) == {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    declared = load()
    started = {run.suite for run in declared.runs if (ROOT / run.record).is_file()}
    for page in pages.pages():
        for pattern in page.reads:
            suite = Path(pattern).parent.name
            waits = suite in declared.suites and suite not in started
            assert waits or any(ROOT.glob(pattern)), f"{page.path}: {pattern}"


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A copy of what pages are made from, with times of files in no order."""
    for name in ("notebooks", "results", "benchmarks", "measurements"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("experiments.yml", *pages.READS["06-claims"][:2], *pages.READS["01-method"]):
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    times = random.Random(0)
    for path in sorted(tmp_path.rglob("*")):
        os.utime(path, (moment := times.randrange(10**9, 2 * 10**9), moment))
    for module in (pages, pipeline):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    return tmp_path


def test_a_changed_record_source_or_declaration_concerns_the_pages_that_read_it(clone):
    assert not out_of_date()
    path = clone / "results/paper/table3-k05-d0-s0.json"
    record = Record.load(path)
    replace(record, provenance=record.provenance | {"cores": 99}).save(path)
    of_all = {"01-method", "06-claims", "09-runs", "10-status", "12-power"}
    assert out_of_date() == of_all | {"table3", "table3-k05-d0-s0"}
    record.save(path)
    path = clone / "results/ablation/scope-mixed-s1.json"
    content = path.read_bytes()
    path.unlink()
    studies = {page.name for page in pages.pages() if page.notebook.stem == "04-ablations"}
    assert out_of_date() == studies | {"06-claims", "09-runs", "10-status", "scope-mixed-s0"}
    path.write_bytes(content)
    path = clone / "experiments.yml"
    text = path.read_text()
    path.write_text(text.replace("about: Over what should", "about: From what should"))
    pages._experiments.cache_clear()
    assert out_of_date() == {"ablation-scope"}
    path.write_text(text)
    pages._experiments.cache_clear()
    path = clone / "notebooks/03-tables.ipynb"
    made = nbformat.read(path, 4)
    made.cells[-1].source += " "
    nbformat.write(made, path)
    assert out_of_date() == {"03-tables", "table3"}


def test_a_damaged_record_is_named_and_not_missing(clone, capsys):
    path = clone / "results/ablation/scope-mixed-s1.json"
    path.write_text(path.read_text().replace("scope", "scopes", 1))
    for command in ("notebooks", "book", "run"):
        assert main([command]) == 2
        assert f"git checkout -- {path}" in capsys.readouterr().err


# Runs


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run with a record, as if it were declared, in an empty checkout."""
    for module in (pages, pipeline, notebook):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    config = Config(dataset="digits", train_size=20, epochs=1, ratio=0.05)
    run = Run("small", "sparse", 0, config, committed=True)
    others = [replace(run, seed=1), replace(run, committed=False), replace(run, name="missing")]
    monkeypatch.setattr(pages, "_runs", lambda: [run, *others])
    studies = {"ours": ["sparse"], "another": ["missing"]}
    made = [
        pages.Page(Path("a"), Path(f"{name}.ipynb"), declared=[{"name": name, "runs": runs}])
        for name, runs in studies.items()
    ]
    monkeypatch.setattr(pages, "_made", lambda: made)
    record = train(config, progress=False)
    for each in (run, others[0]):
        record.save(tmp_path / each.record)
    return run


def test_runs_with_a_record_are_shown_from_it(run):
    (page,) = pages.run_pages()
    assert page.path.as_posix() == "notebooks/runs/small/sparse-s0.ipynb"
    title, _, links = str(page.title).split("\n")
    assert title == "sparse: 5%, digits, 20 images"
    found = re.findall(r"\]\((\S+)\)", links)
    assert found[:2] == ["/results/small/sparse-s0.json", "/ours.ipynb"]
    assert "/another.ipynb" not in found
    assert page.parameters["record"] == "results/small/sparse-s0.json"
    for given in (page.parameters, json.loads(json.dumps(pages.training(run)))["parameters"]):
        assert Config.from_dict({k: v for k, v in given.items() if k not in FILES}) == run.config
    assert (given["record"], given["checkpoint"]) == ("_build/logs/small/sparse-s0.json", "auto")


# make notebooks and make book, in a small checkout

EXPERIMENTS = """\
suites:
  quick:
    about: trained by make book
    committed: false
    config: &config {dataset: digits, train_size: 20, epochs: 1}
    seeds: [0]
    runs: {plain: {}}
  paper:
    about: two tables
    committed: true
    config: *config
    seeds: [1]
    runs: {table2-baseline: {}, table3-baseline: {batch_norm: true}}
"""
CELLS = (
    "table = 2  # the paper's",
    "import json\nfrom myst_nb import glue",
    'with open(f"results/paper/table{table}-baseline-s1.json") as file:\n'
    '    accuracy = json.load(file)["test_accuracy"]\n'
    'glue("accuracy", accuracy, display=False)\n'
    'print(f"accuracy {accuracy:.2f}")\n'
    "assert accuracy < 90, \"Look at the sentence 'below 90' in index.md\"",
)
CONFIG = "only_build_toc_files: true\nexecute: {execute_notebooks: 'off'}\n"
TOC = """\
format: jb-book
root: book/index
chapters:
  - file: notebooks/03-tables
  - file: notebooks/pages/table3
"""
START = """\
# Start

Ours: {glue:text}`../notebooks/03-tables.ipynb::accuracy:.2f` and
{glue:text}`../notebooks/pages/table3.ipynb::accuracy:.2f`.
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    made = Checkout(tmp_path_factory.mktemp("pages"), EXPERIMENTS)
    cells = [new_markdown_cell("# A table\n\nWords."), *map(new_code_cell, CELLS)]
    cells[1].metadata["tags"] = ["parameters"]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(
        new_notebook(cells=cells, metadata=kernel), made.root / "notebooks/03-tables.ipynb"
    )
    for name, text in {
        "_config.yml": CONFIG,
        "CHANGELOG.md": "# Changes",
        "README.md": "",
        "book/_toc.yml": TOC,
        "book/index.md": START,
        "benchmarks/bench.json": "{}",
        "measurements/turnover.csv": "",
    }.items():
        (made.root / name).parent.mkdir(exist_ok=True)
        (made.root / name).write_text(text)
    for seed, name in enumerate(("_build/results/quick/plain", "results/paper/table2-baseline")):
        config = Config(dataset="digits", train_size=20, epochs=1, seed=seed)
        train(config, progress=False).save(made.root / f"{name}-s{seed}.json")
    score(made, 3, wrong=148)
    return made


def score(checkout, table, wrong):
    """Let a table's record say so."""
    config = Config(dataset="digits", train_size=20, epochs=1, seed=1, batch_norm=table == 3)
    record = Record.load(checkout.root / "results/paper/table2-baseline-s1.json")
    (epoch,) = record.history
    epoch = epoch | {"test_accuracy": 100 * (297 - wrong) / 297}
    record = replace(record, id=config.digest[:16], config=config, history=[epoch])
    path = checkout.root / f"results/paper/table{table}-baseline-s1.json"
    synthetic.scored(record, epoch).save(path)


def tree(checkout):
    """All files but those that are built."""
    files = [path for path in checkout.root.rglob("*") if path.is_file()]
    hidden = ("_build", ".snakemake", "__pycache__")
    return {path: path.read_bytes() for path in files if not set(hidden) & set(path.parts)}


def done(output):
    return re.findall(r"^executed +(\S+),", output, re.MULTILINE)


def shown(checkout, page):
    return (checkout.root / "_build/html" / f"{page}.html").read_text("utf-8")


def test_notebooks_executes_what_is_out_of_date_and_then_nothing(small):
    code, output = small.meprop("notebooks")
    assert code == 0, output
    assert sorted(done(output)) == ["notebooks/03-tables.ipynb", "notebooks/pages/table3.ipynb"]
    before = tree(small)
    code, output = small.meprop("notebooks")
    assert (code, output) == (0, "Nothing to execute: all 2 pages are up to date.\n")
    assert tree(small) == before
    # Asked for by name it is executed, and the same comes out, byte for byte.
    code, output = small.meprop("notebooks", "table3")
    assert done(output) == ["notebooks/pages/table3.ipynb"]
    assert tree(small) == before


def test_the_book_shows_one_and_the_same_number_everywhere(small):
    score(small, 3, wrong=115)
    before = tree(small)
    code, output = small.meprop("book")
    assert code == 0, output
    assert done(output) == ["notebooks/pages/table3.ipynb"]
    assert tree(small) == before, "the checkout stays clean"
    assert "accuracy 61.28" in shown(small, "notebooks/pages/table3")
    assert "61.28" in shown(small, "book/index") and "50.17" not in shown(small, "book/index")


def test_a_record_that_contradicts_a_sentence_stops_the_book(small):
    score(small, 3, wrong=15)
    before = tree(small)
    code, output = small.meprop("notebooks")
    assert code == 1, output
    assert (
        "Failed: notebooks/pages/table3.ipynb: AssertionError: Look at the sentence "
        "'below 90' in index.md (log: _build/logs/notebooks/pages/table3.log)" in output
    )
    assert tree(small) == before
