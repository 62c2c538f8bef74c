"""How sparse max-pooling alone makes the gradient below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from meprop import watch
from meprop.study.config import Config
from meprop.study.network import ACTIVATIONS
from meprop.study.seeding import build
from meprop.study.words import TIMES


@dataclass(frozen=True)
class Pool:
    """A max-pooling, and the densities below it in percent."""

    kernel: int
    stride: int
    cap: float  # if every window has one winner of its own, which gets a gradient
    measured: dict[str, float]  # by activation

    @property
    def name(self) -> str:
        overlap = f", stride {self.stride}" if self.stride != self.kernel else ""
        return f"{self.kernel} {TIMES} {self.kernel}{overlap}"


def pooling(
    images: Tensor, sizes: Sequence[tuple[int, int]] = ((1, 1), (2, 2), (3, 2), (3, 3), (4, 4))
) -> list[Pool]:
    """Density at the output of conv1 below max-poolings of some kernels and strides."""
    return [_pool(images, kernel, stride) for kernel, stride in sizes]


def _pool(images: Tensor, kernel: int, stride: int) -> Pool:
    side = images.shape[-1]
    windows = ((side - kernel) // stride + 1) ** 2
    conv = build(Config(dataset="digits")).conv1
    measured = {}
    for name in ("relu", "sigmoid"):
        with watch(conv) as seen:
            pooled = F.max_pool2d(ACTIVATIONS[name](conv(images)), kernel, stride)
            pooled.backward(torch.randn(pooled.shape, generator=Generator().manual_seed(0)))
        measured[name] = 100 * (seen[""].before or 0.0)
    return Pool(kernel, stride, 100 * windows / side**2, measured)


def table_of_pools(pools: Sequence[Pool]) -> str:
    """Caps and measured densities."""
    lines = ["| max-pooling | at most | sigmoid | ReLU |", "|---|---:|---:|---:|"]
    for pool in pools:
        name = "none" if pool.kernel == 1 else pool.name
        shares = (pool.cap, pool.measured["sigmoid"], pool.measured["relu"])
        lines.append(f"| {name} | {' | '.join(f'{share:.0f}%' for share in shares)} |")
    return "\n".join(lines)
