"""From tensors to kernels and back."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from meprop import selection
from meprop.kernels import _choose, _conv, _draw, _guess, _layout
from meprop.kernels._plan import Groups, groups_of, plan_of, work_words
from meprop.kernels._simd import NAN_RANK
from meprop.kernels._threads import MEMORY, parts, run
from meprop.kernels._whole import whole, whole_of
from meprop.rule import TopK

NOTHING = torch.empty(0)
_SMALL = 1 << 16  # entries; below, a second thread costs more than it brings


class Lists(NamedTuple):
    """The selected entries: addresses of their lists, and where they are kept."""

    length: int
    position: int
    channel: int
    value: int
    sample_start: int

    def read(self, address: int) -> Tensor:
        """One of the lists, as integers; it stays until the thread's next call."""
        start = (address - self.position) // 4
        return MEMORY.words("lists", 0)[start : start + self.length]

    def values(self) -> Tensor:
        """The selected gradients."""
        return self.read(self.value).view(torch.float32)


class Gradient(NamedTuple):
    """A gradient seen as (samples, maps, area), with what it is ranked by."""

    grad: Tensor
    nhwc: int
    samples: int
    maps: int
    area: int
    groups: Groups
    score: Tensor  # ranked by this, unless there is a run_grad to be updated
    run_grad: Tensor | None  # updated by the kernels
    history: Tensor | None  # what becomes the layer's run_grad
    low: Tensor | None = None  # bounds of the groups, where they are known
    key: tuple[int, int] | None = None  # of an unbiased draw


def prepare(
    grad: Tensor, rule: TopK | None, run_grad: Tensor | None, generator: Generator | None,
    per_position: bool,
) -> Gradient:  # fmt: skip
    """Bring a gradient (4-d, or 2-d of a linear layer) into a layout the kernels walk."""
    samples, maps = grad.shape[:2]
    area = grad.shape[2] * grad.shape[3] if grad.dim() == 4 else 1
    by_planes = rule is not None and rule.scope in ("mixed", "layer") and area > 1
    given = grad  # what the reference sums over, in the order of its memory
    grad, nhwc = _walkable(grad, by_planes)
    score, run, history, low = grad, None, None, None
    if rule is not None and rule.scope == "unified":
        mask, history = selection.select(
            given, rule, run_grad, generator, per_position=per_position
        )
        low = torch.where(mask[0], 0, NAN_RANK).to(torch.int32)
        groups = Groups(0, 1, samples, samples, maps, 0)
        return Gradient(grad, 1, samples, maps, 1, groups, score, None, history, low)
    linear = grad.dim() == 2
    if rule is not None and linear and rule.scope in ("map", "sample"):
        rule = replace(rule, scope="mixed")
    groups = groups_of(rule, samples, maps, area)
    if rule is not None and rule.pick == "unbiased":
        key = selection.draw_key(generator)
        return Gradient(grad, nhwc, samples, maps, area, groups, grad, None, None, key=key)
    if rule is not None and rule.decay > 0:
        if per_position or rule.pick == "random":
            magnitude = given.abs()
            if per_position:
                magnitude = magnitude.mean(dim=0, keepdim=True)
            score, history = selection.run_grad(magnitude, rule.decay, run_grad)
            score = _like(score.expand_as(grad), grad)
        else:
            if run_grad is None or run_grad.shape != grad.shape:
                run_grad = torch.zeros_like(grad)
            history = run = _like(run_grad, grad)
    if rule is not None and rule.pick == "random":
        # Keys as the reference draws them; +1 keeps a drawn 0 above the zeros of the gradient.
        rows = selection.to_groups(grad, rule.scope)
        keys = torch.rand(rows.shape, generator=generator, dtype=torch.float32)
        keys = (keys.view(torch.int32) + 1).masked_fill_(rows == 0, 0)
        score = _like(selection.from_groups(keys, grad.shape, rule.scope), grad)
    return Gradient(grad, nhwc, samples, maps, area, groups, score, run, history, low)


def _walkable(grad: Tensor, by_planes: bool) -> tuple[Tensor, int]:
    if grad.dim() == 2:
        return grad.contiguous(), 1
    if not by_planes and grad.is_contiguous(memory_format=torch.channels_last):
        return grad, 1
    return grad.contiguous(), 0


def _like(values: Tensor, grad: Tensor) -> Tensor:
    """The values in the gradient's layout."""
    if values.stride() == grad.stride():
        return values
    return torch.empty_like(grad, dtype=values.dtype).copy_(values)


def threads_for(entries: int) -> int:
    """How many threads a gradient of that many entries is worth."""
    return torch.get_num_threads() if entries >= _SMALL else 1


def choose(g: Gradient, rule: TopK | None, zeros: bool = False) -> Lists:
    """List the selected entries that are not zero (with `zeros`, those too)."""
    total = g.grad.numel()
    by_sample, by_map, k, size, number, sampled = g.groups
    cuts = parts(g.samples, threads_for(total))
    # One after the other: position, channel and value of each entry; bounds of the groups; where
    # samples begin; where parts begin, and how long they are.
    stride = 4 * (total + 16)
    position = MEMORY.address("lists", 3 * (total + 16) + number + g.samples + 2 * len(cuts) + 1)
    channel, value, low = position + stride, position + 2 * stride, position + 3 * stride
    sample_start = low + 4 * number
    part_start = sample_start + 4 * (g.samples + 1)
    part_count = part_start + 4 * len(cuts)
    if g.low is not None:
        low = g.low.data_ptr()
    work = MEMORY.address("work", work_words(g.groups, g.maps, total))
    score, grad = g.score.data_ptr(), g.grad.data_ptr()
    run_grad = g.run_grad.data_ptr() if g.run_grad is not None else 0
    decay = rule.decay if rule is not None else 0.0
    shape = (g.maps, g.area, by_sample, by_map)
    if g.low is None:
        _guess.guess(
            score, run_grad, grad, decay, 1 - decay, g.nhwc, g.samples, *shape, k, size, sampled,
            drawn_share(rule), low, work,
        )  # fmt: skip
    if g.key is not None:
        key = g.key

        def draw(part: int) -> None:
            _draw.draw(
                grad, g.nhwc, *cuts[part], *shape, low, *key, position, channel, value,
                sample_start, MEMORY.address("bounds", 192 * g.maps + 64), part, part_start,
                part_count,
            )  # fmt: skip

        run(draw, len(cuts))
        kept = _draw.join(
            g.samples, g.maps * g.area, len(cuts), part_start, part_count, position, channel, value,
            sample_start,
        )  # fmt: skip
        return Lists(kept, position, channel, value, sample_start)

    wild = [0] * len(cuts)

    def scan(part: int) -> None:
        wild[part] = _choose.scan(
            score, run_grad, grad, decay, 1 - decay, g.nhwc, *cuts[part], *shape, low, position,
            channel, value, MEMORY.address("bounds", 128 * g.maps), part, part_start, part_count,
        )  # fmt: skip

    kept = -1
    while kept < 0:
        run(scan, len(cuts))
        if run_grad:
            score, run_grad = run_grad, 0  # updated once
            if any(wild):
                scores = MEMORY.address("scores", total)
                _choose.wild_scores(score, grad, total, scores)
                score = scores
                continue
        kept = _choose.cut(
            int(score != grad), grad, g.nhwc, g.samples, *shape, k, size, int(zeros), low,
            len(cuts), part_start, part_count, position, channel, value, sample_start, work,
        )  # fmt: skip
    lists = Lists(kept, position, channel, value, sample_start)
    if rule is not None and rule.pick == "centred":
        centre(g, lists)
    return lists


def centre(g: Gradient, lists: Lists) -> None:
    """Take each map's mean from what is selected of it: `meprop.selection.centre`."""
    channel, values = lists.read(lists.channel).long(), lists.values()
    sums = torch.zeros(g.maps, dtype=torch.float64).index_add_(0, channel, values.double())
    means = sums / torch.bincount(channel, minlength=g.maps).clamp(min=1)
    values -= means.float()[channel]


def drawn_share(rule: TopK | None) -> float:
    """As `_guess.guess` takes it: 0 where nothing is drawn."""
    return rule.ratio if rule is not None and rule.pick == "unbiased" else 0.0


def at_once(
    grad: Tensor, x: Tensor, weight: Tensor, sliding: tuple, rule: TopK | None,
    run_grad: Tensor | None, generator: Generator | None, needs: tuple[bool, bool, bool],
    watched: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor] | None:  # fmt: skip
    """The whole backward pass in a single call, or `None` where that is not possible."""
    plan = whole_of(
        grad.shape, grad.stride(), x.shape, x.stride(), weight.shape, weight.stride(), sliding, rule
    )
    if plan is None:
        return None
    decay, run, drawn = 0.0, 0, drawn_share(rule)
    key = selection.draw_key(generator) if drawn else (0, 0)
    if rule is None or rule.decay == 0:
        run_grad = None
    else:
        if run_grad is None or run_grad.shape != grad.shape:
            run_grad = torch.zeros_like(grad)
        run_grad, decay = _like(run_grad, grad), rule.decay
        run = run_grad.data_ptr()
    dx = torch.empty_like(x) if needs[0] else None
    dw = torch.empty_like(weight) if needs[1] else None
    bias = torch.empty(grad.shape[1], dtype=torch.float32, device="cpu") if needs[2] else None
    kept = whole(
        plan.fields.data_ptr(), MEMORY.address("whole", plan.words), grad.data_ptr(), run,
        x.data_ptr(), 0 if dx is None else dx.data_ptr(), weight.data_ptr(),
        0 if dw is None else dw.data_ptr(), 0 if bias is None else bias.data_ptr(), decay,
        1 - decay, drawn, *key,
    )  # fmt: skip
    seen = NOTHING
    if watched:
        memory = MEMORY.words("whole", 0)
        seen = _scattered(
            grad.shape, *(memory[at : at + kept] for at in (0, plan.channel, plan.value))
        )
    return dx, dw, bias, run_grad, seen


def bias_gradient(g: Gradient, lists: Lists, rule: TopK | None) -> Tensor:
    """The sum over each map of the full gradient, or of the selected one."""
    if rule is not None and rule.bias == "sparse":
        zeros = torch.zeros(g.maps, dtype=torch.float32, device="cpu")
        return zeros.index_add_(0, lists.read(lists.channel), lists.values())
    out = torch.empty(g.maps, dtype=torch.float32, device="cpu")
    _layout.map_sums(
        g.grad.data_ptr(), g.nhwc, g.samples, g.maps, g.area, MEMORY.address("work", 32),
        out.data_ptr(),
    )  # fmt: skip
    return out


def convolve(
    lists: Lists, samples: int, x: Tensor, weight: Tensor, sliding: tuple, out_shape: tuple,
    needs: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """Input and weight gradient from the lists."""
    cuts = parts(samples, threads_for(samples * weight.shape[0] * out_shape[0] * out_shape[1]))
    longest = samples if len(cuts) == 1 else max(last - first for first, last in cuts)
    plan = plan_of(x.shape, weight.shape, out_shape, *sliding, longest)
    dx = torch.empty_like(x) if needs[0] else None
    dw = torch.empty_like(weight) if needs[1] else None
    in_rows = plan.whole and _channels_last(weight)
    part_size = weight.shape[0] * plan.row_size
    filters = dfilters = 0
    if needs[0]:
        filters = weight.data_ptr()
        if not in_rows:
            filters = MEMORY.address("filters", part_size)
            _layout.filters_in(weight.data_ptr(), *weight.stride(), *plan.filters, filters)
    in_place = in_rows and len(cuts) == 1
    if dw is not None:
        dfilters = dw.data_ptr() if in_place else MEMORY.address("dfilters", len(cuts) * part_size)
    x_at = (x.data_ptr(), *x.stride())
    dx_at = (0, 0, 0, 0, 0) if dx is None else (dx.data_ptr(), *dx.stride())
    direct = plan.direct and _channels_last(x)

    def part(index: int) -> None:
        _conv.backward(
            *cuts[index], *lists[1:], *x_at, *dx_at, filters,
            dfilters + 4 * index * part_size if dfilters else 0,
            0 if direct else MEMORY.address("padded", plan.padded),
            MEMORY.address("scratch", plan.scratch + 2 * lists.length), lists.length,
            plan.geometry.data_ptr(),
        )  # fmt: skip

    run(part, len(cuts))
    if dw is not None and not in_place:
        _layout.filters_out(dfilters, len(cuts), dw.data_ptr(), *dw.stride(), *plan.filters)
    return dx, dw


def _channels_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last)


def thinned(g: Gradient, lists: Lists) -> Tensor:
    """The lists as a gradient."""
    return _scattered(g.grad.shape, *(lists.read(at) for at in lists[1:4]))


def mask_of(g: Gradient, lists: Lists) -> Tensor:
    """The lists as a mask of the gradient's shape."""
    position, channel = (lists.read(at) for at in lists[1:3])
    return _scattered(g.grad.shape, position, channel, torch.ones_like(position)) != 0


def _scattered(shape: torch.Size, position: Tensor, channel: Tensor, value: Tensor) -> Tensor:
    """Listed floats (or, as bits, integers) at their places, zeros elsewhere."""
    samples, maps = shape[:2]
    bits = torch.zeros(samples, maps, shape[2:].numel(), dtype=torch.int32)
    position, channel = position.long(), channel.long()
    sample = position // bits.shape[2]
    bits[sample, channel, position - sample * bits.shape[2]] = value
    return bits.view(torch.float32).view(shape)
