"""A run's result with where it came from: one JSON file a run, read back whole or refused."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meprop.study.config import Config, digest
from meprop.study.data import DATASETS

if TYPE_CHECKING:
    from pandas import DataFrame

STATUSES = ("finished", "diverged")
# The names of a run's files: results/<suite>/<name>-s<seed>.json
_FILE = re.compile(r"(?P<name>.+)-s\d+")


class RecordError(ValueError):
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
        content = self._content()
        history = [{k: v for k, v in epoch.items() if k != "seconds"} for epoch in self.history]
        return {k: v for k, v in content.items() if k not in ("id", "provenance")} | {
            "history": history
        }

    def save(self, path: str | Path) -> None:
        """Write the record as JSON; the file is there whole or not at all."""
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
            if os.path.lexists(path) and not path.is_file():
                raise RecordError(f"{path}: not a file, so no record; move it away")
            text = path.read_text(encoding="utf-8")
            content = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        except RecordError:
            raise
        except (ValueError, RecursionError) as error:
            raise RecordError(f"{path}: not a complete JSON file ({error}); {_WAY_OUT}") from error
        if not isinstance(content, Mapping):
            raise RecordError(f"{path}: not a record, it holds no named values; {_WAY_OUT}")
        names = {field.name for field in fields(cls)}
        if missing := sorted(names - content.keys()):
            raise RecordError(f"{path}: not a record, it lacks {', '.join(missing)}; {_WAY_OUT}")
        claimed = content.get("digest")
        actual = digest({k: v for k, v in content.items() if k != "digest"})
        if claimed != actual:
            raise RecordError(
                f"{path}: its content does not match its digest ({claimed}, expected {actual}): "
                f"edited by hand, or damaged; {_WAY_OUT}"
            )
        if unknown := sorted(content.keys() - names - {"digest"}):
            raise RecordError(f"{path}: unknown entries {', '.join(unknown)}; {_WAY_OUT}")
        try:
            config = Config.from_dict(content["config"])
        except ValueError as error:
            raise RecordError(f"{path}: {error}; {_WAY_OUT}") from error
        record = cls(**{name: content[name] for name in names} | {"config": config})
        try:
            record._check()
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            wrong = f"{type(error).__name__} {error}" if isinstance(error, KeyError) else error
            raise RecordError(f"{path}: contradicts itself: {wrong}; {_WAY_OUT}") from error
        return record

    def _check(self) -> None:
        """Raise where parts do not fit together, which a digest made anew does not tell."""
        epochs, stopped = self.config.epochs, self.stopped
        if self.status not in STATUSES or (stopped is None) != (self.status == "finished"):
            raise ValueError(f"status {self.status!r} with stopped {stopped!r}")
        if stopped is not None:
            epochs = stopped["epoch"] - 1
        if [epoch["epoch"] for epoch in self.history] != list(range(1, epochs + 1)):
            raise ValueError(f"its history is not that of epochs 1 to {epochs}")
        for epoch in self.history:
            for name, value in flat(epoch).items():
                highest = 100.0 if name.endswith("accuracy") else math.inf
                if isinstance(value, bool) or not 0 <= value <= highest:
                    raise ValueError(f"epoch {epoch['epoch']}: {name} {value!r}")
        best: dict[str, Any] = max(self.history, key=lambda e: e["dev_accuracy"], default={})
        for name in ("dev_accuracy", "test_accuracy"):
            if getattr(self, name) != best.get(name):
                raise ValueError(f"{name} {getattr(self, name)!r}, in its history {best.get(name)}")
        if self.best_epoch != best.get("epoch"):
            raise ValueError(f"best_epoch {self.best_epoch!r}, in its history {best.get('epoch')}")
        images, errors, taken_for = (
            DATASETS[self.config.dataset].test, self.test_errors, self.test_predictions,
        )  # fmt: skip
        if errors is None or taken_for is None:
            right = errors is taken_for and not self.history
        else:
            whole = all(type(number) is int for number in [*errors, *taken_for])
            right = whole and errors == sorted(set(errors)) and len(errors) == len(taken_for)
            right = right and all(0 <= number < images for number in errors)
            right = right and all(0 <= number < 10 for number in taken_for)
            right = right and self.test_accuracy == 100 * (images - len(errors)) / images
        if not right:
            raise ValueError(f"test_accuracy {self.test_accuracy!r} with other test_errors")
        for name, value in self.provenance.items():
            if (isinstance(value, str) and not value.isprintable()) or set("<>") & set(str(value)):
                raise ValueError(f"provenance: {name} {value!r} is no plain text")


_WAY_OUT = "restore it (git checkout -- FILE), or delete it and train again"


def find_records(path: str | Path) -> dict[str, Record]:
    """All records in a folder, or the one in a file, by path relative to it, without `.json`."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such record or folder of records")
    if path.is_file():
        return {path.stem: Record.load(path)}
    found = sorted(path.rglob("*.json"))
    return {file.relative_to(path).with_suffix("").as_posix(): Record.load(file) for file in found}


def load_records(path: str | Path) -> DataFrame:
    """A tidy table of many records: a row a run, a column for each field of its configuration.

    `path` is a file or a folder, searched to its depth; `file` is relative to it. `suite` and
    `name` come from `<suite>/<name>-s<seed>.json`. Records themselves: `find_records`; their
    epochs: `load_histories`.

    >>> from tempfile import TemporaryDirectory
    >>> from meprop.study.training import train
    >>> with TemporaryDirectory() as folder:
    ...     record = train(Config(dataset="digits", train_size=10, epochs=1), progress=False)
    ...     record.save(f"{folder}/quick/demo-s0.json")
    ...     print(load_records(folder)[["suite", "name", "epochs_run"]].values.tolist())
    [['quick', 'demo', 1]]
    """
    rows = []
    for file, record in find_records(path).items():
        places = ("commit", "dirty", "cpu", "torch", "seconds")
        origin = {place: record.provenance.get(place) for place in places}
        rows.append(
            _names(file, path)
            | {"id": record.id, "status": record.status}
            | {
                k: "+".join(v) if k == "sparse_layers" else v
                for k, v in vars(record.config).items()
            }
            | {"epochs_run": len(record.history), "best_epoch": record.best_epoch}
            | {"dev_accuracy": record.dev_accuracy, "test_accuracy": record.test_accuracy}
            | {"test_errors": record.test_errors}
            | origin
        )
    return _frame(rows)


def load_histories(path: str | Path) -> DataFrame:
    """A tidy table of the epochs of many records: a row an epoch, layers as `conv1_before` etc.

    `train_eval_accuracy` is NaN where nobody asked for it.

    >>> from tempfile import TemporaryDirectory
    >>> from meprop.study.training import train
    >>> with TemporaryDirectory() as folder:
    ...     train(Config(dataset="digits", train_size=10, epochs=2), progress=False).save(
    ...         f"{folder}/quick/demo-s0.json"
    ...     )
    ...     print(load_histories(folder)[["name", "epoch"]].values.tolist())
    [['demo', 1], ['demo', 2]]
    """
    rows = []
    for file, record in find_records(path).items():
        for epoch in record.history:
            optional = {"seed": record.config.seed, "train_eval_accuracy": math.nan}
            rows.append(_names(file, path) | optional | flat(epoch))
    return _frame(rows)


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


def write_atomically(path: Path, *content: bytes | memoryview) -> None:
    """Write a file that appears whole, and stays whole when the machine goes down."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.writelines(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    # The new name too: whoever sees the file may delete what it was made from.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _finite(number: str) -> float:
    if math.isinf(float(number)):
        raise ValueError(f"{number} is too large")
    return float(number)
