"""The Method page's colours."""

from __future__ import annotations

from typing import Any

from meprop.study.report.method import SCOPES
from meprop.study.style import PALETTE

KEPT: Any = PALETTE[0]
LOST, GREY = "0.78", "0.35"
DIVERGING = "RdBu_r"
SCOPE_COLOURS = dict(zip(SCOPES, (PALETTE[i] for i in (0, 1, 2, 4)), strict=True))
