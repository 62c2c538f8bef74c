"""The Method page's pictures: the paper's four figures drawn from the model, and its gradients."""

from meprop.study.figures.method.gradients import (
    maps,
    norms,
    run_grad,
    weight_density,
    weights,
)
from meprop.study.figures.method.paper import idea, network, output_shape, samples

__all__ = [
    "idea", "maps", "network", "norms", "output_shape", "run_grad", "samples", "weight_density",
    "weights",
]  # fmt: skip
