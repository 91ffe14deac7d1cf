"""The public functions: jit, lowered and compiled programs.

`jit(f)` is `jax.jit` around the interpreter, with JAX's own caches and none besides:

    capture    f -> StableHLO for platform "neuron"            (neuronjax.capture)
    lower      StableHLO -> NeuronCore instructions            (neuronjax.lowering)
    run        instructions -> arrays, inside one jax.jit      (neuronjax.interpreter)
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from neuronjax.capture.trace import Capture, ClosesOverTracersError, capturing
from neuronjax.emulation import Emulation
from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.hardware import Target, resolve_target
from neuronjax.ir.instruction import Instruction, InstructionProgram
from neuronjax.ir.program import Program
from neuronjax.ir.text import instruction_text
from neuronjax.policy import Policy
from neuronjax.policy_scopes import active_policy, policy_scope


def jit(
    function: Callable[..., Any] | None = None,
    *,
    target: str = "trn2",
    policy: str | Policy | None = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Iterable[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
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
        **jit_options: Any,
    ) -> None:
        functools.update_wrapper(self, function)
        self.target: Target = resolve_target(target)
        self._given_policy = None if policy is None else Policy.resolve(policy)
        self._function = function
        self._signature = _signature(function)
        self._static = _Named.of(self._signature, static_argnums, static_argnames)
        donated = _Named.of(self._signature, donate_argnums, donate_argnames)
        self._native = dict(
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            **jit_options,
        )
        self._jitted = jax.jit(
            self._emulate,
            static_argnums=tuple(n + 1 for n in self._static.numbers),
            static_argnames=self._static.names,
            donate_argnums=tuple(n + 1 for n in donated.numbers),
            donate_argnames=donated.names,
            **jit_options,
        )
        self._calls = itertools.count()
        self._call_index: jax.Array | None = None
        self._amax_history: jax.Array | None = None

    @property
    def policy(self) -> Policy:
        """The numerics in force: the one given, else the SDK's defaults."""
        return self._given_policy or Policy.resolve(None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function on the emulated chip."""
        if capturing():
            return self._as_scope(*args, **kwargs)
        try:
            return self._jitted(self._hidden(args, kwargs), *args, **kwargs)
        except TypeError as error:
            if "forward-mode" in str(error):
                raise _forward_mode_error(self._name) from error
            if "abstract array" in str(error):
                self._bind(args, kwargs)  # names the argument that is not an array
            raise

    def with_rounding_seed(self, index: Any) -> Emulated:
        """The same function with a given call index for stochastic rounding.

        Args:
            index: an integer or a traced uint32, such as the step number. The same
                index gives the same random bits.
        """
        return self._copy(_call_index=jnp.asarray(index).astype(jnp.uint32))

    def init_amax_history(self, *args: Any, **kwargs: Any) -> jax.Array:
        """The empty amax history for `scaling="delayed"`: zeros, for scales of 1.

        Returns:
            float32 [policy.amax_history_length, scaled tensors].
        """
        program = self.lower(*args, **kwargs)._program
        shape = (program.amax_history_length, program.amax_slots)
        return jnp.zeros(shape, jnp.float32)

    def with_amax_history(self, history: jax.Array) -> Emulated:
        """The same function with delayed scaling's state.

        Args:
            history: from `init_amax_history` or the previous call.

        Returns:
            A function that returns `(outputs, history of the next call)`.
        """
        return self._copy(_amax_history=history)

    def _copy(self, **changes: Any) -> Emulated:
        other = object.__new__(Emulated)
        other.__dict__.update(self.__dict__, **changes)
        return other

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The program for arguments of these types (arrays or ShapeDtypeStructs)."""
        emulation, leaves, _ = self._bind(args, kwargs)
        captured = emulation.capture(leaves)
        program = emulation.lower(captured)
        return Lowered(self, args, kwargs, captured, program)

    # -- inside ------------------------------------------------------------------------

    def _as_scope(self, *args: Any, **kwargs: Any) -> Any:
        """Inside another captured function: the function, under this policy."""
        native = jax.jit(self._function, **self._native)
        if self._given_policy is None:
            return native(*args, **kwargs)
        with policy_scope(self._given_policy):
            return native(*args, **kwargs)

    def _hidden(self, args: tuple, kwargs: dict) -> tuple:
        """What travels beside the arguments: the call index and the amax history."""
        return self._next_index(args, kwargs), self._amax_history

    def _next_index(self, args: tuple, kwargs: dict) -> jax.Array | None:
        if self._call_index is not None:
            return self._call_index
        if not may_round_stochastically(active_policy() or self.policy):
            return None
        leaves = jax.tree.leaves((args, kwargs))
        # Inside a trace every new array is a tracer.
        leaves.append(jnp.zeros((), jnp.uint32))
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            raise InvalidProgramError(
                f"{self._name} rounds stochastically and is traced: every run of the "
                "traced program would draw the same random bits",
                remedy="call with_rounding_seed(i)(...) with i a traced uint32 that "
                "changes with every call, for instance the step number",
            )
        return jnp.uint32(next(self._calls))

    def _emulate(self, hidden: tuple, *args: Any, **kwargs: Any) -> Any:
        """What jax.jit traces (and, under disable_jit, Python runs)."""
        call_index, history = hidden
        emulation, leaves, out_tree = self._bind(args, kwargs)
        if history is not None:
            emulation = dataclasses.replace(emulation, has_amax_history=True)
            leaves.append(history)
        try:
            outputs = emulation(call_index, leaves)
        except ClosesOverTracersError:
            emulation, leaves = emulation.with_closure(leaves)
            outputs = emulation(call_index, leaves)
        if history is None:
            return jax.tree.unflatten(out_tree(), outputs)
        *outputs, history = outputs
        return jax.tree.unflatten(out_tree(), outputs), history

    def _bind(self, args: tuple, kwargs: dict) -> tuple[Emulation, list, Callable]:
        """Flattens the call: an emulation of flat leaves, the leaves, the out tree."""
        dynamic, rebuild = self._static.split(args, kwargs)
        paths, in_tree = jax.tree.flatten_with_path(dynamic)
        names = tuple(self._argument_name(path) for path, _ in paths)
        found: list[Any] = []

        def function(*leaves: Any) -> list[Any]:
            args, kwargs = rebuild(jax.tree.unflatten(in_tree, leaves))
            flat, tree = jax.tree.flatten(self._function(*args, **kwargs))
            found[:] = [tree]
            return flat

        emulation = Emulation(
            function=function, names=names, target=self.target, policy=self.policy
        )
        leaves = [_as_array(leaf, n) for (_, leaf), n in zip(paths, names, strict=True)]
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


def _forward_mode_error(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"forward-mode differentiation (jvp, jacfwd, hessian) of {name}: the chip runs "
        "forward and backward programs",
        remedy="use jax.grad, jax.vjp or jax.jacrev; jacrev(jacrev(f)) for a Hessian",
    )


def may_round_stochastically(policy: Policy) -> bool:
    """Whether a call under this policy needs a call index."""
    rules = (rule.rounding == "stochastic" for rule in policy.rules)
    return policy.rounding == "stochastic" or any(rules)


class Lowered:
    """A captured and lowered program, before XLA."""

    def __init__(
        self,
        function: Emulated,
        args: tuple,
        kwargs: dict,
        captured: Capture,
        program: InstructionProgram,
    ) -> None:
        self._function = function
        self._args, self._kwargs = args, kwargs
        self._captured = captured
        self._program = program

    @property
    def program(self) -> Program:
        """The StableHLO program."""
        return self._captured.program

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """Every instruction, those of loops and callees included."""
        return tuple(self._program.walk())

    def as_text(self, dialect: str = "stablehlo") -> str:
        """The program as text.

        Args:
            dialect: "stablehlo", or "instructions" for the NeuronCore's.
        """
        if dialect == "stablehlo":
            return str(self.program)
        if dialect == "instructions":
            return instruction_text(self._program)
        raise InvalidProgramError(
            f"dialect {dialect!r}", remedy='choose "stablehlo" or "instructions"'
        )

    def compile(self) -> Compiled:
        """Compiles for the host."""
        emulated = self._function
        index = emulated._call_index
        if index is None and may_round_stochastically(emulated.policy):
            index = jax.ShapeDtypeStruct((), jnp.uint32)
        hidden = (index, emulated._amax_history)
        lowered = emulated._jitted.lower(hidden, *self._args, **self._kwargs)
        return Compiled(self, lowered.compile())


class Compiled:
    """A program compiled for the host; call it with arguments of the lowered types."""

    def __init__(self, lowered: Lowered, executable: Any) -> None:
        self._lowered = lowered
        self._executable = executable

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        emulated = self._lowered._function
        hidden = emulated._hidden(args, kwargs)
        dynamic, _ = emulated._static.split(args, kwargs)
        return self._executable(hidden, *dynamic[0], **dynamic[1])

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """Every instruction, those of loops and callees included."""
        return self._lowered.instructions

    def as_text(self, dialect: str = "instructions") -> str:
        """The program as text, with a label on every number: see `Lowered.as_text`."""
        return self._lowered.as_text(dialect)

    def cost_analysis(self) -> Any:
        """XLA's estimate of what the emulation costs the host."""
        return self._executable.cost_analysis()

    def memory_analysis(self) -> Any:
        """XLA's plan of the emulation's memory on the host."""
        return self._executable.memory_analysis()


# -- signatures ------------------------------------------------------------------------


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None  # a builtin: positional arguments only, as for jax.jit


class _Named:
    """Arguments selected by number or by name, in both forms."""

    def __init__(self, numbers: tuple[int, ...], names: tuple[str, ...]) -> None:
        self.numbers = numbers
        self.names = names

    @classmethod
    def of(
        cls, signature: inspect.Signature | None, numbers: Any, names: Any
    ) -> _Named:
        """Completes what the caller gave, as jax.jit does."""
        given_numbers = _tuple(numbers, int)
        given_names = _tuple(names, str)
        if signature is None:
            return cls(given_numbers, given_names)
        parameters = list(signature.parameters.values())
        positional = [
            p.name
            for p in parameters
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        count = len(positional)
        chosen = {n + count if n < 0 else n for n in given_numbers}
        chosen |= {i for i, p in enumerate(positional) if p in given_names}
        keywords = {p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY}
        all_names = set(given_names)
        all_names |= {positional[n] for n in chosen if n < count} & keywords
        return cls(tuple(sorted(chosen)), tuple(sorted(all_names)))

    def split(
        self, args: tuple, kwargs: dict
    ) -> tuple[tuple[tuple, dict], Callable[[Any], tuple[tuple, dict]]]:
        """Takes these arguments out; the function returned puts them back."""
        kept = [i for i in range(len(args)) if i not in self.numbers]
        dynamic_args = tuple(args[i] for i in kept)
        dynamic_kwargs = {k: v for k, v in kwargs.items() if k not in self.names}
        # Only what is static: the rest are tracers, which must not outlive the trace.
        static_args = [None if i in kept else a for i, a in enumerate(args)]
        static_kwargs = {k: v for k, v in kwargs.items() if k in self.names}

        def rebuild(dynamic: tuple[tuple, dict]) -> tuple[tuple, dict]:
            full = list(static_args)
            for i, value in zip(kept, dynamic[0], strict=True):
                full[i] = value
            return tuple(full), {**static_kwargs, **dynamic[1]}

        return (dynamic_args, dynamic_kwargs), rebuild


def _tuple(value: Any, one: type) -> tuple:
    if value is None:
        return ()
    return (value,) if isinstance(value, one) else tuple(value)


def _as_array(leaf: Any, name: str) -> Any:
    """An argument as an array; what is not one is refused by name."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return leaf
    try:
        return jnp.asarray(leaf)
    except TypeError as error:
        raise InvalidProgramError(
            f"argument {name} is a {type(leaf).__name__}, not an array",
            remedy="pass arrays, or name the argument in static_argnames",
        ) from error
