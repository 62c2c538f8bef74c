"""The answers of a study in words, as far as its seeds go."""

from __future__ import annotations

from meprop.study.report.ablations.study import GUESSING, Ablation, Row, number
from meprop.study.report.results import INTERIM
from meprop.study.report.statistics import LEVEL, MARGIN, holm, paired
from meprop.study.report.wording import over, points, probability, signed
from meprop.study.words import listed

MANY = 4  # comparisons whose numbers still fit into a sentence


def in_words(ablation: Ablation) -> str:
    """The answer, as far as the seeds go; with one seed there is none."""
    compared = ablation.compared
    if not compared:
        return "There is no answer yet: a run and its reference with the same seed are needed."
    if ablation.seeds < 2:
        least = min(compared, key=lambda row: row.difference.mean)
        most = max(compared, key=lambda row: row.difference.mean)
        text = f"{most.label} has {points(most.difference.mean)} points"
        if least is not most:
            text += f" at one end, {least.label} {points(least.difference.mean)} at the other"
        return (
            f"Against the reference, {text}. That describes networks trained with one seed, and "
            "decides nothing: a second seed may turn it round."
        )
    found: dict[str, list[Row]] = {"Worse than the reference": [], "Better": []}
    for row in compared:
        if row.stuck or ablation.row(row.reference or "").stuck:
            continue
        verdict = "Worse than the reference" if row.difference.mean < 0 else "Better"
        found.setdefault(verdict if row.p < 1 - LEVEL else "No difference shown", []).append(row)
    parts = [_stuck_in_words(row) for row in ablation.done if row.stuck]
    shown = False
    for verdict, rows in found.items():
        # The table has the numbers: a long list of them is no answer.
        numbers = len(rows) <= MANY
        shown = shown or (numbers and bool(rows))
        words = [f"{r.label}: {signed(r.difference)}" if numbers else r.label for r in rows]
        if not numbers and len(rows) == len(compared):
            words = [f"all {len(rows)}"]
        parts += [f"**{verdict}**: {'; '.join(words)}."] if words else []
    seeds = over(row.difference for row in compared)
    adjusted = f", adjusted for the {len(compared)} comparisons of this study,"
    own = f", each with its {LEVEL:.0%} interval (not adjusted)" if shown else ""
    return (
        f"Differences of test accuracy in points {seeds}{own}; "
        f"told apart where p{adjusted if len(compared) > 1 else ''} is below {1 - LEVEL:.2g}."
        "\n\n- " + "\n- ".join(parts) + (f"\n\n{INTERIM}" if ablation.results.missing else "")
    )


def _stuck_in_words(row: Row) -> str:
    values = row.accuracy("test")
    stuck = [f"{value:.2f}%" for value in row.stuck.values()]
    rest = [f"{value:.2f}%" for seed, value in values.items() if seed not in row.stuck]
    text = f"{len(stuck)} of {len(values)} seeds never do better than to guess ({', '.join(stuck)})"
    others = f"; the rest reach{'es' if len(rest) == 1 else ''} {listed(rest)}" if rest else ""
    rule = f"A test accuracy up to {GUESSING:g}% counts as guessing, a line drawn after these runs"
    return f"**Did not always learn**: {row.label}: {text}{others}. {rule}."


def fewest_in_words(ablation: Ablation) -> str | None:
    """How far the ratio can fall, for each group of a study of the ratio; else None."""
    if ablation.axis != "ratio" or "ratio" in ablation.study.within:
        return None
    found = []
    for group in ablation.groups:
        rows = [row for row in ablation.rows if row.group == group]
        rows = sorted((r for r in rows if r.records), key=lambda row: number(row.config, "ratio"))
        if len(rows) < 2:
            continue
        text = (
            f"{f'{group[0].upper()}{group[1:]}: t' if group else 'T'}est accuracy is "
            f"{rows[0].test.mean:.2f}% with {rows[0].treatment} and {rows[-1].test.mean:.2f}% with "
            f"{rows[-1].treatment}."
        )
        told = [row for row in rows if row.difference.known]
        if told:
            suffice = [row.treatment for row in told if row.difference.low > -MARGIN]
            worse = [row.treatment for row in told if row.p < 1 - LEVEL and row.difference.mean < 0]
            text += (
                f" Shown not to be worse than all gradients by more than {MARGIN:.2f} points, each "
                f"by its own {LEVEL:.0%} interval: {listed(suffice) or 'none'}. Shown to be worse: "
                f"{listed(worse) or 'none'}."
            )
        found.append(text)
    if not found:
        return "There are no two ratios yet."
    rest = (
        "The others are open: not shown to be worse does not mean that they suffice. The margin is "
        "the ledger's; that it is applied here too was decided after the first three seeds."
    )
    return " ".join([*found, rest])


def gaps_in_words(ablation: Ablation) -> str | None:
    """What a treatment does to the distance from training to test accuracy, against dropout.

    None for a study that is not about overfitting.
    """
    if not ablation.varies("dropout", "train_size"):
        return None
    if not ablation.compared:
        return "There is no comparison of the gaps yet."
    found = [
        paired(row.gap("train", "test"), ablation.row(row.reference or "").gap("train", "test"))
        for row in ablation.compared
    ]
    parts = [
        f"{row.label} {signed(change)}" + (f", p (Holm) {probability(p)}" if change.known else "")
        for row, change, p in zip(
            ablation.compared, found, holm([change.p for change in found]), strict=True
        )
    ]
    one = "" if ablation.seeds > 1 else " One seed: a description."
    return (
        "Change of the gap between training and test accuracy against the reference, in points: "
        f"{'; '.join(parts)}.{one}"
    )
