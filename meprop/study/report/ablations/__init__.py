"""The ablation studies: what was run, the tables, and what the answer is."""

from meprop.study.report.ablations.answering import fewest_in_words, gaps_in_words, in_words
from meprop.study.report.ablations.showing import about, gaps, gradients, noise, scores
from meprop.study.report.ablations.study import (
    GAPS,
    SUITE,
    Ablation,
    Row,
    examine,
    number,
    studies,
)

__all__ = [
    "GAPS", "SUITE", "Ablation", "Row", "about", "examine", "fewest_in_words", "gaps",
    "gaps_in_words", "gradients", "in_words", "noise", "number", "scores", "studies",
]  # fmt: skip
