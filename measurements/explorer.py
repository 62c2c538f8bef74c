"""The data of the book's explorer: real gradients of some training steps, as a script for a page.

    python -m measurements.explorer book/_static/explorer-data.js

The script sets `window.mepropExplorer` (a page opened from a file cannot fetch), an object of

images: `shape` [steps, samples, 1, 28, 28], `bytes` (base64 of one byte a pixel, 255 is white), and
    for each step and sample `labels` (the digits), `guesses` (what the network takes them for) and
    `losses`.
layers: a list, conv1 and conv2, each with its `name`, `shape` [steps, samples, maps, height,
    width], `maps` (which of the layer's feature maps these are) and `of` (how many it has); then
    the gradient dL/dy in row-major order, without its zeros: `mask` (base64 of one bit an entry,
    lowest bit of a byte first: 1 where the gradient is not zero) and `values` (base64 of these
    entries, in order, as little-endian float32).
about: `config` (all of Config), `steps` (the number of each, from 1), `rows` (of the training set,
    for each step) and `provenance`.

The values are the very float32 numbers of the backward pass, so a page that follows the rules of
`meprop.select` (run_grad in float32; k of a group is `TopK.k`: half to even; ties go to the lowest
index in the order sample, map, row, column) selects the same entries.
"""

from __future__ import annotations

import base64
import json
import sys
from collections import defaultdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from meprop.study._files import write_atomically
from meprop.study.config import Config
from meprop.study.data import load_data
from meprop.study.measures import gradients
from meprop.study.network import PaperCNN
from meprop.study.provenance import provenance
from meprop.study.training import batches, build, conditions, steps

CONFIG = Config(dataset="digits", seed=0)
LAST = 61  # later the network is right about nearly all digits, and has no gradient to show
STEPS, SAMPLES, MAPS = 8, 4, 8
PREFIX, SUFFIX = "window.mepropExplorer = ", ";\n"


def export(path: str | Path, config: Config = CONFIG, last: int = LAST) -> None:
    """Train, and write the gradients of some steps up to the last."""
    text = json.dumps(snapshot(config, last), separators=(",", ":"), allow_nan=False)
    write_atomically(Path(path), (PREFIX + text + SUFFIX).encode())


def snapshot(config: Config = CONFIG, last: int = LAST) -> dict[str, Any]:
    """What `window.mepropExplorer` holds.

    Of each step's mini-batch there are the images with the largest loss, in its order, as a
    mini-batch of their own. Of each layer's feature maps, sorted by the norm of their gradient in
    the last step, every so many is taken, from the largest to the smallest.
    """
    data, model = load_data(config.dataset).train, build(config)
    learning = steps(config, model, data)
    order = list(islice(batches(config, len(data), epoch=1), last))
    seen: dict[str, list[Any]] = defaultdict(list)
    passed: dict[str, list[Tensor]] = defaultdict(list)
    with conditions(config):
        for _ in islice(learning, last - STEPS):
            pass
        for rows in order[-STEPS:]:
            images, labels = data[rows]
            with torch.no_grad():
                output = model(images)
            losses = F.cross_entropy(output, labels, reduction="none")
            chosen = losses.argsort(descending=True)[:SAMPLES].sort().values
            for layer, grad in _gradients(model, *data[rows[chosen]]).items():
                passed[layer].append(grad)
            seen["rows"].append(rows[chosen].tolist())
            seen["guesses"].append(output[chosen].argmax(1).tolist())
            seen["losses"].append(losses[chosen].tolist())
            next(learning)
    images, labels = data[torch.tensor(seen["rows"])]
    return {
        "images": {
            "shape": list(images.shape),
            "bytes": _base64((images * 255).round().byte()),
            "labels": labels.tolist(),
            "guesses": seen["guesses"],
            "losses": seen["losses"],
        },
        "layers": [_layer(name, torch.stack(own)) for name, own in passed.items()],
        "about": {
            "config": config.to_dict(),
            "steps": list(range(last - STEPS + 1, last + 1)),
            "rows": seen["rows"],
            "provenance": provenance(config.threads),
        },
    }


def _gradients(model: PaperCNN, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """dL/dy at the outputs of the convolutions."""
    with gradients(model, ["conv1", "conv2"]) as found:
        F.cross_entropy(model(images), labels).backward()
    return {name: found[name].contiguous() for name in ("conv1", "conv2")}


def _layer(name: str, grad: Tensor) -> dict[str, Any]:
    of = grad.shape[2]
    ranks = np.linspace(0, of - 1, MAPS).round().astype(int).tolist()
    norms = grad[-1].transpose(0, 1).flatten(1).norm(dim=1)
    maps = sorted(norms.argsort(descending=True, stable=True)[ranks].tolist())
    part = grad[:, :, maps].contiguous()
    nonzero = (part != 0).flatten()
    return {
        "name": name,
        "shape": list(part.shape),
        "maps": maps,
        "of": of,
        "mask": _base64(torch.from_numpy(np.packbits(nonzero.numpy(), bitorder="little"))),
        "values": _base64(part.flatten()[nonzero]),
    }


def load(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a file that `export` wrote: what it holds, and the gradients by layer."""
    text = Path(path).read_text(encoding="utf-8")
    if not (text.startswith(PREFIX) and text.endswith(SUFFIX)):
        raise ValueError(f"{path}: not a file of the explorer's gradients")
    content = json.loads(text[len(PREFIX) : -len(SUFFIX)])
    found = {}
    for layer in content["layers"]:
        size = int(np.prod(layer["shape"]))
        packed = np.frombuffer(base64.b64decode(layer["mask"]), dtype=np.uint8)
        mask = np.unpackbits(packed, count=size, bitorder="little").astype(bool)
        grad = np.zeros(size, dtype=np.float32)
        grad[mask] = np.frombuffer(base64.b64decode(layer["values"]), dtype="<f4")
        found[layer["name"]] = torch.from_numpy(grad.reshape(layer["shape"]))
    return content, found


def _base64(values: Tensor) -> str:
    array = values.numpy()
    little = array.astype(array.dtype.newbyteorder("<"))
    return base64.b64encode(np.ascontiguousarray(little).tobytes()).decode()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m measurements.explorer FILE")
    export(sys.argv[1])
