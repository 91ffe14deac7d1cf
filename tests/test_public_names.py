"""The public names: a change of this list is a change of the interface."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import types
from pathlib import Path

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
        for name in dir(nj)
        if not name.startswith("_")
        and not isinstance(getattr(nj, name), types.ModuleType)
    }
    assert public == NAMES == {*nj.__all__}


IMPORTED = """
import sys
import neuronjax as nj
assert "jax" not in sys.modules
nj.policy.Policy
assert float(nj.cast(1.3, "float8_e4m3")) == 1.25
assert not {"neuronjax.timing.schedule", "neuronjax.nki.kernel"} & {*sys.modules}
assert not hasattr(nj, "nothing")
import numpy as np
x = nj.quantize_mx(np.ones((1, 32), np.float32), "mxfp8_e4m3", axis=-1)
assert "<table" in x._repr_html_()  # its display is imported then
"""


def test_a_name_is_imported_when_it_is_asked_for():
    source = os.fspath(Path(nj.__file__).parents[1])
    subprocess.run(
        [sys.executable, "-c", IMPORTED],
        env={**os.environ, "PYTHONPATH": source},
        check=True,
    )


def test_version_is_that_of_the_package():
    assert nj.__version__ == importlib.metadata.version("neuronjax")
