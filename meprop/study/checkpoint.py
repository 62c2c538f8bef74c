"""A run's state after an epoch, on disk, so that a killed run goes on where it was.

The file is a line with a checksum, then what `torch.save` wrote. It is replaced as a whole, and
read by nobody but the same configuration under the same code.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from platformdirs import user_cache_path

from meprop.study._files import hold, read, write_atomically
from meprop.study.config import Config
from meprop.study.provenance import code_digest
from meprop.study.settings import InOneSentence

MAGIC = b"meprop checkpoint "
WAY_OUT = "delete it to start from the beginning, or give another path"
_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class CheckpointError(InOneSentence, RuntimeError):
    """A checkpoint that this run must not go on from."""


def checkpoint_path(config: Config) -> Path:
    """The usual place: the user's cache folder, a file for each configuration and state of code.

    It is outside the checkout, so that a fresh one goes on.

    >>> checkpoint_path(Config()).suffix
    '.pt'
    """
    name = f"{config.digest[:16]}-{code_digest()[:16]}.pt"
    return user_cache_path("meprop") / "checkpoints" / name


def discard(path: str | Path) -> None:
    """Remove a checkpoint that is no longer needed, once the record is safe.

    >>> discard(checkpoint_path(Config(dataset="digits", train_size=11)))  # there is none
    """
    path = Path(path)
    for file in (path, _lock_file(path)):
        file.unlink(missing_ok=True)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Wait while another process does the same work, maybe one of another checkout."""
    try:
        lock = hold(_lock_file(path), f"trains this run ({path})")
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or path}: no checkpoint can be kept there ({error.strerror}); "
            "XDG_CACHE_HOME names another place"
        ) from None
    with lock:
        yield


def save(path: Path, config: Config, state: dict[str, Any]) -> None:
    """Replace the checkpoint by a new one."""
    content = io.BytesIO()
    torch.save({"config": config.to_dict(), "code": code_digest(), "state": state}, content)
    payload = content.getbuffer()
    write_atomically(path, MAGIC + _checksum(payload) + b"\n", payload)


def load(path: Path, config: Config) -> dict[str, Any] | None:
    """The state to go on from, or None to start from the beginning.

    A damaged one is left aside with a warning. One of another configuration or of other code, from
    which nothing could give the result again, is refused, and so is any other file.
    """
    try:
        header, _, payload = read(path).partition(b"\n")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: no checkpoint ({error}); move it away") from None
    if not MAGIC.startswith(header[: len(MAGIC)]):  # somebody's own: it must not be replaced
        raise CheckpointError(f"{path}: not a checkpoint of a run; {WAY_OUT}")
    if header != MAGIC + _checksum(payload):
        warnings.warn(f"{path}: damaged checkpoint, starting from the beginning", stacklevel=3)
        return None
    with understood(path):
        content = torch.load(io.BytesIO(payload), weights_only=True)
        theirs, code, state = Config.from_dict(content["config"]), content["code"], content["state"]
    way_out = WAY_OUT
    if theirs != config:
        what = f"another configuration ({config.differences(theirs)})"
    elif code != code_digest():
        what, way_out = "another state of the code", f"{way_out}, or go back to that code"
    else:
        return state
    raise CheckpointError(f"{path}: this checkpoint belongs to {what}; {way_out}")


@contextlib.contextmanager
def understood(path: Path) -> Iterator[None]:
    """Refuse in a sentence what a checkpoint holds and nobody can go on from."""
    try:
        yield
    except CheckpointError:
        raise
    except (pickle.UnpicklingError, *_ERRORS) as error:
        what = " ".join(str(error).split())[:100]
        raise CheckpointError(f"{path}: holds something else ({what}); {WAY_OUT}") from None


def _checksum(payload: bytes | memoryview) -> bytes:
    return hashlib.sha256(payload).hexdigest().encode()


def _lock_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")
