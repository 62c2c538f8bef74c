"""Tables 2 and 3: the paper's rows beside ours, over the seeds there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from meprop.study import paper
from meprop.study.config import Config
from meprop.study.experiments import load
from meprop.study.record import Record
from meprop.study.report.results import INTERIM, Results, gather, tests
from meprop.study.report.statistics import (
    LEVEL,
    Discordant,
    Interval,
    binomial_noise,
    discordant,
    holm,
    interval,
    paired,
    percentage,
)
from meprop.study.report.wording import NONE, over, points, probability, signed, spread

SUITE = "paper"
TABLES = (2, 3)


@dataclass(frozen=True)
class Compared:
    """A row of the table: what the paper has for it (if it tabulates it), and our runs."""

    name: str
    label: str
    paper: paper.Row | None
    records: dict[int, Record]  # by seed; those without a finished epoch are left out
    difference: Interval  # of test accuracy to the baseline's, paired by seed
    missing: int  # declared seeds that are not done
    p: float = math.nan  # of the difference, adjusted for the comparisons of the table

    @property
    def dev(self) -> Interval:
        return percentage([_number(record.dev_accuracy) for record in self.records.values()])

    @property
    def test(self) -> Interval:
        return percentage([_number(record.test_accuracy) for record in self.records.values()])

    @property
    def epochs(self) -> list[int]:
        return [record.best_epoch for record in self.records.values() if record.best_epoch]

    def gaps(self, first: str, second: str) -> dict[int, float]:
        """The difference of two accuracies (train, dev, test) in the chosen epoch, by seed."""
        chosen = {
            seed: record.history[(record.best_epoch or 1) - 1]
            for seed, record in self.records.items()
        }
        return {
            seed: epoch[f"{first}_accuracy"] - epoch[f"{second}_accuracy"]
            for seed, epoch in chosen.items()
        }

    def gap(self, first: str, second: str) -> Interval:
        """The mean of `gaps`."""
        return interval(list(self.gaps(first, second).values()))


def compare(number: int, results: Results | None = None) -> list[Compared]:
    """The rows of Table 2 or 3 in the paper's order, the baseline first, then what we added.

    The differences of the paper's six settings to the baseline are adjusted together (Holm).
    """
    rows = {row.name: row for row in paper.table(number)}
    results = results or gather(SUITE, names(number))
    scored = {name: _scored(results.of(name)) for name in names(number)}
    baseline = next(iter(rows))
    compared = [
        Compared(
            name=name,
            label=rows[name].label if name in rows else label(_config(name)),
            paper=rows.get(name),
            records=scored[name],
            difference=paired(tests(scored[name]), tests(scored[baseline])),
            missing=sum(run.name == name for run in results.missing),
        )
        for name in names(number)
    ]
    settings = [row for row in compared if row.paper is not None and row.name != baseline]
    adjusted = dict(
        zip(
            (row.name for row in settings),
            holm([row.difference.p for row in settings]),
            strict=True,
        )
    )
    return [replace(row, p=adjusted.get(row.name, math.nan)) for row in compared]


def names(number: int) -> list[str]:
    """The configurations of a table: the paper's, then those that it mentions only."""
    own = [row.name for row in paper.table(number)]
    declared = load().suites[SUITE].names
    return own + [n for n in declared if n.startswith(f"table{number}-") and n not in own]


def label(config: Config) -> str:
    """A configuration as in the first two columns of the tables."""
    if config.ratio is None:
        return "baseline"
    return f"{100 * config.ratio:g}%, decay {config.decay:g}"


def best(compared: Sequence[Compared], level: float = LEVEL) -> Compared | None:
    """The row with the highest mean test accuracy, if it can be told from every other one.

    That is, if each paired difference to it, adjusted for their number (Holm), is distinguishable
    from zero.
    """
    done = [row for row in compared if row.records]
    if len(done) < 2:
        return None
    first = max(done, key=lambda row: row.test.mean)
    rest = [row for row in done if row is not first]
    probabilities = [paired(tests(first.records), tests(row.records)).p for row in rest]
    return first if all(p < 1 - level for p in holm(probabilities)) else None


def discordants(row: Compared, baseline: Compared) -> dict[int, Discordant]:
    """By seed: the test images that only one of the two gets right."""
    seeds = sorted(row.records.keys() & baseline.records.keys())
    return {
        seed: discordant(
            baseline.records[seed].test_errors or (), row.records[seed].test_errors or ()
        )
        for seed in seeds
    }


def side_by_side(compared: Sequence[Compared]) -> str:
    """A Markdown table: the paper's epoch, dev and test beside ours."""
    winner = best(compared)
    lines = [
        "| top-k | epoch | dev | test | our epoch | our dev | our test | seeds |",
        "| :-- | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for row in compared:
        ours = [NONE] * 3
        if row.records:
            test = spread(row.test)
            ours = [_epochs(row.epochs), spread(row.dev), f"**{test}**" if row is winner else test]
        theirs = [NONE] * 3
        if (its := row.paper) is not None:
            theirs = [str(its.epoch), f"{its.dev:.2f}", f"{its.test:.2f}"]
        cells = [row.label, *theirs, *ours, str(len(row.records))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def differences(compared: Sequence[Compared]) -> str:
    """A Markdown table: differences to the baseline in points of test accuracy."""
    lines = [
        "| top-k | paper's difference | our difference | p (Holm) "
        "| only baseline right | only this right |",
        "| :-- | --: | --: | --: | --: | --: |",
    ]
    baseline = compared[0]
    for row in compared[1:]:
        theirs, images = NONE, [NONE] * 2
        if row.paper is not None and baseline.paper is not None:
            theirs = points(row.paper.test - baseline.paper.test)
        if found := discordants(row, baseline):
            images = [
                f"{sum(each.only_first for each in found.values()) / len(found):g}",
                f"{sum(each.only_second for each in found.values()) / len(found):g}",
            ]
        cells = [row.label, theirs, signed(row.difference), probability(row.p), *images]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def noise(compared: Sequence[Compared]) -> float:
    """The binomial noise of a test accuracy like these, in points (half of a 95% interval)."""
    known = [row.test.mean for row in compared if row.records]
    theirs = [row.paper.test for row in compared if row.paper is not None]
    mean = sum(known or theirs) / len(known or theirs)
    return binomial_noise(mean, paper.paper()["data"]["test"])


def in_words(compared: Sequence[Compared]) -> str:
    """What the table shows, as far as the seeds go; with one seed there is no verdict."""
    baseline, rest = compared[0], [row for row in compared[1:] if row.paper and row.difference.n]
    if not rest:
        return "The baseline and at least one setting are needed for a comparison: not yet trained."
    most = max(row.difference.n for row in rest)
    above = [row for row in rest if row.difference.mean > 0]
    ends = sorted(row.difference.mean for row in rest)
    words = [
        f"Of the paper's settings {len(rest)} are trained; {len(above)} of them "
        f"{'has' if len(above) == 1 else 'have'} a higher test accuracy than the "
        f"baseline with the same seeds; the differences are {points(ends[0])} to "
        f"{points(ends[-1])} points."
        if len(rest) > 1
        else f"One of the paper's settings is trained, {rest[0].label}: its test accuracy is "
        f"{rest[0].test.mean:.2f}%, the baseline's {baseline.test.mean:.2f}%."
    ]
    off = [
        (row.dev.mean - row.paper.dev, row.test.mean - row.paper.test)
        for row in (baseline, *rest)
        if row.paper
    ]
    dev, test = (fmean(column) for column in zip(*off, strict=True))
    words.append(
        f"On average over these rows and the baseline, our development accuracy is {_beside(dev)} "
        f"the paper's and our test accuracy {_beside(test)} it; which images its development set "
        "had is not known."
    )
    if most < 2:
        words.append(
            f"There is one seed, so this describes {len(rest) + 1} trained networks and decides "
            f"nothing: sampling of the test images alone moves an accuracy by "
            f"±{noise(compared):.2f} points."
        )
        return " ".join(words)
    told = [row for row in rest if row.p < 1 - LEVEL]
    better = [row.label for row in told if row.difference.mean > 0]
    worse = [row.label for row in told if row.difference.mean < 0]
    seeds = over(row.difference for row in rest)
    words.append(
        f"{seeds.capitalize()}, paired, and adjusted for the number of comparisons, "
        f"distinguishably better: {'; '.join(better) or 'none'}; "
        f"worse: {'; '.join(worse) or 'none'}."
    )
    if any(row.missing for row in (baseline, *rest)):
        words.append(INTERIM)
    return " ".join(words)


def gaps_in_words(compared: Sequence[Compared]) -> str:
    """Who overfits more: the baseline or the settings."""
    baseline, rest = compared[0], [row for row in compared[1:] if row.paper and row.difference.n]
    if not rest:
        return "Not yet trained."
    words = []
    for first, second in (("train", "test"), ("dev", "test")):
        theirs = baseline.gaps(first, second)
        # Gaps are counts of images: what is nearer than this is the same.
        smaller = sum(paired(row.gaps(first, second), theirs).mean < -1e-6 for row in rest)
        words.append(
            f"Between {first} and {second} the baseline has a gap of "
            f"{fmean(theirs.values()):.2f} points; with the same seeds, "
            f"{smaller or 'none'} of the paper's {len(rest)} settings that are trained "
            f"{'have' if smaller > 1 else 'has'} a smaller one."
        )
    papers = [row.paper.dev - row.paper.test for row in compared if row.paper]
    words.append(
        f"In the paper's table the gap between dev and test is {papers[0]:.2f} points for the "
        f"baseline and {min(papers[1:]):.2f} to {max(papers[1:]):.2f} for the settings."
    )
    return " ".join(words)


def _epochs(epochs: Sequence[int]) -> str:
    middle = f"{median(epochs):g}"
    return middle if len(epochs) < 2 else f"{middle} ({min(epochs)} to {max(epochs)})"


def _config(name: str) -> Config:
    return next(run.config for run in load().suites[SUITE].runs if run.name == name)


def _scored(records: dict[int, Record]) -> dict[int, Record]:
    return {seed: record for seed, record in records.items() if record.best_epoch is not None}


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _beside(difference: float) -> str:
    return f"{abs(difference):.2f} points {'below' if difference < 0 else 'above'}"
