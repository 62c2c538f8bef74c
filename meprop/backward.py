"""The backward passes: torch's derivative formulas, applied to the selected gradient.

The paper: `dL/dW = top(dL/dy) * x^T` (Eq. 13) and `dL/dx = dy/dx . top(dL/dy)` (Eq. 10).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.autograd import Function

from meprop import kernels
from meprop.kernels.cost import cheaper, pays
from meprop.selection import thin

if TYPE_CHECKING:
    from meprop.layers import Convolution, GradientTopK, Linear, Selecting

# Called with the gradient at a layer's output and what selection left of it; `watch` fills it.
OBSERVERS: WeakKeyDictionary[nn.Module, list[Callable[[Tensor, Tensor], None]]] = (
    WeakKeyDictionary()
)


class Sliding(NamedTuple):
    """How a convolution slides over its input; a transposed one has an `output_padding`."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    output_padding: tuple[int, ...] | None = None


def convolution(layer: Convolution, input: Tensor, padding: Any, beyond: Any = None) -> Tensor:
    """torch's convolution with the layer's parameters and its selective backward pass.

    beyond: the `output_padding` of a transposed one.
    """
    if input.is_complex():
        name = type(layer).__name__
        raise ValueError(f"{name}: takes real numbers, got {input.dtype}; use torch's own layer")
    x, weight, bias = _arguments(layer, input)
    count = weight.dim() - 2
    stride, padding, dilation = (each(v, count) for v in (layer.stride, padding, layer.dilation))
    if count > 1:
        sliding = Sliding(stride, padding, dilation, layer.groups, beyond)
        return _selective(x, weight, bias, layer, sliding)
    # As torch does it: an image of height 1.
    sliding = Sliding((1, *stride), (0, *padding), (1, *dilation), layer.groups)
    return _selective(x.unsqueeze(2), weight.unsqueeze(2), bias, layer, sliding).squeeze(2)


def each(value: Any, count: int) -> tuple[int, ...]:
    """As torch reads a stride that somebody set to a number, or to a list."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * count if len(values) == 1 else values


def linear(layer: Linear, input: Tensor) -> Tensor:
    """`F.linear` with the layer's parameters and its selective backward pass."""
    return _selective(*_arguments(layer, input), layer, None)


def _selective(
    x: Tensor, weight: Tensor, bias: Tensor | None, layer: Selecting, sliding: Sliding | None
) -> Tensor:
    """With the selective backward pass, or torch's own where the layer selects only if it pays."""
    if layer.where == "pays" and layer.rule is not None and not _pays(layer, x, weight, sliding):
        vars(layer).update(is_plain=True, too_small=size_of(x))
        return _plain(x, weight, bias, sliding)
    return _apply(_Weighted, x, weight, bias, layer, sliding)


def _plain(x: Tensor, weight: Tensor, bias: Tensor | None, sliding: Sliding | None) -> Tensor:
    if sliding is None:
        return F.linear(x, weight, bias)
    stride, padding, dilation, groups, beyond = sliding
    if beyond is None:
        plain: Any = F.conv2d if x.dim() == 4 else F.conv3d
        return plain(x, weight, bias, stride, padding, dilation, groups)
    return F.conv_transpose2d(x, weight, bias, stride, padding, beyond, groups, dilation)


def size_of(x: Tensor) -> tuple:
    """What of an input decides whether selecting pays."""
    return x.shape, x.stride(), x.dtype, x.requires_grad, torch.get_num_threads()


def _pays(layer: Selecting, x: Tensor, weight: Tensor, sliding: Sliding | None) -> bool:
    assert layer.rule is not None
    if layer.backend == "masked" or not _has_kernels(x, sliding) or not kernels.supports(x, weight):
        return False
    return pays(x, weight, sliding, layer.rule, x.requires_grad, torch.get_num_threads())


def _has_kernels(x: Tensor, sliding: Sliding | None) -> bool:
    return sliding is None or (sliding.output_padding is None and x.dim() == 4)


def topk_gradient(layer: GradientTopK, input: Tensor) -> Tensor:
    """The input, with a selective backward pass."""
    return _apply(_Identity, input, layer)


def refuse_proxy(input: object) -> None:
    """Raise where torch.fx or torch.jit looks into a layer instead of calling it."""
    if isinstance(input, torch.fx.Proxy):
        refuse("torch.fx")
    if torch.jit.is_tracing():
        refuse("torch.jit")


def refuse(tool: str) -> NoReturn:
    """Say what to do instead."""
    leaves = "tell its tracer that meprop's layers are leaves (is_leaf_module; leaf_modules in "
    raise RuntimeError(
        f"meprop: {tool} cannot look into a selective backward pass; "
        + (f"{leaves}torchvision), or " if tool == "torch.fx" else "")
        + "take the model after meprop.revert, without selection"
    )


def _apply(function: type[Function], *args: Any) -> Tensor:
    """Dynamo cannot trace a backward pass that keeps state: a compiled model calls it as it is."""
    if torch._C._are_functorch_transforms_active():
        raise RuntimeError(
            "meprop: torch.func (grad, vmap, jvp) cannot look into a selective backward pass; use "
            "torch's own layers there (meprop.revert, or skip= in meprop.convert)"
        )
    return _untraced(function, *args) if torch.compiler.is_compiling() else function.apply(*args)


# Unlike torch.compiler.disable, this does not import the compiler before it is used.
@_disable_dynamo
def _untraced(function: type[Function], *args: Any) -> Tensor:
    return function.apply(*args)


class _Weighted(Function):
    """A convolution, or without `sliding` a linear layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Any, layer: Any, sliding: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer, ctx.sliding = layer, sliding
        return _plain(x, weight, bias, sliding)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return *_once(_weighted_backward, ctx, grad), None, None


class _Identity(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Any) -> Tensor:
        ctx.layer = layer
        return x.clone()  # of a view, an in-place activation would be refused

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return *_once(lambda ctx, grad: [top(ctx.layer, grad)], ctx, grad), None


def top(layer: Selecting, grad: Tensor) -> Tensor:
    """The selected gradient, zero elsewhere; the layer's `run_grad` moves on."""
    chosen, rule = grad, layer.rule
    if rule is not None and not layer.passes_all() and not rule.keeps_all:
        # The kernels select the same entries without sorting; `masked` stays the reference.
        fast = layer.backend == "auto" and rule.ratio < 1 and kernels.supports(grad)
        chosen, run_grad = (kernels.thin if fast else thin)(
            grad, rule, layer.past(grad), layer.generator, per_position=layer.history == "position"
        )
        if run_grad is not None and kernels.has_memory(run_grad):
            layer.keep(run_grad)  # many gradients at once (is_grads_batched) are no step
    _observe(layer, grad, chosen)
    return chosen


def _observe(layer: Selecting, grad: Tensor, kept: Tensor) -> None:
    if OBSERVERS:
        for observe in tuple(OBSERVERS.get(layer, ())):  # one may leave while it is called
            observe(grad, kept)


def _weighted_backward(ctx: Any, grad: Tensor) -> list[Tensor | None]:
    x, weight = ctx.saved_tensors
    layer, sliding, wants_bias = ctx.layer, ctx.sliding, ctx.needs_input_grad[2]
    shape, over = x.shape, (0, *range(2, grad.dim())) if sliding else 0
    if sliding is None:
        grad, x = (t.reshape(t.shape[:-1].numel(), t.shape[-1]) for t in (grad, x))

    def by_torch(grad: Tensor, needs: tuple[bool, bool], bias: bool = False) -> Any:
        if sliding is None:
            dx = grad @ weight.conj() if needs[0] else None
            return dx, grad.T @ x.conj() if needs[1] else None, grad.sum(0) if bias else None
        *slide, groups, beyond = sliding
        return torch.ops.aten.convolution_backward(
            grad, x, weight, [grad.shape[1]] if bias else None, *slide, beyond is not None,
            beyond or (0,) * (x.dim() - 2), groups, [*needs, bias],
        )  # fmt: skip

    thinned, full = _sides(ctx)
    if _goes_sparse(layer, grad, x, weight, thinned, sliding):
        dx, dw, db = _sparse(layer, grad, x, weight, (*thinned, wants_bias), sliding)
    else:
        # Volumes are images to a selection, with as many rows as there are planes.
        flat = grad.flatten(3) if grad.dim() == 5 else grad
        chosen = flat if any(full) and not any(thinned) else top(layer, flat)
        chosen = chosen if flat is grad else chosen.reshape(grad.shape)
        summed = chosen if layer.rule is not None and layer.rule.bias == "sparse" else grad
        at_once = wants_bias and summed is chosen
        dx, dw, db = by_torch(chosen, thinned, at_once) if any(thinned) or at_once else (None,) * 3
        db = summed.sum(over) if wants_bias and not at_once else db
    if any(full):
        others = by_torch(grad, full)
        dx, dw = (others[0] if full[0] else dx), (others[1] if full[1] else dw)
    return [dx if dx is None or sliding else dx.reshape(shape), dw, db]


def _sides(ctx: Any) -> tuple[tuple[bool, bool], tuple[bool, bool]]:
    """Which of the input's and the weight's gradient are formed from what is selected; from all."""
    wants_x, wants_weight = ctx.needs_input_grad[:2]
    only = None if ctx.layer.rule is None else ctx.layer.rule.only
    thinned = wants_x and only != "weight", wants_weight and only != "input"
    return thinned, (wants_x and not thinned[0], wants_weight and not thinned[1])


def _goes_sparse(
    layer: Selecting, grad: Tensor, x: Tensor, weight: Tensor, thinned: tuple[bool, bool],
    sliding: Sliding | None,
) -> bool:  # fmt: skip
    if layer.backend == "masked" or layer.passes_all() or not weight.numel():
        return False
    if not any(thinned) and layer.rule is not None and layer.rule.only is not None:
        return False  # nobody wants the side that it is for
    if not _has_kernels(x, sliding) or not kernels.supports(grad, x, weight):
        return False
    sparse = layer.backend == "sparse" or cheaper(
        grad, x, weight, sliding, layer.rule,
        wants_input=all(thinned),  # one side alone costs about the same, whichever it is
        threads=torch.get_num_threads(),
    )  # fmt: skip
    layer.rest(unless=sparse or layer.rule is not None or layer.where == "all")
    return sparse


def _sparse(
    layer: Selecting, grad: Tensor, x: Tensor, weight: Tensor, needs: tuple[bool, bool, bool],
    sliding: Sliding | None,
) -> list[Tensor | None]:  # fmt: skip
    """The same gradients by a sparse kernel; the layer's `run_grad` moves on."""
    *grads, run_grad, kept = kernels.backward(
        grad, x, weight, None if sliding is None else sliding[:4], layer.rule, layer.past(grad),
        layer.generator, needs, layer.history == "position", bool(OBSERVERS) and layer in OBSERVERS,
    )  # fmt: skip
    layer.keep(run_grad)
    _observe(layer, grad, kept)
    return grads


def _arguments(layer: Convolution | Linear, input: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Input, weight and bias; under autocast as torch's own layers would cast them.

    Autograd sees the cast, so that gradients come back in the parameters' own type.
    """
    weight, bias, device = layer.weight, layer.bias, input.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        input, weight = (t if t.dtype == torch.float64 else t.to(dtype) for t in (input, weight))
        bias = bias if bias is None or bias.dtype == torch.float64 else bias.to(dtype)
    if layer.backend == "sparse" and not kernels.supports(input, weight):
        got = f"takes float32 on the CPU, got {input.dtype} on {input.device}"
        if not kernels.available():
            got = "needs Numba, which is missing, or switched off by NUMBA_DISABLE_JIT"
        raise ValueError(
            f"{type(layer).__name__}: backend 'sparse' {got}; backend='auto' takes everything"
        )
    return input, weight, bias


def _once(formula: Callable[[Any, Tensor], list], ctx: Any, grad: Tensor) -> Any:
    """Run a backward formula; its result can be used, but not differentiated."""
    if not torch.is_grad_enabled():
        return formula(ctx, _in_memory(grad))
    with torch.no_grad():
        grads = formula(ctx, _in_memory(grad))
    return _NotTwice.apply(len(grads), *grads, grad, *ctx.saved_tensors)


def _in_memory(grad: Tensor) -> Tensor:
    """Autograd's zeros, those of `sgn` for one, may be a shape alone."""
    return grad.clone() if grad._is_zerotensor() else grad


class _NotTwice(Function):
    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Any) -> Any:
        return tuple(None if t is None else t.view_as(t) for t in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(
            "meprop: a selected gradient has no second derivative, so double backward is not "
            "possible through this layer; use torch's own layers there (meprop.revert, or skip= in "
            "meprop.convert)"
        )
