"""Densities step by step: measured right, kept whole, and what the Sparsity page makes of them."""

from dataclasses import replace

import oracle
import pandas
import pytest
import synthetic
import torch

from measurements import sparsity
from measurements.sparsity import load_densities, measure, selection
from meprop import watch
from meprop.study import Config, load_data
from meprop.study.experiments import load
from meprop.study.record import RecordError
from meprop.study.training import build, conditions, steps

TINY = Config(dataset="digits")


@pytest.fixture(scope="module")
def tiny():
    return measure(TINY, last=20)


# Measuring


def test_densities_are_those_that_watch_sees(tiny):
    model = build(TINY)
    made = steps(TINY, model, load_data("digits").train)
    for number in (1, 2, 3):
        with conditions(TINY), watch(model) as seen:
            next(made)
        for row in tiny[tiny.step == number].itertuples():
            assert row.before == pytest.approx(100 * seen[row.layer].before, abs=1e-4)
            assert row.above == row.before, "no batch normalisation"


def test_densities_of_the_untrained_network(tiny):
    """Max-pooling passes the gradient to one of four; ReLU stops a part of the rest."""
    relu = tiny[tiny.step == 1].set_index("layer").before
    assert 5 < relu.conv1 < 25 and 1 < relu.conv2 < 25 and 30 < relu.fc1 < 70
    sigmoid = measure(replace(TINY, activation="sigmoid"), last=1).set_index("layer").before
    assert sigmoid.to_dict() == pytest.approx({"conv1": 25, "conv2": 25, "fc1": 99.5}, abs=0.5)
    table = measure(replace(TINY, batch_norm=True), last=2).set_index("layer")
    assert table.before.min() > 99, "batch normalisation makes the gradient dense"
    assert table.above[["conv1", "conv2"]].max() < 25.01 and table.above["fc1"].max() < 60


def test_what_a_selection_would_do():
    grad = torch.zeros(2, 3, 10, 10)
    grad[:, 0] = 1.0  # all of 200: 10 are kept
    grad[0, 1, 0, :5] = 2.0  # 5 of 200: none is removed
    shares = selection(grad)
    assert shares["after"] == pytest.approx(100 * 15 / 600)
    assert shares["norm_kept"] == pytest.approx(100 * (30 / 220) ** 0.5)
    assert shares["untouched"] == pytest.approx(100 * 2 / 3)
    assert selection(torch.zeros(1, 1, 2, 2))["norm_kept"] == 100


# Keeping


def test_a_table_survives_its_file(tiny, tmp_path):
    path = tmp_path / "some" / "tiny.json"
    sparsity.save(tiny, TINY, {"cpu": "some"}, path)
    pandas.testing.assert_frame_equal(load_densities(path.parent), tiny)
    path.write_text(path.read_text().replace('"step": 2,', '"step": 3,'))
    with pytest.raises(RecordError, match=r"tiny.json: no whole measurement .*digest"):
        load_densities(path.parent)
    path.write_text(path.read_text()[:200])
    with pytest.raises(RecordError, match=r"tiny.json: no whole measurement"):
        load_densities(path.parent)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"python -m measurements.sparsity --folder"):
        load_densities(path.parent)


def test_the_command_measures_what_is_missing(tmp_path):
    given = ["--dataset", "digits", "--seeds", "1", "--folder", str(tmp_path)]
    sparsity.main([*given, "--steps", "2"])
    table = load_densities(tmp_path)
    assert set(table.seed) == {1} and set(table.step) == {1, 2}
    assert table.groupby(["activation", "batch_norm"]).ngroups == 4
    sparsity.main([*given, "--steps", "1"])
    assert len(load_densities(tmp_path)) == len(table), "all of them are there"
    sparsity.main([*given, "--steps", "1", "--again"])
    assert set(load_densities(tmp_path).step) == {1}


def test_the_committed_densities_are_whole():
    table = load_densities()
    networks = table.groupby(sparsity.NETWORK)
    assert networks.ngroups == 12 and set(table.dataset) == {"mnist"}
    for _, network in networks:
        assert sorted(set(network.step)) == sparsity._spaced(sparsity.STEPS)
        assert (network.groupby("step").size() == len(sparsity.LAYERS)).all()


# The page


def folder(path, relu, sigmoid=(25, 25, 99)):
    """Densities of two seeds around `relu`, by step, whose mean they are; and a baseline's run."""
    for activation, batch_norm, seed in pandas.MultiIndex.from_product(
        [("relu", "sigmoid"), (False, True), (0, 1)]
    ):
        config = Config(activation=activation, batch_norm=batch_norm, seed=seed)
        rows = []
        for step, shares in relu.items():
            shares = shares if activation == "relu" else sigmoid
            for layer, share in zip(sparsity.LAYERS, shares, strict=True):
                before = 100 if batch_norm else share + (seed - 0.5)
                row = {"step": step, "layer": layer, "before": before, "above": share / 2}
                row |= {"after": before / 4, "norm_kept": 99.95, "untouched": 40 + 20 * seed}
                rows.append(row)
        table = sparsity._table(rows, config)
        sparsity.save(table, config, {}, path / "densities" / f"{sparsity._name(config)}.json")
    run = next(run for run in load().suites["paper"].runs if run.name == "table2-baseline")
    record = synthetic.record(run)
    for epoch in record.history:
        for layer in epoch["layers"].values():
            layer["before"] = 0.4 / epoch["epoch"]
    record.save(path / "results" / "paper" / "table2-baseline-s0.json")
    return {"densities": str(path / "densities"), "results": str(path / "results")}


RELU = {1: (23, 18, 50), 2: (23, 3, 50), 3: (22, 3.5, 51), 10: (23, 10, 50), 100: (23, 3, 50)}
RELU |= {2000: (21, 1, 40)}


def test_the_page_finds_the_steps_and_the_shares(tmp_path):
    found = oracle.variables("02-sparsity", **folder(tmp_path, RELU))
    assert found["together"].ReLU[found["together"].ReLU].index.tolist() == [2, 3, 100]
    steps_of = found["agreement"].set_index(["activation", "seed"])["all three agree at steps"]
    assert steps_of["ReLU", "mean"] == "2-3, 100" and steps_of["sigmoid", "mean"] == "1-2,000"
    assert found["rows"].loc["2,000", "fc1"] == "40.0 (39.5-40.5)"
    # By hand: the areas between the steps, by the 1,999 steps they lie over.
    area = 10.5 + 3.25 + 7 * 6.75 + 90 * 6.5 + 1900 * 2
    assert found["averages"].ReLU["conv2"] == pytest.approx(area / 1999)
    assert found["above"]["conv1"] == 10.5 and found["below"]["conv1"] == 100
    assert found["effect"].removed["conv1"] == pytest.approx(75)
    assert found["effect"].untouched["conv2"] == 50
    assert found["few"] == 100
    assert found["whole_runs"].conv1.iloc[-1] == pytest.approx(40 / 30)


@pytest.mark.parametrize(
    ("changed", "fc1", "sentence"),
    [
        ({1: (23, 3, 50)}, 99, "not after one"),
        ({1: (30, 18, 50)}, 99, "fails at conv2"),
        ({2000: (23, 3, 50)}, 99, "Nor can the iteration"),
        ({}, 90, "fails at conv2"),  # sigmoid must agree at the first step
    ],
)
def test_other_densities_contradict_a_sentence(tmp_path, changed, fc1, sentence):
    with pytest.raises(AssertionError, match=sentence):
        oracle.variables("02-sparsity", **folder(tmp_path, RELU | changed, (25, 25, fc1)))
