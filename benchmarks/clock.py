"""The clock: contenders take turns, so that noise hits all of them alike."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WARM_UP = 2  # rounds after the first call that do not count


@dataclass(frozen=True)
class Contender:
    """Something to be timed: parts that run one after the other.

    format: the memory format it runs in. ratio: the share it keeps, None if all of it. counts: the
    part that is compared, None for all of them. facts: fields of a row that no clock tells.
    """

    name: str
    parts: Mapping[str, Callable[[], object]]
    format: str = "contiguous"
    ratio: float | None = None
    counts: str | None = None
    facts: Callable[[], dict[str, Any]] = dict


@dataclass
class Timing:
    """Seconds of a contender's parts in each round, and of its first call."""

    contender: Contender
    first: float
    rounds: list[tuple[float, ...]] = field(default_factory=list)

    @property
    def totals(self) -> list[float]:
        """Seconds of each round, of what counts."""
        if self.contender.counts is None:
            return [sum(parts) for parts in self.rounds]
        place = list(self.contender.parts).index(self.contender.counts)
        return [parts[place] for parts in self.rounds]


def measure(
    contenders: Sequence[Contender],
    seconds: float,
    least: int,
    most: int = 2000,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timing]:
    """Time the contenders for about `seconds`, in at least `least` and at most `most` rounds.

    Every round calls each contender once, in an order of its own, the same in every run: none
    always works in the wake of the same other one.

    >>> ticks = iter(range(100))
    >>> timing, = measure([Contender("a", {"all": int})], 0, least=3, clock=lambda: next(ticks))
    >>> timing.totals
    [1, 1, 1]
    """
    timings = [Timing(contender, sum(_call(contender, clock))) for contender in contenders]
    for _ in range(WARM_UP):
        for contender in contenders:
            _call(contender, clock)
    order = random.Random(0)
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        start, done = clock(), 0
        while done < least or (done < most and clock() - start < seconds):
            for timing in order.sample(timings, len(timings)):
                timing.rounds.append(_call(timing.contender, clock))
            done += 1
    finally:
        if collects:
            gc.enable()
    return timings


def _call(contender: Contender, clock: Callable[[], float]) -> tuple[float, ...]:
    seconds = []
    for part in contender.parts.values():
        start = clock()
        result = part()
        seconds.append(clock() - start)
        del result  # a tensor is given back outside the measured time
    return tuple(seconds)
