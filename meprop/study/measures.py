"""What a record says of a network: how well it does, and what became of its gradients."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


@contextlib.contextmanager
def at_outputs(actions: Mapping[nn.Module, Callable[[Tensor], Tensor | None]]) -> Iterator[None]:
    """Inside, each function gets dL/dy at its layer's output; what it returns is passed back."""

    def catch(action: Any, layer: nn.Module, args: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(action)

    with contextlib.ExitStack() as hooks:
        for layer, action in actions.items():
            hooks.enter_context(layer.register_forward_hook(partial(catch, action)))
        yield


@contextlib.contextmanager
def gradients(model: nn.Module, layers: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """dL/dy at the outputs of some layers, of the latest backward pass in this context."""
    found: dict[str, Tensor] = {}
    keep = {model.get_submodule(name): partial(found.__setitem__, name) for name in layers}
    with at_outputs(keep):
        yield found


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
        pairs = zip(before, self.model.parameters(), strict=True)
        changed = sum(int(torch.count_nonzero(old != new.detach())) for old, new in pairs)
        self.changed.append(changed / sum(tensor.numel() for tensor in before))

    def means(self) -> dict[str, Any]:
        """Means over the measured steps."""
        layers = {
            layer: {name: fmean(shares[name]) for name in NAMES if shares[name]}
            for layer, shares in self.seen.items()
        }
        return {"layers": layers, "changed": fmean(self.changed)}
