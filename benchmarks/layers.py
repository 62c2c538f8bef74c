"""Backward pass of one layer, and its selection alone: torch's, a masked one, ours."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.case import Case, Setup
from benchmarks.clock import Contender
from benchmarks.gradients import (
    FORMATS,
    GRADIENTS,
    LAYERS,
    LINEAR,
    Incoming,
    incoming,
    incoming_linear,
)
from meprop import TopK, convert

RATIOS = (0.005, 0.01, 0.05, 0.1, 0.25, 1.0)
SELECTION_RATIOS = (0.01, 0.05, 0.25)
M = TypeVar("M", bound=nn.Module)
Gradients = tuple[Tensor | None, ...]  # of input and weight; None where not asked for


def cases(threads: int) -> list[Case]:
    """Every layer, gradient and ratio, then the selection in the paper's two convolutions."""
    found = [
        Case("layer", layer, threads, gradient, ratio, _quick(layer, ratio))
        for layer in LAYERS
        for gradient in GRADIENTS
        for ratio in (RATIOS if layer != "tiny" else (0.05, 1.0))
    ]
    found += [
        Case("linear", layer, threads, gradient, ratio, quick=False)
        for layer in LINEAR
        for gradient in GRADIENTS
        for ratio in RATIOS
    ]
    return found + [
        Case("selection", layer, threads, gradient, ratio, quick=ratio == 0.05)
        for layer in ("conv1", "conv2")
        for gradient in GRADIENTS
        for ratio in SELECTION_RATIOS
    ]


def _quick(layer: str, ratio: float) -> bool:
    return layer in ("conv1", "conv2") and ratio in (0.01, 0.05, 1.0)


def build(case: Case) -> Setup:
    """The contenders of a case, those of a convolution in both memory formats."""
    assert case.gradient is not None and case.ratio is not None
    if case.group == "linear":
        given = incoming_linear(case.subject, case.gradient)
        shape = "{}x{}->{}".format(*LINEAR[case.subject])
        formats = ["contiguous"]
    else:
        given, shape = incoming(case.subject, case.gradient), LAYERS[case.subject].shape
        formats = list(FORMATS)
    if case.group == "selection":
        contenders = [
            Contender(name, {"all": call}, format, case.ratio)
            for format in formats
            for name, call in selections(given, case.ratio, format).items()
        ]
        return Setup(contenders, ("topk", "kthvalue"), shape, given.density)
    contenders = []
    for format in formats:
        calls = passes(given, case.ratio, format)
        reference = calls.get("masked", calls["dense"])
        for name, call in calls.items():
            contenders.append(
                Contender(name, call.parts(), format, case.ratio, "backward", call.facts(reference))
            )
    return Setup(contenders, ("dense",), shape, given.density)


class Pass:
    """A layer called on its input, and autograd's way back from a gradient at its output."""

    def __init__(self, given: Incoming, format: str, module: nn.Module) -> None:
        self.module = module.to(memory_format=FORMATS[format])  # type: ignore[call-overload]
        self.x = given.x.detach().clone(memory_format=FORMATS[format])
        self.x.requires_grad_(given.x.requires_grad)
        self.grad = given.grad.contiguous(memory_format=FORMATS[format])
        self.y: Tensor | None = None

    def parts(self) -> dict[str, Callable[..., object]]:
        """Forward, backward."""
        return {"forward": self.forward, "backward": self.backward}

    def forward(self) -> None:
        """The output, without gradients of the pass before."""
        self.x.grad = None
        self.module.zero_grad()
        self.y = self.module(self.x)

    def backward(self) -> None:
        """Gradients of input, weight and bias."""
        assert self.y is not None
        self.y.backward(self.grad)
        self.y = None

    def gradients(self) -> Gradients:
        """Of input and weight. Our bias gradient is by default that of the full gradient."""
        self.forward()
        self.backward()
        return self.x.grad, self.module.weight.grad

    def facts(self, reference: Pass) -> Callable[[], dict[str, Any]]:
        """For ours: how far the gradients are from the reference's, and what was run."""
        if not hasattr(self.module, "rule"):
            return dict

        def found() -> dict[str, Any]:
            chose = "dense" if dense_convolutions(self.gradients) else "sparse"
            told = self.module.backend == "auto" and isinstance(self.module, nn.Conv2d)
            return {"difference": difference(self.gradients(), reference.gradients())} | (
                {"chose": chose} if told else {}
            )

        return found


class Kernel(Pass):
    """The same without autograd: the node that the forward pass left is called by itself."""

    def __init__(self, given: Incoming, format: str, module: nn.Module) -> None:
        super().__init__(given, format, module)
        node: Any = self.module(self.x).grad_fn
        self.node = getattr(node, "apply", node)  # a C++ node is called itself

    def parts(self) -> dict[str, Callable[..., object]]:
        """Backward alone."""
        return {"backward": self.gradients}

    @torch.no_grad()
    def gradients(self) -> Gradients:
        """Of input and weight."""
        return self.node(self.grad)[:2]


def passes(given: Incoming, ratio: float, format: str) -> dict[str, Pass]:
    """The contenders by name; at a ratio of 1 there is nothing to select, and ours have no rule."""
    linear = isinstance(given.module, nn.Linear)
    # Of a linear layer the paper keeps the k largest of each sample (Section 2.1).
    rule = None if ratio == 1 else TopK(ratio, scope="sample" if linear else "map")

    def plain() -> nn.Module:
        return copy.deepcopy(given.module)

    def ours(backend: str) -> nn.Module:
        return convert(plain(), rule, layers=(type(given.module),), backend=backend)

    sparse = {
        "sparse" if rule else "exact": Pass(given, format, ours("sparse")),
        "kernel": Kernel(given, format, ours("sparse")),
        "auto": Pass(given, format, ours("auto")),
    }
    dense = {"dense": Pass(given, format, plain())}
    if rule:
        dense["masked"] = Pass(given, format, mask(plain(), ratio, type(given.module)))
    return dense | sparse


def mask(model: M, ratio: float, layer: type[nn.Module] = nn.Conv2d) -> M:
    """Public code's way: dense layers, and a hook that sets most of their gradient to zero."""

    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        output.register_hook(lambda grad: keep_largest(grad, ratio))

    for module in model.modules():
        if isinstance(module, layer):
            module.register_forward_hook(hook)
    return model


def keep_largest(grad: Tensor, ratio: float) -> Tensor:
    """Zeros but for the largest magnitudes of each feature map, as torch does it fastest.

    Of a linear layer's gradient, those of each sample.

    >>> keep_largest(torch.tensor([1.0, 2.0, 3.0, -4.0]).view(1, 1, 2, 2), 0.5).flatten()
    tensor([ 0.,  0.,  3., -4.])
    """
    by_map = grad.transpose(0, 1) if grad.dim() == 4 else grad
    rows = by_map.flatten(1)
    index = rows.abs().topk(TopK(ratio).k(rows.shape[1]), sorted=False).indices
    kept = torch.zeros_like(rows).scatter_(1, index, rows.gather(1, index)).view(by_map.shape)
    return kept.transpose(0, 1) if grad.dim() == 4 else kept


def difference(ours: Gradients, theirs: Gradients) -> float:
    """The largest norm of a difference, relative to the norm, over some gradients.

    >>> difference((None, torch.tensor([3.0, 4.0])), (None, torch.tensor([3.0, 4.0])))
    0.0
    """
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
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


def selections(given: Incoming, ratio: float, format: str) -> dict[str, Callable[..., object]]:
    """torch's ways, which end in indices, and ours, which ends in lists of places and values."""
    from meprop.kernels import conv2d_backward

    grad = given.grad.contiguous(memory_format=FORMATS[format])
    assert isinstance(given.module, nn.Conv2d)
    x, weight = given.x.detach(), given.module.weight.detach()
    padding = given.module.kernel_size[0] // 2
    rule = TopK(ratio)
    size = grad.numel() // grad.shape[1]
    k = rule.k(size)

    def magnitudes() -> Tensor:
        return grad.transpose(0, 1).reshape(-1, size).abs()

    def kthvalue() -> Tensor:
        rows = magnitudes()
        bounds = rows.kthvalue(size - k + 1, keepdim=True).values
        return (rows >= bounds).nonzero()

    return {
        "topk": lambda: magnitudes().topk(k, sorted=False).indices,
        "kthvalue": kthvalue,
        # No gradient is asked for, so only the selection is left.
        "sparse": lambda watched=False: conv2d_backward(
            grad, x, weight, stride=(1, 1), padding=(padding, padding), dilation=(1, 1), groups=1,
            rule=rule, needs=(False, False, False), watched=watched,
        ).kept,
    }  # fmt: skip
