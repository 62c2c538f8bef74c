"""What the benchmark found, and the file it is kept in.

`bench.json` holds `schema` (1), `provenance` (versions, machine, threads available, date), `load`
(the machine's load average at the `start` and at the `end`), `settings` (the options), `finished`
(false after Ctrl-C), `rows` (see `Row`) and `lines` (see `CostLine`). A notebook reads it with
`pandas.json_normalize(json.load(file)["rows"])`, which names a nested value `speedup.dense.median`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from meprop.bench.cases import Case, Setup
from meprop.bench.statistics import Spread, fastest, fit_line, speedups, summarise
from meprop.bench.timing import Timing

SCHEMA = 1
LINE_RATIOS = (0.005, 0.25)


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


@dataclass(frozen=True)
class CostLine:
    """`sparse` on a full gradient: time / dense time = intercept + slope * ratio, 0.5% to 25%."""

    subject: str
    threads: int
    intercept: float
    slope: float
    r2: float
    intercept_ms: float  # selection, layout and calls: what is left when nothing is kept


@dataclass
class Results:
    """All that was found so far."""

    settings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    finished: bool = True
    load: dict[str, float | None] = field(default_factory=lambda: {"start": load(), "end": None})
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def to_dict(self) -> dict[str, Any]:
        """As the file has it."""
        return {
            "schema": SCHEMA,
            "provenance": _provenance() | {"date": self.date},
            "load": self.load,
            "settings": self.settings,
            "finished": self.finished,
            "rows": [asdict(row) for row in self.rows],
            "lines": [asdict(line) for line in cost_lines(self.rows)],
        }

    def save(self, folder: Path) -> Path:
        """Write `bench.json`; a reader never sees half of it."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "bench.json"
        unfinished = path.with_suffix(".part")
        content = self.to_dict()
        rows = ",\n".join(_json(row) for row in content.pop("rows"))  # a row a line
        text = f'{_json(content)[:-1]}, "rows": [\n{rows}\n]}}\n'
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
        return path


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False)


def rows_of(case: Case, setup: Setup, timings: Sequence[Timing]) -> list[Row]:
    """One row per contender and format."""
    best = fastest(timings)
    facts = setup.facts()
    rows = []
    for timing in timings:
        contender = timing.contender
        parts = np.median(np.asarray(timing.rounds), axis=0) * 1000
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
            format=contender.variant,
            best=best[contender.name] is timing,
            rounds=len(timing.rounds),
            first=timing.first * 1000,
            time=_named(summarise([1000 * seconds for seconds in timing.totals])),
            parts=dict(zip(contender.parts, parts.tolist(), strict=True)),
            speedup={
                name: _named(summarise(speedups(best[name].totals, timing.totals)))
                for name in setup.baselines
            },
            same_format=_same_format(timing, timings, setup.baselines[0]),
            behind=_behind(timing, timings) if contender.name == "auto" else None,
            **facts.get((contender.name, contender.variant), {}),
        )
        rows.append(row)
    return rows


def _same_format(
    timing: Timing, timings: Sequence[Timing], baseline: str
) -> dict[str, float] | None:
    for other in timings:
        wanted = (baseline, timing.contender.variant)
        if (other.contender.name, other.contender.variant) == wanted:
            return _named(summarise(speedups(other.totals, timing.totals)))
    return None


def _behind(auto: Timing, timings: Sequence[Timing]) -> float:
    """auto's time over that of the better of its choices, in the same memory format."""
    mine = auto.contender
    # Where something is selected, doing without it is no choice.
    choices = ("sparse", "masked") if mine.ratio != 1 else ("exact", "dense")
    others = [
        timing
        for timing in timings
        if timing.contender.name in choices and timing.contender.variant == mine.variant
    ]
    better = min(others, key=lambda timing: float(np.median(timing.totals)))
    return summarise(speedups(auto.totals, better.totals)).median


def _named(spread: Spread) -> dict[str, float]:
    return {"median": spread.median, "q25": spread.q25, "q75": spread.q75}


def cost_lines(rows: Sequence[Row]) -> list[CostLine]:
    """Fit the cost of `sparse` against the ratio, for each layer and thread count.

    In units of the dense time of the same rounds, so that a machine that changes its pace between
    two cases does not bend the line.
    """
    lines = []
    of_sparse = [row for row in rows if row.group == "layer" and row.gradient == "full"]
    for subject, threads in dict.fromkeys((row.subject, row.threads) for row in of_sparse):
        here = [row for row in of_sparse if (row.subject, row.threads) == (subject, threads)]
        points = {
            row.ratio: 1 / row.speedup["dense"]["median"]
            for row in here
            if row.contender == "sparse" and row.best and _on_line(row.ratio)
        }
        if len(points) < 3:
            continue
        line = fit_line([ratio for ratio in points if ratio is not None], list(points.values()))
        dense = [row.time["median"] for row in here if row.contender == "dense" and row.best]
        in_ms = line.intercept * float(np.median(dense))
        lines.append(CostLine(subject, threads, *line, in_ms))
    return lines


def kinds(parts: dict[str, float]) -> dict[str, float]:
    """The parts of a split step by kind and direction: both convolutions together, and so on.

    >>> kinds({"forward conv1": 1.0, "forward conv2": 2.0, "forward loss": 0.5, "update": 4.0})
    {'conv forward': 3.0, 'between forward': 0.5, 'update': 4.0}
    """
    sums: dict[str, float] = {}
    for name, time in parts.items():
        direction, _, stage = name.partition(" ")
        kind = "between" if stage == "loss" else stage.rstrip("123")
        whole = f"{kind} {direction}" if stage else direction
        sums[whole] = sums.get(whole, 0.0) + time
    return sums


def _on_line(ratio: float | None) -> bool:
    return ratio is not None and LINE_RATIOS[0] <= ratio <= LINE_RATIOS[1]


def load() -> float | None:
    """The machine's load average over the last minute, where the system tells it."""
    average: Callable[[], tuple[float, float, float]] | None = getattr(os, "getloadavg", None)
    return None if average is None else average()[0]


def cores() -> int:
    """The cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def _provenance() -> dict[str, Any]:
    from meprop.study.provenance import provenance

    return provenance(cores()) | {name: version(name) for name in ("numba", "torchvision")}
