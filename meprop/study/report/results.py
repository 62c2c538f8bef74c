"""The records that experiments.yml declares and that are there, and which are missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meprop.study.experiments import Run, load
from meprop.study.pipeline import find
from meprop.study.record import Record, flat
from meprop.study.words import listed

if TYPE_CHECKING:
    from pandas import DataFrame

# Beside a comparison over seeds, while some of them are not there yet.
INTERIM = (
    "Declared seeds are missing: this is an interim look, and who looks several times finds a "
    "difference by chance more often than p or an interval says."
)


@dataclass(frozen=True)
class Results:
    """Declared runs in their order, with the records of those that are done."""

    runs: tuple[Run, ...]
    records: dict[str, Record]  # by Run.id

    @property
    def names(self) -> tuple[str, ...]:
        """The configurations, done or not."""
        return tuple(dict.fromkeys(run.name for run in self.runs))

    @property
    def missing(self) -> tuple[Run, ...]:
        """What is declared and not done."""
        return tuple(run for run in self.runs if run.id not in self.records)

    def of(self, name: str) -> dict[int, Record]:
        """The records of one configuration by seed; empty if none is done."""
        done = [run for run in self.runs if run.name == name and run.id in self.records]
        return {run.seed: self.records[run.id] for run in done}

    def scores(self) -> DataFrame:
        """A row a finished run: suite, name, seed, its configuration, best epoch and scores.

        `train_accuracy` and `train_loss` are those of the best epoch. A run that diverged has its
        best epoch before that, if any, and status `diverged`.
        """
        rows = []
        for run in self.runs:
            if (record := self.records.get(run.id)) is not None:
                rows.append(self._names(run) | vars(record.config) | _best(record))
        return _frame(rows, [*self._names(self.runs[0]), *vars(self.runs[0].config), *_BEST])

    def histories(self) -> DataFrame:
        """A row an epoch of a run, layers as `conv1_before` etc."""
        rows = []
        for run in self.runs:
            if (record := self.records.get(run.id)) is not None:
                rows += [self._names(run) | flat(epoch) for epoch in record.history]
        return _frame(rows, [*self._names(self.runs[0]), "epoch"])

    def coverage(self) -> str:
        """Which runs there are, and which are missing or diverged, in a sentence or two."""
        done, declared = len(self.runs) - len(self.missing), len(self.runs)
        text = f"All {declared} declared runs are done."
        if self.missing:
            text = (
                f"Done: {done} of {declared} declared runs. Missing: {'; '.join(self._lacking())}. "
                "`make reproduce` trains what is missing."
            )
        lost = [
            f"`{run.name}` (seed {run.seed})"
            for run in self.runs
            if (record := self.records.get(run.id)) and record.status == "diverged"
        ]
        return f"{text} Diverged: {', '.join(lost)}." if lost else text

    def _lacking(self) -> list[str]:
        """Seeds and who lacks them; many do, because the first seed of all is trained first."""
        seeds: dict[str, list[int]] = {}
        for run in self.missing:
            seeds.setdefault(run.name, []).append(run.seed)
        names: dict[str, list[str]] = {}
        for name, lacks in seeds.items():
            of = f"seed{'s' if len(lacks) > 1 else ''} {', '.join(map(str, lacks))}"
            names.setdefault(of, []).append(f"`{name}`")
        return [
            f"{of} of {'each' if len(which) == len(self.names) > 1 else listed(which)}"
            for of, which in names.items()
        ]

    @staticmethod
    def _names(run: Run) -> dict[str, Any]:
        return {"suite": run.suite, "name": run.name, "seed": run.seed}


_BEST = (
    *("status", "best_epoch", "dev_accuracy", "test_accuracy", "train_accuracy", "train_loss"),
    "seconds",
)


def gather(suite: str, names: Iterable[str] | None = None) -> Results:
    """The results of a suite, or of some of its configurations.

    A record counts if it is whole and of the declared configuration, as for `make reproduce`.

    >>> gather("paper", ["table2-baseline"]).names
    ('table2-baseline',)
    """
    wanted = None if names is None else set(names)
    runs = [run for run in load().suites[suite].runs if wanted is None or run.name in wanted]
    records = {run.id: record for run in runs if (record := find(run)[0]) is not None}
    return Results(tuple(runs), records)


def tests(records: Mapping[int, Record]) -> dict[int, float]:
    """Test accuracy by seed, of the runs that have one."""
    return {
        seed: record.test_accuracy
        for seed, record in records.items()
        if record.test_accuracy is not None
    }


def _best(record: Record) -> dict[str, Any]:
    epoch = record.history[record.best_epoch - 1] if record.best_epoch else {}
    values = (
        *(record.status, record.best_epoch, record.dev_accuracy, record.test_accuracy),
        *(epoch.get("train_accuracy"), epoch.get("train_loss"), record.provenance["seconds"]),
    )
    return dict(zip(_BEST, values, strict=True))


def _frame(rows: list[dict[str, Any]], columns: list[str]) -> DataFrame:
    import pandas

    return pandas.DataFrame(rows) if rows else pandas.DataFrame(columns=columns)
