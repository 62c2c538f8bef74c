"""Train a network under one configuration, to a record.

`steps` is the loop that everything which trains goes through; a seed fixes the initialisation and
the order of the data, each apart from all the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from tqdm import tqdm

from meprop.conversion import exact
from meprop.history import history_state, load_history_state
from meprop.study import checkpoint as checkpoints
from meprop.study.config import Config
from meprop.study.contenders import thinned
from meprop.study.data import DATASETS, Augmented, Part, load_data
from meprop.study.measures import Measured, evaluate
from meprop.study.network import PaperCNN, ResNet20
from meprop.study.optimizer import OPTIMIZERS, Optimizer, rate
from meprop.study.provenance import provenance
from meprop.study.record import Record

TRAIN_EVAL = 10_000  # of the training images
BEST = ("best_epoch", "dev_accuracy", "test_accuracy", "test_errors", "test_predictions")


def build(config: Config) -> Any:
    """The untrained network of a configuration: one seed, one initialisation."""
    names = ["rule", "backend", "history"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(config.seed, "initialisation"))
        if config.network == "resnet20":
            data = DATASETS[config.dataset]
            make: Callable[..., nn.Module] = partial(ResNet20, mean=data.mean, std=data.std)
        else:
            make = PaperCNN
            names += ["activation", "batch_norm", "sparse_layers", "dropout", "select_at"]
        model = make(**{name: getattr(config, name) for name in names})
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def batches(config: Config, size: int, epoch: int) -> Iterator[Tensor]:
    """The indices of each mini-batch of an epoch: one seed, one order."""
    generator = Generator().manual_seed(derive(config.seed, "order", epoch))
    order = torch.randperm(size, generator=generator)
    return iter(order[: size - size % config.batch_size].split(config.batch_size))


def derive(seed: int, *purpose: str | int) -> int:
    """A seed for one purpose, unrelated to that of any other."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class Step(NamedTuple):
    """A training step that was made; without an update if its loss is not finite."""

    epoch: int
    number: int  # from 1, of these steps
    loss: float
    correct: int  # of the mini-batch, before the update


def steps(
    config: Config, model: nn.Module, data: Part, optimizer: Optimizer | None = None,
    epochs: Iterable[int] | None = None,
    around: Callable[[int], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Iterator[Step]:  # fmt: skip
    """Train a network on the first `config.train_size` of some images, a step at a time.

    Each `next` learns from one mini-batch, so the caller may look at the network between two of
    them, or stop. `epochs`: those of the configuration, or others to go on with. `around`: what a
    step, given by its number, is made in, such as a context that measures it. Inside
    `conditions(config)` the steps are those of `train`, bit for bit.

    >>> from itertools import islice
    >>> config = Config(dataset="digits", ratio=0.05)
    >>> model, data = build(config), load_data(config.dataset)
    >>> with conditions(config):
    ...     losses = [step.loss for step in islice(steps(config, model, data.train), 3)]
    >>> len(losses)
    3
    """
    data = data.first(config.train_size or len(data))
    optimizer = _optimizer(config, model) if optimizer is None else optimizer
    of_an_epoch = len(data) // config.batch_size
    number = 0
    for epoch in range(1, config.epochs + 1) if epochs is None else epochs:
        torch.manual_seed(derive(config.seed, "dropout", epoch))
        shown: Part | Augmented = data
        if config.augment:
            shown = Augmented(data, derive(config.seed, "augmentation", epoch))
        way = thinned(model, config.contender, config.ratio or 1.0, epoch)
        with way if epoch <= (config.thinned_epochs or epoch) else exact(model):
            for i, batch in enumerate(batches(config, len(data), epoch)):
                number += 1
                done, total = (epoch - 1) * of_an_epoch + i, config.epochs * of_an_epoch
                optimizer.lr = rate(config.lr, config.schedule, done, total)
                with around(number):
                    loss, correct = learn(model.train(), optimizer, *shown[batch])
                yield Step(epoch, number, loss, correct)


def _optimizer(config: Config, model: nn.Module) -> Optimizer:
    return OPTIMIZERS[config.optimizer](model.parameters(), config.lr)


def learn(
    model: nn.Module, optimizer: Optimizer, images: Tensor, labels: Tensor
) -> tuple[float, int]:
    """One step: the loss of a mini-batch and how many of it were right, before the update."""
    output = model(images.contiguous(memory_format=torch.channels_last))
    loss = F.cross_entropy(output, labels)
    value = loss.item()
    if math.isfinite(value):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return value, int((output.argmax(1) == labels).sum())


@contextlib.contextmanager
def conditions(config: Config) -> Iterator[None]:
    """Threads, random state and arithmetic as in a run, given back as they were."""
    threads, flushed = torch.get_num_threads(), float(torch.tensor(1e-39) * 1) == 0
    torch.set_num_threads(config.threads)
    # Where a weight gets no gradient, Adam's average decays to numbers below 1e-38 within an epoch,
    # with which some processors compute a hundred times slower than with zero.
    torch.set_flush_denormal(True)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushed)


def train(config: Config, checkpoint: str | Path | None = None, progress: bool = True) -> Record:
    """Train one network and return its record.

    The seed fixes the initialisation, the order of the data and how they are augmented, each apart
    from everything else, so that two configurations with one seed are a pair. An incomplete last
    mini-batch of an epoch is left out (`run_grad` has the mini-batch's shape and would start anew).

    With a `checkpoint` (a file; `checkpoint_path(config)` is the usual one), the state after every
    epoch is kept there, and a run that was killed goes on: it ends in the same record, bit for
    bit, times aside.

    Each epoch in the record's history has `epoch`, `train_loss` and `train_accuracy` (over the
    training passes, while the network changes), `dev_loss`, `dev_accuracy`, `test_accuracy`
    (reported, never used to choose), `seconds`, and from some of its steps (see `Measured`):
    `layers`, for each layer the nonzero share of the gradient at its output `before` and `after`
    selection, of its `weight` gradient, and the share of the gradient's norm that was kept
    (`norm_kept`); and `changed`, the share of all parameters that a step changed. With
    `train_eval`, `train_eval_accuracy` is that of the epoch's network on the first 10,000 training
    images, as they are.

    >>> record = train(Config(dataset="digits", train_size=100, epochs=1), progress=False)
    >>> record.status, record.best_epoch
    ('finished', 1)
    """
    path = None if checkpoint is None else Path(checkpoint)
    with contextlib.nullcontext() if path is None else checkpoints.held(path), conditions(config):
        run = _Run(config)
        if path is not None and (state := checkpoints.load(path, config)) is not None:
            with checkpoints.understood(path):
                run.load_state(state)
        done = len(run.history)
        bar = tqdm(
            total=config.epochs * run.steps,
            initial=done * run.steps,
            unit="step",
            disable=not progress,
            dynamic_ncols=True,
            mininterval=0.5,
        )
        with bar:
            for epoch in range(done + 1, config.epochs + 1):
                run.epoch(epoch, bar)
                if run.stopped is not None:
                    break
                if path is not None:
                    checkpoints.save(path, config, run.state())
        return run.record()


class _Run:
    """The network, its optimizer and data, and what came out so far."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.data = load_data(config.dataset)
        self.train = self.data.train.first(config.train_size or len(self.data.train))
        self.steps = len(self.train) // config.batch_size
        self.model = build(config)
        self.optimizer = _optimizer(config, self.model)
        self.start = datetime.now(UTC).isoformat(timespec="seconds")
        # Now, not at the end: somebody may commit while it runs.
        self.origin = provenance(config.threads)
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] = dict.fromkeys(BEST)
        self.stopped: dict[str, int] | None = None

    def epoch(self, epoch: int, bar: tqdm) -> None:
        """One pass over the training data, then the scores."""
        began = time.perf_counter()
        bar.set_description(f"epoch {epoch}/{self.config.epochs}")
        dev = f"{self.history[-1]['dev_accuracy']:.2f}%" if self.history else "-"
        measured = Measured(self.model, self.steps)
        loss_sum, correct = 0.0, 0
        given = (self.config, self.model, self.train, self.optimizer, [epoch])
        for step in steps(*given, around=measured.step):
            if not math.isfinite(step.loss):
                self.stopped = {"epoch": epoch, "step": step.number}
                return
            loss_sum, correct = loss_sum + step.loss, correct + step.correct
            if step.number % 50 == 1:
                bar.set_postfix(loss=f"{step.loss:.3f}", dev=dev, refresh=False)
            bar.update()
        dev_loss, dev_wrong, _ = evaluate(self.model, self.data.dev)
        _, test_wrong, predicted = evaluate(self.model, self.data.test)
        scores = {
            "epoch": epoch,
            "train_loss": loss_sum / self.steps,
            "train_accuracy": 100 * correct / (self.steps * self.config.batch_size),
            "dev_loss": dev_loss if math.isfinite(dev_loss) else None,
            "dev_accuracy": _accuracy(dev_wrong, self.data.dev),
            "test_accuracy": _accuracy(test_wrong, self.data.test),
            "seconds": time.perf_counter() - began,
        }
        if self.config.train_eval:
            shown = self.train.first(TRAIN_EVAL)
            scores["train_eval_accuracy"] = _accuracy(evaluate(self.model, shown)[1], shown)
        self.history.append(scores | measured.means())
        accuracies = scores["dev_accuracy"], scores["test_accuracy"]
        if self.best["best_epoch"] is None or accuracies[0] > self.best["dev_accuracy"]:
            found = (epoch, *accuracies, test_wrong, predicted)
            self.best = dict(zip(BEST, found, strict=True))

    def state(self) -> dict[str, Any]:
        """All that a later process needs to go on."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state,
            "selection": history_state(self.model),
            "history": self.history,
            "best": self.best,
            "start": self.start,
            "origin": self.origin,
            "data": self.data.digest,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from another process's `state`."""
        if state["data"] != self.data.digest:
            raise checkpoints.CheckpointError(
                f"the checkpoint was made with other data of {self.config.dataset!r} (digest "
                f"{state['data']}, now {self.data.digest}); delete it to start from the beginning"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state(state["optimizer"])
        load_history_state(self.model, state["selection"])
        self.history, self.best, self.start = state["history"], state["best"], state["start"]
        here, self.origin = self.origin["cpu"], state["origin"]
        # Another processor rounds differently: the record tells that there were two.
        if here not in self.origin["cpu"].split(", then "):
            self.origin |= {"cpu": f"{self.origin['cpu']}, then {here}"}
        # As if it ended here: what no record can say is nothing to go on from.
        if (done := len(self.history)) != self.config.epochs:
            self.stopped = {"epoch": done + 1, "step": 1}
        self.record().check()
        self.stopped = None

    def record(self) -> Record:
        """What came out, at the first best development epoch."""
        seconds = sum(epoch["seconds"] for epoch in self.history)
        origin = {"start": self.start, "seconds": seconds, "data": self.data.digest}
        return Record(
            id=self.config.digest[:16],
            config=self.config,
            status="finished" if self.stopped is None else "diverged",
            stopped=self.stopped,
            history=self.history,
            **self.best,
            provenance=self.origin | origin,
        )


def _accuracy(wrong: list[int], part: Part) -> float:
    return 100 * (len(part) - len(wrong)) / len(part)
