"""Selection alone: what it takes to know which entries of a gradient are kept."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from meprop import TopK
from meprop.bench.cases import Case, Setup
from meprop.bench.gradients import GRADIENTS, LAYERS, Incoming, incoming
from meprop.bench.layers import FORMATS
from meprop.bench.timing import Contender

RATIOS = (0.01, 0.05, 0.25)


def cases(threads: int) -> list[Case]:
    """The paper's two layers."""
    return [
        Case("selection", layer, threads, gradient, ratio, quick=ratio == 0.05)
        for layer in ("conv1", "conv2")
        for gradient in GRADIENTS
        for ratio in RATIOS
    ]


def build(case: Case) -> Setup:
    """The contenders of a case, each in both memory formats."""
    assert case.gradient is not None and case.ratio is not None
    given = incoming(case.subject, case.gradient)
    contenders = [
        Contender(name, {"all": call}, variant, case.ratio)
        for variant, memory_format in FORMATS.items()
        for name, call in calls(given, case.ratio, memory_format).items()
    ]
    shape = LAYERS[case.subject].shape
    return Setup(contenders, ("topk", "kthvalue"), shape, given.density, dict)


def calls(
    given: Incoming, ratio: float, memory_format: torch.memory_format
) -> dict[str, Callable[[], object]]:
    """torch's ways, which end in indices, and ours, which ends in lists of places and values."""
    from meprop.kernels import conv2d_backward

    grad = given.grad.contiguous(memory_format=memory_format)
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
        "sparse": lambda: conv2d_backward(
            grad, x, weight, stride=(1, 1), padding=(padding, padding), dilation=(1, 1), groups=1,
            rule=rule, needs=(False, False, False),
        ).kept,
    }  # fmt: skip
