"""Notebooks on data whose answers are known: their cells run here, and leave their variables."""

from pathlib import Path
from typing import Any

import nbformat
import torch

ROOT = Path(__file__).resolve().parents[1]


def variables(name: str, until: str | None = None, **parameters: Any) -> dict[str, Any]:
    """What a notebook has computed when its cells ran, all or up to one, with other parameters."""
    namespace: dict[str, Any] = {}
    threads = torch.get_num_threads()
    try:
        for cell in nbformat.read(ROOT / f"notebooks/{name}.ipynb", 4).cells:
            if cell.cell_type == "code":
                exec(compile(cell.source, f"{name}.ipynb", "exec"), namespace)
            if "parameters" in cell.metadata.get("tags", ()):
                assert set(parameters) <= set(namespace), parameters
                namespace |= parameters
            if cell.id == until:
                break
    finally:
        torch.set_num_threads(threads)
    return namespace
