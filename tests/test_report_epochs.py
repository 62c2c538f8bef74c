"""What the tables say of all epochs: what selection leaves, and where accuracies settle."""

import math
from dataclasses import replace

import pytest
import synthetic

from meprop.study.report import epochs, tables


def some(number, seeds=1, kept=None, test=lambda run: 99.0):
    """The rows of a table; `kept` is the share of the norm that each decay passes on."""
    results = synthetic.results("paper", test, seeds)
    for each in results.records.values():
        for epoch in each.history:
            for layer in epoch["layers"].values():
                layer["norm_kept"] = (kept or {}).get(each.config.decay, 0.9)
    return tables.compare(number, results)


def test_what_is_passed_on_is_told_for_each_layer_and_time():
    compared = some(2)
    (record,) = compared[1].records.values()
    first, *_, last = record.history
    first["layers"]["conv1"]["norm_kept"] = 0.5
    last["layers"]["conv2"] |= {"norm_kept": 0.4, "before": 0.7}
    assert epochs.taken_away(compared).splitlines()[2:4] == [
        "| 5%, decay 0 | conv1 | 50.0 | 90.0 | 20.0 |",
        "| 5%, decay 0 | conv2 | 90.0 | 85.0 | 25.0 |",
    ]
    assert "decay 0: 40.0 to 90.0%" in epochs.taken_away_in_words(compared)


def test_a_selection_that_takes_nothing_away_is_called_so():
    nearly = epochs.taken_away_in_words(some(2, kept={0.0: 0.9999, 0.6: 0.7}))
    assert "a norm of 1.4% of the whole" in nearly and "nearly the gradients" in nearly
    part = epochs.taken_away_in_words(some(3, kept={0.0: 0.8, 0.6: 0.7}))
    assert "a norm of 60.0% of the whole" in part and "nearly the gradients" not in part


@pytest.mark.parametrize("number", tables.TABLES)
def test_without_records_nothing_is_claimed(number):
    compared = some(number, seeds=0)
    assert epochs.taken_away(compared).count("\n") == 1
    assert all(
        line.endswith("| - | - | - | - |") for line in epochs.settled(compared).split("\n")[2:]
    )
    assert epochs.taken_away_in_words(compared) == "Not yet trained."
    assert epochs.settled_in_words(compared) == "Not yet trained."


def test_late_epochs_may_come_in_another_order():
    compared = some(2, test=lambda run: 99.1 if run.name == "table2-k08-d0" else 99.0)
    text = epochs.settled_in_words(compared)
    assert "the rows keep their order" in text
    (ahead,) = (row for row in compared if row.name == "table2-k08-d0")
    for epoch in ahead.records[0].history[-10:]:
        epoch["test_accuracy"] -= 0.5
    text = epochs.settled_in_words(compared)
    assert "another order, with the baseline, " in text and "first in place of 8%, decay 0." in text
    # Trained to 99.9 - 0.02 for each epoch from the last but one, so does the test accuracy.
    assert "0.90 points for the baseline and 0.90 to 1.30 for the other rows" in text
    assert "| 8%, decay 0 | 99.10 | 98.53 |" in epochs.settled(compared)


def test_late_numbers_of_a_record():
    record = synthetic.record(next(iter(synthetic.load().suites["paper"].runs)), test=99.0)
    values = [99.0 - 0.02 * behind for behind in (8, 7, 6, 5, 4, 3, 2, 1, 0, 1)]
    assert epochs.late(record) == pytest.approx(sum(values) / 10)
    assert epochs.late_gap(record) == pytest.approx(0.9)
    spread = math.sqrt(sum((v - sum(values) / 10) ** 2 for v in values) / 9)
    assert epochs.late_spread(record) == pytest.approx(spread)
    assert math.isnan(epochs.late_spread(replace(record, history=record.history[:1])))
