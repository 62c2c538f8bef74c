"""The headline rows of one or more `bench.json` as a Markdown table: what README shows.

`python -m meprop.bench.summary benchmarks/*/bench.json` prints it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LAYERS = [
    ("conv2", "full", 0.05, "sparse"),
    ("conv2", "full", 0.01, "sparse"),
    ("conv1", "full", 0.05, "sparse"),
    ("wide", "full", 0.05, "sparse"),
    ("wide", "full", 0.01, "sparse"),
    ("large", "full", 0.05, "sparse"),
    ("large", "full", 0.01, "sparse"),
    ("conv2", "natural", 1.0, "exact"),
]
FORMATS = ("contiguous", "channels_last")
STEPS = ("PaperCNN", "PaperCNN-BN", "resnet18")


def summary(*files: dict[str, Any]) -> str:
    """How many times as fast as torch's dense backward pass: median (quartiles) on one thread.

    A case that several files have counts as the last one has it; one that none has is left out.
    """
    cases: dict[str, list[dict[str, Any]]] = {}
    for results in files:
        own = [row for row in results["rows"] if row["threads"] == 1]
        cases |= {case: [row for row in own if row["case"] == case] for case in _names(own)}
    rows = [row for case in cases.values() for row in case]
    lines = [_cells("work, one thread", "kept", *FORMATS, "each in its better one")]
    lines.append(_cells(*["---"] * 5))
    for subject, gradient, ratio, contender in LAYERS:
        case = f"layer/{subject}/{gradient}/{ratio * 100:g}%/"
        found = {row["format"]: row for row in _find(rows, case, contender)}
        if not found:
            continue
        (best,) = (row for row in found.values() if row["best"])
        what = f"backward of {best['shape']}"
        if gradient == "natural":
            what += f", {best['density']:.0%} nonzero below ReLU and pooling"
        kept = "all, exact" if contender == "exact" else f"{ratio:.0%}"
        same = [_spread(found[name]["same_format"]) for name in FORMATS]
        lines.append(_cells(what, kept, *same, _spread(best["speedup"]["dense"])))
    for subject in ("conv1", "conv2"):
        for row in _best(rows, f"selection/{subject}/full/5%/", "sparse"):
            what = f"selection alone, {subject}, over `torch.topk`"
            lines.append(_cells(what, "5%", "", "", _spread(row["speedup"]["topk"])))
    for subject in STEPS:
        for row in _best(rows, f"step/{subject}/", "meprop"):
            what, kept = f"whole training step of {subject}", f"{row['ratio']:.0%}"
            lines.append(_cells(what, kept, "", "", _spread(row["speedup"]["dense"])))
            if "stock" in row["speedup"]:
                over = _spread(row["speedup"]["stock"])
                lines.append(_cells(f"{what}, over stock PyTorch", kept, "", "", over))
    made = files[-1]["provenance"]
    lines += ["", f"{made['cpu']}, torch {made['torch']}, {made['date'][:10]}."]
    return "\n".join(lines)


def _names(rows: list[dict[str, Any]]) -> set[str]:
    return {row["case"] for row in rows}


def _find(rows: Iterable[dict[str, Any]], case: str, contender: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["case"].startswith(case) and row["contender"] == contender]


def _best(rows: Iterable[dict[str, Any]], case: str, contender: str) -> list[dict[str, Any]]:
    return [row for row in _find(rows, case, contender) if row["best"]]


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _spread(spread: dict[str, float]) -> str:
    return f"**{spread['median']:.2f}** ({spread['q25']:.2f}-{spread['q75']:.2f})"


if __name__ == "__main__":
    print(summary(*(json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:])))
