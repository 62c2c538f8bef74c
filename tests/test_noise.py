"""What a rule adds to a gradient's noise, and what it adds in the same way each time."""

import pytest
import torch
import torch.nn.functional as F

from measurements import noise
from meprop import TopK, revert, select
from meprop.study import Config, load_data
from meprop.study.training import batches, build

SMALL = Config(dataset="digits", train_size=90, epochs=1)


@pytest.fixture(scope="module")
def measured():
    rules = {
        ("all", 1.0): TopK(1.0),
        ("meprop", 0.1): TopK(0.1, bias="sparse"),
        ("unbiased", 0.2): TopK(0.2, pick="unbiased"),
        ("weights alone", 0.2): TopK(0.2, pick="unbiased", only="weight"),
    }
    return noise.measure(SMALL, rules, when=[0], own=9).set_index(["rule", "layer"])


def test_what_draws_nothing_is_bias_alone(measured):
    assert measured.loc["all", "added"].max() < 1e-9
    top = measured.loc["meprop"]
    assert (top["bias"] - top["added"]).abs().max() < 1e-4 * top["added"].min()


def test_unbiased_draws_add_noise_alone(measured):
    assert (measured.loc["unbiased", "bias"].abs() < 0.3 * measured.loc["unbiased", "added"]).all()


def test_what_is_drawn_above_adds_up_only_where_it_is_passed_down(measured):
    near = measured.xs("conv1", level="layer")["added"]
    assert 0 < near["weights alone"] < near["unbiased"]


def test_by_hand(measured):
    """Of the upper convolution, whose own gradient alone is thinned."""
    model = revert(build(SMALL))
    thinned = []

    def hook(module, args, output):
        if thinned[-1]:
            output.register_hook(lambda grad: grad * select(grad, TopK(0.1))[0])

    model.conv2.register_forward_hook(hook)

    def gradient(batch, some):
        thinned.append(some)
        model.zero_grad()
        images, labels = load_data("digits").train[batch]
        F.cross_entropy(model(images), labels).backward()
        return model.conv2.weight.grad.clone()

    found = list(batches(SMALL, 90, 2))
    dense = [gradient(batch, False) for batch in found]
    own = torch.stack(dense).var(0).sum().item()
    off = [gradient(batch, True) - full for batch, full in zip(found, dense, strict=True)]
    added = sum(each.square().sum().item() for each in off[: noise.TRIED]) / noise.TRIED
    row = measured.loc["meprop", "conv2"]
    assert (row["own"], row["added"]) == pytest.approx((own, added), rel=1e-3)
