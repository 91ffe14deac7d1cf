"""Limits of the hardware, checked while a kernel is traced.

`registry` holds the rules; the modules imported here add rules by `limit` or
`advice`. A new module of rules must be imported here.
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
