"""What a backward pass costs: fixed formulas, so that the choice of `auto` repeats.

A sum of terms, each a count times the time one of it takes on a single thread, in nanoseconds. The
times were fitted to measurements of layers from 1x1 to 7x7, of linear layers, of one to 512
channels, in both memory formats. Only their ratios matter, and those change little between
machines: dense and sparse kernels are bound by the same multiply-adds and the same memory.

Threads: all stages of the sparse kernels are cut into tasks. What is left for one is the call
(66 us) and the hand-over between the stages (10 us); moving weights is bound by memory, and about
half of it was seen to be shared. That was fitted to one and two threads, on resnet18's layers with
a batch of 1 and of 8; for more it is extrapolated from these shares, as dense is from its own.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from meprop.rule import TopK

SMALL = 1 << 13  # entries; below, a second thread costs more than it brings
_LANES = 8
_OURS = 150_000  # of Python and autograd around a layer of ours, which torch's own does without
LINEAR = ((1, 1), (0, 0), (1, 1), 1)  # how a 1x1 convolution slides
_SAMPLED = 4096  # entries of a gradient whose zeros are counted


class Layer(NamedTuple):
    """The shapes of a layer's backward pass; a linear layer is a 1x1 convolution."""

    samples: int
    channels: int
    height: int
    columns: int
    maps: int
    out_area: int
    kernel: tuple[int, int]
    padding: tuple[int, int] = (0, 0)
    groups: int = 1
    wants_input: bool = True
    channels_last: bool = True

    @property
    def entries(self) -> int:
        """Entries of the gradient at the layer's output."""
        return self.samples * self.maps * self.out_area

    @property
    def linear(self) -> bool:
        return self.height * self.columns * self.kernel[0] * self.kernel[1] == 1


def sparse_cost(layer: Layer, kept: float, chosen: bool, threads: int = 1) -> float:
    """Nanoseconds of the sparse kernels with `kept` entries; chosen: found by selection."""
    width = layer.channels // layer.groups
    lines, length = layer.kernel[0], layer.kernel[1] * width
    vectors = lines * -(-length // _LANES)
    sides = 1 + layer.wants_input
    pixels = (layer.height + 2 * layer.padding[0]) * (layer.columns + 2 * layer.padding[1])
    inputs = layer.samples * layer.channels * pixels * sides
    plain = layer.channels_last or layer.linear
    direct = plain and layer.groups == 1 and layer.padding == (0, 0) and length % _LANES == 0
    tiles = lines * -(-length // (12 * _LANES)) if length > _LANES else 1
    rows = min(kept, layer.samples * layer.out_area * layer.groups) * tiles
    moved = 0.0 if direct else 0.18
    if layer.groups > 1 and plain:
        moved += 3.5 / width  # a few channels at a time
    elif not plain:
        moved += 0.84
    shared = (
        0.62 * layer.entries
        + (14.0 if chosen else 6.0) * kept
        + moved * inputs
        + 0.47 * vectors * sides * kept
        + (5.1 * rows if layer.wants_input else 0)
    )
    weights = 0.28 * layer.maps * vectors * _LANES * sides
    if threads == 1 or layer.entries < SMALL:
        return 66_000 + weights + shared
    return 76_000 + weights * (0.5 + 0.5 / threads) + shared / threads


def dense_cost(layer: Layer, ratio: float | None = None, threads: int = 1) -> float:
    """Nanoseconds of torch's backward, after a selection by the kernels where there is a ratio."""
    width, group_maps = layer.channels // layer.groups, layer.maps // layer.groups
    # oneDNN works on blocks of channels, filled up with zeros.
    pairs = layer.groups * (-(-group_maps // 16) * 16) * (-(-width // _LANES) * _LANES)
    if width == 1 and (layer.groups > 1 or layer.channels_last):
        pairs = layer.maps
    if layer.linear:
        pairs = layer.maps * layer.channels
    sides = 1 + layer.wants_input
    taps = layer.kernel[0] * layer.kernel[1]
    inputs = layer.samples * layer.channels * layer.height * layer.columns
    work = (0.0205 if layer.linear else 0.024) * layer.samples * layer.out_area * taps * pairs
    moved = 0.68 * inputs + 0.36 * layer.maps * width * taps
    start = 5_000 if layer.linear else 45_000
    if ratio is not None:  # a call of its own, and the lists
        start += 60_000
        moved += (0.6 + 7 * ratio) * layer.entries / sides
    return start + sides * (work + moved) / threads


def density(grad: Tensor) -> float:
    """Nonzero share of a gradient, from a few thousand entries at fixed places.

    >>> density(torch.tensor([0.0, 1.0, 2.0, 0.0]))
    0.5
    """
    total = grad.numel()
    step = max(1, total // _SAMPLED) | 1  # odd: pooling leaves zeros with even periods
    dense = grad.is_contiguous() or (
        grad.dim() == 4 and grad.is_contiguous(memory_format=torch.channels_last)
    )
    flat = grad.as_strided((total,), (1,)) if dense else grad.reshape(-1)
    sample = flat[::step]
    return int(torch.count_nonzero(sample)) / max(1, sample.numel())


def cheaper(
    grad: Tensor, x: Tensor, weight: Tensor, sliding: Any, rule: TopK | None,
    wants_input: bool = True, threads: int = 1,
) -> bool:  # fmt: skip
    """Whether the sparse kernels take less time than torch's dense backward pass (and selection).

    A function of shapes, memory format, nonzero share and threads alone; `sliding` is that of a
    convolution, or None.

    >>> cheaper(torch.ones(10, 10), torch.ones(10, 1024), torch.ones(10, 1024), None, rule=None)
    False
    """
    _, padding, _, groups = (sliding or LINEAR)[:4]
    ratio = 1.0 if rule is None else rule.ratio
    place = (padding, groups, wants_input, x.dim() == 4 and _takes_channels_last(x, weight))
    break_even = _break_even(grad.shape, x.shape, weight.shape, place, ratio, threads)
    if break_even <= 0 or break_even >= ratio:
        return break_even > 0
    return density(grad) < break_even


def _takes_channels_last(x: Tensor, weight: Tensor) -> bool:
    """Whether torch computes in channels_last; of one channel only the strides tell."""
    if x.shape[1] == 1:
        return 1 in (x.stride(1), weight.stride(1))
    return x.is_contiguous(memory_format=torch.channels_last)


def _layer(samples: int, out_area: int, x: tuple, weight: tuple, place: tuple) -> Layer:
    height, columns = x[2:] or (1, 1)
    kernel = weight[2:] or (1, 1)
    return Layer(samples, x[1], height, columns, weight[0], out_area, kernel, *place)


@lru_cache(maxsize=1024)
def _break_even(
    grad: tuple, x: tuple, weight: tuple, place: tuple, ratio: float, threads: int
) -> float:
    """The nonzero share below which the sparse kernels win: 0 is never, `ratio` always."""
    layer = _layer(grad[0], prod(grad[2:]), x, weight, place)
    chosen = ratio < 1
    dense = dense_cost(layer, ratio if chosen else None, threads)

    def wins(share: float) -> bool:
        return sparse_cost(layer, share * layer.entries, chosen, threads) < dense

    if wins(ratio):
        return ratio
    low, high = 0.0, ratio
    for _ in range(20):  # the cost grows with what is kept
        middle = (low + high) / 2
        low, high = (middle, high) if wins(middle) else (low, middle)
    return low


def pays(
    x: Tensor, weight: Tensor, sliding: Any, rule: TopK, wants_input: bool, threads: int
) -> bool:
    """Whether selecting takes less time than torch's backward pass with all gradients.

    A function of shapes, memory format and threads; `sliding` as above.

    >>> rule = TopK(0.01)
    >>> pays(torch.ones(8, 4096), torch.ones(4096, 4096), None, rule, True, 1)
    True
    """
    shape = x.shape if x.dim() == 4 else (x.shape[:-1].numel(), x.shape[-1])
    last = x.dim() == 4 and _takes_channels_last(x, weight)
    both = wants_input and rule.only is None  # one side alone costs about the same, whichever
    return _pays(shape, weight.shape, sliding, last, rule.ratio, both, threads)


@lru_cache(maxsize=1024)
def _pays(
    x: tuple, weight: tuple, sliding: Any, last: bool, ratio: float, both: bool, threads: int
) -> bool:
    stride, padding, dilation, groups = (sliding or LINEAR)[:4]
    sizes = zip(x[2:], weight[2:], stride, padding, dilation, strict=False)
    out_area = prod((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)
    layer = _layer(x[0], out_area, x, weight, (padding, groups, both, last))
    sparse = sparse_cost(layer, ratio * layer.entries, chosen=True, threads=threads)
    return sparse + _OURS < dense_cost(layer, threads=threads)
