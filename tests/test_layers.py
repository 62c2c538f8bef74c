import copy
import pickle

import naive
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from meprop import Conv1d, Conv2d, GradientTopK, Linear, TopK, select


@st.composite
def convs(draw):
    """Arguments of a convolution and an image it fits on."""
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    kernel = (draw(st.integers(1, 4)), draw(st.integers(1, 3)))
    stride = draw(st.sampled_from([1, 1, 2, (2, 1)]))
    arguments = {
        "in_channels": groups * draw(st.integers(1, 2)),
        "out_channels": groups * draw(st.integers(1, 3)),
        "kernel_size": kernel,
        "stride": stride,
        "dilation": draw(st.sampled_from([1, 1, 2, (1, 2)])),
        "groups": groups,
        "bias": draw(st.booleans()),
        "padding": draw(
            st.sampled_from([0, 1, (2, 1), "valid"] + (["same"] if stride == 1 else []))
        ),
    }
    if arguments["padding"] != "valid":
        modes = ["zeros", "zeros", "reflect", "replicate", "circular"]
        arguments["padding_mode"] = draw(st.sampled_from(modes))
    shape = (draw(st.integers(1, 3)), arguments["in_channels"], 8, 9)
    return arguments, shape, draw(st.integers(0, 2**16))


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


def check_equal(layer, plain, shape, seed):
    x = torch.randn(shape, dtype=torch.float64)
    upstream = torch.randn(plain(x).shape, dtype=torch.float64)
    ours, theirs = gradients(layer, x, upstream), gradients(plain, x, upstream)
    assert torch.equal(ours[0], theirs[0])
    assert ours[1].keys() == theirs[1].keys()
    for name in theirs[1]:
        torch.testing.assert_close(ours[1][name], theirs[1][name], rtol=1e-9, atol=1e-11)


@given(convs(), st.sampled_from([None, TopK(1.0), TopK(1.0, decay=0.5, scope="layer")]))
def test_conv_with_everything_kept_is_torchs(case, rule):
    arguments, shape, seed = case
    layer, plain = pair(Conv2d, nn.Conv2d, arguments, seed, rule=rule)
    check_equal(layer, plain, shape, seed)


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


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_sequences_with_other_paddings(mode):
    arguments = {"in_channels": 1, "out_channels": 2, "kernel_size": 4, "padding": "same"}
    layer, plain = pair(Conv1d, nn.Conv1d, arguments | {"padding_mode": mode}, rule=TopK(1.0))
    check_equal(layer, plain, (2, 1, 9), 0)


@given(
    st.lists(st.integers(1, 3), max_size=3),
    st.booleans(),
    st.sampled_from([None, TopK(1.0), TopK(1.0, scope="unified", bias="sparse")]),
)
def test_linear_with_everything_kept_is_torchs(leading, bias, rule):
    arguments = {"in_features": 6, "out_features": 5, "bias": bias}
    layer, plain = pair(Linear, nn.Linear, arguments, rule=rule)
    check_equal(layer, plain, (*leading, 6), 0)


@given(convs(), st.sampled_from(["map", "sample", "layer", "mixed"]), st.sampled_from([0.1, 0.4]))
def test_conv_equals_the_loops(case, scope, ratio):
    arguments, shape, seed = case
    arguments = {**arguments, "padding_mode": "zeros"}
    if isinstance(arguments["padding"], str):
        arguments["padding"] = 1
    layer, plain = pair(Conv2d, nn.Conv2d, arguments, seed, rule=TopK(ratio, scope=scope))
    x = torch.randn(shape, dtype=torch.float64)
    upstream = torch.randn(plain(x).shape, dtype=torch.float64)
    _, grads = gradients(layer, x, upstream)
    chosen = upstream * naive.mask(upstream, ratio, scope)
    dx, dw = naive.conv2d_backward(
        chosen, x, plain.weight, plain.stride, plain.padding, plain.dilation, plain.groups
    )
    torch.testing.assert_close(grads["input"], dx)
    torch.testing.assert_close(grads["weight"], dw)
    if arguments["bias"]:
        torch.testing.assert_close(grads["bias"], upstream.sum((0, 2, 3)))


@given(st.lists(st.integers(1, 3), max_size=3), st.sampled_from(["map", "layer", "unified"]))
def test_linear_equals_the_loops(leading, scope):
    """A gradient with four dimensions is still a linear layer's: rows over the outputs."""
    layer, _ = pair(
        Linear, nn.Linear, {"in_features": 4, "out_features": 5}, rule=TopK(0.4, scope=scope)
    )
    x = torch.randn((*leading, 4), dtype=torch.float64)
    upstream = torch.randn((*leading, 5), dtype=torch.float64)
    _, grads = gradients(layer, x, upstream)
    rows = upstream.reshape(-1, 5)
    chosen = rows * naive.mask(rows, 0.4, scope)
    torch.testing.assert_close(grads["input"], (chosen @ layer.weight.detach()).reshape(x.shape))
    torch.testing.assert_close(grads["weight"], chosen.T @ x.reshape(-1, 4))
    torch.testing.assert_close(grads["bias"], rows.sum(0))


def test_only_k_rows_of_an_mlp_weight_change():
    layer = Linear(6, 10, rule=TopK(0.2))
    layer(torch.rand(1, 6)).square().sum().backward()
    assert int(layer.weight.grad.any(dim=1).sum()) == 2


@pytest.mark.parametrize("kind", ["conv", "linear"])
def test_the_bias_gradient_is_full_or_sparse(kind):
    for bias in ("full", "sparse"):
        rule = TopK(0.25, bias=bias)
        layer = Conv2d(1, 1, 1, rule=rule) if kind == "conv" else Linear(1, 4, rule=rule)
        upstream = torch.tensor([1.0, 2.0, 3.0, -4.0])
        if kind == "conv":
            layer(torch.rand(1, 1, 2, 2)).backward(upstream.reshape(1, 1, 2, 2))
            assert layer.bias.grad.tolist() == [2.0 if bias == "full" else -4.0]
        else:
            layer(torch.rand(1, 1)).backward(upstream[None])
            expected = [1.0, 2.0, 3.0, -4.0] if bias == "full" else [0.0, 0.0, 0.0, -4.0]
            assert layer.bias.grad.tolist() == expected


@pytest.mark.parametrize("history", ["slot", "position"])
def test_run_grad_belongs_to_the_layer(history):
    rule = TopK(0.3, decay=0.6)
    layer = Conv2d(2, 3, 3, rule=rule, history=history)
    expected = None
    for seed in range(3):
        upstream = torch.randn(4, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
        layer(torch.rand(4, 2, 6, 6)).backward(upstream)
        _, expected = select(upstream, rule, expected, per_position=history == "position")
        assert torch.equal(layer.run_grad, expected)
    assert layer.to(torch.float64).run_grad.dtype == torch.float64
    assert layer.to("meta").run_grad.device.type == "meta"


def test_history_starts_anew_when_the_shape_changes():
    layer = Conv2d(1, 2, 3, rule=TopK(0.3, decay=0.6))
    for batch in (1, 4, 2):
        upstream = torch.randn(batch, 2, 4, 4)
        layer(torch.rand(batch, 1, 6, 6)).backward(upstream)
        assert torch.equal(layer.run_grad, select(upstream, layer.rule)[1])


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


@pytest.mark.parametrize("backend", ["auto", "masked"])
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


def test_no_grad_and_inference():
    layer, plain = pair(
        Conv2d, nn.Conv2d, {"in_channels": 1, "out_channels": 2, "kernel_size": 3}, rule=TopK(0.5)
    )
    x = torch.rand(1, 1, 5, 5, dtype=torch.float64)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            y = layer(x)
            assert not y.requires_grad
            assert torch.equal(y, plain(x))


@pytest.mark.parametrize("kind", ["conv", "linear"])
@pytest.mark.parametrize("frozen", [("weight",), ("bias",), ("weight", "bias"), ("input",)])
def test_frozen_parameters_and_inputs_without_grad(kind, frozen):
    rule = TopK(0.5)
    layer = Conv2d(2, 3, 3, rule=rule) if kind == "conv" else Linear(4, 3, rule=rule)
    x = torch.rand((2, 2, 5, 5) if kind == "conv" else (2, 4), requires_grad="input" not in frozen)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name not in frozen)
    layer(x).square().sum().backward()
    grads = {"input": x.grad, "weight": layer.weight.grad, "bias": layer.bias.grad}
    assert {name for name, grad in grads.items() if grad is None} == set(frozen)


def test_an_unbatched_image():
    layer = Conv2d(2, 3, 3, rule=TopK(0.5))
    x = torch.rand(2, 5, 5)
    y = layer(x)
    assert torch.equal(y, nn.functional.conv2d(x, layer.weight, layer.bias))
    y.sum().backward()
    assert layer.weight.grad is not None


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types(dtype):
    layer = Conv2d(2, 3, 3, rule=TopK(0.5, decay=0.5)).to(dtype)
    layer(torch.rand(2, 2, 6, 6, dtype=dtype)).sum().backward()
    assert layer.weight.grad.dtype == dtype


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


def test_random_picks_leave_torchs_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    layer = Linear(3, 8, rule=None)
    torch.manual_seed(3)
    layer.set_rule(TopK(0.5, pick="random"))
    layer(torch.ones(2, 3)).sum().backward()
    assert torch.equal(torch.rand(4), expected)


def test_layers_of_one_network_draw_differently():
    torch.manual_seed(0)
    first, second = (Linear(4, 16, rule=TopK(0.5, pick="random")) for _ in range(2))
    for layer in (first, second):
        layer(torch.ones(1, 4)).sum().backward()
    assert not torch.equal(first.weight.grad != 0, second.weight.grad != 0)


def test_the_selection_as_a_layer():
    layer = GradientTopK(TopK(0.25))
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]], requires_grad=True)
    y = layer(x)
    assert torch.equal(y, x)
    y.backward(torch.tensor([[1.0, -5.0, 2.0, 3.0]]))
    assert x.grad.tolist() == [[0.0, -5.0, 0.0, 0.0]]


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
    ],
)
def test_a_bad_value_is_named(make, name):
    with pytest.raises(ValueError, match=name):
        make()


def test_the_description_shows_the_rule():
    assert "TopK(ratio=0.05" in repr(Conv2d(1, 1, 1, rule=TopK(0.05)))
