"""Where a result comes from: versions, machine, and a digest of the code that made it.

Nothing here tells a path, a user or a host.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import CodeType
from typing import Any

import meprop

PACKAGE = Path(meprop.__file__).parent
# The parts of meprop that no result of `train` depends on.
OUTSIDE = ("bench", "__main__.py")
# The parts of meprop.study that `train` is made of; a test compares it with the imports.
STUDY = (
    "_download", "_sources", "_torchvision", "checkpoint", "config", "contenders", "data",
    "measures", "network", "optimizer", "provenance", "record", "settings", "training",
)  # fmt: skip


def provenance(threads: int) -> dict[str, Any]:
    """The versions and the machine, for a record."""
    commit, dirty = _commit()
    return {
        "meprop": meprop.__version__,
        "commit": commit,
        "dirty": dirty,
        "code": code_digest(),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": threads,
        "platform": f"{platform.system()} {platform.machine()}",
    }


@cache
def code_digest() -> str:
    """SHA-256 of everything that may change a result's bits: our code, and the versions below it.

    What counts is the code as Python compiles it: comments and docstrings do not.
    """
    content = hashlib.sha256()
    for path in code_files():
        content.update(path.relative_to(PACKAGE).as_posix().encode())
        code = compile(path.read_bytes(), "", "exec", dont_inherit=True, optimize=2)
        content.update(repr(_meaning(code)).encode())
    for package in ("torch", "numpy", "numba"):
        content.update(f"{package} {_version(package)}".encode())
    return content.hexdigest()


def code_files() -> list[Path]:
    """The files that `code_digest` is about."""
    study = {f"study/{name}.py" for name in STUDY}
    files = []
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        inside = relative.parts[0] not in OUTSIDE
        if relative.as_posix() in study if relative.parts[0] == "study" else inside:
            files.append(path)
    return files


def _meaning(code: CodeType) -> tuple[object, ...]:
    """What a piece of code does, without where it stands."""
    constants: list[object] = []
    for value in code.co_consts:
        if isinstance(value, CodeType):
            constants.append(_meaning(value))
        else:
            # A set's order changes from one process to the next.
            constants.append(sorted(map(repr, value)) if isinstance(value, frozenset) else value)
    names = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return code.co_code, code.co_exceptiontable, *names, *arguments, *constants


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _commit() -> tuple[str | None, bool | None]:
    """The commit of this checkout, and whether the module or the configurations differ from it."""
    root = _git("rev-parse", "--show-toplevel")
    # Installed inside some other project's checkout, that project's commit says nothing.
    if root is None or not (Path(root) / "meprop").exists():
        return None, None
    if not os.path.samefile(Path(root) / "meprop", PACKAGE):
        return None, None
    commit = _git("rev-parse", "HEAD")
    changes = _git("-C", root, "status", "--porcelain", "--", "meprop", "experiments.yml")
    return commit, None if commit is None or changes is None else bool(changes)


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=PACKAGE, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
