"""What the Method page computes: Table 1 from the model, groups, what a selection keeps."""

from meprop.study.report.method.architecture import Stage, same_as_table_1, stages, table_1
from meprop.study.report.method.grouping import SCOPES, Groups, groups, table_of_groups
from meprop.study.report.method.keeping import Kept, kept, kept_in_words, norm_curves
from meprop.study.report.method.samples import GRADIENTS, one_of_each, ratios, short
from meprop.study.report.method.tracing import Trace, check_trace, trace, trace_in_words
from meprop.study.report.method.weighing import (
    MLP,
    table_of_trained_weights,
    table_of_weights,
    trained_weights_in_words,
    weight_densities,
    weight_gradients,
    weights_in_words,
)

__all__ = [
    "GRADIENTS", "MLP", "SCOPES", "Groups", "Kept", "Stage", "Trace", "check_trace",
    "groups", "kept", "kept_in_words", "norm_curves", "one_of_each", "ratios", "same_as_table_1",
    "short", "stages", "table_1", "table_of_groups", "table_of_trained_weights",
    "table_of_weights", "trace", "trace_in_words", "trained_weights_in_words", "weight_densities",
    "weight_gradients", "weights_in_words",
]  # fmt: skip
