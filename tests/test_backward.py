"""The backends behind the layers: one result, whichever computes it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from meprop import Conv2d, Linear, TopK, backward, watch

# What test_random_layers does not draw.
RULES = [
    TopK(0.1, pick="random"), TopK(0.1, only="weight"),
    TopK(0.1, decay=0.6, bias="sparse", only="input"),
]  # fmt: skip


def close(ours, theirs, tolerance=1e-5):
    return float((ours - theirs).norm()) <= tolerance * float(theirs.norm()) + 1e-12


def step(layer, seed):
    """Gradients of one step on a fixed input and upstream gradient, a third of it zero."""
    generator = torch.Generator().manual_seed(seed)
    shape = (4, 3, 9, 9) if isinstance(layer, nn.Conv2d) else (6, 12)
    x = torch.randn(shape, generator=generator).requires_grad_()
    y = layer(x)
    upstream = torch.randn(y.shape, generator=generator)
    upstream[torch.rand(y.shape, generator=generator) < 1 / 3] = 0
    layer.zero_grad()
    y.backward(upstream)
    return {"input": x.grad, **{name: p.grad.clone() for name, p in layer.named_parameters()}}


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("history", ["slot", "position"])
@pytest.mark.parametrize("kind", ["conv", "linear"])
def test_sparse_equals_masked(kind, rule, history):
    torch.manual_seed(0)
    arguments = {"rule": rule, "history": history, "backend": "sparse"}
    sparse = (
        Conv2d(3, 8, 3, padding=1, **arguments) if kind == "conv" else Linear(12, 20, **arguments)
    )
    masked = copy.deepcopy(sparse)
    masked.backend = "masked"
    for seed in range(3):
        with watch(sparse) as seen, watch(masked) as expected:
            ours, theirs = step(sparse, seed), step(masked, seed)
        for name in theirs:
            assert close(ours[name], theirs[name]), name
        assert seen[""].before == expected[""].before
        assert seen[""].after == expected[""].after
        assert seen[""].norm_kept == pytest.approx(expected[""].norm_kept)
        if rule is not None and rule.decay:
            assert torch.equal(sparse.run_grad, masked.run_grad)


def test_the_papers_network_trains_alike_on_every_backend():
    PaperCNN = pytest.importorskip("meprop.study").PaperCNN  # the wheel has none
    losses = {}
    for backend_ in ("masked", "sparse", "auto"):
        torch.manual_seed(0)
        model = PaperCNN(rule=TopK(0.05, decay=0.6), backend=backend_)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        losses[backend_] = []
        for seed in range(4):
            x = torch.rand(10, 1, 28, 28, generator=torch.Generator().manual_seed(seed))
            loss = F.cross_entropy(model(x), torch.arange(10))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[backend_].append(loss.item())
    assert losses["sparse"] == pytest.approx(losses["masked"], rel=1e-4)
    assert losses["auto"] == pytest.approx(losses["masked"], rel=1e-4)


@pytest.mark.parametrize("verdict", [False, True])
def test_auto_follows_the_cost_model(monkeypatch, verdict):
    asked, ran = [], []

    def cheaper(grad, x, weight, sliding, rule, **facts):
        asked.append((*sliding[:4], rule, facts))
        return verdict

    monkeypatch.setattr(backward, "cheaper", cheaper)
    kernel = backward.kernels.backward
    monkeypatch.setattr(
        backward.kernels, "backward", lambda *a, **k: ran.append(1) or kernel(*a, **k)
    )
    rule = TopK(0.1)
    step(Conv2d(3, 8, 3, padding=1, rule=rule, backend="auto"), 0)
    assert len(ran) == verdict
    facts = {"wants_input": True, "threads": torch.get_num_threads()}
    assert asked == [((1, 1), (1, 1), (1, 1), 1, rule, facts)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_auto_takes_what_sparse_refuses(dtype):
    x = torch.rand(2, 3, 6, 6, dtype=dtype)
    auto = Conv2d(3, 4, 3, rule=TopK(0.1)).to(dtype)
    auto(x).sum().backward()
    assert auto.weight.grad.dtype == dtype
    for layer, input in [
        (Conv2d(3, 4, 3, rule=TopK(0.1), backend="sparse").to(dtype), x),
        (Linear(6, 4, backend="sparse").to(dtype), x),
    ]:
        with pytest.raises(ValueError, match=f"backend 'sparse' takes float32 .* {dtype} on cpu"):
            layer(input)


@pytest.mark.parametrize("backend_", ["masked", "sparse"])
@pytest.mark.parametrize(
    "make", [lambda **k: Conv2d(3, 8, 3, **k), lambda **k: Linear(12, 20, **k)]
)
def test_one_side_alone_is_selected_and_the_other_is_torchs(make, backend_):
    torch.manual_seed(0)
    layer = make(backend=backend_)
    layer.rule = None
    full = step(layer, 0)
    layer.rule = TopK(0.1)
    both = step(layer, 0)
    for only, other in (("weight", "input"), ("input", "weight")):
        layer.rule = TopK(0.1, only=only)
        found = step(layer, 0)
        assert close(found[only], both[only]) and not close(found[only], full[only], 1e-2)
        assert close(found[other], full[other]) and not close(found[other], both[other], 1e-2)
        assert close(found["bias"], full["bias"])


def test_nothing_is_selected_for_a_side_that_nobody_wants():
    layer = Conv2d(3, 8, 3, rule=TopK(0.1, decay=0.6, only="input"))
    with watch(layer) as seen:
        layer(torch.rand(2, 3, 8, 8)).sum().backward()  # images need no gradient
    assert layer.run_grad is None
    assert layer.weight.grad is not None and seen[""].after is None
