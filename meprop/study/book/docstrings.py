"""Our docstrings, as reStructuredText for the API page.

In them `code` stands between single backticks, and a parameter or field has a line `name: what it
is` whose continuation is indented.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

_FIELD = re.compile(r"(?P<names>[a-z_]+(?:, [a-z_]+)*): (?P<text>.+)")
_CODE = re.compile(r"(?<![`:\w])`([^`\n]+)`(?!`)")


def to_rst(lines: list[str]) -> list[str]:
    """Turn the lines of a docstring into reStructuredText.

    >>> to_rst(["Keep the largest.", "", "ratio: the share of `x`", "    that is kept."])
    ['Keep the largest.', '', '``ratio``', '    the share of ``x`` that is kept.', '']
    """
    made: list[str] = []
    block: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            block.append(line)
        else:
            made += [*_block(block), ""] if block else []
            block = []
    return made


def _block(lines: list[str]) -> list[str]:
    if lines[0].lstrip().startswith((">>>", "...")):
        return lines
    fields = _fields(lines)
    if fields is None:
        return [_code(line) for line in lines]
    made = []
    for names, text in fields:
        made += [", ".join(f"``{name}``" for name in names.split(", ")), f"    {_code(text)}"]
    return made


def _fields(lines: list[str]) -> list[tuple[str, str]] | None:
    """The fields of a block that is made of nothing else."""
    if not _FIELD.fullmatch(lines[0]):
        return None
    sentences = re.split(r"(?<=[.;]) (?=[a-z_]+: )", " ".join(line.strip() for line in lines))
    starts = []
    for line in lines:
        if not line.startswith(" ") and (found := _FIELD.fullmatch(line)):
            starts.append((found["names"], found["text"]))
        elif starts:
            names, text = starts[-1]
            starts[-1] = (names, f"{text} {line.strip()}")
    # Several fields in one paragraph of running text, as `before, after: ... weight: ...`.
    if len(starts) < len(sentences):
        matches = [_FIELD.fullmatch(sentence) for sentence in sentences]
        if all(matches):
            return [(match["names"], match["text"]) for match in matches if match]
    return starts


def _code(text: str) -> str:
    return _CODE.sub(r"``\1``", text)


def _process(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = to_rst(lines)


def setup(app: Sphinx) -> None:
    """Add autodoc, and our reading of docstrings."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", _process)
