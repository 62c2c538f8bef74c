"""The whole book as one PDF: `pdf.py SITE FILE`, or `make pdf`. Needs chromium, or another Chrome.

All pages of the list at the left, one after the other, but those of single runs, which are the
site's. A link to another page leads to its place here.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from bs4 import BeautifulSoup, Tag
from playwright.sync_api import sync_playwright

RUNS, MATHJAX = "notebooks/runs/", "_static/mathjax/tex-chtml.js"
SURPLUS = "script, button, a.headerlink, .toctree-wrapper"
FOOTER = '<p class="pageNumber" style="width: 100%; text-align: center; font: 8pt sans-serif"></p>'


def _soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def _place(name: str, anchor: str = "") -> str:
    """What a page, or something on it, is called in the whole."""
    return name.removesuffix(".html").replace("/", "-") + (f"--{anchor}" if anchor else "")


def _name(link: Tag, page: Path, site: Path) -> tuple[str, str]:
    """The file of the site that a link of a page leads to, and the place in it."""
    address, anchor = urldefrag(urljoin(page.as_uri(), str(link["href"])))
    path = Path(unquote(urlsplit(address).path))
    return path.relative_to(site).as_posix() if path.is_relative_to(site) else "", unquote(anchor)


def whole(site: Path, start: str = "book/index.html") -> str:
    """One page of HTML, to be kept in the folder of the site, with all the others in it."""
    first = _soup(site / start)
    links = first.select("nav.bd-links a.reference")
    titles = {_name(link, site / start, site)[0]: link.get_text(strip=True) for link in links}
    titles = {name: title for name, title in titles.items() if not name.startswith(RUNS)}
    articles, formulas = [], ""
    for name in titles:
        page = _soup(site / name)
        formulas = formulas or "".join(map(str, page.select("script:-soup-contains(MathJax)")))
        article = page.select_one("article")
        assert article is not None, f"{name}: no article"
        for surplus in article.select(SURPLUS):
            surplus.decompose()
        for each in article.select("[id]"):
            each["id"] = _place(name, str(each["id"]))
        for image in article.select("img[src]"):
            path = Path(os.path.normpath(site / name / ".." / str(image["src"])))
            image["src"] = path.relative_to(site).as_posix()
        for link in article.select("a[href]"):
            target, anchor = _name(link, site / name, site)
            if target in titles:
                link["href"] = "#" + _place(target, anchor)
            elif urlsplit(str(link["href"])).scheme not in ("http", "https"):
                link.unwrap()  # a file beside the book
        article["id"] = _place(name)
        articles.append(str(article))
    styles = "".join(map(str, first.select('link[rel="stylesheet"]')))
    contents = "".join(f'<li><a href="#{_place(it)}">{titles[it]}</a></li>' for it in titles)
    mathjax = formulas and f'{formulas}<script defer src="{MATHJAX}"></script>'
    return (
        '<!DOCTYPE html><html lang="en" data-theme="light"><head><meta charset="utf-8">'
        f"<title>meprop</title>{styles.replace('../', '')}{mathjax}</head><body class='whole'>"
        f"<nav><h1>Contents</h1><ul>{contents}</ul></nav>{''.join(articles)}</body></html>"
    )


def write(site: Path, out: Path) -> None:
    """Print the whole site."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if chromium is None:
        sys.exit("make pdf: needs chromium (Debian: apt install chromium)")
    page = site / "whole.html"
    page.write_text(whole(site), encoding="utf-8")
    try:
        with sync_playwright() as driver:
            options = ["--no-sandbox"] if os.geteuid() == 0 else []  # root may not have one
            browser = driver.chromium.launch(executable_path=chromium, args=options)
            shown = browser.new_page()
            shown.goto(page.as_uri(), wait_until="load", timeout=300_000)
            shown.evaluate("window.MathJax?.startup?.promise")
            shown.pdf(
                path=out,
                format="A4",
                margin={"top": "16mm", "right": "16mm", "bottom": "16mm", "left": "16mm"},
                display_header_footer=True,
                header_template="<p></p>",
                footer_template=FOOTER,
                outline=True,
                tagged=True,
            )
            browser.close()
    finally:
        page.unlink()


if __name__ == "__main__":
    write(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
