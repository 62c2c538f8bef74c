"""What a record says of a network: how well it does, and what became of its gradients."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from meprop.study.data import Part
from meprop.watching import watch

BATCH = 200  # larger ones leave the cache


@torch.inference_mode()
def evaluate(model: nn.Module, part: Part) -> tuple[float, list[int], list[int]]:
    """Mean loss, the indices of the misclassified images, and what they were taken for."""
    model.eval()
    loss, wrong, predicted = 0.0, [], []
    for start in range(0, len(part), BATCH):
        images, labels = part[start : start + BATCH]
        output = model(images.contiguous(memory_format=torch.channels_last))
        loss += float(F.cross_entropy(output, labels, reduction="sum"))
        classes = output.argmax(1)
        missed = torch.nonzero(classes != labels).flatten()
        wrong += (missed + start).tolist()
        predicted += classes[missed].tolist()
    return loss / len(part), wrong, predicted


NAMES = ("before", "after", "weight", "norm_kept")


class Measured:
    """Densities and the share of changed parameters, in at most 20 steps of an epoch.

    The first step is measured, and every 100th, or twentieth of the epoch if that is more: looking
    at every gradient and every parameter costs as much as another step or two.
    """

    def __init__(self, model: nn.Module, steps: int) -> None:
        self.model = model
        self.every = max(100, -(-steps // 20))
        self.seen: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.changed: list[float] = []

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Wrap a whole step, number 1 and on: forward, backward and update."""
        if (number - 1) % self.every:
            yield
            return
        before = [parameter.detach().clone() for parameter in self.model.parameters()]
        with watch(self.model) as seen:
            yield
        for layer, shares in seen.items():
            for name in NAMES:
                if (value := getattr(shares, name)) is not None:
                    self.seen[layer][name].append(value)
        self.changed.append(_share_changed(before, list(self.model.parameters())))

    def means(self) -> dict[str, Any]:
        """Means over the measured steps."""
        layers = {
            layer: {name: fmean(shares[name]) for name in NAMES if shares[name]}
            for layer, shares in self.seen.items()
        }
        return {"layers": layers, "changed": fmean(self.changed)}


def _share_changed(before: list[torch.Tensor], after: list[torch.Tensor]) -> float:
    pairs = zip(before, after, strict=True)
    changed = sum(int(torch.count_nonzero(old != new.detach())) for old, new in pairs)
    return changed / sum(tensor.numel() for tensor in before)
