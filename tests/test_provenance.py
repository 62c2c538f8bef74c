import os
import shutil
import socket
import subprocess
from pathlib import Path

import pandas
import pytest
from test_repository import imports

from benchmarks import states as states_of_code
from meprop.study import load_records
from meprop.study import provenance as module
from meprop.study.experiments import ROOT
from meprop.study.provenance import code_digest, code_files, provenance


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A small repository with a package in it that stands for ours."""
    package = tmp_path / "meprop"
    package.mkdir()
    (package / "rule.py").write_text('"""A rule."""\n\nk = 3  # so many\n')
    (package / "study").mkdir()
    (package / "study" / "training.py").write_text("def train():\n    return 1\n")
    (package / "study" / "figures.py").write_text("colour = 'red'\n")
    (tmp_path / "experiments.yml").write_text("quick: {}\n")
    (tmp_path / "README.md").write_text("# Read me\n")
    monkeypatch.setattr(module, "PACKAGE", package)
    code_digest.cache_clear()
    yield tmp_path
    code_digest.cache_clear()


def git(folder, *arguments):
    settings = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", folder, *settings, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(folder):
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "all")
    return git(folder, "rev-parse", "HEAD")


def origin():
    found = provenance(threads=1)
    return found["commit"], found["dirty"]


def test_clean_and_dirty(checkout, monkeypatch):
    head = commit(checkout)
    assert origin() == (head, False)
    (checkout / "README.md").write_text("# Other\n")
    (checkout / "notes.txt").write_text("not of interest\n")
    assert origin() == (head, False)
    (checkout / "experiments.yml").write_text("quick: {a: 1}\n")
    assert origin() == (head, True)
    git(checkout, "checkout", "-q", "experiments.yml")
    assert origin() == (head, False)
    (checkout / "meprop" / "new.py").write_text("x = 1\n")
    assert origin() == (head, True)
    # Installed inside somebody else's repository
    elsewhere = checkout / "venv" / "site-packages" / "meprop"
    shutil.copytree(checkout / "meprop", elsewhere)
    monkeypatch.setattr(module, "PACKAGE", elsewhere)
    assert origin() == (None, None)


def test_no_repository_and_no_commit_yet(checkout, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(checkout.parent))
    assert origin() == (None, None)
    git(checkout, "init", "-q")
    assert origin() == (None, None)
    monkeypatch.setenv("PATH", "")
    assert origin() == (None, None)


def test_it_names_no_place():
    found = provenance(threads=2)
    assert found["threads"] == 2
    text = repr(found)
    places = [str(Path.home()), str(Path.cwd()), socket.gethostname(), os.environ.get("USER", "")]
    for place in places:
        if len(place) > 3:
            assert place not in text
    for name in ("meprop", "torch", "numpy", "python", "cpu", "cores", "platform", "code"):
        assert found[name]


def edited(path, text):
    path.write_text(text)
    code_digest.cache_clear()
    return code_digest()


def test_the_code_digest_follows_what_the_code_does(checkout, monkeypatch):
    first = code_digest()
    rule = checkout / "meprop" / "rule.py"
    assert edited(rule, '"""Another text."""\n\n\n# reasons\nk = (3)\n') == first
    assert edited(rule, '"""A rule."""\n\nk = 4\n') != first
    assert edited(rule, '"""A rule."""\n\nk = 3\n') == first
    assert edited(checkout / "meprop" / "__main__.py", "speed = 2\n") == first
    assert edited(checkout / "meprop" / "study" / "figures.py", "colour = 'blue'\n") == first
    training = checkout / "meprop" / "study" / "training.py"
    content = training.read_text()
    assert edited(training, "def train(): return 2\n") != first
    assert edited(training, content) == first
    monkeypatch.setattr(module, "_version", lambda package: "0.0")
    assert edited(training, content) != first


def test_the_code_digest_covers_all_that_training_imports():
    ours, found, ahead = imports(), set(), {"meprop.study.training"}
    while ahead:
        found |= ahead
        packages = {name.rpartition(".")[0] for name in ahead} & set(ours)
        ahead = set().union(packages, *(ours[name] for name in ahead)) - found
    parts = (path.relative_to(ROOT).with_suffix("").parts for path in code_files())
    covered = {".".join(each).removesuffix(".__init__") for each in parts}
    study = {name for name in found if name.startswith("meprop.study.")}
    assert study == {name for name in covered if name.startswith("meprop.study.")}
    assert found - study - {"meprop.study"} <= covered


def test_the_states_of_the_code_that_made_records_agree():
    """Pages may compare their records as they stand."""
    states, made = pandas.read_csv(states_of_code.FILE), load_records(ROOT / "results")
    assert states.code.nunique() > 5
    new = set(made.code) - set(states.code)
    assert not new, "measure them: python -m benchmarks.states"
    # The tables, ablations, claims and 14-worth say at their foot: to the last digit.
    scores = ["train_loss", "dev_accuracy", "test_accuracy"]
    for suites in (["paper", "ablation"], ["cifar10"]):
        own = states[states.code.isin(made[made.suite.isin(suites)].code)]
        assert (own.groupby("run")[scores].nunique() == 1).all(axis=None)
    residual = states[states.run == "dense"].code
    assert set(residual) == set(made[made.network == "resnet20"].code)
    losses = states.groupby("run").train_loss
    assert ((losses.max() - losses.min()) / losses.min()).max() < 1e-6
    assert (states.groupby("run").test_accuracy.nunique() == 1).all()
