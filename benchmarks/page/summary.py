"""The summary of wins and losses.

All entries of a peer in one kind of task, of all formats and sizes, give one verdict. A
difference of more than 10 % of time is a win or a loss, a smaller one is "even".
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.page import text

MARGIN = 1.1
#: An error below this shows unquantized operands, so sums can be compared with ours.
EXACT_PRODUCTS = 1e-5
#: First word of a task -> its kind in the summary.
KINDS = {
    "cast": "casts to nearest",
    "stochastic": "stochastic casts",
    "quantize": "MX quantize and dequantize",
    "prune": "N:M pruning",
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A line of the summary.

    Attributes:
        kind: kind of task.
        peer: the peer that is compared with neuronjax.
        ratios: the peer's time over ours, one for each entry.
        numerics: the comparison of results, in words.
    """

    kind: str
    peer: str
    ratios: tuple[float, ...]
    numerics: str

    @property
    def outcome(self) -> str:
        """The result for neuronjax by the median: "faster", "slower" or "even"."""
        return outcome(statistics.median(self.ratios))

    @property
    def times(self) -> str:
        """The factor by which neuronjax is faster or slower, as a range."""
        if self.outcome == "slower":
            return text.span(1 / ratio for ratio in self.ratios) + " × slower"
        return text.span(self.ratios) + " × as fast"


def outcome(ratio: float) -> str:
    """Return "faster", "slower" or "even" for neuronjax, given a peer's time over ours;
    "even" is within the margin."""
    if ratio > MARGIN:
        return "faster"
    return "slower" if ratio < 1 / MARGIN else "even"


def kind(task: str) -> str:
    """Return the kind of a task in the summary; the task itself by default."""
    return KINDS.get(task.split()[0], task)


def verdicts(entries: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """Return a verdict for each kind of task and peer, slowest of neuronjax first."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in entries:
        if entry["status"] == "measured":
            groups.setdefault((kind(entry["task"]), entry["peer"]), []).append(entry)
    found = [
        Verdict(
            kind=name,
            peer=peer,
            ratios=tuple(entry["ratio"]["median"] for entry in own),
            numerics=numerics(own),
        )
        for (name, peer), own in groups.items()
    ]
    return sorted(found, key=lambda verdict: statistics.median(verdict.ratios))


def numerics(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return the comparison of one peer's results with ours, in words."""
    return "; ".join(dict.fromkeys(_sentences([e["numerics"] for e in entries])))


def _sentences(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    first = found[0]
    if "bias_sigmas" in first:
        worst = max(abs(each["bias_sigmas"]) for each in found)
        outside = sum(each["not_a_neighbour"] for each in found)
        yield f"{outside} not neighbours, bias at most {worst:.1f} sigma"
    elif "special" in first:
        yield _casts(found)
    elif "scale_rule" in first:
        yield from map(_rule, found)
    elif "ours_loss" in first:
        yield f"loss {first['loss']:.4f}, ours {first['ours_loss']:.4f}"
    elif "native_differs" in first:
        yield (
            f"{first['differ']} of {first['compared']:,} elements differ"
            f" (native XLA: {first['native_differs']})"
        )
    elif "relative_l2" in first:
        errors = first["relative_l2"], first["ours_relative_l2"]
        yield f"error {errors[0]:.2g}, ours {errors[1]:.2g}"
        if max(errors) < EXACT_PRODUCTS:
            share = first["differ"] / first["compared"]
            yield "equal bits" if not share else f"{share:.0%} of the sums differ"
    elif "differ" in first:
        differ = max(each["differ"] / each["compared"] for each in found)
        yield "equal" if not differ else f"up to {differ:.2%} differ (ties)"


def _casts(found: Sequence[Mapping[str, Any]]) -> str:
    normal = sum(e["differ"] - e["differ_subnormal_inputs"] for e in found)
    tiny = sum(e["differ_subnormal_inputs"] for e in found)
    special = sum(e["special"] != e["ours_special"] for e in found)
    parts = ["equal codes in range" if not normal else f"{normal:,} codes differ"]
    if tiny:
        parts.append(f"{tiny:,} of FP32 subnormals differ")
    if special:
        parts.append("overflow, Inf or NaN differ")
    return ", ".join(parts)


def _rule(each: Mapping[str, Any]) -> str:
    if each["differ"]:
        return f"none of our scale rules (nearest: {each['scale_rule']})"
    return f"equal to our `{each['scale_rule']}`"
