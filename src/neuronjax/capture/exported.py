"""`jax.export` artifacts: the calling convention around a portable StableHLO program.

The artifact is read here and not by `jax.export.deserialize`, because it is untrusted:
that one follows any offset. Slots and codes are those of JAX's schema (jax/_src/export/
serialization_generated.py, serialization versions 2 to 12, which only ever add fields);
what fields mean is documented under "Module calling convention" in JAX's manual of
export. Pytree nodes of registered types are left to the public function, after all
offsets have been checked.
"""

from __future__ import annotations

import contextlib
import functools
import re
from dataclasses import dataclass
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax import export

from neuronjax.capture.flatbuffer import FlatBuffer, Table, malformed
from neuronjax.errors import InvalidProgramError, NeuronJaxError, UnsupportedError

PLATFORM = "neuron"
DEEPEST_TREE = 100
DEEPEST_VJP = 8
#: Characters of a symbolic size.
LONGEST_SIZE = 200

_DTYPES: dict[int, Any] = dict(
    enumerate(
        [
            *(np.bool_, np.int8, np.int16, np.int32, np.int64),
            *(np.uint8, np.uint16, np.uint32, np.uint64),
            *(np.float16, np.float32, np.float64, np.complex64, np.complex128),
            *(ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.uint4),
            *(ml_dtypes.float8_e4m3b11fnuz, ml_dtypes.float8_e4m3fn),
            *(ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2),
            *(ml_dtypes.float8_e5m2fnuz, jax.dtypes.float0, ml_dtypes.float8_e4m3),
            *(ml_dtypes.float8_e3m4, ml_dtypes.float8_e8m0fnu),
            ml_dtypes.float4_e2m1fn,
        ]
    )
)
_KEYS = {27: "threefry2x32", 28: "rbg", 29: "unsafe_rbg"}


@dataclass(frozen=True, kw_only=True)
class SavedSignature:
    """How a saved program is called.

    Attributes:
        name: of the function or file, for messages.
        in_tree: the pytree of (args, kwargs); None for a program of flat arguments.
        in_avals: shape and dtype of every flat argument.
        kept: indices of the arguments that the program takes; the others are unused.
        out_tree: the pytree of the results: without one in the file, one array, or a
            tuple of several.
        out_avals: shape and dtype of every flat result.
    """

    name: str
    in_tree: Any
    in_avals: tuple[jax.ShapeDtypeStruct, ...]
    kept: tuple[int, ...]
    out_tree: Any
    out_avals: tuple[jax.ShapeDtypeStruct, ...]


@dataclass(frozen=True, kw_only=True)
class Exported(SavedSignature):
    """What an artifact holds.

    Attributes:
        platform_index: what main's first argument is, for a program of several
            platforms; None where it has no such argument.
        module: the program, a portable artifact.
        vjp: the saved derivative: flat primal arguments and cotangents in, one
            cotangent per argument out.
    """

    platform_index: int | None
    module: bytes
    vjp: Exported | None

    @property
    def is_symbolic(self) -> bool:
        """Whether the size of an argument is a symbol, which a call gives a value."""
        return any(not isinstance(n, int) for aval in self.in_avals for n in aval.shape)


class _Field:
    """Fields of the table Exported."""

    NAME, IN_TREE, IN_AVALS, OUT_TREE, OUT_AVALS = 1, 2, 3, 4, 5
    PLATFORMS, ORDERED, UNORDERED = 9, 10, 11
    MODULE, CONVENTION, KEPT, VJP = 13, 14, 15, 17
    AVALS, IN_INDICES, OUT_INDICES = 19, 22, 23


_ALWAYS = (_Field.NAME, _Field.IN_TREE, _Field.OUT_TREE, _Field.MODULE)


def looks_exported(data: bytes) -> bool:
    """Say whether the bytes are a flatbuffer with the fields that every artifact has;
    what they hold may be damaged or cut off."""
    try:
        root = FlatBuffer(data).root()
        return all(map(root.has, _ALWAYS))
    except NeuronJaxError:
        return False


def read_exported(data: bytes) -> Exported:
    """Reads an artifact; the program in it is not parsed yet.

    Raises:
        InvalidProgramError: it is malformed.
        UnsupportedError: it has effects, or is of a newer convention.
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
            malformed(f"a pytree of {tree.num_leaves} leaves for {len(avals)} arrays")
    kept = root.integers(_Field.KEPT, 2)
    if list(kept) != sorted(set(kept)) or (kept and kept[-1] >= len(in_avals)):
        malformed("the list of used arguments names some that do not exist")
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
            f"the jax.export artifact has calling convention {version}; this JAX knows "
            f"{oldest} to {newest}",
            remedy="export it again with this version of JAX, or install the one that "
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
    """Which program of an artifact for several platforms runs: neuron's, or the first.

    One for a single platform has no choice, and main no such argument.
    """
    if len(platforms) < 2:
        return None
    return platforms.index(PLATFORM) if PLATFORM in platforms else 0


# -- Shapes and dtypes.


def _avals(root: Table, slot: int, index_slot: int) -> tuple[Any, ...]:
    """Flat arguments or results: listed, or (since version 10) indices into a list."""
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
    """Return a size, which may be symbolic: "b", "2*b + 1"."""
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    sizes: tuple[Any, ...] = ()
    with contextlib.suppress(*_ANYTHING):
        if len(text) <= LONGEST_SIZE:
            sizes = tuple(export.symbolic_shape(text))
    if len(sizes) != 1:
        malformed(f"it has the size {text[:40]!r}")
    return sizes[0]


def _dtype(code: int) -> Any:
    if code in _KEYS:
        return _key_dtype(_KEYS[code])
    if code not in _DTYPES:
        malformed(f"it has the unknown dtype {code}")
    return np.dtype(_DTYPES[code])


@functools.cache
def _key_dtype(name: str) -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl=name)).dtype


# -- Pytrees.


class _RegisteredNode(Exception):
    """A pytree node of a type that only JAX's registry knows."""


def _trees(root: Table, data: bytes, depth: int) -> tuple[Any, Any]:
    """The pytrees of (args, kwargs) and of the results."""
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
        malformed(f"a pytree is nested more than {DEEPEST_TREE} deep")
    kind = table.unsigned(0, 1)
    children = [_node(child, depth + 1) for child in table.tables(1)]
    if kind == 5:
        raise _RegisteredNode(table.text(3))
    if kind == 4:
        names = table.texts(2)
        if len(set(names)) != len(children):
            malformed("a dict of its pytrees has other keys than values")
        return dict(zip(names, children, strict=True))
    if kind > 5 or (kind < 2 and children):
        malformed(f"a pytree node of kind {kind} with {len(children)} children")
    return {0: _LEAF, 1: None, 2: tuple(children), 3: children}[kind]


def _deserialize(data: bytes, name: str) -> Any:
    """JAX's own reader, for the types registered with it."""
    try:
        return export.deserialize(bytearray(data))
    except ImportError as error:
        raise UnsupportedError(
            f"the pytrees of the jax.export artifact hold the registered type {name}",
            remedy="pip install flatbuffers, which JAX needs to read those",
        ) from error
    except _ANYTHING as error:
        raise InvalidProgramError(
            f"the pytrees of the jax.export artifact hold the type {name}: {error}",
            remedy="register it first: jax.export.register_pytree_node_serialization, "
            "or register_namedtuple_serialization",
        ) from error


# What Python code raises that reads a malformed buffer.
_ANYTHING = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    RuntimeError,
)
