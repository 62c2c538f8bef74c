"""From tensors to kernels and back."""

from __future__ import annotations

import ctypes
from array import array
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from meprop import selection
from meprop.kernels import cost
from meprop.kernels._plan import layout_of
from meprop.kernels._simd import NAN_RANK
from meprop.kernels._threads import MEMORY, Threads
from meprop.kernels._whole import run, work
from meprop.rule import TopK

_SMALL = cost.SMALL
_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(run)  # drops the GIL


def launch(
    grad: Tensor, rule: TopK | None, run_grad: Tensor | None, generator: Generator | None,
    per_position: bool, convolution: tuple | None = None,
    needs: tuple[bool, bool, bool] = (False, False, False), thinned: bool = True,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Select from a gradient (4-d, or 2-d of a linear layer); then input, weight and bias gradient.

    convolution: input, weight, (stride, padding, dilation, groups), of a linear layer as a 1x1
    convolution of 1x1 images. Returns these, what becomes the layer's `run_grad`, and with
    `thinned` the gradient that was passed on.
    """
    samples, maps = grad.shape[:2]
    linear = grad.dim() == 2
    area = 1 if linear else grad.shape[2] * grad.shape[3]
    given = grad  # what the reference sums over, in the order of its memory
    by_planes = rule is not None and rule.scope in ("mixed", "layer") and area > 1
    nhwc = linear or (not by_planes and grad.is_contiguous(memory_format=torch.channels_last))
    if linear or not nhwc:
        grad = grad.contiguous()
    score, run_at, low, key, history = grad.data_ptr(), 0, 0, (0, 0), None
    if rule is not None:
        if linear and rule.scope in ("map", "sample"):
            rule = replace(rule, scope="mixed")
        if rule.scope == "unified":
            mask, history = selection.select(
                given, rule, run_grad, generator, per_position=per_position
            )
            bounds = torch.where(mask[0], 0, NAN_RANK).to(torch.int32)
            low = bounds.data_ptr()
            rule = replace(rule, decay=0.0)
        elif rule.pick == "unbiased":
            key = selection.draw_key(generator)
        elif rule.pick == "random" or (rule.decay > 0 and per_position):
            scores, history = _scores(given, grad, rule, run_grad, generator, per_position)
            score = scores.data_ptr()
            rule = replace(rule, decay=0.0)
        elif rule.decay > 0:
            if run_grad is None or run_grad.shape != grad.shape:
                run_grad = torch.zeros_like(grad)
            history = _like(run_grad, grad)
            run_at = history.data_ptr()
    threads = torch.get_num_threads() if grad.numel() >= _SMALL and Threads.can else 1
    dx = dw = None
    slide: Any = None
    x_at = dx_at = weight_at = dw_at = 0
    if convolution is not None and (needs[0] or needs[1]):
        x, weight, sliding = convolution
        out = (1, 1) if linear else (grad.shape[2], grad.shape[3])
        dx_like, dw_like = x.stride(), weight.stride()
        x_at, weight_at = x.data_ptr(), weight.data_ptr()
        if needs[0]:
            dx = torch.empty_like(x)
            dx_like, dx_at = dx.stride(), dx.data_ptr()
        if needs[1]:
            dw = torch.empty_like(weight)
            dw_like, dw_at = dw.stride(), dw.data_ptr()
        slide = (
            x.shape, x.stride(), dx_like, weight.shape, weight.stride(), dw_like, out, *sliding
        )  # fmt: skip
    layout = layout_of((samples, maps, area), nhwc, rule, threads, needs, slide)
    bias = torch.empty(maps, dtype=torch.float32, device="cpu") if needs[2] else None
    bias_at = 0 if bias is None else bias.data_ptr()
    kept = torch.empty_like(grad) if thinned else None
    kept_at = 0 if kept is None else kept.data_ptr()
    call = (  # a `Call`
        grad.data_ptr(), score, run_at, x_at, dx_at, weight_at, dw_at, bias_at, kept_at, *key,
        Threads.pause, low, layout.job.data_ptr(), MEMORY.address(layout.words), work,
        Threads.parallel if threads > 1 else 0,
    )  # fmt: skip
    arguments = array("q", call)
    _RUN(arguments.buffer_info()[0])
    MEMORY.trim()
    return dx, dw, bias, history, kept


def _scores(
    given: Tensor, grad: Tensor, rule: TopK, run_grad: Tensor | None, generator: Generator | None,
    per_position: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """What ranks where that is neither the gradient nor its own run_grad; and the new run_grad."""
    history, score = None, grad
    if rule.decay > 0:
        magnitude = given.abs()
        if per_position:
            magnitude = magnitude.mean(dim=0, keepdim=True)
        score, history = selection.run_grad(magnitude, rule.decay, run_grad)
        score = score.expand_as(grad)
    if rule.pick == "random":
        # Keys as the reference draws them; +1 keeps a drawn 0 above the zeros of the gradient.
        rows = selection.to_groups(grad, rule.scope)
        keys = torch.rand(rows.shape, generator=generator, dtype=torch.float32)
        keys = (keys.view(torch.int32) + 1).masked_fill_(rows == 0, 0)
        score = selection.from_groups(keys, grad.shape, rule.scope)
    return _like(score, grad), history


def _like(values: Tensor, grad: Tensor) -> Tensor:
    """The values in the gradient's layout."""
    if values.stride() == grad.stride():
        return values
    return torch.empty_like(grad, dtype=values.dtype).copy_(values)
