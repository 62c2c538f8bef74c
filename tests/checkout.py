"""A copy of the checkout with experiments of its own, for the commands to work on."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil

from meprop.study import checkpoint as checkpoints
from meprop.study.experiments import load

ROOT = Path(__file__).resolve().parents[1]


def files() -> list[str]:
    """What is committed, or would be."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split("\0") if (ROOT / name).is_file()]


class Checkout:
    """A copy of what the pipeline needs, with a cache of its own."""

    def __init__(self, folder: Path, experiments: str) -> None:
        self.root, self.cache = folder / "a checkout", folder / "cache"
        self.root.mkdir()
        without_caches = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(ROOT / "meprop", self.root / "meprop", ignore=without_caches)
        (self.root / "notebooks").mkdir()
        shutil.copy(ROOT / "Snakefile", self.root)
        (self.root / "experiments.yml").write_text(experiments)
        self.environment = os.environ | {
            "PYTHONPATH": str(self.root),
            "XDG_CACHE_HOME": str(self.cache),
            # Here matplotlib has its list of fonts already.
            "MPLCONFIGDIR": os.environ.get("MPLCONFIGDIR", str(Path.home() / ".cache/matplotlib")),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *command: str) -> tuple[int, str]:
        process = self.start(*command)
        output, _ = process.communicate()
        return process.returncode, output

    def meprop(self, *arguments: str) -> tuple[int, str]:
        return self.run(sys.executable, "-m", "meprop", *arguments)

    def checkpoint(self, suite: str, name: str) -> Path:
        """Where a run keeps its state: known by its configuration and the copied code."""
        (config,) = {
            run.config
            for run in load(self.root / "experiments.yml").pick([suite], [name])
        }  # fmt: skip
        stem = checkpoints.checkpoint_path(config).name
        return self.cache / "meprop" / "checkpoints" / stem

    def kernels(self) -> list[int]:
        found = []
        for process in psutil.process_iter(["cmdline", "cwd"]):
            command = " ".join(process.info["cmdline"] or ())
            if "ipykernel" in command and process.info["cwd"] == str(self.root):
                found.append(process.pid)
        return found
