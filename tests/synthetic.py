"""Records that nobody trained, to see what the reports make of many seeds, few, or none."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from meprop.study.experiments import Run, load
from meprop.study.record import Record
from meprop.study.report.results import Results

IMAGES = 10_000


def record(run: Run, test: float = 99.0, dev: float = 99.2, diverged: bool = False) -> Record:
    """A run whose accuracies rise to `dev` and `test` at the last epoch but one."""
    rng = np.random.default_rng(int(run.config.digest[:8], 16))
    epochs = run.config.epochs
    history = []
    for epoch in range(1, epochs + 1):
        behind = abs(epochs - 1 - epoch) * 0.02
        layer = {"before": 0.2, "after": 0.05, "weight": 1.0, "norm_kept": 0.9}
        history.append(
            {
                "epoch": epoch,
                "train_loss": 0.2 / epoch,
                "train_accuracy": 99.9 - behind,
                "dev_loss": 0.05,
                "dev_accuracy": round(dev - behind, 2),
                "test_accuracy": round(test - behind, 2),
                "seconds": 100.0,
                "layers": {name: dict(layer) for name in ("conv1", "conv2", "fc1", "fc2")},
                "changed": 1.0,
            }
        )
    wrong = rng.permutation(IMAGES)[: round((100 - test) / 100 * IMAGES)]
    best = max(1, epochs - 1)
    return Record(
        id=run.config.digest[:16],
        config=run.config,
        status="diverged" if diverged else "finished",
        stopped={"epoch": 1, "step": 7} if diverged else None,
        history=[] if diverged else history,
        best_epoch=None if diverged else best,
        dev_accuracy=None if diverged else history[best - 1]["dev_accuracy"],
        test_accuracy=None if diverged else history[best - 1]["test_accuracy"],
        test_errors=None if diverged else sorted(map(int, wrong)),
        test_predictions=None if diverged else [0] * len(wrong),
        provenance={"seconds": 100.0 * epochs},
    )


def results(suite: str, test: Callable[[Run], float | None], seeds: int | None = None) -> Results:
    """A suite in which each run came out as `test` says; None: it is missing.

    `seeds`: so many for each configuration, whatever is declared.
    """
    runs = list(load().suites[suite].runs)
    if seeds is not None:
        runs = [
            replace(run, seed=seed, config=replace(run.config, seed=seed))
            for run in runs
            if run.seed == 0
            for seed in range(seeds)
        ]
    found = {run.id: record(run, score) for run in runs if (score := test(run)) is not None}
    return Results(tuple(runs), found)
