"""One run's configuration: everything that changes a result, declared and checked in one place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any

import numpy as np
import pydantic.dataclasses
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError

from meprop.layers import BACKENDS, HISTORIES
from meprop.rule import BIASES, ONLY, PICKS, SCOPES, TopK
from meprop.selection import SCOPES_OF
from meprop.study.contenders import CONTENDERS
from meprop.study.data import DATASETS
from meprop.study.network import ACTIVATIONS, LAYERS, NETWORKS, SELECT_AT
from meprop.study.optimizer import OPTIMIZERS, SCHEDULES
from meprop.study.settings import Number, OneOf, SettingError, mistake


def _in_order(layers: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(layers)) < len(layers) or not layers:
        what = "names a layer twice" if layers else "is empty (for the baseline, leave out ratio)"
        raise ValueError(f"sparse_layers {what}, got {layers!r}")
    return tuple(layer for layer in LAYERS if layer in layers)


# NumPy's whole numbers are no int.
_Int = Annotated[int, BeforeValidator(lambda x: x.item() if isinstance(x, np.integer) else x)]
_Count = Annotated[_Int, Number(1, 10**9)]
_Threads = Annotated[_Int, Number(1, 1024)]
_Seed = Annotated[_Int, Number(0, 10**9)]
_Ratio = Annotated[float, Number(0, 1, above=True, hint="for exact gradients leave it out (null)")]
_Share = Annotated[float, Number(0, 1, below=True)]
_Rate = Annotated[float, Field(allow_inf_nan=False), Number(0, above=True)]
_Layers = Annotated[
    tuple[Annotated[str, OneOf(LAYERS)], ...],
    Field(strict=False),  # a list too
    AfterValidator(_in_order),
]

# What is selected, and what only the paper's network has
_SELECTION = ("decay", "scope", "pick", "bias", "only", "sparse_layers", "history", "select_at")
_PAPERS = ("sparse_layers", "select_at", "activation", "dropout")


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Config:
    """What one run is made of; the defaults are the paper's baseline on MNIST.

    `ratio=None` is the baseline: exact gradients, no selection. An option that could not have an
    effect (a decay without a ratio, selection above a batch normalisation that is not there) is
    refused, so that two configurations which are the same run compare equal.

    >>> Config(ratio=0.05, decay=0.6).rule
    TopK(ratio=0.05, decay=0.6, scope='map', pick='top', bias='full')
    """

    dataset: Annotated[str, OneOf(DATASETS)] = "mnist"  # mnist | digits | fashion-mnist | cifar10
    train_size: _Count | None = None  # the first so many training images; None: all
    batch_norm: bool = False  # between convolution and activation (Table 3)
    ratio: _Ratio | None = None  # share of each feature map's gradient passed back, in (0, 1]
    decay: _Share = 0.0  # of run_grad (Eq. 15), in [0, 1)
    scope: Annotated[str, OneOf(SCOPES)] = "map"  # map | sample | layer | mixed | unified
    pick: Annotated[str, OneOf(PICKS)] = "top"  # top | random (a control) | unbiased | centred
    bias: Annotated[str, OneOf(BIASES)] = "full"  # gradient of the bias: full | sparse
    sparse_layers: _Layers = ("conv1", "conv2")  # where the selection takes place
    history: Annotated[str, OneOf(HISTORIES)] = "slot"  # run_grad per slot | position
    select_at: Annotated[str, OneOf(SELECT_AT)] = "conv"  # below BN (conv) | above it (bn)
    activation: Annotated[str, OneOf(ACTIVATIONS)] = "relu"  # relu | sigmoid | tanh
    dropout: _Share = 0.0  # on fc1, in [0, 1)
    backend: Annotated[str, OneOf(BACKENDS)] = "auto"  # auto | sparse | masked
    epochs: _Count = 30
    batch_size: _Count = 10
    lr: _Rate = 0.001  # Adam's; betas 0.9 and 0.999, epsilon 1e-8
    seed: _Seed = 0  # initialisation and data order
    threads: _Threads = 1  # changes the order of sums, so it changes results
    # Younger than the first records, and left out of `to_dict` at their default
    network: Annotated[str, OneOf(NETWORKS)] = "paper"  # paper | resnet20 (He et al. 2016)
    # Another way to thin: channels | channels-alternate | samples
    contender: Annotated[str, OneOf(CONTENDERS)] | None = None
    # adam | sgd (momentum 0.9, weight decay 0.0005)
    optimizer: Annotated[str, OneOf(OPTIMIZERS)] = "adam"
    schedule: Annotated[str, OneOf(SCHEDULES)] = "constant"  # constant | onecycle (lr is its peak)
    augment: bool = False  # shift and mirror the training images
    only: Annotated[str, OneOf(ONLY)] | None = None  # thin one gradient alone: weight | input
    thinned_epochs: _Count | None = None  # with a ratio: so many epochs, then exact ones
    train_eval: bool = False  # try each epoch's network on the first 10,000 training images too

    def __post_init__(self) -> None:
        """Refuse what would have no effect, or none that a layer knows."""
        largest = DATASETS[self.dataset].train
        if self.train_size == largest:
            object.__setattr__(self, "train_size", None)  # one run, one configuration
        if not self.batch_size <= (self.train_size or largest) <= largest:
            raise ValueError(
                f"train_size must be between batch_size ({self.batch_size}) and the "
                f"{largest} training images of {self.dataset}, got {self.train_size!r}"
            )
        if self.ratio is None:
            way_out = "set ratio (0.05 is the paper's 5%), or leave it out"
            self._refuse(
                (*_SELECTION, "contender", "thinned_epochs"), f"without a ratio; {way_out}"
            )
        elif (self.thinned_epochs or 0) >= self.epochs:
            raise ValueError(
                f"thinned_epochs must be fewer than the {self.epochs} epochs, or left out, got "
                f"{self.thinned_epochs!r}"
            )
        if self.contender is not None:
            self._refuse((*_SELECTION, "backend"), f"with contender={self.contender!r}")
        if self.network == "resnet20":
            self._refuse(_PAPERS, "with network='resnet20'")
            if not self.batch_norm:
                raise ValueError("network='resnet20' has batch normalisation: set batch_norm=True")
        elif self.dataset == "cifar10":
            raise ValueError(
                "network='paper' takes grey images of 28 x 28, and dataset='cifar10' has others; "
                "use network='resnet20'"
            )
        if self.select_at == "bn":
            self._refuse(("bias", "only"), "with select_at='bn': below BN it is not sparse")
            if not self.batch_norm or "fc2" in self.sparse_layers:
                raise ValueError(
                    "select_at='bn' needs a BN: batch_norm=True, no 'fc2' among layers"
                )
        if self.decay == 0:
            self._refuse(("history",), "without a decay")
        if self.pick in ("random", "unbiased"):
            self._refuse(("decay",), f"with pick={self.pick!r}")
        if {"conv1", "conv2"} & {*self.sparse_layers} and self.scope not in SCOPES_OF["Conv2d"]:
            raise ValueError(
                f"scope={self.scope!r} exists for fully connected layers only, and sparse_layers "
                f"has others; use one of {', '.join(SCOPES_OF['Conv2d'])}"
            )
        if self.batch_norm and self.batch_size == 1:
            raise ValueError("batch_norm needs a batch_size of at least 2, got 1")

    def _refuse(self, names: tuple[str, ...], when: str) -> None:
        for name in names:
            if getattr(self, name) != DEFAULTS[name]:
                raise ValueError(f"{name}={getattr(self, name)!r} has no effect {when}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """Build a configuration from plain values; an unknown key raises and names the nearest.

        >>> Config.from_dict({"ratoi": 0.05})
        Traceback (most recent call last):
        meprop.study.settings.SettingError: Config: unknown key 'ratoi'; did you mean 'ratio'?
        """
        return cls(**{str(name): value for name, value in values.items()})

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON's types; `Config.from_dict` undoes it.

        >>> Config.from_dict(Config(ratio=0.05).to_dict()) == Config(ratio=0.05)
        True
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            # A field that is younger than the first records is left out at its default: their
            # digests stay what they were.
            if name in _FIRST or value != DEFAULTS[name]
        }

    def differences(self, other: Config) -> str:
        """The fields in which another one differs, with its values.

        >>> Config(seed=1).differences(Config(ratio=0.05))
        'ratio 0.05, seed 0'
        """
        theirs = vars(other)
        names = [name for name, value in vars(self).items() if value != theirs[name]]
        return ", ".join(f"{name} {theirs[name]!r}" for name in names)

    @property
    def digest(self) -> str:
        """SHA-256 of the complete configuration, the same on every machine."""
        return digest(self.to_dict())

    @property
    def rule(self) -> TopK | None:
        """The selection rule, or None for exact gradients and for a contender's."""
        if self.ratio is None or self.contender is not None:
            return None
        return TopK(self.ratio, self.decay, self.scope, self.pick, self.bias, self.only)


DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Config)}
_FIRST = list(DEFAULTS)[: list(DEFAULTS).index("threads") + 1]
_check = Config.__init__


def _in_one_sentence(self: Config, *values: Any, **named: Any) -> None:
    try:
        _check(self, *values, **named)
    except ValidationError as error:
        found = mistake(error, known=lambda place: DEFAULTS)
        raise SettingError(f"Config: {found}", found.place) from None


Config.__init__ = _in_one_sentence  # type: ignore[method-assign]


def digest(content: Any) -> str:
    """SHA-256 of plain values in canonical JSON (sorted keys, no blanks, shortest floats)."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
