"""What train.ipynb is made of: its parameters, the run and the record, and what it shows."""

import gc
import io
import re
import runpy
from dataclasses import replace
from pathlib import Path

import nbformat
import oracle
import pandas
import pytest

from meprop.study import notebook, style
from meprop.study.checkpoint import checkpoint_path
from meprop.study.config import DEFAULTS, Config
from meprop.study.data import load_data
from meprop.study.experiments import load
from meprop.study.labels import run_title
from meprop.study.notebook import Number, ParameterError, check, checked, keep, obtain
from meprop.study.training import train

TRAIN = nbformat.read(Path(__file__).resolve().parents[1] / "notebooks/train.ipynb", 4)
TINY = Config(dataset="digits", train_size=50, epochs=2, ratio=0.05, backend="masked")


@pytest.fixture(scope="module")
def record():
    return train(TINY, progress=False)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Paths are relative to the checkout: here, to an empty folder."""
    monkeypatch.setattr(notebook, "ROOT", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


# The notebook's parameters


def parameter_cells():
    return [cell for cell in TRAIN.cells if "parameters" in cell.metadata.get("tags", ())]


def test_parameters_are_fields_of_config():
    (cell,) = parameter_cells()
    namespace: dict[str, object] = {}
    exec(cell.source, namespace)
    assert checked(namespace).dataset == "digits", "its defaults need no network"
    lines = [line for line in cell.source.splitlines() if line]
    names = [line.split(" = ")[0] for line in lines]
    assert [*names[:-2]] == [*DEFAULTS][: len(names) - 2] and names[-2:] == ["record", "checkpoint"]
    # A younger field may be set without being listed: the page of a record does not change with it.
    assert set(Config().to_dict()) <= set(names)


ALLOWED = {"table": (2, 3), "quick": (True, False), "study": ("ratio", "decay")}
ALLOWED |= {"ratio": Number(0, 1, above=True), "steps": Number(1, 10, whole=True)}
ALLOWED |= {"results": notebook.ROOT}
GIVEN = {"table": 2, "quick": True, "study": "ratio", "ratio": 1, "steps": 3}
GIVEN |= {"results": "notebooks"}
# What a notebook holds anyway is no parameter.
HELD = {"io": io, "check": check, "In": [""], "_i1": ""}


def test_parameters_that_are_allowed():
    check(GIVEN | HELD, **ALLOWED)
    assert checked(HELD | {"seed": 3}) == Config(seed=3)


@pytest.mark.parametrize(
    ("ask", "given", "sentence"),
    [
        (checked, {"ratoi": 0.1}, "Config: unknown key 'ratoi'; did you mean 'ratio'?"),
        (checked, {"record": 5}, "record must be a file's path or None, got 5"),
        (checked, {"record": "notebooks"}, "record must be a file's path or None, got 'notebooks'"),
        (check, {"table": 4}, "table must be 2 or 3, got 4"),
        (check, {"table": "2"}, "table must be a whole number, got '2'"),
        (check, {"quick": 1}, "quick must be true or false, got 1"),
        (check, {"results": "Makefile"}, "results must be a folder, got 'Makefile'"),
        (check, {"results": "x" * 300}, f"results must be a folder, got '{'x' * 79}... (302 chara"),
        (check, {"ratio": "5%"}, "ratio must be a number, got '5%'"),
        (check, {"ratio": float("nan")}, "ratio must be in (0, 1], got nan"),
        (check, {"steps": 2.0}, "steps must be a whole number, got 2.0"),
        (check, {"tabel": 2}, "unknown parameter 'tabel'; did you mean 'table'?"),
    ],
)
def test_a_wrong_parameter_is_one_sentence(ask, given, sentence):
    rest = (GIVEN, ALLOWED) if ask is check else ({"dataset": "digits"}, {})
    with pytest.raises(ParameterError, match=f"^{re.escape(sentence)}") as error:
        ask(rest[0] | given, **rest[1])
    assert error.value._render_traceback_() == [str(error.value)]
    with pytest.raises(ParameterError, match=r"^the parameter 'table' is missing$"):
        check({}, table=(2, 3))


# The run


def test_train_or_show(files, monkeypatch):
    monkeypatch.delenv(notebook.LOG, raising=False)
    trained = obtain(TINY, "out/some.json", "auto")
    path = checkpoint_path(TINY)
    assert path.is_relative_to(files) and path.exists()
    keep(trained, "out/some.json", "auto")
    assert not path.exists()
    # Given its file, the record is shown and nothing is trained.
    monkeypatch.setattr(notebook, "train", None)
    assert obtain(TINY, "out/some.json", "auto") == trained
    content = (files / "out/some.json").read_bytes()
    keep(trained, "out/some.json", "auto")
    assert (files / "out/some.json").read_bytes() == content


def test_a_record_of_another_configuration_is_not_overwritten(files, record):
    record.save(files / "some.json")
    with pytest.raises(ParameterError, match=r"some.json holds .* \(seed 0\): give another path"):
        obtain(replace(TINY, seed=1), "some.json")


def test_garbage_is_collected_while_it_trains(files, monkeypatch):
    collecting = []
    monkeypatch.setattr(notebook, "train", lambda *_, **__: collecting.append(gc.isenabled()))
    try:
        names = runpy.run_path(str(Path(notebook.__file__).with_name("_startup.py")))
        assert not gc.isenabled()
        assert checked(names) == Config(), "it leaves nothing in the notebook"
        obtain(TINY)
    finally:
        gc.enable()
    assert collecting == [True]


def test_progress_is_kept_beside_the_log_of_the_pipeline(files, monkeypatch, capsys):
    monkeypatch.setenv(notebook.LOG, "run.log")
    obtain(TINY)
    assert re.search(r"\b\d+/10\b", (files / "run.progress").read_text()), "the last line it showed"
    assert (files / "run.log").read_text() == "", "there stands what went wrong"
    assert capsys.readouterr() == ("", "")


def test_warnings_are_no_progress(monkeypatch):
    monkeypatch.setattr(notebook.time, "monotonic", lambda: 0.0)
    shown: list[str] = []
    rest = io.StringIO()
    line = notebook._Line(shown.append, rest)
    for text in ("\r  0%", "\r 50%", "careful: this\n", "\r100%", "\n"):
        assert line.write(text) == len(text)
    assert shown == ["0%", "careful: this"]
    assert rest.getvalue() == "careful: this\n"


# The page


def shown(record, path):
    """What the notebook has computed of a record that it finds."""
    record.save(path)
    values = record.config.to_dict()
    return oracle.variables("train", **values, record=str(path))


def test_the_page_shows_the_record(files, record):
    page = shown(record, files / "some.json")
    assert page["history"].test_accuracy.tolist() == [e["test_accuracy"] for e in record.history]
    assert page["scores"]["test accuracy (%)"] == record.test_accuracy
    assert page["scores"]["mistakes"] == len(record.test_errors) == page["confusion"].values.sum()
    assert page["chosen"].set_index("layer").after["conv1"] == pytest.approx(5, abs=0.1)
    right = load_data("digits").test.labels[record.test_errors[0]]
    assert page["wrong"].iloc[0].tolist() == [right, record.test_predictions[0]]
    assert page["origin"]["record"] == record.digest[:16]
    own = page["settings"][page["own"]].setting.tolist()
    assert own == ["dataset", "train_size", "ratio", "backend", "epochs"]


def test_the_page_of_a_run_that_completed_no_epoch(files, record):
    none = {"best_epoch": None, "dev_accuracy": None, "test_accuracy": None}
    none |= {"test_errors": None, "test_predictions": None, "history": []}
    none |= {"provenance": record.provenance | {"seconds": 0.0}}
    empty = replace(record, status="diverged", stopped={"epoch": 1, "step": 3}, **none)
    page = shown(empty, files / "some.json")
    assert page["scores"]["stopped at"] == "{'epoch': 1, 'step': 3}"
    assert page["confusion"].values.sum() == len(page["chosen"]) == len(page["history"]) == 0


def test_a_table_shows_tags_as_they_are_written():
    cells = ["<img src=x onerror=alert(1)>", "a < b", "[page](x.md)", "</script>"]
    frame = pandas.DataFrame({"<b>": cells}, index=["<!--", "1", "2", "3"])
    shown = style.table(frame, index=True).data
    assert "<img" not in shown and "</" not in shown and "<b" not in shown and "<!" not in shown
    assert "&lt;img src=x" in shown and "a < b" in shown and "[page](x.md)" in shown


def test_titles_tell_configurations_apart():
    runs = [run for run in load().runs if run.seed == 0 and run.committed]
    titles = {run_title(run) for run in runs}
    assert len(titles) == len(runs) and max(map(len, titles)) < 80
