"""Against torch's convolution in double precision, then its pooling."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from meprop.kernels.winograd import pooled_conv2d


def reference(x, weight, bias):
    return F.max_pool2d(F.conv2d(x.double(), weight.double(), bias.double(), padding=2), 2)


def layer(channels=8, maps=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(maps, channels, 5, 5, generator=generator)
    return weight, torch.randn(maps, generator=generator)


@settings(max_examples=40, deadline=None)
@given(
    samples=st.integers(0, 15),
    channels=st.sampled_from([8, 32, 40]),
    maps=st.sampled_from([16, 64]),
    height=st.sampled_from([2, 4, 14]),
    columns=st.sampled_from([2, 6, 14]),
    format=st.sampled_from(["contiguous", "channels_last", "every other"]),
    seed=st.integers(0, 2**31),
)
def test_it_is_a_convolution_and_its_pooling(
    samples, channels, maps, height, columns, format, seed
):
    weight, bias = layer(channels, maps, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    x = torch.randn(samples, channels, height, columns, generator=generator)
    if format == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    elif format == "every other":
        x = torch.stack([x, x + 1], dim=-1)[..., 0]
    expected = reference(x, weight, bias)
    found = pooled_conv2d(weight, bias)(x)
    assert found.is_contiguous(memory_format=torch.channels_last)
    # The deviation of a result is 5 * sqrt(channels); the transforms cost a digit of the seven.
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=4e-5 * 5 * channels**0.5)


def test_the_number_of_threads_changes_nothing():
    weight, bias = layer(maps=32)
    x = torch.randn(13, 8, 14, 14)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            found.append(pooled_conv2d(weight, bias)(x))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_hidden(value):
    weight, bias = layer()
    x = torch.randn(2, 8, 14, 14)
    x[1, 3, 6, 6] = value
    found = pooled_conv2d(weight, bias)(x)
    hit = ~reference(x, weight, bias).isfinite()
    assert hit.any() and not found[hit].isfinite().any()
    assert found[0].isfinite().all()


def test_it_keeps_the_weights_of_the_moment():
    weight, bias = layer()
    x = torch.randn(1, 8, 4, 4)
    forward = pooled_conv2d(weight, bias)
    before = forward(x)
    weight.zero_()
    bias.zero_()
    assert torch.equal(forward(x), before)


def test_without_a_bias():
    weight, bias = layer()
    x = torch.randn(1, 8, 4, 4)
    assert torch.equal(pooled_conv2d(weight)(x), pooled_conv2d(weight, bias * 0)(x))


@pytest.mark.parametrize("shape", [(16, 8, 3, 3), (16, 1, 5, 5), (8, 8, 5, 5)])
def test_other_filters_are_refused(shape):
    with pytest.raises(ValueError, match=rf"pooled_conv2d: weight .* got \({shape[0]}, "):
        pooled_conv2d(torch.ones(shape), torch.ones(shape[0]))


@pytest.mark.parametrize("shape", [(1, 16, 4, 4), (1, 8, 5, 4), (1, 8, 4, 5)])
def test_other_inputs_are_refused(shape):
    weight, bias = layer()
    with pytest.raises(ValueError, match=r"pooled_conv2d: the input must be \(samples, 8, even"):
        pooled_conv2d(weight, bias)(torch.ones(shape))
