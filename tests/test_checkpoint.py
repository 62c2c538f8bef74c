import hashlib
import io
import multiprocessing
import os
import sys
import time

import pytest
import torch
from filelock import FileLock

from meprop.study import checkpoint
from meprop.study.checkpoint import CheckpointError, checkpoint_path, discard, held, load, save
from meprop.study.config import Config

CONFIG = Config(dataset="digits", ratio=0.05, epochs=2)
STATE = {"weights": torch.arange(5.0), "history": [{"epoch": 1, "dev": 97.5}], "best": None}


@pytest.fixture
def path(tmp_path):
    save(tmp_path / "run.pt", CONFIG, STATE)
    return tmp_path / "run.pt"


def test_round_trip(path):
    state = load(path, CONFIG)
    assert torch.equal(state["weights"], STATE["weights"])
    assert (state["history"], state["best"]) == (STATE["history"], None)
    assert [p.name for p in path.parent.iterdir()] == ["run.pt"]
    assert load(path.with_name("none.pt"), CONFIG) is None


def flip(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [lambda c: c[: len(c) // 2], lambda c: b"", flip])
def test_a_damaged_one_starts_over_with_a_warning(path, damage):
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(UserWarning, match=r"run\.pt: damaged checkpoint, starting from the begin"):
        assert load(path, CONFIG) is None


def test_other_code_and_another_configuration_are_refused(path, monkeypatch):
    with pytest.raises(CheckpointError, match=r"another configuration \(epochs 2\); delete it"):
        load(path, Config(dataset="digits", ratio=0.05, epochs=3))
    monkeypatch.setattr(checkpoint, "code_digest", lambda: "f" * 64)
    with pytest.raises(CheckpointError, match=r"run\.pt: .*another state of the code; delete it"):
        load(path, CONFIG)


def test_a_file_of_somebody_else_is_not_replaced(path):
    torch.save(STATE, path)
    with pytest.raises(CheckpointError, match=r"run\.pt: not a checkpoint of a run; delete it"):
        load(path, CONFIG)


def test_what_is_no_file_and_what_cannot_be_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # nothing may ever come from it
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(CheckpointError, match=r"no checkpoint \(not a file\)"):
            load(path, CONFIG)
    (tmp_path / "file").touch()
    wrong = pytest.raises(CheckpointError, match=r"file.*XDG_CACHE_HOME")
    with wrong, held(tmp_path / "file/a.pt"):
        pass


class Evil:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize(
    "content", [Evil, lambda _: 3, lambda _: {"config": {}}, lambda _: {"config": {"ratoi": 1}}]
)
def test_foreign_content_is_refused_and_runs_no_code(path, tmp_path, content):
    written = io.BytesIO()
    torch.save(content(tmp_path / "evil"), written)
    payload = written.getvalue()
    header = checkpoint.MAGIC + hashlib.sha256(payload).hexdigest().encode()
    path.write_bytes(header + b"\n" + payload)
    with pytest.raises(
        CheckpointError, match=r"run\.pt: holds something else .*delete it"
    ) as error:
        load(path, CONFIG)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "evil").exists()


def test_the_usual_place(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one, other = checkpoint_path(CONFIG), checkpoint_path(Config(seed=1))
    assert one.parent == other.parent
    assert one != other
    assert one == checkpoint_path(Config.from_dict(CONFIG.to_dict()))
    if sys.platform == "linux":
        assert one.parent == tmp_path / "meprop" / "checkpoints"
    monkeypatch.setattr(checkpoint, "code_digest", lambda: "f" * 64)
    assert checkpoint_path(CONFIG) != one


def hold(path, pipe):
    """In a process of its own; what it says on stderr goes the same way."""
    with open(pipe.fileno(), "w", buffering=1, closefd=False) as sys.stderr, held(path):
        print("held", file=sys.stderr)
        pipe.recv()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_second_process_waits_for_the_first(tmp_path):
    path, context = tmp_path / "deep" / "run.pt", multiprocessing.get_context("fork")
    pipes, holders = zip(*(context.Pipe() for _ in range(2)), strict=True)
    first, second = (context.Process(target=hold, args=(path, pipe)) for pipe in holders)
    first.start()
    assert os.read(pipes[0].fileno(), 99) == b"held\n"
    second.start()
    said = os.read(pipes[1].fileno(), 999)
    assert said.startswith(b"Waiting: another process trains this run (") and b"held" not in said
    # It drops the checkpoint and the lock, or dies: the dead hold nothing.
    save(path, CONFIG, STATE)
    discard(path)
    first.kill()
    assert os.read(pipes[1].fileno(), 99) == b"held\n"
    pipes[1].send(None)
    for process in (first, second):
        process.join()
    discard(path)
    assert not list(path.parent.iterdir())


def test_a_glance_at_the_lock_stops_nobody(tmp_path, monkeypatch, capsys):
    path = tmp_path / "run.pt"
    glance = FileLock(checkpoint._lock_file(path))
    glance.acquire()
    monkeypatch.setattr(time, "sleep", lambda _: glance.release())  # while `held` waits
    with held(path):
        assert not glance.is_locked
    assert capsys.readouterr().err == ""
