"""Kernels compiled for this processor, when first asked for, and known to XLA."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable

import jax
import llvmlite.binding as llvm
from llvmlite import ir

_LOCK = threading.Lock()
# By name. Code lives as long as its engine.
_ENGINES: dict[str, llvm.ExecutionEngine] = {}


@functools.cache
def lanes() -> int:
    """Floats of a vector of this processor; 0 where there are no kernels for it.

    That is without fused multiply-adds of vectors, and on others than x86-64, where
    they never ran.
    """
    if not llvm.get_process_triple().startswith("x86_64"):
        return 0
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 16
    return 8 if features.get("avx2") and features.get("fma") else 0


def registered(name: str, write: Callable[[ir.Module], str]) -> str:
    """The name of a kernel, which XLA knows from now on.

    Args:
        name: of the function, and of the call's target.
        write: fills a module of this processor's, and returns it as text.
    """
    with _LOCK:
        if name not in _ENGINES:
            kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
            capsule = jax.ffi.pycapsule(kind(_address(name, write)))
            jax.ffi.register_ffi_target(name, capsule, platform="cpu")
    return name


def address(name: str, write: Callable[[ir.Module], str]) -> int:
    """Where a function is that Python calls; arguments are as of `registered`."""
    with _LOCK:
        return _address(name, write)


def _address(name: str, write: Callable[[ir.Module], str]) -> int:
    if name not in _ENGINES:
        module = ir.Module(name)
        module.triple = llvm.get_process_triple()
        _ENGINES[name] = _compiled(write(module))
    return _ENGINES[name].get_function_address(name)


def _compiled(text: str) -> llvm.ExecutionEngine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
    )
    module = llvm.parse_assembly(text)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine
