"""A whole backward pass in one call, for one thread and a gradient that is ranked by itself.

Python code that has dropped out of the processor's caches costs a small layer as much as the
kernels do; here it only looks up a plan, allocates the results and calls once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from meprop.kernels._choose import cut, scan, wild_scores
from meprop.kernels._conv import backward
from meprop.kernels._draw import draw, join
from meprop.kernels._guess import guess
from meprop.kernels._jit import kernel
from meprop.kernels._layout import filters_in, filters_out, map_sums
from meprop.kernels._plan import Plan, groups_of, plan_of, work_words
from meprop.kernels._simd import field
from meprop.rule import TopK


class Whole(NamedTuple):
    """What shapes, strides and rule decide."""

    fields: Tensor  # int64, as `whole` reads them
    plan: Plan  # whose geometry they point to
    words: int  # of memory
    channel: int  # where in it the lists of maps begin, after the one of positions
    value: int  # and that of selected values


@kernel("i8(i8,i8,i8,i8,i8,i8,i8,i8,i8,f4,f4,f4,i8,i8)")
def whole(
    plan: int, memory: int, grad: int, run: int, x: int, dx: int, weight: int, dw: int, bias: int,
    decay: float, fresh: float, drawn: float, key: int, second: int,
) -> int:  # fmt: skip
    """Selection, bias, weight and input gradient; returns how many entries are kept.

    An address of 0: there is none, or it is not wanted. plan: `Whole.fields`.
    """
    nhwc, samples, maps, area = field(plan, 0), field(plan, 1), field(plan, 2), field(plan, 3)
    by_sample, by_map, k = field(plan, 4), field(plan, 5), field(plan, 6)
    size, sampled = field(plan, 7), field(plan, 8)
    position, channel = memory + field(plan, 9), memory + field(plan, 10)
    value, low = memory + field(plan, 11), memory + field(plan, 12)
    sample_start, part = memory + field(plan, 13), memory + field(plan, 14)
    work, bounds = memory + field(plan, 15), memory + field(plan, 16)
    filters, dfilters = memory + field(plan, 17), memory + field(plan, 18)
    padded, scratch = memory + field(plan, 19), memory + field(plan, 20)
    in_rows, direct = field(plan, 21), field(plan, 22)
    guess(
        grad, run, grad, decay, fresh, nhwc, samples, maps, area, by_sample, by_map, k, size,
        sampled, drawn, low, work,
    )  # fmt: skip
    score, update, kept = grad, run, -1
    if drawn > 0:
        draw(
            grad, nhwc, 0, samples, maps, area, by_sample, by_map, low, key, second, position,
            channel, value, sample_start, bounds, 0, part, part + 4,
        )  # fmt: skip
        kept = join(samples, maps * area, 1, part, part + 4, position, channel, value, sample_start)
    while kept < 0:
        wild = scan(
            score, update, grad, decay, fresh, nhwc, 0, samples, maps, area, by_sample, by_map, low,
            position, channel, value, bounds, 0, part, part + 4,
        )  # fmt: skip
        if update != 0:
            score, update = run, 0  # run_grad moves on once
            if wild != 0:
                wild_scores(run, grad, samples * maps * area, scratch)
                score = scratch
                continue
        kept = cut(
            int(run != 0), grad, nhwc, samples, maps, area, by_sample, by_map, k, size, 0, low, 1,
            part, part + 4, position, channel, value, sample_start, work,
        )  # fmt: skip
    if bias != 0:
        map_sums(grad, nhwc, samples, maps, area, work, bias)
    if dx == 0 and dw == 0:
        return kept
    if in_rows != 0:
        filters, dfilters = weight, dw
    elif dx != 0:
        filters_in(
            weight, field(plan, 23), field(plan, 24), field(plan, 25), field(plan, 26),
            field(plan, 27), field(plan, 28), field(plan, 29), field(plan, 30), field(plan, 31),
            field(plan, 32), field(plan, 33), filters,
        )  # fmt: skip
    sums = dfilters if dw != 0 else 0
    images = padded if direct == 0 else 0
    backward(
        0, samples, position, channel, value, sample_start,
        x, field(plan, 34), field(plan, 35), field(plan, 36), field(plan, 37),
        dx, field(plan, 38), field(plan, 39), field(plan, 40), field(plan, 41),
        filters, sums, images, scratch, kept, field(plan, 42),
    )  # fmt: skip
    if dw != 0 and in_rows == 0:
        filters_out(
            dfilters, 1, dw, field(plan, 23), field(plan, 24), field(plan, 25), field(plan, 26),
            field(plan, 27), field(plan, 28), field(plan, 29), field(plan, 30), field(plan, 31),
            field(plan, 32), field(plan, 33),
        )  # fmt: skip
    return kept


@lru_cache(maxsize=512)
def whole_of(
    grad_shape: tuple, grad_steps: tuple, x_shape: tuple, x_steps: tuple, weight_shape: tuple,
    weight_steps: tuple, sliding: Any, rule: TopK | None,
) -> Whole | None:  # fmt: skip
    """Lay a call out; `None` where only the general path can take it."""
    if rule is not None and (
        rule.scope == "unified" or rule.pick not in ("top", "unbiased") or rule.bias != "full"
    ):
        return None
    linear = len(grad_shape) == 2
    shapes: list[tuple] = [grad_shape, x_shape, weight_shape]
    steps: list[tuple] = [grad_steps, x_steps, weight_steps]
    if linear:
        shapes, steps = [(*s, 1, 1) for s in shapes], [(*s, 1, 1) for s in steps]
    formats = [_formats(*tensor) for tensor in zip(shapes, steps, strict=True)]
    (plain, last), *others = formats
    by_planes = rule is not None and rule.scope in ("mixed", "layer")
    nhwc = last and (linear or not by_planes)
    if not (nhwc or plain) or not all(any(formats) for formats in others):
        return None
    samples, maps, height, columns = shapes[0]
    area, total = height * columns, samples * maps * height * columns
    if linear and rule is not None and rule.scope in ("map", "sample"):
        rule = replace(rule, scope="mixed")
    groups = groups_of(rule, samples, maps, area)
    plan = plan_of(
        torch.Size(shapes[1]), torch.Size(shapes[2]), (height, columns), *sliding, samples
    )
    part_size = maps * plan.row_size
    sizes = [
        total, total, total, groups.number, samples + 1, 2, work_words(groups, maps, total),
        192 * maps + 64, part_size, part_size, plan.padded, plan.scratch + 2 * total,
    ]  # fmt: skip
    places = [0]
    for size in sizes:
        places.append(places[-1] + -(-size // 16) * 64 + 64)
    fields = [
        int(nhwc), samples, maps, area, *groups[:4], groups.sampled, *places[:-1],
        int(plan.whole and others[1][1]), int(plan.direct and others[0][1]),
        *steps[2], *plan.filters, *steps[1], *steps[1], plan.geometry.data_ptr(),
    ]  # fmt: skip
    return Whole(
        torch.tensor(fields, dtype=torch.int64),
        plan,
        places[-1] // 4,
        places[1] // 4,
        places[2] // 4,
    )


def _formats(shape: tuple, steps: tuple) -> tuple[bool, bool]:
    """Whether a tensor of this shape and strides is contiguous, and whether channels_last."""
    t = torch.empty_strided(shape, steps, device="meta")
    return t.is_contiguous(), t.is_contiguous(memory_format=torch.channels_last)
