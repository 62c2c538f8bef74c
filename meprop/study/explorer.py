"""The data of the book's explorer: the real gradients of one step, as a script that a page loads.

    python -m meprop.study.explorer book/_static/explorer-data.js

The script sets `window.mepropExplorer` (a page opened from a file cannot fetch), an object of

images: shape [4, 1, 28, 28], `bytes` (base64 of one byte a pixel, 255 is white), `labels`
    (the digits), `guesses` (what the network takes them for) and `losses`.
layers: a list, conv1 and conv2, each with its `name`, `shape` [samples, maps, height, width],
    `maps` (which of the layer's feature maps these are), `of` (how many the layer has) and
    `density` (nonzero share of the whole layer's gradient); then the gradient dL/dy in row-major
    order, without its zeros: `mask` (base64 of one bit an entry, lowest bit of a byte first: 1
    where the gradient is not zero) and `values` (base64 of these entries, in order, as
    little-endian float32). In JavaScript:

        const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
        const mask = bytes(layer.mask), values = new Float32Array(bytes(layer.values).buffer);
        const grad = new Float32Array(layer.shape.reduce((a, b) => a * b));
        for (let i = 0, n = 0; i < grad.length; i++)
          if ((mask[i >> 3] >> (i & 7)) & 1) grad[i] = values[n++];

about: `config` (all of Config), `steps` (training steps before this one), `rows` (of the training
    set), `loss` and `provenance`.

The values are the very float32 numbers of the backward pass, so a page that follows the rules of
`meprop.select` (k of a group is `TopK.k`: half to even; ties go to the lowest index in the order
sample, map, row, column) selects the same entries.
"""

from __future__ import annotations

import base64
import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meprop.study.config import Config
from meprop.study.data import load_data
from meprop.study.network import PaperCNN
from meprop.study.provenance import provenance
from meprop.study.record import write_atomically
from meprop.study.training import batches, build, conditions, steps

CONFIG = Config(dataset="digits", seed=0)
STEPS = 60  # later the network is right about nearly all digits, and has no gradient to show
SAMPLES, MAPS = 4, 8
PREFIX, SUFFIX = "window.mepropExplorer = ", ";\n"


def export(path: str | Path, config: Config = CONFIG, after: int = STEPS) -> None:
    """Train for some steps and write the gradients of the next one."""
    text = json.dumps(snapshot(config, after), separators=(",", ":"), allow_nan=False)
    write_atomically(Path(path), (PREFIX + text + SUFFIX).encode())


def snapshot(config: Config = CONFIG, after: int = STEPS) -> dict[str, Any]:
    """What `window.mepropExplorer` holds.

    The mini-batch is made of those images of the next one with the largest loss, in its order. Of
    each layer's feature maps, sorted by the norm of their gradient, every so many is taken, from
    the largest to the smallest: some may have no gradient at all.
    """
    data = load_data(config.dataset).train
    model = build(config)
    rows = next(islice(batches(config, len(data), epoch=1), after, None))
    images, labels = data[rows]
    with conditions(config):
        for _ in islice(steps(config, model, data), after):
            pass
        with torch.no_grad():
            output = model(images)
        losses = F.cross_entropy(output, labels, reduction="none")
        chosen = losses.argsort(descending=True)[:SAMPLES].sort().values
        gradients = _gradients(model, images[chosen], labels[chosen])
    return {
        "images": {
            "shape": list(images[chosen].shape),
            "bytes": _base64((images[chosen] * 255).round().byte()),
            "labels": labels[chosen].tolist(),
            "guesses": output[chosen].argmax(1).tolist(),
            "losses": losses[chosen].tolist(),
        },
        "layers": [_layer(name, grad) for name, grad in gradients.items()],
        "about": {
            "config": config.to_dict(),
            "steps": after,
            "rows": rows[chosen].tolist(),
            "loss": float(losses[chosen].mean()),
            "provenance": provenance(config.threads),
        },
    }


def _gradients(model: PaperCNN, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """dL/dy at the outputs of the convolutions."""
    names: dict[nn.Module, str] = {model.conv1: "conv1", model.conv2: "conv2"}
    found: dict[str, Tensor] = {}

    def catch(layer: nn.Module, args: Any, output: Tensor) -> None:
        output.register_hook(lambda grad: found.update({names[layer]: grad.contiguous()}))

    hooks = [layer.register_forward_hook(catch) for layer in names]
    F.cross_entropy(model(images), labels).backward()
    for hook in hooks:
        hook.remove()
    return {name: found[name] for name in names.values()}


def _layer(name: str, grad: Tensor) -> dict[str, Any]:
    of = grad.shape[1]
    ranks = np.linspace(0, of - 1, MAPS).round().astype(int).tolist()
    order = grad.transpose(0, 1).flatten(1).norm(dim=1).argsort(descending=True, stable=True)
    maps = sorted(order[ranks].tolist())
    part = grad[:, maps].contiguous()
    nonzero = (part != 0).flatten()
    return {
        "name": name,
        "shape": list(part.shape),
        "maps": maps,
        "of": of,
        "density": float((grad != 0).double().mean()),
        "mask": _base64(torch.from_numpy(np.packbits(nonzero.numpy(), bitorder="little"))),
        "values": _base64(part.flatten()[nonzero]),
    }


def load(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a file that `export` wrote: what it holds, and the gradients by layer."""
    text = Path(path).read_text(encoding="utf-8")
    if not (text.startswith(PREFIX) and text.endswith(SUFFIX)):
        raise ValueError(f"{path}: not a file of the explorer's gradients")
    content = json.loads(text[len(PREFIX) : -len(SUFFIX)])
    gradients = {}
    for layer in content["layers"]:
        size = int(np.prod(layer["shape"]))
        packed = np.frombuffer(base64.b64decode(layer["mask"]), dtype=np.uint8)
        mask = np.unpackbits(packed, count=size, bitorder="little").astype(bool)
        grad = np.zeros(size, dtype=np.float32)
        grad[mask] = np.frombuffer(base64.b64decode(layer["values"]), dtype="<f4")
        gradients[layer["name"]] = torch.from_numpy(grad.reshape(layer["shape"]))
    return content, gradients


def _base64(values: Tensor) -> str:
    array = values.numpy()
    little = array.astype(array.dtype.newbyteorder("<"))
    return base64.b64encode(np.ascontiguousarray(little).tobytes()).decode()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m meprop.study.explorer FILE")
    export(sys.argv[1])
