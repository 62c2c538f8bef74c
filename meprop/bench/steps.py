"""Whole training steps: forward, loss, backward, update."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meprop import TopK, convert, revert
from meprop.bench.cases import Case, Facts, Setup
from meprop.bench.gradients import paper
from meprop.bench.layers import FORMATS, dense_convolutions, keep_largest
from meprop.bench.timing import Contender

RATIO = 0.05
SUBJECTS = ("PaperCNN", "PaperCNN-BN", "resnet18")
Batches = list[tuple[Tensor, Tensor]]


def cases(threads: int) -> list[Case]:
    """The paper's network with and without batch normalisation, and a residual network."""
    return [
        Case("step", subject, threads, quick=subject.startswith("PaperCNN")) for subject in SUBJECTS
    ]


def build(case: Case) -> Setup:
    """The contenders of a case: each trains a network of its own from the same weights."""
    networks = _resnet() if case.subject == "resnet18" else _paper(case.subject == "PaperCNN-BN")
    contenders = [
        Contender(name, training.parts(), training.variant, training.ratio)
        for name, training in networks
    ]
    shape = "8x3x224x224" if case.subject == "resnet18" else "10x1x28x28"
    names = {contender.name for contender in contenders}
    baselines = tuple(name for name in ("dense", "stock") if name in names)
    return Setup(contenders, baselines, shape, None, lambda: _facts(networks))


class Training:
    """A network, its optimizer, and the data lying ready in its memory format."""

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        variant: str,
        optimizer: Callable[[Any], torch.optim.Optimizer],
        ratio: float | None = None,
    ) -> None:
        self.variant, self.ratio = variant, ratio
        memory_format = FORMATS[variant]
        self.model = model.to(memory_format=memory_format).train()  # type: ignore[call-overload]
        self.optimizer = optimizer(self.model.parameters())
        ready = [(images.contiguous(memory_format=memory_format), y) for images, y in batches]
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


def fused_adam(parameters: Any) -> torch.optim.Optimizer:
    """With torch's defaults, which are the paper's."""
    return torch.optim.Adam(parameters, fused=True)


def _paper(batch_norm: bool) -> list[tuple[str, Training]]:
    from meprop.study.network import PaperCNN

    trained = paper(batch_norm)

    def network(rule: TopK | None = None) -> PaperCNN:
        model = PaperCNN(batch_norm=batch_norm, rule=rule)
        model.load_state_dict(trained.state)
        return model

    def plain() -> nn.Module:
        return revert(network())

    data, last = trained.batches, "channels_last"
    return [
        ("stock", Training(plain(), data, "contiguous", torch.optim.Adam)),
        ("dense", Training(plain(), data, "contiguous", fused_adam)),
        ("dense", Training(plain(), data, last, fused_adam)),
        ("masked", Training(_masked(plain()), data, last, fused_adam, RATIO)),
        ("exact", Training(network(), data, last, fused_adam)),
        ("meprop", Training(network(TopK(RATIO)), data, last, fused_adam, RATIO)),
    ]


def _masked(model: nn.Module) -> nn.Module:
    """Public code's way: dense layers, and a hook that sets most of their gradient to zero."""

    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        output.register_hook(lambda grad: keep_largest(grad, RATIO))

    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(hook)
    return model


def _resnet() -> list[tuple[str, Training]]:
    import meprop.study  # noqa: F401, I001  (makes the next import work)
    from torchvision.models import resnet18

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = resnet18().state_dict()
        batch = (torch.randn(8, 3, 224, 224), torch.randint(1000, (8,)))

    def network() -> nn.Module:
        model = resnet18()
        model.load_state_dict(state)
        return model

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.001, momentum=0.9, fused=True)

    ours = convert(network(), TopK(RATIO))
    return [
        ("dense", Training(network(), [batch], "contiguous", sgd)),
        ("dense", Training(network(), [batch], "channels_last", sgd)),
        ("meprop", Training(ours, [batch], "channels_last", sgd, RATIO)),
    ]


def _facts(networks: list[tuple[str, Training]]) -> Facts:
    """How many convolutions `auto` left dense."""
    facts: Facts = {}
    for name, training in networks:
        if name in ("exact", "meprop"):
            total = sum(isinstance(module, nn.Conv2d) for module in training.model.modules())
            dense = dense_convolutions(training.step)
            facts[name, training.variant] = {"chose": f"{total - dense}/{total} sparse"}
    return facts
