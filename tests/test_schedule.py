import pytest
import torch
from torch import nn

from meprop import TopK, convert, exact, revert, schedule


def network(rule=TopK(0.05)):  # noqa: B008
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 2, 1))
    return convert(plain, rule, skip="3")


def train(model, scheduler, steps):
    ratios = []
    for _ in range(steps):
        ratios.append(model[0].rule.ratio)
        model(torch.rand(2, 1, 8, 8)).square().sum().backward()
        scheduler.step()
    return ratios


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (schedule.constant(0.1), [0.1] * 6),
        (0.1, [0.1] * 6),
        (schedule.linear(1.0, 0.2, steps=4), [1.0, 0.8, 0.6, 0.4, 0.2, 0.2]),
        (schedule.linear(0.1, 0.5, steps=2), [0.1, 0.3, 0.5, 0.5, 0.5, 0.5]),
        (schedule.cosine(1.0, 0.2, steps=2), [1.0, 0.6, 0.2, 0.2, 0.2, 0.2]),
        (schedule.warm_up(2, 0.1), [1.0, 1.0, 0.1, 0.1, 0.1, 0.1]),
        (schedule.until(2, 0.1), [0.1, 0.1, 1.0, 1.0, 1.0, 1.0]),
        (schedule.warm_up(3, schedule.linear(0.5, 0.1, steps=2)), [1.0, 1.0, 1.0, 0.5, 0.3, 0.1]),
        (schedule.alternate(0.1), [1.0, 0.1, 1.0, 0.1, 1.0, 0.1]),
        (schedule.alternate(0.1, steps=2), [1.0, 1.0, 0.1, 0.1, 1.0, 1.0]),
        (lambda step: 1 / (step + 1), [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6]),
    ],
)
def test_the_ratio_at_each_step(ratio, expected):
    model = network()
    assert train(model, schedule.Scheduler(model, ratio), 6) == pytest.approx(expected)
    assert model[2].rule == model[0].rule
    assert type(model[3]) is nn.Conv2d


def test_the_past_and_all_else_of_a_rule_stay():
    rule = TopK(0.05, decay=0.5, scope="sample", bias="sparse")
    model = network(rule)
    scheduler = schedule.Scheduler(model, schedule.linear(0.5, 0.25, steps=4))
    train(model, scheduler, 1)
    past = model[0].run_grad
    scheduler.step()
    assert model[0].run_grad is past
    assert model[0].rule == TopK(0.375, decay=0.5, scope="sample", bias="sparse")


def test_a_layer_that_was_reverted_and_one_that_is_exact():
    model = network()
    scheduler = schedule.Scheduler(model, schedule.linear(0.1, 0.2, steps=1))
    revert(model[2])
    with exact(model):
        scheduler.step()
        model(torch.rand(2, 1, 8, 8)).sum().backward()
    assert type(model[2]) is nn.Conv2d
    assert model[0].rule == TopK(0.2) and not model[0].is_exact


def test_going_on_elsewhere():
    first, second = network(), network()
    ratio = schedule.cosine(1.0, 0.05, steps=10)
    one, other = schedule.Scheduler(first, ratio), schedule.Scheduler(second, ratio)
    train(first, one, 4)
    other.load_state_dict(one.state_dict())
    assert second[0].rule == first[0].rule
    assert train(first, one, 5) == train(second, other, 5)


def test_layers_by_patterns():
    model = network()
    scheduler = schedule.Scheduler(model, {"0": schedule.alternate(0.1), "2": None})
    scheduler.step()
    assert scheduler.ratios() == {"0": 0.1}
    assert [model[0].rule.ratio, model[2].rule.ratio] == [0.1, 0.05]
    with pytest.raises(ValueError, match=r"Scheduler: the pattern 'conv\*' has no effect"):
        schedule.Scheduler(model, {"conv*": 0.1})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedule.constant(5), "constant: ratio .* got 5; did you mean 0.05"),
        (lambda: schedule.linear(1.0, 0.0, 3), "linear: stop must be in .* got 0.0"),
        (lambda: schedule.cosine(1.5, 0.1, 3), "cosine: start"),
        (lambda: schedule.linear(1.0, 0.1, 0), "linear: steps .* at least 1, got 0"),
        (lambda: schedule.warm_up(2.5, 0.1), "warm_up: steps .* got 2.5"),
        (lambda: schedule.alternate(0.1, True), "alternate: steps .* got True"),
        (lambda: schedule.Scheduler(network(), lambda step: 0.0), "ratio must be in .* got 0.0"),
        (lambda: schedule.Scheduler(network(None), 0.1), "no layer of the model has a rule"),
    ],
)
def test_a_bad_value_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
