import naive
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from meprop import TopK, select

CONV = ("map", "sample", "layer", "mixed")
LINEAR = (*CONV, "unified")
RATIOS = st.sampled_from([0.01, 0.05, 0.1, 0.25, 0.5, 0.9, 1.0])


@st.composite
def gradients(draw, dims):
    shape = [draw(st.integers(1, 5)) for _ in range(dims)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    values = torch.randn(shape, generator=generator)
    if draw(st.booleans()):  # ties and zeros: a few distinct magnitudes
        values = values.round()
    return values


@given(st.integers(1, 4).flatmap(gradients), RATIOS, st.sampled_from(LINEAR))
def test_it_equals_the_loops(grad, ratio, scope):
    """In any memory format, and without a decay whatever the past was."""
    assume(grad.dim() < 4 or scope in CONV)
    expected = naive.mask(grad, ratio, scope)
    if grad.dim() == 4:
        grad = grad.contiguous(memory_format=torch.channels_last)
    mask, history = select(grad, TopK(ratio, scope=scope), torch.rand_like(grad))
    assert torch.equal(mask, expected) and history is None


@pytest.mark.parametrize(
    ("grad", "ratio", "places"),
    [
        ([1.0, 2.0, 3.0, -4.0], 0.5, [2, 3]),  # the paper's example
        ([1.0, 1.0, 1.0, -1.0], 0.5, [0, 1]),  # of equals the first
        ([0.0, 0.0, 1.0, 0.0], 0.5, [0, 2]),  # a zero may be selected
        ([1.0, float("inf"), float("nan"), 2.0], 0.25, [2]),
        ([1.0, float("inf"), float("nan"), 2.0], 0.5, [1, 2]),
    ],
)
def test_by_hand(grad, ratio, places):
    mask, history = select(torch.tensor(grad), TopK(ratio))
    assert mask.nonzero().flatten().tolist() == places and history is None


def test_run_grad_follows_the_momentum_equation():
    """Eq. 15 over three steps, worked out by hand with decay 0.5."""
    steps = [[8.0, -4.0, 0.0], [0.0, 4.0, 2.0], [-1.0, 0.0, 8.0]]
    expected = [[4.0, 2.0, 0.0], [2.0, 3.0, 1.0], [1.5, 1.5, 4.5]]
    chosen = [0, 1, 2]
    rule, history = TopK(1 / 3, decay=0.5), None
    for step, run_grad, index in zip(steps, expected, chosen, strict=True):
        mask, history = select(torch.tensor([step]), rule, history)
        assert history.tolist() == [run_grad]
        assert mask.tolist() == [[i == index for i in range(3)]]


@given(gradients(4), RATIOS, st.sampled_from(CONV), st.sampled_from([0.3, 0.6, 0.9]))
def test_selection_under_decay_is_by_run_grad(grad, ratio, scope, decay):
    rule, history, expected = TopK(ratio, decay, scope), None, torch.zeros_like(grad)
    for step in range(3):
        grad = grad.roll(step, dims=0)
        mask, history = select(grad, rule, history)
        expected = decay * expected + (1 - decay) * grad.abs()
        assert torch.equal(history, expected)
        assert torch.equal(mask, naive.mask(expected, ratio, scope))


def test_history_of_another_shape_starts_anew():
    grad = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    rule = TopK(0.25, decay=0.6)
    fresh = select(grad, rule)
    for shape in [(2, 2, 4, 4), (1, 2, 4, 4), (3, 2, 4, 5)]:
        again = select(grad, rule, torch.rand(shape))
        assert torch.equal(again[0], fresh[0])
        assert torch.equal(again[1], fresh[1])


def test_history_per_position_averages_the_mini_batch():
    grad = torch.tensor([[1.0, -4.0], [5.0, 0.0]]).reshape(2, 1, 1, 2)
    rule = TopK(0.5, decay=0.5)
    mask, history = select(grad, rule, per_position=True)
    assert history.tolist() == [[[[1.5, 1.0]]]]
    assert mask.flatten().tolist() == [True, False, True, False]
    _, history = select(2 * grad, rule, history, per_position=True)
    assert history.tolist() == [[[[3.75, 2.5]]]]
    _, anew = select(grad[:, :, :, :1], rule, history, per_position=True)
    assert anew.tolist() == [[[[1.5]]]]


@given(st.one_of(gradients(4), gradients(2)), RATIOS, st.sampled_from(CONV))
def test_random_picks_k_of_the_nonzero_entries(grad, ratio, scope):
    rule = TopK(ratio, scope=scope, pick="random")
    first, _ = select(grad, rule, generator=torch.Generator().manual_seed(1))
    again, _ = select(grad, rule, generator=torch.Generator().manual_seed(1))
    assert torch.equal(first, again)
    for group in naive.groups(grad.shape, scope):
        chosen = [bool(first[i]) for i in group]
        nonzero = [bool(grad[i] != 0) for i in group]
        k = rule.k(len(group))
        assert sum(chosen) == k
        both = sum(c and n for c, n in zip(chosen, nonzero, strict=True))
        assert both == min(k, sum(nonzero))


def test_random_is_uniform_over_the_nonzero_entries():
    grad = torch.tensor([[0.0, 1e-6, 1.0, 1e6, 0.0, 3.0]])
    generator = torch.Generator().manual_seed(0)
    rule = TopK(1 / 6, pick="random")
    counts = sum(select(grad, rule, generator=generator)[0].int() for _ in range(4000))[0]
    assert counts[[0, 4]].tolist() == [0, 0]
    # 1000 expected each, with a standard deviation of 27
    assert all(abs(int(n) - 1000) < 140 for n in counts[[1, 2, 3, 5]])


@pytest.mark.parametrize("per_position", [False, True])
def test_what_is_not_finite_is_selected_but_leaves_run_grad_as_it_was(per_position):
    rule = TopK(0.25, decay=0.5)
    first = torch.tensor([1.0, 2.0, 8.0, 4.0]).reshape(1, 1, 2, 2)
    _, past = select(first, rule, per_position=per_position)
    for wild in (float("inf"), -float("inf"), float("nan")):
        grad = first.clone()
        grad[0, 0, 0, 1] = wild
        mask, history = select(grad, rule, past, per_position=per_position)
        assert mask.flatten().tolist() == [False, True, False, False]
        assert history.flatten().tolist() == [0.75, 1.0, 6.0, 3.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_run_grad_of_small_floats_reaches_the_mean(dtype):
    """In bfloat16 it would stay below 0.3 for ever: a thousandth of 1 is less than its spacing."""
    grad, history = torch.tensor([[1.0, -2.0, 0.5, 4.0]], dtype=dtype), None
    for _ in range(2000):
        mask, history = select(grad, TopK(0.5, decay=0.999), history)
    assert mask.tolist() == [[False, True, False, True]]
    assert history.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(
        history, grad.to(history).abs() * (1 - 0.999**2000), rtol=1e-3, atol=0
    )


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (0, 5)])
@pytest.mark.parametrize("rule", [TopK(0.5), TopK(0.5, pick="random"), TopK(0.5, decay=0.5)])
def test_an_empty_batch_selects_nothing(shape, rule):
    for per_position in (False, True):
        mask, _ = select(torch.zeros(shape), rule, per_position=per_position)
        assert mask.shape == shape


def test_a_conv_has_no_unified_scope():
    with pytest.raises(ValueError, match="Conv2d: scope 'unified' does not exist"):
        select(torch.ones(1, 1, 1, 1), TopK(0.5, scope="unified"))
