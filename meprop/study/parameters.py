"""Now part of `meprop.study.notebook`; here until no notebook imports it."""

from meprop.study.notebook import Number as Number
from meprop.study.notebook import ParameterError as ParameterError
from meprop.study.notebook import check as check
