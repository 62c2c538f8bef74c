"""All cases, and running them."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from benchmarks import layers, networks
from benchmarks.case import Case
from benchmarks.clock import measure
from benchmarks.results import Row, rows_of

# Where other programs want the processor too, they interrupt what takes long rather than what is
# short, and not even the ratios of times on the wall are right.
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


def all_cases(threads: Sequence[int]) -> list[Case]:
    """Every case for these thread counts."""
    return [
        case for count in threads for module in (layers, networks) for case in module.cases(count)
    ]


def chosen(cases: Iterable[Case], pattern: str | None, quick: bool) -> list[Case]:
    """The cases whose name contains the pattern; without one, all, or the quick ones.

    >>> [case.name for case in chosen(all_cases([1]), "step/*BN", quick=False)]
    ['step/PaperCNN-BN/1-thread']
    """
    if pattern is None:
        return [case for case in cases if case.quick or not quick]
    return [case for case in cases if fnmatch.fnmatchcase(case.name, f"*{pattern}*")]


def run(case: Case, seconds: float, least: int, clock: str = "wall") -> list[Row]:
    """Measure one case."""
    module = networks if case.group in ("step", "split") else layers
    with threads(case.threads):
        setup = module.build(case)
        timings = measure(setup.contenders, seconds, least, clock=CLOCKS[clock])
        return rows_of(case, setup, timings)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """torch, and our kernels with it, on so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
