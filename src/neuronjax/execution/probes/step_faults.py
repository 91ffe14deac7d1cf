"""The faults of which a probe shows signs, by the names that `compare` gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from neuronjax.execution.probes.collect import Probe
from neuronjax.execution.probes.signs import absorption_kind, nonfinite_kind
from neuronjax.execution.probes.step_signs import SIGNS

_KINDS: Mapping[str, str] = {
    "wrapped": "integer",
    "underflow": "underflow",
    "clipped": "saturation",
}


def fault_kind(sign: str, probe: Probe) -> str:
    """What the fault is called of which a probe shows a sign."""
    if sign in _KINDS:
        return _KINDS[sign]
    if sign == "absorbed":
        return absorption_kind(probe.running)
    if probe.kind == "cast":
        return "overflow"  # to NaN, where a format has no Inf
    return nonfinite_kind(probe.function, sign == "made_nan")


def faults_of(
    probe: Probe, signs: Sequence[Sequence[int]]
) -> dict[str, dict[str, int]]:
    """By kind: in how many "steps", and "since" which.

    Args:
        probe: that shows them.
        signs: by sign the number of steps, and the first.
    """
    found: dict[str, dict[str, int]] = {}
    for sign, (steps, since) in zip(SIGNS, signs, strict=True):
        kind = fault_kind(sign, probe)
        if steps:
            known = found.get(kind, {"steps": 0, "since": since})
            found[kind] = {
                "steps": max(known["steps"], steps),
                "since": min(known["since"], since),
            }
    return found


def places_by_kind(probes: Sequence[Probe]) -> dict[str, list[tuple[int, int]]]:
    """Of every kind the probes, and the signs, that may show it."""
    found: dict[str, list[tuple[int, int]]] = {}
    for n, probe in enumerate(probes):
        for k, sign in enumerate(SIGNS):
            found.setdefault(fault_kind(sign, probe), []).append((n, k))
    return found
