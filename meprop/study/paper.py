"""The paper's numbers, from paper.yml: the one place where they stand."""

from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@cache
def paper() -> dict[str, Any]:
    """All of paper.yml.

    >>> paper()["densities"]["relu"]
    {'conv1': 23, 'conv2': 3, 'fc1': 50}
    """
    source = files("meprop.study").joinpath("paper.yml")
    return yaml.safe_load(source.read_text(encoding="utf-8"))
