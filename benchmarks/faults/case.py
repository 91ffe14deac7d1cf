"""A program with a numerical fault on one line, and its twin without it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: What an analyst would call a fault.
KINDS = {
    "overflow": "a finite value leaves the format's range: Inf, or saturated",
    "underflow": "a nonzero value becomes zero or subnormal",
    "non-finite": "an Inf or NaN is made of finite values by an invalid operation "
    "(0/0, Inf - Inf, log of a negative)",
    "absorption": "an addend that is not zero changes nothing, or hardly: lost updates",
    "stagnation": "a running sum stops growing, or loses its small addends",
    "cancellation": "nearly equal numbers are subtracted, the rounding before it stays",
    "singular": "a function is evaluated beside its singularity, where it amplifies",
    "integer": "integers wrap around, or a float no longer holds them exactly",
    "saturation": "a scale is zero, infinite or clipped, or values clip at the limit "
    "of an 8- or 4-bit format",
    "coarse": "a format without the digits that are needed: steps, equal neighbours",
    "uniform": "an output that should vary is flat or one-hot (softmax, gates, ranks)",
    "stale-scale": "a scale of an earlier tensor no longer fits",
    "other": "none of these",
}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault.

    Attributes:
        name: unique in the whole set, words joined by "-".
        kinds: names of `KINDS`, the best first; more where several would be right.
        faulty: a function of arrays and pytrees whose source has one line that ends
            with the comment "# fault"; the fault happens in what this line computes.
        healthy: the same mathematics, as a careful author writes it.
        arguments: makes the arguments, small and seeded.
        policy: a preset of `neuronjax.Policy`, or one.
        target: the chip; MX formats need "trn3".
        source: the kind of bug report or the literature that the case is drawn from.
    """

    name: str
    kinds: tuple[str, ...]
    faulty: Callable[..., Any]
    healthy: Callable[..., Any]
    arguments: Callable[[], tuple[Any, ...]]
    policy: Any
    source: str
    target: str = "trn2"

    @property
    def line(self) -> tuple[str, int]:
        """(file, number) of the faulty line."""
        lines, first = inspect.getsourcelines(self.faulty)
        ends = [text.rstrip().endswith("# fault") for text in lines]
        marked = [n for n, end in enumerate(ends) if end]
        if len(marked) != 1:
            raise ValueError(f"{self.name}: {len(marked)} lines end with '# fault'")
        return inspect.getsourcefile(self.faulty) or "", first + marked[0]
