"""Now part of `meprop.study.labels`; here until nobody imports it."""

from meprop.study.labels import TIMES as TIMES
from meprop.study.labels import listed as listed
