"""Why the weight gradient of a convolution stays dense while an MLP's rows do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meprop import Conv2d, Linear, TopK, watch
from meprop.study.network import PaperCNN
from meprop.study.paper import paper
from meprop.study.report.method.tracing import percent
from meprop.study.report.results import gather
from meprop.study.report.wording import NONE

if TYPE_CHECKING:
    from pandas import DataFrame


class MLP(nn.Sequential):
    """An image, 1024 hidden units, ten classes: what the original meProp was made for."""

    def __init__(self) -> None:
        hidden = Linear(paper()["data"]["side"] ** 2, paper()["network"]["fc1"]["units"])
        super().__init__(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(hidden.out_features, 10))


@cache
def _untrained(seed: int) -> dict[str, nn.Module]:
    """conv1 and conv2 in the paper's network, and an MLP's hidden layer, each with its network."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return {"CNN": PaperCNN(), "MLP": MLP()}


def weight_gradients(
    images: Tensor, labels: Tensor, rule: TopK | None, seed: int = 0
) -> dict[str, dict[str, Any]]:
    """One backward pass of the paper's network and of an MLP, untrained.

    For conv1, conv2 and the MLP's hidden layer: `after` (nonzero share of dL/dy once selected),
    `weight` (nonzero share of dL/dW) and `rows` (share of its rows, filters or units, with any), in
    percent, and `grad`, dL/dW with a row for each filter or unit.
    """
    measured: dict[str, dict[str, Any]] = {}
    for kind, model in _untrained(seed).items():
        layers = {"conv1": "conv1", "conv2": "conv2"} if kind == "CNN" else {"MLP": "1"}
        for layer in layers.values():
            selecting = model.get_submodule(layer)
            assert isinstance(selecting, Conv2d | Linear)
            selecting.set_rule(rule)
        model.zero_grad()
        with watch(model) as seen:
            F.cross_entropy(model(images), labels).backward()
        for name, layer in layers.items():
            grad = model.get_parameter(f"{layer}.weight").grad
            assert grad is not None
            rows = grad.flatten(1).clone()
            shares = {"after": seen[layer].after, "weight": seen[layer].weight}
            measured[name] = {key: 100 * (share or 0.0) for key, share in shares.items()}
            measured[name] |= {"rows": percent((rows != 0).any(dim=1)), "grad": rows}
    return measured


def weight_densities(
    images: Tensor, labels: Tensor, ratios: Sequence[float], scope: str
) -> DataFrame:
    """Share of the rows of dL/dW that are not zero, against ratio, for the whole mini-batch."""
    import pandas

    return pandas.DataFrame(
        {"ratio": 100 * ratio, "layer": layer, "rows": values["rows"], "weight": values["weight"]}
        for ratio in ratios
        for layer, values in weight_gradients(images, labels, TopK(ratio, scope=scope)).items()
    )


def table_of_weights(measured: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Densities of dL/dy and dL/dW, for each mini-batch that `weight_gradients` was given."""
    lines = [
        "| layer | mini-batch | dL/dy, nonzero | dL/dW, nonzero | rows of dL/dW with any |",
        "|---|---|---:|---:|---:|",
    ]
    for layer in next(iter(measured.values())):
        for batch, found in measured.items():
            shares = (found[layer][name] for name in ("after", "weight", "rows"))
            lines.append(f"| {layer} | {batch} | {' | '.join(f'{s:.0f}%' for s in shares)} |")
    return "\n".join(lines)


def weights_in_words(measured: Mapping[str, Mapping[str, Mapping[str, Any]]], rule: TopK) -> str:
    """The same table in a sentence."""
    (one, single), (many, batch) = measured.items()
    return (
        f"With {100 * rule.ratio:g}% passed back and {one}, {single['MLP']['rows']:.0f}% of the "
        f"MLP's rows get a gradient, and {single['conv1']['rows']:.0f}% and "
        f"{single['conv2']['rows']:.0f}% of the filters of conv1 and conv2. Even the MLP's are "
        f"only so few for a single image: over {many}, each with a selection of its own, "
        f"{batch['MLP']['rows']:.0f}% of the rows change."
    )


# The runs that are compared: 5% passed back, beside all gradients.
TRAINED = {"5%": "k05-d0", "all": "baseline"}


def trained_weights() -> dict[tuple[str, str], dict[tuple[str, str], float]]:
    """Nonzero share of dL/dW in the first and in the last epoch of training on MNIST, in percent.

    By layer and network, then by epoch and what is passed back: a mean over the seeds that both
    runs have; what is not trained yet is left out.
    """
    shares: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for number, network in ((2, "no BN"), (3, "with BN")):
        runs = {what: f"table{number}-{name}" for what, name in TRAINED.items()}
        results = gather("paper", list(runs.values()))
        records = {
            what: {seed: record for seed, record in results.of(name).items() if record.history}
            for what, name in runs.items()
        }
        seeds = set.intersection(*(set(of) for of in records.values()))
        for layer in ("conv1", "conv2"):
            shares[layer, network] = {
                (when, what): 100
                * fmean(records[what][s].history[at]["layers"][layer]["weight"] for s in seeds)
                for when, at in (("first", 0), ("last", -1))
                for what in TRAINED
                if seeds
            }
    return shares


def table_of_trained_weights() -> str:
    """The same as a table (Markdown)."""
    columns = [(when, what) for when in ("first", "last") for what in TRAINED]
    heads = [f"{when} epoch, {what}" for when, what in columns]
    lines = [f"| layer | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for (layer, network), found in trained_weights().items():
        cells = [f"{found[key]:.0f}%" if key in found else NONE for key in columns]
        lines.append(f"| {layer}, {network} | {' | '.join(cells)} |")
    return "\n".join(lines)


def trained_weights_in_words() -> str:
    """Whether the selection makes the weight gradients of the convolutions sparser."""
    found = [shares for shares in trained_weights().values() if shares]
    if not found:
        return "No pair of runs is trained yet."
    less = max(shares[when, "all"] - shares[when, "5%"] for shares in found for when, _ in shares)
    lowest = min(share for shares in found for share in shares.values())
    return (
        f"The share falls to {lowest:.0f}% at the lowest. Against all gradients, passing back 5% "
        f"lowers it by {max(0.0, less):.0f} points at most."
    )
