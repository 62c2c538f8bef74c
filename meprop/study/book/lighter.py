"""Take out of the built pages what the theme loads and nobody needs.

FontAwesome comes twice, as fonts and as a script of 1.5 MB that draws the same icons; and its fonts
are preloaded in a way that a page opened from a file is not allowed to.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

_SURPLUS = re.compile(
    r"""\s*<link\ rel="preload"\ as="font"[^>]*>
      | \s*<script\ src="[^"]*/fontawesome/[^"]*\.js[^"]*"></script>""",
    re.VERBOSE,
)


def lighter(page: str) -> str:
    """A page without the script and the preloads.

    >>> lighter('<p><script src="_static/vendor/fontawesome/6/js/all.min.js?x"></script></p>')
    '<p></p>'
    """
    return _SURPLUS.sub("", page)


def _lighten(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    for path in out.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        if (changed := lighter(page)) != page:
            path.write_text(changed, encoding="utf-8")
    for script in out.glob("_static/vendor/fontawesome/*/js/*"):
        script.unlink()


def setup(app: Sphinx) -> None:
    """After everything is written."""
    app.connect("build-finished", _lighten)
