"""The state of selection across steps, for an exact resume; `state_dict` stays torch's."""

from __future__ import annotations

from torch import Generator, Tensor, nn

from meprop.layers import Selecting

State = dict[str, dict[str, Tensor | None]]


def history_state(model: nn.Module) -> State:
    """Return a copy of every layer's `run_grad` and generator, by the layer's name.

    It holds tensors only, so `torch.load(..., weights_only=True)` reads it back.

    >>> from meprop import Conv2d, TopK
    >>> history_state(nn.Sequential(Conv2d(1, 8, 3, rule=TopK(0.05, decay=0.6))))
    {'0': {'run_grad': None, 'generator': None}}
    """
    return {
        name: {
            "run_grad": None if layer.run_grad is None else layer.run_grad.detach().clone(),
            "generator": None if layer.generator is None else layer.generator.get_state(),
        }
        for name, layer in _selecting(model).items()
    }


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
        if state[name].keys() != {"run_grad", "generator"}:
            raise ValueError(
                f"load_history_state: layer {name!r} needs 'run_grad' and 'generator', got "
                f"{sorted(state[name])}"
            )
        _check_shape(name, layer, state[name]["run_grad"])
        if (layer.generator is None) != (state[name]["generator"] is None):
            raise ValueError(
                f"load_history_state: layer {name!r} and the state differ in pick='random'"
            )
    for name, layer in layers.items():
        run_grad, generator = state[name]["run_grad"], state[name]["generator"]
        device = next((p.device for p in layer.parameters()), None)
        layer.run_grad = None if run_grad is None else run_grad.clone().to(device)
        if generator is not None:
            layer.generator = Generator()
            layer.generator.set_state(generator)


def _check_shape(name: str, layer: Selecting, run_grad: Tensor | None) -> None:
    """Raise a `ValueError` where this can be no `run_grad` of the layer."""
    if run_grad is None:
        return
    shape = tuple(run_grad.shape)
    wanted: tuple[str | int, ...] = ("rows", *shape[1:])
    if isinstance(layer, nn.Conv2d):
        wanted = ("samples", layer.out_channels, "height", "width")
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
