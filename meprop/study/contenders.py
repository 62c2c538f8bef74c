"""Other ways to a cheaper backward pass, for a comparison: written from their papers.

Each thins the gradient at the output of every convolution. Only what is passed back counts here,
and not the time: a kernel that makes use of it is another matter.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from meprop.study.measures import at_outputs

CONTENDERS = ("channels", "channels-alternate", "samples")


def channels(grad: Tensor, ratio: float) -> Tensor:
    """The channels of the largest mean magnitude over mini-batch and positions (ssProp 2024).

    >>> channels(torch.tensor([[[[1.0]], [[-3.0]], [[2.0]]]]), 1 / 3).flatten()
    tensor([ 0., -3.,  0.])
    """
    count = max(1, round(ratio * grad.shape[1]))
    kept = grad.abs().mean((0, 2, 3)).topk(count).indices
    mask = torch.zeros(grad.shape[1], dtype=grad.dtype).index_fill_(0, kept, 1)
    return grad * mask[:, None, None]


def samples(size: int, ratio: float) -> Tensor:
    """Weights of the images of a mini-batch: random ones, as much larger as they are fewer.

    >>> samples(4, 0.5).sum()
    tensor(4.)
    """
    count = max(1, round(ratio * size))
    return torch.zeros(size).index_fill_(0, torch.randperm(size)[:count], size / count)


def thinned(
    model: nn.Module, contender: str | None, ratio: float, epoch: int
) -> AbstractContextManager[None]:
    """Inside, a contender thins the gradients; what is random comes from torch's own generator.

    `channels-alternate` does so in every second epoch. `samples` draws once a step, at the
    network's output, and takes the same images at each convolution, below which batch
    normalisation would mix them again.
    """
    if contender is None or (contender == "channels-alternate" and epoch % 2):
        return nullcontext()
    drawn: list[Tensor] = []

    def at_the_end(grad: Tensor) -> Tensor:
        drawn[:] = [samples(len(grad), ratio)]
        return grad * drawn[0][:, None]

    def thin(grad: Tensor) -> Tensor:
        if contender == "samples":
            return grad * (drawn[0] > 0)[:, None, None, None]
        return channels(grad, ratio)

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    changes: dict[nn.Module, Callable[[Tensor], Tensor]] = dict.fromkeys(layers, thin)
    return at_outputs(changes | ({model: at_the_end} if contender == "samples" else {}))
