"""Kernels compiled for this processor when they are first needed, and registered with
XLA.

The code is kept in the user's cache folder, because compiling takes a second if a
policy has many kernels. A file's name is a digest of the kernel's text, the processor
and the version of LLVM. The file begins with a digest of its name and code, and is
ignored if this digest is wrong.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

from neuronjax.numerics.host_kernels import kept_files

DIGEST_BYTES = 16
#: A longer file is not read; the largest kernel has about 50 KB.
MOST_BYTES = 1 << 24

_LOCK = threading.RLock()
# Name of a kernel -> LLVM's engine, which owns the code.
_ENGINES: dict[str, llvm.ExecutionEngine] = {}


@dataclass(frozen=True)
class Processor:
    """The properties of an architecture that kernels need; LLVM knows the rest.

    Attributes:
        name: the usual name.
        triples: the first parts of its LLVM triples.
        lanes: pairs (floats in a vector, processor features needed), the widest first.
        read_mode, write_mode: LLVM's functions that read and write the arithmetic mode.
        mode_in_memory: whether these functions take an address instead of the mode.
        flushing: the bits of the mode by which the processor flushes subnormals to
            zero.
        flushes_first: whether a result below 2^-126 becomes zero even if rounding would
            make it 2^-126.
        by_lane: whether an instruction multiplies a vector by one lane of another
            vector, so that factors can be read as vectors.
        pause: LLVM's function for the body of a waiting loop, and its arguments.
    """

    name: str
    triples: tuple[str, ...] = ()
    lanes: tuple[tuple[int, tuple[str, ...]], ...] = ()
    read_mode: str = ""
    write_mode: str = ""
    mode_in_memory: bool = False
    flushing: int = 0
    flushes_first: bool = False
    by_lane: bool = False
    pause: tuple[str, tuple[int, ...]] = ("", ())

    @classmethod
    def of(cls, triple: str) -> Processor:
        """Return the processor of an LLVM triple; with no kernels `lanes` is ()."""
        name = triple.split("-")[0]
        return next((x for x in PROCESSORS if name in x.triples), cls(name))


PROCESSORS = (
    Processor(
        name="x86-64",
        triples=("x86_64",),
        lanes=((16, ("avx512f",)), (8, ("avx2", "fma"))),
        read_mode="llvm.x86.sse.stmxcsr",
        write_mode="llvm.x86.sse.ldmxcsr",
        mode_in_memory=True,
        flushing=0x8040,
        pause=("llvm.x86.sse2.pause", ()),
    ),
    Processor(
        name="arm64",
        triples=("aarch64", "arm64"),
        lanes=((4, ()),),
        read_mode="llvm.aarch64.get.fpcr",
        write_mode="llvm.aarch64.set.fpcr",
        flushing=1 << 24,
        flushes_first=True,
        by_lane=True,
        pause=("llvm.aarch64.hint", (1,)),
    ),
)


@functools.cache
def lanes() -> int:
    """Return how many floats a vector of this processor has; 0 if it has no kernels."""
    known, features = processor(), llvm.get_host_cpu_features()
    fits = (n for n, needed in known.lanes if all(map(features.get, needed)))
    return next(fits, 0)


def processor() -> Processor:
    return Processor.of(llvm.get_process_triple())


def registered(name: str, write: Callable[[ir.Module], str]) -> str:
    """Register a kernel with XLA under the name of its function, and return the name.
    `write` fills a module for this processor, and returns it as text."""
    with _LOCK:
        if name not in _ENGINES:
            kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
            capsule = jax.ffi.pycapsule(kind(address(name, write)))
            jax.ffi.register_ffi_target(name, capsule, platform="cpu")
    return name


def address(name: str, write: Callable[[ir.Module], str]) -> int:
    """Compile a kernel and return its address; the arguments are as in `registered`."""
    with _LOCK:
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
    with contextlib.suppress(OSError, ValueError):  # no such file, or not one of ours
        kept = kept_files.read(path, MOST_BYTES)
        if kept[:DIGEST_BYTES] == _digest(name + kept[DIGEST_BYTES:]):
            return kept[DIGEST_BYTES:]
    code = _emitted(text)
    # With a read-only home or a full disk the next process compiles again.
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


I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()
POINTER = ir.PointerType()
VOID = ir.VoidType()

Value = Any


def int64(x: int) -> ir.Constant:
    return ir.Constant(I64, x)


class Code(ir.IRBuilder):
    """An LLVM IR builder that can also write loops, reads and vector operations."""

    @classmethod
    def of(cls, function: ir.Function) -> Code:
        return cls(function.append_basic_block("entry"))

    def value(self, x: int | Value) -> Value:
        """Return `x`, an index that may be a Python integer, as an LLVM value."""
        return int64(x) if isinstance(x, int) else x

    @contextlib.contextmanager
    def loop(self, stop: int | Value, start: int | Value = 0) -> Iterator[Value]:
        """Write a loop from `start` to `stop`, and yield its index."""
        with self._loop(self.value(start), self.value(stop), []) as (index, _, _):
            yield index

    def strips(self, count: Value, lanes: int) -> Iterator[tuple[Value, int]]:
        """Write two loops over `count` elements: yield (index, lanes) in the loop over
        whole vectors, then (index, 0) in the loop over the remaining elements."""
        whole = self.sdiv(count, int64(lanes))
        with self.loop(whole) as n:
            yield self.mul(n, int64(lanes)), lanes
        with self.loop(count, self.mul(whole, int64(lanes))) as n:
            yield n, 0

    def fold(
        self,
        stop: int | Value,
        initial: Sequence[Value],
        step: Callable[[Value, list[Value]], Sequence[Value]],
    ) -> list[Value]:
        """Write a loop of `stop` iterations, in which `step` maps the index and the
        values so far, `initial` at first, to new values; return the last values."""
        with self._loop(int64(0), self.value(stop), initial) as (index, carried, next_):
            next_ += step(index, carried)
        return self._after

    def fold_elements(
        self,
        count: Value,
        lanes: int,
        initial: Callable[[int], Sequence[Value]],
        step: Callable[[Value, int, list[Value]], Sequence[Value]],
    ) -> Iterator[tuple[Value, Value]]:
        """Write a fold over `count` elements, by vectors, then one over the remaining
        elements; yield pairs of a vector of values and one value. `step` maps an index,
        the lanes (0 for one element) and the values so far to new values."""
        whole = self.sdiv(count, int64(lanes))

        def of(width: int, base: Value) -> Callable[[Value, list[Value]], Any]:
            size = int64(width or 1)
            return lambda n, x: step(self.add(base, self.mul(n, size)), width, x)

        done = self.mul(whole, int64(lanes))
        vectors = self.fold(whole, initial(lanes), of(lanes, int64(0)))
        rest = self.fold(self.sub(count, done), initial(0), of(0, done))
        yield from zip(vectors, rest, strict=True)

    @contextlib.contextmanager
    def _loop(self, start: Value, stop: Value, initial: Sequence[Value]) -> Iterator:
        before = self.block
        head, body, end = (
            self.append_basic_block(name) for name in ("head", "body", "end")
        )
        self.branch(head)
        self.position_at_end(head)
        index = self.phi(I64)
        carried = [self.phi(x.type) for x in initial]
        self.cbranch(self.icmp_signed("<", index, stop), body, end)
        self.position_at_end(body)
        following: list[Value] = []
        yield index, carried, following
        pairs = [(index, start, self.add(index, int64(1)))]
        pairs += zip(carried, initial, following, strict=True)
        for phi, first, next_ in pairs:
            phi.add_incoming(first, before)
            phi.add_incoming(next_, self.block)
        self.branch(head)
        self.position_at_end(end)
        self._after = carried

    def at(self, base: Value, index: int | Value, size: int = 1) -> Value:
        """Return the address of element `index` of elements of `size` bytes."""
        offset = self.value(index)
        if size != 1:
            offset = self.mul(offset, int64(size))
        return self.gep(base, [offset], source_etype=I8)

    def read(self, kind: Any, address: Value, align: int = 4) -> Value:
        return self.load(address, align=align, typ=kind)

    def element(self, base: Value, index: Value, kind: Any, lanes: int) -> Value:
        """Return the element at `index`, or with `lanes` a vector that begins there."""
        size = 8 if kind in (I64, F64) else 4
        return self.read(shaped(kind, lanes), self.at(base, index, size), size)

    def numbers(self, base: Value, count: int) -> list[Value]:
        """Return the `count` 64-bit integers stored at `base`, one after the other."""
        return [self.read(I64, self.at(base, n, 8), 8) for n in range(count)]

    def pointers(self, base: Value, count: int) -> list[Value]:
        """Return the `count` addresses stored at `base`, one after the other."""
        return [self.read(POINTER, self.at(base, n, 8), 8) for n in range(count)]

    def write(self, value: Value, address: Value, align: int = 4) -> None:
        self.store(value, address, align=align)

    def smaller(self, a: Value, b: Value) -> Value:
        return self.select(self.icmp_signed("<", a, b), a, b)

    def rounded_up(self, x: Value, by: Value) -> Value:
        """Return x / by, rounded up."""
        return self.sdiv(self.add(x, self.sub(by, int64(1))), by)

    def splat(self, x: Value, lanes: int) -> Value:
        """Return a vector of copies of `x`; `x` itself if `lanes` is 0."""
        if not lanes:
            return x
        kind = ir.VectorType(x.type, lanes)
        one = self.insert_element(ir.Constant(kind, ir.Undefined), x, I32(0))
        return self.shuffled(one, one, [0] * lanes)

    def split(self, x: Value) -> list[Value]:
        """Return the lanes of a vector."""
        return [self.extract_element(x, I32(n)) for n in range(x.type.count)]

    def shuffled(self, a: Value, b: Value, lanes: Iterable[int]) -> Value:
        """Return the given lanes of a and b, where b's lanes are numbered after a's."""
        numbers = [int(n) for n in lanes]
        mask = ir.Constant(ir.VectorType(I32, len(numbers)), numbers)
        return self.shuffle_vector(a, b, mask)

    def like(self, x: Value, bits: int) -> ir.Constant:
        """Return the constant `bits`, with the number of lanes and the width of x."""
        lanes = getattr(x.type, "count", 0)
        element = x.type.element if lanes else x.type
        word = I64 if element in (I64, F64) else I32
        if lanes:
            return ir.Constant(ir.VectorType(word, lanes), [bits] * lanes)
        return ir.Constant(word, bits)

    def number(self, x: Value, value: float) -> ir.Constant:
        """Return the constant `value`, with the type and the number of lanes of x."""
        lanes = getattr(x.type, "count", 0)
        return ir.Constant(x.type, [value] * lanes if lanes else value)

    def intrinsic(self, name: str, result: Any, *arguments: Value) -> Value:
        """Return the result of calling a function of LLVM or of the C library."""
        kinds = [x.type for x in arguments]
        return self.call(self.external(name, result, *kinds), arguments)

    def external(self, name: str, result: Any, *arguments: Any) -> ir.Function:
        """Declare a function of LLVM or of the C library, once, and return it."""
        known = self.module.globals.get(name)
        kind = ir.FunctionType(result, arguments)
        return ir.Function(self.module, kind, name) if known is None else known

    def fused(self, a: Value, b: Value, c: Value) -> Value:
        """Return a * b + c of floats or vectors of them, rounded once."""
        lanes = a.type.count if isinstance(a.type, ir.VectorType) else 0
        name = f"llvm.fma.v{lanes}f32" if lanes else "llvm.fma.f32"
        return self.call(self.external(name, a.type, *[a.type] * 3), [a, b, c])


def array_function(module: ir.Module, arrays: int) -> tuple[Code, Sequence[Value]]:
    """Begin a function with the module's name, which Python calls; return its code and
    its arguments: the addresses of `arrays` arrays, and the number of elements."""
    kind = ir.FunctionType(VOID, (*[POINTER] * arrays, I64))
    function = ir.Function(module, kind, module.name)
    return Code.of(function), function.args


# -- one element, or a vector of `lanes` elements --------------------------------------

#: Bytes of a stored element; "table" means codes of 8 bits.
SIZES = {"float32": 4, "bfloat16": 2, "table": 1}


def shaped(kind: Any, lanes: int) -> Any:
    """Return the type of an element, or of a vector of `lanes` elements."""
    return ir.VectorType(kind, lanes) if lanes else kind


def stored_bits(c: Code, stored: str, base: Any, index: Any, lanes: int) -> Any:
    """Return the FP32 bits of elements that are stored as "float32" or "bfloat16"."""
    address = c.at(base, index, SIZES[stored])
    wide = shaped(I32, lanes)
    if stored == "float32":
        return c.read(wide, address)
    bits = c.zext(c.read(shaped(I16, lanes), address, 2), wide)
    return c.shl(bits, c.like(bits, 16))


def as_floats(c: Code, bits: Any) -> Any:
    return c.bitcast(bits, shaped(F32, getattr(bits.type, "count", 0)))
