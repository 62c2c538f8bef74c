"""The figures of the ablations: scores, learning curves, gradients, gaps, and the chosen sets."""

from meprop.study.figures.ablations.epochs import curves, losses
from meprop.study.figures.ablations.gradients import chosen, gradients
from meprop.study.figures.ablations.scores import gaps, scores

__all__ = ["chosen", "curves", "gaps", "gradients", "losses", "scores"]
