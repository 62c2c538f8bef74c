"""How sparse dL/dy is by itself, against training step: Section 2.2's 23, 3 and 50%.

    python -m meprop.study.report.sparsity

measures what is missing of the committed curves in measurements/sparsity/ (MNIST).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm import tqdm

from meprop import TopK, select
from meprop.study.config import Config, digest
from meprop.study.data import load_data
from meprop.study.experiments import ROOT
from meprop.study.paper import paper
from meprop.study.provenance import provenance
from meprop.study.record import RecordError, write_atomically
from meprop.study.report.probe import Probe

if TYPE_CHECKING:
    from pandas import DataFrame

FOLDER = ROOT / "measurements" / "sparsity"
LAYERS = {"conv1": "bn1", "conv2": "bn2", "fc1": "bn3"}  # each with what lies right above it
STEPS = 2_000  # of the committed curves; the records of whole runs go on from there
SEEDS = (0, 1, 2)
PER_DECADE = 16  # points of a curve
LOOKS, SELECTIONS = 16, 2  # a point is the mean of its last 16 steps; a selection is slow to try

# Fixed before any of this was measured: a figure of the paper is met within two points, and within
# a third of itself, since two points of 3% would be most of it.
POINTS, SHARE = 2.0, 1 / 3


@dataclass(frozen=True)
class Curve:
    """The densities of one network over its first steps, in percent.

    points: for each, `step` and `layers`: for conv1, conv2 and fc1 `before` (nonzero share of dL/dy
    at the layer's output) and `above` (above batch normalisation; the same without it), means over
    the last steps since the point before, 16 at most. For the convolutions also what the paper's
    5% of each feature map would do there: `after` (nonzero share left), `norm_kept`, and
    `untouched` (share of the feature maps that have no more nonzero entries than k, and lose
    nothing).
    """

    config: Config
    points: list[dict[str, Any]]
    provenance: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON's types, with a digest by which an edit is noticed."""
        content = {"points": self.points, "provenance": self.provenance}
        content["config"] = self.config.to_dict()
        return content | {"digest": digest(content)}

    def save(self, path: str | Path) -> None:
        """Write the curve as JSON, a point a line."""
        content = self.to_dict()
        points = ",\n".join(json.dumps(point) for point in content.pop("points"))
        text = json.dumps(content, indent=1)[:-2] + f',\n "points": [\n{points}\n]}}\n'
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(Path(path), text.encode())

    @classmethod
    def load(cls, path: str | Path) -> Curve:
        """Read a curve; one that is truncated or edited is refused by name."""
        way_out = "delete the file and measure again, or restore it from version control"
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            claimed = content.pop("digest")
            if claimed != digest(content):
                raise ValueError("its content does not match its digest")
            return cls(**content | {"config": Config.from_dict(content["config"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"{path}: not a complete curve ({error}); {way_out}") from error

    def frame(self) -> DataFrame:
        """A row a point and layer: step, layer, before, above, after, norm_kept, untouched."""
        import pandas

        return pandas.DataFrame(
            {"step": point["step"], "layer": layer} | shares
            for point in self.points
            for layer, shares in point["layers"].items()
        )


def configuration(
    dataset: str = "mnist", activation: str = "relu", batch_norm: bool = False, seed: int = 0
) -> Config:
    """The paper's baseline, whose gradients are looked at."""
    return Config(dataset=dataset, activation=activation, batch_norm=batch_norm, seed=seed)


def path_of(config: Config) -> Path:
    """Where a committed curve lies."""
    norm = "-bn" if config.batch_norm else ""
    return FOLDER / f"{config.dataset}-{config.activation}{norm}-s{config.seed}.json"


def curve(config: Config, steps: int = STEPS) -> Curve:
    """The committed curve of a configuration up to some step, if there is one, else measured."""
    path = path_of(config)
    if steps <= STEPS and path.exists():
        known = Curve.load(path)
        if known.config == config and known.points[-1]["step"] >= steps:
            points = [point for point in known.points if point["step"] <= steps]
            return Curve(config, points, known.provenance)
    return measure(config, steps)


def measure(config: Config, steps: int = STEPS, progress: bool = False) -> Curve:
    """Train for some steps and look at the gradients of each.

    >>> points = measure(Config(dataset="digits", activation="sigmoid"), steps=1).points
    >>> points[0]["layers"]["conv1"]["before"]
    25.0
    """
    probe = Probe(config)
    origin = provenance(config.threads) | {"data": load_data(config.dataset).digest}
    points = []
    names = [*LAYERS, *LAYERS.values()]
    bar = tqdm(total=steps, disable=not progress, desc=path_of(config).stem)
    with probe.surroundings(), probe.caught(names) as found, bar:
        for last in _spaced(steps):
            seen = []
            while probe.steps < last:
                probe.advance()
                if (left := last - probe.steps) < LOOKS:
                    seen.append(_look(found, selecting=left < SELECTIONS))
                bar.update()
            points.append({"step": last, "layers": _means(seen)})
    return Curve(config, points, origin)


def _spaced(steps: int) -> list[int]:
    """The last steps of the points: every one at first, then evenly on a logarithmic axis."""
    exponents = range(PER_DECADE * len(str(steps)))
    spaced = {round(10 ** (i / PER_DECADE)) for i in exponents}
    return sorted({step for step in spaced if step < steps} | {steps})


def _look(found: dict[str, Tensor], selecting: bool) -> dict[str, dict[str, float]]:
    seen = {}
    for layer, norm in LAYERS.items():
        seen[layer] = {"before": density(found[layer]), "above": density(found[norm])}
        if selecting and found[layer].dim() == 4:
            seen[layer] |= selection(found[layer])
    return seen


def _means(seen: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    means = {}
    for layer, shares in seen[-1].items():
        every = {
            name: [look[layer][name] for look in seen if name in look[layer]] for name in shares
        }
        # The last digits differ from machine to machine anyway.
        means[layer] = {name: round(fmean(values), 4) for name, values in every.items()}
    return means


def density(grad: Tensor) -> float:
    """Nonzero share of a gradient, in percent."""
    return 100 * int(torch.count_nonzero(grad)) / grad.numel()


def selection(grad: Tensor, ratio: float | None = None) -> dict[str, float]:
    """What top-k would do to a convolution's gradient: see `Curve`."""
    rule = TopK(paper()["ratio"]["percent"] / 100 if ratio is None else ratio)
    mask, _ = select(grad, rule)
    kept, whole = (grad * mask).double().norm(), grad.double().norm()
    nonzero = (grad != 0).sum(dim=(0, 2, 3))
    k = rule.k(grad.numel() // grad.shape[1])
    return {
        "after": density(grad * mask),
        "norm_kept": 100 * float(kept / whole) if whole else 100.0,
        "untouched": 100 * float((nonzero <= k).double().mean()),
    }


def committed() -> Iterator[Config]:
    """The configurations whose curves are kept in measurements/sparsity/."""
    for batch_norm, seed, activation in product((False, True), SEEDS, ("relu", "sigmoid")):
        yield configuration("mnist", activation, batch_norm, seed)


def main(arguments: Iterable[str] | None = None) -> None:
    """Measure the committed curves that are missing; with --again, all of them."""
    parser = argparse.ArgumentParser(
        "python -m meprop.study.report.sparsity", description=main.__doc__, allow_abbrev=False
    )
    parser.add_argument("--again", action="store_true", help="measure all of them anew")
    given = parser.parse_args(None if arguments is None else list(arguments))
    for config in committed():
        if given.again or not path_of(config).exists():
            measure(config, progress=True).save(path_of(config))


if __name__ == "__main__":
    main()
