"""Kill a small suite a hundred times, and fill its disk: `make torture`, not part of `make test`.

Each time a random process of the pipeline gets SIGKILL at a random moment: a kernel, papermill, the
shell of a job, the parent or its group. The same command is given again until all runs are done,
and then for a new suite. No completed epoch may be lost, and each record must be that of an
undisturbed run, bit for bit and times aside. On disks that are full or read-only, where the system
lets us mount one, a run ends in a sentence with the path, and goes on later.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import psutil
from checkout import ROOT, Checkout

from meprop.study import checkpoint as checkpoints
from meprop.study.experiments import load
from meprop.study.pipeline import draft
from meprop.study.record import Record

FIGURES = ROOT / "measurements" / "torture.json"
SUITE = """\
suites:
  small:
    about: some short runs
    committed: true
    config: {dataset: digits, train_size: 50, epochs: 12, backend: masked}
    seeds: [0, 1]
    runs: {plain: {}, sparse: {ratio: 0.05, decay: 0.6}}
"""
WRONG = ("lost epochs", "other records", "wrong answers")
COMMAND = [sys.executable, "-m", "meprop", "run", "small"]
# How an argument ends by which a process of each kind is known
KINDS = {"kernel": "ipykernel_launcher", "papermill": "_papermill.py", "shell": "bash"}
KINDS |= {"parent": "", "group": ""}


def copied(folder: Path) -> Checkout:
    folder.mkdir()
    made = Checkout(folder, SUITE)
    shutil.copy(ROOT / "notebooks/train.ipynb", made.root / "notebooks")
    return made


def epochs(place: Checkout, run) -> int:
    """How many epochs of a run are safe."""
    path = place.cache / "meprop/checkpoints" / checkpoints.checkpoint_path(run.config).name
    with warnings.catch_warnings(action="error"):
        kept = len((checkpoints.load(path, run.config) or {"history": ()})["history"])
    done = any((place.root / it).exists() for it in (draft(run).with_suffix(".json"), run.record))
    return run.config.epochs if done else kept


def kill(process: subprocess.Popen, kind: str, rng: random.Random) -> bool:
    """Wait for a process of some kind, then for a moment, and kill it; False if all are gone."""
    start = time.monotonic()
    while process.poll() is None and time.monotonic() < start + 60:
        try:
            every = psutil.Process(process.pid).children(recursive=True)
            found = [p for p in every if any(a.endswith(KINDS[kind]) for a in p.cmdline())]
        except psutil.Error:
            continue  # one of them has just ended
        if kind in ("parent", "group") or found:
            time.sleep(rng.uniform(0, 6))
            if process.poll() is not None:
                return False
            if kind == "group":
                os.killpg(process.pid, signal.SIGKILL)
                return True
            try:
                (process if kind == "parent" else rng.choice(found)).kill()
                return True
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.05)
    return False


def killed(place: Checkout, runs, reference, figures: Counter[str], kills: int, until: float):
    """Kill until there are so many, or for so long, and see what comes out."""
    rng, most = random.Random(figures["kills"]), dict.fromkeys(runs, 0)

    def wanted() -> bool:
        return figures["kills"] < kills and time.monotonic() < until

    while wanted() or any(most.values()):
        process = subprocess.Popen(
            COMMAND, cwd=place.root, env=place.environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT,
        )  # fmt: skip
        before = figures["kills"]
        while process.poll() is None and wanted():
            kind = rng.choice(list(KINDS))
            done = kill(process, kind, rng)
            for run in runs:
                now = epochs(place, run)
                figures["lost epochs"] += max(0, most[run] - now)
                most[run] = max(most[run], now)
            if done:
                under_way = any(0 < most[run] < run.config.epochs for run in runs)
                figures.update({"kills": 1, kind: 1, "while epochs were kept": under_way})
                save(figures)
        assert process.wait() == 0 or figures["kills"] > before, "undisturbed, it failed"
        if process.returncode == 0:
            found = [Record.load(place.root / run.record).outcome() for run in runs]
            others = sum(a != b for a, b in zip(found, reference, strict=True))
            figures.update({"suites": 1, "other records": others})
            save(figures)
            shutil.rmtree(place.root / "results")
            most = dict.fromkeys(runs, 0)


def save(figures: Counter[str]) -> None:
    FIGURES.write_text(json.dumps(dict(sorted(figures.items())), indent=1) + "\n")


def starved(place: Checkout, runs, reference, figures: Counter[str]) -> None:
    """A cache and a folder of results that are full, or read-only."""
    for folder in (place.cache, place.root / "results" / "small"):
        for option in ("rw,size=1m", "ro"):
            shutil.rmtree(place.root / "results", ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
            mount = ["mount", "-t", "tmpfs", "-o", option, "none", str(folder)]
            if subprocess.run(mount, capture_output=True).returncode:
                continue  # not allowed here
            try:
                if option != "ro":
                    (folder / "full").write_bytes(bytes(2**20 - 8192))
                    (folder / "meprop").mkdir(exist_ok=True)
                code, said = place.run(*COMMAND, "--only", "plain", "--seeds", "0")
                left = [path.name for path in folder.rglob(".*.tmp")]
            finally:
                subprocess.run(["umount", str(folder)], check=True)
            named = "results/small" if folder.name == "small" else str(folder)
            if code == 0 or "Traceback" in said or named not in said or left:
                figures["wrong answers"] += 1
                print(f"{folder.name}, {option}: {code}, {left}\n{said}", flush=True)
            code, said = place.run(*COMMAND, "--only", "plain", "--seeds", "0")
            again = code == 0 and Record.load(place.root / runs[0].record).outcome()
            figures["wrong answers"] += again != reference[0]
            figures["disks"] += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="in all, those before included")
    parser.add_argument("--minutes", type=float, default=600, help="then let the last suite end")
    parser.add_argument("--add", action="store_true", help="to the figures that are there")
    parser.add_argument("--no-disks", action="store_true")
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    figures = Counter(dict.fromkeys(WRONG, 0))
    figures.update(json.loads(FIGURES.read_text()) if given.add else {})
    with tempfile.TemporaryDirectory() as folder:
        quiet, loud = copied(Path(folder, "quiet")), copied(Path(folder, "loud"))
        runs = load(quiet.root / "experiments.yml").runs
        code, said = quiet.run(*COMMAND)
        assert code == 0, said
        reference = [Record.load(quiet.root / run.record).outcome() for run in runs]
        killed(loud, runs, reference, figures, given.kills, until)
        if not given.no_disks:
            starved(loud, runs, reference, figures)
    save(figures)
    print("torture: " + ", ".join(f"{count} {name}" for name, count in sorted(figures.items())))
    return 1 if any(figures[name] for name in WRONG) else 0


if __name__ == "__main__":
    sys.exit(main())
