"""Instruction -> arrays, one file per engine; importing this fills the dispatch
table."""

from neuronjax.engines import (
    dma as dma,
)
from neuronjax.engines import (
    fft as fft,
)
from neuronjax.engines import (
    gpsimd as gpsimd,
)
from neuronjax.engines import (
    host as host,
)
from neuronjax.engines import (
    kernel_call as kernel_call,
)
from neuronjax.engines import (
    linear_algebra as linear_algebra,
)
from neuronjax.engines import (
    scalar as scalar,
)
from neuronjax.engines import (
    scattering as scattering,
)
from neuronjax.engines import (
    sorting as sorting,
)
from neuronjax.engines import (
    tensor as tensor,
)
from neuronjax.engines import (
    tensor_mx as tensor_mx,
)
from neuronjax.engines import (
    tensor_sparse as tensor_sparse,
)
from neuronjax.engines import (
    vector as vector,
)
from neuronjax.engines import (
    windows as windows,
)
from neuronjax.engines.dispatch import Registers as Registers
from neuronjax.engines.dispatch import execute as execute
