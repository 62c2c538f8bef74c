import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from meprop import Conv2d, GradientTopK, Linear, TopK, exact, select, watch


def share(values):
    return float((values != 0).double().mean())


def test_shares_of_a_selecting_layer():
    rule = TopK(0.25)
    layer = Conv2d(1, 2, 3, rule=rule)
    upstream = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0)).relu()
    with watch(layer) as seen:
        layer(torch.rand(3, 1, 6, 6)).backward(upstream)
    chosen = torch.where(select(upstream, rule)[0], upstream, 0)
    assert seen[""].before == share(upstream)
    assert seen[""].after == share(chosen) == 0.25
    assert seen[""].weight == share(layer.weight.grad)
    assert seen[""].norm_kept == pytest.approx(float(chosen.norm() / upstream.norm()))


@pytest.mark.parametrize("backend", ["masked", "sparse"])
def test_drift_and_images(backend):
    """One map, four images: the two largest entries are of one sign and of one image."""
    layer = Conv2d(1, 1, 1, rule=TopK(0.25), backend=backend)
    upstream = torch.tensor([[4.0, 2.0], [-1.0, -1.0], [-1.0, -1.0], [-1.0, -1.0]])
    with watch(layer) as seen:
        layer(torch.rand(4, 1, 1, 2)).backward(upstream.view(4, 1, 1, 2))
    assert (seen[""].drift, seen[""].images) == (1.0, 0.25)
    layer.set_rule(None)  # what is one-sided itself was not made so
    with watch(layer) as seen:
        layer(torch.rand(4, 1, 1, 2)).backward(upstream.abs().view(4, 1, 1, 2))
    assert (seen[""].drift, seen[""].images) == (0.0, 1.0)


@pytest.mark.parametrize("layer", [nn.Linear(3, 4), Linear(3, 4), Linear(3, 4, backend="masked")])
def test_layers_without_a_rule_keep_everything(layer):
    with watch(layer) as seen:
        layer(torch.tensor([[1.0, 0.0, 2.0]])).backward(torch.tensor([[1.0, 0.0, 0.0, 3.0]]))
    assert (seen[""].before, seen[""].after, seen[""].norm_kept) == (0.5, 0.5, 1.0)
    assert seen[""].weight == 4 / 12


def test_it_changes_no_value_and_leaves_no_trace():
    torch.manual_seed(0)
    model = nn.Sequential(
        Conv2d(1, 2, 3, rule=TopK(0.3, decay=0.5)), nn.ReLU(inplace=True), nn.Flatten(),
        nn.Linear(32, 4), GradientTopK(TopK(0.5)),
    )  # fmt: skip
    twin, x = copy.deepcopy(model), torch.rand(2, 1, 6, 6)
    before = set(model.__dict__)
    for _ in range(2):
        with watch(model) as seen:
            model(x).square().sum().backward()
        twin(x).square().sum().backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
        assert not ours._backward_hooks
    assert list(seen) == ["0", "3", "4"]
    assert set(model.__dict__) == before
    assert not any(m._forward_hooks for m in model.modules())
    last = seen["0"].before
    model(x).sum().backward()
    assert seen["0"].before == last


def test_several_passes_are_counted_together():
    layer = nn.Linear(2, 2)
    with watch(layer) as seen:
        layer(torch.ones(1, 2)).backward(torch.tensor([[1.0, 0.0]]))
        layer(torch.ones(3, 2)).backward(torch.ones(3, 2))
    assert seen[""].before == 7 / 8
    assert seen[""].weight == 6 / 8


def test_nothing_seen_is_none_also_of_frozen_weights_and_after_an_error():
    layer = Conv2d(1, 1, 1, rule=TopK(0.5))
    with watch(layer) as seen, torch.no_grad():
        layer(torch.rand(1, 1, 2, 2))
    assert str(seen[""]) == "before -, after -, weight -, norm_kept -, drift -, images -"
    layer.weight.requires_grad_(False)
    with pytest.raises(KeyError), watch(layer) as seen:
        layer(torch.rand(1, 1, 2, 2)).sum().backward()
        raise KeyError
    layer(torch.rand(1, 1, 2, 2)).sum().backward()
    assert (seen[""].after, seen[""].weight, seen[""]._sums["entries"]) == (0.5, None, 4)


@pytest.mark.parametrize("kind", [nn.Linear, Linear])
def test_a_weight_that_is_computed_in_each_pass(kind):
    class Doubled(nn.Module):
        def forward(self, weight):
            return 2 * weight

    layer = kind(3, 4)
    parametrize.register_parametrization(layer, "weight", Doubled())
    with watch(layer) as seen:
        layer(torch.tensor([[1.0, 0.0, 2.0]])).backward(torch.tensor([[1.0, 0.0, 0.0, 3.0]]))
    assert seen[""].weight == 4 / 12
    assert not layer.parametrizations.weight._forward_hooks


@pytest.mark.parametrize("backend", ["auto", "sparse", "masked"])
def test_inside_exact_everything_is_passed_on(backend):
    layer = Conv2d(1, 2, 3, rule=TopK(0.25), backend=backend)
    x, upstream = torch.rand(3, 1, 6, 6), torch.randn(3, 2, 4, 4)
    with watch(layer) as seen:
        outside = layer(x)
        with exact(layer):
            layer(x).backward(upstream)
            outside.backward(upstream)
    assert (seen[""].before, seen[""].after) == (1.0, 1.0)
    assert seen[""]._sums["entries"] == 2 * upstream.numel()
