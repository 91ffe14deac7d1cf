"""How XLA calls a kernel: its foreign function interface, and the threads it lends.

The layout of its structures is that of `xla/ffi/api/c_api.h`, version 0, which jaxlib
ships (`jax.ffi.include_dir()`); fields are only ever appended. A call's blocks are
numbered, and every thread takes the next one: the caller works along, so that a call
ends whether or not a thread was to spare. What they share lives until the last one
that was asked has looked at it, which may be after the call.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from llvmlite import ir

from neuronjax.numerics.host_kernels.choice import host_call
from neuronjax.numerics.host_kernels.compiled import (
    I32,
    I64,
    POINTER,
    VOID,
    Code,
    int64,
    lanes,
    registered,
)

#: Elements below which another thread takes longer to wake than to help.
FEW = 1 << 15
#: Elements that a thread takes at a time, about.
MANY = 1 << 14


#: What a kernel of rows reads in its plan: the elements of a row, the parts that it is
#: cut into, and the elements of a part, the last of which may be shorter.
ROW_FIELDS = ("size", "parts", "each")


def words(
    blocks: int, threads: int, scratch_bytes: int, numbers: Iterable[int]
) -> np.ndarray[Any, Any]:
    """Return a plan as it travels: what `PLAN` says, then the kernel's own numbers.

    The caller is one of the threads, without blocks too.
    """
    helpers = max(min(threads, blocks) - 1, 0)
    return np.array([blocks, helpers, scratch_bytes, *numbers], np.int64)


def element_words(blocks: int, elements: int, *numbers: int) -> np.ndarray:
    """Return `words`, with several threads where there are more than FEW elements."""
    return words(blocks, threads() if elements > FEW else 1, 128, numbers)


def row_words(x: jax.Array, each: int = MANY) -> np.ndarray:
    """Return the `ROW_FIELDS` of a kernel that reads rows of x, [outer, size]."""
    outer, size = x.shape
    parts = row_parts(size, each)
    return element_words(outer * parts, x.size, size, parts, each)


def row_parts(size: int, each: int) -> int:
    """Return how many parts of so many elements a row has."""
    return max(-(-size // each), 1)


def called(
    name: str,
    write: Callable[[ir.Module, int], str],
    results: Any,
    plan: np.ndarray,
    again: Callable[..., Any],
    *arrays: jax.Array,
) -> Any:
    """Return what a kernel makes of arrays with rows in front.

    Args:
        name: of the kernel.
        write: fills a module of this processor's, and returns it as text; its second
            argument are the lanes of a vector.
        results: shape and dtype of the result, or of each in a tuple.
        plan: of `words`.
        again: as `by_rows`.
        arrays: what it is called with.
    """
    target = registered(name, lambda module: write(module, lanes()))
    kernel = host_call(target, results)

    def call(*arrays: jax.Array) -> Any:
        found = kernel(*arrays, plan=plan)
        return tuple(found) if isinstance(results, tuple) else found

    return by_rows(call, again)(*arrays)


def by_rows(call: Callable[..., Any], again: Callable[..., Any]) -> Callable[..., Any]:
    """Make a call of a kernel that `vmap` turns into one call with more rows.

    Args:
        call: the kernel's; all its arrays and results have rows in front.
        again: plans and calls the kernel for any number of rows.
    """
    mappable = custom_vmap(call)

    @mappable.def_vmap
    def batched(count: int, mapped: Sequence[bool], *arrays: jax.Array) -> Any:
        stacked = [
            x if has else jnp.broadcast_to(x, (count, *x.shape))
            for x, has in zip(arrays, mapped, strict=True)
        ]
        rows = stacked[0].shape[1]
        found = again(*(x.reshape(count * rows, *x.shape[2:]) for x in stacked))
        split = jax.tree.map(lambda x: x.reshape(count, rows, *x.shape[1:]), found)
        return split, jax.tree.map(lambda _: True, found)

    return mappable


@functools.cache
def threads() -> int:
    """As many as XLA has."""
    affinity: Any = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


# Offsets in bytes; those of args, rets and attrs are of the pointers inside.
FRAME = {
    "extension": 8,
    "api": 16,
    "context": 24,
    "args": 72,
    "rets": 112,
    "attrs": 160,
}
BUFFER_DATA, ARRAY_DATA = 24, 16
EXTENSION_TYPE, METADATA_TYPE, METADATA = 8, 1, 24
METADATA_MAJOR, METADATA_MINOR = 24, 28
API_MAJOR, API_MINOR = 0, 3
ERROR_DESTROY, SCHEDULE = 64, 136
SCHEDULE_ARGS_BYTES, ERROR_ARGS_BYTES = 40, 24

# What threads share, words of 8 bytes: who may still look at it, the next block, those
# done; then the plan, whose first three words say how many blocks there are, how many
# are asked to help, and how much scratch each needs; then the operands.
USERS, NEXT, DONE, PLAN = range(4)
BLOCKS, HELPERS, SCRATCH, OWN = range(PLAN, PLAN + 4)
# Beside them, of the caller alone: the arguments of its calls of XLA.
CALL_WORDS = (SCHEDULE_ARGS_BYTES + ERROR_ARGS_BYTES) // 8
# Flush subnormal results to zero, and take subnormal operands for zero.
FLUSH = 0x8040

# What llvmlite's builder cannot say, for its pointers to functions have types that LLVM
# no longer knows: a call of an address, and the address of a function.
TEXT = """
define internal ptr @call(ptr %function, ptr %argument) {{
  %result = call ptr %function(ptr %argument)
  ret ptr %result
}}
define internal ptr @task() {{
  ret ptr @"{task}"
}}
"""
_ELSEWHERE = ir.Module()
_WRITTEN = {
    "call": ir.Function(
        _ELSEWHERE, ir.FunctionType(POINTER, [POINTER, POINTER]), "call"
    ),
    "task": ir.Function(_ELSEWHERE, ir.FunctionType(POINTER, []), "task"),
}


def block(module: ir.Module, name: str) -> ir.Function:
    """`void (i64 index, ptr operands, ptr plan, ptr scratch)`, empty: what a kernel of
    this name does for each of its blocks."""
    kind = ir.FunctionType(VOID, (I64, POINTER, POINTER, POINTER))
    function = ir.Function(module, kind, f"{name}_block")
    function.linkage = "internal"
    return function


class RowPart(NamedTuple):
    """The part of a row that a block works on, in a kernel that reads `ROW_FIELDS`.

    Attributes:
        row: its number.
        size: elements of a row.
        start: the part's first element in the row.
        count: how many elements there are.
    """

    row: Any
    size: Any
    start: Any
    count: Any

    @classmethod
    def of(cls, c: Code, index: Any, plan: Any) -> RowPart:
        """Return that of a block, by its number."""
        size, parts, each = c.numbers(plan, len(ROW_FIELDS))
        start = c.mul(c.srem(index, parts), each)
        count = c.smaller(each, c.sub(size, start))
        return cls(c.sdiv(index, parts), size, start, count)


def build(
    module: ir.Module, name: str, block: ir.Function, args: int, rets: int, fields: int
) -> str:
    """The module with the function that XLA calls, `ptr name(ptr frame)`, as text.

    Args:
        module: for an x86-64.
        name: of the function.
        block: `void (i64 index, ptr operands, ptr plan, ptr scratch)`; operands are the
            addresses of the call's arguments and results.
        args: of the call, how many.
        rets: its results.
        fields: of the kernel's own plan.
    """
    operands = OWN + fields
    asked = operands + args + rets
    task = _task(module, f"{name}_task", block, operands)
    function = ir.Function(module, ir.FunctionType(POINTER, [POINTER]), name)
    [frame] = function.args
    c = Code.of(function)
    extension = c.read(POINTER, c.at(frame, FRAME["extension"]), 8)
    null = ir.Constant(POINTER, None)
    with c.if_then(c.icmp_unsigned("!=", extension, null)):
        kind = c.read(I32, c.at(extension, EXTENSION_TYPE))
        with c.if_then(c.icmp_signed("==", kind, I32(METADATA_TYPE))):
            _describe(c, extension)
            c.ret(null)
    attrs = c.read(POINTER, c.at(frame, FRAME["attrs"]), 8)
    plan = c.read(POINTER, c.at(c.read(POINTER, attrs, 8), ARRAY_DATA), 8)
    size = 8 * (asked + CALL_WORDS)
    shared = c.call(c.external("malloc", POINTER, I64), [int64(size)])
    for n in range(3 + fields):
        c.write(c.read(I64, c.at(plan, n, 8), 8), c.at(shared, PLAN + n, 8), 8)
    at = operands
    for table, count in (("args", args), ("rets", rets)):
        buffers = c.read(POINTER, c.at(frame, FRAME[table]), 8)
        for n in range(count):
            buffer = c.read(POINTER, c.at(buffers, n, 8), 8)
            data = c.read(POINTER, c.at(buffer, BUFFER_DATA), 8)
            c.write(data, c.at(shared, at, 8), 8)
            at += 1
    helpers = c.read(I64, c.at(shared, HELPERS, 8), 8)
    # The caller counts twice: it works along, and then waits.
    c.write(c.add(helpers, int64(2)), c.at(shared, USERS, 8), 8)
    for word in (NEXT, DONE):
        c.write(int64(0), c.at(shared, word, 8), 8)
    _ask(c, frame, shared, helpers, asked)
    c.call(task, [shared])
    _wait(c, shared)
    _leave(c, shared)
    c.ret(null)
    return f"{module}{TEXT.format(task=task.name)}"


def _describe(c: Code, extension: Any) -> None:
    """XLA asks which version of its interface this is."""
    metadata = c.read(POINTER, c.at(extension, METADATA), 8)
    c.write(I32(API_MAJOR), c.at(metadata, METADATA_MAJOR))
    c.write(I32(API_MINOR), c.at(metadata, METADATA_MINOR))


def _ask(c: Code, frame: Any, shared: Any, helpers: Any, at: int) -> None:
    """Hands the task to XLA's threads; one that is refused is not waited for."""
    api = c.read(POINTER, c.at(frame, FRAME["api"]), 8)
    context = c.read(POINTER, c.at(frame, FRAME["context"]), 8)
    schedule = c.read(POINTER, c.at(api, SCHEDULE), 8)
    destroy = c.read(POINTER, c.at(api, ERROR_DESTROY), 8)
    asked = c.at(shared, at, 8)
    refused = c.at(asked, SCHEDULE_ARGS_BYTES)
    null = ir.Constant(POINTER, None)
    for arguments, size in ((asked, SCHEDULE_ARGS_BYTES), (refused, ERROR_ARGS_BYTES)):
        c.write(int64(size), arguments, 8)
        c.write(null, c.at(arguments, 8), 8)
    c.write(context, c.at(asked, 16), 8)
    c.write(c.call(_WRITTEN["task"], []), c.at(asked, 24), 8)
    c.write(shared, c.at(asked, 32), 8)
    with c.loop(helpers):
        error = c.call(_WRITTEN["call"], [schedule, asked])
        with c.if_then(c.icmp_unsigned("!=", error, null)):
            c.write(error, c.at(refused, 16), 8)
            c.call(_WRITTEN["call"], [destroy, refused])
            c.atomic_rmw("sub", c.at(shared, USERS, 8), int64(1), "acq_rel")


def _wait(c: Code, shared: Any) -> None:
    """For blocks that others have taken: all are in work, or done."""
    spin, over = c.append_basic_block("spin"), c.append_basic_block("over")
    c.branch(spin)
    c.position_at_end(spin)
    done = c.atomic_rmw("add", c.at(shared, DONE, 8), int64(0), "acq_rel")
    blocks = c.read(I64, c.at(shared, BLOCKS, 8), 8)
    c.cbranch(c.icmp_signed("<", done, blocks), spin, over)
    c.position_at_end(over)


def _leave(c: Code, shared: Any) -> None:
    """The last one to leave frees what was shared."""
    users = c.atomic_rmw("sub", c.at(shared, USERS, 8), int64(1), "acq_rel")
    with c.if_then(c.icmp_signed("==", users, int64(1))):
        c.call(c.external("free", VOID, POINTER), [shared])


def _task(
    module: ir.Module, name: str, block: ir.Function, operands: int
) -> ir.Function:
    """`void (ptr shared)`: works on blocks while there are any."""
    task = ir.Function(module, ir.FunctionType(VOID, [POINTER]), name)
    [shared] = task.args
    c = Code.of(task)
    work, rest = c.append_basic_block("work"), c.append_basic_block("rest")
    over = c.append_basic_block("over")
    blocks = c.read(I64, c.at(shared, BLOCKS, 8), 8)

    def take() -> Any:
        return c.atomic_rmw("add", c.at(shared, NEXT, 8), int64(1), "acq_rel")

    first = take()
    c.cbranch(c.icmp_signed("<", first, blocks), work, over)
    c.position_at_end(work)
    size = c.read(I64, c.at(shared, SCRATCH, 8), 8)
    allocated = c.call(c.external("malloc", POINTER, I64), [size])
    address = c.ptrtoint(allocated, I64)
    aligned = c.and_(c.add(address, int64(63)), int64(-64))
    scratch = c.inttoptr(aligned, POINTER)
    mode = _flushing(c, scratch)
    scratch = c.at(scratch, 64)
    c.branch(rest)
    c.position_at_end(rest)
    index = c.phi(I64)
    index.add_incoming(first, work)
    c.call(block, [index, c.at(shared, operands, 8), c.at(shared, OWN, 8), scratch])
    c.atomic_rmw("add", c.at(shared, DONE, 8), int64(1), "acq_rel")
    following = take()
    index.add_incoming(following, rest)
    done = c.append_basic_block("done")
    c.cbranch(c.icmp_signed("<", following, blocks), rest, done)
    c.position_at_end(done)
    _restored(c, mode)
    c.call(c.external("free", VOID, POINTER), [allocated])
    c.branch(over)
    c.position_at_end(over)
    _leave(c, shared)
    c.ret_void()
    return task


def _flushing(c: Code, memory: Any) -> Any:
    """Makes this thread flush subnormals; returns what says how it was before."""
    before, changed = memory, c.at(memory, 4)
    c.call(c.external("llvm.x86.sse.stmxcsr", VOID, POINTER), [before])
    c.write(c.or_(c.read(I32, before), I32(FLUSH)), changed)
    c.call(c.external("llvm.x86.sse.ldmxcsr", VOID, POINTER), [changed])
    return before


def _restored(c: Code, before: Any) -> None:
    c.call(c.external("llvm.x86.sse.ldmxcsr", VOID, POINTER), [before])
