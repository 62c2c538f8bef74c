"""The pipeline from a small experiments.yml to records, in a copy of the checkout.

Each run costs a few seconds of imports, so a test asks for as few of them as it can.
"""

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import synthetic
from checkout import ROOT, Checkout
from filelock import FileLock

from meprop.__main__ import main
from meprop.study import DataError, notebook, pipeline
from meprop.study import checkpoint as checkpoints
from meprop.study.config import Config
from meprop.study.experiments import load
from meprop.study.record import Record, RecordError
from meprop.study.settings import SettingError

EXPERIMENTS = """\
suites:
  small:
    about: two short runs
    committed: true
    # The masked backend has nothing to compile first.
    config: {dataset: digits, train_size: 50, epochs: 1, backend: masked}
    seeds: [0]
    runs:
      plain: {}
      sparse: {ratio: 0.05}
  long:
    about: a run with time enough to be killed in
    committed: true
    config: {dataset: digits, train_size: 50, epochs: 16, backend: masked}
    seeds: [1]
    runs:
      plain: {}
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return copied(tmp_path_factory.mktemp("pipeline"))


def copied(folder):
    made = Checkout(folder, EXPERIMENTS)
    shutil.copy(ROOT / "notebooks/train.ipynb", made.root / "notebooks")
    with (made.root / "meprop/study/_startup.py").open("a") as startup:
        startup.write('open("collecting", "w").write(str(__import__("gc").isenabled()))\n')
    return made


def test_a_failed_run_is_named_and_the_others_finish(checkout):
    # A checkpoint that belongs to another run cannot be gone on from.
    foreign = checkout.checkpoint("small", "sparse")
    foreign.parent.mkdir(parents=True)
    checkpoints.save(foreign, Config(dataset="digits"), {})
    code, output = checkout.meprop("run", "small")
    assert code == 1, output
    assert "1 of 2 runs finished." in output
    failed = output.splitlines()[-1]
    assert failed.startswith("Failed: small/sparse-s0: ")
    assert "this checkpoint belongs to another configuration" in failed
    assert failed.endswith("(log: _build/logs/small/sparse-s0.log)")
    # For a closer look: what was executed of its notebook, and the log.
    assert (
        "another configuration" in (checkout.root / "_build/logs/small/sparse-s0.log").read_text()
    )
    half = nbformat.read(checkout.root / "_build/logs/small/sparse-s0.ipynb", 4)
    assert any(o.output_type == "error" for c in half.cells for o in c.get("outputs", ()))
    assert not (checkout.root / "results/small/sparse-s0.json").exists()

    # Once the cause is gone, only what is missing is done, and nobody has to listen.
    plain = (checkout.root / "results/small/plain-s0.json").read_bytes()
    foreign.unlink()
    process = checkout.start(sys.executable, "-m", "meprop", "run", "small")
    assert process.stdout is not None
    assert process.stdout.readline() == "1 of 2 runs of small to train.\n"
    process.stdout.close()
    process.wait()
    assert (checkout.root / "results/small/sparse-s0.json").exists()
    assert (checkout.root / "results/small/plain-s0.json").read_bytes() == plain
    assert list(foreign.parent.iterdir()) == [], "a checkpoint is dropped once its record is safe"


def finished(checkout, run):
    record = Record.load(checkout.root / run.record)
    assert record.config == run.config
    assert record.status == "finished"
    return record


def test_what_a_run_leaves(checkout):
    for run in load(checkout.root / "experiments.yml").pick(["small"]):
        record = finished(checkout, run)
        path = checkout.root / run.notebook
        assert path.stat().st_size < 150_000
        text = path.read_text("utf-8")
        assert str(checkout.root) not in text
        notebook = nbformat.reads(text, 4)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert all(cell.execution_count for cell in code)
        assert sum("image/png" in o.get("data", ()) for c in code for o in c.outputs) == 4
        assert f"{record.test_accuracy:.2f} |" in text and record.digest[:16] in text
    assert not checkout.kernels()
    assert (checkout.root / "collecting").read_text() == "False", "a kernel began with _startup.py"


def test_a_fresh_clone_has_nothing_to_train(checkout, tmp_path, monkeypatch, capsys):
    clone = copied(tmp_path)
    for folder in ("results", "notebooks"):
        shutil.copytree(checkout.root / folder, clone.root / folder, dirs_exist_ok=True)
    # In a clone the times of files are in no order: records older or newer than all they come from.
    times = random.Random(0)
    for path in sorted(clone.root.rglob("*")):
        os.utime(path, (moment := times.randrange(10**9, 2 * 10**9), moment))
    monkeypatch.setattr(pipeline, "ROOT", clone.root)
    assert main(["run", "small", "--dry-run"]) == 0
    assert capsys.readouterr().out == "Nothing to train: all 2 runs of small are done.\n"
    code, output = clone.run(sys.executable, "-m", "snakemake", "--dry-run", "--cores", "1")
    assert code == 0, output
    assert "long/plain-s1.json" in output, "what is missing is listed"
    assert "results/small" not in output

    # Another configuration under the same name is another run.
    changed = EXPERIMENTS.replace("sparse: {ratio: 0.05}", "sparse: {ratio: 0.1}")
    (clone.root / "experiments.yml").write_text(changed)
    assert main(["run", "small", "--dry-run"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == ["1 of 2 runs of small to train.", "  small/sparse-s0"]


def test_what_was_finished_meanwhile_stays(checkout):
    record = checkout.root / "results/small/plain-s0.json"
    content = record.read_bytes()
    target = record.relative_to(checkout.root).as_posix()
    code, output = checkout.run(
        *(sys.executable, "-m", "snakemake", "--cores", "1", "--nolock"),
        *("--forcerun", target, "--", target),
    )
    assert code == 0 and "1 of 1 steps" in output, output
    assert "started" not in output and record.read_bytes() == content


def wait_for(process, path, after=None):
    """Until a file is there and changed, or longer than anything takes."""
    for _ in range(3000):
        try:
            process.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            if path.exists() and path.stat().st_mtime_ns != after:
                return
        else:
            break
    pytest.fail(f"no {path.name}: {process.stdout.read()}")


def test_stopped_and_killed_it_goes_on(checkout):
    state = checkout.checkpoint("long", "plain")
    command = (sys.executable, "-m", "meprop", "run", "long")
    first = checkout.start(*command)
    wait_for(first, state)
    first.terminate()
    output, _ = first.communicate()
    assert first.returncode == 130
    assert output.endswith("Stopped: the same command goes on where it was.\n"), output
    stopped = datetime.now(UTC)

    second = checkout.start(*command)
    wait_for(second, state, after=state.stat().st_mtime_ns)
    second.kill()
    # The very next command, while what the killed one left behind is still about.
    code, output = checkout.meprop("run", "long")
    assert code == 0, output
    second.communicate()
    (run,) = load(checkout.root / "experiments.yml").pick(["long"])
    record = finished(checkout, run)
    assert len(record.history) == 16
    assert datetime.fromisoformat(record.provenance["start"]) < stopped, "it began anew"
    assert not checkout.kernels()


# The rest needs no run


@pytest.fixture
def root(tmp_path, monkeypatch):
    """An empty folder in place of the checkout, with its experiments."""
    monkeypatch.setattr(pipeline, "ROOT", tmp_path)
    shutil.copy(ROOT / "experiments.yml", tmp_path)
    return tmp_path


@pytest.fixture
def one_run(root):
    """A run of it that is finished, its record and where that belongs."""
    (run,) = load().pick(["paper"], ["table2-k08-d0"], [0])
    record = replace(synthetic.record(run), provenance={"code": "other"})
    return run, record, root / run.record


def test_a_process_ends_with_its_owner(monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as owner:
        notebook._end_with(owner.pid)
        assert not ended.is_set()
        owner.kill()
        assert ended.wait(timeout=60), "nobody has waited for the owner: a zombie is gone too"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("run papre", "experiments.yml: no suite 'papre'; did you mean 'paper'?"),
        ("run quick --profile slrm", "profiles: no profile 'slrm'; did you mean 'slurm'?"),
        ("run quick --cores 0", "run: cores must be at least 1, got 0"),
        (
            "run quick --seeds 0,1",
            "python -m meprop: argument --seeds: seeds are numbers with blanks between, got '0,1'",
        ),
    ],
)
def test_a_wrong_argument_is_one_sentence(arguments, sentence, capsys):
    try:
        status = main(arguments.split())
    except SystemExit as exit:
        status = exit.code
    assert (status, capsys.readouterr().err) == (2, f"{sentence}\n")


def made(*arguments):
    """What make would do, or why it does not."""
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", *arguments], cwd=ROOT, capture_output=True, text=True
    )
    return done.stdout.replace("\\\n", " ") + done.stderr


def test_what_make_trains():
    assert "-m meprop book\n" in made("book") and "run paper" not in made("book")
    picked = made("reproduce", "ONLY=table2-* table3-baseline", "SEEDS=0 1", "PROFILE=slurm")
    command = "run --only 'table2-* table3-baseline' --seeds 0 1 --profile 'slurm'"
    assert command in " ".join(picked.split())
    one = made("reproduce", "SUITES=cifar10", "ONLY=dense")
    assert "run cifar10 --only 'dense'" in " ".join(one.split())
    assert "no SEED=; there are SUITES=, ONLY=, SEEDS= and PROFILE=" in made("reproduce", "SEED=0")


def test_without_a_name_every_committed_suite_is_trained(capsys):
    assert main(["run", "--dry-run"]) == 0
    said = capsys.readouterr().out.splitlines()[0]
    suites = [name for name, suite in load().suites.items() if suite.committed]
    assert len(suites) == 6 and said.endswith(f" runs of {', '.join(suites)} to train.")


def test_without_data_nothing_is_started(root, monkeypatch, capsys):
    def unreachable(name):
        raise DataError(f"{name}: not there\n  tried this\n  and that")

    monkeypatch.setattr(pipeline, "load_data", unreachable)
    assert main(["run", "paper"]) == 2
    assert capsys.readouterr().err == "mnist: not there\n  tried this\n  and that\n"
    assert not (root / "_build/logs").exists()
    # The runs would look for a relative folder elsewhere.
    monkeypatch.chdir(root)
    monkeypatch.setenv("MEPROP_DATA", "own")
    assert main(["run", "paper"]) == 2
    assert os.environ["MEPROP_DATA"] == str(root / "own")


def test_a_diverged_run_is_named_in_the_summary(one_run, capsys):
    run, record, path = one_run
    synthetic.diverged(record, epoch=2).save(path)
    assert pipeline._sum_up([run], path, stopped=False) == 0
    assert "Diverged: paper/table2-k08-d0-s0, in epoch 2, step 5\n" in capsys.readouterr().out


def test_a_record_counts_only_whole_and_of_its_configuration(one_run, root, monkeypatch):
    run, record, path = one_run
    assert pipeline.find(run) == (None, "missing")
    record.save(path)
    assert pipeline.find(run) == (record, "")
    other = synthetic.record(replace(run, config=replace(run.config, seed=1)))
    other.save(path)
    assert "(seed 1)" in pipeline.find(run)[1]
    path.write_text("{")
    with pytest.raises(RecordError, match="git checkout"):
        pipeline.find(run)
    built = replace(run, committed=False)
    (root / built.record).parent.mkdir(parents=True)
    (root / built.record).write_text("{")
    assert pipeline.find(built)[0] is None, "nobody can restore it"
    record.save(root / built.record)
    assert "made by other code" in pipeline.find(built)[1]
    monkeypatch.setattr(pipeline, "code_digest", lambda: "other")
    assert pipeline.find(built) == (record, "")


def test_what_does_not_count_makes_room(one_run, root, capsys):
    run, record, path = one_run
    draft = (root / pipeline.draft(run)).with_suffix(".json")
    record.save(path)
    record.save(draft)
    pipeline._prepare(run)
    assert path.exists() and draft.exists(), "both count"
    other = synthetic.record(replace(run, config=replace(run.config, seed=1)))
    other.save(path)
    draft.write_text("{")
    pipeline._prepare(run)
    assert not path.exists() and not draft.exists()
    # It may have taken hours: make clean leaves it, and the terminal says where it is.
    (aside,) = root.rglob("table2-k08-d0-s0-*.json")
    assert Record.load(aside) == other
    assert aside.relative_to(root).as_posix() in capsys.readouterr().out
    removed = re.findall(r"^\trm -rf (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert aside.relative_to(root).parts[0] not in " ".join(removed).split()

    # What other code drafted would not count either.
    record.save(draft)
    pipeline._prepare(replace(run, committed=False))
    assert not draft.exists()


def test_two_at_a_time_take_turns(root, monkeypatch):
    said, entered = threading.Event(), threading.Event()
    monkeypatch.setattr("builtins.print", lambda *words, **_: said.set())

    def second():
        with pipeline.alone(["paper", "ablation"]):
            entered.set()

    with pipeline.alone(["ablation", "paper"]):
        assert not said.is_set()
        thread = threading.Thread(target=second)
        thread.start()
        assert said.wait(timeout=60), "it says that it waits"
        assert not entered.is_set()
    thread.join(timeout=60)
    assert entered.is_set()
    # Nobody holds it any more.
    with FileLock(root / "_build/locks/paper.lock", timeout=0):
        pass


def test_what_cannot_be_written_is_named(root, monkeypatch, capsys):
    """A superuser may write anywhere; a file in place of a folder stops one too."""
    (root / "_build").touch()
    assert main(["run", "quick"]) == 2
    assert capsys.readouterr().err == f"{root / '_build/locks'}: Not a directory\n"
    (root / "_build").unlink()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert main(["run", "quick"]) == 2
    said = capsys.readouterr().err
    assert said == f"{root / '_build/results/quick'}: nothing can be written there\n"
    monkeypatch.setattr(notebook, "ROOT", root)
    monkeypatch.setattr(notebook, "train", None)  # it is said before
    with pytest.raises(SettingError, match=f"^record: {root / 'a'}: nothing can be written"):
        notebook.obtain(Config(), "a/b.json")


def test_a_full_disk_is_named(monkeypatch):
    def speak(arguments):
        print("something", file=sys.stderr)

    monkeypatch.setitem(sys.modules, "snakemake.cli", SimpleNamespace(main=speak))
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        pipeline.snakemake([], Path("/dev/full"), ["--cores", "1"])


def test_what_was_not_started_gets_the_reason_too(root):
    own, log = Path("own.log"), Path("all.log")
    (root / log).write_text("Traceback\n\nOSError: Read-only file system: 'cache'\n\n")
    reason = "OSError: Read-only file system: 'cache' (log: all.log)"
    assert pipeline.why(own, log) == f"it was not started: {reason}"
    (root / own).write_text("of its own\n")
    assert pipeline.why(own, log) == "of its own (log: own.log)"


def test_what_was_killed_says_so(tmp_path):
    """The shell's own message would be the whole command."""
    rule = (ROOT / "Snakefile").read_text().replace("{{", "{").replace("}}", "}")
    (fail,) = re.findall(r"fail\(\) \{.+?\n +\}\n", rule, re.DOTALL)
    fail = fail.replace("{params.draft}", str(tmp_path / "run"))
    for end, said in (("kill -KILL $BASHPID", "it was killed\n"), ("exit 1", "reason\n")):
        (tmp_path / "run.log").write_text("reason\n")
        code = f"say() {{ :; }}\n{fail}( {end} ) 2> /dev/null || fail"
        assert subprocess.run(["bash", "-c", code]).returncode == 1
        assert (tmp_path / "run.log").read_text().endswith(said)


def test_progress_is_a_line_for_each_run_under_way(one_run, root, monkeypatch):
    """On a terminal the lines are kept up to date, in place."""
    run = one_run[0]
    other = replace(run, seed=1)
    master, slave = os.openpty()
    with os.fdopen(master, "rb", 0) as shown, os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        state = (root / run.log).with_suffix(".progress")
        state.parent.mkdir(parents=True)
        state.write_text("epoch 3/30: 10% [00:12<01:50]")
        with pipeline.progress([run, other]):
            first = shown.read(1000)
            state.write_text("epoch 4/30: 13% [00:16<01:46]")
            second = shown.read(1000)
        last = shown.read(1000)
    clear, up = b"\r\x1b[J", b"\x1b[A"
    assert first.startswith(clear + b"paper/table2-k08-d0-s0  epoch 3/30: 10% [00:12<01:50]")
    assert b"epoch 4/30" in second and first.endswith(up) and second.count(b"\n") == 1
    assert last.endswith(clear)


def test_without_the_studys_packages_the_way_out_is_said(monkeypatch, capsys):
    for name in ("_download", "_files"):  # as if nothing had imported them yet
        monkeypatch.delitem(sys.modules, f"meprop.study.{name}")
    monkeypatch.setitem(sys.modules, "filelock", None)
    assert main(["status"]) == 2
    said = capsys.readouterr().err
    assert "filelock" in said and "checkout" in said and said.count("\n") == 1
    assert "pip install 'meprop[study]'" in said


def test_stopped_at_once_it_shows_no_traceback(tmp_path):
    """Ctrl-C while torch is imported: here a stand-in for it says when."""
    (tmp_path / "torch.py").write_text("print(1, flush=True)\ninput()")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", "meprop", "status"]
    # Whoever runs the tests may ignore the signal, as a shell makes its background jobs do.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    given = {"env": environment, "cwd": ROOT, "preexec_fn": heard}
    with subprocess.Popen(command, **given, **pipes) as process:
        assert process.stdout.readline() == b"1\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == -signal.SIGINT
        assert process.stderr.read() == b""


def test_a_taken_port_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (check,) = re.findall(r"^! .*/dev/tcp.*$", made("serve", f"PORT={port}"), re.MULTILINE)
        done = subprocess.run(["bash", "-c", check], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"make serve: port {port} is taken; name another one, such as PORT=8001\n"
