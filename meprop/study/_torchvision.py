"""Make `import torchvision` work beside a CPU build of torch.

The registry may pair a CPU torch with a CUDA torchvision, whose compiled extension then does not
load, and whose Python part fails on import because two operators are not declared. Nothing here
uses these operators: declaring their schemas is enough for datasets, transforms, models and utils.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os

import torch

SCHEMAS = (
    "torchvision::nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "torchvision::qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def extension_loads() -> bool:
    """Tell whether torchvision's compiled extension can be loaded beside this torch."""
    package = importlib.util.find_spec("torchvision")
    if package is None or not package.submodule_search_locations:
        return False
    loader = (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES)
    finder = importlib.machinery.FileFinder(package.submodule_search_locations[0], loader)
    extension = finder.find_spec("_C")
    if extension is None or extension.origin is None:
        return False
    try:
        torch.ops.load_library(os.fspath(extension.origin))
    except OSError:
        return False
    return True


def declare_missing_operators() -> None:
    """Declare the two schemas, unless the extension does."""
    if not extension_loads():
        for schema in SCHEMAS:
            name, signature = schema.split("(", 1)
            if not hasattr(torch.ops.torchvision, name.split("::")[1]):
                torch.library.define(name, f"({signature}")


declare_missing_operators()
