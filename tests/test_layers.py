import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from meprop import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose2d,
    GradientTopK,
    Linear,
    TopK,
    convert,
    history_state,
    load_history_state,
    thin,
)  # fmt: skip


def pair(ours, theirs, arguments, seed=0, **settings):
    """Our layer and torch's, in double precision and with the same parameters."""
    torch.manual_seed(seed)
    plain = theirs(**arguments).double()
    layer = ours(**arguments, **settings).double()
    layer.load_state_dict(plain.state_dict())
    return layer, plain


def gradients(layer, x, upstream):
    x = x.clone().requires_grad_()
    y = layer(x)
    y.backward(upstream)
    grads = {"input": x.grad, **{name: p.grad for name, p in layer.named_parameters()}}
    return y.detach(), grads


@st.composite
def conv1ds(draw):
    """Arguments of a convolution over sequences, and the same over images of height 1."""
    groups, stride = draw(st.sampled_from([1, 1, 2])), draw(st.integers(1, 2))
    kernel, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    padding = draw(st.sampled_from([0, 1, 2, "valid"] + (["same"] if stride == 1 else [])))
    wide = {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    flat = {"kernel_size": (1, kernel), "stride": (1, stride), "dilation": (1, dilation)}
    flat["padding"] = padding if isinstance(padding, str) else (0, padding)
    both = {"in_channels": 2 * groups, "out_channels": 4 * groups, "groups": groups}
    both["bias"] = draw(st.booleans())
    return both | wide, both | flat, draw(st.integers(0, 2**16))


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@given(
    conv1ds(),
    st.sampled_from(["auto", "sparse", "masked"]),
    st.sampled_from([None, TopK(0.3), TopK(0.2, decay=0.5, scope="sample", bias="sparse")]),
)
def test_a_sequence_is_an_image_of_height_one(case, backend, rule):
    wide, flat, seed = case
    torch.manual_seed(seed)
    layer = Conv1d(**wide, rule=rule, backend=backend)
    image = Conv2d(**flat, rule=rule, backend=backend)
    plain = nn.Conv1d(**wide)
    plain.load_state_dict(layer.state_dict())
    image.load_state_dict(
        {
            n: t.reshape(p.shape)
            for (n, t), p in zip(layer.state_dict().items(), image.parameters(), strict=True)
        }
    )
    for _ in range(2):
        x = torch.randn(3, wide["in_channels"], 20)
        assert torch.equal(layer(x), plain(x))
        assert torch.equal(layer(x[0]), layer(x[:1])[0])
        upstream = torch.randn(plain(x).shape)
        _, ours = gradients(layer, x, upstream)
        _, theirs = gradients(image, x.unsqueeze(2), upstream.unsqueeze(2))
        for name, grad in ours.items():
            assert torch.equal(grad, theirs[name].reshape(grad.shape))
        if rule is not None and rule.decay:
            assert torch.equal(layer.run_grad, image.run_grad)


def test_state_dicts_are_torchs():
    for ours, theirs in [
        (Conv2d(2, 3, 3, rule=TopK(0.3, decay=0.6)), nn.Conv2d(2, 3, 3)),
        (Linear(4, 3, rule=TopK(0.3, decay=0.6, pick="random")), nn.Linear(4, 3)),
    ]:
        x = torch.rand(2, 2, 5, 5) if isinstance(ours, Conv2d) else torch.rand(2, 4)
        ours(x).sum().backward()
        assert ours.run_grad is not None
        theirs.load_state_dict(ours.state_dict(), strict=True)
        assert torch.equal(theirs(x), ours(x))
        ours.load_state_dict(theirs.state_dict(), strict=True)


@pytest.mark.parametrize("backend", ["auto", "sparse", "masked"])
def test_double_backward_says_that_it_cannot(backend):
    for layer, shape in [
        (Conv2d(1, 2, 3, rule=TopK(0.5), backend=backend), (1, 1, 5, 5)),
        (Linear(3, 2, rule=TopK(0.5), backend=backend), (2, 3)),
        (GradientTopK(TopK(0.5)), (2, 3)),
    ]:
        x = torch.rand(shape, requires_grad=True)
        (first,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="no second derivative"):
            first.sum().backward()


@pytest.mark.parametrize("backend", ["auto", "sparse", "masked"])
@pytest.mark.parametrize("kind", ["conv", "linear"])
@pytest.mark.parametrize("frozen", [("weight",), ("bias",), ("weight", "bias"), ("input",)])
def test_frozen_parameters_and_inputs_without_grad(kind, frozen, backend):
    settings = {"rule": TopK(0.5), "backend": backend}
    layer = Conv2d(2, 3, 3, **settings) if kind == "conv" else Linear(4, 3, **settings)
    x = torch.rand((2, 2, 5, 5) if kind == "conv" else (2, 4), requires_grad="input" not in frozen)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name not in frozen)
    layer(x).square().sum().backward()
    grads = {"input": x.grad, "weight": layer.weight.grad, "bias": layer.bias.grad}
    assert {name for name, grad in grads.items() if grad is None} == set(frozen)


@pytest.mark.parametrize("kind", ["conv", "linear"])
def test_autocast_is_torchs(kind):
    torch.manual_seed(0)
    if kind == "conv":
        plain, layer = nn.Conv2d(2, 3, 3), Conv2d(2, 3, 3, rule=TopK(1.0))
    else:
        plain, layer = nn.Linear(4, 3), Linear(4, 3, rule=TopK(1.0))
    x = torch.rand((2, 2, 6, 6) if kind == "conv" else (5, 4))
    layer.load_state_dict(plain.state_dict())
    grads = []
    for model in (plain, layer):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(x)
        assert y.dtype == torch.bfloat16
        y.float().square().sum().backward()
        grads.append((y.detach(), model.weight.grad, model.bias.grad))
    assert torch.equal(grads[0][0], grads[1][0])
    for theirs, ours in zip(*grads, strict=True):
        assert theirs.dtype == ours.dtype
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


def test_copies_go_their_own_way():
    torch.manual_seed(0)
    for rule in (TopK(0.3, decay=0.6), TopK(0.3, pick="random")):
        layer = Conv2d(1, 2, 3, rule=rule)
        x, upstream = torch.rand(2, 1, 6, 6), torch.randn(2, 2, 4, 4)
        layer(x).backward(upstream)
        twins = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
        grads = []
        for model in (layer, *twins):
            model.zero_grad()
            model(x).backward(upstream.flip(0))
            grads.append(model.weight.grad)
        assert torch.equal(grads[0], grads[1])
        assert torch.equal(grads[0], grads[2])
        if layer.run_grad is not None:
            assert twins[0].run_grad is not layer.run_grad


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo looks at it
def test_compiled_gives_the_same():
    torch.manual_seed(0)
    model = nn.Sequential(
        Conv2d(1, 4, 3, rule=TopK(0.2, decay=0.6)), nn.ReLU(), nn.Flatten(),
        Linear(64, 3, rule=TopK(0.4)), GradientTopK(TopK(0.7)),
    )  # fmt: skip
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, backend="eager")
    for step in range(3):
        x = torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(step))
        for network in (model, compiled):
            network(x).square().sum().backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    assert torch.equal(model[0].run_grad, twin[0].run_grad)


def test_random_picks_leave_torchs_generator_alone_and_differ_between_layers():
    plain = nn.Sequential(nn.Linear(4, 16), nn.Linear(4, 16))
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    model = convert(plain, TopK(0.5, pick="random"), layers=nn.Linear)
    for layer in model:
        layer(torch.ones(1, 4)).sum().backward()
    assert torch.equal(torch.rand(4), expected)
    assert not torch.equal(*(layer.weight.grad != 0 for layer in model))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Conv2d(1, 1, 1, rule=0.05), "rule must be a TopK or None, got 0.05"),
        (lambda: Linear(1, 1, rule="5%"), "Linear: rule"),
        (lambda: Conv2d(1, 1, 1, backend="dense"), "Conv2d: backend .* got 'dense'"),
        (lambda: Linear(1, 1, backend="maskd"), "did you mean 'masked'"),
        (lambda: Conv2d(1, 1, 1, history="batch"), "Conv2d: history .* got 'batch'"),
        (lambda: Conv2d(1, 1, 1, rule=TopK(0.1, scope="unified")), "scope 'unified'"),
        (lambda: GradientTopK(None), "GradientTopK: rule"),
        (lambda: Conv3d(1, 1, 1, backend="sparse"), "Conv3d: there are no kernels"),
    ],
)
def test_a_bad_value_is_named(make, name):
    with pytest.raises(ValueError, match=name):
        make()


MASKED = [
    (Conv3d, nn.Conv3d, {"kernel_size": (2, 3, 1), "padding": (0, 1, 0), "stride": (1, 2, 1)}),
    (Conv3d, nn.Conv3d, {"kernel_size": 2, "padding": "same", "dilation": 2, "groups": 2}),
    (Conv3d, nn.Conv3d, {"kernel_size": 3, "padding": 1, "padding_mode": "circular"}),
    (ConvTranspose2d, nn.ConvTranspose2d, {"kernel_size": 3, "stride": 2, "output_padding": 1}),
    (ConvTranspose2d, nn.ConvTranspose2d, {"kernel_size": (1, 4), "padding": (0, 1), "groups": 2}),
    (ConvTranspose2d, nn.ConvTranspose2d, {"kernel_size": 2, "dilation": 2, "bias": False}),
]


@pytest.mark.parametrize("rule", [TopK(0.3), TopK(0.2, scope="sample"), TopK(0.1, scope="layer")])
@pytest.mark.parametrize(("ours", "theirs", "arguments"), MASKED)
def test_volumes_and_transposed_convolutions_are_torchs_with_a_masked_gradient(
    ours, theirs, arguments, rule
):
    arguments = {"in_channels": 2, "out_channels": 4, **arguments}
    layer, plain = pair(ours, theirs, arguments, rule=rule)
    x = torch.randn(3, 2, *([5] * (3 if ours is Conv3d else 2)), dtype=torch.float64)
    upstream = torch.randn(plain(x).shape, dtype=torch.float64)
    y, grads = gradients(layer, x, upstream)
    assert torch.equal(y, plain(x))
    assert torch.equal(layer(x[0]), plain(x[0]))
    if ours is ConvTranspose2d:
        room = zip(y.shape[2:], plain.stride, plain.output_padding, strict=True)
        size = [n + stride - 1 - padding for n, stride, padding in room]
        assert torch.equal(layer(x, output_size=size), plain(x, output_size=size))
    x.requires_grad_()
    masked = thin(upstream.flatten(3), rule)[0].reshape(upstream.shape)
    plain(x).backward(masked)
    torch.testing.assert_close(grads["input"], x.grad)
    torch.testing.assert_close(grads["weight"], plain.weight.grad)
    if plain.bias is not None:  # the paper's: summed over all
        over = (0, *range(2, x.dim()))
        torch.testing.assert_close(grads["bias"], upstream.sum(over))


@pytest.mark.parametrize("only", ["weight", "input"])
def test_volumes_keep_their_history_and_the_exact_side(only):
    rule = TopK(0.25, decay=0.5, only=only)
    layer, plain = pair(
        Conv3d, nn.Conv3d, {"in_channels": 2, "out_channels": 3, "kernel_size": 2}, rule=rule
    )
    x, upstream = torch.randn(2, 2, 4, 4, 4).double(), torch.randn(2, 3, 3, 3, 3).double()
    (_, grads), (_, exact) = (gradients(each, x, upstream) for each in (layer, plain))
    same = {name: torch.allclose(grads[name], exact[name]) for name in ("input", "weight")}
    assert same == {"input": only == "weight", "weight": only == "input"}
    assert torch.equal(layer.run_grad, 0.5 * upstream.abs().flatten(3))
    load_history_state(layer, history_state(layer))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Conv2d(2, 3, 3, padding=1, rule=TopK(1.0), backend="masked"), (2, 2, 4, 4)),
        (Conv1d(2, 3, 2, rule=TopK(1.0), backend="masked"), (2, 2, 5)),
        (Conv3d(1, 2, 2, rule=TopK(1.0)), (1, 1, 3, 3, 3)),
        (ConvTranspose2d(2, 1, 2, stride=2, rule=TopK(1.0)), (2, 2, 2, 2)),
        (Linear(3, 4, rule=TopK(1.0), backend="masked"), (2, 3)),
        (GradientTopK(TopK(1.0)), (2, 3)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_all_that_is_kept_is_the_derivative(layer, shape):
    layer = layer.double()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]

    def call(x, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(call, (x, *layer.parameters()))
