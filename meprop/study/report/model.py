"""What conversion does to a network that is not the paper's: densities, a few steps, their time."""

from __future__ import annotations

import copy
import importlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from meprop import Conv2d, Seen, TopK, convert
from meprop.bench.layers import FORMATS, dense_convolutions
from meprop.bench.running import threads
from meprop.bench.statistics import Spread, fastest, speedups, summarise
from meprop.bench.steps import Training
from meprop.bench.timing import Contender, measure
from meprop.study.parameters import ParameterError

NAMES = ("resnet18", "own")
FACTORY = "package.module:factory"
Batch = tuple[Tensor, Tensor]


def allowed(model: object) -> tuple[object, ...]:
    """The values that the parameter may have: a name, or where to import a function from."""
    names = (*NAMES, FACTORY)
    return (*names, model) if isinstance(model, str) and ":" in model else names


def build(model: str, own: Callable[[], nn.Module]) -> nn.Module:
    """A network with random weights, the same ones every time.

    >>> build("own", lambda: nn.Sequential(nn.Conv2d(3, 8, 3)))
    Sequential(
      (0): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
    )
    """
    factory = _factory(model, own)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = factory()
    if not isinstance(network, nn.Module):
        raise ParameterError(f"model: {model!r} made no torch.nn.Module, but {network!r}")
    if not _convolutions(network):
        raise ParameterError(f"model: the network that {model!r} made has no nn.Conv2d")
    return network


def _factory(model: str, own: Callable[[], nn.Module]) -> Callable[[], Any]:
    if model == "own":
        return own
    if model == "resnet18":
        import meprop.study  # noqa: F401, I001  (makes the next import work)
        from torchvision.models import resnet18

        return resnet18
    place, _, name = model.partition(":")
    try:
        return getattr(importlib.import_module(place), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ParameterError(f"model: {model!r} cannot be imported: {error}") from None


def batch(network: nn.Module, images: int = 8, side: int = 48) -> Batch:
    """Random images that fit the first convolution, and random labels for what comes out."""
    random = torch.Generator().manual_seed(0)
    shape = (images, _convolutions(network)[0].in_channels, side, side)
    inputs = torch.randn(shape, generator=random)
    probe = copy.deepcopy(network).eval()
    try:
        with torch.no_grad():
            classes = probe(inputs).flatten(1).shape[1]
    except (RuntimeError, AttributeError) as error:
        reason = str(error).partition("\n")[0]
        size = "x".join(map(str, shape))
        raise ParameterError(f"model: the network takes no images of {size}: {reason}") from None
    return inputs, torch.randint(classes, (images,), generator=random)


def summary(network: nn.Module) -> str:
    """What was converted, in a sentence."""
    ours = sum(isinstance(module, Conv2d) for module in network.modules())
    every, parameters = len(_convolutions(network)), sum(p.numel() for p in network.parameters())
    return (
        f"{ours} of {every} convolutions now select. The network still has its "
        f"{parameters:,} parameters, the very same objects under the same names."
    )


def densities_in_words(seen: dict[str, Seen]) -> str:
    """The nonzero shares before and after the selection, over all convolutions."""
    chosen = [each for each in seen.values() if _selects(each)]
    if not chosen:
        return "Every layer passed on what it got."
    before, after, kept = (
        _range([getattr(each, name) for each in chosen])
        for name in ("before", "after", "norm_kept")
    )
    layers = f"{len(chosen)} layers drop" if len(chosen) > 1 else "One layer drops"
    return (
        f"{layers} something: {before} of the gradient was nonzero before, {after} after the "
        f"selection, with {kept} of its norm."
    )


def _range(shares: list[float]) -> str:
    low, high = (f"{share:.0%}" for share in (min(shares), max(shares)))
    return low if low == high else f"{low} to {high}"


def _selects(seen: Seen) -> bool:
    return seen.before is not None and seen.after is not None and seen.after < seen.before


def train(network: nn.Module, batch: Batch, steps: int = 6) -> list[float]:
    """The losses of a few steps on one mini-batch; the network is left as it was."""
    training = Training(copy.deepcopy(network), [batch], "channels_last", _sgd)
    losses = []
    for _ in range(steps):
        training.forward()
        assert training.loss is not None
        losses.append(training.loss.item())
        training.backward()
        training.update()
    return losses


class Timed(NamedTuple):
    """The step of one way to train: milliseconds, and how many times as fast as the plain one."""

    name: str
    format: str
    milliseconds: float
    speedup: Spread
    sparse: str  # how many layers `auto` gave to the sparse kernels


def times(network: nn.Module, batch: Batch, ratio: float, rounds: int = 3) -> list[Timed]:
    """Steps of the plain and the converted network in turns, each in its better memory format.

    On one thread, in processor time: what else the machine does is not counted.
    """
    made = {
        "plain": network,
        "exact": convert(copy.deepcopy(network), None),
        "converted": convert(copy.deepcopy(network), TopK(ratio)),
    }
    with threads(1):
        trainings = {
            (name, variant): Training(copy.deepcopy(own), [batch], variant, _sgd)
            for name, own in made.items()
            for variant in FORMATS
        }
        contenders = [
            Contender(name, training.parts(), variant)
            for (name, variant), training in trainings.items()
        ]
        timings = measure(contenders, 0, least=rounds, clock=time.process_time)
        best = fastest(timings)
        total = len(_convolutions(network))
        return [
            Timed(
                name,
                timing.contender.variant,
                1000 * summarise(timing.totals).median,
                summarise(speedups(best["plain"].totals, timing.totals)),
                ""
                if name == "plain"
                else f"{total - dense_convolutions(trainings[name, timing.contender.variant].step)}"
                f" of {total}",
            )
            for name, timing in best.items()
        ]


def times_table(found: dict[str, list[Timed]]) -> str:
    """The steps of several networks (Markdown)."""
    calls = {
        "plain": "plain",
        "exact": "`convert(model, None)`",
        "converted": "`convert(model, TopK(ratio))`",
    }
    head = ("network", "", "ms a step", "times as fast", "sparse layers")
    lines = [head, ("---", "---", "---:", "---:", "---:")]
    for network, timed in found.items():
        for each in timed:
            median, low, high = (
                f"{each.speedup._asdict()[q]:.2f}" for q in ("median", "q25", "q75")
            )
            times = f"{median} ({low} to {high})"
            cells = (calls[each.name], f"{each.milliseconds:.3g}", times, each.sparse)
            lines.append((network, *cells))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def same_outputs(one: nn.Module, other: nn.Module, images: Tensor) -> bool:
    """Whether two networks compute the same, bit for bit."""
    with torch.no_grad():
        return torch.equal(copy.deepcopy(one)(images), copy.deepcopy(other)(images))


def _convolutions(network: nn.Module) -> list[nn.Conv2d]:
    return [module for module in network.modules() if isinstance(module, nn.Conv2d)]


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=True)
