import json
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from meprop.study._files import write_atomically
from meprop.study.config import Config, digest
from meprop.study.experiments import ROOT, load
from meprop.study.record import Record, RecordError, find_records, load_histories, load_records

RIGHT = 100 * 294 / 297  # of digits' test images


def epoch(number, dev):
    seen = {"before": 0.25, "after": 0.05, "weight": 1.0, "norm_kept": 0.9}
    return {
        "epoch": number, "train_loss": 0.1 + number / 3, "train_accuracy": 97.0, "dev_loss": 0.2,
        "dev_accuracy": dev, "test_accuracy": RIGHT, "seconds": 1.5, "layers": {"conv1": seen},
        "changed": 0.75,
    }  # fmt: skip


CONFIG = Config(dataset="digits", ratio=0.05, seed=3, epochs=2)
PLAIN = Config(dataset="digits", epochs=2)
RECORD = Record(
    id=CONFIG.digest[:16],
    config=CONFIG,
    status="finished",
    stopped=None,
    history=[epoch(1, 97.5), epoch(2, 98.25)],
    best_epoch=2,
    dev_accuracy=98.25,
    test_accuracy=RIGHT,
    test_errors=[3, 17, 296],
    test_predictions=[8, 1, 4],
    provenance={"commit": None, "dirty": None, "code": "abc", "cpu": "some CPU", "torch": "2"},
)
SHORT = {name: value for name, value in epoch(2, 98.25).items() if name != "changed"}
BASELINE = replace(
    RECORD,
    id=PLAIN.digest[:16],
    config=PLAIN,
    history=[epoch(1, 96.0), epoch(2, 97.0)],
    dev_accuracy=97.0,
)


def test_round_trip(tmp_path):
    path = tmp_path / "new" / "folder" / "table2-k05-d0-s3.json"
    RECORD.save(path)
    again = Record.load(path)
    assert again == RECORD and again.digest == RECORD.digest
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    text = path.read_text()
    assert json.loads(text) == RECORD.to_dict()
    assert RECORD.to_dict().keys() == {*vars(RECORD), "digest"}
    assert '"test_errors": [ 3, 17, 296 ],' in text, "on one line"
    # To format it otherwise is no edit.
    path.write_text(json.dumps(RECORD.to_dict(), sort_keys=True))
    assert Record.load(path) == RECORD


def test_a_record_is_replaced_whole(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    RECORD.save(path)

    def power_cut(*_):
        raise OSError(5, "power cut")

    monkeypatch.setattr(os, "replace", power_cut)
    with pytest.raises(OSError, match="power cut"):
        BASELINE.save(path)
    monkeypatch.undo()
    assert Record.load(path) == RECORD
    with pytest.raises(ValueError, match="dev_accuracy nan"):
        replace(RECORD, dev_accuracy=float("nan")).save(path)
    assert Record.load(path) == RECORD
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_a_full_disk_is_named_and_nothing_is_left(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError) as error:
            write_atomically(tmp_path / "run.pt", bytes(4000), memoryview(bytes(4000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.filename == str(tmp_path / "run.pt") and error.value.errno
    assert not list(tmp_path.iterdir())


# What is refused


def damaged(path):
    """Why a record is refused, in one sentence with the way out."""
    with pytest.raises(RecordError) as error:
        Record.load(path)
    said = str(error.value)
    assert said.startswith(f"{path}: damaged, or no record (")
    assert f"git checkout -- {path}" in said and "\n" not in said
    assert error.value._render_traceback_() == [said]
    return said


WHOLE = json.dumps(RECORD.to_dict())
OTHERS = ["", WHOLE[:500], WHOLE[:-1], "[]", "{}", '{"config": {}}', '{"s": NaN}', "\udcff"]
OTHERS += ['{"s": 1e999}', "[" * 100_000]


@pytest.mark.parametrize("text", OTHERS, ids=range(10))
def test_a_truncated_record_or_another_file(tmp_path, text):
    (tmp_path / "r.json").write_bytes(text.encode(errors="surrogateescape"))
    damaged(tmp_path / "r.json")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path)])
def test_what_is_no_file(tmp_path, make):
    make(tmp_path / "r.json")
    assert "not a file" in damaged(tmp_path / "r.json")


@pytest.mark.parametrize(
    "change",
    [
        {"history": [epoch(1, 97.5 + 1e-12), epoch(2, 98.25)]},
        {"config": RECORD.config.to_dict() | {"seed": 4}},
        {"digest": None},
        {"note": "looks good"},
    ],
)
def test_an_edited_record(tmp_path, change):
    (tmp_path / "r.json").write_text(json.dumps(RECORD.to_dict() | change))
    assert "does not match its digest" in damaged(tmp_path / "r.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"test_accuracy": 99.9}, "test_accuracy 99.9"),
        ({"best_epoch": "2"}, "best_epoch '2'"),
        ({"history": RECORD.history[:1]}, "epochs 1 to 2"),
        ({"history": 3}, "not iterable"),
        ({"history": [RECORD.history[0] | {"dev_accuracy": 101.0}, epoch(2, 98.25)]}, "epoch 1: "),
        ({"history": [RECORD.history[0] | {"train_loss": "x"}, epoch(2, 98.25)]}, "'<='"),
        ({"history": [{"epoch": 1}, epoch(2, 98.25)]}, "no 'layers'"),
        ({"test_errors": [17, 3, 296]}, "test_errors"),
        ({"test_errors": [3, 17, 297]}, "test_errors"),
        ({"test_predictions": [8, 1, 10]}, "test_errors"),
        ({"test_errors": None, "test_predictions": None}, "test_errors"),
        ({"id": "0" * 16}, "of another configuration"),
        ({"history": [epoch(1, 97.5) | {"seconds": 1}, SHORT]}, "not the numbers"),
        ({"history": [epoch(1, 97.5), epoch(2, 98.25) | {"layers": {}}]}, "not the numbers"),
        ({"provenance": RECORD.provenance | {"seconds": 1.5}}, "1.5 seconds"),
        ({"provenance": RECORD.provenance | {"threads": 3}}, "3 threads"),
        ({"status": "done"}, "status 'done'"),
        ({"stopped": {"epoch": 2, "step": 1}}, "stopped"),
        ({"status": "diverged", "stopped": {"epoch": 2, "step": 1}}, "epochs 1 to 1"),
        ({"status": "diverged", "stopped": {"epoch": 3, "step": 1}}, "of 2 epochs"),
        ({"status": "diverged", "stopped": {"epoch": 2, "step": "<b>"}}, "of 2 epochs"),
        ({"history": [epoch(n, 98.25) | {"layers": {"<b>": {"after": 1}}} for n in (1, 2)]}, "<b>"),
        ({"provenance": {"cpu": "<img onerror=alert(1)>"}}, "no plain text"),
        ({"provenance": {"<img onerror=alert(1)>": "cpu"}}, "no plain text"),
        ({"provenance": {"cpu": "a\nb"}}, "no plain text"),
        ({"provenance": []}, "no attribute"),
        ({"config": {"ratoi": 1}}, "Config: unknown key 'ratoi'"),
        ({"note": "looks good"}, "'note'"),
    ],
)
def test_a_record_that_contradicts_itself(tmp_path, change, said):
    """Its digest is right: somebody made it anew."""
    content = {k: v for k, v in RECORD.to_dict().items() if k != "digest"} | change
    (tmp_path / "r.json").write_text(json.dumps(content | {"digest": digest(content)}))
    assert said in damaged(tmp_path / "r.json")


def test_a_loss_that_was_not_finite_is_none(tmp_path):
    first, second = RECORD.history
    record = replace(RECORD, history=[first | {"dev_loss": None}, second])
    record.save(tmp_path / "r.json")
    assert Record.load(tmp_path / "r.json") == record


def test_every_committed_record_counts_and_keeps_its_digest_and_configuration():
    runs = {ROOT / run.record: run for run in load().runs if run.committed}
    paths = sorted((ROOT / "results").rglob("*.json"))
    assert len(paths) > 200
    for path in paths:
        record = Record.load(path)  # says which is damaged, and the way out
        assert record.to_dict() == json.loads(path.read_text(encoding="utf-8")), path
        if not path.parent.name.startswith("quick"):  # the reference for other machines
            assert record.config == runs[path].config, path


# The tables


def test_the_outcome_leaves_out_times_and_origin():
    later = replace(
        RECORD,
        id="again",
        history=[e | {"seconds": 9.0} for e in RECORD.history],
        provenance={"start": "later"},
    )
    assert later.outcome() == RECORD.outcome()
    assert replace(RECORD, test_errors=[3]).outcome() != RECORD.outcome()
    worse = [RECORD.history[0] | {"train_loss": 0.5}, RECORD.history[1]]
    assert replace(RECORD, history=worse).outcome() != RECORD.outcome()


@pytest.fixture
def results(tmp_path):
    RECORD.save(tmp_path / "results" / "quick" / "table2-k05-d0-s3.json")
    BASELINE.save(tmp_path / "results" / "paper" / "table2-baseline-s0.json")
    return tmp_path / "results"


def test_tables_of_runs_and_of_epochs(results):
    table = load_records(results)
    names = ["file", "suite", "name", "dev_accuracy", "sparse_layers", "code"]
    assert table[names].values.tolist() == [
        ["paper/table2-baseline-s0", "paper", "table2-baseline", 97.0, "conv1+conv2", "abc"],
        ["quick/table2-k05-d0-s3", "quick", "table2-k05-d0", 98.25, "conv1+conv2", "abc"],
    ]
    assert table["ratio"].isna().tolist() == [True, False]
    assert set(Config().to_dict()) <= set(table.columns)
    assert find_records(results)["quick/table2-k05-d0-s3"] == RECORD

    epochs = load_histories(results)
    assert epochs["name"].tolist() == ["table2-baseline"] * 2 + ["table2-k05-d0"] * 2
    assert epochs["epoch"].tolist() == [1, 2, 1, 2]
    assert epochs["conv1_norm_kept"].tolist() == [0.9] * 4


def test_table_of_one_suite_or_file_or_none(results):
    assert load_records(results / "quick")["suite"].tolist() == ["quick"]
    table = load_records(str(results / "quick" / "table2-k05-d0-s3.json"))
    assert table[["suite", "name"]].values.tolist() == [["quick", "table2-k05-d0"]]
    with pytest.raises(FileNotFoundError, match="nowhere: no such record"):
        load_records(results / "nowhere")
    (results / "quick" / "other-s1.json").write_text("{")
    with pytest.raises(RecordError, match=r"other-s1\.json"):
        load_records(results)
