"""neuronjax: a functional emulator of AWS Trainium for JAX programs.

    JAX callable
        | capture    StableHLO for platform "neuron", decoded once     (capture/)
        | lower      StableHLO -> NeuronCore instructions              (lowering/)
        | run        instructions -> arrays, in one jax.jit            (engines/,
        v            with the numbers of `numerics/`                    interpreter.py)
      values

`hardware/` holds the chips as data, `policy.py` what may happen to numbers, `ir/` the two
vocabularies, `emulation.py` what vmap and grad mean, `api.py` the functions below.
"""

from neuronjax.api import (
    Compiled as Compiled,
    Emulated as Emulated,
    Lowered as Lowered,
    jit as jit,
)
from neuronjax.errors import (
    InternalError as InternalError,
    InvalidProgramError as InvalidProgramError,
    NeuronJaxError as NeuronJaxError,
    UnimplementedError as UnimplementedError,
    UnsupportedError as UnsupportedError,
)
from neuronjax.policy import (
    Policy as Policy,
    Rule as Rule,
    policy_scope as policy_scope,
)

__version__ = "0.1.0"
