"""A numbered table with a caption, as MyST."""

from __future__ import annotations

from collections.abc import Iterable


def table(name: str, caption: str, heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table that other pages refer to by `tab-NAME`.

    >>> print(table("suites", "What is done.", ["suite", "done"], [["paper", "3 of 48"]]))
    :::{table} What is done.
    :name: tab-suites
    <BLANKLINE>
    | suite | done |
    | --- | --- |
    | paper | 3 of 48 |
    :::
    """
    lines = [tuple(heads)]
    lines += [("---",) * len(lines[0]), *map(tuple, rows)]
    cells = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([f":::{{table}} {caption}", f":name: tab-{name}", "", *cells, ":::"])
