"""One thread, the same hypothesis examples on every run, and what must run alone."""

import pytest
import torch
from hypothesis import settings

from meprop.study.pages import TIMED

torch.set_num_threads(1)
settings.register_profile("meprop", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("meprop")


def pytest_collection_modifyitems(items):
    """Mark the notebooks that measure times: `make test` runs nothing beside them."""
    for item in items:
        if any(name in item.nodeid for name in TIMED):
            item.add_marker(pytest.mark.timed)
