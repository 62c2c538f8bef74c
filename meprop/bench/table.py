"""The results as plain text, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Sequence

from meprop.bench.results import CostLine, Row, cost_lines, kinds

FORMAT = {"contiguous": "C", "channels_last": "L"}


def render(rows: Sequence[Row]) -> str:
    """All sections for which there are rows.

    >>> render([])
    'Nothing was measured.'
    """
    best = [row for row in rows if row.best]
    sections = []
    for threads in sorted({row.threads for row in best}):
        here = [row for row in best if row.threads == threads]
        on = f"{threads} thread" + "s" * (threads > 1)
        sections += [
            _layers([row for row in here if row.group == "layer"], on),
            _lines([line for line in cost_lines(rows) if line.threads == threads], on),
            _selection([row for row in here if row.group == "selection"], on),
            _steps([row for row in here if row.group == "step"], on),
            _split([row for row in here if row.group == "split"], on),
        ]
    sections.append(_notes(best))
    return "\n\n".join(section for section in sections if section) or "Nothing was measured."


def _layers(rows: list[Row], on: str) -> str:
    lines = []
    for (subject, gradient), group in _grouped(rows, "subject", "gradient"):
        shown = f"{gradient} {group[0].density:.0%}"
        for _, of_case in _grouped(group, "case"):
            by_name = {row.contender: row for row in of_case}
            exact = by_name.pop("exact", None)
            auto = by_name.pop("auto") if exact else by_name.get("auto")
            cells = [subject, shown, _percent(by_name["sparse"].ratio), _time(by_name["dense"])]
            lines.append(
                [
                    *cells,
                    _speedup(by_name["masked"]),
                    _speedup(by_name["sparse"]),
                    "" if exact else _auto(auto),
                ]
            )
            if exact:
                lines.append([*cells[:2], "exact", cells[3], "", _speedup(exact), _auto(auto)])
    head = ["layer", "gradient", "kept", "dense ms", "masked", "sparse", "auto"]
    shapes = dict.fromkeys(f"{row.subject} {row.shape}" for row in rows)
    title = f"Backward pass of one layer, {on}: times as fast as dense"
    return _section(title, head, lines, under=_wrapped(list(shapes)))


def _lines(lines: list[CostLine], on: str) -> str:
    cells = [
        [
            line.subject,
            f"{line.intercept:.3f} + {line.slope:.2f} * ratio",
            f"{line.r2:.4f}",
            f"{line.intercept_ms:.3f} ms",
        ]
        for line in lines
    ]
    head = ["layer", "time / dense time", "R2", "at ratio 0"]
    return _section(f"Cost of sparse against the ratio, 0.5% to 25%, {on}", head, cells)


def _selection(rows: list[Row], on: str) -> str:
    lines = []
    for _, group in _grouped(rows, "case"):
        by_name = {row.contender: row for row in group}
        row, ours = by_name["topk"], by_name["sparse"]
        lines.append(
            [
                row.subject,
                f"{row.gradient} {row.density:.0%}",
                _percent(row.ratio),
                _time(row),
                _time(by_name["kthvalue"]),
                _time(ours),
                _speedup(ours, "topk"),
                _speedup(ours, "kthvalue"),
            ]
        )
    head = ["layer", "gradient", "kept", "topk ms", "kthvalue ms", "sparse ms"]
    head += ["over topk", "over kthvalue"]
    return _section(f"Selection alone, {on}", head, lines)


def _steps(rows: list[Row], on: str) -> str:
    lines = [
        [
            row.subject,
            row.contender + (f" {_percent(row.ratio)}" if row.ratio else ""),
            _time(row),
            " + ".join(_number(part) for part in row.parts.values()),
            _speedup(row),
            _speedup(row, "stock") if "stock" in row.speedup else "",
            row.chose or "",
        ]
        for row in rows
    ]
    head = ["network", "contender", "ms", "fwd + bwd + update"]
    head += ["over dense", "over stock", "auto"]
    return _section(f"Whole training steps, {on}", head, lines)


def _split(rows: list[Row], on: str) -> str:
    names = [
        f"{kind} {way}" for kind in ("conv", "between", "fc") for way in ("forward", "backward")
    ]
    lines = []
    for row in rows:
        if row.contender != "selection":
            times = kinds(row.parts)
            cells = [_number(times[name]) for name in (*names, "update")]
            lines.append([row.subject, row.contender, *cells])
    for row in rows:
        if row.contender == "selection":
            alone = _number(kinds(row.parts)["conv selection"])
            lines.append([row.subject, "selection", "", alone, *[""] * 5])
    short = [name.replace("forward", "fwd").replace("backward", "bwd") for name in names]
    title = f"Parts of a training step in ms, {on}; selection is within conv bwd"
    return _section(title, ["network", "contender", *short, "update"], lines)


def _notes(rows: list[Row]) -> str:
    if not rows:
        return ""
    notes = [
        "Medians over the rounds, quartiles in brackets. C contiguous, L channels_last: the better",
        "of the two for each contender.",
    ]
    autos = [row for row in rows if row.behind is not None]
    if autos:
        near = sum(row.behind is not None and row.behind <= 1.05 for row in autos)
        worst = max(autos, key=lambda row: row.behind or 0)
        notes += [
            f"auto: at most 5% behind the better of its choices in {near} of {len(autos)} cases,",
            f"at worst {worst.behind:.2f} times its time ({worst.case}).",
        ]
    far = [row for row in rows if row.difference is not None and row.difference > 1e-3]
    notes += [f"CAREFUL: {r.case}: {r.contender} is off by {r.difference:.1e}." for r in far]
    return "\n".join(notes)


def _grouped(rows: list[Row], *names: str) -> list[tuple[tuple, list[Row]]]:
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in names), []).append(row)
    return list(groups.items())


def _percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio * 100:g}%"


def _time(row: Row) -> str:
    return f"{_number(row.time['median'])} {FORMAT[row.format]}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _speedup(row: Row, baseline: str = "dense") -> str:
    spread = row.speedup[baseline]
    median, low, high = (_factor(spread[name]) for name in ("median", "q25", "q75"))
    return f"{median} ({low}-{high})"


def _factor(value: float) -> str:
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _auto(row: Row | None) -> str:
    return "" if row is None else f"{_factor(row.speedup['dense']['median'])} {row.chose}"


def _wrapped(items: list[str], width: int = 100) -> list[str]:
    lines = [""]
    for item in items:
        longer = f"{lines[-1]}{', ' if lines[-1] else ''}{item}"
        if len(longer) > width:
            lines.append(item)
        else:
            lines[-1] = longer
    return lines


def _section(title: str, head: list[str], cells: list[list[str]], under: Sequence[str] = ()) -> str:
    if not cells:
        return ""
    widths = [max(len(row[i]) for row in [head, *cells]) for i in range(len(head))]
    lines = []
    for row in [head, ["-" * width for width in widths], *cells]:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join([title, *under, "", *lines])
