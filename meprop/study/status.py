"""How far the suites are: python -m meprop status."""

import contextlib
import fcntl
import warnings
from dataclasses import dataclass
from itertools import groupby
from math import nan
from pathlib import Path
from statistics import median
from typing import Any

from tqdm import tqdm

from meprop.study import checkpoint as checkpoints
from meprop.study.experiments import Run, load
from meprop.study.pipeline import available_cores, find
from meprop.study.record import Record, RecordError


@dataclass(frozen=True)
class State:
    """How far a run is; `note` says what is wrong with a committed record that does not count."""

    run: Run
    record: Record | None = None
    note: str = ""
    damaged: bool = False
    epochs: int = 0  # completed, of a run that is not done
    running: bool = False


def show(suites: list[str]) -> int:
    """Print a line for each suite; of suites that are named, a line for each configuration too."""
    import pandas

    experiments = load()
    asked = experiments.pick(suites or list(experiments.suites))  # refuses an unknown suite
    # Of all suites: the time left of one may only be known from another.
    every = [state_of(run) for run in experiments.runs]
    shown = [state for state in every if state.run in asked]
    rows = []
    for suite, states in groupby(shown, lambda state: state.run.suite):
        own = list(states)
        rows.append({"suite": suite} | _count(own) | {"time left": time_left(own, every)})
    form: dict[str, Any] = {"index": False, "na_rep": "-", "float_format": "{:.2f}%".format}
    print(pandas.DataFrame(rows).to_string(**form))
    if suites:
        by_name = groupby(shown, lambda state: f"{state.run.suite}/{state.run.name}")
        rows = [{"configuration": name} | _count(list(own)) for name, own in by_name]
        print(f"\n{pandas.DataFrame(rows).to_string(**form)}")
    for state in shown:
        if state.running:
            print(f"Running: {state.run.id}, epoch {state.epochs + 1} of {state.run.config.epochs}")
        if state.record is not None and (at := state.record.stopped) is not None:
            print(f"Diverged: {state.run.id}, in epoch {{epoch}}, step {{step}}".format(**at))
        if state.note:
            print(f"Does not count: {state.note}")
    if left := left_aside(experiments.runs):
        size = sum(path.stat().st_size for path in left) / 1e6
        print(
            f"Left aside: {len(left)} checkpoint{'s' if len(left) > 1 else ''} of other code or "
            f"configurations, {size:.0f} MB, in {left[0].parent}; delete what no checkout needs."
        )
    return 0


def _count(states: list[State]) -> dict[str, object]:
    done = [state for state in states if state.record is not None]
    running, damaged = sum(s.running for s in states), sum(s.damaged for s in states)
    missing = len(states) - len(done) - running - damaged
    counts: dict[str, object] = {"runs": len(states), "done": len(done), "running": running}
    counts |= {"damaged": damaged, "missing": missing}
    scored = [
        (record.dev_accuracy, record.test_accuracy, f"{state.run.name}-s{state.run.seed}")
        for state in done
        if (record := state.record) and record.dev_accuracy is not None
    ]
    best = max(scored, key=lambda each: each[0], default=(nan, nan, "-"))
    return counts | dict(zip(("best dev", "its test", "its run"), best, strict=True))


def state_of(run: Run) -> State:
    """How far a run is, from its record, its checkpoint and the lock on that."""
    try:
        record, reason = find(run)
    except RecordError as error:
        return State(run, note=str(error), damaged=True)
    if record is not None:
        return State(run, record)
    path = checkpoints.checkpoint_path(run.config)
    epochs = 0
    with contextlib.suppress(checkpoints.CheckpointError), warnings.catch_warnings(action="ignore"):
        if state := checkpoints.load(path, run.config):  # a damaged one counts as none
            epochs = len(state["history"])
    running = _is_locked(path.with_name(f"{path.name}.lock"))
    note = reason if run.committed and reason != "missing" else ""
    return State(run, note=note, epochs=epochs, running=running)


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
    """The time for what is not done, on all cores of this machine, from the runs that are done.

    Those of the same suite, if there are some. A run's epochs count as its median one: no pause.
    """
    todo = [s for s in states if s.record is None and not s.damaged]
    left = [s.run.cost * (1 - s.epochs / s.run.config.epochs) for s in todo]
    done = [s for s in every if s.record is not None and s.record.status == "finished"]
    rates = [
        len(s.record.history) * median(e["seconds"] for e in s.record.history) / s.run.cost
        for s in [s for s in done if s.run.suite == states[0].run.suite] or done
        if s.record is not None
    ]
    if not left or not rates:
        return "unknown" if left else "-"
    cores = available_cores()
    # A run has one core, however many there are.
    hours = tqdm.format_interval(median(rates) * max(sum(left) / cores, *left))
    return f"{hours} on {cores} core{'s' if cores > 1 else ''}"
