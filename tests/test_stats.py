"""The declared analysis against other implementations and a known truth."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats as reference

from meprop.study import stats


def runs(means, seeds, spread, rng):
    """Values of as many runs of each setting, around its mean."""
    index = pd.MultiIndex.from_product([means, range(seeds)], names=stats.RUN)
    centre = np.repeat(list(means.values()), seeds)
    return pd.Series(rng.normal(centre, spread), index=index)


def test_two_settings_are_a_t_test():
    values = runs({"a": 99.0, "b": 99.2}, 5, 0.1, np.random.default_rng(0))
    found = stats.against(stats.fit(values), "a").loc["b"]
    other = reference.ttest_ind(values["b"], values["a"])
    low, high = other.confidence_interval()
    assert [found.low, found.high] == pytest.approx([low, high]) and found.df == other.df
    found = stats.welch(values["b"], values["a"])
    low, high = reference.ttest_ind(values["b"], values["a"], equal_var=False).confidence_interval()
    assert [found.low, found.high] == pytest.approx([low, high])


def test_a_setting_with_one_run_borrows_the_spread():
    values = runs({"a": 99.0, "b": 99.0}, 3, 0.1, np.random.default_rng(1))
    alone = pd.concat([values, pd.Series({("c", 0): 98.0}).rename_axis(stats.RUN)])
    found = stats.against(stats.fit(alone), "a")
    assert found.loc["b"].to_list() == pytest.approx(
        stats.against(stats.fit(values), "a").loc["b"].to_list()
    )
    assert found.loc["c"].se == pytest.approx(found.loc["b"].se * 2**0.5)


def simulate(differences, count=100, spread=0.045, seeds=5, verdict=stats.not_worse):
    """The verdicts on several settings, over as many simulated tables."""
    rng, found, covered = np.random.default_rng(2), [], []
    means = {"base": 99.0} | {f"s{n}": 99.0 + d for n, d in enumerate(differences)}
    for _ in range(count):
        compared = stats.against(stats.fit(runs(means, seeds, spread, rng)), "base")
        found.append(verdict(compared))
        truth = np.array(differences)
        covered += list((compared.low < truth) & (truth < compared.high))
    return pd.Series(found).value_counts(normalize=True).reindex(
        [stats.SUPPORTED, stats.REFUTED, stats.UNDECIDED], fill_value=0.0
    ), np.mean(covered)


def test_coverage_and_power_of_the_declared_rule():
    share, covered = simulate([0.0, 0.0])
    assert 0.9 < covered < 0.99
    assert share[stats.SUPPORTED] > 0.75 and share[stats.REFUTED] < 0.02


def test_an_advantage_that_is_not_there_is_not_found():
    no_gain, _ = simulate([0.0] * 6, count=30, verdict=stats.better)
    assert no_gain[stats.SUPPORTED] == 0


def test_best_five_takes_the_earlier_of_equal_epochs():
    epochs = pd.DataFrame({"name": "a", "seed": 0, "epoch": range(1, 8), "dev_accuracy": 99.0})
    epochs["test_accuracy"] = epochs.epoch.astype(float)
    assert stats.best_five(epochs).item() == 3.0 and stats.protocol(epochs).item() == 1.0
