"""The paper's claims, from claims.yml; notebooks/06-claims.ipynb decides them."""

from __future__ import annotations

from importlib.resources import files

import pandas as pd
import yaml


def claims() -> pd.DataFrame:
    """A row a claim, by key: claim, where, kind, ours, counted.

    >>> claims().loc["suffices", "where"]
    'Abstract, Section 4.3'
    """
    source = files("meprop.study").joinpath("claims.yml")
    found = pd.DataFrame(yaml.safe_load(source.read_text(encoding="utf-8"))).T
    # What an entry leaves out: a claim of the paper's, which counts.
    return found.assign(ours=found.ours.eq(True), counted=~found.counted.eq(False))
