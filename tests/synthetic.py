"""Records that nobody trained."""

from dataclasses import replace

import numpy as np

from meprop.study.data import DATASETS
from meprop.study.experiments import Run
from meprop.study.record import Record

IMAGES = 10_000


def record(run: Run, test: float = 99.0, dev: float = 99.2, seconds: float = 100.0) -> Record:
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
                "seconds": seconds,
                "layers": {name: dict(layer) for name in ("conv1", "conv2", "fc1", "fc2")},
                "changed": 1.0,
            }
            | ({"train_eval_accuracy": 100.0 - behind} if run.config.train_eval else {})
        )
    wrong = rng.permutation(IMAGES)[: round((100 - test) / 100 * IMAGES)]
    best = max(1, epochs - 1)
    return Record(
        id=run.config.digest[:16],
        config=run.config,
        status="finished",
        stopped=None,
        history=history,
        best_epoch=best,
        dev_accuracy=history[best - 1]["dev_accuracy"],
        test_accuracy=history[best - 1]["test_accuracy"],
        test_errors=sorted(map(int, wrong)),
        test_predictions=[0] * len(wrong),
        provenance={"seconds": seconds * epochs},
    )


def diverged(record: Record, epoch: int, step: int = 5) -> Record:
    """The same run, stopped in some epoch by a loss that is not finite."""
    history = record.history[: epoch - 1]
    best = max(history, key=lambda each: each["dev_accuracy"], default={})
    stopped = {"status": "diverged", "stopped": {"epoch": epoch, "step": step}}
    seconds = sum(each["seconds"] for each in history)
    stopped["provenance"] = record.provenance | {"seconds": seconds}
    return scored(replace(record, **stopped, history=history), best)


def scored(record: Record, best: dict) -> Record:
    """A record whose best epoch is this one, with as many errors as that has."""
    images, wrong = DATASETS[record.config.dataset].test, None
    if best:
        wrong = list(range(round(images * (100 - best["test_accuracy"]) / 100)))
    return replace(
        record,
        best_epoch=best.get("epoch"),
        dev_accuracy=best.get("dev_accuracy"),
        test_accuracy=best.get("test_accuracy"),
        test_errors=wrong,
        test_predictions=None if wrong is None else [0] * len(wrong),
    )
