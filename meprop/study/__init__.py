"""The paper's experiments. Importing this also makes `import torchvision` work (`_torchvision`)."""

from meprop.study import _torchvision as _torchvision
from meprop.study._download import DataError
from meprop.study.checkpoint import CheckpointError, checkpoint_path, discard
from meprop.study.config import Config
from meprop.study.data import Splits, load_data
from meprop.study.network import PaperCNN, ResNet20
from meprop.study.record import Record, RecordError, load_histories, load_records
from meprop.study.training import train

__all__ = [
    "CheckpointError", "Config", "DataError", "PaperCNN", "Record", "RecordError", "ResNet20",
    "Splits", "checkpoint_path", "discard", "load_data", "load_histories", "load_records", "train",
]  # fmt: skip
