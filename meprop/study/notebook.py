"""What a notebook needs: its parameters checked and, if it trains, the run and the record kept."""

import atexit
import contextlib
import gc
import io
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import psutil  # type: ignore[import-untyped]
from pydantic import ConfigDict, ValidationError, create_model

from meprop.study._files import make_room
from meprop.study.checkpoint import checkpoint_path, discard
from meprop.study.config import Config
from meprop.study.experiments import ROOT
from meprop.study.record import Record
from meprop.study.settings import Folder, OneOf, mistake
from meprop.study.settings import Number as Number
from meprop.study.settings import SettingError as ParameterError
from meprop.study.training import train

# Set by the Snakefile: the process that a run belongs to. Killed at once (kill -9), it cannot stop
# its runs, which would go on unseen and be in the way of their successors.
OWNER = "MEPROP_OWNER"
# Set likewise: the file for what the run has to say meanwhile.
LOG = "MEPROP_LOG"
# What papermill may set beside the fields of Config.
FILES = ("record", "checkpoint")
_IPYTHON = ("In", "Out", "exit", "quit", "get_ipython", "open")
# Of the checkout and no part of the package: `benchmarks` and `measurements`.
sys.path.append(str(ROOT))


def given(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are set in a notebook so far: its parameters, while they are all it has."""
    return {
        name: value
        for name, value in namespace.items()
        if not (name.startswith("_") or name in _IPYTHON)
        and not (callable(value) or isinstance(value, ModuleType))
    }


def check(namespace: Mapping[str, Any], **allowed: Collection[Any] | Number | Path) -> None:
    """Check a notebook's parameters, before anything else is set: `check(globals(), table=(2, 3))`.

    Each is one of some values, a `Number`, or a folder relative to the one given here. Everything
    that is set counts, so that a misspelt parameter, which papermill would only warn of, is an
    error.

    >>> check({"table": 4}, table=(2, 3))
    Traceback (most recent call last):
    meprop.study.settings.SettingError: table must be 2 or 3, got 4
    >>> check({"tabel": 2}, table=(2, 3))
    Traceback (most recent call last):
    meprop.study.settings.SettingError: unknown parameter 'tabel'; did you mean 'table'?
    """
    kinds: dict[str, Any] = {}
    for name, choices in allowed.items():
        if isinstance(choices, Number):
            kind: Any = Annotated[int if choices.whole else float, choices]
        elif isinstance(choices, Path):
            kind = Annotated[str, Folder(choices)]
        else:
            kind = Annotated[type(next(iter(choices))), OneOf(choices)]
        kinds[name] = (kind, ...)
    strict = ConfigDict(strict=True, extra="forbid", protected_namespaces=())
    model = create_model("Parameters", __config__=strict, **kinds)
    try:
        model.model_validate(given(namespace))
    except ValidationError as error:
        raise mistake(error, lambda _: allowed, "parameter") from None


def glue(topic: str, numbers: Mapping[str, Any]) -> None:
    """Give numbers and words to the text of the book, as `topic-name`."""
    import myst_nb  # type: ignore[import-untyped] # here, because it takes long to import

    for name, value in numbers.items():
        plain = value if isinstance(value, str | int) else round(float(value), 6)
        myst_nb.glue(f"{topic}-{name}", plain, display=False)


def checked(namespace: Mapping[str, Any]) -> Config:
    """The configuration that a notebook's parameters make: `checked(globals())`.

    Everything that is set there so far counts, so that a misspelt parameter, which papermill
    would only warn of, is an error.

    >>> checked({"dataset": "digits", "ratoi": 0.05})
    Traceback (most recent call last):
    meprop.study.settings.SettingError: Config: unknown key 'ratoi'; did you mean 'ratio'?
    """
    for name in FILES:
        value = namespace.get(name)
        if not isinstance(value, str | None) or (value and os.path.isdir(ROOT / value)):
            raise ParameterError(f"{name} must be a file's path or None, got {value!r}")
    values = given(namespace)
    return Config.from_dict({name: values[name] for name in values if name not in FILES})


def obtain(config: Config, record: str | None = None, checkpoint: str | None = None) -> Record:
    """The record of a configuration: the one in the file `record` if it is there, else trained.

    Paths are relative to the checkout. `checkpoint="auto"` keeps the state after every epoch in
    the user's cache folder.
    """
    if OWNER in os.environ:
        # Taking torch apart at the end would take a second.
        atexit.register(os._exit, 0)
    if record is not None and (ROOT / record).exists():
        found = Record.load(ROOT / record)
        if others := config.differences(found.config):
            raise ParameterError(
                f"{record} holds the record of another configuration ({others}): give another "
                "path, or delete it"
            )
        return found
    if record is not None:
        try:
            make_room(ROOT / record)
        except OSError as error:
            raise ParameterError(f"record: {error.filename}: {error.strerror}") from None
    gc.enable()  # `_startup` put an end to it
    if OWNER in os.environ:
        _end_with(int(os.environ[OWNER]))
    with _progress():
        return train(config, checkpoint=_path(config, checkpoint))


def keep(result: Record, record: str | None = None, checkpoint: str | None = None) -> None:
    """Save a record; only then is its checkpoint of no more use."""
    if record is None:
        return
    if not (ROOT / record).exists():
        result.save(ROOT / record)
    if (path := _path(result.config, checkpoint)) is not None:
        discard(path)


def _path(config: Config, checkpoint: str | None) -> Path | None:
    if checkpoint == "auto":
        return checkpoint_path(config)
    return None if checkpoint is None else ROOT / checkpoint


def _end_with(owner: int) -> None:
    """End this process soon after another one is gone, however that came about."""

    def watch() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(owner)
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def _progress() -> Iterator[None]:
    """Show the progress bar as one line that is gone at the end: a stored notebook has none of it.

    Inside the pipeline it is kept in a file beside the log, and what else is said goes there.
    """
    if LOG in os.environ:
        log = ROOT / os.environ[LOG]
        with log.open("a", encoding="utf-8", buffering=1) as rest:
            line = _Line(log.with_suffix(".progress").write_text, rest)
            with contextlib.redirect_stderr(line):
                yield
        return
    from IPython import get_ipython
    from IPython.display import clear_output, display

    if get_ipython() is None:
        yield
        return
    handle = display({"text/plain": ""}, raw=True, display_id=True)

    def replace(line: str) -> None:
        handle.update({"text/plain": line}, raw=True)

    with contextlib.redirect_stderr(_Line(replace, sys.stderr)):
        yield
    clear_output()


class _Line(io.TextIOBase):
    """A stream for a progress bar: shows what the line says, but not more than once a second.

    What is no progress bar, such as a warning, is shown too, and goes to `rest` as it is.
    """

    def __init__(self, show: Callable[[str], object], rest: Any) -> None:
        self.show, self.rest, self.last = show, rest, -math.inf

    def write(self, text: str) -> int:
        if not text.startswith("\r"):
            if text.strip():
                self.show(text.strip().splitlines()[0])  # it may wait for another process
                self.rest.write(text)
        elif (now := time.monotonic()) - self.last >= 1:
            self.show(text.strip())
            self.last = now
        return len(text)
