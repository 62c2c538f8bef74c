"""What the paper's own tables say to its claims."""

from __future__ import annotations

from collections.abc import Sequence

from meprop.study import paper
from meprop.study.report.claims.judging import table_of
from meprop.study.report.wording import points


def own(key: str) -> str | None:
    """What the paper's own tables say to a claim, computed from them; None: they say nothing."""
    two, three = paper.table(2), paper.table(3)
    by_name = {row.name: row for row in (*two, *three)}

    def against(number: int, rows: Sequence[paper.Row]) -> list[float]:
        return [row.test - by_name[f"table{number}-baseline"].test for row in rows]

    def five(number: int) -> list[paper.Row]:
        percent = paper.paper()["ratio"]["percent"]
        return [row for row in paper.table(number) if row.k == percent]

    def signed(values: Sequence[float]) -> str:
        return ", ".join(map(points, values))

    if key in ("suffices", "suffices-bn", "bn-sparse-beats-full"):
        values = against(table_of(key), five(table_of(key)))
        return f"{_yes(min(values) > 0)}: {signed(values)} points at 5%, one run each."
    if key == "beats-baseline":
        both = [against(number, rows[1:]) for number, rows in ((2, two), (3, three))]
        above = [sum(value > 0 for value in each) for each in both]
        return (
            f"{_yes(above[0] == len(both[0]))} in Table 2, of which the paper says it: {above[0]} "
            f"of {len(both[0])} settings are above the baseline. In Table 3 {above[1]} of "
            f"{len(both[1])} are."
        )
    if key == "overfits":
        gaps = [row.dev - row.test for row in two]
        return (
            f"{_yes(gaps[0] > max(gaps[1:]))}, by dev - test: {gaps[0]:.2f} for the baseline, "
            f"{min(gaps[1:]):.2f} to {max(gaps[1:]):.2f} else."
        )
    if key in ("decay-helps", "decay-helps-bn"):
        rows = paper.table(table_of(key))
        values = [
            row.test - by_name[row.name.replace("-d06", "-d0")].test
            for row in rows
            if row.name.endswith("-d06")
        ]
        return f"{_yes(min(values) > 0)}: {signed(values)} points at 5, 8 and 10%."
    if key == "bn-faster":
        return (
            f"{_yes(three[0].epoch < two[0].epoch)}: the best epoch of the baseline is "
            f"{three[0].epoch} with and {two[0].epoch} without."
        )
    if key == "bn-higher":
        return f"{_yes(three[0].test > two[0].test)}: {points(three[0].test - two[0].test)} points."
    return None


def _yes(holds: bool) -> str:
    return "Yes" if holds else "No"
