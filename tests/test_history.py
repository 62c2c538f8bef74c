import copy
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


def steps(network, batches):
    """The gradients of steps with mini-batches of these sizes."""
    grads = []
    for seed, batch in enumerate(batches):
        x = torch.rand(batch, 1, 6, 6, generator=torch.Generator().manual_seed(seed))
        network.zero_grad()
        network(x).square().sum().backward()
        grads += [p.grad.clone() for p in network.parameters()]
    return grads


@pytest.mark.parametrize("backend", ["masked", "sparse"])
def test_it_is_a_copy(backend):
    """The kernels update run_grad in place: what was saved or loaded must not move with it."""
    network = model()
    network[0].backend = backend
    steps(network, [2])
    state = history_state(network)
    assert list(state) == ["0", "2", "4"]
    assert all(saved.keys() == {"run_grad", "generator"} for saved in state.values())
    kept = state["0"]["run_grad"].clone()
    steps(network, [2, 3])
    assert not torch.equal(network[0].run_grads[kept.shape], kept)
    load_history_state(network, state)
    assert list(network[0].run_grads) == [(2, 4, 4, 4)], "the state is all there is"
    steps(network, [2])
    assert torch.equal(state["0"]["run_grad"], kept)


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


@pytest.mark.parametrize("backend", ["auto", "sparse", "masked"])
@pytest.mark.parametrize("history", ["slot", "position"])
def test_every_size_has_a_past_of_its_own(backend, history):
    """A smaller last mini-batch, another size of images, and both in one pass."""
    rule, pasts = TopK(0.2, decay=0.6), {}
    layer = Conv2d(1, 4, 3, rule=rule, backend=backend, history=history)
    for seed, passes in enumerate([[(4, 6)], [(3, 6)], [(4, 6), (4, 8)], [(1, 6)], [(4, 8)]]):
        draw = torch.Generator().manual_seed(seed)
        outputs = [layer(torch.rand(b, 1, side, side, generator=draw)) for b, side in passes]
        upstream = [torch.randn(y.shape, generator=draw) for y in outputs]
        torch.autograd.backward(outputs, upstream)
        for grad in upstream:
            key = grad.shape if history == "slot" else (1, *grad.shape[1:])
            _, pasts[key] = select(grad, rule, pasts.get(key), per_position=history == "position")
    assert layer.run_grads.keys() == pasts.keys()
    assert all(torch.equal(layer.run_grads[shape], past) for shape, past in pasts.items())


def test_the_shape_used_longest_ago_is_forgotten_and_all_move_with_the_model():
    layer = Conv2d(1, 4, 3, rule=TopK(0.2, decay=0.6))
    steps(layer, [1, 2, 3, 4, 2, 5, 6])
    assert [shape[0] for shape in layer.run_grads] == [4, 2, 5, 6]
    assert {past.dtype for past in layer.double().run_grads.values()} == {torch.float64}
    assert layer.to("meta").run_grad.is_meta


def test_resuming_is_exact():
    first, second = model(), model(seed=1)
    second.load_state_dict(first.state_dict())
    steps(first, [4, 3, 2, 4])
    anew = copy.deepcopy(second)
    file = io.BytesIO()
    torch.save(history_state(first), file)
    file.seek(0)
    load_history_state(second, torch.load(file, weights_only=True))
    for name in ("0", "2"):
        ours, theirs = (each.get_submodule(name).run_grads for each in (first, second))
        assert list(ours) == list(theirs)
        assert all(torch.equal(ours[shape], theirs[shape]) for shape in ours)
    expected = steps(first, [3, 4, 2])
    assert all(map(torch.equal, steps(second, [3, 4, 2]), expected))
    assert not all(map(torch.equal, steps(anew, [3, 4, 2]), expected)), "the past matters"
