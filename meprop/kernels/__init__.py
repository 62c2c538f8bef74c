"""Sparse backward passes for the CPU: their cost follows the number of selected entries.

Numba is imported, and the kernels are compiled or read from disk, on the first call.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from meprop import selection
from meprop.kernels.cost import LINEAR
from meprop.rule import TopK

_NOTHING = torch.empty(0)
_inside = torch._C._functorch


class Backward(NamedTuple):
    """The gradients asked for, the new `run_grad`, and the gradient that was passed on."""

    grad_input: Tensor | None
    grad_weight: Tensor | None
    grad_bias: Tensor | None
    run_grad: Tensor | None
    kept: Tensor


def supports(*tensors: Tensor) -> bool:
    """Whether the kernels can take these tensors: float32 on the CPU, below 2**31 entries.

    They read memory, so a tensor that only stands for one (fake, batched by vmap, autograd's zeros
    without memory) is refused.

    >>> supports(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2), torch.ones(1, 1, 1, 1).double())
    False
    """
    for t in tensors:
        plain = t.is_cpu and t.dtype is torch.float32 and t.layout is torch.strided
        if not plain or t.numel() >= 2**31 or not has_memory(t):
            return False
    return available()


def has_memory(tensor: Tensor) -> bool:
    """Whether a tensor is values in memory, rather than something that acts as a tensor."""
    own = type(tensor).__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl
    wrapped = _inside.is_functorch_wrapped_tensor(tensor) or _inside.is_legacy_batchedtensor(tensor)
    return own and not wrapped and not tensor._is_zerotensor()


@cache
def available() -> bool:
    """Whether there is Numba to compile the kernels; it is not imported yet."""
    disabled = os.environ.get("NUMBA_DISABLE_JIT", "0").strip() not in ("", "0")
    return not disabled and find_spec("numba") is not None


def warm_up() -> None:
    """Compile the kernels now, or read them from disk, rather than in the first backward pass.

    Some ten seconds on a machine that has not seen them; nothing where there is no Numba.

    >>> warm_up()
    """
    if available():
        import meprop.kernels._driver  # noqa: F401


def conv2d_backward(
    grad: Tensor, x: Tensor, weight: Tensor, *, stride: tuple[int, int],
    padding: tuple[int, int], dilation: tuple[int, int], groups: int, **settings: Any,
) -> Backward:  # fmt: skip
    """The gradients of a convolution from the selected entries of its output gradient.

    Without a rule every nonzero entry counts: the exact gradients as long as inputs and weights are
    finite (0 * inf, which dense gradients have as NaN, is never formed). `run_grad` is updated in
    place where its layout allows it; `kept` is empty unless `watched`. Equals
    `torch.ops.aten.convolution_backward` on the gradient that `meprop.select` leaves. `settings`:
    rule, run_grad, generator, needs (input's, weight's, bias's gradient), per_position, watched.

    >>> grad = torch.zeros(1, 1, 2, 2)
    >>> grad[0, 0, 0, 0] = 2.0
    >>> x, weight = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 2, 2)
    >>> slide = dict(stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1)
    >>> conv2d_backward(grad, x, weight, **slide, rule=None).grad_weight.sum()
    tensor(8.)
    """
    sliding = stride, padding, dilation, groups
    _check("conv2d_backward", grad, x, weight)
    _check_shapes(grad.shape, x.shape, weight.shape, sliding)
    return backward(grad, x, weight, sliding, **settings)


def linear_backward(grad: Tensor, x: Tensor, weight: Tensor, **settings: Any) -> Backward:
    """The gradients of a linear layer, `grad` (rows, outputs) and `x` (rows, inputs).

    Equals `grad @ weight`, `grad.T @ x` and `grad.sum(0)` on the selected gradient. `settings` are
    those of `conv2d_backward`.

    >>> grad, x, weight = torch.tensor([[0.0, 2.0]]), torch.ones(1, 3), torch.ones(2, 3)
    >>> linear_backward(grad, x, weight, rule=None).grad_weight
    tensor([[0., 0., 0.],
            [2., 2., 2.]])
    """
    _check("linear_backward", grad, x, weight)
    _check_shapes(grad.shape, x.shape, weight.shape, None)
    return backward(grad, x, weight, None, **settings)


def _check(name: str, *tensors: Tensor) -> None:
    """Raise a `ValueError` that names the tensor the kernels cannot take."""
    if supports(*tensors):
        return
    if not available():
        raise ValueError(
            f"kernels.{name}: needs Numba, which is missing, or switched off by NUMBA_DISABLE_JIT"
        )
    place, t = next((i, t) for i, t in enumerate(tensors) if not supports(t))
    raise ValueError(
        f"kernels.{name}: takes float32 in the CPU's memory, below 2**31 entries, got "
        f"{tuple(t.shape)} of {t.dtype} on {t.device} as argument {place + 1}; "
        "backend='masked' takes everything"
    )


@lru_cache(maxsize=1024)
def _check_shapes(grad: Any, x: Any, weight: Any, sliding: Any) -> None:
    """Raise a `ValueError` where they do not fit together: the kernels read what they are told."""
    expected: tuple[int, ...]
    if sliding is None:
        fits = len(grad) == len(x) == len(weight) == 2 and x[1] == weight[1]
        expected = (x[0], weight[0])
    else:
        stride, padding, dilation, groups = sliding
        fits = len(x) == len(weight) == 4 and groups > 0
        fits = fits and x[1] == groups * weight[1] and weight[0] % groups == 0
        expected = (*x[:1], *weight[:1])
        for n, k, s, p, d in zip(x[2:], weight[2:], stride, padding, dilation, strict=False):
            expected += ((n + 2 * p - d * (k - 1) - 1) // s + 1,)
    if not fits or tuple(grad) != expected or 0 in weight:
        raise ValueError(
            f"kernels: a gradient {tuple(grad)} does not fit an input {tuple(x)} and a weight "
            f"{tuple(weight)}"
            + (f" with (stride, padding, dilation, groups) = {sliding}" if sliding else "")
        )


def backward(
    grad: Tensor, x: Tensor, weight: Tensor, sliding: Any, rule: TopK | None,
    run_grad: Tensor | None = None, generator: Generator | None = None,
    needs: tuple[bool, bool, bool] = (True, True, True), per_position: bool = False,
    watched: bool = False,
) -> Backward:  # fmt: skip
    """Either of them, for tensors that are known to fit; sliding: as of a convolution, or None."""
    from meprop.kernels import _driver

    grad, x, weight = grad.resolve_neg(), x.resolve_neg(), weight.resolve_neg()
    run_grad = _in_float32(run_grad)
    if grad.numel() == 0:
        dx = torch.zeros_like(x) if needs[0] else None
        dw = torch.zeros_like(weight) if needs[1] else None
        bias = grad.new_zeros(weight.shape[0]) if needs[2] else None
        return Backward(dx, dw, bias, run_grad, grad)
    if grad.dim() == 2:
        x, weight = x[:, :, None, None], weight[:, :, None, None]
    product = (x, weight, sliding or LINEAR)
    dx, dw, bias, run_grad, kept = _driver.launch(
        grad, rule, run_grad, generator, per_position, product, needs, watched
    )
    if grad.dim() == 2:
        dx = None if dx is None else dx[:, :, 0, 0]
        dw = None if dw is None else dw[:, :, 0, 0]
    return Backward(dx, dw, bias, run_grad, _NOTHING if kept is None else kept)


def thin(
    grad: Tensor, rule: TopK, history: Tensor | None = None, generator: Generator | None = None,
    *, per_position: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """`meprop.thin`, by the kernels; with `pick="unbiased"` the thresholds come from a sample.

    >>> thin(torch.tensor([[1.0, 2.0, 3.0, -4.0]]), TopK(ratio=0.5))[0]
    tensor([[ 0.,  0.,  3., -4.]])
    """
    _check("thin", grad)
    conv = grad.dim() == 4
    selection.check_scope(rule, "Conv2d" if conv else "Linear")
    by_reference = rule.scope == "unified" or (per_position and not conv and grad.dim() != 2)
    if grad.numel() == 0 or by_reference:
        return selection.thin(grad, rule, history, generator, per_position=per_position)
    from meprop.kernels import _driver

    rows = (grad if conv else grad.reshape(-1, grad.shape[-1])).resolve_neg()
    history = _in_float32(history)
    if history is not None and not per_position:
        history = history.reshape(rows.shape).clone() if history.shape == grad.shape else None
    by_size = replace(rule, pick="top") if rule.pick == "centred" else rule
    *_, new, kept = _driver.launch(rows, by_size, history, generator, per_position)
    assert kept is not None
    if not conv:
        kept = kept.reshape(grad.shape)
        new = new if new is None or per_position else new.reshape(grad.shape)
    # Centred by the reference, to the last bit
    return (selection.centre(kept) if rule.centres else kept), new


def _in_float32(run_grad: Tensor | None) -> Tensor | None:
    """Under autocast, or after `model.double()`, the past may have another type."""
    return None if run_grad is None else run_grad.to("cpu", torch.float32)
