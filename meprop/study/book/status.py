"""What the book was made with, on what machines, when; what is done and what is not."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from importlib.metadata import version
from statistics import median
from typing import Any

import meprop
from meprop.study.book.tables import table
from meprop.study.experiments import ROOT, load
from meprop.study.provenance import provenance
from meprop.study.report.results import gather
from meprop.study.status import duration, usual_seconds

PACKAGES = (
    *("torch", "torchvision", "numpy", "numba", "scipy", "pandas", "scikit-learn"),
    *("matplotlib", "seaborn", "papermill", "snakemake", "nbval", "jupyter-book", "sphinx"),
)


def versions() -> str:
    """Commit and versions of the environment that built the page (MyST)."""
    built = provenance(threads=1)
    commit = built["commit"] or "unknown"
    commit = f"`{commit[:12]}`" + (", with local changes" if built["dirty"] else "")
    rows = [("commit", commit), ("meprop", meprop.__version__)]
    rows += [("Python", platform.python_version())]
    rows += [(package, version(package)) for package in PACKAGES]
    return table("versions", "Versions of the environment.", ("", "built with"), rows)


def hardware() -> str:
    """The machines that the records come from (MyST)."""
    found: Counter[tuple[str, ...]] = Counter()
    seconds: Counter[tuple[str, ...]] = Counter()
    for _, record in _records():
        made = record.provenance
        commit = (made["commit"] or "unknown")[:12] + (" (changed)" if made["dirty"] else "")
        threads = f"{made['cores']} ({made['threads']} a run)"
        key = (made["cpu"], threads, made["torch"], made["python"], f"`{commit}`")
        found[key] += 1
        seconds[key] += made["seconds"]
    if not found:
        return "No record is committed yet."
    rows = [(*key, str(found[key]), duration(seconds[key])) for key in found]
    heads = ("CPU", "cores", "torch", "Python", "commit", "runs", "time of a core")
    return table("hardware", "Where the records come from.", heads, rows)


def suites() -> str:
    """How much of each suite is done (MyST)."""
    rows = []
    for suite in load().suites.values():
        if not suite.committed:
            continue
        results = gather(suite.name)
        done = len(results.records)
        diverged = sum(record.status != "finished" for record in results.records.values())
        rows.append((suite.name, suite.about, f"{done} of {len(results.runs)}", str(diverged)))
    return table("suites", "Runs that are done.", ("suite", "what", "done", "diverged"), rows)


def costs() -> str:
    """How long a run of each suite takes, and all of its runs, on known machines (MyST)."""
    rows = []
    for suite in load().suites.values():
        times: dict[str, list[float]] = {}
        results = gather(suite.name)
        for record in results.records.values():
            if record.status != "finished":
                continue
            times.setdefault(record.provenance["cpu"], []).append(usual_seconds(record))
        for cpu, seconds in times.items():
            middle = median(seconds)
            whole = duration(middle * len(results.runs))
            cells = (suite.name, suite.about, str(len(results.runs)), duration(middle), whole, cpu)
            rows.append(cells)
    if not rows:
        return "No record is there yet to tell."
    heads = ("suite", "what", "runs", "a run, median", "all, on one core", "measured on")
    return table("costs", "Time of the suites.", heads, rows)


def notebooks() -> str:
    """When each notebook was executed and how long it took (MyST)."""
    folder = ROOT / "notebooks"
    rows = []
    for path in sorted([*folder.glob("*.ipynb"), *(folder / "pages").glob("*.ipynb")]):
        started, seconds = executed(json.loads(path.read_text(encoding="utf-8")))
        rows.append((f"`{path.relative_to(folder).with_suffix('')}`", started, f"{seconds:.1f} s"))
    runs = list(folder.glob("runs/*/*.ipynb"))
    heads = ("notebook", "executed (UTC)", "took")
    text = table("notebooks", "When the notebooks were executed.", heads, rows)
    return f"{text}\n\nBeside them stand {len(runs)} notebooks of single runs."


def executed(notebook: dict[str, Any]) -> tuple[str, float]:
    """When a notebook was started, to the minute, and for how many seconds its cells ran."""
    times = []
    for cell in notebook["cells"]:
        stamps = cell["metadata"].get("execution", {})
        if "iopub.execute_input" in stamps and "shell.execute_reply" in stamps:
            pair = stamps["iopub.execute_input"], stamps["shell.execute_reply"]
            times.append([datetime.fromisoformat(stamp) for stamp in pair])
    if not times:
        return "not recorded", 0.0
    seconds = sum((end - start).total_seconds() for start, end in times)
    return f"{min(start for start, _ in times):%Y-%m-%d %H:%M}", seconds


def _records() -> Iterator[tuple[str, Any]]:
    for suite in load().suites.values():
        if suite.committed:
            yield from gather(suite.name).records.items()
