"""Whole training steps: forward, loss, backward, update; and the paper's step in its parts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.case import Case, Setup
from benchmarks.clock import Contender
from benchmarks.gradients import FORMATS, incoming, paper
from benchmarks.layers import dense_convolutions, mask, selections
from meprop import TopK, convert, recipe, revert
from meprop.study import PaperCNN
from meprop.study.network import ACTIVATIONS, ResNet20

PAPER = ("PaperCNN", "PaperCNN-BN")
PAPER_RATIO = 0.05
RECIPE = 0.1  # the default of `meprop.recipe`
SPLIT_FORMAT = "channels_last"
Batches = list[tuple[Tensor, Tensor]]
Optimizer = Callable[[Any], torch.optim.Optimizer]


@dataclass(frozen=True)
class Network:
    """A network with random weights, the images it gets, and the shares that are kept."""

    make: Callable[[], nn.Module]
    batch: int
    side: int
    ratios: tuple[float, ...] = (0.05,)


def _torchvision(name: str) -> nn.Module:
    import torchvision

    return torchvision.models.get_model(name)


NETWORKS = {
    "resnet18": Network(partial(_torchvision, "resnet18"), 8, 224),
    "ResNet-20": Network(ResNet20, 64, 32, (0.05, 0.1, 0.25)),
    **{
        name: Network(partial(_torchvision, name), 8, 64, (0.05, 0.25, 0.5))
        for name in ("vgg11", "mobilenet_v2", "efficientnet_b0", "convnext_tiny")
    },
}


def cases(threads: int) -> list[Case]:
    """Steps of all networks, then the parts of the paper's."""
    steps = [Case("step", name, threads, quick=name in PAPER) for name in (*PAPER, *NETWORKS)]
    return steps + [Case("split", name, threads, quick=False) for name in PAPER]


def build(case: Case) -> Setup:
    """The contenders of a case, all from the same weights."""
    if case.group == "split":
        return _split(case.subject == "PaperCNN-BN")
    if case.subject in PAPER:
        contenders = list(_of_the_paper(case.subject == "PaperCNN-BN"))
        return Setup(contenders, ("dense", "stock", "exact"), "10x1x28x28")
    network = NETWORKS[case.subject]
    shape = f"{network.batch}x3x{network.side}x{network.side}"
    contenders = [each for format in FORMATS for each in _of(network, format)]
    return Setup(contenders, ("dense",), shape)


class Training:
    """A network, its optimizer, and the data lying ready in its memory format."""

    def __init__(
        self, model: nn.Module, batches: Batches, format: str, optimizer: Optimizer
    ) -> None:
        self.format = format
        self.model = model.to(memory_format=FORMATS[format]).train()  # type: ignore[call-overload]
        self.optimizer = optimizer(self.model.parameters())
        ready = [(images.contiguous(memory_format=FORMATS[format]), y) for images, y in batches]
        self.batches: Iterator[tuple[Tensor, Tensor]] = cycle(ready)
        self.loss: Tensor | None = None

    def parts(self) -> dict[str, Callable[[], object]]:
        """The parts of a step, in order."""
        return {"forward": self.forward, "backward": self.backward, "update": self.update}

    def forward(self) -> None:
        """Logits and their loss."""
        images, labels = next(self.batches)
        self.loss = F.cross_entropy(self.model(images), labels)

    def backward(self) -> None:
        """Gradients of all parameters."""
        assert self.loss is not None
        self.loss.backward()
        self.loss = None

    def update(self) -> None:
        """The optimizer's step."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self) -> None:
        """All of it."""
        for part in self.parts().values():
            part()

    def contender(self, name: str, ratio: float | None = None) -> Contender:
        """To be timed; of ours, how many convolutions `auto` took to the sparse kernels."""

        def facts() -> dict[str, Any]:
            total = sum(isinstance(module, nn.Conv2d) for module in self.model.modules())
            return {"chose": f"{total - dense_convolutions(self.step)}/{total} sparse"}

        told = name not in ("dense", "stock", "masked", "recipe")
        return Contender(name, self.parts(), self.format, ratio, facts=facts if told else dict)


def fused_adam(parameters: Any) -> torch.optim.Optimizer:
    """With torch's defaults, which are the paper's."""
    return torch.optim.Adam(parameters, fused=True)


def _of_the_paper(batch_norm: bool) -> Iterator[Contender]:
    trained = paper(batch_norm)

    def network(rule: TopK | None = None) -> PaperCNN:
        model = PaperCNN(batch_norm=batch_norm, rule=rule)
        model.load_state_dict(trained.state)
        return model

    def training(model: nn.Module, format: str, optimizer: Optimizer = fused_adam) -> Training:
        return Training(model, trained.batches, format, optimizer)

    yield training(revert(network()), "contiguous", torch.optim.Adam).contender("stock")
    for format in FORMATS:
        masked = mask(revert(network()), PAPER_RATIO)
        ours = network(TopK(PAPER_RATIO))
        yield training(revert(network()), format).contender("dense")
        yield training(masked, format).contender("masked", PAPER_RATIO)
        yield training(convert(revert(network()), None), format).contender("exact")
        yield training(ours, format).contender("meprop", PAPER_RATIO)


def _of(network: Network, format: str) -> Iterator[Contender]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        plain = network.make().to(memory_format=FORMATS[format])  # type: ignore[call-overload]
        images = torch.randn(network.batch, 3, network.side, network.side)
        with torch.no_grad():
            classes = plain.eval()(images).shape[1]
        batches = [(images, torch.randint(classes, (network.batch,)))]
    # One set of weights for all: ten of vgg11's would not fit in the memory of a laptop. Their
    # learning rate is so small that every round sees the same network.
    shared = {id(parameter): parameter for parameter in plain.parameters()}
    optimizer = torch.optim.SGD(plain.parameters(), lr=1e-9, momentum=0.9, fused=True)

    def training(change: Callable[[nn.Module], nn.Module]) -> Training:
        return Training(
            change(copy.deepcopy(plain, dict(shared))), batches, format, lambda _: optimizer
        )

    yield training(lambda model: model).contender("dense")
    yield training(lambda model: convert(model, None)).contender("exact")
    yield training(recipe).contender("recipe", RECIPE)
    for ratio in network.ratios:
        rules = {"meprop": TopK(ratio)}
        if network.make is ResNet20:  # the network of the suite cifar10, and its rules
            rules["unbiased"] = TopK(ratio, pick="unbiased")
            rules["weights alone"] = TopK(ratio, pick="unbiased", only="weight")
            rules["centred by image"] = TopK(ratio, pick="centred", scope="sample")
        for name, rule in rules.items():
            yield training(partial(convert, rule=rule)).contender(name, ratio)


def _split(batch_norm: bool) -> Setup:
    """Three networks in the same memory format, and what selecting alone takes."""
    contenders = [
        Contender(name, Staged(model, batch_norm).parts(), SPLIT_FORMAT, ratio)
        for name, model, ratio in (
            ("dense", revert(PaperCNN(batch_norm=batch_norm)), None),
            ("exact", PaperCNN(batch_norm=batch_norm), None),
            ("meprop", PaperCNN(batch_norm=batch_norm, rule=TopK(PAPER_RATIO)), PAPER_RATIO),
        )
    ]
    gradient = "full" if batch_norm else "natural"
    selecting = {
        f"selection {layer}": selections(incoming(layer, gradient), PAPER_RATIO, SPLIT_FORMAT)[
            "sparse"
        ]
        for layer in ("conv1", "conv2")
    }
    contenders.append(Contender("selection", selecting, SPLIT_FORMAT, PAPER_RATIO))
    return Setup(contenders, ("dense",), "10x1x28x28")


class Staged(Training):
    """Training whose step is cut between the layers: each stage has a graph of its own."""

    def __init__(self, model: PaperCNN, batch_norm: bool) -> None:
        trained = paper(batch_norm)
        model.load_state_dict(trained.state)
        super().__init__(model, trained.batches, SPLIT_FORMAT, fused_adam)
        activate = ACTIVATIONS[model.activation]
        self.stages: dict[str, Callable[[Tensor], Tensor]] = {
            "conv1": model.conv1,
            "between1": lambda y: model.pool(activate(model.bn1(y))),
            "conv2": model.conv2,
            "between2": lambda y: model.pool(activate(model.bn2(y))).flatten(1),
            "fc1": model.fc1,
            "between3": lambda y: activate(model.bn3(y)),
            "fc2": model.fc2,
        }
        self.graphs: list[tuple[Tensor, Tensor]] = []  # input and output of each stage so far
        self.gradient: Tensor | None = None  # at the output of the last one; None: the loss's own

    def parts(self) -> dict[str, Callable[[], object]]:
        """Forward through the stages, back through them, update."""
        forward = {f"forward {name}": partial(self.into, name) for name in (*self.stages, "loss")}
        backward = {name.replace("for", "back"): self.back for name in reversed(forward)}
        return {**forward, **backward, "update": self.update}

    def into(self, name: str) -> None:
        """Forward through one stage."""
        if self.graphs:
            x = self.graphs[-1][1].detach().requires_grad_()
        else:
            x, self.labels = next(self.batches)
        y = F.cross_entropy(x, self.labels) if name == "loss" else self.stages[name](x)
        self.graphs.append((x, y))

    def back(self) -> None:
        """Back through the stage that was entered last."""
        x, y = self.graphs.pop()
        y.backward(self.gradient)
        self.gradient = x.grad
