"""Kernels compiled for this processor, when first asked for, and known to XLA."""

from __future__ import annotations

import ctypes
import functools
import threading

import jax
import llvmlite.binding as llvm
from llvmlite import ir

from neuronjax.execution.host_kernels import fold_kernel, handler
from neuronjax.execution.host_kernels.fold_kernel import FoldKind, RegisterTile

_LOCK = threading.Lock()
_ENGINES: list[llvm.ExecutionEngine] = []  # code lives as long as its engine


@functools.cache
def lanes() -> int:
    """Floats of a vector of this processor; 0 without fused multiply-add of vectors."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 16
    if features.get("avx2") and features.get("fma"):
        return 8
    return 4 if llvm.get_process_triple().startswith(("aarch64", "arm64")) else 0


# Rows of running sums, two vectors each, that leave registers for operands and
# products, by lanes and by rows in a cell.
_ROWS = {
    16: {1: 12, 2: 8, 4: 6},
    8: {1: 6, 2: 4, 4: 4},
    4: {1: 8, 2: 6, 4: 6},
}


def register_tile(kind: FoldKind) -> RegisterTile:
    """As much of a result as registers hold."""
    if kind.narrow:
        return RegisterTile(rows=1, vectors=4, lanes=lanes())
    rows = _ROWS[lanes()][kind.rows_per_cell]
    return RegisterTile(rows=rows, vectors=2, lanes=lanes())


@functools.cache
def register(kind: FoldKind) -> str:
    """The name of the kernel's target, which XLA knows from now on."""
    with _LOCK:
        address = _compile(kind)
    call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)
    jax.ffi.register_ffi_target(kind.name, jax.ffi.pycapsule(call), platform="cpu")
    return kind.name


def source(kind: FoldKind) -> str:
    """The kernel in LLVM's representation."""
    module = ir.Module(kind.name)
    module.triple = llvm.get_process_triple()
    block = fold_kernel.build(module, kind, register_tile(kind))
    return handler.build(module, kind.name, block, operands=2 + kind.tables)


def _compile(kind: FoldKind) -> int:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=3
    )
    module = llvm.parse_assembly(source(kind))
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _ENGINES.append(engine)
    return engine.get_function_address(kind.name)
