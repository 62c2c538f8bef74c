"""What the Sparsity page says: density curves beside the paper's figures, pooling, selection."""

from meprop.study.report.densities.agreement import (
    Stretch,
    agreement,
    agreement_in_words,
    mean_curve,
    table_of_steps,
    tolerance,
)
from meprop.study.report.densities.curves import curves, frame, later, later_in_words, origin
from meprop.study.report.densities.pooling import Pool, pooling, table_of_pools
from meprop.study.report.densities.removing import (
    CONVOLUTIONS,
    bars,
    bars_in_words,
    removed,
    removed_in_words,
)

__all__ = [
    "CONVOLUTIONS", "Pool", "Stretch", "agreement", "agreement_in_words", "bars", "bars_in_words",
    "curves", "frame", "later", "later_in_words", "mean_curve", "origin", "pooling", "removed",
    "removed_in_words", "table_of_pools", "table_of_steps", "tolerance",
]  # fmt: skip
