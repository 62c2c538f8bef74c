"""Do the states of the code that made the committed records give the same results?

`python -m benchmarks.states` unpacks the commit of each state that is new (the column `code` of
`load_records`), lets it train three short runs here, or one of a residual network if its records
are of that, and adds a row a run to measurements/code-states.csv. Where all digits agree, the
states differ in nothing that these runs use, and records of several of them may be compared; else
by how much they differ stands there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas

from meprop.study import load_records
from meprop.study.experiments import ROOT, load

FILE = ROOT / "measurements/code-states.csv"
# By network: a suite, some of its runs, and what makes them short.
SHORT = {"dataset": "digits", "train_size": 320, "epochs": 2}
RUNS: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "paper": ("quick", ["table2-baseline", "table2-k05-d06", "table3-k05-d0"], {}),
    "resnet20": ("cifar10", ["dense"], SHORT),
}
TRAIN = """
import json, sys
from meprop.study import Config, train
from meprop.study.provenance import code_digest
record = train(Config.from_dict(json.loads(sys.argv[1])), progress=False)
last = {name: record.history[-1][name] for name in ("train_loss", "dev_accuracy", "test_accuracy")}
print(json.dumps({"code": code_digest()} | last))
"""


def train(commit: str, runs: dict[str, str]) -> list[dict[str, object]]:
    """The last epoch of some configurations, given as JSON, under the code of a commit."""
    with TemporaryDirectory() as folder:
        archive = ["git", "-C", str(ROOT), "archive", commit, "meprop", "experiments.yml"]
        packed = subprocess.run(archive, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=packed, check=True)
        command = [sys.executable, "-c", TRAIN]
        rows = []
        for name, config in runs.items():
            done = subprocess.run(
                [*command, config], cwd=folder, check=True, capture_output=True,
                env=os.environ | {"PYTHONPATH": str(Path(folder))},
            )  # fmt: skip
            rows.append({"commit": commit, "run": name} | json.loads(done.stdout))
        return rows


def main() -> None:
    """Measure the states that the file does not have yet, about two minutes each."""
    rows = pandas.read_csv(FILE) if FILE.exists() else pandas.DataFrame(columns=["code", "run"])
    made = load_records(ROOT / "results").dropna(subset="commit")
    for new in made.drop_duplicates(["code", "network"]).itertuples():
        suite, names, short = RUNS[str(new.network)]
        runs = {run.name: run.config.to_dict() | short for run in load().pick([suite], names, [0])}
        if set(runs) <= set(rows.run[rows.code == new.code]):
            continue
        measured = pandas.DataFrame(
            train(new.commit, {name: json.dumps(config) for name, config in runs.items()})
        )
        if set(measured.code) != {new.code}:
            sys.exit(f"{new.commit}: not the code of {new.suite}/{new.file}, which had changes")
        rows = pandas.concat([rows, measured]).sort_values(["commit", "run"])
        rows.to_csv(FILE, index=False)


if __name__ == "__main__":
    main()
