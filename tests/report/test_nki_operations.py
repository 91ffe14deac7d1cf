"""The table of the kernel interface: every documented name has a true row."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import neuronjax.nki.collectives as ncc
import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax.cli import app
from neuronjax.execution.tiles import registry
from neuronjax.report.nki_operations import kernel_operations
from neuronjax.timing import kernel_cost

# As the documentation of SDK 2.32 lists them, written down apart from the table.
ISA = """
nc_matmul nc_matmul_mx nc_transpose activation activation_reduce activate2 tensor_reduce
tensor_partition_reduce tensor_tensor tensor_tensor_scan scalar_tensor_tensor
tensor_scalar tensor_scalar_reduce tensor_scalar_cumulative tensor_copy
tensor_copy_predicated select_reduce range_select affine_select iota exponential
reciprocal quantize_mx dropout memset bn_stats bn_aggr max8 nc_find_index8
nc_match_replace8 nc_stream_shuffle local_gather nc_n_gather sequence_bounds
nonzero_with_count topk rng set_rng_seed rand2 rand_set_state rand_get_state dma_copy
dma_transpose dma_compute core_barrier sendrecv register_alloc register_move
register_load register_store get_nc_version get_nc_sub_version engine reduce_cmd
dge_mode oob_mode matmul_perf_mode nc_version dma_engine
"""
LANGUAGE = """
ndarray zeros ones full zeros_like empty_like shared_constant shared_identity_matrix
rand random_seed load load_transpose2d store copy matmul transpose abs abs_max abs_min
add arctan ceil cos exp floor log maximum minimum multiply negative power reciprocal
rsqrt sign sin sqrt square subtract tan tanh trunc divide mod fmod relu sigmoid silu
silu_dx gelu gelu_dx gelu_apprx_sigmoid gelu_apprx_sigmoid_dx gelu_apprx_tanh mish
softplus softmax erf erf_dx dropout rms_norm all max mean min prod sum var equal
not_equal less less_equal greater greater_equal logical_and logical_or logical_xor
logical_not bitwise_and bitwise_or bitwise_xor invert left_shift right_shift
broadcast_to ds expand_dims where gather_flattened affine_range dynamic_range
sequential_range static_range fori_loop while_loop psum sbuf hbm private_hbm shared_hbm
is_hbm is_on_chip is_psum is_sbuf device_print no_reorder program_id num_programs
program_ndim NkiTensor bool_ int8 int16 int32 uint8 uint16 uint32 float16 float32
bfloat16 tfloat32 float8_e4m3 float8_e5m2 float8_e4m3fn float8_e8m0fnu float8_e5m2_x4
float8_e4m3fn_x4 float4_e2m1fn_x4 tile_size
"""
COLLECTIVES = """
all_reduce all_gather all_gather_v reduce_scatter all_to_all all_to_all_v
collective_permute collective_permute_implicit collective_permute_implicit_reduce
collective_permute_implicit_current_processing_rank_id rank_id
"""
ROWS = {(row.group, row.name): row for row in kernel_operations()}


def rows(*arguments: str) -> list[dict]:
    result = CliRunner().invoke(app, ["ops", "--nki", "--json", *arguments])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


@pytest.mark.parametrize(
    ("group", "names"),
    [("isa", ISA), ("language", LANGUAGE), ("collectives", COLLECTIVES)],
)
def test_every_documented_name_is_there_or_listed_as_missing(group, names):
    listed = {row["name"]: row for row in rows() if row["group"] == group}
    missing = {row["name"] for row in rows("--missing") if row["group"] == group}
    assert set(names.split()) <= set(listed)
    package = {"isa": nisa, "language": nl, "collectives": ncc}[group]
    for name, row in listed.items():
        assert row["front_end"] or name in missing
        assert row["front_end"] == hasattr(package, name)


def test_the_columns_are_those_of_the_registries():
    for row in kernel_operations():
        if row.kind == "instruction" and row.semantics is not None:
            assert row.semantics == (row.name in registry._REGISTRY)
            assert row.cost == (row.name in kernel_cost.RULES)
        else:
            assert row.semantics is row.cost is None
    assert ROWS["isa", "nc_matmul"].label == "modelled"
    assert ROWS["isa", "dma_copy"].label == "exact"
    assert ROWS["isa", "quantize_mx"].generation == "v4"


def test_no_instruction_that_runs_is_forgotten():
    documented = {name for _, name in ROWS}
    registry._load()
    known = {n for n in registry._REGISTRY if not n.startswith("test_")}
    assert known <= documented


def test_the_tables_for_people():
    runner = CliRunner(env={"COLUMNS": "80"})
    text = runner.invoke(app, ["ops", "--nki"]).output
    assert "nki.isa: instructions" in text
    assert "tensor_tensor_scan" in text
    assert max(map(len, text.splitlines())) <= 80
    one = runner.invoke(app, ["ops", "--nki", "nc_transpose"]).output
    assert "TV" in one
    assert "nki.language" not in one
    assert runner.invoke(app, ["ops", "--nki", "no_such_name"]).exit_code == 2
