"""A comparison of neuronjax with a peer: times, measured in turn, and numerics.

An entry is one comparison at one size, ready for JSON. Its ratio is the peer's time
over ours, pair by pair, so above 1 neuronjax is faster.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from benchmarks import harness
from benchmarks.harness import Effort, Samples, Thunk

#: Name for import -> distribution. All except the first two are extras.
DISTRIBUTIONS = {
    "jaxlib": "jaxlib",
    "ml_dtypes": "ml_dtypes",
    "gfloat": "gfloat",
    "pychop": "pychop",
    "qwix": "qwix",
    "torch": "torch",
}
FULL = Effort(repetitions=9, seconds=4.0)
QUICK = Effort(repetitions=3, seconds=1.0, minimum=2)

Entry = dict[str, Any]


def absent(module: str) -> str:
    """Return why a peer cannot be measured; "" if it can."""
    if not module or importlib.util.find_spec(module):
        return ""
    return f"{DISTRIBUTIONS[module]} is not installed"


def versions() -> dict[str, str | None]:
    """Return the version of every peer; None if it is not installed."""
    return {
        name: None if absent(module) else metadata.version(name)
        for module, name in DISTRIBUTIONS.items()
    }


def skipped(task: str, peer: str, why: str) -> Entry:
    """Return the entry for a peer that was not measured, and the reason."""
    return {"task": task, "peer": peer, "status": "skipped", "why": why}


def against(
    task: str,
    peer: str,
    *,
    needs: str,
    pair: Callable[[], tuple[Thunk, Thunk]],
    numerics: Callable[[], Mapping[str, Any]],
    effort: Effort,
    sizes: Mapping[str, Any],
    caveat: str = "",
) -> Entry:
    """Return the entry of a comparison, measured now.

    Args:
        task: name of the task that both perform.
        peer: name of the peer.
        needs: the module from which it is imported; "" for none.
        pair: makes (ours, theirs); only it and `numerics` may import the peer.
        numerics: compares the results.
        effort: number of repetitions.
        sizes: sizes of the problem.
        caveat: a difference that makes the comparison unequal.
    """
    why = absent(needs)
    if why:
        return skipped(task, peer, why)
    harness.progress(f"{task}: {peer}")
    times = harness.interleave(pair(), effort)
    return {
        "task": task,
        "peer": peer,
        "status": "measured",
        "sizes": dict(sizes),
        "neuronjax_seconds": _summary(times[0]),
        "peer_seconds": _summary(times[1]),
        "ratio": _summary(_ratio(*times)),
        "numerics": dict(numerics()),
        "caveat": caveat,
    }


def _ratio(ours: Samples, theirs: Samples) -> Samples:
    pairs = zip(ours.values, theirs.values, strict=True)
    return Samples(tuple(b / a for a, b in pairs))


def _summary(samples: Samples) -> dict[str, Any]:
    low, high = samples.quartiles
    count = len(samples.values)
    return {"median": samples.median, "quartiles": [low, high], "runs": count}
