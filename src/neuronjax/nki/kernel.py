"""`nki.jit`, `Kernel` and `nki.simulate`, which make and run kernels.

A kernel is specialised for every combination of shapes, dtypes, static arguments,
target and grid: its Python code runs, and the trace becomes one jitted function. Under
`jax.disable_jit()` the code runs in every call, instruction by instruction.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.capture import kernel_calls
from neuronjax.errors import InvalidProgramError
from neuronjax.execution.kernels import faults
from neuronjax.execution.kernels.eager import EagerMachine
from neuronjax.execution.kernels.ranks import RankedMachine
from neuronjax.execution.kernels.running import KernelPlan, prepare
from neuronjax.hardware import Target
from neuronjax.ir.collection import no_collection
from neuronjax.ir.collectives.selection import VARIABLE
from neuronjax.ir.kernel import Access, KernelBlock, KernelProgram, Storage
from neuronjax.ir.kernel_call import KernelFunction
from neuronjax.ir.kernel_copies import without_copies
from neuronjax.ir.kernel_numerics import FIELDS, USUAL
from neuronjax.nki import arguments, jax_call
from neuronjax.nki.active import in_kernel, tracing
from neuronjax.nki.bound_call import BoundCall, TracedKernel, canonical
from neuronjax.nki.isa.assignment import assign
from neuronjax.nki.language.programs import wants_grid
from neuronjax.nki.limits.programs import checked
from neuronjax.nki.linking import linked
from neuronjax.nki.loops import while_condition
from neuronjax.nki.memory import MemoryRegion
from neuronjax.nki.mistakes import named_mistakes
from neuronjax.nki.targets import check_ranks, chosen_target, runtime_rounding
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import AnyMachine, Launch, Trace
from neuronjax.policy.scopes import algorithm_from_scope, compiling_for

Grid = tuple[int, ...]


class Specialised(NamedTuple):
    """A traced kernel with its plan and two forms: for JAX programs, and for arrays."""

    traced: TracedKernel
    plan: KernelPlan
    function: KernelFunction
    run: jax_call.Run


class Kernel:
    """A kernel function; call it with arrays.

    `kernel[2]` runs it as two programs of one logical core, `kernel[grid]` as a grid.
    Within another kernel a call is inlined.

    Attributes:
        older: whether it is of the older style, see `limits.programs.checked`.
    """

    older = False

    def __init__(
        self,
        function: Callable[..., Any],
        target: str | Target | None = None,
        grid: Grid = (),
        seed: int | jax.Array = 0,
        rounding: str = "rne",
        transcendentals: str = "exact",
    ) -> None:
        self.function, self.target, self.grid, self.seed = function, target, grid, seed
        self.numerics = USUAL.changed(
            rounding=rounding, transcendentals=transcendentals
        )
        self._specialised: dict[Any, Specialised] = {}
        self._derivative: jax_call.KernelDerivative | None = None
        self._ranks = 0
        functools.update_wrapper(self, function)

    @property
    def func(self) -> Callable[..., Any]:
        """The function as its author wrote it; `func` is the vendor's name for it."""
        return inspect.unwrap(self.function)

    @property
    def __globals__(self) -> dict[str, Any]:
        return getattr(self.func, "__globals__", {})

    def __getitem__(self, grid: int | Grid) -> Kernel:
        sizes = tuple(grid) if isinstance(grid, tuple | list) else (grid,)
        numbers = tuple(s for s in sizes if isinstance(s, int | np.integer))
        if len(numbers) != len(sizes) or any(n < 1 for n in numbers):
            raise InvalidProgramError(
                f"launch grid {sizes}",
                remedy="use positive ints: kernel[2] or kernel[4, 2]",
            )
        return self._with(grid=tuple(map(int, numbers)))

    def with_target(self, target: str | Target | None) -> Kernel:
        """Return the same kernel for another chip."""
        return self._with(target=target)

    def with_function(self, function: Callable[..., Any]) -> Kernel:
        """Return a kernel with another function and the same options."""
        return self._with(function=function)

    def with_seed(self, seed: int | jax.Array) -> Kernel:
        """Return the same kernel with another seed for stochastic rounding.

        Generators of random numbers (`nisa.rng`, `nisa.dropout`) have seeds of their
        own, `nisa.set_rng_seed` and `nisa.rand_set_state`; without one they start as if
        seeded with 0 (ASSUMPTION: their state after power-on is not documented).

        Args:
            seed: an integer or a traced one, such as the step number.
        """
        return self._with(seed=seed)

    def with_rounding(self, rounding: str) -> Kernel:
        """Return the same kernel with another rounding of what instructions compute and
        write.

        NEURON_RT_STOCHASTIC_ROUNDING_EN=1 of the Neuron runtime is "stochastic", its
        NEURON_RT_STOCHASTIC_ROUNDING_SEED is `with_seed`. Under "stochastic" every
        write of FP32 to a narrower float rounds up or down, the nearer value being more
        probable; within `neuronjax.jit` its policy's `rounding="stochastic"` does the
        same. Collectives round to nearest even.

        Args:
            rounding: "rne", to nearest even, or "stochastic".
        """
        return self.with_numerics(rounding=rounding)

    def with_transcendentals(self, transcendentals: str) -> Kernel:
        """Return the same kernel with other transcendental functions on ScalarE.

        Within `neuronjax.jit` its policy's `transcendentals="scalar_engine"` does the
        same.

        Args:
            transcendentals: "exact", or "scalar_engine" for piecewise cubics with the
                engine's error, as far as it is known.
        """
        return self.with_numerics(transcendentals=transcendentals)

    def with_numerics(self, **changes: str) -> Kernel:
        """Return the same kernel with another `rounding` or other `transcendentals`."""
        return self._with(numerics=self.numerics.changed(**changes))

    def with_ranks(self, ranks: int) -> Kernel:
        """Return the same kernel for a number of ranks, which `nki.collectives`
        connects.

        Every array, given or returned, has a leading axis of length `ranks`: rank r has
        row r.

        Args:
            ranks: logical NeuronCores, placed as the devices of `neuronjax.jit`.
        """
        if not isinstance(ranks, int) or ranks < 1:
            raise InvalidProgramError(f"{ranks!r} ranks", remedy="use a positive int")
        return self._with(_ranks=ranks)

    def _with(self, **changes: Any) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, **changes)
        return other

    def defvjp(
        self,
        forward: Callable[..., Any],
        backward: Callable[..., Any],
        nondiff_argnums: int | Sequence[int] = (),
    ) -> None:
        """Give the kernel a derivative, as `jax.custom_vjp` does.

        Args:
            forward: takes the kernel's arguments and returns (results, residuals).
            backward: takes the arguments of `nondiff_argnums`, then residuals and
                cotangents of the results; returns one cotangent per other argument.
            nondiff_argnums: positions of the arguments that hold no arrays.
        """
        if isinstance(nondiff_argnums, int):
            nondiff_argnums = (nondiff_argnums,)
        self._derivative = jax_call.KernelDerivative(
            forward, backward, tuple(nondiff_argnums)
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if in_kernel():
            return self.function(*args, **kwargs)
        bound = _bound(self, args, kwargs)
        call = BoundCall.of(bound, self._ranks)
        traced = jax_call.is_traced(call.arrays)
        if traced and self._derivative is not None:
            primal = self._with(_derivative=None)
            return self._derivative.call(self.function.__name__, primal, bound)
        if jax.config.jax_disable_jit and not traced:  # type: ignore[attr-defined]
            return call.finish(*_run_eagerly(self, call))
        special = self._find(call)
        arrays = [canonical(a) for a in call.arrays]
        results, written, noted = special.run(arrays, _key(self.seed))
        if noted and not jax_call.is_traced(noted):
            faults.raise_noted(special.traced.program, int(noted[0]))
        return call.finish(special.traced, results, written, special.plan.written)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Return the results' shapes and dtypes for arrays or
        `jax.ShapeDtypeStruct`s."""
        special = self._find(self._call(args, kwargs))
        types = zip(special.function.results, special.traced.dtypes, strict=False)
        shapes = [
            jax.ShapeDtypeStruct(t.shape, np.bool_ if name == "bool" else t.dtype)
            for t, name in types
        ]
        return arguments.unflatten(special.traced.tree, shapes)

    def trace(self, *args: Any, **kwargs: Any) -> KernelProgram:
        """Return the kernel's instructions for these arguments; nothing is executed."""
        return self.traced(*args, **kwargs).program

    def traced(self, *args: Any, **kwargs: Any) -> TracedKernel:
        """Return the trace for these arguments, with the tree of the results."""
        return self.trace_call(self._call(args, kwargs))

    def trace_call(self, call: Any, devices: int = 0) -> TracedKernel:
        """Return the trace of a call, for a mesh of `devices` devices."""
        return _trace(self, call, devices=devices)

    def profile(self, *args: Any, **kwargs: Any) -> Any:
        """Return a `Profile` for these arguments: `neuronjax.profile(self)(*args)`."""
        # `profile` is in a layer above this package, so it is not imported here.
        return sys.modules["neuronjax"].profile(self)(*args, **kwargs)

    def prepared(self, program: KernelProgram) -> KernelPlan:
        """Return the plan of a trace of this kernel."""
        return prepare(program)

    def plan(self, *args: Any, **kwargs: Any) -> KernelPlan:
        """Return the plan for these arguments: memory, and loops of instructions."""
        return self._find(self._call(args, kwargs)).plan

    def _call(self, args: Any, kwargs: Any) -> BoundCall:
        return BoundCall.of(_bound(self, args, kwargs), self._ranks)

    def _find(self, call: BoundCall, devices: int | None = None) -> Specialised:
        """Return the kernel specialised for a call on `devices` devices, by default
        those of the surrounding mesh."""
        if devices is None:
            devices = 0 if self._ranks else kernel_calls.surrounding_devices()
        ranks = self._ranks or devices
        try:
            # The scope `collective_algorithm`, else VARIABLE, names the algorithm.
            algorithm = (
                (algorithm_from_scope(""), os.environ.get(VARIABLE)) if ranks else ()
            )
            launch = (self.grid, self._ranks, devices, *algorithm)
            key = (call.key(), chosen_target(self.target).name, launch, self.numerics)
        except arguments.Unhashable:
            return _specialise(self, call, devices)
        if key not in self._specialised:
            self._specialised[key] = _specialise(self, call, devices)
        return self._specialised[key]


def _bound(kernel: Kernel, args: Any, kwargs: Any) -> inspect.BoundArguments:
    bound = inspect.signature(kernel.function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound


def _key(seed: int | jax.Array) -> jax.Array:
    if isinstance(seed, int):
        seed %= 1 << 32
    return jnp.asarray(seed).astype(jnp.uint32)


class ProgramTrace(Trace):
    """A trace that records assignments and `while` in Python as instructions."""

    assign = staticmethod(assign)
    condition = staticmethod(while_condition)


@no_collection()
def _trace(
    kernel: Kernel, call: BoundCall, machine: AnyMachine | None = None, devices: int = 0
) -> TracedKernel:
    """Run the Python code once per program of the grid, and return the trace. The
    devices of a surrounding mesh are the ranks of a kernel with collectives."""
    target = chosen_target(kernel.target)
    programs = prod(kernel.grid)
    check_ranks(target, kernel._ranks or devices)
    launch = Launch(programs, kernel._ranks or devices, algorithm_from_scope(""))
    traces = [
        ProgramTrace(target, kernel.grid, n, machine, launch, kernel.older)
        for n in range(programs)
    ]
    storages = _arguments(traces[0], call, machine)
    key: Any = machine.key if machine else None
    values: dict[int, Any] = {}

    def trace_one(number: int) -> None:
        if machine is not None:
            machine.key = key
        with tracing(traces[number]):
            if number:  # program 0 allocated the arguments
                traces[number].skip_shared(len(storages))
            tensors = [NkiTensor(s.shape, s.dtype, s, name=s.name) for s in storages]
            args, kwargs = arguments.unflatten(call.tree, tensors)
            with named_mistakes():
                values[number] = kernel.function(*args, **kwargs)

    launch.lockstep.run([functools.partial(trace_one, n) for n in range(programs)])
    accesses: list[Access] = []
    tree = _results(values[0], accesses)
    joins = any(t.joins_ranks for t in traces)
    program = KernelProgram(
        name=kernel.function.__name__,
        arguments=tuple(storages),
        results=tuple(accesses),
        body=KernelBlock(tuple(linked([t.finished().items for t in traces]))),
        storages=tuple(dict.fromkeys(s for t in traces for s in t.storages)),
        registers=launch.registers,
        target=target.name,
        grid=kernel.grid,
        ranks=kernel._ranks or (devices if joins else 0),
        dependencies={
            (t.program, ordinal): after
            for t in traces
            for ordinal, after in t.dependencies.items()
        },
        older=kernel.older,
        wants_grid=wants_grid(traces[0]),
    )
    assigned = {(t.program, n) for t in traces for n in t.assigned}
    declared = {s for t in traces for s in t.declared}
    program = without_copies(program, assigned, declared)
    return TracedKernel(program, tree, tuple(a.dtype for a in accesses))


def _arguments(
    trace: ProgramTrace, call: BoundCall, machine: AnyMachine | None
) -> list[Storage]:
    # Programs of a grid share the arguments (nki/guides/nki_simulator.rst).
    buffer = MemoryRegion.shared_hbm if trace.grid else MemoryRegion.hbm
    with tracing(trace):
        storages = [  # a scalar is a tensor of one element, as HBM has no scalars
            trace.allocate(call.shape(n) or (1,), dtype, buffer, f"argument{n}")
            for n, dtype in enumerate(call.dtypes)
        ]
    if machine is not None:
        for storage, array in zip(storages, call.arrays, strict=True):
            machine.load(storage, canonical(array))
    return storages


def _results(value: Any, accesses: list[Access]) -> Any:
    def slot(t: NkiTensor) -> arguments.ArraySlot:
        accesses.append(t.access())
        return arguments.ArraySlot(len(accesses) - 1)

    return arguments.map_leaves(value, NkiTensor, slot)


def _specialise(kernel: Kernel, call: BoundCall, devices: int) -> Specialised:
    # Tracing makes constants, so it must not run under an outer jit's trace.
    traced = kernel.trace_call(call, devices)
    checked(traced.program, chosen_target(kernel.target).core, older=kernel.older)
    plan = kernel.prepared(traced.program)
    types = call.of_types()

    def for_target(target: Target) -> KernelFunction:
        with compiling_for(target.name):
            return kernel._find(types, devices).function

    function = jax_call.kernel_function(
        traced.program, plan, for_target, devices, kernel.numerics
    )
    return Specialised(traced, plan, function, jax_call.jitted(function, plan))


def _run_eagerly(
    kernel: Kernel, call: BoundCall
) -> tuple[TracedKernel, Any, Any, list[int]]:
    core = chosen_target(kernel.target).core
    key, numerics = _key(kernel.seed), kernel.numerics
    machine: AnyMachine = EagerMachine(core, key, numerics)
    if kernel._ranks:
        machine = RankedMachine(core, key, kernel._ranks, numerics)
    traced = _trace(kernel, call, machine)
    program = checked(traced.program, core, complete=False, older=kernel.older)
    results = [jnp.asarray(machine.read(a)) for a in program.results]
    outputs = {a.storage for i in program.body.walk() for a in i.outputs}
    written = [n for n, s in enumerate(program.arguments) if s in outputs]
    values = [machine.value(program.arguments[n]) for n in written]
    return traced, results, values, written


def jit(fn: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
    """Make a kernel of a function; a decorator with or without arguments.

    Args:
        fn: the kernel function.
        **kwargs: `target` or `platform_target`, a chip; `rounding`, "rne" or
            "stochastic", and its `seed`, by default those of the runtime's
            variables NEURON_RT_STOCHASTIC_ROUNDING_EN and _SEED; `transcendentals`, see
            `Kernel.with_transcendentals`. The vendor's other options (`mode`,
            `debug_kernel` ...) change no result here and are accepted.

    Returns:
        A `Kernel`.
    """
    if fn is None:
        return functools.partial(jit, **kwargs)
    if isinstance(fn, Kernel):
        return fn
    return simulate(Kernel(fn, **runtime_rounding()), **kwargs)


def simulate(kernel: Any, **kwargs: Any) -> Kernel:
    """Return the kernel with these options; every call of a kernel is emulated here.

    Args:
        kernel: a `Kernel`, or a function to be made one.
        **kwargs: the options of `jit`.
    """
    made = jit(kernel)
    target = kwargs.get("target") or kwargs.get("platform_target")
    made = made.with_target(target) if target else made
    made = made.with_seed(kwargs["seed"]) if "seed" in kwargs else made
    given = {name: kwargs[name] for name in FIELDS if name in kwargs}
    return made.with_numerics(**given) if given else made
