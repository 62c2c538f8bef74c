"""Signs and lists in sentences: one form each."""

from __future__ import annotations

from collections.abc import Iterable

TIMES = "\N{MULTIPLICATION SIGN}"


def listed(words: Iterable[object], last: str = "and") -> str:
    """Words with commas, and another word before the last.

    >>> listed([0, 1, 2]), listed(["mnist", "digits"], "or"), listed(["conv1"]), listed([])
    ('0, 1 and 2', 'mnist or digits', 'conv1', '')
    """
    *most, end = [str(word) for word in words] or [""]
    return f"{', '.join(most)} {last} {end}" if most else end
