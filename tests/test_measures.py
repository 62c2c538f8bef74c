"""Scores against the network itself, as it is trained; shares of gradients by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from meprop.study import measures
from meprop.study.config import Config
from meprop.study.data import Part, load_data
from meprop.study.measures import Measured, evaluate, inference
from meprop.study.training import build

SETTINGS = [
    {},
    {"ratio": 0.05, "dropout": 0.5},
    {"activation": "sigmoid"},
    {"activation": "tanh", "batch_norm": True, "ratio": 0.05, "select_at": "bn"},
    {"batch_norm": True},
]


@pytest.fixture(scope="module")
def part():
    whole = load_data("digits").dev
    return Part(whole.images[:40], whole.labels[:40])


def network(part, **setting):
    """One whose batch normalisation has seen a few images, and learned some negative scales."""
    model = build(Config(**setting)).train()
    with torch.no_grad():
        model(part.images * 2 + 1)
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.weight.copy_(torch.linspace(-1, 2, len(layer.weight)))
                layer.bias.copy_(torch.linspace(1, -1, len(layer.bias)))
    return model


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("onednn", [True, False])
def test_it_computes_what_the_network_computes(part, setting, onednn, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: onednn)
    model = network(part, **setting).eval()
    with torch.no_grad():
        expected = model(part.images)
        found = inference(model)(part.images)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(found.argmax(1), expected.argmax(1))


def test_loss_and_mistakes(part, monkeypatch):
    model = network(part, dropout=0.5, batch_norm=True)
    monkeypatch.setattr(measures, "BATCH", 7)
    loss, wrong, predicted = evaluate(model, part)
    with torch.no_grad():
        output = model.eval()(part.images)
    assert loss == pytest.approx(float(F.cross_entropy(output, part.labels)), rel=1e-5)
    assert wrong == [i for i in range(40) if output[i].argmax() != part.labels[i]]
    assert len(wrong) > 0
    assert predicted == [int(output[i].argmax()) for i in wrong]


def test_measured_steps_and_their_means():
    model = nn.Sequential(nn.Linear(4, 1, bias=False))
    measured = Measured(model, steps=200)
    assert measured.every == 100
    assert Measured(model, steps=5500).every == 275
    for number in range(1, 201):
        inputs = {1: (1, 1, 0, 0), 101: (1, 0, 0, 0)}.get(number, (5, 5, 5, 5))
        with measured.step(number):
            model.zero_grad()
            model(torch.tensor([inputs], dtype=torch.float32)).sum().backward()
            with torch.no_grad():
                model[0].weight -= model[0].weight.grad
    means = measured.means()
    assert means["changed"] == (2 / 4 + 1 / 4) / 2
    assert means["layers"]["0"]["weight"] == (2 / 4 + 1 / 4) / 2
    assert means["layers"]["0"]["norm_kept"] == pytest.approx(1)
