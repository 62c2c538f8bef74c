"""What a selection is left to remove: below batch normalisation, and as training goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from meprop.study.paper import paper
from meprop.study.report.densities.curves import frame
from meprop.study.report.sparsity import Curve

if TYPE_CHECKING:
    from pandas import DataFrame

CONVOLUTIONS = ("conv1", "conv2")


def bars(with_it: Mapping[int, Curve], without: Mapping[int, Curve]) -> DataFrame:
    """Density at the last step: without batch normalisation, and with it, above and below."""
    import pandas

    rows = []
    for found, name, where in (
        (without, "before", "no BN"),
        (with_it, "above", "BN, above it"),
        (with_it, "before", "BN, at the layer's output"),
    ):
        for seed, each in found.items():
            for layer, shares in each.points[-1]["layers"].items():
                rows.append({"seed": seed, "layer": layer, "where": where, "share": shares[name]})
    return pandas.DataFrame(rows)


def bars_in_words(table: DataFrame) -> str:
    """The same in a sentence."""
    means = table.groupby(["where", "layer"])["share"].mean()
    above = [means["BN, above it", layer] for layer in CONVOLUTIONS]
    below = [means["BN, at the layer's output", layer] for layer in CONVOLUTIONS]
    return (
        f"Above batch normalisation, {above[0]:.0f}% (conv1) and {above[1]:.0f}% (conv2) of the "
        f"gradient are not zero; below it, at the output of the convolution, **{below[0]:.0f}% and "
        f"{below[1]:.0f}%**. There pooling and activation leave top-k nothing for free, and "
        f"{paper()['ratio']['percent']}% of the gradient is {paper()['ratio']['percent']}% of it, "
        f"not {paper()['pooling']['share_of_cap']}% of {paper()['pooling']['cap']}%."
    )


def removed(found: Mapping[int, Curve]) -> DataFrame:
    """What 5% would do at the convolutions: as `frame`, with `removed`, in percent of nonzeros."""
    table = frame(found)
    table = table[table["layer"].isin(CONVOLUTIONS)]
    return table.assign(removed=100 * (1 - table["after"] / table["before"]))


def removed_in_words(found: Mapping[int, Curve]) -> str:
    """What is left for 5% to remove at the last step, and since when conv2 has fewer."""
    percent = paper()["ratio"]["percent"]
    table = removed(found)
    last = table[table["step"] == table["step"].max()].groupby("layer").mean(numeric_only=True)
    parts = [
        f"at {layer} it removes {row['removed']:.0f}% of the nonzero entries and leaves "
        f"{_most(row['norm_kept'])} of the norm"
        for layer, row in last.iterrows()
    ]
    conv2 = table[table["layer"] == "conv2"].groupby("step")["before"].mean()
    below = conv2[conv2 < percent]
    text = f"At step {table['step'].max():,}, a selection of {percent}% would do this: "
    text += f"{'; '.join(parts)}. "
    if below.empty:
        return text + f"The density of conv2 stays above {percent}% all the time."
    above = conv2[conv2 >= percent]
    since = below.index[0] if above.empty else below[below.index > above.index[-1]].index.min()
    if since != since:  # the last point is above again
        return text + f"The density of conv2 is below {percent}% for some of the time only."
    row = last.loc["conv2"]
    return text + (
        f"From step {since:,} on, conv2 has fewer than {percent}% nonzero entries by itself "
        f"({row['before']:.1f}% at the end). Top-k still bites there, because the entries "
        f"are not spread evenly over the feature maps: {row['untouched']:.0f}% of the maps have no "
        f"more than k and lose nothing, and the selection thins out the rest."
    )


def _most(share: float) -> str:
    """A share that may be close to all, without saying so if it is not."""
    return "more than 99.9%" if 99.9 < share < 100 else f"{share:.1f}%"
