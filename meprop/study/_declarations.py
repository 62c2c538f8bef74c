"""Now part of `meprop.study.settings` and `experiments`; here until nobody imports it."""

from meprop.study.experiments import ExperimentsError as ExperimentsError
from meprop.study.settings import nearest as nearest
