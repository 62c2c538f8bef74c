"""Give the layers of a finished network a sparse backward pass, and take it away again."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, TypeVar, cast

from torch import nn
from torch.nn.modules.conv import _ConvNd

from meprop import layers as own
from meprop.layers import Selecting, check_settings
from meprop.rule import TopK
from meprop.watching import warn_of_drift

M = TypeVar("M", bound=nn.Module)
Kinds = Collection[type[nn.Module]] | type[nn.Module]

CONVERTED: dict[type[nn.Module], type[Selecting]] = {
    getattr(nn, kind.__name__): kind
    for kind in (own.Conv2d, own.Conv1d, own.Conv3d, own.ConvTranspose2d, own.Linear)
}
ORIGINAL: dict[type[nn.Module], type[nn.Module]] = {
    ours: theirs for theirs, ours in CONVERTED.items()
}
OURS = tuple(ORIGINAL)


def convert(
    model: M, rule: TopK | Mapping[str, TopK | None] | None, layers: Kinds = (nn.Conv2d,),
    skip: Collection[str] | str = (), backend: str = "auto", history: str = "slot",
    in_eval: str = "select", where: str | None = None,
) -> M:  # fmt: skip
    """Swap torch's layers of the given types for ours, in place, and return the model.

    Look at the accuracy before the speed: in deep networks, and below batch normalisation, a rule
    that keeps the few largest entries may keep the network from learning (notebook 13 shows why).
    The first backward pass warns where that is likely. `recipe` has a rule for such networks, and
    `rule=None` is safe.

    The modules, their Parameters, names and hooks stay the very same; outputs do not change.
    `rule=None` gives exact gradients whose backward pass skips zeros. Rules can go by patterns of
    module names (those of `fnmatch`; the last that fits counts):
    `{"layer1.*": TopK(0.05), "layer4.*": TopK(0.25)}`. There `None` leaves a layer as it is, as if
    no pattern fitted. `skip` names modules (with all they contain) that stay as they are: one that
    is ours already keeps its rule, so `revert` first to leave it out. Other layers that are ours
    get the new rule, and keep their `run_grad` where it has a decay. `backend`, `history`,
    `in_eval` and `where` are those of `Conv2d`; without a rule, `where` is "pays".
    Subclasses of torch's layers may compute something else, so they are left alone; so are other
    kinds of convolution, where `layers` has `nn.Conv2d`. One warning names them, but for `skip`'s.
    Wherever a backward pass runs, gradients are selected: in `eval()` too, unless
    `in_eval="exact"`.

    >>> model = convert(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), TopK(0.05))
    >>> type(model[0])
    <class 'meprop.layers.Conv2d'>
    """
    where = where or ("pays" if rule is None else "all")
    settings = {"backend": backend, "history": history, "in_eval": in_eval, "where": where}
    for one in rule.values() if isinstance(rule, Mapping) else (rule,):
        check_settings("convert", one, settings)
    wanted = _checked_layers(layers)
    names = names_of(model)
    skipped = _skipped(skip, dict(model.named_modules(remove_duplicate=False)))
    candidates = {m: its for m, its in names.items() if isinstance(m, wanted) and m not in skipped}
    if not candidates:
        types = ", ".join(layer.__name__ for layer in wanted)
        warnings.warn(f"convert: nothing to convert, the model has no {types}", stacklevel=2)
    rules = rules_by_name("convert", rule, candidates)
    foreign = {m: why for m in rules if (why := _foreign(m))}
    if nn.Conv2d in wanted and not isinstance(rule, Mapping):
        for other in names:
            if isinstance(other, _ConvNd) and not isinstance(other, (*wanted, Selecting)):
                see = ", see layers=" if type(other) in CONVERTED else ""
                foreign |= {} if other in skipped else {other: f"{type(other).__name__}{see}"}
    if foreign:
        left = ", ".join(f"{names[m][0]} ({why})" for m, why in foreign.items())
        warnings.warn(f"convert: left alone: {left}", stacklevel=2)
    found = [m for m in rules if m not in foreign]
    for module in found:
        # All before the first swap: half a converted model would train, and differently.
        check_settings(_ours(module).__name__, rules[module], settings)
    for stream, module in enumerate(found):
        module.__class__ = _ours(module)
        cast(Selecting, module).set_rule(rules[module], stream, **settings)
    warn_of_drift({cast(Selecting, m): names[m][0] for m in found})
    return model


def recipe(model: M, ratio: float = 0.1, **options: Any) -> M:
    """`convert` with the rule that costs a deep network least, where it pays.

    In the first trainings it lost more than dense does in the time that it saves (notebook 14), so
    compare accuracies before you rely on it.

    The weight gradient of each layer is formed from a tenth of the entries, drawn so that it is
    right on average. What a layer passes down is exact, so neither a drift nor noise grows from
    layer to layer. Where selecting would take longer than it saves, a layer stays torch's.
    `options` are those of `convert`.

    >>> recipe(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))[0].rule.only
    'weight'
    """
    rule = TopK(ratio, pick="unbiased", only="weight")
    return convert(model, rule, **{"where": "pays", **options})


def revert(model: M) -> M:
    """Undo `convert`: our layers become torch's again, in place.

    >>> revert(convert(nn.Conv2d(3, 8, 3), TopK(0.05)))
    Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
    """
    kept = []
    for name, module in model.named_modules():
        if type(module) not in ORIGINAL:
            kept += [f"{name} ({type(module).__name__})"] if isinstance(module, OURS) else []
        else:
            for ours in Selecting.OWN:
                del vars(module)[ours]
            module.__class__ = ORIGINAL[type(module)]
    if kept:
        warnings.warn(
            f"revert: left alone, and still selecting: {', '.join(kept)}; remove their "
            "parametrizations first",
            stacklevel=2,
        )
    return model


@contextmanager
def exact(model: nn.Module) -> Iterator[None]:
    """Inside, the model's gradients are torch's, and `run_grad` does not move.

    For saliency maps, attacks, gradient penalties, or a look at what selection leaves out. It
    counts for a backward pass that runs inside, and for one of an output computed inside.

    >>> layer = Conv2d(1, 2, 3, rule=TopK(0.05))
    >>> with exact(layer):
    ...     layer(torch.rand(4, 1, 8, 8)).sum().backward()
    >>> int(torch.count_nonzero(layer.weight.grad))
    18
    """
    layers = [layer for layer in model.modules() if isinstance(layer, Selecting)]
    before = [layer.is_exact for layer in layers]
    for layer in layers:
        layer.is_exact = True
    try:
        yield
    finally:
        for layer, was in zip(layers, before, strict=True):
            if isinstance(layer, Selecting):  # and not reverted meanwhile
                layer.is_exact = was


def names_of(model: nn.Module) -> dict[nn.Module, list[str]]:
    """The names of every module; a shared one has several."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    return names


def rules_by_name(owner: str, rule: Any, modules: Mapping[M, list[str]]) -> dict[M, Any]:
    """What each module gets: the rule, or that of the last pattern which fits one of its names.

    Modules that no pattern fits, or one that says `None`, are left out.
    """
    if not isinstance(rule, Mapping):
        return dict.fromkeys(modules, rule)
    if not rule:
        raise ValueError(f"{owner}: there are no patterns, got {rule!r}")
    fitting = {
        module: [p for p in rule if any(fnmatchcase(name, p) for name in names)]
        for module, names in modules.items()
    }
    last = {module: patterns[-1] for module, patterns in fitting.items() if patterns}
    for pattern in rule:
        if pattern in last.values():
            continue
        if any(pattern in patterns for patterns in fitting.values()):
            hint = "later patterns fit all of its layers; put it behind them"
        else:
            every = [name for names in modules.values() for name in names]
            folders = {
                name.rsplit(".", n)[0] for name in every for n in range(1, name.count(".") + 1)
            }
            near = get_close_matches(pattern, [*every, *(f"{f}.*" for f in sorted(folders))], n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {_some(every)}"
        raise ValueError(f"{owner}: the pattern {pattern!r} has no effect; {hint}")
    return {module: rule[pattern] for module, pattern in last.items() if rule[pattern] is not None}


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if names[3:] else "")


def _foreign(module: nn.Module) -> str | None:
    """Why a module cannot be swapped."""
    if "forward" in vars(module):
        return "its forward was replaced"
    return None if type(module) in (*CONVERTED, *ORIGINAL) else type(module).__name__


def _ours(module: nn.Module) -> type[nn.Module]:
    return CONVERTED.get(type(module), type(module))


def _checked_layers(layers: Kinds) -> tuple[type[nn.Module], ...]:
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
