"""Reads a saved program of any supported format as a `Program` and its signature.

Formats are recognized by content. The bytes are untrusted: `capture.parsing` turns them
into canonical MLIR bytecode in another process, and only that is parsed here.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, Any

import jax
from jax.extend.mlir import ir
from jax.interpreters.mlir import make_ir_context

from neuronjax.capture import parsing, partition
from neuronjax.capture.decode import decode_module
from neuronjax.capture.exported import (
    Exported,
    SavedSignature,
    looks_exported,
    read_exported,
)
from neuronjax.capture.saved_forms import protobuf_fields
from neuronjax.capture.trace import check_argument
from neuronjax.errors import InvalidProgramError, NeuronJaxError, UnsupportedError
from neuronjax.ir.array_file import regular
from neuronjax.ir.model_parts import with_parts
from neuronjax.ir.program import Program, Value

Source = str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | IO[str]


@dataclass(frozen=True, kw_only=True)
class Artifact(SavedSignature):
    """A saved program and its signature."""

    #: Its `main` takes the arguments with the indices `kept`, and returns flat results.
    program: Program
    code: bytes  # the program as MLIR bytecode of this version of StableHLO
    vjp: Artifact | None = None  # the saved derivative of a jax.export artifact

    @property
    def argument_names(self) -> tuple[str, ...]:
        """The pytree path of every flat argument; "arg0" for an unused argument."""
        kept = dict(zip(self.kept, self.program.argument_names, strict=True))
        return tuple(kept.get(i, f"arg{i}") for i in range(len(self.in_avals)))


@dataclass(frozen=True)
class ArtifactFamily:
    """A jax.export artifact with symbolic sizes: one program for every choice of
    sizes."""

    exported: Exported
    file: str  # its name, for messages

    def of(self, types: Sequence[Any]) -> Artifact:
        """Return the program for flat arguments of these shapes, if they fit the
        symbolic ones."""
        avals, name = self.exported.in_avals, self.exported.name
        if not _fit([x.shape for x in types], [aval.shape for aval in avals]):
            given, saved = (
                ", ".join(str(x.shape) for x in every) or "none"
                for every in (types, avals)
            )
            raise InvalidProgramError(
                f"{name} was saved for {saved}, and is called with {given}",
                remedy="give arrays of these shapes, with one size for each symbol",
            )
        return _from_exported(self.exported, self.file, types)


def _fit(given: Sequence[Any], saved: Sequence[Any]) -> bool:
    if list(map(len, given)) != list(map(len, saved)):
        return False
    pairs = [*zip(itertools.chain(*saved), itertools.chain(*given), strict=True)]
    sizes = {str(n): n for n, _ in pairs if isinstance(n, int)}
    return all(sizes.setdefault(str(symbol), size) == size for symbol, size in pairs)


def read_artifact(source: Source) -> Artifact:
    """Read, parse and decode a saved program.

    Raises:
        InvalidProgramError: no such file, an unknown format, or a malformed file.
        UnsupportedError: the emulator or this version of JAX cannot read it, or it has
            symbolic sizes.
    """
    artifact = read_any(source)
    if isinstance(artifact, Artifact):
        return artifact
    raise UnsupportedError(
        f"{artifact.exported.name} has symbolic sizes, which only arguments decide",
        remedy="call the result of nj.load, or give shapes to the command by --args",
    )


def read_any(source: Source) -> Artifact | ArtifactFamily:
    """Read a saved program as an `Artifact`, or as a family if sizes are symbolic."""
    data, name = _read(source)
    form = recognized(data)
    if form == "jax.export artifact":
        exported = read_exported(data)
        made = ArtifactFamily if exported.is_symbolic else _from_exported
        return made(exported, name)
    if form == "HLO proto":
        data = _hlo_module(data)
    code = parsing.parse(data, form)
    program = _decoded(code, name)
    in_avals, out_avals = _types(program)
    count = len(out_avals)
    return Artifact(
        name=name,
        program=program,
        code=code,
        in_tree=None,
        in_avals=in_avals,
        kept=tuple(range(len(in_avals))),
        out_tree=jax.tree.structure(0 if count == 1 else tuple(range(count))),
        out_avals=out_avals,
    )


def is_symbolic(path: Path) -> bool:
    """Return whether a file is a jax.export artifact with symbolic sizes."""
    data, _ = _read(path)
    is_exported = recognized(data) == "jax.export artifact"
    return is_exported and read_exported(data).is_symbolic


# -- Sources.


def _read(source: Source) -> tuple[bytes, str]:
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source), "the program"
    if isinstance(source, str | os.PathLike):
        return _read_file(source)
    if not hasattr(source, "read"):
        raise InvalidProgramError(
            f"cannot load a {type(source).__name__}",
            remedy="give a path, the bytes, or an open file",
        )
    data = source.read()
    name = getattr(source, "name", None)
    raw = data.encode() if isinstance(data, str) else data
    return raw, name if isinstance(name, str) else "the program"


def _read_file(path: str | os.PathLike[str]) -> tuple[bytes, str]:
    name = os.fspath(path)
    try:
        with regular(Path(name)).open("rb") as file:
            return file.read(), name
    except (OSError, ValueError) as error:
        # ValueError: a program's text, passed in place of a path, may have a zero byte.
        reason = getattr(error, "strerror", None) or error
        raise InvalidProgramError(
            f"cannot read {name[:200]!r}: {reason}",
            remedy="give the path of a saved program, or its bytes (the bytes of "
            "a text are text.encode())",
        ) from error


# -- Formats.

_BYTECODE, _PORTABLE = b"ML\xefR", b"ML\xefR\rStableHLO_v"
_NOT_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_HLO_TEXT = re.compile(r"^\s*HloModule\b", re.MULTILINE)


def recognized(data: bytes) -> str:
    """Return the format of a file, by its content; refuse one that is not known."""
    if data.startswith(_BYTECODE):
        return "portable artifact" if data.startswith(_PORTABLE) else "MLIR bytecode"
    if data.strip() and not _NOT_TEXT.search(data) and _is_utf8(data):
        is_hlo = _HLO_TEXT.search(data[:100_000].decode(errors="ignore"))
        return "HLO text" if is_hlo else "MLIR text"
    if looks_exported(data):
        return "jax.export artifact"
    if _is_hlo_module(_hlo_module(data)):
        return "HLO proto"
    start = f"begins with {data[:16]!r}" if data else "is empty"
    raise InvalidProgramError(
        f"the file {start}, so its format is not known",
        remedy="save StableHLO (text, bytecode or a portable artifact), a jax.export "
        "artifact, or HLO (text or proto); if the file was cut off, write it again",
    )


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# Fields of HloModuleProto and HloProto in xla/service/hlo.proto.
_NAME, _COMPUTATIONS, _MODULE_OF_PROTO = 1, 3, 1


def _is_hlo_module(data: bytes) -> bool:
    fields = dict(protobuf_fields(data))
    return _COMPUTATIONS in fields and _is_utf8(fields.get(_NAME, b"\xff"))


def _hlo_module(data: bytes) -> bytes:
    inner = next(protobuf_fields(data), None)
    if inner and inner[0] == _MODULE_OF_PROTO and _is_hlo_module(inner[1]):
        return inner[1]
    return data


# -- Programs.


def _from_exported(
    exported: Exported, file: str, types: Sequence[Any] | None = None
) -> Artifact:
    """Return the program of an artifact; `types` give values to symbolic sizes."""
    shapes = types and [_physical(types[i])[0] for i in exported.kept]
    index = exported.platform_index
    code = parsing.parse(exported.module, "portable artifact", index, shapes)
    program = _decoded(code, file)
    program_types = _types(program)
    if types:
        exported = _sized(exported, types, program_types[1])
    wanted = [exported.in_avals[i] for i in exported.kept], exported.out_avals
    for each, avals, what in zip(
        program_types, wanted, ("arguments", "results"), strict=True
    ):
        if [_physical(a) for a in avals] != [(t.shape, t.dtype) for t in each]:
            raise InvalidProgramError(
                f"the {what} of the jax.export artifact are not those of the program "
                "in it",
                remedy="the file is malformed: write it again",
            )
    signature = {f.name: getattr(exported, f.name) for f in fields(SavedSignature)}
    both = types and (*exported.in_avals, *exported.out_avals)
    vjp = exported.vjp and _from_exported(exported.vjp, file, both)
    return Artifact(**signature, program=program, code=code, vjp=vjp)


def _sized(
    exported: Exported, types: Sequence[Any], results: Sequence[Any]
) -> Exported:
    """Return an artifact whose signature has the sizes of these arguments and results,
    without the trailing dimensions that random keys have in the program."""

    def sized(given: Sequence[Any], avals: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(
            jax.ShapeDtypeStruct(x.shape[: len(a.shape)], a.dtype)
            for x, a in zip(given, avals, strict=True)
        )

    return replace(
        exported,
        in_avals=sized(types, exported.in_avals),
        out_avals=sized(results, exported.out_avals),
    )


def _physical(aval: jax.ShapeDtypeStruct) -> tuple[tuple[int, ...], Any]:
    """Return an array's shape and dtype in the program, where keys are integers."""
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        aval = jax.eval_shape(jax.random.key_data, aval)
    is_float0 = aval.dtype == jax.dtypes.float0
    return aval.shape, jax.numpy.dtype(bool) if is_float0 else aval.dtype


def _decoded(code: bytes, file: str) -> Program:
    with make_ir_context():
        module = ir.Module.parse(code)
        program = decode_module(module, file=file)
        if partition.needs_partitioner(program):
            program = partition.partition(program, module)
    program = with_parts(program)
    _check_calls(program)
    _check_constants(program)
    for argument, name in zip(
        program.entry.body.arguments, program.argument_names, strict=True
    ):
        try:
            check_argument(argument.type, name)
        except NeuronJaxError as error:
            remedy = "save the program with arguments of float32 or complex64"
            raise type(error)(error.what, remedy=remedy) from error
    return program


def _types(program: Program) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    body = program.entry.body
    return tuple(map(type_of, body.arguments)), tuple(map(type_of, body.results))


def type_of(value: Value) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.type.shape, value.type.dtype)


# Largest size of a constant; protobuf messages have the same limit.
MOST_CONSTANT_BYTES = 2 << 30


def _check_constants(program: Program) -> None:
    """Refuse constants that expand from a few bytes of the file to huge arrays."""
    for op in program.walk():
        if op.name != "stablehlo.constant":
            continue
        kind = op.results[0].type
        size = math.prod(kind.shape) * kind.dtype.itemsize
        if size > MOST_CONSTANT_BYTES:
            raise InvalidProgramError(
                f"has {size:.3g} bytes; at most {MOST_CONSTANT_BYTES} are allowed",
                op=op.name,
                location=op.location.source,
                remedy="broadcast a scalar, or pass the array as an argument",
            )


def _check_calls(program: Program) -> None:
    """Refuse functions that call themselves, because a NeuronCore has no stack."""
    callees = {
        name: {
            op.attributes["callee"] for op in function.walk() if op.name == "func.call"
        }
        for name, function in program.functions.items()
    }
    finished: set[str] = set()
    while ready := [n for n in callees.keys() - finished if callees[n] <= finished]:
        finished.update(ready)
    if unfinished := sorted(callees.keys() - finished):
        raise InvalidProgramError(
            f"function {unfinished[0]} calls itself, or a function that is missing",
            op="func.call",
            remedy="write a recursion as a while loop; save every called function",
        )
