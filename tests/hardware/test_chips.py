"""The chip constants agree with each other and with the documented totals."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from neuronjax import hardware
from neuronjax.hardware import chips, instances, topology

SPECIFIED = [chip for chip in hardware.CHIPS.values() if not chip.projected]
CORES = {chip.core.name: chip.core for chip in hardware.CHIPS.values()}.values()
MIB = 2**20
GIB = 2**30

# A comment that cites: a bracketed key, an earlier constant, or an admitted guess.
CITATION = re.compile(
    r"\[[A-Z][A-Z0-9]*(/\w+)?(, [A-Z][A-Z0-9]*(/\w+)?)*\]|\[derived\]"
)


def peak_tflops(core: hardware.CoreSpec, dtype_class: str) -> float:
    """2 operations x cells x products per cell and cycle x clock."""
    products = getattr(core.products_per_cell_per_cycle, dtype_class)
    cells = core.partitions * core.array_columns
    return 2 * cells * products * core.tensor.clock_hz / 1e12


PEAKS = [
    (core, dtype_class, documented)
    for core in CORES
    for dtype_class, documented in dataclasses.asdict(core.documented_tflops).items()
    if documented is not None
]


@pytest.mark.parametrize(("core", "dtype_class", "documented"), PEAKS)
def test_peak_from_clock_matches_the_guide(core, dtype_class, documented):
    computed = peak_tflops(core, dtype_class)
    # 1 %, or half a unit of the guide's last digit ("20" for 19.66).
    assert abs(computed - documented) <= max(0.01 * documented, 0.5)


@pytest.mark.parametrize("chip", SPECIFIED, ids=lambda chip: chip.name)
def test_every_tile_takes_one_cycle_per_column(chip):
    """k_tile / (partitions x products) is 1, and 4 for FP32."""
    core = chip.core
    products = core.products_per_cell_per_cycle
    assert core.k_tile / (core.partitions * products.bf16) == 1
    assert core.k_tile / (core.partitions * products.fp32) == 4
    if core.k_tile_double_row:
        assert core.k_tile_double_row / (core.partitions * products.fp8) == 1
    if core.k_tile_mx:
        assert core.k_tile_mx / (core.partitions * products.mx) == 1


@pytest.mark.parametrize(
    ("name", "sbuf_mib", "hbm_gib", "dma_bytes_per_second"),
    [  # trainium2.rst, trainium3.rst; DMA totals of the DMA bandwidth guide
        ("trn1", 48, 32, 2 * 272e9),
        ("inf2", 48, 32, 2 * 272e9),
        ("trn2", 224, 96, 8 * 368e9),
        ("trn3", 256, 144, 8 * 528e9),
    ],
)
def test_totals_per_chip(name, sbuf_mib, hbm_gib, dma_bytes_per_second):
    chip = hardware.CHIPS[name]
    assert chip.cores_per_chip * chip.core.sbuf_bytes == sbuf_mib * MIB
    assert chip.hbm_bytes == hbm_gib * GIB
    assert chip.dma_engines * chip.dma_engine_bytes_per_second == dma_bytes_per_second
    assert chip.dma_engines == 16 * chip.cores_per_chip


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_memories_divide_into_partitions_and_banks(core):
    per_partition = core.sbuf_bytes // core.partitions
    assert per_partition * core.partitions == core.sbuf_bytes
    assert core.sbuf_usable_bytes_per_partition < per_partition
    assert core.psum_bank_bytes_per_partition == 2048
    assert core.max_stationary_free == core.array_columns
    # One FP32 output of 512 columns fills a bank.
    assert hardware.CHIPS["trn2"].core.max_moving_free * 4 == 2048


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_dtypes_exist(core):
    used = {name for engine in core.engines for name in engine.dtypes}
    for name in (used | set(core.mx_dtypes)) - hardware.EMULATOR_ONLY_DTYPES:
        assert hasattr(ml_dtypes, name) or np.dtype(name).name == name


def test_emulator_only_dtypes_are_unknown_to_numpy():
    for name in hardware.EMULATOR_ONLY_DTYPES:
        assert not hasattr(ml_dtypes, name)
        with pytest.raises(TypeError):
            np.dtype(name)


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_capabilities_are_listed_and_agree_with_the_fields(core):
    assert core.capabilities <= hardware.CAPABILITIES.keys()
    assert ("fp8_double_row" in core.capabilities) == (
        core.k_tile_double_row is not None
    )
    assert ("mx_matmul" in core.capabilities) == (core.k_tile_mx is not None)
    assert ("mx_matmul" in core.capabilities) == bool(core.mx_dtypes)
    assert ("bf16_psum" in core.capabilities) == (core.max_moving_free_bf16 is not None)
    sparse = core.products_per_cell_per_cycle.sparse
    assert ("sparse_matmul" in core.capabilities) == (sparse is not None)
    generators = core.capabilities & {"xorwow", "lfsr"}
    assert len(generators) == ("stochastic_rounding" in core.capabilities)


def test_every_capability_is_used():
    used = frozenset().union(*(core.capabilities for core in CORES))
    assert used == hardware.CAPABILITIES.keys()


@pytest.mark.parametrize("chip", hardware.CHIPS.values(), ids=lambda chip: chip.name)
def test_chip_agrees_with_its_core(chip):
    if chip.forward_fp8 is None:
        assert not any("float8" in name for name in chip.core.tensor.dtypes)
    else:
        assert chip.forward_fp8 in chip.core.capabilities
        assert chip.forward_fp8 in chip.core.tensor.dtypes
    assert chip.lnc_default in chip.lnc_options
    assert all(chip.cores_per_chip % lnc == 0 for lnc in chip.lnc_options)
    has_hwdge = "hwdge" in chip.core.capabilities
    assert has_hwdge == (chip.hwdge_issue_seconds is not None)


def test_trn1_and_inf2_share_one_core():
    assert hardware.CHIPS["trn1"].core is hardware.CHIPS["inf2"].core


def test_projected_chips_are_named_as_such():
    projected = [chip for chip in hardware.CHIPS.values() if chip.projected]
    assert [chip.name for chip in projected] == ["trn4", "inf1"]
    assert all("projected" in chip.product for chip in projected)


def test_trn4_scales_trn3():
    trn3, trn4 = hardware.CHIPS["trn3"], hardware.CHIPS["trn4"]
    assert peak_tflops(trn4.core, "mx") == 3 * peak_tflops(trn3.core, "mx")
    assert trn4.hbm_bytes_per_second == 4 * trn3.hbm_bytes_per_second
    assert trn4.core.tensor == trn3.core.tensor


def test_inf1_is_what_the_vendor_publishes():
    """inferentia.rst, neuron-core-v1.rst and inf1-arch.rst."""
    chip = hardware.CHIPS["inf1"]
    names = [engine.name for engine in chip.core.engines]
    assert names == ["tensor", "vector", "scalar", "sync"]
    assert set(chip.core.tensor.dtypes) == {"bfloat16", "float16", "int8"}
    assert chip.lacks == {"gpsimd", "cc"}
    assert (chip.cores_per_chip, chip.hbm_bytes) == (4, 8 * GIB)
    assert (chip.published_tflops.bf16, chip.published_tflops.int8) == (64, 128)
    cores = chip.cores_per_chip
    assert cores * peak_tflops(chip.core, "bf16") == pytest.approx(64, rel=0.03)
    assert cores * peak_tflops(chip.core, "int8") == pytest.approx(128, rel=0.03)


def test_only_inf1_lacks_an_engine():
    assert [c.name for c in hardware.CHIPS.values() if c.lacks] == ["inf1"]
    assert not hardware.chips_that_take("float64")
    assert "inf1" not in hardware.chips_that_take("float32")
    assert hardware.chips_that_take("int8") == ("inf1",)


@pytest.mark.parametrize("chip", SPECIFIED, ids=lambda chip: chip.name)
def test_engines_are_named_in_order(chip):
    names = [engine.name for engine in chip.core.engines]
    assert names == ["tensor", "vector", "scalar", "gpsimd", "sync"]


def test_specs_are_frozen_and_hashable():
    for chip in hardware.CHIPS.values():
        assert hash(chip) == hash(dataclasses.replace(chip))
    with pytest.raises(dataclasses.FrozenInstanceError):
        hardware.CHIPS["trn2"].cores_per_chip = 4


def _constant_lines(tree: ast.Module) -> set[int]:
    """Lines of numbers in module-level assignments, where the hardware facts are."""
    assignments = [n for n in tree.body if isinstance(n, ast.Assign | ast.AnnAssign)]
    return {
        node.lineno
        for assignment in assignments
        for node in ast.walk(assignment)
        if isinstance(node, ast.Constant) and type(node.value) in (int, float)
    }


@pytest.mark.parametrize("module", [hardware, chips, instances, topology])
def test_every_number_cites_a_source(module):
    source = Path(module.__file__).read_text()
    lines = source.splitlines()
    for number in sorted(_constant_lines(ast.parse(source))):
        _, _, comment = lines[number - 1].partition("#")
        assert "ASSUMPTION" in comment or CITATION.search(comment), (
            f"{module.__name__}:{number} has no source: {lines[number - 1]}"
        )


@pytest.mark.parametrize("module", [hardware, chips, instances, topology])
def test_every_cited_key_is_explained(module):
    headers = f"{chips.__doc__} {topology.__doc__} {instances.__doc__}"
    source = Path(module.__file__).read_text()
    for citation in CITATION.finditer(source):
        for key in re.findall(r"[\[ ](\w+)", citation.group()):
            assert re.search(rf"\b{key}\b", headers), f"[{key}] is not explained"
