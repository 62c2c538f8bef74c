"""The declared analysis (book/analysis.md): estimands, intervals from one pooled model, verdicts.

A run is the unit. Estimands are Series indexed by (name, seed); a comparison is a row of a
DataFrame with `estimate`, `se`, `df`, `low` and `high`.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.regression.linear_model import OLS, RegressionResults
from statsmodels.stats.weightstats import CompareMeans

LEVEL = 0.95
MARGIN = 0.10  # points of test accuracy: a smaller difference does not matter
SUPPORTED, REFUTED, UNDECIDED = "supported", "not supported", "undecided"
RUN = ["name", "seed"]


def settled(
    epochs: pd.DataFrame, first: int = 11, last: int = 30, column: str = "test_accuracy"
) -> pd.Series:
    """Settled accuracy: the mean over some late epochs of a run, which nobody chose.

    >>> run = {"name": "a", "seed": 0, "epoch": [1, 2, 3], "test_accuracy": [90.0, 98.0, 99.0]}
    >>> float(settled(pd.DataFrame(run), 2, 3).loc["a", 0])
    98.5
    """
    late = epochs[epochs.epoch.between(first, last)]
    return late.groupby(RUN)[column].mean()


def best_five(epochs: pd.DataFrame, column: str = "test_accuracy", count: int = 5) -> pd.Series:
    """The mean over the five epochs of a run with the best development accuracy."""
    order = epochs.sort_values(["dev_accuracy", "epoch"], ascending=[False, True])
    return order.groupby(RUN).head(count).groupby(RUN)[column].mean()


def protocol(epochs: pd.DataFrame, column: str = "test_accuracy") -> pd.Series:
    """The paper's protocol: the first epoch of a run with the best development accuracy."""
    return best_five(epochs, column, count=1)


def fit(values: pd.Series) -> RegressionResults:
    """A mean for every setting and one spread: the linear model of a table.

    >>> values = pd.Series({("a", 0): 99.0, ("a", 1): 99.2, ("b", 0): 99.4, ("b", 1): 99.6})
    >>> model = fit(values.rename_axis(RUN))
    >>> model.params.round(2).to_dict(), int(model.df_resid)
    ({'a': 99.1, 'b': 99.5}, 2)
    """
    names = pd.get_dummies(values.index.get_level_values("name"), dtype=float)
    return OLS(values.astype(float), names.set_axis(values.index)).fit()


def contrasts(
    model: RegressionResults, wanted: Mapping[str, Mapping[str, float]], level: float = LEVEL
) -> pd.DataFrame:
    """Weighted sums of the settings' means, each with its interval; a row a name in `wanted`.

    >>> values = pd.Series({("a", 0): 99.0, ("a", 1): 99.2, ("b", 0): 99.4, ("b", 1): 99.6})
    >>> model = fit(values.rename_axis(RUN))
    >>> contrasts(model, {"b - a": {"b": 1, "a": -1}}).estimate.round(2).to_dict()
    {'b - a': 0.4}
    """
    weights = pd.DataFrame(wanted).T.reindex(columns=model.params.index, fill_value=0.0).fillna(0.0)
    found = model.t_test(weights.to_numpy())
    columns = {"estimate": np.ravel(found.effect), "se": np.ravel(found.sd), "df": model.df_resid}
    return bounded(pd.DataFrame(columns, index=weights.index), level)


def against(
    model: RegressionResults, baseline: str, names: list[str] | None = None, level: float = LEVEL
) -> pd.DataFrame:
    """Every setting (or those named) minus the baseline."""
    names = names or [name for name in model.params.index if name != baseline]
    return contrasts(model, {name: {name: 1.0, baseline: -1.0} for name in names}, level)


def pairwise(
    values: pd.Series, runs: pd.DataFrame, other: Mapping[str, str], level: float = LEVEL
) -> pd.DataFrame:
    """Each setting minus another one, with one spread for all ablations of their kind.

    A kind shares batch normalisation, activation and number of images (columns of `runs`).
    """
    kind = [runs.loc[values.index, name] for name in ("batch_norm", "activation", "train_size")]
    found = []
    for _, group in values.groupby(kind, dropna=False):
        there = set(group.index.get_level_values("name")) & other.keys()
        if there:
            wanted = {name: {name: 1.0, other[name]: -1.0} for name in there}
            found.append(contrasts(fit(group), wanted, level))
    return pd.concat(found).loc[list(other)]


def bounded(frame: pd.DataFrame, level: float = LEVEL) -> pd.DataFrame:
    """Add the bounds of Student's interval to `estimate`, `se` and `df`."""
    half = frame.se * stats.t.ppf((1 + level) / 2, frame.df)
    return frame.assign(low=frame.estimate - half, high=frame.estimate + half)


def written(found: pd.DataFrame, form: str = "+.2f") -> pd.Series:
    """Each row as text: the estimate, and its interval in parentheses.

    >>> one = bounded(pd.DataFrame({"estimate": [0.3], "se": [0.1], "df": [20]}))
    >>> written(one).item()
    '+0.30 (+0.09 to +0.51)'
    """
    each = f"{{estimate:{form.replace('.', 'z.')}}} ({{low:{form}}} to {{high:{form}}})"
    return pd.Series([each.format_map(row) for _, row in found.iterrows()], found.index)


def welch(ours: pd.Series, theirs: pd.Series, level: float = LEVEL) -> pd.Series:
    """The difference of two means, each with its own spread."""
    both = CompareMeans.from_data(ours, theirs)
    with np.errstate(invalid="ignore"):  # no spread at all: no interval
        own = {"se": both.std_meandiff_separatevar, "df": both.dof_satt()}
    return bounded(pd.DataFrame([{"estimate": ours.mean() - theirs.mean()} | own]), level).iloc[0]


def not_worse(found: pd.DataFrame, margin: float = MARGIN, level: float = LEVEL) -> str:
    """Non-inferiority: all intervals above -margin, or one of them below it (Holm)."""
    return _verdict(found, holds=-margin, refuted=-margin, level=level)


def better(found: pd.DataFrame, margin: float = MARGIN, level: float = LEVEL) -> str:
    """Superiority: all intervals above 0, or one below the margin, an advantage too small (Holm).

    >>> one = bounded(pd.DataFrame({"estimate": [0.3], "se": [0.1], "df": [20]}))
    >>> better(one), not_worse(one), better(one.assign(estimate=-0.3))
    ('supported', 'supported', 'not supported')
    """
    return _verdict(found, holds=0.0, refuted=margin, level=level)


def _verdict(found: pd.DataFrame, holds: float, refuted: float, level: float) -> str:
    if (found.estimate - found.se * stats.t.ppf((1 + level) / 2, found.df) > holds).all():
        return SUPPORTED
    p = stats.t.cdf((found.estimate - refuted) / found.se, found.df)
    return REFUTED if holm(p).min() < (1 - level) / 2 else UNDECIDED


def holm(p: np.ndarray) -> np.ndarray:
    """Probabilities adjusted for their number (Holm 1979).

    As statsmodels' multipletests, which collects garbage at every call: a second of a notebook's.
    """
    p = np.asarray(p)
    order = p.argsort()
    adjusted = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1)
    return adjusted[order.argsort()]


def rope(found: pd.DataFrame, margin: float = MARGIN) -> pd.DataFrame:
    """Posterior probabilities, under a flat prior, of worse / equivalent / better than a margin.

    >>> one = pd.DataFrame({"estimate": [0.0], "se": [0.05], "df": [20]})
    >>> rope(one).round(2).values.tolist()
    [[0.03, 0.94, 0.03]]
    """
    posterior = stats.t(found.df, found.estimate, found.se)
    worse, above = posterior.cdf(-margin), posterior.sf(margin)
    columns = {"worse": worse, "equivalent": 1 - worse - above, "better": above}
    return pd.DataFrame(columns, index=found.index)
