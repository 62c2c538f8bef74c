"""Density curves: measured right, kept whole, used where they are."""

import pytest
import torch

from meprop import watch
from meprop.study import Config
from meprop.study.record import RecordError
from meprop.study.report import sparsity
from meprop.study.report.probe import Probe
from meprop.study.report.sparsity import Curve, configuration, measure, selection

TINY = configuration("digits")


@pytest.fixture(scope="module")
def tiny():
    return measure(TINY, steps=20)


def test_densities_are_those_that_watch_sees(tiny):
    probe = Probe(TINY)
    for point in tiny.points[:3]:
        with watch(probe.model) as seen:
            probe.advance()
        for layer, shares in point["layers"].items():
            assert shares["before"] == pytest.approx(100 * seen[layer].before, abs=1e-4)
            assert shares["above"] == shares["before"], "no batch normalisation"


def test_points_are_spaced_evenly_on_a_logarithmic_axis(tiny):
    steps = [point["step"] for point in tiny.points]
    assert steps[:6] == [1, 2, 3, 4, 5, 6] and steps[-1] == 20
    assert len(sparsity._spaced(5500)) < 60
    assert sparsity._spaced(1) == [1]


def test_batch_normalisation_makes_the_gradient_dense():
    curve = measure(configuration("digits", batch_norm=True), steps=2)
    for layer, shares in curve.points[-1]["layers"].items():
        assert shares["before"] > 99
        assert shares["above"] < (60 if layer == "fc1" else 25.01)


def test_what_a_selection_would_do():
    grad = torch.zeros(2, 3, 10, 10)
    grad[:, 0] = 1.0  # all of 200: 10 are kept
    grad[0, 1, 0, :5] = 2.0  # 5 of 200: none is removed
    shares = selection(grad, ratio=0.05)
    assert shares["after"] == pytest.approx(100 * 15 / 600)
    assert shares["norm_kept"] == pytest.approx(100 * (30 / 220) ** 0.5)
    assert shares["untouched"] == pytest.approx(100 * 2 / 3)
    assert selection(torch.zeros(1, 1, 2, 2))["norm_kept"] == 100


def test_a_curve_survives_its_file(tiny, tmp_path):
    path = tmp_path / "some" / "curve.json"
    tiny.save(path)
    assert Curve.load(path) == tiny
    path.write_text(path.read_text().replace('"step": 2,', '"step": 3,'))
    with pytest.raises(RecordError, match=r"curve.json: not a complete curve .*digest"):
        Curve.load(path)
    path.write_text(path.read_text()[:200])
    with pytest.raises(RecordError, match=r"curve.json: not a complete curve"):
        Curve.load(path)


def test_a_committed_curve_is_used_up_to_the_step_asked_for(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(sparsity, "FOLDER", tmp_path)
    tiny.save(sparsity.path_of(TINY))
    monkeypatch.setattr(sparsity, "measure", lambda config, steps: (config, steps))
    known = sparsity.curve(TINY, 10)
    assert known.points == [point for point in tiny.points if point["step"] <= 10]
    other = configuration("digits", seed=1)
    assert sparsity.curve(other, 10) == (other, 10)


def test_the_command_measures_what_is_missing(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(sparsity, "FOLDER", tmp_path)
    monkeypatch.setattr(
        sparsity, "committed", lambda: iter([TINY, configuration("digits", seed=1)])
    )
    monkeypatch.setattr(sparsity, "measure", lambda config, progress: Curve(config, [], {}))
    tiny.save(sparsity.path_of(TINY))
    sparsity.main([])
    assert Curve.load(sparsity.path_of(TINY)) == tiny
    assert Curve.load(tmp_path / "digits-relu-s1.json").config == Config(dataset="digits", seed=1)
    sparsity.main(["--again"])
    assert Curve.load(sparsity.path_of(TINY)).points == []
