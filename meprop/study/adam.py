"""Adam as the paper uses it: `torch.optim.Adam(fused=True)`, bit for bit.

torch's own class loads the whole compiler when the first optimizer is made, which takes longer than
some of our runs; its fused kernel, called directly, does not.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

BETAS = (0.9, 0.999)
EPSILON = 1e-8


class Adam:
    """One step of Adam for all parameters in one call; every parameter must have a gradient.

    >>> weight = torch.ones(3, requires_grad=True)
    >>> optimizer = Adam([weight], lr=0.1)
    >>> weight.square().sum().backward()
    >>> optimizer.step()
    >>> weight.detach()
    tensor([0.9000, 0.9000, 0.9000])
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        self.parameters = list(parameters)
        self.lr = lr
        self.steps = [torch.zeros(()) for _ in self.parameters]
        # In the parameters' own memory layout: the kernel walks through all of them in step.
        self.averages = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.squares = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters from their gradients."""
        grads = [p.grad for p in self.parameters if p.grad is not None]
        torch._foreach_add_(self.steps, 1)
        torch._fused_adam_(
            self.parameters,
            grads,
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

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def state_dict(self) -> dict[str, list[Tensor]]:
        """The tensors that a resume needs."""
        return {"steps": self.steps, "averages": self.averages, "squares": self.squares}

    def load_state_dict(self, state: dict[str, list[Tensor]]) -> None:
        """Take over what `state_dict` returned."""
        for name, own in self.state_dict().items():
            for tensor, saved in zip(own, state[name], strict=True):
                tensor.copy_(saved)
