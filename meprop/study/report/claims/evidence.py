"""What the rules of the ledger read: records by name and seed, curves, counts, the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, median
from typing import Any

from meprop.study import paper
from meprop.study.record import Record
from meprop.study.report import speed
from meprop.study.report.results import Results, gather
from meprop.study.report.sparsity import Curve, committed, path_of
from meprop.study.report.statistics import MARGIN, STEP, Interval, binomial_noise, paired

Value = Callable[[Record], float]


@dataclass(frozen=True)
class Evidence:
    """The records, and the two numbers that the rules leave open, fixed beforehand.

    margin: in points of test accuracy, what counts as a difference that matters. alpha: 1 minus the
    level of the intervals.
    """

    margin: float = MARGIN
    alpha: float = 0.05
    paper: Results = field(default_factory=lambda: gather("paper"))
    ablation: Results = field(default_factory=lambda: gather("ablation"))

    @property
    def level(self) -> float:
        return 1 - self.alpha

    def of(self, name: str) -> dict[int, Record]:
        """The records of a configuration with a scored epoch, by seed."""
        suite = self.paper if name in self.paper.names else self.ablation
        return {seed: each for seed, each in suite.of(name).items() if each.best_epoch is not None}

    def pair(
        self, first: str, second: str, value: Value | None = None, step: float = STEP
    ) -> Interval:
        """The difference of a value (test accuracy) between two configurations, by seed.

        `step`: what values differ by at least, if they differ.
        """
        value = value or test
        ours = {seed: value(record) for seed, record in self.of(first).items()}
        theirs = {seed: value(record) for seed, record in self.of(second).items()}
        return paired(ours, theirs, self.level, step)

    @cached_property
    def noise(self) -> str:
        """What the choice of the test images alone does to an accuracy, as a sentence."""
        images, halves = paper.paper()["data"]["test"], []
        suites = {"at the paper's scale": self.paper, "in the ablations": self.ablation}
        for where, suite in suites.items():
            scored = [each for each in suite.records.values() if each.test_accuracy is not None]
            if scored:
                half = binomial_noise(median(map(test, scored)), images, self.level)
                halves.append(f"±{half:.2f} {where}")
        said = f"Binomial noise of one accuracy on {images:,} images: {', '.join(halves)}."
        return said if halves else ""

    @cached_property
    def curves(self) -> list[Curve]:
        """The committed density curves without batch normalisation."""
        configs = [config for config in committed() if not config.batch_norm]
        return [Curve.load(path_of(config)) for config in configs if path_of(config).exists()]

    @cached_property
    def bench(self) -> list[dict[str, Any]]:
        """The rows of the committed benchmark on one thread; of a case, the last file's."""
        return [vars(row) for row in speed.committed() if row.threads == 1]

    @cached_property
    def backward_parts(self) -> dict[str, float] | None:
        """Of a dense backward pass: `products`, `elementwise` and `loss`; None: not measured.

        Elementwise is what lies between the layers: activation and pooling.
        """
        for row in self.bench:
            names = (row["group"], row["subject"], row["contender"])
            if names == ("split", "PaperCNN", "dense") and row["best"]:
                parts = {"products": 0.0, "elementwise": 0.0, "loss": 0.0}
                for name, time in row["parts"].items():
                    phase, _, place = name.partition(" ")
                    if phase == "backward":
                        kind = "elementwise" if place.startswith("between") else "products"
                        parts["loss" if place == "loss" else kind] += time
                return parts
        return None

    @cached_property
    def cost_lines(self) -> list[dict[str, Any]]:
        """For each benchmarked convolution, its time against the ratio as a straight line."""
        every = [line for content in speed.files() for line in content["lines"]]
        return [line for line in every if line["threads"] == 1]


def test(record: Record) -> float:
    """Test accuracy of the chosen epoch."""
    return record.test_accuracy or 0.0


def gap(record: Record, first: str = "train", second: str = "test") -> float:
    """The difference of two accuracies in the chosen epoch."""
    epoch = record.history[(record.best_epoch or 1) - 1]
    return epoch[f"{first}_accuracy"] - epoch[f"{second}_accuracy"]


def epochs_to(record: Record, accuracy: float) -> float:
    """The first epoch with such a development accuracy, or one more than there are."""
    reached = (e["epoch"] for e in record.history if e["dev_accuracy"] >= accuracy)
    return float(next(reached, len(record.history) + 1))


def mean_share(record: Record, layer: str, what: str) -> float:
    """A layer's share, such as `before`, averaged over the epochs."""
    return fmean(epoch["layers"][layer][what] for epoch in record.history)
