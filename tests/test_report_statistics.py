"""Statistics over seeds, against scipy's own tests and textbook values."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from meprop.study.report import statistics as ours

SCORES = st.lists(st.integers(9800, 9999), min_size=2, max_size=12)


@given(SCORES, st.sampled_from([0.9, 0.95, 0.99]))
def test_interval_is_students(values, level):
    data = np.array(values) / 100
    found = ours.interval(data, level)
    assert found.mean == pytest.approx(data.mean())
    if len(set(values)) > 1:
        theirs = stats.ttest_1samp(data, 0).confidence_interval(level)
        assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))


@given(SCORES.flatmap(lambda a: st.tuples(st.just(a), st.permutations(a))))
def test_paired_is_scipys_paired_test(pair):
    first, second = (np.array(values) / 100 for values in pair)
    found = ours.paired(dict(enumerate(first)), dict(enumerate(second)))
    if np.ptp(first - second) > 1e-9:
        assert found.p == pytest.approx(stats.ttest_rel(first, second).pvalue)
    elif not np.any(np.abs(first - second) > 1e-9):
        assert found.p == pytest.approx(1)


def test_paired_uses_the_seeds_that_both_have():
    found = ours.paired({0: 2.0, 2: 5.0, 3: 9.0}, {0: 1.0, 1: 7.0, 3: 6.0})
    assert (found.mean, found.n) == (2.0, 2)


@pytest.mark.parametrize("values", [[], [99.0]])
def test_less_than_two_seeds_have_no_interval(values):
    found = ours.interval(values)
    assert not found.known and math.isnan(found.p) and found.n == len(values)
    assert ours.seeds_needed(found, 0.0) is None


def test_equal_seeds_are_not_certain():
    equal, apart = ours.interval([0.1 + 0.2, 0.3]), ours.interval([0.3, 0.31])
    assert equal.low < 0.3 < equal.high and equal.p > 0.001
    assert equal.high - equal.low < apart.high - apart.low, "and less so than unequal ones"
    assert ours.interval([0.0, 0.0, 0.0]).p == 1
    epochs = ours.interval([-2, -2], step=1.0)
    assert epochs.low < 0 < epochs.high and ours.interval([-2] * 5, step=1.0).high < 0


@pytest.mark.parametrize("sd", [0.003, 0.02, 0.1])
def test_intervals_of_counted_images_hold_what_they_promise(sd):
    # Two seeds, the fewest: a 95% interval misses the true value 5 times of 100, or less often.
    random, true = np.random.default_rng(0), 0.013
    found = [ours.interval(np.round(random.normal(true, sd, 2), 2)) for _ in range(2000)]
    assert np.mean([each.low <= true <= each.high for each in found]) > 0.94


def test_holm_against_a_worked_example():
    # Holm (1979), as given by R's p.adjust(c(0.01, 0.02, 0.03, 0.04), "holm")
    assert ours.holm([0.01, 0.02, 0.03, 0.04]) == pytest.approx([0.04, 0.06, 0.06, 0.06])
    assert ours.holm([0.9, 0.9]) == [1.0, 1.0]
    adjusted = ours.holm([math.nan, 0.02])
    assert math.isnan(adjusted[0]) and adjusted[1] == 0.04, "it counts, tested or not"


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_keeps_the_order_and_never_lowers(probabilities):
    adjusted = ours.holm(probabilities)
    assert all(p <= a <= 1 for p, a in zip(probabilities, adjusted, strict=True))
    order = np.argsort(probabilities, kind="stable")
    assert list(np.array(adjusted)[order]) == sorted(adjusted)


def test_seeds_needed_is_the_first_that_decides():
    found = ours.interval([0.10, -0.05, 0.12, 0.02])
    n = ours.seeds_needed(found, threshold=0.0)

    def half(n):
        return stats.t.ppf(0.975, n - 1) * found.sd / math.sqrt(n)

    assert n is not None and half(n) < found.mean <= half(n - 1)
    assert ours.seeds_needed(found, threshold=found.mean) is None, "no number of seeds would"


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_discordant_counts(first, second):
    found = ours.discordant(sorted(first), sorted(second))
    assert found.only_first == sum(image in second and image not in first for image in range(31))
    assert found.only_second == sum(image in first and image not in second for image in range(31))
    swapped = ours.discordant(sorted(second), sorted(first))
    assert found.p == pytest.approx(swapped.p) and 0 < found.p <= 1


def test_discordant_against_a_worked_example():
    # Ten images that differ, nine of them one way: 2 * (1 + 10) / 2**10
    assert ours.discordant(range(9), [20]).p == pytest.approx(22 / 1024)


def test_binomial_noise_against_simulation():
    right = np.random.default_rng(0).binomial(10_000, 0.992, 20_000) / 100
    assert ours.binomial_noise(99.2, 10_000) == pytest.approx(1.96 * right.std(), rel=0.03)


def test_difference_noise_against_simulation():
    rng = np.random.default_rng(0)
    kinds = rng.multinomial(10_000, [0.005, 0.005, 0.99], 20_000)
    difference = (kinds[:, 0] - kinds[:, 1]) / 100
    pair = (range(50), range(50, 100))
    found = ours.difference_noise([pair], 10_000)
    assert found == pytest.approx(1.96 * difference.std(), rel=0.03)
    # The same disagreement with every seed stays; another with each averages out.
    assert ours.difference_noise([pair] * 4, 10_000) == pytest.approx(found)
    others = [(range(at, at + 50), range(at + 50, at + 100)) for at in (0, 100, 200, 300)]
    assert ours.difference_noise(others, 10_000) == pytest.approx(found / 2)
