"""The context of a lowering rule: operands, results, the effective policy, provenance.

`ProgramContext` is shared by a whole program; a `Context` belongs to one block.
Provenance is carried forward with the values: the program argument from which a value
descends (through casts, reshapes and slices), and whether it is a cotangent. A value is
a cotangent if it is computed in a transpose scope that is not a rematerialized forward
pass. Movement and casts keep the provenance of their operand.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import ChainMap, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from neuronjax.errors import IntegersInFP32Warning, UnsupportedError, warn_once
from neuronjax.hardware import (
    CHIPS,
    EMULATOR_ONLY_DTYPES,
    CoreSpec,
    Target,
    chips_with,
    chips_with_engine,
)
from neuronjax.ir.collective_set import DeviceMesh
from neuronjax.ir.descent import MOVES
from neuronjax.ir.instruction import Block, Buffer, Engine, Instruction, View
from neuronjax.ir.program import (
    Location,
    Op,
    Program,
    Region,
    TensorType,
    Value,
    is_cotangent_scope,
)
from neuronjax.ir.value_sources import ValueSources
from neuronjax.numerics.float_format import FORMATS
from neuronjax.policy import Policy
from neuronjax.policy.policy import idle_rule_error, unmatched_rule_error
from neuronjax.policy.scopes import active_policy, has_policy_scope, policy_from_scope

# The result of a lowering rule.
Instructions = Iterator[Instruction]


class Facts(NamedTuple):
    """The provenance of a value."""

    parameter: str = ""  # the pytree path of the argument it descends from, or ""
    cotangent: bool | None = None  # whether it carries a gradient; None for constants


class LoweredRegion(NamedTuple):
    """The region of a lowered block, with the instructions and views that belong to
    it."""

    region: Region
    ends: tuple[int, ...]  # for every op, the number of instructions up to its last one
    views: Mapping[Value, View]  # of all values, also those of the enclosing regions


class ProgramContext:
    """The state that the blocks of a program share.

    Attributes:
        obeys_scopes: whether a `policy_scope` overrides the policy.
        regions: the region of every block lowered so far.
    """

    def __init__(
        self,
        program: Program,
        target: Target,
        policy: Policy,
        *,
        obeys_scopes: bool = True,
    ) -> None:
        self.program = program
        self.target = target
        self.core = target.chip.core
        self.obeys_scopes = obeys_scopes
        self.policy = (active_policy() if obeys_scopes else None) or policy
        self.regions: dict[Block, LoweredRegion] = {}
        self.legal_dtypes = _legal_dtypes(self.core)
        self.functions: dict[str, Block] = {}
        self.callees: dict[tuple, Any] = {}
        self.stochastic = False
        self.amax_slots = 0
        #: The devices whose block is being lowered; None outside of any `Spmd`.
        self.mesh: DeviceMesh | None = None
        self._buffers = 0
        self._matched: set[int] = set()
        self._changing: set[int] = set()
        self._seen: dict[str, set[str]] = defaultdict(set)

    @functools.cached_property
    def sources(self) -> ValueSources:
        """The values from which each value of the program is computed."""
        return ValueSources(self.program)

    def entry(self, cotangents: frozenset[int]) -> Context:
        """Return the context of main, with the provenance of its arguments."""
        context = Context(self, prefix="")
        names = self.program.argument_names
        for i, value in enumerate(self.program.entry.body.arguments):
            name = names[i] if i < len(names) else ""
            if value.type.dtype not in self.legal_dtypes:
                source = self.first_use(value)
                raise _dtype_error(f"argument {name}", source, value.type, self.target)
            context.facts[value] = Facts(name, i in cotangents)
        return context

    def first_use(self, value: Value) -> str:
        """Return the line of the first op that reads a value, or ""."""
        readers = (op for op in self.program.walk() if value in op.operands)
        return next((op.location.source for op in readers), "")

    def buffer(self, type: TensorType) -> Buffer:
        self._buffers += 1
        return Buffer(self._buffers, type)

    def effective_policy(
        self, op: Op, scope: str, parameters: tuple, caller: Location
    ) -> tuple[Policy, str | None]:
        """Return the policy of one op, from the enclosing policy_scope and the rules.
        The second result is the `param` pattern of the rule that decided, or None."""
        policy = self.policy
        if self.obeys_scopes and has_policy_scope(scope):
            policy = policy_from_scope(scope) or policy
        if not policy.rules:
            return policy, None
        source, module = op.location.source, op.location.inside(caller).part
        texts: dict[str, Any] = dict(
            params=parameters, scope=scope, source=source, module=module
        )
        matched = policy.matching_rules(op.name, **texts)
        if policy is self.policy:
            self._matched.update(matched)
            self._changing |= {n for n in matched if policy.can_change(n, op.name)}
            self._seen["op"].add(op.name)
            self._seen["param"].update(parameters)
            self._seen["scope"].add(scope)
            self._seen["source"].add(source)
            self._seen["module"].add(module)
        pattern = policy.rules[matched[-1]].param if matched else None
        return policy.for_op(op.name, **texts), pattern

    def check_rules(self) -> None:
        """Refuse a rule that matches no op, and one that can change none of its ops."""
        for index, rule in enumerate(self.policy.rules):
            if index not in self._matched:
                raise unmatched_rule_error(rule, self._seen)
            if index not in self._changing:
                raise idle_rule_error(rule)

    @functools.cached_property
    def tracks_provenance(self) -> bool:
        """Whether the provenance of a call's arguments may change its lowering."""
        policy = self.policy
        by_role = policy.auto_cast_type.startswith(("fp8", "mx"))
        by_rule = bool(policy.rules or policy.sparsity)
        return by_role or by_rule or holds_scopes(self.program)


def holds_scopes(program: Program) -> bool:
    """Return whether a program contains a `policy_scope` or `collective_algorithm`."""
    return any(has_policy_scope(op.location.scope) for op in program.walk())


class Context:
    """The context in which one block is lowered; rules receive it.

    Attributes:
        prefix: the name stack of the enclosing call, "" in main.
        caller: the location of that call; empty in main.
        memo: results of instructions that later ops of the block may reuse.
        scope: the full name stack of the current op.
    """

    def __init__(
        self, shared: ProgramContext, prefix: str, caller: Location = Location()
    ) -> None:
        self.shared = shared
        self.core = shared.core
        self.prefix = prefix
        self.caller = caller
        self.views: ChainMap[Value, View] = ChainMap()
        self.facts: ChainMap[Value, Facts] = ChainMap()
        self.memo: ChainMap[tuple, Any] = ChainMap()
        self.location = Location()
        self.scope = ""
        self._emitted: list[Instruction] = []
        self._ordinal = 0
        self._policy: tuple[Policy, str | None] | None = None
        self._op: Op | None = None

    # -- values ------------------------------------------------------------------------

    def child(self) -> Context:
        """Return the context of a nested region, which sees this block's values."""
        child = Context(self.shared, self.scope or self.prefix, self.caller)
        child.views, child.facts = self.views.new_child(), self.facts.new_child()
        child.memo = self.memo.new_child()
        return child

    def view(self, value: Value) -> View:
        return self.views[value]

    def operands(self, op: Op) -> tuple[View, ...]:
        return tuple([self.views[value] for value in op.operands])

    def define(self, value: Value) -> Buffer:
        """Return a new buffer that will hold an SSA value."""
        buffer = self.shared.buffer(value.type)
        self.views[value] = View(buffer)
        return buffer

    def results(self, op: Op) -> tuple[Buffer, ...]:
        return tuple([self.define(value) for value in op.results])

    def alias(self, value: Value, view: View) -> None:
        """Let an SSA value refer to an existing view."""
        self.views[value] = view

    def temporary(self, shape: tuple[int, ...], dtype: Any) -> Buffer:
        """Return a buffer that belongs to no SSA value."""
        return self.shared.buffer(TensorType(tuple(shape), np.dtype(dtype)))

    # -- policy and provenance ---------------------------------------------------------

    def enter(self, op: Op) -> None:
        """Begin an op: set its location and forget the previous policy."""
        self.location = op.location
        scope = op.location.scope
        self.scope = f"{self.prefix}/{scope}" if self.prefix else scope
        self._op, self._policy = op, None

    def leave(self, op: Op) -> None:
        """End an op: give its results their provenance."""
        if op.name in MOVES and op.operands:
            facts = self.passed_on(op.operands[0])
        elif op.name in ("stablehlo.constant", "stablehlo.iota"):
            facts = Facts()
        else:
            facts = Facts("", is_cotangent_scope(self.scope))
        for value in op.results:
            self.facts.setdefault(value, facts)

    def fact(self, value: Value) -> Facts:
        return self.facts.get(value, Facts())

    def passed_on(self, value: Value) -> Facts:
        """Return the provenance of a value that an op moves or a loop carries. For a
        constant the op's scope decides whether it is a cotangent."""
        facts = self.fact(value)
        if facts.cotangent is None:
            facts = facts._replace(cotangent=is_cotangent_scope(self.scope))
        return facts

    @property
    def policy(self) -> Policy:
        """The effective policy of the current op."""
        return self._decided()[0]

    @property
    def param_pattern(self) -> str | None:
        """The `param` of the rule that decided the policy of the current op."""
        return self._decided()[1]

    def _decided(self) -> tuple[Policy, str | None]:
        if self._policy is None:
            op = self._op
            assert op is not None
            parameters = tuple(
                dict.fromkeys(p for v in op.operands if (p := self.fact(v).parameter))
            )
            self._policy = self.shared.effective_policy(
                op, self.scope, parameters, self.caller
            )
        return self._policy

    @property
    def integer_path(self) -> str:
        """How integers are computed: as the policy says, or as on the chip if the
        policy is "auto"."""
        path = self.policy.integer_path
        return "fp32" if path == "auto" and self.core.gpsimd is None else path

    # -- instructions ------------------------------------------------------------------

    def make(
        self,
        cls: type,
        /,
        operands: tuple[View, ...],
        results: tuple[Buffer, ...],
        *,
        engine: Engine,
        **attributes: Any,
    ) -> Any:
        """Return an instruction of the current op. If the chip lacks the engine,
        another one executes it, or the op is refused."""
        made = cls(
            operands=operands,
            results=results,
            engine=engine,
            location=self.location,
            **attributes,
        )
        if engine not in self.shared.target.chip.lacks:
            return made
        if made.elsewhere is None:
            title = {"gpsimd": "GpSimdE", "cc": "CC-cores"}[made.engine]
            raise UnsupportedError(
                f"{self.shared.target.name} has no {title}, which this op needs",
                op=self._op.name if self._op else None,
                location=self.location.source,
                remedy="compute it outside of the emulated function, or use a target "
                f"that has {title}: {', '.join(chips_with_engine(made.engine))}",
            )
        return dataclasses.replace(made, engine=made.elsewhere)

    def arithmetic(
        self,
        cls: type,
        /,
        operands: tuple[View, ...],
        results: tuple[Buffer, ...],
        **fields: Any,
    ) -> Any:
        """Return an instruction whose float result is rounded on its one write."""
        policy = self.policy
        dtype = results[0].type.dtype.name
        write_format = None
        if policy.auto_cast == "all" and dtype == "float32":
            write_format = policy.operand_dtype(
                "forward", chip_fp8=self.shared.target.chip.forward_fp8
            )
        fields |= self.on_write(write_format or dtype)
        return self.make(cls, operands, results, write_format=write_format, **fields)

    def on_write(self, name: str) -> dict[str, Any]:
        """Return the fields that say how an FP32 result is written in a format."""
        if name in FORMATS and name != "float32":
            return dict(rounding=self.policy.rounding, overflow=self.policy.overflow)
        return {}

    def whole(
        self, op: Op, cls: type, engine: Engine, /, rounds: bool = False, **fields: Any
    ) -> Any:
        """Return one instruction with all operands and results of an op."""
        make = self.arithmetic if rounds else self.make
        operands, results = self.operands(op), self.results(op)
        return make(cls, operands, results, engine=engine, **fields)

    def emit(self, instruction: Any) -> None:
        """Append an instruction after those that the rule has yielded and emitted."""
        self._emitted.append(self.numbered(instruction))

    def computed(
        self,
        cls: type,
        /,
        operands: tuple[View, ...],
        shape: tuple[int, ...],
        dtype: Any,
        **fields: Any,
    ) -> View:
        """Emit an instruction whose only result is a temporary, and return the view."""
        result = self.temporary(shape, dtype)
        self.emit(self.make(cls, operands, (result,), **fields))
        return View(result)

    def collected(self, rule: Iterable[Instruction]) -> Iterator[Instruction]:
        """Yield the instructions that a rule and its helpers emit, in order."""
        for instruction in rule:
            yield from self._taken()
            yield self.numbered(instruction)
        yield from self._taken()

    def _taken(self) -> list[Instruction]:
        emitted, self._emitted = self._emitted, []
        return emitted

    def numbered(self, instruction: Instruction) -> Instruction:
        """Return the instruction, with an ordinal if it rounds stochastically."""
        if instruction.rounding != "stochastic":
            return instruction
        self.require("stochastic_rounding", "stochastic rounding", "rounding='rne'")
        self.shared.stochastic = True
        return dataclasses.replace(instruction, ordinal=self.new_ordinal())

    def new_ordinal(self) -> int:
        """Return a new ordinal; inner keys derive from that of a call or region."""
        self._ordinal += 1
        return self._ordinal

    # -- limits ------------------------------------------------------------------------

    def require(self, capability: str, what: str, instead: str = "") -> None:
        """Refuse an op if the chip's cores lack one of `hardware.CAPABILITIES`. In the
        message `what` is the missing feature, `instead` what to do on this chip."""
        if capability in self.core.capabilities:
            return
        either = f"{instead}, or use" if instead else "use"
        able = ", ".join(chips_with(capability))
        raise UnsupportedError(
            f"{self.shared.target.name} has no {what}",
            op=self._op.name if self._op else None,
            location=self.location.source,
            remedy=f"{either} a target that has it: {able}",
        )

    def no_such_integers(self, dtype: np.dtype) -> UnsupportedError:
        """Return the error for a random generator's integer arithmetic, which would be
        wrong in FP32."""
        return UnsupportedError(
            f"{self.shared.target.name} computes {dtype} in float32, which holds whole "
            "numbers up to 2^24: random numbers and hashes would be wrong",
            op=self._op.name if self._op else None,
            location=self.location.source,
            remedy="draw random numbers outside the emulated function, or exactly: "
            'policy="integer_path=exact" (--policy integer_path=exact)',
        )

    def warn_of_integers(self, does: str) -> None:
        """Warn, once per line, that the chip computes these integers in FP32."""
        name = self._op.name if self._op else ""
        warn_once(
            self.location.source or "",
            f"{name}: the chip {does} in float32, exactly only up to 2^24; other JAX "
            "backends are exact. To choose, set integer_path to 'fp32' or 'exact', in "
            "the policy or a Rule",
            IntegersInFP32Warning,
        )

    def check_types(self, op: Op) -> None:
        """Refuse an op whose results have a dtype that the chip does not have."""
        legal = self.shared.legal_dtypes
        for value in op.results:
            if value.type.dtype not in legal:
                # Constants come first in the program, and have no line of the user.
                constant = op.name == "stablehlo.constant"
                used = self.shared.first_use(value) if constant else ""
                source = used or op.location.source
                raise _dtype_error(op.name, source, value.type, self.shared.target)


@functools.cache
def _legal_dtypes(core: CoreSpec) -> frozenset[np.dtype]:
    """Return the dtypes of the engines, and int64 and uint64 for addresses."""
    names = {name for engine in core.engines for name in engine.dtypes}
    names = names - EMULATOR_ONLY_DTYPES | {"int64", "uint64"} | set(core.mx_dtypes)
    if core.mx_dtypes:
        names.add("float8_e8m0fnu")
    return frozenset(np.dtype(getattr(ml_dtypes, name, name)) for name in names)


def _dtype_error(
    what: str, source: str, type: TensorType, target: Target
) -> UnsupportedError:
    name, chip = type.dtype.name, target.chip
    instead = ["bfloat16, float16, float32 or a 32-bit integer"]
    if name == "float64":
        instead = ["float32 (jax_enable_x64 must be off)"]
    elif chip.forward_fp8 and name in FORMATS and FORMATS[name].width == 8:
        largest = FORMATS[chip.forward_fp8].max_finite
        instead = [f"{chip.forward_fp8} (largest value {largest:g})"]
    able = [n for n, c in CHIPS.items() if type.dtype in _legal_dtypes(c.core)]
    if able:
        instead.append(f"a target that has it: {', '.join(able)}")
    return UnsupportedError(
        f"dtype {name} does not exist on {target.name}",
        op=what,
        location=source or None,
        remedy=f"use {', or '.join(instead)}",
    )
