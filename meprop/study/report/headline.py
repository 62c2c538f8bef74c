"""The headline numbers, for the Start page and README.

    python -m meprop.study.report.headline

prints them as the Markdown list that README shows. All come from committed records and from the
committed measurement of speed; what is not there yet is said to be missing.
"""

from __future__ import annotations

from dataclasses import dataclass

from meprop.study.paper import paper
from meprop.study.report.epochs import mean_norm_kept
from meprop.study.report.results import gather, tests
from meprop.study.report.speed import Row, committed, counting, files
from meprop.study.report.statistics import Interval, paired
from meprop.study.report.wording import points


@dataclass(frozen=True)
class Answer:
    """A question, its answer as one short number, and a sentence that says what the number is."""

    question: str
    number: str
    sentence: str


def answers() -> list[Answer]:
    """What a reader wants to know first."""
    return [
        _accuracy(2, "without batch normalisation"),
        _accuracy(3, "with batch normalisation"),
        _backward(),
        _step(),
    ]


def _accuracy(table: int, about: str) -> Answer:
    """The 5% row with the paper's decay against the baseline, paired by seed; then without it.

    What each passes on of the gradient's norm stands beside it: with all of it, nothing is tested.
    """
    names = [f"table{table}-{name}" for name in ("baseline", "k05-d06", "k05-d0")]
    results = gather("paper", names)
    baseline, ours, without = (tests(results.of(name)) for name in names)
    question = f"Do 5% of the gradients suffice, {about}?"
    found, other = paired(ours, baseline), paired(without, baseline)
    if not found.n:
        return Answer(question, "not trained yet", f"until Table {table} has its records.")
    kept = [
        mean_norm_kept(records)
        for name in names[1:]
        if (records := [each for each in results.of(name).values() if each.history])
    ]
    sentence = (
        f"of test accuracy, against the baseline: decay {paper()['decays']['better']:g}, "
        f"{over_seeds(found)}. {kept[0]} of the gradient's norm is passed on."
    )
    also = ""
    if other.n:
        seeds = "one seed" if other.n == 1 else f"{other.n} seeds"
        of = f" ({seeds})" if other.n != found.n else ""
        also = f" Without decay {points(other.mean)}{of}, with {kept[1]} passed on."
    return Answer(question, f"{points(found.mean)} points", f"{sentence}{also}")


def over_seeds(found: Interval) -> str:
    """How well a mean is known, in words."""
    if not found.known:
        return "one seed, so no more than a description"
    return f"95% interval {points(found.low)} to {points(found.high)}, {found.n} seeds"


def _backward() -> Answer:
    row = _speed("layer/conv2/full/5%/1-thread", "sparse")
    times = _median(row, "dense")
    dense, ours = (_speed("step/PaperCNN/", name).parts["backward"] for name in ("dense", "meprop"))
    return Answer(
        "Is a convolution's backward pass cheaper?",
        f"{times:.1f} times as fast",
        f"as PyTorch's dense one: conv2 at 5% of a gradient without zeros, one thread, selection "
        f"included, on {files()[-1]['provenance']['cpu']}. The backward pass of the paper's whole "
        f"network, whose gradients have zeros of their own: {dense / ours:.1f} times.",
    )


def _step() -> Answer:
    row, exact = (_speed("step/PaperCNN/", name) for name in ("meprop", "exact"))
    return Answer(
        "And a whole training step?",
        f"{_median(row, 'dense'):.2f} times as fast",
        "as the same step with dense layers: the forward pass and the weights of fc1 remain. "
        f"Skipping zeros alone, with exact gradients, gives {_median(exact, 'dense'):.2f}.",
    )


def _speed(case: str, contender: str) -> Row:
    """The row of a case that counts, in the committed measurement."""
    (row,) = (
        row
        for row in counting(committed())
        if row.case.startswith(case) and row.contender == contender
    )
    return row


def _median(row: Row, over: str) -> float:
    return row.speedup[over]["median"]


def markdown() -> str:
    """As a list, for README."""
    return "\n".join(f"- {a.question} **{a.number}** {a.sentence}" for a in answers())


if __name__ == "__main__":
    print(markdown())
