"""`jit`: a JAX function, emulated.

`jit(f)` is a `jax.jit` of three steps. JAX caches traces and compiled programs. A
function also keeps its last captured program, and uses it again while JAX's cache
returns the same trace.

    capture    f -> StableHLO for platform "neuron"            (neuronjax.capture)
    lower      StableHLO -> NeuronCore instructions            (neuronjax.lowering)
    run        instructions -> arrays, inside one jax.jit      (neuronjax.execution)
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from neuronjax.api import calls, nnx_state
from neuronjax.api.calls import Named, Stateful
from neuronjax.api.lowered import CallEntry, Lowered
from neuronjax.capture import mesh_context
from neuronjax.capture.mesh_context import MeshContext, Results, on_every_device
from neuronjax.capture.trace import Capture, Traced, capturing
from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.execution import host_process, stages
from neuronjax.execution.captured import CapturedProgram
from neuronjax.execution.device_sharding import active_real_devices
from neuronjax.execution.inputs_outputs import CallContext
from neuronjax.execution.probes.collect import Collect
from neuronjax.execution.probes.plan import Collector, ProbePlan
from neuronjax.execution.probes.statistics import Statistics
from neuronjax.execution.transformations import Emulation
from neuronjax.hardware import Target, resolve_target
from neuronjax.ir.model_parts import with_parts
from neuronjax.ir.program import Program
from neuronjax.numerics.host_kernels.choice import exportable
from neuronjax.policy import Policy, Preset
from neuronjax.policy.scopes import active_policy, policy_scope
from neuronjax.report.setting import setting_line

#: The `jit` of JAX, even if a program later sets `jax.jit` to `nj.jit`.
NATIVE_JIT = jax.jit


def jit(
    function: Callable[..., Any] | None = None,
    *,
    target: str = "trn2",
    policy: Preset | str | Policy | None = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Iterable[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    collect: bool | str | Collect | None = None,
    **jit_options: Any,
) -> Any:
    """Emulate a function on a Trainium chip; use it as `jax.jit`.

    Presets of `policy` are "fp32", "bf16", "fp16", "tf32", "fp8", "mxfp8" and "mxfp4".

        step = nj.jit(train_step, target="trn2", policy="fp8")
        loss = step(model, optimizer, batch)  # modules of Flax NNX are updated
        print(nj.profile(step)(model, optimizer, batch))  # where the time goes

    Args:
        function: the function to emulate. Without it, a decorator is returned.
        target: a chip ("trn2", "gen3"), an instance ("trn2.48xlarge") or an
            UltraServer; `neuronjax ls` lists them.
        policy: a preset's name, a `Policy`, or None for the defaults of the newest SDK,
            or inside another emulated function for the policy of that function.
        static_argnums: as `jax.jit`.
        static_argnames: as `jax.jit`.
        donate_argnums: as `jax.jit`.
        donate_argnames: as `jax.jit`.
        in_shardings: as `jax.jit`: `NamedSharding`s over a mesh of `make_mesh`, with
            whole arrays as arguments and results, or over a mesh of `jax.make_mesh`,
            with arrays on its devices. XLA's partitioner distributes the program.
        out_shardings: as `in_shardings`, for the results.
        collect: what to measure during calls: True or a `Collect`. A call then returns
            `(outputs, Statistics)`. A function with `collect` cannot be differentiated
            or batched, so put transformations inside it.
        **jit_options: every other keyword of `jax.jit`, passed through.

    Returns:
        An `Emulated` function of the same signature: `jax.Array`s in and out.

    Raises:
        InvalidProgramError: unknown target or policy.
        UnsupportedError: `compiler_options` that change bits.
    """
    options: dict[str, Any] = dict(
        target=target,
        policy=policy,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        collect=collect,
        **jit_options,
    )
    make: Callable[..., Any] = Emulated
    if calls.asked_for_jaxs():
        given = {k: v for k, v in options.items() if v is not None}
        make, options = NATIVE_JIT, {k: given[k] for k in given if k not in _NOT_JAX}
    if function is None:
        return lambda f: make(f, **options)
    return make(function, **options)


_STATIC = ("static_argnums", "static_argnames")
_SHARDINGS = ("in_shardings", "out_shardings")
_NOT_JAX = ("target", "policy", "collect")
#: Options that the `jax.jit` of the emulation gets with other values, or not at all.
_OWN = (*_NOT_JAX, *_SHARDINGS, *_STATIC, "donate_argnums", "donate_argnames")


class _Binding(NamedTuple):
    """A function with the arguments of one call.

    Attributes:
        leaves: the arguments, as flat arrays.
        out_tree: a function that returns the results' pytree structure after the
            emulation has been called.
        about: the user's function, its static arguments and their types, the pytree and
            the types of the other arguments, and the mesh.
    """

    emulation: Emulation
    leaves: list
    out_tree: Callable[[], Any]
    about: tuple


@dataclass(frozen=True)
class _Kept:
    """The last captured call of a function, kept for later calls with the same trace.

    The user's function, the static arguments, the types and the mesh must be equal.
    JAX's cache, which knows the settings that change a trace, then decides whether the
    old trace is still valid."""

    bound: _Binding
    traced: Traced
    capture: Capture
    out_tree: Any
    program: Program

    @classmethod
    def of(cls, bound: _Binding) -> _Kept:
        traced = bound.emulation.trace(bound.leaves)
        emulation = dataclasses.replace(bound.emulation, traced=traced)
        found = emulation.capture(bound.leaves)
        bound = bound._replace(leaves=[])  # frees the arrays
        return cls(bound, traced, found, bound.out_tree(), with_parts(found.program))

    def is_of(self, bound: _Binding) -> bool:
        """Return whether the program of another call is the same."""
        known = self.bound
        if not _are_equal(known.about, bound.about):
            return False
        traced = known.emulation.trace(bound.leaves, self.traced.number)
        return traced.stage.jaxpr is self.traced.stage.jaxpr


def _are_equal(a: Any, b: Any) -> bool:
    """Return whether two values are equal. Return False if they cannot be hashed or
    compared; static arguments that hold arrays are an example."""
    try:
        return hash(a) == hash(b) and a == b
    except (TypeError, ValueError):
        return False


class Emulated(Stateful):
    """A function emulated on a chip; made by `neuronjax.jit`.

    Attributes:
        target: the machine.
        policy: the given policy, otherwise the SDK's defaults.
        options: the keywords of `jit` that the function was made with.
    """

    __wrapped__: Callable[..., Any]

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        functools.update_wrapper(self, function)
        host_process.check_compiler_options(options.get("compiler_options"))
        given = options["policy"]
        self._given_policy = None if given is None else Policy.resolve(given)
        self.target: Target = resolve_target(options["target"])
        self.policy: Policy = self._given_policy or Policy.resolve(None)
        # jax.jit distinguishes a sharding of None from no sharding.
        self.options: Mapping[str, Any] = {
            name: value
            for name, value in options.items()
            if value is not None or name not in _SHARDINGS
        }
        collect = options["collect"]
        self._collect = None if collect is None else Collect.of(collect)
        self._signature = calls.signature_of(function)
        self._static = self.named("static")
        self._step = nnx_state.kept(function, options)
        self._alone = nnx_state.as_in_jax(function)
        donated = self.named("donate")
        # The context and the mesh context come before the user's arguments.
        self._jitted = NATIVE_JIT(
            self._emulate,
            static_argnums=tuple(n + 2 for n in self._static.numbers),
            static_argnames=self._static.names,
            donate_argnums=tuple(n + 2 for n in donated.numbers),
            donate_argnames=donated.names,
            **{k: v for k, v in options.items() if k not in _OWN},
        )
        self._state = calls.CallState(self._name)
        self._kept: _Kept | None = None
        #: Has an item while a call runs, and after a call that raised an error.
        self._unmade: list[bool] = []

    def _chosen(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: self.options[name] for name in names if name in self.options}

    def named(self, what: str) -> Named:
        """Return the arguments that the options `static_argnums` and `static_argnames`
        select, or for "donate" the options `donate_argnums` and `donate_argnames`."""
        numbers, names = (self.options[f"{what}_arg{end}"] for end in ("nums", "names"))
        return Named.of(self._signature, numbers, names)

    def with_options(self, **changes: Any) -> Emulated:
        """Return the same function with other keywords of `jit`."""
        other = Emulated(self.__wrapped__, **{**self.options, **changes})
        return other.with_state(self._state)

    def reported(self) -> Emulated:
        """Return the same function for a report. The results of a call then include
        what the function writes into modules of Flax NNX."""
        function = nnx_state.WithState(self.__wrapped__)
        return Emulated(function, **self.options).with_state(self._state)

    @calls.boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function on the emulated chip."""
        run = self._as_scope if capturing() else self._run
        if not nnx_state.holds_modules((args, kwargs)):
            return run(*args, **kwargs)
        once, named = nnx_state.once(self._step, (args, kwargs))
        return nnx_state.settled(run(*once, **named), self._step, (args, kwargs))

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        host_process.check()
        if self._unmade:  # JAX may have cached the trace and then skips `_emulate`
            stages.start(f"{self._name} on {self.target.name}", self)
            stages.stage("compiling")
        self._unmade.append(True)
        try:
            policy = active_policy() or self.policy
            stochastic = calls.may_round_stochastically(policy)
            index = self._state.next_index(stochastic, args, kwargs)
            context = self._state.context(index)
            # `__call__` has already replaced repeated variables.
            around, args, kwargs = self._whole(self.__wrapped__, args, kwargs)
            with around.outside():
                results = self._jitted(context, around, *args, **kwargs)
            self._unmade.clear()
            return _placed(results)
        except TypeError as error:
            if "abstract array" in str(error):
                self._bind(self._step, args, kwargs)  # its error names the argument
            raise
        finally:
            stages.end(self)

    def init_amax_history(self, *args: Any, **kwargs: Any) -> jax.Array:
        """Return the empty amax history of `scaling="delayed"`: zeros (scales of 1).

        Returns:
            float32 [policy.amax_history_length, scaled tensors].
        """
        return self.lower(*args, **kwargs).init_amax_history()

    def init_statistics(self, *args: Any, **kwargs: Any) -> Statistics:
        """Return empty statistics, as the start for `merge` in a loop.

        Raises:
            InvalidProgramError: the function was made without `collect`.
        """
        if self._collect is None:
            raise InvalidProgramError(
                f"{self._name} collects no statistics",
                remedy="make the function with nj.jit(..., collect=True)",
            )
        captured = self._capture(self._step, args, kwargs)
        names = captured.program.argument_names
        plan = ProbePlan(captured.instructions, self._collect, names)
        return Statistics.empty(plan, self._setting)

    @property
    def amax_history(self) -> jax.Array | None:
        """The state of delayed scaling at the start of a call; None if not given."""
        return self._state.amax_history

    @calls.boundary
    def captured(self, *args: Any, **kwargs: Any) -> CapturedProgram:
        """Return the captured program for arguments of these types. Its results include
        writes into modules of Flax NNX only for a `reported` function."""
        return self._capture(self._alone, args, kwargs)

    @calls.boundary
    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Return the lowered program for arguments (arrays or ShapeDtypeStructs)."""
        captured = self._capture(self._step, args, kwargs)
        _ = captured.instructions  # raises if something cannot be lowered
        around, args, kwargs = self._whole(self._step, args, kwargs)
        entry, donated = self._entry(args, kwargs, around), self._donated(captured)
        return Lowered(entry, args, kwargs, captured, donated=donated)

    @property
    def native(self) -> Callable[..., Any]:
        """The function as `jax.jit` compiles it, without emulation."""
        shardings = self._chosen(_SHARDINGS)
        return mesh_context.spread(self._step, shardings, self._unsharded)

    @calls.boundary
    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Return the emulation as a `jax.stages.Traced`, as `jax.jit(f).trace` does.
        The emulation can be exported, because `jax.export.export` calls this method."""
        emulated = functools.wraps(self.__wrapped__)(lambda *a, **k: self(*a, **k))
        options = self._chosen((*_STATIC, "donate_argnums", "donate_argnames"))
        with exportable():
            return NATIVE_JIT(emulated, **options).trace(*args, **kwargs)

    @calls.boundary
    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Return shapes and dtypes of the results, as `jax.eval_shape` does."""
        return self._shapes(self._step, args, kwargs)

    def _shapes(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        once, named = nnx_state.once(function, (args, kwargs))
        function = nnx_state.for_arguments(function, (args, kwargs))
        native = NATIVE_JIT(function, **self._unsharded)
        found = jax.eval_shape(native, *once, **named)
        return found.result if isinstance(found, nnx_state.Stepped) else found

    def clear_cache(self) -> None:
        """Clear the compiled programs, as for a function of `jax.jit`."""
        self._kept = None
        self._jitted.clear_cache()  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"<neuronjax.Emulated {self._name} on {self.target.name}>"

    def _whole(
        self, function: Callable, args: tuple, kwargs: dict
    ) -> tuple[MeshContext, tuple, dict]:
        args, kwargs = nnx_state.once(function, (args, kwargs))
        if active_real_devices():
            return MeshContext.around(), args, kwargs
        dynamic, rebuild = self._static.split(args, kwargs)
        around, whole = MeshContext.of(dynamic)
        return around, *rebuild(whole)

    def _as_scope(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function inside another emulated function."""
        if self._collect is not None:
            raise UnsupportedError(
                f"{self._name} cannot collect statistics inside another emulated "
                "function",
                remedy="give collect= to the outermost nj.jit; scope= or source= limit "
                "the statistics to the inner function",
            )
        scope = None if calls.is_asked_about(self) else self._given_policy
        with policy_scope(scope) if scope else contextlib.nullcontext():
            return self.native(*args, **kwargs)

    @property
    def _setting(self) -> str:
        return setting_line(self.target, self.policy)

    @property
    def _unsharded(self) -> dict[str, Any]:
        apart = (*_NOT_JAX, *_SHARDINGS)
        return {k: v for k, v in self.options.items() if k not in apart}

    def _entry(self, args: tuple, kwargs: dict, around: MeshContext) -> CallEntry:
        static = self._static

        def run(
            executable: Any, context: CallContext, args: tuple, kwargs: dict
        ) -> Any:
            _, positional, named = self._whole(self._step, args, kwargs)
            if static.names or static.numbers:
                (positional, named), _ = static.split(positional, named)
            with around.outside():
                results = executable(context, around, *positional, **named)
            return nnx_state.settled(_placed(results), self._step, (args, kwargs))

        def compile(context: CallContext) -> Any:
            with around.outside():
                return self._jitted.lower(context, around, *args, **kwargs).compile()

        def leaves(args: tuple, kwargs: dict) -> list[Any]:
            _, args, kwargs = self._whole(self._step, args, kwargs)
            return self._bind(self._step, args, kwargs, around).leaves

        def under(target: Target, policy: Policy) -> CallEntry:
            other = self.with_options(target=target.name, policy=policy)
            return other._entry(args, kwargs, around)

        return CallEntry(self._state, compile, run, self._as_scope, leaves, under)

    def _emulate(
        self, _context: CallContext, _around: MeshContext, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Emulate a call; `jax.jit` traces this function.

        The underscores keep the names free for users' arguments: JAX refuses a user's
        keyword argument that has the name of a positional parameter."""
        context, around = _context, _around
        stages.start(f"{self._name} on {self.target.name}", self)
        emulation, leaves, out_tree, _ = self._bind(self._step, args, kwargs, around)
        collector = self._collect and Collector(self._collect, self._setting)
        emulation = dataclasses.replace(emulation, collector=collector)
        emulation, leaves = emulation.closed(leaves)
        outcome = emulation(context, leaves)
        result = jax.tree.unflatten(out_tree(), outcome.results)
        if collector is not None:
            result = (result, Statistics.of(outcome.statistics, collector))
        history = outcome.amax_history
        whole = result if history is None else (result, history)
        shardings = emulation.placements()
        stages.stage("compiling")
        return Results(whole, shardings) if shardings else whole

    def _capture(
        self, function: Callable[..., Any], args: tuple, kwargs: dict
    ) -> CapturedProgram:
        around, args, kwargs = self._whole(function, args, kwargs)
        bound = self._bind(function, args, kwargs, around)
        kept = self._kept
        if kept is None or not kept.is_of(bound):
            kept = self._kept = _Kept.of(bound)
        return CapturedProgram(
            emulation=kept.bound.emulation,
            inputs=bound.leaves,
            outputs=kept.capture.out_avals,
            out_tree=kept.out_tree,
            program=kept.program,
        )

    def _bind(
        self,
        called: Callable[..., Any],
        args: tuple,
        kwargs: dict,
        around: MeshContext = MeshContext(),
    ) -> _Binding:
        host_process.check()
        called = nnx_state.for_arguments(called, (args, kwargs))
        dynamic, rebuild = self._static.split(args, kwargs)
        paths, in_tree = jax.tree.flatten_with_path(dynamic)
        static = self._static.numbers
        names = tuple(
            calls.path_name(self._signature, path, static) for path, _ in paths
        )
        found: list[Any] = []
        pairs = zip(paths, names, strict=True)
        arrays = [calls.as_array(leaf, name) for (_, leaf), name in pairs]
        types = around.typed(arrays)
        declared = rebuild(jax.tree.unflatten(in_tree, types))
        spread = self._spread(called, around, *declared)

        def function(*leaves: Any) -> list[Any]:
            args, kwargs = rebuild(jax.tree.unflatten(in_tree, around.placed(leaves)))
            flat, tree = jax.tree.flatten(spread(*args, **kwargs))
            found[:] = [tree]
            return flat

        emulation = Emulation(
            function=function,
            name=self._name,
            names=names,
            target=self.target,
            policy=self.policy,
            around=around,
        )
        about = called, rebuild, rebuild.types, in_tree, tuple(types), around
        leaves = [*map(on_every_device, arrays)]
        return _Binding(emulation, leaves, lambda: found[0], about)

    def _spread(
        self, called: Callable, around: MeshContext, args: tuple, kwargs: dict
    ) -> Callable:
        """Return the function to capture, distributed by the shardings if given."""
        shardings, tree = self._chosen(_SHARDINGS), None
        out = shardings.get("out_shardings")
        if next(iter(jax.tree.leaves(out)), out) is not out:
            # Two traces may differ in results that are not arrays, such as functions of
            # an optimizer. JAX caches this trace, so all results get its structure.
            with around.inside():
                tree = jax.tree.structure(self._shapes(called, args, kwargs))
        if not shardings:
            return called
        options = self._chosen(_STATIC)
        return mesh_context.spread(called, shardings, options, tree)

    def _donated(self, captured: CapturedProgram) -> frozenset[int]:
        given = self.named("donate")
        named = (calls.argument_name(self._signature, n) for n in given.numbers)
        chosen = {*given.names, *named}
        heads = (name.partition("/")[0] for name in captured.program.argument_names)
        return frozenset(n for n, head in enumerate(heads) if head in chosen)

    @property
    def _name(self) -> str:
        return getattr(self.__wrapped__, "__name__", "the function")

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)


def _placed(found: Any) -> Any:
    return found.placed() if isinstance(found, Results) else found
