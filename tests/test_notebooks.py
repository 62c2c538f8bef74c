"""The executed notebooks: whole, up to date with their sources, and guarded by nbval.

`pytest` compares each with its stored output (see pyproject.toml); here is what nbval cannot see,
and the proof that it sees the rest.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from oracle import variables

from meprop.study.notebook import ParameterError
from meprop.study.pages import pages
from meprop.study.record import Record

ROOT = Path(__file__).resolve().parents[1]
PAGES = {page.path.as_posix(): page for page in pages()}
NOTEBOOKS = [name for name, page in PAGES.items() if page.path == page.notebook]

WRONG = {
    "01-method": ({"ratio": 5}, "ratio must be in (0, 1], got 5; did you mean 0.05?"),
    "02-sparsity": ({"steps": 0}, "steps must be at least 2, got 0"),
    "03-tables": ({"table": 4}, "table must be 2 or 3, got 4"),
    "04-ablations": ({"study": "foo"}, "study must be "),
    "05-speed": ({"ratio": 5}, "ratio must be 0.005, 0.01, 0.05, 0.1 or 0.25, got 5"),
    "06-claims": ({"margin": 0}, "margin must be in (0, 5], got 0"),
    "07-quick": ({"plain": "nowhere"}, "plain must be a folder, got 'nowhere'"),
    "08-your-model": (
        {"model": "resnet81"},
        "model: 'resnet81' is not to be had as module:function: ",
    ),
    "12-power": ({"tables": 10}, "tables must be in [100, 100000], got 10"),
    "11-turnover": ({"decay": 0.5}, "decay must be 0.3, 0.6 or 0.9, got 0.5"),
    "14-worth": ({"epochs": 0}, "epochs must be at least 1, got 0"),
    "train": ({"ratio": 5}, "Config: ratio must be in (0, 1], got 5; did you mean 0.05?"),
}


def read(path):
    return nbformat.read(ROOT / path, 4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tagged(notebook, tag):
    return [cell for cell in notebook.cells if tag in cell.metadata.get("tags", ())]


def unexecuted(notebook):
    """The places of the code cells that nbval would pass over in silence."""
    return [n for n, cell in enumerate(code(notebook)) if cell.execution_count is None]


def own(notebook):
    """The cells that the author wrote: not papermill's."""
    return [c for c in notebook.cells if "injected-parameters" not in c.metadata.get("tags", ())]


# What is there


def test_every_page_is_committed_and_no_other():
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "notebooks/pages").glob("*")}
    assert there == {name for name in PAGES if "/pages/" in name}


@pytest.mark.parametrize("path", PAGES)
def test_a_reference_is_executed_without_error(path):
    notebook = read(path)
    assert not unexecuted(notebook)
    counts = [cell.execution_count for cell in code(notebook)]
    assert counts == list(range(1, len(counts) + 1)), "top to bottom, once"
    kinds = [output.output_type for cell in code(notebook) for output in cell.outputs]
    assert kinds and "error" not in kinds


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_what_its_notebook_says(path):
    page = PAGES[path]
    made, source = own(read(page.path)), own(read(page.notebook))
    assert [cell.source for cell in made[1:]] == [cell.source for cell in source[1:]]
    title = page.title or source[0].source.splitlines()[0].removeprefix("# ")
    assert made[0].source.splitlines()[0] == f"# {title}"
    injected = tagged(read(page.path), "injected-parameters")
    assert len(injected) == (1 if page.parameters else 0)
    for cell in injected:
        values: dict[str, object] = {}
        exec(cell.source, {}, values)
        assert values == page.parameters


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_parameters(path):
    """One cell of them, each with a comment, and each used: to be checked does not count."""
    notebook = read(path)
    (cell,) = tagged(notebook, "parameters")
    names = [node.targets[0].id for node in ast.parse(cell.source).body]
    assert names and len(set(names)) == len(names)
    if Path(path).stem == "train":
        return  # all fields of Config, and some names say it all
    assert all("  # " in line for line in cell.source.splitlines() if line)
    nodes = [node for cell in code(notebook)[1:] for node in ast.walk(ast.parse(cell.source))]
    used = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    assert set(names) <= used


@pytest.mark.parametrize(("name", "of_all"), [("03-tables", "table"), ("04-ablations", "study")])
def test_a_notebook_of_several_pages_is_the_first_of_them(name, of_all):
    """So that none is executed twice."""
    path = f"notebooks/{name}.ipynb"
    values: dict[str, object] = {}
    exec(tagged(read(path), "parameters")[0].source, {}, values)
    others = [page.parameters for page in PAGES.values() if page.notebook == PAGES[path].path]
    assert others[0] == {} and {of_all: values[of_all]} not in others


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_size_and_alternative_texts(path):
    assert (ROOT / path).stat().st_size < 400_000
    for cell in code(read(path)):
        if any("image/png" in output.get("data", {}) for output in cell.outputs):
            assert cell.metadata["mystnb"]["image"]["alt"]
            assert cell.metadata["mystnb"]["figure"]["caption"]


HIDDEN = {"hide-input", "hide-cell", "hide-output", "remove-cell", "remove-input", "remove-output"}


def test_the_analysis_is_in_sight():
    """At most a fifth of the cells is folded: set-up and drawings; only glue is taken out."""
    cells = [(path, cell) for path in NOTEBOOKS for cell in code(read(path))]
    hidden = [(path, cell) for path, cell in cells if HIDDEN & set(cell.metadata.get("tags", ()))]
    for path, cell in hidden:
        data = [set(output.get("data", {})) for output in cell.outputs]
        if "remove-cell" in cell.metadata.tags:
            made = all(each <= GLUED for each in data)
            assert made and "glue(" in cell.source, f"{path}: {cell.source}"
        else:
            assert HIDDEN & set(cell.metadata.tags) == {"hide-input"}, f"{path}: {cell.source}"
            drawn = all(any(kind.startswith("image/") for kind in each) for each in data)
            assert drawn, f"{path} hides what makes a number or a table: {cell.source}"
    assert len(hidden) <= len(cells) / 5, f"{len(hidden)} of {len(cells)} cells are hidden"


GLUED = {f"application/papermill.record/text/{kind}" for kind in ("plain", "markdown")}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_parameter_ends_in_one_sentence(name):
    values, sentence = WRONG[name]
    first, second, *_ = code(read(f"notebooks/{name}.ipynb"))
    namespace: dict[str, object] = {}
    exec(first.source, namespace)
    namespace |= values
    with pytest.raises(ParameterError) as error:
        exec(second.source, namespace)
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)
    if name == "04-ablations":
        assert "ratio" in str(error.value) and "overfitting" in str(error.value)


# Other parameters than its own, where no page and no test of its analysis has them.
OTHERWISE = {
    "01-method": {"ratio": 0.1, "decay": 0.3, "scope": "sample"},
    "02-sparsity": {"steps": 1500},
    "05-speed": {"ratio": 0.01},
    "06-claims": {"margin": 0.2, "alpha": 0.1},
    "09-runs": {"results": "a few"},
    "10-status": {"results": "a few"},
    "11-turnover": {"decay": 0.6},
    "12-power": {"tables": 200},
    "14-worth": {"epochs": 10},
}


@pytest.mark.filterwarnings("ignore")  # as in a kernel
@pytest.mark.parametrize("name", OTHERWISE)
def test_other_parameters_do_not_stop_a_notebook(name, tmp_path):
    (tmp_path / "paper").mkdir()
    for record in (ROOT / "results" / "paper").glob("table2-k05-d0-*.json"):
        shutil.copy(record, tmp_path / "paper")
    given = OTHERWISE[name]
    variables(name, **({"results": str(tmp_path)} if "results" in given else given))


# The guard


def test_nbval_passes_what_is_right_and_notices_what_is_not(tmp_path):
    """In a copy: one page whose output is edited, and one whose record is another."""
    pages = [f"notebooks/{name}.ipynb" for name in ("03-tables", "pages/table3")]
    for name in ("meprop", "results/paper"):
        shutil.copytree(ROOT / name, tmp_path / name)
    others = ("notebooks/findings.yml", "experiments.yml", "pyproject.toml", "tests/nbval.cfg")
    for name in (*pages, *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    edited = nbformat.read(tmp_path / pages[0], 4)
    (cell,) = [cell for cell in code(edited) if cell.id == "side"]
    shown = cell.outputs[0].data["text/markdown"]
    cell.outputs[0].data["text/markdown"] = re.sub(r"\d", "7", shown, count=1)
    nbformat.write(edited, tmp_path / pages[0])
    changed = Record.load(tmp_path / "results/paper/table3-baseline-s0.json")
    late = next(it for it in changed.history[10:] if it["epoch"] != changed.best_epoch)
    late["test_accuracy"] -= 1
    changed.save(tmp_path / "results/paper/table3-baseline-s0.json")

    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-rf"]
    there = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [*command, *pages], cwd=tmp_path, capture_output=True, text=True, env=there
    )
    assert done.returncode == 1
    failed = re.findall(r"^FAILED notebooks/(\S+)\.ipynb::Cell (\d+)", done.stdout, re.MULTILINE)
    places = {name: {int(n) for its, n in failed if its == name} for name, _ in failed}
    assert places["03-tables"] == {code(edited).index(cell)}, done.stdout
    assert places["pages/table3"], "another score"


def collected(*options):
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:xdist", *options]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    return {line.partition("::")[0] for line in listed.splitlines() if "::" in line}


def test_nbval_is_given_every_page_and_times_are_measured_alone():
    assert collected("notebooks") == set(PAGES)
    timed = {name for name, page in PAGES.items() if page.timed}
    assert len(timed) == 2 and collected("-m", "timed", "--ignore-glob=*/test_*.py") == timed


@pytest.mark.parametrize(
    "path", sorted((ROOT / "notebooks/runs").rglob("*.ipynb")), ids=lambda p: p.stem
)
def test_the_page_of_a_run_shows_its_record(path):
    record = Record.load(ROOT / "results" / path.parent.name / f"{path.stem}.json")
    shown = {
        cell.id: cell.outputs[-1].data for cell in code(nbformat.read(path, 4)) if cell.outputs
    }
    assert record.digest[:16] in shown["provenance"]["text/markdown"]
    assert f"{record.test_accuracy:.2f}" in shown["training"]["text/markdown"]
    best = record.history[record.best_epoch - 1]["layers"] if record.best_epoch else {}
    _, _, *rows = shown["shares"]["text/markdown"].splitlines()
    table = {name: its for name, *its in ([c.strip() for c in r.split("|")[1:-1]] for r in rows)}
    assert table.keys() == best.keys()
    for layer, seen in best.items():
        shares = [seen.get(name) for name in ("before", "after", "norm_kept", "weight")]
        assert table[layer] == ["" if it is None else f"{100 * it:.2f}" for it in shares], layer
