"""`jit`: a JAX function, emulated.

`jit(f)` is `jax.jit` around the interpreter, with JAX's own caches and none besides:

    capture    f -> StableHLO for platform "neuron"            (neuronjax.capture)
    lower      StableHLO -> NeuronCore instructions            (neuronjax.lowering)
    run        instructions -> arrays, inside one jax.jit      (neuronjax.execution)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax

from neuronjax.api.lowered import (
    CallState,
    Entry,
    Lowered,
    forward_mode_error,
    may_round_stochastically,
)
from neuronjax.api.signatures import Named, as_array, signature_of
from neuronjax.capture.mesh_context import MeshContext
from neuronjax.capture.trace import ClosesOverTracersError, capturing
from neuronjax.diagnostics.statistics import Statistics
from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.execution.probes.collect import Collect
from neuronjax.execution.probes.plan import Collector, Plan
from neuronjax.execution.transformations import Emulation
from neuronjax.hardware import Target, resolve_target
from neuronjax.policy import Policy
from neuronjax.policy.scopes import active_policy, policy_scope


def jit(
    function: Callable[..., Any] | None = None,
    *,
    target: str = "trn2",
    policy: str | Policy | None = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Iterable[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    collect: bool | str | Collect | None = None,
    **jit_options: Any,
) -> Any:
    """Emulates a function on a Trainium chip; use it as `jax.jit`.

    Args:
        function: what `jax.jit` takes. Without it, a decorator is returned.
        target: a chip ("trn1", "inf2", "trn2", "trn3", "gen2" to "gen4"), an instance
            ("trn2.48xlarge") or an UltraServer.
        policy: a preset's name, a `Policy`, or None for the defaults of the newest SDK
            (inside another emulated function: that function's policy).
        static_argnums: as `jax.jit`.
        static_argnames: as `jax.jit`.
        donate_argnums: as `jax.jit`.
        donate_argnames: as `jax.jit`.
        in_shardings: as `jax.jit`, `NamedSharding`s over a mesh of `make_mesh`: XLA's
            partitioner spreads the program over its devices. Arguments and results are
            whole arrays.
        out_shardings: likewise, of the results.
        collect: what is measured while it runs, True or a `Collect`: a call then
            returns `(outputs, Statistics)`. Put transformations inside: such a function
            cannot be differentiated or batched.
        **jit_options: every other keyword of `jax.jit`, passed through.

    Returns:
        An `Emulated` function of the same signature: `jax.Array`s in and out.

    Raises:
        InvalidProgramError: unknown target or policy.
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
    if function is None:
        return lambda f: Emulated(f, **options)
    return Emulated(function, **options)


class Emulated:
    """A function emulated on a chip; made by `neuronjax.jit`."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        target: str,
        policy: str | Policy | None,
        static_argnums: Any,
        static_argnames: Any,
        donate_argnums: Any,
        donate_argnames: Any,
        in_shardings: Any = None,
        out_shardings: Any = None,
        collect: Any = None,
        **jit_options: Any,
    ) -> None:
        functools.update_wrapper(self, function)
        self.target: Target = resolve_target(target)
        self._given_policy = None if policy is None else Policy.resolve(policy)
        #: The numerics in force: the one given, else the SDK's defaults.
        self.policy: Policy = self._given_policy or Policy.resolve(None)
        self._stochastic = may_round_stochastically(self.policy)
        self._function = function
        self._collect = Collect.of(collect)
        self._signature = signature_of(function)
        self._static = Named.of(self._signature, static_argnums, static_argnames)
        donated = Named.of(self._signature, donate_argnums, donate_argnames)
        shardings = dict(in_shardings=in_shardings, out_shardings=out_shardings)
        shardings = {k: s for k, s in shardings.items() if s is not None}
        static = dict(static_argnums=static_argnums, static_argnames=static_argnames)
        self._native = dict(
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            **static,
            **shardings,
            **jit_options,
        )
        # On the emulated devices the arrays are sharded, not on those of the host.
        self._captured = function
        if shardings:
            self._captured = jax.jit(function, **static, **shardings)
        self._jitted = jax.jit(
            self._emulate,
            static_argnums=tuple(n + 1 for n in self._static.numbers),
            static_argnames=self._static.names,
            donate_argnums=tuple(n + 1 for n in donated.numbers),
            donate_argnames=donated.names,
            **jit_options,
        )
        self._state = CallState(self._name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function on the emulated chip."""
        if capturing():
            return self._as_scope(*args, **kwargs)
        try:
            index = self._next_index(args, kwargs)
            around = MeshContext.current()
            around.check_untraced((args, kwargs))
            with around.outside():
                hidden = (index, self._state.amax_history, around)
                return self._jitted(hidden, *args, **kwargs)
        except TypeError as error:
            if "forward-mode" in str(error):
                raise forward_mode_error(self._name) from error
            if "abstract array" in str(error):
                self._bind(args, kwargs)  # names the argument that is not an array
            raise

    def with_rounding_seed(self, index: Any) -> Emulated:
        """The same function with a given call index for stochastic rounding.

        Args:
            index: an integer or a traced uint32, such as the step number. The same
                index gives the same random bits.
        """
        return self._with(self._state.with_rounding_seed(index))

    def init_amax_history(self, *args: Any, **kwargs: Any) -> jax.Array:
        """The empty amax history for `scaling="delayed"`: zeros, for scales of 1.

        Returns:
            float32 [policy.amax_history_length, scaled tensors].
        """
        return self.lower(*args, **kwargs).init_amax_history()

    def init_statistics(self, *args: Any, **kwargs: Any) -> Statistics:
        """The statistics of no call, to `merge` those of calls into in a loop.

        Raises:
            InvalidProgramError: the function was made without `collect`.
        """
        if self._collect is None:
            raise InvalidProgramError(
                f"{self._name} collects no statistics",
                remedy="make it with nj.jit(..., collect=True)",
            )
        lowered = self.lower(*args, **kwargs)
        names = lowered.program.argument_names
        return Statistics.empty(Plan.of(lowered._instructions, self._collect, names))

    def with_amax_history(self, history: jax.Array) -> Emulated:
        """The same function with delayed scaling's state.

        Args:
            history: from `init_amax_history` or the previous call.

        Returns:
            A function that returns `(outputs, history of the next call)`; if it
            collects, `((outputs, statistics), history of the next call)`.
        """
        return self._with(self._state.with_amax_history(history))

    def _with(self, state: CallState) -> Emulated:
        other = object.__new__(Emulated)
        other.__dict__.update(self.__dict__, _state=state)
        return other

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The program for arguments of these types (arrays or ShapeDtypeStructs)."""
        around, (args, kwargs) = MeshContext.of_types((args, kwargs))
        emulation, leaves, _ = self._bind(args, kwargs, around)
        captured = emulation.capture(leaves)
        return Lowered(
            self._entry(args, kwargs, around),
            args,
            kwargs,
            captured.program,
            emulation.lower(captured),
            stochastic=self._stochastic,
            target=self.target,
            policy=self.policy,
        )

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Shapes and dtypes of the results, as `jax.eval_shape` of the function."""
        native = jax.jit(self._function, **self._native)
        return jax.eval_shape(native, *args, **kwargs)

    def clear_cache(self) -> None:
        """Forgets the compiled programs, as that of a jitted function."""
        self._jitted.clear_cache()  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"<neuronjax.Emulated {self._name} on {self.target.name}>"

    # -- inside ------------------------------------------------------------------------

    def _as_scope(self, *args: Any, **kwargs: Any) -> Any:
        """Inside another captured function: the function, under this policy."""
        if self._collect is not None:
            raise UnsupportedError(
                f"{self._name}, which collects statistics, inside another emulated "
                "function",
                remedy="give collect= to the outermost nj.jit; with scope= or source= "
                "it measures the inner function alone",
            )
        native = jax.jit(self._function, **self._native)
        if self._given_policy is None:
            return native(*args, **kwargs)
        with policy_scope(self._given_policy):
            return native(*args, **kwargs)

    def _entry(self, args: tuple, kwargs: dict, around: MeshContext) -> Entry:
        """How the program for arguments of these types is compiled and called."""
        static = self._static

        def run(executable: Any, hidden: tuple, args: tuple, kwargs: dict) -> Any:
            if static.names or static.numbers:
                (args, kwargs), _ = static.split(args, kwargs)
            with around.outside():
                return executable((*hidden, around), *args, **kwargs)

        def compile(hidden: tuple) -> Any:
            with around.outside():
                lowered = self._jitted.lower((*hidden, around), *args, **kwargs)
                return lowered.compile()

        return Entry(self._state, compile, run)

    def _next_index(self, args: tuple, kwargs: dict) -> Any:
        active = active_policy()
        stochastic = may_round_stochastically(active) if active else self._stochastic
        return self._state.next_index(stochastic, args, kwargs)

    def _emulate(self, hidden: tuple, *args: Any, **kwargs: Any) -> Any:
        """What jax.jit traces (and, under disable_jit, Python runs)."""
        call_index, history, around = hidden
        emulation, leaves, out_tree = self._bind(args, kwargs, around)
        if history is not None:
            emulation = dataclasses.replace(emulation, has_amax_history=True)
            leaves.append(history)
        collector = None if self._collect is None else Collector(self._collect)
        emulation = dataclasses.replace(emulation, collector=collector)
        try:
            outputs = emulation(call_index, leaves)
        except ClosesOverTracersError:
            emulation, leaves = emulation.with_closure(leaves)
            outputs = emulation(call_index, leaves)
        statistics = None
        if collector is not None:
            outputs, statistics = Statistics.split(outputs, collector)
        if history is not None:
            *outputs, history = outputs
        result = jax.tree.unflatten(out_tree(), outputs)
        if statistics is not None:
            result = (result, statistics)
        return result if history is None else (result, history)

    def _bind(
        self, args: tuple, kwargs: dict, around: MeshContext = MeshContext()
    ) -> tuple[Emulation, list, Callable]:
        """Flattens the call: an emulation of flat leaves, the leaves, the out tree."""
        dynamic, rebuild = self._static.split(args, kwargs)
        paths, in_tree = jax.tree.flatten_with_path(dynamic)
        names = tuple(self._argument_name(path) for path, _ in paths)
        found: list[Any] = []

        def function(*leaves: Any) -> list[Any]:
            args, kwargs = rebuild(jax.tree.unflatten(in_tree, around.placed(leaves)))
            flat, tree = jax.tree.flatten(self._captured(*args, **kwargs))
            found[:] = [tree]
            return flat

        emulation = Emulation(
            function=function,
            names=names,
            target=self.target,
            policy=self.policy,
            around=around,
        )
        leaves = [as_array(leaf, n) for (_, leaf), n in zip(paths, names, strict=True)]
        return emulation, leaves, lambda: found[0]

    def _argument_name(self, path: tuple) -> str:
        """A pytree path of (args, kwargs) with the parameter's name in front."""
        where, first, *rest = path
        key = first.key if hasattr(first, "key") else first.idx
        if where.idx == 0:
            parameters = list(self._signature.parameters) if self._signature else []
            key = parameters[key] if key < len(parameters) else f"args[{key}]"
        parts = [str(key)]
        if rest:
            parts.append(jax.tree_util.keystr(tuple(rest), simple=True, separator="/"))
        return "/".join(parts)

    @property
    def _name(self) -> str:
        return getattr(self._function, "__name__", "the function")

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)
