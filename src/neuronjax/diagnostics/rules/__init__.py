"""The portability rules, as data: one file per kind of rule."""

from neuronjax.diagnostics.rule import PortabilityRule
from neuronjax.diagnostics.rules import (
    control,
    dtypes,
    faults,
    indexing,
    integers,
    operators,
)
from neuronjax.diagnostics.rules.limits import PROGRAM_RULES as PROGRAM_RULES

RULES: tuple[PortabilityRule | dtypes.DtypeRule, ...] = (
    *control.RULES,
    *dtypes.RULES,
    *integers.RULES,
    *indexing.RULES,
    *operators.RULES,
    *faults.RULES,
    *dtypes.DTYPE_RULES,
)
