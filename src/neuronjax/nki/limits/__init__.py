"""What the hardware allows, checked while a kernel is traced.

`registry` holds the rules; the files that are imported here add some to it, by `limit`,
`advice` or `storage_limit`. A new file of rules is first a line here.
"""

from neuronjax.nki.limits import (
    data_types as data_types,
    dma as dma,
    engines as engines,
    indirection as indirection,
    matmul as matmul,
    memories as memories,
    shapes as shapes,
)
