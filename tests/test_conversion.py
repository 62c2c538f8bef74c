import copy

import pytest
import torch
from torch import nn

from meprop import Conv2d, Linear, TopK, convert, revert
from meprop.study import PaperCNN  # makes torchvision importable


def small():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Sequential(nn.Conv2d(4, 4, 3), nn.Flatten()),
        nn.Linear(64, 3),
    )  # fmt: skip


def resnet18():
    from torchvision.models import resnet18

    torch.manual_seed(0)
    return resnet18(num_classes=10).eval()


def test_resnet18_there_and_back():
    model = resnet18()
    x = torch.rand(2, 3, 64, 64)
    expected, parameters = model(x), dict(model.named_parameters())
    types = {name: type(module) for name, module in model.named_modules()}

    assert convert(model, TopK(0.05)) is model
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert len(convs) == 20
    assert {type(m) for m in convs} == {Conv2d}
    assert type(model.fc) is nn.Linear
    assert all(p is parameters[name] for name, p in model.named_parameters())
    assert torch.equal(model(x), expected)
    model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())

    assert revert(model) is model
    assert {name: type(module) for name, module in model.named_modules()} == types
    assert all(p is parameters[name] for name, p in model.named_parameters())
    assert torch.equal(model(x), expected)


def test_reverted_modules_hold_nothing_of_ours():
    model, plain = small(), small()
    revert(convert(model, TopK(0.1, decay=0.6), layers=(nn.Conv2d, nn.Linear)))
    for ours, theirs in zip(model.modules(), plain.modules(), strict=True):
        assert ours.__dict__.keys() == theirs.__dict__.keys()
        assert ours._buffers.keys() == theirs._buffers.keys()
        assert ours._non_persistent_buffers_set == theirs._non_persistent_buffers_set


def test_state_dicts_load_both_ways():
    plain, model = small(), convert(small(), TopK(0.1, decay=0.6), layers=(nn.Conv2d, nn.Linear))
    model(torch.rand(2, 1, 8, 8)).sum().backward()
    plain.load_state_dict(model.state_dict(), strict=True)
    model.load_state_dict(plain.state_dict(), strict=True)


def test_layers_and_skip():
    model = convert(small(), TopK(0.1), layers=(nn.Conv2d, nn.Linear), skip=("2",))
    assert [type(model[0]), type(model[2][0]), type(model[3])] == [Conv2d, nn.Conv2d, Linear]
    model = convert(small(), TopK(0.1), layers=nn.Linear, skip="0")
    assert [type(model[0]), type(model[3])] == [nn.Conv2d, Linear]


def test_converting_again_sets_the_new_rule():
    model = convert(small(), TopK(0.1, decay=0.5))
    model(torch.rand(2, 1, 8, 8)).sum().backward()
    convert(model, TopK(0.2), backend="masked")
    assert model[0].rule == TopK(0.2)
    assert model[0].backend == "masked"
    assert model[0].run_grad is None


def test_a_single_layer_is_a_model_too():
    layer = nn.Conv2d(1, 2, 3)
    assert convert(layer, TopK(0.5)) is layer
    assert type(layer) is Conv2d
    assert type(revert(layer)) is nn.Conv2d


def test_a_layer_used_twice_stays_one_layer():
    shared = nn.Conv2d(2, 2, 1)
    model = convert(nn.Sequential(shared, shared), TopK(0.5))
    assert model[0] is model[1] is shared


def test_hooks_stay():
    model, calls = small(), []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    convert(model, TopK(0.1))(torch.rand(1, 1, 8, 8))
    assert calls == [1]


def test_converted_layers_draw_differently():
    model = nn.Sequential(nn.Linear(4, 16), nn.Linear(4, 16))
    convert(model, TopK(0.5, pick="random"), layers=(nn.Linear,))
    for layer in model:
        layer(torch.ones(1, 4)).sum().backward()
    assert not torch.equal(model[0].weight.grad != 0, model[1].weight.grad != 0)


def test_subclasses_are_left_alone_and_named():
    class Scaled(nn.Conv2d):
        def forward(self, input):
            return 2 * super().forward(input)

    model = nn.Sequential(nn.Conv2d(1, 1, 1), Scaled(1, 1, 1))
    with pytest.warns(UserWarning, match=r"1 \(Scaled\)"):
        convert(model, TopK(0.5))
    assert type(model[1]) is Scaled


def test_nothing_to_convert_is_said():
    with pytest.warns(UserWarning, match="no Conv2d"):
        convert(nn.Linear(1, 1), TopK(0.5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rule": 0.05}, "rule must be a TopK or None, got 0.05"),
        ({"rule": TopK(0.1), "layers": (nn.Conv1d,)}, "layers can contain nn.Conv2d.*Conv1d"),
        ({"rule": TopK(0.1), "skip": ("3.0",)}, "no module of the model: '3.0'"),
        ({"rule": TopK(0.1), "skip": ("2.00",)}, "did you mean '2.0'"),
        ({"rule": TopK(0.1), "backend": "fast"}, "backend .* got 'fast'"),
        ({"rule": TopK(0.1), "history": "none"}, "history .* got 'none'"),
        (
            {"rule": TopK(0.1, scope="unified"), "layers": (nn.Linear, nn.Conv2d)},
            "scope 'unified'",
        ),
    ],
)
def test_a_bad_value_is_named_and_changes_nothing(arguments, message):
    model = small()
    before = copy.deepcopy(model)
    with pytest.raises(ValueError, match=message):
        convert(model, **arguments)
    for ours, theirs in zip(model.modules(), before.modules(), strict=True):
        assert type(ours) is type(theirs)
        assert ours.__dict__.keys() == theirs.__dict__.keys()


def test_the_papers_network_reverts_to_a_plain_one():
    torch.manual_seed(0)
    model = PaperCNN(rule=TopK(0.05))
    x = torch.rand(2, 1, 28, 28)
    expected = model(x)
    assert torch.equal(revert(model)(x), expected)
    assert type(model.conv1) is nn.Conv2d
