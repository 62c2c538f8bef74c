"""The images, the networks and the ratios that the Method page looks at."""

from __future__ import annotations

import torch
from torch import Tensor

from meprop.study.config import Config
from meprop.study.data import Part
from meprop.study.experiments import ROOT
from meprop.study.report.probe import Probe

GRADIENTS = ROOT / "book" / "_static" / "explorer-data.js"


def one_of_each(part: Part) -> tuple[Tensor, Tensor]:
    """The first image of each class, and its label."""
    rows = [int(torch.nonzero(part.labels == label)[0]) for label in part.labels.unique()]
    return part[rows]


def short(config: Config | None = None, steps: int = 60) -> Probe:
    """The paper's network after some steps on the embedded digits: what the pictures are of."""
    probe = Probe(config or Config(dataset="digits"))
    probe.advance(steps)
    return probe


def ratios(count: int = 13, lowest: float = 0.001) -> list[float]:
    """Ratios up to 1, evenly spaced on a logarithmic axis."""
    return [lowest ** (1 - i / (count - 1)) for i in range(count)]
