"""The quick suite on this machine beside the committed one.

`python -m meprop.study.report.quick` commits the suite that was executed here as the reference. It
lies in results/, where the pipeline does not look for a suite that is not committed: readers train
it themselves.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from meprop.study.experiments import ROOT, Run, load
from meprop.study.pipeline import find
from meprop.study.record import Record, RecordError
from meprop.study.report.tables import label
from meprop.study.report.wording import NONE

SUITE = "quick"
REFERENCE = Path("results/quick")
# The same suite on the machine of the reference, torch kept to the instructions of 2008:
# ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 python -m meprop run quick
PLAIN = Path("results/quick-plain")
# Relative, of the mean loss of the first epoch: rounding differs between processors, and sixty
# steps of training enlarge it. The runs in PLAIN stay well below.
TOLERANCE = 0.05
COMMAND = "python -m meprop run quick"


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
        return _test(self.here) - _test(self.reference)

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


def _test(record: Record | None) -> float:
    accuracy = record.test_accuracy if record else None
    return math.nan if accuracy is None else accuracy


def about(dataset: str, rows: Sequence[Row]) -> str:
    """What there is to compare, and how to get what is missing (Markdown)."""
    if not rows:
        return (
            f"The quick suite has no runs for {dataset}; there are some for "
            f"{', '.join(datasets())}. Nothing to compare."
        )
    done = sum(row.here is not None for row in rows)
    if not done:
        return (
            "The quick suite was not executed on this machine yet, or by other code: "
            f"`{COMMAND}` trains its {len(rows)} runs in a few minutes (`make book` does it "
            "too). Until then this page shows the reference alone."
        )
    rest = "" if done == len(rows) else f" `{COMMAND}` trains the others."
    return f"{done} of the {len(rows)} runs of the quick suite were executed here.{rest}"


def reference_table(rows: Sequence[Row]) -> str:
    """What is committed (Markdown)."""
    lines = [
        "| run | best epoch | dev (%) | test (%) | loss of epoch 1 |",
        "| :-- | --: | --: | --: | --: |",
    ]
    for row in rows:
        cells = [NONE] * 4
        if (record := row.reference) is not None:
            cells = [str(record.best_epoch), f"{record.dev_accuracy:.2f}"]
            cells += [f"{record.test_accuracy:.2f}", f"{first_loss(record):.4f}"]
        lines.append(f"| {row.label} | {' | '.join(cells)} |")
    return "\n".join(lines) if rows else "There is no reference."


def side_by_side(rows: Sequence[Row]) -> str:
    """The scores here and in the reference (Markdown)."""
    if not any(row.here for row in rows):
        return "Nothing was executed here yet."
    lines = [
        "| run | test here (%) | reference (%) | difference (points) | dev here (%) "
        "| reference (%) |",
        "| :-- |" + " --: |" * 5,
    ]
    for row in rows:
        cells = [row.label]
        cells += [_number(_test(record)) for record in (row.here, row.reference)]
        cells.append(_number(row.difference, "+.2f"))
        cells += [_number(_dev(record)) for record in (row.here, row.reference)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def losses_and_times(rows: Sequence[Row]) -> str:
    """The first epoch's loss and the time of training, here and in the reference (Markdown)."""
    if not any(row.here for row in rows):
        return "Nothing was executed here yet."
    lines = [
        "| run | loss of epoch 1 here | reference | agree | seconds here | reference |",
        "| :-- |" + " --: |" * 5,
    ]
    for row in rows:
        cells = [row.label]
        cells += [_number(first_loss(record), ".4f") for record in (row.here, row.reference)]
        cells.append(("yes" if row.agrees else "no") if row.both else NONE)
        cells += [_number(seconds(record), ".0f") for record in (row.here, row.reference)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _dev(record: Record | None) -> float:
    accuracy = record.dev_accuracy if record else None
    return math.nan if accuracy is None else accuracy


def seconds(record: Record | None) -> float:
    """The time of a run; NaN if there is none."""
    return record.provenance["seconds"] if record else math.nan


def _number(value: float, form: str = ".2f") -> str:
    return NONE if math.isnan(value) else format(value, form)


def in_words(rows: Sequence[Row]) -> str:
    """Does this machine give what the reference has?"""
    both = [row for row in rows if row.both]
    if not both:
        return "There is nothing to compare yet."
    same = sum(_same(row) for row in both)
    agreeing = sum(row.agrees for row in both)
    largest = max(both, key=lambda row: abs(row.difference))
    codes = {r.provenance.get("code") for row in both for r in (row.here, row.reference) if r}
    other = " The reference was made by other code, see below." if len(codes) > 1 else ""
    here = sum(seconds(row.here) for row in both)
    there = sum(seconds(row.reference) for row in both)
    return (
        f"Of {len(both)} runs, {same} came out the same to the last bit, and in {agreeing} the "
        f"mean loss of the first epoch agrees within {TOLERANCE:.0%} (largest difference "
        f"{max(row.loss_difference for row in both):.2g}). Test accuracies differ by at most "
        f"{abs(largest.difference):.2f} points ({largest.label}). Training took {here:.0f} s in "
        f"all here and {there:.0f} s for the reference: times of machines with other things to "
        f"do, not a benchmark.{other}"
    )


def _same(row: Row) -> bool:
    assert row.here is not None and row.reference is not None
    return row.here.outcome() == row.reference.outcome()


def expected(rows: Sequence[Row], images: int) -> str:
    """How much other arithmetic alone changes, from the suite with plain instructions (Markdown).

    `rows` compare that suite with the reference.
    """
    both = [row for row in rows if row.both]
    if not both:
        return "It was not measured what other arithmetic alone changes."
    losses = max(row.loss_difference for row in both)
    differences = [abs(row.difference) for row in both]
    image = 100 / images
    return (
        f"To see how much, the suite was trained on the machine of the reference again, with torch "
        f"kept to the instructions of a processor of 2008. {sum(_same(row) for row in both)} of "
        f"{len(both)} runs then came out the same to the last bit. The mean loss of the first "
        f"epoch moved by {losses:.1%} at most. Test accuracies moved by "
        f"{median(differences):.2f} points in the median and {max(differences):.2f} "
        f"at most; one of the {images} test images is {image:.2f} points. Expect the same of "
        "another machine."
    )


def machines(rows: Sequence[Row]) -> str:
    """Where the two come from (Markdown)."""
    names = ("cpu", "cores", "threads", "platform", "python", "torch", "numpy", "commit", "code")
    sides = {
        side: next((getattr(row, side) for row in rows if getattr(row, side)), None)
        for side in ("here", "reference")
    }
    lines = ["|  | here | reference |", "| :-- | :-- | :-- |"]
    for name in names:
        values = [
            _short(record.provenance.get(name)) if record else NONE for record in sides.values()
        ]
        lines.append(f"| {name} | {' | '.join(values)} |")
    return "\n".join(lines)


def _short(value: object) -> str:
    text = str(value)
    return text[:12] if len(text) >= 40 else text


def check_invariants(rows: Sequence[Row]) -> str:
    """Assert what holds on any machine; returns what was checked, in a sentence."""
    for row in rows:
        for record in (row.here, row.reference):
            if record is None:
                continue
            assert record.config == row.run.config, row.label
            assert record.status == "finished", row.label
            assert len(record.history) == row.run.config.epochs, row.label
            for epoch in record.history:
                _check_densities(row.run, epoch["layers"])
        if row.both:
            assert row.here is not None and row.reference is not None
            assert row.here.provenance["data"] == row.reference.provenance["data"], row.label
            assert row.agrees, f"{row.label}: the first epoch's loss differs, {row.loss_difference}"
    if not rows:
        return "There is nothing to check."
    here, both = sum(row.here is not None for row in rows), sum(row.both for row in rows)
    checked = (
        f"Checked: of {here} runs here and {sum(row.reference is not None for row in rows)} of the "
        "reference, every one is of the declared configuration and finished, and no layer passes "
        "back more than its share."
    )
    if both:
        checked += (
            f" Where there are both ({both}), they had the same data, and the losses of the first "
            "epoch agree."
        )
    return checked


def _check_densities(run: Run, layers: Mapping[str, Mapping[str, float]]) -> None:
    ratio = run.config.ratio
    for name in run.config.sparse_layers if ratio is not None else ():
        assert ratio is not None
        # k is rounded, of 1,960 entries of a map at the least.
        assert layers[name]["after"] <= ratio + 1 / 1960, f"{run.name}: {name}"


def adopt(folder: Path = REFERENCE) -> int:
    """Copy the records that were executed here into the repository; returns how many."""
    count = 0
    for run in load().suites[SUITE].runs:
        if find(run)[0] is not None:
            (ROOT / folder).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / run.record, ROOT / folder / run.record.name)
            count += 1
    return count


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else REFERENCE
    print(f"{adopt(where)} records copied to {where}.")
