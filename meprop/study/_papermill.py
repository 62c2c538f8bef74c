"""Execute a notebook into a page: `python -P _papermill.py SPECIFICATION PAGE`.

Nothing else calls papermill. The Snakefile runs this file by itself: importing meprop takes longer
than all it does. The specification is a JSON file with

notebook: the file to execute.
parameters: what papermill sets in it.
title: what stands in place of its heading, or null.
inputs: the page's own parameters and what it reads, see `digest`.
records: files that the notebook itself writes, by the name under which the page reads them.
"""

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# What papermill and the kernel write down of each execution: when, and how long it took.
_TIMES = ("papermill", "execution")
_FIRST = "meprop: compiling its kernels"


def digest(notebook: dict[str, Any], title: str | None, inputs: Mapping[str, Any]) -> str:
    """What an executed notebook depends on: its source, its title and its `inputs`.

    Times of files have no say, nor has the code of meprop.
    """
    cells = [
        (cell["cell_type"], "".join(cell["source"]), _own(cell["metadata"]))
        for cell in entitled(notebook, title)["cells"]
        if "injected-parameters" not in cell["metadata"].get("tags", ())
    ]
    content = json.dumps([cells, inputs], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def file_digest(path: Path) -> str | None:
    """SHA-256 of a file's content; None without such a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def entitled(notebook: dict[str, Any], title: str | None) -> dict[str, Any]:
    """The notebook with `title` in place of its first heading."""
    cells = [dict(cell) for cell in notebook["cells"]]
    first = next((cell for cell in cells if cell["cell_type"] == "markdown"), None)
    if title is not None and first is not None:
        heading, newline, rest = "".join(first["source"]).partition("\n")
        if heading.startswith("# "):
            first["source"] = f"# {title}{newline}{rest}".splitlines(keepends=True)
    return notebook | {"cells": cells}


def finished(notebook: dict[str, Any], title: str | None, inputs: str) -> dict[str, Any]:
    """An executed notebook as it is kept: with title and digest, and the same every time."""
    notebook = entitled(notebook, title)
    cells = notebook["cells"]
    injected = any("injected-parameters" in _tags(cell) for cell in cells)
    folded = any({"parameters", "hide-input"} <= _tags(cell) for cell in cells)
    for cell in cells:
        cell["metadata"] = _own(cell["metadata"])
        if "outputs" in cell:
            cell["outputs"] = [output for output in cell["outputs"] if not _passing(output)]
        if "injected-parameters" in _tags(cell):
            cell["id"] = "injected-parameters"  # papermill draws another one each time
            # Folded where the defaults are.
            cell["metadata"]["tags"] = ["injected-parameters", *["hide-input"] * folded]
        elif "parameters" in _tags(cell) and injected:
            # The book shows the values that count, and not the defaults above them.
            cell["metadata"]["tags"] = ["parameters", "remove-cell"]
    about = {key: value for key, value in notebook["metadata"].items() if key not in _TIMES}
    return notebook | {"metadata": about | {"meprop": {"inputs": inputs}}}


def _passing(output: dict[str, Any]) -> bool:
    """What is said on a machine's first day only: kernels compile, data are fetched."""
    text = "".join(output.get("text", ""))
    bar = output.get("name") == "stderr" and (text.startswith("\r") or not text.strip())
    return bar or _FIRST in text


def _own(metadata: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if key not in _TIMES and value}


def _tags(cell: dict[str, Any]) -> set[str]:
    return set(cell["metadata"].get("tags", ()))


def main(specification: Path, page: Path) -> None:
    """Execute, and put the page into its final form."""
    import papermill

    given = json.loads(specification.read_text(encoding="utf-8"))
    source = json.loads(Path(given["notebook"]).read_text(encoding="utf-8"))
    # The kernel is the one of this very environment.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    papermill.execute_notebook(
        given["notebook"],
        str(page),
        given["parameters"],
        kernel_name="python3",
        progress_bar=False,
        request_save_on_cell_execute=False,
        start_timeout=300,
    )
    inputs = given["inputs"]
    for name, path in given.get("records", {}).items():
        inputs["reads"][name] = file_digest(Path(path))
    notebook = json.loads(page.read_text(encoding="utf-8"))
    notebook = finished(notebook, given["title"], digest(source, given["title"], inputs))
    # As nbformat writes it.
    text = json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True)
    page.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
