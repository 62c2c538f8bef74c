"""python -m meprop status, from an empty folder to a finished suite."""

import pytest
import synthetic
from filelock import FileLock

from meprop.__main__ import main
from meprop.study import checkpoint as checkpoints
from meprop.study import pipeline, status
from meprop.study.experiments import Run
from meprop.study.experiments import load as load_file
from meprop.study.record import Record

EXPERIMENTS = """\
suites:
  paper:
    about: tables
    committed: true
    config: {dataset: mnist, epochs: 30}
    seeds: [0, 1, 2, 3, 4]
    runs:
      table2-baseline: {}
      table2-k05: {ratio: 0.05}
      table3-baseline: {batch_norm: true}
      table3-k05: {batch_norm: true, ratio: 0.05}
  ablation:
    about: few images
    committed: true
    config: {dataset: mnist, train_size: 5000, epochs: 15}
    seeds: [0, 1, 2]
    runs:
      ratio-k05: {ratio: 0.05}
      ratio-k01: {ratio: 0.01}
      n1000: {train_size: 1000}
  cifar10:
    about: colour images
    committed: true
    config: {dataset: cifar10, network: resnet20, batch_norm: true}
    seeds: [0]
    runs: {dense: {}}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "experiments.yml").write_text(EXPERIMENTS)
    monkeypatch.setattr(status, "load", lambda: load_file(tmp_path / "experiments.yml"))
    monkeypatch.setattr(pipeline, "ROOT", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(status, "available_cores", lambda: 2)
    return tmp_path


def record_of(run: Run, dev: float, seconds: float = 0.0) -> Record:
    return synthetic.record(run, dev - 1, dev, seconds / run.config.epochs)


def load():
    return status.load()


def lines(capsys, *arguments: str) -> list[list[str]]:
    assert main(["status", *arguments]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_scores_and_time_left(folder, capsys):
    runs = load().pick(["paper"])
    for run, dev in zip(runs, (99.0, 99.5, 99.25), strict=False):
        record_of(run, dev, seconds=3600).save(folder / run.record)
    shown = lines(capsys, "paper")
    # 7 runs of an hour and, with BN, 10 of 75 minutes, on two cores.
    scores = ["99.50%", "98.50%", "table2-baseline-s1"]
    assert shown[1][1:9] == ["20", "3", "0", "0", "17", *scores]
    assert shown[1][9:] == ["9:45:00", "on", "2", "cores"]
    table = {row[0]: row[1:] for row in shown[3:]}
    assert table["paper/table2-baseline"] == ["5", "3", "0", "0", "2", *scores]
    assert table["paper/table3-k05"] == ["5", "0", "0", "0", "5", "-", "-", "-"]
    for run in runs[3:-1]:
        record_of(run, 99.0, seconds=3600).save(folder / run.record)
    assert lines(capsys, "paper")[1][9] == "1:15:00", "the last run has one core"


def test_time_left_is_from_the_same_suite_and_leaves_pauses_out(folder, capsys):
    assert {row[0]: row[9] for row in lines(capsys)}["paper"] == "unknown"
    plain = load().pick(["paper"], ["table2-baseline"], [0, 1])
    short = load().pick(["ablation"], ["ratio-k05"], [0])[0]
    for run in plain:
        record_of(run, 99.0, seconds=3600).save(folder / run.record)
    paused = record_of(plain[0], 99.0, seconds=3600)
    paused.history[7]["seconds"] += 50_000
    paused.provenance["seconds"] += 50_000
    paused.save(folder / plain[0].record)
    record_of(short, 98.0, seconds=660).save(folder / short.record)
    shown = {row[0]: row[9] for row in lines(capsys)}
    assert shown["paper"] == "10:15:00"  # 8 runs of an hour, 10 of 75 minutes, on two cores
    # 5 runs of eleven minutes; 3 see a fifth of the images, and as many when they are scored.
    assert shown["ablation"] == "34:24"
    # Another network on other data: an image costs three and a half times as much.
    assert shown["cifar10"] == "2:53:04"


def test_a_run_under_way(folder, capsys):
    done, under_way = load().pick(["paper"], ["table2-baseline"], [0, 1])
    record_of(done, 99.0, seconds=7200).save(folder / done.record)
    path = checkpoints.checkpoint_path(under_way.config)
    path.parent.mkdir(parents=True)
    checkpoints.save(path, under_way.config, {"history": [{}] * 15})
    assert lines(capsys, "paper")[1][1:6] == ["20", "1", "0", "0", "19"]
    with checkpoints.held(path):
        shown = lines(capsys, "paper")
    assert shown[1][1:6] == ["20", "1", "1", "0", "18"]
    assert shown[-1] == ["Running:", "paper/table2-baseline-s1,", "epoch", "16", "of", "30"]
    # To look has left the lock to whoever wants it.
    with FileLock(path.with_name(f"{path.name}.lock"), timeout=0):
        pass
    # What other code left is named.
    other = path.with_name(f"{path.name.partition('-')[0]}-other.pt")
    other.write_bytes(bytes(2_000_000))
    said = " ".join(lines(capsys)[-1])
    assert said.startswith("Left aside: 1 checkpoint of other code or configurations, 2 MB, in ")
    assert str(path.parent) in said


def test_what_does_not_count_is_named(folder, capsys):
    first, second, third = load().pick(["paper"], ["table2-baseline"], [0, 1, 2])
    record = record_of(first, 99.0)
    synthetic.diverged(record, epoch=2).save(folder / first.record)
    record.save(folder / second.record)
    (folder / third.record).write_text("{")
    assert lines(capsys)[1][1:6] == ["20", "1", "0", "1", "18"], "damaged is not missing"
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    assert "Diverged: paper/table2-baseline-s0, in epoch 2, step 5" in out
    assert f"Does not count: {second.record}: of another configuration" in out and "(seed 0)" in out
    assert f"git checkout -- {folder / third.record}" in out
