"""Now part of `meprop.study.training`; here until nobody imports it."""

from meprop.study.training import batches as batches
from meprop.study.training import build as build
