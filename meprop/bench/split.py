"""A training step of the paper's network taken apart: every layer's forward and backward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from meprop import TopK, revert
from meprop.bench.cases import Case, Setup
from meprop.bench.gradients import incoming, paper
from meprop.bench.layers import FORMATS
from meprop.bench.selection import calls
from meprop.bench.steps import RATIO, Training, fused_adam
from meprop.bench.timing import Contender
from meprop.study.network import ACTIVATIONS, PaperCNN

SUBJECTS = ("PaperCNN", "PaperCNN-BN")
VARIANT = "channels_last"


def cases(threads: int) -> list[Case]:
    """With and without batch normalisation."""
    return [Case("split", subject, threads, quick=False) for subject in SUBJECTS]


def build(case: Case) -> Setup:
    """Three networks in the same memory format, and what selecting alone takes."""
    batch_norm = case.subject == "PaperCNN-BN"
    contenders = [
        Contender(name, Staged(model, batch_norm).parts(), VARIANT, ratio)
        for name, model, ratio in (
            ("dense", revert(PaperCNN(batch_norm=batch_norm)), None),
            ("exact", PaperCNN(batch_norm=batch_norm), None),
            ("meprop", PaperCNN(batch_norm=batch_norm, rule=TopK(RATIO)), RATIO),
        )
    ]
    gradient = "full" if batch_norm else "natural"
    selecting = {
        f"selection {layer}": calls(incoming(layer, gradient), RATIO, FORMATS[VARIANT])["sparse"]
        for layer in ("conv1", "conv2")
    }
    contenders.append(Contender("selection", selecting, VARIANT, RATIO))
    return Setup(contenders, ("dense",), "10x1x28x28", None, dict)


class Staged(Training):
    """Training whose step is cut between the layers: each stage has a graph of its own."""

    def __init__(self, model: PaperCNN, batch_norm: bool) -> None:
        trained = paper(batch_norm)
        model.load_state_dict(trained.state)
        super().__init__(model, trained.batches, VARIANT, fused_adam)
        self.stages = _stages(model)
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


def _stages(model: PaperCNN) -> dict[str, Callable[[Tensor], Tensor]]:
    activate = ACTIVATIONS[model.activation]
    return {
        "conv1": model.conv1,
        "between1": lambda y: model.pool(activate(model.bn1(y))),
        "conv2": model.conv2,
        "between2": lambda y: model.pool(activate(model.bn2(y))).flatten(1),
        "fc1": model.fc1,
        "between3": lambda y: activate(model.bn3(y)),
        "fc2": model.fc2,
    }
