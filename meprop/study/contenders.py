"""Other ways to a cheaper backward pass, for a comparison: written from their papers.

Each thins the gradient at the output of every convolution. Only what is passed back counts here,
and not the time: a kernel that makes use of it is another matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def channels(grad: Tensor, ratio: float) -> Tensor:
    """The channels of the largest mean magnitude over mini-batch and positions (ssProp 2024).

    >>> channels(torch.tensor([[[[1.0]], [[-3.0]], [[2.0]]]]), 1 / 3).flatten()
    tensor([ 0., -3.,  0.])
    """
    kept = grad.abs().mean((0, 2, 3)).topk(_count(ratio, grad.shape[1])).indices
    mask = torch.zeros(grad.shape[1], dtype=grad.dtype).index_fill_(0, kept, 1)
    return grad * mask[:, None, None]


def samples(grad: Tensor, ratio: float) -> Tensor:
    """Random images of the mini-batch, each as often larger as they are fewer: unbiased.

    >>> samples(torch.ones(4, 1, 1, 1), 0.5).sum()
    tensor(4.)
    """
    size = len(grad)
    count = _count(ratio, size)
    kept = torch.randperm(size)[:count]
    mask = torch.zeros(size, dtype=grad.dtype).index_fill_(0, kept, size / count)
    return grad * mask[:, None, None, None]


def entries(grad: Tensor, ratio: float) -> Tensor:
    """Random entries, each with the same probability and as much larger: unbiased.

    >>> entries(torch.ones(2, 1, 1, 1), 1.0).sum()
    tensor(2.)
    """
    return grad * (torch.rand_like(grad) < ratio) / ratio


CONTENDERS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "channels": channels,
    "channels-alternate": channels,  # in every second epoch, the others are exact
    "samples": samples,
    "entries": entries,
}


@contextmanager
def thinned(model: nn.Module, contender: str | None, ratio: float, epoch: int) -> Iterator[None]:
    """Inside, a contender thins the gradients; what is random comes from torch's own generator."""
    if contender is None or (contender.endswith("-alternate") and epoch % 2):
        yield
        return
    thin = CONTENDERS[contender]

    def at_output(module: nn.Module, args: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda grad: thin(grad, ratio))

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    hooks = [layer.register_forward_hook(at_output) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _count(ratio: float, size: int) -> int:
    return max(1, round(ratio * size))
