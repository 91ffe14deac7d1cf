"""The machines of a study: targets and policies by name, and their `jit`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.core import Tracer

from neuronjax.api.asked import Asked
from neuronjax.api.jit import Emulated
from neuronjax.api.lowered import Compiled, Lowered
from neuronjax.api.nnx_state import in_place
from neuronjax.capture.trace import capturing
from neuronjax.diagnostics.code_fingerprint import code_fingerprint
from neuronjax.errors import InvalidProgramError
from neuronjax.execution.probes.statistics import Statistics
from neuronjax.hardware import resolve_target
from neuronjax.policy import Policy
from neuronjax.report.setting import setting_line

Policies = Sequence[str | Policy] | Mapping[str, str | Policy]

NATIVE = "native"
_HOST = "host"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyMachine:
    """A named target and policy, and their label in tables and pictures."""

    policy: str
    target: str
    label: str
    numerics: Policy | None  # None on the host

    @property
    def setting(self) -> str:
        """Target, logical core, policy and SDK as text."""
        if self.numerics is None:
            return "plain JAX on this computer"
        return setting_line(resolve_target(self.target), self.numerics)


def machines_of(policies: Policies, targets: str | Sequence[str]) -> list[StudyMachine]:
    chips = [targets] if isinstance(targets, str) else list(targets)
    pairs: dict[tuple[str, str], Policy | None] = {}
    for name, numerics, own_target in _named(policies):
        where = [_HOST] if numerics is None else [own_target] if own_target else chips
        for target in where:
            if numerics is not None:
                resolve_target(target)  # raises before any run if it is unknown
            if pairs.setdefault((name, target), numerics) != numerics:
                raise InvalidProgramError(
                    f"two policies are called {name!r}", remedy="give each its own name"
                )
    if not pairs:
        remedy = 'give policies=["native", "bf16"]'
        raise InvalidProgramError("a study without policies", remedy=remedy)
    emulated = {target for name, target in pairs if target != _HOST}
    return [
        StudyMachine(
            policy=name,
            target=target,
            label=f"{target}/{name}" if p and len(emulated) > 1 else name,
            numerics=p,
        )
        for (name, target), p in pairs.items()
    ]


def _named(policies: Policies) -> Iterator[tuple[str, Policy | None, str]]:
    """Yield name, policy (None for the host) and target ("" for all) of each policy."""
    if isinstance(policies, Mapping):
        for name, policy in policies.items():
            yield name, None if policy == NATIVE else Policy.resolve(policy), ""
        return
    for policy in [policies] if isinstance(policies, (str, Policy)) else policies:
        if policy == NATIVE:
            yield NATIVE, None, ""
        elif isinstance(policy, str):
            target, _, name = policy.rpartition("/")
            yield name, Policy.preset(name), target
        else:
            yield Policy.resolve(policy).named(), policy, ""


class StudyJit:
    """The `jit` that `train` uses on a machine. It caches compiled functions.

    Values that functions write into modules of Flax NNX are kept, since otherwise
    nothing would be trained. A function that is passed again is not recompiled, but its
    calls are counted from 0, so that stochastic rounding does not depend on earlier
    runs. With a list `seen`, emulated functions append each call's statistics."""

    def __init__(
        self, machine: StudyMachine, seen: list[Statistics] | None = None
    ) -> None:
        named = {"target": machine.target, "policy": machine.numerics}
        self._machine: dict[str, Any] = named if machine.numerics else {}
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self._seen = seen

    def __call__(self, function: Any = None, **jit_options: Any) -> Any:
        if function is None:
            return functools.partial(self, **jit_options)
        key = (function, code_fingerprint(jit_options))
        if key not in self._compiled:
            self._compiled[key] = self._made(function, jit_options)
        made = self._compiled[key]
        if self._seen is not None and isinstance(made, Emulated):
            return _Watched(made.with_options(collect=True), self._seen)
        return made.anew() if isinstance(made, Emulated | Compiled) else made

    def _made(self, function: Any, options: Mapping[str, Any]) -> Callable[..., Any]:
        asked = Asked.of(function, **self._machine, **options)
        if isinstance(asked.step, Lowered):
            return asked.step.compile() if self._machine else asked.native()
        step = asked.step
        made = step if self._machine else in_place(step.native, step.__wrapped__)
        return functools.partial(made, *asked.first) if asked.first else made


@dataclasses.dataclass(frozen=True)
class _Watched:
    """A function that collects statistics into a list and returns only its results."""

    collecting: Emulated
    seen: list[Statistics]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves = jax.tree.leaves((args, kwargs))
        if capturing() or any(isinstance(leaf, Tracer) for leaf in leaves):
            return self.collecting.with_options(collect=None)(*args, **kwargs)
        found = self.collecting(*args, **kwargs)
        has_history = not isinstance(found[1], Statistics)
        (outputs, statistics), *history = found if has_history else (found,)
        self.seen.append(statistics)
        return (outputs, *history) if has_history else outputs

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of a copy of the function that collects no statistics.
        `with_amax_history` and `with_rounding_seed` return copies that collect them."""
        if name not in ("with_amax_history", "with_rounding_seed"):
            return getattr(self.collecting.with_options(collect=None), name)
        own = getattr(self.collecting, name)
        return lambda state: _Watched(own(state), self.seen)
