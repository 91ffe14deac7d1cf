"""`policy_scope`: a policy for the ops that are traced inside a `with` block.

A scope is a name in the ops' name stack, made from the policy's value, so it survives
grad, vmap, scan and checkpoint, and program texts are reproducible.
`collective_algorithm` is a scope that sets only the policy's field of this name, and
`compiling_for` one that sets the chip.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
from collections.abc import Iterator

import jax
import numpy as np
from jax import lax
from jax.core import Tracer

from neuronjax import errors
from neuronjax.policy import Policy

_SCOPE_NAME = re.compile(r"neuronjax\.policy\.([0-9a-f]{16})")
_SCOPED: dict[str, Policy] = {}  # token -> policy, for the life of the process
# This context is part of jax.jit's cache key. Without it a function traced under one
# policy would be reused under another, and an inner jit shared by two scopes would be
# one function.
_ACTIVE = jax.make_user_context(default_value=None)
_asked = 0  # how often an emulation has called `active_policy`

_ALGORITHM = "neuronjax.policy.collective."
_ALGORITHM_NAME = re.compile(re.escape(_ALGORITHM) + r"([a-z_0-9:+]+)")
_ACTIVE_ALGORITHM = jax.make_user_context(default_value=None)


@contextlib.contextmanager
def policy_scope(policy: Policy | str) -> Iterator[Policy]:
    """Give a policy to the ops traced inside the block; the innermost scope applies.

    The scope is recorded in the ops' name stack, so it survives grad, vmap, scan and
    checkpoint. Programs that are captured inside the block have the policy too: see
    `active_policy`. A block in which nothing is emulated, such as one around a function
    of `jax.jit`, gives a `NotEmulatedWarning`. `policy_scope` is also a decorator.
    """
    resolved = Policy.resolve(policy)
    token, asked = _intern(resolved), _asked
    with _ACTIVE(token), jax.named_scope(f"neuronjax.policy.{token}"):
        yield resolved
    # No warning in a trace, whose ops carry the scope to their later emulation.
    if _asked == asked and not is_tracing():
        errors.warn_user(
            "nothing in this policy_scope was emulated: the host computed its numbers\n"
            "  remedy: emulate the function, nj.jit(f), or all that a program jits, "
            "with nj.emulated(policy=...)",
            errors.NotEmulatedWarning,
        )


def is_tracing() -> bool:
    """Return whether the caller is in a trace, where new arrays are tracers."""
    return isinstance(lax.bitwise_not(np.uint32(0)), Tracer)


def active_policy() -> Policy | None:
    """Return the policy of the `policy_scope` in which the caller runs, if any.

    Capture needs it: if an outermost jax.jit traces a function, the name stack begins
    at that jit, so a scope around the jit is not in it.
    """
    global _asked
    _asked += 1
    token = _ACTIVE.value
    return None if token is None else _SCOPED[token]


@contextlib.contextmanager
def collective_algorithm(name: str) -> Iterator[None]:
    """Choose the algorithm of the reductions over devices traced inside the block.

    The choice overrides the policy and its rules. The innermost block applies; "auto"
    leaves the choice to the policy again. Like `policy_scope` it survives grad, vmap,
    scan and checkpoint, decorates functions, and applies to programs that are captured
    inside.

        with neuronjax.collective_algorithm("mesh"):
            gradient = jax.lax.psum(gradient, "data")

    Args:
        name: as `Policy.collective_algorithm`: "ring", "ring:4", "mesh+rdh".

    Raises:
        InvalidProgramError: no such algorithm. An algorithm that is impossible for the
            devices of a reduction is an error when the program is lowered.
    """
    Policy(collective_algorithm=name)  # refuses an unknown name
    with _ACTIVE_ALGORITHM(name), jax.named_scope(f"{_ALGORITHM}{name}"):
        yield


def algorithm_from_scope(name_stack: str) -> str | None:
    """Return the innermost `collective_algorithm` of a name stack. If there is none,
    return that of the block in which the caller runs, or None."""
    names = _ALGORITHM_NAME.findall(name_stack)
    return names[-1] if names else _ACTIVE_ALGORITHM.value


def has_policy_scope(name_stack: str) -> bool:
    """Return whether a name stack holds a `policy_scope` or `collective_algorithm`."""
    return "neuronjax.policy." in name_stack


def policy_from_scope(name_stack: str) -> Policy | None:
    """Return the policy of the innermost `policy_scope` of a name stack, or None.

    Inside a function that StableHLO calls (inner jits, scan bodies) a name stack starts
    anew: prepend that of the call op.

    Raises:
        InvalidProgramError: the program was captured in another process, whose policy
            is not known here.
    """
    tokens = _SCOPE_NAME.findall(name_stack)
    if not tokens:
        return None
    if tokens[-1] not in _SCOPED:
        raise errors.InvalidProgramError(
            f"scope {name_stack!r} names a policy that this process has not made",
            remedy="enter policy_scope with the same policy before loading the program",
        )
    return _SCOPED[tokens[-1]]


def _intern(policy: Policy) -> str:
    """Store a policy and return its key, a hash that is equal in every process."""
    values = [getattr(policy, f.name) for f in dataclasses.fields(policy) if f.compare]
    token = hashlib.blake2b(repr(values).encode(), digest_size=8).hexdigest()
    if _SCOPED.setdefault(token, policy) != policy:
        raise errors.InternalError(f"two policies share the token {token}")
    return token


_TARGET = jax.make_user_context(default_value=None)


def compiling_for(target: str) -> contextlib.AbstractContextManager[None]:
    """Set the target for which kernels in the block are traced. The target is also part
    of JAX's cache keys, so that a kernel inside an inner jit is traced for it too."""
    return _TARGET(target)


def compiled_for() -> str | None:
    """Return the target that the surrounding program is captured for, if any."""
    return _TARGET.value
