"""The public names: a change of this list is a change of the interface."""

from __future__ import annotations

import importlib.metadata
import types

import neuronjax as nj

NAMES = {
    "Compiled",
    "Emulated",
    "InternalError",
    "InvalidProgramError",
    "Lowered",
    "MXArray",
    "NeuronJaxError",
    "Policy",
    "PortabilityReport",
    "Rule",
    "SparseArray",
    "UnimplementedError",
    "UnsupportedError",
    "cast",
    "check",
    "jit",
    "load",
    "local_device_count",
    "make_mesh",
    "pmap",
    "policy_scope",
    "quantize_mx",
    "replicate",
    "sparsify",
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
