"""The paper's experiments. Importing this also makes `import torchvision` work (`_torchvision`)."""

from meprop.study import _torchvision as _torchvision
from meprop.study.network import PaperCNN

__all__ = ["PaperCNN"]
