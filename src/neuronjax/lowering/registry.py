"""The table of lowering rules and the driver that applies it.

A rule is a generator, `@lowers("stablehlo.add", ...) def rule(op, context)`, that
yields the instructions of one op; helpers that return a view `emit` their instructions.
What a rule cannot express is an error that names the op, the user's line and the
remedy; nothing falls back to native JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from neuronjax.errors import InternalError, NeuronJaxError, UnimplementedError
from neuronjax.hardware import Target
from neuronjax.ir.collection import no_collection
from neuronjax.ir.instruction import Block, Instruction, InstructionProgram
from neuronjax.ir.model_parts import with_parts
from neuronjax.ir.program import Op, Program, Region
from neuronjax.lowering.complex_program import real_indices, real_program
from neuronjax.lowering.context import (
    Context,
    LoweredRegion,
    ProgramContext,
    holds_scopes,
)
from neuronjax.policy import Policy
from neuronjax.policy.scopes import active_policy

Rule = Callable[[Op, Context], Iterable[Instruction]]

RULES: dict[str, Rule] = {}


def lowers(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for StableHLO ops by name."""

    def register(rule: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"two lowering rules for {name}")
            RULES[name] = rule
        return rule

    return register


@no_collection()
def lower(
    program: Program,
    *,
    target: Target,
    policy: Policy,
    cotangents: frozenset[int] = frozenset(),
    every_rule_matches: bool = True,
) -> InstructionProgram:
    """Lower a program to the instructions of the target's core.

    A complex argument or result of main becomes two float32 ones, the real part and the
    imaginary part. `cotangents` are the indices of main's arguments that carry
    gradients; `every_rule_matches` refuses a policy rule that matches no op.

    Raises:
        UnimplementedError: an op without a rule.
        UnsupportedError: an op or dtype that the chip does not have.
        InvalidProgramError: a policy rule that matches nothing.
    """
    in_force = active_policy() or policy
    names_modules = any(rule.module for rule in in_force.rules)
    if names_modules or holds_scopes(program):  # a scope's policy may name modules too
        program = with_parts(program)
    if program.holds_complex():
        cotangents = real_indices(program, cotangents)
        program = real_program(program, sdk=in_force.sdk)
    shared = ProgramContext(program, target, policy)
    lowered = _lowered(shared, policy, cotangents)
    if every_rule_matches:
        shared.check_rules()
    return lowered


@no_collection()
def lower_by_op(
    program: Program, *, target: Target, policy: Policy, obeys_scopes: bool = True
) -> tuple[InstructionProgram, Mapping[Block, LoweredRegion]]:
    """Return the instructions of a program without complex numbers, and the region of
    every block with the instructions of each op. `obeys_scopes` says whether a
    `policy_scope` in the program overrides the policy."""
    shared = ProgramContext(program, target, policy, obeys_scopes=obeys_scopes)
    lowered = _lowered(shared, policy, frozenset())
    shared.check_rules()
    return lowered, shared.regions


def _lowered(
    shared: ProgramContext, policy: Policy, cotangents: frozenset[int]
) -> InstructionProgram:
    main = lower_region(shared.program.entry.body, shared.entry(cotangents))
    return InstructionProgram(
        main,
        shared.functions,
        stochastic=shared.stochastic,
        seed=policy.seed,
        amax_slots=shared.amax_slots,
        amax_history_length=policy.amax_history_length,
    )


def lower_region(region: Region, context: Context) -> Block:
    """Lower the ops of a region whose arguments `context` will define."""
    arguments = tuple([context.define(value) for value in region.arguments])
    instructions: list[Instruction] = []
    ends = []
    for op in region.ops:
        instructions.extend(lower_op(op, context))
        ends.append(len(instructions))
    results = tuple([context.view(value) for value in region.results])
    block = Block(arguments, tuple(instructions), results)
    context.shared.regions[block] = LoweredRegion(region, tuple(ends), context.views)
    return block


def lower_op(op: Op, context: Context) -> Iterator[Instruction]:
    """Yield the instructions of one op, by its rule."""
    rule = RULES.get(op.name)
    if rule is None:
        raise op.error(
            UnimplementedError,
            f"no lowering rule for an op with operands "
            f"({', '.join(str(v.type) for v in op.operands)})",
            "rewrite the line with other ops, or report this message",
        )
    context.check_types(op)
    context.enter(op)
    try:
        yield from context.collected(rule(op, context))
    except (NeuronJaxError, Warning):
        raise
    except Exception as error:  # a bug in the rule: name the op and its line
        raise op.error(
            InternalError,
            f"its lowering rule failed: {type(error).__name__}: {error}",
            "please report it with this message and the program",
        ) from error
    context.leave(op)
