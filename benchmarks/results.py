"""What the benchmark found, the file it is kept in, and all files as one table.

`bench.json` holds `schema` (2), `provenance` (versions, machine, threads available, date), `load`
(the machine's load average at the `start` and at the `end`), `settings` (the options), `finished`
(false after Ctrl-C) and `rows` (see `Row`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.case import Case, Setup
from benchmarks.clock import Timing

SCHEMA = 2
NAMES = {  # of a column of `load`, for what json_normalize calls it
    "time.median": "ms",
    "time.q25": "ms_low",
    "time.q75": "ms_high",
    "speedup.dense.median": "speedup",
    "speedup.dense.q25": "low",
    "speedup.dense.q75": "high",
}


@dataclass(frozen=True)
class Row:
    """One contender of one case, in one memory format. Times are in milliseconds."""

    case: str  # such as layer/conv2/full/5%/1-thread
    group: str  # layer, linear, selection, step, split
    subject: str  # a layer (conv1, conv2, wide, large, tiny) or a network
    shape: str
    gradient: str | None  # full, natural; None for a step
    density: float | None  # nonzero share of the incoming gradient
    threads: int
    contender: str  # see `benchmarks`
    ratio: float | None  # the share that is kept; None where nothing is selected
    format: str  # contiguous, channels_last
    best: bool  # the contender's faster format: the one that counts
    rounds: int
    first: float  # the first call, with compilation
    time: dict[str, float]  # median, q25, q75 of what counts: of a layer, the backward pass
    parts: dict[str, float]  # medians; forward, backward; for a step update too; a split has 17
    speedup: dict[str, dict[str, float]]  # by baseline (its best format): median, q25, q75
    same_format: dict[str, float] | None  # the same over the first baseline in this row's format
    chose: str | None = None  # auto: what it ran
    difference: float | None = None  # relative, of our gradients from the reference's


def load(folder: Path | str = Path(__file__).parent) -> pd.DataFrame:
    """A row per measured contender of every `bench.json` below the folder.

    A case that several files have counts as the last one has it, in the order of their names.
    ms, ms_low, ms_high: median and quartiles of the time. speedup, low, high: of how many times as
    fast as `dense` it is. over_stock, over_topk, over_kthvalue, over_exact: medians over other
    baselines; over_exact_low: the lower quartile. same_format: median over `dense` in the same
    memory format. forward, backward, update and so on: medians of the parts. autograd: false where
    a backward function was called by itself. cpu, torch, date: where the row comes from. The others
    are as in `Row`.

    >>> sorted(load()["group"].unique())
    ['layer', 'linear', 'selection', 'split', 'step']
    """
    found = []
    for path in sorted(Path(folder).rglob("bench.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = pd.json_normalize(content["rows"])
        rows["autograd"] = (rows["contender"] != "kernel") & (
            (content["schema"] > 1) | (rows["group"] != "layer")
        )
        origin = {name: content["provenance"][name] for name in ("cpu", "torch", "date")}
        found.append(rows.assign(**origin, file=path.parent.name))
    if not found:
        raise FileNotFoundError(f"no bench.json in {folder}: make bench writes one")
    rows = pd.concat(found, ignore_index=True)
    rows = rows[rows["file"] == rows.groupby("case")["file"].transform("last")]
    wanted = {name: _name(name) for name in rows.columns if _name(name)}
    return rows[list(wanted)].rename(columns=wanted).reset_index(drop=True)


def _name(column: str) -> str | None:
    place, *rest = column.split(".")
    if column in NAMES or not rest:
        return NAMES.get(column, column)
    if place == "parts":
        return rest[0]
    if rest[-1] == "median":
        return place if place == "same_format" else f"over_{rest[0]}"
    return "over_exact_low" if column == "speedup.exact.q25" else None


@dataclass
class Results:
    """All that was found so far."""

    settings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    finished: bool = True
    load: dict[str, float | None] = field(
        default_factory=lambda: {"start": load_average(), "end": None}
    )
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def save(self, folder: Path) -> Path:
        """Write `bench.json`, a row a line; a reader never sees half of it."""
        from meprop.study.provenance import provenance

        versions = {name: version(name) for name in ("numba", "torchvision")}
        content = {
            "schema": SCHEMA,
            "provenance": provenance(cores()) | versions | {"date": self.date},
            "load": self.load | {"end": load_average()},
            "settings": self.settings,
            "finished": self.finished,
        }
        rows = ",\n".join(_json(asdict(row)) for row in self.rows)
        text = f'{_json(content)[:-1]}, "rows": [\n{rows}\n]}}\n'
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "bench.json"
        unfinished = path.with_suffix(".part")
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
        return path


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False)


def rows_of(case: Case, setup: Setup, timings: Sequence[Timing]) -> list[Row]:
    """One row per contender and format."""
    best: dict[tuple[str, float | None], Timing] = {}
    for timing in timings:
        key = timing.contender.name, timing.contender.ratio
        if key not in best or np.median(timing.totals) < np.median(best[key].totals):
            best[key] = timing
    # A baseline has one ratio, whatever it is called.
    baselines = {name: timing for (name, _), timing in best.items() if name in setup.baselines}
    rows = []
    for timing in timings:
        contender = timing.contender
        parts = np.median(np.asarray(timing.rounds), axis=0) * 1000
        same = [
            other
            for other in timings
            if (other.contender.name, other.contender.format)
            == (setup.baselines[0], contender.format)
        ]
        row = Row(
            case=case.name,
            group=case.group,
            subject=case.subject,
            shape=setup.shape,
            gradient=case.gradient,
            density=setup.density,
            threads=case.threads,
            contender=contender.name,
            ratio=contender.ratio,
            format=contender.format,
            best=best[contender.name, contender.ratio] is timing,
            rounds=len(timing.rounds),
            first=timing.first * 1000,
            time=quartiles(1000 * np.asarray(timing.totals)),
            parts=dict(zip(contender.parts, parts.tolist(), strict=True)),
            speedup={
                name: quartiles(np.divide(baselines[name].totals, timing.totals))
                for name in setup.baselines
            },
            same_format=quartiles(np.divide(same[0].totals, timing.totals)) if same else None,
            **contender.facts(),
        )
        rows.append(row)
    return rows


def quartiles(values: Any) -> dict[str, float]:
    """Median and quartiles, interpolated between neighbours.

    >>> quartiles([4.0, 1.0, 2.0, 3.0])
    {'median': 2.5, 'q25': 1.75, 'q75': 3.25}
    """
    q25, median, q75 = (float(q) for q in np.percentile(values, (25, 50, 75)))
    return {"median": median, "q25": q25, "q75": q75}


def load_average() -> float | None:
    """Of the last minute, where the system tells it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def cores() -> int:
    """The cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1
