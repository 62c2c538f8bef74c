"""The answers of a study in words, as far as its seeds go."""

from __future__ import annotations

from meprop.study.report.ablations.study import Ablation, Row, number
from meprop.study.report.statistics import LEVEL, holm, paired
from meprop.study.report.wording import points, probability, signed

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
        verdict = "Worse than the reference" if row.difference.mean < 0 else "Better"
        found.setdefault(verdict if row.p < 1 - LEVEL else "No difference shown", []).append(row)
    parts = []
    for verdict, rows in found.items():
        # The table has the numbers: a long list of them is no answer.
        numbers = len(rows) <= MANY
        words = [f"{r.label}: {signed(r.difference)}" if numbers else r.label for r in rows]
        if not numbers and len(rows) == len(compared):
            words = [f"all {len(rows)}"]
        parts += [f"**{verdict}**: {'; '.join(words)}."] if words else []
    adjusted = f", adjusted for the {len(compared)} comparisons of this study,"
    return (
        f"Differences of test accuracy in points over up to {ablation.seeds} seeds, each with its "
        f"95% interval; told apart where p{adjusted if len(compared) > 1 else ''} is below "
        f"{1 - LEVEL:.2g}.\n\n- " + "\n- ".join(parts) + _interim(ablation)
    )


def _interim(ablation: Ablation) -> str:
    if not ablation.results.missing:
        return ""
    return (
        "\n\nDeclared seeds are missing: this is an interim look, and who looks several times "
        "finds a difference by chance more often than p says."
    )


def fewest_in_words(ablation: Ablation) -> str | None:
    """How far the ratio can fall, for each group of a study of the ratio; else None."""
    if ablation.axis != "ratio" or "ratio" in ablation.study.within:
        return None
    found = []
    for group in ablation.groups:
        rows = [row for row in ablation.rows if row.group == group]
        rows = sorted((r for r in rows if r.records), key=lambda row: number(row.config, "ratio"))
        own = f"{group}: " if group else ""
        if len(rows) < 2:
            continue
        text = (
            f"{own}{rows[0].test.mean:.2f}% with {rows[0].treatment}, {rows[-1].test.mean:.2f}% "
            f"with {rows[-1].treatment}"
        )
        told = [row for row in rows if row.difference.known]
        if told:
            # From the largest ratio downwards, until one is told from the reference.
            least = None
            for row in reversed(told):
                if row.p < 1 - LEVEL and row.difference.mean < 0:
                    break
                least = row
            text += (
                f"; down to {least.treatment} none is shown to be worse than all gradients "
                f"(there: {signed(least.difference)} points)"
                if least
                else f"; already {told[-1].treatment} is worse than all gradients"
            )
        found.append(text)
    return f"Test accuracy, {'; '.join(found)}." if found else "There are no two ratios yet."


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
        f"{row.label} {signed(change)}" + (f", p {probability(p)}" if change.known else "")
        for row, change, p in zip(
            ablation.compared, found, holm([change.p for change in found]), strict=True
        )
    ]
    one = "" if ablation.seeds > 1 else " One seed: a description."
    return (
        "Change of the gap between training and test accuracy against the reference, in points: "
        f"{'; '.join(parts)}.{one}"
    )
