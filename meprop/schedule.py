"""The ratio as a function of the step: a `Scheduler`, used like one of the learning rate.

>>> from meprop import Conv2d, TopK
>>> model = nn.Sequential(Conv2d(1, 8, 3, rule=TopK(0.05)))
>>> scheduler = Scheduler(model, warm_up(2, linear(0.5, 0.1, steps=4)))
>>> for epoch in range(6):
...     print(f"{model[0].rule.ratio:.0%}")  # train for an epoch, then
...     scheduler.step()
100%
100%
50%
40%
30%
20%
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from meprop.conversion import names_of, rules_by_name
from meprop.layers import Selecting
from meprop.rule import check_ratio

Ratio = Callable[[int], float]


def constant(ratio: float) -> Ratio:
    """The same ratio at every step.

    >>> constant(0.05)(1000)
    0.05
    """
    check_ratio("constant", "ratio", ratio)
    return lambda step: ratio


def linear(start: float, stop: float, steps: int) -> Ratio:
    """From `start` to `stop` in equal parts; from step `steps` on, `stop`.

    >>> [linear(1.0, 0.5, steps=4)(step) for step in (0, 2, 4, 5)]
    [1.0, 0.75, 0.5, 0.5]
    """
    return _between("linear", start, stop, steps, lambda done: done)


def cosine(start: float, stop: float, steps: int) -> Ratio:
    """From `start` to `stop` along half a wave: slowly at both ends.

    >>> [round(cosine(1.0, 0.2, steps=4)(step), 3) for step in range(5)]
    [1.0, 0.883, 0.6, 0.317, 0.2]
    """
    return _between("cosine", start, stop, steps, lambda done: (1 - math.cos(math.pi * done)) / 2)


def warm_up(steps: int, then: Ratio | float) -> Ratio:
    """Full gradients for the first `steps`; then a ratio, or a function that counts from there.

    With a decay, `run_grad` moves on meanwhile.

    >>> [warm_up(2, then=0.05)(step) for step in range(4)]
    [1.0, 1.0, 0.05, 0.05]
    """
    _check_steps("warm_up", steps)
    later = _function(then)
    return lambda step: 1.0 if step < steps else later(step - steps)


def until(steps: int, ratio: Ratio | float) -> Ratio:
    """A ratio, or a function, for the first `steps`; full gradients from there on.

    >>> [until(2, ratio=0.05)(step) for step in range(4)]
    [0.05, 0.05, 1.0, 1.0]
    """
    _check_steps("until", steps)
    first = _function(ratio)
    return lambda step: first(step) if step < steps else 1.0


def alternate(ratio: float, steps: int = 1) -> Ratio:
    """`steps` with full gradients and as many with `ratio`, by turns.

    By epochs (as ssProp does): call `Scheduler.step` once an epoch, or give an epoch's steps.

    >>> [alternate(0.05)(step) for step in range(4)]
    [1.0, 0.05, 1.0, 0.05]
    """
    check_ratio("alternate", "ratio", ratio)
    _check_steps("alternate", steps)
    return lambda step: 1.0 if step // steps % 2 == 0 else ratio


class Scheduler:
    """Sets the ratio of the model's rules, at once and at each `step()`; all else stays.

    ratio: a function of the number of steps so far (one of this module, or any), or a number; or
    several by patterns of layer names, as in `meprop.convert`. Layers without a rule are left out.
    A ratio that was never there before costs a layer some 0.1 ms of planning: let it change by the
    epoch, or every some hundred mini-batches.

    >>> from meprop import Conv2d, TopK
    >>> model = nn.Sequential(Conv2d(1, 8, 3, rule=TopK(0.05)), Conv2d(8, 8, 3, rule=TopK(0.05)))
    >>> scheduler = Scheduler(model, {"*": 0.1, "1": cosine(1.0, 0.05, steps=10)})
    >>> scheduler.ratios()
    {'0': 0.1, '1': 1.0}
    """

    def __init__(
        self, model: nn.Module, ratio: Ratio | float | Mapping[str, Ratio | float | None]
    ) -> None:
        self.steps = 0
        named = {
            module: names
            for module, names in names_of(model).items()
            if isinstance(module, Selecting) and module.rule is not None
        }
        if not named:
            raise ValueError("Scheduler: no layer of the model has a rule; meprop.convert it first")
        chosen = rules_by_name("Scheduler", ratio, named)
        self._layers = {named[m][0]: (m, _function(each)) for m, each in chosen.items()}
        self._set()

    def step(self) -> None:
        """Go on by one; call it after the optimizer's step, or once an epoch."""
        self.steps += 1
        self._set()

    def ratios(self) -> dict[str, float]:
        """The ratio of each layer now, by its name."""
        return {name: ratio(self.steps) for name, (_, ratio) in self._layers.items()}

    def state_dict(self) -> dict[str, Any]:
        """How many steps were made; the functions are part of the program."""
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another scheduler was."""
        self.steps = state["steps"]
        self._set()

    def _set(self) -> None:
        for layer, ratio in self._layers.values():
            if isinstance(layer, Selecting) and layer.rule is not None:
                layer.rule = replace(layer.rule, ratio=ratio(self.steps))


def _function(ratio: Ratio | float) -> Ratio:
    return ratio if callable(ratio) else constant(ratio)


def _between(
    owner: str, start: float, stop: float, steps: int, way: Callable[[float], float]
) -> Ratio:
    check_ratio(owner, "start", start)
    check_ratio(owner, "stop", stop)
    _check_steps(owner, steps)
    # Beginning at the end, so that rounding leaves both ends as they were given.
    return lambda step: (
        start if step <= 0 else stop + (start - stop) * (1 - way(min(1, step / steps)))
    )


def _check_steps(owner: str, steps: object) -> None:
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"{owner}: steps must be an integer of at least 1, got {steps!r}")
