import io

import pytest
import torch
from torch import nn

from meprop import Conv2d, GradientTopK, Linear, TopK, history_state, load_history_state


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


def test_resuming_is_exact():
    first, second = model(), model(seed=1)
    second.load_state_dict(first.state_dict())
    for seed in range(2):
        step(first, seed)
    file = io.BytesIO()
    torch.save(history_state(first), file)
    file.seek(0)
    load_history_state(second, torch.load(file, weights_only=True))
    for seed in range(2, 5):
        for ours, theirs in zip(step(first, seed), step(second, seed), strict=True):
            assert torch.equal(ours, theirs)


def test_the_past_matters():
    """Without the history the same steps give other gradients: the test above can fail."""
    first, second = model(), model()
    for seed in range(2):
        step(first, seed)
    pairs = zip(step(first, 2), step(second, 2), strict=True)
    assert any(not torch.equal(ours, theirs) for ours, theirs in pairs)


def test_it_is_a_copy():
    network = model()
    step(network, 0)
    state = history_state(network)
    kept = state["0"]["run_grad"].clone()
    step(network, 1)
    assert torch.equal(state["0"]["run_grad"], kept)
    load_history_state(network, state)
    step(network, 2)
    assert torch.equal(state["0"]["run_grad"], kept)


def test_names_every_selecting_layer():
    assert list(history_state(model())) == ["0", "2", "4"]


def test_another_models_state_is_refused():
    state = history_state(model())
    with pytest.raises(ValueError, match=r"layers are \['0'\]"):
        load_history_state(nn.Sequential(Conv2d(1, 1, 1)), state)
    other = model()
    other[4].set_rule(TopK(0.4))
    with pytest.raises(ValueError, match="'4' and the state differ in pick='random'"):
        load_history_state(other, state)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Conv2d(1, 4, 3, rule=TopK(0.5, decay=0.5)), (2, 3, 5, 5)),
        (Conv2d(1, 4, 3, rule=TopK(0.5, decay=0.5)), (2, 4)),
        (Conv2d(1, 4, 3, rule=TopK(0.5, decay=0.5), history="position"), (2, 4, 5, 5)),
        (Linear(3, 4, rule=TopK(0.5, decay=0.5)), (2, 3)),
        (Linear(3, 4, rule=TopK(0.5, decay=0.5)), (2, 4, 1, 1)),
    ],
)
def test_a_run_grad_of_another_layer_is_refused(layer, shape):
    with pytest.raises(ValueError, match=rf"layer '' takes a run_grad of .* got \({shape[0]}, "):
        load_history_state(layer, {"": {"run_grad": torch.ones(shape), "generator": None}})
    assert layer.run_grad is None
