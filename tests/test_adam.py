import copy

import torch
from torch import nn

from meprop.study.adam import Adam


def test_it_is_torchs_fused_adam_bit_for_bit():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))
    model = model.to(memory_format=torch.channels_last)
    twin = copy.deepcopy(model)
    ours = Adam(model.parameters(), lr=0.001)
    theirs = torch.optim.Adam(
        twin.parameters(), lr=0.001, betas=(0.9, 0.999), eps=1e-8, fused=True
    )  # fmt: skip
    for _ in range(5):
        images = torch.randn(5, 2, 6, 6).contiguous(memory_format=torch.channels_last)
        for network, optimizer in ((model, ours), (twin, theirs)):
            optimizer.zero_grad()
            network(images).square().mean().backward()
            optimizer.step()
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_it_matches_the_formula_in_double_precision():
    weight = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    optimizer = Adam([weight], lr=0.01)
    expected, average, square = weight.detach().clone(), torch.zeros(2), torch.zeros(2)
    for step in range(1, 4):
        grad = torch.tensor([0.5 * step, -3.0])
        optimizer.zero_grad()
        (weight * grad).sum().backward()
        optimizer.step()
        average = 0.9 * average + 0.1 * grad.double()
        square = 0.999 * square + 0.001 * grad.double() ** 2
        corrected = (square / (1 - 0.999**step)).sqrt() + 1e-8
        expected = expected - 0.01 * (average / (1 - 0.9**step)) / corrected
    torch.testing.assert_close(weight.detach(), expected)


def test_it_goes_on_from_its_state():
    def run(stop):
        weight = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        optimizer = Adam([weight], lr=0.1)
        for step in range(6):
            if step == stop:
                saved = copy.deepcopy(optimizer.state_dict())
                optimizer = Adam([weight], lr=0.1)
                optimizer.load_state_dict(saved)
            optimizer.zero_grad()
            weight.pow(4).sum().backward()
            optimizer.step()
        return weight.detach()

    assert torch.equal(run(stop=3), run(stop=None))
