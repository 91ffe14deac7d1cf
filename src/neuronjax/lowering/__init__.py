"""Program -> Instructions: which engine does what, with which casts and tiles.

The only code that knows both vocabularies. One file per family of ops; importing this
package fills the rule table.
"""

from neuronjax.lowering import (
    contraction as contraction,
    control_flow as control_flow,
    convolution as convolution,
    elementwise as elementwise,
    movement as movement,
    random as random,
    reduction as reduction,
)
from neuronjax.lowering.registry import RULES as RULES, lower as lower
