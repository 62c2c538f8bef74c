"""What the Sparsity page says of density curves."""

import matplotlib.pyplot as plt
import pytest

from meprop.study import load_data
from meprop.study.figures import set_style
from meprop.study.figures import sparsity as drawn
from meprop.study.report import densities, sparsity
from meprop.study.report.densities import Stretch, agreement, agreement_in_words, removing
from meprop.study.report.sparsity import Curve, committed, configuration, path_of


def made(*shares, activation="relu", seed=0):
    """A curve with these densities at conv1, conv2 and fc1, a step each."""
    points = []
    for step, values in enumerate(shares, 1):
        layers = {
            layer: {"before": value, "above": value}
            for layer, value in zip(sparsity.LAYERS, values, strict=True)
        }
        for layer in densities.CONVOLUTIONS:
            layers[layer] |= {"after": 1.0, "norm_kept": 99.0, "untouched": 50.0}
        points.append({"step": step, "layers": layers})
    return Curve(configuration("digits", activation, seed=seed), points, {})


PAPER = (23, 3, 50)
OFF = (23, 18, 50)


# The committed curves


@pytest.mark.parametrize("config", list(committed()), ids=lambda config: path_of(config).stem)
def test_committed_curves_are_whole(config):
    path = path_of(config)
    if not path.exists():
        pytest.skip("not measured yet")
    curve = Curve.load(path)
    assert curve.config == config
    assert curve.provenance["dirty"] is False
    assert [point["step"] for point in curve.points] == sparsity._spaced(sparsity.STEPS)
    for point in curve.points:
        for layer in densities.CONVOLUTIONS:
            assert point["layers"][layer]["above"] <= 25, "one winner in a window of four"


def test_seeds_that_are_committed_stand_beside_the_one_asked_for():
    found = densities.curves("mnist", "relu", False, 0, steps=100)
    assert list(found) == [0, 1, 2]
    assert all(curve.points[-1]["step"] == 100 for curve in found.values())
    assert densities.origin(found) == (
        "The first 100 training steps on MNIST, seeds 0, 1 and 2: the committed curves in "
        "`measurements/sparsity`."
    )
    alone = densities.curves("digits", "relu", False, 1, steps=1)
    assert list(alone) == [1]
    assert "the embedded digits, seed 1: measured just now" in densities.origin(alone)


# Beside the paper


def test_agreement_needs_all_three_figures():
    assert agreement(made(OFF, PAPER, PAPER, OFF, PAPER)) == [Stretch(2, 3), Stretch(5, 5)]
    assert agreement(made((21, 2, 52))) == [Stretch(1, 1)]
    for outside in ((20.9, 3, 50), (23, 4.1, 50), (23, 3, 52.1)):
        assert agreement(made(outside)) == []


def test_what_an_iteration_can_be():
    text = agreement_in_words({0: made(OFF, PAPER, PAPER, OFF), 1: made(OFF, OFF, PAPER, OFF)})
    assert "- seed 0: steps 2-3\n- seed 1: steps 3\n- mean of the seeds: steps 3\n" in text
    assert "cannot be one mini-batch: the first step has 23%, 18% and 50%" in text
    assert "from 2 to 3 mini-batches; an epoch has 120" in text
    assert "Nor can it be much later: step 4 has 23%, 18% and 50%" in text
    first = agreement_in_words({0: made((25, 25, 99), activation="sigmoid")})
    assert "The very first step shows all three figures" in first and "- mean" not in first
    assert "No step in this range" in agreement_in_words({0: made(OFF)})


def test_table_of_steps_shows_the_spread():
    table = densities.table_of_steps({0: made(OFF, PAPER), 1: made(OFF, (22, 3, 50))}, (2, 7))
    assert "| 2 | 22.5% (22.0-23.0) | 3.0% | 50.0% |" in table
    assert table.endswith("| the paper | **23%** | **3%** | **50%** |")
    assert "| 7 |" not in table


# Pooling and batch normalisation


def test_pooling_caps_the_density():
    images = load_data("digits").train.images[:4]
    pools = {(pool.kernel, pool.stride): pool for pool in densities.pooling(images)}
    for kernel, cap in ((1, 100), (2, 25), (3, 100 * 81 / 784), (4, 6.25)):
        pool = pools[kernel, kernel]
        assert pool.cap == pytest.approx(cap)
        assert pool.measured["sigmoid"] == pytest.approx(cap), "every window has a winner"
        assert pool.measured["relu"] < cap
    overlapping = pools[3, 2]
    assert overlapping.measured["sigmoid"] < overlapping.cap, "windows share winners"
    table = densities.table_of_pools(list(pools.values()))
    assert "| none | 100% | 100% |" in table and ", stride 2 | 22% |" in table


def test_words_about_batch_normalisation():
    table = densities.bars({0: made((17, 19, 49))}, {0: made((21, 2, 40))})
    assert len(table) == 9
    assert "17% (conv1) and 19% (conv2)" in densities.bars_in_words(table)


# What top-k removes


def test_words_about_what_is_removed():
    text = densities.removed_in_words({0: made((20, 10, 50), (20, 2, 50), (20, 2, 50))})
    assert "conv1 it removes 95% of the nonzero entries and leaves 99.0% of the norm" in text
    assert "at conv2 it removes 50%" in text
    assert "From step 2 on, conv2 has fewer than 5%" in text and "50% of the maps" in text
    assert "stays above 5%" in densities.removed_in_words({0: made((20, 10, 50))})
    wavering = {0: made((20, 2, 50), (20, 10, 50))}
    assert "for some of the time only" in densities.removed_in_words(wavering)
    always = densities.removed_in_words({0: made((20, 2, 50))})
    assert "From step 1 on" in always


def test_nearly_all_is_not_all():
    assert removing._most(99.97) == "more than 99.9%"
    assert (removing._most(100), removing._most(96.24)) == ("100.0%", "96.2%")


def test_later_epochs_come_from_records():
    table = densities.later()
    text = densities.later_in_words(table)
    if table is None:
        assert "Missing: seed" in text and "`table2-baseline`" in text
    else:
        assert set(table["layer"]) == set(sparsity.LAYERS) and text.startswith(
            "Over whole runs: in epoch "
        )


# Figures


def test_figures():
    set_style()
    found = {seed: made(OFF, PAPER, PAPER, seed=seed) for seed in (0, 1)}
    table = densities.frame(found)
    later = table.assign(step=5500 * table["step"], epoch=table["step"])
    figures = [
        drawn.against_step({"relu": table, "sigmoid": table}, {"relu": agreement(found[0])}, later),
        drawn.normalised(densities.bars(found, found)),
        drawn.top_k(densities.removed(found)),
    ]
    assert all(len(figure.small_png()) < 40_000 for figure in figures)
    assert not plt.get_fignums(), "they are shown by whoever asked for them, and once"
