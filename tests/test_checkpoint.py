import hashlib
import io
import os
import pickle
import subprocess
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


def test_nothing_there(tmp_path):
    assert load(tmp_path / "none.pt", CONFIG) is None


def test_it_is_replaced_whole(path, monkeypatch):
    def power_cut(*_):
        raise OSError("power cut")

    monkeypatch.setattr(os, "replace", power_cut)
    with pytest.raises(OSError, match="power cut"):
        save(path, CONFIG, {"weights": None})
    assert torch.equal(load(path, CONFIG)["weights"], STATE["weights"])


def truncate(content):
    return content[: len(content) // 2]


def empty(content):
    return b""


def flip(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def other_kind(content):
    return b"something else\n"


@pytest.mark.parametrize("damage", [truncate, empty, flip, other_kind])
def test_a_damaged_one_starts_over_with_a_warning(path, damage):
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(UserWarning, match=r"run\.pt: damaged checkpoint, starting from the begin"):
        assert load(path, CONFIG) is None


def test_other_code_is_refused(path, monkeypatch):
    monkeypatch.setattr(checkpoint, "code_digest", lambda: "f" * 64)
    with pytest.raises(CheckpointError, match=r"run\.pt: .*another state of the code; delete it"):
        load(path, CONFIG)


def test_another_configuration_is_refused(path):
    with pytest.raises(CheckpointError, match=r"run\.pt: .*another configuration; delete it"):
        load(path, Config(dataset="digits", ratio=0.05, epochs=3))


def test_it_runs_no_code(path, tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "evil"), "w"))

    content = io.BytesIO()
    torch.save({"config": Evil()}, content)
    payload = content.getvalue()
    header = checkpoint.MAGIC + hashlib.sha256(payload).hexdigest().encode()
    path.write_bytes(header + b"\n" + payload)
    with pytest.raises(pickle.UnpicklingError):
        load(path, CONFIG)
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


HOLDER = """
import sys
from pathlib import Path
from meprop.study.checkpoint import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_two_processes_do_not_do_the_same_work(tmp_path):
    path = tmp_path / "deep" / "run.pt"
    command = [sys.executable, "-c", HOLDER, path]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(CheckpointError, match=r"run\.pt: another process"), held(path, 0):
            pass
        other.kill()
        other.wait()
        # The dead hold nothing.
        with held(path):
            pass
    save(path, CONFIG, STATE)
    discard(path)
    discard(path)
    assert not list(path.parent.iterdir())


def test_a_glance_at_the_lock_stops_nobody(tmp_path, monkeypatch):
    path = tmp_path / "run.pt"
    glance = FileLock(checkpoint._lock_file(path))
    glance.acquire()
    monkeypatch.setattr(time, "sleep", lambda _: glance.release())  # while `held` waits
    with held(path):
        assert not glance.is_locked
