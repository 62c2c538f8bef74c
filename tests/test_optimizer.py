import copy
from functools import partial

import pytest
import torch
from torch import nn

from meprop.study.optimizer import SGD, Adam, rate


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Adam, partial(torch.optim.Adam, betas=(0.9, 0.999), eps=1e-8)),
        (SGD, partial(torch.optim.SGD, momentum=0.9, weight_decay=5e-4)),
    ],
)
def test_they_are_torchs_fused_ones_bit_for_bit(ours, theirs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))
    model = model.to(memory_format=torch.channels_last)
    twin = copy.deepcopy(model)
    both = ((model, ours(model.parameters(), lr=0.001)),)
    both += ((twin, theirs(twin.parameters(), lr=0.001, fused=True)),)
    for lr in (0.001, 0.002, 0.002, 0.001, 0.0005):
        images = torch.randn(5, 2, 6, 6).contiguous(memory_format=torch.channels_last)
        both[0][1].lr = both[1][1].param_groups[0]["lr"] = lr
        for network, optimizer in both:
            optimizer.zero_grad()
            network(images).square().mean().backward()
            optimizer.step()
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("steps", [10, 703, 14060])
def test_one_cycle_is_torchs(steps):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, steps, cycle_momentum=False)
    for step in range(steps):
        expected = optimizer.param_groups[0]["lr"]
        assert rate(0.2, "onecycle", step, steps) == pytest.approx(expected, rel=1e-9, abs=1e-15)
        optimizer.step()
        if step < steps - 1:
            cycle.step()
    # A run that goes on beyond its end stays where it was.
    assert rate(0.2, "onecycle", steps + 5, steps) == pytest.approx(0.2 / 25e4)
    assert 0 < rate(0.2, "onecycle", 0, 1) <= 0.2
    assert rate(0.2, "constant", 7, steps) == 0.2
