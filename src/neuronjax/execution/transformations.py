"""An emulated function of flat arrays, with its rules for JAX's transformations.

`vmap(emulated f)` is the emulation of `vmap(f)`. `grad(emulated f)` is what the chip
would do: the forward and backward programs of `jax.vjp(f)`, both emulated. An emulation
is a `custom_vjp` around a `custom_vmap`, with the residuals as flat leaves. Forward and
backward are emulations themselves, so grad of grad, vmap of grad and grad of vmap work
too. Forward mode is refused with a clear error wherever it is taken, and so is the
transpose of an emulation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import dtypes, lax
from jax.core import Tracer
from jax.custom_batching import custom_vmap
from jax.extend.core import Var, jaxpr_as_fun
from jax.sharding import NamedSharding

from neuronjax.capture.mesh_context import MeshContext, on_every_device, placements
from neuronjax.capture.trace import (
    Capture,
    Traced,
    abstract,
    as_declared,
    float0,
    is_key,
    not_transposed,
    reverse_mode_only,
    trace,
    with_closure,
)
from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.execution import interpreter, stages
from neuronjax.execution.device_sharding import active_real_devices
from neuronjax.execution.inputs_outputs import (
    CallContext,
    Outcome,
    check_history,
    joined_complex,
    split_complex,
)
from neuronjax.execution.probes.plan import Collector
from neuronjax.hardware import Target
from neuronjax.ir.collection import no_collection
from neuronjax.ir.instruction import InstructionProgram
from neuronjax.ir.model_parts import with_parts
from neuronjax.ir.program import Program, is_cotangent_scope
from neuronjax.lowering import lower
from neuronjax.policy import Policy
from neuronjax.policy.scopes import compiling_for

Leaves = Sequence[Any]


@dataclass(frozen=True, kw_only=True)
class Emulation:
    """A pure function of flat arrays and how to emulate it.

    Attributes:
        function: takes flat leaves and returns a list of flat leaves.
        name: the name of the user's function, for errors.
        names: the pytree path of each argument, for rules and errors.
        target: the machine.
        policy: the numerics.
        cotangents: the indices of arguments that carry gradients.
        derived: whether a transformation made it; then a policy rule need not match in
            it.
        around: the mesh under which the function is captured.
        collector: what is measured.
        traced: the function, traced for one list of types; see `closed`.
        saved: the capture of a program from a file, which takes only arguments of its
            types.
    """

    function: Callable[..., list[Any]]
    name: str = "the function"
    names: tuple[str, ...]
    target: Target
    policy: Policy
    cotangents: frozenset[int] = field(default=frozenset())
    derived: bool = False
    around: MeshContext = field(default=MeshContext())
    collector: Collector | None = None
    traced: Traced | None = None
    saved: Capture | None = None

    # -- capture and lowering ----------------------------------------------------------

    @no_collection()
    def capture(self, leaves: Leaves) -> Capture:
        """Return the StableHLO program for arguments of these types."""
        if self.saved is not None:
            return self.saved
        traced = self.traced
        if traced is None or traced.types != tuple(map(abstract, leaves)):
            traced = self.trace(leaves)
        with self._surrounded():
            return traced.captured

    @no_collection()
    def trace(self, leaves: Leaves, number: int | None = None) -> Traced:
        """Trace the function for arguments of these types. With the `number` of an
        earlier trace, JAX may return the same jaxpr without another trace."""
        stages.stage("capturing")
        types = tuple(map(abstract, leaves))
        with self._surrounded():
            return Traced.of(self.function, types, self.names, number)

    @no_collection()
    def closed(self, leaves: Leaves) -> tuple[Emulation, Leaves]:
        """Return the same emulation with the tracers it closes over as leading leaves.
        It is traced already, for these types."""
        traced = self.trace(leaves)
        if not traced.closes_over_tracers:
            return replace(self, traced=traced), _without_unused(traced, leaves)
        with self._surrounded():
            function, closure = with_closure(self.function, traced.types)
        names = tuple(f"closure/{i}" for i in range(len(closure)))
        emulation = replace(self, function=function, names=names + self.names)
        return emulation, [*closure, *leaves]

    def placements(self) -> tuple[NamedSharding, ...]:
        """Return the shardings of the results (see `mesh_context`). Return none on real
        devices, where results are placed already, and none if the function closes over
        tracers."""
        traced, devices = self.traced, self.around.devices
        if traced is None or active_real_devices():
            return ()
        program = traced.captured.program
        names_devices = program.meshes or any(program.result_shardings)
        if devices is None and not names_devices:
            return ()
        return placements(traced.stage, program, devices)

    @contextlib.contextmanager
    def _surrounded(self) -> Iterator[None]:
        with self.around.inside(), compiling_for(self.target.name):
            yield

    def lower(self, program: Program) -> InstructionProgram:
        """Return the instructions of a captured program."""
        stages.stage("lowering")
        if self.policy.loss_scale is not None and not self.derived:
            _check_loss_scale(program)
        if self.collector is not None:
            program = with_parts(program)
        return lower(
            program,
            target=self.target,
            policy=self.policy,
            cotangents=self.cotangents,
            every_rule_matches=not self.derived,
        )

    def run(self, context: CallContext, leaves: Leaves) -> Outcome:
        """Capture, lower and execute the function."""
        captured = self.capture(leaves)
        program = self.lower(captured.program)
        return self.execute(captured, program, context, leaves)

    def execute(
        self,
        captured: Capture,
        program: InstructionProgram,
        context: CallContext,
        leaves: Leaves,
    ) -> Outcome:
        """Execute the instructions of a capture for leaves of its types."""
        stages.stage("emulating")
        _check_context(program, context)
        arrays = plain_arrays(leaves)
        plan = None
        if self.collector is not None:
            plan = self.collector.plan(program, captured.program.argument_names)
        outcome = interpreter.run(program, arrays, context, plan=plan)
        results = join_complex(outcome.results, captured.program)
        declared = map(as_declared, results, captured.out_avals)
        return replace(outcome, results=list(declared))

    # -- transformations ---------------------------------------------------------------

    def __call__(self, context: CallContext, leaves: Leaves) -> Outcome:
        """Emulate the function on arrays or on tracers of any transformation."""
        if not any(isinstance(leaf, Tracer) for leaf in leaves):
            return self.run(context, leaves)
        guarded = (
            reverse_mode_only(x, self.name) if is_inexact(x) else x for x in leaves
        )
        emulated = jax.custom_vjp(self._batchable())
        derivative = _Derivative(self)
        emulated.defvjp(derivative.forward, derivative.backward)
        outcome = emulated(context, *guarded)
        results = (
            not_transposed(x, self.name) if is_inexact(x) else x
            for x in outcome.results
        )
        return replace(outcome, results=list(results))

    def _batchable(self) -> Callable[..., Outcome]:
        @custom_vmap
        def emulated(context: CallContext, *leaves: Any) -> Outcome:
            return self.run(context, leaves)

        @emulated.def_vmap
        def rule(axis_size: int, batched: Any, context: Any, *leaves: Any) -> Any:
            self._refuse_accompanied("vmap", context)
            _, *leaf_batched = batched
            emulation, depends = self._batched(axis_size, leaf_batched, leaves)
            outcome = emulation(context, leaves)
            flags = depends or [True] * len(outcome.results)
            return outcome, replace(outcome, results=flags)

        return emulated

    def _batched(
        self, axis_size: int, batched: Sequence[bool], leaves: Leaves
    ) -> tuple[Emulation, list[bool]]:
        """Return the emulation of `vmap(f)`, and which of its results have the new
        axis. An empty list means all of them."""
        axes = tuple(0 if b else None for b in batched)
        mapped = jax.vmap(self._by_line, in_axes=axes, axis_size=axis_size)
        if all(batched):
            return self.of_function(mapped), []
        # Use this trace: another trace may keep other residuals for the backward pass.
        with self._surrounded():
            traced = trace(mapped, leaves)
        touched = {v for v, c in zip(traced.jaxpr.invars, batched, strict=True) if c}
        for equation in traced.jaxpr.eqns:
            if any(isinstance(v, Var) and v in touched for v in equation.invars):
                touched.update(equation.outvars)
        depends = [isinstance(v, Var) and v in touched for v in traced.jaxpr.outvars]

        def function(*leaves: Any) -> list[Any]:
            outputs = zip(jaxpr_as_fun(traced)(*leaves), depends, strict=True)
            return [x if d else x[0] for x, d in outputs]

        return self.of_function(function), depends

    def of_function(self, function: Callable[..., list[Any]]) -> Emulation:
        """Return an emulation of another function of the same arguments."""
        return replace(self, function=function, traced=None, saved=None)

    @property
    def _by_line(self) -> Callable[..., list[Any]]:
        """Return the function, with the user's source line for every op. If JAX traced
        the function itself to differentiate it, all ops would have the call's line."""
        return jaxpr_as_fun(self.traced.stage.jaxpr) if self.traced else self.function

    def _refuse_accompanied(self, transformation: str, context: CallContext) -> None:
        if self.collector is not None:
            raise UnsupportedError(
                f"{transformation} cannot transform a function that collects "
                "statistics, because they belong to one whole program",
                remedy=f"put the {transformation} inside the emulated function, "
                "nj.jit(train_step, collect=True)",
            )
        if context.amax_history is not None:
            raise UnsupportedError(
                f"{transformation} cannot transform a function with delayed scaling: "
                "its amax history belongs to whole steps",
                remedy=f"put the {transformation} inside the emulated function",
            )


class _Derivative:
    """The passes of one emulation. The structure of the residuals, which tracing the
    forward pass finds, is kept here until the backward pass is traced."""

    def __init__(self, primal: Emulation) -> None:
        self.primal = primal
        self.vjp_tree: Any = None
        self.residual_names: tuple[str, ...] = ()
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def forward(self, context: CallContext, *leaves: Any) -> tuple[Outcome, tuple]:
        """Return outputs and flat residuals, as the forward function of custom_vjp."""
        self.primal._refuse_accompanied("grad", context)
        self.inputs = [abstract(leaf) for leaf in leaves]

        def function(*leaves: Any) -> list[Any]:
            return self._trace_forward(leaves)

        outcome = self.primal.of_function(function)(context, leaves)
        flat, count = outcome.results, len(self.outputs)
        return replace(outcome, results=flat[:count]), (context, flat[count:])

    def _trace_forward(self, leaves: Leaves) -> list[Any]:
        """Return outputs and residuals of jax.vjp with respect to the float leaves."""
        inexact = [i for i, leaf in enumerate(leaves) if is_inexact(leaf)]

        def of_inexact(*floats: Any) -> list[Any]:
            full = list(leaves)
            for i, leaf in zip(inexact, floats, strict=True):
                full[i] = leaf
            return self.primal._by_line(*full)

        outputs, pull = jax.vjp(of_inexact, *[leaves[i] for i in inexact])
        residuals, self.vjp_tree = jax.tree.flatten(pull)
        names = {id(leaf): n for leaf, n in zip(leaves, self.primal.names, strict=True)}
        self.residual_names = tuple(names.get(id(r), "") for r in residuals)
        self.outputs = [abstract(o) for o in outputs]
        return [*outputs, *residuals]

    def backward(self, saved: tuple, cotangents: Outcome) -> tuple:
        """Return one cotangent per argument; the backward function of custom_vjp."""
        context, residuals = saved
        pairs = zip(cotangents.results, self.outputs, strict=True)
        floats = [on_every_device(c) for c, o in pairs if is_inexact(o)]
        count, scale = len(residuals), self.primal.policy.loss_scale

        def function(*leaves: Any) -> list[Any]:
            pull = jax.tree.unflatten(self.vjp_tree, leaves[:count])
            rest = iter(leaves[count:])
            cts = [
                _scaled(next(rest), scale) if is_inexact(o) else float0(o)
                for o in self.outputs
            ]
            return [_scaled(g, scale and 1 / scale) for g in pull(cts)]

        emulation = replace(
            self.primal.of_function(function),
            names=(
                *self.residual_names,
                *[f"cotangent/{i}" for i in range(len(floats))],
            ),
            cotangents=frozenset(range(count, count + len(floats))),
            derived=True,
        )
        gradients = iter(emulation(context, [*residuals, *floats]).results)
        inputs = self.inputs
        # The context has no cotangent.
        return None, *[next(gradients) if is_inexact(x) else float0(x) for x in inputs]


def _scaled(x: Any, scale: float | None) -> Any:
    if scale is None:
        return x
    if jnp.iscomplexobj(x):  # a complex factor would need four products
        return lax.complex(_scaled(lax.real(x), scale), _scaled(lax.imag(x), scale))
    return x * jnp.asarray(scale, x.dtype)


def _check_context(program: InstructionProgram, context: CallContext) -> None:
    if context.amax_history is not None:
        check_history(program, context.amax_history)
    elif program.amax_slots:
        raise InvalidProgramError(
            'scaling="delayed" needs the amax history of the previous steps',
            remedy="write history = step.init_amax_history(*args), then "
            "outputs, history = step.with_amax_history(history)(*args)",
        )
    if program.stochastic and context.call_index is None:
        raise InvalidProgramError(
            "the program rounds stochastically, but this call has no rounding seed",
            remedy="call f.with_rounding_seed(i)(...), where i is a uint32 that "
            "changes with every call, for instance the step number",
        )


def _check_loss_scale(program: Program) -> None:
    """Refuse a loss scale for a program that computes gradients itself: the scale acts
    on cotangents that enter a backward pass from outside."""
    for op in program.walk():
        if is_cotangent_scope(op.location.scope):
            raise InvalidProgramError(
                "Policy.loss_scale cannot act on gradients that the program itself "
                "computes",
                op=op.name,
                location=op.location.source,
                remedy="differentiate the emulated loss, jax.grad(nj.jit(loss, ...)), "
                "or scale the loss in the program",
            )


# -- leaves ----------------------------------------------------------------------------


def _without_unused(traced: Traced, leaves: Leaves) -> Leaves:
    """Return the arguments, with zeros for those that the function does not use. JAX
    then sees that nothing uses them, and passes no array for them either."""
    return [
        x if is_used or is_key(x.dtype) else jnp.zeros(x.shape, x.dtype)
        for x, is_used in zip(leaves, traced.used, strict=True)
    ]


def is_inexact(leaf: Any) -> bool:
    """Return whether an argument has a gradient."""
    return dtypes.issubdtype(leaf.dtype, np.inexact)


def plain_arrays(leaves: Leaves) -> list[jax.Array]:
    """Return the inputs for a lowered program: random keys become arrays of uint32,
    complex arrays become pairs of real arrays."""
    plain = (jax.random.key_data(x) if is_key(x.dtype) else x for x in leaves)
    return split_complex([jnp.asarray(x) for x in plain])


def join_complex(arrays: Sequence[jax.Array], program: Program) -> list[jax.Array]:
    """Return results of a lowered program with the complex dtypes of `program`."""
    values = program.entry.body.results
    return joined_complex(arrays, (value.type.dtype.kind == "c" for value in values))
