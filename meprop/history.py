"""The state of selection across steps, for an exact resume; `state_dict` stays torch's."""

from __future__ import annotations

from typing import Any

from torch import Generator, Tensor, nn

from meprop.layers import Selecting

State = dict[str, dict[str, Any]]


def history_state(model: nn.Module) -> State:
    """Return a copy of every layer's `run_grad` and generator, by the layer's name.

    Where a layer keeps several, of other shapes, they are `earlier`, the one used longest ago
    first; `rests` counts the calls that a layer without a rule leaves to torch. It holds tensors
    and numbers only, so `torch.load(..., weights_only=True)` reads it back.

    >>> from meprop import Conv2d, TopK
    >>> history_state(nn.Sequential(Conv2d(1, 8, 3, rule=TopK(0.05, decay=0.6))))
    {'0': {'run_grad': None, 'generator': None}}
    """
    state: State = {}
    for name, layer in _selecting(model).items():
        *earlier, last = [None, *(each.detach().clone() for each in layer.run_grads.values())]
        generator = None if layer.generator is None else layer.generator.get_state()
        state[name] = {"run_grad": last, "generator": generator}
        if earlier[1:]:
            state[name]["earlier"] = earlier[1:]
        if layer.rests:
            state[name]["rests"] = layer.rests
    return state


def load_history_state(model: nn.Module, state: State) -> None:
    """Restore what `history_state` returned; names and random picks must match the model's.

    >>> from meprop import Conv2d, TopK
    >>> layer = Conv2d(1, 2, 1, rule=TopK(0.5, decay=0.5))
    >>> load_history_state(layer, {"": {"run_grad": torch.ones(4, 2, 3, 3), "generator": None}})
    >>> layer.run_grad.shape
    torch.Size([4, 2, 3, 3])
    """
    layers = _selecting(model)
    if layers.keys() != state.keys():
        raise ValueError(
            f"load_history_state: the model's layers are {sorted(layers)}, "
            f"the state's are {sorted(state)}"
        )
    for name, layer in layers.items():
        if state[name].keys() - {"earlier", "rests"} != {"run_grad", "generator"}:
            raise ValueError(
                f"load_history_state: layer {name!r} needs 'run_grad' and 'generator', got "
                f"{sorted(state[name])}"
            )
        for run_grad in _run_grads(state[name]):
            _check_shape(name, layer, run_grad)
        if (layer.generator is None) != (state[name]["generator"] is None):
            raise ValueError(
                f"load_history_state: layer {name!r} and the state differ: one draws at random"
            )
    for name, layer in layers.items():
        device = next((p.device for p in layer.parameters()), None)
        layer.run_grad, layer.rests = None, int(state[name].get("rests", 0))
        for run_grad in _run_grads(state[name]):
            layer.keep(run_grad.clone().to(device))
        if layer.generator is not None:
            layer.generator = Generator()
            layer.generator.set_state(state[name]["generator"])


def _run_grads(saved: dict[str, Any]) -> list[Tensor]:
    last = saved["run_grad"]
    return [*saved.get("earlier", []), *([] if last is None else [last])]


def _check_shape(name: str, layer: Selecting, run_grad: Tensor) -> None:
    """Raise a `ValueError` where this can be no `run_grad` of the layer."""
    shape = tuple(run_grad.shape)
    wanted: tuple[str | int, ...] = ("rows", *shape[1:])
    if isinstance(layer, nn.Conv3d):
        wanted = ("samples", layer.out_channels, "depth", "height * width")
    elif isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
        wanted = ("samples", layer.out_channels, "height", "width")
    elif isinstance(layer, nn.Conv1d):
        wanted = ("samples", layer.out_channels, 1, "width")
    elif isinstance(layer, nn.Linear):
        wanted = ("rows", layer.out_features)
    if layer.history == "position":
        wanted = (1, *wanted[1:])
    fits = [isinstance(w, str) or n == w for n, w in zip(shape, wanted, strict=False)]
    if len(shape) != len(wanted) or not all(fits):
        raise ValueError(
            f"load_history_state: layer {name!r} takes a run_grad of shape "
            f"({', '.join(map(str, wanted))}), got {shape}"
        )


def _selecting(model: nn.Module) -> dict[str, Selecting]:
    return {name: m for name, m in model.named_modules() if isinstance(m, Selecting)}
