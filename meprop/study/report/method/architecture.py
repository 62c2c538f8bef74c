"""The network as the paper's Table 1 has it, read off the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from meprop.study.network import PaperCNN
from meprop.study.paper import paper
from meprop.study.words import TIMES


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
