"""Every notebook executed with other parameters than its own: another result comes of it."""

import shutil
from fnmatch import fnmatchcase

import nbformat
import pytest
from checkout import execute

from meprop.study.experiments import ROOT
from meprop.study.pages import FOLDER, Page, pages

# What a kernel does first here: it writes down which files of the repository it opens.
LISTEN = """\
def listen():
    import os, sys
    root, log = os.getcwd() + os.sep, open({log!r}, "w")

    def note(event, details):
        if event == "open" and isinstance(details[0], str):
            path = os.path.abspath(details[0])
            if path.startswith(root) and os.path.isfile(path):
                print(path.removeprefix(root), file=log, flush=True)

    sys.addaudithook(note)


listen()
del listen
"""
# Beside what its page says it reads: code, and what is built or describes all runs.
ANYWAY = ("*.py", "*.pyc", "*.nb[ic]", "_build/*", ".venv/*", "experiments.yml", ".git/*")

# For each notebook, what it is executed with to see that its parameters do something.
OTHERWISE = {
    "01-method": {"ratio": 0.1, "decay": 0.3, "scope": "sample"},
    "02-sparsity": {"steps": 1500},
    "03-tables": {"table": 3},
    "04-ablations": {"study": "scope"},
    "05-speed": {"ratio": 0.01},
    "06-claims": {"margin": 0.2, "alpha": 0.1},
    "07-quick": {"plain": "results/quick"},
    # One with dropout
    "08-your-model": {"model": "torchvision.models:mobilenet_v2", "ratio": 0.1, "side": 32},
    "09-runs": {"results": "a few"},
    "10-status": {"results": "a few"},
    "11-turnover": {"decay": 0.6},
    "12-power": {"tables": 200},
    "13-deep": {"seed": 1},
    "14-worth": {"epochs": 10},
    "train": {"train_size": 20, "epochs": 1, "ratio": None, "batch_norm": True},
}


def test_every_notebook_is_here():
    assert set(OTHERWISE) == {path.stem for path in (ROOT / FOLDER).glob("*.ipynb")}


@pytest.mark.parametrize("name", OTHERWISE)
def test_other_parameters_give_another_result(name, tmp_path, monkeypatch):
    path, target, log = FOLDER / f"{name}.ipynb", tmp_path / "other.ipynb", tmp_path / "opened"
    (tmp_path / "listen.py").write_text(LISTEN.format(log=str(log)))
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "listen.py"))
    parameters = dict(OTHERWISE[name])
    if parameters.get("results") == "a few":
        parameters["results"] = str(tmp_path / "results")
        (tmp_path / "results" / "paper").mkdir(parents=True)
        for record in (ROOT / "results" / "paper").glob("table2-k05-d0-*.json"):
            shutil.copy(record, tmp_path / "results" / "paper")
    execute(Page(path, path, parameters), target)
    assert texts(target) != texts(ROOT / path)
    # A page whose record changes is executed anew: if it says that it reads it.
    said = [pattern for page in pages() if page.notebook == path for pattern in page.reads]
    opened = set(log.read_text().splitlines())
    assert not [it for it in opened if not any(fnmatchcase(it, p) for p in (*said, *ANYWAY))]


def texts(path):
    """What a reader sees of the outputs, as text; not of those that differ every time."""
    cells = [
        cell
        for cell in nbformat.read(path, 4).cells
        if cell.cell_type == "code" and "nbval-ignore-output" not in cell.metadata.get("tags", ())
    ]
    data = [output.get("data", {}) for cell in cells for output in cell.outputs]
    return [each.get("text/markdown") or each.get("text/plain") for each in data]
