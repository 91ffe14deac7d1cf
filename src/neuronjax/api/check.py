"""`check`: what the real compiler would refuse or change in a function or a file.

The program is captured here and examined by `diagnostics`. Errors of the capture, such
as a dtype that no core has, are also findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from neuronjax.api.asked import Askable, Asked, own_setting
from neuronjax.diagnostics.findings import PortabilityReport
from neuronjax.diagnostics.portability import examine, from_error, report
from neuronjax.errors import NeuronJaxError
from neuronjax.policy import Policy, Preset


def check(
    function: Askable,
    *,
    target: str | None = None,
    policy: Preset | str | Policy | None = None,
    sdk: str | None = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[..., PortabilityReport]:
    """Report what AWS's compiler would refuse or change in a function.

    Args:
        function: as `compare`; a saved program need not be lowered for this.
        target: as `compare`.
        policy: as `compare`.
        sdk: the Neuron SDK to check for, "2.32"; None for the policy's.
        static_argnums: as `jax.jit`.
        static_argnames: as `jax.jit`.

    Returns:
        A function of the same arguments (arrays or ShapeDtypeStructs; a program needs
        none) that returns the `PortabilityReport`; nothing is run.

    Raises:
        InvalidProgramError: unknown target, policy or SDK.
    """
    defaults = None if sdk is None else Policy.for_sdk(sdk)
    if policy is None and "policy" not in own_setting(function):
        policy = defaults
    static = dict(static_argnums=static_argnums, static_argnames=static_argnames)
    asked = Asked.of(function, target=target, policy=policy, **static)
    options: Any = dict(target=asked.target, policy=asked.policy, name=asked.name)
    options["sdk"] = (defaults or asked.policy).sdk

    def checked(*args: Any, **kwargs: Any) -> PortabilityReport:
        try:
            captured = asked.captured(*args, **kwargs)
        except NeuronJaxError as error:
            return report([from_error(error)], **options)
        return examine(captured.program, **options)

    return checked
