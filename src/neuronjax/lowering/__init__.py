"""Program -> Instructions: which engine does what, with which casts and tiles.

This is the only code that knows both vocabularies. There is one file per family of ops;
importing this package fills the rule table.
"""

from neuronjax.lowering import (
    algebra as algebra,
    batch_norm as batch_norm,
    collective as collective,
    contraction as contraction,
    control_flow as control_flow,
    convolution as convolution,
    custom_call as custom_call,
    elementwise as elementwise,
    movement as movement,
    reduction as reduction,
    refused as refused,
    sorting as sorting,
    spmd as spmd,
)
from neuronjax.lowering.registry import (
    RULES as RULES,
    lower as lower,
    lower_by_op as lower_by_op,
)
