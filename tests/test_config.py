import copy
import json
import pickle
import re
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meprop import TopK
from meprop.study.config import Config
from meprop.study.training import build

K05 = {"ratio": 0.05}
ABOVE = {**K05, "select_at": "bn", "batch_norm": True}
RESNET = {"network": "resnet20", "batch_norm": True}


def test_the_defaults_are_the_papers_baseline():
    config = Config()
    assert config.rule is None
    paper = {"dataset": "mnist", "epochs": 30, "batch_size": 10, "lr": 0.001, "dropout": 0.0}
    paper |= {"activation": "relu", "sparse_layers": ("conv1", "conv2"), "batch_norm": False}
    assert {name: getattr(config, name) for name in paper} == paper
    config = Config(ratio=0.08, decay=0.6, scope="layer", bias="sparse")
    assert config.rule == TopK(0.08, decay=0.6, scope="layer", bias="sparse")


configs = st.builds(
    Config,
    dataset=st.sampled_from(["mnist", "digits"]),
    train_size=st.none() | st.integers(100, 1200),
    batch_norm=st.booleans(),
    ratio=st.floats(0.001, 1),
    decay=st.floats(0, 0.99),
    scope=st.sampled_from(["map", "sample", "layer", "mixed"]),
    bias=st.sampled_from(["full", "sparse"]),
    sparse_layers=st.lists(st.sampled_from(["conv1", "conv2", "fc1"]), min_size=1, unique=True),
    activation=st.sampled_from(["relu", "sigmoid", "tanh"]),
    dropout=st.floats(0, 0.9),
    backend=st.sampled_from(["auto", "sparse", "masked"]),
    epochs=st.integers(1, 100),
    batch_size=st.integers(2, 100),
    lr=st.floats(1e-6, 1),
    seed=st.integers(0, 10**9),
    threads=st.integers(1, 64),
)


@given(configs)
def test_round_trip_through_json(config):
    again = Config.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert hash(again) == hash(config)
    assert again.digest == config.digest
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config


YOUNGER = {"network": "resnet20", "contender": "channels", "optimizer": "sgd"}
YOUNGER |= {"schedule": "onecycle", "augment": True, "thinned_epochs": 20, "train_eval": True}


def test_to_dict_leaves_out_just_what_is_younger_than_the_records_and_at_its_default():
    first = [field.name for field in fields(Config) if field.name not in (*YOUNGER, "only")]
    assert list(Config().to_dict()) == first
    config = Config(ratio=0.2, batch_norm=True, **YOUNGER)
    assert list(config.to_dict()) == [*first, *YOUNGER]
    assert Config.from_dict(config.to_dict()) == config
    config = Config(ratio=0.2, only="weight")
    assert config.to_dict()["only"] == "weight" and config.rule.only == "weight"


def test_the_digest_tells_every_field_apart():
    base = Config(ratio=0.05, decay=0.6, batch_norm=True)
    changes = [
        {"dataset": "digits"}, {"train_size": 1000}, {"batch_norm": False}, {"ratio": 0.08},
        {"decay": 0.5}, {"scope": "sample"}, {"pick": "random", "decay": 0.0}, {"bias": "sparse"},
        {"sparse_layers": ["conv1"]}, {"history": "position"}, {"select_at": "bn"},
        {"activation": "sigmoid"}, {"dropout": 0.5}, {"backend": "masked"}, {"epochs": 3},
        {"batch_size": 5}, {"lr": 0.01}, {"seed": 1}, {"threads": 2}, {"network": "resnet20"},
        {"contender": "samples", "decay": 0.0}, {"optimizer": "sgd"}, {"schedule": "onecycle"},
        {"augment": True}, {"thinned_epochs": 20}, {"train_eval": True},
    ]  # fmt: skip
    assert {name for change in changes for name in change} == set(base.to_dict()) | set(YOUNGER)
    digests = {Config.from_dict(base.to_dict() | change).digest for change in changes}
    assert len(digests | {base.digest}) == len(changes) + 1
    # Records of other machines carry it, so it must not drift.
    assert Config().digest.startswith("3302e6632278475a")


def test_spellings_of_one_configuration_are_equal():
    plain = Config(ratio=1.0, sparse_layers=("conv1", "conv2"), lr=1.0)
    other = Config(ratio=1, sparse_layers=["conv2", "conv1"], lr=np.float64(1), seed=np.int64(0))
    assert other == plain
    assert other.digest == plain.digest
    assert Config(train_size=55_000) == Config() == Config(train_size=None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"thinned_epochs": 3}, "thinned_epochs=3 has no effect without a ratio"),
        ({"ratio": 0.1, "thinned_epochs": 30}, "thinned_epochs must be fewer than the 30 epochs"),
        ({"dataset": "mnst"}, "'digits', 'fashion-mnist' or 'cifar10', got 'mnst'"),
        ({"train_size": 9}, "train_size must be between batch_size (10) and the 55000"),
        ({"train_size": 1_201, "dataset": "digits"}, "1200 training images of digits, got 1201"),
        ({"batch_norm": 1}, "batch_norm must be true or false, got 1"),
        ({"batch_norm": True, "batch_size": 1}, "batch_norm needs a batch_size of at least 2"),
        ({"ratio": 5}, "ratio must be in (0, 1], got 5; did you mean 0.05?"),
        ({"ratio": 0}, "ratio must be in (0, 1], got 0; for exact gradients leave it out"),
        ({**K05, "decay": 1}, "decay must be in [0, 1), got 1"),
        ({**K05, "scope": "unified"}, "scope='unified' exists for fully connected layers only"),
        ({**K05, "pick": "random", "decay": 0.6}, "decay=0.6 has no effect with pick='random'"),
        ({**K05, "sparse_layers": "conv1"}, "sparse_layers must be a list, got 'conv1'"),
        ({**K05, "sparse_layers": []}, "sparse_layers is empty"),
        ({**K05, "sparse_layers": ["conv1", "conv1"]}, "sparse_layers names a layer twice"),
        ({**K05, "sparse_layers": ["conv3"]}, "each of sparse_layers must be 'conv1', 'conv2'"),
        ({**K05, "history": "position"}, "history='position' has no effect without a decay"),
        ({**K05, "select_at": "bn"}, "select_at='bn' needs a BN"),
        ({**ABOVE, "bias": "sparse"}, "bias='sparse' has no effect with select_at='bn'"),
        ({**ABOVE, "sparse_layers": ["fc2"]}, "select_at='bn' needs a BN: "),
        ({"lr": 0}, "lr must be greater than 0, got 0"),
        ({"lr": float("inf")}, "lr must be a finite number, got inf"),
        ({"lr": "1e-3"}, "lr must be a number, got '1e-3'; in YAML write 0.001"),
        ({"threads": 100_000}, "threads must be in [1, 1024], got 100000"),
        ({"network": "resnet20"}, "network='resnet20' has batch normalisation: set batch_norm"),
        ({**RESNET, "dropout": 0.5}, "dropout=0.5 has no effect with network='resnet20'"),
        ({"dataset": "cifar10"}, "network='paper' takes grey images of 28 x 28"),
        ({**K05, "contender": "channels", "decay": 0.6}, "no effect with contender='channels'"),
    ],
)
def test_bad_values_are_named(values, message):
    with pytest.raises(ValueError, match=f"^Config: .*{re.escape(message)}"):
        Config.from_dict(values)
    with pytest.raises(ValueError, match=f"^Config: .*{re.escape(message)}"):
        Config(**values)


@pytest.mark.parametrize("name", ["ratio", "lr", "seed", "train_size"])
def test_numbers_of_400_digits_are_refused_in_a_short_sentence(name):
    with pytest.raises(ValueError, match=rf"^Config: {name} must be .*, got 1000") as error:
        Config(**{"ratio": 0.05, name: 10**400})
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    "values",
    [
        {"batch_norm": True, "dropout": 0.5, "activation": "tanh"},
        {**K05, "scope": "unified", "sparse_layers": ["fc1"]},
        {**ABOVE, "sparse_layers": ["conv1", "fc1"]},
        {**K05, "decay": 0.9, "history": "position"},
    ],
)
def test_what_is_accepted_can_be_built(values):
    config = Config.from_dict(values)
    model = build(config)
    chosen = {n for n in ("conv1", "conv2", "fc1") if getattr(model, n).rule is not None}
    assert chosen == (set() if not config.rule or config.select_at == "bn" else
                      set(config.sparse_layers))  # fmt: skip
