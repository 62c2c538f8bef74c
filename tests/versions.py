"""The core's tests, run against its wheel and other versions of what it needs.

    python tests/versions.py torch==2.6.0 numpy==2.1.3 numba==0.61.2
    python tests/versions.py --python python3.13 --extra-index-url ADDRESS torch==2.15.0

Makes a virtual environment in a temporary folder, and leaves none behind. Whatever is not an option
of its own goes to `pip install`; for the CPU build of torch, README.md says where its address is.
`--venv FOLDER` takes an environment that has the versions already, and adds the rest to it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What needs neither the study nor what the book is made with.
CORE = (
    "rule", "selection", "layers", "backward", "conversion", "history", "watching", "thin",
    "schedule",
)  # fmt: skip
HELPERS = ("naive.py",)
# As in tests/conftest.py; a warning is no failure, for other versions have other ones.
CONFTEST = """
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("meprop", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("meprop")
"""
SAY = """
import importlib.metadata as m, sys
print("Python", sys.version.split()[0], *(f"{n} {m.version(n)}" for n in sys.argv[1:]))
"""


def main() -> int:
    """Returns pytest's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--python", default=sys.executable, help="makes the environment")
    parser.add_argument("--venv", type=Path, help="an environment that is there already")
    parser.add_argument("--only", nargs="*", default=CORE, help="these test files")
    own, versions = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        wheel = build(work)
        venv = own.venv or work / "venv"
        if own.venv is None:
            run(own.python, "-m", "venv", venv)
        python = venv.absolute() / "bin" / "python"
        pip = (python, "-m", "pip", "install", "--quiet", "--no-compile")
        # Without its dependencies: the versions to try may lie outside of what is declared.
        run(*pip, *versions, *([] if own.venv else ["numba", "numpy", "torch"]))
        run(*pip, "pytest", "hypothesis")
        run(*pip, "--no-deps", "--force-reinstall", wheel)
        tests = work / "tests"
        tests.mkdir()
        for name in (*HELPERS, *(f"test_{name}.py" for name in own.only)):
            shutil.copy(ROOT / "tests" / name, tests)
        (tests / "conftest.py").write_text(CONFTEST, "utf-8")
        (tests / "pytest.ini").write_text("[pytest]\n", "utf-8")
        run(python, "-c", SAY, "torch", "numpy", "numba", "llvmlite")
        return subprocess.run(
            [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=tests
        ).returncode


def build(work: Path) -> Path:
    """The wheel, from a copy: setuptools leaves folders beside what it builds."""
    source = work / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "meprop", source / "meprop")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", work, source)
    (wheel,) = work.glob("*.whl")
    return wheel


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True)


if __name__ == "__main__":
    sys.exit(main())
