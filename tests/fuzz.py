"""Damaged files and wrong values by the thousand: `make fuzz`, which `make test` leaves out.

A reader may take what it gets, or refuse it in a sentence. A fault is any other exception, more
than five seconds, an accepted record that contradicts itself, or accepted data that are not the
original. Each case has a seed of its own: `--only records --case 17` repeats one.
"""

import argparse
import copy
import hashlib
import io
import json
import math
import random
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from pathlib import Path

import torch
from test_data import FILES, write
from test_experiments import GOOD

from meprop import TopK
from meprop.study import _download
from meprop.study import checkpoint as checkpoints
from meprop.study.config import DEFAULTS, Config, digest
from meprop.study.data import DATASETS, DataSet, load_data
from meprop.study.experiments import ROOT, load
from meprop.study.notebook import Number, check
from meprop.study.record import Record
from meprop.study.settings import InOneSentence
from meprop.study.training import train

FIGURES = ROOT / "measurements" / "fuzz.json"
WRONG = ("tracebacks", "hangs", "contradictions")
CASES = {"records": 1200, "experiments": 700, "checkpoints": 150, "data": 200, "parameters": 750}
RECORDS = sorted((ROOT / "results" / "quick").glob("*.json"))
TINY = Config(dataset="digits", train_size=10, epochs=1, ratio=0.05, decay=0.5, backend="masked")
STRANGE = [
    None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1e308, 10**400, -(10**20), 100.0, 99.5, "", "x", "1",
    "mnist", "<b>", "\x00", "a" * 300, "../../x", [], {}, [1, 2], {"a": 1}, [[[]]], [None], "nan",
    math.nan, math.inf, "\u202e", "conv1", ["conv1", "conv1"], {"epoch": 1, "step": 1}, "finished",
]  # fmt: skip
USUAL = [
    0.05, 0.5, 3, 20, "random", "sparse", "digits", "top", "map", "full", "bn", "sgd", "weight",
]  # fmt: skip
BYTES = [b"", b"\xff\xfe", b"9" * 400, b"[" * 3000, b"{", b"\n", b"\t", b"1e999"]
TOKENS = ["&a ", "*a", "<<: *a", "- ", ": ", "{", "}", "[", "!!python/object:os.system", "~", "'"]
TOKENS += ["\t", "  ", "|", "1e999", "9" * 400, "? ", "a-s0: {}", "null", ""]


class Fault(Exception):
    """Something was accepted that should not have been."""


class Hang(BaseException):
    """No reader may catch it."""


def damaged(rng: random.Random, content: bytes) -> bytes:
    """Bytes cut, changed, put in or doubled, once or more."""
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        here = rng.randrange(len(content) + 1)
        part = content[here : here + rng.choice([1, 2, 10, 1000])]
        new = rng.choice([*BYTES, part + part, rng.randbytes(len(part)), part[::-1]])
        content = content[:here] + new + content[here + len(part) :]
    return content


def edited(rng: random.Random, tree):
    """A tree of plain values with one of them replaced, left out or added."""
    places = []

    def walk(node):
        for key in node if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(tree)
    # What is deep has more places: half of the time take one near the top.
    node, key = rng.choice(places if rng.random() < 0.5 else places[:30])
    old = node[key]
    match rng.randrange(6):
        case 0:
            del node[key]
        case 1 if type(old) in (int, float):
            node[key] = rng.choice([old + 1, old - 1, -old, old * 1.01, str(old), old + 0.01])
        case 2 if isinstance(old, list) and old:
            rng.choice([old.reverse, old.pop, old.clear, lambda: old.append(old[0])])()
        case 3 if isinstance(node, dict):
            node[rng.choice(["x", "seed", "epochs", "__class__", "", "ratoi"])] = old
        case _:
            node[key] = rng.choice(STRANGE)
    return tree


def contradiction(record: dict) -> str | None:
    """What in an accepted record cannot be, from its JSON alone and by no check of the package."""
    history, own = record["history"], record["provenance"]
    config = Config.from_dict(record["config"]).to_dict()  # it may leave out defaults
    stopped, errors = record["stopped"], record["test_errors"]
    epochs = stopped["epoch"] - 1 if stopped else config["epochs"]
    best = max(history, key=lambda e: e["dev_accuracy"], default=None)
    seconds = sum(e["seconds"] for e in history)
    numbers = [v for e in history for seen in e["layers"].values() for v in seen.values()]
    numbers += [v for e in history for k, v in e.items() if k != "layers" and v is not None]
    chosen = [record[name] for name in ("best_epoch", "dev_accuracy", "test_accuracy")]
    images = DATASETS[config["dataset"]].test
    holds = {
        "id": record["id"] == digest(config)[:16],
        "status": record["status"] == ("diverged" if stopped else "finished"),
        "epochs": [e["epoch"] for e in history] == list(range(1, epochs + 1)),
        "stopped": not stopped or 0 < stopped["epoch"] <= config["epochs"],
        "provenance": own["threads"] == config["threads"] and math.isclose(own["seconds"], seconds),
        "whole epochs": all(
            e.keys() == history[0].keys() and e["layers"].keys() == history[0]["layers"].keys()
            for e in history
        ),
        "numbers": all(type(v) in (int, float) and 0 <= v < 1e300 for v in numbers),
        "HTML": "<" not in json.dumps(record, ensure_ascii=False),
    }
    if best is None:
        holds["errors"] = errors is None
    else:
        holds["best"] = chosen == [best[k] for k in ("epoch", "dev_accuracy", "test_accuracy")]
        share = 100 * (1 - len(set(errors)) / images)
        holds["errors"] = abs(record["test_accuracy"] - share) < 1e-9
        holds["predictions"] = len(errors) == len(record["test_predictions"])
    return next((name for name, right in holds.items() if not right), None)


def records(rng: random.Random, folder: Path) -> None:
    path, content = folder / "r.json", rng.choice(RECORDS).read_bytes()
    if rng.random() < 0.3:
        path.write_bytes(damaged(rng, content))
    else:
        tree = edited(rng, json.loads(content))
        if "digest" in tree and rng.random() < 0.8:  # as somebody would who wants it to pass
            rest = {name: value for name, value in tree.items() if name != "digest"}
            text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
            tree["digest"] = hashlib.sha256(text.encode()).hexdigest()
        path.write_text(json.dumps(tree), encoding="utf-8")
    Record.load(path)
    if wrong := contradiction(json.loads(path.read_text(encoding="utf-8"))):
        raise Fault(wrong)


def experiments(rng: random.Random, folder: Path) -> None:
    path, lines = folder / "some.yml", GOOD.splitlines(keepends=True)
    for _ in range(rng.choice([1, 1, 2, 4])):
        here = rng.randrange(len(lines))
        line = lines[here]
        at, value = rng.randrange(len(line)), json.dumps(rng.choice(STRANGE))
        lines[here : here + 1] = rng.choice([
            [], [line, line], [rng.choice(lines)], [f"{line.partition(':')[0]}: {value}\n"],
            [line[:at] + rng.choice(TOKENS) + line[at + rng.choice([0, 0, 3]) :]],
        ])  # fmt: skip
        lines = lines or [""]
    content = "".join(lines).encode()
    path.write_bytes(damaged(rng, content) if rng.random() < 0.3 else content)
    load(path)


def checkpoint(rng: random.Random, folder: Path) -> None:
    path, written = folder / "run.pt", io.BytesIO()
    held = {"config": TINY.to_dict(), "code": checkpoints.code_digest(), "state": STATE}
    kind = rng.choice(["file", "payload", "content", "content", "other"])
    content = edited(rng, copy.deepcopy(held)) if kind == "content" else held
    torch.save(rng.choice(STRANGE) if kind == "other" else content, written)
    payload = written.getvalue()
    payload = damaged(rng, payload) if kind == "payload" else payload
    whole = checkpoints.MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload
    path.write_bytes(damaged(rng, whole) if kind == "file" else whole)
    train(TINY, checkpoint=path, progress=False).save(folder / "r.json")


def data(rng: random.Random, folder: Path) -> None:
    raw = folder / "MNIST" / "raw"
    write(raw, suffix=rng.choice(["", ".gz"]))
    path = rng.choice(sorted(raw.iterdir()))
    path.write_bytes(damaged(rng, path.read_bytes()))
    if load_data("mnist", folder).digest != DIGEST:
        raise Fault("other images")


def parameters(rng: random.Random, folder: Path) -> None:
    values = [*STRANGE, *USUAL * 3]
    match rng.randrange(3):
        case 0:
            names = [*DEFAULTS, "ratoi", ""]
            given = {rng.choice(names): rng.choice(values) for _ in range(rng.choice([1, 1, 2]))}
            config = Config.from_dict(given)
            if Config.from_dict(json.loads(json.dumps(config.to_dict()))) != config:
                raise Fault("it does not come back")
        case 1:
            given = {"table": 2, "side": 48, "results": "results"}
            given[rng.choice([*given, "tabel"])] = rng.choice(values)
            check(given, table=(2, 3), side=Number(1, whole=True), results=ROOT)
        case _:
            TopK(*(rng.choice(values) for _ in range(rng.choice([1, 2, 3]))))


def tried(reader, case: str) -> tuple[str, str]:
    """How a case ended, and what was said."""

    def ring(*_):
        raise Hang

    # Of work, and in all: what waits for its turn on a busy machine does not hang.
    clocks = {signal.ITIMER_PROF: 5, signal.ITIMER_REAL: 60}
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, ring)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        for clock, seconds in clocks.items():
            signal.setitimer(clock, seconds)
        try:
            reader(random.Random(case), Path(folder))
            return "accepted", ""
        except Hang:
            return "hangs", traceback.format_exc(limit=-2)
        except Fault as fault:
            return "contradictions", str(fault)
        except Exception as error:
            # The core knows nothing of the study's exceptions; data say what was tried, in lines.
            plain = isinstance(error, ValueError) and str(error).startswith("TopK: ")
            sentence = (isinstance(error, InOneSentence) or plain) and "\n" not in str(error)
            if sentence or isinstance(error, _download.DataError):
                return "refused", str(error)
            return "tracebacks", traceback.format_exc(limit=-2)
        finally:
            for clock in clocks:
                signal.setitimer(clock, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--case", type=int)
    given = parser.parse_args()
    readers = dict(zip(CASES, (records, experiments, checkpoint, data, parameters), strict=True))
    figures = Counter(dict.fromkeys(WRONG, 0))
    for kind in [given.only] if given.only else CASES:
        for case in range(CASES[kind]) if given.case is None else [given.case]:
            outcome, said = tried(readers[kind], f"{kind} {case}")
            figures.update({"cases": 1, outcome: 1})
            if outcome not in ("accepted", "refused") or given.case is not None:
                print(f"{kind} {case}: {outcome}: {said}", flush=True)
    print("fuzz: " + ", ".join(f"{count} {name}" for name, count in sorted(figures.items())))
    if given.only is None:
        FIGURES.write_text(json.dumps(dict(sorted(figures.items())), indent=1) + "\n")
    return 1 if any(figures[name] for name in WRONG) else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    DATASETS["mnist"] = DataSet(20, 10, 7, (0.0,), (1.0,), FILES)
    _download.SOURCES = {"zipped files in the data folder": _download.from_folder}
    with tempfile.TemporaryDirectory() as first:
        write(Path(first, "MNIST", "raw"))
        DIGEST = load_data("mnist", first).digest
        train(TINY, checkpoint=Path(first, "run.pt"), progress=False)
        STATE = checkpoints.load(Path(first, "run.pt"), TINY)
    sys.exit(main())
