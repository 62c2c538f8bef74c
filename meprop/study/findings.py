"""Sentences that people wrote about results, each kept true by the facts it was written for.

notebooks/findings.yml has them by page and name, for the notebooks that make several pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from meprop.study.experiments import ROOT

FILE = "notebooks/findings.yml"


def finding(page: str, name: str, facts: Mapping[str, Any], **numbers: Any) -> str:
    """The sentence of a page (Markdown) with its numbers filled in, if the facts still hold.

    >>> finding("table2", "nothing", {})
    Traceback (most recent call last):
    AssertionError: notebooks/findings.yml has no 'nothing' for table2: write one for {}
    """
    pages = yaml.safe_load((ROOT / FILE).read_text(encoding="utf-8"))
    entry = pages.get(page, {}).get(name)
    now = {str(key): value for key, value in facts.items()}
    assert entry is not None, f"{FILE} has no {name!r} for {page}: write one for {now}"
    assert entry["facts"] == now, (
        f"{FILE}: look at {name!r} of {page}, which was written for {entry['facts']}; now {now}"
    )
    return str(entry["text"]).format(**numbers)
