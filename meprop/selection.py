"""Top-k selection of a gradient: the reference that every faster path is tested against.

The paper, for a layer `y = W x` with loss `L`:

    run_grad = decay * run_grad + (1 - decay) * |dL/dy|     (Eq. 15)
    dL/dy   <- dL/dy where run_grad is among the k largest of its feature map, else 0

`select` says where, `thin` what is passed on: the same, or for rules that change values another.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from meprop.rule import TopK

SCOPES_OF = {
    "Conv1d": ("map", "sample", "layer", "mixed"),
    "Conv2d": ("map", "sample", "layer", "mixed"),
    "Conv3d": ("map", "sample", "layer", "mixed"),
    "ConvTranspose2d": ("map", "sample", "layer", "mixed"),
    "Linear": ("map", "sample", "layer", "mixed", "unified"),
}
WEYL, MIX, _32BITS = 0x9E3779B1, (0x85EBCA6B, 0xC2B2AE35), 0xFFFFFFFF


def select(
    grad: Tensor, rule: TopK, history: Tensor | None = None, generator: Generator | None = None,
    *, per_position: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return the mask of the selected entries and the new `run_grad` (`None` where decay is 0).

    A 4-d `grad` is taken as a convolution's (samples, maps, height, width); any other as a linear
    layer's, with the outputs in the last dimension. Exactly `rule.k(group size)` entries of each
    group are selected; among equal magnitudes the one with the lowest index. NaN counts as the
    largest magnitude, but does not enter `run_grad`, nor does infinity: there it stays as it was.
    It is kept in float32 at least. A `history` of another shape starts anew. `generator` (on the
    CPU) serves `pick="random"`. `per_position` is another reading of Eq. 15: one `run_grad` for the
    whole mini-batch (first dimension 1), fed with the mean magnitude over it.

    >>> select(torch.tensor([1.0, 2.0, 3.0, -4.0]), TopK(ratio=0.5))[0]
    tensor([False, False,  True,  True])
    """
    check_scope(rule, "Conv2d" if grad.dim() == 4 else "Linear")
    if rule.pick == "unbiased":
        raise ValueError("select: pick='unbiased' changes values, which no mask can say; use thin")
    if grad.numel() == 0:
        return torch.zeros_like(grad, dtype=torch.bool), history
    score = grad.abs()
    if rule.decay > 0:
        magnitude = score.mean(dim=0, keepdim=True) if per_position else score
        score, history = run_grad(magnitude, rule.decay, history)
        score = score.expand_as(grad)
    else:
        history = None
    rows = to_groups(score, rule.scope)
    if rule.scope == "unified":
        rows = rows.sum(dim=0, keepdim=True)
    if rule.pick == "random":
        candidates = to_groups(grad, rule.scope) != 0
        if rule.scope == "unified":
            candidates = candidates.any(dim=0, keepdim=True)
        keys = torch.rand(candidates.shape, generator=generator, dtype=torch.float32)
        rows = torch.where(candidates, keys.to(grad.device), -1.0)
    mask = _largest(rows, rule.k(rows.shape[-1]))
    return from_groups(mask, grad.shape, rule.scope), history


def thin(
    grad: Tensor, rule: TopK, history: Tensor | None = None, generator: Generator | None = None,
    *, per_position: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return the gradient that is passed on, zero elsewhere, and the new `run_grad`.

    Arguments as for `select`, which says where it is not zero, unless `pick="unbiased"`.

    >>> thin(torch.tensor([1.0, 2.0, 3.0, -4.0]), TopK(ratio=0.5))[0]
    tensor([ 0.,  0.,  3., -4.])
    """
    if rule.pick == "unbiased":
        check_scope(rule, "Conv2d" if grad.dim() == 4 else "Linear")
        rows = to_groups(grad, rule.scope)
        t = thresholds(rows, rule.ratio).to(_wide(grad)).expand_as(rows)
        return draw(grad, from_groups(t, grad.shape, rule.scope), draw_key(generator)), None
    mask, history = select(grad, rule, history, generator, per_position=per_position)
    kept = torch.where(mask, grad, 0)
    return (centre(kept) if rule.centres else kept), history


def centre(kept: Tensor) -> Tensor:
    """Take the mean of a map's (of a unit's) entries that are not zero from each of them."""
    over = (0, 2, 3) if kept.dim() == 4 else tuple(range(kept.dim() - 1))
    chosen = kept != 0
    count = chosen.sum(over, keepdim=True).clamp(min=1)
    mean = kept.sum(over, keepdim=True, dtype=_wide(kept)) / count
    return torch.where(chosen, kept - mean.to(kept.dtype), 0)


def thresholds(rows: Tensor, ratio: float) -> Tensor:
    """For each row the t with which the sum of min(1, |g| / t) is `ratio` of its entries.

    0 where no more than that are other than zero: all pass. With m entries above t, t is the sum of
    the others over the room they have.
    """
    size = rows.shape[-1]
    if size == 0:
        return torch.zeros_like(rows[:, :1], dtype=torch.float64)
    largest = rows.abs().double().nan_to_num(nan=torch.inf).sort(dim=1, descending=True).values
    others = largest.masked_fill(largest.isinf(), 0).flip(1).cumsum(1).flip(1)
    room = ratio * size - torch.arange(size, device=rows.device)
    tried = torch.where(room > 0, others / room, -1)
    fits = largest <= tried
    first = fits.int().argmax(dim=1, keepdim=True)
    return torch.where(fits.any(dim=1, keepdim=True), tried.gather(1, first), 0)


def draw_key(generator: Generator | None) -> tuple[int, int]:
    """What one step's random numbers are a function of, beside the place."""
    first, second = torch.randint(2**32, (2,), generator=generator).tolist()
    return first, second


def draw(grad: Tensor, threshold: Tensor, key: tuple[int, int]) -> Tensor:
    """Each entry below its threshold t becomes 0, or with probability |g| / t it becomes t.

    NaN passes. Random numbers are made from the entry's index, so that they repeat whatever the
    threads and the memory format.
    """
    magnitude = grad.abs().to(threshold.dtype)
    passes = ~(magnitude <= uniform(grad.shape, key, grad.device).to(threshold.dtype) * threshold)
    raised = torch.copysign(threshold, grad.to(threshold.dtype)).to(grad.dtype)
    return torch.where(passes, torch.where(magnitude < threshold, raised, grad), 0)


def uniform(shape: torch.Size, key: tuple[int, int], device: torch.device) -> Tensor:
    """Random numbers in [0, 1), multiples of 2**-24: a hash of key and index (murmur3's mixer)."""
    h = torch.arange(shape.numel(), device=device) * WEYL + key[0] & _32BITS
    h = (h ^ h >> 16) * MIX[0] + key[1] & _32BITS
    h = (h ^ h >> 15) * MIX[1] & _32BITS
    return (h >> 8).to(torch.float32).mul(2.0**-24).reshape(shape)


def check_scope(rule: TopK, layer: str) -> None:
    """Raise a `ValueError` if a layer of this kind has no groups of the rule's scope."""
    if rule.scope not in SCOPES_OF[layer]:
        raise ValueError(
            f"{layer}: scope {rule.scope!r} does not exist for this layer; "
            f"it has {', '.join(repr(scope) for scope in SCOPES_OF[layer])}"
        )


def run_grad(magnitude: Tensor, decay: float, history: Tensor | None) -> tuple[Tensor, Tensor]:
    """Eq. 15, from zero where there is no history of this shape: as a score, and to be kept.

    One step that overflows, as mixed precision skips it, would else stay in it for good.
    """
    # In bfloat16, (1 - decay) * |grad| is soon too small to move it.
    magnitude = magnitude.to(_wide(magnitude))
    if history is None or history.shape != magnitude.shape:
        history = torch.zeros_like(magnitude)
    history = history.to(magnitude.dtype)
    score = decay * history + (1 - decay) * magnitude
    return score, torch.where(magnitude.isfinite(), score, history)


def _wide(values: Tensor) -> torch.dtype:
    return torch.promote_types(values.dtype, torch.float32)


def _largest(rows: Tensor, k: int) -> Tensor:
    """Mask of the k largest entries in each row; a stable sort puts the lowest index first."""
    if k == rows.shape[-1]:
        return torch.ones_like(rows, dtype=torch.bool)
    order = rows.argsort(dim=-1, descending=True, stable=True)[:, :k]
    return torch.zeros_like(rows, dtype=torch.bool).scatter_(1, order, True)


def to_groups(values: Tensor, scope: str) -> Tensor:
    """View a gradient as (groups, entries of a group in the order of their index)."""
    if scope == "layer":
        return values.reshape(1, -1)
    if values.dim() != 4:
        return values.reshape(-1, values.shape[-1])
    b, c, h, w = values.shape
    if scope == "map":
        return values.transpose(0, 1).reshape(c, b * h * w)
    return values.reshape(b * c, h * w) if scope == "sample" else values.reshape(b, c * h * w)


def from_groups(rows: Tensor, shape: torch.Size, scope: str) -> Tensor:
    """Undo `to_groups`; a single row of units is repeated for every row of the mini-batch."""
    if scope == "map" and len(shape) == 4:
        b, c, h, w = shape
        return rows.reshape(c, b, h, w).transpose(0, 1).contiguous()
    if scope == "unified":
        return rows[0].expand(shape).contiguous()
    return rows.reshape(shape)
