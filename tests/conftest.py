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


class Opened:
    """A page says which files it reads, and opens no others: it is made anew when they change."""

    def __init__(self):
        self.log = ROOT / "_build" / "opened"
        self.reads = {page.path.as_posix(): page.reads for page in pages()}
        # Code, and what is built or describes all runs
        self.anyway = (
            "*.py",
            "*.pyc",
            "*.nb[ic]",
            "_build/*",
            ".venv/*",
            "experiments.yml",
            ".git/*",
        )

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
            said = (*self.reads[name], *self.anyway)
            opened = set((self.log / item.path.stem).read_text("utf-8").splitlines())
            secret = [it for it in opened if not any(fnmatchcase(it, its) for its in said)]
            assert not secret, f"meprop/study/pages.py does not say that {name} reads {secret[:3]}"
