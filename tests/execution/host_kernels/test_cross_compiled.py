"""Kernels compiled for processors that are not here: they assemble, by vectors."""

from __future__ import annotations

import functools
import re

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

from neuronjax.execution.host_kernels import fold_kernel, patches, quantize, scaling
from neuronjax.execution.host_kernels.fold_kernel import FoldKind
from neuronjax.numerics.host_kernels import (
    distance_kernel,
    lane_kernel,
    least_kernel,
    nibbles,
    perturb_kernel,
    stochastic,
)
from neuronjax.numerics.host_kernels.compiled import PROCESSORS, Processor
from neuronjax.numerics.host_kernels.elements import ElementKind

MACHINES = {
    "linux": ("aarch64-unknown-linux-gnu", "neoverse-v1"),
    "macos": ("arm64-apple-darwin", "apple-m1"),
}
FOLDS = {
    "bf16": FoldKind("bfloat16", "bfloat16", 1, 1, False, False),
    "fp8": FoldKind("table", "table", 2, 1, True, False),
    "mx": FoldKind("table", "table", 4, 1, False, False, True, True),
    "fp32": FoldKind("float32", "float32", 1, 4, False, False),
    "row": FoldKind("float32", "float32", 1, 1, False, True),
}
FP8 = ("bfloat16", "float8_e4m3fn")
KERNELS = {
    "nibbles": nibbles.write,
    "patches": patches.write,
    "distances": functools.partial(distance_kernel.write, asked=2**14 - 1, types="fd"),
    "lanes": functools.partial(
        lane_kernel.write, function="sqrt", are_scalars="01", setting=[0.5] * 6
    ),
    "least": least_kernel.write,
    "perturbed": perturb_kernel.write,
    "quantize": functools.partial(
        quantize.write, kind=ElementKind("quantize", *FP8, rule="ocp_floor")
    ),
    "stochastic": functools.partial(
        stochastic.write, kind=ElementKind("stochastic", *FP8)
    ),
    "scaled": functools.partial(scaling.write, kind=ElementKind("scaled", *FP8)),
    "largest": functools.partial(scaling.write, kind=ElementKind("largest", "float32")),
}


def assembly(write, lanes: int, triple: str, cpu: str) -> str:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = ir.Module("kernel")
    module.triple = triple
    target = llvm.Target.from_triple(triple)
    machine = target.create_target_machine(cpu=cpu, opt=3)
    parsed = llvm.parse_assembly(write(module, lanes))
    parsed.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(parsed, builder)
    assert machine.emit_object(parsed)
    return machine.emit_assembly(parsed)


def fold(name: str):
    registers = fold_kernel.register_tile(FOLDS[name], 4)
    return functools.partial(fold_kernel.write, kind=FOLDS[name], registers=registers)


@pytest.mark.slow_except("bf16-linux")
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", FOLDS)
def test_loops_of_sums_are_vectors(name, machine):
    """Of four lanes, one instruction for a vector of products, and nothing spilled."""
    text = assembly(fold(name), 4, *MACHINES[machine])
    kind = FOLDS[name]
    if kind.narrow:
        products = 4
    else:
        products = 2 * {1: 12, 2: 8, 4: 6}[kind.rows_per_cell] * kind.rows_per_cell
    [cells] = re.findall(r"exact_cells:(.*?)\bret\b", text, re.DOTALL)
    loops = re.findall(r"\n\.?L\w+:[^\n]*\n(?:(?!\n\.?L\w+:).)*?\bb\.\w+", cells, re.S)
    loop = max(loops, key=lambda x: x.count("fmla") + x.count("fmul"))
    lines = [x.split()[0] for x in loop.splitlines() if x.startswith("\t")]
    vectors = re.findall(r"fm(?:la|ul)(?:\.4s)?\t.*", loop)
    iterations, rest = divmod(len(vectors), products)  # LLVM may unroll a short loop
    assert iterations in (1, 2)
    assert rest == 0
    assert len(lines) <= 1.6 * len(vectors) + 8, lines
    assert "[sp" not in loop
    assert text.lower().count("fpcr") == 3  # read, set, and set again


@pytest.mark.slow_except("largest-macos")
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_assembles(name, machine):
    lanes = 2 if name in ("distances", "lanes", "perturbed") else 4
    text = assembly(KERNELS[name], lanes, *MACHINES[machine])
    assert "fma" not in re.findall(r"\bbl\t(\S+)", text)  # no call of a library


def test_a_processor_without_kernels():
    unknown = Processor.of("riscv64-unknown-linux-gnu")
    assert (unknown.name, unknown.lanes) == ("riscv64", ())
    assert [Processor.of(x.triples[-1] + "-x-y") for x in PROCESSORS] == list(
        PROCESSORS
    )
