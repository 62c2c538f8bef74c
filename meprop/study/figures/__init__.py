"""The figures of the book: one palette, one style, one message each; a topic a file.

A function returns a closed figure, so that a notebook cell shows it once, or None where there is
nothing to show.
"""

from meprop.study.figures.run import confusion, densities, learning_curves, mistakes
from meprop.study.style import COLOURS, PALETTE, Figure, logarithmic, set_style, subplots

__all__ = [
    "COLOURS",
    "PALETTE",
    "Figure",
    "confusion",
    "densities",
    "learning_curves",
    "logarithmic",
    "mistakes",
    "set_style",
    "subplots",
]
