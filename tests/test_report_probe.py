"""Looking at gradients in the middle of training."""

import pytest
import torch

from meprop.study import Config, train
from meprop.study.report.probe import Probe

CONFIG = Config(dataset="digits", train_size=60, epochs=2)


@pytest.mark.parametrize("values", [{}, {"ratio": 0.05, "decay": 0.6}, {"batch_norm": True}])
def test_its_steps_are_those_of_training(values):
    config = Config(**CONFIG.to_dict() | values)
    record = train(config, progress=False)
    probe = Probe(config)
    probe.advance(12)
    means = [sum(probe.losses[:6]) / 6, sum(probe.losses[6:]) / 6]
    assert means == [epoch["train_loss"] for epoch in record.history]


def test_looking_changes_nothing():
    plain, looked = Probe(CONFIG), Probe(CONFIG)
    plain.advance(3)
    for _ in range(3):
        looked.gradients(*looked.batch([0, 1]))
        looked.advance()
    assert plain.losses == looked.losses


def test_gradients_are_those_before_selection():
    exact, sparse = Probe(CONFIG), Probe(Config(**CONFIG.to_dict() | {"ratio": 0.05}))
    batch = exact.batch(range(4))
    ours, full = sparse.gradients(*batch, layers=["conv2"]), exact.gradients(*batch)
    assert list(full) == ["conv1", "conv2"]
    assert torch.equal(ours["conv2"], full["conv2"])
    # The same as torch's own: the derivative with respect to the output.
    kept = {}

    def keep(module, args, output):
        output.retain_grad()
        kept["conv1"] = output

    with exact.model.conv1.register_forward_hook(keep):
        exact.backward(*batch)
    assert torch.equal(kept["conv1"].grad, full["conv1"])
