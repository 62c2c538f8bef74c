"""Records that nobody trained."""

import numpy as np

from meprop.study.experiments import Run
from meprop.study.record import Record

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
