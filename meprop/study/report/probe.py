"""The paper's network in training, stopped at any step to look at its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meprop.study.adam import Adam
from meprop.study.config import Config
from meprop.study.data import load_data
from meprop.study.seeding import batches, build

# A notebook and a run must compute alike: threads and arithmetic are set in one place.
from meprop.study.training import _surroundings


class Probe:
    """The same steps as `meprop.study.train` takes, one at a time.

    >>> probe = Probe(Config(dataset="digits"))
    >>> probe.advance(2)
    >>> probe.steps, probe.gradients(*probe.batch([0, 1, 2, 3]))["conv1"].shape
    (2, torch.Size([4, 32, 28, 28]))
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        data = load_data(config.dataset).train
        size = config.train_size or len(data)
        self.data = data.first(size)
        self.model = build(config).train()
        self.optimizer = Adam(self.model.parameters(), config.lr)
        self.steps = 0
        self.losses: list[float] = []
        self.order = self._mini_batches()  # what `advance` takes next

    def _mini_batches(self) -> Iterator[Tensor]:
        for epoch in count(1):
            yield from batches(self.config, len(self.data), epoch)

    def surroundings(self) -> AbstractContextManager[None]:
        """Threads and arithmetic as in training, while in this context."""
        return _surroundings(self.config)

    def batch(self, rows: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Some training images and their labels."""
        return self.data[rows]

    def advance(self, steps: int = 1) -> None:
        """Learn from the next mini-batches, with the gradients that the configuration selects."""
        with self.surroundings():
            for _ in range(steps):
                self.losses.append(self.backward(*self.batch(next(self.order))))
                self.optimizer.step()
                self.steps += 1

    def predict(self, images: Tensor) -> Tensor:
        """Logits of some images."""
        with self.surroundings(), torch.no_grad():
            return self.model(images.contiguous(memory_format=torch.channels_last))

    def backward(self, images: Tensor, labels: Tensor) -> float:
        """Gradients of some images, without an update; returns their mean loss."""
        self.optimizer.zero_grad()
        output = self.model(images.contiguous(memory_format=torch.channels_last))
        loss = F.cross_entropy(output, labels)
        loss.backward()
        return loss.item()

    def gradients(
        self, images: Tensor, labels: Tensor, layers: Sequence[str] = ("conv1", "conv2")
    ) -> dict[str, Tensor]:
        """dL/dy at the outputs of some layers, before any selection, without an update."""
        with self.caught(layers) as found, self.surroundings():
            self.backward(images, labels)
        return {name: found[name].contiguous().clone() for name in layers}

    @contextmanager
    def caught(self, layers: Sequence[str]) -> Iterator[dict[str, Tensor]]:
        """dL/dy at the outputs of some layers, of the latest backward pass inside the context."""
        found: dict[str, Tensor] = {}

        def catch(name: str) -> Callable[..., None]:
            def hook(module: nn.Module, args: Any, output: Tensor) -> None:
                # Without a gradient, as in predict, there is nothing to catch.
                if output.requires_grad:
                    output.register_hook(lambda grad: found.update({name: grad.detach()}))

            return hook

        hooks = [self.model.get_submodule(n).register_forward_hook(catch(n)) for n in layers]
        try:
            yield found
        finally:
            for each in hooks:
                each.remove()
