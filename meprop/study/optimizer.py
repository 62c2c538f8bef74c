"""Adam as the paper uses it and SGD as residual networks do: torch's fused kernels, bit for bit.

torch's own classes load the whole compiler when the first optimizer is made: 3.9 s of CPU time with
torch 2.13, where importing torch takes 2.9 s, and some of our runs less. Its kernels, called
directly, do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

ADAM: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
ADAM |= {"amsgrad": False, "maximize": False}
MOMENTUM: dict[str, Any] = {"momentum": 0.9, "weight_decay": 5e-4, "dampening": 0.0}
MOMENTUM |= {"nesterov": False, "maximize": False, "is_first_step": False}


class Optimizer:
    """One step for all parameters in one call; every parameter must have a gradient.

    `state` has the tensors that a resume needs, for each parameter one of each of the `names`.
    """

    names: tuple[str, ...] = ()

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        self.parameters = list(parameters)
        self.lr = lr
        # In each parameter's own memory layout: a kernel walks through all in step.
        self.state = {
            name: [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
            for name in self.names
        }

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters from their gradients."""
        self._update([p.grad for p in self.parameters if p.grad is not None])

    def _update(self, grads: list[Tensor]) -> None:
        raise NotImplementedError

    def load_state(self, state: dict[str, list[Tensor]]) -> None:
        """Take over the `state` of another one."""
        for name, own in self.state.items():
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

    names = ("averages", "squares")

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        super().__init__(parameters, lr)
        self.state["steps"] = [torch.zeros(()) for _ in self.parameters]

    def _update(self, grads: list[Tensor]) -> None:
        averages, squares, steps = self.state.values()
        torch._foreach_add_(steps, 1)
        given = ADAM | {"lr": self.lr}
        torch._fused_adam_(self.parameters, grads, averages, squares, [], steps, **given)


class SGD(Optimizer):
    """With momentum, and weight decay of all parameters."""

    names = ("velocities",)

    def _update(self, grads: list[Tensor]) -> None:
        velocities, given = self.state["velocities"], MOMENTUM | {"lr": self.lr}
        torch._fused_sgd_(self.parameters, grads, velocities, **given)


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
