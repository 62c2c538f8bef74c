"""The committed benchmark, for the claims and the headline until they read it as a table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from meprop.study.experiments import ROOT


@dataclass(frozen=True)
class Row:
    """One contender of one case, in one memory format. Times are in milliseconds."""

    case: str  # such as layer/conv2/full/5%/1-thread
    group: str  # layer, selection, step, split
    subject: str  # conv1, conv2, wide, large; PaperCNN, PaperCNN-BN, resnet18
    shape: str
    gradient: str | None  # full, natural; None for a step
    density: float | None  # nonzero share of the incoming gradient
    threads: int
    contender: str  # dense, masked, sparse, exact, auto; topk, kthvalue; stock, meprop
    ratio: float | None  # the share that is kept; None where nothing is selected
    format: str  # contiguous, channels_last
    best: bool  # the contender's faster format: the one that counts
    rounds: int
    first: float  # the first call, with compilation
    time: dict[str, float]  # median, q25, q75
    parts: dict[str, float]  # medians; for a step forward, backward, update; a split has 17
    speedup: dict[str, dict[str, float]]  # by baseline (its best format): median, q25, q75
    same_format: dict[str, float] | None  # the same over the first baseline in this row's format
    behind: float | None = None  # auto: its time over that of the better contender, median
    chose: str | None = None  # auto: what it ran
    difference: float | None = None  # relative, of our gradients from the masked ones


def committed() -> list[Row]:
    """The rows of every `benchmarks/*/bench.json`; of a case, the last file's."""
    cases: dict[str, list[Row]] = {}
    for content in files():
        rows = [Row(**row) for row in content["rows"]]
        names = dict.fromkeys(row.case for row in rows)
        cases |= {name: [row for row in rows if row.case == name] for name in names}
    return [row for rows in cases.values() for row in rows]


def counting(rows: Iterable[Row], threads: int = 1) -> list[Row]:
    """The rows that count: each contender in its faster memory format."""
    return [row for row in rows if row.best and row.threads == threads]


def files() -> list[dict[str, Any]]:
    """Every `benchmarks/*/bench.json`, in the order in which a later one counts."""
    paths = sorted((ROOT / "benchmarks").glob("*/bench.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]
