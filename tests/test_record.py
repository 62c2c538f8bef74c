import json
import os
from dataclasses import replace

import pytest

from meprop.study.config import Config, digest
from meprop.study.experiments import ROOT
from meprop.study.record import (
    Record,
    RecordError,
    find_records,
    load_histories,
    load_records,
)

RIGHT = 100 * 294 / 297  # of digits' test images


def epoch(number, dev):
    seen = {"before": 0.25, "after": 0.05, "weight": 1.0, "norm_kept": 0.9}
    return {
        "epoch": number, "train_loss": 0.1 + number / 3, "train_accuracy": 97.0, "dev_loss": 0.2,
        "dev_accuracy": dev, "test_accuracy": RIGHT, "seconds": 1.5, "layers": {"conv1": seen},
        "changed": 0.75,
    }  # fmt: skip


RECORD = Record(
    id="table2-k05-d0-s3",
    config=Config(dataset="digits", ratio=0.05, seed=3, epochs=2),
    status="finished",
    stopped=None,
    history=[epoch(1, 97.5), epoch(2, 98.25)],
    best_epoch=2,
    dev_accuracy=98.25,
    test_accuracy=RIGHT,
    test_errors=[3, 17, 296],
    test_predictions=[8, 1, 4],
    provenance={"commit": None, "dirty": None, "seconds": 3.0, "cpu": "some CPU", "torch": "2"},
)
BASELINE = replace(
    RECORD,
    id="baseline",
    config=Config(dataset="digits", epochs=2),
    history=[epoch(1, 96.0), epoch(2, 97.0)],
    dev_accuracy=97.0,
)


def test_round_trip(tmp_path):
    path = tmp_path / "new" / "folder" / "table2-k05-d0-s3.json"
    RECORD.save(path)
    again = Record.load(path)
    assert again == RECORD
    assert again.digest == RECORD.digest
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert json.loads(path.read_text()) == RECORD.to_dict()


def test_all_documented_fields_are_in_the_file():
    names = ["id", "config", "history", "best_epoch", "dev_accuracy", "test_accuracy"]
    names += ["test_errors", "test_predictions", "provenance", "digest", "status", "stopped"]
    assert set(RECORD.to_dict()) == set(names)
    assert RECORD.to_dict()["config"] == RECORD.config.to_dict()


def test_the_list_of_errors_takes_one_line(tmp_path):
    RECORD.save(tmp_path / "r.json")
    assert '"test_errors": [ 3, 17, 296 ],' in (tmp_path / "r.json").read_text()


def test_a_record_is_replaced_whole(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    RECORD.save(path)

    def power_cut(*_):
        raise OSError("power cut")

    monkeypatch.setattr(os, "replace", power_cut)
    with pytest.raises(OSError, match="power cut"):
        BASELINE.save(path)
    monkeypatch.undo()
    assert Record.load(path) == RECORD
    BASELINE.save(path)
    assert Record.load(path) == BASELINE
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_what_json_cannot_hold_is_not_written(tmp_path):
    with pytest.raises(ValueError):
        replace(RECORD, dev_accuracy=float("nan")).save(tmp_path / "r.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_record_is_refused(tmp_path, share):
    path = tmp_path / "r.json"
    RECORD.save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * (len(content) - 2))])
    with pytest.raises(RecordError, match=r"r\.json: not a complete JSON file .*train again"):
        Record.load(path)


def edit_accuracy(content):
    content["test_accuracy"] = 99.9


def edit_history(content):
    content["history"][0]["dev_accuracy"] += 1e-12


def edit_seed(content):
    content["config"]["seed"] = 4


def remove_digest(content):
    del content["digest"]


def add_entry(content):
    content["note"] = "looks good"


@pytest.mark.parametrize("edit", [edit_accuracy, edit_history, edit_seed, remove_digest, add_entry])
def test_an_edited_record_is_refused(tmp_path, edit):
    path = tmp_path / "r.json"
    RECORD.save(path)
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    with pytest.raises(RecordError, match=r"r\.json: its content does not match its digest"):
        Record.load(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"test_accuracy": 99.9}, "test_accuracy 99.9"),
        ({"dev_accuracy": 99.9}, "dev_accuracy 99.9"),
        ({"best_epoch": 1}, "best_epoch 1"),
        ({"best_epoch": "2"}, "best_epoch '2'"),
        ({"history": RECORD.history[:1]}, "epochs 1 to 2"),
        ({"history": 3}, "not iterable"),
        ({"history": [RECORD.history[0] | {"dev_accuracy": 101.0}, epoch(2, 98.25)]}, "epoch 1: "),
        ({"history": [RECORD.history[0] | {"train_loss": "x"}, epoch(2, 98.25)]}, "contradicts"),
        ({"history": [{"epoch": 1}, epoch(2, 98.25)]}, "contradicts"),
        ({"test_errors": [3, 17]}, "test_errors"),
        ({"test_errors": [17, 3, 296]}, "test_errors"),
        ({"test_errors": [3, 17, 297]}, "test_errors"),
        ({"test_predictions": [8, 1, 10]}, "test_errors"),
        ({"test_errors": None, "test_predictions": None}, "test_errors"),
        ({"status": "done"}, "status 'done'"),
        ({"stopped": {"epoch": 2, "step": 1}}, "stopped"),
        ({"status": "diverged", "stopped": {"epoch": 2, "step": 1}}, "epochs 1 to 1"),
        ({"provenance": {"cpu": "<img onerror=alert(1)>"}}, "no plain text"),
        ({"provenance": []}, "contradicts"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(tmp_path, change, said):
    """Its digest is right: somebody made it anew."""
    content = {k: v for k, v in RECORD.to_dict().items() if k != "digest"} | change
    (tmp_path / "r.json").write_text(json.dumps(content | {"digest": digest(content)}))
    with pytest.raises(RecordError, match=r"r\.json: contradicts itself: .*git checkout") as error:
        Record.load(tmp_path / "r.json")
    assert said in str(error.value)


def test_what_is_no_file_or_no_number(tmp_path):
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    (tmp_path / "large.json").write_text('{"seconds": 1e999}')
    (tmp_path / "deep.json").write_text("[" * 100_000)
    for name in ("folder", "pipe", "loop", "large", "deep"):
        with pytest.raises(RecordError, match=rf"{name}\.json: not a "):
            Record.load(tmp_path / f"{name}.json")


@pytest.mark.parametrize("path", sorted((ROOT / "results").rglob("*.json")), ids=lambda p: p.stem)
def test_a_committed_record_keeps_its_digest_and_its_configuration(path):
    content = json.loads(path.read_text(encoding="utf-8"))
    claimed = content.pop("digest")
    assert digest(content) == claimed
    record = Record.load(path)
    assert record.digest == claimed
    assert record.config.to_dict() == content["config"]
    assert record.config.digest[:16] == record.id


def test_reformatting_is_no_edit(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(RECORD.to_dict(), sort_keys=True))
    assert Record.load(path) == RECORD


@pytest.mark.parametrize("text", ["[]", "3", "{}", '{"config": {}}', '{"id": NaN}', "\udcff"])
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "r.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(RecordError, match=r"r\.json: not a"):
        Record.load(path)


@pytest.mark.parametrize("change", [{"config": {"ratoi": 1}}, {"config": {"epochs": 0}}])
def test_a_configuration_that_is_none_is_refused(tmp_path, change):
    content = {k: v for k, v in RECORD.to_dict().items() if k != "digest"} | change
    (tmp_path / "r.json").write_text(json.dumps(content | {"digest": digest(content)}))
    with pytest.raises(RecordError, match=r"r\.json: Config: "):
        Record.load(tmp_path / "r.json")


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


def test_table_of_records(results):
    table = load_records(results)
    assert table["file"].tolist() == ["paper/table2-baseline-s0", "quick/table2-k05-d0-s3"]
    assert table["suite"].tolist() == ["paper", "quick"]
    assert table["name"].tolist() == ["table2-baseline", "table2-k05-d0"]
    assert table["dev_accuracy"].tolist() == [97.0, 98.25]
    assert table["seed"].tolist() == [0, 3]
    assert table["ratio"].isna().tolist() == [True, False]
    assert table["sparse_layers"].tolist() == ["conv1+conv2"] * 2
    assert set(Config().to_dict()) <= set(table.columns)


def test_table_of_one_suite_or_file(results):
    assert load_records(results / "quick")["suite"].tolist() == ["quick"]
    table = load_records(str(results / "quick" / "table2-k05-d0-s3.json"))
    assert table[["suite", "name"]].values.tolist() == [["quick", "table2-k05-d0"]]


def test_table_of_epochs(results):
    table = load_histories(results)
    assert table["name"].tolist() == ["table2-baseline"] * 2 + ["table2-k05-d0"] * 2
    assert table["epoch"].tolist() == [1, 2, 1, 2]
    assert table["conv1_norm_kept"].tolist() == [0.9] * 4


def test_records_by_name(results):
    assert find_records(results)["quick/table2-k05-d0-s3"] == RECORD


def test_one_damaged_record_among_many_is_named(results):
    (results / "quick" / "other-s1.json").write_text("{")
    with pytest.raises(RecordError, match=r"other-s1\.json"):
        load_records(results)


def test_no_such_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere: no such record"):
        load_records(tmp_path / "nowhere")
