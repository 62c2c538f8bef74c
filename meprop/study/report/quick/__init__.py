"""The quick suite on this machine beside the committed one.

`python -m meprop.study.report.quick` commits the suite that was executed here as the reference. It
lies in results/, where the pipeline does not look for a suite that is not committed: readers train
it themselves.
"""

from meprop.study.report.quick.checking import check_invariants
from meprop.study.report.quick.comparing import (
    PLAIN,
    REFERENCE,
    TOLERANCE,
    Row,
    adopt,
    compare,
    datasets,
    first_loss,
    seconds,
)
from meprop.study.report.quick.showing import (
    COMMAND,
    about,
    expected,
    in_words,
    losses_and_times,
    machines,
    reference_table,
    side_by_side,
)

__all__ = [
    "COMMAND", "PLAIN", "REFERENCE", "TOLERANCE", "Row", "about", "adopt", "check_invariants",
    "compare", "datasets", "expected", "first_loss", "in_words", "losses_and_times", "machines",
    "reference_table", "seconds", "side_by_side",
]  # fmt: skip
