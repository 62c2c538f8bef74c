"""Scores against the network itself, as it is trained; shares of gradients by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from meprop.study import measures
from meprop.study.config import Config
from meprop.study.data import Part, load_data
from meprop.study.measures import Measured, evaluate, gradients
from meprop.study.training import build


@pytest.fixture(scope="module")
def part():
    whole = load_data("digits").dev
    return Part(whole.images[:40], whole.labels[:40])


def test_loss_and_mistakes(part, monkeypatch):
    model = build(Config(dropout=0.5, batch_norm=True)).train()
    with torch.no_grad():
        model(part.images * 2 + 1)  # the averages of batch normalisation move
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


def test_gradients_are_those_at_the_outputs(part):
    model, outputs = build(Config()), {}
    with gradients(model, ["conv2"]) as found:
        with model.conv2.register_forward_hook(lambda _, __, y: outputs.update(y=y)):
            loss = F.cross_entropy(model(part.images), part.labels)
        (expected,) = torch.autograd.grad(loss, outputs["y"], retain_graph=True)
        found.clear()
        loss.backward()
    assert torch.equal(found["conv2"], expected) and expected.any()
    assert not model.conv2._forward_hooks
