"""What the Method page computes: Table 1 from the model, groups, what a selection keeps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meprop import Conv2d, Linear, TopK, select, watch
from meprop.selection import from_groups, to_groups
from meprop.study.config import Config
from meprop.study.data import Part
from meprop.study.experiments import ROOT
from meprop.study.network import PaperCNN
from meprop.study.report.paper import paper
from meprop.study.report.probe import Probe

if TYPE_CHECKING:
    from pandas import DataFrame

GRADIENTS = ROOT / "book" / "_static" / "explorer-data.js"
TIMES = "\N{MULTIPLICATION SIGN}"
SCOPES = ("map", "sample", "layer", "mixed")  # what a group can be in a convolution's gradient


# The network


@dataclass(frozen=True)
class Stage:
    """A layer as it was called: what Table 1 says of it, and the shape of its output."""

    name: str
    settings: dict[str, Any]  # as in paper.yml
    shape: tuple[int, ...]  # without the mini-batch
    parameters: int
    products: int  # multiplications of one image's forward pass
    selects: bool


def stages(model: PaperCNN) -> list[Stage]:
    """The layers in the order in which an image passes them, read off the model.

    >>> [stage.name for stage in stages(PaperCNN())]
    ['conv1', 'pool1', 'conv2', 'pool2', 'fc1', 'fc2']
    """
    found: list[Stage] = []
    names = {layer: name for name, layer in model.named_modules()}

    def passed(layer: nn.Module, args: Any, output: Tensor) -> None:
        name = names[layer]
        if isinstance(layer, nn.MaxPool2d):  # one module, called twice
            name += str(1 + sum(stage.name.startswith(name) for stage in found))
        shape = tuple(output.shape[1:])
        weight = getattr(layer, "weight", torch.empty(0))
        found.append(
            Stage(
                name,
                _settings(layer),
                shape,
                parameters=sum(p.numel() for p in layer.parameters()),
                # Each weight is used once at every position of a feature map.
                products=weight.numel() * math.prod(shape[1:]),
                selects=getattr(layer, "rule", None) is not None,
            )
        )

    kinds = (nn.Conv2d, nn.MaxPool2d, nn.Linear)
    hooks = [m.register_forward_hook(passed) for m in model.modules() if isinstance(m, kinds)]
    try:
        with torch.no_grad():
            side = paper()["data"]["side"]
            model(torch.zeros(2, 1, side, side))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _settings(layer: nn.Module) -> dict[str, Any]:
    if isinstance(layer, nn.Linear):
        return {"units": layer.out_features}
    settings: dict[str, Any] = {"kernel": _pair(layer.kernel_size), "strides": _pair(layer.stride)}
    if isinstance(layer, nn.Conv2d):
        settings["filters"] = layer.out_channels
    return settings


def _pair(value: Any) -> list[int]:
    return list(value) if isinstance(value, tuple) else [value, value]


def same_as_table_1(found: Sequence[Stage]) -> bool:
    """Whether these are the layers of the paper's Table 1, with the same settings."""
    stated = {name: values for name, values in paper()["network"].items() if name != "where"}
    return {stage.name: stage.settings for stage in found} == stated


def table_1(found: Sequence[Stage]) -> str:
    """The paper's Table 1, with the shape of each output and what it costs."""
    lines = [
        "| | kernel | strides | output | parameters | multiplications |",
        "|---|---|---|---|---:|---:|",
    ]
    for stage in found:
        kernel, strides = (_times(stage.settings.get(name)) for name in ("kernel", "strides"))
        if "filters" in stage.settings:
            kernel += f" {TIMES} {stage.settings['filters']}"
        shape = _times([*stage.shape[1:], stage.shape[0]])
        counts = (f"{n:,}" if n else "" for n in (stage.parameters, stage.products))
        lines.append(f"| {stage.name} | {kernel} | {strides} | {shape} | {' | '.join(counts)} |")
    totals = (sum(stage.parameters for stage in found), sum(stage.products for stage in found))
    lines.append(f"| all | | | | {totals[0]:,} | {totals[1]:,} |")
    return "\n".join(lines)


def _times(sizes: Iterable[int] | None) -> str:
    return "" if sizes is None else f" {TIMES} ".join(str(size) for size in sizes)


# Groups


@dataclass(frozen=True)
class Groups:
    """How a scope divides a gradient of some shape."""

    scope: str
    ids: Tensor  # of the gradient's shape: the number of each entry's group
    number: int
    size: int

    @property
    def of(self) -> str:
        """What a group is, as a product of the paper's letters."""
        return {"map": "m·h·w", "sample": "h·w", "layer": "m·h·w·c", "mixed": "h·w·c"}[self.scope]


def groups(shape: Sequence[int], scope: str) -> Groups:
    """The groups that `meprop.select` ranks apart from each other.

    >>> found = groups((10, 32, 28, 28), "map")
    >>> found.number, found.size
    (32, 7840)
    """
    rows = to_groups(torch.zeros(*shape), scope)
    ids = torch.arange(len(rows)).unsqueeze(1).expand(rows.shape)
    return Groups(scope, from_groups(ids, torch.Size(shape), scope), *rows.shape)


def table_of_groups(shape: Sequence[int], ratio: float, chosen: str) -> str:
    """Number and size of the groups of every scope, and k; the chosen one in bold."""
    lines = ["| scope | a group is | groups | entries of a group | k |", "|---|---|---:|---:|---:|"]
    for scope in SCOPES:
        found = groups(shape, scope)
        k = TopK(ratio, scope=scope).k(found.size)
        cells = [f"`{scope}`", WORDS[scope], f"{found.number:,}", f"{found.size:,}", f"{k:,}"]
        if scope == chosen:
            cells = [f"**{cell}**" for cell in cells]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


WORDS = {
    "map": "a feature map over the whole mini-batch",
    "sample": "a feature map of one image",
    "layer": "everything",
    "mixed": "one image, all feature maps together",
}


# A selection


@dataclass(frozen=True)
class Kept:
    """What a rule leaves of a gradient; shares in percent."""

    before: float  # nonzero
    after: float  # nonzero
    norm: float  # of the gradient
    images: tuple[float, ...]  # which share of the surviving entries each image has


def kept(grad: Tensor, rule: TopK) -> Kept:
    """Apply a rule to a gradient.

    >>> kept(torch.tensor([[[[3.0, -4.0]]]]), TopK(0.5)).norm
    80.0
    """
    mask, _ = select(grad, rule)
    passed = grad * mask
    survivors = (passed != 0).flatten(1).sum(dim=1).double()
    shares = 100 * survivors / survivors.sum().clamp(min=1)
    return Kept(
        before=100 * float((grad != 0).double().mean()),
        after=100 * float((passed != 0).double().mean()),
        norm=100 * float(passed.double().norm() / grad.double().norm()),
        images=tuple(shares.tolist()),
    )


def kept_in_words(found: Mapping[str, Kept], content: Mapping[str, Any], rule: TopK) -> str:
    """What a rule leaves of the explorer's gradients, in a paragraph."""
    parts = [
        f"at {name} {values.before:.0f}% of the entries are not zero before the selection and "
        f"{values.after:.1f}% after it, with **{values.norm:.0f}% of the gradient's norm**"
        for name, values in found.items()
    ]
    images, first = content["images"], next(iter(found))
    order = sorted(range(len(images["labels"])), key=lambda i: -images["losses"][i])
    hard, easy = order[0], order[-1]
    guess = images["guesses"][hard]
    wrong = f", which it takes for a {guess}," if guess != images["labels"][hard] else ""
    shares = found[first].images
    return (
        f"With {100 * rule.ratio:g}% passed back (`scope={rule.scope!r}`), {'; '.join(parts)}. "
        f"Of the entries that survive at {first}, {shares[hard]:.0f}% belong to the "
        f"{images['labels'][hard]}{wrong} and {shares[easy]:.0f}% to the {images['labels'][easy]}, "
        f"of which it is surest. {_BALANCE[rule.scope]}"
    )


_MINI_BATCH = (
    "Ranking over the whole mini-batch, as the paper does, is also a choice between images: "
    "those that are classified well already hardly teach the convolutions anything."
)
_EACH_IMAGE = (
    "Every image has its own quota under this scope, whether or not there is anything to learn "
    "from it."
)
_BALANCE = {"map": _MINI_BATCH, "layer": _MINI_BATCH, "sample": _EACH_IMAGE, "mixed": _EACH_IMAGE}


def norm_curves(gradients: Mapping[str, Tensor], ratios: Sequence[float]) -> DataFrame:
    """Share of the gradient's norm that is kept, for each layer, scope and ratio."""
    import pandas

    return pandas.DataFrame(
        {"layer": layer, "scope": scope, "ratio": 100 * ratio}
        | {"norm": kept(grad, TopK(ratio, scope=scope)).norm}
        for (layer, grad), scope, ratio in product(gradients.items(), SCOPES, ratios)
    )


# run_grad


@dataclass(frozen=True)
class Trace:
    """Some steps of training under several decays, as seen at one layer.

    magnitudes, run_grads, selected: for every step, of some entries, under `decay`.
    summary: for every decay and step, in percent: `again` (how many of the selected entries were
    selected in the step before) and `empty` (how many have no gradient now).
    """

    decay: float
    first: int  # step
    magnitudes: Tensor  # steps x entries
    run_grads: Tensor
    selected: Tensor
    summary: DataFrame


def trace(
    probe: Probe, rule: TopK, decays: Sequence[float], steps: int = 24, layer: str = "conv1"
) -> Trace:
    """Train on, and select at a layer as the rule would under each decay, without effect.

    The entries followed are those whose selection under the rule's own decay changes most often.
    """
    import pandas

    rules = {decay: TopK(rule.ratio, decay, rule.scope) for decay in (rule.decay, *decays)}
    past: dict[float, tuple[Tensor | None, Tensor | None]] = dict.fromkeys(rules, (None, None))
    seen, rows = [], []
    with probe.surroundings(), probe.caught([layer]) as found:
        for step in range(steps):
            probe.advance()
            grad = found[layer].contiguous()
            for decay, each in rules.items():
                history, before = past[decay]
                mask, history = select(grad, each, history)
                row = {"decay": decay, "step": step, "empty": _percent(grad[mask] == 0)}
                if before is not None:
                    row["again"] = _percent(before[mask])
                rows.append(row)
                past[decay] = (history, mask)
                if decay == rule.decay:
                    score = grad.abs() if history is None else history
                    seen.append((grad.abs().flatten(), score.flatten(), mask.flatten()))
    magnitudes, run_grads, selected = (torch.stack(each) for each in zip(*seen, strict=True))
    changes = (selected[1:] != selected[:-1]).sum(dim=0)
    entries = changes.argsort(descending=True, stable=True)[:3]
    return Trace(
        decay=rule.decay,
        first=probe.steps - steps + 1,
        magnitudes=magnitudes[:, entries],
        run_grads=run_grads[:, entries],
        selected=selected[:, entries],
        summary=pandas.DataFrame(rows),
    )


def trace_in_words(found: Trace) -> str:
    """What the decays do to a selection, as a table and a sentence."""
    means = found.summary.groupby("decay")[["again", "empty"]].mean()
    lines = [
        "| decay | selected again in the next step | selected, but zero now |",
        "|---:|---:|---:|",
    ]
    for decay, row in means.iterrows():
        lines.append(f"| {decay:g} | {row['again']:.0f}% | {row['empty']:.0f}% |")
    own = means.loc[found.decay]
    return "\n".join(lines) + (
        f"\n\nWith a decay of {found.decay:g}, {own['again']:.0f}% of the selected entries are "
        f"selected again in the next step, and {own['empty']:.0f}% of them have no gradient to "
        "pass on: that part of the quota is spent on the past."
    )


def check_trace(found: Trace) -> None:
    """Assert what holds of a trace on every machine."""
    means = found.summary.groupby("decay")[["again", "empty"]].mean()
    assert means["again"].is_monotonic_increasing and means["empty"].is_monotonic_increasing
    assert means["empty"].between(0, 100).all()


def _percent(values: Tensor) -> float:
    return 100 * float(values.double().mean())


# The weight gradient


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
            measured[name] |= {"rows": _percent((rows != 0).any(dim=1)), "grad": rows}
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


def one_of_each(part: Part) -> tuple[Tensor, Tensor]:
    """The first image of each class, and its label."""
    rows = [int(torch.nonzero(part.labels == label)[0]) for label in part.labels.unique()]
    return part.images[rows], part.labels[rows]


def short(config: Config | None = None, steps: int = 60) -> Probe:
    """The paper's network after some steps on the embedded digits: what the pictures are of."""
    probe = Probe(config or Config(dataset="digits"))
    probe.advance(steps)
    return probe


def ratios(count: int = 13, lowest: float = 0.001) -> list[float]:
    """Ratios up to 1, evenly spaced on a logarithmic axis."""
    return [lowest ** (1 - i / (count - 1)) for i in range(count)]
