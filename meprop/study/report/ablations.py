"""A study of the ablation suite: its runs, each compared with its reference over the seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean
from typing import Any

from meprop.study.config import Config
from meprop.study.describing import words
from meprop.study.experiments import Study, load
from meprop.study.record import Record
from meprop.study.report.paper import paper
from meprop.study.report.results import Results, gather
from meprop.study.report.statistics import (
    LEVEL,
    Interval,
    binomial_noise,
    difference_noise,
    discordant,
    holm,
    interval,
    paired,
)
from meprop.study.report.wording import NONE, probability, signed, spread

SUITE = "ablation"
MANY = 4  # comparisons whose numbers still fit into a sentence
GAPS = (("train", "dev"), ("dev", "test"))
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
        return interval(list(self.accuracy("test").values()))

    @property
    def dev(self) -> Interval:
        return interval(list(self.accuracy("dev").values()))

    @property
    def epochs(self) -> list[int]:
        return [record.best_epoch for record in self.records.values() if record.best_epoch]

    def accuracy(self, part: str) -> dict[int, float]:
        """Accuracy on train, dev or test in the chosen epoch, by seed."""
        return {
            seed: record.history[(record.best_epoch or 1) - 1][f"{part}_accuracy"]
            for seed, record in self.records.items()
        }

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
        return [n for n in names if n in sparse or (above and _BELOW.get(n) in sparse)]


_BELOW = {"top1": "conv1", "top2": "conv2", "top3": "fc1"}


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
    adjusted = holm([row.difference.p for row in rows.values()])
    pairs = zip(rows.values(), adjusted, strict=True)
    return Ablation(study, results, tuple(replace(row, p=p) for row, p in pairs))


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


def about(ablation: Ablation) -> str:
    """The question, what is varied, what each run is compared with, and which runs there are."""
    study = ablation.study
    varied = _list([f"`{name}`" for name in study.varies])
    text = f"**{study.about}** The runs of the study `{study.name}` differ in {varied}."
    named = {
        row.reference: ablation.row(row.reference).label for row in ablation.rows if row.reference
    }
    if named:
        same = f" Only runs that agree in {_list([f'`{n}`' for n in study.within])} are compared."
        text += f" Reference: {'; '.join(named.values())}.{same if study.within else ''}"
    return f"{text} {coverage(ablation)}"


def _list(words: Sequence[str]) -> str:
    return " and ".join(", ".join(words).rsplit(", ", 1))


def scores(ablation: Ablation) -> str:
    """A Markdown table: accuracies over the seeds, and the difference to the reference."""
    lines = [
        "| configuration | seeds | test accuracy (%) | difference (points) | p (Holm) "
        "| dev accuracy (%) | best epoch |",
        "| :-- | --: | --: | --: | --: | --: | --: |",
    ]
    referred = {row.reference for row in ablation.rows}
    for row in ablation.rows:
        difference = signed(row.difference)
        if row.reference is None and row.name in referred:
            difference = "reference"
        dev = NONE if math.isnan(row.dev.mean) else f"{row.dev.mean:.2f}"
        lines.append(
            f"| {row.label} | {len(row.records)} | {spread(row.test)} | {difference} "
            f"| {probability(row.p)} | {dev} | {_from_to(row.epochs)} |"
        )
    return "\n".join(lines)


def _from_to(values: Sequence[int]) -> str:
    ends = sorted({min(values), max(values)}) if values else []
    return " to ".join(map(str, ends)) or NONE


def gaps(ablation: Ablation) -> str:
    """A Markdown table: the distances between training, development and test accuracy."""
    lines = [
        "| configuration | train accuracy (%) | train - dev (points) | dev - test (points) |",
        "| :-- | --: | --: | --: |",
    ]
    for row in ablation.done:
        cells = [row.label, spread(interval(list(row.accuracy("train").values())))]
        cells += [signed(interval(list(row.gap(*gap).values()))) for gap in GAPS]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) if ablation.done else "No run is done yet."


def gradients(ablation: Ablation) -> str:
    """A Markdown table: nonzero share before and after selection, and the share of norm kept."""
    layers = [
        layer
        for layer in ablation.layers
        if any(not math.isnan(row.layer(layer, "before")) for row in ablation.done)
    ]
    if not layers:
        return "No run is done yet."
    titles = [_LAYERS.get(layer, layer) for layer in layers]
    head = " | ".join(f"{title}: before | after | norm kept" for title in titles)
    lines = [f"| configuration | {head} |", "| :-- |" + " --: |" * 3 * len(layers)]
    for row in ablation.done:
        cells = [row.label]
        for layer in layers:
            for what in ("before", "after", "norm_kept"):
                value = row.layer(layer, what)
                cells.append(NONE if math.isnan(value) else f"{value:.3g}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


_LAYERS = {layer: f"{below} above BN" for layer, below in _BELOW.items()}


def noise(ablation: Ablation) -> str:
    """What chance in the choice of the test images does to an accuracy and to a difference."""
    if not ablation.done:
        return "No run is done yet."
    images = paper()["data"]["test"]
    mean = fmean(row.test.mean for row in ablation.done)
    text = (
        f"For scale: an accuracy of {mean:.2f}%, measured on {images:,} images, has a binomial "
        f"95% interval of ±{binomial_noise(mean, images):.2f} points."
    )
    if counts := _disagreements(ablation):
        count = round(fmean(counts))
        text += (
            f" On average {count} of them are classified rightly by only one of the two networks "
            "of a pair, which by chance lets their difference vary by "
            f"±{difference_noise(count, images):.2f} points."
        )
    return f"{text} All seeds are tested on the same images, so more seeds do not reduce it."


def _disagreements(ablation: Ablation) -> list[int]:
    counts = []
    for row in ablation.compared:
        other = ablation.row(row.reference or "")
        for seed in row.records.keys() & other.records.keys():
            found = discordant(
                row.records[seed].test_errors or (), other.records[seed].test_errors or ()
            )
            counts.append(found.only_first + found.only_second)
    return counts


def coverage(ablation: Ablation) -> str:
    """Which runs there are; those that diverged are named."""
    lost = [
        f"`{run.name}` (seed {run.seed})"
        for run in ablation.results.runs
        if (record := ablation.results.records.get(run.id)) and record.status == "diverged"
    ]
    declared, missing = len(ablation.results.runs), len(ablation.results.missing)
    text = f"All {declared} declared runs are done."
    if missing:
        # Many runs lack the same seeds, because the first seed of all is trained first.
        seeds: dict[str, list[int]] = {}
        for run in ablation.results.missing:
            seeds.setdefault(run.name, []).append(run.seed)
        names: dict[str, list[str]] = {}
        for name, lacks in seeds.items():
            of = f"seed{'s' if len(lacks) > 1 else ''} {', '.join(map(str, lacks))}"
            names.setdefault(of, []).append(f"`{name}`")
        parts = [f"{of} of {_list(which)}" for of, which in names.items()]
        text = (
            f"{declared - missing} of {declared} declared runs are done. Missing: "
            f"{'; '.join(parts)}. `make reproduce` trains what is missing."
        )
    return f"{text} Diverged: {', '.join(lost)}." if lost else text


def in_words(ablation: Ablation) -> str:
    """The answer, as far as the seeds go; with one seed there is none."""
    compared = ablation.compared
    if not compared:
        return "There is no answer yet: a run and its reference with the same seed are needed."
    if ablation.seeds < 2:
        least = min(compared, key=lambda row: row.difference.mean)
        most = max(compared, key=lambda row: row.difference.mean)
        text = f"{most.label} has {most.difference.mean:+.2f} points"
        if least is not most:
            text += f" at one end, {least.label} {least.difference.mean:+.2f} at the other"
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
        parts += [f"**{verdict}**: {'; '.join(words)}."] if words else []
    adjusted = f", adjusted for the {len(compared)} comparisons of this study,"
    return (
        f"Differences of test accuracy in points over up to {ablation.seeds} seeds, each with its "
        f"95% interval; told apart where p{adjusted if len(compared) > 1 else ''} is below "
        f"{1 - LEVEL:.2g}.\n\n- " + "\n- ".join(parts)
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
