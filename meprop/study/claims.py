"""The paper's claims, and what people wrote about the results.

notebooks/06-claims.ipynb decides the claims of claims.yml. notebooks/findings.yml has sentences by
page and name, for the notebooks that make several pages, each with the facts it was written for.
"""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import pandas as pd
import yaml

from meprop.study.experiments import ROOT

FINDINGS = "notebooks/findings.yml"


def claims() -> pd.DataFrame:
    """A row a claim, by key: claim, where, kind, ours, counted, shown.

    >>> claims().loc["suffices", "where"]
    'Abstract, Section 4.3'
    """
    source = files("meprop.study").joinpath("claims.yml")
    found = pd.DataFrame(yaml.safe_load(source.read_text(encoding="utf-8"))).T
    # What an entry leaves out: a claim of the paper's, which counts.
    found = found.assign(ours=found.ours.eq(True), counted=~found.counted.eq(False))
    return found.fillna({"shown": ""})


def finding(page: str, name: str, facts: Mapping[str, Any], **numbers: Any) -> str:
    """The sentence of a page (Markdown) with its numbers filled in, if the facts still hold.

    >>> finding("table2", "nothing", {})
    Traceback (most recent call last):
    AssertionError: notebooks/findings.yml has no 'nothing' for table2: write one for {}
    """
    pages = yaml.safe_load((ROOT / FINDINGS).read_text(encoding="utf-8"))
    entry = pages.get(page, {}).get(name)
    now = {str(key): value for key, value in facts.items()}
    assert entry is not None, f"{FINDINGS} has no {name!r} for {page}: write one for {now}"
    assert entry["facts"] == now, (
        f"{FINDINGS}: look at {name!r} of {page}, which was written for {entry['facts']}; now {now}"
    )
    return str(entry["text"]).format(**numbers)
