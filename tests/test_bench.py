"""README's table of speeds, until a notebook makes it."""

import json
from pathlib import Path

from meprop.bench.summary import summary


def test_readme_shows_the_committed_measurement():
    """Its table is printed by `python -m meprop.bench.summary benchmarks/*/bench.json`."""
    root = Path(__file__).resolve().parents[1]
    paths = sorted(root.glob("benchmarks/*/bench.json"))
    results = [json.loads(path.read_text("utf-8")) for path in paths]
    assert all(result["finished"] for result in results)
    shown = summary(*results)
    assert shown.count("\n|") >= 15
    assert shown in (root / "README.md").read_text("utf-8")
