"""The "cite this" box: BibTeX of this work, from CITATION.cff."""

from __future__ import annotations

import yaml

from meprop.study.experiments import ROOT


def cite_box() -> str:
    """A box with a BibTeX entry to copy (MyST)."""
    about = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    authors = " and ".join(f"{{{author['name']}}}" for author in about["authors"])
    title = about["title"].replace("meprop", "{meprop}", 1)
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    lines = [
        f"  author = {{{authors}}},",
        f"  title = {{{title}}},",
        f"  version = {{{about['version']}}},",
        f"  year = {{{config['copyright']}}},",
    ]
    if address := config.get("repository", {}).get("url"):
        lines.append(f"  url = {{{address}}},")
    entry = "\n".join(["@software{meprop,", *lines, "}"])
    return "\n".join([":::{admonition} Cite this", ":class: cite", "", _fence(entry), ":::"])


def _fence(entry: str) -> str:
    return f"```bibtex\n{entry}\n```\n\nand the paper, {{cite:t}}`wei2017minimal`."
