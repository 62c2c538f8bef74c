"""A 5x5 convolution and its 2x2 pooling in a third of the multiplications, for evaluation.

Winograd's minimal filtering (Lavin and Gray, arXiv:1509.09308), F(2x2, 5x5): with the points 0, 1,
-1, 2, -2 and infinity, a window of 2x2 outputs is A'[(G g G') * (B' d B)]A, where d are the 6x6
inputs it sees, g the filter, and the product in the middle goes entry by entry: 36 instead of 100
multiplications. Summed over the channels, each of the 36 is a product of matrices.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from meprop.kernels._jit import kernel
from meprop.kernels._layout import pad
from meprop.kernels._threads import MEMORY, parts, run
from meprop.kernels._windows import POINTS, ROWS, WIDE, multiply, window_in, window_out

_G = [
    [1 / 4, 0, 0, 0, 0],
    [-1 / 6, -1 / 6, -1 / 6, -1 / 6, -1 / 6],
    [-1 / 6, 1 / 6, -1 / 6, 1 / 6, -1 / 6],
    [1 / 24, 1 / 12, 1 / 6, 1 / 3, 2 / 3],
    [1 / 24, -1 / 12, 1 / 6, -1 / 3, 2 / 3],
    [0, 0, 0, 0, 1],
]
_BLOCK = 2 * ROWS  # windows at a time: their transforms stay in the second-level cache
_TOGETHER = 6  # samples that are padded at a time; 49 windows each are whole rows again


def pooled_conv2d(weight: Tensor, bias: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    """The function `x: max_pool2d(conv2d(x, weight, bias, padding=2), 2)`, up to rounding.

    Filters are 5x5 and transformed here, once. An input has an even number of rows and columns, and
    whatever memory format; the result is channels_last. An infinity may become NaN, and what is not
    finite spreads over the windows around it.

    >>> x, weight = torch.ones(1, 8, 4, 4), torch.ones(16, 8, 5, 5)
    >>> pooled_conv2d(weight)(x)[0, 0].round()
    tensor([[128., 128.],
            [128., 128.]])
    """
    maps, channels, *size = weight.shape
    if size != [5, 5] or channels % 8 or maps % WIDE:
        raise ValueError(
            f"pooled_conv2d: weight must be (a multiple of {WIDE}, a multiple of 8, 5, 5), "
            f"got {tuple(weight.shape)}"
        )
    g = torch.tensor(_G, dtype=torch.float64)
    filters = torch.einsum("yi,xj,ocij->yxco", g, g, weight.detach().double())
    filters = filters.reshape(POINTS, channels, maps // WIDE, WIDE).transpose(1, 2)
    filters = filters.float().contiguous()
    shift = torch.zeros(maps) if bias is None else bias.detach().float().clone()

    def pooled(x: Tensor) -> Tensor:
        samples, _, height, columns = x.shape
        if x.shape[1] != channels or height % 2 or columns % 2:
            raise ValueError(
                f"pooled_conv2d: the input must be (samples, {channels}, even, even), "
                f"got {tuple(x.shape)}"
            )
        shape, last = (samples, maps, height // 2, columns // 2), torch.channels_last
        out = torch.empty(shape, memory_format=last)
        padded = _TOGETHER * (height + 4) * (columns + 4) * channels
        cuts = parts(samples, torch.get_num_threads())

        def task(part: int) -> None:
            work = MEMORY.address("work", padded + POINTS * _BLOCK * (channels + maps))
            _forward(
                *cuts[part], x.data_ptr(), *x.stride(), channels, height, columns, maps,
                filters.data_ptr(), shift.data_ptr(), work, work + 4 * padded, out.data_ptr(),
            )  # fmt: skip

        if out.numel() > 0:
            run(task, len(cuts))
        return out

    return pooled


@kernel("void(" + ",".join(["i8"] * 16) + ")")
def _forward(
    first: int, last: int, x: int, x_sample: int, x_channel: int, x_row: int, x_column: int,
    channels: int, height: int, columns: int, maps: int, filters: int, bias: int, padded: int,
    work: int, out: int,
) -> None:  # fmt: skip
    """Samples first:last; filters: [point][maps / WIDE][channel][WIDE]."""
    line = 4 * (columns + 4) * channels
    across = columns // 2
    windows = height // 2 * across
    in_step, out_step = 4 * _BLOCK * channels, 4 * _BLOCK * maps
    sums = work + POINTS * in_step
    for begin in range(first, last, _TOGETHER):
        samples = min(_TOGETHER, last - begin)
        pad(
            x + 4 * begin * x_sample, x_sample, x_channel, x_row, x_column, samples, 1, channels,
            height, columns, 2, 2, padded,
        )  # fmt: skip
        target = out + 4 * begin * windows * maps
        for start in range(0, samples * windows, _BLOCK):
            count = min(_BLOCK, samples * windows - start)
            for w in range(count):
                sample, place = divmod(start + w, windows)
                row, column = divmod(place, across)
                corner = padded + (sample * (height + 4) + 2 * row) * line + 8 * column * channels
                for c in range(0, channels, 8):
                    window_in(
                        corner + 4 * c, line, 4 * channels, work + 4 * (w * channels + c), in_step
                    )
            for p in range(POINTS):
                for m in range(0, maps, WIDE):
                    right = filters + 4 * (p * maps + m) * channels
                    for w in range(0, count, ROWS):
                        multiply(
                            work + p * in_step + 4 * w * channels, 4 * channels, channels, right,
                            sums + p * out_step + 4 * (w * maps + m), 4 * maps,
                        )  # fmt: skip
            for w in range(count):
                for m in range(0, maps, 8):
                    window_out(
                        sums + 4 * (w * maps + m), out_step, bias + 4 * m,
                        target + 4 * ((start + w) * maps + m),
                    )  # fmt: skip
