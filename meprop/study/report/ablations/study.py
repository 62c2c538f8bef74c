"""A study of the ablation suite: its runs, each compared with its reference over the seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from statistics import fmean
from typing import Any

from meprop.study.config import Config
from meprop.study.experiments import Study, load
from meprop.study.labels import words
from meprop.study.record import Record
from meprop.study.report.results import Results, gather
from meprop.study.report.statistics import Interval, holm, interval, paired, percentage

SUITE = "ablation"
GAPS = (("train", "dev"), ("dev", "test"))
# Percent: up to here a network does little better than to guess one of ten digits.
GUESSING = 20.0
_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Config)}
_UNKNOWN = interval([])


@dataclass(frozen=True)
class Row:
    """A configuration of the study, its runs, and how they differ from the reference's."""

    name: str
    config: Config
    label: str
    group: str  # what it shares with its reference; "" where the study has no groups
    treatment: str  # what sets it apart within its group
    records: dict[int, Record]  # by seed; those without a finished epoch are left out
    reference: str | None = None  # a row's name; None for a reference itself
    difference: Interval = _UNKNOWN  # of test accuracy to the reference, paired by seed
    p: float = math.nan  # of the difference, adjusted for the comparisons of the study

    @property
    def test(self) -> Interval:
        return percentage(list(self.accuracy("test").values()))

    @property
    def dev(self) -> Interval:
        return percentage(list(self.accuracy("dev").values()))

    @property
    def epochs(self) -> list[int]:
        return [record.best_epoch for record in self.records.values() if record.best_epoch]

    def accuracy(self, part: str) -> dict[int, float]:
        """Accuracy on train, dev or test in the chosen epoch, by seed."""
        return {
            seed: record.history[(record.best_epoch or 1) - 1][f"{part}_accuracy"]
            for seed, record in self.records.items()
        }

    @property
    def stuck(self) -> dict[int, float]:
        """Test accuracy by seed of the runs that learned nothing.

        With some of these the outcomes have two peaks, and a mean or a t interval means nothing.
        """
        return {seed: each for seed, each in self.accuracy("test").items() if each <= GUESSING}

    def gap(self, first: str, second: str) -> dict[int, float]:
        """The distance of two accuracies in the chosen epoch, by seed."""
        theirs = self.accuracy(second)
        return {seed: value - theirs[seed] for seed, value in self.accuracy(first).items()}

    def layer(self, layer: str, what: str) -> float:
        """A layer's `before`, `after` or `norm_kept`: the mean over epochs and seeds, in percent.

        NaN where it was not measured.
        """
        values = [
            epoch["layers"][layer][what]
            for record in self.records.values()
            for epoch in record.history
            if what in epoch["layers"].get(layer, ())
        ]
        return 100 * fmean(values) if values else math.nan


@dataclass(frozen=True)
class Ablation:
    """A study with what is known of it."""

    study: Study
    results: Results
    rows: tuple[Row, ...]

    @property
    def done(self) -> list[Row]:
        """The rows with at least one seed."""
        return [row for row in self.rows if row.records]

    @property
    def compared(self) -> list[Row]:
        """The rows that share at least one seed with their reference."""
        return [row for row in self.rows if row.difference.n]

    @property
    def seeds(self) -> int:
        """The most seeds that any comparison rests on."""
        return max((row.difference.n for row in self.rows), default=0)

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys(row.group for row in self.rows))

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def varies(self, *names: str) -> bool:
        """Do the runs differ in one of these fields?"""
        return any(name in self.study.varies for name in names)

    @property
    def axis(self) -> str | None:
        """The field that is a scale: a number with at least three values."""
        for name in self.study.varies:
            values = {number(row.config, name) for row in self.rows}
            if len(values) > 2 and not any(math.isnan(value) for value in values):
                return name
        return None

    @property
    def layers(self) -> list[str]:
        """The layers at whose output something is selected in some run, in the network's order."""
        # Selection above batch normalisation has a layer of its own.
        names = ("conv1", "top1", "conv2", "top2", "fc1", "top3")
        sparse = {layer for row in self.rows for layer in row.config.sparse_layers}
        above = any(row.config.select_at == "bn" for row in self.rows)
        return [n for n in names if n in sparse or (above and BELOW.get(n) in sparse)]


BELOW = {"top1": "conv1", "top2": "conv2", "top3": "fc1"}


def studies() -> tuple[str, ...]:
    """The studies that experiments.yml declares: a page each."""
    return tuple(load().studies)


def examine(name: str, results: Results | None = None) -> Ablation:
    """A study's runs as far as they are done, each with its reference.

    A run's reference is the one of its group that has Config's defaults in all that the study
    varies. The differences of the study are adjusted together (Holm).

    >>> examine("pick").row("pick-random").reference
    'ratio-k05'
    """
    study = load().studies[name]
    results = results or gather(study.suite, study.runs)
    configs = {run.name: run.config for run in reversed(results.runs)}
    rows = {}
    for run in study.runs:
        config = configs[run]
        rows[run] = Row(
            name=run,
            config=config,
            label=", ".join(words(config, study.varies)),
            group=", ".join(words(config, study.within)),
            treatment=", ".join(words(config, [n for n in study.varies if n not in study.within])),
            records={s: r for s, r in results.of(run).items() if r.best_epoch is not None},
            reference=_reference(study, configs, run),
        )
    for run, row in rows.items():
        if row.reference is not None:
            other = rows[row.reference]
            found = paired(row.accuracy("test"), other.accuracy("test"))
            rows[run] = replace(row, difference=found)
    compared = [run for run, row in rows.items() if row.reference is not None]
    adjusted = holm([rows[run].difference.p for run in compared])
    for run, p in zip(compared, adjusted, strict=True):
        rows[run] = replace(rows[run], p=p)
    return Ablation(study, results, tuple(rows.values()))


def _reference(study: Study, configs: dict[str, Config], run: str) -> str | None:
    wanted = replace(
        configs[run],
        **{name: _DEFAULTS[name] for name in study.varies if name not in study.within},
    )
    return next((n for n in study.runs if configs[n] == wanted and n != run), None)


def number(config: Config, name: str) -> float:
    """A field as a place on a scale, NaN if it is none: exact gradients are a ratio of 1."""
    value = getattr(config, name)
    if name == "ratio" and value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value)
