"""What the entries of a gradient compete with, under each scope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from meprop import TopK
from meprop.selection import from_groups, to_groups

SCOPES = ("map", "sample", "layer", "mixed")  # what a group can be in a convolution's gradient


@dataclass(frozen=True)
class Groups:
    """How a scope divides a gradient of some shape."""

    scope: str
    ids: Tensor  # of the gradient's shape: the number of each entry's group
    number: int
    size: int

    @property
    def of(self) -> str:
        """What a group is, as a product of the paper's letters."""
        return {"map": "m·h·w", "sample": "h·w", "layer": "m·h·w·c", "mixed": "h·w·c"}[self.scope]


def groups(shape: Sequence[int], scope: str) -> Groups:
    """The groups that `meprop.select` ranks apart from each other.

    >>> found = groups((10, 32, 28, 28), "map")
    >>> found.number, found.size
    (32, 7840)
    """
    rows = to_groups(torch.zeros(*shape), scope)
    ids = torch.arange(len(rows)).unsqueeze(1).expand(rows.shape)
    return Groups(scope, from_groups(ids, torch.Size(shape), scope), *rows.shape)


def table_of_groups(shape: Sequence[int], ratio: float, chosen: str) -> str:
    """Number and size of the groups of every scope, and k; the chosen one in bold."""
    lines = ["| scope | a group is | groups | entries of a group | k |", "|---|---|---:|---:|---:|"]
    for scope in SCOPES:
        found = groups(shape, scope)
        k = TopK(ratio, scope=scope).k(found.size)
        cells = [f"`{scope}`", WORDS[scope], f"{found.number:,}", f"{found.size:,}", f"{k:,}"]
        if scope == chosen:
            cells = [f"**{cell}**" for cell in cells]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


WORDS = {
    "map": "a feature map over the whole mini-batch",
    "sample": "a feature map of one image",
    "layer": "everything",
    "mixed": "one image, all feature maps together",
}
