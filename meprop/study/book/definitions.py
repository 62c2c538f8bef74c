"""Hover definitions: a term is explained where it first occurs on a page.

The explanation opens on hover, on keyboard focus and on touch (which focuses), and is read out.
"""

from __future__ import annotations

import html
import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxTranslator

# Term: what it looks like in a text, and what it means.
TERMS: dict[str, tuple[str, str]] = {
    "top-k": (
        r"top-k",
        "The k entries of largest magnitude of a group; all others are set to zero.",
    ),
    "ratio": (
        r"ratio",
        "The share of each group of gradient entries that is passed back; 5% is the paper's "
        "main setting.",
    ),
    "feature map": (
        r"feature maps?",
        "What one filter of a convolution produces. The paper selects within each feature map, "
        "over all positions of all images of the mini-batch.",
    ),
    "run_grad": (
        r"run_grad",
        "A running mean of gradient magnitudes (Eq. 15) by which entries are chosen; what is "
        "passed back is still the gradient of the current step.",
    ),
    "decay": (
        r"decay",
        "The weight of the past in run_grad, from 0 (only the current gradient counts) to below 1.",
    ),
    "scope": (
        r"scope",
        "The group among which the largest entries are chosen: a feature map over the mini-batch "
        "(the paper), a map of one image, the whole layer, or one image over all maps.",
    ),
    "density": (
        r"density|densities",
        "The share of nonzero entries. The paper calls it sparsity.",
    ),
    "baseline": (
        r"baseline",
        "The same network with the same seed, trained with all gradients.",
    ),
    "non-inferior": (
        r"non-inferior(?:ity)?",
        "Not worse by more than a margin that was fixed beforehand; weaker than equal, and unlike "
        "it something that data can show.",
    ),
}

_PATTERNS = {
    term: re.compile(rf"(?<![\w-]){shape}(?![\w-])", re.IGNORECASE)
    for term, (shape, _) in TERMS.items()
}
# Where a definition would be in the way, or is not read as prose.
_NOT_IN = (
    *(nodes.title, nodes.reference, nodes.literal_block, nodes.doctest_block, nodes.raw),
    *(nodes.math, nodes.caption, nodes.term, nodes.table, nodes.citation, nodes.rubric),
)


class explained(nodes.Inline, nodes.TextElement):
    """A term with its definition, in `term`."""


class Define(SphinxPostTransform):
    """Wrap the first occurrence of each term in a page's paragraphs."""

    default_priority = 700
    formats = ("html",)

    def run(self, **options: Any) -> None:
        left = dict(_PATTERNS)
        for text in list(self.document.findall(nodes.Text)):
            paragraph = _paragraph(text)
            if paragraph is not None and left:
                _define(text, left)


def _paragraph(text: nodes.Text) -> nodes.Element | None:
    node, found = text.parent, None
    while node is not None:
        # A term in a list of explanations is explained there already.
        if isinstance(node, (*_NOT_IN, explained, nodes.definition_list)):
            return None
        if isinstance(node, nodes.paragraph):
            found = node
        node = node.parent
    return found


def _define(text: nodes.Text, left: dict[str, re.Pattern[str]]) -> None:
    whole = text.astext()
    found = [(match, term) for term, shape in left.items() if (match := shape.search(whole))]
    # A literal is one word of code: it is the term, or it is something else.
    if isinstance(text.parent, nodes.literal):
        found = [(match, term) for match, term in found if match[0] == whole]
        for _, term in found[:1]:
            literal = text.parent
            wrapped = explained(term=term)
            literal.replace_self(wrapped)
            wrapped += literal
            del left[term]
        return
    if not found:
        return
    match, term = min(found, key=lambda pair: pair[0].start())
    before, after = nodes.Text(whole[: match.start()]), nodes.Text(whole[match.end() :])
    wrapped = explained(match[0], match[0], term=term)
    parent = text.parent
    place = parent.index(text)
    parent.remove(text)
    for new in reversed([part for part in (before, wrapped, after) if part.astext()]):
        parent.insert(place, new)
    del left[term]
    if after.astext():
        _define(after, left)


def _visit(translator: SphinxTranslator, node: explained) -> None:
    name = re.sub(r"\W+", "-", node["term"])
    translator.body.append(
        f'<span class="term" tabindex="0" role="term" aria-describedby="term-{name}">'
    )


def _depart(translator: SphinxTranslator, node: explained) -> None:
    name = re.sub(r"\W+", "-", node["term"])
    meaning = html.escape(TERMS[node["term"]][1])
    translator.body.append(
        f'<span class="term-meaning" role="tooltip" id="term-{name}">{meaning}</span></span>'
    )


def glossary() -> str:
    """All terms, as a definition list."""
    return "\n\n".join(f"{term}\n: {meaning}" for term, (_, meaning) in sorted(TERMS.items()))


def setup(app: Sphinx) -> None:
    """Add the node and the transform."""
    app.add_node(explained, html=(_visit, _depart))
    app.add_post_transform(Define)
