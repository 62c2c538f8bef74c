"""Backward pass of one convolution: torch's, a masked one, ours."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from meprop import TopK, convert
from meprop.bench.cases import Case, Facts, Setup
from meprop.bench.gradients import GRADIENTS, LAYERS, Incoming, incoming
from meprop.bench.timing import Contender

RATIOS = (0.005, 0.01, 0.05, 0.1, 0.25, 1.0)
Gradients = tuple[Any, ...]  # of input, weight, bias; None where not asked for
Call = Callable[[], Gradients]
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def cases(threads: int) -> list[Case]:
    """Every layer, gradient and ratio."""
    return [
        Case("layer", layer, threads, gradient, ratio, quick=_quick(layer, ratio))
        for layer in LAYERS
        for gradient in GRADIENTS
        for ratio in RATIOS
    ]


def _quick(layer: str, ratio: float) -> bool:
    return layer in ("conv1", "conv2") and ratio in (0.01, 0.05, 1.0)


def build(case: Case) -> Setup:
    """The contenders of a case, each in both memory formats."""
    assert case.gradient is not None and case.ratio is not None
    given = incoming(case.subject, case.gradient)
    contenders, calls = [], {}
    for variant, memory_format in FORMATS.items():
        for name, call in _calls(given, case.ratio, memory_format).items():
            contenders.append(Contender(name, {"all": call}, variant, case.ratio))
            calls[name, variant] = call
    shape = LAYERS[case.subject].shape
    return Setup(contenders, ("dense",), shape, given.density, lambda: _facts(calls))


def _calls(given: Incoming, ratio: float, memory_format: torch.memory_format) -> dict[str, Call]:
    x = given.x.detach().clone(memory_format=memory_format)
    x.requires_grad_(given.x.requires_grad)
    grad = given.grad.contiguous(memory_format=memory_format)

    def backward(module: nn.Conv2d, mask: bool = False) -> Call:
        node: Any = module(x).grad_fn
        node = getattr(node, "apply", node)  # a Python node has it, a C++ node is called itself

        # What autograd does at the node, without the cost of starting a backward pass.
        @torch.no_grad()
        def call() -> Gradients:
            return node(keep_largest(grad, ratio) if mask else grad)

        return call

    def ours(rule: TopK | None, backend: str) -> Call:
        return backward(convert(plain(), rule, backend=backend))

    def plain() -> nn.Conv2d:
        return copy.deepcopy(given.module).to(memory_format=memory_format)  # type: ignore[call-overload]

    rule = TopK(ratio)
    calls = {"dense": backward(plain()), "masked": backward(plain(), mask=True)}
    calls["sparse"] = ours(rule, "sparse")
    if ratio == 1:
        calls["exact"] = ours(None, "sparse")
    calls["auto"] = ours(None if ratio == 1 else rule, "auto")
    return calls


def keep_largest(grad: Tensor, ratio: float) -> Tensor:
    """Zeros but for the largest magnitudes of each feature map, as torch does it fastest.

    >>> keep_largest(torch.tensor([1.0, 2.0, 3.0, -4.0]).view(1, 1, 2, 2), 0.5).flatten()
    tensor([ 0.,  0.,  3., -4.])
    """
    batch, maps, height, width = grad.shape
    size = batch * height * width
    k = TopK(ratio).k(size)
    if k == size:
        return grad
    rows = grad.transpose(0, 1).reshape(maps, size)
    index = rows.abs().topk(k, sorted=False).indices
    kept = torch.zeros_like(rows).scatter_(1, index, rows.gather(1, index))
    return kept.view(maps, batch, height, width).transpose(0, 1)


def _facts(calls: dict[tuple[str, str], Call]) -> Facts:
    """How far our gradients are from the masked ones, and what `auto` chose."""
    facts: Facts = {}
    for (name, variant), call in calls.items():
        about: dict[str, Any] = {}
        if name in ("sparse", "exact", "auto"):
            about["difference"] = difference(call(), calls["masked", variant]())
        if name == "auto":
            about["chose"] = "dense" if dense_convolutions(call) else "sparse"
        facts[name, variant] = about
    return facts


def difference(ours: Gradients, theirs: Gradients) -> float:
    """The largest norm of a difference, relative to the norm, of input and weight gradient.

    Our bias gradient is by default that of the full gradient.

    >>> difference((None, torch.tensor([3.0, 4.0])), (None, torch.tensor([3.0, 4.0])))
    0.0
    """
    pairs = [(a, b) for a, b in zip(ours[:2], theirs[:2], strict=True) if a is not b]
    return max(float((a - b).norm() / b.norm().clamp_min(1e-30)) for a, b in pairs)


def dense_convolutions(call: Callable[[], object]) -> int:
    """How many of torch's dense convolution backward passes a call makes."""
    counter = _Counter()
    with counter:
        call()
    return counter.count


class _Counter(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten.convolution_backward.default
        return func(*args, **(kwargs or {}))
