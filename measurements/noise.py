"""How much a rule adds to the noise of a training step, and how far from the gradient it points.

    python -m measurements.noise

trains ResNet-20 on CIFAR-10 with all gradients for the first epoch of ten. Before and after it, it
forms the weight gradients of some mini-batches with every rule; ten minutes. A row of
measurements/noise.csv is a rule and a convolution at a step:

    steps    made before
    rule     as the benchmark and page 14 call it, and `ratio`
    layer    its name
    own      variance of the layer's weight gradient from one mini-batch to the next
    added    mean squared distance that the rule puts between a mini-batch's gradient and its own
    bias     the part of that which is the same for every draw, estimated: may be below zero
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from measurements import save_table
from meprop import TopK, convert, revert
from meprop.study.config import Config
from meprop.study.data import Augmented, Part, load_data
from meprop.study.experiments import ROOT, load
from meprop.study.provenance import provenance
from meprop.study.training import batches, build, conditions, derive, steps

if TYPE_CHECKING:
    from pandas import DataFrame

FILE = "measurements/noise.csv"
STEPS = (0, 703)  # when it is measured
OWN = 32  # mini-batches that tell a gradient's own noise
TRIED, DRAWS = 8, 3  # of these with every rule, so many times
Rules = Mapping[tuple[str, float], TopK]
RULES: Rules = {
    **{("meprop", ratio): TopK(ratio) for ratio in (0.05, 0.1, 0.25)},
    ("centred by image", 0.1): TopK(0.1, pick="centred", scope="sample"),
    **{("unbiased", ratio): TopK(ratio, pick="unbiased") for ratio in (0.05, 0.1, 0.25)},
    **{
        ("weights alone", ratio): TopK(ratio, pick="unbiased", only="weight")
        for ratio in (0.05, 0.1, 0.25)
    },
}


def measure(
    config: Config, rules: Rules = RULES, when: Sequence[int] = STEPS, own: int = OWN
) -> DataFrame:
    """Train, and compare gradients at some steps, when the network stands still.

    >>> small = Config(dataset="digits", train_size=100, batch_norm=True)
    >>> table = measure(small, {("unbiased", 0.5): RULES["unbiased", 0.25]}, when=[2], own=9)
    >>> table["layer"].tolist()
    ['conv1', 'conv2']
    """
    import pandas

    model, data = revert(build(config)), load_data(config.dataset).train
    data = data.first(config.train_size or len(data))
    last = config.epochs + 1  # images that it does not see in this form
    shown: Part | Augmented = data
    if config.augment:
        shown = Augmented(data, derive(config.seed, "augmentation", last))
    found = list(islice(batches(config, len(data), last), own))
    done, tables = 0, []
    with conditions(config):
        course = steps(config, model, data)
        for at in tqdm(when):
            done += sum(1 for _ in islice(course, at - done))
            tables.append(compare(model.train(), [shown[batch] for batch in found], rules))
            tables[-1].insert(0, "steps", done)
    return pandas.concat(tables, ignore_index=True)


def compare(model: nn.Module, found: Sequence[tuple[Tensor, Tensor]], rules: Rules) -> DataFrame:
    """A mini-batch's gradient against that of others, and of the first with every rule."""
    import pandas

    layers = {name: m for name, m in model.named_modules() if isinstance(m, nn.Conv2d)}

    def gradients(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        images = images.contiguous(memory_format=torch.channels_last)
        loss = F.cross_entropy(model(images), labels)
        weights = [layer.weight for layer in layers.values()]
        return dict(zip(layers, torch.autograd.grad(loss, weights), strict=True))

    rows = []
    dense = [gradients(*batch) for batch in found]
    noise = {name: torch.stack([its[name] for its in dense]).var(0).sum() for name in layers}
    for (name, ratio), rule in rules.items():
        convert(model, rule)
        draws = [[gradients(*batch) for _ in range(DRAWS)] for batch in found[:TRIED]]
        revert(model)
        for layer in layers:
            off = torch.stack(
                [
                    torch.stack([draw[layer] for draw in its]) - full[layer]
                    for its, full in zip(draws, dense, strict=False)
                ]
            )
            added = off.square().flatten(2).sum(2).mean()
            together = off.mean(1).square().flatten(1).sum(1).mean()
            bias = (DRAWS * together - added) / (DRAWS - 1)  # of what the draws share
            values = (float(value) for value in (noise[layer], added, bias))
            rows.append((name, ratio, layer, *values))
    return pandas.DataFrame(rows, columns=["rule", "ratio", "layer", "own", "added", "bias"])


def main() -> None:
    """Measure in the dense run of ten epochs, with the first seed."""
    warnings.filterwarnings("ignore", "convert: at ")  # of what is measured here
    (run,) = load().pick(["cifar10"], ["dense-e10"], [0])
    origin = {
        "made by": "python -m measurements.noise",
        "run": run.id,
    } | provenance(run.config.threads)  # now: somebody may commit while it runs
    save_table(measure(run.config), origin, ROOT / FILE)


if __name__ == "__main__":
    main()
