"""What the committed benchmark says about speed, and a small one on the reader's machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from meprop.bench.results import LINE_RATIOS, Row, cost_lines, kinds
from meprop.study.experiments import ROOT

NOTHING = 0.02  # a saving below it is none
STEPS = {
    "PaperCNN": "the paper's network",
    "PaperCNN-BN": "the same with batch normalisation",
    "resnet18": "resnet18",
}
QUICK = (
    "layer/conv2/full/5%/1-",
    "layer/conv2/natural/5%/1-",
    "layer/conv2/natural/100%/1-",
    "step/PaperCNN/1-",
)
MORE = ("layer/conv?/*/1%/1-", "layer/conv?/*/5%/1-", "layer/conv?/*/100%/1-", "step/PaperCNN*/1-")


def committed() -> list[Row]:
    """The rows of every `benchmarks/*/bench.json`; of a case, the last file's."""
    cases: dict[str, list[Row]] = {}
    for content in files():
        rows = [Row(**row) for row in content["rows"]]
        cases |= {name: [row for row in rows if row.case == name] for name in _cases(rows)}
    return [row for rows in cases.values() for row in rows]


def origin() -> str:
    """The machine and the versions of the committed benchmark, in a sentence."""
    made = files()[-1]["provenance"]
    return (
        f"Measured on {made['cpu']} ({made['platform']}), torch {made['torch']}, "
        f"Numba {made['numba']}, {made['date'][:10]}."
    )


def counting(rows: Iterable[Row], threads: int = 1) -> list[Row]:
    """The rows that count: each contender in its faster memory format."""
    return [row for row in rows if row.best and row.threads == threads]


def measure(quick: bool) -> list[Row]:
    """A few cases on this machine, in seconds; or more of them, for longer."""
    from meprop.bench.running import all_cases, chosen, run

    seconds, least = (0.1, 3) if quick else (0.2, 5)
    names: dict[str, Any] = {}
    for pattern in QUICK if quick else (*QUICK, *MORE):
        names |= {case.name: case for case in chosen(all_cases([1]), pattern, quick=False)}
    # One thread: what else the machine is busy with does not count.
    return [row for case in names.values() for row in run(case, seconds, least, clock="cpu")]


def beside(theirs: Sequence[Row], ours: Sequence[Row]) -> str:
    """The speed-ups of the committed benchmark and of another one (Markdown)."""
    known = {(row.case, row.contender): row for row in counting(theirs)}
    lines = ["| work | kept | committed | here |", "| --- | ---: | ---: | ---: |"]
    for row in counting(ours):
        exact = row.contender == "auto" and row.ratio == 1
        wanted = row.group == "layer" and (exact or (row.contender == "sparse" and row.ratio != 1))
        if wanted or (row.group == "step" and row.contender in ("exact", "meprop")):
            there = known.get((row.case, row.contender))
            found = _spread(there.speedup["dense"]) if there is not None else "-"
            kept = f"{row.ratio:.0%}" if row.ratio not in (None, 1) else "all"
            kept += " (`auto`)" if exact else ""
            lines.append(f"| {_work(row)} | {kept} | {found} | {_spread(row.speedup['dense'])} |")
    return "\n".join(lines)


def left(row: Row) -> float:
    """The nonzero share of the gradient that is left after selection."""
    assert row.density is not None
    return min(row.density, row.ratio or 1.0)


def skipping(rows: Iterable[Row]) -> list[Row]:
    """Single layers, as our kernels do them: with a selection, or exactly at 100%."""
    return [
        row
        for row in rows
        if row.group == "layer" and row.contender == ("exact" if row.ratio == 1 else "sparse")
    ]


class Saving(NamedTuple):
    """The share of the dense time that goes away: zeros skipped, and with the top 5% selected."""

    work: str
    exact: float
    selected: float

    @property
    def free(self) -> float:
        """How much of the saving needs no selection."""
        return max(0.0, min(1.0, self.exact / self.selected)) if self.selected > 0 else 0.0


def savings(rows: Sequence[Row]) -> list[Saving]:
    """For the paper's layers below ReLU and pooling, and for whole steps with exact ones too."""
    found = []
    for layer in ("conv1", "conv2"):
        exact = _of(rows, f"layer/{layer}/natural/100%/", "auto")
        selected = _of(rows, f"layer/{layer}/natural/5%/", "auto")
        if exact and selected:
            found.append(Saving(f"backward of {layer}", _saved(exact), _saved(selected)))
    for subject in STEPS:
        exact, selected = (_of(rows, f"step/{subject}/", name) for name in ("exact", "meprop"))
        if exact and selected:
            found.append(Saving(f"step of {subject}", _saved(exact), _saved(selected)))
    return found


def layers_in_words(rows: Sequence[Row]) -> str:
    """How fast a single layer's backward pass is at 5%."""
    parts = []
    for layer in dict.fromkeys(row.subject for row in rows if row.group == "layer"):
        if row := _of(rows, f"layer/{layer}/full/5%/", "sparse"):
            parts.append(f"{layer} {_spread(row.speedup['dense'])}")
    masked = [row for row in rows if row.contender == "masked" and row.group == "layer"]
    masked = [row for row in masked if row.ratio != 1]
    slower = sum(row.speedup["dense"]["median"] < 1 for row in masked)
    return (
        f"With 5% of a full gradient kept, times as fast as dense: {', '.join(parts)}. Setting "
        "most of a gradient to zero and then multiplying all of it (masked, what public code does) "
        f"is slower than selecting nothing at all in {slower} of {len(masked)} cases."
    )


def growth_in_words(rows: Sequence[Row]) -> str:
    """Whether cost falls in proportion to what is kept."""
    parts = [
        f"{line.subject}: {line.intercept:.2f} + {line.slope:.1f} * ratio (R² {line.r2:.3f})"
        for line in cost_lines(rows)
    ]
    return (
        f"Time, as a multiple of the dense backward pass: {'; '.join(parts)}. So it falls in a "
        "straight line with what is kept, but not to zero: choosing, changing layouts and starting "
        "remain. The slope is what a selected entry costs, as a multiple of what one costs in the "
        f"dense pass. A layer pays off below about {_break_even(rows)} kept; the lines are fitted "
        f"up to {LINE_RATIOS[1]:.0%}, so what lies beyond is an extrapolation."
    )


def _break_even(rows: Sequence[Row]) -> str:
    ends = [
        f"{max(0.0, (1 - line.intercept) / line.slope):.0%} ({line.subject})"
        for line in cost_lines(rows)
    ]
    return ", ".join(ends)


def dense_in_words(rows: Sequence[Row]) -> str:
    """How often dense is faster, and what `auto` makes of it."""
    layers = skipping(rows)
    slower = [row for row in layers if row.speedup["dense"]["q75"] < 1]
    selecting = [row for row in slower if row.ratio != 1]
    names = sorted({row.subject for row in selecting})
    autos = [row for row in rows if row.contender == "auto" and row.behind is not None]
    near = sum(row.behind is not None and row.behind <= 1.1 for row in autos)
    return (
        f"In {len(slower)} of {len(layers)} cases on one thread dense is clearly faster (three "
        f"quarters of the rounds); with a selection only for {' and '.join(names) or 'none'}. "
        f"`backend='auto'` knows most of it: it is at most 10% behind the better of its choices "
        f"in {near} of {len(autos)} cases."
    )


def steps_in_words(rows: Sequence[Row]) -> str:
    """How much faster whole training steps are, on one thread and on more."""
    one, parts = counting(rows), []
    for subject, name in STEPS.items():
        if row := _of(one, f"step/{subject}/", "meprop"):
            text = f"{name} {_spread(row.speedup['dense'])}"
            dense = _of(one, f"step/{subject}/", "dense")
            if dense and "stock" in row.speedup:
                ours, theirs = (each.speedup["stock"]["median"] for each in (row, dense))
                text += f", {ours:.2f} over stock PyTorch (of which fused Adam: {theirs:.2f})"
            parts.append(text)
    words = [f"A step with 5% kept, times as fast as the best dense one: {'; '.join(parts)}."]
    for threads in sorted({row.threads for row in rows} - {1}):
        more = [
            f"{name} {_spread(row.speedup['dense'])}"
            for subject, name in STEPS.items()
            if (row := _of(counting(rows, threads), f"step/{subject}/", "meprop"))
        ]
        if more:
            words.append(f"On {threads} threads, from fewer rounds: {'; '.join(more)}.")
    return " ".join(words)


def parts_in_words(rows: Sequence[Row]) -> str:
    """What a selection can save at most, and what it does save."""
    texts = []
    for subject, name in list(STEPS.items())[:2]:
        case = f"split/{subject}/"
        dense, ours, alone = (_of(rows, case, who) for who in ("dense", "meprop", "selection"))
        if dense and ours and alone:
            whole = sum(dense.parts.values())
            before, after = (kinds(row.parts)["conv backward"] / whole for row in (dense, ours))
            chosen = kinds(alone.parts)["conv selection"] / whole
            texts.append(
                f"In {name} the backward passes of the convolutions are {before:.0%} of a dense "
                f"step: no selection there can save more. {after:.0%} are left, of which "
                f"{chosen:.0%} go into selecting."
            )
    return " ".join(texts) or "No split has been measured."


def free_in_words(rows: Sequence[Row]) -> str:
    """How much of the saving needs no selection at all."""
    parts = [
        f"{each.work} {each.free:.0%}" if each.selected > NOTHING else f"{each.work} (none saved)"
        for each in savings(rows)
    ]
    return (
        f"Share of the saving that skipping zeros gives by itself, with exact gradients: "
        f"{', '.join(parts)}. Below ReLU and pooling a gradient is sparse as it is; below batch "
        "normalisation it is not, and there only a selection helps."
    )


def headlines(rows: Sequence[Row]) -> dict[str, float]:
    """The numbers that other pages quote."""
    found = {f"step-{subject}": _of(rows, f"step/{subject}/", "meprop") for subject in STEPS}
    found["conv2"] = _of(rows, "layer/conv2/full/5%/", "sparse")
    numbers = {name: row.speedup["dense"]["median"] for name, row in found.items() if row}
    return numbers | {f"free-{each.work.split()[-1]}": 100 * each.free for each in savings(rows)}


def _of(rows: Iterable[Row], case: str, contender: str) -> Row | None:
    for row in rows:
        if row.case.startswith(case) and row.contender == contender:
            return row
    return None


def _saved(row: Row) -> float:
    return 1 - 1 / row.speedup["dense"]["median"]


def _spread(spread: dict[str, float]) -> str:
    return f"{spread['median']:.2f} ({spread['q25']:.2f} to {spread['q75']:.2f})"


def _work(row: Row) -> str:
    if row.group == "layer":
        return f"backward of {row.subject}, {row.gradient} gradient ({row.density:.0%} nonzero)"
    return f"step of {row.subject}, {row.contender}"


def _cases(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row.case for row in rows))


def files() -> list[dict[str, Any]]:
    """Every `benchmarks/*/bench.json`, in the order in which a later one counts."""
    paths = sorted((ROOT / "benchmarks").glob("*/bench.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]
