"""Every row of `ir.nki_instructions` has its function, its semantics and its cost."""

from __future__ import annotations

import inspect

import pytest

import neuronjax.nki.isa as nisa
from neuronjax.execution.tiles import registry
from neuronjax.ir.nki_instructions import SPECS
from neuronjax.nki.legacy import isa as older
from neuronjax.timing import kernel_cost

# Of the older style alone; `tensor_copy` and `dma_compute` execute them.
OLDER = {"tensor_copy_dynamic_src", "tensor_copy_dynamic_dst", "builtin_custom_op"}


@pytest.mark.parametrize("name", SPECS)
def test_a_row_lists_the_parameters_and_documents_them(name):
    spec, function = SPECS[name], getattr(nisa, name)
    parameters = set(inspect.signature(function).parameters) - {"name"}
    listed = {o.name for o in spec.operands if o.kind != "state"}
    assert listed == parameters
    described = inspect.getdoc(function) or ""
    assert described.index("Args:") > 10
    assert all(f"    {p}: " in described for p in parameters)
    likes = {o.like for o in spec.operands} | {o.loads for o in spec.operands}
    assert likes - {""} <= listed


@pytest.mark.parametrize("name", SPECS)
def test_a_row_that_runs_has_semantics_and_a_cost(name):
    spec = SPECS[name]
    assert registry.has_semantics(name) == spec.runs
    assert (name in kernel_cost.RULES) == spec.runs
    assert spec.source == f"nki.isa.{name}"


def test_the_older_style_has_no_instructions_of_its_own():
    functions = inspect.getmembers(older, inspect.isfunction)
    own = {n for n, f in functions if f.__module__.startswith(older.__name__)}
    public = {name for name in own if not name.startswith("_")}
    assert public - OLDER <= set(SPECS)
