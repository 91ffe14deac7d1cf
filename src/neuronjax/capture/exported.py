"""Reads `jax.export` artifacts: a portable StableHLO program and its signature.

The artifact is untrusted, so it is read here and not by `jax.export.deserialize`, which
follows any offset. `deserialize` is called only for pytree nodes of registered types,
after all offsets have been checked. Slots and codes are those of JAX's schema
(jax/_src/export/serialization_generated.py, serialization versions 2 to 12, which only
add fields); JAX's manual of export documents them under "Module calling convention".
"""

from __future__ import annotations

import contextlib
import functools
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

import jax
import ml_dtypes
import numpy as np
from jax import export

from neuronjax.errors import InvalidProgramError, NeuronJaxError, UnsupportedError

# -- a strict reader of flatbuffers ----------------------------------------------------

# It reads tables, vectors, strings and unsigned scalars in little-endian order
# (flatbuffers.dev, "Internals"). A read outside the buffer, a string that is not UTF-8,
# or more tables or strings than the limits allow is an InvalidProgramError. There are
# limits because many offsets may point to the same bytes.

# A table takes some microseconds to read, so this many take well below a second.
MOST_TABLES = 200_000
# All strings together may have TEXT_RATIO times the bytes of the file, and TEXT_BYTES
# more.
TEXT_RATIO, TEXT_BYTES = 16, 1 << 20


def malformed(what: str) -> NoReturn:
    """Raise the error of a malformed buffer."""
    raise InvalidProgramError(
        f"this jax.export artifact is malformed, or was cut off: {what}",
        remedy="write it again: jax.export.export(...)(...).serialize()",
    )


@dataclass
class FlatBuffer:
    """The bytes, and how many tables and bytes of strings may still be read."""

    data: bytes
    budget: int = MOST_TABLES
    text_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.text_bytes = TEXT_RATIO * len(self.data) + TEXT_BYTES

    def root(self) -> Table:
        """Return the table at the first offset."""
        return Table(self, self.offset(0))

    def unsigned(self, at: int, width: int) -> int:
        """Return a little-endian unsigned integer of `width` bytes."""
        return int.from_bytes(self.slice(at, width), "little")

    def offset(self, at: int) -> int:
        """Return the position to which the offset at `at` points, always forward."""
        return at + self.unsigned(at, 4)

    def slice(self, at: int, length: int) -> bytes:
        if at < 0 or at + length > len(self.data):
            malformed(f"bytes {at} to {at + length} of {len(self.data)} are missing")
        return self.data[at : at + length]

    def text(self, at: int, length: int) -> str:
        """Return a string of `length` bytes, and count them against the limit."""
        self.text_bytes -= length
        if self.text_bytes < 0:
            malformed("its strings are many times longer than the file")
        try:
            return self.slice(at, length).decode()
        except UnicodeDecodeError:
            malformed("a string is not UTF-8")


class Table:
    """A table, whose fields have slot numbers as in the schema, from 0."""

    def __init__(self, buffer: FlatBuffer, at: int) -> None:
        buffer.budget -= 1
        if buffer.budget < 0:
            malformed(f"it has more than {MOST_TABLES} tables")
        self._buffer = buffer
        self._at = at
        self._vtable = at - int.from_bytes(buffer.slice(at, 4), "little", signed=True)
        self._vtable_bytes = buffer.unsigned(self._vtable, 2)

    def _field(self, slot: int) -> int | None:
        entry = 4 + 2 * slot
        if entry + 2 > self._vtable_bytes:
            return None
        relative = self._buffer.unsigned(self._vtable + entry, 2)
        return self._at + relative if relative else None

    def has(self, slot: int) -> bool:
        """Return whether a field is in the buffer."""
        return self._field(slot) is not None

    def unsigned(self, slot: int, width: int) -> int:
        """Return an unsigned scalar of `width` bytes, 0 by default."""
        at = self._field(slot)
        return 0 if at is None else self._buffer.unsigned(at, width)

    def table(self, slot: int) -> Table | None:
        """Return the nested table of a slot, or None where the slot is empty."""
        at = self._field(slot)
        return None if at is None else Table(self._buffer, self._buffer.offset(at))

    def _vector(self, slot: int, width: int) -> tuple[int, int]:
        """Return the offset of a vector's first element, and its number of elements."""
        at = self._field(slot)
        if at is None:
            return 0, 0
        start = self._buffer.offset(at)
        count = self._buffer.unsigned(start, 4)
        if start + 4 + count * width > len(self._buffer.data):
            malformed(f"a vector of {count} elements is longer than the file")
        return start + 4, count

    def bytes(self, slot: int) -> bytes:
        start, count = self._vector(slot, 1)
        return self._buffer.slice(start, count)

    def text(self, slot: int) -> str:
        return self._buffer.text(*self._vector(slot, 1))

    def integers(self, slot: int, width: int) -> tuple[int, ...]:
        """Return a vector of unsigned integers of `width` bytes."""
        start, count = self._vector(slot, width)
        read = self._buffer.unsigned
        return tuple([read(start + width * i, width) for i in range(count)])

    def _targets(self, slot: int) -> list[int]:
        """Return the positions to which a vector of offsets points."""
        start, count = self._vector(slot, 4)
        return [self._buffer.offset(start + 4 * i) for i in range(count)]

    def tables(self, slot: int) -> list[Table]:
        return [Table(self._buffer, at) for at in self._targets(slot)]

    def texts(self, slot: int) -> tuple[str, ...]:
        text, size = self._buffer.text, self._buffer.unsigned
        return tuple([text(at + 4, size(at, 4)) for at in self._targets(slot)])


PLATFORM = "neuron"
DEEPEST_TREE = 100
DEEPEST_VJP = 8
#: Most characters of a symbolic size's expression.
LONGEST_SIZE = 200

_DTYPES: tuple[Any, ...] = (
    *(np.bool_, np.int8, np.int16, np.int32, np.int64),
    *(np.uint8, np.uint16, np.uint32, np.uint64),
    *(np.float16, np.float32, np.float64, np.complex64, np.complex128),
    *(ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.uint4),
    *(ml_dtypes.float8_e4m3b11fnuz, ml_dtypes.float8_e4m3fn),
    *(ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2),
    *(ml_dtypes.float8_e5m2fnuz, jax.dtypes.float0, ml_dtypes.float8_e4m3),
    *(ml_dtypes.float8_e3m4, ml_dtypes.float8_e8m0fnu),
    ml_dtypes.float4_e2m1fn,
)
_KEYS = {27: "threefry2x32", 28: "rbg", 29: "unsafe_rbg"}


@dataclass(frozen=True, kw_only=True)
class SavedSignature:
    """The signature of a saved program."""

    name: str  # the name of the function or file, for messages
    in_tree: Any  # the pytree of (args, kwargs); None for a program of flat arguments
    in_avals: tuple[jax.ShapeDtypeStruct, ...]  # of every flat argument
    #: The indices of the arguments that the program takes; other ones are unused.
    kept: tuple[int, ...]
    #: The pytree of the results; without one in the file, an array or a tuple of them.
    out_tree: Any
    out_avals: tuple[jax.ShapeDtypeStruct, ...]  # of every flat result


@dataclass(frozen=True, kw_only=True)
class Exported(SavedSignature):
    """The contents of an artifact."""

    #: The value of main's first argument, which selects one of several platforms; None
    #: if main has no such argument.
    platform_index: int | None
    module: bytes  # the program, a portable artifact
    #: The saved derivative, a function of flat arguments and cotangents of the results,
    #: which returns one cotangent per argument; or None.
    vjp: Exported | None

    @property
    def is_symbolic(self) -> bool:
        """Whether an argument has a symbolic size."""
        return any(not isinstance(n, int) for aval in self.in_avals for n in aval.shape)


class _Field:
    """Slots of the fields in the schema's table Exported."""

    NAME, IN_TREE, IN_AVALS, OUT_TREE, OUT_AVALS = 1, 2, 3, 4, 5
    PLATFORMS, ORDERED, UNORDERED = 9, 10, 11
    MODULE, CONVENTION, KEPT, VJP = 13, 14, 15, 17
    AVALS, IN_INDICES, OUT_INDICES = 19, 22, 23


_ALWAYS = (_Field.NAME, _Field.IN_TREE, _Field.OUT_TREE, _Field.MODULE)


def looks_exported(data: bytes) -> bool:
    """Return whether the bytes are a flatbuffer with the fields that every artifact
    has. The bytes may still be damaged or cut off."""
    try:
        return all(map(FlatBuffer(data).root().has, _ALWAYS))
    except NeuronJaxError:
        return False


def read_exported(data: bytes) -> Exported:
    """Read an artifact, without parsing the program in it.

    Raises:
        InvalidProgramError: the artifact is malformed.
        UnsupportedError: the artifact has effects, or a newer calling convention.
    """
    return _exported(FlatBuffer(data).root(), data, 0)


def _exported(root: Table, data: bytes, depth: int) -> Exported:
    _check_convention(root)
    _check_effects(root)
    in_avals = _avals(root, _Field.IN_AVALS, _Field.IN_INDICES)
    out_avals = _avals(root, _Field.OUT_AVALS, _Field.OUT_INDICES)
    in_tree, out_tree = _trees(root, data, depth)
    for tree, avals in ((in_tree, in_avals), (out_tree, out_avals)):
        if tree.num_leaves != len(avals):
            malformed(f"a pytree of {len(avals)} arrays has {tree.num_leaves} leaves")
    kept = root.integers(_Field.KEPT, 2)
    if list(kept) != sorted(set(kept)) or (kept and kept[-1] >= len(in_avals)):
        malformed("the list of used arguments names arguments that do not exist")
    vjp = root.table(_Field.VJP) if depth < DEEPEST_VJP else None
    return Exported(
        name=root.text(_Field.NAME),
        in_tree=in_tree,
        in_avals=in_avals,
        kept=kept,
        out_tree=out_tree,
        out_avals=out_avals,
        platform_index=_platform_index(root.texts(_Field.PLATFORMS)),
        module=root.bytes(_Field.MODULE),
        vjp=None if vjp is None else _exported(vjp, data, depth + 1),
    )


# -- What is refused.


def _check_convention(root: Table) -> None:
    version = root.unsigned(_Field.CONVENTION, 2)
    oldest = export.minimum_supported_calling_convention_version
    newest = export.maximum_supported_calling_convention_version
    if not oldest <= version <= newest:
        raise UnsupportedError(
            f"the jax.export artifact has calling convention {version}; this JAX reads "
            f"{oldest} to {newest}",
            remedy="export it again with this version of JAX, or install the JAX that "
            "wrote it",
        )


def _check_effects(root: Table) -> None:
    effects = [*root.tables(_Field.ORDERED), *root.tables(_Field.UNORDERED)]
    if effects:
        name = effects[0].text(0).rsplit(".", 1)[-1]
        raise UnsupportedError(
            f"the jax.export artifact has the effect {name}: host callbacks do not "
            "exist on a NeuronCore",
            remedy="remove callbacks and debug.print from the function, then export it",
        )


def _platform_index(platforms: tuple[str, ...]) -> int | None:
    """Return the index of neuron in `platforms`, or 0 if it is not there. Return None
    for a single platform, because main then takes no index."""
    if len(platforms) < 2:
        return None
    return platforms.index(PLATFORM) if PLATFORM in platforms else 0


# -- Shapes and dtypes.


def _avals(root: Table, slot: int, index_slot: int) -> tuple[Any, ...]:
    """Return the types of flat arguments or results. They are a list or, since version
    10, indices into a list of different types."""
    indices = root.integers(index_slot, 4)
    if not indices:
        return tuple(_aval(table) for table in root.tables(slot))
    unique = [_aval(table) for table in root.tables(_Field.AVALS)]
    if max(indices) >= len(unique):
        malformed("it uses a shape that it does not list")
    return tuple(unique[i] for i in indices)


def _aval(table: Table) -> jax.ShapeDtypeStruct:
    shape = tuple(map(_dimension, table.texts(1)))
    return jax.ShapeDtypeStruct(shape, _dtype(table.unsigned(2, 1)))


def _dimension(text: str) -> Any:
    """Return a size, which may be symbolic, such as "b" or "2*b + 1"."""
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    sizes: tuple[Any, ...] = ()
    with contextlib.suppress(*_ANYTHING):
        if len(text) <= LONGEST_SIZE:
            sizes = tuple(export.symbolic_shape(text))
    if len(sizes) != 1:
        malformed(f"it has the illegal size {text[:40]!r}")
    return sizes[0]


@functools.cache
def _dtype(code: int) -> Any:
    if code in _KEYS:
        return jax.eval_shape(lambda: jax.random.key(0, impl=_KEYS[code])).dtype
    if code >= len(_DTYPES):
        malformed(f"it has the unknown dtype {code}")
    return np.dtype(_DTYPES[code])


# -- Pytrees.


class _RegisteredNode(Exception):
    """Raised for a pytree node of a type in JAX's registry."""


def _trees(root: Table, data: bytes, depth: int) -> tuple[Any, Any]:
    """Return the pytrees of (args, kwargs) and of the results."""
    try:
        return _tree(root.table(_Field.IN_TREE)), _tree(root.table(_Field.OUT_TREE))
    except _RegisteredNode as node:
        exported = _deserialize(data, str(node))
        for _ in range(depth):
            exported = exported.vjp()
        return exported.in_tree, exported.out_tree


def _tree(table: Table | None) -> Any:
    if table is None:
        malformed("it has no pytree of arguments or results")
    return jax.tree.structure(_node(table, 0), is_leaf=lambda x: x is _LEAF)


_LEAF = object()


def _node(table: Table, depth: int) -> Any:
    if depth > DEEPEST_TREE:
        malformed(f"a pytree is nested more than {DEEPEST_TREE} levels deep")
    kind = table.unsigned(0, 1)
    children = [_node(child, depth + 1) for child in table.tables(1)]
    if kind == 5:
        raise _RegisteredNode(table.text(3))
    if kind == 4:
        names = table.texts(2)
        if len(set(names)) != len(children):
            malformed("a dict in a pytree does not have one key per value")
        return dict(zip(names, children, strict=True))
    if kind > 5 or (kind < 2 and children):
        malformed(f"a pytree has a node of kind {kind} with {len(children)} children")
    return {0: _LEAF, 1: None, 2: tuple(children), 3: children}[kind]


def _deserialize(data: bytes, name: str) -> Any:
    """Read the artifact by JAX's own reader, which knows the registered types."""
    try:
        return export.deserialize(bytearray(data))
    except ImportError as error:
        raise UnsupportedError(
            f"the jax.export artifact has pytrees of {name}, a type registered in JAX",
            remedy="pip install flatbuffers, which JAX needs to read such types",
        ) from error
    except _ANYTHING as error:
        raise InvalidProgramError(
            f"the pytrees of the jax.export artifact hold the type {name}: {error}",
            remedy="register it first: jax.export.register_pytree_node_serialization, "
            "or register_namedtuple_serialization",
        ) from error


# The exceptions that Python code may raise when it reads a malformed buffer.
_ANYTHING = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    RuntimeError,
)
