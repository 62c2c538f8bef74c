"""A description for every page, for search engines and link previews."""

from __future__ import annotations

import html
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

LONGEST = 160  # characters of a description that search engines show


def describe(
    app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Without a description of its own, a page is described by its first sentences."""
    if doctree is None or 'name="description"' in context.get("metatags", ""):
        return
    for paragraph in doctree.findall(nodes.paragraph):
        if text := summary(paragraph.astext()):
            tag = f'<meta name="description" content="{html.escape(text)}" />'
            context["metatags"] = f"{context.get('metatags', '')}\n{tag}"
            return


def summary(text: str) -> str:
    """The beginning of a text, as far as whole words go.

    >>> len(summary("Which entries are kept? " * 20)) <= LONGEST + 1
    True
    >>> summary("Which entries\\n are kept?")
    'Which entries are kept?'
    """
    text = " ".join(text.split())
    if len(text) <= LONGEST:
        return text
    return text[:LONGEST].rpartition(" ")[0] + "…"


def setup(app: Sphinx) -> None:
    """Before a page is written."""
    app.connect("html-page-context", describe)
