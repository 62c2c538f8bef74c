"""See how sparse the gradients are, without changing them."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from meprop.backward import OBSERVERS
from meprop.kernels import has_memory
from meprop.layers import Convolution, Selecting


class Seen:
    """What was seen of one layer, over all backward passes inside the `watch`.

    before, after: nonzero share of the gradient at the layer's output before and after selection.
    weight: nonzero share of its weight gradient. norm_kept: norm of the selected gradient over the
    norm of the full one. drift: how one-sided the selected gradient of a feature map (of a unit)
    is, `|sum| / sum of magnitudes`, less that of the full one; from 0 (as balanced) to 1. images:
    share of the mini-batch's images that a map's selected entries come from. Both are means over
    the maps, and tell where selection gives training a direction of its own. `None` where no
    gradient came by.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)

    def count(self, grad: Tensor, kept: Tensor) -> None:
        """Add a gradient at the layer's output, and what of it was passed on."""
        self._add(
            entries=grad.numel(), before=_nonzero(grad), after=_nonzero(kept),
            squares=_sum_of_squares(grad), squares_kept=_sum_of_squares(kept),
        )  # fmt: skip
        if grad.numel():
            grad, kept = (_by_map(values.detach()) for values in (grad, kept))
            drift = (_imbalance(kept) - _imbalance(grad)).clamp(min=0).sum()
            images = (kept != 0).any(2).double().mean(0).sum()
            self._add(maps=grad.shape[1], drift=float(drift), images=float(images))

    def count_weight(self, grad: Tensor) -> None:
        """Add a weight gradient."""
        self._add(weights=grad.numel(), weight=_nonzero(grad))

    def _add(self, **more: float) -> None:
        for name, value in more.items():
            self._sums[name] += value

    def _mean(self, name: str, over: str) -> float | None:
        return self._sums[name] / self._sums[over] if self._sums[over] else None

    before = property(lambda self: self._mean("before", "entries"))
    after = property(lambda self: self._mean("after", "entries"))
    weight = property(lambda self: self._mean("weight", "weights"))
    drift = property(lambda self: self._mean("drift", "maps"))
    images = property(lambda self: self._mean("images", "maps"))

    @property
    def norm_kept(self) -> float | None:
        if not self._sums["entries"]:
            return None
        kept = self._mean("squares_kept", "squares")
        return 1.0 if kept is None else kept**0.5

    def __repr__(self) -> str:
        names = ("before", "after", "weight", "norm_kept", "drift", "images")
        shares = ((name, getattr(self, name)) for name in names)
        return ", ".join(f"{n} {'-' if v is None else format(v, '.1%')}" for n, v in shares)


@contextmanager
def watch(model: nn.Module) -> Iterator[dict[str, Seen]]:
    """Yield what is seen, by layer name: ours, and torch's plain `Conv1d`, `Conv2d`, `Linear`.

    >>> from meprop import Conv2d, TopK
    >>> model = nn.Sequential(Conv2d(1, 8, 3, rule=TopK(0.25)), nn.Flatten())
    >>> with watch(model) as seen:
    ...     model(torch.rand(4, 1, 6, 6)).square().sum().backward()
    >>> seen["0"].before, seen["0"].after
    (1.0, 0.25)
    """
    seen: dict[str, Seen] = {}
    undo: list[Callable[[], None]] = []
    try:
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear | Selecting):
                seen[name] = Seen()
                undo += _attach(layer, seen[name])
        yield seen
    finally:
        for step in undo:
            step()


def _attach(layer: nn.Module, seen: Seen) -> list[Callable[[], None]]:
    undo: list[Callable[[], None]] = []
    if isinstance(layer, Selecting):
        observers = OBSERVERS.setdefault(layer, [])
        observers.append(seen.count)

        def forget() -> None:
            observers.remove(seen.count)
            if not observers:
                OBSERVERS.pop(layer, None)

        undo.append(forget)
    undo.append(layer.register_forward_hook(_at_output(seen)).remove)
    if parametrize.is_parametrized(layer, "weight"):
        # The weight is computed anew in each forward pass.
        computed = layer.get_submodule("parametrizations.weight")
        undo.append(computed.register_forward_hook(_at_weight(seen)).remove)
        return undo
    weight = getattr(layer, "weight", None)
    if isinstance(weight, Tensor) and weight.requires_grad:
        undo.append(weight.register_hook(seen.count_weight).remove)
    return undo


def _at_output(seen: Seen) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(module, Selecting) and not module.is_plain:
            return  # its backward pass tells
        if isinstance(output, Tensor) and output.requires_grad:
            planes = 3 if isinstance(module, nn.Conv3d) else -1  # see `_weighted_backward`
            output.register_hook(lambda grad: seen.count(*[grad.flatten(planes)] * 2))

    return hook


def _at_weight(seen: Seen) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, weight: Tensor) -> None:
        if weight.requires_grad:
            weight.register_hook(seen.count_weight)

    return hook


DRIFT = 0.3  # at which none of the networks of notebook 13 learned
BALANCED = 1e-3  # |sum| / sum of magnitudes of a map's gradient, below a batch normalisation


def warn_of_drift(layers: dict[Selecting, str]) -> None:
    """Warn once if the first gradient shows that selection makes one-sided what was balanced."""
    told: list[str] = []
    for layer, name in layers.items():
        observers = OBSERVERS.pop(layer, [])
        observers[:] = [each for each in observers if not isinstance(each, _FirstLook)]
        if isinstance(layer, Convolution) and layer.rule is not None and layer.rule.pick == "top":
            observers.append(_FirstLook(ref(layer), name, told))
        if observers:
            OBSERVERS[layer] = observers


@dataclass
class _FirstLook:
    """Looks at a layer's first gradient, if none of the network's layers told before."""

    layer: Callable[[], Selecting | None]
    name: str
    told: list[str]

    def __call__(self, grad: Tensor, kept: Tensor) -> None:
        layer = self.layer()
        assert layer is not None, "it is in its backward pass"
        OBSERVERS[layer].remove(self)
        if not OBSERVERS[layer]:
            del OBSERVERS[layer]
        if not has_memory(grad) or not grad.numel():
            return
        full, selected = (float(_imbalance(_by_map(t.detach())).mean()) for t in (grad, kept))
        if self.told or selected <= full or (full > BALANCED and selected - full < DRIFT):
            return
        self.told.append(self.name)
        where = "below a batch normalisation " if full <= BALANCED else ""
        warnings.warn(
            f"convert: at {self.name!r} {where}{layer.rule} keeps a one-sided gradient (drift "
            f"{selected - full:.2f}), which may keep the network from learning; meprop.recipe does "
            "not, see notebook 13-deep",
            stacklevel=2,
        )


def _by_map(values: Tensor) -> Tensor:
    """As (images, maps, places): a linear layer's units are maps of one place."""
    if values.dim() == 4:
        return values.flatten(2)
    return values.reshape(-1, values.shape[-1], 1)


def _imbalance(values: Tensor) -> Tensor:
    """|sum| / sum of magnitudes, of each map."""
    values = values.double()
    return values.sum((0, 2)).abs() / values.abs().sum((0, 2)).clamp(min=1e-300)


def _nonzero(values: Tensor) -> int:
    return int(torch.count_nonzero(values))


def _sum_of_squares(values: Tensor) -> float:
    return float(values.detach().double().square().sum())
