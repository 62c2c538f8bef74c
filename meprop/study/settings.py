"""Checked settings: a value that is wrong ends in one sentence, with the nearest right one.

pydantic checks the configuration of a run, experiments.yml and the parameters of a notebook;
`mistake` puts into words what it found.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_after_validator_function

Place = tuple[Any, ...]  # the names and indices that lead to a value


class InOneSentence(Exception):
    """What went wrong, in a sentence: a notebook shows no more of it."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class SettingError(InOneSentence, ValueError):
    """A wrong setting, and its place."""

    def __init__(self, what: str, place: Place = ()) -> None:
        super().__init__(what)
        self.place = place


def nearest(word: object, known: Iterable[object]) -> str:
    """`did you mean 'x'?`, or the list of what is known."""
    words = [str(name) for name in known]
    near = get_close_matches(str(word), words, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(words)}"


def shown(value: object) -> str:
    """A value as Python writes it, its beginning if that is long."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:80]}... ({len(text)} characters)"


_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_MUST = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping of names",
    "too_short": "not empty",
    "model_type": "a mapping of names",
}


def mistake(
    error: ValidationError, known: Callable[[Place], Iterable[object]], noun: str = "key"
) -> SettingError:
    """What pydantic found first, an unknown name before all else; `known`: the names at a place."""
    every: list[Any] = error.errors(include_url=False)
    found = next((each for each in every if each["type"] in _UNKNOWN), every[0])
    kind, place, value, context = (found.get(key) for key in ("type", "loc", "input", "ctx"))
    is_key = place[-1:] == ("[key]",)
    place = tuple(part for part in place if part != "[key]")
    name = place[-1] if place else "this"
    if kind in _UNKNOWN:
        return SettingError(f"unknown {noun} {name!r}; {nearest(name, known(place[:-1]))}", place)
    if kind == "missing":
        return SettingError(f"the {noun} {name!r} is missing", place[:-1])
    if kind == "value_error":
        return SettingError(str(context["error"]), place)
    must = _MUST.get(kind) or found["msg"].removeprefix("Input should be ")
    hint = context.get("hint", "") if context else ""
    if isinstance(value, str) and kind == "float_type" and re.fullmatch(r"\d+e-?\d+", value):
        hint = f"; in YAML write {float(value)!r}"  # which takes a float without a dot for text
    if isinstance(value, int) and kind == "float_type":
        must = "a number below 1e308"  # which an int may exceed
    if is_key:
        name, hint = "a name", f"; in YAML write {str(value)!r}"
    elif isinstance(name, int):
        name = f"each of {place[-2] if place[-2] != '*' else place[-3]}"
    return SettingError(f"{name} must be {must}, got {shown(value)}{hint}", place)


class _Checked:
    """An annotation of a setting's type: `check` looks at what has the type."""

    def check(self, value: Any) -> Any:
        raise NotImplementedError

    def wrong(self, must: str, hint: str = "") -> PydanticCustomError:
        return PydanticCustomError("wrong", "{must}", {"must": must, "hint": hint and f"; {hint}"})

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return no_info_after_validator_function(self.check, handler(source))


@dataclass(frozen=True)
class OneOf(_Checked):
    """One of some values."""

    options: Collection[Any]

    def check(self, value: Any) -> Any:
        if value in self.options:
            return value
        *most, last = map(repr, self.options)
        near = get_close_matches(str(value), map(str, self.options), n=1)
        hint = f"did you mean {near[0]!r}?" if near else ""
        raise self.wrong(f"{', '.join(most)} or {last}" if most else last, hint)


@dataclass(frozen=True)
class Folder(_Checked):
    """A folder relative to another."""

    base: Path

    def check(self, value: str) -> str:
        if os.path.isdir(self.base / value):  # pathlib's raises for a name that is too long
            return value
        raise self.wrong("a folder")


@dataclass(frozen=True)
class Number(_Checked):
    """Numbers from `low` to `high`, both included unless `above` or `below` says otherwise.

    In a notebook (see `notebook.check`) `whole` tells the type.

    >>> 0.05 in Number(0, 1, above=True), str(Number(0, 1, above=True))
    (True, 'in (0, 1]')
    """

    low: float
    high: float = float("inf")
    whole: bool = False
    above: bool = False
    below: bool = False
    hint: str = ""  # for who has it wrong

    def __contains__(self, value: float) -> bool:
        low = value > self.low if self.above else value >= self.low
        return low and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        if self.high == float("inf"):
            return f"{'greater than' if self.above else 'at least'} {self.low:g}"
        return f"in {'[('[self.above]}{self.low:.12g}, {self.high:.12g}{'])'[self.below]}"

    def check(self, value: float) -> float:
        if value in self:
            return value
        percent = self.high == 1 and value / 100 in self
        raise self.wrong(str(self), f"did you mean {value / 100:g}?" if percent else self.hint)
