"""The specification of one NKI instruction: the shape of a row of `nki_instructions`.

`nki.isa` checks arguments, emits and documents by it; `nki.limits`, the older style and
the table of coverage read it too. The semantics of an instruction are the function of
`execution.tiles` that is registered by its name, and its cost is in `timing.engines`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from neuronjax.hardware import CHIPS
from neuronjax.ir.instruction import Label

Kind = Literal[
    "tensor",  # one, or a list of them
    "column",  # a number, a register, or a tensor of one element per partition
    "number",  # an FP32 immediate
    "integer",  # an int32 immediate, or a list of them
    "state",  # state of an engine: "reduce" accumulators, "random" generators
    "operator",  # an operator of nki.language
    "flag",
    "choice",  # a member of an enumeration
    "note",  # read only by the instruction's function in `nki.isa`
]
Role = Literal["input", "output", "both", "attribute", "none"]
Reading = Literal["all", "lanes", "part"]

ON_CHIP = ("sbuf", "psum")
SBUF = ("sbuf",)
OFF_PSUM = ("sbuf", "private_hbm", "shared_hbm")

# Values that several rows accept.
ADD, MAXIMUM = frozenset({"add"}), frozenset({"maximum"})
FP8_X4 = ("float8_e5m2_x4", "float8_e4m3fn_x4")
SCALES = ("float8_e8m0fnu", "uint8")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandSpec:
    """One parameter, in the order in which operands are emitted."""

    name: str  # the name of the parameter
    kind: Kind  # the kind of value that is accepted
    role: Role  # how the instruction uses it
    memories: tuple[str, ...] = ()  # where a tensor may be; () for everywhere
    dtypes: tuple[str, ...] = ()  # the dtypes of a tensor; () for all
    like: str = ""  # name of a tensor of as many partitions, and elements per partition
    elements: int = 0  # elements per partition, 0 for any number
    #: Whether it may be None. An optional "state", and all operands after it, are left
    #: out of an instruction whose `reduce_cmd` is idle and whose `reduce_res` is None.
    optional: bool = False
    or_number: bool = False  # whether a number may take a tensor's place
    #: Whether a vector must be FP32, unless the operators work on bits.
    fp32: bool = False
    legal: Collection[str] = ()  # names of operators, or of an enumeration's members
    loads: str = ""  # for `reduce_cmd`, the operand that load_reduce requires
    never: tuple[str, ...] = ()  # dtypes that a tensor must not have
    dtype_of: str = ""  # name of a tensor with the same dtype
    #: How many elements per partition a tensor may have; None for any.
    counts: range | None = None
    #: The Python type that a caller passes, if the kind does not say it.
    type: str = ""
    text: str = ""  # further text for the documentation

    @property
    def description(self) -> str:
        """The documentation of this parameter, without a full stop."""
        accepted = _ACCEPTED[self.kind](self) if self.kind in _ACCEPTED else ""
        return "; ".join(filter(None, (accepted, self.text)))


def _of_tensor(operand: OperandSpec) -> str:
    count = operand.elements
    facts = (
        "a number or a tensor" if operand.or_number else "",
        _places(operand.memories),
        " or ".join(operand.dtypes),
        f"{count} element{'s' * (count > 1)} per partition" if count else "",
        f"with as many partitions and elements as {operand.like}"
        if operand.like
        else "",
    )
    return ", ".join(filter(None, facts))


def _places(memories: tuple[str, ...]) -> str:
    if not memories or memories == ON_CHIP:
        return "on chip" if memories else ""
    names = [m.upper() for m in memories if not m.endswith("hbm")]
    return f"in {' or '.join([*names, *['HBM'] * (len(memories) > 1)])}"


def _of_choice(operand: OperandSpec) -> str:
    few = len(operand.legal) <= 8
    return ", ".join(sorted(operand.legal)) if few else "a function of nki.language"


_ACCEPTED = {
    "tensor": _of_tensor,
    "column": lambda operand: (
        f"a number, or {'an FP32' if operand.fp32 else 'a'} "
        "tensor of shape (partitions, 1)"
    ),
    "operator": _of_choice,
    "choice": _of_choice,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionSpec:
    """The specification of one instruction."""

    name: str  # in nki.isa; semantics and price are registered under this name
    #: The documented parameters with their defaults, in their order: literals, or
    #: members of an enumeration of nki.isa.
    call: str
    meaning: str  # what it does, for the documentation
    operands: tuple[OperandSpec, ...]  # one per parameter
    #: The engines that may execute it; the first one does if the user does not choose.
    engines: tuple[str, ...]
    label: Label = "exact"  # how far its numbers can be trusted
    capability: str = ""  # the capability that a core needs; "" if every core has it
    instead: str = ""  # the alternative on other cores
    #: The positions of two inputs that share the one port to PSUM.
    one_in_psum: tuple[int, ...] = ()
    #: The positions of inputs that may be `.indirect()`; dst may be, too.
    gathered: tuple[int, ...] = ()
    #: The engines on which inputs may be `.indirect()`; () for all of `engines`.
    gathering_engines: tuple[str, ...] = ()
    #: "lanes" if a partition of dst depends only on the same partition of the operands,
    #: "part" if not all of an operand need be read.
    reads: Reading = "all"
    reads_outputs: bool = False  # whether it always reads the old contents of dst
    #: Whether elements of dst that it does not write keep their contents.
    keeps: bool = False
    runs: bool = True  # whether it is executed; False if it only names a register
    returns: str = "NkiInstruction"  # the Python type that the function returns

    @property
    def source(self) -> str:
        """The page of the vendor's documentation that defines it."""
        return f"nki.isa.{self.name}"

    @property
    def generation(self) -> str:
        """The first NeuronCore that has it: "v3"."""
        needed = {self.capability} - {""}
        cores = (chip.core for chip in CHIPS.values())
        able = (core for core in cores if needed <= core.capabilities)
        return next(core.name.rpartition("-")[2] for core in able)

    def operand(self, name: str) -> OperandSpec | None:
        """Return the parameter of a name."""
        return next((o for o in self.operands if o.name == name), None)


# ---- Functions that make rows.


def _maker(kind: Kind, role: Role, *names: str, **usual: Any) -> Any:
    """Return a function that makes a parameter of this kind from its name. Further
    positional arguments are the fields `names`, keywords are other fields."""
    usual |= {"kind": kind, "role": role}

    def make(name: str, *values: Any, **fields: Any) -> OperandSpec:
        fields |= dict(zip(names, values, strict=False))
        return OperandSpec(name=name, **usual | fields)

    return make


tensor = _maker("tensor", "input", "memories", memories=ON_CHIP)
column = _maker("column", "input", "text", optional=True)
number = _maker("number", "input", "text", text="FP32")
integer = _maker("integer", "input", "text", "type", type="int")
operator = _maker("operator", "attribute", "legal", "text")
flag = _maker("flag", "attribute", "text")
choice = _maker("choice", "attribute", "legal", "text")
note = _maker("note", "none", "text", "type", type="Any")
state = _maker("state", "both", "role")


def out(name: str = "dst", *memories: Any, **more: Any) -> OperandSpec:
    """Return a parameter for a tensor that is written."""
    return tensor(name, *memories, role="output", **more)


def result(text: str = "receives the values of the accumulators") -> OperandSpec:
    """Return the parameter `reduce_res`."""
    return out("reduce_res", elements=1, optional=True, text=text)


ENGINE = note("engine", "")


def command(names: str, loads: str = "") -> OperandSpec:
    """Return the parameter `reduce_cmd`, with its legal values."""
    text = "what the instruction does with the engine's accumulators"
    return choice("reduce_cmd", tuple(names.split()), text, loads=loads)


def checked(name: str, legal: Collection[str]) -> OperandSpec:
    """Return a parameter for an operator checked against `legal`, not emitted."""
    return operator(name, legal, role="none", optional=True)


def pattern() -> tuple[OperandSpec, ...]:
    """Return the operands of an affine expression of the indices."""
    return (
        integer("offset", "added to every value"),
        integer("channel_multiplier", "added p times in partition p"),
        integer(
            "pattern",
            "one to four pairs [step, count]; the product of the counts must be the "
            "elements per partition of dst",
            "Sequence[Sequence[int]]",
        ),
    )


def row(
    name: str,
    engines: str,
    call: str,
    meaning: str,
    *operands: OperandSpec,
    **more: Any,
) -> InstructionSpec:
    return InstructionSpec(
        name=name,
        engines=tuple(engines.split()),
        call=call,
        meaning=meaning,
        operands=operands,
        **more,
    )


#: A row whose instruction works lane by lane.
lanes = functools.partial(row, reads="lanes")
