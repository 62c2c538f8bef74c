"""Training on a few of the embedded digits; the full recipe runs in the notebooks."""

import json
import math
import random
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F

from meprop.study import training
from meprop.study.checkpoint import CheckpointError
from meprop.study.config import Config
from meprop.study.data import DATASETS, Splits, load_data
from meprop.study.record import Record
from meprop.study.training import _Run, batches, build, conditions, steps, train

TINY = Config(dataset="digits", train_size=60, epochs=3, ratio=0.05, decay=0.6)


@pytest.fixture(scope="module", autouse=True)
def few_digits():
    """Evaluation on fewer images, for speed; the scores mean nothing here anyway."""
    whole = load_data("digits")
    parts = {"train": whole.train, "dev": whole.dev.first(40), "test": whole.test.first(40)}
    small = Splits(parts.__getitem__)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "load_data", lambda name: small)
        yield small


@pytest.fixture
def loadable(few_digits, monkeypatch):
    """A record that was scored on so few images is whole."""
    few = replace(DATASETS["digits"], test=len(few_digits.test))
    monkeypatch.setitem(DATASETS, "digits", few)


@pytest.fixture(scope="module")
def record(few_digits):
    return train(TINY, progress=False)


@pytest.mark.usefixtures("loadable")
def test_the_record(record, few_digits, tmp_path):
    assert (record.config, record.status, record.stopped) == (TINY, "finished", None)
    assert [epoch["epoch"] for epoch in record.history] == [1, 2, 3]
    for epoch in record.history:
        assert set(epoch["layers"]) == {"conv1", "conv2", "fc1", "fc2"}
        for name, seen in epoch["layers"].items():
            assert 0 < seen["after"] <= (0.05 + 1e-9 if "conv" in name else seen["before"])
            assert 0 < seen["norm_kept"] <= 1 + 1e-9 and 0 < seen["weight"] <= 1
        assert epoch["layers"]["fc1"]["norm_kept"] == pytest.approx(1)
        assert 0 < epoch["changed"] <= 1
    assert record.provenance["data"] == few_digits.digest
    assert record.provenance["seconds"] == sum(e["seconds"] for e in record.history)
    record.save(tmp_path / "r.json")
    assert Record.load(tmp_path / "r.json") == record


def test_the_first_of_equally_good_epochs_counts(monkeypatch):
    wrong = iter([[0, 1, 2], [0, 9], [0], [0, 8], [5], [0, 7, 8]])  # dev, test, dev, test, ...
    monkeypatch.setattr(training, "evaluate", lambda model, part: (0.5, w := next(wrong), w))
    record = train(replace(TINY, train_size=10), progress=False)
    assert [epoch["dev_accuracy"] for epoch in record.history] == [92.5, 97.5, 97.5]
    assert [epoch["test_accuracy"] for epoch in record.history] == [95.0, 95.0, 92.5]
    assert (record.best_epoch, record.dev_accuracy, record.test_accuracy) == (2, 97.5, 95.0)
    assert record.test_errors == record.test_predictions == [0, 8]


def test_it_repeats_bit_for_bit_and_leaves_no_trace(record):
    tiny = torch.tensor(1e-39)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    threads = torch.get_num_threads()
    again = train(replace(TINY, threads=threads), progress=False)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads
    assert tiny * 1 > 0
    assert again.outcome() == record.outcome()
    assert again.to_dict()["history"] == [
        e | {"seconds": a["seconds"]} for e, a in zip(record.history, again.history, strict=True)
    ]


def test_training_loss_and_accuracy_are_means_over_the_steps(few_digits):
    config = Config(dataset="digits", train_size=25, epochs=1, backend="masked")
    record = train(config, progress=False)
    model = build(config).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, fused=True)
    losses, right = [], 0
    for batch in batches(config, 25, epoch=1):
        images, labels = few_digits.train.images[batch], few_digits.train.labels[batch]
        output = model(images)
        loss = F.cross_entropy(output, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        right += int((output.argmax(1) == labels).sum())
    assert len(losses) == 2
    assert record.history[0]["train_loss"] == pytest.approx(sum(losses) / 2, rel=1e-4)
    assert record.history[0]["train_accuracy"] == 100 * right / 20


RESNET = {"network": "resnet20", "batch_norm": True, "optimizer": "sgd", "schedule": "onecycle"}
RESNET |= {"augment": True, "batch_size": 20, "lr": 0.05}
SETTINGS = [
    {},
    {"ratio": 0.05},
    {"ratio": 0.05, "pick": "random", "sparse_layers": ["conv1", "fc1"]},
    {"ratio": 0.1, "decay": 0.6, "batch_norm": True, "select_at": "bn"},
    {"dropout": 0.5, "activation": "sigmoid", "backend": "masked", "lr": 0.01, "epochs": 3},
]


@pytest.mark.parametrize("setting", SETTINGS[1:])
def test_one_seed_is_one_initialisation_and_one_order(setting):
    base = Config(seed=4)
    other = Config(seed=4, **setting)
    ours, theirs = build(base).state_dict(), build(other).state_dict()
    assert set(ours) <= set(theirs)
    for name, weights in ours.items():
        assert torch.equal(weights, theirs[name]), name
    orders = set()
    for config in (base, other, Config(seed=5)):
        for epoch in (1, 2):
            order = torch.cat(list(batches(config, 100, epoch))).tolist()
            assert sorted(order) == list(range(100))
            orders.add(tuple(order))
    assert len(orders) == 4, "another in each epoch and for another seed"
    assert not torch.equal(ours["fc1.weight"], build(Config(seed=5)).fc1.weight)


def shown_images(few_digits, **setting):
    """What the network sees in two epochs."""
    config = Config(dataset="digits", train_size=60, epochs=2, seed=4, **RESNET, **setting)
    model, seen = build(config), []
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    with conditions(config):
        for _ in steps(config, model, few_digits.train):
            pass
    return seen


def test_one_seed_is_one_augmentation(few_digits):
    plain = shown_images(few_digits)
    for setting in ({"ratio": 0.05}, {"ratio": 0.5, "contender": "samples"}):
        other = shown_images(few_digits, **setting)
        assert all(torch.equal(one, two) for one, two in zip(plain, other, strict=True))
    assert len(plain) == 6
    assert not any(torch.equal(one, two) for one, two in combinations(plain, 2))


@pytest.mark.parametrize(
    "setting", [{"ratio": 0.05}, {**RESNET, "augment": False, "epochs": 3, "train_eval": True}]
)
def test_the_loss_goes_down(setting):
    config = Config(**{"dataset": "digits", "train_size": 300, "epochs": 2} | setting)
    first, *_, last = train(config, progress=False).history
    assert last["train_loss"] < first["train_loss"] / 2
    assert last["train_accuracy"] > 60 and last.get("train_eval_accuracy", 100) > 50
    assert len(last["layers"]) == (20 if config.network == "resnet20" else 4)


@pytest.mark.parametrize("way", [{}, {"contender": "channels"}])
def test_the_last_epochs_may_be_exact(few_digits, way):
    setting = {"batch_norm": True, "decay": 0.0, "ratio": 0.25, "thinned_epochs": 2, **way}
    record = train(replace(TINY, **setting), progress=False)
    after = [next(iter(epoch["layers"].values()))["weight"] for epoch in record.history]
    kept = [epoch["layers"]["conv1"]["norm_kept"] for epoch in record.history]
    assert kept[2] == 1 and after[2] >= max(after[:2])
    assert way or max(kept[:2]) < 1


def test_the_steps_are_those_of_a_run(few_digits):
    config = replace(TINY, dropout=0.5, train_eval=True)
    record = train(config, progress=False)
    model = build(config)
    around = []
    with conditions(config):
        loop = steps(
            config, model, few_digits.train, around=lambda n: nullcontext(around.append(n))
        )
        made = [next(loop)]
        assert around == [1], "a step is made when it is asked for"
        model.eval()(few_digits.dev.images[:10])  # a look between two steps changes nothing
        made += loop
    assert [step.epoch for step in made] == [1] * 6 + [2] * 6 + [3] * 6
    assert [step.number for step in made] == around == list(range(1, 19))
    for epoch in record.history:
        own = [step for step in made if step.epoch == epoch["epoch"]]
        assert epoch["train_loss"] == sum(step.loss for step in own) / 6
        assert epoch["train_accuracy"] == 100 * sum(step.correct for step in own) / 60
    right = model.eval()(few_digits.train.images[:60]).argmax(1) == few_digits.train.labels[:60]
    assert epoch["train_eval_accuracy"] == pytest.approx(100 * right.float().mean())


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    record = train(replace(TINY, lr=1e25), progress=False)
    assert record.status == "diverged"
    assert record.stopped["epoch"] == 1
    assert 1 < record.stopped["step"] <= 6
    assert (record.history, record.best_epoch, record.dev_accuracy) == ([], None, None)
    assert (record.test_accuracy, record.test_errors) == (None, None)
    record.save(tmp_path / "r.json")
    assert Record.load(tmp_path / "r.json") == record


def test_a_run_that_diverges_later_keeps_what_it_had(record, monkeypatch):
    def poisoned(*given):
        made.append(learn(*given))
        return (math.nan if len(made) > 12 else made[-1][0]), made[-1][1]

    made, learn = [], training.learn
    monkeypatch.setattr(training, "learn", poisoned)
    stopped = train(TINY, progress=False)
    assert (stopped.status, stopped.stopped) == ("diverged", {"epoch": 3, "step": 1})
    assert stopped.outcome()["history"] == record.outcome()["history"][:2]
    assert stopped.best_epoch in (1, 2)


@pytest.mark.usefixtures("loadable")
def test_a_finished_run_is_not_trained_again(record, few_digits, tmp_path, monkeypatch):
    path = tmp_path / "run.pt"
    first = train(TINY, checkpoint=str(path), progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(_Run, "epoch", lambda *_: pytest.fail("trained"))
        again = train(TINY, checkpoint=path, progress=False)
    assert again == first and again.outcome() == record.outcome()
    exchanged = {"train": few_digits.train, "dev": few_digits.test, "test": few_digits.dev}
    other = Splits(exchanged.__getitem__)
    monkeypatch.setattr(training, "load_data", lambda name: other)
    with pytest.raises(CheckpointError, match="made with other data of 'digits'"):
        train(TINY, checkpoint=path, progress=False)


def test_a_run_tells_where_it_began_and_what_it_went_on_with():
    first, second, third = (_Run(replace(TINY, train_size=20)) for _ in range(3))
    here = first.origin["cpu"]
    second.load_state(first.state() | {"origin": first.origin | {"cpu": "Old", "commit": "a" * 40}})
    assert second.origin["commit"] == "a" * 40
    third.load_state(second.state())
    assert second.origin["cpu"] == third.origin["cpu"] == f"Old, then {here}", "named once"


# Trains in forks of itself, each killed at the n-th of its events, until one comes to the end.
KILLED = """
import json, os, signal, sys
from dataclasses import replace
from pathlib import Path
import torch
from meprop import kernels
from meprop.study import training
from meprop.study.config import Config
from meprop.study.data import DATASETS, Splits
from meprop.study.provenance import code_digest

whole = training.load_data("digits")
parts = {"train": whole.train, "dev": whole.dev.first(40), "test": whole.test.first(40)}
training.load_data = lambda name: Splits(parts.__getitem__)
DATASETS["digits"] = replace(DATASETS["digits"], test=40)
torch.set_num_threads(1)
kernels.warm_up()  # these once for all forks: somebody may edit a file meanwhile
code_digest()


def attempt(checkpoint, result, last):
    pid = os.fork()
    if pid == 0:
        left = iter(range(last))

        def event():
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        def watched(function):
            def wrapper(*args, **kwargs):
                event()
                outcome = function(*args, **kwargs)
                event()
                return outcome

            return wrapper

        # A step, the scores, and each moment around writing, flushing and renaming a file.
        training.learn = watched(training.learn)
        training.evaluate = watched(training.evaluate)
        os.fsync, os.replace = watched(os.fsync), watched(os.replace)
        training.train(config, checkpoint, progress=False).save(result)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


for number, (config, moments) in enumerate(json.loads(sys.argv[1])):
    config, folder = Config.from_dict(config), Path(sys.argv[2], str(number))
    folder.mkdir()
    codes = [attempt(folder / "whole.pt", folder / "whole.json", 10**9)]
    for last in moments:
        codes.append(attempt(folder / "killed.pt", folder / "killed.json", last))
        if codes[-1] != -signal.SIGKILL:
            break
    print(json.dumps(codes))
"""


@pytest.mark.usefixtures("loadable")
def test_a_run_killed_at_any_moment_ends_in_the_same_record(tmp_path):
    # An epoch has 4 x 2 events of steps, 2 x 2 of scores, 4 of the checkpoint: 16. A run that is
    # killed in its first epoch starts over.
    dice, runs = random.Random(0), []
    for setting in (
        {"ratio": 0.05, "decay": 0.6, "batch_norm": True, "dropout": 0.3},
        {"ratio": 0.1, "pick": "random", "sparse_layers": ["conv1", "conv2", "fc1"]},
        {**RESNET, "batch_size": 10, "ratio": 0.5, "contender": "samples"},
    ):
        moments = [dice.randrange(0, 15), dice.randrange(13, 30), *dice.sample(range(1, 30), 5)]
        config = {"dataset": "digits", "train_size": 40, "epochs": 3, **setting}
        runs.append((config, [*moments, 10**9]))
    command = [sys.executable, "-c", KILLED, json.dumps(runs), tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    passing = ("start", "seconds", "commit", "dirty")  # somebody may commit meanwhile
    for number, codes in enumerate(map(json.loads, done.stdout.splitlines())):
        assert codes[0] == codes[-1] == 0 and codes.count(-9) >= 2
        whole, killed = (Record.load(tmp_path / f"{number}/{n}.json") for n in ("whole", "killed"))
        assert killed.outcome() == whole.outcome()
        for name in passing:
            del killed.provenance[name], whole.provenance[name]
        assert killed.provenance == whole.provenance
    assert number == len(runs) - 1
