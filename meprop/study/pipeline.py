"""Which runs are missing, and training them: the frame around the Snakefile.

A run is done when its record is there, whole, and of the configuration that experiments.yml
declares. The times of files have no say, so a fresh clone has nothing to train.
"""

import contextlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import psutil  # type: ignore[import-untyped]

from meprop.study._download import data_root
from meprop.study._files import hold, make_room
from meprop.study.data import load_data
from meprop.study.experiments import ROOT, ExperimentsError, Run, load
from meprop.study.provenance import code_digest
from meprop.study.record import Record, RecordError
from meprop.study.settings import nearest


def find(run: Run) -> tuple[Record | None, str]:
    """A run's record if it is done, else None and the reason.

    A committed record stands until somebody deletes it, and a damaged one is an error: git has a
    whole one. What is in `_build` is of use only if the present code made it.
    """
    try:
        return _load(run, run.record)
    except RecordError as error:
        if run.committed:
            raise
        return None, str(error)


def _load(run: Run, path: Path) -> tuple[Record | None, str]:
    try:
        record = Record.load(ROOT / path)
    except FileNotFoundError:
        return None, "missing"
    if record.config != run.config:
        others = run.config.differences(record.config)
        return None, f"{path}: of another configuration than the declared one ({others})"
    if not run.committed and record.provenance.get("code") != code_digest():
        return None, f"{path}: made by other code"
    return record, ""


def in_order(runs: list[Run]) -> list[Run]:
    """The longest first, so that none is left alone on one core at the end; then by seed."""
    return sorted(runs, key=lambda run: (-run.cost, run.seed))


def draft(run: Run) -> Path:
    """Where a run's files are until it has come to its end: beside the log."""
    return run.log.with_suffix("")


def train(
    suites: list[str], only: list[str] | None = None, seeds: list[int] | None = None,
    cores: int | None = None, profile: str | None = None, dry_run: bool = False,
) -> int:  # fmt: skip
    """Train what is missing of some suites, or of all whose records are committed.

    Returns the exit code.
    """
    declared = load(ROOT / "experiments.yml")
    committed = [name for name, suite in declared.suites.items() if suite.committed]
    suites = list(dict.fromkeys(suites or committed))
    runs = declared.pick(suites, only, seeds)
    options = resources("run", cores, profile)
    with contextlib.nullcontext() if dry_run else alone(suites):
        todo = in_order([run for run in runs if find(run)[0] is None])
        if not todo:
            print(f"Nothing to train: all {len(runs)} runs of {', '.join(suites)} are done.")
            return 0
        print(f"{len(todo)} of {len(runs)} runs of {', '.join(suites)} to train.", flush=True)
        if dry_run:
            print(*(f"  {run.id}" for run in todo), sep="\n")
            return 0
        if os.environ.get("MEPROP_DATA"):
            # The runs have another working directory.
            os.environ["MEPROP_DATA"] = str(data_root().resolve())
        # Once, here: of all runs each would try in vain, and a cluster's nodes may have no network.
        for dataset in dict.fromkeys(run.config.dataset for run in todo):
            load_data(dataset)
        for run in todo:
            _prepare(run)
        log = Path("_build/logs", f"{'-'.join(suites)}.log")
        with progress(todo):
            stopped = snakemake([run.record.as_posix() for run in todo], ROOT / log, options)
        return _sum_up(todo, log, stopped)


def resources(command: str, cores: int | None = None, profile: str | None = None) -> list[str]:
    """Snakemake's options: all cores of this machine, or a profile for a cluster."""
    if cores is not None and cores < 1:
        raise ExperimentsError(f"{command}: cores must be at least 1, got {cores}")
    if profile is None:
        return ["--cores", str(cores or available_cores())]
    known = sorted(path.parent.name for path in (ROOT / "profiles").glob("*/config.yaml"))
    if profile in known:
        return ["--profile", str(ROOT / "profiles" / profile)]
    raise ExperimentsError(f"profiles: no profile {profile!r}; {nearest(profile, known)}")


def available_cores() -> int:
    """The cores this process may use, which a container or a batch system may have limited."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


@contextlib.contextmanager
def alone(suites: list[str]) -> Iterator[None]:
    """Let one process at a time work on a suite."""
    with contextlib.ExitStack() as locks:
        for suite in sorted(suites):  # in one order, or two could wait for each other
            path = ROOT / "_build" / "locks" / f"{suite}.lock"
            locks.enter_context(hold(path, f"is at work on {suite}"))
        yield


def _prepare(run: Run) -> None:
    """Clear away what an earlier attempt left, except a draft that only has to be put in place.

    A record that does not count may have taken hours: it is put where nothing removes it.
    """
    record, log = ROOT / run.record, ROOT / run.log
    make_room(record)
    for old in (log, log.with_suffix(".progress")):
        old.unlink(missing_ok=True)
    found, reason = find(run)
    if found is None and record.exists():
        if run.committed:
            aside = Path("aside", f"{run.id}-{Record.load(record).digest[:16]}.json")
            (ROOT / aside).parent.mkdir(parents=True, exist_ok=True)
            os.replace(record, ROOT / aside)
            print(f"Does not count, so it is trained again: {reason}; it is now {aside}")
        record.unlink(missing_ok=True)
    path = draft(run).with_suffix(".json")
    with contextlib.suppress(RecordError):
        if _load(run, path)[0] is not None:
            return
    (ROOT / path).unlink(missing_ok=True)


@contextlib.contextmanager
def progress(runs: list[Run]) -> Iterator[None]:
    """Show a line of each run that is under way: the last one on a terminal, some in a log."""
    terminal, ended = sys.stdout.isatty(), threading.Event()

    def show() -> None:
        while not ended.wait(1 if terminal else 600):
            lines = []
            for run in runs:
                with contextlib.suppress(OSError):  # it is not under way
                    said = (ROOT / run.log).with_suffix(".progress").read_text(encoding="utf-8")
                    lines.append(f"{run.id}  {said}")
            with contextlib.suppress(OSError, ValueError):  # nobody listens
                if terminal:
                    width = shutil.get_terminal_size().columns - 1
                    text = "".join(f"{line[:width]}\n" for line in lines)
                    # What a run says itself begins where these lines do, and clears them away.
                    print(f"\r\033[J{text}" + "\033[A" * len(lines), end="", flush=True)
                elif lines:
                    print(*lines, sep="\n", flush=True)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if terminal:
            print("\r\033[J", end="", flush=True)


_stopped = threading.Event()
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def stop_at_signals() -> None:
    """Stop with all runs at once when asked to: they go on from their checkpoints.

    Snakemake itself would wait until they are finished. The Snakefile calls this, because
    Snakemake sets up its own way late.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        if _stopped.is_set():
            return
        _stopped.set()
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        raise KeyboardInterrupt

    for name in _SIGNALS:
        # What the caller had ignored, as nohup does, stays ignored.
        if signal.getsignal(name) != signal.SIG_IGN:
            signal.signal(name, stop)


def snakemake(targets: list[str], log: Path, options: list[str]) -> bool:
    """Make files by the Snakefile, in this process; True if it was stopped.

    On this machine the jobs speak for themselves, and Snakemake's own messages go to a file.
    """
    arguments = [
        *("--snakefile", str(ROOT / "Snakefile"), "--directory", str(ROOT), *options),
        # The lock of its own outlives a killed process; `alone` takes its place.
        *("--nolock", "--rerun-incomplete", "--keep-going", "--scheduler", "greedy"),
        # They are missing, whatever the times of files say.
        *("--rerun-triggers", "mtime", "--forcerun", *targets, "--", *targets),
    ]
    here, handlers = Path.cwd(), {name: signal.getsignal(name) for name in _SIGNALS}
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("w", encoding="utf-8") as file:
            stream = file if "--cores" in options else sys.stderr
            with contextlib.redirect_stderr(stream):
                from snakemake.cli import main  # type: ignore[import-untyped]

                main(arguments)
    except SystemExit:
        return _stopped.is_set()  # it has caught the exception that a signal raises
    except KeyboardInterrupt:
        return True
    except OSError as error:
        error.filename = error.filename or str(log)  # a full disk does not say it
        raise
    finally:
        for name, handler in handlers.items():
            signal.signal(name, handler)
        os.chdir(here)
    return False


def _sum_up(todo: list[Run], log: Path, stopped: bool) -> int:
    """Say what came out; what failed, why, and where to read on."""
    found = [(run, find(run)[0]) for run in todo]
    left = [run for run, record in found if record is None]
    print(f"{len(todo) - len(left)} of {len(todo)} runs finished.")
    if stopped:
        print("Stopped: the same command goes on where it was.")
        return 130
    for run, record in found:
        if record is not None and record.stopped is not None:
            print(f"Diverged: {run.id}, in epoch {{epoch}}, step {{step}}".format(**record.stopped))
    for run in left:
        print(f"Failed: {run.id}: {why(run.log, log)}", file=sys.stderr)
    return 1 if left else 0


def why(own: Path, log: Path) -> str:
    """Why something failed: what its own log says last, or Snakemake's if it was not started."""
    started = (ROOT / own).exists()
    log = own if started else log
    said = (ROOT / log).read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line for each in reversed(said) if (line := each.strip())), "")
    last = last or "it ended without a word, as what is killed does"
    return f"{'' if started else 'it was not started: '}{last} (log: {log})"
