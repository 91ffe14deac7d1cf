"""The functions of `nki.isa`, made from a table; each checks its call and emits it.

Where a row of `ir.nki_instructions` does not suffice, a function marked `instruction`
is called in place of `Request.emit`:

    @instruction
    def set_rng_seed(call: Request) -> Any:
        ...
        return call.emit()
"""

from __future__ import annotations

import enum
import functools
import inspect
import textwrap
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from neuronjax.hardware import chips_with
from neuronjax.ir.alu_operators import BITVEC, checked_op
from neuronjax.ir.kernel import Access
from neuronjax.ir.nki_instructions import SPECS
from neuronjax.ir.nki_spec import InstructionSpec, OperandSpec
from neuronjax.nki import trace as tracing
from neuronjax.nki.documentation import describe
from neuronjax.nki.isa import constants
from neuronjax.nki.isa.constants import engine as Engine
from neuronjax.nki.limits.operands import text
from neuronjax.nki.refusing import refuse
from neuronjax.nki.registers import VirtualRegister
from neuronjax.nki.signatures import function_of_row
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction, emit

# Words of a generator's state per lane: of GpSimd, and of VectorE's LFSR and xorwow.
GPSIMD_WORDS, LFSR_WORDS, VECTOR_WORDS = 6, 1, 24


class Request:
    """A call of an instruction's function, with arguments checked against its row.

    Attributes:
        spec: the instruction's row.
        values: the arguments by name; an `@instruction` may replace some by views.
        attributes: the static arguments by name.

    Raises:
        InvalidProgramError: an argument violates the row.
    """

    def __init__(self, name: str, given: Mapping[str, Any]) -> None:
        self.spec = SPECS[name]
        self.values: dict[str, Any] = dict(given)
        known = tracing.current().requests
        key = self._key()
        try:
            checked = known.get(key)
        except TypeError:  # with unhashable arguments the call is checked each time
            key, checked = object(), None
        if checked is None:
            self.attributes: Mapping[str, Any] = {}
            self._check(name)
            complete: dict[tuple[tuple[str, Any], ...], Mapping[str, Any]] = {}
            # Requests with equal keys share the outcome of the checks.
            checked = known[key] = (self.attributes, self._of_bits, complete)
        self.attributes, self._of_bits, self._complete = checked

    def of(self, *names: str) -> list[Any]:
        """Return the arguments with these names."""
        return [self.values[name] for name in names]

    def refuse(self, what: str, remedy: str) -> NoReturn:
        refuse(f"nisa.{self.spec.name}", what, remedy)

    def _key(self) -> Hashable:
        """Return a value that is equal for calls whose checks have the same outcome."""
        values = self.values
        parts: list[Hashable] = [self.spec.name]
        for name, is_static in _checked_arguments(self.spec.name):
            value: Any = values.get(name)
            kind = type(value)
            if kind is NkiTensor:
                parts += (value.shape, value.dtype, value.storage.memory)
            elif value is None:
                parts.append(None)
            elif is_static:
                parts += (kind, value)
            elif kind in _NUMBERS:
                parts.append(kind)
            else:
                parts += (kind, _by_value(value))
        return tuple(parts)

    def _check(self, name: str) -> None:
        spec, core = self.spec, tracing.current().core
        if spec.capability and spec.capability not in core.capabilities:
            remedy = f"use target {', '.join(chips_with(spec.capability))}"
            instead = f", or {spec.instead}" if spec.instead else ""
            self.refuse(f"{core.name} has no such instruction", remedy + instead)
        tensors, static, sized = _by_check(name)
        for operand in tensors:
            self._check_tensor(operand)
        for operand in tensors:
            self._check_content(operand)
        for operand in static:
            self._note_attribute(operand)
        operators = map(self.attributes.get, ("op", "op0", "op1"))
        self._of_bits = not BITVEC.isdisjoint(operators)
        if sized:
            partitions = self._partitions(tensors)
            for operand in sized:
                self._check_size(operand, partitions)

    def _check_tensor(self, operand: OperandSpec) -> None:
        name = operand.name
        value = self.values[name]
        absent = value is None and operand.optional
        if absent or (operand.or_number and not isinstance(value, NkiTensor)):
            return
        if isinstance(value, Sequence):
            for n, one in enumerate(value):
                self.check_place(f"{name}[{n}]", one, operand.memories)
            return
        self.check_place(name, value, operand.memories)
        assert value is not None
        if operand.dtypes and value.dtype not in operand.dtypes:
            legal = ", ".join(operand.dtypes)
            remedy = f"use {'one of ' * (len(operand.dtypes) > 1)}{legal}"
            self.refuse(f"{name} is {text(value.access())}", remedy)
        if operand.like:
            like = self.values[operand.like]
            if value.shape[0] != like.shape[0] or value.size != like.size:
                self.refuse(
                    f"{name} has shape {value.shape}, {operand.like} {like.shape}",
                    "give both tensors the same number of partitions and of elements",
                )

    def check_place(self, name: str, value: Any, memories: Sequence[str]) -> None:
        """Refuse a value that is no tensor in `memories`; () allows every memory."""
        if not isinstance(value, NkiTensor):
            self.refuse(f"{name} is {value!r}", f"{name} must be a tensor")
        memory = value.storage.memory
        if memories and memory not in memories:
            remedy = f"{name} must be in {' or '.join(memories)}"
            self.refuse(f"{name} is in {memory}", remedy)

    def _check_content(self, operand: OperandSpec) -> None:
        """Check a tensor's dtype and length against the row and the other tensors."""
        value, name = self.values[operand.name], operand.name
        if not isinstance(value, NkiTensor):
            return
        moved = self.values[operand.dtype_of] if operand.dtype_of else value
        if moved.dtype != value.dtype:
            self.refuse(f"{moved.dtype} into {value.dtype}", "give both the same dtype")
        if value.dtype in operand.never:
            self.refuse(f"{name} is {text(value.access())}", operand.text)
        if operand.counts is not None and per_partition(value) not in operand.counts:
            what = f"{name} has {per_partition(value)} elements per partition"
            self.refuse(what, operand.text)

    def _note_attribute(self, operand: OperandSpec) -> None:
        name, value, op = operand.name, self.values[operand.name], self.spec.name
        if operand.kind == "operator":
            if value is not None or not operand.optional:
                where = f"nisa.{op}" if operand.role != "none" else f"nisa.{op} {name}"
                value = checked_op(value, frozenset(operand.legal), where)
        elif operand.kind == "choice":
            value = self.member(name, value, tuple(operand.legal))
            if value == "load_reduce" and self.values[operand.loads] is None:
                self.refuse("load_reduce without a value", "give the value to load")
        else:
            value = bool(value)
        if operand.role == "attribute":
            self.attributes = {**self.attributes, name: value}

    def member(self, what: str, value: Any, legal: tuple[str, ...]) -> str:
        """Return the name of a member of an enumeration, if it is one of `legal`."""
        name = value.name if isinstance(value, enum.Enum) else str(value)
        if name not in legal:
            self.refuse(f"{what} {name}", f"use one of {', '.join(legal)}")
        return name

    def _check_size(self, operand: OperandSpec, partitions: int) -> None:
        name = operand.name
        value = self.values.get(name)
        if operand.kind != "column":
            wanted = (partitions, operand.elements)
            if value is not None and (value.shape[0], per_partition(value)) != wanted:
                self.refuse(f"{name} has shape {value.shape}", f"give shape {wanted}")
        elif isinstance(value, NkiTensor):
            if value.shape[0] != partitions or value.size != partitions:
                remedy = f"a number or a tensor of shape ({partitions}, 1)"
                shape = f"{name} has shape {value.shape}"
                self.refuse(shape, f"{name} must be {remedy}")
            if operand.fp32 and not self._of_bits and value.dtype != "float32":
                shown = f"{name} {text(value.access())}"
                self.refuse(shown, f"{name} must be float32: copy it first")
        elif not isinstance(value, int | float | VirtualRegister | None):
            if not hasattr(value, "dtype"):  # a NumPy scalar is a number
                remedy = f"{name} must be a number or a tensor"
                self.refuse(f"{name} is {value!r}", remedy)

    def _partitions(self, tensors: Sequence[OperandSpec]) -> int:
        read = next((o for o in tensors if o.role == "input"), tensors[0])
        value = self.values[read.name]
        return (value if isinstance(value, NkiTensor) else self.values["dst"]).shape[0]

    def engine(self, default: str = "") -> str:
        """Return the engine asked for, or the default if the compiler may choose."""
        asked = self.values.get("engine")
        if asked is None or asked == Engine.unknown:
            return default or self.spec.engines[0]
        return self.member("engine", asked, self.spec.engines)

    def emit(
        self, engine: str = "", *, reads_outputs: bool = False, **attributes: Any
    ) -> NkiInstruction:
        """Emit the instruction.

        Args:
            engine: the engine that executes it, by default `self.engine()`.
            reads_outputs: whether old contents of dst are operands.
            **attributes: static attributes that are not arguments.
        """
        engine = engine or self.engine()
        outputs: list[Any] = []
        inputs: list[Any] = []
        for operand in _operands(self.spec.name):
            if operand.kind == "state" and operand.optional and not self._accumulates():
                break
            value: Any = self._emitted(operand, engine)
            listed = value if type(value) is list else (value,)
            if operand.role != "input" and value is not None:
                outputs += listed
            if operand.role != "output":
                inputs += listed
        return emit(
            self.spec.name,
            engine,
            outputs,
            inputs,
            attributes=self._completed(tuple(attributes.items())),
            reads_outputs=reads_outputs or self.spec.reads_outputs,
            label=self.values.get("name"),
            is_open=self.values.get("engine", engine) is Engine.unknown,
        )

    def _completed(self, more: tuple[tuple[str, Any], ...]) -> Mapping[str, Any]:
        """Return the attributes and `more`; equal requests share one mapping."""
        completed = self._complete.get(more)
        if completed is None:
            completed = MappingProxyType({**self.attributes, **dict(more)})
            self._complete[more] = completed
        return completed

    def _accumulates(self) -> bool:
        idle = self.attributes["reduce_cmd"] == "idle"
        return not idle or self.values["reduce_res"] is not None

    def _emitted(self, operand: OperandSpec, engine: str) -> Any:
        """Return an operand for `trace.emit`, with a number as an int or a float."""
        kind = operand.kind
        if kind == "state":
            return engine_state(operand.name, engine)
        value = self.values[operand.name]
        if isinstance(value, NkiTensor | list):
            return value
        if kind == "integer":
            return int(value)
        if kind == "number":
            return float(value)
        if isinstance(value, int | float):
            return int(value) if self._of_bits else float(value)
        return value


def per_partition(tile: NkiTensor) -> int:
    """Return how many elements a tile has in each partition."""
    return tile.size // tile.shape[0]


#: Types of operands whose values do not matter to the checks.
_NUMBERS = frozenset({int, float, VirtualRegister})


def _by_value(value: Any) -> Any:
    if isinstance(value, NkiTensor):
        return (value.shape, value.dtype, value.storage.memory)
    return tuple(map(_by_value, value)) if isinstance(value, list | tuple) else value


_STATIC = frozenset({"operator", "flag", "choice"})


@functools.cache
def _checked_arguments(name: str) -> tuple[tuple[str, bool], ...]:
    """Return the checked arguments, and whether the value of each matters to checks."""
    operands = [o for o in SPECS[name].operands if o.kind not in ("note", "state")]
    return tuple((o.name, o.kind in _STATIC) for o in operands)


@functools.cache
def _operands(name: str) -> tuple[OperandSpec, ...]:
    roles = ("input", "output", "both")
    return tuple(o for o in SPECS[name].operands if o.role in roles)


@functools.cache
def _by_check(name: str) -> tuple[Sequence[OperandSpec], ...]:
    operands = SPECS[name].operands
    return (
        [o for o in operands if o.kind == "tensor"],
        [o for o in operands if o.kind in _STATIC],
        [o for o in operands if o.kind == "column" or o.elements],
    )


def engine_state(name: str, engine: str) -> Access:
    """Return a state of an engine, one row per lane, as an operand."""
    trace = tracing.current()
    if name == "reduce":
        return trace.state(f"{engine}.reduce", (128, 1), "float32")
    xorwow = "xorwow" in trace.core.capabilities
    words = GPSIMD_WORDS
    if engine == "vector":
        words = VECTOR_WORDS if xorwow else LFSR_WORDS
    return trace.state(f"{engine}.random", (128, words), "uint32")


Issue = Callable[[Request], Any]
#: Names to which the rows' defaults and types refer.
_NAMES = {
    **vars(constants),
    **{t.__name__: t for t in (NkiInstruction, NkiTensor, VirtualRegister, Sequence)},
    "Any": Any,
}
_ISSUES: dict[str, Issue] = {}


def instruction(*given: Any) -> Any:
    """Register a function to call instead of `Request.emit` for the named instructions,
    by default for its own name."""
    if callable(given[0]):
        _ISSUES[given[0].__name__] = given[0]
        return given[0]

    def mark(issue: Issue) -> Issue:
        _ISSUES.update(dict.fromkeys(given, issue))
        return issue

    return mark


def made(spec: InstructionSpec) -> Callable[..., Any]:
    """Return the function of `nki.isa` for an instruction, with its documentation."""
    name, issue = spec.name, _ISSUES.get(spec.name, Request.emit)
    function = function_of_row(spec, _NAMES, lambda given: issue(Request(name, given)))
    function.__module__ = "neuronjax.nki.isa"
    paragraphs = spec.meaning.split("\n\n")
    function.__doc__ = "\n\n".join(textwrap.fill(p, 84) for p in paragraphs)
    names = inspect.signature(function).parameters
    describe(function, {name: _description(name, spec) for name in names})
    return function


def _description(name: str, spec: InstructionSpec) -> str:
    if name == "name":
        return "label of the instruction"
    operand = spec.operand(name)
    assert operand is not None, f"{spec.name} does not list {name}"
    if operand.description or name != "engine":
        return operand.description or "the result"
    default, *others = spec.engines
    return f"{default} (default), {' or '.join(others)}"
