"""What the page about the reader's machine shows: tables and sentences (Markdown)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from meprop.study.record import Record
from meprop.study.report.quick.comparing import (
    TOLERANCE,
    Row,
    datasets,
    first_loss,
    score,
    seconds,
)
from meprop.study.report.wording import NONE

COMMAND = "python -m meprop run quick"


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
        cells += [_number(score(record)) for record in (row.here, row.reference)]
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


def _same(row: Row) -> bool:
    assert row.here is not None and row.reference is not None
    return row.here.outcome() == row.reference.outcome()


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
