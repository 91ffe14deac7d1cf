"""`load`: saved programs, emulated.

`load` returns the same type of object as `jit(f).lower(...)`; `capture.artifacts` reads
and parses the file. A saved program can be called inside JAX's transformations and
other emulated functions (`capture.saved_call`): `vmap` is a loop over the batch,
because the program has one size, and `grad` works if the file contains the derivative,
which is possible only for jax.export artifacts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from neuronjax.api.calls import CallState, as_array
from neuronjax.api.jit import NATIVE_JIT, Emulated, jit
from neuronjax.api.lowered import CallEntry, Lowered, types_text
from neuronjax.capture.artifacts import Artifact, Source, read_any
from neuronjax.capture.saved_call import function_of
from neuronjax.capture.trace import Capture
from neuronjax.errors import InvalidProgramError
from neuronjax.execution.captured import CapturedProgram
from neuronjax.execution.inputs_outputs import CallContext, Outcome
from neuronjax.execution.transformations import Emulation
from neuronjax.hardware import Target, resolve_target
from neuronjax.policy import Policy, Preset
from neuronjax.policy.scopes import active_policy, policy_scope


def load(
    source: Source, *, target: str = "trn2", policy: Preset | str | Policy | None = None
) -> Lowered | Emulated:
    """Load a saved program for a Trainium chip.

    The format is recognised by content: StableHLO as text (also in generic form, with
    CHLO, MHLO and Shardy), MLIR bytecode or a portable artifact; a `jax.export`
    artifact; HLO as text or as a proto (HloModuleProto or HloProto). Files are
    untrusted, so another process parses them.

        logits = nj.load("model.mlirbc", target="trn3", policy="bf16")(x)

    A jax.export artifact is called with the pytrees of the exported function. Every
    other program takes flat positional arrays and returns an array, or a tuple if it
    has several results or none. A program with symbolic sizes is loaded as a function;
    every call uses the program for the sizes of its arguments.

    Args:
        source: a path, the bytes, or an open file.
        target: as `jit`.
        policy: as `jit`.

    Returns:
        A `Lowered`, which compiles at its first call; for symbolic sizes an `Emulated`,
        as from `jit`.

    Raises:
        InvalidProgramError: a missing or malformed file, an unknown format, target or
            policy.
        UnsupportedError: dynamic shapes without symbols, effects, ops the chip does not
            have, or a version that this JAX cannot read.
        UnimplementedError: an op without a rule.
    """
    program = read_saved(source, target, policy)
    if isinstance(program, Lowered):
        _ = program.captured.instructions  # raises if an op cannot be lowered
    return program


def read_saved(
    source: Source, target: str | None = None, policy: str | Policy | None = None
) -> Lowered | Emulated:
    """Return a saved program as `load` does, but do not lower it yet."""
    given = None if policy is None else Policy.resolve(policy)
    machine, found = resolve_target(target or "trn2"), read_any(source)
    if isinstance(found, Artifact):
        return _Loaded(found, machine, given).lowered()

    def call(*args: Any, **kwargs: Any) -> Any:
        artifact = found.of(jax.tree.leaves((args, kwargs)))
        return _Loaded(artifact, machine, None)._inside(*args, **kwargs)

    call.__name__ = found.exported.name
    return jit(call, target=machine.name, policy=given)


class _Loaded:
    """A saved program on one chip under one policy."""

    def __init__(
        self, artifact: Artifact, target: Target, given: Policy | None
    ) -> None:
        self._artifact, self._scope = artifact, given
        self._emulation = Emulation(
            function=lambda *leaves: function_of(artifact)(*leaves),
            name=artifact.name,
            names=artifact.program.argument_names,
            target=target,
            policy=given or active_policy() or Policy.resolve(None),
            saved=Capture(artifact.program, artifact.out_tree, artifact.out_avals),
        )
        self._jitted = NATIVE_JIT(self._emulation.__call__)

    def lowered(self) -> Lowered:
        artifact = self._artifact
        captured = CapturedProgram(
            emulation=self._emulation,
            inputs=[artifact.in_avals[i] for i in artifact.kept],
            outputs=tuple(artifact.out_avals),
            out_tree=artifact.out_tree,
            program=artifact.program,
        )
        args, kwargs = artifact.in_avals, {}
        if artifact.in_tree is not None:
            args, kwargs = jax.tree.unflatten(artifact.in_tree, artifact.in_avals)
        return Lowered(self._entry(CallState(artifact.name)), args, kwargs, captured)

    def _entry(self, state: CallState) -> CallEntry:
        def under(target: Target, policy: Policy) -> CallEntry:
            return _Loaded(self._artifact, target, policy)._entry(state)

        steps = self._compile, self._run, self._inside, self._leaves
        return CallEntry(state, *steps, under)

    def _compile(self, context: CallContext) -> Any:
        _check_64_bit(self._artifact)
        used = [self._artifact.in_avals[i] for i in self._artifact.kept]
        return self._jitted.lower(context, used).compile()

    def _run(
        self, executable: Any, context: CallContext, args: tuple, kwargs: dict
    ) -> Any:
        used = self._leaves(args, kwargs)
        around = jax.tree.leaves(context)
        traced = any(isinstance(leaf, Tracer) for leaf in [*used, *around])
        # The flag is public, but its type stub is incomplete.
        disabled = jax.config.jax_disable_jit  # type: ignore[attr-defined]
        run = executable if not traced and not disabled else self._jitted
        return self._results(run(context, used))

    def _inside(self, *args: Any, **kwargs: Any) -> Any:
        """Call the program inside an emulated function, under the policy given to
        `load`, or otherwise under the function's policy."""
        leaves, scope = self._leaves(args, kwargs), self._scope
        with policy_scope(scope) if scope else contextlib.nullcontext():
            return self._results(Outcome(results=self._emulation.function(*leaves)))

    def _leaves(self, args: tuple, kwargs: dict) -> list[Any]:
        artifact = self._artifact
        leaves: Sequence[Any] = args
        if artifact.in_tree is not None:
            leaves, tree = jax.tree.flatten((args, kwargs))
            if tree != artifact.in_tree:
                raise InvalidProgramError(
                    f"{artifact.name} is called with {tree}",
                    remedy=f"give arguments of the saved structure: {artifact.in_tree}",
                )
        elif kwargs or len(args) != len(artifact.in_avals):
            raise InvalidProgramError(
                f"{artifact.name} takes {len(artifact.in_avals)} positional arguments, "
                f"{len(args)} were given"
                + (f" and keywords {', '.join(kwargs)}" if kwargs else ""),
                remedy="pass one array for each of: "
                + (", ".join(artifact.argument_names) or "nothing"),
            )
        wanted = zip(leaves, artifact.in_avals, artifact.argument_names, strict=True)
        checked = [_checked(leaf, aval, name) for leaf, aval, name in wanted]
        return [checked[i] for i in artifact.kept]

    def _results(self, outcome: Outcome) -> Any:
        results = jax.tree.unflatten(self._artifact.out_tree, outcome.results)
        history = outcome.amax_history
        return results if history is None else (results, history)


def _checked(leaf: Any, aval: jax.ShapeDtypeStruct, name: str) -> Any:
    if type(leaf) in _WEAK and jnp.result_type(aval.dtype, leaf) == aval.dtype:
        leaf = jnp.asarray(leaf, aval.dtype)
    array = as_array(leaf, name)
    if (array.shape, array.dtype) != (aval.shape, aval.dtype):
        raise InvalidProgramError(
            f"argument {name} is {types_text([array])}, the program was saved for "
            f"{types_text([aval])}",
            remedy="convert the argument, or save the program for this type",
        )
    return array


_WEAK = (bool, int, float, complex)


def _check_64_bit(artifact: Artifact) -> None:
    """Refuse 64-bit arguments if x64 is off: JAX would convert them to 32 bits."""
    if jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        return
    values = [*artifact.in_avals, *artifact.out_avals]
    wide = [v for v in values if v.dtype in _WIDE]
    if wide:
        raise InvalidProgramError(
            f"{artifact.name} takes or returns {types_text(wide[:1])}, and 64-bit "
            "types are off in JAX",
            remedy='compile and call the program under "with jax.enable_x64(True):"',
        )


_WIDE = {np.dtype(name) for name in ("int64", "uint64", "float64", "complex128")}
