"""What a seed fixes: the initialisation and the order of the data, each apart from all the rest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from meprop.study.config import Config
from meprop.study.network import PaperCNN


def build(config: Config) -> PaperCNN:
    """The untrained network of a configuration: one seed, one initialisation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(config.seed, "initialisation"))
        model = PaperCNN(
            activation=config.activation,
            batch_norm=config.batch_norm,
            rule=config.rule,
            sparse_layers=config.sparse_layers,
            dropout=config.dropout,
            backend=config.backend,
            history=config.history,
            select_at=config.select_at,
        )
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def batches(config: Config, size: int, epoch: int) -> Iterator[Tensor]:
    """The indices of each mini-batch of an epoch: one seed, one order."""
    generator = Generator().manual_seed(derive(config.seed, "order", epoch))
    order = torch.randperm(size, generator=generator)
    return iter(order[: size - size % config.batch_size].split(config.batch_size))


def derive(seed: int, *purpose: str | int) -> int:
    """A seed for one purpose, unrelated to that of any other."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
