"""The subject of a verb (a public function such as `profile`): a function or a program.

`Asked` captures the subject for the verb. The target and the policy of the report are
the verb's arguments, otherwise those with which the subject was made, otherwise "trn2"
and the SDK's defaults.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from neuronjax.api.calls import asked_about
from neuronjax.api.jit import Emulated, jit
from neuronjax.api.load import read_saved
from neuronjax.api.lowered import Compiled, Lowered
from neuronjax.capture.artifacts import read_artifact
from neuronjax.diagnostics.kernel_limits import is_kernel
from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.execution import stages
from neuronjax.execution.captured import CapturedProgram
from neuronjax.execution.transformations import plain_arrays
from neuronjax.hardware import Target, resolve_target
from neuronjax.ir.collection import no_collection
from neuronjax.ir.program import Program
from neuronjax.policy import Policy
from neuronjax.policy.scopes import active_policy
from neuronjax.policy.values import PRESETS
from neuronjax.report.setting import policy_name, setting_line

#: A function, or a program that was lowered, compiled, loaded, or saved in a file.
Askable = Callable[..., Any] | Lowered | Compiled | str | os.PathLike[str]


@dataclass(frozen=True)
class Asked:
    """A function or program that was passed to a verb, for one target under one policy.

    Attributes:
        step: the emulated function, or the lowered program.
        first: for a bound method, its object, which precedes the arguments of a call.
    """

    step: Emulated | Lowered
    first: tuple[Any, ...] = ()

    @classmethod
    def of(
        cls,
        item: Askable,
        *,
        target: str | None = None,
        policy: str | Policy | None = None,
        **options: Any,
    ) -> Asked:
        """Return the subject of a verb, such as `profile`, called with `item`; keywords
        of `jit` that are None are left unchanged."""
        numerics = None if policy is None else Policy.resolve(policy)
        if isinstance(item, str | os.PathLike):
            return cls(read_saved(item, target, numerics))
        if isinstance(item, Lowered | Compiled):
            machine = None if target is None else resolve_target(target)
            return cls(item.lowered.under(target=machine, policy=numerics))
        given = {"target": target, "policy": numerics, **options}
        given = {name: value for name, value in given.items() if value is not None}
        function, first = item, ()
        if isinstance(item, functools.partial) and not item.keywords:
            function, first = item.func, item.args
        if isinstance(function, Emulated):
            return cls(function.with_options(**given), first)
        setting = {"target": "trn2", **own_setting(item), **given}
        inner = _emulated_in(item)
        return cls(jit(asked_about(inner, item) if inner else item, **setting))

    @property
    def name(self) -> str:
        if isinstance(self.step, Lowered):
            return self.step.name
        return getattr(self.step, "__name__", "function")

    @property
    def target(self) -> Target:
        return self.step.target

    @property
    def policy(self) -> Policy:
        """The policy of an open `policy_scope`, otherwise the subject's policy."""
        return active_policy() or self.step.policy

    @property
    def words(self) -> dict[str, str]:
        """The fields that identify the subject in every report."""
        return {
            "name": self.name,
            "target": self.target.name,
            "policy": policy_name(self.policy),
            "setting": setting_line(self.target, self.policy),
        }

    @property
    def amax_history(self) -> jax.Array | None:
        """The state of delayed scaling that the function was given, or None."""
        return self.step.amax_history if isinstance(self.step, Emulated) else None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Show the progress of long work on the terminal. Python's garbage collector
        waits for its end; arrays are in no cycles."""
        with no_collection(), stages.watching(f"{self.name} on {self.target.name}"):
            yield

    def captured(
        self, *args: Any, _alone: bool = False, **kwargs: Any
    ) -> CapturedProgram:
        """Return the program of a call, with the call's arguments as its inputs. A
        lowered program without arguments keeps the inputs for which it was lowered.

        With `_alone`, the results do not include writes into modules of Flax NNX."""
        if isinstance(self.step, Lowered):
            given = args or kwargs
            return self.step.bound(*args, **kwargs) if given else self.step.captured
        step = self.step if _alone else self._reported
        return step.captured(*self.first, *args, **kwargs)

    def lowered(self, *args: Any, **kwargs: Any) -> Lowered:
        if isinstance(self.step, Lowered):
            return self.step
        return self._reported.lower(*self.first, *args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Call the subject; return its results and its writes into modules of NNX."""
        step = self.step if isinstance(self.step, Lowered) else self._reported
        return step(*self.first, *args, **kwargs)

    def native(self) -> Callable[..., Any]:
        """Return the function as `jax.jit` compiles it, without emulation. Refuse a
        program, which has no function."""
        if isinstance(self.step, Lowered):
            raise UnsupportedError(
                f"{self.name} is a saved program, without a function for jax.jit",
                remedy='name a policy, such as "fp32", instead of "native"; or name '
                "the function",
            )
        return self._reported.native

    def under(self, policy: Policy) -> Emulated | Lowered:
        if isinstance(self.step, Lowered):
            return self.step.under(policy=policy)
        return self._reported.with_options(policy=policy).anew()

    @property
    def has_static_arguments(self) -> bool:
        """Whether the program depends on more than the types of its arguments."""
        if isinstance(self.step, Lowered):
            return False
        static = self.step.named("static")
        return bool(static.numbers or static.names)

    @functools.cached_property
    def _reported(self) -> Emulated:
        assert isinstance(self.step, Emulated)
        return self.step.reported()


def _emulated_in(item: Any) -> Emulated | None:
    function: Any = item.func if isinstance(item, functools.partial) else item
    function = inspect.unwrap(function, stop=lambda f: isinstance(f, Emulated))
    return function if isinstance(function, Emulated) else None


def own_setting(item: Askable) -> dict[str, Any]:
    """Return the target and policy with which `item` was made, by keyword. For a
    gradient or `vmap`, they are those of the emulated function that it wraps."""
    if isinstance(item, Lowered | Compiled):
        lowered = item.lowered
        own: dict[str, Any] = {"target": lowered.target.name, "policy": lowered.policy}
    elif is_kernel(item):
        own = {"target": _name(getattr(item, "target", None))}
    else:
        options = inner.options if (inner := _emulated_in(item)) else {}
        own = {name: options.get(name) for name in ("target", "policy")}
    return {name: value for name, value in own.items() if value is not None}


def shared_setting(
    several: Sequence[Askable], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the common target and policy of several functions or programs. `given` has
    the caller's keyword arguments for target and policy, in this order. Refuse targets
    or policies that differ if `given` does not say which."""
    shared = dict(given)
    for keyword, what in zip(given, ("target", "policy"), strict=True):
        own = [own_setting(each).get(what) for each in several]
        own = [each for each in own if each is not None]
        names = [*dict.fromkeys(map(_name, own))]
        if given[keyword] is not None or not own:
            continue
        if len(names) > 1:
            raise InvalidProgramError(
                f"the programs have different settings: {what} {' and '.join(names)}",
                remedy=f"give the programs one {what}: {keyword}={_written(own[0])}",
            )
        shared[keyword] = own[0]
    return shared


def _written(setting: Any) -> str:
    name = _name(setting)
    is_named = not isinstance(setting, Policy) or name in PRESETS
    return repr(name) if is_named else "p, where p is one program's policy"


def _name(setting: Any) -> str:
    if isinstance(setting, Policy):
        return policy_name(setting)
    return getattr(setting, "name", setting)


def arrays_of(captured: CapturedProgram) -> list[jax.Array]:
    """Return the inputs of a captured program as `plain_arrays`; refuse mere types."""
    for leaf, name in zip(captured.inputs, captured.emulation.names, strict=True):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise InvalidProgramError(
                f"the argument {name} is a type, which has no values",
                op=captured.emulation.name,
                remedy="give an array for each argument of the program",
            )
    return plain_arrays(captured.inputs)


def check_real(captured: CapturedProgram, what: str) -> None:
    """Refuse a program with complex numbers; `what` is the text of the error."""
    if captured.program.holds_complex():
        raise UnsupportedError(
            what,
            op=captured.emulation.name,
            remedy="take real and imaginary parts as separate arguments",
        )


def read_program(code: bytes, names: Sequence[str]) -> Program:
    """Return the program of a portable artifact, with its arguments' names."""
    program = read_artifact(code).program
    return replace(program, argument_names=tuple(names))


def output_names(captured: CapturedProgram) -> list[str]:
    """Return the path of every output."""
    outputs = jax.tree.unflatten(captured.out_tree, captured.outputs)
    paths, _ = jax.tree.flatten_with_path(outputs)
    names = [jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in paths]
    return [name or "the result" for name in names]
