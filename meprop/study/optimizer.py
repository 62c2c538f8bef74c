"""Adam as the paper uses it and SGD as residual networks do: torch's fused kernels, bit for bit.

torch's own classes load the whole compiler when the first optimizer is made, which takes longer
than some of our runs; its kernels, called directly, do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

BETAS = (0.9, 0.999)
EPSILON = 1e-8
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4


class Optimizer:
    """One step for all parameters in one call; every parameter must have a gradient."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        self.parameters = list(parameters)
        self.lr = lr

    def zeros(self) -> list[Tensor]:
        """For each parameter, in its own memory layout: a kernel walks through all in step."""
        return [torch.zeros_like(p, requires_grad=False) for p in self.parameters]

    def grads(self) -> list[Tensor]:
        return [p.grad for p in self.parameters if p.grad is not None]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        """Update the parameters from their gradients."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, list[Tensor]]:
        """The tensors that a resume needs."""
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, list[Tensor]]) -> None:
        """Take over what `state_dict` returned."""
        for name, own in self.state_dict().items():
            for tensor, saved in zip(own, state[name], strict=True):
                tensor.copy_(saved)


class Adam(Optimizer):
    """Without weight decay.

    >>> weight = torch.ones(3, requires_grad=True)
    >>> optimizer = Adam([weight], lr=0.1)
    >>> weight.square().sum().backward()
    >>> optimizer.step()
    >>> weight.detach()
    tensor([0.9000, 0.9000, 0.9000])
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        super().__init__(parameters, lr)
        self.steps = [torch.zeros(()) for _ in self.parameters]
        self.averages, self.squares = self.zeros(), self.zeros()

    @torch.no_grad()
    def step(self) -> None:
        torch._foreach_add_(self.steps, 1)
        torch._fused_adam_(
            self.parameters,
            self.grads(),
            self.averages,
            self.squares,
            [],
            self.steps,
            lr=self.lr,
            beta1=BETAS[0],
            beta2=BETAS[1],
            eps=EPSILON,
            weight_decay=0.0,
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self) -> dict[str, list[Tensor]]:
        return {"steps": self.steps, "averages": self.averages, "squares": self.squares}


class SGD(Optimizer):
    """With momentum, and weight decay of all parameters.

    >>> weight = torch.ones(3, requires_grad=True)
    >>> optimizer = SGD([weight], lr=0.1)
    >>> weight.square().sum().backward()
    >>> optimizer.step()
    >>> weight.detach()
    tensor([0.8000, 0.8000, 0.8000])
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        super().__init__(parameters, lr)
        self.velocities = self.zeros()

    @torch.no_grad()
    def step(self) -> None:
        torch._fused_sgd_(
            self.parameters,
            self.grads(),
            self.velocities,
            weight_decay=WEIGHT_DECAY,
            momentum=MOMENTUM,
            lr=self.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )

    def state_dict(self) -> dict[str, list[Tensor]]:
        return {"velocities": self.velocities}


OPTIMIZERS: dict[str, type[Optimizer]] = {"adam": Adam, "sgd": SGD}
SCHEDULES = ("constant", "onecycle")
RISE = 0.3  # of one cycle's steps
LOW, LOWEST = 1 / 25, 1 / 25e4  # the peak's share that a cycle starts and ends with


def rate(peak: float, schedule: str, step: int, steps: int) -> float:
    """The learning rate of a step, from 0, among so many; one cycle is torch's `OneCycleLR`.

    >>> [round(rate(0.1, "onecycle", step, 20), 4) for step in (0, 5, 12, 19)]
    [0.004, 0.1, 0.05, 0.0]
    """
    if schedule == "constant":
        return peak
    top, last = RISE * steps - 1, steps - 1
    if step <= top:
        start, end, passed = LOW, 1.0, step / top if top > 0 else 1.0
    else:
        start, end, passed = 1.0, LOWEST, min(1.0, (step - top) / (last - top))
    return peak * (end + (start - end) / 2 * (1 + math.cos(math.pi * passed)))
