"""A run's result with where it came from: one JSON file a run, read back whole or refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meprop.study._files import read, write_atomically
from meprop.study.config import Config, digest
from meprop.study.data import DATASETS
from meprop.study.settings import InOneSentence

if TYPE_CHECKING:
    from pandas import DataFrame

STATUSES = ("finished", "diverged")
# The names of a run's files: results/<suite>/<name>-s<seed>.json
_FILE = re.compile(r"(?P<name>.+)-s\d+")
_NAME = re.compile(r"[\w.]+")  # of a layer too, which pages show
_EPOCH = {"train_loss", "train_accuracy", "dev_loss", "dev_accuracy", "test_accuracy", "seconds"}


class RecordError(InOneSentence, ValueError):
    """A file that is not a complete, unedited record."""


@dataclass(frozen=True)
class Record:
    """What came out of one run; accuracies in percent, epochs from 1.

    history: a dict per epoch, see `meprop.study.train`. best_epoch: the first with the best
    dev_accuracy; dev_accuracy, test_accuracy, test_errors (indices of the misclassified test
    images) and test_predictions (what these were taken for) are that epoch's, and None if no epoch
    was completed. status: `finished`, or `diverged` with the epoch and step of the loss that was
    not finite in `stopped`.
    """

    id: str
    config: Config
    status: str
    stopped: dict[str, int] | None
    history: list[dict[str, Any]]
    best_epoch: int | None
    dev_accuracy: float | None
    test_accuracy: float | None
    test_errors: list[int] | None
    test_predictions: list[int] | None
    provenance: dict[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 over everything else, by which an edit is noticed."""
        return digest(self._content())

    def _content(self) -> dict[str, Any]:
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        return content | {"config": self.config.to_dict()}

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON's types."""
        return self._content() | {"digest": self.digest}

    def outcome(self) -> dict[str, Any]:
        """What a repetition on the same machine gives again, bit for bit: no times, no origin."""
        history = [{k: v for k, v in epoch.items() if k != "seconds"} for epoch in self.history]
        content = self._content() | {"history": history}
        return {k: v for k, v in content.items() if k not in ("id", "provenance")}

    def save(self, path: str | Path) -> None:
        """Write the record as JSON if its parts agree; the file is there whole or not at all."""
        self.check()
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        # A list of numbers on one line: it is long, and nobody reads it line by line.
        text = re.sub(r"\[[\s\d,]*\]", lambda found: " ".join(found[0].split()), text)
        write_atomically(path, (text + "\n").encode())

    @classmethod
    def load(cls, path: str | Path) -> Record:
        """Read a record; one that is truncated, edited or of another kind is refused by name."""
        path = Path(path)
        try:
            return cls._from(read(path).decode())
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else error
            raise RecordError(
                f"{path}: damaged, or no record ({what}); restore it (git checkout -- {path}), or "
                "delete it and train again"
            ) from error

    @classmethod
    def _from(cls, text: str) -> Record:
        content = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__}")
        claimed, actual = content.pop("digest"), digest(content)
        if claimed != actual:
            what = f"{str(claimed)[:16]}, now {actual[:16]}"
            raise ValueError(f"its content does not match its digest ({what})")
        record = cls(**content | {"config": Config.from_dict(content["config"])})
        record.check()
        return record

    def check(self) -> None:
        """Raise where parts do not fit together, which a digest made anew does not tell."""
        epochs, stopped = self.config.epochs, self.stopped
        if self.id != self.config.digest[:16]:
            raise ValueError(f"id {self.id!r}, of another configuration")
        if self.status not in STATUSES or (stopped is None) != (self.status == "finished"):
            raise ValueError(f"status {self.status!r} with stopped {stopped!r}")
        if stopped is not None:
            whole = type(stopped["epoch"]) is type(stopped["step"]) is int
            if not whole or not 1 <= stopped["epoch"] <= epochs:
                raise ValueError(f"stopped {stopped!r}, of {epochs} epochs")
            epochs = stopped["epoch"] - 1
        if [epoch["epoch"] for epoch in self.history] != list(range(1, epochs + 1)):
            raise ValueError(f"its history is not that of epochs 1 to {epochs}")
        for epoch in self.history:
            if not _EPOCH <= flat(epoch).keys() == flat(self.history[0]).keys():
                raise ValueError(f"epoch {epoch['epoch']}: not the numbers of an epoch")
            for name, value in flat(epoch).items():
                if name == "dev_loss" and value is None:  # it was not finite
                    continue
                highest = 100.0 if name.endswith("accuracy") else math.inf
                plain = _NAME.fullmatch(name) and not isinstance(value, bool)
                if not plain or not 0 <= value <= highest:
                    raise ValueError(f"epoch {epoch['epoch']}: {name} {value!r}")
        best: dict[str, Any] = max(self.history, key=lambda e: e["dev_accuracy"], default={})
        for own, name in {"best_epoch": "epoch", "dev_accuracy": "", "test_accuracy": ""}.items():
            if (value := getattr(self, own)) != (its := best.get(name or own)):
                raise ValueError(f"{own} {value!r}, in its history {its}")
        images = DATASETS[self.config.dataset].test
        errors, taken_for = self.test_errors, self.test_predictions
        if errors is None or taken_for is None:
            right = errors is taken_for and not self.history
        else:
            right = (
                all(type(number) is int for number in [*errors, *taken_for])
                and errors == sorted(set(errors) & set(range(images)))
                and len(errors) == len(taken_for)
                and set(taken_for) <= set(range(10))
                and self.test_accuracy == 100 * (images - len(errors)) / images
            )
        if not right:
            raise ValueError(f"test_accuracy {self.test_accuracy!r} with other test_errors")
        seconds, threads = sum(each["seconds"] for each in self.history), self.config.threads
        said = self.provenance.get("seconds", seconds), self.provenance.get("threads", threads)
        if not math.isclose(said[0], seconds, rel_tol=1e-6) or said[1] != threads:
            raise ValueError(f"provenance: {said[0]!r} seconds, {said[1]!r} threads")
        for name, value in self.provenance.items():
            if not (text := f"{name} {value}").isprintable() or set("<>") & set(text):
                raise ValueError(f"provenance: {name} {value!r} is no plain text")


def find_records(path: str | Path) -> dict[str, Record]:
    """All records in a folder, or the one in a file, by path relative to it, without `.json`."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such record or folder of records")
    if not path.is_dir():
        return {path.stem: Record.load(path)}
    found = sorted(path.rglob("*.json"))
    return {file.relative_to(path).with_suffix("").as_posix(): Record.load(file) for file in found}


def load_records(path: str | Path) -> DataFrame:
    """A tidy table of many records: a row a run, a column for each field of its configuration.

    `path` is a file or a folder, searched to its depth; `file` is relative to it. `suite` and
    `name` come from `<suite>/<name>-s<seed>.json`. `code` tells the states of the code
    apart that made the runs. Records themselves:
    `find_records`; their epochs: `load_histories`.

    >>> from meprop.study.experiments import ROOT
    >>> load_records(ROOT / "results/quick")[["suite", "name", "epochs_run"]].values.tolist()[0]
    ['quick', 'table2-baseline', 3]
    """
    rows = []
    for file, record in find_records(path).items():
        config = vars(record.config) | {"sparse_layers": "+".join(record.config.sparse_layers)}
        names = ("best_epoch", "dev_accuracy", "test_accuracy", "test_errors")
        origin = ("commit", "dirty", "code", "cpu", "torch", "seconds")
        rows.append(
            _names(file, path)
            | {"id": record.id, "status": record.status}
            | config
            | {"epochs_run": len(record.history)}
            | {name: getattr(record, name) for name in names}
            | {name: record.provenance.get(name) for name in origin}
        )
    return _frame(rows)


def load_histories(path: str | Path) -> DataFrame:
    """A tidy table of the epochs of many records: a row an epoch, layers as `conv1_before` etc.

    `train_eval_accuracy` is NaN where nobody asked for it.

    >>> from meprop.study.experiments import ROOT
    >>> load_histories(ROOT / "results/quick")[["name", "epoch"]].values.tolist()[:2]
    [['table2-baseline', 1], ['table2-baseline', 2]]
    """
    return _frame(
        [
            _names(file, path)
            | {"seed": record.config.seed, "train_eval_accuracy": math.nan}
            | flat(epoch)
            for file, record in find_records(path).items()
            for epoch in record.history
        ]
    )


def flat(epoch: Mapping[str, Any]) -> dict[str, Any]:
    """An epoch of a history as one row, layers as `conv1_before` etc."""
    layers = {
        f"{layer}_{what}": value
        for layer, seen in epoch["layers"].items()
        for what, value in seen.items()
    }
    return {name: value for name, value in epoch.items() if name != "layers"} | layers


def _names(file: str, path: str | Path) -> dict[str, str]:
    suite, _, stem = file.rpartition("/")
    named = _FILE.fullmatch(stem)
    suite = suite or (Path(path).parent.name if Path(path).is_file() else Path(path).name)
    return {"file": file, "suite": suite, "name": named["name"] if named else stem}


def _frame(rows: list[dict[str, Any]]) -> DataFrame:
    import pandas  # here, because it takes longer to import than everything else of a short run

    return pandas.DataFrame(rows)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _finite(number: str) -> float:
    if math.isinf(float(number)):
        raise ValueError(f"{number} is too large")
    return float(number)
