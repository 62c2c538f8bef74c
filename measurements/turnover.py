"""How many distinct entries a selection ever chooses, and how fast the chosen set turns over.

    python -m measurements.turnover

counts it on MNIST for the decays of the ablation, minutes, and writes measurements/turnover.csv.
`load_turnover` reads that as one tidy table:

    batch_norm, decay, layer  of which network and layer
    measure    ever: chosen at least once up to step `at`, of all entries
               nonzero: of those chosen at step `at`, the ones whose gradient is not zero then
               kept: of those chosen at steps 100, 200, 300 and 400, the ones chosen `at` steps
               later too
    count, of  numbers of entries, and `share`, the one by the other

An entry is a slot of the mini-batch, a feature map and a position. One with nothing in its favour,
no gradient now or before, is not counted as chosen where the rule takes it to make up k.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn
from tqdm import tqdm

from measurements import load_table, save_table
from meprop.layers import Selecting
from meprop.selection import select
from meprop.study.config import Config
from meprop.study.data import load_data
from meprop.study.experiments import ROOT, load
from meprop.study.measures import at_outputs
from meprop.study.provenance import provenance
from meprop.study.training import build, conditions, steps

if TYPE_CHECKING:
    from pandas import DataFrame

FILE = "measurements/turnover.csv"
STEPS = 500
COUNTED = (1, 2, 5, 10, 20, 50, 100, 200, 500)  # when the entries chosen so far are counted
ANCHORS = (100, 200, 300, 400)  # the sets chosen then are compared with later ones
LAGS = (1, 2, 5, 10, 20, 50, 100)


def load_turnover(path: str | Path = FILE) -> DataFrame:
    """The counts of a file (relative to the checkout); `attrs` says where they come from.

    >>> load_turnover().attrs["steps"]
    '500'
    """
    table = load_table(path)
    table["share"] = table["count"] / table["of"]
    return table


def measure(config: Config, last: int = STEPS) -> DataFrame:
    """Train up to some step and count what is chosen at each layer that selects.

    >>> table = measure(Config(dataset="digits", train_size=100, ratio=0.05), last=2)
    >>> sorted(set(table["measure"]))
    ['ever', 'nonzero']
    """
    import pandas

    model = build(config)
    chosen = {name: Chosen(model.get_submodule(name)) for name in config.sparse_layers}
    with conditions(config), at_outputs({each.layer: each.count for each in chosen.values()}):
        for _ in islice(steps(config, model, load_data(config.dataset).train), last):
            pass
    table = pandas.concat({name: each.table() for name, each in chosen.items()}, names=["layer"])
    table = table.reset_index("layer").reset_index(drop=True)
    table.insert(0, "batch_norm", config.batch_norm)
    table.insert(1, "decay", config.decay)
    return table


class Chosen:
    """What a layer chooses, step by step, found by the reference on the gradient it gets."""

    def __init__(self, layer: nn.Module) -> None:
        assert isinstance(layer, Selecting) and layer.rule is not None
        self.layer, self.rule, self.step = layer, layer.rule, 0
        self.run_grad: Tensor | None = None
        self.ever: Tensor | None = None
        self.anchors: dict[int, Tensor] = {}  # the set chosen at each, by step
        self.counts: list[tuple[str, int, int, int]] = []
        self.kept: list[tuple[str, int, int, int]] = []

    def count(self, grad: Tensor) -> None:
        """Take in the next gradient at the layer's output."""
        self.step += 1
        per_position = self.layer.history == "position"
        mask, self.run_grad = select(grad, self.rule, self.run_grad, per_position=per_position)
        score = grad if self.run_grad is None else self.run_grad.expand_as(grad)
        chosen = mask & (score != 0)
        self.ever = chosen if self.ever is None else self.ever | chosen
        if self.step in COUNTED:
            useful = int((chosen & (grad != 0)).sum())
            self.counts.append(("ever", self.step, int(self.ever.sum()), grad.numel()))
            self.counts.append(("nonzero", self.step, useful, int(chosen.sum())))
        for anchor, then in self.anchors.items():
            if (lag := self.step - anchor) in LAGS:
                self.kept.append(("kept", lag, int((then & chosen).sum()), int(then.sum())))
        if self.step in ANCHORS:
            self.anchors[self.step] = chosen

    def table(self) -> DataFrame:
        """The counts so far, those after several anchors together."""
        import pandas

        rows = pandas.DataFrame(self.counts + self.kept, columns=["measure", "at", "count", "of"])
        return rows.groupby(["measure", "at"], sort=False, as_index=False).sum()


def main() -> None:
    """Count for every configuration of the study of the decay, with the first seed."""
    import pandas

    suite = load().suites["ablation"]
    (study,) = (study for study in suite.studies if study.name == "decay")
    configs = {run.name: run.config for run in reversed(suite.runs) if run.name in study.runs}
    first = configs[study.runs[0]]
    origin = {
        "made by": "python -m measurements.turnover",
        "data": f"the first {first.train_size:,} training images of {first.dataset.upper()}",
        "ratio": f"{first.ratio:g}",
        "steps": str(STEPS),
        "seed": str(first.seed),
    } | provenance(first.threads)  # now: somebody may commit while it runs
    tables = [measure(configs[name]) for name in tqdm(study.runs)]
    save_table(pandas.concat(tables), origin, ROOT / FILE)


if __name__ == "__main__":
    main()
