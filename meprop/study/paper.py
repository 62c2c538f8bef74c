"""The paper's numbers, from paper.yml: the one place where they stand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@dataclass(frozen=True)
class Row:
    """A row of Table 2 or 3; `name` is its configuration in experiments.yml."""

    name: str
    epoch: int
    dev: float
    test: float
    k: int | None = None  # percent; None: the baseline
    decay: float | None = None

    @property
    def label(self) -> str:
        """As in the table's first two columns."""
        return "baseline" if self.k is None else f"{self.k}%, decay {self.decay:g}"


@cache
def paper() -> dict[str, Any]:
    """All of paper.yml.

    >>> paper()["densities"]["relu"]
    {'conv1': 23, 'conv2': 3, 'fc1': 50}
    """
    source = files("meprop.study").joinpath("paper.yml")
    return yaml.safe_load(source.read_text(encoding="utf-8"))


def table(number: int) -> tuple[Row, ...]:
    """The rows of Table 2 or 3, the baseline first.

    >>> table(2)[0]
    Row(name='table2-baseline', epoch=18, dev=99.44, test=99.02, k=None, decay=None)
    """
    return tuple(Row(**row) for row in paper()["tables"][number]["rows"])
