"""Give the layers of a finished network a sparse backward pass, and take it away again."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from difflib import get_close_matches
from typing import TypeVar

from torch import nn

from meprop.layers import Conv2d, Linear, Selecting, check_settings
from meprop.rule import TopK

M = TypeVar("M", bound=nn.Module)

CONVERTED: dict[type[nn.Module], type[Selecting]] = {nn.Conv2d: Conv2d, nn.Linear: Linear}
ORIGINAL: dict[type[nn.Module], type[nn.Module]] = {
    ours: theirs for theirs, ours in CONVERTED.items()
}
OURS = tuple(ORIGINAL)


def convert(
    model: M,
    rule: TopK | None,
    layers: Collection[type[nn.Module]] | type[nn.Module] = (nn.Conv2d,),
    skip: Collection[str] | str = (),
    backend: str = "auto",
    history: str = "slot",
) -> M:
    """Swap torch's layers of the given types for ours, in place, and return the model.

    The modules, their Parameters, names and hooks stay the very same; outputs do not change.
    `rule=None` gives exact gradients whose backward pass skips zeros. `skip` names modules (with
    all they contain) that stay as they are: one that is ours already keeps its rule, so `revert`
    first to leave it out. Other layers that are ours get the new rule. `backend` and `history` are
    those of `Conv2d`.
    Subclasses of torch's layers may compute something else, so they are left alone, with a warning.
    Wherever a backward pass runs, gradients are selected: in `eval()` too.

    >>> model = convert(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), TopK(0.05))
    >>> type(model[0])
    <class 'meprop.layers.Conv2d'>
    """
    check_settings("convert", rule, backend, history)
    wanted = _checked_layers(layers)
    skipped = _skipped(skip, dict(model.named_modules(remove_duplicate=False)))
    found, foreign = [], []
    for name, module in model.named_modules():
        if module in skipped:
            continue
        if isinstance(module, wanted) and "forward" in vars(module):
            foreign.append(f"{name} (its forward was replaced)")
        elif type(module) in wanted or ORIGINAL.get(type(module)) in wanted:
            found.append(module)
        elif isinstance(module, wanted):
            foreign.append(f"{name} ({type(module).__name__})")
    if foreign:
        warnings.warn(f"convert: left alone: {', '.join(foreign)}", stacklevel=2)
    if not found:
        types = ", ".join(layer.__name__ for layer in wanted)
        warnings.warn(f"convert: nothing to convert, the model has no {types}", stacklevel=2)
    for module in found:
        # All before the first swap: half a converted model would train, and differently.
        check_settings(_ours(module).__name__, rule, backend, history)
    for stream, module in enumerate(found):
        module.__class__ = _ours(module)
        module.set_rule(rule, backend, history, stream)
    return model


def revert(model: M) -> M:
    """Undo `convert`: our `Conv2d` and `Linear` layers become torch's again, in place.

    >>> revert(convert(nn.Conv2d(3, 8, 3), TopK(0.05)))
    Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
    """
    kept = []
    for name, module in model.named_modules():
        if type(module) not in ORIGINAL:
            kept += [f"{name} ({type(module).__name__})"] if isinstance(module, OURS) else []
        else:
            for ours in ("rule", "backend", "history", "generator", "run_grad"):
                del vars(module)[ours]
            module.__class__ = ORIGINAL[type(module)]
    if kept:
        warnings.warn(
            f"revert: left alone, and still selecting: {', '.join(kept)}; remove their "
            "parametrizations first",
            stacklevel=2,
        )
    return model


def _ours(module: nn.Module) -> type[nn.Module]:
    return CONVERTED.get(type(module), type(module))


def _checked_layers(
    layers: Collection[type[nn.Module]] | type[nn.Module],
) -> tuple[type[nn.Module], ...]:
    wanted = (layers,) if isinstance(layers, type | str) else tuple(layers)
    for layer in wanted or (layers,):
        if layer not in CONVERTED:
            known = ", ".join(f"nn.{kind.__name__}" for kind in CONVERTED)
            raise ValueError(f"convert: layers can contain {known}, got {layer!r}")
    return wanted


def _skipped(skip: Collection[str] | str, modules: dict[str, nn.Module]) -> set[nn.Module]:
    """The modules that stay as they are, with all they contain; a shared one has several names."""
    names = (skip,) if isinstance(skip, str) else tuple(skip)
    for name in names:
        if name not in modules or name == "":
            near = get_close_matches(str(name), modules, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"convert: skip names no module of the model: {name!r}{hint}")
    return {inner for name in names for inner in modules[name].modules()}
