"""neuronjax: a functional emulator of AWS Trainium for JAX programs.

    JAX callable, or a saved program (StableHLO, jax.export, HLO)
        | capture    StableHLO for platform "neuron", decoded once     (capture/)
        | lower      StableHLO -> NeuronCore instructions              (lowering/)
        | run        instructions -> arrays, in one jax.jit            (engines/,
        v            with the numbers of `numerics/`                    interpreter.py)
      values

`hardware/` holds the chips as data, `policy.py` what may happen to numbers, `ir/` the
two vocabularies, `emulation.py` what vmap and grad mean; `api.py` is `jit`,
`parallel.py` is `pmap`, `loading.py` is `load`, and `programs.py` what all of them
return. `checking.py` is `check`, which runs nothing and says what the real compiler
would refuse or change.
"""

import importlib

from neuronjax.api import (
    Emulated as Emulated,
)
from neuronjax.api import (
    jit as jit,
)
from neuronjax.carriers import (
    real_devices as real_devices,
)
from neuronjax.checking import (
    check as check,
)
from neuronjax.collecting import (
    Collect as Collect,
)
from neuronjax.collective_bench import (
    collective_bench as collective_bench,
)
from neuronjax.comparing import (
    compare as compare,
)
from neuronjax.diagnostics.comparison import (
    Comparison as Comparison,
)
from neuronjax.diagnostics.findings import (
    PortabilityReport as PortabilityReport,
)
from neuronjax.diagnostics.order import (
    SummationTree as SummationTree,
)
from neuronjax.diagnostics.order import (
    reveal_order as reveal_order,
)
from neuronjax.diagnostics.precision_result import (
    PrecisionSearch as PrecisionSearch,
)
from neuronjax.diagnostics.statistics import (
    Statistics as Statistics,
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
from neuronjax.estimating import (
    Estimate as Estimate,
)
from neuronjax.estimating import (
    Machine as Machine,
)
from neuronjax.estimating import (
    ServingChipWarning as ServingChipWarning,
)
from neuronjax.estimating import (
    estimate as estimate,
)
from neuronjax.loading import (
    load as load,
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
from neuronjax.parallel import (
    local_device_count as local_device_count,
)
from neuronjax.parallel import (
    make_mesh as make_mesh,
)
from neuronjax.parallel import (
    pmap as pmap,
)
from neuronjax.parallel import (
    replicate as replicate,
)
from neuronjax.parallel import (
    unreplicate as unreplicate,
)
from neuronjax.policy import (
    Policy as Policy,
)
from neuronjax.policy import (
    Rule as Rule,
)
from neuronjax.policy_scopes import (
    collective_algorithm as collective_algorithm,
)
from neuronjax.policy_scopes import (
    policy_scope as policy_scope,
)
from neuronjax.precision_search import (
    search_precision as search_precision,
)
from neuronjax.profiling import (
    Profile as Profile,
)
from neuronjax.profiling import (
    profile as profile,
)
from neuronjax.programs import (
    Compiled as Compiled,
)
from neuronjax.programs import (
    Lowered as Lowered,
)
from neuronjax.report.number_display import (
    formats as formats,
)
from neuronjax.scaling import (
    scaling as scaling,
)
from neuronjax.serving import (
    ServingEstimate as ServingEstimate,
)
from neuronjax.serving import (
    estimate_serving as estimate_serving,
)
from neuronjax.study import (
    Study as Study,
)
from neuronjax.study import (
    study as study,
)

__version__ = "0.1.0.dev0"


def __getattr__(name: str) -> object:
    """`neuronjax.nki`, which is imported when it is first asked for."""
    if name == "nki":
        return importlib.import_module("neuronjax.nki")
    raise AttributeError(f"module 'neuronjax' has no attribute {name!r}")
