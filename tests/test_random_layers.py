"""Random layers, through autograd, against an implementation that shares no code with them.

MEPROP_ORACLE_LAYERS=2000 MEPROP_ORACLE_THREADS=3 pytest tests/test_random_layers.py
"""

from __future__ import annotations

import os

import naive
import numpy as np
import pytest
import torch

from meprop import Conv2d, Linear, TopK

pytestmark = [
    pytest.mark.usefixtures("threads_for_small_gradients"),
    # torch's own layer, where padding="same" is uneven.
    pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning"),
]

LAYERS = int(os.environ.get("MEPROP_ORACLE_LAYERS", "300"))
THREADS = os.environ.get("MEPROP_ORACLE_THREADS")
PORTION = 25
MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@pytest.mark.parametrize("portion", range(-(-LAYERS // PORTION)))
def test_random_layers(portion):
    for seed in range(portion * PORTION, min((portion + 1) * PORTION, LAYERS)):
        draw = np.random.default_rng(seed)
        torch.set_num_threads(int(THREADS or draw.integers(1, 4)))
        check(draw, f"layer {seed}")


def pick(draw, *choices):
    return choices[draw.integers(len(choices))]


def check(draw, name):
    """A few steps of one layer, each compared with the oracle's."""
    kind = pick(draw, "conv", "conv", "linear")
    backend = pick(draw, "auto", "sparse", "masked")
    history = pick(draw, "slot", "position")
    rule = draw_rule(draw, kind)
    torch.manual_seed(int(draw.integers(1 << 30)))
    settings = {
        "rule": None if rule is None else TopK(**rule), "backend": backend, "history": history,
        "bias": bool(draw.integers(2)),
    }  # fmt: skip
    layer, oracle, shape = (conv if kind == "conv" else linear)(draw, rule, settings)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(draw.normal(size=layer.weight.shape)))
    if kind == "conv" and draw.integers(2):
        layer = layer.to(memory_format=torch.channels_last)
    exact = pick(draw, True, False)
    batches = [pick(draw, 1, 2, 4, 8) for _ in range(2)]  # whose means are exact too
    for step in range(pick(draw, 1, 3)):
        batch = pick(draw, *batches)
        x = torch.from_numpy(draw.normal(size=(batch, *shape)).astype(np.float32))
        if kind == "conv" and draw.integers(2):
            x = x.contiguous(memory_format=torch.channels_last)
        x.requires_grad_()
        y = layer(x)
        with torch.no_grad():  # torch's own
            assert torch.equal(y, layer(x)), name
        upstream = draw_gradient(draw, y.shape, exact)
        if kind == "conv" and draw.integers(2):
            upstream = upstream.contiguous(memory_format=torch.channels_last)
        layer.zero_grad()
        y.backward(upstream)
        rows = [t.detach().double().numpy() for t in (x, layer.weight, upstream)]
        if kind == "linear":
            rows[0], rows[2] = (t.reshape(-1, t.shape[-1]) for t in (rows[0], rows[2]))
        dx, dw, db = oracle.backward(*rows)
        label = f"{name}, step {step}: {layer}, {tuple(x.shape)}, {torch.get_num_threads()} threads"
        compare(x.grad, dx.reshape(x.shape), f"{label}: input")
        # A sum may cancel out, so its roundings are those of its terms.
        terms = np.linalg.norm(rows[0]) * np.linalg.norm(rows[2])
        compare(layer.weight.grad, dw, f"{label}: weight", 2e-8 * terms)
        if layer.bias is not None:
            terms = np.abs(rows[2]).sum((0, 2, 3) if kind == "conv" else 0)
            compare(layer.bias.grad, db, f"{label}: bias", 2e-8 * np.linalg.norm(terms))
        found = {tuple(shape): past.double().numpy() for shape, past in layer.run_grads.items()}
        assert found.keys() == oracle.run_grads.keys(), label
        for past, expected in oracle.run_grads.items():
            np.testing.assert_allclose(found[past], expected, rtol=1e-6, atol=0, err_msg=label)


def compare(found, expected, label, roundings=0.0):
    """Equal to a few roundings of float32; a wrong choice of a single entry is far more."""
    error = np.linalg.norm(found.double().numpy() - expected)
    allowed = 2e-6 * np.linalg.norm(expected) + roundings
    assert found.shape == expected.shape and error <= allowed, label


def draw_rule(draw, kind):
    if draw.random() < 0.1:
        return None
    scopes = ("map", "sample", "layer", "mixed") + (("unified",) if kind == "linear" else ())
    return {
        "ratio": pick(draw, 0.01, 0.05, 0.25, 0.5, 1.0, float(draw.uniform(0.01, 1))),
        "decay": pick(draw, 0.0, 0.5),
        "scope": pick(draw, *scopes),
        "bias": pick(draw, "full", "full", "sparse"),
    }


def draw_gradient(draw, shape, exact):
    """Eighths have ties, and float32 is exact for them; others have none."""
    values = draw.normal(size=shape)
    if exact:
        values = np.round(8 * values) / 8
    if draw.integers(2):
        values *= draw.random(size=shape) < 0.3
    return torch.from_numpy(values.astype(np.float32))


def linear(draw, rule, settings):
    sizes = [pick(draw, 1, 3, 8, 33, 100) for _ in range(2)]
    lead = [int(draw.integers(1, 4)) for _ in range(pick(draw, 0, 0, 1, 2))]
    layer = Linear(*sizes, **settings)
    return layer, naive.Layer("linear", rule, settings["history"]), (*lead, sizes[0])


def conv(draw, rule, settings):
    groups = pick(draw, 1, 1, 1, 2, 3)
    inputs, outputs = (groups * pick(draw, 1, 2, 4, 8, 11) for _ in range(2))
    kernel = [int(draw.integers(1, 6)) for _ in range(2)]
    dilation = [pick(draw, 1, 1, 2) for _ in range(2)]
    stride = [pick(draw, 1, 1, 2, 3) for _ in range(2)]
    wanted = pick(draw, "numbers", "numbers", "same", "valid")
    padding = [int(draw.integers(0, 4)) for _ in range(2)]
    if wanted == "same":
        stride = [1, 1]
    mode = pick(draw, "zeros", "zeros", "zeros", "reflect", "replicate", "circular")
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    around = {
        "numbers": [(p, p) for p in padding],
        "same": [(r // 2, r - r // 2) for r in reach],
        "valid": [(0, 0), (0, 0)],
    }[wanted]
    size = [
        max(r + 1, *(p + 1 for p in p2)) + int(draw.integers(0, 9))
        for r, p2 in zip(reach, around, strict=True)
    ]
    layer = Conv2d(
        inputs, outputs, kernel, stride, padding if wanted == "numbers" else wanted, dilation,
        groups, padding_mode=mode, **settings,
    )  # fmt: skip
    oracle = naive.Layer(
        "conv", rule, settings["history"], stride, dilation, groups, around, MODES[mode]
    )
    return layer, oracle, (inputs, *size)
