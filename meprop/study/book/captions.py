"""Captions, and so numbers, for the tables in notebooks.

A cell that shows tables names them in its metadata, in their order; a `name` is what other pages
refer to, and a notebook that becomes several pages gives none:

    "meprop": {"tables": [{"caption": "Test accuracy by ratio.", "name": "tab-ratio"}]}

A table in a notebook's text has its caption in the paragraph above, as in Pandoc's Markdown, which
reads well also where nobody numbers tables: `Table: Our calls beside the paper's equations.`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

_MARK = "Table: "


class Captions(SphinxTransform):
    """Give a page's tables their captions, before Sphinx numbers what has one."""

    default_priority = 200

    def apply(self, **_: Any) -> None:
        """Go through the page; where there were no records, a table may be missing."""
        for cell in self.document.findall(nodes.container):
            wanted = cell.get("cell_metadata", {}).get("meprop", {}).get("tables", [])
            for table, given in zip(cell.findall(nodes.table), wanted, strict=False):
                _caption(table, [nodes.Text(given["caption"])])
                if "name" in given:
                    table["names"].append(given["name"])
                    self.document.note_explicit_target(table)
        for table in list(self.document.findall(nodes.table)):
            place = table.parent.index(table)
            above = table.parent[place - 1] if place else None
            if isinstance(above, nodes.paragraph) and above.astext().startswith(_MARK):
                first, *rest = above.children
                _caption(table, [nodes.Text(first.astext().removeprefix(_MARK)), *rest])
                table.parent.remove(above)


def _caption(table: nodes.table, content: Sequence[nodes.Node]) -> None:
    table.insert(0, nodes.title("", "", *content))


def setup(app: Sphinx) -> None:
    """While pages are read."""
    app.add_transform(Captions)
