"""The public names: a change of this list is a change of the interface."""

from __future__ import annotations

import importlib.metadata

import neuronjax as nj

NAMES = {
    "Compiled",
    "Emulated",
    "InternalError",
    "InvalidProgramError",
    "Lowered",
    "NeuronJaxError",
    "Policy",
    "Rule",
    "UnimplementedError",
    "UnsupportedError",
    "jit",
    "policy_scope",
}


def test_public_names():
    modules = {"neuronjax." + n for n in dir(nj)}
    import sys

    public = {
        n
        for n in vars(nj)
        if not n.startswith("_") and f"neuronjax.{n}" not in sys.modules.keys() & modules
    }
    assert public == NAMES


def test_version_is_that_of_the_package():
    assert nj.__version__ == importlib.metadata.version("neuronjax")
