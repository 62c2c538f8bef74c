"""The Method page: the network read off the model, groups, selections, weight gradients."""

import matplotlib.pyplot as plt
import pytest
import synthetic
import torch

from meprop import Conv2d, TopK, select
from meprop.study import Config, PaperCNN, load_data
from meprop.study.figures import method as drawn
from meprop.study.figures import set_style
from meprop.study.paper import paper
from meprop.study.report import explorer, method
from meprop.study.report.method import weighing
from meprop.study.report.probe import Probe
from meprop.study.report.results import Results

DIGITS = load_data("digits").train


@pytest.fixture(scope="module")
def gradients():
    return explorer.load(method.GRADIENTS)


@pytest.fixture(scope="module")
def trace():
    probe = Probe(Config(dataset="digits", train_size=40))
    return method.trace(probe, TopK(0.05, 0.6), (0.0, 0.6, 0.9), steps=4, layer="conv2")


# The network


def test_table_1_is_read_off_the_model():
    stages = method.stages(PaperCNN(rule=TopK(0.05)))
    assert method.same_as_table_1(stages)
    assert [stage.name for stage in stages if stage.selects] == ["conv1", "conv2"]
    table = method.table_1(stages)
    total = sum(p.numel() for p in PaperCNN().parameters())
    assert "| conv2 | 5 × 5 × 64 | 1 × 1 | 14 × 14 × 64 | 51,264 | 10,035,200 |" in table  # noqa: RUF001
    assert f"{total:,}" in table


def test_another_network_is_not_table_1():
    model = PaperCNN()
    model.conv1 = Conv2d(1, 32, 3, padding=1)
    assert not method.same_as_table_1(method.stages(model))


# Groups and selections


@pytest.mark.parametrize("scope", method.SCOPES)
def test_each_group_gets_k(scope):
    grad = torch.randn(3, 4, 5, 6)
    found = method.groups(grad.shape, scope)
    mask, _ = select(grad, TopK(0.2, scope=scope))
    for number in range(found.number):
        inside = found.ids == number
        assert int(inside.sum()) == found.size
        assert int(mask[inside].sum()) == TopK(0.2).k(found.size)
    factors = dict(zip("mchw", grad.shape, strict=True))
    product = 1
    for letter in found.of.split("·"):
        product *= factors[letter]
    assert product == found.size


def test_table_of_groups_marks_the_chosen_scope():
    lines = method.table_of_groups((10, 32, 28, 28), 0.05, "mixed").splitlines()
    (chosen,) = [line for line in lines if "**" in line]
    assert "`mixed`" in chosen and "**1,254**" in chosen


def test_what_is_kept():
    grad = torch.tensor([[[[3.0, 0.0]]], [[[-4.0, 0.0]]]])
    found = method.kept(grad, TopK(0.25))
    assert (found.before, found.after, found.norm) == (50.0, 25.0, 80.0)
    assert found.images == (0.0, 100.0)


@pytest.mark.parametrize("scope", method.SCOPES)
def test_words_about_a_real_gradient(gradients, scope):
    content, grads = gradients
    rule = TopK(0.05, scope=scope)
    found = {name: method.kept(grad, rule) for name, grad in grads.items()}
    text = method.kept_in_words(found, content, rule)
    assert f"**{found['conv1'].norm:.0f}% of the gradient's norm**" in text
    assert ("quota" in text) == (scope in ("sample", "mixed"))


def test_more_is_kept_of_a_larger_ratio(gradients):
    curves = method.norm_curves(gradients[1], method.ratios(5))
    assert method.ratios(5)[-1] == 1 and method.ratios(5)[0] == pytest.approx(0.001)
    for _, part in curves.groupby(["layer", "scope"]):
        assert part["norm"].is_monotonic_increasing
        assert part["norm"].iloc[-1] == pytest.approx(100)


# run_grad


def test_trace_follows_equation_15(trace):
    expected = torch.zeros(3)
    for magnitude, history in zip(trace.magnitudes, trace.run_grads, strict=True):
        expected = 0.6 * expected + 0.4 * magnitude
        torch.testing.assert_close(history, expected)
    assert trace.first == 1
    assert set(trace.summary["decay"]) == {0.0, 0.6, 0.9}
    assert trace.summary["again"].isna().sum() == 3, "there is nothing before the first step"
    assert "With a decay of 0.6, " in method.trace_in_words(trace)


def test_a_trace_that_contradicts_itself_is_noticed(trace):
    method.check_trace(trace)
    backwards = trace.summary.assign(decay=1 - trace.summary["decay"])
    with pytest.raises(AssertionError):
        method.check_trace(method.Trace(**vars(trace) | {"summary": backwards}))


# Weight gradients


def test_only_the_mlps_rows_are_sparse():
    images, labels = method.one_of_each(DIGITS)
    assert labels.tolist() == list(range(10))
    one = method.weight_gradients(images[3:4], labels[3:4], TopK(0.05))
    k = TopK(0.05).k(paper()["network"]["fc1"]["units"])
    assert one["MLP"]["rows"] == pytest.approx(100 * k / 1024)
    assert one["conv1"]["rows"] == 100 and one["conv2"]["rows"] > 90
    full = method.weight_gradients(images[3:4], labels[3:4], None)
    assert full["MLP"]["rows"] > one["MLP"]["rows"], "the rule is gone again"
    measured = {"1 image": one, "10 images": method.weight_gradients(images, labels, TopK(0.05))}
    table = method.table_of_weights(measured)
    assert "| MLP | 1 image | 5% |" in table and table.count("\n") == 7
    assert "5% of the MLP's rows" in method.weights_in_words(measured, TopK(0.05))


# Figures


def test_figures(gradients, trace):
    set_style()
    content, grads = gradients
    images, labels = method.one_of_each(DIGITS)
    rule = TopK(0.05)
    model = PaperCNN(rule=rule)
    weights = method.weight_gradients(images, labels, rule)
    densities = method.weight_densities(images, labels, [0.01, 1.0], "map")
    figures = [
        drawn.idea(paper()["example"]["vector"], paper()["example"]["k"]),
        drawn.samples(DIGITS),
        drawn.network(model, method.stages(model), images[3]),
        drawn.output_shape((10, 32, 28, 28), "map"),
        drawn.maps(DIGITS.images[content["about"]["rows"]], grads["conv2"], rule, {3: "map 36"}),
        drawn.norms(method.norm_curves(grads, [0.01, 1.0]), 0.05),
        drawn.run_grad(trace),
        drawn.weights(weights),
        drawn.weight_density(densities, 0.05),
    ]
    assert all(len(figure.small_png()) < 60_000 for figure in figures)
    assert not plt.get_fignums(), "they are shown by whoever asked for them, and once"
    silenced = [text.get_text() for text in figures[0].axes[2].texts if "0" in text.get_text()]
    assert len(silenced) == 2


def test_weights_in_training(monkeypatch):
    def found(share):
        def trained(name, names):
            return synthetic.results(name, lambda run: 99.0 if run.name in share else None, 2)

        return trained

    pair = {"table2-baseline", "table2-k05-d0"}
    monkeypatch.setattr(weighing, "gather", found(pair))
    table = method.table_of_trained_weights().splitlines()
    assert table[2] == "| conv1, no BN | 100% | 100% | 100% | 100% |"
    assert table[4] == "| conv1, with BN | - | - | - | - |"
    assert method.trained_weights_in_words() == (
        "The share falls to 100% at the lowest. Against all gradients, passing back 5% lowers it "
        "by 0 points at most."
    )
    monkeypatch.setattr(weighing, "gather", found({"table2-baseline"}))
    assert method.trained_weights_in_words() == "No pair of runs is trained yet."


def test_weights_of_a_run_that_diverged_at_once(monkeypatch):
    def diverged(name, names):
        made = synthetic.results(name, lambda run: 99.0, 1)
        lost = {run.id: synthetic.record(run, diverged=True) for run in made.runs}
        return Results(made.runs, lost)

    monkeypatch.setattr(weighing, "gather", diverged)
    assert method.trained_weights_in_words() == "No pair of runs is trained yet."
