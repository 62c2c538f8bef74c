"""What was measured beside the runs, and what measured it: `python -m measurements.NAME`.

A table is a CSV file under comments that say where it comes from, and a digest of all that.
"""

from __future__ import annotations

import hashlib
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meprop.study._files import write_atomically
from meprop.study.experiments import ROOT
from meprop.study.record import RecordError

if TYPE_CHECKING:
    from pandas import DataFrame


def load_table(path: str | Path) -> DataFrame:
    """A table of this folder (relative to the checkout); `attrs` says where it comes from.

    >>> load_table("measurements/noise.csv").attrs["made by"]
    'python -m measurements.noise'
    """
    import pandas

    first, _, content = (ROOT / path).read_text(encoding="utf-8").partition("\n")
    if first != f"# digest: {_digest(content)}":
        raise RecordError(
            f"{path}: its content does not match its digest: edited by hand, or damaged; restore "
            f"it from version control, or measure again: python -m measurements.{Path(path).stem}"
        )
    table = pandas.read_csv(io.StringIO(content), comment="#")
    table.attrs = dict(re.findall("^# (.+?): (.*)$", content, re.MULTILINE))
    return table


def save_table(table: DataFrame, origin: dict[str, Any], path: Path) -> None:
    """Write a table, under comments that say where it comes from."""
    head = "".join(f"# {name}: {value}\n" for name, value in origin.items())
    content = head + table.to_csv(index=False, lineterminator="\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f"# digest: {_digest(content)}\n{content}".encode())


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()
