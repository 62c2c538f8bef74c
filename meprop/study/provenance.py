"""Where a result comes from: versions, machine, and a digest of the code that made it.

Nothing here tells a path, a user or a host.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import meprop

PACKAGE = Path(meprop.__file__).parent
# The parts of meprop.study that `train` is made of; a test compares it with the imports.
STUDY = (
    "_download", "_files", "_torchvision", "checkpoint", "config", "contenders", "data",
    "measures", "network", "optimizer", "provenance", "record", "settings", "training",
)  # fmt: skip
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


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

    What counts is the code as Python parses it: comments and docstrings do not.
    """
    content = hashlib.sha256()
    for path in code_files():
        tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
                del node.body[0]
        content.update(f"{path.relative_to(PACKAGE).as_posix()} {ast.dump(tree)}".encode())
    for package in ("torch", "numpy", "numba"):
        content.update(f"{package} {_version(package)}".encode())
    return content.hexdigest()


def code_files() -> list[Path]:
    """The files that `code_digest` is about."""
    core = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "study"]
    study = [path for name in STUDY if (path := PACKAGE / "study" / f"{name}.py").is_file()]
    return sorted(path for path in [*core, *study] if path.name != "__main__.py")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _commit() -> tuple[str | None, bool | None]:
    """The commit of this checkout, and whether the module or the configurations differ from it."""
    # Installed inside some other project's checkout, that project's commit says nothing.
    commit = _git("rev-parse", "HEAD") if _git("ls-files", "--error-unmatch", "rule.py") else None
    changes = _git("status", "--porcelain", "--", ".", "../experiments.yml")
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
