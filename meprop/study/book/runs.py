"""The index of all records: a table that a small script makes sortable and filterable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from meprop.study.book.tables import table
from meprop.study.config import Config
from meprop.study.experiments import ROOT, Run, load
from meprop.study.report.results import gather

# Columns of their own, or the same in all runs of a suite.
_ELSEWHERE = ("ratio", "decay", "batch_norm", "seed", "dataset", "epochs", "threads")


def runs_table() -> str:
    """A row a record of the committed suites, linked to its notebook and its file (MyST)."""
    rows = []
    suites = [suite for suite in load().suites.values() if suite.committed]
    for suite in suites:
        results = gather(suite.name)
        usual = _usual([run.config for run in suite.runs])
        for run in results.runs:
            if (record := results.records.get(run.id)) is None:
                continue
            config = run.config
            rows.append(
                (
                    _linked(run),
                    suite.name,
                    str(run.seed),
                    _number(record.test_accuracy, ".2f"),
                    _number(record.dev_accuracy, ".2f"),
                    _number(record.best_epoch, "d"),
                    "100" if config.ratio is None else f"{100 * config.ratio:.4g}",
                    f"{config.decay:g}",
                    "yes" if config.batch_norm else "no",
                    _others(config, usual),
                    f"{record.provenance['seconds'] / 60:.0f}",
                    f"[JSON](../{run.record.as_posix()})",
                )
            )
    declared = sum(len(suite.runs) for suite in suites)
    said = f"{len(rows)} of {declared} declared runs have a record."
    if not rows:
        return f"{said} `make reproduce` trains them."
    heads = (
        *("run", "suite", "seed", "test (%)", "dev (%)", "best epoch", "kept (%)", "decay"),
        *("BN", "otherwise", "minutes", "record"),
    )
    listed = table("runs", "All records.", heads, rows)
    return f"{said}\n\n::::{{div}} runs-table\n{listed}\n::::"


def _linked(run: Run) -> str:
    """The name, linked to the notebook of this run where there is one, else to its record."""
    shown = run.notebook.is_relative_to("notebooks") and (ROOT / run.notebook).is_file()
    return f"[{run.name}](../{(run.notebook if shown else run.record).as_posix()})"


def _usual(configs: Sequence[Config]) -> dict[str, Any]:
    """For each field, the value that most runs of a suite have."""
    names = [field.name for field in fields(Config) if field.name not in _ELSEWHERE]
    counts = {name: Counter(getattr(config, name) for config in configs) for name in names}
    return {name: count.most_common(1)[0][0] for name, count in counts.items()}


def _others(config: Config, usual: Mapping[str, Any]) -> str:
    """What else sets a run apart from most of its suite."""
    words = []
    for name, value in usual.items():
        own = getattr(config, name)
        if own != value:
            shown = "+".join(own) if isinstance(own, tuple) else own
            words.append(f"{name} {shown}".replace("_", " "))
    return ", ".join(words)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
