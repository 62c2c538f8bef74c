"""Our layers among what else people do with networks: the same as torch's, or a clear word."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from meprop import Conv2d, GradientTopK, Linear, TopK, convert, revert, select

BACKENDS = ("auto", "sparse", "masked")


def layer(rule=None, backend="auto", **arguments):
    torch.manual_seed(0)
    made = Conv2d(16, 32, 3, rule=rule or TopK(0.05), backend=backend, **arguments)
    return made, torch.randn(8, 16, 16, 16)


def selected(plain, x, rule, past=None):
    """A plain layer's weight gradient from the selected output gradient, and the new run_grad."""
    plain.zero_grad()
    y = plain(x)
    (grad,) = torch.autograd.grad(y.square().sum(), y)
    mask, past = select(grad, rule, past)
    plain(x).backward(torch.where(mask, grad, 0))
    return plain.weight.grad, past


def plain_copy(ours):
    theirs = nn.Conv2d(16, 32, 3)
    theirs.load_state_dict(ours.state_dict())
    return theirs


@pytest.mark.parametrize("backend", ["auto", "sparse"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("history", ["slot", "position"])
def test_a_past_of_another_type_is_converted(backend, dtype, history):
    rule = TopK(0.05, decay=0.5)
    found = []
    for past in (dtype, torch.float32):
        ours, x = layer(rule, backend, history=history)
        batch = 1 if history == "position" else 8
        torch.manual_seed(1)
        ours.run_grad = torch.rand(batch, 32, 14, 14).to(dtype).to(past)
        ours(x).square().sum().backward()
        assert ours.run_grad.dtype == torch.float32
        found.append((ours.weight.grad, ours.run_grad))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("history", ["slot", "position"])
def test_steps_that_overflow_and_are_skipped(backend, history):
    ours, x = layer(TopK(0.05, decay=0.9, bias="sparse"), backend, history=history)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**112, growth_interval=2)
    optimizer = torch.optim.SGD(ours.parameters(), lr=1e-9)
    before, skipped = ours.weight.clone(), 0
    for _ in range(12):
        scale = scaler.get_scale()
        optimizer.zero_grad()
        scaler.scale(ours(x).mul(2**8).square().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < scale
        assert bool(ours.run_grad.isfinite().all())
        assert bool(ours.weight.isfinite().all())
    assert 0 < skipped < 12 and not torch.equal(ours.weight, before)


def test_the_past_stays_in_float32_under_autocast():
    ours, x = layer(TopK(0.1, decay=0.5))
    with torch.autocast("cpu", torch.bfloat16):
        y = ours(x)
    y.float().sum().backward()
    assert ours.run_grad.dtype == torch.float32
    for _ in range(3):  # and in the next steps, without
        ours(x).sum().backward()
    assert ours.run_grad.dtype == torch.float32 and bool(ours.run_grad.isfinite().all())
    past, moved = ours.run_grad.clone(), ours.bfloat16().run_grad
    assert moved.dtype == torch.float32 and torch.equal(moved, past)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rule", [None, TopK(0.05, decay=0.5)])
def test_a_gradient_without_memory_is_zero(backend, rule):
    made = [
        (Conv2d(16, 32, 3, rule=rule, backend=backend), (8, 16, 16, 16)),
        (Linear(16, 32, rule=rule, backend=backend), (8, 16)),
        (nn.Sequential(GradientTopK(TopK(0.05, decay=0.5)), nn.Linear(16, 4)), (8, 16)),
    ]
    for ours, shape in made:
        x = torch.randn(shape, requires_grad=True)
        for _ in range(2):  # of a sign, autograd knows the gradient without computing it
            ours(x).sgn().sum().backward()
        grads = [x.grad, *(p.grad for p in ours.parameters())]
        assert all(not grad.any() for grad in grads)
        if rule is not None and hasattr(ours, "run_grad"):
            assert ours.run_grad.shape == ours(x).shape and not ours.run_grad.any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_that_are_negated_lazily(backend):
    rule = TopK(0.05)
    ours, _ = layer(rule, backend)
    x = torch.randn(8, 16, 16, 16, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    ours(x).square().sum().backward()
    expected, _ = selected(plain_copy(ours), x.resolve_neg(), rule)
    torch.testing.assert_close(ours.weight.grad, expected)


def test_complex_numbers():
    theirs, ours = (
        nn.Linear(5, 4, dtype=torch.complex64),
        Linear(5, 4, dtype=torch.complex64, rule=TopK(1.0)),
    )
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 5, dtype=torch.complex64)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    for each, its in zip((theirs, ours), inputs, strict=True):
        each(its).abs().square().sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad)
    with pytest.raises(ValueError, match=r"takes real numbers, got torch.complex64"):
        Conv2d(1, 2, 3, dtype=torch.complex64, rule=TopK(0.1))(
            torch.randn(1, 1, 4, 4, dtype=torch.complex64)
        )


@pytest.mark.filterwarnings("ignore:convert. at ")
def test_averaging_a_model_that_has_a_past():
    model = convert(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)), TopK(0.1, decay=0.6))
    average = torch.optim.swa_utils.AveragedModel(model)
    for size in (2, 3):
        model(torch.randn(size, 1, 6, 6)).sum().backward()
        average.update_parameters(model)
    assert average.module[1].running_mean.shape == (4,)
    assert "0.run_grad" not in dict(model.named_buffers())


def test_an_activation_in_place_above_the_selection():
    def model(*inner):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), *inner, nn.ReLU(inplace=True))

    x = torch.randn(2, 1, 6, 6)
    ours, theirs = model(GradientTopK(TopK(1.0))), model(nn.Identity())
    for each in (ours, theirs):
        each(x).square().sum().backward()
    assert torch.equal(ours(x), theirs(x))
    torch.testing.assert_close(ours[0].weight.grad, theirs[0].weight.grad)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "changed",
    [{"stride": 2}, {"stride": [1, 2]}, {"stride": (2,)}, {"padding": 1}, {"padding": [2, 0]},
     {"padding": (1,)}, {"dilation": 2}, {"padding": "same"}, {"padding": "valid"},
     {"padding": "same", "dilation": 2}, {"padding": "same", "dilation": [3, 1]}],
)  # fmt: skip
def test_attributes_that_were_set_later(backend, changed):
    rule = TopK(0.1)
    ours, x = layer(rule, backend)
    theirs = plain_copy(ours)
    for each in (ours, theirs):
        for name, value in changed.items():
            setattr(each, name, value)
    ours(x).square().sum().backward()
    expected, _ = selected(theirs, x, rule)
    torch.testing.assert_close(ours.weight.grad, expected)
    assert torch.equal(ours(x), theirs(x))

    ours.stride = 2
    for ours.padding in ("same", "sam"):  # as torch does
        with pytest.raises(RuntimeError, match="padding"):
            ours(x)


def test_layers_without_any_outputs_or_inputs():
    for sizes in ((4, 0), (0, 4)):
        with pytest.warns(UserWarning, match="zero-element"):
            plain = nn.Linear(*sizes)
        for backend in BACKENDS:
            ours = convert(copy.deepcopy(plain), TopK(0.5, decay=0.5), nn.Linear, backend=backend)
            for shape in ((3,), (2, 3), ()):
                x = torch.randn(*shape, sizes[0], requires_grad=True)
                ours(x).sum().backward()
                assert x.grad.shape == x.shape and ours.weight.grad.shape == ours.weight.shape


@pytest.mark.parametrize("kind", [Conv2d, Linear])
def test_layers_that_are_not_initialised(kind):
    arguments = (2, 3, 3) if kind is Conv2d else (2, 3)
    ours = nn.utils.skip_init(kind, *arguments, rule=TopK(0.5))
    assert ours.weight.device.type == "cpu" and ours.rule == TopK(0.5)
    assert kind(*arguments, device="meta").weight.is_meta


def test_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model = convert(nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU()), TopK(0.05, decay=0.5))
        model(torch.randn(8, 16, 16, 16)).sum().backward()
        assert model[0].weight.grad.shape == (32, 16, 3, 3)
    ours, x = layer()
    ours(x).sum().backward()
    assert bool(ours.weight.grad.isfinite().all())


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_gradients_at_once(backend):
    ours, x = layer(TopK(0.1, decay=0.5), backend)
    x = x[:2, :, :5, :5].clone().requires_grad_()
    ours(x).sum().backward()
    past = ours.run_grad.clone()
    y = ours(x)
    weights = torch.randn(3, *y.shape)
    (batched,) = torch.autograd.grad(y, x, weights, is_grads_batched=True, retain_graph=True)
    assert batched.shape == (3, *x.shape)
    assert torch.equal(ours.run_grad, past)
    (one,) = torch.autograd.grad(y, x, weights[1])
    torch.testing.assert_close(one, batched[1])


def test_transforms_that_look_inside_are_refused_in_words():
    ours, x = layer()
    with pytest.raises(RuntimeError, match=r"torch.func .*meprop.revert"):
        torch.func.grad(lambda x: ours(x).sum())(x)
    with torch.no_grad():
        each = torch.vmap(ours)(x)
    torch.testing.assert_close(each, ours(x))


class WithLeaves(torch.fx.Tracer):
    def is_leaf_module(self, module, name):
        return isinstance(module, (Conv2d, Linear, GradientTopK)) or super().is_leaf_module(
            module, name
        )


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "ours", [Conv2d(1, 4, 3, rule=TopK(0.1)), Linear(6, 4), GradientTopK(TopK(0.1))]
)
def test_what_looks_inside_is_told_what_to_do(ours):
    """fx may take the layers as leaves; a reverted model is torch's own."""
    ours = copy.deepcopy(ours)  # reverted in place below
    model, x = nn.Sequential(ours, nn.ReLU()), torch.randn(2, 1, 6, 6)
    traces = {
        torch.fx.symbolic_trace: r"torch.fx .*is_leaf_module; .*meprop.revert",
        torch.jit.script: r"torch.jit cannot look into .*meprop.revert",
        lambda model: torch.jit.trace(model, x): r"torch.jit cannot look into .*meprop.revert",
    }
    for trace, message in traces.items():
        with pytest.raises(RuntimeError, match=message):
            trace(model)
    traced = torch.fx.GraphModule(model, WithLeaves().trace(model))
    assert torch.equal(traced(x), model(x))
    assert any(module is ours for module in traced.modules())
    if type(ours) is not GradientTopK:
        assert torch.equal(torch.fx.symbolic_trace(revert(model))(x), model(x))
        assert torch.equal(torch.jit.trace(model, x)(x), model(x))


def test_where_no_gradient_is_wanted_it_is_torchs_layer():
    ours, x = layer()
    calls, alone, expected = [], ours(x[0]), ours(x)
    handle = ours.register_forward_hook(lambda *args: calls.append(args))
    assert torch.equal(ours(x[0]), alone) and len(calls) == 1, "once, without a batch too"
    handle.remove()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = ours(x)
        assert torch.equal(found, expected) and found.grad_fn is None
    assert ours.to("meta")(x.to("meta")).shape == (8, 32, 14, 14)


def test_revert_says_what_it_leaves():
    model = convert(nn.Sequential(nn.Conv2d(1, 4, 3)), TopK(0.5))
    parametrizations.spectral_norm(model[0])
    with pytest.warns(UserWarning, match=r"still selecting: 0 \(ParametrizedConv2d\)"):
        revert(model)
    torch.nn.utils.parametrize.remove_parametrizations(model[0], "weight")
    assert type(revert(model)[0]) is nn.Conv2d


def test_a_layer_whose_forward_was_replaced_is_left_alone():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3))
    model[0].forward = lambda x: x
    with pytest.warns(UserWarning, match=r"left alone: 0 \(its forward was replaced\)"):
        convert(model, TopK(0.5))
    assert [type(each) for each in model] == [nn.Conv2d, Conv2d]
