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


def test_coverage_and_power_of_the_declared_rules():
    """Over tables in which nothing makes a difference."""
    rng, verdicts, covered = np.random.default_rng(2), [], []
    for _ in range(60):
        values = runs(dict.fromkeys(("base", "one", "other"), 99.0), 5, 0.045, rng)
        compared = stats.against(stats.fit(values), "base")
        verdicts.append((stats.not_worse(compared), stats.better(compared)))
        covered += list((compared.low < 0) & (compared.high > 0))
    assert 0.9 < np.mean(covered) < 0.99
    suffices, gains = zip(*verdicts, strict=True)
    assert suffices.count(stats.SUPPORTED) > 45 and stats.REFUTED not in suffices
    assert stats.SUPPORTED not in gains


def test_best_five_takes_the_earlier_of_equal_epochs():
    epochs = pd.DataFrame({"name": "a", "seed": 0, "epoch": range(1, 8), "dev_accuracy": 99.0})
    epochs["test_accuracy"] = epochs.epoch.astype(float)
    assert stats.best_five(epochs).item() == 3.0 and stats.protocol(epochs).item() == 1.0
