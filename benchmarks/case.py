"""What a case of the benchmark is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.clock import Contender


@dataclass(frozen=True)
class Case:
    """One comparison. quick: among those of `--quick`."""

    group: str
    subject: str
    threads: int
    gradient: str | None = None
    ratio: float | None = None
    quick: bool = True

    @property
    def name(self) -> str:
        """As `--only` matches it.

        >>> Case("layer", "conv2", 1, "full", 0.05).name
        'layer/conv2/full/5%/1-thread'
        """
        ratio = None if self.ratio is None else f"{self.ratio * 100:g}%"
        parts = (self.group, self.subject, self.gradient, ratio, f"{self.threads}-thread")
        return "/".join(part for part in parts if part is not None)


class Setup(NamedTuple):
    """A case ready to run: speed-ups are over `baselines`."""

    contenders: list[Contender]
    baselines: tuple[str, ...]
    shape: str
    density: float | None = None
