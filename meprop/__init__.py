"""Minimal effort back propagation for convolutional networks: pass back only the largest gradients.

>>> from torch import nn
>>> from meprop import TopK, convert
>>> model = convert(nn.Sequential(nn.Conv2d(1, 32, 5), nn.ReLU()), TopK(ratio=0.05))
"""

import signal
import sys

# python -m meprop: stopped while torch is imported, it ends without a traceback.
if (
    sys.argv[:1] == ["-m"]
    and "meprop" in sys.orig_argv
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from meprop import schedule
from meprop.conversion import convert, exact, recipe, revert
from meprop.history import history_state, load_history_state
from meprop.kernels import warm_up
from meprop.layers import Conv1d, Conv2d, Conv3d, ConvTranspose2d, GradientTopK, Linear
from meprop.rule import TopK
from meprop.selection import select, thin
from meprop.watching import Seen, watch

__version__ = "0.1.0"

__all__ = [
    "Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d", "GradientTopK", "Linear", "Seen", "TopK",
    "convert", "exact", "history_state", "load_history_state", "recipe", "revert", "schedule",
    "select", "thin", "warm_up", "watch",
]  # fmt: skip
