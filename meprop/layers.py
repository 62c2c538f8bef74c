"""torch's convolutions and `Linear` with a sparse backward pass, and the selection as a layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from meprop.backward import convolution, each, linear, refuse, refuse_proxy, size_of, topk_gradient
from meprop.rule import TopK, check_choice
from meprop.selection import SCOPES_OF, check_scope

BACKENDS = ("auto", "sparse", "masked")
HISTORIES = ("slot", "position")
SETTINGS = {  # what a layer can be told beside its rule, the default first
    "backend": BACKENDS,
    "history": HISTORIES,
    "in_eval": ("select", "exact"),
    "where": ("all", "pays"),
}
RESTS = 15  # calls of a layer without a rule, after one whose gradient had too few zeros
SHAPES = 4  # of `run_grad` that a layer keeps: two sizes, each with a smaller last mini-batch


class Selecting(nn.Module):
    """What the layers share: the rule, its `run_grad`, and the generator of random picks."""

    # No buffers: their shapes follow the mini-batch, and `state_dict` stays torch's.
    OWN = (
        "rule", *SETTINGS, "generator", "run_grads", "is_exact", "is_plain", "rests", "too_small"
    )  # fmt: skip

    backend: str
    history: str
    in_eval: str
    where: str
    generator: Generator | None
    run_grads: dict[tuple[int, ...], Tensor]  # by shape, the latest last
    is_exact: bool  # inside `meprop.exact`
    is_plain: bool  # whether torch's own derivative belongs to the last output
    too_small: tuple | None  # the input for which selecting did not pay
    rests: int  # so many calls more are left to torch: there were too few zeros to skip

    def __init__(
        self, *args: Any, rule: TopK | None = None, backend: str = "auto", history: str = "slot",
        in_eval: str = "select", where: str = "all", device: Any = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        if device is not None:  # by its name, for which `torch.nn.utils.skip_init` looks
            kwargs["device"] = device
        super().__init__(*args, **kwargs)
        self.set_rule(rule, backend=backend, history=history, in_eval=in_eval, where=where)

    @property
    def rule(self) -> TopK | None:
        """What is selected; setting it is `set_rule`, all else as it is."""
        return self.__dict__["rule"]

    @rule.setter
    def rule(self, rule: TopK | None) -> None:
        self.set_rule(rule)

    @property
    def run_grad(self) -> Tensor | None:
        """Eq. 15's running mean of magnitudes, of the shape that came last."""
        return next(reversed(self.run_grads.values()), None)

    @run_grad.setter
    def run_grad(self, run_grad: Tensor | None) -> None:
        if run_grad is None:
            self.run_grads.clear()
        else:
            self.keep(run_grad)

    def keep(self, run_grad: Tensor | None) -> None:
        """Remember it for the next gradient of its shape, and forget the shape used longest ago."""
        if run_grad is None:
            return
        self.run_grads.pop(run_grad.shape, None)
        self.run_grads[run_grad.shape] = run_grad
        if len(self.run_grads) > SHAPES:
            del self.run_grads[next(iter(self.run_grads))]

    def past(self, grad: Tensor) -> Tensor | None:
        """The `run_grad` of the last gradient of this shape."""
        slots = grad.shape[0] if self.history == "slot" else 1
        return self.run_grads.get((slots, *grad.shape[1:])) if self.run_grads else None

    def set_rule(self, rule: TopK | None, stream: int = 0, **settings: str) -> None:
        """Set the rule; of backend, history, in_eval and where, what is not given stays as it is.

        So does `run_grad`, unless the new rule has no decay or its `history` is another; and so
        does the generator of random picks. Layers of one network take different `stream`s of it.
        """
        own = vars(self)
        settings = {name: own.get(name, known[0]) for name, known in SETTINGS.items()} | settings
        check_settings(type(self).__name__, rule, settings)
        run_grads, generator = own.get("run_grads", {}), own.get("generator")
        if rule is None or rule.decay == 0 or settings["history"] != own.get("history"):
            run_grads = {}
        if rule is None or not rule.draws:
            generator = None
        elif generator is None:
            # Seeded from the state of torch's generator without drawing from it: networks that
            # differ only in their rule keep the same initialisation and data order.
            fork = Generator()
            fork.set_state(torch.get_rng_state())
            seed = int(torch.randint(2**62, (1,), generator=fork)) + stream
            generator = Generator().manual_seed(seed)
        own.update(settings, rule=rule, generator=generator, run_grads=run_grads)
        own.update(is_exact=own.get("is_exact", False), is_plain=False, rests=0, too_small=None)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Selecting:
        """`.to()` and its like, for `run_grad` too, which stays in float32 at least."""
        super()._apply(fn, recurse)
        for shape, run_grad in self.run_grads.items():
            moved = fn(run_grad)
            narrow = moved.is_floating_point() and moved.dtype.itemsize < 4
            self.run_grads[shape] = run_grad.to(moved.device) if narrow else moved
        return self

    def rest(self, unless: bool) -> None:
        """Leave some calls to torch, whose backward pass is the same and costs nothing extra."""
        vars(self)["rests"] = 0 if unless else RESTS

    def passes_all(self) -> bool:
        """Whether the gradients are torch's: by `meprop.exact`, or by `eval()` where it says so."""
        return self.is_exact or (self.in_eval == "exact" and not self.training)

    def _without_us(self, input: Tensor) -> bool:
        """The backward pass is torch's, or there will be none."""
        own = vars(self)  # past torch's own, slow, way with attributes
        passes_all = self.passes_all() or (own["rule"] is None and own["backend"] == "masked")
        own["is_plain"] = passes_all
        if passes_all or not torch.is_grad_enabled():
            return True
        refuse_proxy(input)
        if own["rests"]:
            own["rests"] -= 1
            own["is_plain"] = True
        elif own["too_small"] is not None:
            own["is_plain"] = own["too_small"] == size_of(input)
        return own["is_plain"]

    def __prepare_scriptable__(self) -> None:
        refuse("torch.jit")

    def extra_repr(self) -> str:
        """torch's own description, and what is selected."""
        own = super().extra_repr()
        kept = f"rule={self.rule}, backend={self.backend!r}"
        return f"{own}, {kept}" if own else kept


class Convolution(Selecting):
    """What the convolutions share: torch's padding, and the call."""

    kernel_size: Any
    stride: Any
    padding: Any
    dilation: Any
    padding_mode: Any
    groups: int
    weight: Tensor
    bias: Tensor | None
    _reversed_padding_repeated_twice: list[int]

    def forward(self, input: Tensor) -> Tensor:
        """Same output as torch's layer, bit for bit."""
        if self._without_us(input):
            return super().forward(input)
        spatial = len(self.kernel_size)
        if input.dim() == spatial + 1:
            return self.forward(input.unsqueeze(0)).squeeze(0)
        padding = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        elif isinstance(padding, str):
            strided = padding == "same" and max(each(self.stride, spatial)) > 1
            if strided or padding not in ("same", "valid"):
                return super().forward(input)  # torch says what is wrong
            input, padding = _explicit_padding(self, input)
        return convolution(self, input, padding)


class Conv2d(Convolution, nn.Conv2d):
    """`torch.nn.Conv2d` whose backward pass uses only the selected entries of its output gradient.

    Takes torch's own arguments; then `rule` (`None`: exact gradients), `backend`: `sparse` (CPU
    kernels whose cost follows the number of selected entries; without a rule they skip zeros),
    `masked` (the reference, any device and dtype) or `auto`; and `history`: `run_grad` has one
    entry per `slot` of the mini-batch (Eq. 15 as it stands) or per `position` of the feature map.
    It keeps one `run_grad` for each of the last four shapes, so that a smaller last mini-batch
    finds its own again. `in_eval`: whether `select` or `exact` gradients come in `eval()`. `where`:
    select in `all` cases, or only where it `pays`: where the cost model says that selecting saves
    time at this size and with these threads. Elsewhere gradients and backward pass are torch's.

    >>> layer = Conv2d(1, 32, 5, padding=2, rule=TopK(0.05))
    >>> layer(torch.rand(10, 1, 28, 28)).sum().backward()
    """


class Conv1d(Convolution, nn.Conv1d):
    """`torch.nn.Conv1d` likewise: a `Conv2d` over images of height 1, as is its `run_grad`.

    >>> layer = Conv1d(1, 32, 5, padding=2, rule=TopK(0.05))
    >>> layer(torch.rand(10, 1, 100)).sum().backward()
    """


class Conv3d(Convolution, nn.Conv3d):
    """`torch.nn.Conv3d` likewise, which saves no time: there are no kernels for it.

    To a selection a volume is an image with a row for each plane, and so is its `run_grad`.

    >>> layer = Conv3d(1, 8, 3, rule=TopK(0.05))
    >>> layer(torch.rand(2, 1, 6, 6, 6)).sum().backward()
    """


class ConvTranspose2d(Convolution, nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d` likewise, which saves no time: there are no kernels for it.

    >>> layer = ConvTranspose2d(8, 1, 2, stride=2, rule=TopK(0.05))
    >>> layer(torch.rand(2, 8, 6, 6)).sum().backward()
    """

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Same output as torch's layer, bit for bit."""
        if self._without_us(input) or self.padding_mode != "zeros":
            return nn.ConvTranspose2d.forward(self, input, output_size)
        slide = (self.stride, self.padding, self.kernel_size)
        stride, padding, size, dilation = (list(each(v, 2)) for v in (*slide, self.dilation))
        beyond = self._output_padding(input, output_size, stride, padding, size, 2, dilation)
        if input.dim() == 3:
            return convolution(self, input.unsqueeze(0), self.padding, beyond).squeeze(0)
        return convolution(self, input, self.padding, beyond)


class Linear(Selecting, nn.Linear):
    """`torch.nn.Linear` whose backward pass uses only the selected entries of its output gradient.

    Takes torch's own arguments; then `rule`, `backend`, `history`, `in_eval` and `where` as in
    `Conv2d`.

    >>> layer = Linear(784, 1024, rule=TopK(0.05))
    >>> layer(torch.rand(10, 784)).sum().backward()
    """

    def forward(self, input: Tensor) -> Tensor:
        """Same output as torch's layer, bit for bit."""
        return super().forward(input) if self._without_us(input) else linear(self, input)


class GradientTopK(Selecting):
    """Passes its input on, and only the selected entries of the gradient back.

    Put it above a normalisation layer to select there rather than at the convolution's output:
    another reading of the paper, under which "5% is 20% of 25%" holds with batch normalisation.
    A 4-d input is taken as (samples, maps, height, width); any other as a linear layer's output,
    with the units in the last dimension.

    >>> layer = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), GradientTopK(TopK(0.05)))
    >>> layer(torch.rand(4, 1, 8, 8)).sum().backward()
    """

    def __init__(self, rule: TopK, history: str = "slot", in_eval: str = "select") -> None:
        if rule is None:
            raise ValueError("GradientTopK: rule must be a TopK, got None")
        if rule.only is not None:
            raise ValueError(f"GradientTopK: has no weights, so only={rule.only!r} has no effect")
        super().__init__(rule=rule, history=history, in_eval=in_eval)

    def forward(self, input: Tensor) -> Tensor:
        """A copy of the input, which an in-place activation may change."""
        return input.clone() if self._without_us(input) else topk_gradient(self, input)


def check_settings(layer: str, rule: object, settings: Mapping[str, object]) -> None:
    """Raise a `ValueError` that names the value a layer of this kind cannot take."""
    if rule is not None and not isinstance(rule, TopK):
        raise ValueError(f"{layer}: rule must be a TopK or None, got {rule!r}")
    for name, value in settings.items():
        check_choice(layer, name, value, SETTINGS[name])
    if layer in ("Conv3d", "ConvTranspose2d") and settings["backend"] == "sparse":
        raise ValueError(f"{layer}: there are no kernels for it; backend must be auto or masked")
    if rule is not None and layer in SCOPES_OF:
        check_scope(rule, layer)


def _explicit_padding(layer: Convolution, input: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """What torch does with "same" and "valid": pad one more on the far side where it is uneven."""
    sizes = layer.kernel_size
    if layer.padding == "valid":
        return input, (0,) * len(sizes)
    # From what the layer has now: somebody may have set its padding or its dilation.
    reach = [d * (k - 1) for d, k in zip(each(layer.dilation, len(sizes)), sizes, strict=True)]
    if any(around % 2 for around in reach):
        input = F.pad(input, [far for around in reach[::-1] for far in (0, around % 2)])
    return input, tuple(around // 2 for around in reach)
