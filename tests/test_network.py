import pytest
import torch
import torch.nn.functional as F
from torch import nn

from meprop import TopK, watch
from meprop.study import PaperCNN, ResNet20


def build(seed=0, **settings):
    torch.manual_seed(seed)
    return PaperCNN(**settings)


def test_parameters_of_table_1_and_a_truncated_normal_initialisation():
    model = build()
    assert sum(p.numel() for p in model.parameters()) == 3_274_634
    for name in ("conv1", "conv2", "fc1", "fc2"):
        layer = model.get_submodule(name)
        assert float(layer.weight.detach().abs().max()) <= 0.2
        assert torch.equal(layer.bias, torch.full_like(layer.bias, 0.1))
    # A normal truncated at two deviations keeps 0.8796 of its deviation.
    assert float(model.fc1.weight.detach().std()) == pytest.approx(0.08796, rel=2e-3)


def test_it_computes_the_papers_formula():
    model = build(batch_norm=True).eval()
    x = torch.rand(4, 1, 28, 28)

    def normalised(y, bn):
        shape = (1, -1, 1, 1) if y.dim() == 4 else (1, -1)
        mean, var = bn.running_mean.reshape(shape), bn.running_var.reshape(shape)
        return bn.weight.reshape(shape) * (y - mean) / (var + 1e-5).sqrt() + bn.bias.reshape(shape)

    y = F.conv2d(x, model.conv1.weight, model.conv1.bias, padding=2)
    y = F.max_pool2d(F.relu(normalised(y, model.bn1)), 2)
    y = F.conv2d(y, model.conv2.weight, model.conv2.bias, padding=2)
    y = F.max_pool2d(F.relu(normalised(y, model.bn2)), 2)
    y = F.relu(normalised(F.linear(y.flatten(1), model.fc1.weight, model.fc1.bias), model.bn3))
    y = F.linear(y, model.fc2.weight, model.fc2.bias)
    torch.testing.assert_close(model(x), y, rtol=1e-4, atol=1e-4)


def test_batch_normalisation_follows_the_papers_equations():
    """Batch statistics in training; running averages with m/(m-1) at inference."""
    model = build(batch_norm=True).train()
    assert {m.eps for m in model.modules() if isinstance(m, nn.BatchNorm2d)} == {1e-5}
    y = torch.randn(10, 32, 28, 28) * 3 + 1
    mean, var = y.mean((0, 2, 3)), y.var((0, 2, 3), correction=0)
    shape = (1, -1, 1, 1)
    expected = (y - mean.reshape(shape)) / (var.reshape(shape) + 1e-5).sqrt()
    torch.testing.assert_close(model.bn1(y), expected, rtol=1e-4, atol=1e-4)
    m = 10 * 28 * 28
    torch.testing.assert_close(model.bn1.running_mean, 0.01 * mean)
    torch.testing.assert_close(model.bn1.running_var, 0.99 + 0.01 * var * m / (m - 1))


def densities(**settings):
    model = build(**settings)
    x = torch.rand(10, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    with watch(model) as seen:
        F.cross_entropy(model(x), torch.arange(10)).backward()
    return seen


def test_selection_below_and_above_batch_normalisation():
    rule = TopK(0.05)
    below = densities(rule=rule, batch_norm=True)
    assert below["conv1"].before > 0.99
    assert below["conv1"].after == pytest.approx(0.05, abs=1e-3)
    above = densities(rule=rule, batch_norm=True, select_at="bn")
    assert above["top1"].before <= 0.25
    assert above["top1"].after == pytest.approx(0.05, abs=1e-3)
    assert above["conv1"].before == above["conv1"].after > 0.99


def test_dropout_is_on_fc1s_activations():
    model = build(dropout=0.5)
    dropped = {}
    model.fc2.register_forward_pre_hook(lambda _, args: dropped.update(x=args[0]))
    model.fc1.register_forward_hook(lambda _, __, y: torch.ones_like(y))
    model(torch.rand(10, 1, 28, 28))
    assert set(dropped["x"].flatten().tolist()) == {0.0, 2.0}
    model.eval()(torch.rand(10, 1, 28, 28))
    assert set(dropped["x"].flatten().tolist()) == {1.0}


def test_history_and_backend_reach_the_layers():
    model = build(rule=TopK(0.05, decay=0.6), history="position", backend="masked")
    assert model.conv1.history == "position"
    assert model.conv1.backend == model.fc2.backend == "masked"
    model = build(rule=TopK(0.05), batch_norm=True, select_at="bn", history="position")
    assert model.top2.history == "position"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activation": "relus"}, "activation .* got 'relus'; did you mean 'relu'"),
        ({"sparse_layers": ("conv3",)}, "sparse_layers .* got 'conv3'"),
        ({"select_at": "bn"}, "needs batch_norm=True"),
        ({"select_at": "bn", "batch_norm": True, "sparse_layers": ("fc2",)}, "fc2"),
    ],
)
def test_a_bad_value_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        PaperCNN(**settings)


# The residual network


def test_the_parameters_of_resnet20():
    model = ResNet20()
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in convolutions] == [16] * 7 + [32] * 6 + [64] * 6
    assert sum(p.numel() for p in model.parameters()) == 269_722


def test_resnet20_computes_what_he_et_al_write():
    torch.manual_seed(1)
    model = ResNet20().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    images = torch.rand(2, 3, 32, 32)

    def normalised(y, bn):
        mean, var = (v.reshape(1, -1, 1, 1) for v in (bn.running_mean, bn.running_var))
        return (y - mean) / (var + 1e-5).sqrt()

    x = (images - torch.tensor([0.4914, 0.4822, 0.4465]).reshape(3, 1, 1)) / torch.tensor(
        [0.2470, 0.2435, 0.2616]
    ).reshape(3, 1, 1)
    x = F.relu(normalised(F.conv2d(x, model.conv1.weight, padding=1), model.bn1))
    sides = []
    for stage in (model.stage1, model.stage2, model.stage3):
        for block in stage:
            stride = block.conv1.out_channels // block.conv1.in_channels
            y = F.conv2d(x, block.conv1.weight, padding=1, stride=stride)
            y = F.relu(normalised(y, block.bn1))
            y = normalised(F.conv2d(y, block.conv2.weight, padding=1), block.bn2)
            shortcut = torch.zeros_like(y)
            new = (y.shape[1] - x.shape[1]) // 2
            shortcut[:, new : new + x.shape[1]] = x[:, :, ::stride, ::stride]
            x = F.relu(y + shortcut)
        sides.append(x.shape[-1])
    assert sides == [32, 16, 8]
    expected = F.linear(F.adaptive_avg_pool2d(x, 1).flatten(1), model.fc.weight, model.fc.bias)
    torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-4)


def test_the_rule_of_resnet20_is_that_of_every_convolution():
    rule = TopK(0.05)
    torch.manual_seed(0)
    model = ResNet20(rule, backend="masked", mean=(0.3,), std=(0.3,))
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert len(layers) == 19
    assert {(layer.rule, layer.backend, layer.history) for layer in layers} == {
        (rule, "masked", "slot")
    }
    with watch(model) as seen:
        F.cross_entropy(model(torch.rand(10, 1, 28, 28)), torch.arange(10)).backward()
    assert max(s.after for name, s in seen.items() if name != "fc") < 0.06
    torch.manual_seed(0)
    plain = ResNet20(mean=(0.3,), std=(0.3,))
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, plain.get_parameter(name))
