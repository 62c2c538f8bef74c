"""The quick suite here beside the committed one."""

import math
from dataclasses import replace

import matplotlib.pyplot as plt
import pytest
import synthetic

from meprop.study.experiments import ROOT, load
from meprop.study.figures.quick import sides
from meprop.study.record import Record
from meprop.study.report import quick
from meprop.study.report.quick import Row, compare, comparing

RUNS = load().suites["quick"].runs
OTHER = {"seconds": 10.0, "data": "x", "code": "other"}


def record(run, **changes):
    made = synthetic.record(run, test=95.0, dev=95.0)
    layer = {"before": 0.2, "after": min(0.2, run.config.ratio or 1), "norm_kept": 1.0}
    history = [e | {"layers": dict.fromkeys(("conv1", "conv2"), layer)} for e in made.history]
    origin = {"seconds": 10.0, "data": "x", "cpu": "some CPU", "commit": "c" * 40}
    return replace(made, history=history, provenance=origin, **changes)


@pytest.fixture
def rows():
    return [Row(run, record(run), record(run)) for run in RUNS]


def shifted(row, loss=1.0, test=0.0):
    """The row, with another first loss (by a factor) and test accuracy on this machine."""
    first = row.here.history[0] | {"train_loss": row.here.history[0]["train_loss"] * loss}
    accuracy = row.here.test_accuracy + test
    here = replace(row.here, history=[first, *row.here.history[1:]], test_accuracy=accuracy)
    return replace(row, here=here)


# What is compared


def test_the_reference_is_committed_whole():
    """And of the suite as it is declared: else train it again and adopt it."""
    for folder in (quick.REFERENCE, quick.PLAIN):
        found = {path.name for path in (ROOT / folder).glob("*")}
        assert found == {run.record.name for run in RUNS}
        for run in RUNS:
            assert Record.load(ROOT / folder / run.record.name).config == run.config


def test_other_arithmetic_stays_within_the_tolerance():
    rows = compare("digits", here=quick.PLAIN)
    assert all(row.both for row in rows)
    assert 0 < max(row.loss_difference for row in rows) < quick.TOLERANCE / 2
    assert "Checked" in quick.check_invariants(rows)


def test_the_pipeline_does_not_take_it_for_results():
    for run in RUNS:
        assert not run.record.is_relative_to(quick.REFERENCE)


def test_every_run_has_a_row(monkeypatch):
    monkeypatch.setattr(comparing, "find", lambda run: (None, "missing"))
    found = compare("digits")
    assert [row.run for row in found] == list(RUNS)
    assert all(row.here is None and row.reference is not None for row in found)
    assert compare("mnist") == []
    assert quick.datasets() == ("digits",)


def test_a_reference_of_another_configuration_or_damaged_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(comparing, "ROOT", tmp_path)
    run, other = RUNS[0], RUNS[1]
    path = tmp_path / quick.REFERENCE / run.record.name
    record(run).save(path)
    assert compare("digits")[0].reference is not None
    record(other).save(path)
    assert compare("digits")[0].reference is None
    path.write_text("{")
    assert compare("digits")[0].reference is None


def test_labels_are_the_tables(rows):
    assert rows[0].label == "Table 2, baseline"
    assert rows[-1].label == "Table 3, 10%, decay 0.6"
    assert len({row.label for row in rows}) == len(rows)


def test_adopting(tmp_path, monkeypatch):
    monkeypatch.setattr(comparing, "ROOT", tmp_path)
    run = RUNS[3]
    record(run).save(tmp_path / run.record)
    monkeypatch.setattr(comparing, "find", lambda each: (each if each == run else None, ""))
    assert quick.adopt() == 1
    assert Record.load(tmp_path / quick.REFERENCE / run.record.name) == record(run)


# What is said


def test_the_same(rows):
    text = quick.in_words(rows)
    assert text.startswith("Of 14 runs, 14 came out the same to the last bit, and in 14 the mean")
    assert "Training took 140 s in all here and 140 s for the reference" in text
    assert "other code" not in text
    rows[0] = replace(rows[0], here=replace(rows[0].here, provenance=OTHER))
    assert quick.in_words(rows).endswith("The reference was made by other code, see below.")
    assert "14 of the 14 runs" in quick.about("digits", rows)
    assert quick.losses_and_times(rows).count("| yes |") == 14


def test_differences(rows):
    rows[2] = shifted(rows[2], loss=1.01, test=-0.34)
    rows[5] = shifted(rows[5], loss=1.5)
    text = quick.in_words(rows)
    assert "12 came out the same" in text and "in 13 the mean loss" in text
    assert "at most 0.34 points (Table 2, 5%, decay 0.6)" in text
    table, other = quick.side_by_side(rows), quick.losses_and_times(rows)
    assert other.count("| no |") == 1 and "| -0.34 |" in table
    assert len({line.count("|") for line in [*table.splitlines(), *other.splitlines()]}) == 1
    assert rows[2].loss_difference == pytest.approx(0.01)


def test_nothing_executed_here(rows):
    alone = [replace(row, here=None) for row in rows]
    assert f"`{quick.COMMAND}`" in quick.about("digits", alone)
    assert quick.side_by_side(alone) == "Nothing was executed here yet."
    assert quick.losses_and_times(alone) == "Nothing was executed here yet."
    assert quick.in_words(alone) == "There is nothing to compare yet."
    assert quick.reference_table(alone).count("95.00") == 28
    assert "| cpu | - | some CPU |" in quick.machines(alone)
    assert quick.check_invariants(alone) == (
        "Checked: of 0 runs here and 14 of the reference, every one is of the declared "
        "configuration and finished, and no layer passes back more than its share."
    )
    assert math.isnan(alone[0].difference) and not alone[0].agrees
    assert sides(alone) is not None


def test_some_executed_here(rows):
    rows[1:] = [replace(row, here=None) for row in rows[1:]]
    assert "1 of the 14 runs" in quick.about("digits", rows)
    assert "trains the others" in quick.about("digits", rows)
    assert quick.in_words(rows).startswith("Of 1 runs")


def test_a_data_set_without_runs_says_which_there_are():
    assert quick.about("mnist", []) == (
        "The quick suite has no runs for mnist; there are some for digits. Nothing to compare."
    )
    assert quick.reference_table([]) == "There is no reference."
    assert sides([]) is None
    assert quick.expected([], 0) == "It was not measured what other arithmetic alone changes."
    assert quick.check_invariants([]) == "There is nothing to check."


def test_no_reference(rows):
    alone = [replace(row, reference=None) for row in rows]
    assert "| - | - | - | - |" in quick.reference_table(alone)
    assert quick.in_words(alone) == "There is nothing to compare yet."
    assert sides(alone) is not None


def test_what_to_expect(rows):
    rows[0] = shifted(rows[0], loss=1.02, test=1.01)
    text = quick.expected(rows, 297)
    assert "13 of 14 runs then came out the same" in text
    assert "moved by 2.0% at most" in text
    assert "0.00 points in the median and 1.01 at most; one of the 297 test images is 0.34" in text


def test_machines_are_shown_without_long_digests(rows):
    assert "| commit | cccccccccccc | cccccccccccc |" in quick.machines(rows)


# What must hold anywhere


@pytest.mark.parametrize(
    "broken",
    [
        lambda row: shifted(row, loss=1.5),
        lambda row: replace(row, here=replace(row.here, status="diverged")),
        lambda row: replace(row, here=replace(row.here, history=row.here.history[:1])),
        lambda row: replace(row, here=replace(row.here, config=RUNS[0].config)),
        lambda row: replace(
            row, here=replace(row.here, provenance=row.here.provenance | {"data": "y"})
        ),
        lambda row: replace(
            row,
            here=replace(
                row.here,
                history=[e | {"layers": RUNS_LAYERS} for e in row.here.history],
            ),
        ),
    ],
)
def test_invariants(rows, broken):
    assert "Checked" in quick.check_invariants(rows)
    rows[3] = broken(rows[3])
    with pytest.raises(AssertionError):
        quick.check_invariants(rows)


RUNS_LAYERS = {"conv1": {"after": 0.09}, "conv2": {"after": 0.05}}


def test_figure(rows):
    figure = sides(rows)
    assert figure is not None
    assert [axis.get_xlabel() for axis in figure.axes] == [
        "test accuracy (%)", "loss of epoch 1", "seconds",
    ]  # fmt: skip
    assert all(len(axis.get_lines()) == 2 for axis in figure.axes)
    assert not plt.get_fignums()
