"""What the book needs of Sphinx beyond its own means; `_config.yml` loads it.

Captions, and so numbers, for the tables in notebooks. A cell that shows tables names them in its
metadata, in their order; `name` is what other pages refer to:

    "meprop": {"tables": [{"caption": "Test accuracy by ratio.", "name": "tab-ratio"}]}

A table in a notebook's text has its caption in the paragraph above: `Table: Equations and calls.`

The role `paper`, a number of the paper by its place in paper.yml. Our docstrings, read for the API
page. What a page says of itself to search engines. Sizes of figures, so that nothing moves while a
page loads, and less to load; their panels one below the other on a phone. The claims that use a
run, on its page.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection
from functools import cache
from html import escape
from pathlib import Path
from textwrap import shorten
from typing import Any

import yaml
from docutils import nodes
from PIL import Image
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from meprop.study.paper import paper

# Tables


class Captions(SphinxTransform):
    """Give a page's tables their captions, before Sphinx numbers what has one."""

    default_priority = 200

    def apply(self, **_: Any) -> None:
        for cell in self.document.findall(nodes.container):
            wanted = cell.get("cell_metadata", {}).get("meprop", {}).get("tables", [])
            for table, given in zip(cell.findall(nodes.table), wanted, strict=False):
                table.insert(0, nodes.title("", given["caption"]))
                if "name" in given:
                    table["names"].append(given["name"])
                    self.document.note_explicit_target(table)
        for table in list(self.document.findall(nodes.table)):
            place = table.parent.index(table)
            above = table.parent[place - 1] if place else None
            if isinstance(above, nodes.paragraph) and above.astext().startswith("Table: "):
                first, *rest = above.children
                text = nodes.Text(first.astext().removeprefix("Table: "))
                table.insert(0, nodes.title("", "", text, *rest))
                table.parent.remove(above)


def number_by_page(app: Sphinx, env: Any) -> list[str]:
    """Count figures and tables anew on every page: nobody looks for the 174th of a book."""
    for kinds in env.toc_fignumbers.values():
        for numbers in kinds.values():
            numbers.update({name: (place,) for place, name in enumerate(numbers, 1)})
    return []


# The order of a page


class Order(SphinxTransform):
    """Open a page with its answer: notebooks compute first and answer later.

    What cells tagged `lead` show goes up to the first cell, and parameters and imports (the cells
    `parameters` and after it) go down to the foot.
    """

    default_priority = 210  # after the captions

    def apply(self, **_: Any) -> None:
        cells = [
            c for c in self.document.findall(nodes.container) if c.get("nb_element") == "cell_code"
        ]
        for cell in cells[1:]:
            for out in _shown(cell) if "lead" in _tags(cell) else ():
                cell.remove(out)
                cells[0].parent.insert(cells[0].parent.index(cells[0]), out)
        sections = list(self.document.findall(nodes.section))
        if cells and "parameters" in " ".join(_tags(cells[0])):
            for cell in (cell for cell in cells[:2] if not _shown(cell)):
                cell.parent.remove(cell)
                sections[-1].append(cell)


def _tags(cell: nodes.Element) -> list[str]:
    return cell.get("cell_metadata", {}).get("tags", [])


def _shown(cell: nodes.Element) -> list[nodes.Element]:
    return [part for part in cell.children if part.get("nb_element") == "cell_code_output"]


class Sizes(SphinxTransform):
    """Leave the sizes of figures to `finish`, whose phones get another picture."""

    default_priority = 220

    def apply(self, **_: Any) -> None:
        for image in self.document.findall(nodes.image):
            if image["uri"].endswith(".png"):
                for key in ("width", "height"):
                    image.attributes.pop(key, None)


# What a page says of itself


def link_commit(document: nodes.document, address: str) -> None:
    """Let the commit in a run's table of origin lead to the repository at an address."""
    for row in document.findall(nodes.row):
        name, *rest = (cell.astext() for cell in row.children)
        if name == "commit" and rest and re.fullmatch("[0-9a-f]{7,}", rest[0]):
            (text,) = row.children[1].findall(nodes.Text)
            link = nodes.reference("", text, refuri=f"{address.rstrip('/')}/commit/{text}")
            text.parent.replace(text, link)


class Commits(SphinxTransform):
    """With an address of the repository (`_config.yml`), the pages of runs link their commits."""

    default_priority = 220

    def apply(self, **_: Any) -> None:
        address = self.config.html_theme_options.get("repository_url")
        if address and "/runs/" in self.env.docname:
            link_commit(self.document, address)


def description(document: nodes.document) -> str:
    """The one that a page gives, or else its title and what it begins with."""
    for meta in document.findall(nodes.meta):
        if meta.get("name") == "description":
            return meta["content"]
    title = next(document.findall(nodes.title)).astext()
    texts = (paragraph.astext() for paragraph in document.findall(nodes.paragraph))
    first = next((text for text in texts if text.endswith((".", "?"))), "")
    return shorten(f"{title}{'' if title.endswith('?') else '.'} {first}", 200, placeholder=" …")


def describe(app: Sphinx, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    """OpenGraph, for whoever links to a page; an image and an address if the site has one."""
    if document is None:
        return
    base, about = app.config.html_baseurl.rstrip("/"), description(document)
    said = {"title": context["title"], "description": about, "type": "article"}
    said |= {"site_name": app.config.html_title or app.config.project}
    if base:
        images = (app.builder.images.get(it["uri"], "") for it in document.findall(nodes.image))
        figure = next((name for name in images if name.endswith(".png")), None)
        said |= {"url": f"{base}/{page}.html"} | (
            {"image": f"{base}/_images/{figure}"} if figure else {}
        )
    tags = [("property", f"og:{name}", text) for name, text in said.items()]
    if 'name="description"' not in context["metatags"]:
        tags.append(("name", "description", about))
    context["metatags"] += "".join(
        f'<meta {kind}="{name}" content="{escape(re.sub("<.*?>", "", text))}" />\n'
        for kind, name, text in tags
    )


# The paper's numbers


def paper_role(name: str, rawtext: str, text: str, line: int, inliner: Any, *_: Any) -> Any:
    """`paper` with a path such as densities.relu.conv1."""
    value: Any = paper()
    for key in text.split("."):
        if not isinstance(value, dict) or key not in value:
            return [], [inliner.reporter.error(f"paper: nothing at {text!r}", line=line)]
        value = value[key]
    return [nodes.Text(f"{value:g}")], []


# The explorer


def glued(path: Path) -> dict[str, Any]:
    """The values that an executed notebook offers to other pages."""
    found = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", ()):
            if name := output.get("metadata", {}).get("scrapbook", {}).get("name"):
                (content,) = output["data"].values()
                found[name] = yaml.safe_load("".join(content))
    return found


def costs(app: Sphinx, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    """Put beside the explorer what the tables and the page on speed say that a choice costs."""
    place = '<div id="meprop-explorer">'
    if place in context.get("body", ""):
        folder = Path(app.srcdir) / "notebooks"
        known = glued(folder / "03-tables.ipynb") | glued(folder / "05-speed.ipynb")
        data = f'<script type="application/json" id="explorer-costs">{json.dumps(known)}</script>'
        context["body"] = context["body"].replace(place, data + place)


# The pages of runs


def claims_of(ledger: str, page: str) -> list[str]:
    """The claims whose entries in the ledger link to a page."""
    entries = re.split(r"^\(claim-(.*?)\)=$", ledger, flags=re.MULTILINE)
    both = zip(entries[1::2], entries[2::2], strict=True)
    return [key for key, entry in both if f"(/{page}.ipynb)" in entry]


@cache
def tables(path: Path) -> str:
    """What the cells of an executed notebook show as Markdown."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", ())]
    return "".join("".join(data.get("text/markdown", "")) for data in outputs)


def link_users(
    app: Sphinx, page: str, template: str, context: dict[str, Any], document: Any
) -> None:
    """Let the page of a run link to the claims that use it, or else to other pages that do."""
    body = context.get("body", "")
    found = re.search(r'<a [^>]*href="([^"#]*06-claims\.html)">.*?</a>', body)
    if "/runs/" not in page or not found:
        return
    folder = Path(app.srcdir, "notebooks")
    claims = claims_of(tables(folder / "06-claims.ipynb"), page)
    links = [f'<a href="{found[1]}#claim-{key}">{key}</a>' for key in claims]
    told = f"Claims: {', '.join(links)}"
    if not links:
        users = [it.stem for it in folder.glob("*.ipynb") if f"(/{page}.ipynb)" in tables(it)]
        pages = {found[1].replace("06-claims", it): f"notebooks/{it}" for it in sorted(users)}
        new = {href: it for href, it in pages.items() if f'href="{href}"' not in body}
        links = [f'<a href="{href}">{app.env.titles[it].astext()}</a>' for href, it in new.items()]
        told = " · ".join(links or [found[0]])
    context["body"] = body.replace(found[0], told)


# Docstrings

_NAMES = r"(?:[a-z_]+, )*[a-z_]+"
_FIELD = re.compile(rf"(?:^|(?<=[.;]) )({_NAMES}): ")


def to_rst(lines: list[str]) -> list[str]:
    """A docstring's lines as reStructuredText: code in single backticks, `name: what it is`.

    >>> to_rst(["Keep the largest.", "", "ratio: the share of `x`", "    that is kept."])
    ['Keep the largest.', '', '``ratio``', '    the share of ``x`` that is kept.', '']
    """
    made = []
    for block in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        if not block.lstrip().startswith(">>>"):
            block = re.sub(r"(?<![`:\w])`([^`\n]+)`(?!`)", r"``\1``", block)
            if _FIELD.match(block):
                _, *fields = _FIELD.split(" ".join(block.split()))
                names = [", ".join(f"``{n}``" for n in each.split(", ")) for each in fields[::2]]
                pairs = zip(names, fields[1::2], strict=True)
                block = "\n".join(f"{name}\n    {text}" for name, text in pairs)
        made += [*block.split("\n"), ""]
    return made


def _docstring(app: Sphinx, what: str, name: str, it: Any, options: Any, lines: list[str]) -> None:
    lines[:] = to_rst(lines)


# Built pages

# FontAwesome comes twice, as fonts and as a script of 1.5 MB, and its fonts are preloaded in a way
# that a page opened from a file is not allowed to; Thebe is used nowhere.
_SURPLUS = re.compile(
    r"""\s*<link\ rel="preload"\ as="font"[^>]*>
      | \s*<script\ src="[^"]*/fontawesome/[^"]*\.js[^"]*"></script>
      | \s*<link[^>]*\ href="[^"]*/sphinx-thebe\.css[^"]*"[^>]*>
      | \s*<script[^>]*\ src="[^"]*/sphinx-thebe\.js[^"]*"></script>
      | \s*<script>(?:const\ THEBE_JS_URL|kernelName\ =).*?</script>
      | \s*<script\ type="text/x-thebe-config">.*?</script>""",
    re.VERBOSE | re.DOTALL,
)
_MATHJAX = re.compile(
    r"""\s*<script>window\.MathJax\ =.*?</script>
      | \s*<script[^>]*\ src="[^"]*/mathjax/[^"]*"></script>""",
    re.VERBOSE | re.DOTALL,
)
# A reader who cannot see the arrow in the list of pages has to hear what it does.
_ARROW = '<summary><span class="toctree-toggle"'
_IMAGE = re.compile(r'(<img (?![^>]*\b(?:width|class)=)[^>]*?\bsrc="([^":]+\.png)")([^>]*>)')
# Sphinx has the parameters of a long signature as a list of definitions without terms.
_SIGNATURE = re.compile(r'(<dt class="sig.*?)<dl>(.*?)</dl>(.*?</dt>)', re.DOTALL)
_WORDS = "supported|not supported|undecided|better|worse|not told apart"
_VERDICT = re.compile(rf'<(p|span)(?: class="pasted-text")?>({_WORDS})(?=</\1>)')
# An interval stays in one line.
_NUMBER = r"(?:<span[^>]*>)?[-+]?[\d.]+(?:</span>)?"
_INTERVAL = re.compile(rf"([(>]{_NUMBER}) to ({_NUMBER}[)<])")
# Up to which a screen is a phone's. On it book.css lets a reader move along a figure that is wider
# than the other, whose text would be too small to read.
_PHONE, _WIDE = 640, 480
_LINE = 720  # pixels of a picture, twice of a page: what a phone has beside each other


def _groups(boxes: list[list[int]], low: int, high: int) -> list[list[list[int]]]:
    """Boxes that overlap along an axis, whose bounds are their entries `low` and `high`."""
    found: list[list[list[int]]] = []
    for box in sorted(boxes, key=lambda box: box[low]):
        if found and box[low] < max(it[high] for it in found[-1]):
            found[-1].append(box)
        else:
            found.append([box])
    return found


def stacked(image: Image.Image, panels: list[list[int]]) -> Image.Image | None:
    """A figure's panels (`Figure.panels`) one below the other; None where they belong together."""
    rows = [_groups(row, 0, 2) for row in _groups(panels, 1, 3)]
    if not rows or not 1 < max(map(len, rows)) < 6:  # a row of more is a sheet of small pictures
        return None
    lines: list[list[Image.Image]] = []
    for row in rows:
        boxes = [box for group in row for box in group]
        top, bottom = min(box[1] for box in boxes) - 4, max(box[3] for box in boxes) + 4
        lines.append([])
        for group in row:
            cuts = [(it[4] - 4, it[5]) for it in group[:1] if len(it) > 4]
            cuts.append((min(it[0] for it in group) - 4, max(it[2] for it in group) + 4))
            parts = [image.crop((max(a, 0), max(top, 0), b, bottom)) for a, b in cuts]
            if lines[-1] and sum(part.width for part in (*lines[-1], *parts)) > _LINE:
                lines.append([])
            lines[-1] += parts
    width = max(sum(part.width for part in line) for line in lines)
    height = sum(line[0].height + 16 for line in lines)
    whole = Image.new("P", (width, height), image.getpixel((0, 0)))
    whole.putpalette(image.getpalette() or [])
    y = 0
    for line in lines:
        x = 0
        for part in line:
            whole.paste(part, (x, y))
            x += part.width
        y += line[0].height + 16
    return whole


def finish(page: str, folder: Path) -> str:
    """A page of `folder` without what is too much, and with the sizes of its figures."""

    def size(image: Image.Image, dpi: float) -> str:
        width, height = (round(pixels * 80 / dpi) for pixels in image.size)
        return f'width="{width}" height="{height}"'

    def with_size(found: re.Match[str]) -> str:
        path = folder / found[2]
        with Image.open(path) as image:
            dpi = image.info.get("dpi", (80,))[0]
            own, kind = size(image, dpi), ' class="wide"' * (image.width * 80 / dpi > _WIDE)
            narrow = stacked(image, json.loads(image.info.get("panels", "[]")))
        if narrow is None:
            return f"{found[1]} {own}{kind}{found[3]}"
        narrow.save(path.with_suffix(".narrow.png"), optimize=True)
        phone = f'srcset="{found[2].removesuffix("png")}narrow.png" {size(narrow, dpi)}'
        source = f'<source media="(max-width: {_PHONE}px)" {phone}>'
        return f"<picture>{source}{found[1]} {own}{found[3]}</picture>"

    def with_colour(found: re.Match[str]) -> str:
        if found[1] == "p" and folder.name == "book":
            return found[0]  # no result, but the name of a rule
        return f'<{found[1]} class="verdict {found[2].replace(" ", "-")}">{found[2]}'

    def without_list(found: re.Match[str]) -> str:
        lines = re.sub("(</?)dd>", r"\1span>", found[2])
        return f'{found[1]}<span class="sig-lines">{lines}</span>{found[3]}'

    page = _SIGNATURE.sub(without_list, _SURPLUS.sub("", page))
    page = page.replace(
        'role="doc-biblioentry"', 'role="listitem"'
    )  # in a list, as ARIA has it now
    page = page.replace(_ARROW, _ARROW.replace("<summary", '<summary aria-label="Pages below"'))
    page = _INTERVAL.sub(r"\1&nbsp;to&nbsp;\2", page)
    page = _VERDICT.sub(with_colour, page)
    return _IMAGE.sub(with_size, page if 'class="math' in page else _MATHJAX.sub("", page))


# Nobody asks for these: what maps the theme's files to their sources, fonts for browsers of before
# 2016, and translations.
_UNUSED = ("fontawesome/*/js/*", "*thebe*", "*.map", "*.ttf", "*.po", "*.mo")
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
    for path in out.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        path.write_text(finish(page, path.parent), encoding="utf-8")
    for pattern in _UNUSED:
        for path in out.glob(f"_static/**/{pattern}"):
            path.unlink()
    # Style sheets of the theme name an icon by its code, not by its class.
    users = [*out.rglob("*.html"), *out.glob("_static/**/*.js")]
    icons = {name for path in users for name in _ICON_NAME.findall(path.read_text("utf-8"))}
    for path in out.glob("_static/vendor/fontawesome/*/css/*.css"):
        path.write_text(fewer_icons(path.read_text("utf-8"), icons), encoding="utf-8")


def repository_buttons(app: Sphinx, config: Any) -> None:
    """With an address of the repository, links to it, to Binder and Colab; without, none."""
    options = config.html_theme_options
    if options.get("repository_url"):
        options["use_repository_button"] = True
    else:
        options["launch_buttons"] = {}


def on_all_cores(app: Sphinx) -> None:
    """Read and write pages side by side; Jupyter Book has no option for it."""
    app.parallel = os.cpu_count() or 1
    for extension in app.extensions.values():
        if extension.parallel_read_safe is None:  # those for LaTeX and numbers, idle here
            extension.parallel_read_safe = True


def setup(app: Sphinx) -> dict[str, Any]:
    """What Sphinx calls."""
    app.setup_extension("sphinx.ext.autodoc")
    app.add_transform(Order)
    app.add_transform(Captions)
    app.add_transform(Commits)
    app.add_transform(Sizes)
    app.add_role("paper", paper_role)
    app.connect("config-inited", repository_buttons)
    app.connect("builder-inited", on_all_cores)
    app.connect("html-page-context", describe)
    app.connect("html-page-context", costs)
    app.connect("html-page-context", link_users)
    app.connect("env-get-updated", number_by_page, priority=900)  # after Sphinx's own
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("build-finished", _finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
