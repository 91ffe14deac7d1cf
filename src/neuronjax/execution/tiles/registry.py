"""The registry of semantics: `@executes("tensor_tensor")` on a pure function.

    @executes("tensor_tensor")
    def tensor_tensor(i: Signature, x: Operands, c: TileContext) -> Results:
        return (combine(i.attributes["op"], wide(x[0]), wide(x[1]), c),)

`x` lists the operands in the front end's order: a tensor as an array with its view's
shape and numeric dtype, a register as an int32 scalar, an immediate as a scalar
(float32 or int32, unknown to the compiler), an absent operand as None. The result is
one array per output with the view's number of elements, before the rounding of the
write: float32 (rounded once to the output's dtype) or an integer dtype; or `Bits` of an
array of the output's own dtype, stored unchanged. An instruction that writes a register
returns one integer scalar.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from neuronjax.errors import UnimplementedError
from neuronjax.execution import tiles
from neuronjax.hardware import CoreSpec


class OperandView(NamedTuple):
    """Shape and nki dtype of an operand."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Signature:
    """The static part of an instruction; equal signatures run by the same code.

    Attributes:
        name: the name of the nki.isa function.
        items: the attributes, sorted.
        outputs: the views that are written.
        inputs: one view per operand, None for an operand that is not a tensor.
        forms: one letter per operand, see `ir.kernel.KernelInstruction`.
        reads_outputs: whether `TileContext.previous` is filled.
    """

    name: str
    engine: str
    items: tuple[tuple[str, Any], ...]
    outputs: tuple[OperandView, ...]
    inputs: tuple[OperandView | None, ...]
    forms: str
    reads_outputs: bool

    @functools.cached_property
    def attributes(self) -> Mapping[str, Any]:
        return dict(self.items)


class TileContext(NamedTuple):
    """The values that an instruction reads besides its operands.

    Attributes:
        zero: a -0.0 that the compiler cannot know, see `numerics.exact`.
        core: the core, for its capabilities.
        key: the uint32 key of random bits, a different one for every executed
            instruction.
        previous: the old contents of the outputs, if the instruction reads them.
        rounding: how writes round: "rne", or "stochastic" with bits from the key.
        transcendentals: how ScalarE's functions are computed: "exact" or
            "scalar_engine".
    """

    zero: jax.Array
    core: CoreSpec
    key: jax.Array
    previous: tuple[jax.Array, ...] = ()
    rounding: str = "rne"
    transcendentals: str = "exact"


class Bits(NamedTuple):
    """A result that is moved and not computed: no rounding, no seal, NaNs kept."""

    array: jax.Array


Operands = Sequence[Any]
Results = Sequence["jax.Array | Bits"]
Semantics = Callable[[Signature, Operands, TileContext], Results]

_REGISTRY: dict[str, Semantics] = {}


def executes(*names: str) -> Callable[[Semantics], Semantics]:
    """Register the semantics of one or several instructions."""

    def register(function: Semantics) -> Semantics:
        for name in names:
            _REGISTRY[name] = function
        return function

    return register


@functools.cache
def _load() -> None:
    """Import the modules of this package, many of which register semantics."""
    for module in pkgutil.iter_modules(tiles.__path__, f"{tiles.__name__}."):
        importlib.import_module(module.name)


def semantics_of(name: str) -> Semantics:
    """Return the function of an instruction; raise UnimplementedError without one."""
    _load()
    if name not in _REGISTRY:
        raise UnimplementedError(
            "no semantics yet", op=f"nisa.{name}", remedy="please report it"
        )
    return _REGISTRY[name]


def has_semantics(name: str) -> bool:
    _load()
    return name in _REGISTRY
