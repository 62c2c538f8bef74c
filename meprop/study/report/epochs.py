"""What lies behind a row of Tables 2 and 3: all of its epochs, not the chosen one alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median, stdev

from meprop.study.record import Record
from meprop.study.report.tables import Compared
from meprop.study.report.wording import NONE
from meprop.study.words import listed

LAYERS = ("conv1", "conv2")
LATE = 10  # so many last epochs
NEARLY = 5  # percent of a gradient's norm: with less removed, it is nearly the same gradient
FIRST, LAST = slice(1), slice(-LATE, None)


def norm_kept(record: Record) -> list[float]:
    """The share of the gradient's norm that selection passes on, of each epoch and layer (%)."""
    return [100 * epoch["layers"][name]["norm_kept"] for epoch in record.history for name in LAYERS]


def mean_norm_kept(records: Iterable[Record]) -> str:
    """The same, averaged over the epochs and layers of some runs: `79%`."""
    return f"{fmean(fmean(norm_kept(record)) for record in records):.0f}%"


def taken_away(compared: Sequence[Compared]) -> str:
    """A Markdown table: what selection leaves of the gradient, at first and at last."""
    lines = [
        f"| top-k | layer | norm kept, epoch 1 | norm kept, last {LATE} "
        f"| nonzero before, last {LATE} |",
        "| :-- | :-- | --: | --: | --: |",
    ]
    for row in (row for row in compared[1:] if row.records):
        records = row.records.values()
        for layer in LAYERS:
            cells = [row.label, layer]
            for what, epochs in (("norm_kept", FIRST), ("norm_kept", LAST), ("before", LAST)):
                share = fmean(_share(record, layer, what, epochs) for record in records)
                cells.append(f"{100 * share:.1f}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def taken_away_in_words(compared: Sequence[Compared]) -> str:
    """Which rows pass on nearly the whole gradient, and which do not."""
    by_decay: dict[float, list[float]] = {}
    for row in compared[1:]:
        for record in row.records.values():
            by_decay.setdefault(record.config.decay, []).extend(norm_kept(record))
    if not by_decay:
        return "Not yet trained."
    ranges = "; ".join(
        f"decay {decay:g}: {min(kept):.1f} to {max(kept):.1f}%"
        for decay, kept in sorted(by_decay.items())
    )
    words = [f"What is kept of the norm, over all epochs and both convolutions: {ranges}."]
    if 0.0 in by_decay:
        lost = median(100 * math.sqrt(max(0.0, 1 - (kept / 100) ** 2)) for kept in by_decay[0.0])
        words.append(
            f"Without a decay, what selection removes has a norm of "
            f"{f'{lost:.1f}%' if lost >= 0.05 else 'less than 0.1%'} of the whole, in the median."
        )
        words.append(
            "So such a row is trained with nearly the gradients of the baseline, and its distance "
            "to the baseline says more about two trainings than about the method."
            if lost < NEARLY
            else "So the few entries that it passes on carry most of the gradient."
        )
    if len(by_decay) > 1:
        words.append(
            "With a decay, the past has a say in the choice, which misses a part of the present "
            "gradient: these rows are the harder test."
        )
    return " ".join(words)


def settled(compared: Sequence[Compared]) -> str:
    """A Markdown table: accuracies over the last epochs, which nobody chose."""
    lines = [
        f"| top-k | test, chosen epoch | test, mean of the last {LATE} epochs | standard deviation "
        f"among them | train - test, mean of the last {LATE} |",
        "| :-- | --: | --: | --: | --: |",
    ]
    for row in compared:
        cells = [NONE] * 4
        if row.records:
            values = (
                row.test.mean,
                _mean(row, late),
                _mean(row, late_spread),
                _mean(row, late_gap),
            )
            cells = [f"{value:.2f}" for value in values]
        lines.append(f"| {row.label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def settled_in_words(compared: Sequence[Compared]) -> str:
    """Does the order of the rows last, and is the baseline's gap the widest there too?"""
    done = [row for row in compared if row.records]
    rest = [row for row in done if row is not compared[0]]
    if not rest or not compared[0].records:
        return "Not yet trained."
    spreads = [_mean(row, late_spread) for row in done]
    chosen = _ranked({row.label: row.test.mean for row in done})
    lasting = _ranked({row.label: _mean(row, late) for row in done})
    gaps = sorted(_mean(row, late_gap) for row in rest)
    order = (
        "the rows keep their order"
        if chosen == lasting
        else f"the rows come in another order, with {_first(lasting)} first in place of "
        f"{_first(chosen)}"
        if chosen[0] != lasting[0]
        else f"the rows behind {_first(lasting)} come in another order"
    )
    between = f"{gaps[0]:.2f} to {gaps[-1]:.2f}" if len(gaps) > 1 else f"{gaps[0]:.2f}"
    return (
        f"From one late epoch to the next, a test accuracy varies with a standard deviation of "
        f"{min(spreads):.2f} to {max(spreads):.2f} points, without another image or seed. By their "
        f"means over the last {LATE} epochs {order}. The distance between training and test "
        f"accuracy is there {_mean(compared[0], late_gap):.2f} points for the baseline and "
        f"{between} for the other rows."
    )


def _ranked(values: dict[str, float]) -> list[list[str]]:
    """The best first; equals, such as the same count of images, share a place."""
    places: dict[float, list[str]] = {}
    for name, value in values.items():
        places.setdefault(round(value, 6), []).append(name)
    return [places[value] for value in sorted(places, reverse=True)]


def _first(places: list[list[str]]) -> str:
    return listed("the baseline" if name == "baseline" else name for name in places[0])


def late(record: Record) -> float:
    """The mean test accuracy of the last epochs."""
    return fmean(epoch["test_accuracy"] for epoch in record.history[LAST])


def late_gap(record: Record) -> float:
    """The mean of training minus test accuracy over the last epochs."""
    last = record.history[LAST]
    return fmean(epoch["train_accuracy"] - epoch["test_accuracy"] for epoch in last)


def late_spread(record: Record) -> float:
    """The standard deviation of the test accuracy over the last epochs."""
    values = [epoch["test_accuracy"] for epoch in record.history[LAST]]
    return stdev(values) if len(values) > 1 else math.nan


def _share(record: Record, layer: str, what: str, epochs: slice) -> float:
    return fmean(epoch["layers"][layer][what] for epoch in record.history[epochs])


def _mean(row: Compared, value: Callable[[Record], float]) -> float:
    return fmean(value(record) for record in row.records.values())
