"""The public names: a change of this list is a change of the interface."""

from __future__ import annotations

import importlib.metadata
import types

import neuronjax as nj

NAMES = {
    "Collect",
    "Comparison",
    "Compiled",
    "DumpComparison",
    "Emulated",
    "Estimate",
    "IntegersInFP32Warning",
    "InternalError",
    "InvalidProgramError",
    "KernelVerdict",
    "LegalCheck",
    "LegalResults",
    "Lowered",
    "MXArray",
    "Machine",
    "NeuronJaxError",
    "NkiDiff",
    "NotEmulatedWarning",
    "Policy",
    "PortabilityReport",
    "PrecisionIgnoredWarning",
    "PrecisionSearch",
    "Profile",
    "ProgramComparison",
    "Rule",
    "ServingChipWarning",
    "ServingEstimate",
    "SparseArray",
    "Statistics",
    "Study",
    "SummationTree",
    "UnimplementedError",
    "UnsupportedError",
    "cast",
    "check",
    "collective_algorithm",
    "collective_bench",
    "compare",
    "compare_dump",
    "emulated",
    "estimate",
    "estimate_serving",
    "exportable",
    "formats",
    "jit",
    "judge",
    "judge_all",
    "keep_compiled",
    "load",
    "local_device_count",
    "make_mesh",
    "nki_diff",
    "pmap",
    "policy_scope",
    "profile",
    "quantize_mx",
    "real_devices",
    "replicate",
    "reveal_order",
    "scaling",
    "search_precision",
    "sparsify",
    "study",
    "tolerance",
    "unreplicate",
}


def test_public_names():
    public = {
        name
        for name, value in vars(nj).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public == NAMES


def test_version_is_that_of_the_package():
    assert nj.__version__ == importlib.metadata.version("neuronjax")
