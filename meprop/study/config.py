"""One run's configuration: everything that changes a result, declared and checked in one place."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

from meprop.layers import BACKENDS, HISTORIES
from meprop.rule import BIASES, PICKS, SCOPES, TopK, check_choice
from meprop.selection import SCOPES_OF
from meprop.study.data import DATASETS
from meprop.study.network import ACTIVATIONS, LAYERS, SELECT_AT


@dataclass(frozen=True)
class Config:
    """What one run is made of; the defaults are the paper's baseline on MNIST.

    `ratio=None` is the baseline: exact gradients, no selection. An option that could not have an
    effect (a decay without a ratio, selection above a batch normalisation that is not there) is
    refused, so that two configurations which are the same run compare equal.

    >>> Config(ratio=0.05, decay=0.6).rule
    TopK(ratio=0.05, decay=0.6, scope='map', pick='top', bias='full')
    """

    dataset: str = "mnist"  # mnist | digits
    train_size: int | None = None  # the first so many training images; None: all
    batch_norm: bool = False  # between convolution and activation (Table 3)
    ratio: float | None = None  # share of each feature map's gradient passed back, in (0, 1]
    decay: float = 0.0  # of run_grad (Eq. 15), in [0, 1)
    scope: str = "map"  # over what the top k are taken: map | sample | layer | mixed | unified
    pick: str = "top"  # top | random (a control)
    bias: str = "full"  # gradient of the bias: full | sparse
    sparse_layers: tuple[str, ...] = ("conv1", "conv2")  # where the selection takes place
    history: str = "slot"  # run_grad per slot of the mini-batch, or per position
    select_at: str = "conv"  # selection below batch normalisation (conv) or above it (bn)
    activation: str = "relu"  # relu | sigmoid | tanh
    dropout: float = 0.0  # on fc1, in [0, 1)
    backend: str = "auto"  # auto | sparse | masked
    epochs: int = 30
    batch_size: int = 10
    lr: float = 0.001  # Adam's; betas 0.9 and 0.999, epsilon 1e-8
    seed: int = 0  # initialisation and data order
    threads: int = 1  # changes the order of sums, so it changes results

    def __post_init__(self) -> None:
        check_choice("Config", "dataset", self.dataset, tuple(DATASETS))
        check_choice("Config", "scope", self.scope, SCOPES)
        check_choice("Config", "pick", self.pick, PICKS)
        check_choice("Config", "bias", self.bias, BIASES)
        check_choice("Config", "history", self.history, HISTORIES)
        check_choice("Config", "select_at", self.select_at, SELECT_AT)
        check_choice("Config", "activation", self.activation, tuple(ACTIVATIONS))
        check_choice("Config", "backend", self.backend, BACKENDS)
        if not isinstance(self.batch_norm, bool):
            raise ValueError(f"Config: batch_norm must be true or false, got {self.batch_norm!r}")
        self._set("sparse_layers", _layers(self.sparse_layers))
        for name in ("epochs", "batch_size", "threads"):
            self._set(name, _integer(name, getattr(self, name), least=1))
        self._set("seed", _integer("seed", self.seed, least=0))
        if self.train_size is not None:
            self._set("train_size", _integer("train_size", self.train_size, least=1))
        largest = DATASETS[self.dataset].train
        if self.train_size == largest:
            self._set("train_size", None)  # one run, one configuration
        if not self.batch_size <= (self.train_size or largest) <= largest:
            raise ValueError(
                f"Config: train_size must be between batch_size ({self.batch_size}) and the "
                f"{largest} training images of {self.dataset}, got {self.train_size!r}"
            )
        if self.ratio is not None:
            self._set("ratio", _ratio(self.ratio))
        for name in ("decay", "dropout"):
            value = _number(name, getattr(self, name))
            if not 0 <= value < 1:
                raise ValueError(f"Config: {name} must be in [0, 1), got {getattr(self, name)!r}")
            self._set(name, value)
        self._set("lr", _number("lr", self.lr))
        if not 0 < self.lr < math.inf:
            raise ValueError(f"Config: lr must be greater than 0 and finite, got {self.lr!r}")
        self._check_together()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_together(self) -> None:
        """Refuse what would have no effect, or none that a layer knows."""
        if self.ratio is None:
            for name in ("decay", "scope", "pick", "bias", "sparse_layers", "history", "select_at"):
                if getattr(self, name) != _DEFAULTS[name]:
                    raise ValueError(
                        f"Config: {name}={getattr(self, name)!r} has no effect without a ratio; "
                        "set ratio (0.05 is the paper's 5%), or leave it out"
                    )
        if self.select_at == "bn" and not self.batch_norm:
            raise ValueError("Config: select_at='bn' needs batch_norm=True")
        if self.select_at == "bn" and "fc2" in self.sparse_layers:
            raise ValueError(
                "Config: select_at='bn', but 'fc2' in sparse_layers has no BN above it"
            )
        if self.select_at == "bn" and self.bias == "sparse":
            raise ValueError(
                "Config: bias='sparse' has no effect with select_at='bn': the selection is above "
                "BN, and what arrives below it at the bias is not sparse"
            )
        if self.history == "position" and self.decay == 0:
            raise ValueError("Config: history='position' needs a decay greater than 0")
        if self.pick == "random" and self.decay > 0:
            raise ValueError(f"Config: decay={self.decay!r} has no effect with pick='random'")
        convolutions = [layer for layer in self.sparse_layers if layer.startswith("conv")]
        if convolutions and self.scope not in SCOPES_OF["Conv2d"]:
            raise ValueError(
                f"Config: scope={self.scope!r} exists for fully connected layers only, but "
                f"sparse_layers has {convolutions[0]!r}; use one of "
                + ", ".join(SCOPES_OF["Conv2d"])
            )
        if self.batch_norm and self.batch_size == 1:
            raise ValueError("Config: batch_norm needs a batch_size of at least 2, got 1")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """Build a configuration from plain values; an unknown key raises and names the nearest.

        >>> Config.from_dict({"ratoi": 0.05})
        Traceback (most recent call last):
        ValueError: Config: unknown key 'ratoi'; did you mean 'ratio'?
        """
        cls._check_names(values)
        return cls(**values)

    def __new__(cls, *values: Any, **named: Any) -> Config:
        """Refuse an unknown name with a suggestion, which Python's own error lacks."""
        cls._check_names(named)
        return super().__new__(cls)

    @staticmethod
    def _check_names(names: Iterable[object]) -> None:
        for name in names:
            if name not in _DEFAULTS:
                near = get_close_matches(str(name), _DEFAULTS, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_DEFAULTS)}"
                raise ValueError(f"Config: unknown key {name!r}; {hint}")

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON's types; `Config.from_dict` undoes it.

        >>> Config.from_dict(Config(ratio=0.05).to_dict()) == Config(ratio=0.05)
        True
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    @property
    def digest(self) -> str:
        """SHA-256 of the complete configuration, the same on every machine."""
        return digest(self.to_dict())

    @property
    def rule(self) -> TopK | None:
        """The selection rule, or None for exact gradients."""
        if self.ratio is None:
            return None
        return TopK(self.ratio, self.decay, self.scope, self.pick, self.bias)


_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Config)}


def digest(content: Any) -> str:
    """SHA-256 of plain values in canonical JSON (sorted keys, no blanks, shortest floats)."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _number(name: str, value: object) -> float:
    if not isinstance(value, bool) and isinstance(value, Real):
        return float(value)
    hint = ""
    with contextlib.suppress(TypeError, ValueError):
        # YAML 1.1 takes a float without a dot, such as 1e-3, for text.
        hint = f"; in YAML write {float(value)!r}" if isinstance(value, str) else ""
    raise ValueError(f"Config: {name} must be a number, got {value!r}{hint}")


def _integer(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"Config: {name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"Config: {name} must be at least {least}, got {value!r}")
    return int(value)


def _ratio(value: object) -> float:
    ratio = _number("ratio", value)
    if not 0 < ratio <= 1:
        hint = f"; did you mean {ratio / 100:g}?" if 1 < ratio <= 100 else ""
        if ratio == 0:
            hint = "; for exact gradients leave it out (null)"
        raise ValueError(f"Config: ratio must be in (0, 1], got {value!r}{hint}")
    return ratio


def _layers(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise ValueError(f"Config: sparse_layers must be a list of layers, got {value!r}")
    for layer in value:
        check_choice("Config", "each of sparse_layers", layer, LAYERS)
    if len(set(value)) < len(value) or not value:
        what = "names a layer twice" if value else "is empty (for the baseline, leave out ratio)"
        raise ValueError(f"Config: sparse_layers {what}, got {value!r}")
    return tuple(layer for layer in LAYERS if layer in value)
