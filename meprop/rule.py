"""The selection rule: which entries of the gradient at a layer's output are passed back."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from numbers import Real
from typing import TypeGuard

SCOPES = ("map", "sample", "layer", "mixed", "unified")
PICKS = ("top", "random", "unbiased", "centred")
BIASES = ("full", "sparse")
ONLY = ("weight", "input")


def check_choice(owner: str, name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise a `ValueError` that names the value and the nearest allowed one."""
    if isinstance(value, str) and value in allowed:
        return
    near = get_close_matches(value, allowed, n=1) if isinstance(value, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    options = ", ".join(repr(option) for option in allowed)
    raise ValueError(f"{owner}: {name} must be one of {options}, got {value!r}{hint}")


def check_ratio(owner: str, name: str, value: object) -> None:
    """Raise a `ValueError` unless it is a share in (0, 1]."""
    if not is_number(value) or not 0 < value <= 1:
        hint = f"; did you mean {value / 100:g}?" if is_number(value) and 1 < value <= 100 else ""
        raise ValueError(f"{owner}: {name} must be in (0, 1], got {value!r}{hint}")


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


@dataclass(frozen=True)
class TopK:
    """Keep the `ratio` largest entries of each group of a gradient.

    ratio: share of every group that is kept, in (0, 1]; 0.05 is the paper's 5%.
    decay: weight of the past in `run_grad` (Eq. 15), in [0, 1); 0 selects by the current gradient.
    scope: what a group is. For a convolution, `map` (the paper): one feature map over the whole
        mini-batch; `sample`: one map of one sample; `layer`: the whole gradient; `mixed`: one
        sample over all maps. For a linear layer, `map`, `sample` and `mixed` are each row over
        its outputs (the original meProp); `unified`: one set of units for the mini-batch, by the
        sum of magnitudes; `layer`: the whole gradient.
    pick: `top` by magnitude, or `random` among the entries that are not zero (a control).
        `unbiased` keeps the gradient's expectation: with a threshold t by group, an entry of
        magnitude t or more passes, a smaller one becomes t, with its sign, with probability
        magnitude / t; t is such that `ratio` of the entries pass on average. `centred` is `top`,
        with the mean of what is selected of a map taken from it, for a batch normalisation above
        passes back gradients that sum to zero. See `thin`.
    bias: the bias gradient is summed over the `full` gradient or over the `sparse` one.
    only: `weight`: what is selected forms the weight gradient alone, and all gradients pass on to
        the layer below; `input`: the other way round. `None`, the paper's: it forms both.

    >>> TopK(0.05).k(1000)
    50
    """

    ratio: float
    decay: float = 0.0
    scope: str = "map"
    pick: str = "top"
    bias: str = "full"
    only: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_ratio("TopK", "ratio", self.ratio)
        if not is_number(self.decay) or not 0 <= self.decay < 1:
            raise ValueError(f"TopK: decay must be in [0, 1), got {self.decay!r}")
        for name in ("ratio", "decay"):  # of numpy, or a fraction: plain numbers from here on
            object.__setattr__(self, name, float(getattr(self, name)))
        check_choice("TopK", "scope", self.scope, SCOPES)
        check_choice("TopK", "pick", self.pick, PICKS)
        check_choice("TopK", "bias", self.bias, BIASES)
        if self.only is not None:
            check_choice("TopK", "only", self.only, ONLY)
        if self.pick == "unbiased" and (self.decay > 0 or self.scope == "unified"):
            raise ValueError(
                "TopK: pick='unbiased' weighs each entry by its own magnitude, so decay must be 0 "
                f"and scope not 'unified', got decay={self.decay!r}, scope={self.scope!r}"
            )

    @property
    def draws(self) -> bool:
        """Whether a layer needs a generator for it."""
        return self.pick in ("random", "unbiased")

    @property
    def keeps_all(self) -> bool:
        """Whether it passes every gradient on as it is, and keeps no `run_grad`."""
        return self.ratio == 1 and self.decay == 0

    @property
    def centres(self) -> bool:
        """Whether it takes the mean from what is selected; what is whole, is balanced by itself."""
        return self.pick == "centred" and self.ratio < 1

    def k(self, size: int) -> int:
        """Number of entries kept in a group of `size` entries."""
        return max(1, round(self.ratio * size))
