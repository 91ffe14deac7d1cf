"""neuronjax: a functional emulator of AWS Trainium for JAX programs.

    JAX callable
        | capture    StableHLO for platform "neuron", decoded once     (capture/)
        | lower      StableHLO -> NeuronCore instructions              (lowering/)
        | run        instructions -> arrays, in one jax.jit            (engines/,
        v            with the numbers of `numerics/`                    interpreter.py)
      values

`hardware/` holds the chips as data, `policy.py` what may happen to numbers, `ir/` the
two vocabularies, `emulation.py` what vmap and grad mean, `api.py` the functions below.
"""

from neuronjax.api import (
    Compiled as Compiled,
)
from neuronjax.api import (
    Emulated as Emulated,
)
from neuronjax.api import (
    Lowered as Lowered,
)
from neuronjax.api import (
    jit as jit,
)
from neuronjax.errors import (
    InternalError as InternalError,
)
from neuronjax.errors import (
    InvalidProgramError as InvalidProgramError,
)
from neuronjax.errors import (
    NeuronJaxError as NeuronJaxError,
)
from neuronjax.errors import (
    UnimplementedError as UnimplementedError,
)
from neuronjax.errors import (
    UnsupportedError as UnsupportedError,
)
from neuronjax.numerics.casting import (
    cast as cast,
)
from neuronjax.numerics.microscaling import (
    MXArray as MXArray,
)
from neuronjax.numerics.microscaling import (
    quantize_mx as quantize_mx,
)
from neuronjax.numerics.sparsity import (
    SparseArray as SparseArray,
)
from neuronjax.numerics.sparsity import (
    sparsify as sparsify,
)
from neuronjax.policy import (
    Policy as Policy,
)
from neuronjax.policy import (
    Rule as Rule,
)
from neuronjax.policy_scopes import (
    policy_scope as policy_scope,
)

__version__ = "0.1.0.dev0"
