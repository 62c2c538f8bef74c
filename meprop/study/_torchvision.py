"""Make `import torchvision` work beside a CPU build of torch.

The registry may pair a CPU torch with a CUDA torchvision, whose compiled extension then does not
load, and whose Python part fails on import because two operators are not declared. Nothing here
uses these operators: declaring their schemas is enough for datasets, transforms, models and utils.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec

import torch

OPERATORS = ("nms", "qnms")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def extension_loads() -> bool:
    """Tell whether torchvision's compiled extension can be loaded beside this torch."""
    package = find_spec("torchvision")
    if package is None or not package.submodule_search_locations:
        return False
    extension = PathFinder.find_spec("_C", package.submodule_search_locations)
    if extension is None or extension.origin is None:
        return False
    try:
        torch.ops.load_library(extension.origin)
    except OSError:
        return False
    return True


def declare_missing_operators() -> None:
    """Declare the two schemas, unless the extension does."""
    if not extension_loads():
        for name in OPERATORS:
            if not hasattr(torch.ops.torchvision, name):
                torch.library.define(f"torchvision::{name}", SCHEMA)


declare_missing_operators()
