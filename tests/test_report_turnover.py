"""Which entries a selection chooses over the steps, counted."""

import pandas
import pytest
import torch
from torch import nn

from meprop import Conv2d, TopK
from meprop.study.config import Config
from meprop.study.experiments import load
from meprop.study.report import turnover
from meprop.study.report.turnover import Count, TurnoverError, counts, half_life, measure, save


def chosen_by(rule, gradients):
    """The counts for one layer that gets these gradients at its output, one after the other."""
    layer = Conv2d(1, 1, 1, rule=rule, backend="masked")
    seen = turnover._Chosen(layer)
    for gradient in gradients:
        layer(torch.ones(1, 1, 1, len(gradient))).backward(
            torch.tensor(gradient).reshape(1, 1, 1, -1)
        )
    return {(name, at): (count, of) for name, at, count, of in seen.rows()}


def test_ever_counts_each_entry_once():
    counted = chosen_by(TopK(0.25), [[4.0, 3.0, 2.0, 1.0], [4.0, 3.0, 5.0, 1.0]])
    assert counted["ever", 1] == (1, 4)
    assert counted["ever", 2] == (2, 4)


def test_zeros_that_make_up_k_are_not_chosen():
    counted = chosen_by(TopK(0.5), [[0.0, 0.0, 0.0, 1.0]])
    assert counted["ever", 1] == (1, 4)
    assert counted["nonzero", 1] == (1, 1)


def test_a_memory_chooses_what_is_zero_now():
    counted = chosen_by(TopK(0.25, decay=0.9), [[0.0, 0.0, 0.0, 9.0], [1.0, 0.0, 0.0, 0.0]])
    assert counted["ever", 2] == (1, 4)
    assert counted["nonzero", 2] == (0, 1)


def test_kept_compares_with_the_anchors(monkeypatch):
    monkeypatch.setattr(turnover, "ANCHORS", (1, 2))
    monkeypatch.setattr(turnover, "LAGS", (1,))
    steps = [[4.0, 3.0, 2.0, 1.0], [4.0, 3.0, 2.0, 1.0], [0.0, 0.0, 1.0, 1.0]]
    # After step 1 both stay, after step 2 none.
    assert chosen_by(TopK(0.5), steps)["kept", 1] == (2, 4)


def test_it_selects_as_the_training_does():
    """Its own run_grad is the layer's."""
    config = Config(dataset="digits", train_size=50, ratio=0.05, decay=0.6, backend="masked")
    run = turnover.training._Run(config)
    seen = turnover._Chosen(run.model.conv1)
    for batch in turnover.batches(config, 50, 1):
        run.step(batch)
    assert seen.run_grad is not None
    torch.testing.assert_close(seen.run_grad, run.model.conv1.run_grad, rtol=0, atol=0)


def test_measure_goes_on_after_an_epoch():
    config = Config(dataset="digits", train_size=20, ratio=0.05)
    rows = measure(config, steps=5)  # an epoch has two
    assert {row.at for row in rows if row.measure == "ever"} == {1, 2, 5}
    assert {row.layer for row in rows} == {"conv1", "conv2"}
    assert isinstance(rows[0].batch_norm, bool)


def test_configurations_are_those_of_the_study():
    found = turnover.configurations()
    study = load().studies["decay"]
    assert len(found) == len(study.runs)
    assert {config.decay for config in found} == {0, 0.3, 0.6, 0.9}
    assert {config.seed for config in found} == {0}


def test_round_trip_and_refusal(tmp_path):
    path = tmp_path / "turnover.csv"
    assert counts(path) is None
    rows = [Count(False, 0.6, "conv1", "ever", 1, 5, 20), Count(True, 0.0, "fc1", "kept", 2, 1, 4)]
    save(rows, path, {"seed": 0, "made by": "a: test"})
    found = counts(path)
    assert found is not None
    table, origin = found
    assert origin == {"seed": "0", "made by": "a: test"}
    assert table["share"].tolist() == [0.25, 0.25]
    assert table["batch_norm"].tolist() == [False, True]
    path.write_text(path.read_text().replace(",5,20", ",6,20"))
    with pytest.raises(TurnoverError, match=r"turnover\.csv: its content does not match"):
        counts(path)


def test_main_measures_all_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(turnover, "ROOT", tmp_path)
    monkeypatch.setattr(turnover, "measure", lambda config: [])
    said: list[str] = []
    turnover.main(said.append)
    assert len(said) == len(turnover.configurations()) + 1
    found = counts(tmp_path / turnover.FILE)
    assert found is not None and "torch" in found[1]


@pytest.mark.parametrize(
    ("shares", "steps"),
    [({1: 0.25}, 2 / 3), ({1: 0.5}, 1.0), ({1: 0.9, 2: 0.7, 5: 0.3}, 3.5), ({1: 0.9}, None)],
)
def test_half_life(shares, steps):
    kept = pandas.DataFrame({"at": list(shares), "share": list(shares.values())})
    assert half_life(kept) == (None if steps is None else pytest.approx(steps))


def test_a_layer_without_a_rule_chooses_nothing():
    with pytest.raises(AssertionError):
        turnover._Chosen(nn.Conv2d(1, 1, 1))
