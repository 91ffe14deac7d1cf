"""Parses untrusted programs, as a script in a process of its own.

The process exchanges frames on its standard input and output: eight bytes of length, a
line of JSON, then bytes. A request names the format; the answer is the program as MLIR
bytecode of StableHLO, CHLO, func and sdy ops, or an error. If jaxlib crashes or loops
on a malformed file, only this process ends.

It imports jaxlib but not jax, and therefore starts three times as fast. `jaxlib._jax`,
which `jax.extend.mlir` re-exports, and `jaxlib._hlo`, which parses HLO text, have no
public names in jaxlib; `tests/capture/test_artifacts.py` fails if they move.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from jaxlib import _hlo, _jax  # type: ignore[attr-defined]
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

sys.path.append(os.path.dirname(__file__))

from saved_forms import bytecode, found, is_main, replace  # type: ignore

LENGTH = struct.Struct("<Q")
# Deepest nesting of regions that is accepted: the decoder and the interpreter recurse.
DEEPEST = 100
# Bytes that jaxlib may write besides the answer, such as errors that quote the file.
LOG_BYTES = 64 << 20
PORTABLE = b"ML\xefR\rStableHLO_v"

# Ops that StableHLO has replaced by others; a pass rewrites them.
DEPRECATED = {
    f"stablehlo.{name}"
    for name in ("broadcast", "dot", "einsum", "unary_einsum", "create_token")
}
_LEGALIZE_DEPRECATED = (
    "builtin.module(func.func(stablehlo-legalize-deprecated-ops{fail-on-unused=false}))"
)
_REFINE_SHAPES = (
    "builtin.module(stablehlo-refine-shapes,func.func(stablehlo-canonicalize-dynamism))"
)


class Refused(Exception):
    """Raised for a program that cannot be accepted.

    Attributes:
        kind: "invalid", or "unsupported" for a program that another version can read.
        remedy: what the user can do.
    """

    def __init__(self, what: str, remedy: str, kind: str = "invalid") -> None:
        super().__init__(what)
        self.remedy = remedy
        self.kind = kind


def context() -> ir.Context:
    """Return a single-threaded MLIR context with all dialects of programs."""
    new = ir.Context()
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    new.append_dialect_registry(registry)
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(new)
    mhlo.register_mhlo_dialect(new)
    new.load_all_available_dialects()
    new.enable_multithreading(False)
    return new


# -- Formats.


def _portable(data: bytes) -> ir.Module:
    written = data[len(PORTABLE) : data.index(b"\0", len(PORTABLE))].decode("latin-1")
    current = stablehlo.get_current_version()
    if _version(written) > _version(current):
        raise Refused(
            f"the program is written in StableHLO {written[:20]}; this jaxlib reads "
            f"up to {current}",
            f"serialize it for StableHLO {current} or older, or install a newer jaxlib",
            "unsupported",
        )
    return _jax.mlir.deserialize_portable_artifact(data)


def _version(text: str) -> list[int]:
    return [int(part) for part in text.split(".")]


def _hlo_proto(data: bytes) -> ir.Module:
    return ir.Module.parse(_jax.mlir.hlo_to_stablehlo(data))


FORMATS: dict[str, Callable[[bytes], ir.Module]] = {
    "portable artifact": _portable,
    "MLIR bytecode": ir.Module.parse,
    "MLIR text": lambda data: ir.Module.parse(data.decode()),
    "HLO proto": _hlo_proto,
    "HLO text": lambda data: _hlo_proto(
        _hlo.hlo_module_from_text(data.decode()).as_serialized_hlo_module_proto()
    ),
}


# -- Normal form.


def normalized(
    module: ir.Module, platform_index: int | None, shapes: list[list[int]] | None = None
) -> ir.Module:
    """Return a module with static shapes, and without tuples, deprecated ops or MHLO;
    `module` is changed. `platform_index` is the value of main's platform argument, if
    it has one; `shapes` are those of its other arguments, if they are symbolic."""
    names, dynamic = _survey(module)
    if any(name.startswith("mhlo.") or name == CUSTOM_CALL for name in names):
        module = _without_mhlo(module)
    if names & DEPRECATED:
        _run(_LEGALIZE_DEPRECATED, module)
        for op in found(module, lambda op: op.name == "stablehlo.einsum"):
            _as_dot_general(op)
    if platform_index is not None:
        _fix_platform(module, platform_index)
    if shapes is not None:
        _fix_sizes(module, shapes)
    if dynamic:
        _run(_REFINE_SHAPES, module)
        # This removes jax.export's assertions about sizes, which are now known.
        if found(module, lambda op: _call_target(op) == "shape_assertion"):
            refined = _jax.mlir.refine_polymorphic_shapes(bytecode(module))
            module = ir.Module.parse(refined)
    if "stablehlo.tuple" in names:
        _fold_tuples(module)
    return module


def _run(pipeline: str, module: ir.Module) -> None:
    passmanager.PassManager.parse(pipeline).run(module.operation)


def _survey(module: ir.Module) -> tuple[set[str], bool]:
    """Return the names of all ops, and whether a type has a dynamic dimension."""
    names: set[str] = set()
    dynamic = False

    def visit(op: Any) -> ir.WalkResult:
        nonlocal dynamic
        names.add(op.name)
        attributes = op.attributes
        if len(set(attributes)) != len(attributes):
            raise Refused(f"{op.name} has an attribute twice", "write the file again")
        if len(op.regions):
            _check_depth(op)
        for result in op.results:
            kind = result.type
            if isinstance(kind, ir.RankedTensorType) and not kind.has_static_shape:
                dynamic = True
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return names, dynamic


def _check_depth(op: Any) -> None:
    depth = 0
    while op.parent is not None:
        op, depth = op.parent, depth + 1
    if depth > DEEPEST:
        raise Refused(
            f"regions are nested {depth} levels deep", f"use at most {DEEPEST} levels"
        )


CUSTOM_CALL = "stablehlo.custom_call"


def _without_mhlo(module: ir.Module) -> ir.Module:
    """Rewrite MHLO ops, and custom calls named after them, as CHLO or StableHLO."""
    for op in found(module, lambda op: op.name == "mhlo.copy"):
        op.results[0].replace_all_uses_with(op.operands[0])
        op.erase()
    for op in found(module, lambda op: _mhlo_name(op) is not None):
        _as_chlo(op)
    remaining = found(module, lambda op: op.name.startswith("mhlo."))
    if not remaining:
        return module
    module = ir.Module.parse(_jax.mlir.mhlo_to_stablehlo(bytecode(module)))
    remaining = found(module, lambda op: op.name.startswith("mhlo."))
    if remaining:
        raise Refused(
            f"{remaining[0].name} has no counterpart in StableHLO",
            'save the program before XLA optimizes it: lowered.as_text("hlo"), not '
            "compiled.as_text()",
            "unsupported",
        )
    return module


def _mhlo_name(op: Any) -> str | None:
    name = op.name if op.name != CUSTOM_CALL else _call_target(op)
    return name.removeprefix("mhlo.") if name.startswith("mhlo.") else None


def _call_target(op: Any) -> str:
    if op.name != CUSTOM_CALL:
        return ""
    return ir.StringAttr(op.attributes["call_target_name"]).value


_CHLO_NAMES = {"topk": "top_k"}


def _as_chlo(op: Any) -> None:
    name = _mhlo_name(op) or ""
    new_name = f"chlo.{_CHLO_NAMES.get(name, name)}"
    if not op.context.is_registered_operation(new_name):
        return
    given: Any = op.attributes
    if op.name == CUSTOM_CALL:
        given = given["mhlo.attributes"] if "mhlo.attributes" in given else {}
    attributes = {"k": given["k"]} if name == "topk" else {}
    largest = "largest" not in given or ir.BoolAttr(given["largest"]).value
    if largest or name != "topk":
        replace(op, new_name, attributes)


def _as_dot_general(einsum: Any) -> None:
    config = ir.StringAttr(einsum.attributes["einsum_config"]).value
    (left, right), out = config.split("->")[0].split(","), config.split("->")[1]
    labels = [left, right, out]
    # A label that only one operand has must not be summed.
    sums_one = set(left) ^ set(right) != set(out) - (set(left) & set(right))
    if sums_one or any(not t.isalpha() or len(set(t)) < len(t) for t in labels):
        return  # lowering refuses the einsum, because it has no rule
    both = [label for label in left if label in right]
    batch = [label for label in both if label in out]
    summed = [label for label in both if label not in out]
    made = [*batch, *(x for x in left + right if x not in both)]
    result: Any = einsum.results[0].type
    size = dict(zip(out, result.shape, strict=True))
    kind = ir.RankedTensorType.get([size[x] for x in made], result.element_type)
    numbers = stablehlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=[left.index(x) for x in batch],
        rhs_batching_dimensions=[right.index(x) for x in batch],
        lhs_contracting_dimensions=[left.index(x) for x in summed],
        rhs_contracting_dimensions=[right.index(x) for x in summed],
    )
    with ir.InsertionPoint(einsum), einsum.location:
        lhs, rhs = einsum.operands
        value = stablehlo.dot_general(kind, lhs, rhs, numbers)
        if made != list(out):
            order = ir.DenseI64ArrayAttr.get([made.index(x) for x in out])
            value = stablehlo.transpose(value, order)
    einsum.results[0].replace_all_uses_with(value)
    einsum.erase()


def _fold_tuples(module: ir.Module) -> None:
    """Replace get_tuple_element(tuple(...)) by the element."""
    for op in found(module, lambda op: op.name == "stablehlo.get_tuple_element"):
        made = op.operands[0].owner
        if isinstance(made, ir.Block) or made.name != "stablehlo.tuple":
            continue
        index = ir.IntegerAttr(op.attributes["index"]).value
        op.results[0].replace_all_uses_with(made.operands[index])
        op.erase()
    for op in reversed(found(module, lambda op: op.name == "stablehlo.tuple")):
        if not list(op.results[0].uses):
            op.erase()


# -- Programs of several platforms.


def _fix_platform(module: ir.Module, index: int) -> None:
    """Replace main's platform argument by a constant, and each case by its branch."""
    main = next(op for op in module.body.operations if is_main(op))
    block = main.regions[0].blocks[0]
    kind = block.arguments[0].type
    attributes = list(ir.ArrayAttr(main.attributes["arg_attrs"]))
    if "jax.global_constant" not in ir.DictAttr(attributes[0]):
        raise Refused("main takes no platform index", "export the program again")
    with ir.InsertionPoint.at_block_begin(block), ir.Location.unknown():
        value = ir.DenseElementsAttr.get_splat(
            kind, ir.IntegerAttr.get(ir.IntegerType.get_signless(32), index)
        )
        constant = stablehlo.constant(value)
    block.arguments[0].replace_all_uses_with(constant)
    block.erase_argument(0)
    old = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    new = ir.FunctionType.get(old.inputs[1:], old.results)
    main.attributes["function_type"] = ir.TypeAttr.get(new)
    main.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes[1:])
    for case in found(module, lambda op: op.name == "stablehlo.case"):
        _take_branch(case)


def _fix_sizes(module: ir.Module, shapes: list[list[int]]) -> None:
    """Give main's arguments the `shapes`; a later pass infers all other sizes."""
    main = next(op for op in module.body.operations if is_main(op))
    pairs = zip(main.regions[0].blocks[0].arguments, shapes, strict=True)
    types = (
        ir.RankedTensorType.get(shape, ir.RankedTensorType(argument.type).element_type)
        for argument, shape in pairs
    )
    listed = ",".join(map(str, types))
    _run(f"builtin.module(stablehlo-refine-arguments{{types={listed}}})", module)


def _take_branch(case: Any) -> None:
    """Replace a case whose index is a constant by the selected branch."""
    made = case.operands[0].owner
    if isinstance(made, ir.Block) or made.name != "stablehlo.constant":
        return
    value: Any = ir.DenseElementsAttr(made.attributes["value"]).get_splat_value()
    index = value.value
    last = len(case.regions) - 1
    branch = case.regions[index if 0 <= index <= last else last].blocks[0]
    *body, terminator = list(branch.operations)
    for op in body:
        op.operation.move_before(case)
    for result, value in zip(case.results, terminator.operands, strict=True):
        result.replace_all_uses_with(value)
    case.erase()


# -- Texts.

_ESCAPES = re.compile(rb"(\\\\)|((?:\\[0-9A-F]{2})+)")


def _check_texts(module: ir.Module) -> None:
    """Refuse names, locations and strings that are not UTF-8, because reading them from
    Python ends the process. The printed module has all these texts, with every byte
    escaped that is not ASCII."""
    text: Any = module.operation.get_asm(
        binary=True, enable_debug_info=True, large_elements_limit=1
    )
    text.decode()
    for backslash, escapes in _ESCAPES.findall(text):
        if not backslash:
            bytes.fromhex(escapes.replace(b"\\", b"").decode()).decode()


# -- Frames.


def answer(request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the answer to one request: a JSON header and the program."""
    try:
        with context(), ir.Location.unknown():
            module = FORMATS[request["format"]](data)
            module = normalized(module, request["platform_index"], request["shapes"])
            module.operation.verify()
            _check_texts(module)
            return {}, bytecode(module)
    except Refused as error:
        return {"kind": error.kind, "what": str(error), "remedy": error.remedy}, b""
    except (ir.MLIRError, RuntimeError, ValueError) as error:
        return {"kind": "invalid", "what": first_lines(str(error))}, b""


def first_lines(message: str) -> str:
    lines = [line for line in message.splitlines() if line.strip()]
    return " ".join(line.strip() for line in lines[:3])[:400]


def _read(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    header, _, data = stream.read(LENGTH.unpack(head)[0]).partition(b"\n")
    return json.loads(header), data


def _write(stream: BinaryIO, header: dict[str, Any], data: bytes) -> None:
    line = json.dumps(header).encode() + b"\n"
    stream.write(LENGTH.pack(len(line) + len(data)) + line)
    stream.write(data)
    stream.flush()


def limit_files(bytes_: int) -> None:
    """Limit the size of a file that this process writes; a larger write raises."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if hard == resource.RLIM_INFINITY or bytes_ <= hard:
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, hard))


def _limit(seconds: float, bytes_: int) -> None:
    """Limit the address space and processor time; SIGPROF ends the process."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    # Only Linux limits the address space; on other systems only time is limited.
    if sys.platform == "linux" and (hard == resource.RLIM_INFINITY or bytes_ <= hard):
        resource.setrlimit(resource.RLIMIT_AS, (bytes_, hard))


def main() -> None:
    """Answer requests until the input ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit_files(LOG_BYTES)
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what C++ code prints must not get between the frames
    stablehlo.register_stablehlo_passes()
    _write(output, {"version": stablehlo.get_current_version()}, b"")
    while (request := _read(sys.stdin.buffer)) is not None:
        header, data = request
        _limit(header["seconds"], header["bytes"])
        reply = answer(header, data)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(output, *reply)


if __name__ == "__main__":
    main()
