import io

import pytest
import torch
from torch import nn

from meprop import (
    Conv1d,
    Conv2d,
    GradientTopK,
    Linear,
    TopK,
    history_state,
    load_history_state,
    select,
)


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        Conv2d(1, 4, 3, rule=TopK(0.2, decay=0.6)), nn.ReLU(), GradientTopK(TopK(0.5, decay=0.3)),
        nn.Flatten(), Linear(64, 5, rule=TopK(0.4, pick="random")), nn.Linear(5, 2),
    )  # fmt: skip


def step(network, seed):
    x = torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(seed))
    network.zero_grad()
    network(x).square().sum().backward()
    return [p.grad.clone() for p in network.parameters()]


@pytest.mark.parametrize("backend", ["masked", "sparse"])
def test_it_is_a_copy(backend):
    """The kernels update run_grad in place: what was saved or loaded must not move with it."""
    network = model()
    network[0].backend = backend
    step(network, 0)
    state = history_state(network)
    assert list(state) == ["0", "2", "4"]
    kept = state["0"]["run_grad"].clone()
    step(network, 1)
    assert not torch.equal(network[0].run_grad, kept)
    load_history_state(network, state)
    step(network, 2)
    assert torch.equal(state["0"]["run_grad"], kept)


def test_the_past_matters():
    """Without the history the same steps give other gradients: a test of resuming can fail."""
    first, second = model(), model()
    for seed in range(2):
        step(first, seed)
    pairs = zip(step(first, 2), step(second, 2), strict=True)
    assert any(not torch.equal(ours, theirs) for ours, theirs in pairs)


def test_another_models_state_is_refused():
    state = history_state(model())
    with pytest.raises(ValueError, match=r"layers are \['0'\]"):
        load_history_state(nn.Sequential(Conv2d(1, 1, 1)), state)
    other = model()
    other[4].set_rule(TopK(0.4))
    with pytest.raises(ValueError, match="'4' and the state differ: one draws at random"):
        load_history_state(other, state)
    with pytest.raises(ValueError, match=r"layer '0' needs 'run_grad' and 'generator', got \[\]"):
        load_history_state(other, state | {"0": {}})


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Conv2d(1, 4, 3, rule=TopK(0.5, decay=0.5)), (2, 3, 5, 5)),
        (Conv2d(1, 4, 3, rule=TopK(0.5, decay=0.5)), (2, 4)),
        (Conv2d(1, 4, 3, rule=TopK(0.5, decay=0.5), history="position"), (2, 4, 5, 5)),
        (Conv1d(1, 4, 3, rule=TopK(0.5, decay=0.5)), (2, 4, 2, 5)),
        (Linear(3, 4, rule=TopK(0.5, decay=0.5)), (2, 3)),
        (Linear(3, 4, rule=TopK(0.5, decay=0.5)), (2, 4, 1, 1)),
    ],
)
def test_a_run_grad_of_another_layer_is_refused(layer, shape):
    with pytest.raises(ValueError, match=rf"layer '' takes a run_grad of .* got \({shape[0]}, "):
        load_history_state(layer, {"": {"run_grad": torch.ones(shape), "generator": None}})
    assert layer.run_grad is None


def sizes(network, batches):
    """The gradients of steps with mini-batches of these sizes."""
    grads = []
    for seed, batch in enumerate(batches):
        x = torch.rand(batch, 1, 6, 6, generator=torch.Generator().manual_seed(seed))
        network.zero_grad()
        network(x).square().sum().backward()
        grads.append([p.grad.clone() for p in network.parameters()])
    return grads


@pytest.mark.parametrize("backend", ["auto", "sparse", "masked"])
@pytest.mark.parametrize("history", ["slot", "position"])
def test_a_smaller_last_mini_batch_loses_nothing(backend, history):
    rule = TopK(0.2, decay=0.6)
    layer = Conv2d(1, 4, 3, rule=rule, backend=backend, history=history)
    pasts = {}
    for seed, batch in enumerate([4, 4, 3, 4, 3, 1, 4]):
        upstream = torch.randn(batch, 4, 4, 4, generator=torch.Generator().manual_seed(seed))
        layer(torch.rand(batch, 1, 6, 6)).backward(upstream)
        key = batch if history == "slot" else 1
        _, pasts[key] = select(upstream, rule, pasts.get(key), per_position=history == "position")
        assert torch.equal(layer.run_grad, pasts[key])
    assert len(layer.run_grads) == len(pasts)


def test_a_layer_used_at_two_sizes_has_a_past_of_each():
    rule = TopK(0.2, decay=0.6)
    layer, pasts = Conv2d(1, 4, 3, rule=rule), {}
    for seed in range(3):
        draw = torch.Generator().manual_seed(seed)
        inputs = [torch.rand(2, 1, size, size, generator=draw) for size in (8, 6)]
        outputs = [layer(x) for x in inputs]
        upstream = [torch.randn(y.shape, generator=draw) for y in outputs]
        torch.autograd.backward(outputs, upstream)
        for grad in upstream:
            _, pasts[grad.shape] = select(grad, rule, pasts.get(grad.shape))
    assert layer.run_grads.keys() == pasts.keys()
    assert all(torch.equal(layer.run_grads[shape], past) for shape, past in pasts.items())


def test_the_shape_used_longest_ago_is_forgotten():
    layer = Conv2d(1, 4, 3, rule=TopK(0.2, decay=0.6))
    sizes(layer, [1, 2, 3, 4, 2, 5, 6])
    assert [shape[0] for shape in layer.run_grads] == [4, 2, 5, 6]


def test_resuming_is_exact():
    first, second = model(), model(seed=1)
    second.load_state_dict(first.state_dict())
    sizes(first, [4, 3, 2, 4])
    file = io.BytesIO()
    torch.save(history_state(first), file)
    file.seek(0)
    load_history_state(second, torch.load(file, weights_only=True))
    for name in ("0", "2"):
        ours, theirs = (each.get_submodule(name).run_grads for each in (first, second))
        assert list(ours) == list(theirs)
        assert all(torch.equal(ours[shape], theirs[shape]) for shape in ours)
    for ours, theirs in zip(sizes(first, [3, 4, 2]), sizes(second, [3, 4, 2]), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_state_of_one_shape_is_what_it_was_before_there_were_several():
    first, second = model(), model()
    step(first, 0)
    state = history_state(first)
    assert all(saved.keys() == {"run_grad", "generator"} for saved in state.values())
    sizes(second, [3, 4])
    load_history_state(second, state)
    assert list(second[0].run_grads) == [(2, 4, 4, 4)]


def test_every_past_moves_with_the_model():
    layer = Conv2d(1, 4, 3, rule=TopK(0.2, decay=0.6))
    sizes(layer, [1, 2])
    assert [past.dtype for past in layer.double().run_grads.values()] == [torch.float64] * 2
    assert layer.to("meta").run_grad.is_meta
