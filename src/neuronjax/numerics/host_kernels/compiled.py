"""Kernels compiled for this processor, when first asked for, and known to XLA.

The code is kept in the user's cache folder, for compiling takes a second where a
policy's kernels are many. It belongs to the kernel's text, the processor and LLVM; a
file that does not hold, to the bit, what was compiled of these counts as lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import threading
from collections.abc import Callable

import jax
import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

from neuronjax.numerics.host_kernels import kept_files

DIGEST_BYTES = 16
#: Of code; the largest kernel's is some 50 KB.
MOST_BYTES = 1 << 24

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
    code = llvm.ObjectFileRef.from_data(_code(text))
    nothing = llvm.parse_assembly("")
    engine = llvm.create_mcjit_compiler(nothing, _machine())
    engine.add_object_file(code)
    engine.finalize_object()
    return engine


def _machine() -> llvm.TargetMachine:
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
    )


def _code(text: str) -> bytes:
    """The machine code of a module, an object file."""
    about = (
        text,
        llvm.get_process_triple(),
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
        llvmlite.__version__,
        str(llvm.llvm_version_info),
    )
    name = _digest("\n".join(about).encode())
    path = kept_files.cache_folder() / "kernels" / f"{name.hex()}.o"
    with contextlib.suppress(OSError, ValueError):  # not there, or another thing
        kept = kept_files.read(path, MOST_BYTES)
        if kept[:DIGEST_BYTES] == _digest(name + kept[DIGEST_BYTES:]):
            return kept[DIGEST_BYTES:]
    code = _emitted(text)
    # A read-only home or a full disk costs time, not correctness.
    with contextlib.suppress(OSError):
        kept_files.replace(path, _digest(name + code) + code)
    return code


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def _emitted(text: str) -> bytes:
    machine = _machine()
    module = llvm.parse_assembly(text)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return machine.emit_object(module)
