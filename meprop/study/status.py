"""How far the suites are: python -m meprop status."""

from __future__ import annotations

import contextlib
import fcntl
import warnings
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from meprop.study import checkpoint as checkpoints
from meprop.study.experiments import Run, load
from meprop.study.pipeline import available_cores, find, where_stopped
from meprop.study.record import Record


@dataclass(frozen=True)
class State:
    """How far a run is; `note` says what is wrong with a committed record that does not count."""

    run: Run
    record: Record | None = None
    note: str = ""
    epochs: int = 0  # completed, of a run that is not done
    running: bool = False


def show(suites: list[str]) -> int:
    """Print a line for each suite; of suites that are named, a line for each configuration too."""
    experiments = load()
    for name in suites:
        experiments.pick([name])  # refuses an unknown one
    # Of all suites: the time left of one may only be known from another.
    all_states = {
        suite: [state_of(run) for run in experiments.pick([suite])] for suite in experiments.suites
    }
    states = {suite: all_states[suite] for suite in suites or all_states}
    every = [state for of_it in all_states.values() for state in of_it]
    _print_table(
        [("suite", *_COLUMNS, "time left")]
        + [(suite, *_count(of_it), time_left(of_it, every)) for suite, of_it in states.items()]
    )
    for suite in suites:
        names = dict.fromkeys(state.run.name for state in states[suite])
        print()
        _print_table(
            [(suite, *_COLUMNS)]
            + [(name, *_count([s for s in states[suite] if s.run.name == name])) for name in names]
        )
    for state in (state for of_it in states.values() for state in of_it):
        if state.running:
            print(f"Running: {state.run.id}, epoch {state.epochs + 1} of {state.run.config.epochs}")
        if state.record is not None and state.record.status != "finished":
            print(f"Diverged: {state.run.id}, {where_stopped(state.record)}")
        if state.note:
            print(f"Does not count: {state.note}")
    if left := left_aside([state.run for state in every]):
        size = sum(path.stat().st_size for path in left) / 1e6
        print(
            f"Left aside: {len(left)} checkpoint{'s' if len(left) > 1 else ''} of other code or "
            f"configurations, {size:.0f} MB, in {left[0].parent}; delete what no checkout needs."
        )
    return 0


_COLUMNS = ("runs", "done", "running", "missing", "best dev", "its test", "its run")


def _count(states: list[State]) -> tuple[str, ...]:
    done = [(state.run, state.record) for state in states if state.record is not None]
    running = sum(state.running for state in states)
    scored = [(run, record) for run, record in done if record.dev_accuracy is not None]
    scores = ("-", "-", "-")
    if scored:
        run, record = max(scored, key=lambda pair: pair[1].dev_accuracy or 0)
        scores = (
            f"{record.dev_accuracy:.2f}%",
            f"{record.test_accuracy:.2f}%",
            f"{run.name}-s{run.seed}",
        )
    numbers = (len(states), len(done), running, len(states) - len(done) - running)
    return (*(str(number) for number in numbers), *scores)


def state_of(run: Run) -> State:
    """How far a run is, from its record, its checkpoint and the lock on that."""
    record, reason = find(run)
    if record is not None:
        return State(run, record)
    path = checkpoints.checkpoint_path(run.config)
    epochs = 0
    with contextlib.suppress(checkpoints.CheckpointError), warnings.catch_warnings(action="ignore"):
        if state := checkpoints.load(path, run.config):  # a damaged one counts as none
            epochs = len(state["history"])
    running = _is_locked(path.with_name(f"{path.name}.lock"))
    note = reason if run.committed and reason != "missing" else ""
    return State(run, None, note, epochs, running)


def left_aside(runs: list[Run]) -> list[Path]:
    """The checkpoints that none of these runs would go on from."""
    own = {checkpoints.checkpoint_path(run.config) for run in runs}
    return sorted(path for path in next(iter(own)).parent.glob("*.pt") if path not in own)


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def time_left(states: list[State], every: list[State]) -> str:
    """The time for what is not done, on all cores of this machine, from the runs that are done."""
    each = []
    for state in states:
        if state.record is None:
            rate = _seconds_per_image(state.run, every)
            if rate is None:
                return "unknown"
            each.append(rate * state.run.cost * (1 - state.epochs / state.run.config.epochs))
    cores = available_cores()
    if not each:
        return "-"
    # A run has one core, however many there are.
    return f"{duration(max(sum(each) / cores, *each))} on {cores} core{'s' if cores > 1 else ''}"


def _seconds_per_image(run: Run, every: list[State]) -> float | None:
    """The median over the runs most like this one."""
    alike: list[list[float]] = [[], [], [], []]
    for state in every:
        if state.record is None or state.record.status != "finished":
            continue
        config = state.run.config
        same_data = config.dataset == run.config.dataset
        # In another suite an epoch's evaluation weighs more or less beside its training.
        same_suite = same_data and state.run.suite == run.suite
        same_network = config.batch_norm == run.config.batch_norm
        rank = 0 if same_suite and same_network else 1 if same_suite else 2 if same_data else 3
        alike[rank].append(usual_seconds(state.record) / state.run.cost)
    return next((median(rates) for rates in alike if rates), None)


def usual_seconds(record: Record) -> float:
    """What a run takes if all of its epochs take as long as the median one: no pause counts."""
    return len(record.history) * median(epoch["seconds"] for epoch in record.history)


def duration(seconds: float) -> str:
    """About how long, in words.

    >>> duration(12_000)
    '3 h 20 min'
    """
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    days, hours = divmod(minutes // 60, 24)
    return f"{days} d {hours} h" if days else f"{hours} h {minutes % 60} min"


def _print_table(lines: list[tuple[str, ...]]) -> None:
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = zip(line, widths, strict=True)
        print("  ".join(cell.ljust(width) for cell, width in cells).rstrip())
