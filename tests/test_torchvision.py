"""The import shim, in a fresh interpreter: what is declared cannot be taken back."""

import subprocess
import sys

CODE = """
import torch
from meprop.study import _torchvision as shim
declared = {f"torchvision::{name}" for name in shim.OPERATORS}
known = {s.name for s in torch._C._jit_get_all_schemas() if s.name.startswith("torchvision::")}
assert known >= declared, known
assert shim.extension_loads() or known == declared, known
shim.declare_missing_operators()

import torchvision
from torchvision import datasets, models, transforms, utils
from torchvision.transforms import v2
image = torch.rand(3, 32, 32)
assert v2.Resize(16)(image).shape == (3, 16, 16)
assert models.resnet18(num_classes=3)(image[None].repeat(2, 1, 1, 1)).shape == (2, 3)
assert utils.make_grid([image, image]).dim() == 3
assert datasets.MNIST.__name__ == "MNIST"

# Where the extension can be loaded, it keeps its own operators.
defined = []
torch.library.define = lambda *a: defined.append(a)
shim.extension_loads = lambda: True
shim.declare_missing_operators()
assert defined == [], defined
"""


def test_only_the_two_schemas_and_only_without_the_extension():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
