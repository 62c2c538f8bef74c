"""The last touches on built pages: less to load, and names for all.

FontAwesome comes twice, as fonts and as a script of 1.5 MB that draws the same icons, and its fonts
are preloaded in a way that a page opened from a file is not allowed to. Thebe, which connects a
page to a kernel on the network, is there twice as well, and used nowhere. MathJax is loaded by the
first page on behalf of all others.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

_SURPLUS = re.compile(
    r"""\s*<link\ rel="preload"\ as="font"[^>]*>
      | \s*<script\ src="[^"]*/fontawesome/[^"]*\.js[^"]*"></script>
      | \s*<link[^>]*\ href="[^"]*/sphinx-thebe\.css[^"]*"[^>]*>
      | \s*<script[^>]*\ src="[^"]*/sphinx-thebe\.js[^"]*"></script>
      | \s*<script>const\ THEBE_JS_URL.*?</script>
      | \s*<script\ type="text/x-thebe-config">.*?</script>
      | \s*<script>kernelName\ =.*?</script>""",
    re.VERBOSE | re.DOTALL,
)
_MATHJAX = re.compile(
    r"""\s*<script>window\.MathJax\ =.*?</script>
      | \s*<script[^>]*\ src="[^"]*/mathjax/[^"]*"></script>""",
    re.VERBOSE | re.DOTALL,
)
# A reader who cannot see the arrow in the list of pages has to hear what it does.
_UNNAMED, _NAMED = '<summary><span class="toctree-toggle"', '<summary aria-label="Pages below">'
_NAMED += '<span class="toctree-toggle"'


def finish(page: str) -> str:
    """A page without what is too much, and with what is missing.

    >>> finish('<p><script src="_static/vendor/fontawesome/6/js/all.min.js?x"></script></p>')
    '<p></p>'
    """
    page = _SURPLUS.sub("", page).replace(_UNNAMED, _NAMED)
    return page if 'class="math' in page else _MATHJAX.sub("", page)


def _finish(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    for path in out.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        if (changed := finish(page)) != page:
            path.write_text(changed, encoding="utf-8")
    for unused in (*out.glob("_static/vendor/fontawesome/*/js/*"), *out.glob("_static/*thebe*")):
        unused.unlink()


def setup(app: Sphinx) -> None:
    """After everything is written."""
    app.connect("build-finished", _finish)
