"""`check`: what the real compiler would refuse or change in a function or a file.

The thin public face of `diagnostics`: it captures, and hands the program over. Errors
of the capture (JAX cannot lower it, a dtype that no core has) are findings too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from neuronjax.api.jit import Emulated, jit
from neuronjax.api.signatures import function_name
from neuronjax.capture.artifacts import Source, read_artifact
from neuronjax.diagnostics.findings import PortabilityReport
from neuronjax.diagnostics.portability import examine, from_error, report
from neuronjax.errors import NeuronJaxError
from neuronjax.hardware import resolve_target
from neuronjax.policy import Policy


def check(
    function: Callable[..., Any],
    *,
    target: str = "trn2",
    policy: str | Policy | None = None,
    sdk: str | None = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[..., PortabilityReport]:
    """What the chip's own compiler would refuse or change in a function.

    Args:
        function: what `jax.jit` takes, or an `Emulated` function, which is checked for
            this target and policy and not for its own.
        target: as `neuronjax.jit`.
        policy: as `neuronjax.jit`; None means the defaults of the SDK.
        sdk: the Neuron SDK to be checked for, "2.32"; None means the policy's.
        static_argnums: as `jax.jit`.
        static_argnames: as `jax.jit`.

    Returns:
        A function of the same arguments (arrays or ShapeDtypeStructs) that returns the
        `PortabilityReport`; nothing is run.

    Raises:
        InvalidProgramError: unknown target, policy or SDK.
    """
    chosen, version = _policy_and_sdk(policy, sdk)
    emulated = jit(
        getattr(function, "__wrapped__", function)
        if isinstance(function, Emulated)
        else function,
        target=target,
        policy=chosen,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
    ).reported()
    name = function_name(function)

    def checked(*args: Any, **kwargs: Any) -> PortabilityReport:
        options: dict[str, Any] = dict(
            target=emulated.target, policy=chosen, sdk=version, name=name
        )
        try:
            captured = emulated.captured(*args, **kwargs)
        except NeuronJaxError as error:
            return report([from_error(error)], **options)
        return examine(captured.program, **options)

    return checked


def check_saved(
    source: Source,
    *,
    target: str = "trn2",
    policy: str | Policy | None = None,
    sdk: str | None = None,
) -> PortabilityReport:
    """As `check`, for a program saved in any format that `neuronjax.load` reads.

    Args:
        source: a path, the bytes or an open file.
        target: as `check`.
        policy: as `check`.
        sdk: as `check`.

    Raises:
        InvalidProgramError: no such file, no known format, or an unknown option.
    """
    chosen, version = _policy_and_sdk(policy, sdk)
    machine = resolve_target(target)
    artifact = read_artifact(source)
    return examine(
        artifact.program, target=machine, policy=chosen, sdk=version, name=artifact.name
    )


def _policy_and_sdk(policy: str | Policy | None, sdk: str | None) -> tuple[Policy, str]:
    defaults = Policy.resolve(None) if sdk is None else Policy.for_sdk(sdk)
    chosen = defaults if policy is None else Policy.resolve(policy)
    return chosen, chosen.sdk if sdk is None else defaults.sdk
