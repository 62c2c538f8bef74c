"""How many distinct entries a selection ever chooses, and how fast the chosen set turns over.

`python -m meprop.study.report.turnover` measures it on MNIST and writes measurements/turnover.csv,
which the page on the decay shows: minutes, and the records of `train` do not hold it.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from meprop.layers import Selecting
from meprop.selection import select
from meprop.study import training
from meprop.study.config import Config
from meprop.study.experiments import ROOT, load
from meprop.study.paper import paper
from meprop.study.provenance import provenance
from meprop.study.record import write_atomically
from meprop.study.seeding import batches

if TYPE_CHECKING:
    from pandas import DataFrame

FILE = "measurements/turnover.csv"
STEPS = 500
# When the entries chosen so far are counted.
COUNTED = (1, 2, 5, 10, 20, 50, 100, 200, 500)
# The set chosen at each of the anchors is compared with those so many steps later.
ANCHORS = (100, 200, 300, 400)
LAGS = (1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True)
class Count:
    """A number of entries of a layer's gradient: `count` of `of`, `at` a step or a lag.

    measure: `ever` chosen up to step `at`, of all entries; `nonzero`: of those chosen at that step,
    the ones whose gradient is not zero then; `kept`: of those chosen at an anchor, the ones chosen
    `at` steps later too, summed over the anchors. An entry with nothing in its favour (no gradient
    now or before) does not count as chosen where the rule takes it to make up k.
    """

    batch_norm: bool
    decay: float
    layer: str
    measure: str
    at: int
    count: int
    of: int


class TurnoverError(ValueError):
    """A file of counts that is not whole."""


def measure(config: Config, steps: int = STEPS) -> list[Count]:
    """Train for some steps and count what is chosen at conv1 and conv2.

    >>> rows = measure(Config(dataset="digits", train_size=100, ratio=0.05), steps=2)
    >>> sorted({row.measure for row in rows})
    ['ever', 'nonzero']
    """
    with training._surroundings(config):
        run = training._Run(config)
        seen = {name: _Chosen(run.model.get_submodule(name)) for name in config.sparse_layers}
        run.model.train()
        for batch, _ in zip(_endless(config, len(run.train)), range(steps), strict=False):
            run.step(batch)
    return [
        Count(config.batch_norm, config.decay, name, *row)
        for name, chosen in seen.items()
        for row in chosen.rows()
    ]


def _endless(config: Config, size: int) -> Iterator[Tensor]:
    epoch = 0
    while True:
        epoch += 1
        yield from batches(config, size, epoch)


class _Chosen:
    """What a layer chooses, step by step, found by the reference on the gradient it gets."""

    def __init__(self, layer: nn.Module) -> None:
        assert isinstance(layer, Selecting) and layer.rule is not None
        self.layer, self.step = layer, 0
        self.run_grad: Tensor | None = None
        self.ever: Tensor | None = None
        self.anchors: dict[int, Tensor] = {}  # the set chosen at each, by step
        self.counts: list[tuple[str, int, int, int]] = []
        self.kept: dict[int, list[int]] = {}  # count and total, by lag
        layer.register_forward_hook(self._hook)

    def _hook(self, layer: nn.Module, args: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(self._count)

    def _count(self, grad: Tensor) -> None:
        self.step += 1
        rule = self.layer.rule
        assert rule is not None
        per_position = self.layer.history == "position"
        mask, self.run_grad = select(grad, rule, self.run_grad, per_position=per_position)
        score = grad if self.run_grad is None else self.run_grad.expand_as(grad)
        chosen = mask & (score != 0)
        self.ever = chosen if self.ever is None else self.ever | chosen
        if self.step in COUNTED:
            useful = int((chosen & (grad != 0)).sum())
            self.counts.append(("ever", self.step, int(self.ever.sum()), grad.numel()))
            self.counts.append(("nonzero", self.step, useful, int(chosen.sum())))
        for anchor, then in self.anchors.items():
            if (lag := self.step - anchor) in LAGS:
                kept = self.kept.setdefault(lag, [0, 0])
                kept[0] += int((then & chosen).sum())
                kept[1] += int(then.sum())
        if self.step in ANCHORS:
            self.anchors[self.step] = chosen

    def rows(self) -> list[tuple[str, int, int, int]]:
        kept = [("kept", lag, count, of) for lag, (count, of) in sorted(self.kept.items())]
        return self.counts + kept


def configurations() -> list[Config]:
    """Those of the study of the decay, with the first seed."""
    suite = load().suites["ablation"]
    (study,) = (study for study in suite.studies if study.name == "decay")
    found = {run.name: run.config for run in reversed(suite.runs)}
    return [found[name] for name in study.runs]


def save(rows: Iterable[Count], path: Path, origin: dict[str, Any]) -> None:
    """Write counts as CSV, under comments that say where they come from."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in fields(Count))
    writer.writerows(astuple(row) for row in rows)
    head = "".join(f"# {name}: {value}\n" for name, value in origin.items())
    content = head + text.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f"# digest: {_digest(content)}\n{content}".encode())


def counts(path: str | Path = ROOT / FILE) -> tuple[DataFrame, dict[str, str]] | None:
    """The committed counts, with a column `share`, and their origin; None if there are none."""
    import pandas

    path = Path(path)
    if not path.exists():
        return None
    first, _, content = path.read_text(encoding="utf-8").partition("\n")
    if first != f"# digest: {_digest(content)}":
        raise TurnoverError(
            f"{path.name}: its content does not match its digest: edited by hand, or damaged; "
            "restore it from version control"
        )
    lines = content.splitlines()
    comments = [line[2:].partition(": ") for line in lines if line.startswith("# ")]
    table = pandas.read_csv(io.StringIO(content), comment="#")
    table["share"] = table["count"] / table["of"]
    return table, {name: value for name, _, value in comments}


def half_life(kept: DataFrame) -> float | None:
    """The steps after which half of a chosen set is chosen still; None: more than were looked at.

    `kept` are the rows of one layer with that measure; between them the share is taken as linear.
    """
    last_lag, last_share = 0.0, 1.0
    for lag, share in kept.sort_values("at")[["at", "share"]].itertuples(index=False):
        if share <= 0.5:
            return last_lag + (lag - last_lag) * (last_share - 0.5) / (last_share - share)
        last_lag, last_share = lag, share
    return None


def summary(found: DataFrame) -> DataFrame:
    """A row for each network, layer and decay: what the counts say, shares in percent."""
    import pandas

    rows = []
    for (norm, layer, decay), part in found.groupby(["batch_norm", "layer", "decay"]):
        by = {name: its.sort_values("at") for name, its in part.groupby("measure")}
        rows.append(
            {"batch_norm": norm, "layer": layer, "decay": decay}
            | {"ever": 100 * by["ever"]["share"].iloc[-1]}
            | {"next": 100 * by["kept"]["share"].iloc[0], "half_life": half_life(by["kept"])}
            | {"nonzero": 100 * by["nonzero"]["share"].iloc[-1]}
        )
    return pandas.DataFrame(rows)


def table(found: DataFrame) -> str:
    """The summary as a Markdown table."""
    last, furthest = found.loc[found["measure"] == "ever", "at"].max(), max(LAGS)
    lines = [
        f"| network | layer | decay | ever chosen in {last} steps (%) | chosen again next step (%) "
        "| half of the set is left after (steps) | chosen and not zero now (%) |",
        "| :-- | :-- | --: | --: | --: | --: | --: |",
    ]
    for row in summary(found).to_dict("records"):
        lines.append(
            f"| {'with BN' if row['batch_norm'] else 'no BN'} | {row['layer']} | {row['decay']:g} "
            f"| {row['ever']:.1f} | {row['next']:.1f} "
            f"| {_steps(row['half_life'], furthest)} "
            f"| {row['nonzero']:.1f} |"
        )
    return "\n".join(lines)


def _steps(half_life: float | None, furthest: int) -> str:
    if half_life is None or math.isnan(half_life):
        return f"more than {furthest}"
    return f"{half_life:.0f}" if half_life >= 1 else "less than 1"


def page(found: DataFrame, origin: dict[str, str]) -> str:
    """What the page on the decay says of the chosen sets (Markdown)."""
    where = paper()["decays"]
    better, worse = where["better"], where["worse"]
    return (
        f"**The chosen sets.** The paper finds a decay of {better:g} better than {worse:g} "
        f"({where['where']}) and suspects that a large one keeps to a small fixed subset of the "
        f"gradients. So we counted, over {origin['steps']} steps of training on {origin['data']} "
        f"(seed {origin['seed']}), at a ratio of {float(origin['ratio']):.0%}: how many entries (a "
        "slot of the mini-batch, a feature map, a position) are ever chosen (one that never had a "
        "gradient does not count, even where the rule takes it to make up k), how many of those "
        "chosen are chosen again later, and how many of the chosen have a gradient that is not "
        f"zero at that step.\n\n{table(found)}\n\n{in_words(found)}\n\nMade by "
        f"`{origin['made by']}`, commit {origin['commit'][:12]}."
    )


def in_words(found: DataFrame) -> str:
    """Does a high decay fix a small subset? The highest decay beside none, from the counts."""
    rows = summary(found)
    low, high = rows["decay"].min(), rows["decay"].max()
    parts, fewer, slower = [], [], []
    for (norm, layer), part in rows.groupby(["batch_norm", "layer"]):
        first, last = (part[part["decay"] == decay].iloc[0] for decay in (low, high))
        parts.append(
            f"{layer} {'with' if norm else 'without'} BN {last['ever']:.0f}% (without a memory "
            f"{first['ever']:.0f}%)"
        )
        fewer.append(last["ever"] < first["ever"])
        slower.append(last["next"] > first["next"])
    many, of = sum(fewer), len(fewer)
    most = rows[rows["decay"] == high]
    idle = most.loc[most["nonzero"].idxmin()]
    at_first = 100 * found.loc[(found["measure"] == "ever") & (found["at"] == 1), "share"].max()
    return (
        f"Entries chosen at least once with a decay of {high:g}: {'; '.join(parts)}. That is fewer "
        f"than without a memory in {many} of {of} cases; the set turns over more slowly in "
        f"{sum(slower)} of {of}. A set that never changed would stay at {at_first:.0f}%; the least "
        f"here is {most['ever'].min():.0f}%. Of what decay {high:g} chooses at {idle['layer']} "
        f"{'with' if idle['batch_norm'] else 'without'} BN, {idle['nonzero']:.0f}% have a gradient "
        "at that step: the rest of the choice is spent on zeros."
    )


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def main(say: Callable[[str], None] = print) -> None:
    """Measure every configuration of the study of the decay and write the file."""
    rows: list[Count] = []
    configs = configurations()
    first = configs[0]
    origin = provenance(first.threads)  # now: somebody may commit while it runs
    for config in configs:
        say(f"decay {config.decay:g}, batch normalisation {config.batch_norm}")
        rows += measure(config)
    about = {
        "made by": "python -m meprop.study.report.turnover",
        "data": f"the first {first.train_size:,} training images of {first.dataset.upper()}",
        "ratio": f"{first.ratio:g}",
        "steps": str(STEPS),
        "seed": str(first.seed),
    }
    save(rows, ROOT / FILE, about | origin)
    say(f"{FILE} is written: {len(rows)} rows.")


if __name__ == "__main__":
    main()
