"""Files that several processes share: written whole, and one at a time."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path

from filelock import AcquireReturnProxy, FileLock, Timeout


def write_atomically(path: Path, *content: bytes | memoryview) -> None:
    """Write a file that appears whole, and stays whole when the machine goes down."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # a full disk does not say it
        raise
    # The new name too: whoever sees the file may delete what it was made from.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read(path: Path) -> bytes:
    """A file's content, but never a pipe's, from which nothing may ever come."""
    if os.path.lexists(path) and not path.is_file():
        raise ValueError("not a file")
    return path.read_bytes()


def make_room(path: Path) -> None:
    """Make a file's folder, and raise now if nothing can be written there: hours later it hurts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, "nothing can be written there", str(path.parent))


def hold(path: Path, what: str) -> AcquireReturnProxy[FileLock]:
    """A lock that others may have; the system frees the one of a process that dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        return lock.acquire(timeout=1)  # whoever asks for the status holds it for an instant
    except Timeout:
        print(f"Waiting: another process {what}.", file=sys.stderr, flush=True)
        return lock.acquire()
