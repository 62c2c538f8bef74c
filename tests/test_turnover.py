"""Which entries a selection chooses over the steps: counted right, and what the page says of it."""

import oracle
import pandas
import pytest
import torch

from measurements import save_table, turnover
from measurements.turnover import load_turnover, measure
from meprop import Conv2d, TopK
from meprop.study import Config, load_data
from meprop.study.measures import at_outputs
from meprop.study.record import RecordError
from meprop.study.training import build, conditions, steps


def chosen_by(rule, gradients):
    """The counts for one layer that gets these gradients at its output, one after the other."""
    layer = Conv2d(1, 1, 1, rule=rule, backend="masked")
    seen = turnover.Chosen(layer)
    for gradient in gradients:
        seen.count(torch.tensor(gradient, dtype=torch.float32).reshape(1, 1, 1, -1))
    return {(row[0], row[1]): row[2:] for row in seen.table().itertuples(index=False, name=None)}


BY_HAND = [
    # Each entry counts once.
    (TopK(0.25), [[4.0, 3, 2, 1], [4, 3, 5, 1]], {("ever", 1): (1, 4), ("ever", 2): (2, 4)}),
    # After step 1 both stay, after step 2 none.
    (TopK(0.5), [[4.0, 3, 2, 1], [4, 3, 2, 1], [0, 0, 1, 1]], {("kept", 1): (2, 4)}),
    # Zeros that make up k are not chosen.
    (TopK(0.5), [[0.0, 0, 0, 1]], {("ever", 1): (1, 4), ("nonzero", 1): (1, 1)}),
    # A memory chooses what is zero now.
    (TopK(0.25, decay=0.9), [[0.0, 0, 0, 9], [1, 0, 0, 0]],
     {("ever", 2): (1, 4), ("nonzero", 2): (0, 1)}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "gradients", "expected"), BY_HAND)
def test_what_is_counted(rule, gradients, expected, monkeypatch):
    monkeypatch.setattr(turnover, "ANCHORS", (1, 2))
    monkeypatch.setattr(turnover, "LAGS", (1,))
    assert chosen_by(rule, gradients).items() >= expected.items()


def test_it_selects_as_the_training_does():
    """Its own run_grad is the layer's."""
    config = Config(
        dataset="digits", train_size=50, ratio=0.05, decay=0.6, backend="masked", epochs=1
    )
    model = build(config)
    seen = turnover.Chosen(model.conv1)
    with conditions(config), at_outputs({model.conv1: seen.count}):
        assert len(list(steps(config, model, load_data("digits").train))) == 5
    assert seen.run_grad is not None
    torch.testing.assert_close(seen.run_grad, model.conv1.run_grad, rtol=0, atol=0)


def test_measure_goes_on_after_an_epoch():
    config = Config(dataset="digits", train_size=20, ratio=0.05)
    table = measure(config, last=5)  # an epoch has two
    assert set(table[table.measure == "ever"]["at"]) == {1, 2, 5}
    assert set(table.layer) == {"conv1", "conv2"}


def test_round_trip_and_refusal(tmp_path):
    path = tmp_path / "turnover.csv"
    rows = [(False, 0.6, "conv1", "ever", 1, 5, 20), (True, 0.0, "fc1", "kept", 2, 1, 4)]
    columns = ["batch_norm", "decay", "layer", "measure", "at", "count", "of"]
    save_table(pandas.DataFrame(rows, columns=columns), {"seed": 0, "made by": "a: test"}, path)
    table = load_turnover(path)
    assert table.attrs == {"seed": "0", "made by": "a: test"}
    assert table["share"].tolist() == [0.25, 0.25]
    assert table["batch_norm"].tolist() == [False, True]
    whole = path.read_text()
    for damaged in (",6,20", ',"5,20'):  # the second is no CSV any more
        path.write_text(whole.replace(",5,20", damaged))
        refused = r"turnover\.csv: its content .* again: python -m measurements\.turnover"
        with pytest.raises(RecordError, match=refused):
            load_turnover(path)


# The page


def folder(path, ever, kept):
    """Counts of a thousand entries: `ever` and `kept` by decay, the same everywhere."""
    rows = []
    for batch_norm in (False, True):
        for layer in ("conv1", "conv2"):
            for decay in ever:
                key = {"batch_norm": batch_norm, "decay": decay, "layer": layer}
                nonzero = 1000 if batch_norm or decay == 0 else {"conv1": 500, "conv2": 200}[layer]
                found = [("ever", 1, 50), ("ever", 500, ever[decay]), ("nonzero", 500, nonzero)]
                found += [("kept", lag, count) for lag, count in kept[decay].items()]
                rows += [
                    key | {"measure": name, "at": at, "count": count, "of": 1000}
                    for name, at, count in found
                ]
    origin = {"data": "some", "seed": 0, "ratio": 0.05, "steps": 500, "commit": "c"}
    save_table(pandas.DataFrame(rows), origin, path / "turnover.csv")
    return {"measurements": str(path)}


EVER = {0.0: 800, 0.3: 700, 0.6: 600, 0.9: 400}
KEPT = {0.0: {1: 250}, 0.3: {1: 500}, 0.6: {1: 900, 2: 700, 5: 300}, 0.9: {1: 900}}


def test_the_page_counts(tmp_path):
    found = oracle.variables("11-turnover", **folder(tmp_path, EVER, KEPT))
    by_decay = found["summary"].loc["no BN", "conv2"]
    assert by_decay["ever chosen (%)"].tolist() == [80, 70, 60, 40]
    half = by_decay["half is left after (steps)"]
    assert half[:0.6].tolist() == pytest.approx([2 / 3, 1, 3.5])
    assert pandas.isna(half[0.9])
    assert found["fixed"] == 5


@pytest.mark.parametrize(
    ("ever", "kept", "sentence"),
    [
        ({0.9: 900}, {}, "A smaller subset"),
        ({0.9: 60}, {}, "neither small nor fixed"),
        ({}, {0.9: {1: 100}}, "turns over more slowly"),
    ],
)
def test_other_counts_contradict_a_sentence(tmp_path, ever, kept, sentence):
    with pytest.raises(AssertionError, match=sentence):
        oracle.variables("11-turnover", **folder(tmp_path, EVER | ever, KEPT | kept))
