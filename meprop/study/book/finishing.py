"""The last touches on built pages: less to load, names for all, and room for figures.

FontAwesome comes twice, as fonts and as a script of 1.5 MB that draws the same icons, and its fonts
are preloaded in a way that a page opened from a file is not allowed to. Thebe, which connects a
page to a kernel on the network, is there twice as well, and used nowhere. MathJax is loaded by the
first page on behalf of all others.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from PIL import Image
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


_IMAGE = re.compile(r'<img (?![^>]*\b(?:width|class)=)[^>]*?\bsrc="([^":]+\.png)"')
_WIDE = 640  # pixels; squeezed to the width of a phone, letters would be too small to read


def sized(page: str, folder: Path) -> str:
    """A page of `folder` that knows how large its figures are, before they are loaded.

    So nothing moves when they arrive. Where the screen is narrow, book.css lets a reader move along
    the `wide` ones.
    """

    def with_size(found: re.Match[str]) -> str:
        with Image.open(folder / found[1]) as image:
            width, height = image.size
        kind = ' class="wide"' if width > _WIDE else ""
        return f'{found[0]} width="{width}" height="{height}"{kind}'

    return _IMAGE.sub(with_size, page)


_ICON = re.compile(r'(?:\.fa-[\w-]+:{1,2}before,?)+\{content:"[^"]*"\}')
_ICON_NAME = re.compile(r"\bfa-[\w-]+")


def fewer_icons(styles: str, used: Collection[str]) -> str:
    """FontAwesome's style sheet with those of its two thousand icons that somebody uses.

    >>> fewer_icons('.fa-a:before{content:"1"}.fa-b:before,.fa-c:before{content:"2"}', {"fa-c"})
    '.fa-b:before,.fa-c:before{content:"2"}'
    """

    def kept(rule: re.Match[str]) -> str:
        return rule[0] if any(name in used for name in _ICON_NAME.findall(rule[0])) else ""

    return _ICON.sub(kept, styles)


def _finish(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    icons: set[str] = set()
    for path in out.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        icons.update(_ICON_NAME.findall(page))
        if (changed := sized(finish(page), path.parent)) != page:
            path.write_text(changed, encoding="utf-8")
    for unused in (*out.glob("_static/vendor/fontawesome/*/js/*"), *out.glob("_static/*thebe*")):
        unused.unlink()
    for path in out.glob("_static/**/*.js"):
        icons.update(_ICON_NAME.findall(path.read_text(encoding="utf-8")))
    # Style sheets of the theme name an icon by its code, not by its class.
    for path in out.glob("_static/vendor/fontawesome/*/css/*.css"):
        styles = path.read_text(encoding="utf-8")
        path.write_text(fewer_icons(styles, icons), encoding="utf-8")


def setup(app: Sphinx) -> None:
    """After everything is written."""
    app.connect("build-finished", _finish)
