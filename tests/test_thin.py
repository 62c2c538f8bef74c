"""Rules that change values: the expectation is kept, the sum of a map is zero; kernels agree."""

from functools import partial

import pytest
import torch
from torch import nn

from meprop import (
    Conv2d,
    Linear,
    TopK,
    history_state,
    kernels,
    load_history_state,
    select,
    selection,
    thin,
)

UNBIASED = TopK(0.1, pick="unbiased")
SHAPES = [(8, 5, 9, 7), (6, 16, 16, 16), (4, 37, 8, 8), (2, 1, 5, 70), (3, 64, 1, 1)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def gradient(*shape, last=False):
    grad = torch.randn(shape, generator=generator()) ** 3
    grad[torch.rand(shape, generator=generator(1)) < 0.3] = 0
    return grad.contiguous(memory_format=torch.channels_last) if last else grad


@pytest.mark.parametrize("ratio", [0.05, 0.3, 0.8])
@pytest.mark.parametrize("scope", ["map", "sample", "layer", "mixed"])
def test_thresholds_let_the_share_pass(ratio, scope):
    rows = selection.to_groups(gradient(4, 3, 9, 9), scope).double()
    t = selection.thresholds(rows, ratio)
    expected = torch.where(t > 0, (rows.abs() / t).clamp(max=1), rows != 0).sum(1)
    nonzero = (rows != 0).sum(1)
    torch.testing.assert_close(expected, nonzero.clamp(max=ratio * rows.shape[1]).double())


def test_what_is_never_changed():
    grad = torch.tensor([[0.0, 0.0, 0.0, 2.0, -0.5, 0.0, 0.0, 0.0]])
    assert torch.equal(thin(grad, TopK(0.25, pick="unbiased"))[0], grad)  # no more than may pass
    grad = torch.tensor([[float("nan"), float("inf"), 1.0, 0.0]])
    for way in (thin, kernels.thin):
        kept, _ = way(grad, TopK(0.75, pick="unbiased"))
        assert kept[0, 0].isnan() and kept[0, 1].isinf() and kept[0, 3] == 0


@pytest.mark.parametrize("way", [thin, kernels.thin])
def test_the_expectation_is_the_gradient(way):
    grad, draws, random = gradient(3, 3, 6, 6), 3000, generator(7)
    kept = sum(way(grad, UNBIASED, generator=random)[0].double() for _ in range(draws)) / draws
    rows, found = (selection.to_groups(each, "map").double() for each in (grad, kept))
    t = selection.thresholds(rows, UNBIASED.ratio)
    chance = (rows.abs() / t).clamp(max=1)
    spread = t * (chance * (1 - chance) / draws).sqrt()
    often = (chance * draws > 20) & (chance < 1)  # as good as normal
    torch.testing.assert_close(found[chance == 1], rows[chance == 1], rtol=1e-5, atol=0)
    assert often.sum() > 100 and ((found - rows) / spread)[often].abs().max() < 4.5
    assert ((found - rows).sum(1) / spread.square().sum(1).sqrt()).abs().max() < 4


@pytest.mark.parametrize("backend", ["masked", "sparse"])
def test_the_expectation_holds_through_two_layers(backend):
    torch.manual_seed(0)
    rule = TopK(0.2, pick="unbiased")
    net = nn.Sequential(
        Conv2d(2, 4, 3, rule=rule, backend=backend),
        nn.Tanh(),
        Conv2d(4, 3, 3, rule=rule, backend=backend),
    )
    x, way_up = torch.randn(4, 2, 8, 8), torch.randn(4, 3, 4, 4)

    def weight_gradient():
        (grad,) = torch.autograd.grad(net(x), net[0].weight, way_up)
        return grad.double()

    found = torch.stack([weight_gradient() for _ in range(1500)])
    for layer in (net[0], net[2]):
        layer.set_rule(None)
    error = (found.mean(0) - weight_gradient()) / (found.std(0) / len(found) ** 0.5)
    assert error.abs().max() < 4.5


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("scope", ["map", "sample", "layer", "mixed"])
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_draw_as_the_reference(shape, scope, last):
    """With their own thresholds, which raised entries tell: the very same numbers."""
    grad, rule = gradient(*shape, last=last), TopK(0.1, scope=scope, pick="unbiased")
    found, _ = kernels.thin(grad, rule, generator=generator(3))
    before, after = (selection.to_groups(each, scope) for each in (grad, found))
    raised = (after != 0) & (after != before)
    t = torch.where(raised, after.abs(), 0).amax(1, keepdim=True)
    told = raised.any(1)
    t_of = selection.from_groups(t.expand_as(before), grad.shape, scope)
    expected = selection.draw(grad, t_of, selection.draw_key(generator(3)))
    expected = selection.to_groups(expected, scope)
    assert told.any() and torch.equal(after[told], expected[told])
    if before.shape[1] <= 128:  # no sample of it, all
        exact = selection.thresholds(before, 0.1)[told]
        torch.testing.assert_close(t[told].double(), exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize("last", [False, True])
def test_draws_are_the_same_for_any_threads_and_layout(last, monkeypatch):
    from meprop.kernels import _driver

    monkeypatch.setattr(_driver, "_SMALL", 0)
    grad, before = gradient(7, 16, 12, 12), torch.get_num_threads()
    plain, _ = kernels.thin(grad, UNBIASED, generator=generator())
    # The places of the sample differ between layouts, and with them the thresholds a little.
    if last:
        grad = grad.contiguous(memory_format=torch.channels_last)
    try:
        torch.set_num_threads(1)
        one, _ = kernels.thin(grad, UNBIASED, generator=generator())
        torch.set_num_threads(3)
        three, _ = kernels.thin(grad, UNBIASED, generator=generator())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, three)
    assert ((one != 0) == (plain != 0)).double().mean() > 0.97


@pytest.mark.parametrize("pick", ["unbiased", "centred"])
@pytest.mark.parametrize(
    ("make", "outputs"),
    [
        (partial(Conv2d, 3, 6, 3, padding=1), (6, 8, 8)),
        (partial(Linear, 8, 12), (3, 8, 12)),
    ],
    ids=["conv", "linear"],
)
@pytest.mark.parametrize("bias", ["full", "sparse"])
def test_sparse_equals_masked(pick, bias, make, outputs):
    """Groups so small that the kernels' thresholds are no guess."""
    torch.manual_seed(0)
    x, way_up = torch.randn(2, 3, 8, 8, requires_grad=True), torch.randn(2, *outputs)
    rule, found = TopK(0.3, pick=pick, bias=bias), []
    for backend in ("masked", "sparse", "auto"):
        torch.manual_seed(1)
        layer = make(rule=rule, backend=backend)
        for _ in range(2):
            found.append(torch.autograd.grad(layer(x), [x, *layer.parameters()], way_up))
    for one, other in zip(found[:2] * 2, found[2:], strict=True):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    moved = not torch.equal(found[0][1], found[1][1])
    assert moved == (pick == "unbiased")  # other numbers in each step


@pytest.mark.parametrize("last", [False, True])
def test_centred_maps_sum_to_zero(last):
    grad, rule = gradient(8, 5, 9, 7, last=last), TopK(0.05, pick="centred")
    mask, _ = select(grad, rule)
    kept, _ = thin(grad, rule)
    assert torch.equal(kept != 0, mask & (grad != 0))
    assert kept.sum((0, 2, 3)).abs().max() < 1e-5 * kept.abs().sum((0, 2, 3)).max()
    torch.testing.assert_close(kernels.thin(grad, rule)[0], kept)
    differences = (kept - grad)[:, 0][mask[:, 0]]
    assert differences.max() - differences.min() < 1e-5  # one number a map
    whole = TopK(1.0, pick="centred")  # nothing is left out: nothing to balance
    assert torch.equal(thin(grad, whole)[0], grad)
    assert torch.equal(kernels.thin(grad, whole)[0], grad)


def test_random_numbers_are_even_and_unrelated():
    first, second = (
        selection.uniform(torch.Size([1 << 18]), key, torch.device("cpu")).double()
        for key in ((1, 2), (2, 2))
    )
    counts = torch.histc(first, 256, 0, 1)
    chi = ((counts - 1024) ** 2 / 1024).sum()
    assert 150 < chi < 370  # 255 degrees of freedom
    pairs = [(first[:-lag], first[lag:]) for lag in (1, 64, 1024)] + [(first, second)]
    for one, other in pairs:
        assert abs(torch.corrcoef(torch.stack([one, other]))[0, 1]) < 0.01


def test_draws_go_on_where_they_were():
    layer = Conv2d(2, 3, 3, rule=UNBIASED)
    x = torch.randn(4, 2, 9, 9)

    def step():
        return torch.autograd.grad(layer(x).square().sum(), layer.weight)[0]

    step()
    state = history_state(layer)
    expected = step()
    assert not torch.equal(step(), expected)
    load_history_state(layer, state)
    assert torch.equal(step(), expected)


def test_what_it_cannot_do_is_said():
    with pytest.raises(ValueError, match=r"decay must be 0.*got decay=0\.5"):
        TopK(0.1, decay=0.5, pick="unbiased")
    with pytest.raises(ValueError, match="unified"):
        TopK(0.1, scope="unified", pick="unbiased")
    with pytest.raises(ValueError, match="use thin"):
        select(gradient(2, 2, 3, 3), UNBIASED)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_and_no_gradient_at_all(dtype):
    grad = gradient(4, 3, 8, 8).to(dtype)
    for pick in ("unbiased", "centred"):
        kept, _ = thin(grad, TopK(0.2, pick=pick), generator=generator())
        assert kept.dtype == dtype and 0.1 < (kept != 0).double().mean() < 0.3
    for way in (thin, kernels.thin):
        assert way(torch.zeros(0, 2, 3, 3), UNBIASED)[0].shape == (0, 2, 3, 3)
        assert not way(torch.zeros(2, 2, 3, 3), UNBIASED)[0].any()
