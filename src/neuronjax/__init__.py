"""neuronjax: a functional emulator of AWS Trainium for JAX programs.

    JAX callable, or a saved program (StableHLO, jax.export, HLO)
        | capture    StableHLO for platform "neuron", decoded once     (capture/)
        | lower      StableHLO -> NeuronCore instructions              (lowering/)
        |------------------------------.
        | run                          | price
        | instructions -> arrays       | instructions -> cycles, bytes, dollars
        v   (execution/)               v   (timing/)
      values                         profiles

`numerics/` contains formats and their rounding, `hardware/` the chips as data,
`policy/` the choice of numerics, `ir/` the StableHLO ops and the instructions, `nki/`
the second front end, for kernels. `diagnostics/` finds numerical errors, `report/`
displays results, `testing/` stores and checks them. `api/` has a file for each public
verb, and `cli/` its command.
"""

import ast
import importlib
import importlib.util
import inspect
import sys
import typing

if typing.TYPE_CHECKING:  # at run time each name is imported when it is first used
    from neuronjax.api.check import check as check
    from neuronjax.api.collective_bench import collective_bench as collective_bench
    from neuronjax.api.compare import compare as compare
    from neuronjax.api.compare_dump import compare_dump as compare_dump
    from neuronjax.api.emulated import emulated as emulated
    from neuronjax.api.estimate import (
        Estimate as Estimate,
        Machine as Machine,
        ServingChipWarning as ServingChipWarning,
        estimate as estimate,
    )
    from neuronjax.api.estimate_serving import (
        ServingEstimate as ServingEstimate,
        estimate_serving as estimate_serving,
    )
    from neuronjax.api.jit import Emulated as Emulated, jit as jit
    from neuronjax.api.judge import judge as judge
    from neuronjax.api.judge_all import judge_all as judge_all
    from neuronjax.api.keep_compiled import keep_compiled as keep_compiled
    from neuronjax.api.load import load as load
    from neuronjax.api.lowered import Compiled as Compiled, Lowered as Lowered
    from neuronjax.api.nki_diff import NkiDiff as NkiDiff, nki_diff as nki_diff
    from neuronjax.api.pmap import (
        local_device_count as local_device_count,
        make_mesh as make_mesh,
        pmap as pmap,
        replicate as replicate,
        unreplicate as unreplicate,
    )
    from neuronjax.api.profile import profile as profile
    from neuronjax.api.profile_result import Profile as Profile
    from neuronjax.api.scaling import scaling as scaling
    from neuronjax.api.search_precision import search_precision as search_precision
    from neuronjax.api.study import Study as Study, study as study
    from neuronjax.api.tolerance import tolerance as tolerance
    from neuronjax.diagnostics.comparison import Comparison as Comparison
    from neuronjax.diagnostics.dumps.dump_result import DumpComparison as DumpComparison
    from neuronjax.diagnostics.edits.edit_result import (
        ProgramComparison as ProgramComparison,
    )
    from neuronjax.diagnostics.findings import PortabilityReport as PortabilityReport
    from neuronjax.diagnostics.judging.verdict import KernelVerdict as KernelVerdict
    from neuronjax.diagnostics.legal.results import (
        LegalCheck as LegalCheck,
        LegalResults as LegalResults,
    )
    from neuronjax.diagnostics.order import (
        SummationTree as SummationTree,
        reveal_order as reveal_order,
    )
    from neuronjax.diagnostics.precision_result import (
        PrecisionSearch as PrecisionSearch,
    )
    from neuronjax.diagnostics.statistics import Statistics as Statistics
    from neuronjax.errors import (
        IntegersInFP32Warning as IntegersInFP32Warning,
        InternalError as InternalError,
        InvalidProgramError as InvalidProgramError,
        NeuronJaxError as NeuronJaxError,
        NotEmulatedWarning as NotEmulatedWarning,
        PrecisionIgnoredWarning as PrecisionIgnoredWarning,
        UnimplementedError as UnimplementedError,
        UnsupportedError as UnsupportedError,
    )
    from neuronjax.execution.device_sharding import real_devices as real_devices
    from neuronjax.execution.probes.collect import Collect as Collect
    from neuronjax.numerics.casting import cast as cast
    from neuronjax.numerics.host_kernels.choice import exportable as exportable
    from neuronjax.numerics.microscaling import (
        MXArray as MXArray,
        quantize_mx as quantize_mx,
    )
    from neuronjax.numerics.sparsity import (
        SparseArray as SparseArray,
        sparsify as sparsify,
    )
    from neuronjax.policy import Policy as Policy, Rule as Rule
    from neuronjax.policy.scopes import (
        collective_algorithm as collective_algorithm,
        policy_scope as policy_scope,
    )
    from neuronjax.report.number_display import formats as formats

__version__ = "0.1.0"

#: The module of every public name, read from the imports above.
_HOMES = {
    name.name: node.module
    for node in ast.walk(ast.parse(inspect.getsource(sys.modules[__name__])))
    if isinstance(node, ast.ImportFrom) and str(node.module).startswith(__name__)
    for name in node.names
}
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    """Import a public name or subpackage when it is first used, and return it."""
    if name in _HOMES:
        found = getattr(importlib.import_module(str(_HOMES[name])), name)
        if inspect.isfunction(found):  # tracebacks show only the user's frames
            found = importlib.import_module("neuronjax.api.calls").boundary(found)
        return globals().setdefault(name, found)
    if name.startswith("_") or importlib.util.find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def load_ipython_extension(shell: typing.Any) -> None:
    """Add `%emulate` to IPython, for `%load_ext neuronjax`."""
    importlib.import_module("neuronjax.api.magics").load(shell)


def __dir__() -> list[str]:
    """Return all public names, including those that are not imported yet."""
    return sorted({*__all__, "nki", "testing"})
