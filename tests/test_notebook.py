"""What train.ipynb is made of: parameters, the run, the record, words and figures."""

import gc
import io
import re
import runpy
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest

from meprop.study import figures, notebook
from meprop.study.checkpoint import checkpoint_path
from meprop.study.config import Config
from meprop.study.data import load_data
from meprop.study.experiments import load
from meprop.study.labels import describe, outcome, provenance_table, run_title, shares_table
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


def test_every_first_field_of_config_is_a_commented_parameter():
    """The younger ones are for other networks and methods; papermill sets them all the same."""
    (cell,) = parameter_cells()
    namespace: dict[str, object] = {}
    exec(cell.source, namespace)
    config = checked(namespace)
    assert config.dataset == "digits", "its defaults need no network"
    names = list(Config().to_dict())
    lines = [line for line in cell.source.splitlines() if line]
    assert [line.split(" = ")[0] for line in lines] == [*names, "record", "checkpoint"]
    plain = {"epochs", "batch_size"}  # say it all
    for line, name in zip(lines, names, strict=False):
        assert "  # " in line or name in plain, line


def test_comments_agree_with_config():
    """The notebook repeats Config's comments: one text, in two places."""
    source = Path(str(notebook.__file__)).with_name("config.py").read_text("utf-8")
    theirs = dict(re.findall(r"^    (\w+): .* = .*?  # (.*)$", source, re.MULTILINE))
    ours = dict(re.findall(r"^(\w+) = .*?  # (.*)$", parameter_cells()[0].source, re.MULTILINE))
    for name in Config().to_dict().keys() & theirs.keys():
        assert ours[name].startswith(theirs[name]), name


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"ratoi": 0.1}, "Config: unknown key 'ratoi'; did you mean 'ratio'?"),
        ({"ratio": 5}, "Config: ratio must be in (0, 1], got 5; did you mean 0.05?"),
        ({"record": 5}, "record must be a file's path or None, got 5"),
        ({"checkpoint": True}, "checkpoint must be a file's path or None, got True"),
    ],
)
def test_a_wrong_parameter_is_one_sentence(given, sentence):
    with pytest.raises(ParameterError) as error:
        checked({"dataset": "digits"} | given)
    assert str(error.value) == sentence
    assert error.value._render_traceback_() == [sentence]


ALLOWED = {
    "table": (2, 3),
    "quick": (True, False),
    "study": ("ratio", "decay"),
    "results": notebook.ROOT,
}
ALLOWED |= {"ratio": Number(0, 1, above=True), "steps": Number(1, 10, whole=True)}
GIVEN = {
    "table": 2,
    "quick": True,
    "study": "ratio",
    "results": "notebooks",
    "ratio": 1,
    "steps": 3,
}


def test_parameters_that_are_allowed():
    check(GIVEN | {"_i1": "", "In": [""], "check": check}, **ALLOWED)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"table": 4}, "table must be 2 or 3, got 4"),
        ({"table": "2"}, "table must be 2 or 3, got '2'; did you mean 2?"),
        ({"table": [2]}, "table must be 2 or 3, got [2]"),
        ({"quick": 1}, "quick must be True or False, got 1"),
        ({"quick": "yes"}, "quick must be True or False, got 'yes'"),
        (
            {"study": "ration"},
            "study must be 'ratio' or 'decay', got 'ration'; did you mean 'ratio'?",
        ),
        ({"results": 3}, "results must be text, got 3"),
        ({"results": "Makefile"}, "results must be a folder, got 'Makefile'"),
        ({"ratio": 5}, "ratio must be in (0, 1], got 5; did you mean 0.05?"),
        ({"ratio": 0}, "ratio must be in (0, 1], got 0"),
        ({"ratio": "5%"}, "ratio must be a number, got '5%'"),
        ({"ratio": float("nan")}, "ratio must be in (0, 1], got nan"),
        ({"ratio": True}, "ratio must be a number, got True"),
        ({"steps": 11}, "steps must be in [1, 10], got 11"),
        ({"steps": 2.0}, "steps must be a whole number, got 2.0"),
        ({"tabel": 2}, "unknown parameter 'tabel'; did you mean 'table'?"),
    ],
)
def test_a_parameter_that_is_not_allowed(given, sentence):
    with pytest.raises(ParameterError) as error:
        check(GIVEN | given, **ALLOWED)
    assert str(error.value) == sentence


def test_a_parameter_that_is_not_set():
    with pytest.raises(ParameterError, match=r"^the parameter 'table' is missing$"):
        check({}, table=(2, 3))


def test_what_a_notebook_holds_anyway_is_no_parameter():
    import math

    assert checked(
        {"math": math, "describe": describe, "In": [""], "_i1": "", "seed": 3}
    ) == Config(seed=3)


# The run


def test_train_or_show(files, monkeypatch):
    monkeypatch.delenv(notebook.LOG, raising=False)
    trained = obtain(TINY, "out/some.json", "auto")
    path = checkpoint_path(TINY)
    assert path.is_relative_to(files) and path.exists()
    assert "digest" in keep(trained, "out/some.json", "auto")
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
        assert not gc.isenabled()
    finally:
        gc.unfreeze()
        gc.enable()
    obtain(TINY)
    assert gc.isenabled()
    assert collecting == [True, True]


def test_progress_goes_to_the_log_of_the_pipeline(files, monkeypatch, capsys):
    monkeypatch.setenv(notebook.LOG, "run.log")
    obtain(TINY)
    assert "0/10" in (files / "run.log").read_text()
    assert capsys.readouterr() == ("", "")


def test_warnings_are_no_progress():
    shown: list[str] = []
    rest = io.StringIO()
    line = notebook._Line(shown.append, every=3600, rest=rest)
    for text in ("\r  0%", "\r 50%", "careful: this\n", "\r100%", "\n"):
        assert line.write(text) == len(text)
    assert shown == ["0%"]
    assert rest.getvalue() == "careful: this\n"


@pytest.mark.parametrize(
    "change", [{"best_epoch": 1}, {"test_accuracy": 99.0}, {"history": []}, {"dev_accuracy": 0.0}]
)
def test_a_record_that_contradicts_itself_is_not_kept(files, record, change):
    assert record.best_epoch == 2
    with pytest.raises(AssertionError):
        keep(replace(record, **change), "some.json")
    assert not (files / "some.json").exists()


# Words


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "on 55,000 images of MNIST for 30 epochs. All gradients are passed back: a baseline."),
        ({"batch_norm": True}, "The paper's network with batch normalisation, trained"),
        ({"dropout": 0.5}, "The paper's network with dropout of 0.5 on fc1, trained"),
        ({"ratio": 0.001}, "the largest 0.1% of each feature map are passed back. Seed"),
        ({"ratio": 0.05, "pick": "random"}, "a random 5% of each feature map"),
        ({"ratio": 0.05, "scope": "mixed"}, "5% of each image, over all feature maps are"),
        ({"ratio": 0.05, "decay": 0.6}, "chosen by run_grad with a decay of 0.6. Seed"),
        ({"ratio": 0.05, "bias": "sparse"}, "the bias gradients are selected too."),
        ({"ratio": 0.05, "sparse_layers": ("conv2",)}, "at the output of conv2, the"),
        ({"ratio": 0.05, "batch_norm": True, "select_at": "bn"}, "above batch normalisation, the"),
        ({"train_size": 1000, "epochs": 1, "seed": 7}, "1,000 images of MNIST for 1 epoch."),
        ({"activation": "sigmoid"}, "with sigmoid activations"),
    ],
)  # fmt: skip
def test_a_configuration_in_words(values, text):
    assert text in describe(Config(**values))


def test_titles_tell_configurations_apart():
    runs = [run for run in load().runs if run.seed == 0 and run.committed]
    titles = {run.name: run_title(run) for run in runs}
    assert len(set(titles.values())) == len(titles)
    assert titles["table2-baseline"] == "table2-baseline: all gradients"
    assert titles["bn-position-above"].endswith(": 5%, above BN, with BN, 5,000 images")
    assert max(map(len, titles.values())) < 80


def test_outcome_and_provenance(record):
    assert f"**test accuracy of {record.test_accuracy:.2f}%**" in outcome(record)
    assert f"({len(record.test_errors)} mistakes)" in outcome(record)
    early = replace(record, status="diverged", stopped={"epoch": 1, "step": 3}, best_epoch=None)
    assert outcome(early) == (
        "The run diverged: at epoch 1, step 3 the loss was no finite number. "
        "No epoch was completed."
    )
    named = [line.split("|")[1].strip() for line in provenance_table(record).splitlines()[2:]]
    assert named == [name.replace("_", " ") for name in record.provenance]


def test_shares(record):
    head, _, first, *_ = (line.split(" | ") for line in shares_table(record).splitlines())
    assert (first[0], head[2]) == ("| conv1", "nonzero after (%)")
    assert float(first[2]) == pytest.approx(5, abs=0.1)
    assert shares_table(replace(record, best_epoch=None)) == "No epoch was completed."


# Figures


def test_figures(record):
    test = load_data("digits").test
    figures.set_style()
    curves = figures.learning_curves(record)
    assert curves is not None
    drawn = [list(line.get_ydata()) for line in curves.axes[1].get_lines()]
    assert [epoch["test_accuracy"] for epoch in record.history] in drawn
    assert figures.densities(record) is not None
    confusion = figures.confusion(record, test)
    assert confusion is not None
    shown = [int(text.get_text()) for text in confusion.axes[0].texts if text.get_text()]
    assert sum(shown) == len(record.test_errors)
    mistakes = figures.mistakes(record, test)
    assert mistakes is not None
    first = mistakes.axes[0].texts[0].get_text()
    assert first == f"{int(test.labels[record.test_errors[0]])}, not {record.test_predictions[0]}"
    assert not plt.get_fignums(), "they are shown by whoever asked for them, and once"
    assert len(curves.small_png()) < 20_000


def test_figures_of_a_run_that_completed_no_epoch(record):
    empty = replace(record, history=[], best_epoch=None, test_errors=None, test_predictions=None)
    test = load_data("digits").test
    assert figures.learning_curves(empty) is None
    assert figures.densities(empty) is None
    assert figures.confusion(empty, test) is None
    assert figures.mistakes(empty, test) is None
