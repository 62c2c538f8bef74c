"""The runs of the quick suite: what came out here, and in the committed one."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

from meprop.study.experiments import ROOT, Run, load
from meprop.study.pipeline import find
from meprop.study.record import Record, RecordError
from meprop.study.report.tables import label

SUITE = "quick"
REFERENCE = Path("results/quick")
# The same suite on the machine of the reference, torch kept to the instructions of 2008:
# ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 python -m meprop run quick
PLAIN = Path("results/quick-plain")
# Relative, of the mean loss of the first epoch: rounding differs between processors, and sixty
# steps of training enlarge it. The runs in PLAIN stay well below.
TOLERANCE = 0.05


@dataclass(frozen=True)
class Row:
    """A run of the suite: what came out here, and in the reference."""

    run: Run
    here: Record | None
    reference: Record | None

    @property
    def table(self) -> int:
        """Table 2 has no batch normalisation, Table 3 has it."""
        return 3 if self.run.config.batch_norm else 2

    @property
    def label(self) -> str:
        return f"Table {self.table}, {label(self.run.config)}"

    @property
    def both(self) -> bool:
        return self.here is not None and self.reference is not None

    @property
    def difference(self) -> float:
        """Of test accuracy, here - reference, in points; NaN if one is missing."""
        return score(self.here) - score(self.reference)

    @property
    def loss_difference(self) -> float:
        """Of the mean loss of the first epoch, relative to the reference; NaN if one is missing."""
        reference = first_loss(self.reference)
        return abs(first_loss(self.here) - reference) / reference

    @property
    def agrees(self) -> bool:
        return self.loss_difference <= TOLERANCE


def datasets() -> tuple[str, ...]:
    """The data sets that the quick suite has runs for."""
    return tuple(dict.fromkeys(run.config.dataset for run in load().suites[SUITE].runs))


def compare(dataset: str, here: Path | None = None) -> list[Row]:
    """The suite's runs for a data set, in their order; none if it has none.

    `here`: a folder of records in place of those that were executed on this machine.

    >>> len(compare("digits"))
    14
    """
    rows = []
    for run in load().suites[SUITE].runs:
        if run.config.dataset == dataset:
            ours = find(run)[0] if here is None else _load(run, here)
            rows.append(Row(run, ours, _load(run, REFERENCE)))
    return rows


def _load(run: Run, folder: Path) -> Record | None:
    """A committed record of this run, if it is one of the configuration as declared."""
    try:
        record = Record.load(ROOT / folder / run.record.name)
    except (FileNotFoundError, RecordError):
        return None
    return record if record.config == run.config else None


def first_loss(record: Record | None) -> float:
    """The mean training loss of the first epoch; NaN where there is none."""
    return record.history[0]["train_loss"] if record and record.history else math.nan


def score(record: Record | None) -> float:
    """The test accuracy of a run; NaN if there is none."""
    accuracy = record.test_accuracy if record else None
    return math.nan if accuracy is None else accuracy


def seconds(record: Record | None) -> float:
    """The time of a run; NaN if there is none."""
    return record.provenance["seconds"] if record else math.nan


def adopt(folder: Path = REFERENCE) -> int:
    """Copy the records that were executed here into the repository; returns how many."""
    count = 0
    for run in load().suites[SUITE].runs:
        if find(run)[0] is not None:
            (ROOT / folder).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / run.record, ROOT / folder / run.record.name)
            count += 1
    return count
