"""The Sphinx extension of the book: pages and numbers that are generated from records.

`_config.yml` loads it. A page asks for a generated piece by name,

    ```{generated} runs
    ```

and gets the Markdown that the function of that name in `PIECES` returns, so that links, tables and
formulas in it are checked as any others. `meprop.study.book.definitions` explains the few terms
where they first occur on a page; `meprop.study.book.docstrings` reads ours for the API page;
`meprop.study.book.captions` numbers the tables in notebooks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from docutils import nodes
from docutils.parsers.rst.states import Inliner
from sphinx.application import Sphinx
from sphinx.config import Config as SphinxConfig
from sphinx.util.docutils import SphinxDirective

from meprop.study.book import captions, definitions, docstrings, finishing, meta
from meprop.study.book.citing import cite_box
from meprop.study.book.context import later_work
from meprop.study.book.effects import effect
from meprop.study.book.idea import idea
from meprop.study.book.runs import runs_table
from meprop.study.book.start import studies_list
from meprop.study.book.status import costs, hardware, notebooks, suites, versions
from meprop.study.paper import paper

PIECES: dict[str, Callable[..., str]] = {
    "cite": cite_box,
    "costs": costs,
    "effect": effect,
    "hardware": hardware,
    "idea": idea,
    "later-work": later_work,
    "notebooks": notebooks,
    "runs": runs_table,
    "studies": studies_list,
    "suites": suites,
    "terms": definitions.glossary,
    "versions": versions,
}


class Generated(SphinxDirective):
    """`generated NAME ARGUMENTS...`: the Markdown of the function of that name."""

    required_arguments = 1
    optional_arguments = 20

    def run(self) -> list[nodes.Node]:
        name, *arguments = self.arguments
        if name not in PIECES:
            raise self.error(f"generated: no piece {name!r}; there are {', '.join(PIECES)}")
        # Records come and go without a page being touched.
        self.env.note_reread()
        return self.parse_text_to_nodes(PIECES[name](*arguments), allow_section_headings=True)


def paper_role(
    name: str, rawtext: str, text: str, lineno: int, inliner: Inliner, *rest: Any
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """`paper` with a path such as densities.relu.conv1: a number of the paper, from paper.yml."""
    value: Any = paper()
    for key in text.split("."):
        if not isinstance(value, dict) or key not in value:
            message = inliner.reporter.error(f"paper: nothing at {text!r}", line=lineno)
            return [], [message]
        value = value[key]
    return [nodes.Text(f"{value:g}")], []


def repository_buttons(app: Sphinx, config: SphinxConfig) -> None:
    """With an address of the repository, links to it, to Binder and Colab; without, none."""
    options = config.html_theme_options
    if options.get("repository_url"):
        options["use_repository_button"] = True
    else:
        options["launch_buttons"] = {}


def setup(app: Sphinx) -> dict[str, Any]:
    """What Sphinx calls."""
    app.add_directive("generated", Generated)
    app.connect("config-inited", repository_buttons)
    app.add_role("paper", paper_role)
    captions.setup(app)
    definitions.setup(app)
    docstrings.setup(app)
    finishing.setup(app)
    meta.setup(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
