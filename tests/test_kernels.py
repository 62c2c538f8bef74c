"""The sparse kernels against torch's own backward on the gradient that the reference selects."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from meprop import TopK, kernels, select, thin
from meprop.kernels.cost import Layer, cheaper, density, sparse_cost

pytestmark = [
    pytest.mark.usefixtures("threads_for_small_gradients"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

check = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def lay_out(values: Tensor, layout: str) -> Tensor:
    """The same values, otherwise in memory."""
    if layout == "channels_last" and values.dim() == 4:
        return values.contiguous(memory_format=torch.channels_last)
    if layout == "transposed":
        return values.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "sliced":
        wide = torch.zeros(*values.shape[:-1], 2 * values.shape[-1])
        wide[..., ::2] = values
        return wide[..., ::2]
    return values.contiguous()


def same(ours: Tensor | None, theirs: Tensor | None) -> bool:
    """The same bits; NaN is equal to NaN."""
    if ours is None or theirs is None:
        return ours is theirs
    return torch.allclose(ours, theirs, rtol=0, atol=0, equal_nan=True)


def close(ours: Tensor | None, theirs: Tensor, at_least: bool = False) -> bool:
    """Equal to a relative norm of 1e-5 where finite, and not finite in the same places.

    at_least: ours may have more that is not finite.
    """
    assert ours is not None and ours.shape == theirs.shape
    finite = theirs.isfinite()
    if at_least:
        finite &= ours.isfinite()
        theirs = torch.where(finite | ~theirs.isfinite(), theirs, torch.nan)
    if not torch.equal(ours.isfinite(), theirs.isfinite()):
        return False
    return bool((ours - theirs)[finite].norm() <= 1e-5 * theirs[finite].norm() + 1e-30)


def dense_conv(grad: Tensor, x: Tensor, weight: Tensor, slide: dict) -> list[Tensor]:
    order = [slide[name] for name in ("stride", "padding", "dilation")]
    return torch.ops.aten.convolution_backward(
        grad, x, weight, None, *order, False, [0, 0], slide["groups"], [True, True, False]
    )[:2]


LAYOUTS = st.sampled_from(["contiguous", "channels_last", "transposed", "sliced"])
VALUES = st.sampled_from(["normal", "sparse", "ties", "zero", "few", "wild"])


def gradient(kind: str, shape: tuple[int, ...]) -> Tensor:
    grad = torch.randn(shape)
    if kind == "sparse":
        grad = grad * (torch.rand(shape) < 0.2)
    elif kind == "ties":
        grad = grad.mul(2).round().div(2)
    elif kind == "zero":
        grad = -torch.zeros(shape)
    elif kind == "few":
        grad = grad * (torch.rand(shape) < 2 / grad.numel())
    elif kind == "wild":
        flat = grad.flatten()
        flat[torch.randint(flat.numel(), (3,))] = torch.tensor([torch.nan, torch.inf, -torch.inf])
        flat[torch.randint(flat.numel(), (1,))] = -torch.nan
    return grad


@st.composite
def convolutions(draw):
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    inputs = groups * draw(st.sampled_from([1, 2, 3, 5, 8, 16]))
    maps = groups * draw(st.integers(1, 5))
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    padding = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    size = [
        max(1, dilation[i] * (kernel[i] - 1) + 1 - 2 * padding[i]) + draw(st.integers(0, 7))
        for i in (0, 1)
    ]
    slide = dict(stride=stride, padding=padding, dilation=dilation, groups=groups)
    return (draw(st.integers(1, 4)), inputs, *size), (maps, inputs // groups, *kernel), slide


@st.composite
def rows(draw):
    """A linear layer's: nothing slides."""
    inputs = draw(st.sampled_from([1, 4, 8, 100, 256]))
    outputs = draw(st.sampled_from([1, 3, 10, 40, 130]))
    return (draw(st.integers(1, 12)), inputs), (outputs, inputs), None


@check
@given(
    layer=st.one_of(convolutions(), rows()),
    scope=st.sampled_from(["map", "sample", "layer", "mixed"]),
    ratio=st.sampled_from([0.01, 0.1, 0.5, 1.0, None]),
    decay=st.sampled_from([0.0, 0.6]),
    pick=st.sampled_from(["top", "top", "random"]),
    per_position=st.booleans(),
    values=VALUES,
    layouts=st.tuples(LAYOUTS, LAYOUTS, LAYOUTS),
    threads=st.integers(1, 2),
    seed=st.integers(0, 999),
)
def test_a_layer_equals_the_masked_one(
    layer, scope, ratio, decay, pick, per_position, values, layouts, threads, seed
):
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    x_shape, weight_shape, slide = layer
    compute = kernels.linear_backward if slide is None else kernels.conv2d_backward
    slide = slide or {}
    x, weight = lay_out(torch.randn(x_shape), layouts[0]), torch.randn(weight_shape)
    weight = lay_out(weight, layouts[1])
    rule = None if ratio is None else TopK(ratio, decay, scope, pick)
    out = F.conv2d(x, weight, **slide) if slide else F.linear(x, weight)
    ours = theirs = None
    draws = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    for _ in range(3 if decay and rule else 1):
        grad = lay_out(gradient(values, tuple(out.shape)), layouts[2])
        mask = torch.ones_like(grad, dtype=torch.bool)
        if rule is not None:
            mask, theirs = select(grad, rule, theirs, draws[0], per_position=per_position)
        result = compute(
            grad, x, weight, **slide, rule=rule, run_grad=ours, generator=draws[1],
            per_position=per_position, watched=True,
        )  # fmt: skip
        ours = result.run_grad
        chosen = torch.where(mask, grad, 0)
        assert torch.equal(result.kept.nan_to_num(), chosen.nan_to_num())
        assert same(ours, theirs)
        assert close(result.grad_bias, grad.sum((0, 2, 3) if slide else 0))
        if slide:
            dx, dw = dense_conv(chosen, x, weight, slide)
        elif values == "wild":
            continue  # 0 * inf is NaN in a matrix product; the kernels skip the zero
        else:
            dx, dw = chosen @ weight, chosen.T @ x
        assert close(result.grad_input, dx)
        # Whether NaN times the zeros of the padding is NaN is left to the implementation.
        assert close(result.grad_weight, dw, at_least=values == "wild")


@check
@given(
    shape=st.one_of(
        st.tuples(st.integers(1, 5), st.integers(1, 70), st.integers(1, 12), st.integers(1, 12)),
        st.tuples(st.integers(1, 6), st.integers(1, 200)),
        st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 90)),
        st.tuples(st.integers(1, 300)),
    ),
    scope=st.sampled_from(["map", "sample", "layer", "mixed"]),
    ratio=st.floats(0.001, 1.0),
    decay=st.sampled_from([0.0, 0.3]),
    pick=st.sampled_from(["top", "random"]),
    per_position=st.booleans(),
    values=VALUES,
    layout=LAYOUTS,
    seed=st.integers(0, 999),
)
def test_passes_on_what_the_reference_selects(
    shape, scope, ratio, decay, pick, per_position, values, layout, seed
):
    torch.manual_seed(seed)
    rule = TopK(ratio, decay, scope, pick)
    ours = theirs = None
    draws = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    for _ in range(2):
        grad = lay_out(gradient(values, shape), layout)
        expected, theirs = thin(grad, rule, theirs, draws[0], per_position=per_position)
        before = None if ours is None else ours.clone()
        found, new = kernels.thin(grad, rule, ours, draws[1], per_position=per_position)
        assert same(found, expected)
        assert same(ours, before)
        ours = new
        assert same(ours, theirs)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("shape", [(10, 32, 28, 28), (10, 64, 14, 14)])
def test_selects_the_same_in_layers_of_full_size(shape, layout):
    # Large enough that the bound is guessed from a sample.
    for ratio in (0.003, 0.05, 0.4):
        grad = lay_out(gradient("normal", shape), layout)
        assert torch.equal(kernels.thin(grad, TopK(ratio))[0], thin(grad, TopK(ratio))[0])


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_a_bound_guessed_too_high_is_corrected(layout, monkeypatch):
    from meprop.kernels import _driver, _plan

    bounds = torch.full((3,), 0x7F000000, dtype=torch.int32)

    def without_guess(*args: Any) -> _plan.Layout:
        layout = _plan.layout_of(*args)
        job = layout.job.clone()
        job[_plan.FIELDS.index("guess_tasks")] = 0
        return layout._replace(job=job)

    def too_high(call: int) -> None:
        bounds.fill_(0x7F000000)
        given = ctypes.c_int64.from_address(call + 8 * _plan.Call._fields.index("low"))
        given.value = bounds.data_ptr()
        whole(call)

    whole = _driver._RUN
    monkeypatch.setattr(_driver, "layout_of", without_guess)
    monkeypatch.setattr(_driver, "_RUN", too_high)
    rule, ours, theirs = TopK(0.1, decay=0.5), None, None
    for _ in range(2):
        grad = lay_out(torch.randn(4, 3, 20, 20), layout)
        expected, theirs = thin(grad, rule, theirs)
        found, ours = kernels.thin(grad, rule, ours)
        assert torch.equal(found, expected)
        assert same(ours, theirs)  # updated once, not once per scan
        assert not bounds.any()


def case(samples: int = 6) -> tuple[Tensor, Tensor, Tensor, dict]:
    draw = torch.Generator().manual_seed(samples)  # of its own: threads share torch's
    slide = dict(stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1)
    shapes = (samples, 32, 28, 28), (samples, 16, 28, 28), (32, 16, 3, 3)
    grad, x, weight = (torch.randn(shape, generator=draw) for shape in shapes)
    return grad, x, weight, slide


def run(samples: int = 6) -> list[Tensor]:
    grad, x, weight, slide = case(samples)
    result = kernels.conv2d_backward(grad, x, weight, **slide, rule=TopK(0.05))
    return [t for t in result[:3] if t is not None]


@pytest.mark.parametrize("threads", [1, 2])
def test_bits_repeat(threads):
    torch.set_num_threads(threads)
    first = run()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, run(), strict=True))


def test_several_python_threads_at_once():
    torch.set_num_threads(2)
    expected, found = run(), {}

    def work(name: int) -> None:
        for _ in range(5):
            run(samples=3)
            found[name] = run()

    workers = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 4
    for result in found.values():
        assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))


def in_child(queue) -> None:
    queue.put([t.numpy() for t in run()])


def test_a_forked_process_computes_the_same():
    torch.set_num_threads(2)
    expected = run()  # the pool has threads now, which a fork does not bring along
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=in_child, args=(queue,))
    child.start()
    found = queue.get()
    child.join()
    assert child.exitcode == 0
    assert all(torch.equal(torch.from_numpy(a), b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_gradients_come_in_the_layout_of_what_they_belong_to_and_zeros_are_skipped(layout):
    grad, x, weight, slide = case()
    x, weight = lay_out(x, layout), lay_out(weight, layout)
    x[0, 0], grad[0] = torch.inf, 0
    result = kernels.conv2d_backward(grad, x, weight, **slide, rule=None)
    assert result.grad_input is not None and result.grad_input.stride() == x.stride()
    assert result.grad_weight is not None and result.grad_weight.stride() == weight.stride()
    assert result.grad_weight.isfinite().all(), "a zero beside an infinite input"
    grad = lay_out(grad, layout)  # dense layers would copy what is passed on in another one
    assert kernels.thin(grad, TopK(0.1))[0].stride() == grad.stride()


def test_an_expanded_gradient_and_an_empty_batch():
    grad, x, weight, slide = case()
    rule, expanded = TopK(0.1), torch.ones(()).expand(grad.shape)
    for g, its in ((expanded, x), (grad[:0], x[:0])):
        chosen = torch.where(select(g, rule)[0], g, 0)
        result = kernels.conv2d_backward(g, its, weight, **slide, rule=rule)
        assert all(map(close, result[:2], dense_conv(chosen, its, weight, slide)))
        assert close(result.grad_bias, g.sum((0, 2, 3)))


@pytest.mark.parametrize("wrong", range(3))
def test_what_the_kernels_cannot_take_is_refused(wrong):
    tensors = list(case()[:3])
    slide = case()[3]
    for bad in (tensors[wrong].double(), tensors[wrong].to("meta"), tensors[wrong].to_sparse()):
        given = [bad if i == wrong else t for i, t in enumerate(tensors)]
        with pytest.raises(ValueError, match=rf"takes float32.* as argument {wrong + 1}"):
            kernels.conv2d_backward(*given, **slide, rule=None)
    with pytest.raises(ValueError, match=r"got \(2, 3\) of torch.float64 on cpu as argument 1"):
        kernels.thin(torch.ones(2, 3).double(), TopK(0.5))
    rows = [torch.ones(2, 3), torch.ones(2, 4), torch.ones(3, 4)]
    rows[wrong] = rows[wrong].double()
    with pytest.raises(ValueError, match=rf"as argument {wrong + 1}"):
        kernels.linear_backward(*rows, rule=None)


@pytest.mark.parametrize(
    "changed",
    [
        {"grad": (6, 32, 28, 27)}, {"grad": (5, 32, 28, 28)}, {"grad": (6, 31, 28, 28)},
        {"x": (6, 15, 28, 28)}, {"x": (6, 16, 28)}, {"weight": (32, 16, 5, 3)}, {"grad": (6, 32)},
        {"groups": 2}, {"stride": (2, 1)}, {"padding": (0, 1)}, {"dilation": (1, 2)},
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit_are_refused(changed):
    shapes = {"grad": (6, 32, 28, 28), "x": (6, 16, 28, 28), "weight": (32, 16, 3, 3)}
    slide = case()[3] | {name: value for name, value in changed.items() if name not in shapes}
    shapes |= {name: value for name, value in changed.items() if name in shapes}
    given = [torch.zeros(shape) for shape in shapes.values()]
    with pytest.raises(ValueError, match=r"does not fit an input \(6, 1"):
        kernels.conv2d_backward(*given, **slide, rule=None)


@pytest.mark.parametrize("shapes", [[(2, 3), (2, 4), (3, 5)], [(2, 3), (1, 4), (3, 4)], [(3,)] * 3])
def test_rows_that_do_not_fit_are_refused(shapes):
    with pytest.raises(ValueError, match="does not fit"):
        kernels.linear_backward(*map(torch.zeros, shapes), rule=None)


def test_without_a_compiler_the_reference_takes_over():
    code = """
import torch
from meprop import Conv2d, TopK, kernels
x = torch.randn(8, 16, 16, 16)
Conv2d(16, 32, 3, rule=TopK(0.05))(x).sum().backward()
for call in (
    lambda: Conv2d(16, 32, 3, backend="sparse")(x),
    lambda: kernels.thin(x, TopK(0.05)),
):
    try:
        call()
    except ValueError as error:
        assert "NUMBA_DISABLE_JIT" in str(error), error
    else:
        raise SystemExit("not refused")
"""
    given = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=given)
    assert done.returncode == 0, done.stderr + done.stdout


def held() -> int:
    """Words that the kernels' buffers of all threads hold."""
    found = [t for t in gc.get_objects() if type(t) is Tensor and t.dtype is torch.int32]
    return sum(t.numel() for t in found)


@pytest.mark.parametrize("threads", [1, 2])
def test_memory_is_given_back(threads, monkeypatch):
    from meprop.kernels import _threads

    torch.set_num_threads(threads)
    grad, x, weight, slide = case(16)
    rule = TopK(0.05, decay=0.5)
    before, past = held(), torch.zeros_like(grad)
    for limit in (1 << 26, 1 << 12):
        monkeypatch.setattr(_threads, "_KEPT", limit)
        for _ in range(2):
            kernels.conv2d_backward(grad, x, weight, **slide, rule=rule, run_grad=past)
            kernels.thin(grad, rule)
            kernels.thin(torch.randn(4, 50_000), TopK(0.1, scope="sample"))
        if limit == 1 << 26:
            assert held() - before > 1 << 17  # kept from call to call
    assert held() <= before + threads * limit


def test_memory_after_an_allocation_that_failed():
    from meprop.kernels._threads import Memory

    memory = Memory()
    memory.address(1000)
    with pytest.raises(RuntimeError):
        memory.address(1 << 60)
    place = memory.address(10)  # not that of the buffer which was given back
    assert memory.words is not None and place == memory.words.data_ptr()


def test_the_cost_model_knows_where_zeros_pay():
    grad, x, weight, slide = case()
    natural = grad * (torch.rand_like(grad) < 0.03)
    sliding = tuple(slide.values())
    assert cheaper(grad, x, weight, sliding, TopK(0.05))
    assert cheaper(natural, x, weight, sliding, None)
    assert not cheaper(grad, x, weight, sliding, None)
    rows, inputs, filters = torch.randn(10, 10), torch.randn(10, 1024), torch.randn(10, 1024)
    assert not cheaper(rows, inputs, filters, None, None)
    # Next to no work: a dense layer would have the kernels' call too, to select.
    tiny, x, weight = torch.ones(2, 4, 6, 6), torch.ones(2, 2, 6, 6), torch.ones(4, 2, 3, 3)
    assert cheaper(tiny, x, weight, ((1, 1), (1, 1), (1, 1), 1), TopK(0.05))


def test_the_cost_model_knows_which_threads_run():
    small = Layer(1, 16, 8, 8, 16, 64, (3, 3), (1, 1))
    assert sparse_cost(small, 50, True, 8) == sparse_cost(small, 50, True, 1)
    large = Layer(8, 256, 14, 14, 256, 196, (3, 3), (1, 1))
    one, two, many = (sparse_cost(large, 20_000, True, n) for n in (1, 2, 8))
    assert one / 2 < two < one / 1.6 and one / 8 < many < two


@given(st.integers(0, 3000), st.floats(0.0, 1.0), st.sampled_from(["contiguous", "channels_last"]))
@check
def test_density_is_estimated_alike_in_every_layout(seed, share, layout):
    torch.manual_seed(seed)
    grad = torch.randn(3, 8, 30, 30) * (torch.rand(3, 8, 30, 30) < share)
    exact = torch.count_nonzero(grad).item() / grad.numel()
    assert abs(density(lay_out(grad, layout)) - exact) < 0.05
    assert abs(density(lay_out(grad, "sliced")) - exact) < 0.05
