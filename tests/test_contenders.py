"""What the contenders pass back, against plain NumPy and over many draws."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from meprop import watch
from meprop.study.contenders import CONTENDERS, channels, samples, thinned

GRAD = torch.randn(10, 8, 5, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("ratio", "count"), [(0.01, 1), (0.2, 2), (0.5, 4), (1.0, 8)])
def test_channels_of_the_largest_mean_magnitude(ratio, count):
    grad = GRAD.numpy()
    largest = np.argsort(np.abs(grad).mean((0, 2, 3)))[-count:]
    expected = np.zeros_like(grad)
    expected[:, largest] = grad[:, largest]
    assert np.array_equal(channels(GRAD, ratio).numpy(), expected)


@pytest.mark.parametrize(("ratio", "count"), [(0.01, 1), (0.2, 2), (1.0, 10)])
def test_samples_are_as_much_larger_as_they_are_fewer(ratio, count):
    torch.manual_seed(0)
    weights = samples(10, ratio)
    assert sorted(weights.tolist()) == pytest.approx([0.0] * (10 - count) + [10 / count] * count)


def small():
    torch.manual_seed(0)
    shape = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(24, 5))
    return nn.Sequential(*shape), torch.rand(10, 3, 7, 6)


def gradients(model, x, weights=None):
    loss = (model(x).square().sum(1) * (1 if weights is None else weights)).mean()
    return torch.autograd.grad(loss, list(model.parameters()))


def test_samples_are_the_same_images_in_every_layer():
    """So the gradients are those of a loss over these images alone."""
    model, x = small()
    torch.manual_seed(3)
    with thinned(model, "samples", 0.3, epoch=1):
        found = gradients(model, x)
    torch.manual_seed(3)
    weights = samples(10, 0.3)
    for ours, theirs in zip(found, gradients(model, x, weights), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_samples_below_batch_normalisation_stay_the_same():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(160, 5))
    seen = []
    x = torch.rand(10, 3, 7, 6)
    with thinned(model, "samples", 0.3, epoch=1):
        model[0].register_forward_hook(lambda _, __, y: y.register_hook(seen.append) and None)
        model(x).square().sum().backward()
    assert int(seen[0].flatten(1).any(1).sum()) == 3


def test_samples_keep_the_mean():
    torch.manual_seed(0)
    weights = torch.stack([samples(10, 0.2) for _ in range(4000)])
    # One draw deviates by twice the weight itself: sqrt((1 - p) / p).
    assert ((weights.mean(0) - 1).abs() <= 5 * 2 / 4000**0.5).all()


def test_the_weight_gradients_are_those_of_the_thinned_gradient():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.ReLU())
    x = torch.rand(10, 3, 7, 6)
    with thinned(model, "channels", 0.5, epoch=1), watch(model) as seen:
        model(x).square().sum().backward()
    y = F.conv2d(x, model[0].weight)
    grad = channels(torch.autograd.grad(F.relu(y).square().sum(), y, retain_graph=True)[0], 0.5)
    expected = torch.autograd.grad(y, model[0].weight, grad)[0]
    torch.testing.assert_close(model[0].weight.grad, expected)
    assert seen["0"].after <= 0.5
    assert not model[0]._forward_hooks


@pytest.mark.parametrize("name", CONTENDERS)
@pytest.mark.parametrize("epoch", [1, 2])
def test_in_which_epochs_gradients_are_thinned(name, epoch):
    model, x = small()
    exact = gradients(model, x)[0]
    with thinned(model, name, 0.2, epoch):
        found = gradients(model, x)[0]
    assert torch.equal(found, exact) == (name == "channels-alternate" and epoch == 1)
    with thinned(model, None, 1.0, epoch):
        assert torch.equal(gradients(model, x)[0], exact)
