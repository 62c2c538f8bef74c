"""One thread, the same hypothesis examples on every run; what runs first, what alone."""

import os
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from meprop.study.pages import ROOT, TIMED, pages

torch.set_num_threads(1)
settings.register_profile("meprop", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("meprop")

# What one process does from beginning to end: begun late, it would be waited for alone.
LONG = ("test_browser.py", "13-deep.ipynb", "test_pipeline.py", "test_pages.py")


def pytest_collection_modifyitems(items):
    """The longest first; mark what measures times: `make test` runs nothing beside it."""
    items.sort(key=lambda item: [name not in item.nodeid for name in LONG])
    for item in items:
        if any(name in item.nodeid for name in TIMED):
            item.add_marker(pytest.mark.timed)


@pytest.fixture
def threads_for_small_gradients(monkeypatch):
    """The kernels use all threads that there are, however small a gradient is."""
    from meprop.kernels import _driver

    monkeypatch.setattr(_driver, "_SMALL", 0)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def pytest_configure(config):
    config.pluginmanager.register(Opened())  # hooks of this file are for its folder alone


# Beside what a page reads: code, and what is built or describes all runs
ANYWAY = ["*.py", "*.pyc", "*.nb[ic]", "_build/*", ".venv/*", "experiments.yml", ".git/*"]


class Opened:
    """A page opens only what its notebook's pages say they read: that changed, it is made anew."""

    def __init__(self):
        self.log, self.reads, every = ROOT / "_build" / "opened", {}, pages()
        for page in every:
            same = [its for each in every if each.notebook == page.notebook for its in each.reads]
            self.reads[page.path.as_posix()] = ANYWAY + same

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        """The kernel that nbval starts for the first cell notes what it opens."""
        for name in ("PYTHONSTARTUP", "MEPROP_OPENED"):
            os.environ.pop(name, None)
        if item.name == "Cell 0":
            self.log.mkdir(parents=True, exist_ok=True)
            os.environ["MEPROP_OPENED"] = str(self.log / item.path.stem)
            os.environ["PYTHONSTARTUP"] = str(Path(__file__).with_name("listener.py"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item, nextitem):
        yield
        if item.path.suffix == ".ipynb" and (nextitem is None or nextitem.path != item.path):
            name = item.path.relative_to(ROOT).as_posix()
            opened = set((self.log / item.path.stem).read_text("utf-8").splitlines())
            secret = [it for it in opened if not any(fnmatchcase(it, p) for p in self.reads[name])]
            assert not secret, f"meprop/study/pages.py does not say that {name} reads {secret[:3]}"
