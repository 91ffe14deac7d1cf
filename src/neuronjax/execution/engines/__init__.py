"""The engines: functions from an instruction to arrays, one file per engine.

Importing this package fills the dispatch table.
"""

from neuronjax.execution.engines import (
    bodies as bodies,
    dma as dma,
    fft as fft,
    host as host,
    kernel_call as kernel_call,
    linear_algebra as linear_algebra,
    scalar as scalar,
    scattering as scattering,
    sorting as sorting,
    tensor as tensor,
    tensor_sparse as tensor_sparse,
    vector as vector,
    windows as windows,
)
from neuronjax.execution.engines.dispatch import (
    Registers as Registers,
    execute as execute,
)
