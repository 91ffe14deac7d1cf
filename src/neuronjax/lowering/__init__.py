"""Program -> Instructions: which engine does what, with which casts and tiles.

The only code that knows both vocabularies. One file per family of ops; importing this
package fills the rule table.
"""

from neuronjax.lowering import (
    algebra as algebra,
)
from neuronjax.lowering import (
    batch_norm as batch_norm,
)
from neuronjax.lowering import (
    broadcast as broadcast,
)
from neuronjax.lowering import (
    collective as collective,
)
from neuronjax.lowering import (
    contraction as contraction,
)
from neuronjax.lowering import (
    control_flow as control_flow,
)
from neuronjax.lowering import (
    convolution as convolution,
)
from neuronjax.lowering import (
    custom_call as custom_call,
)
from neuronjax.lowering import (
    elementwise as elementwise,
)
from neuronjax.lowering import (
    movement as movement,
)
from neuronjax.lowering import (
    random as random,
)
from neuronjax.lowering import (
    reduction as reduction,
)
from neuronjax.lowering import (
    refused as refused,
)
from neuronjax.lowering import (
    sorting as sorting,
)
from neuronjax.lowering import (
    spmd as spmd,
)
from neuronjax.lowering.registry import RULES as RULES
from neuronjax.lowering.registry import lower as lower
from neuronjax.lowering.registry import lower_by_op as lower_by_op
