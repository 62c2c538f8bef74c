import copy
import re
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from meprop import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose2d,
    Linear,
    TopK,
    convert,
    exact,
    history_state,
    load_history_state,
    recipe,
    revert,
    watch,
)

# Two images through untrained networks: of course it is one-sided.
pytestmark = pytest.mark.filterwarnings("ignore:convert. at ")


def small():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Sequential(nn.Conv2d(4, 4, 3), nn.Flatten()),
        nn.Linear(64, 3),
    )  # fmt: skip


def resnet18():
    models = pytest.importorskip("torchvision.models")  # the core goes without
    torch.manual_seed(0)
    return models.resnet18(num_classes=10).eval()


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


@pytest.mark.parametrize("wrong", [False, True])
def test_a_call_that_is_undone_or_refused_leaves_nothing_behind(wrong):
    model, plain = small(), small()
    if wrong:
        with pytest.raises(ValueError, match="scope 'unified'"):
            convert(model, TopK(0.1, scope="unified"), layers=(nn.Linear, nn.Conv2d))
    else:
        revert(convert(model, TopK(0.1, decay=0.6), layers=(nn.Conv2d, nn.Linear)))
    for ours, theirs in zip(model.modules(), plain.modules(), strict=True):
        assert type(ours) is type(theirs) and vars(ours).keys() == vars(theirs).keys()
        assert ours._buffers.keys() == theirs._buffers.keys()
        assert ours._non_persistent_buffers_set == theirs._non_persistent_buffers_set


def kinds(model):
    return [type(layer) for layer in model.modules() if hasattr(layer, "weight")]


def test_layers_and_skip():
    model = convert(small(), TopK(0.1), layers=(nn.Conv2d, nn.Linear), skip=("2",))
    assert kinds(model) == [Conv2d, nn.Conv2d, Linear]
    assert kinds(convert(small(), TopK(0.1), layers=nn.Linear)) == [nn.Conv2d, nn.Conv2d, Linear]
    with pytest.warns(UserWarning, match="no Conv2d"):
        convert(nn.Linear(1, 1), TopK(0.5))
    plain = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)
    model = nn.Sequential(*(kind(1, 1, 1) for kind in plain))
    with pytest.raises(ValueError, match="Conv3d: there are no kernels"):
        convert(model, TopK(0.5), layers=plain, backend="sparse")
    assert kinds(model) == [*plain]
    convert(model, TopK(0.5), layers=plain)
    assert kinds(model) == [Conv2d, Conv3d, ConvTranspose2d]
    assert kinds(revert(model)) == [*plain]


def test_a_new_ratio_keeps_the_past():
    x = torch.rand(2, 1, 8, 8)
    models = [convert(small(), TopK(0.1, decay=0.5)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        model(x).sum().backward()
    past = models[0][0].run_grad.clone()
    convert(models[0], TopK(0.2, decay=0.5))
    models[1][0].rule = models[1][2][0].rule = TopK(0.2, decay=0.5)
    for model in models:
        assert torch.equal(model[0].run_grad, past)
        model(x).square().sum().backward()
        assert not torch.equal(model[0].run_grad, past)
    assert torch.equal(models[0][0].run_grad, models[1][0].run_grad)
    convert(models[0], TopK(0.2, decay=0.5), history="position")
    assert models[0][0].run_grad is None


def test_a_rule_that_is_set_is_checked_and_the_rest_stays():
    layer = Conv2d(4, 16, 3, backend="masked", history="position", in_eval="exact")
    for wrong, message in ((TopK(0.5, scope="unified"), "scope 'unified'"), (0.5, r"got 0\.5")):
        with pytest.raises(ValueError, match=message):
            layer.rule = wrong
    layer.rule = TopK(0.5, pick="random")
    generator = layer.generator
    layer.rule = TopK(0.25, pick="random")
    assert layer.generator is generator is not None
    layer.rule = TopK(0.25)
    assert layer.generator is None
    assert (layer.backend, layer.history, layer.in_eval) == ("masked", "position", "exact")
    layer.set_rule(TopK(0.5), backend="sparse")
    assert (layer.backend, layer.history, layer.in_eval) == ("sparse", "position", "exact")


def test_rules_by_patterns_of_names():
    model = resnet18()
    rules = {"*": TopK(0.5), "layer1.*": TopK(0.05), "layer4.1.conv2": None, "conv1": None}
    convert(model, rules)
    found = {n: m.rule.ratio for n, m in model.named_modules() if isinstance(m, Conv2d)}
    assert type(model.conv1) is type(model.layer4[1].conv2) is nn.Conv2d
    assert len(found) == 18
    assert all(its == (0.05 if name.startswith("layer1") else 0.5) for name, its in found.items())
    # A layer that no pattern fits stays as it is.
    convert(model, {"layer2.*": TopK(0.3)}, skip="layer2.0")
    ratios = [model.layer1[0], model.layer2[0], model.layer2[1]]
    assert [block.conv1.rule.ratio for block in ratios] == [0.05, 0.5, 0.3]
    with pytest.raises(ValueError, match=r"'layr1\.\*' has no effect; did you mean 'layer1\.\*'"):
        convert(model, {"layr1.*": TopK(0.1)})


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"0": TopK(0.1), "two.*": TopK(0.2)}, "'two.*' has no effect; there are '0', '2.0'"),
        ({"2.0": TopK(0.2), "*": TopK(0.1)}, "'2.0' has no effect; later patterns"),
        ({"3": TopK(0.2)}, "'3' has no effect"),  # a Linear, which was not asked for
        ({}, "there are no patterns"),
    ],
)
def test_a_pattern_without_effect_is_named_and_changes_nothing(rules, message):
    model = small()
    with pytest.raises(ValueError, match=re.escape(message)):
        convert(model, rules)
    assert kinds(model) == [nn.Conv2d, nn.Conv2d, nn.Linear]


def memory(model):
    """All pasts and generators, to be compared."""
    saved = [its for layer in history_state(model).values() for its in layer.values()]
    return [its.tolist() if isinstance(its, torch.Tensor) else its for its in saved]


def gradient(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    return [p.grad.clone() for p in model.parameters()]


RULES = (TopK(0.1, decay=0.5), TopK(0.1, pick="random"), None)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("backend", ["auto", "sparse", "masked"])
def test_inside_exact_gradients_are_torchs_and_the_past_rests(rule, backend):
    torch.manual_seed(0)
    x = torch.rand(2, 1, 8, 8)
    model = convert(small(), rule, (nn.Conv2d, nn.Linear), backend=backend)
    plain = revert(copy.deepcopy(model))
    before = gradient(model, x)
    past = memory(model)
    for _ in range(2):
        with exact(model), exact(model[0]):
            found = gradient(model, x)
        assert all(torch.equal(a, b) for a, b in zip(found, gradient(plain, x), strict=True))
    assert memory(model) == past
    if rule is not None:
        assert not torch.equal(before[0], found[0])
        after = gradient(model, x)
        assert not torch.equal(after[0], found[0])
        assert memory(model) != past


@pytest.mark.parametrize("backend", ["auto", "sparse", "masked"])
def test_exact_counts_where_the_output_is_computed_and_where_its_gradient_is(backend):
    torch.manual_seed(0)
    layer = Conv2d(1, 4, 3, rule=TopK(0.1, decay=0.5, bias="sparse"), backend=backend)
    x = torch.rand(2, 1, 8, 8)
    expected = gradient(revert(copy.deepcopy(layer)), x)
    with exact(layer):
        inside = layer(x)
    for y in (inside, layer(x)):
        layer.zero_grad()
        with exact(layer) if y is not inside else nullcontext():
            y.square().sum().backward()
        for parameter, grad in zip(layer.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, grad)
    assert layer.run_grad is None
    with exact(layer):  # torch's own layer, so twice is possible
        x.requires_grad_()
        (first,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        first.sum().backward()


def test_exact_ends_with_an_error_and_lets_revert_happen():
    layer = Conv2d(1, 4, 3, rule=TopK(0.1))
    with pytest.raises(KeyError), exact(layer):
        raise KeyError
    assert not layer.is_exact
    with exact(layer):
        revert(layer)
    assert vars(layer).keys() == vars(nn.Conv2d(1, 4, 3)).keys()


@pytest.mark.parametrize("in_eval", ["select", "exact"])
def test_a_choice_for_eval(in_eval):
    x = torch.rand(2, 1, 8, 8)
    model = convert(small(), TopK(0.1, decay=0.5), in_eval=in_eval)
    plain = revert(copy.deepcopy(model))
    for training in (True, False, True):
        model.train(training)
        before = memory(model)
        same = torch.equal(gradient(model, x)[0], gradient(plain, x)[0])
        assert same == (in_eval == "exact" and not training)
        assert (memory(model) == before) == same
    assert type(revert(model)[0]) is nn.Conv2d


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_shared_layer_is_one_layer_of_two_names(name):
    def model():
        made = nn.Module()
        made.a = made.b = nn.Conv2d(1, 4, 3)
        made.c = nn.Conv2d(1, 4, 3)
        return made

    found = convert(model(), {name: TopK(0.5)})
    assert found.a is found.b and found.a.rule == TopK(0.5)
    found = convert(model(), TopK(0.5), skip=name)
    assert (type(found.a), type(found.c)) == (nn.Conv2d, Conv2d)


class Scaled(nn.Conv2d):
    def forward(self, input):
        return 2 * super().forward(input)


def test_what_does_its_own_computing_is_left_alone_and_named():
    model = nn.Sequential(nn.Conv2d(1, 1, 1), Scaled(1, 1, 1), nn.Conv2d(1, 1, 1))
    model[2].forward = lambda x: x
    with pytest.warns(UserWarning, match=r"1 \(Scaled\), 2 \(its forward was replaced\)"):
        convert(model, TopK(0.5))
    assert kinds(model) == [Conv2d, Scaled, nn.Conv2d]


def test_other_convolutions_are_left_alone_and_named_once():
    def model():
        return nn.ModuleDict({
            "a": nn.Conv2d(1, 1, 1), "b": nn.Conv1d(1, 1, 1), "c": nn.ConvTranspose2d(1, 1, 1),
            "d": nn.ConvTranspose1d(1, 1, 1), "e": nn.Linear(1, 1),
        })  # fmt: skip

    named = r"b \(Conv1d, see layers=\), c \(ConvTranspose2d, see layers=\), d \(ConvTranspose1d\)"
    with pytest.warns(UserWarning) as seen:
        convert(model(), TopK(0.5))
    assert [bool(re.search(named, str(each.message))) for each in seen] == [True]
    with pytest.warns(UserWarning, match=r"left alone: d \(ConvTranspose1d\)$"):
        found = convert(model(), TopK(0.5), layers=(nn.Conv1d, nn.Conv2d), skip="c")
    assert [type(found[name]) for name in "ab"] == [Conv2d, Conv1d]
    # Nothing was asked for that they could be: no warning, which would be an error here.
    convert(model(), TopK(0.5), layers=nn.Linear)
    convert(model(), {"a": TopK(0.5)})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rule": 0.05}, "rule must be a TopK or None, got 0.05"),
        ({"layers": (nn.Fold,)}, "layers can contain nn.Conv2d.*Fold"),
        ({"layers": "Conv2d"}, "layers can contain nn.Conv2d.* got 'Conv2d'"),
        ({"skip": ("2.00",)}, "did you mean '2.0'"),
        ({"backend": "fast"}, "backend .* got 'fast'"),
        ({"history": "none"}, "history .* got 'none'"),
        ({"in_eval": "no"}, "in_eval .* got 'no'"),
        ({"where": "often"}, "where must be one of 'all', 'pays', got 'often'"),
    ],
)
def test_a_bad_value_is_named(arguments, message):
    model = small()
    with pytest.raises(ValueError, match=message):
        convert(model, **({"rule": TopK(0.1)} | arguments))
    assert kinds(model) == [nn.Conv2d, nn.Conv2d, nn.Linear]


def normalised(*below):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 3, padding=1), *below, nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 10))


def a_step(model, images=32, side=8):
    torch.manual_seed(1)
    x, labels = torch.rand(images, 3, side, side), torch.randint(10, (images,))
    nn.functional.cross_entropy(model(x), labels).backward()
    return model


@pytest.mark.filterwarnings("error")
def test_a_one_sided_selection_is_told_once_at_the_first_gradient():
    model = convert(normalised(nn.BatchNorm2d(32)), TopK(0.05))
    with pytest.warns(UserWarning, match="'0' below a batch normalisation TopK.*recipe"):
        a_step(model)
    a_step(model)
    model = convert(normalised(), TopK(0.05))
    with pytest.warns(UserWarning, match=r"at '0' TopK.*one-sided gradient \(drift 0"):
        a_step(model)
    for rule in (TopK(0.05, pick="centred"), TopK(0.1, pick="unbiased"), None):
        a_step(convert(normalised(nn.BatchNorm2d(32)), rule))


@pytest.mark.filterwarnings("error")
def test_what_keeps_the_balance_is_not_warned_of():
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 10)]
    a_step(convert(nn.Sequential(*layers), TopK(0.5)))
    still = convert(normalised(nn.BatchNorm2d(32)), TopK(0.05))
    (0 * still(torch.rand(4, 3, 8, 8))).sum().backward()  # nothing to learn from, on either side


def test_the_recipe_selects_where_it_pays_and_costs_nothing_elsewhere():
    wide, narrow = nn.Conv2d(128, 128, 3, padding=1), nn.Conv2d(128, 128, 3, groups=128)
    model = nn.Sequential(nn.Conv2d(3, 128, 1), wide, narrow)
    plain = copy.deepcopy(model)
    recipe(model, ratio=0.01)
    x = torch.rand(8, 3, 16, 16)
    with watch(model) as seen:
        model(x).square().sum().backward()
    plain(x).square().sum().backward()
    assert seen["1"].after < 0.02 < seen["1"].before
    assert seen["2"].after == seen["2"].before
    assert torch.equal(narrow.weight.grad, plain[2].weight.grad)
    assert narrow.is_plain and not wide.is_plain


@pytest.mark.parametrize("backend", ["auto", "masked"])
def test_everywhere_and_where_it_pays_differ_only_there(backend):
    model = convert(small(), TopK(0.1), where="pays", backend=backend)  # too small to gain
    with watch(model) as seen:
        model(torch.rand(2, 1, 8, 8)).square().sum().backward()
    assert seen["2.0"].after == seen["2.0"].before


def test_without_zeros_to_skip_the_layer_rests_and_looks_again():
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.Conv2d(32, 32, 3))
    plain = copy.deepcopy(model)
    convert(model, None)
    x, rested = torch.rand(4, 3, 12, 12), []
    for _ in range(40):
        for each in (model, plain):
            each.zero_grad()
            each(x).square().sum().backward()
        rested.append(model[1].is_plain)
        assert torch.equal(model[1].weight.grad, plain[1].weight.grad)
    assert rested == [n % 16 != 0 for n in range(40)]
    state = history_state(model)
    other = convert(copy.deepcopy(plain), None)
    load_history_state(other, state)
    assert other[1].rests == model[1].rests > 0
    convert(model, TopK(0.1))
    assert model[1].rests == 0
