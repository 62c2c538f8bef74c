"""The quick suite beside the committed one: whole, and compared right."""

from dataclasses import replace

import oracle
import pytest
import synthetic

from meprop.study.experiments import ROOT, load
from meprop.study.record import Record

RUNS = load().suites["quick"].runs
REFERENCE, PLAIN = ROOT / "results/quick", ROOT / "results/quick-plain"


def test_the_reference_is_committed_whole():
    """And of the suite as it is declared: else train it again and copy it."""
    for folder in (REFERENCE, PLAIN):
        assert {path.name for path in folder.glob("*")} == {run.record.name for run in RUNS}
        for run in RUNS:
            assert Record.load(folder / run.record.name).config == run.config


def own(folder, count=14, change=lambda record: record):
    """The reference's first runs as if they were made here, one of them changed."""
    for place, run in enumerate(RUNS[:count]):
        record = Record.load(REFERENCE / run.record.name)
        (change(record) if place == 1 else record).save(folder / run.record.name)
    return {"here": str(folder)}


def with_loss(factor):
    def change(record):
        first = record.history[0] | {"train_loss": factor * record.history[0]["train_loss"]}
        return replace(record, history=[first, *record.history[1:]])

    return change


def test_nothing_was_executed_here(tmp_path):
    found = oracle.variables("07-quick", here=str(tmp_path / "missing"))
    assert found["summary"]["executed here"] == 0
    assert len(found["both"]) == len(RUNS) and found["both"].loss_here.isna().all()
    # Other arithmetic moves less than the tolerance.
    assert 0 < found["other"].moved.max() < found["tolerance"] / 2 and not found["other"].same.any()
    labels = found["both"].run
    assert labels.iloc[0] == "Table 2, baseline" and labels.iloc[-1] == "Table 3, 10%, decay 0.6"
    assert labels.is_unique


def test_some_runs_and_a_small_difference(tmp_path):
    found = oracle.variables("07-quick", **own(tmp_path, count=3, change=with_loss(1.01)))
    summary = found["summary"]
    assert (summary["executed here"], summary["the same to the last bit"]) == (3, 2)
    assert summary["loss of the first epoch agrees"] == 3
    assert summary["largest difference of that loss (%)"] == pytest.approx(1)
    assert found["both"].record_here.notna().sum() == 3
    assert found["machines"].here.equals(found["machines"].reference.rename("here"))


@pytest.mark.parametrize(
    "change",
    [
        with_loss(1.5),
        lambda record: synthetic.diverged(record, epoch=2),
        lambda record: replace(record, provenance=record.provenance | {"data": "other"}),
        lambda record: replace(
            record,
            history=[
                epoch | {"layers": {name: {"after": 0.9} for name in epoch["layers"]}}
                for epoch in record.history
            ],
        ),
    ],
    ids=["loss", "diverged", "data", "densities"],
)
def test_what_must_hold_anywhere(tmp_path, change):
    with pytest.raises(AssertionError):
        oracle.variables("07-quick", **own(tmp_path, change=change))
