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


def test_nothing_there(folder, capsys):
    head, *rows = lines(capsys)
    assert head[:5] == ["suite", "runs", "done", "running", "missing"]
    assert rows == [
        ["paper", "20", "0", "0", "20", "-", "-", "-", "unknown"],
        ["ablation", "9", "0", "0", "9", "-", "-", "-", "unknown"],
    ]


def test_scores_and_time_left(folder, capsys):
    runs = load().pick(["paper"])
    for run, dev in zip(runs, (99.0, 99.5, 99.25), strict=False):
        record_of(run, dev, seconds=3600).save(folder / run.record)
    _, row = lines(capsys, "paper")[:2]
    # 17 runs of an hour each on two cores.
    assert row[1:8] == ["20", "3", "0", "17", "99.50%", "98.50%", "table2-baseline-s1"]
    assert " ".join(row[8:]) == "8 h 30 min on 2 cores"
    table = {row[0]: row[1:] for row in lines(capsys, "paper")[3:]}
    scores = ["99.50%", "98.50%", "table2-baseline-s1"]
    assert table["table2-baseline"] == ["5", "3", "0", "2", *scores]
    assert table["table3-k05"] == ["5", "0", "0", "5", "-", "-", "-"]


def test_time_left_is_from_the_runs_most_like_it_and_leaves_pauses_out(folder, capsys):
    plain, norm = (load().pick(["paper"], [f"table{n}-baseline"], [0])[0] for n in (2, 3))
    short = load().pick(["ablation"], ["ratio-k05"], [0])[0]
    paused = record_of(plain, 99.0, seconds=3600)
    paused.history[7]["seconds"] = 50_000.0
    paused.save(folder / plain.record)
    record_of(norm, 99.0, seconds=7200).save(folder / norm.record)
    record_of(short, 98.0, seconds=600).save(folder / short.record)
    shown = {row[0]: " ".join(row[8:]) for row in lines(capsys)}
    # 9 runs of an hour, 9 of two, on two cores.
    assert shown["paper"] == "13 h 30 min on 2 cores"
    # 5 runs of ten minutes, 3 with a fifth of the images.
    assert shown["ablation"] == "28 min on 2 cores"


def test_the_last_run_has_one_core(folder, capsys):
    for run in load().pick(["paper"])[:-1]:
        record_of(run, 99.0, seconds=3600).save(folder / run.record)
    assert " ".join(lines(capsys, "paper")[1][8:]) == "1 h 0 min on 2 cores"


def test_a_run_under_way(folder, capsys):
    done, under_way = load().pick(["paper"], ["table2-baseline"], [0, 1])
    record_of(done, 99.0, seconds=7200).save(folder / done.record)
    path = checkpoints.checkpoint_path(under_way.config)
    path.parent.mkdir(parents=True)
    checkpoints.save(path, under_way.config, {"history": [{}] * 15})
    assert lines(capsys, "paper")[1][1:5] == ["20", "1", "0", "19"]
    with checkpoints.held(path):
        shown = lines(capsys, "paper")
    assert shown[1][1:5] == ["20", "1", "1", "18"]
    assert shown[-1] == ["Running:", "paper/table2-baseline-s1,", "epoch", "16", "of", "30"]
    # To look has left the lock to whoever wants it.
    with FileLock(path.with_name(f"{path.name}.lock"), timeout=0):
        pass


def test_checkpoints_of_other_code_are_named(folder, capsys):
    (run,) = load().pick(["paper"], ["table2-baseline"], [0])
    path = checkpoints.checkpoint_path(run.config)
    path.parent.mkdir(parents=True)
    checkpoints.save(path, run.config, {"history": [{}]})
    assert "Left aside" not in " ".join(map(" ".join, lines(capsys)))
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
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    assert "Diverged: paper/table2-baseline-s0, in epoch 2, step 5" in out
    assert f"Does not count: {second.record}: of another configuration" in out
    assert f"{third.record}: not a complete JSON file" in out


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 s"),
        (42, "42 s"),
        (70, "1 min"),
        (3570, "1 h 0 min"),
        (90 * 60, "1 h 30 min"),
        (100_000, "1 d 3 h"),
    ],
)
def test_durations(seconds, words):
    assert status.duration(seconds) == words
