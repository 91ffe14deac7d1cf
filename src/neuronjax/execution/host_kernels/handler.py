"""How XLA calls a kernel: its foreign function interface, and the threads it lends.

The layout of its structures is that of `xla/ffi/api/c_api.h`, version 0, which jaxlib
ships (`jax.ffi.include_dir()`); fields are only ever appended. A call's blocks are
numbered, and every thread takes the next one: the caller works along, so that a call
ends whether or not a thread was to spare. What they share lives until the last one
that was asked has looked at it, which may be after the call.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from neuronjax.execution.host_kernels.code import I32, I64, POINTER, VOID, Code, int64
from neuronjax.execution.host_kernels.plan import FIELDS

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
# done, their number, then operands and plan.
USERS, NEXT, DONE, BLOCKS, SCRATCH, OPERANDS = range(6)
PLAN = OPERANDS + 5
# Beside them, of the caller alone: the arguments of its calls of XLA.
ASKED = PLAN + len(FIELDS)
REFUSED = ASKED + SCHEDULE_ARGS_BYTES // 8
SHARED_WORDS = REFUSED + ERROR_ARGS_BYTES // 8
# Flush subnormal results to zero, and take subnormal operands for zero.
FLUSH_X86 = 0x8040

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


def build(module: ir.Module, name: str, block: ir.Function, operands: int) -> str:
    """The module with the function that XLA calls, `ptr name(ptr frame)`, as text.

    Args:
        module: for an x86-64 or another processor, as its triple says.
        name: of the function.
        block: `void (i64 index, ptr operands, ptr plan, ptr scratch)`.
        operands: the call's arrays before the last, which is a word: the bytes of
            scratch that a thread needs.
    """
    task = _task(module, f"{name}_task", block)
    function = ir.Function(module, ir.FunctionType(POINTER, [POINTER]), name)
    [frame] = function.args
    c = Code.of(function)
    extension = c.read(POINTER, c.at(frame, FRAME["extension"]), 8)
    null = ir.Constant(POINTER, None)
    with c.if_then(c.icmp_unsigned("!=", extension, null)):
        _describe(c, extension)
        c.ret(null)
    args = c.read(POINTER, c.at(frame, FRAME["args"]), 8)
    rets = c.read(POINTER, c.at(frame, FRAME["rets"]), 8)
    attrs = c.read(POINTER, c.at(frame, FRAME["attrs"]), 8)
    plan = c.read(POINTER, c.at(c.read(POINTER, attrs, 8), ARRAY_DATA), 8)
    shared = c.call(c.external("malloc", POINTER, I64), [int64(8 * SHARED_WORDS)])

    def put(word: int, value: Any) -> None:
        c.write(value, c.at(shared, word, 8), 8)

    def buffer(table: Any, n: int) -> Any:
        return c.read(
            POINTER, c.at(c.read(POINTER, c.at(table, n, 8), 8), BUFFER_DATA), 8
        )

    for n in range(len(FIELDS)):
        put(PLAN + n, c.read(I64, c.at(plan, n, 8), 8))
    field = {name: n for n, name in enumerate(FIELDS)}
    blocks = c.read(I64, c.at(plan, field["blocks"], 8), 8)
    helpers = c.read(I64, c.at(plan, field["helpers"], 8), 8)
    put(USERS, c.add(helpers, int64(1)))
    put(NEXT, int64(0))
    put(DONE, int64(0))
    put(BLOCKS, blocks)
    put(SCRATCH, c.read(I64, c.at(plan, len(FIELDS), 8), 8))
    put(OPERANDS, buffer(args, 0))
    put(OPERANDS + 1, buffer(args, 1))
    put(OPERANDS + 2, buffer(rets, 0))
    put(OPERANDS + 3, buffer(args, min(2, operands - 1)))
    put(OPERANDS + 4, buffer(args, min(3, operands - 1)))
    _ask(c, frame, shared, helpers)
    c.atomic_rmw("add", c.at(shared, USERS, 8), int64(1), "acq_rel")  # to outlive it
    c.call(task, [shared])
    _wait(c, shared)
    _leave(c, shared)
    c.ret(null)
    return f"{module}{TEXT.format(task=task.name)}"


def _describe(c: Code, extension: Any) -> None:
    """XLA asks which version of its interface this is."""
    kind = c.read(I32, c.at(extension, EXTENSION_TYPE))
    with c.if_then(c.icmp_signed("==", kind, I32(METADATA_TYPE))):
        metadata = c.read(POINTER, c.at(extension, METADATA), 8)
        c.write(I32(API_MAJOR), c.at(metadata, METADATA_MAJOR))
        c.write(I32(API_MINOR), c.at(metadata, METADATA_MINOR))


def _ask(c: Code, frame: Any, shared: Any, helpers: Any) -> None:
    """Hands the task to XLA's threads; one that is refused is not waited for."""
    api = c.read(POINTER, c.at(frame, FRAME["api"]), 8)
    context = c.read(POINTER, c.at(frame, FRAME["context"]), 8)
    schedule = c.read(POINTER, c.at(api, SCHEDULE), 8)
    destroy = c.read(POINTER, c.at(api, ERROR_DESTROY), 8)
    asked, refused = (c.at(shared, word, 8) for word in (ASKED, REFUSED))
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


def _task(module: ir.Module, name: str, block: ir.Function) -> ir.Function:
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
    c.call(block, [index, c.at(shared, OPERANDS, 8), c.at(shared, PLAN, 8), scratch])
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
    if not c.module.triple.startswith("x86_64"):
        read = ir.InlineAsm(ir.FunctionType(I64, []), "mrs $0, fpcr", "=r", True)
        before = c.call(read, [])
        _write_fpcr(c, c.or_(before, int64(1 << 24)))
        return before
    before, changed = memory, c.at(memory, 4)
    c.call(c.external("llvm.x86.sse.stmxcsr", VOID, POINTER), [before])
    c.write(c.or_(c.read(I32, before), I32(FLUSH_X86)), changed)
    c.call(c.external("llvm.x86.sse.ldmxcsr", VOID, POINTER), [changed])
    return before


def _restored(c: Code, before: Any) -> None:
    if not c.module.triple.startswith("x86_64"):
        _write_fpcr(c, before)
        return
    c.call(c.external("llvm.x86.sse.ldmxcsr", VOID, POINTER), [before])


def _write_fpcr(c: Code, value: Any) -> None:
    kind = ir.FunctionType(VOID, [I64])
    c.call(ir.InlineAsm(kind, "msr fpcr, $0", "r", True), [value])
