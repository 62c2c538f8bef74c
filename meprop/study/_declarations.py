"""YAML with line numbers, and errors that say where in a file something is wrong."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import yaml


class ExperimentsError(ValueError):
    """A mistake in experiments.yml, or a name that it does not have."""


def nearest(word: str, known: Any) -> str:
    """`; did you mean 'x'?`, or the list of what is known."""
    words = [str(name) for name in known]
    near = get_close_matches(word, words, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(words)}"


class Lined(dict):
    """A mapping that remembers the lines its keys are in."""

    lines: dict[Any, int]


class Loader(yaml.SafeLoader):
    """YAML that refuses a key given twice, which the standard loader takes in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Lined:
        own = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # the standard loader refuses it below
            if key in own:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} is there twice", key_node.start_mark
                )
            own.add(key)
        result = Lined(super().construct_mapping(node, deep=True))
        result.lines = {
            self.construct_object(key, deep=True): key.start_mark.line + 1 for key, _ in node.value
        }
        return result


Loader.add_constructor("tag:yaml.org,2002:map", Loader.construct_mapping)


@dataclass(frozen=True)
class Place:
    """A value of the file, and how to say where it is."""

    where: str
    value: Any
    line: int | None = None

    def fail(self, what: str, key: Any = None) -> ExperimentsError:
        line = self.value.lines.get(key, self.line) if isinstance(self.value, Lined) else None
        line = line or self.line
        file, _, rest = self.where.partition(", ")
        parts = [file, f"line {line}" if line else "", rest]
        return ExperimentsError(f"{', '.join(part for part in parts if part)}: {what}")

    def mapping(self, key: Any = None) -> Lined:
        value = self.value if key is None else self.value[key]
        if not isinstance(value, Lined):
            name = "this" if key is None else repr(key)
            raise self.fail(f"{name} must be a mapping of names, got {value!r}", key)
        return value

    def below(self, key: Any, name: str = "") -> Place:
        value = self.mapping()
        where = f"{self.where}, {name}" if name else self.where
        return Place(where, value[key], value.lines.get(key, self.line))

    def check_keys(self, known: tuple[str, ...], required: tuple[str, ...]) -> None:
        for key in self.mapping():
            if key not in known:
                raise self.fail(f"unknown key {key!r}; {nearest(str(key), known)}", key)
        for key in required:
            if key not in self.value:
                raise self.fail(f"{key!r} is missing")

    def of(self, key: str, kind: type, what: str) -> Any:
        if not isinstance(self.value[key], kind):
            raise self.fail(f"{key} must be {what}, got {self.value[key]!r}", key)
        return self.value[key]

    def names(self, key: str, known: Any, kind: str) -> tuple[str, ...]:
        for name in (found := self.of(key, list, "a list")):
            if name not in known:
                raise self.fail(f"no {kind} {name!r}; {nearest(str(name), known)}", key)
        if len(set(found)) < len(found) or not found:
            raise self.fail(f"{key} {'names one twice' if found else 'is empty'}", key)
        return tuple(found)
