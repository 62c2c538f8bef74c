"""The pages of the repository, and showing runs from their records."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from meprop.study import notebook, pages, pipeline
from meprop.study._entitle import entitle
from meprop.study.config import Config
from meprop.study.experiments import Run
from meprop.study.training import train

SCRIPT = Path(pages.__file__).with_name("_entitle.py")


@pytest.fixture
def executed(tmp_path):
    cells = [new_code_cell("1"), new_markdown_cell("# One run\n\nWords ± more.\n\n## Part")]
    made = new_notebook(cells=cells, metadata={"papermill": {"output_path": "draft.ipynb"}})
    path = tmp_path / "draft.ipynb"
    nbformat.write(made, path)
    return path


def test_a_title_replaces_the_heading_and_nothing_else(executed):
    before = nbformat.read(executed, 4)
    entitle(executed, "ratio-k05: 5%", "notebooks/x.ipynb")
    after = nbformat.read(executed, 4)
    assert after.cells[1].source == "# ratio-k05: 5%\n\nWords ± more.\n\n## Part"
    assert after.metadata.papermill.output_path == "notebooks/x.ipynb"
    before.cells[1].source, before.metadata.papermill = after.cells[1].source, {}
    after.metadata.papermill = {}
    assert after == before
    text = executed.read_text("utf-8")
    nbformat.write(nbformat.read(executed, 4), executed)
    assert executed.read_text("utf-8") == text, "written as nbformat does"


def test_the_pipeline_runs_it_as_a_script(executed):
    command = [sys.executable, "-I", str(SCRIPT), str(executed), "5% 'and' $more", "x.ipynb"]
    subprocess.run(command, check=True)
    assert nbformat.read(executed, 4).cells[1].source.startswith("# 5% 'and' $more\n")


@pytest.mark.parametrize("folded", [True, False])
def test_given_parameters_are_folded_where_the_defaults_are(executed, folded):
    made = nbformat.read(executed, 4)
    own, given = new_code_cell("a = 1"), new_code_cell("a = 2")
    own.metadata["tags"] = ["parameters", "hide-input"] if folded else ["parameters"]
    given.metadata["tags"] = ["injected-parameters"]
    made.cells += [own, given]
    nbformat.write(made, executed)
    entitle(executed, None, "x.ipynb")
    tags = [cell.metadata.get("tags") for cell in nbformat.read(executed, 4).cells[2:]]
    assert tags[0] == own.metadata["tags"]
    assert ("hide-input" in tags[1]) == folded and "injected-parameters" in tags[1]


def test_without_a_title_the_notebook_keeps_its_own(executed):
    entitle(executed, None, "x.ipynb")
    assert nbformat.read(executed, 4).cells[1].source.startswith("# One run\n")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run with a record, as if it were declared, in an empty checkout."""
    for module in (pages, pipeline, notebook):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    config = Config(dataset="digits", train_size=20, epochs=1, ratio=0.05)
    run = Run("small", "sparse", 0, config, committed=True)
    others = [replace(run, seed=1), replace(run, committed=False), replace(run, name="missing")]
    declared = type("Experiments", (), {"runs": [run, *others]})()
    monkeypatch.setattr(pages, "load", lambda: declared)
    record = train(config, progress=False)
    for each in (run, others[0]):
        record.save(tmp_path / each.record)
    return run


def test_runs_with_a_record_are_shown_from_it(run):
    (page,) = pages.run_pages()
    assert page.path.as_posix() == "notebooks/runs/small/sparse-s0.ipynb"
    assert page.title == "sparse: 5%, digits, 20 images"
    assert page.parameters["record"] == "results/small/sparse-s0.json"
    parameters = {k: v for k, v in page.parameters.items() if k != "record"}
    assert Config.from_dict(parameters) == run.config
    assert json.loads(json.dumps(parameters)) == parameters, "plain values, for papermill"


def test_a_run_is_shown_and_not_trained(run, monkeypatch):
    """What the training notebook calls, with the page's parameters."""
    (page,) = pages.run_pages()
    monkeypatch.setattr(notebook, "train", None)
    namespace = dict(page.parameters) | {"checkpoint": None}
    config = notebook.checked(namespace)
    found = notebook.obtain(config, namespace["record"], None)
    path = pages.ROOT / run.record
    content = path.read_bytes()
    assert f"its digest is {found.digest[:16]}" in notebook.keep(found, namespace["record"], None)
    assert path.read_bytes() == content
