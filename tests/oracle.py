"""Notebooks on data whose answers are known: their cells run here, and leave their variables."""

from pathlib import Path
from typing import Any

import nbformat
import torch

ROOT = Path(__file__).resolve().parents[1]


def variables(name: str, **parameters: Any) -> dict[str, Any]:
    """What a notebook has computed when all of its cells ran, with some parameters changed."""
    cells = [c for c in nbformat.read(ROOT / f"notebooks/{name}.ipynb", 4).cells if c.source]
    codes = [cell for cell in cells if cell.cell_type == "code"]
    namespace: dict[str, Any] = {}
    threads = torch.get_num_threads()
    try:
        for cell in codes:
            exec(compile(cell.source, f"{name}.ipynb", "exec"), namespace)
            if "parameters" in cell.metadata.get("tags", ()):
                assert set(parameters) <= set(namespace), parameters
                namespace |= parameters
    finally:
        torch.set_num_threads(threads)
    return namespace
