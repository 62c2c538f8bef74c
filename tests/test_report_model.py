"""Converting somebody's own network: what is accepted, and what is said about it."""

import sys
import types

import pytest
import torch
from torch import nn

from meprop import TopK, convert, watch
from meprop.study.figures import model as drawn
from meprop.study.parameters import ParameterError, check
from meprop.study.report import model as yours


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3)
        self.last = nn.Conv2d(8, 4, 3, bias=False)

    def forward(self, images):
        return self.last(self.conv(images).relu()).mean((2, 3))


@pytest.fixture
def theirs(monkeypatch):
    """A module of somebody else."""
    module = types.ModuleType("theirs")
    module.build, module.number, module.flat = Small, lambda: 3, lambda: nn.Linear(3, 4)
    module.picky = lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(7, 3))
    monkeypatch.setitem(sys.modules, "theirs", module)


def test_names_and_factories(theirs):
    assert isinstance(yours.build("own", Small), Small)
    assert isinstance(yours.build("theirs:build", None), Small)
    one, other = (yours.build("own", Small).conv.weight for _ in range(2))
    assert torch.equal(one, other)
    assert yours.summary(yours.build("resnet18", Small)).startswith("0 of 20 ")
    for model in ("resnet18", "own", "theirs:build"):
        check({"model": model}, model=yours.allowed(model))


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("resnet81", "model must be 'resnet18', 'own' or 'package.module:factory', got 'resnet81'"),
        (18, "model must be 'resnet18', 'own' or 'package.module:factory', got 18"),
        ("nowhere:build", "model: 'nowhere:build' cannot be imported: No module named 'nowhere'"),
        ("theirs:bild", "model: 'theirs:bild' cannot be imported: "),
        (":build", "model: ':build' cannot be imported: "),
        ("theirs:number", "model: 'theirs:number' made no torch.nn.Module, but 3"),
        ("theirs:flat", "model: the network that 'theirs:flat' made has no nn.Conv2d"),
        ("theirs:picky", "model: the network takes no images of 8x3x48x48: "),
    ],
)
def test_a_wrong_model_is_one_sentence(theirs, model, sentence):
    with pytest.raises(ParameterError) as error:
        check({"model": model}, model=yours.allowed(model))
        yours.batch(yours.build(model, Small))
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


def test_a_batch_fits_the_network():
    images, labels = yours.batch(Small(), images=5, side=12)
    assert images.shape == (5, 2, 12, 12)
    assert labels.shape == (5,) and set(labels.tolist()) <= {0, 1, 2, 3}


def test_what_is_said_and_shown():
    plain = yours.build("own", Small)
    batch = yours.batch(plain, side=12)
    network = convert(yours.build("own", Small), TopK(0.25), skip=("last",))
    assert yours.summary(network).startswith("1 of 2 convolutions now select. ")
    assert yours.same_outputs(plain, network, batch[0])
    with torch.no_grad():
        network.conv.bias += 1
    assert not yours.same_outputs(plain, network, batch[0])
    with watch(network) as seen:
        nn.functional.cross_entropy(network(batch[0]), batch[1]).backward()
    words = yours.densities_in_words(seen)
    assert words.startswith("One layer drops something: ") and "25% after" in words
    assert yours.densities_in_words({}) == "Every layer passed on what it got."
    figure = drawn.densities(seen)
    assert figure is not None
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["conv", "last"]
    assert drawn.densities({}) is None


def test_a_few_steps_leave_the_network_alone():
    network = convert(yours.build("own", Small), TopK(0.5))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    losses = yours.train(network, yours.batch(network, side=12), steps=20)
    assert len(losses) == 20 and losses[-1] < losses[0]
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    lines = drawn.losses({"plain": losses, "converted": losses}).axes[0].get_lines()
    assert [list(line.get_ydata()) for line in lines] == [losses, losses]


def test_times():
    network = yours.build("own", Small)
    timed = yours.times(network, yours.batch(network, side=12), ratio=0.05, rounds=1)
    assert [each.name for each in timed] == ["plain", "exact", "converted"]
    assert timed[0].speedup.median == 1 and timed[0].sparse == ""
    choices = {f"{count} of 2" for count in range(3)}
    assert all(each.milliseconds > 0 and each.sparse in choices for each in timed[1:])
    table = yours.times_table({"mine": timed}).splitlines()
    assert len(table) == 5 and table[4].startswith("| mine | `convert(model, TopK(ratio))` | ")
    assert table[4].endswith(" of 2 |")
