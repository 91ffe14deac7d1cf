"""The foreign function interface by which XLA calls kernels, and its threads.

The layout of the structures is that of `xla/ffi/api/c_api.h`, version 0, which jaxlib
ships (`jax.ffi.include_dir()`); later versions only append fields. The blocks of a call
are numbered, and every thread takes the next one. The caller also works, so a call ends
even if no other thread is free. The memory that threads share is freed by the last of
them, maybe after the call.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from llvmlite import ir

from neuronjax.numerics.host_kernels.choice import of_this_host
from neuronjax.numerics.host_kernels.compiled import (
    I32,
    I64,
    POINTER,
    VOID,
    Code,
    Processor,
    int64,
    lanes,
    registered,
)

#: With fewer elements, waking another thread takes longer than it saves.
FEW = 1 << 15
#: Approximate number of elements that a thread takes at a time.
MANY = 1 << 14


#: Fields in the plan of a kernel of rows: the number of elements of a row, of its
#: parts, and of the elements of a part (the last part of a row may have fewer).
ROW_FIELDS = ("size", "parts", "each")


def words(
    blocks: int, threads: int, scratch_bytes: int, numbers: Iterable[int]
) -> np.ndarray[Any, Any]:
    """Return a plan: the numbers of blocks, of helper threads (all but the caller), and
    of scratch bytes per thread, then `numbers`, the kernel's own."""
    helpers = max(min(threads, blocks) - 1, 0)
    return np.array([blocks, helpers, scratch_bytes, *numbers], np.int64)


def element_words(blocks: int, elements: int, *numbers: int) -> np.ndarray:
    """Return the plan `words` for one thread, or for all if `elements` is above FEW."""
    return words(blocks, threads() if elements > FEW else 1, 128, numbers)


def row_words(x: jax.Array, each: int = MANY) -> np.ndarray:
    """Return the plan for reading the rows of x in parts of `each` elements."""
    outer, size = x.shape
    parts = row_parts(size, each)
    return element_words(outer * parts, x.size, size, parts, each)


def row_parts(size: int, each: int) -> int:
    """Return how many parts of `each` elements a row has."""
    return max(-(-size // each), 1)


def called(
    name: str,
    write: Callable[[ir.Module, int], str],
    results: Any,
    plan: np.ndarray,
    again: Callable[..., Any],
    *arrays: jax.Array,
    tables: Sequence[np.ndarray] = (),
) -> Any:
    """Return a kernel's results on arrays of rows; under `vmap`, one call has all rows.

    Args:
        name: the name of the kernel.
        write: fills a module for this processor, given the number of lanes of a vector,
            and returns it as text.
        results: shape and dtype of the result, or a tuple of these.
        plan: the result of `words`.
        again: plans and calls the kernel for any number of rows.
        arrays: the arrays, each with a first axis of rows.
        tables: further arrays, the same for any number of rows.
    """
    target = registered(name, lambda module: write(module, lanes()))
    kernel = jax.ffi.ffi_call(target, results)
    buffers = (*arrays, *tables, *jax.tree.leaves(results))
    signature = [n for x in buffers for n in (DTYPES[x.dtype.name], x.size)]
    plan = np.array([*plan, *signature], np.int64)

    @custom_vmap
    def call(*arrays: jax.Array) -> Any:
        first, *others = arrays
        found = kernel(of_this_host(first), *others, *tables, plan=plan)
        return tuple(found) if isinstance(results, tuple) else found

    @call.def_vmap
    def batched(count: int, mapped: Sequence[bool], *arrays: jax.Array) -> Any:
        stacked = [
            x if has else jnp.broadcast_to(x, (count, *x.shape))
            for x, has in zip(arrays, mapped, strict=True)
        ]
        rows = stacked[0].shape[1]
        found = again(*(x.reshape(count * rows, *x.shape[2:]) for x in stacked))
        split = jax.tree.map(lambda x: x.reshape(count, rows, *x.shape[1:]), found)
        return split, jax.tree.map(lambda _: True, found)

    return call(*arrays)


@functools.cache
def threads() -> int:
    affinity: Any = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


# Byte offsets in a call's frame: of pointers, and of the structures args, rets, attrs.
FRAME = {
    "extension": 8,
    "api": 16,
    "context": 24,
    "args": 40,
    "rets": 80,
    "attrs": 120,
}
FRAME_BYTES = 168
#: Byte offsets in the structures: of the number of entries, and of the pointer to the
#: entries (ARGUMENTS in args and rets, ATTRIBUTES in attrs).
COUNT, ARGUMENTS, ATTRIBUTES = 16, 32, 40
BUFFER_DTYPE, BUFFER_DATA, BUFFER_RANK, BUFFER_DIMS = 16, 24, 32, 40
ARRAY_SIZE, ARRAY_DATA = 8, 16
EXTENSION_TYPE, METADATA_TYPE, METADATA = 8, 1, 24
METADATA_MAJOR, METADATA_MINOR = 24, 28
API_MAJOR, API_MINOR = 0, 3
API = {"major": 32, "minor": 36, "create": 48, "destroy": 64, "schedule": 136}
SCHEDULE_ARGS_BYTES, ERROR_ARGS_BYTES, CREATE_ARGS_BYTES = 40, 24, 28
OPERANDS, MEMORY, VERSION = 3, 8, 12
ERRORS = {
    OPERANDS: "a kernel of neuronjax got operands that differ from the planned ones",
    MEMORY: "there is no memory for a kernel of neuronjax",
    VERSION: "a kernel of neuronjax does not know this version of XLA's interface",
}
#: XLA's numbers of the dtypes of buffers.
DTYPES = {
    **{"bool": 1, "int4": 21, "int8": 2, "int16": 3, "int32": 4, "int64": 5},
    **{"int2": 26, "uint2": 27, "uint4": 22, "uint8": 6, "uint16": 7, "uint32": 8},
    **{"uint64": 9, "float16": 10, "float32": 11, "float64": 12, "complex64": 15},
    **{"bfloat16": 16, "complex128": 18, "float8_e5m2": 19, "float8_e4m3fn": 20},
    **{"float8_e4m3b11fnuz": 23, "float8_e5m2fnuz": 24, "float8_e4m3fnuz": 25},
    **{"float8_e4m3": 28, "float8_e3m4": 29, "float4_e2m1fn": 32, "float8_e8m0fnu": 33},
}

# Indices of 8-byte words in the memory that threads share: the number of threads that
# may still use the memory, the next block, the number of finished blocks, the plan
# (`words`, where `called` adds the dtypes and sizes that operands must have). The
# addresses of the operands follow.
USERS, NEXT, DONE, PLAN = range(4)
BLOCKS, HELPERS, SCRATCH, OWN = range(PLAN, PLAN + 4)
# Further words, which only the caller uses: the arguments of its calls of XLA.
CALL_WORDS = (SCHEDULE_ARGS_BYTES + ERROR_ARGS_BYTES) // 8

# This is text because llvmlite's builder cannot write it: its pointers to functions and
# to the stack have types that LLVM no longer supports.
TEXT = """
define internal ptr @call(ptr %function, ptr %argument) {{
  %result = call ptr %function(ptr %argument)
  ret ptr %result
}}
define internal ptr @task() {{
  ret ptr @"{task}"
}}
"""
ERROR_TEXT = """
@message_{code} = internal constant [{size} x i8] c"{message}\\00"
define internal ptr @error_{code}(ptr %create) {{
  %arguments = alloca [4 x i64]
  %message = getelementptr i64, ptr %arguments, i64 2
  %code = getelementptr i64, ptr %arguments, i64 3
  store [2 x i64] [i64 {bytes}, i64 0], ptr %arguments
  store ptr @message_{code}, ptr %message
  store i64 {code}, ptr %code
  %error = call ptr %create(ptr %arguments)
  ret ptr %error
}}
"""
_ELSEWHERE = ir.Module()
_WRITTEN = {
    name: ir.Function(_ELSEWHERE, ir.FunctionType(result, arguments), name)
    for name, result, arguments in (
        ("call", POINTER, [POINTER, POINTER]),
        ("task", POINTER, []),
        *((f"error_{code}", POINTER, [POINTER]) for code in ERRORS),
    )
}


def block(module: ir.Module, name: str) -> ir.Function:
    """Return the empty function that a kernel of this name runs for each of its blocks:
    `void (i64 index, ptr operands, ptr plan, ptr scratch)`."""
    kind = ir.FunctionType(VOID, (I64, POINTER, POINTER, POINTER))
    function = ir.Function(module, kind, f"{name}_block")
    function.linkage = "internal"
    # LLVM could move inlined arithmetic to where the processor does not flush.
    function.attributes.add("noinline")
    return function


def kernel(
    module: ir.Module,
    name: str,
    counts: tuple[int, int, int],
    work: Callable[[Code, Any, list[Any], list[Any]], None],
) -> str:
    """Return, as text, the module of a kernel that needs no scratch memory. `counts`
    are the numbers of its arguments, its results, and the fields of its plan. `work`
    writes the code of a block, given the block's number, the plan's fields, and the
    addresses of arguments and results."""
    args, rets, fields = counts
    function = block(module, name)
    index, operands, plan, _ = function.args
    c = Code.of(function)
    work(c, index, c.numbers(plan, fields), c.pointers(operands, args + rets))
    c.ret_void()
    return build(module, name, function, args, rets, fields)


def row_part(c: Code, index: Any, plan: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """Return the part of a row on which block `index` works, for a `plan` of
    `ROW_FIELDS`: the row's number and size, the part's first element and size."""
    size, parts, each = plan
    start = c.mul(c.srem(index, parts), each)
    count = c.smaller(each, c.sub(size, start))
    return c.sdiv(index, parts), size, start, count


def build(
    module: ir.Module, name: str, block: ir.Function, args: int, rets: int, fields: int
) -> str:
    """Return, as text, the module with the function for XLA, `ptr name(ptr frame)`.
    The call has `args` arguments and `rets` results, whose addresses are the operands
    of `block`, and the kernel's own plan has `fields` fields. The module's triple names
    one of `compiled.PROCESSORS`."""
    processor = Processor.of(module.triple)
    operands = OWN + fields
    task = _task(module, f"{name}_task", block, operands, processor)
    function = ir.Function(module, ir.FunctionType(POINTER, [POINTER]), name)
    [frame] = function.args
    c = Code.of(function)
    extension = c.read(POINTER, c.at(frame, FRAME["extension"]), 8)
    with c.if_then(c.icmp_unsigned("!=", extension, NULL)):
        kind = c.read(I32, c.at(extension, EXTENSION_TYPE))
        with c.if_then(c.icmp_signed("==", kind, I32(METADATA_TYPE))):
            metadata = c.read(POINTER, c.at(extension, METADATA), 8)
            c.write(I32(API_MAJOR), c.at(metadata, METADATA_MAJOR))
            c.write(I32(API_MINOR), c.at(metadata, METADATA_MINOR))
            c.ret(NULL)
    plan, buffers = _checked(c, frame, args, rets, 3 + fields)
    asked = operands + len(buffers)
    size = int64(8 * (asked + CALL_WORDS))
    shared = c.call(c.external("malloc", POINTER, I64), [size])
    _require(c, frame, c.icmp_unsigned("!=", shared, NULL), MEMORY)
    for n in range(3 + fields):
        c.write(c.read(I64, c.at(plan, n, 8), 8), c.at(shared, PLAN + n, 8), 8)
    for n, buffer in enumerate(buffers):
        data = c.read(POINTER, c.at(buffer, BUFFER_DATA), 8)
        c.write(data, c.at(shared, operands + n, 8), 8)
    helpers = c.read(I64, c.at(shared, HELPERS, 8), 8)
    # USERS counts the caller twice: in `_task`, and in `_wait` afterwards.
    c.write(c.add(helpers, int64(2)), c.at(shared, USERS, 8), 8)
    for word in (NEXT, DONE):
        c.write(int64(0), c.at(shared, word, 8), 8)
    _ask(c, frame, shared, helpers, asked)
    c.call(task, [shared])
    blocks = c.read(I64, c.at(shared, BLOCKS, 8), 8)
    taken = _wait(c, shared, blocks, processor)
    _leave(c, shared)
    _require(c, frame, c.icmp_signed("==", taken, blocks), MEMORY)
    c.ret(NULL)
    texts = [str(module), TEXT.format(task=task.name)]
    for code, message in ERRORS.items():
        message_arguments = dict(code=code, message=message, size=len(message) + 1)
        texts.append(ERROR_TEXT.format(**message_arguments, bytes=CREATE_ARGS_BYTES))
    return "".join(texts)


NULL = ir.Constant(POINTER, None)


def _checked(
    c: Code, frame: Any, args: int, rets: int, words: int
) -> tuple[Any, list[Any]]:

    def require(left: Any, relation: str, right: Any, code: int = OPERANDS) -> None:
        _require(c, frame, c.icmp_unsigned(relation, left, right), code)

    require(c.read(I64, frame, 8), ">=", int64(FRAME_BYTES), VERSION)
    api = c.read(POINTER, c.at(frame, FRAME["api"]), 8)
    major, minor = (c.read(I32, c.at(api, API[x])) for x in ("major", "minor"))
    require(major, "==", I32(API_MAJOR), VERSION)
    require(minor, ">=", I32(API_MINOR), VERSION)
    pointers = []
    for table, count, where in (
        ("args", args, ARGUMENTS),
        ("rets", rets, ARGUMENTS),
        ("attrs", 1, ATTRIBUTES),
    ):
        there = c.read(I64, c.at(frame, FRAME[table] + COUNT), 8)
        require(there, "==", int64(count))
        base = c.read(POINTER, c.at(frame, FRAME[table] + where), 8)
        pointers += c.pointers(base, count)
    *buffers, array = pointers
    length = c.read(I64, c.at(array, ARRAY_SIZE), 8)
    require(length, "==", int64(words + 2 * len(buffers)))
    plan = c.read(POINTER, c.at(array, ARRAY_DATA), 8)
    for n, buffer in enumerate(buffers):
        dtype, elements = c.numbers(c.at(plan, words + 2 * n, 8), 2)
        require(c.zext(c.read(I32, c.at(buffer, BUFFER_DTYPE)), I64), "==", dtype)
        rank = c.read(I64, c.at(buffer, BUFFER_RANK), 8)
        dims = c.read(POINTER, c.at(buffer, BUFFER_DIMS), 8)
        size = _product(c, dims, rank)
        require(size, "==", elements)
    return plan, buffers


def _product(c: Code, base: Any, count: Any) -> Any:
    def step(n: Any, so_far: list[Any]) -> list[Any]:
        return [c.mul(so_far[0], c.read(I64, c.at(base, n, 8), 8))]

    return c.fold(count, [int64(1)], step)[0]


def _require(c: Code, frame: Any, condition: Any, code: int) -> None:
    """Make the kernel return the error `code` if `condition` does not hold."""
    with c.if_then(c.not_(condition), likely=False):
        create = _function(c, frame, "create")
        c.ret(c.call(_WRITTEN[f"error_{code}"], [create]))


def _function(c: Code, frame: Any, name: str) -> Any:
    api = c.read(POINTER, c.at(frame, FRAME["api"]), 8)
    return c.read(POINTER, c.at(api, API[name]), 8)


def _ask(c: Code, frame: Any, shared: Any, helpers: Any, at: int) -> None:
    """Submit the task `helpers` times to XLA's threads; a refusal lowers USERS by 1."""
    asked = c.at(shared, at, 8)
    refused = c.at(asked, SCHEDULE_ARGS_BYTES)
    for arguments, size in ((asked, SCHEDULE_ARGS_BYTES), (refused, ERROR_ARGS_BYTES)):
        c.write(int64(size), arguments, 8)
        c.write(NULL, c.at(arguments, 8), 8)
    context = c.read(POINTER, c.at(frame, FRAME["context"]), 8)
    for n, x in enumerate((context, c.call(_WRITTEN["task"], []), shared), start=2):
        c.write(x, c.at(asked, n, 8), 8)
    schedule, destroy = (_function(c, frame, name) for name in ("schedule", "destroy"))
    with c.loop(helpers):
        error = c.call(_WRITTEN["call"], [schedule, asked])
        with c.if_then(c.icmp_unsigned("!=", error, NULL)):
            c.write(error, c.at(refused, 16), 8)
            c.call(_WRITTEN["call"], [destroy, refused])
            _atomic(c, "sub", shared, USERS, 1)


def _atomic(c: Code, op: str, shared: Any, word: int, x: int | Any) -> Any:
    return c.atomic_rmw(op, c.at(shared, word, 8), c.value(x), "acq_rel")


def _wait(c: Code, shared: Any, blocks: Any, processor: Processor) -> Any:
    """Stop threads from taking blocks, and wait until the taken blocks are finished.
    Return their number: all blocks, unless the caller had no memory for a block."""
    taken = c.smaller(_atomic(c, "xchg", shared, NEXT, blocks), blocks)
    look, spin, over = (c.append_basic_block(x) for x in ("look", "spin", "over"))
    c.branch(look)
    c.position_at_end(look)
    done = _atomic(c, "add", shared, DONE, 0)
    c.cbranch(c.icmp_signed("<", done, taken), spin, over)
    c.position_at_end(spin)
    wait_instruction, constraint = processor.pause
    c.intrinsic(wait_instruction, VOID, *map(I32, constraint))
    c.branch(look)
    c.position_at_end(over)
    return taken


def _leave(c: Code, shared: Any) -> None:
    """Free the shared memory if no other thread uses it."""
    users = _atomic(c, "sub", shared, USERS, 1)
    with c.if_then(c.icmp_signed("==", users, int64(1))):
        c.call(c.external("free", VOID, POINTER), [shared])


def _task(
    module: ir.Module, name: str, block: ir.Function, operands: int, on: Processor
) -> ir.Function:
    """Return a function `void (ptr shared)` that runs blocks until all are taken."""
    task = ir.Function(module, ir.FunctionType(VOID, [POINTER]), name)
    [shared] = task.args
    c = Code.of(task)
    blocks = c.read(I64, c.at(shared, BLOCKS, 8), 8)
    is_left = c.icmp_signed("<", _atomic(c, "add", shared, NEXT, 0), blocks)
    with c.if_then(is_left):
        size = c.read(I64, c.at(shared, SCRATCH, 8), 8)
        allocated = c.call(c.external("malloc", POINTER, I64), [size])
        with c.if_then(c.icmp_unsigned("!=", allocated, NULL)):
            aligned = c.and_(c.add(c.ptrtoint(allocated, I64), int64(63)), int64(-64))
            scratch = c.inttoptr(aligned, POINTER)
            before, flushing = scratch, c.at(scratch, 8)
            _read_mode(c, on, before)
            c.write(c.or_(c.read(I64, before), int64(on.flushing)), flushing)
            _write_mode(c, on, flushing)
            take, work, done = (
                c.append_basic_block(x) for x in ("take", "work", "done")
            )
            c.branch(take)
            c.position_at_end(take)
            index = _atomic(c, "add", shared, NEXT, 1)
            c.cbranch(c.icmp_signed("<", index, blocks), work, done)
            c.position_at_end(work)
            where = (c.at(shared, operands, 8), c.at(shared, OWN, 8))
            c.call(block, [index, *where, c.at(scratch, 64)])
            _atomic(c, "add", shared, DONE, 1)
            c.branch(take)
            c.position_at_end(done)
            _write_mode(c, on, before)
            c.call(c.external("free", VOID, POINTER), [allocated])
    _leave(c, shared)
    c.ret_void()
    return task


def _read_mode(c: Code, on: Processor, place: Any) -> None:
    if on.mode_in_memory:
        c.intrinsic(on.read_mode, VOID, place)
    else:
        c.write(c.intrinsic(on.read_mode, I64), place, 8)


def _write_mode(c: Code, on: Processor, place: Any) -> None:
    mode = place if on.mode_in_memory else c.read(I64, place, 8)
    c.intrinsic(on.write_mode, VOID, mode)
