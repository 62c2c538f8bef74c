"""One thread, and the same hypothesis examples on every run."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("meprop", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("meprop")
