"""The coverage table: complete, without a gap, and true to the lowering."""

from __future__ import annotations

import pytest
from jax.extend.mlir.dialects import chlo, stablehlo

from docs.made import operations as made
from docs.made.collective_samples import SAMPLES
from docs.made.operation_samples import KIND_DTYPES
from docs.made.operations import NAMES, STRUCTURE
from neuronjax.errors import UnimplementedError
from neuronjax.lowering.refused import REFUSED
from neuronjax.lowering.registry import RULES
from neuronjax.report.operations import Use, operations

ROWS = {operation.name: operation for operation in operations()}
# StableHLO allows these complex operands; JAX writes none of them so, nor any of CHLO's
# broadcasting ops.
NOT_COMPLEX = {
    f"stablehlo.{name}"
    for name in (
        "broadcast",
        "dot",
        "get_dimension_size",
        "remainder",
        "torch_index_select",
    )
}


def dialect_ops() -> set[str]:
    """Every op that this jaxlib's dialects define."""
    classes = [*vars(stablehlo).values(), *vars(chlo).values()]
    return {c.OPERATION_NAME for c in classes if hasattr(c, "OPERATION_NAME")}


def test_every_op_of_the_dialects_has_a_row():
    assert dialect_ops() <= set(NAMES)
    # jaxlib 0.10 lacks one that 0.12 has.
    assert set(NAMES) - dialect_ops() <= {"stablehlo.collective_reduce"}
    assert len(NAMES) == len(set(NAMES))


def test_there_is_no_gap():
    """Every op has a rule, or somebody decided against one."""
    decided = {*REFUSED, *STRUCTURE}
    for name, row in ROWS.items():
        if row.status == "emulated":
            assert name in {*SAMPLES, *STRUCTURE}, name
        else:
            assert name in decided, f"{name} has neither a rule nor a decision"
            assert row.note, name


def test_the_status_is_that_of_the_lowering():
    for name, refusal in REFUSED.items():
        missing = issubclass(refusal.error, UnimplementedError)
        assert ROWS[name].status == ("missing" if missing else "refused")
    rules = {name for name in RULES if name.startswith(("stablehlo.", "chlo."))}
    for name in rules - set(REFUSED):
        assert ROWS[name].status == "emulated", name


@pytest.mark.parametrize("name", SAMPLES)
def test_every_kind_of_dtype_is_taken(name):
    kinds, _ = SAMPLES[name]
    expected = {made._KIND_NAMES[kind] for kind in kinds}
    taken = set(ROWS[name].uses)
    if "complex" not in taken and (name.startswith("chlo.") or name in NOT_COMPLEX):
        expected -= {"complex"}
    assert taken == expected


def test_samples_name_every_kind():
    assert {kind for kinds, _ in SAMPLES.values() for kind in kinds} == set(KIND_DTYPES)


@pytest.mark.parametrize(
    ("name", "kind", "engines", "label"),
    [
        ("stablehlo.add", "float", ("vector",), "exact"),
        ("stablehlo.add", "integer", ("gpsimd",), "exact"),
        ("stablehlo.exponential", "float", ("scalar",), "modelled"),
        ("stablehlo.transpose", "float", ("dma",), "exact"),
        ("stablehlo.reduce", "float", ("vector",), "modelled"),
        ("stablehlo.gather", "integer", ("gpsimd",), "exact"),
        ("stablehlo.optimization_barrier", "bool", (), "exact"),
        ("chlo.erf_inv", "float", ("scalar",), "modelled"),
    ],
)
def test_engines_are_those_of_the_hardware_facts(name, kind, engines, label):
    assert ROWS[name].uses[kind] == Use(engines, label)


def test_dots_are_on_the_tensor_engine():
    for name in ("dot_general", "dot", "convolution"):
        assert "tensor" in ROWS[f"stablehlo.{name}"].uses["float"].engines
