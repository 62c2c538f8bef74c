"""Fetch a data set's files: one source after the other, checked, put in place whole.

All work happens in a staging folder beside the files, under a lock; a file appears under its name
only when its checksum is right. So two processes at once, or one that is killed, do no harm.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from meprop.study._sources import CHUNK, SOURCES, Files

MISSING = "missing"
# What was read before, as it was then: a run asks for its data twice, for training and for figures.
_read: dict[Path, tuple[tuple[int, ...], str]] = {}


class DataError(RuntimeError):
    """A data set cannot be had; the message says what was tried and what can be done."""


def data_root() -> Path:
    """Where data sets live: the environment variable MEPROP_DATA, else the user's cache folder."""
    chosen = os.environ.get("MEPROP_DATA")
    return Path(chosen).expanduser() if chosen else user_cache_path("meprop") / "data"


def fetch(files: Files, root: Path) -> None:
    """Make sure that every file is in place, as its checksum says."""
    raw = root / files.folder / "raw"
    wrong = _wrong(files, raw)
    if not wrong:
        return  # nothing to write, so a read-only folder is fine
    try:
        raw.mkdir(parents=True, exist_ok=True)
        with _lock(raw.parent / ".lock"), _staging(raw.parent) as staging:
            _fill(files, raw, staging)
    except OSError as error:
        raise DataError(
            f"{files.folder}: {_state(wrong)}; cannot write to {raw}: {_short(error)}; set "
            "MEPROP_DATA to a folder of your own"
        ) from error


def _fill(files: Files, raw: Path, staging: Path) -> None:
    wrong = _wrong(files, raw)  # again: another process may have been first
    for name, problem in wrong.items():
        if problem != MISSING:
            warnings.warn(f"{raw / name} {problem}; fetching it anew", stacklevel=5)
    tried: list[str] = []
    for source, get in SOURCES.items():
        if not wrong:
            return
        target = staging / str(len(tried))
        target.mkdir()
        try:
            get(files, raw, target)
            _adopt(files, list(wrong), target, raw)
        except Exception as error:  # whatever a source, an archive or a server comes up with
            tried.append(f"  {source}: {_short(error)}")
        wrong = _wrong(files, raw)
    if wrong:
        raise DataError(_advice(files, raw, wrong, tried))


def _advice(files: Files, raw: Path, wrong: dict[str, str], tried: list[str]) -> str:
    return "\n".join(
        [
            f"{files.folder}: in {raw}, {_state(wrong)}. Tried, in this order:",
            *tried,
            "What you can do: connect to the internet and try again; or put the files (or the same "
            "with .gz) there by hand; or point MEPROP_DATA at a folder that has "
            f"{files.folder}/raw; or use the data set 'digits', which needs no download.",
        ]
    )


def _state(wrong: dict[str, str]) -> str:
    return ", ".join(f"{name} {problem}" for name, problem in wrong.items())


def _wrong(files: Files, folder: Path) -> dict[str, str]:
    """The files that are not as they should be, and what is the matter with each."""
    wrong = {}
    for name, expected in files.md5.items():
        try:
            actual = _known_md5sum(folder / name)
        except FileNotFoundError:
            wrong[name] = MISSING
        except OSError as error:
            wrong[name] = f"cannot be read ({_short(error)})"
        else:
            if actual != expected:
                wrong[name] = f"is corrupted (MD5 {actual}, expected {expected})"
    return wrong


def _known_md5sum(path: Path) -> str:
    """`md5sum`, without reading a file again that nobody touched since this process read it."""
    status = path.stat()
    state = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    known, checksum = _read.get(path, ((), ""))
    if known != state:
        checksum = md5sum(path)
        # A second change within one tick of the file system's clock would not show.
        if time.time() - status.st_ctime > 2:
            _read[path] = state, checksum
    return checksum


def md5sum(path: Path) -> str:
    """MD5 of a file's content, as hexadecimal digits."""
    content = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            content.update(chunk)
    return content.hexdigest()


def _adopt(files: Files, names: list[str], source: Path, raw: Path) -> None:
    """Put the named files, found anywhere in `source`, in their place.

    A good file is kept even where another one of the same source is bad.
    """
    problems = []
    for name in names:
        found = next(iter(sorted(source.rglob(name))), None)
        if found is None:
            problems.append(f"{name} is not among its files")
        elif (actual := md5sum(found)) != files.md5[name]:
            problems.append(f"its {name} is corrupted (MD5 {actual}, expected {files.md5[name]})")
        else:
            with found.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(found, raw / name)
    if problems:
        raise RuntimeError("; ".join(problems))


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Let one process in at a time; the system frees the lock of one that dies."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=1)
    except Timeout:
        print(f"{path.parent.name}: waiting for another process that fetches it", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """An empty folder on the same file system; whoever holds the lock owns it."""
    staging = folder / ".staging"
    shutil.rmtree(staging, ignore_errors=True)  # a killed process may have left it
    staging.mkdir()
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _short(error: BaseException) -> str:
    """One line that says why."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]
