"""A notebook's parameters, checked: what is wrong ends in one sentence, without a traceback."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from meprop.study._declarations import nearest
from meprop.study.words import listed

_IPYTHON = ("In", "Out", "exit", "quit", "get_ipython", "open")


class ParameterError(ValueError):
    """A wrong parameter; a notebook shows the sentence alone."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@dataclass(frozen=True)
class Number:
    """Numbers from `low` to `high`, both included unless `above` or `below` says otherwise."""

    low: float
    high: float = float("inf")
    whole: bool = False
    above: bool = False
    below: bool = False

    def __contains__(self, value: object) -> bool:
        kinds = (int,) if self.whole else (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool):
            return False
        low = value > self.low if self.above else value >= self.low
        return low and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        what = "a whole number" if self.whole else "a number"
        if self.high == float("inf"):
            return f"{what} {'above' if self.above else 'of at least'} {self.low:g}"
        return f"{what} in {'[('[self.above]}{self.low:g}, {self.high:g}{'])'[self.below]}"


def given(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are set in a notebook so far: its parameters, while they are all it has."""
    return {
        name: value
        for name, value in namespace.items()
        if not (name.startswith("_") or name in _IPYTHON)
        and not (callable(value) or isinstance(value, ModuleType))
    }


def check(namespace: Mapping[str, Any], **allowed: Collection[Any] | Number | Path) -> None:
    """Check a notebook's parameters, before anything else is set: `check(globals(), table=(2, 3))`.

    Choices are values, a `Number`, or a folder that the value must be a folder in. Everything that
    is set counts, so that a misspelt parameter, which papermill would only warn
    of, is an error.

    >>> check({"table": 4}, table=(2, 3))
    Traceback (most recent call last):
    meprop.study.parameters.ParameterError: table must be 2 or 3, got 4
    >>> check({"tabel": 2}, table=(2, 3))
    Traceback (most recent call last):
    meprop.study.parameters.ParameterError: unknown parameter 'tabel'; did you mean 'table'?
    """
    values = given(namespace)
    for name in values:
        if name not in allowed:
            raise ParameterError(f"unknown parameter {name!r}; {nearest(name, list(allowed))}")
    for name, choices in allowed.items():
        if name not in values:
            raise ParameterError(f"the parameter {name!r} is not set")
        value = values[name]
        if isinstance(choices, Path):
            if not isinstance(value, str) or not (choices / value).is_dir():
                raise ParameterError(f"{name} must be a folder, got {value!r}")
        elif isinstance(choices, Number):
            if value not in choices:
                raise ParameterError(
                    f"{name} must be {choices}, got {value!r}{_percent(value, choices)}"
                )
        # By type too: True is no 1.
        elif not any(type(value) is type(choice) and value == choice for choice in choices):
            raise ParameterError(f"{name} must be {listed(choices, 'or')}, got {value!r}")


def _percent(value: object, choices: Number) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool) and value / 100 in choices:
        return f"; did you mean {value / 100:g}?" if choices.high == 1 else ""
    return ""
