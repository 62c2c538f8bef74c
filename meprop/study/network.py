"""The networks: the paper's (Table 1, "CNN structure of MNIST task") and a residual one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meprop.layers import Conv2d, GradientTopK, Linear
from meprop.rule import TopK, check_choice

LAYERS = ("conv1", "conv2", "fc1", "fc2")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
SELECT_AT = ("conv", "bn")
NETWORKS = ("paper", "resnet20")


class PaperCNN(nn.Module):
    """Two 5x5 convolutions with 2x2 max-pooling, then 1024 units, then 10 classes.

    activation: `relu` (the paper), `sigmoid` (its contrast) or `tanh`.
    batch_norm: normalise between each of conv1, conv2, fc1 and its activation (Table 3).
    rule: what is passed back at the outputs of `sparse_layers`; `None` is the baseline.
    dropout: of fc1's activations; the paper's network has none.
    history: see `meprop.Conv2d`. select_at: `conv` selects at the layer's own output, below batch
        normalisation, where its weight gradient is formed; `bn` selects above it, where "5% is 20%
        of 25%" holds, and the layer's own backward pass is dense.

    >>> PaperCNN(rule=TopK(0.05))(torch.rand(10, 1, 28, 28)).shape
    torch.Size([10, 10])
    """

    def __init__(
        self, activation: str = "relu", batch_norm: bool = False, rule: TopK | None = None,
        sparse_layers: Collection[str] = ("conv1", "conv2"), dropout: float = 0.0,
        backend: str = "auto", history: str = "slot", select_at: str = "conv",
    ) -> None:  # fmt: skip
        super().__init__()
        check_choice("PaperCNN", "activation", activation, tuple(ACTIVATIONS))
        check_choice("PaperCNN", "select_at", select_at, SELECT_AT)
        for name in sparse_layers:
            check_choice("PaperCNN", "sparse_layers", name, LAYERS)
        if select_at == "bn" and not batch_norm:
            raise ValueError("PaperCNN: select_at='bn' needs batch_norm=True, got False")
        if select_at == "bn" and "fc2" in sparse_layers:
            raise ValueError("PaperCNN: sparse_layers has 'fc2', which has no BN to select above")

        def here(name: str) -> dict[str, Any]:
            chosen = rule if name in sparse_layers and select_at == "conv" else None
            return {"rule": chosen, "backend": backend, "history": history}

        def above(name: str) -> nn.Module:
            if rule is None or select_at == "conv" or name not in sparse_layers:
                return nn.Identity()
            return GradientTopK(rule, history)

        def norm(kind: type[nn.Module], features: int) -> nn.Module:
            # A mini-batch of 10 is small: its statistics need a long average.
            return kind(features, eps=1e-5, momentum=0.01) if batch_norm else nn.Identity()

        self.activation = activation
        self.conv1 = Conv2d(1, 32, 5, padding=2, **here("conv1"))
        self.bn1, self.top1 = norm(nn.BatchNorm2d, 32), above("conv1")
        self.conv2 = Conv2d(32, 64, 5, padding=2, **here("conv2"))
        self.bn2, self.top2 = norm(nn.BatchNorm2d, 64), above("conv2")
        self.pool = nn.MaxPool2d(2)
        self.fc1 = Linear(7 * 7 * 64, 1024, **here("fc1"))
        self.bn3, self.top3 = norm(nn.BatchNorm1d, 1024), above("fc1")
        self.dropout = nn.Dropout(dropout)
        self.fc2 = Linear(1024, 10, **here("fc2"))
        layers: tuple[Any, ...] = (self.conv1, self.conv2, self.fc1, self.fc2)
        for layer in layers:
            # As in TensorFlow's "Deep MNIST for Experts": a normal truncated at two deviations.
            nn.init.trunc_normal_(layer.weight, std=0.1, a=-0.2, b=0.2)
            nn.init.constant_(layer.bias, 0.1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the ten classes."""
        activate = ACTIVATIONS[self.activation]
        x = self.pool(activate(self.top1(self.bn1(self.conv1(images)))))
        x = self.pool(activate(self.top2(self.bn2(self.conv2(x)))))
        x = activate(self.top3(self.bn3(self.fc1(x.flatten(1)))))
        return self.fc2(self.dropout(x))


class ResNet20(nn.Module):
    """The residual network of He et al. (2016) for CIFAR-10: 19 convolutions, then 10 classes.

    Three stages of three blocks, with 16, 32 and 64 channels; where a stage begins with half the
    resolution, its shortcut takes every second pixel and has zeros in the new channels (their
    option A), so that nothing but 3x3 convolutions has weights.

    rule, backend, history: those of every convolution. mean, std: of the pixels, for each colour;
    the images come in [0, 1].

    >>> ResNet20(rule=TopK(0.05))(torch.rand(10, 3, 32, 32)).shape
    torch.Size([10, 10])
    """

    def __init__(
        self, rule: TopK | None = None, backend: str = "auto", history: str = "slot",
        mean: Collection[float] = (0.4914, 0.4822, 0.4465),
        std: Collection[float] = (0.2470, 0.2435, 0.2616),
    ) -> None:  # fmt: skip
        super().__init__()
        settings = {"rule": rule, "backend": backend, "history": history}
        for name, values in (("mean", mean), ("std", std)):
            shaped = torch.tensor(tuple(values)).reshape(1, -1, 1, 1)
            self.register_buffer(name, shaped, persistent=False)
        self.conv1 = _conv3x3(len(mean), 16, 1, settings)
        self.bn1 = nn.BatchNorm2d(16)
        for stage, width in enumerate((16, 32, 64), start=1):
            blocks = [_Block(width if stage == 1 else width // 2, width, settings)]
            blocks += [_Block(width, width, settings) for _ in range(2)]
            self.add_module(f"stage{stage}", nn.Sequential(*blocks))
        self.fc = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the ten classes."""
        x = (images - self.get_buffer("mean")) / self.get_buffer("std")
        x = F.relu(self.bn1(self.conv1(x)))
        for stage in ("stage1", "stage2", "stage3"):
            x = self.get_submodule(stage)(x)
        return self.fc(x.mean((2, 3)))


class _Block(nn.Module):
    def __init__(self, before: int, width: int, settings: dict[str, Any]) -> None:
        super().__init__()
        self.stride = width // before
        self.conv1 = _conv3x3(before, width, self.stride, settings)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv3x3(width, width, 1, settings)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.stride > 1:
            new = (y.shape[1] - x.shape[1]) // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, new, new))
        return F.relu(y + x)


def _conv3x3(before: int, width: int, stride: int, settings: dict[str, Any]) -> Conv2d:
    conv = Conv2d(before, width, 3, stride=stride, padding=1, bias=False, **settings)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv
