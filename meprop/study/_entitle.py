"""Give an executed notebook a title of its own: `python _entitle.py NOTEBOOK TITLE PLACE`.

The Snakefile runs this file by itself: importing meprop takes longer than all it does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def entitle(path: Path, title: str | None, place: str) -> None:
    """Put `title` in place of the first heading, and the file's `place` in that of the draft."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    if title is not None:
        first = next(cell for cell in notebook["cells"] if cell["cell_type"] == "markdown")
        text = "".join(first["source"])  # a string, or a list of lines
        heading, newline, rest = text.partition("\n")
        if heading.startswith("# "):
            first["source"] = f"# {title}{newline}{rest}".splitlines(keepends=True)
    # What papermill sets is folded where the defaults are.
    for tags in (own := [cell["metadata"].get("tags", []) for cell in notebook["cells"]]):
        if "injected-parameters" in tags and ["parameters", "hide-input"] in own:
            tags[:] = ["injected-parameters", "hide-input"]
    notebook["metadata"]["papermill"]["output_path"] = place
    # As nbformat writes it.
    text = json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True)
    path.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    entitle(Path(sys.argv[1]), *sys.argv[2:])
